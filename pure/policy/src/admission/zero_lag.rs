//! What stays promised for a while after a share was given up, and the account of who comes back.
//!
//! Whoever has used more of its slice than the part of the period that has passed has had the rest
//! in advance, and its neighbours get theirs while it waits for the period to end. If its share
//! were given away before, somebody else could have that time a second time, and neighbours would
//! miss their deadlines. So where a share shrinks, moves to another CPU or ends, the old one stays
//! promised until it has earned what was had in advance: the *zero-lag time*, after which leaving
//! changes nothing for others (Stoica, Abdel-Wahab and Jeffay, 1996). Where nobody is owed
//! anything, nobody waits for time that somebody had in advance, and it can be given away at once.
//!
//! Either way, who comes back before that time comes back to its account. A vCPU is known by its
//! domain and its number there, whatever its slot.

use alloc::vec::Vec;

use slackline_units::{DomId, Reservation, Span, Time, VcpuId};

/// Books in which shares are promised at places: CPUs, or sets of them.
pub(crate) trait Books {
    /// Where a share is promised.
    type Place: Copy + PartialEq;

    /// A share is promised.
    fn add(&mut self, place: Self::Place, share: Reservation);

    /// It is not any more.
    fn remove(&mut self, place: Self::Place, share: Reservation);

    /// Whether one share takes more room than another.
    fn takes_more(&self, one: Reservation, other: Reservation) -> bool;
}

/// Shares that stay promised for a while.
#[derive(Clone, Debug)]
pub(crate) struct Holds<P> {
    holds: Vec<Hold<P>>,
}

#[derive(Clone, Copy, Debug)]
struct Hold<P> {
    who: (DomId, u16),
    place: P,
    /// What stays promised.
    share: Reservation,
    /// Whether that is in the books: else it is only an account.
    is_booked: bool,
    /// When what was had in advance has been earned.
    until: Time,
    /// What is promised there from then on: the share that whoever is still there has now.
    then: Option<Reservation>,
}

/// Where somebody is, and what it is promised there.
pub(crate) type Booking<P> = (P, Reservation);

/// What had been promised to somebody and is in the books no more, until it is decided what comes
/// in its place.
pub(crate) struct Lifted<P> {
    who: (DomId, u16),
    now: Option<Booking<P>>,
    holds: Vec<Hold<P>>,
}

impl<P: Copy + PartialEq> Holds<P> {
    pub(crate) const fn new() -> Holds<P> {
        Holds { holds: Vec::new() }
    }

    /// Whether there is nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// What has been earned by now is given back.
    pub(crate) fn lapse<B: Books<Place = P>>(&mut self, now: Time, books: &mut B) {
        self.holds.retain(|hold| {
            if hold.until <= now {
                hold.release(books);
            }
            hold.until > now
        });
    }

    /// Nobody is owed anything at this place: nobody waits for what was had in advance.
    pub(crate) fn rest<B: Books<Place = P>>(&mut self, place: P, books: &mut B) {
        for hold in self.holds.iter_mut().filter(|hold| hold.place == place) {
            hold.release(books);
            hold.is_booked = false;
        }
    }

    /// The same at all places.
    pub(crate) fn rest_all<B: Books<Place = P>>(&mut self, books: &mut B) {
        for hold in &mut self.holds {
            hold.release(books);
            hold.is_booked = false;
        }
    }

    /// Somebody is gone whose share is in no books any more: only its account is kept.
    pub(crate) fn note(&mut self, vcpu: VcpuId, share: Booking<P>, (now, advance): (Time, Span)) {
        let ((place, share), who) = (share, (vcpu.domain(), vcpu.number()));
        let until = now.after(share.time_for(advance));
        if until > now {
            self.holds.push(Hold { who, place, share, is_booked: false, until, then: None });
        }
    }

    /// What stays promised at a place beyond what is promised there from then on, by a measure.
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

    /// Takes all that is promised to somebody out of the books.
    pub(crate) fn lift<B: Books<Place = P>>(
        &mut self,
        vcpu: VcpuId,
        now: Option<Booking<P>>,
        books: &mut B,
    ) -> Lifted<P> {
        let who = (vcpu.domain(), vcpu.number());
        let mut lifted = Lifted { who, now, holds: Vec::new() };
        if self.holds.is_empty() {
            // The common case.
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

    /// Somebody is promised this from now on, or nothing any more. What it has had in advance of
    /// what it was promised until now is `advance`.
    pub(crate) fn settle<B: Books<Place = P>>(
        &mut self,
        lifted: &Lifted<P>,
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
    }
}

impl<P: Copy + PartialEq> Hold<P> {
    /// What comes after it takes its place in the books.
    fn release<B: Books<Place = P>>(&self, books: &mut B) {
        if self.is_booked {
            books.remove(self.place, self.share);
            if let Some(then) = self.then {
                books.add(self.place, then);
            }
        }
    }
}

impl<P: Copy + PartialEq> Lifted<P> {
    /// What stood in the books for it.
    fn in_books(&self) -> impl Iterator<Item = Booking<P>> {
        let booked = || self.holds.iter().filter(|hold| hold.is_booked);
        let is_held = move |(place, _): &Booking<P>| {
            booked().any(|hold| hold.place == *place && hold.then.is_some())
        };
        let held = booked().map(|hold| (hold.place, hold.share));
        held.chain(self.now.filter(|now| !is_held(now)))
    }

    /// Its holds, and its share as one more where none stands in the books for it.
    fn all(&self, now: Time) -> impl Iterator<Item = Hold<P>> {
        // Where it is now its own account is the one that counts.
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

    /// The share to find room for at a place where this is asked: what stays promised there may be
    /// more.
    pub(crate) fn demand<B: Books<Place = P>>(
        &self,
        place: P,
        asked: Reservation,
        books: &B,
    ) -> Reservation {
        let here = self.holds.iter().filter(|hold| hold.is_booked && hold.place == place);
        here.map(|hold| hold.share)
            .fold(asked, |most, share| if books.takes_more(share, most) { share } else { most })
    }

    /// What somebody who comes back has had in advance and has not earned yet.
    pub(crate) fn advance(&self, now: Time) -> Span {
        let advance = |hold: &Hold<P>| hold.share.over_rounded_up(hold.until.since(now));
        self.holds.iter().map(advance).max().unwrap_or(Span::ZERO)
    }

    /// What it has at other places is not kept.
    pub(crate) fn forget_but(&mut self, place: P) {
        self.holds.retain(|hold| hold.place == place);
        self.now = self.now.filter(|(at, _)| *at == place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entitlement, Given, Moment, Pick, Policy, Spec, Topology, Values, find};
    use alloc::boxed::Box;
    use slackline_units::{CpuId, CpuSet};

    const POLICIES: [&str; 4] = ["edf", "gedf", "sedf", "atropos"];

    /// One CPU, no reserve, and two vCPUs of half of it: `early` with the nearer deadline runs for
    /// all of its slice, 5 of 10 ms, while the other waits for its 10 of 20 ms.
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
            let mut given = alloc::vec![("reserve", Given::Text("0cpu"))];
            given.extend((name == "gedf").then_some(("asleep", Given::Text("trimmed"))));
            let values = Values::read(spec.policy_fields, given.into_iter()).unwrap();
            let policy = (spec.build)(&values, &Topology::flat(1));
            let mut scene = Scene { spec, policy, at: Moment::at_start(1) };
            scene.join(vcpu(0), 5, 10).unwrap();
            scene.join(vcpu(1), 10, 20).unwrap();
            scene.run(5);
            scene
        }

        /// An exact share.
        fn share(&self, slice_ms: u64, period_ms: u64) -> Values {
            let terms = self.spec.limit.unwrap()(slackline_units::CpuShare::ONE, Span::from_ms(1));
            let texts = [slice_ms, period_ms].map(|ms| alloc::format!("{ms}ms"));
            let mut given: Vec<_> = terms[..2].iter().map(|(name, _)| *name).zip(&texts).collect();
            let flags = terms[2..].iter().filter(|(_, text)| text == "true" || text == "false");
            let flags = flags.map(|(name, flag)| (*name, Given::Flag(flag == "true")));
            let given = given.drain(..).map(|(name, text)| (name, Given::Text(text)));
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
            self.policy.wake(&self.at, who);
            Ok(())
        }

        fn leave(&mut self, who: VcpuId) {
            if self.at.cpu_of(who).is_some() {
                self.at.vacate(CPU);
            }
            self.at.leave(who);
            self.policy.leave(&self.at, who);
        }

        /// Whoever is picked runs, for so many milliseconds in all; who was due, by millisecond.
        fn run(&mut self, ms: u64) -> Vec<Option<usize>> {
            let mut ran = Vec::new();
            for _ in 0..ms {
                self.at.vacate(CPU);
                self.policy.pass(&self.at, CPU);
                let pick = self.policy.pick(&self.at, CPU);
                let due = match pick {
                    Pick::Run { vcpu, entitlement: Entitlement::Due, .. } => Some(vcpu),
                    _ => None,
                };
                if let Some(vcpu) = due {
                    self.at.occupy(CPU, vcpu);
                    self.policy.start(&self.at, vcpu);
                }
                self.at.advance(self.at.now() + Span::from_ms(1));
                if let Some(vcpu) = due {
                    self.policy.charge(&self.at, vcpu, Span::from_ms(1));
                    self.policy.turn_over(&self.at, vcpu, crate::TurnEnd::Limit);
                }
                if self.policy.alarm(CPU).is_some_and(|alarm| alarm <= self.at.now()) {
                    self.policy.ring(&self.at, CPU);
                }
                ran.push(due.map(VcpuId::slot));
            }
            ran
        }

        fn room(&self) -> Span {
            let all = CpuSet::first_n(1);
            self.policy.room(&self.at, Span::from_ms(10), all).unwrap()
        }
    }

    /// Books that only note what stands in them, by place.
    #[derive(Default)]
    struct Notes(Vec<(u8, Reservation)>);

    impl Books for Notes {
        type Place = u8;

        fn add(&mut self, place: u8, share: Reservation) {
            self.0.push((place, share));
        }

        fn remove(&mut self, place: u8, share: Reservation) {
            let at = self.0.iter().position(|noted| *noted == (place, share));
            self.0.remove(at.expect("what stands there"));
        }

        fn takes_more(&self, one: Reservation, other: Reservation) -> bool {
            one.slice() > other.slice()
        }
    }

    /// So many milliseconds of every ten.
    fn tenths(slice_ms: u64) -> Reservation {
        Reservation::new(Span::from_ms(slice_ms), Span::from_ms(10)).unwrap()
    }

    fn ms(ms: u64) -> Time {
        Time::START.after(Span::from_ms(ms))
    }

    /// Somebody at place 1 with 5 of 10 ms, who has had 4 ms in advance at 0, is promised this.
    fn settled(to: Option<Booking<u8>>) -> (Holds<u8>, Notes) {
        let (mut holds, mut notes) = (Holds::new(), Notes(alloc::vec![(1, tenths(5))]));
        let lifted = holds.lift(vcpu(0), Some((1, tenths(5))), &mut notes);
        assert_eq!(notes.0, []);
        holds.settle(&lifted, to, (Time::START, Span::from_ms(4)), &mut notes);
        (holds, notes)
    }

    /// 4 ms at half a CPU are earned in 8 ms: until then, and no longer.
    #[test]
    fn what_is_held_is_beyond_what_comes_after_it_until_it_is_earned() {
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

    /// Whoever goes to another place is promised its share there at once, and at the old one until
    /// that is earned; when it is, nothing is left of it there.
    #[test]
    fn who_moves_is_promised_at_both_places_for_a_while() {
        let (mut holds, mut notes) = settled(Some((2, tenths(5))));
        assert_eq!(notes.0, [(1, tenths(5)), (2, tenths(5))]);
        // It comes back: what it had in advance there is not forgotten, and booked once.
        let lifted = holds.lift(vcpu(0), Some((2, tenths(5))), &mut notes);
        assert_eq!(notes.0, []);
        assert_eq!(lifted.advance(ms(2)), Span::from_ms(3));
        holds.settle(&lifted, Some((1, tenths(5))), (ms(2), Span::ZERO), &mut notes);
        assert_eq!(notes.0, [(1, tenths(5))]);
    }

    /// Where nobody is owed anything the books are free, and the account stays.
    #[test]
    fn at_rest_an_account_is_kept_that_stands_in_no_books() {
        let (mut holds, mut notes) = settled(None);
        holds.rest(2, &mut notes);
        assert_eq!(notes.0, [(1, tenths(5))]);
        holds.rest(1, &mut notes);
        assert_eq!((&notes.0[..], holds.is_empty()), (&[][..], false));
        let lifted = holds.lift(vcpu(0), None, &mut notes);
        assert_eq!(lifted.advance(ms(4)), Span::from_ms(2));
        // It is somewhere else now, so that account goes on beside its own.
        holds.settle(&lifted, Some((2, tenths(5))), (ms(4), Span::ZERO), &mut notes);
        assert_eq!(notes.0, [(2, tenths(5))]);
        let again = holds.lift(vcpu(0), Some((2, tenths(5))), &mut notes);
        assert_eq!(again.advance(ms(4)), Span::from_ms(2));
    }

    /// Half a CPU, of which all of a period has been had after half of it, is free when the other
    /// half has passed.
    #[test]
    fn what_was_had_in_advance_stays_promised_until_it_is_earned() {
        for name in POLICIES {
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
    fn who_comes_back_finds_its_account_as_it_left_it() {
        for name in POLICIES {
            let mut scene = Scene::new(name);
            scene.leave(vcpu(0));
            // Another slot, but the same number of the same domain.
            let back = VcpuId::new(7, DomId::new(0), 0);
            assert_eq!(scene.join(back, 5, 10), Ok(()), "{name}");
            let ran = scene.run(10);
            let had = ran.iter().filter(|due| **due == Some(7)).count();
            assert_eq!(had, 3, "{name}: 2.5 of 5 ms are left, in turns of one: {ran:?}");
        }
    }

    /// Nobody waits where nobody is owed anything.
    #[test]
    fn at_rest_a_share_is_free_at_once() {
        for name in POLICIES {
            let mut scene = Scene::new(name);
            scene.leave(vcpu(1));
            scene.leave(vcpu(0));
            assert_eq!(scene.room(), Span::from_ms(10), "{name}");
        }
    }

    #[test]
    fn a_share_that_shrinks_frees_what_it_gives_up_when_that_is_earned() {
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
