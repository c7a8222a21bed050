//! Whether earliest deadline first meets every deadline on one CPU, exactly, where some must be met
//! before their periods end: the processor-demand test, from the state that the CPU is in.
//! Sources: Baruah, Mok and Rosier, RTSS 1990, for the test; Zhang and Burns, IEEE Transactions on
//! Computers 2009, for where to look (quick processor-demand analysis, cited as [QPA]).
//!
//! Work that is owed at an instant and work that comes after it has to be done by known times. All
//! deadlines are met if what must be done by any time after the instant fits before it (from the
//! state), and if whatever may be released and be due within any length of time fits into it (from
//! any other state that can follow): who sleeps only ever asks for less, or later.

use alloc::vec::Vec;

use slackline_units::{CpuShare, Reservation, Span};

use crate::admission::load::Load;

/// What one demands of a CPU, time and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// CPU time.
    pub(crate) time: Span,
    /// How long after its release it must have been had; at most the period.
    pub(crate) within: Span,
    /// How long after one release the next one is.
    pub(crate) period: Span,
}

/// What one demands of a CPU from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demanded {
    /// Owed now, and how long from now it must have been had.
    pub(crate) owed: Option<(Span, Span)>,
    /// How long from now the next job is released.
    pub(crate) next: Span,
    pub(crate) job: Job,
}

/// What is demanded of one CPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Demand {
    all: Vec<Demanded>,
    /// What all of it comes to.
    load: Load,
}

/// How often to look before giving up: what cannot be decided by then is refused.
const LOOKS: u32 = 20_000;

/// Longer than anything that is looked at: what is demanded by then can be added up.
const FAR: u64 = 1 << 56;

impl Demand {
    pub(crate) fn add(&mut self, one: Demanded) {
        if let Ok(rate) = Reservation::new(one.job.time, one.job.period) {
            self.load.add(rate);
            self.all.push(one);
        }
    }

    /// Less demanded comes first; only a bound.
    pub(crate) fn bound(&self) -> u128 {
        self.load.bound()
    }

    /// Whether one more can be taken on so that all deadlines are met, and no more is promised in
    /// all than `capacity`.
    pub(crate) fn takes(&self, more: Demanded, capacity: CpuShare) -> bool {
        let Ok(rate) = Reservation::new(more.job.time, more.job.period) else { return false };
        let later = |one: Demanded| Demanded { owed: None, next: Span::ZERO, ..one };
        self.load.has_room(rate, capacity)
            && self.meets_deadlines(later(more), later)
            && self.meets_deadlines(more, |one| one)
    }

    /// Goes back from where nothing can be late any more: where what must be done by a time is
    /// done long before, nothing is late until then either. [QPA, theorem 5]
    fn meets_deadlines(&self, more: Demanded, seen: impl Fn(Demanded) -> Demanded) -> bool {
        let all = || self.all.iter().copied().map(&seen).chain([more]);
        let Some(mut until) = horizon(all()) else { return false };
        for _ in 0..LOOKS {
            let demanded: u64 = all().map(|one| one.by(until)).sum();
            if demanded > until {
                return false;
            }
            if demanded < until {
                until = demanded;
            } else if let Some(before) = all().filter_map(|one| one.due_before(until)).max() {
                until = before;
            } else {
                return true;
            }
            if until == 0 {
                return all().all(|one| one.by(0) == 0);
            }
        }
        false
    }
}

/// A time after which nothing can be late if nothing was before, in nanoseconds. None if there is
/// none, or it is too far.
fn horizon(all: impl Iterator<Item = Demanded>) -> Option<u64> {
    // By x no more can be demanded than rates * x + above, all of it in 2^-64ths.
    let (mut rates, mut above, mut least) = (0_u128, 0_u128, 0_u64);
    for one in all {
        let Job { time, within, period } = one.job;
        let (time, period) = (u128::from(time.ns()), u128::from(period.ns()));
        rates += (time << 64).div_ceil(period);
        let earned = |span: u64| time * u128::from(span) / period;
        let (owed, due) = one.owed.unwrap_or_default();
        let first = u128::from(owed.ns()).saturating_sub(earned(due.ns()));
        let first_due = one.next.ns().checked_add(within.ns())?;
        let second = (u128::from(owed.ns()) + time).saturating_sub(earned(first_due));
        above += first.max(second);
        least = least.max(first_due);
    }
    let left = (1_u128 << 64).checked_sub(rates).filter(|left| *left > 0)?;
    let above = u64::try_from(above).ok()?;
    let until = u64::try_from((u128::from(above) << 64) / left).ok()?.checked_add(1)?;
    (until < FAR && least < FAR).then_some(until)
}

impl Demanded {
    /// What of it must have been done so many nanoseconds from now.
    fn by(&self, until: u64) -> u64 {
        let owed = self.owed.filter(|(_, due)| due.ns() <= until).map_or(0, |(owed, _)| owed.ns());
        let first_due = self.next.ns() + self.job.within.ns();
        let jobs = until.checked_sub(first_due).map_or(0, |more| more / self.job.period.ns() + 1);
        owed + jobs * self.job.time.ns()
    }

    /// The last of its deadlines before a time.
    fn due_before(&self, until: u64) -> Option<u64> {
        let first_due = self.next.ns() + self.job.within.ns();
        let last = until.checked_sub(first_due + 1);
        let last = last.map(|more| until - 1 - more % self.job.period.ns());
        let owed = self.owed.map(|(_, due)| due.ns()).filter(|due| *due < until);
        last.max(owed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ns(ns: u64) -> Span {
        Span::from_ns(ns)
    }

    /// Owed so much in so long, and a job of so much within so long, so often, from then on.
    type Drawn = ((u64, u64), (u64, u64, u64), u64);

    fn one(((owed, due), (time, within, period), next): Drawn) -> Demanded {
        let period = period.max(1);
        let within = within.clamp(1, period);
        let job = Job { time: ns(time.clamp(1, within)), within: ns(within), period: ns(period) };
        let owed = (owed > 0).then(|| (ns(owed), ns(due)));
        Demanded { owed, next: ns(next), job }
    }

    #[test]
    fn less_demanded_comes_first() {
        let mut demand = Demand::default();
        assert_eq!(demand.bound(), 0);
        demand.add(one(((0, 0), (1, 4, 4), 0)));
        assert_eq!(demand.bound(), 1 << 62, "a quarter");
    }

    /// Beyond two years nothing is added up.
    #[test]
    fn what_is_due_too_far_off_is_not_looked_at() {
        let due = |far| horizon([one(((0, 0), (1, far, far), 0))].into_iter());
        assert_eq!([FAR - 1, FAR].map(|far| due(far).is_some()), [true, false]);
    }

    /// Whether nobody is late until long after everything has repeated itself, looked at
    /// nanosecond by nanosecond.
    fn is_in_time(all: &[Demanded]) -> bool {
        (0..6_000).all(|until| all.iter().map(|one| one.by(until)).sum::<u64>() <= until)
    }

    proptest! {
        #[test]
        fn the_answer_is_that_of_looking_at_every_time(
            drawn in prop::collection::vec(
                ((0u64..6, 0u64..20), (1u64..6, 1u64..24, 4u64..24), 0u64..24), 1..5),
        ) {
            let all: Vec<Demanded> = drawn.into_iter().map(one).collect();
            let (&more, others) = all.split_last().unwrap();
            let mut demand = Demand::default();
            others.iter().for_each(|one| demand.add(*one));
            let later = |one: &Demanded| Demanded { owed: None, next: Span::ZERO, ..*one };
            let synchronous: Vec<Demanded> = all.iter().map(later).collect();
            // A thousandth is left, or it would take longer than is looked at here.
            let capacity = CpuShare::from_ppm(990_000);
            let rate = Reservation::new(more.job.time, more.job.period).unwrap();
            let expected = demand.load.has_room(rate, capacity)
                && is_in_time(&all)
                && is_in_time(&synchronous);
            prop_assert_eq!(demand.takes(more, capacity), expected);
        }
    }
}
