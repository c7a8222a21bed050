//! What the core counts for `/metrics`.

use serde::{Deserialize, Serialize};
use slackline_units::Span;

use crate::replies::{Cost, State};

/// Where the buckets of a [`Histogram`] end; the last has no end.
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

/// How many lengths of time lay between which bounds, from the beginning on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Histogram {
    /// All together, in nanoseconds.
    pub sum_ns: u64,
    /// How many up to each of [`BOUNDS`] and above the one before, and at last those above all.
    pub counts: [u64; BOUNDS.len() + 1],
}

impl Histogram {
    /// One more.
    pub fn observe(&mut self, length: Span) {
        let bucket = BOUNDS.iter().position(|&bound| length <= bound).unwrap_or(BOUNDS.len());
        self.counts[bucket] += 1;
        self.sum_ns = self.sum_ns.saturating_add(length.ns());
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// All that the core counts. Counters only grow while the core lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numbers {
    /// Of each reservation.
    pub reservations: Vec<ReservationNumbers>,
    /// Of each managed CPU.
    pub cpus: Vec<CpuNumbers>,
    /// How late timers rang.
    pub timer_late: Histogram,
    /// From a change's arrival in the core to its being in force.
    pub change_effect: Histogram,
    /// How long commits took.
    pub commit: Histogram,
    /// Threads that somebody else changed.
    pub meddled: u64,
    /// Keepers that had to be replaced.
    pub keeper_restarts: u64,
    /// How often the core was started again since the host was.
    pub restarts: u64,
    /// Fronts that had to be replaced.
    pub front_restarts: u64,
    /// Commits that failed.
    pub ledger_errors: u64,
    /// How the kernel tells of switches: `perf`, `polling`.
    pub sight: String,
    /// The core itself.
    pub process: ProcessNumbers,
}

/// Of a reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReservationNumbers {
    /// Its name.
    pub name: String,
    /// CPU time for each vCPU in every period.
    pub slice_ns: u64,
    /// The period.
    pub period_ns: u64,
    /// How it stands.
    pub state: State,
    /// Of each of its vCPUs that has a thread.
    pub vcpus: Vec<VcpuNumbers>,
    /// What it costs, where there is a table of prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// Of a vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VcpuNumbers {
    /// Its number.
    pub vcpu: u16,
    /// The CPU time it used.
    pub cpu_ns: u64,
    /// The slices of all of its periods, asleep or not.
    #[serde(default)]
    pub promised_ns: u64,
    /// What it was owed.
    pub due_ns: u64,
    /// Periods at whose end it was owed something.
    pub deadlines: u64,
    /// Those of them in which it had less.
    pub missed: u64,
    /// How much later it had what it lacked then, all together.
    pub late_ns: u64,
    /// How long it wanted a CPU and had none.
    pub waited_ns: u64,
    /// How long nobody kept its promise before this core did, as there was none.
    pub lapsed_ns: u64,
}

/// Of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuNumbers {
    /// The kernel's number.
    pub cpu: u32,
    /// What is promised on it, in millionths.
    pub promised_ppm: u32,
    /// What may be promised on it, in millionths.
    pub capacity_ppm: u32,
    /// What a hypervisor below took of it.
    pub stolen_ns: u64,
    /// What its dispatcher used.
    pub dispatcher_ns: u64,
}

/// Of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessNumbers {
    /// The CPU time it used.
    pub cpu_ns: u64,
    /// Its resident memory.
    pub resident_bytes: u64,
    /// Its open descriptors.
    pub open_fds: u64,
    /// When it began, in nanoseconds since 1970.
    pub started_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_counted_in_the_first_bucket_that_it_does_not_exceed() {
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
