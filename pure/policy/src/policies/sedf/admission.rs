//! Reservations on each CPU: admission, placement, and shares that stay reserved after a vCPU gave
//! them up. A share becomes free when the vCPU's entitlement at the fluid rate equals the CPU time
//! that it used.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, CpuShare, Reservation, Span, Time, VcpuId};

use super::pass::ready;
use super::server::SedfServer;
use super::terms::{SedfParameters, WEIGHT_PERIOD, long_enough};
use super::{Sedf, SedfCpu, booking};
use crate::admission::fit::{FitPlacement, FitSearch};
use crate::admission::placement::{Packing, Request};
use crate::admission::split::{Splits, Subtask};
use crate::admission::zero_lag::ReservationBooks;
use crate::{AdmitError, Moment};

/// Result of an admission: the placement of the reservation, and CPU time to be deducted from it.
#[derive(Debug)]
pub(super) struct AdmittedReservation {
    /// Subtasks of a split vCPU. Empty if the vCPU is bound to one CPU as a whole.
    pub(super) parts: Vec<Subtask>,
    /// CPU to which the vCPU is bound, or the CPU of the first subtask.
    pub(super) cpu: CpuId,
    /// CPU time that the vCPU has used in excess of the fluid rate. Deducted from its first slices.
    pub(super) advance: Span,
    /// True if the vCPU gets no budget in its first period, so that no other vCPU is tardy.
    pub(super) waits: bool,
}

impl Sedf {
    /// Replaces the reservation of `vcpu` by `terms`. `before` has the current CPU and the excess
    /// over the fluid rate; it is `None` for a newcomer. If the reservation is refused, all state
    /// stays unchanged.
    pub(super) fn promise(
        &mut self,
        at: &Moment,
        vcpu: VcpuId,
        before: Option<(CpuId, Span)>,
        terms: &SedfParameters,
    ) -> Result<AdmittedReservation, AdmitError> {
        let (now, allowed) = (at.now(), at.allowed(vcpu));
        let slice = terms.reservation()?;
        let tallies =
            |cpus: &[SedfCpu]| cpus.iter().map(|cpu| cpu.tally.clone()).collect::<Vec<_>>();
        let splits = self.parting.as_ref().map(|parting| parting.splits.clone());
        let undone = (!self.holds.is_empty() || splits.is_some())
            .then(|| (self.holds.clone(), tallies(&self.cpus), splits));
        self.holds.lapse(now, &mut self.cpus);
        self.note_rests(at, allowed);
        self.rest_strict();
        let had = before.map(|_| &self.servers[vcpu]);
        let had = had.and_then(|server| server.terms.reservation().ok().flatten());
        let booked = before.and_then(|_| booking(&self.servers[vcpu]));
        let parts = self.take_parts(vcpu);
        let lifted = self.holds.lift(vcpu, booked, &mut self.cpus);
        let has_paid = self.stop_paying(vcpu);
        let place = SedfPlacement {
            sedf: self,
            cpus: &self.cpus,
            splits: self.parting.as_ref().map(|parting| &parting.splits),
            at,
            who: Some(vcpu),
            allowed,
            terms,
            home: before.map(|(home, _)| home).filter(|_| parts.is_empty()),
            before: had.map(|share| (share, &parts[..])),
            demand: &|cpu, slice| lifted.demand(cpu, slice, &self.cpus),
        };
        let found = place.find().inspect_err(|_| {
            if has_paid {
                self.pay(vcpu);
            }
            if let Some((holds, tallies, splits)) = undone {
                self.holds = holds;
                let cpus = self.cpus.iter_mut().zip(tallies);
                cpus.for_each(|(cpu, tally)| cpu.tally = tally);
                let parting = self.parting.iter_mut().zip(splits);
                parting.for_each(|(parting, splits)| parting.splits = splits);
            } else if let Some((home, slice)) = booked {
                self.cpus.add(home, slice);
            }
        })?;
        // A vCPU that has no slice now can have had a slice before, with usage that is not accrued
        // yet.
        let has_account = booked.is_some() || !parts.is_empty();
        let earlier = if has_account { Span::ZERO } else { lifted.advance(now) };
        let advance = before.map_or(earlier, |(_, advance)| advance.max(earlier));
        let FitPlacement { parts, cpu, waits } = found;
        let to = slice.filter(|_| parts.is_empty()).map(|slice| (cpu, slice));
        self.holds.settle(&lifted, to, (now, advance), &mut self.cpus);
        self.put_parts(vcpu, terms.period, &parts);
        if terms.balances {
            self.pay(vcpu);
        }
        Ok(AdmittedReservation { parts, cpu, advance, waits })
    }

    /// Releases the reservation of a vCPU that has left. Its capacity becomes free when the vCPU's
    /// entitlement at the fluid rate equals the CPU time that it used.
    pub(super) fn give_back(
        &mut self,
        now: Time,
        vcpu: VcpuId,
        server: &SedfServer,
        advance: Span,
    ) {
        self.holds.lapse(now, &mut self.cpus);
        self.take_parts(vcpu);
        let lifted = self.holds.lift(vcpu, booking(server), &mut self.cpus);
        self.holds.settle(&lifted, None, (now, advance), &mut self.cpus);
        let slice = server.terms.reservation().ok().flatten();
        if let Some(slice) = slice.filter(|_| server.in_parts.is_some()) {
            self.holds.note(vcpu, (server.cpu, slice), (now, advance));
        }
    }

    /// Returns the longest slice of this period that would be admitted now for one more vCPU.
    pub(super) fn longest(&self, at: &Moment, period: Span, allowed: CpuSet) -> Span {
        let Ok(least) = Reservation::new(Span::from_ns(1), period) else { return Span::ZERO };
        let tally = |cpu: &SedfCpu| SedfCpu { tally: cpu.tally.clone(), ..SedfCpu::default() };
        let mut cpus: Vec<SedfCpu> = self.cpus.iter().map(tally).collect();
        let (mut holds, resting) = (self.holds.clone(), self.resting(at, allowed));
        holds.lapse(at.now(), &mut cpus);
        let mut splits = self.parting.as_ref().map(|parting| parting.splits.clone());
        for cpu in resting.iter() {
            holds.rest(cpu, &mut cpus);
            splits.iter_mut().for_each(|splits| splits.rest(cpu));
        }
        let strict = splits.as_ref().map_or(CpuSet::NONE, Splits::strict);
        strict.iter().for_each(|cpu| holds.rest(cpu, &mut cpus));
        let place = SedfPlacement {
            sedf: self,
            cpus: &cpus,
            splits: splits.as_ref(),
            at,
            who: None,
            allowed,
            terms: &SedfParameters::of(least),
            home: None,
            before: None,
            demand: &|_, slice| slice,
        };
        place.room(period)
    }

    /// Frees the shares that vCPUs gave up and that are still reserved, on those of `cpus` that are
    /// quiescent. Also ends the demand test on these CPUs if they have no subtasks any more.
    pub(super) fn note_rests(&mut self, at: &Moment, cpus: CpuSet) {
        for cpu in self.resting(at, cpus).iter() {
            self.holds.rest(cpu, &mut self.cpus);
            self.leavings.rest(cpu);
            self.rest_parts(cpu);
        }
    }

    /// Returns the CPUs in `cpus` that are quiescent. Empty if quiescence would neither free a
    /// share nor end the demand test on a CPU.
    fn resting(&self, at: &Moment, cpus: CpuSet) -> CpuSet {
        let is_held = !self.holds.is_empty() || !self.leavings.is_empty();
        let matters = is_held || !self.strict().is_empty();
        let rests = |&cpu: &CpuId| matters && self.rests(at, cpu);
        cpus.iter().filter(rests).collect()
    }

    /// Returns true if a CPU is quiescent: no vCPU has budget left or can wake and claim some.
    pub(super) fn rests(&self, at: &Moment, cpu: CpuId) -> bool {
        let asleep = at.members().filter(|&vcpu| !at.is_awake(vcpu));
        let mut asleep = asleep.filter_map(|vcpu| self.servers.get(vcpu));
        self.deadlines.is_empty(ready(cpu))
            && !asleep.any(|server| server.cpu == cpu && server.claims_to_run(at.now()))
    }

    /// Returns the capacity of a CPU for a vCPU with these parameters. A vCPU that is charged for
    /// balancing may also use the share that is kept for balancing.
    fn capacity_for(&self, terms: &SedfParameters, cpu: CpuId) -> CpuShare {
        if terms.balances { self.rules.capacity } else { self.rules.capacity.less(self.kept(cpu)) }
    }

    /// Returns the share of a CPU that only a vCPU charged for balancing may reserve. Zero while
    /// there is such a vCPU.
    pub(super) fn kept(&self, cpu: CpuId) -> CpuShare {
        let kept = self.balancer.as_ref().map(|balancer| balancer.payers.keeps(cpu));
        kept.unwrap_or(CpuShare::NONE)
    }
}

/// Placement request of one vCPU.
struct SedfPlacement<'a> {
    sedf: &'a Sedf,
    /// Reservations of the other vCPUs by CPU.
    cpus: &'a [SedfCpu],
    /// Placement of split vCPUs. `None` if reservations are never split.
    splits: Option<&'a Splits>,
    at: &'a Moment,
    /// vCPU to place. `None` if only the longest slice is asked for.
    who: Option<VcpuId>,
    allowed: CpuSet,
    terms: &'a SedfParameters,
    /// CPU to which the vCPU is bound now. `None` if it is split or a newcomer.
    home: Option<CpuId>,
    /// Current slice of the vCPU, with its subtasks if it is split. `None` for a newcomer and for a
    /// vCPU without a fixed slice.
    before: Option<(Reservation, &'a [Subtask])>,
    /// Returns the reservation to book on a CPU for a slice. The result is larger if the vCPU gave
    /// up a larger share that is still reserved on the CPU.
    demand: &'a dyn Fn(CpuId, Reservation) -> Reservation,
}

impl SedfPlacement<'_> {
    /// Returns the most suitable CPU, or several CPUs for a split vCPU. A vCPU stays on its CPU if
    /// `terms` fit there.
    fn find(&self) -> Result<FitPlacement, AdmitError> {
        let slice = self.terms.reservation()?;
        let Some((slice, splits)) = slice.zip(self.splits) else {
            let found = self.whole(&|cpu| self.is_open(cpu) && self.fits(cpu, self.terms, slice));
            return found.map(FitPlacement::whole).map_err(|best| self.refuse(slice, best));
        };
        self.fitting(slice, splits, |fitting| fitting.find()).map_err(|room| {
            let best = self.whole(&|_| false).unwrap_or_else(|best| best);
            if self.allowed.len() == 1 && splits.strict().is_empty() {
                self.refuse(Some(slice), best)
            } else {
                self.refuse_parts(slice, long_enough(room))
            }
        })
    }

    /// Returns the longest slice of this period that fits, whole or split.
    fn room(&self, period: Span) -> Span {
        let least = Reservation::new(Span::from_ns(1), period);
        if let Some((least, splits)) = least.ok().zip(self.splits) {
            return long_enough(self.fitting(least, splits, |fitting| fitting.room()));
        }
        self.allowed.iter().map(|cpu| self.longest(period, cpu)).max().unwrap_or(Span::ZERO)
    }

    /// Builds the search for a placement of `share`, whole or split, and returns the result of
    /// `ask` for this search.
    fn fitting<T>(
        &self,
        share: Reservation,
        splits: &Splits,
        ask: impl FnOnce(&FitSearch<'_>) -> T,
    ) -> T {
        let SedfPlacement { allowed, before, .. } = *self;
        let demands = &|| self.sedf.demands(self.at, (self.who, self.terms), allowed);
        let fits = &|cpu, slice| self.fits(cpu, &SedfParameters::of(slice), Some(slice));
        let whole = &|fits: &dyn Fn(CpuId) -> bool| self.whole(fits);
        ask(&FitSearch { splits, share, allowed, before, only_open: false, demands, fits, whole })
    }

    /// Returns true if the CPU accepts these parameters, apart from capacity. A vCPU with a weight
    /// would get all time that is left on the CPU, so it is refused where a vCPU is split.
    fn is_open(&self, cpu: CpuId) -> bool {
        self.terms.weight == 0 || self.splits.is_none_or(|splits| !splits.strict().contains(cpu))
    }

    /// Returns true if a CPU has the capacity for these parameters. Always true without admission
    /// control.
    fn fits(&self, cpu: CpuId, terms: &SedfParameters, slice: Option<Reservation>) -> bool {
        let slice = slice.map(|slice| (self.demand)(cpu, slice));
        let capacity = self.sedf.capacity_for(self.terms, cpu);
        !self.sedf.rules.admits_exactly
            || self.cpus[cpu.index()].tally.has_room(terms, slice, capacity)
    }

    /// Returns the best CPU for the whole vCPU among those for which `fits` is true. If there is no
    /// such CPU, the error is the best of all allowed CPUs.
    fn whole(&self, fits: &dyn Fn(CpuId) -> bool) -> Result<CpuId, CpuId> {
        let appeal = |cpu: CpuId| self.cpus[cpu.index()].tally.appeal(self.terms);
        let compare = |this, that| appeal(this).compare(&appeal(that));
        let request = Request { allowed: self.allowed, home: self.home, fits, compare };
        let has_slice = !self.terms.slice.is_zero();
        request.place(if has_slice { self.sedf.rules.packing } else { Packing::Spread })
    }

    fn longest(&self, period: Span, cpu: CpuId) -> Span {
        let capacity = self.sedf.capacity_for(self.terms, cpu);
        let demand = |slice| (self.demand)(cpu, slice);
        self.cpus[cpu.index()].tally.longest(period, demand, capacity)
    }

    /// Returns the error for a vCPU that fits on no CPU. `best` is the most suitable CPU.
    fn refuse(&self, slice: Option<Reservation>, best: CpuId) -> AdmitError {
        if !self.is_open(best) {
            return self.refuse_parts(weighed(), Span::ZERO);
        }
        let room = |cpu| Some(self.longest(slice?.period(), cpu));
        AdmitError::NoRoom {
            asked: slice.unwrap_or_else(weighed),
            promised: self.cpus[best.index()].tally.share(),
            capacity: self.sedf.capacity_for(self.terms, best),
            cpus: self.allowed.len(),
            dispatching: slice.and_then(|asked| self.sedf.looks.dispatching(asked)),
            room: self.allowed.iter().filter_map(room).max().unwrap_or(Span::ZERO),
            free_after: Span::ZERO,
        }
    }

    /// Returns the error for a vCPU that fits neither whole nor split.
    fn refuse_parts(&self, asked: Reservation, room: Span) -> AdmitError {
        let promised = |cpu: CpuId| self.cpus[cpu.index()].tally.share().ppm();
        let capacity = |cpu: CpuId| self.sedf.capacity_for(self.terms, cpu).ppm();
        AdmitError::NoRoomInParts {
            asked,
            promised: CpuShare::from_ppm(self.allowed.iter().map(promised).sum()),
            capacity: CpuShare::from_ppm(self.allowed.iter().map(capacity).sum()),
            cpus: self.allowed.len(),
            dispatching: self.sedf.looks.dispatching(asked),
            room,
        }
    }
}

/// Returns a placeholder (1 ns) for the reservation in the error that refuses a vCPU with a weight,
/// which has no reservation of its own. A best-effort vCPU is never refused.
fn weighed() -> Reservation {
    Reservation::new(Span::from_ns(1), WEIGHT_PERIOD).expect("1 ns is shorter than the period")
}
