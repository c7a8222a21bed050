//! The clock on the wall, by which phases are told, beside the monotonic one that dispatchers wait
//! by. Both go at the same rate, however the kernel is told to correct it: what is between them
//! changes only when somebody sets the clock, or as the machine was suspended. So it is measured
//! once, and looked at again now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use slackline_units::{Span, Time};

use crate::sys::{monotonic, wall};

/// How often both are read to know what is between them: somebody may run in between.
const READINGS: usize = 5;

/// What no reading is better than, whatever the clocks say.
const LEAST: Span = Span::from_us(1);

/// `CLOCK_REALTIME`, or, to study clocks that differ, one that is ahead of it. Its clones are the
/// same clock.
#[derive(Clone, Debug, Default)]
pub struct WallClock {
    /// In nanoseconds.
    ahead: Arc<AtomicI64>,
}

/// Somebody set the clock on the wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    /// By how much.
    pub by: Span,
    /// Whether ahead; else back.
    pub is_ahead: bool,
}

/// How far the wall clock is ahead of the monotonic one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// The difference of the two clocks.
    pub ahead: Span,
    /// By how much that may be wrong.
    within: Span,
}

impl WallClock {
    /// It is so many nanoseconds ahead of `CLOCK_REALTIME` from now on; back, below zero.
    pub fn set_ahead(&self, ns: i64) {
        self.ahead.store(ns, Ordering::Relaxed);
    }

    /// The time it shows, since 1970.
    #[must_use]
    pub fn now(&self) -> Time {
        moved(wall(), self.ahead.load(Ordering::Relaxed))
    }

    /// What is between it and the monotonic clock now: the reading that took least time.
    #[must_use]
    pub fn offset(&self) -> Offset {
        let read = |_| {
            let (before, shown, after) = (monotonic(), self.now(), monotonic());
            let within = after.since(before).max(LEAST);
            let middle = before.after(after.since(before) / 2);
            // The kernel keeps it from being before: only a shifted one can be.
            Offset { ahead: shown.since(middle), within }
        };
        let readings = (0..READINGS).map(read);
        readings.min_by_key(|reading| reading.within).expect("more than none")
    }
}

impl Offset {
    /// By how much the clock was set since an earlier one; none is not at all, as far as it can be
    /// told.
    #[must_use]
    pub fn step_since(self, before: Offset) -> Option<ClockStep> {
        let is_ahead = self.ahead > before.ahead;
        let by = self.ahead.left_after(before.ahead) + before.ahead.left_after(self.ahead);
        (by > self.within + before.within).then_some(ClockStep { by, is_ahead })
    }
}

fn moved(at: Time, ns: i64) -> Time {
    let by = Span::from_ns(ns.unsigned_abs());
    let back = Time::START + at.since(Time::START).left_after(by);
    if ns < 0 { back } else { at.after(by) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_stands_still_until_it_is_set() {
        let clock = WallClock::default();
        let before = clock.offset();
        // By less than a tenth of a millisecond: unless somebody sets this machine's clock now.
        clock.set_ahead(100_000);
        let step = clock.offset().step_since(before).unwrap();
        assert!(step.is_ahead && step.by >= Span::from_us(50), "{step:?}");
        let shifted = clock.offset();
        clock.set_ahead(-3_600_000_000_000);
        let step = clock.offset().step_since(shifted).unwrap();
        assert!(!step.is_ahead && step.by >= Span::from_secs(3599), "{step:?}");
    }

    #[test]
    fn what_readings_differ_by_is_no_step() {
        let at =
            |ahead, within| Offset { ahead: Span::from_us(ahead), within: Span::from_us(within) };
        assert_eq!(at(1_000, 3).step_since(at(1_007, 4)), None);
        let step = ClockStep { by: Span::from_us(8), is_ahead: false };
        assert_eq!(at(1_000, 3).step_since(at(1_008, 4)), Some(step));
    }
}
