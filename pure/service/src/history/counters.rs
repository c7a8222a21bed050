//! Counters of a domain, whose growth is added to its history.

use slackline_units::Span;

/// Sums over all vCPUs of a domain since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Time for which vCPUs were present, and neither blocked nor stopped for an escape.
    pub runnable: Span,
    /// CPU time that all vCPUs used.
    pub delivered: Span,
    /// Sum of the tardiness of all missed deadlines.
    pub late: Span,
    /// Number of periods at whose end a vCPU was entitled to CPU time.
    pub deadlines: u64,
    /// Number of periods counted in `deadlines` in which a vCPU received less than its entitlement.
    pub missed: u64,
}

impl Counters {
    /// Returns the growth since `before`, and raises `before` to the values of `self`. A value of
    /// `self` that has fallen does not lower `before`. So a miss that is withdrawn and comes back
    /// is not counted twice.
    pub(super) fn grown(self, before: &mut Counters) -> Counters {
        let grown = Counters {
            runnable: self.runnable.left_after(before.runnable),
            delivered: self.delivered.left_after(before.delivered),
            late: self.late.left_after(before.late),
            deadlines: self.deadlines.saturating_sub(before.deadlines),
            missed: self.missed.saturating_sub(before.missed),
        };
        before.runnable = before.runnable.max(self.runnable);
        before.delivered = before.delivered.max(self.delivered);
        before.late = before.late.max(self.late);
        before.deadlines = before.deadlines.max(self.deadlines);
        before.missed = before.missed.max(self.missed);
        grown
    }
}
