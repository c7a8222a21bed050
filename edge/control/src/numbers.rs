//! Metrics of the daemon's core process. The front process sends them as text at `/metrics`.

use serde::{Deserialize, Serialize};
use slackline_units::Span;

use crate::replies::{Cost, State};

/// Upper bounds of the buckets of a [`Histogram`]. One more bucket follows, which has no upper
/// bound.
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

/// Histogram of durations that were observed since the start of the daemon's core process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Histogram {
    /// Sum of all durations in nanoseconds.
    pub sum_ns: u64,
    /// Number of durations in each bucket. A bucket counts durations above the bound of the
    /// previous bucket and up to its own bound. The last bucket counts durations above all bounds.
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

/// All metrics of the daemon's core process. Counters only increase while that process runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numbers {
    /// Metrics of each reservation.
    pub reservations: Vec<ReservationNumbers>,
    /// Metrics of each managed CPU.
    pub cpus: Vec<CpuNumbers>,
    /// Time by which the timers of the dispatchers expired late.
    pub timer_late: Histogram,
    /// Time from the arrival of a change in the core process until the change is in force.
    pub change_effect: Histogram,
    /// Duration of commits to the ledger, the database file of the daemon.
    pub commit: Histogram,
    /// Number of times that another program changed the scheduling of threads with reservations,
    /// since the core process started.
    pub meddled: u64,
    /// Number of times a keeper process died and was replaced, since the core process started. A
    /// keeper restores the scheduling of the threads if the core process dies.
    pub keeper_restarts: u64,
    /// Number of times the core process was restarted since the host booted.
    pub restarts: u64,
    /// Number of front processes that ended and were replaced, since the core process started.
    pub front_restarts: u64,
    /// Number of commits to the ledger that failed since the core process started.
    pub ledger_errors: u64,
    /// Number of incidents that the flight recorder has saved since the daemon started.
    #[serde(default)]
    pub incidents: u64,
    /// Method by which the core process learns of context switches: `perf` or `polling`.
    pub sight: String,
    /// Resources that the core process uses.
    pub process: ProcessNumbers,
}

/// Metrics of one reservation. Counters start when the daemon starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReservationNumbers {
    /// Name of the reservation.
    pub name: String,
    /// Slice: CPU time reserved for each vCPU in every period, in nanoseconds.
    pub slice_ns: u64,
    /// Length of the period, in nanoseconds.
    pub period_ns: u64,
    /// State of the reservation.
    pub state: State,
    /// Metrics of each vCPU that currently has a thread.
    pub vcpus: Vec<VcpuNumbers>,
    /// Cost of the reservation. `None` if the daemon has no prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// Metrics of one vCPU. Counters start when the daemon starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VcpuNumbers {
    /// Number of the vCPU.
    pub vcpu: u16,
    /// CPU time that the vCPU has used since the daemon started, in nanoseconds.
    pub cpu_ns: u64,
    /// Sum of the slices of all periods since the daemon started, in nanoseconds. Includes periods
    /// in which the vCPU was blocked.
    #[serde(default)]
    pub promised_ns: u64,
    /// Part of `promised_ns` to which the vCPU was entitled. It is less than `promised_ns` if the
    /// vCPU blocked.
    pub due_ns: u64,
    /// Number of periods since the daemon started at whose end the vCPU was entitled to CPU time.
    pub deadlines: u64,
    /// Number of periods counted in `deadlines` in which the vCPU received less than its
    /// entitlement.
    pub missed: u64,
    /// Sum of the tardiness of all deadlines missed since the daemon started, in nanoseconds.
    pub late_ns: u64,
    /// Time since the daemon started in which the vCPU was runnable but did not run, in
    /// nanoseconds.
    pub waited_ns: u64,
    /// Time from the last heartbeat of the previous core process to the start of this one, in
    /// nanoseconds. The reservation was not enforced in this time. Zero if no previous core process
    /// left a heartbeat, or the VM was absent.
    pub lapsed_ns: u64,
}

/// Metrics of a managed CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuNumbers {
    /// The kernel's number of the CPU.
    pub cpu: u32,
    /// Reserved share of the CPU, including dispatch overhead, in millionths of the CPU.
    pub promised_ppm: u32,
    /// Largest share of the CPU that reservations may use in total, in millionths of the CPU.
    pub capacity_ppm: u32,
    /// Sum of the reservations on the CPU without dispatch overhead, in millionths of the CPU.
    #[serde(default)]
    pub reserved_ppm: u32,
    /// Dispatch overhead measured over the last 10 s, in millionths of the CPU. `None` until 10 s
    /// have passed.
    #[serde(default)]
    pub overhead_ppm: Option<u32>,
    /// True if the reservations and the measured overhead together exceed the part of the CPU time
    /// that the kernel gives to real-time threads. The CPU then cannot deliver its reservations.
    #[serde(default)]
    pub is_overloaded: bool,
    /// Steal time: CPU time that a hypervisor below this host has given to other VMs since the
    /// daemon started, in nanoseconds.
    pub stolen_ns: u64,
    /// CPU time that the dispatcher of the CPU has used since the daemon started, in nanoseconds.
    pub dispatcher_ns: u64,
}

/// Resources that a process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessNumbers {
    /// CPU time that the process has used since its start, in nanoseconds.
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
    fn histogram_counts_duration_in_lowest_containing_bucket() {
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
