//! Demand: the work that vCPUs asked for, as a pure function of a trace. The design is Slackline's
//! own, not from a paper.
//!
//! A *job* begins when a vCPU becomes runnable and ends when the vCPU blocks. The work of a job is
//! all CPU time used between its begin and its end, even if preemptions, throttling or pauses
//! interrupt the job. Overhead that the trace records does not count as work. A demand contains no
//! run intervals, scheduling orders or latencies of the recording. So a simulation of the demand
//! cannot copy them.
//!
//! Of a job that did not end within the recording, only a lower bound of its work is known. If the
//! job received at least as much CPU time as the vCPU's longest ended job, the vCPU counts as
//! CPU-bound: the job is [endless](VcpuDemand::is_endless).

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod collect;
mod cost;
mod others;
mod period;
mod ticks;
mod vcpu;

pub use collect::Collector;
pub use cost::{Costs, CpuTimes, Samples};
pub use others::OtherDemand;
pub use period::{DemandCounts, demand_per_period};
pub use vcpu::{Change, ChangeKind, Job, RecordedReservation, VcpuDemand};

use slackline_units::Span;

/// Demand of all vCPUs of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Length of the recording.
    pub length: Span,
    /// One entry for each stay of a vCPU (from its join until it leaves), in order of joining.
    pub vcpus: Vec<VcpuDemand>,
    /// Costs of scheduling in the first part of the recording, from which costs are fitted.
    pub costs: Costs,
    /// Costs of scheduling in the rest of the recording, after the part from which costs are
    /// fitted.
    pub later: Costs,
    /// Use of each CPU over the whole recording, by number.
    pub cpus: Vec<CpuTimes>,
    /// Demand of the programs that share CPUs with the vCPUs.
    pub others: OtherDemand,
    /// Number of timers that expired in the part of the recording from which costs are fitted.
    /// Timers that expired before their timeslice was used up do not count, because no simulation
    /// has such timers.
    pub timers: u64,
    /// Number of records of behaviour that a demand does not describe.
    pub beyond: Beyond,
}

/// Number of trace records for each behaviour that a demand does not describe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beyond {
    /// Number of hints of guests to the scheduler, about their tasks or about I/O of other guests.
    pub hints: u64,
    /// Number of times that a vCPU gave up the rest of its timeslice.
    pub yields: u64,
    /// Number of times that a vCPU spun for a lock.
    pub spins: u64,
    /// Number of times that a driver domain served another domain.
    pub services: u64,
    /// Number of run intervals on a CPU that other busy CPUs slowed.
    pub slowed: u64,
    /// Number of scheduling orders that the host could not carry out.
    pub refused: u64,
    /// Number of intervals in which another program controlled the threads of a vCPU.
    pub elsewhere: u64,
    /// Number of times that the host's clock was set. Periods with a phase are aligned with this
    /// clock.
    pub clock_sets: u64,
}
