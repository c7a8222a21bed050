//! Time that simulated CPUs spent on overhead, by kind of overhead.
//!
//! The elapsed time of a CPU is the sum of three parts, exact to the nanosecond: time in programs
//! (useful, spinning on a lock, or slowed by other CPUs), overhead of each kind, and idle time.

use slackline_trace::OverheadKind;
use slackline_units::Span;

/// Time spent on each kind of overhead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverheadTimes([Span; OverheadKind::ALL.len()]);

impl OverheadTimes {
    /// Returns the time spent on one kind of overhead.
    #[must_use]
    pub fn of(&self, kind: OverheadKind) -> Span {
        self.0[kind as usize]
    }

    /// Returns the time spent on all kinds of overhead.
    #[must_use]
    pub fn total(&self) -> Span {
        self.0.iter().copied().sum()
    }

    pub(crate) fn add(&mut self, kind: OverheadKind, span: Span) {
        self.0[kind as usize] += span;
    }
}
