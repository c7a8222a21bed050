//! Counters of a domain since the daemon started. Their growth is added to the domain's history.

use slackline_units::Span;

/// Sums over all vCPUs of a domain since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Time for which vCPUs were present and not blocked. Time in which they were stopped because a
    /// process escaped from its process tree is not counted.
    pub runnable: Span,
    /// CPU time that all vCPUs used.
    pub delivered: Span,
    /// Sum of the tardiness of all missed deadlines.
    pub late: Span,
    /// Number of periods at whose end a vCPU was entitled to CPU time.
    pub deadlines: u64,
    /// Number of the periods counted in `deadlines` in which a vCPU got less than its entitlement.
    pub missed: u64,
}

impl Counters {
    /// Returns the growth of all values since `before`, and raises `before` to the values of
    /// `self`. If a value of `self` has fallen, `before` keeps its value. So a miss that is
    /// withdrawn and later counted again is not added twice.
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
