//! When a dispatcher looks next. A timer costs CPU time and rings late, on some machines (in a
//! virtual machine above all) twenty times as much and as late as on others: how much is learnt
//! while they ring.

use slackline_units::{Span, Time};

/// The shortest wait worth a timer at all: what the two switches around it take.
const LEAST: Span = Span::from_us(10);

/// No wait and no margin grows beyond this, and whoever has more than this left at a ring lost it
/// to a stall of the machine, which is not to be learnt from.
const MOST: Span = Span::from_us(100);

/// How much the margin grows at a ring that came too early, and shrinks at any other: it settles
/// where one in nine comes too early.
const LATER: Span = Span::from_us(4);
const EARLIER: Span = Span::from_ns(500);

/// The margin of a short slice is no more than this part of it: it is what the error of a second
/// comes to, and one more look costs little where slices are short.
const PART: u64 = 16;

/// What a CPU wants to be looked at for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// When the chosen one's slice will have been used, if it runs from now on.
    pub(crate) limit: Option<Time>,
    /// When the policy wants to be asked.
    pub(crate) alarm: Option<Time>,
    /// When to see whether one that stands ready has been running, or what is owed has been paid.
    pub(crate) glance: Option<Time>,
}

/// The alarm clock of one dispatcher.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AlarmClock {
    set: Option<Set>,
    /// How long to wait at least, for the chosen one to get to run at all.
    least: Span,
    /// How much longer than its slice the chosen one takes, since it starts when the dispatcher
    /// has gone to sleep.
    margin: Span,
    /// What a look costs.
    cost: Span,
}

#[derive(Clone, Copy, Debug)]
struct Set {
    at: Time,
    /// Whether it is for the end of a slice, with the whole margin.
    teaches: bool,
}

impl AlarmClock {
    pub(crate) const fn new() -> AlarmClock {
        AlarmClock { set: None, least: LEAST, margin: Span::ZERO, cost: Span::ZERO }
    }

    /// The dispatcher is awake, for whatever reason. Returns how late it is, if the clock rang.
    pub(crate) fn woke(&self, now: Time) -> Option<Span> {
        self.set.filter(|set| now >= set.at).map(|set| now - set.at)
    }

    /// What the ring was good for: whether the chosen one has run since the last look, and how much
    /// of its slice it still has.
    pub(crate) fn learn(&mut self, now: Time, has_run: bool, left: Span) {
        let Some(set) = self.set.take().filter(|set| now >= set.at) else { return };
        self.least = if has_run { LEAST.max(self.least / 2) } else { MOST.min(self.least * 2) };
        if set.teaches && has_run && left < MOST {
            self.margin = if left.is_zero() {
                self.margin.left_after(EARLIER)
            } else {
                MOST.min(self.margin + LATER)
            };
        }
    }

    /// What a look has been found to cost.
    pub(crate) fn costs(&mut self, cost: Span) {
        self.cost = cost;
    }

    /// What a look costs.
    pub(crate) fn cost(&self) -> Span {
        self.cost
    }

    /// Sets the clock; returns what for.
    pub(crate) fn set(&mut self, now: Time, wanted: Wanted) -> Option<Time> {
        // Whoever is chosen must get to run before we look again, or we would look for ever.
        let margin = |limit: Time| self.margin.min(limit.since(now) / PART);
        let limit = wanted.limit.map(|limit| limit.after(margin(limit)).max(now.after(self.least)));
        let at = [limit, wanted.alarm, wanted.glance].into_iter().flatten().min();
        let is_whole = wanted.limit.is_some_and(|limit| margin(limit) == self.margin);
        self.set = at.map(|at| Set { at, teaches: limit == Some(at) && is_whole });
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::START;

    fn limit(at: Time) -> Wanted {
        Wanted { limit: Some(at), alarm: None, glance: None }
    }

    #[test]
    fn waits_longer_as_long_as_nobody_gets_to_run() {
        let mut clock = AlarmClock::new();
        let mut waits = Vec::new();
        for has_run in [false, false, true, true, true] {
            let at = clock.set(START, limit(START)).unwrap();
            waits.push((at - START) / Span::from_us(1));
            clock.learn(at, has_run, Span::ZERO);
        }
        assert_eq!(waits, [10, 20, 40, 20, 10]);
    }

    /// Whoever starts 20 us after the look, on a timer that is late by 0 to 15 us.
    #[test]
    fn one_ring_in_nine_comes_before_the_slice_is_used() {
        let mut clock = AlarmClock::new();
        let (slice, start, mut early) = (Span::from_ms(2), Span::from_us(20), 0);
        for round in 0..2000_u64 {
            let at = clock.set(START, limit(START.after(slice))).unwrap();
            let rang = at.after(Span::from_us(round * 7 % 16));
            let left = START.after(slice + start).since(rang);
            early += u32::from(round >= 1000 && !left.is_zero());
            clock.learn(rang, true, left);
        }
        assert!((90..=130).contains(&early), "{early} of 1000");
    }

    #[test]
    fn a_short_slice_has_a_short_margin_and_teaches_nothing() {
        let mut clock = AlarmClock::new();
        let us = |number| START.after(Span::from_us(number));
        for _ in 0..10 {
            let at = clock.set(START, limit(us(2000))).unwrap();
            clock.learn(at, true, Span::from_us(1));
        }
        assert_eq!(clock.set(START, limit(us(2000))), Some(us(2040)));
        for left in [Span::ZERO, Span::from_us(1)] {
            let at = clock.set(START, limit(us(160))).unwrap();
            assert_eq!(at, us(170));
            clock.learn(at, true, left);
        }
        assert_eq!(clock.set(START, limit(us(2000))), Some(us(2040)));
    }

    #[test]
    fn no_stop_is_left_out_however_dear_looks_are_and_however_soon_the_next_one_is() {
        let mut clock = AlarmClock::new();
        let us = |number| START.after(Span::from_us(number));
        clock.costs(MOST);
        for alarm in [901, 950, 1000] {
            let wanted = Wanted { alarm: Some(us(alarm)), ..limit(us(900)) };
            assert_eq!(clock.set(START, wanted), Some(us(900)));
        }
    }

    /// A slice of a day in a period of seven, a year after the start.
    #[test]
    fn seven_days_are_not_too_long() {
        let day = Span::from_secs(24 * 3_600);
        let now = START.after(day * 365);
        let wanted = |slice| Wanted {
            limit: Some(now.after(slice)),
            alarm: Some(now.after(day * 7)),
            glance: None,
        };
        let mut clock = AlarmClock::new();
        assert_eq!(clock.set(now, wanted(day)), Some(now.after(day)));
        assert_eq!(clock.set(now, wanted(day * 8)), Some(now.after(day * 7)));
        let rang = now.after(day * 7 + LEAST);
        assert_eq!(clock.woke(rang), Some(LEAST));
        clock.learn(rang, true, day);
        assert_eq!(clock.set(now, wanted(day)), Some(now.after(day)));
    }

    #[test]
    fn a_stall_is_not_learnt_from() {
        let mut clock = AlarmClock::new();
        for _ in 0..1000 {
            clock.set(START, limit(START));
            clock.learn(START.after(Span::from_ms(50)), false, Span::from_ms(50));
        }
        let next = clock.set(START, limit(START)).unwrap();
        assert_eq!(next, START.after(MOST));
    }
}
