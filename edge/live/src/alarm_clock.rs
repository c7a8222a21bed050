//! Timer for the next dispatcher pass of one CPU. Each use of a timer costs CPU time, and every
//! timer expires late. This cost and this lateness differ between hosts by a factor of up to
//! twenty. On virtual hosts both are high. So the alarm clock measures both on its own timers and
//! adapts to them.

use slackline_units::{Span, Time};

/// Smallest value of the minimum wait, and its initial value. For a shorter wait a timer is
/// useless, because the two context switches around it take as long.
const LEAST: Span = Span::from_us(10);

/// Upper limit of the minimum wait, and of the margin by which the timer is set later than the end
/// of the slice. If the vCPU has more than 100 us of its slice left when the timer expires, the
/// host must have stalled. The clock does not adjust the margin after such a timer.
const MOST: Span = Span::from_us(100);

/// Amount by which the margin grows after a timer that expired before the slice was used up. So the
/// next timers are set later. With this value and [`EARLIER`], one timer in nine expires before the
/// slice is used up.
const LATER: Span = Span::from_us(4);
/// Amount by which the margin shrinks after a timer that expired when the slice was used up. So the
/// next timers are set earlier.
const EARLIER: Span = Span::from_ns(500);

/// Divisor that gives the maximum margin: remaining slice / 16. So the margin makes a vCPU exceed
/// its slice by at most 1/16. With a short slice, the timer may then expire before the slice is
/// used up, which costs an additional pass.
const PART: u64 = 16;

/// Times at which a CPU needs a dispatcher pass. Each field is one reason, and is `None` if that
/// reason does not apply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassTimes {
    /// Time at which the chosen vCPU will have used up its slice, if it runs from now on without
    /// interruption. `None` if the timeslice has no time limit or no vCPU is chosen.
    pub(crate) limit: Option<Time>,
    /// Time for which the policy has set a timer on this CPU. `None` if there is no timer.
    pub(crate) alarm: Option<Time>,
    /// Time of a check by the dispatcher. `None` if no check is needed. Usually the dispatcher
    /// checks whether a vCPU with a lower real-time priority has been running in place of the
    /// chosen vCPU.
    ///
    /// The one exception is a chosen vCPU that runs as an ordinary thread to pay the CPU's debt
    /// ([`FairServerDebt`](crate::fair_server::FairServerDebt)). Then the dispatcher checks whether
    /// the debt is paid.
    pub(crate) glance: Option<Time>,
}

/// Timer of one dispatcher, with the cost and lateness of the host's timers as measured so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AlarmClock {
    set: Option<AlarmSetting>,
    /// Minimum wait until the timer expires. With a shorter wait the chosen vCPU might not run at
    /// all before the next pass.
    least: Span,
    /// Time by which the timer is set later than the end of the slice. The chosen vCPU starts only
    /// after the dispatcher has gone to sleep, so the slice also ends later than computed.
    margin: Span,
    /// Measured CPU time of a dispatcher pass.
    cost: Span,
}

/// Time for which the timer is set.
#[derive(Clone, Copy, Debug)]
struct AlarmSetting {
    at: Time,
    /// True if the timer marks the end of a slice and includes the whole margin. The clock adjusts
    /// the margin only after such a timer.
    teaches: bool,
}

impl AlarmClock {
    pub(crate) const fn new() -> AlarmClock {
        AlarmClock { set: None, least: LEAST, margin: Span::ZERO, cost: Span::ZERO }
    }

    /// Returns the lateness of the dispatcher: the time from the expiry of the timer to `now`, when
    /// the dispatcher is awake. `None` if the timer has not expired.
    pub(crate) fn woke(&self, now: Time) -> Option<Span> {
        self.set.filter(|set| now >= set.at).map(|set| now - set.at)
    }

    /// Adjusts the minimum wait and the margin after the timer has expired. `has_run` is true if
    /// the chosen vCPU has run since the last pass, and `left` is the unused part of the vCPU's
    /// slice.
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

    /// Sets the CPU time of a dispatcher pass, as measured.
    pub(crate) fn costs(&mut self, cost: Span) {
        self.cost = cost;
    }

    /// Returns the measured CPU time of a dispatcher pass.
    pub(crate) fn cost(&self) -> Span {
        self.cost
    }

    /// Sets the timer to the earliest of the times in `wanted`, and returns that time. The time for
    /// the end of the slice is first moved later by the margin. `None` if `wanted` has no time.
    pub(crate) fn set(&mut self, now: Time, wanted: PassTimes) -> Option<Time> {
        // The minimum wait lets the chosen vCPU run before the next pass. Otherwise one pass could
        // follow the other forever.
        let margin = |limit: Time| self.margin.min(limit.since(now) / PART);
        let limit = wanted.limit.map(|limit| limit.after(margin(limit)).max(now.after(self.least)));
        let at = [limit, wanted.alarm, wanted.glance].into_iter().flatten().min();
        let is_whole = wanted.limit.is_some_and(|limit| margin(limit) == self.margin);
        self.set = at.map(|at| AlarmSetting { at, teaches: limit == Some(at) && is_whole });
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::START;

    fn limit(at: Time) -> PassTimes {
        PassTimes { limit: Some(at), alarm: None, glance: None }
    }

    #[test]
    fn minimum_timer_wait_doubles_while_picked_vcpu_does_not_start() {
        let mut clock = AlarmClock::new();
        let mut waits = Vec::new();
        for has_run in [false, false, true, true, true] {
            let at = clock.set(START, limit(START)).unwrap();
            waits.push((at - START) / Span::from_us(1));
            clock.learn(at, has_run, Span::ZERO);
        }
        assert_eq!(waits, [10, 20, 40, 20, 10]);
    }

    /// In the model, a vCPU starts to run 20 us after the dispatcher pass. The timer for the end of
    /// the vCPU's slice is late by 0 to 15 us.
    #[test]
    fn adapted_timer_margin_makes_one_in_nine_timers_expire_early() {
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
    fn short_slice_does_not_change_timer_margin_of_longer_slices() {
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
    fn slice_end_timer_is_not_delayed_by_costly_dispatcher_passes() {
        let mut clock = AlarmClock::new();
        let us = |number| START.after(Span::from_us(number));
        clock.costs(MOST);
        for alarm in [901, 950, 1000] {
            let wanted = PassTimes { alarm: Some(us(alarm)), ..limit(us(900)) };
            assert_eq!(clock.set(START, wanted), Some(us(900)));
        }
    }

    /// The slice is one day in a period of seven days. The run began a year ago, so times on its
    /// clock are large.
    #[test]
    fn dispatcher_timer_can_be_set_seven_days_ahead() {
        let day = Span::from_secs(24 * 3_600);
        let now = START.after(day * 365);
        let wanted = |slice| PassTimes {
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
    fn minimum_timer_wait_is_bounded_if_picked_vcpu_never_starts() {
        let mut clock = AlarmClock::new();
        for _ in 0..1000 {
            clock.set(START, limit(START));
            clock.learn(START.after(Span::from_ms(50)), false, Span::from_ms(50));
        }
        let next = clock.set(START, limit(START)).unwrap();
        assert_eq!(next, START.after(MOST));
    }
}
