//! Demand of a vCPU per period.

use std::collections::BTreeMap;

use slackline_units::{Span, Time};

use crate::VcpuDemand;

/// Map from an amount of CPU time to the number of periods that demanded exactly this amount.
/// Amounts are not rounded.
pub type DemandCounts = BTreeMap<Span, u64>;

/// Returns the number of periods of a vCPU for each amount of demand. Only whole periods count,
/// from the vCPU's join until it leaves or until `end`. The demand of a period is the CPU time that
/// the vCPU would use in this period if it had a CPU of its own. So a job longer than a period
/// counts in several periods. An endless job demands all of each period up to `end`. The result is
/// empty for a period of zero.
#[must_use]
pub fn demand_per_period(vcpu: &VcpuDemand, period: Span, end: Time) -> DemandCounts {
    let mut counts = DemandCounts::new();
    if period.is_zero() {
        return counts;
    }
    let stay = vcpu.left.unwrap_or(end).min(end).since(vcpu.joined);
    let periods = stay / period;
    let mut tally = Tally { counts: &mut counts, period, periods, index: 0, sum: Span::ZERO };
    let mut free = Span::ZERO;
    let last = vcpu.jobs.len().wrapping_sub(1);
    let is_endless = vcpu.is_endless();
    for (index, job) in vcpu.jobs.iter().enumerate() {
        let from = job.ready.since(vcpu.joined).max(free);
        let to =
            if is_endless && index == last { stay.max(from) } else { from + vcpu.work_of(job) };
        tally.add(from, to);
        free = to;
    }
    tally.finish();
    counts
}

/// Demand of the current period, and the counts of the earlier periods.
struct Tally<'a> {
    counts: &'a mut DemandCounts,
    period: Span,
    /// Number of whole periods that are counted.
    periods: u64,
    index: u64,
    sum: Span,
}

impl Tally<'_> {
    /// Adds an interval of demand, which begins at or after the end of the interval added last.
    fn add(&mut self, mut from: Span, to: Span) {
        while from < to && self.index < self.periods {
            self.skip_to(from / self.period);
            if self.index >= self.periods {
                return;
            }
            let end = self.period * (self.index + 1);
            let part = to.min(end) - from;
            self.sum += part;
            from += part;
        }
    }

    /// Closes all periods before the period with this index.
    fn skip_to(&mut self, index: u64) {
        let index = index.min(self.periods);
        if index == self.index {
            return;
        }
        let sum = std::mem::take(&mut self.sum);
        *self.counts.entry(sum).or_default() += 1;
        let empty = index - self.index - 1;
        if empty > 0 {
            *self.counts.entry(Span::ZERO).or_default() += empty;
        }
        self.index = index;
    }

    fn finish(mut self) {
        let periods = self.periods;
        self.skip_to(periods);
    }
}
