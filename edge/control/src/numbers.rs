//! Numbers of the core for `/metrics`.

use serde::{Deserialize, Serialize};
use slackline_units::Span;

use crate::replies::{Cost, State};

/// Upper bounds of the buckets of a [`Histogram`]. The last bucket has none.
pub const BOUNDS: [Span; 9] = [
    Span::from_us(100),
    Span::from_us(250),
    Span::from_us(500),
    Span::from_ms(1),
    Span::from_ms(2),
    Span::from_ms(5),
    Span::from_ms(20),
    Span::from_ms(100),
    Span::from_secs(1),
];

/// Histogram of durations, since the start of the core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Histogram {
    /// Sum of all durations in nanoseconds.
    pub sum_ns: u64,
    /// Number of durations in each bucket: up to its bound and above the one before. The last
    /// bucket counts those above all bounds.
    pub counts: [u64; BOUNDS.len() + 1],
}

impl Histogram {
    /// Adds a duration to its bucket.
    pub fn observe(&mut self, length: Span) {
        let bucket = BOUNDS.iter().position(|&bound| length <= bound).unwrap_or(BOUNDS.len());
        self.counts[bucket] += 1;
        self.sum_ns = self.sum_ns.saturating_add(length.ns());
    }

    /// Returns the number of all durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// All numbers of the core. Counters only grow while the core lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numbers {
    /// Numbers of each reservation.
    pub reservations: Vec<ReservationNumbers>,
    /// Numbers of each managed CPU.
    pub cpus: Vec<CpuNumbers>,
    /// Lateness of timers after the requested time.
    pub timer_late: Histogram,
    /// Time from a change's arrival in the core until it is in force.
    pub change_effect: Histogram,
    /// Duration of commits to the ledger.
    pub commit: Histogram,
    /// Number of changes to held threads by other programs.
    pub meddled: u64,
    /// Number of keepers that were replaced.
    pub keeper_restarts: u64,
    /// Number of restarts of the core since the host booted.
    pub restarts: u64,
    /// Number of fronts that were replaced.
    pub front_restarts: u64,
    /// Number of commits that failed.
    pub ledger_errors: u64,
    /// Incidents that the flight recorder has saved since the daemon started.
    #[serde(default)]
    pub incidents: u64,
    /// Source of context switch reports: `perf` or `polling`.
    pub sight: String,
    /// Numbers of the core process.
    pub process: ProcessNumbers,
}

/// Numbers of a reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReservationNumbers {
    /// Name of the reservation.
    pub name: String,
    /// CPU time for each vCPU in every period.
    pub slice_ns: u64,
    /// Length of the period.
    pub period_ns: u64,
    /// State of the reservation.
    pub state: State,
    /// Numbers of each vCPU that has a thread.
    pub vcpus: Vec<VcpuNumbers>,
    /// Cost of the reservation. `None` if the daemon has no prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// Numbers of a vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VcpuNumbers {
    /// Number of the vCPU.
    pub vcpu: u16,
    /// CPU time that the vCPU used.
    pub cpu_ns: u64,
    /// Sum of the slices of all periods, whether the vCPU was runnable or blocked.
    #[serde(default)]
    pub promised_ns: u64,
    /// Part of that to which the vCPU was entitled: less than all if it blocked.
    pub due_ns: u64,
    /// Number of periods with an entitlement at their end.
    pub deadlines: u64,
    /// Number of these periods in which the vCPU received less than its entitlement.
    pub missed: u64,
    /// Sum of the tardiness after these deadline misses.
    pub late_ns: u64,
    /// Time in which the vCPU was runnable but not running.
    pub waited_ns: u64,
    /// Time before the start of this core in which no core kept the reservation.
    pub lapsed_ns: u64,
}

/// Numbers of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuNumbers {
    /// The kernel's number of the CPU.
    pub cpu: u32,
    /// Capacity reserved on the CPU, in millionths.
    pub promised_ppm: u32,
    /// Capacity that can be reserved on the CPU in total, in millionths.
    pub capacity_ppm: u32,
    /// Sum of the reservations without dispatch overhead, in millionths.
    #[serde(default)]
    pub reserved_ppm: u32,
    /// Dispatch overhead measured over the last 10 s, in millionths. `None` until 10 s have passed.
    #[serde(default)]
    pub overhead_ppm: Option<u32>,
    /// True if the CPU cannot deliver its reservations.
    #[serde(default)]
    pub is_overloaded: bool,
    /// Steal time: CPU time that a hypervisor below took.
    pub stolen_ns: u64,
    /// CPU time that the dispatcher of the CPU used.
    pub dispatcher_ns: u64,
}

/// Numbers of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessNumbers {
    /// CPU time that the process used.
    pub cpu_ns: u64,
    /// Resident memory of the process.
    pub resident_bytes: u64,
    /// Number of open file descriptors.
    pub open_fds: u64,
    /// Start of the process, in nanoseconds since 1970.
    pub started_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_counts_a_duration_in_the_lowest_bucket_it_fits() {
        let mut late = Histogram::default();
        for length in [Span::ZERO, BOUNDS[0], BOUNDS[0] + Span::from_ns(1), Span::from_secs(9)] {
            late.observe(length);
        }
        assert_eq!(
            (late.counts[0], late.counts[1], late.counts[BOUNDS.len()], late.count()),
            (2, 1, 1, 4)
        );
        assert_eq!(late.sum_ns, 9_000_200_001);
        assert!(BOUNDS.is_sorted());
    }
}
