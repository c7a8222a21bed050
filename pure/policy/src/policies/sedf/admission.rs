//! What is promised on each CPU, where what is asked for goes, and who waits there for its due.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, CpuShare, Reservation, Span, Time, VcpuId};

use super::pass::ready;
use super::server::Server;
use super::terms::{Share, WEIGHT_PERIOD, long_enough};
use super::{Cpu, Sedf, booking};
use crate::admission::fit::{Fitting, Found};
use crate::admission::placement::{Packing, Request};
use crate::admission::split::{Part, Splits};
use crate::admission::zero_lag::Books;
use crate::{AdmitError, Moment};

/// What somebody is promised from now on.
#[derive(Debug)]
pub(super) struct Promised {
    /// None where it is bound to a CPU as a whole.
    pub(super) parts: Vec<Part>,
    /// That CPU, or that of the first part.
    pub(super) cpu: CpuId,
    /// What it has had of it in advance.
    pub(super) advance: Span,
    /// Whether it must do without the slice of its first period, so that nobody is late for it.
    pub(super) waits: bool,
}

impl Sedf {
    /// Promises somebody these terms in the place of those it has, of which so much has been had in
    /// advance, on the CPU where it is. On failure everything stands as it was.
    pub(super) fn promise(
        &mut self,
        at: &Moment,
        vcpu: VcpuId,
        before: Option<(CpuId, Span)>,
        terms: &Share,
    ) -> Result<Promised, AdmitError> {
        let (now, allowed) = (at.now(), at.allowed(vcpu));
        let slice = terms.reservation()?;
        let tallies = |cpus: &[Cpu]| cpus.iter().map(|cpu| cpu.tally.clone()).collect::<Vec<_>>();
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
        let place = Place {
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
        // Who has no slice now may have had one that has not been earned yet.
        let has_account = booked.is_some() || !parts.is_empty();
        let earlier = if has_account { Span::ZERO } else { lifted.advance(now) };
        let advance = before.map_or(earlier, |(_, advance)| advance.max(earlier));
        let Found { parts, cpu, waits } = found;
        let to = slice.filter(|_| parts.is_empty()).map(|slice| (cpu, slice));
        self.holds.settle(&lifted, to, (now, advance), &mut self.cpus);
        self.put_parts(vcpu, terms.period, &parts);
        if terms.balances {
            self.pay(vcpu);
        }
        Ok(Promised { parts, cpu, advance, waits })
    }

    /// What somebody was promised who is gone is given back, as it has been earned.
    pub(super) fn give_back(&mut self, now: Time, vcpu: VcpuId, server: &Server, advance: Span) {
        self.holds.lapse(now, &mut self.cpus);
        self.take_parts(vcpu);
        let lifted = self.holds.lift(vcpu, booking(server), &mut self.cpus);
        self.holds.settle(&lifted, None, (now, advance), &mut self.cpus);
        let slice = server.terms.reservation().ok().flatten();
        if let Some(slice) = slice.filter(|_| server.in_parts.is_some()) {
            self.holds.note(vcpu, (server.cpu, slice), (now, advance));
        }
    }

    /// The longest slice of such a period that would be promised now to one more.
    pub(super) fn longest(&self, at: &Moment, period: Span, allowed: CpuSet) -> Span {
        let Ok(least) = Reservation::new(Span::from_ns(1), period) else { return Span::ZERO };
        let tally = |cpu: &Cpu| Cpu { tally: cpu.tally.clone(), ..Cpu::default() };
        let mut cpus: Vec<Cpu> = self.cpus.iter().map(tally).collect();
        let (mut holds, resting) = (self.holds.clone(), self.resting(at, allowed));
        holds.lapse(at.now(), &mut cpus);
        let mut splits = self.parting.as_ref().map(|parting| parting.splits.clone());
        for cpu in resting.iter() {
            holds.rest(cpu, &mut cpus);
            splits.iter_mut().for_each(|splits| splits.rest(cpu));
        }
        let strict = splits.as_ref().map_or(CpuSet::NONE, Splits::strict);
        strict.iter().for_each(|cpu| holds.rest(cpu, &mut cpus));
        let place = Place {
            sedf: self,
            cpus: &cpus,
            splits: splits.as_ref(),
            at,
            who: None,
            allowed,
            terms: &Share::of(least),
            home: None,
            before: None,
            demand: &|_, slice| slice,
        };
        place.room(period)
    }

    /// Where nobody is owed anything, nobody waits for what others had in advance.
    pub(super) fn note_rests(&mut self, at: &Moment, cpus: CpuSet) {
        for cpu in self.resting(at, cpus).iter() {
            self.holds.rest(cpu, &mut self.cpus);
            self.leavings.rest(cpu);
            self.rest_parts(cpu);
        }
    }

    /// Those of some CPUs where nobody is owed anything, if that makes a difference.
    fn resting(&self, at: &Moment, cpus: CpuSet) -> CpuSet {
        let is_held = !self.holds.is_empty() || !self.leavings.is_empty();
        let matters = is_held || !self.strict().is_empty();
        let rests = |&cpu: &CpuId| matters && self.rests(at, cpu);
        cpus.iter().filter(rests).collect()
    }

    /// Whether nobody is owed a slice on a CPU, nor will claim to have been when it wakes.
    pub(super) fn rests(&self, at: &Moment, cpu: CpuId) -> bool {
        let asleep = at.members().filter(|&vcpu| !at.is_awake(vcpu));
        let mut asleep = asleep.filter_map(|vcpu| self.servers.get(vcpu));
        self.deadlines.is_empty(ready(cpu))
            && !asleep.any(|server| server.cpu == cpu && server.claims_to_run(at.now()))
    }

    /// What a CPU may promise to somebody: who pays for balancing may have what is kept for that.
    fn capacity_for(&self, terms: &Share, cpu: CpuId) -> CpuShare {
        if terms.balances { self.rules.capacity } else { self.rules.capacity.less(self.kept(cpu)) }
    }

    /// What of a CPU is kept for who pays for balancing.
    pub(super) fn kept(&self, cpu: CpuId) -> CpuShare {
        let kept = self.balancer.as_ref().map(|balancer| balancer.payers.keeps(cpu));
        kept.unwrap_or(CpuShare::NONE)
    }
}

/// A question where somebody should go.
struct Place<'a> {
    sedf: &'a Sedf,
    /// What is promised where, to others.
    cpus: &'a [Cpu],
    /// Where reservations may be split.
    splits: Option<&'a Splits>,
    at: &'a Moment,
    who: Option<VcpuId>,
    allowed: CpuSet,
    terms: &'a Share,
    /// Where it is bound as a whole already.
    home: Option<CpuId>,
    /// The slice that it has, and its parts if it is split.
    before: Option<(Reservation, &'a [Part])>,
    /// What a slice takes on a CPU where more of it may stay promised.
    demand: &'a dyn Fn(CpuId, Reservation) -> Reservation,
}

impl Place<'_> {
    /// The CPU on which its terms would fare best; its own if they fit there. Or several.
    fn find(&self) -> Result<Found, AdmitError> {
        let slice = self.terms.reservation()?;
        let Some((slice, splits)) = slice.zip(self.splits) else {
            let found = self.whole(&|cpu| self.is_open(cpu) && self.fits(cpu, self.terms, slice));
            return found.map(Found::whole).map_err(|best| self.refuse(slice, best));
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

    fn room(&self, period: Span) -> Span {
        let least = Reservation::new(Span::from_ns(1), period);
        if let Some((least, splits)) = least.ok().zip(self.splits) {
            return long_enough(self.fitting(least, splits, |fitting| fitting.room()));
        }
        self.allowed.iter().map(|cpu| self.longest(period, cpu)).max().unwrap_or(Span::ZERO)
    }

    /// Asks where a slice goes, as a whole or in parts.
    fn fitting<T>(
        &self,
        share: Reservation,
        splits: &Splits,
        ask: impl FnOnce(&Fitting<'_>) -> T,
    ) -> T {
        let Place { allowed, before, .. } = *self;
        let demands = &|| self.sedf.demands(self.at, (self.who, self.terms), allowed);
        let fits = &|cpu, slice| self.fits(cpu, &Share::of(slice), Some(slice));
        let whole = &|fits: &dyn Fn(CpuId) -> bool| self.whole(fits);
        ask(&Fitting { splits, share, allowed, before, only_open: false, demands, fits, whole })
    }

    /// Whether a CPU takes slices by weight: they fill it, and leave nothing to who is split there.
    fn is_open(&self, cpu: CpuId) -> bool {
        self.terms.weight == 0 || self.splits.is_none_or(|splits| !splits.strict().contains(cpu))
    }

    fn fits(&self, cpu: CpuId, terms: &Share, slice: Option<Reservation>) -> bool {
        let slice = slice.map(|slice| (self.demand)(cpu, slice));
        let capacity = self.sedf.capacity_for(self.terms, cpu);
        !self.sedf.rules.admits_exactly
            || self.cpus[cpu.index()].tally.has_room(terms, slice, capacity)
    }

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
        }
    }

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

/// What is said to be asked for of who goes by weight. Best effort is never refused.
fn weighed() -> Reservation {
    Reservation::new(Span::from_ns(1), WEIGHT_PERIOD).expect("a nanosecond is less")
}
