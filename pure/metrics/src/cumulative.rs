//! Cumulative distributions: for each length of time, the number of values up to that length.

use slackline_units::Span;

use crate::distribution::Tally;

/// Cumulative distribution of a metric of a vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cumulative {
    /// Display name of the vCPU.
    pub vcpu: String,
    /// Name of the metric, such as `wake to run`.
    pub metric: &'static str,
    /// Lengths of time in ascending order, each with the number of values that are at most that
    /// long. The last number counts all values. With more than 1,024 values, lengths are rounded up
    /// to three significant digits.
    pub steps: Vec<(Span, u64)>,
}

impl Cumulative {
    /// Returns the cumulative distribution of the values in a tally. `None` if the tally has no
    /// values.
    pub(crate) fn of(vcpu: &str, metric: &'static str, tally: &Tally) -> Option<Cumulative> {
        let steps = tally.steps();
        let vcpu = vcpu.to_owned();
        (!steps.is_empty()).then_some(Cumulative { vcpu, metric, steps })
    }

    /// Returns the number of all values in the distribution.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.steps.last().map_or(0, |&(_, count)| count)
    }
}
