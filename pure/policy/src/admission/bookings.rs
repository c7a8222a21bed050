//! Admission test of EDF: on each CPU the sum of slice/period may not exceed the capacity. The sums
//! are exact.
//! Source: [VSched §3.1], equation 1; Liu and Layland 1973.
//!
//! Dispatch overhead (`dispatch_overhead`) is added to each reservation. On the CPUs of split vCPUs
//! (`split`), every reservation is admitted by the processor-demand test instead.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, CpuShare, Reservation, Span, Time, VcpuId};

use crate::admission::demand::Demand;
pub(crate) use crate::admission::dispatch_overhead::{DispatchOverhead, longest_slice};
use crate::admission::fit::{FitPlacement, FitSearch};
pub(crate) use crate::admission::load::ReservedLoad;
use crate::admission::placement::{Packing, Request};
use crate::admission::split::{Splits, Subtask};
use crate::admission::zero_lag::{DetachedBooking, Holds, ReservationBooks};
use crate::{AdmitError, Moment, Topology};

/// Reservations by CPU, for policies that bind each reservation to one CPU or split it.
#[derive(Clone, Debug)]
pub(crate) struct Bookings {
    loads: Loads,
    /// Largest share of each CPU that reservations may take. `None` if there is no limit.
    capacity: Option<CpuShare>,
    packing: Packing,
    holds: Holds<CpuId>,
    /// Split reservations. `None` if the policy never splits a vCPU.
    splits: Option<Splits>,
}

/// Reserved load, indexed by CPU.
#[derive(Clone, Debug)]
struct Loads {
    /// Reserved load of each CPU, with dispatch overhead.
    loads: Vec<ReservedLoad>,
    looks: DispatchOverhead,
}

impl ReservationBooks for Loads {
    type Place = CpuId;

    fn add(&mut self, cpu: CpuId, share: Reservation) {
        let demand = self.looks.demand(share);
        self.loads[cpu.index()].add(demand);
    }

    fn remove(&mut self, cpu: CpuId, share: Reservation) {
        let demand = self.looks.demand(share);
        self.loads[cpu.index()].remove(demand);
    }

    fn takes_more(&self, one: Reservation, other: Reservation) -> bool {
        self.looks.demand(one).is_more_than(self.looks.demand(other))
    }
}

/// A request to admit a reservation, with the state that admission depends on.
#[derive(Clone, Copy)]
pub(crate) struct AdmissionRequest<'a> {
    pub(crate) at: Time,
    pub(crate) share: Reservation,
    /// True if the periods begin at fixed phases. A reservation at fixed phases is not split, and
    /// no part of a split vCPU is placed on its CPU.
    pub(crate) on_grid: bool,
    /// CPUs on which the reservation may be placed.
    pub(crate) allowed: CpuSet,
    /// CPUs in `allowed` that are [quiescent](Bookings::rest).
    pub(crate) resting: CpuSet,
    /// Loans of budget that count as load, each with its CPU and the share lent.
    pub(crate) lent: &'a [(CpuId, Reservation)],
    /// Returns, for each CPU, the demand of all other vCPUs from now on. If the entry of a CPU is
    /// `None`, no vCPU can be split on that CPU. Called only if a vCPU is split, or if this
    /// reservation might be split.
    pub(crate) demands: &'a dyn Fn() -> Vec<Option<Demand>>,
}

/// Placement of a reservation: its CPU or its subtasks, and the excess that the vCPU has to pay
/// back.
#[derive(Clone, Debug)]
pub(crate) struct BookedPlacement {
    /// Subtasks of a split reservation. Empty if the reservation is bound to one CPU.
    pub(crate) parts: Vec<Subtask>,
    /// CPU of the whole reservation, or of its first subtask.
    pub(crate) cpu: CpuId,
    /// CPU time that the vCPU has used in excess of the fluid rate, under its previous reservation.
    /// Zero for a newcomer that does not rejoin.
    pub(crate) advance: Span,
    /// True if the vCPU gets its slice only from its second period on, since otherwise other vCPUs
    /// would miss deadlines.
    pub(crate) waits: bool,
}

/// A vCPU whose reservation changes or ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenant {
    pub(crate) vcpu: VcpuId,
    /// CPU to which the vCPU is bound.
    pub(crate) cpu: CpuId,
    pub(crate) share: Reservation,
    /// CPU time that the vCPU has used in excess of the fluid rate.
    pub(crate) advance: Span,
}

impl Bookings {
    /// Creates the bookings of a host, without any reservation.
    pub(crate) fn new(
        topology: &Topology,
        capacity: Option<CpuShare>,
        packing: Packing,
    ) -> Bookings {
        let loads = alloc::vec![ReservedLoad::default(); topology.cpus()];
        let loads = Loads { loads, looks: DispatchOverhead::on(topology) };
        let splits = capacity.filter(|_| packing == Packing::Split);
        let splits = splits.map(|capacity| Splits::new(capacity, loads.looks));
        Bookings { loads, capacity, packing, holds: Holds::new(), splits }
    }

    /// Binds the reservation of a newcomer to one of the allowed CPUs, or splits it. If the vCPU
    /// rejoins, the result includes the CPU time that the vCPU used in excess of the fluid rate
    /// before it left.
    pub(crate) fn add(
        &mut self,
        vcpu: VcpuId,
        asked: &AdmissionRequest<'_>,
    ) -> Result<BookedPlacement, AdmitError> {
        self.rebook(vcpu, None, asked)
    }

    /// Replaces the reservation of a vCPU. The new reservation stays on the same CPU if it fits
    /// there. After an error the old reservation stays in force.
    pub(crate) fn replace(
        &mut self,
        tenant: Tenant,
        asked: &AdmissionRequest<'_>,
    ) -> Result<BookedPlacement, AdmitError> {
        self.rebook(tenant.vcpu, Some(tenant), asked)
    }

    /// Books a reservation for a vCPU. The reservation replaces the reservation of `tenant`; for a
    /// newcomer `tenant` is `None`. After an error nothing has changed.
    fn rebook(
        &mut self,
        vcpu: VcpuId,
        tenant: Option<Tenant>,
        asked: &AdmissionRequest<'_>,
    ) -> Result<BookedPlacement, AdmitError> {
        let AdmissionRequest { at, share, .. } = *asked;
        let needs_undoing = !self.holds.is_empty() || self.splits.is_some();
        let before =
            needs_undoing.then(|| (self.holds.clone(), self.loads.clone(), self.splits.clone()));
        self.clear_up(at, asked.resting);
        let parts = self.take_parts(vcpu);
        let now = tenant.filter(|_| parts.is_empty()).map(|tenant| (tenant.cpu, tenant.share));
        let lifted = self.holds.lift(vcpu, now, &mut self.loads);
        let advance = tenant.map_or_else(|| lifted.advance(at), |tenant| tenant.advance);
        let place = PlacementSearch {
            books: self,
            asked,
            home: now.map(|(home, _)| home),
            before: tenant.map(|tenant| (tenant.share, &parts[..])),
            demand: &|cpu, share| lifted.demand(cpu, share, &self.loads),
        };
        match place.find() {
            Ok(FitPlacement { cpu, parts, waits }) => {
                let to = parts.is_empty().then_some((cpu, share));
                self.holds.settle(&lifted, to, (at, advance), &mut self.loads);
                self.put_parts(vcpu, share.period(), &parts);
                Ok(BookedPlacement { parts, cpu, advance, waits })
            }
            Err(mut error) => {
                if let AdmitError::NoRoom { free_after, .. } = &mut error {
                    *free_after = self.free_after(&lifted, asked);
                }
                if let Some(before) = before {
                    (self.holds, self.loads, self.splits) = before;
                } else if let Some((home, share)) = now {
                    self.loads.add(home, share);
                }
                Err(error)
            }
        }
    }

    /// Returns the time until a refused reservation fits on one CPU, if no reservation changes in
    /// between. Zero if the reservation does not fit even after the release of all shares that
    /// vCPUs have given up.
    fn free_after(&self, lifted: &DetachedBooking<CpuId>, asked: &AdmissionRequest<'_>) -> Span {
        let fits_at = |end: &Time| {
            let mut then = self.clone();
            then.holds.lapse(*end, &mut then.loads);
            let demand = |cpu, share| lifted.demand_at(*end, (cpu, share), &then.loads);
            let (home, before) = (None, None);
            let search = PlacementSearch { books: &then, asked, home, before, demand: &demand };
            asked.allowed.iter().any(|cpu| search.fits(cpu, asked.share))
        };
        let mut ends: Vec<Time> = self.holds.ends().chain(lifted.ends()).collect();
        ends.sort_unstable();
        // Held shares only free capacity when they end, so bisection finds the first such end.
        let first = ends.partition_point(|end| !fits_at(end));
        ends.get(first).map_or(Span::ZERO, |end| end.since(asked.at))
    }

    /// Ends a reservation. Its share stays reserved until the vCPU's entitlement (slice × elapsed /
    /// period) equals the CPU time that the vCPU has used. `owed` is excess that the vCPU pays back
    /// if it rejoins. This excess does not keep the share reserved for longer, since no other vCPU
    /// waits for the CPU time.
    pub(crate) fn remove(&mut self, now: Time, tenant: Tenant, owed: Span) {
        let Tenant { vcpu, cpu, share, advance } = tenant;
        self.holds.lapse(now, &mut self.loads);
        let is_whole = self.take_parts(vcpu).is_empty();
        let lifted = self.holds.lift(vcpu, is_whole.then_some((cpu, share)), &mut self.loads);
        self.holds.settle(&lifted, None, (now, advance), &mut self.loads);
        if !is_whole || !owed.is_zero() {
            self.holds.note(vcpu, (cpu, share), (now, advance + owed));
        }
    }

    /// Releases each share that a vCPU gave up and whose zero-lag time has passed: the vCPU's
    /// entitlement has reached the CPU time that the vCPU used. On quiescent and on strict CPUs,
    /// releases all shares that vCPUs gave up, even before their zero-lag times. Also ends the
    /// demand test on quiescent CPUs that have no split vCPU.
    fn clear_up(&mut self, now: Time, resting: CpuSet) {
        self.holds.lapse(now, &mut self.loads);
        resting.iter().for_each(|cpu| self.rest(cpu));
        for cpu in self.strict().iter() {
            // The demand test on these CPUs starts from the budgets that are left now, so shares
            // that vCPUs gave up need not stay reserved.
            self.holds.rest(cpu, &mut self.loads);
        }
    }

    /// Removes the subtasks of a vCPU and returns them. Empty if the vCPU is not split.
    fn take_parts(&mut self, vcpu: VcpuId) -> Vec<Subtask> {
        let Some(splits) = &mut self.splits else { return Vec::new() };
        let loads = &mut self.loads.loads;
        splits.remove(vcpu, |cpu, rate| loads[cpu.index()].remove(rate))
    }

    /// Books the subtasks of a vCPU. Does nothing if `parts` is empty.
    fn put_parts(&mut self, vcpu: VcpuId, period: Span, parts: &[Subtask]) {
        let Some(splits) = self.splits.as_mut().filter(|_| !parts.is_empty()) else { return };
        let loads = &mut self.loads.loads;
        splits.insert((vcpu, period, parts), |cpu, rate| loads[cpu.index()].add(rate));
        parts.iter().for_each(|part| self.holds.rest(part.cpu, &mut self.loads));
    }

    /// Returns true if the CPU is *strict* (admission by the demand test) only because of vCPUs
    /// that are no longer split on it.
    pub(crate) fn is_left_over(&self, cpu: CpuId) -> bool {
        self.splits.as_ref().is_some_and(|splits| splits.is_left_over(cpu))
    }

    /// Returns the strict CPUs: those that have a split vCPU, or had one since they were last
    /// quiescent. On a strict CPU every reservation is admitted by the demand test, and a vCPU
    /// forfeits budget while it is blocked.
    pub(crate) fn strict(&self) -> CpuSet {
        self.splits.as_ref().map_or(CpuSet::NONE, Splits::strict)
    }

    /// Returns the dispatch overhead per period on this host.
    pub(crate) fn looks(&self) -> DispatchOverhead {
        self.loads.looks
    }

    /// Returns the admission request of a vCPU that is to be bound to one of the allowed CPUs.
    pub(crate) fn asked(
        &self,
        at: &Moment,
        share: Reservation,
        allowed: CpuSet,
        rests: impl Fn(CpuId) -> bool,
    ) -> AdmissionRequest<'static> {
        let resting = self.resting(allowed, rests);
        let at = at.now();
        AdmissionRequest {
            at,
            share,
            on_grid: false,
            allowed,
            resting,
            lent: &[],
            demands: &Vec::new,
        }
    }

    /// Returns the CPUs in `cpus` that are [quiescent](Bookings::rest). Empty if quiescence changes
    /// nothing: no share that a vCPU gave up is still reserved, and no CPU needs the demand test.
    pub(crate) fn resting(&self, cpus: CpuSet, rests: impl Fn(CpuId) -> bool) -> CpuSet {
        let matters = !self.holds.is_empty() || !self.strict().is_empty();
        cpus.iter().filter(|&cpu| matters && rests(cpu)).collect()
    }

    /// Returns the longest slice with the requested period that would be admitted now. `None` if
    /// the policy does not limit reservations.
    pub(crate) fn room(&self, asked: &AdmissionRequest<'_>) -> Option<Span> {
        self.capacity?;
        let mut then = self.clone();
        then.clear_up(asked.at, asked.resting);
        let demand = &|_, share| share;
        let place = PlacementSearch { books: &then, asked, home: None, before: None, demand };
        Some(place.room())
    }

    /// Returns the available capacity of a CPU in 2^-64ths of a CPU. Zero if the policy does not
    /// limit reservations.
    pub(crate) fn free(&self, cpu: CpuId) -> u128 {
        let load = &self.loads.loads[cpu.index()];
        self.capacity.map_or(0, |capacity| load.left_of(capacity))
    }

    /// Records that a CPU is quiescent: no vCPU on it has budget left or can wake with budget.
    pub(crate) fn rest(&mut self, cpu: CpuId) {
        self.holds.rest(cpu, &mut self.loads);
        if let Some(splits) = &mut self.splits {
            splits.rest(cpu);
        }
    }

    /// Returns the unreserved share of a CPU, rounded down to a millionth.
    pub(crate) fn left(&self, cpu: CpuId) -> CpuShare {
        let ppm = (self.loads.loads[cpu.index()].bound() * 1_000_000).div_ceil(1 << 64);
        CpuShare::ONE.less(CpuShare::from_ppm(u32::try_from(ppm).unwrap_or(1_000_000)))
    }
}

/// Search for a placement of one requested reservation.
struct PlacementSearch<'a> {
    books: &'a Bookings,
    asked: &'a AdmissionRequest<'a>,
    /// CPU to which the vCPU is bound now. `None` if it is split or a newcomer.
    home: Option<CpuId>,
    /// Current reservation of the vCPU, with its subtasks if it is split. `None` for a newcomer.
    before: Option<(Reservation, &'a [Subtask])>,
    /// Returns the reservation to book on a CPU for a requested reservation. The result is larger
    /// if the same vCPU gave up a larger share that is still reserved on the CPU.
    demand: &'a dyn Fn(CpuId, Reservation) -> Reservation,
}

impl PlacementSearch<'_> {
    /// Returns the placement, or the error with which the request is refused.
    fn find(&self) -> Result<FitPlacement, AdmitError> {
        let Some(splits) = &self.books.splits else {
            let fits = |cpu| self.fits(cpu, self.asked.share);
            return self.whole(&fits).map(FitPlacement::whole).map_err(|best| self.refuse(best));
        };
        self.fitting(splits, |fitting| fitting.find()).map_err(|room| {
            let best = self.whole(&|_| false).unwrap_or_else(|best| best);
            if self.asked.allowed.len() == 1 && splits.strict().is_empty() {
                self.refuse(best)
            } else {
                self.refuse_parts(room)
            }
        })
    }

    /// Builds the placement search for policies that split vCPUs, and returns the result of `ask`
    /// for that search.
    fn fitting<T>(&self, splits: &Splits, ask: impl FnOnce(&FitSearch<'_>) -> T) -> T {
        let AdmissionRequest { share, allowed, on_grid: only_open, demands, .. } = *self.asked;
        let fits = &|cpu, share| self.fits(cpu, share);
        let whole = &|fits: &dyn Fn(CpuId) -> bool| self.whole(fits);
        let before = self.before;
        ask(&FitSearch { splits, share, allowed, before, only_open, demands, fits, whole })
    }

    /// Returns the best CPU for the whole reservation among the CPUs for which `fits` is true. If
    /// there is no such CPU, the error is the best of all allowed CPUs.
    fn whole(&self, fits: &dyn Fn(CpuId) -> bool) -> Result<CpuId, CpuId> {
        let load = |cpu: CpuId| &self.books.loads.loads[cpu.index()];
        let compare = |this, that| load(this).bound().cmp(&load(that).bound());
        let request = Request { allowed: self.asked.allowed, home: self.home, fits, compare };
        request.place(self.books.packing)
    }

    fn fits(&self, cpu: CpuId, share: Reservation) -> bool {
        let demand = self.books.loads.looks.demand((self.demand)(cpu, share));
        self.books.capacity.is_none_or(|capacity| self.taken(cpu).has_room(demand, capacity))
    }

    /// Returns the load of a CPU: its reservations and the budget lent on it.
    fn taken(&self, cpu: CpuId) -> Cow<'_, ReservedLoad> {
        let mut load = Cow::Borrowed(&self.books.loads.loads[cpu.index()]);
        let lent = self.asked.lent.iter().filter(|(at, _)| *at == cpu);
        lent.for_each(|(_, lent)| load.to_mut().add(*lent));
        load
    }

    /// Returns the error for a reservation that fits on no CPU. `roomiest` is the best of the
    /// allowed CPUs.
    fn refuse(&self, roomiest: CpuId) -> AdmitError {
        let (asked, books) = (self.asked.share, self.books);
        let room = |cpu| longest_slice(asked.period(), |asked| self.fits(cpu, asked));
        AdmitError::NoRoom {
            asked,
            promised: self.taken(roomiest).share(),
            capacity: books.capacity.expect("only a limit refuses a reservation"),
            cpus: self.asked.allowed.len(),
            dispatching: books.loads.looks.dispatching(asked),
            room: self.asked.allowed.iter().map(room).max().unwrap_or(Span::ZERO),
            free_after: Span::ZERO,
        }
    }

    /// Returns the error for a reservation that fits neither whole nor split. `room` is the longest
    /// slice that would fit.
    fn refuse_parts(&self, room: Span) -> AdmitError {
        let (asked, books) = (self.asked.share, self.books);
        let capacity = books.capacity.expect("only a limit refuses a reservation");
        let cpus = self.asked.allowed.len();
        let promised = |cpu: CpuId| books.loads.loads[cpu.index()].share().ppm();
        AdmitError::NoRoomInParts {
            asked,
            promised: CpuShare::from_ppm(self.asked.allowed.iter().map(promised).sum()),
            capacity: CpuShare::from_ppm(
                capacity.ppm() * u32::try_from(cpus).expect("a host has at most 256 CPUs"),
            ),
            cpus,
            dispatching: books.loads.looks.dispatching(asked),
            room,
        }
    }

    fn room(&self) -> Span {
        if let Some(splits) = &self.books.splits {
            return self.fitting(splits, |fitting| fitting.room());
        }
        let room = |cpu| longest_slice(self.asked.share.period(), |asked| self.fits(cpu, asked));
        self.asked.allowed.iter().map(room).max().unwrap_or(Span::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use slackline_units::DomId;

    use super::*;

    #[test]
    fn admission_counts_dispatch_overhead_and_refusals_state_the_overhead() {
        let ms =
            |slice, period| Reservation::new(Span::from_us(slice), Span::from_us(period)).unwrap();
        let capacity = Some(CpuShare::from_ppm(950_000));
        let book = |dispatch| {
            let topology = Topology::flat(1).with_dispatch(dispatch);
            Bookings::new(&topology, capacity, Packing::Spread)
        };
        let vcpu = |slot| VcpuId::new(slot, DomId::new(slot), 0);
        // Three demands of 45 % of a CPU compete for 95 %.
        let share = ms(45, 100);
        let asked = request(Time::START, share);
        for (dispatch, fit) in [(0, 2), (2, 1), (1, 2)] {
            let mut booked = book(Span::from_us(dispatch));
            let admitted = (0..3).take_while(|&slot| booked.add(vcpu(slot), &asked).is_ok());
            assert_eq!(admitted.count(), fit, "{dispatch} us per dispatch");
            let cpu = CpuId::new(0);
            let first = Tenant { vcpu: vcpu(0), cpu, share, advance: Span::ZERO };
            booked.remove(Time::START, first, Span::ZERO);
            assert!(booked.add(vcpu(0), &asked).is_ok(), "released capacity is available again");
        }
        let mut booked = book(Span::ZERO);
        booked.add(vcpu(0), &AdmissionRequest { share: ms(1, 3), ..asked }).unwrap();
        assert_eq!(booked.left(CpuId::new(0)), CpuShare::from_ppm(666_666));
        let mut booked = book(Span::from_us(2));
        booked.add(vcpu(0), &asked).unwrap();
        let refused = booked.add(vcpu(1), &asked).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "45us every 100us (0.45cpu) plus 0.04cpu for 20000 dispatches a second does not fit: \
             0.49cpu of at most 0.95cpu is already reserved on the CPU"
        );
    }

    /// Returns a request for a share of the first CPU.
    fn request(at: Time, share: Reservation) -> AdmissionRequest<'static> {
        AdmissionRequest {
            at,
            share,
            on_grid: false,
            allowed: CpuSet::first_n(1),
            resting: CpuSet::NONE,
            lent: &[],
            demands: &Vec::new,
        }
    }

    /// A vCPU has run for its whole slice, 60 of 100 us, and then shrinks to 10 us. At 100 us its
    /// entitlement reaches these 60 us. Until then its old share stays reserved.
    #[test]
    fn refusal_includes_time_at_which_held_share_becomes_free() {
        let us = |slice| Reservation::new(Span::from_us(slice), Span::from_us(100)).unwrap();
        let capacity = Some(CpuShare::from_ppm(900_000));
        let mut booked = Bookings::new(&Topology::flat(1), capacity, Packing::Spread);
        let vcpu = |slot| VcpuId::new(slot, DomId::new(slot), 0);
        let asked = |us_now, share| request(Time::START.after(Span::from_us(us_now)), share);
        booked.add(vcpu(0), &asked(0, us(60))).unwrap();
        booked.add(vcpu(1), &asked(0, us(30))).unwrap();
        let (cpu, advance) = (CpuId::new(0), Span::from_us(60));
        let first = Tenant { vcpu: vcpu(0), cpu, share: us(60), advance };
        booked.replace(first, &asked(0, us(10))).unwrap();
        let mut free_after = |us_now, slice| match booked.add(vcpu(2), &asked(us_now, us(slice))) {
            Err(AdmitError::NoRoom { free_after, .. }) => Err(free_after),
            added => added.map(|_| ()).map_err(|error| panic!("{error}")),
        };
        assert_eq!(free_after(40, 50), Err(Span::from_us(60)));
        assert_eq!(free_after(40, 51), Err(Span::ZERO), "it does not fit even then");
        assert_eq!(free_after(100, 50), Ok(()));
    }

    /// A vCPU has run on CPU 1 for its whole slice, 50 of 100 us, and leaves. It rejoins on one of
    /// two CPUs. At the same time, another vCPU with 50 of 100 us joins on the other CPU.
    #[test]
    fn share_of_rejoining_vcpu_counts_once_on_its_former_cpu() {
        let us = |slice| Reservation::new(Span::from_us(slice), Span::from_us(100)).unwrap();
        let capacity = Some(CpuShare::from_ppm(900_000));
        let mut booked = Bookings::new(&Topology::flat(2), capacity, Packing::Spread);
        let vcpu = |slot| VcpuId::new(slot, DomId::new(slot), 0);
        let on = |cpu, slice| AdmissionRequest {
            allowed: CpuSet::one(CpuId::new(cpu)),
            ..request(Time::START, us(slice))
        };
        booked.add(vcpu(0), &on(1, 50)).unwrap();
        booked.add(vcpu(1), &on(1, 20)).unwrap();
        let (cpu, advance) = (CpuId::new(1), Span::from_us(50));
        let leaving = Tenant { vcpu: vcpu(0), cpu, share: us(50), advance };
        booked.remove(Time::START, leaving, Span::ZERO);
        for (own, other, fits) in [(0, 1, false), (1, 0, true)] {
            let mut then = booked.clone();
            then.add(vcpu(0), &on(own, 50)).unwrap();
            assert_eq!(then.add(vcpu(2), &on(other, 50)).is_ok(), fits, "rejoins on CPU {own}");
        }
    }
}
