//! Time that simulated CPUs spent on something that is not a vCPU's program, by kind.
//!
//! On every CPU the time in programs (useful, spinning on a lock, or slowed by other CPUs), the
//! overhead of each kind and the idle time amount to the elapsed time, to the nanosecond.

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
