//! Shares that stay reserved for a while after a vCPU gave them up. Also the excess of vCPUs that
//! rejoin: the CPU time that they used beyond the fluid rate.
//!
//! A vCPU can use its slice faster than its entitlement, `slice × elapsed / period`, grows. Other
//! vCPUs of the CPU get their slices while this vCPU waits for the end of its period. If its share
//! were reserved for another vCPU before the end of this period, the same CPU time could be used
//! twice and other vCPUs would miss deadlines. So when a share shrinks, migrates or ends, the old
//! share is *held* until the *zero-lag time*. At that time the vCPU's entitlement equals the CPU
//! time that it used, and leaving changes nothing for other vCPUs (Stoica, Abdel-Wahab and Jeffay,
//! 1996). If the CPU, or set of CPUs, is quiescent, no vCPU waits for time that was used in excess.
//! The share is then free at once.
//!
//! A vCPU that rejoins before the zero-lag time continues with the excess that is left. The vCPU is
//! identified by its domain and its number in the domain, not by its slot.

use alloc::vec::Vec;

use slackline_units::{DomId, Reservation, Span, Time, VcpuId};

/// Reserved shares by place. A place is a CPU, or a set of CPUs.
pub(crate) trait ReservationBooks {
    /// Place at which a share is reserved.
    type Place: Copy + PartialEq;

    /// Adds a share to the load of a place.
    fn add(&mut self, place: Self::Place, share: Reservation);

    /// Removes a share from the load of a place.
    fn remove(&mut self, place: Self::Place, share: Reservation);

    /// Returns true if `one` demands more capacity than `other`.
    fn takes_more(&self, one: Reservation, other: Reservation) -> bool;

    /// Returns true if a share at `inner` also counts in the load of `place`.
    fn counts_in(inner: Self::Place, place: Self::Place) -> bool {
        inner == place
    }
}

/// Shares that vCPUs gave up and that stay reserved (held) until the entitlement of the vCPU equals
/// the CPU time that it used.
#[derive(Clone, Debug)]
pub(crate) struct Holds<P> {
    holds: Vec<Hold<P>>,
}

/// Share that a vCPU gave up and that is still reserved, or a record of the CPU time that a vCPU
/// used beyond the fluid rate before it left.
#[derive(Clone, Copy, Debug)]
struct Hold<P> {
    /// Domain of the vCPU, and the number of the vCPU in the domain.
    who: (DomId, u16),
    place: P,
    /// Share that stays reserved although the vCPU gave it up.
    share: Reservation,
    /// True if the share counts as reserved capacity of its CPU or CPUs. Otherwise the hold only
    /// remembers how much excess the vCPU still has.
    is_booked: bool,
    /// Zero-lag time of the share: the time at which the vCPU's entitlement, `slice × elapsed /
    /// period`, equals the CPU time that it used.
    until: Time,
    /// New reservation of the vCPU at `place`. The new reservation replaces `share` in the load of
    /// `place` when `share` is released. `None` if the vCPU reserves nothing there any more.
    then: Option<Reservation>,
}

/// Place and share of a reservation.
pub(crate) type Booking<P> = (P, Reservation);

/// Reservation of a vCPU, and shares that the vCPU gave up and that are still reserved. All of them
/// are removed from the loads while admission decides on the vCPU's next reservation.
pub(crate) struct DetachedBooking<P> {
    who: (DomId, u16),
    /// Current reservation of the vCPU. `None` if the vCPU is split or has no reservation.
    now: Option<Booking<P>>,
    holds: Vec<Hold<P>>,
}

impl<P: Copy + PartialEq> Holds<P> {
    pub(crate) const fn new() -> Holds<P> {
        Holds { holds: Vec::new() }
    }

    /// Returns true if no share that a vCPU gave up is still reserved and no vCPU's excess is
    /// remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// Releases and drops the held shares whose zero-lag time is `now` or earlier. At that time the
    /// entitlement of the vCPU equals the CPU time that it used.
    pub(crate) fn lapse<B: ReservationBooks<Place = P>>(&mut self, now: Time, books: &mut B) {
        self.holds.retain(|hold| {
            if hold.until <= now {
                hold.release(books);
            }
            hold.until > now
        });
    }

    /// Releases the shares that vCPUs gave up and that are still reserved at a place (CPU or set of
    /// CPUs). Called if the place is quiescent or if the demand test admits its reservations. The
    /// CPU time that these vCPUs used in excess is still remembered.
    pub(crate) fn rest<B: ReservationBooks<Place = P>>(&mut self, place: P, books: &mut B) {
        for hold in self.holds.iter_mut().filter(|hold| hold.place == place) {
            hold.release(books);
            hold.is_booked = false;
        }
    }

    /// Releases all shares that vCPUs gave up and that are still reserved, because all CPUs are
    /// quiescent. The CPU time that these vCPUs used in excess is still remembered.
    pub(crate) fn rest_all<B: ReservationBooks<Place = P>>(&mut self, books: &mut B) {
        for hold in &mut self.holds {
            hold.release(books);
            hold.is_booked = false;
        }
    }

    /// Returns the times at which shares that vCPUs gave up stop being reserved.
    pub(crate) fn ends(&self) -> impl Iterator<Item = Time> {
        self.holds.iter().filter(|hold| hold.is_booked).map(|hold| hold.until)
    }

    /// Remembers the CPU time that a vCPU used beyond the fluid rate. The vCPU has left, and its
    /// share no longer counts in any load.
    pub(crate) fn note(&mut self, vcpu: VcpuId, share: Booking<P>, (now, advance): (Time, Span)) {
        let ((place, share), who) = (share, (vcpu.domain(), vcpu.number()));
        let until = now.after(share.time_for(advance));
        if until > now {
            self.holds.push(Hold { who, place, share, is_booked: false, until, then: None });
        }
    }

    /// Returns `measure(old) - measure(new)`, at least zero, for each old share that a vCPU gave up
    /// and that is still reserved at `place`. The new share is the vCPU's reservation there;
    /// without one, `measure(new)` is zero.
    pub(crate) fn beyond(
        &self,
        place: P,
        now: Time,
        measure: impl Fn(Reservation) -> Span,
    ) -> impl Iterator<Item = Span> {
        let here = move |hold: &&Hold<P>| hold.is_booked && hold.place == place && hold.until > now;
        self.holds.iter().filter(here).map(move |hold| {
            let then = hold.then.map_or(Span::ZERO, &measure);
            measure(hold.share).left_after(then)
        })
    }

    /// Removes all shares of a vCPU from the loads of their places: its reservation, and shares
    /// that it gave up and that are still reserved.
    pub(crate) fn lift<B: ReservationBooks<Place = P>>(
        &mut self,
        vcpu: VcpuId,
        now: Option<Booking<P>>,
        books: &mut B,
    ) -> DetachedBooking<P> {
        let who = (vcpu.domain(), vcpu.number());
        let mut lifted = DetachedBooking { who, now, holds: Vec::new() };
        if self.holds.is_empty() {
            // Fast path.
        } else {
            self.holds.retain(|hold| {
                if hold.who == who {
                    lifted.holds.push(*hold);
                }
                hold.who != who
            });
        }
        for (place, share) in lifted.in_books() {
            books.remove(place, share);
        }
        lifted
    }

    /// Books the next reservation of a vCPU, or none if the vCPU leaves. `advance` is the CPU time
    /// that the vCPU used in excess of the fluid rate of its previous reservation. The share that
    /// the vCPU gives up stays reserved until the share has accrued `advance`.
    pub(crate) fn settle<B: ReservationBooks<Place = P>>(
        &mut self,
        lifted: &DetachedBooking<P>,
        to: Option<Booking<P>>,
        (now, advance): (Time, Span),
        books: &mut B,
    ) {
        let mut is_promised = false;
        for mut hold in lifted.all(now) {
            if lifted.now.is_some_and(|(place, _)| place == hold.place) {
                hold.until = now.after(hold.share.time_for(advance));
            }
            hold.then = to.filter(|(place, _)| *place == hold.place).map(|(_, share)| share);
            let is_covered = hold.then.is_some_and(|then| !books.takes_more(hold.share, then));
            if is_covered || hold.until <= now {
                continue;
            }
            if hold.is_booked {
                is_promised |= hold.then.is_some();
                books.add(hold.place, hold.share);
            }
            self.holds.push(hold);
        }
        if let Some((place, share)) = to.filter(|_| !is_promised) {
            books.add(place, share);
        }
        if to.is_none() {
            self.remember_rate(lifted, (now, advance));
        }
    }

    /// Remembers the excess of a vCPU that leaves, if a larger share that the vCPU gave up earlier
    /// is still reserved at the same place. The larger share accrues the excess sooner, and no
    /// other vCPU is harmed from then on. But the leaving vCPU pays the excess back at the lower
    /// rate of its last reservation. Otherwise the vCPU could reduce its share, leave, and rejoin
    /// with the larger share.
    fn remember_rate(&mut self, lifted: &DetachedBooking<P>, (now, advance): (Time, Span)) {
        let Some((place, share)) = lifted.now else { return };
        let is_here = |hold: &Hold<P>| hold.is_booked && hold.place == place;
        let until = now.after(share.time_for(advance));
        if until > now && lifted.holds.iter().any(is_here) {
            let (who, is_booked, then) = (lifted.who, false, None);
            self.holds.push(Hold { who, place, share, is_booked, until, then });
        }
    }
}

impl<P: Copy + PartialEq> Hold<P> {
    /// Releases the share that the vCPU gave up: removes `share` from the load of `place`, and adds
    /// the vCPU's new reservation there, if any. Does nothing if `share` does not count in that
    /// load.
    fn release<B: ReservationBooks<Place = P>>(&self, books: &mut B) {
        if self.is_booked {
            books.remove(self.place, self.share);
            if let Some(then) = self.then {
                books.add(self.place, then);
            }
        }
    }
}

impl<P: Copy + PartialEq> DetachedBooking<P> {
    /// Returns the places and shares that counted for the vCPU in the loads before they were
    /// detached.
    fn in_books(&self) -> impl Iterator<Item = Booking<P>> {
        let booked = || self.holds.iter().filter(|hold| hold.is_booked);
        let is_held = move |(place, _): &Booking<P>| {
            booked().any(|hold| hold.place == *place && hold.then.is_some())
        };
        let held = booked().map(|hold| (hold.place, hold.share));
        held.chain(self.now.filter(|now| !is_held(now)))
    }

    /// Returns the shares that the vCPU gave up and that are still reserved (held). Its current
    /// reservation counts as one more held share, unless a share is held at the same place.
    fn all(&self, now: Time) -> impl Iterator<Item = Hold<P>> {
        // At the current place of the vCPU, its current excess replaces the excess of older holds.
        let is_here = |hold: &Hold<P>| self.now.is_some_and(|(place, _)| place == hold.place);
        let holds = self.holds.iter().copied();
        let holds = holds.filter(move |hold| hold.is_booked || !is_here(hold));
        let is_held = |(place, _): &Booking<P>| {
            self.holds.iter().any(|hold| hold.is_booked && hold.place == *place)
        };
        let own = self.now.filter(|now| !is_held(now)).map(|(place, share)| Hold {
            who: self.who,
            place,
            share,
            is_booked: true,
            until: now,
            then: None,
        });
        holds.chain(own)
    }

    /// Returns the share that counts at a place (CPU or set of CPUs) if `asked` is reserved there.
    /// The result is larger than `asked` if this vCPU gave up a larger share that is still reserved
    /// there.
    pub(crate) fn demand<B: ReservationBooks<Place = P>>(
        &self,
        place: P,
        asked: Reservation,
        books: &B,
    ) -> Reservation {
        self.demand_at(Time::START, (place, asked), books)
    }

    /// Returns the share that [`demand`](DetachedBooking::demand) would return at the later time
    /// `at`. Shares whose zero-lag time has passed by then do not count.
    pub(crate) fn demand_at<B: ReservationBooks<Place = P>>(
        &self,
        at: Time,
        (place, asked): Booking<P>,
        books: &B,
    ) -> Reservation {
        let is_here =
            |hold: &&Hold<P>| hold.is_booked && hold.until > at && B::counts_in(hold.place, place);
        let here = self.holds.iter().filter(is_here);
        here.map(|hold| hold.share)
            .fold(asked, |most, share| if books.takes_more(share, most) { share } else { most })
    }

    /// Returns the times at which shares that this vCPU gave up stop being reserved.
    pub(crate) fn ends(&self) -> impl Iterator<Item = Time> {
        self.holds.iter().filter(|hold| hold.is_booked).map(|hold| hold.until)
    }

    /// Returns the CPU time that a vCPU which rejoins at `now` has used in excess of the fluid
    /// rate.
    pub(crate) fn advance(&self, now: Time) -> Span {
        let advance = |hold: &Hold<P>| hold.share.over_rounded_up(hold.until.since(now));
        self.holds.iter().map(advance).max().unwrap_or(Span::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entitlement, Moment, Pick, Policy, RawValue, Spec, Topology, Values, find};
    use alloc::boxed::Box;
    use slackline_units::{CpuId, CpuSet};

    const POLICIES: [&str; 4] = ["edf", "gedf", "sedf", "atropos"];

    /// One CPU without a reserve and two vCPUs that reserve half of it each. The first vCPU has the
    /// earlier deadline and has run for its whole slice, 5 of 10 ms. The second one still waits for
    /// its 10 of 20 ms.
    struct Scene {
        spec: &'static Spec,
        policy: Box<dyn Policy>,
        at: Moment,
    }

    const CPU: CpuId = CpuId::new(0);

    fn vcpu(slot: u32) -> VcpuId {
        VcpuId::new(slot, DomId::new(slot), 0)
    }

    impl Scene {
        fn new(name: &str) -> Scene {
            let spec = find(name).unwrap();
            let mut given = alloc::vec![("reserve", RawValue::Text("0cpu"))];
            given.extend((name == "gedf").then_some(("asleep", RawValue::Text("trimmed"))));
            let values = Values::read(spec.policy_fields, given.into_iter()).unwrap();
            let policy = (spec.build)(&values, &Topology::flat(1));
            let mut scene = Scene { spec, policy, at: Moment::at_start(1) };
            scene.join(vcpu(0), 5, 10).unwrap();
            scene.join(vcpu(1), 10, 20).unwrap();
            scene.run(5);
            scene
        }

        /// Returns parameters with a hard limit.
        fn share(&self, slice_ms: u64, period_ms: u64) -> Values {
            let terms = self.spec.limit.unwrap()(slackline_units::CpuShare::ONE, Span::from_ms(1));
            let texts = [slice_ms, period_ms].map(|ms| alloc::format!("{ms}ms"));
            let mut given: Vec<_> = terms[..2].iter().map(|(name, _)| *name).zip(&texts).collect();
            let flags = terms[2..].iter().filter(|(_, text)| text == "true" || text == "false");
            let flags = flags.map(|(name, flag)| (*name, RawValue::Flag(flag == "true")));
            let given = given.drain(..).map(|(name, text)| (name, RawValue::Text(text)));
            Values::read(self.spec.share_fields, given.chain(flags)).unwrap()
        }

        fn join(&mut self, who: VcpuId, slice_ms: u64, period_ms: u64) -> Result<(), ()> {
            let share = self.share(slice_ms, period_ms);
            self.at.join(who);
            if self.policy.admit(&self.at, who, &share).is_err() {
                self.at.leave(who);
                return Err(());
            }
            self.at.set_awake(who, true);
            self.policy.on_wake(&self.at, who);
            Ok(())
        }

        fn leave(&mut self, who: VcpuId) {
            if self.at.cpu_of(who).is_some() {
                self.at.vacate(CPU);
            }
            self.at.leave(who);
            self.policy.on_leave(&self.at, who);
        }

        /// Runs the picked vCPU for `ms` milliseconds. Returns, for each millisecond, the slot of
        /// the vCPU that ran on its budget. `None` if no vCPU did.
        fn run(&mut self, ms: u64) -> Vec<Option<usize>> {
            let mut ran = Vec::new();
            for _ in 0..ms {
                self.at.vacate(CPU);
                self.policy.prepare_pick(&self.at, CPU);
                let pick = self.policy.pick(&self.at, CPU);
                let due = match pick {
                    Pick::Run { vcpu, entitlement: Entitlement::Due, .. } => Some(vcpu),
                    _ => None,
                };
                if let Some(vcpu) = due {
                    self.at.occupy(CPU, vcpu);
                    self.policy.on_start(&self.at, vcpu);
                }
                self.at.advance(self.at.now() + Span::from_ms(1));
                if let Some(vcpu) = due {
                    self.policy.charge(&self.at, vcpu, Span::from_ms(1));
                    self.policy.on_timeslice_end(&self.at, vcpu, crate::TimesliceEnd::Limit);
                }
                if self.policy.next_timer(CPU).is_some_and(|alarm| alarm <= self.at.now()) {
                    self.policy.on_timer(&self.at, CPU);
                }
                ran.push(due.map(VcpuId::slot));
            }
            ran
        }

        fn room(&self) -> Span {
            let all = CpuSet::first_n(1);
            self.policy.available_slice(&self.at, Span::from_ms(10), all).unwrap()
        }
    }

    /// Test double of reservation books: stores the shares booked at each place.
    #[derive(Default)]
    struct Notes(Vec<(u8, Reservation)>);

    impl ReservationBooks for Notes {
        type Place = u8;

        fn add(&mut self, place: u8, share: Reservation) {
            self.0.push((place, share));
        }

        fn remove(&mut self, place: u8, share: Reservation) {
            let at = self.0.iter().position(|noted| *noted == (place, share));
            self.0.remove(at.expect("the removed share was added before"));
        }

        fn takes_more(&self, one: Reservation, other: Reservation) -> bool {
            one.slice() > other.slice()
        }
    }

    /// Returns a reservation of `slice_ms` in 10 ms.
    fn tenths(slice_ms: u64) -> Reservation {
        Reservation::new(Span::from_ms(slice_ms), Span::from_ms(10)).unwrap()
    }

    fn ms(ms: u64) -> Time {
        Time::START.after(Span::from_ms(ms))
    }

    /// Books the reservation `to` for a vCPU. The vCPU reserved 5 of 10 ms at place 1 before and is
    /// 4 ms ahead of the fluid rate.
    fn settled(to: Option<Booking<u8>>) -> (Holds<u8>, Notes) {
        let (mut holds, mut notes) = (Holds::new(), Notes(alloc::vec![(1, tenths(5))]));
        let lifted = holds.lift(vcpu(0), Some((1, tenths(5))), &mut notes);
        assert_eq!(notes.0, []);
        holds.settle(&lifted, to, (Time::START, Span::from_ms(4)), &mut notes);
        (holds, notes)
    }

    /// A vCPU that reserves half a CPU has used 4 ms more than its fluid rate. Its entitlement
    /// grows by 4 ms in 8 ms.
    #[test]
    fn vcpu_share_before_a_reduction_stays_reserved_until_zero_lag() {
        let (mut holds, mut notes) = settled(Some((1, tenths(2))));
        let beyond = |holds: &Holds<u8>, place, now| {
            holds.beyond(place, now, Reservation::slice).collect::<Vec<_>>()
        };
        assert_eq!(notes.0, [(1, tenths(5))]);
        assert_eq!(beyond(&holds, 1, ms(7)), [Span::from_ms(3)]);
        assert_eq!(beyond(&holds, 2, ms(7)), []);
        assert_eq!(beyond(&holds, 1, ms(8)), []);
        holds.lapse(ms(7), &mut notes);
        assert_eq!(notes.0, [(1, tenths(5))]);
        holds.lapse(ms(8), &mut notes);
        assert_eq!((notes.0, holds.is_empty()), (alloc::vec![(1, tenths(2))], true));
    }

    /// After a migration the share counts at the new place at once. At the old place it counts
    /// until the entitlement of the vCPU equals the CPU time that it used.
    #[test]
    fn migrated_vcpu_reserves_old_and_new_cpu_until_zero_lag() {
        let (mut holds, mut notes) = settled(Some((2, tenths(5))));
        assert_eq!(notes.0, [(1, tenths(5)), (2, tenths(5))]);
        // The vCPU migrates back. Its hold at the old place still has its excess, and the share is
        // booked once.
        let lifted = holds.lift(vcpu(0), Some((2, tenths(5))), &mut notes);
        assert_eq!(notes.0, []);
        assert_eq!(lifted.advance(ms(2)), Span::from_ms(3));
        holds.settle(&lifted, Some((1, tenths(5))), (ms(2), Span::ZERO), &mut notes);
        assert_eq!(notes.0, [(1, tenths(5))]);
    }

    /// A quiescent CPU frees the share that was held after its vCPU left. The excess of that vCPU
    /// over the fluid rate is still remembered.
    #[test]
    fn excess_cpu_time_is_remembered_after_vcpu_frees_its_share() {
        let (mut holds, mut notes) = settled(None);
        holds.rest(2, &mut notes);
        assert_eq!(notes.0, [(1, tenths(5))]);
        holds.rest(1, &mut notes);
        assert_eq!((&notes.0[..], holds.is_empty()), (&[][..], false));
        let lifted = holds.lift(vcpu(0), None, &mut notes);
        assert_eq!(lifted.advance(ms(4)), Span::from_ms(2));
        // The new reservation is at another place, so the old hold stays.
        holds.settle(&lifted, Some((2, tenths(5))), (ms(4), Span::ZERO), &mut notes);
        assert_eq!(notes.0, [(2, tenths(5))]);
        let again = holds.lift(vcpu(0), Some((2, tenths(5))), &mut notes);
        assert_eq!(again.advance(ms(4)), Span::from_ms(2));
    }

    /// A vCPU uses its whole slice, half a CPU, in the first half of a period. The share is free at
    /// the end of the period, and not a nanosecond before.
    #[test]
    fn departed_vcpu_share_stays_reserved_until_zero_lag_time() {
        for name in POLICIES {
            let mut scene = Scene::new(name);
            scene.leave(vcpu(0));
            scene.at.advance(ms(10) - Span::from_ns(1));
            assert_eq!(scene.room(), Span::ZERO, "{name}");
            scene.at.advance(ms(10));
            assert_eq!(scene.room(), Span::from_ms(5), "{name}");
            let mut scene = Scene::new(name);
            scene.leave(vcpu(0));
            assert_eq!(scene.room(), Span::ZERO, "{name}");
            assert_eq!(scene.join(vcpu(2), 5, 10), Err(()), "{name}");
            assert_eq!(scene.run(4), [Some(1); 4], "{name}");
            assert_eq!(scene.room(), Span::ZERO, "{name}");
            assert_eq!(scene.run(1), [Some(1)], "{name}");
            assert_eq!(scene.room(), Span::from_ms(5), "{name}");
            assert_eq!(scene.join(vcpu(2), 5, 10), Ok(()), "{name}");
        }
    }

    #[test]
    fn excess_cpu_time_is_deducted_if_vcpu_leaves_and_rejoins() {
        for name in POLICIES {
            let mut scene = Scene::new(name);
            scene.leave(vcpu(0));
            // A new slot, but the same number of the same domain.
            let back = VcpuId::new(7, DomId::new(0), 0);
            assert_eq!(scene.join(back, 5, 10), Ok(()), "{name}");
            scene.policy.prepare_pick(&scene.at, CPU);
            let pick = scene.policy.pick(&scene.at, CPU);
            let left = Some(Span::from_us(2_500));
            assert!(matches!(pick, Pick::Run { limit, .. } if limit == left), "{name}: {pick:?}");
            let ran = scene.run(10);
            let had = ran.iter().filter(|due| **due == Some(7)).count();
            assert_eq!(had, 3, "{name}: 2.5 of 5 ms are left, in timeslices of 1 ms: {ran:?}");
        }
    }

    /// A vCPU that reserves 5 of 10 ms is 2.5 ms ahead of its fluid rate. It reduces its slice to 1
    /// ms and leaves at once. In the 4 ms until it rejoins, its excess decays by 0.4 ms, not by the
    /// 2 ms of the larger share. Yet the larger share is free at its own zero-lag time.
    #[test]
    fn excess_of_departed_vcpu_decays_at_its_last_reserved_rate() {
        for name in POLICIES {
            let mut scene = Scene::new(name);
            let less = scene.share(1, 10);
            scene.at.vacate(CPU);
            scene.policy.adjust(&scene.at, vcpu(0), &less).unwrap();
            scene.leave(vcpu(0));
            scene.run(4);
            assert_eq!(scene.room(), Span::ZERO, "{name}");
            scene.at.vacate(CPU);
            let back = VcpuId::new(7, DomId::new(0), 0);
            assert_eq!(scene.join(back, 5, 10), Ok(()), "{name}");
            scene.policy.prepare_pick(&scene.at, CPU);
            let pick = scene.policy.pick(&scene.at, CPU);
            let left = Some(Span::from_us(2_900));
            assert!(matches!(pick, Pick::Run { limit, .. } if limit == left), "{name}: {pick:?}");
        }
    }

    /// On a quiescent CPU no vCPU waits for CPU time, so the share of a vCPU that leaves is free at
    /// once.
    #[test]
    fn departed_vcpu_share_is_free_immediately_on_quiescent_cpu() {
        for name in POLICIES {
            let mut scene = Scene::new(name);
            scene.leave(vcpu(1));
            scene.leave(vcpu(0));
            assert_eq!(scene.room(), Span::from_ms(10), "{name}");
        }
    }

    #[test]
    fn capacity_freed_by_reduced_share_is_available_at_zero_lag() {
        for name in POLICIES {
            let mut scene = Scene::new(name);
            let less = scene.share(1, 10);
            scene.at.vacate(CPU);
            scene.policy.adjust(&scene.at, vcpu(0), &less).unwrap();
            assert_eq!(scene.room(), Span::ZERO, "{name}");
            scene.run(5);
            assert_eq!(scene.room(), Span::from_ms(4), "{name}");
        }
    }
}
