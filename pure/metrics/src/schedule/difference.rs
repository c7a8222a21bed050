//! Differences between two runs, and a test whether each difference is more than noise.
//!
//! The test is a bootstrap over blocks of time. A *draw* takes blocks of a run at random and with
//! repetition, and computes the metric from the drawn blocks. Each draw takes as many blocks as the
//! run has. [`DRAWS`] draws are made, with a fixed seed. A difference is more than noise if at
//! least 99 % of the drawn differences have the same sign as the difference. Samples of the same
//! moment lie in the same block, so several long waits at one moment count as one event.

use std::collections::BTreeSet;

use slackline_units::Span;

use super::samples::Samples;
use super::{BLOCKS, Schedule, VmBlocks};

/// Number of draws for each metric.
const DRAWS: usize = 500;

/// Number of draws that are left out at each end of the interval. Both ends together are 1 % of the
/// draws.
const LEFT_OUT: usize = DRAWS / 200;

/// Minimum number of samples that each run needs for a difference to be judged.
pub const LEAST_SAMPLES: u64 = 20;

/// Metric by which two runs are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Median of the wake latency.
    WakeP50,
    /// 99th percentile of the wake latency.
    WakeP99,
    /// 99th percentile of the wake latency of wakes after which the vCPU runs on its last CPU.
    WakeStayedP99,
    /// 99th percentile of the wake latency of wakes after which the vCPU runs on another CPU.
    WakeMigratedP99,
    /// Median wait after a preemption.
    PreemptedP50,
    /// 99th percentile of the wait after a preemption.
    PreemptedP99,
    /// Median length of a slice.
    SliceP50,
    /// 99th percentile of the length of a slice.
    SliceP99,
    /// CPU time divided by the length of the run.
    Share,
    /// Busy time of the busiest CPU, divided by the sum of the busy times of all CPUs.
    BusiestShare,
    /// Standard deviation of the busy times of the CPUs, divided by their mean.
    BusySpread,
    /// Time in which a vCPU waited for one CPU while another CPU was idle, divided by the length of
    /// the run.
    IdleQueue,
}

/// Unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// Length of time in nanoseconds.
    Time,
    /// Part of a whole in millionths.
    Part,
}

/// Metrics that are compared for each VM, in the order of the tables.
const OF_VMS: [Metric; 9] = [
    Metric::Share,
    Metric::WakeP50,
    Metric::WakeP99,
    Metric::WakeStayedP99,
    Metric::WakeMigratedP99,
    Metric::PreemptedP50,
    Metric::PreemptedP99,
    Metric::SliceP50,
    Metric::SliceP99,
];

/// Metrics that are compared for the CPUs of the host.
const OF_CPUS: [Metric; 3] = [Metric::BusiestShare, Metric::BusySpread, Metric::IdleQueue];

impl Metric {
    /// Returns the name of the metric in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Metric::WakeP50 => "wake latency p50",
            Metric::WakeP99 => "wake latency p99",
            Metric::WakeStayedP99 => "wake p99, same CPU",
            Metric::WakeMigratedP99 => "wake p99, migrated",
            Metric::PreemptedP50 => "preemption wait p50",
            Metric::PreemptedP99 => "preemption wait p99",
            Metric::SliceP50 => "slice p50",
            Metric::SliceP99 => "slice p99",
            Metric::Share => "CPU time",
            Metric::BusiestShare => "busiest CPU's part",
            Metric::BusySpread => "spread of busy time",
            Metric::IdleQueue => "queue beside idle CPU",
        }
    }

    /// Returns the name of the metric's field in JSON, without the unit.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Metric::WakeP50 => "wake_latency_p50",
            Metric::WakeP99 => "wake_latency_p99",
            Metric::WakeStayedP99 => "wake_latency_same_cpu_p99",
            Metric::WakeMigratedP99 => "wake_latency_migrated_p99",
            Metric::PreemptedP50 => "preemption_wait_p50",
            Metric::PreemptedP99 => "preemption_wait_p99",
            Metric::SliceP50 => "slice_p50",
            Metric::SliceP99 => "slice_p99",
            Metric::Share => "cpu_time",
            Metric::BusiestShare => "busiest_cpu_part",
            Metric::BusySpread => "busy_spread",
            Metric::IdleQueue => "queue_beside_idle_cpu",
        }
    }

    /// Returns the unit of the metric's values.
    #[must_use]
    pub const fn unit(self) -> MetricUnit {
        match self {
            Metric::Share | Metric::BusiestShare | Metric::BusySpread | Metric::IdleQueue => {
                MetricUnit::Part
            }
            _ => MetricUnit::Time,
        }
    }

    /// Returns true if a larger value is worse under every load. False, for example, for the median
    /// of preemption waits: this median also rises if short waits become fewer.
    #[must_use]
    pub const fn is_worse_if_larger(self) -> bool {
        let is_neutral = matches!(
            self,
            Metric::PreemptedP50 | Metric::SliceP50 | Metric::SliceP99 | Metric::Share
        );
        !is_neutral
    }
}

/// Verdict on the difference of a metric between two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The second run has a larger value, by more than noise.
    More,
    /// The second run has a smaller value, by more than noise.
    Less,
    /// The difference can be noise.
    Noise,
    /// One of the runs has too few samples, or lacks the VM.
    Unjudged,
}

/// Metric of one VM or of all VMs, with its values in two runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the VM. `None` if the metric is one of all VMs or of the CPUs.
    pub vm: Option<String>,
    /// Metric that is compared.
    pub metric: Metric,
    /// Value in each run, in the unit of the metric. `None` if the run has no samples.
    pub values: [Option<u64>; 2],
    /// Number of samples in each run. For metrics that are parts of a whole, the number of blocks.
    pub counts: [u64; 2],
    /// Interval that contains 99 % of the drawn differences, in the unit of the metric. `None` if
    /// the difference is not judged.
    pub interval: Option<(i64, i64)>,
    /// Verdict about the difference, by the bootstrap test of this module.
    pub change: Change,
}

/// Returns the differences between two runs. The differences of all VMs together come first, then
/// the differences of the CPUs, then the differences of each VM.
#[must_use]
pub fn difference(runs: [&Schedule; 2]) -> Vec<Difference> {
    let draws = [draws(1), draws(2)];
    let compare = |vm: Option<&str>, metric: Metric| {
        let of = |run: &Schedule| vm.map_or(Some(run.total.clone()), |vm| run.vms.get(vm).cloned());
        let blocks = runs.map(of);
        let counts = [0, 1].map(|run| count(metric, blocks[run].as_ref()));
        let whole: Vec<usize> = (0..BLOCKS).collect();
        let value =
            |run: usize, drawn: &[usize]| value(metric, runs[run], blocks[run].as_ref()?, drawn);
        let values = [value(0, &whole), value(1, &whole)];
        let mut drawn: Vec<i64> = Vec::new();
        if counts.iter().all(|&count| count >= least(metric)) {
            let pairs = draws[0].iter().zip(&draws[1]);
            drawn.extend(pairs.filter_map(|(one, other)| {
                Some(signed(value(1, other)?).saturating_sub(signed(value(0, one)?)))
            }));
        }
        drawn.sort_unstable();
        let interval =
            (drawn.len() == DRAWS).then(|| (drawn[LEFT_OUT], drawn[DRAWS - 1 - LEFT_OUT]));
        let change = match interval {
            None => Change::Unjudged,
            Some((least, _)) if least > 0 => Change::More,
            Some((_, most)) if most < 0 => Change::Less,
            Some(_) => Change::Noise,
        };
        Difference { vm: vm.map(str::to_owned), metric, values, counts, interval, change }
    };
    let vms: BTreeSet<&str> =
        runs.iter().flat_map(|run| run.vms.keys()).map(String::as_str).collect();
    let total = OF_VMS.into_iter().chain(OF_CPUS).map(|metric| compare(None, metric));
    let total: Vec<Difference> = total.collect();
    let each = vms.iter().flat_map(|vm| OF_VMS.map(|metric| compare(Some(vm), metric)));
    let all = total.into_iter().chain(each);
    all.filter(|it| it.values.iter().any(Option::is_some)).collect()
}

/// Returns the minimum number of samples that each run needs for the difference of a metric to be
/// judged.
fn least(metric: Metric) -> u64 {
    match metric.unit() {
        MetricUnit::Time => LEAST_SAMPLES,
        MetricUnit::Part => BLOCKS as u64,
    }
}

fn count(metric: Metric, blocks: Option<&VmBlocks>) -> u64 {
    let Some(blocks) = blocks else { return 0 };
    match metric {
        Metric::WakeP50 | Metric::WakeP99 => blocks.stayed.count() + blocks.migrated.count(),
        Metric::WakeStayedP99 => blocks.stayed.count(),
        Metric::WakeMigratedP99 => blocks.migrated.count(),
        Metric::PreemptedP50 | Metric::PreemptedP99 => blocks.preempted.count(),
        Metric::SliceP50 | Metric::SliceP99 => blocks.slices.count(),
        Metric::Share | Metric::BusiestShare | Metric::BusySpread | Metric::IdleQueue => {
            BLOCKS as u64
        }
    }
}

/// Returns the value of a metric in the blocks `drawn`. `None` if these blocks have no samples.
fn value(metric: Metric, run: &Schedule, blocks: &VmBlocks, drawn: &[usize]) -> Option<u64> {
    let of =
        |samples: &Samples, percent: u64| samples.of(drawn.iter().copied()).percentile(percent);
    let both = |percent: u64| {
        let mut wakes = blocks.stayed.of(drawn.iter().copied());
        wakes.add(&blocks.migrated.of(drawn.iter().copied()));
        wakes.percentile(percent)
    };
    match metric {
        Metric::WakeP50 => both(50),
        Metric::WakeP99 => both(99),
        Metric::WakeStayedP99 => of(&blocks.stayed, 99),
        Metric::WakeMigratedP99 => of(&blocks.migrated, 99),
        Metric::PreemptedP50 => of(&blocks.preempted, 50),
        Metric::PreemptedP99 => of(&blocks.preempted, 99),
        Metric::SliceP50 => of(&blocks.slices, 50),
        Metric::SliceP99 => of(&blocks.slices, 99),
        Metric::Share => part(sum(&blocks.used, drawn), run.block, drawn.len()),
        Metric::IdleQueue => part(sum(&run.idle_queue, drawn), run.block, drawn.len()),
        Metric::BusiestShare => {
            let busy: Vec<u64> = run.busy.iter().map(|row| sum(row, drawn)).collect();
            let (most, all) = (busy.iter().max().copied()?, busy.iter().sum::<u64>());
            Some(ppm(most, all))
        }
        Metric::BusySpread => {
            let busy: Vec<u64> = run.busy.iter().map(|row| sum(row, drawn)).collect();
            Some(variation(&busy))
        }
    }
}

fn sum(row: &[Span; BLOCKS], drawn: &[usize]) -> u64 {
    drawn.iter().map(|&block| row[block].ns()).sum()
}

fn part(used: u64, block: Span, blocks: usize) -> Option<u64> {
    Some(ppm(used, block.ns().saturating_mul(blocks as u64)))
}

/// Returns `part` in millionths of `whole`. Zero if `whole` is zero.
fn ppm(part: u64, whole: u64) -> u64 {
    let ppm = (u128::from(part) * 1_000_000).checked_div(u128::from(whole));
    u64::try_from(ppm.unwrap_or(0)).unwrap_or(u64::MAX)
}

/// Returns the coefficient of variation in millionths: the standard deviation divided by the mean.
fn variation(values: &[u64]) -> u64 {
    let count = values.len() as u128;
    let sum: u128 = values.iter().copied().map(u128::from).sum();
    if sum == 0 {
        return 0;
    }
    // Squares of deviations in millionths of the mean are small enough for the integer type.
    let deviation = |&value: &u64| {
        let scaled = u128::from(value) * count * 1_000_000 / sum;
        scaled.abs_diff(1_000_000).pow(2)
    };
    let squares: u128 = values.iter().map(deviation).sum();
    u64::try_from((squares / count).isqrt()).unwrap_or(u64::MAX)
}

/// Returns the numbers of the drawn blocks, one list for each draw.
fn draws(seed: u64) -> Vec<Vec<usize>> {
    let mut state = seed;
    let mut next = || {
        // SplitMix64 by Steele, Lea and Flood, 2014.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let mut block = || usize::try_from(next() % BLOCKS as u64).unwrap_or(0);
    (0..DRAWS).map(|_| (0..BLOCKS).map(|_| block()).collect()).collect()
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficient_of_variation_equals_the_textbook_value() {
        assert_eq!(variation(&[5, 5, 5]), 0);
        assert_eq!(variation(&[0, 10]), 1_000_000);
        assert_eq!(variation(&[2, 4, 4, 4, 5, 5, 7, 9]), 400_000);
        assert_eq!(variation(&[]), 0);
    }
}
