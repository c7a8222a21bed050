//! The wall clock and its offset to the monotonic clock. Phases of periods refer to the wall clock,
//! and dispatchers wait by the monotonic clock. Both clocks run at the same rate, since corrections
//! of the rate affect both. So their offset changes only when a program sets the wall clock, or
//! while the host is suspended. It is measured once and then checked at intervals.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use slackline_units::{Span, Time};

use crate::sys::{monotonic, wall};

/// Number of times that both clocks are read for one offset. The fastest of these readings is used,
/// because another thread may run between the readings of the two clocks.
const READINGS: usize = 5;

/// Smallest error that is assumed for an offset, even if the monotonic clock shows the same time
/// before and after the wall clock is read.
const LEAST: Span = Span::from_us(1);

/// The wall clock `CLOCK_REALTIME`, plus an offset that tests set to simulate hosts whose clocks
/// differ. Clones share the offset.
#[derive(Clone, Debug, Default)]
pub struct WallClock {
    /// Offset of this clock from `CLOCK_REALTIME` in nanoseconds. If this clock is behind, the
    /// offset is negative.
    ahead: Arc<AtomicI64>,
}

/// A step of the wall clock, which happens when a program sets the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    /// Size of the step.
    pub by: Span,
    /// True if the clock was set forward, false if it was set back.
    pub is_ahead: bool,
}

/// Difference between the wall clock and the monotonic clock, as measured once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// Time by which the wall clock is ahead of the monotonic clock.
    pub ahead: Span,
    /// Maximum error of `ahead`.
    within: Span,
}

impl WallClock {
    /// Sets this clock to `ns` nanoseconds ahead of `CLOCK_REALTIME`. A negative number sets this
    /// clock behind `CLOCK_REALTIME`.
    pub fn set_ahead(&self, ns: i64) {
        self.ahead.store(ns, Ordering::Relaxed);
    }

    /// Returns the time that the clock shows, since 1970.
    #[must_use]
    pub fn now(&self) -> Time {
        moved(wall(), self.ahead.load(Ordering::Relaxed))
    }

    /// Measures the current offset from the monotonic clock to the wall clock, and returns the
    /// fastest of several readings.
    #[must_use]
    pub fn offset(&self) -> Offset {
        let read = |_| {
            let (before, shown, after) = (monotonic(), self.now(), monotonic());
            let within = after.since(before).max(LEAST);
            let middle = before.after(after.since(before) / 2);
            // The kernel refuses a wall clock that is behind the monotonic clock. Only a clock that
            // `set_ahead` changed can be behind, and its offset is then zero.
            Offset { ahead: shown.since(middle), within }
        };
        let readings = (0..READINGS).map(read);
        readings.min_by_key(|reading| reading.within).expect("READINGS is not zero")
    }
}

impl Offset {
    /// Returns the step by which the wall clock was set between the measurement `before` and this
    /// measurement. `None` if the two offsets differ by at most the sum of their errors.
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
    fn setting_wall_clock_ahead_or_back_is_detected_as_step() {
        let clock = WallClock::default();
        let before = clock.offset();
        // The offset is changed by 100 us. The measured step differs by the error of the readings.
        clock.set_ahead(100_000);
        let step = clock.offset().step_since(before).unwrap();
        assert!(step.is_ahead && step.by >= Span::from_us(50), "{step:?}");
        let shifted = clock.offset();
        clock.set_ahead(-3_600_000_000_000);
        let step = clock.offset().step_since(shifted).unwrap();
        assert!(!step.is_ahead && step.by >= Span::from_secs(3599), "{step:?}");
    }

    #[test]
    fn wall_clock_difference_within_reading_error_is_not_a_step() {
        let at =
            |ahead, within| Offset { ahead: Span::from_us(ahead), within: Span::from_us(within) };
        assert_eq!(at(1_000, 3).step_since(at(1_007, 4)), None);
        let step = ClockStep { by: Span::from_us(8), is_ahead: false };
        assert_eq!(at(1_000, 3).step_since(at(1_008, 4)), Some(step));
    }
}
