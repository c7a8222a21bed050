//! Costs of scheduling and use of CPUs, as recorded in a trace.

use slackline_units::{CpuId, Span};

/// Costs of scheduling in a part of the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// CPU time of each switch to another vCPU.
    pub switch: Samples,
    /// CPU time of each migration.
    pub migration: Samples,
    /// CPU time that vCPUs spent to refill cold caches, one value per dispatch.
    pub refill: Samples,
    /// CPU time of each timer tick.
    pub tick: Samples,
    /// CPU time of each interrupt.
    pub interrupt: Samples,
    /// CPU time of each call of a balancer.
    pub balancing: Samples,
    /// Time by which each timer expired late. Zero for a timer that was on time.
    pub lateness: Samples,
}

/// Lengths of time, in the order in which they were recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    values: Vec<u64>,
}

/// Use of one CPU over the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTimes {
    /// Number of the CPU.
    pub cpu: CpuId,
    /// Time that kernel accounting of this CPU covers. Zero if the trace has no kernel accounting.
    pub accounted: Span,
    /// Time in which the CPU was idle.
    pub idle: Span,
    /// Time that a hypervisor below this host gave to other VMs (steal).
    pub stolen: Span,
    /// CPU time that Slackline's dispatcher used on this CPU.
    pub dispatching: Span,
    /// CPU time of vCPUs on this CPU in the whole recording.
    pub vcpus: Span,
}

impl Costs {
    /// Returns the CPU time of all overhead.
    #[must_use]
    pub fn total(&self) -> Span {
        let Costs { switch, migration, refill, tick, interrupt, balancing, .. } = self;
        let kinds = [switch, migration, refill, tick, interrupt, balancing];
        kinds.into_iter().map(Samples::sum).sum()
    }
}

impl Samples {
    /// Returns the values of several lists as one list.
    #[must_use]
    pub fn joined<'a>(all: impl Iterator<Item = &'a Samples>) -> Samples {
        Samples { values: all.flat_map(|samples| &samples.values).copied().collect() }
    }

    pub(crate) fn add(&mut self, value: Span) {
        self.values.push(value.ns());
    }

    /// Adds `value` to the last value. If there is no value yet, `value` becomes the first value.
    pub(crate) fn extend_last(&mut self, value: Span) {
        match self.values.last_mut() {
            Some(last) => *last = last.saturating_add(value.ns()),
            None => self.add(value),
        }
    }

    /// Returns the number of values.
    #[must_use]
    pub fn count(&self) -> usize {
        self.values.len()
    }

    /// Returns the mean, rounded to the nearest nanosecond. Zero without values.
    #[must_use]
    pub fn mean(&self) -> Span {
        let count = self.values.len() as u128;
        let sum: u128 = self.values.iter().copied().map(u128::from).sum();
        let mean = (sum + count / 2).checked_div(count).unwrap_or(0);
        Span::from_ns(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// Returns the sum of all values.
    #[must_use]
    pub fn sum(&self) -> Span {
        self.values
            .iter()
            .fold(Span::ZERO, |sum, &ns| sum.checked_add(Span::from_ns(ns)).unwrap_or(Span::MAX))
    }

    /// Returns the nearest-rank percentile: the smallest value `v` for which at least `percent` %
    /// of all values are at most `v`. `None` if there are no values.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> Option<Span> {
        self.percentiles([percent as u64]).map(|[span]| span)
    }

    /// Returns several nearest-rank percentiles, as [`Samples::percentile`] does for one.
    #[must_use]
    pub fn percentiles<const N: usize>(&self, percents: [u64; N]) -> Option<[Span; N]> {
        let mut sorted = self.values.clone();
        sorted.sort_unstable();
        let count = sorted.len() as u64;
        let rank = |percent: u64| (count * percent.min(100)).div_ceil(100).max(1) - 1;
        let at = |percent| usize::try_from(rank(percent)).ok().and_then(|rank| sorted.get(rank));
        let found = percents.map(|percent| at(percent).copied().map(Span::from_ns));
        found.iter().all(Option::is_some).then(|| found.map(Option::unwrap_or_default))
    }
}

impl CpuTimes {
    pub(crate) fn new(cpu: CpuId) -> CpuTimes {
        let (accounted, idle, stolen) = (Span::ZERO, Span::ZERO, Span::ZERO);
        CpuTimes { cpu, accounted, idle, stolen, dispatching: Span::ZERO, vcpus: Span::ZERO }
    }

    /// Returns the time that other programs, kernel threads and interrupts used.
    #[must_use]
    pub fn others(&self) -> Span {
        let known = [self.idle, self.stolen, self.dispatching, self.vcpus];
        known.into_iter().fold(self.accounted, Span::left_after)
    }
}
