//! Demand: the work that vCPUs asked for, as a pure function of a trace. Ours, not from a paper.
//!
//! A *job* begins when a vCPU becomes runnable and ends when it blocks. Its work is the CPU time
//! used between the two, joined over preemptions, throttling and pauses, without the overhead that
//! the trace records. Run intervals, orders and latencies of the recording are not part of a
//! demand, so a simulation that plays it again cannot copy them.
//!
//! A job that had not ended with the recording has a lower bound only. If it received at least as
//! much as the longest job of the vCPU that ended, the vCPU counts as CPU-bound: the job is
//! [endless](VcpuDemand::is_endless).

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
    /// One entry per stay of a vCPU, in order of joining.
    pub vcpus: Vec<VcpuDemand>,
    /// Costs of scheduling, from the part of the recording that is fitted.
    pub costs: Costs,
    /// Costs of scheduling in the rest of the recording.
    pub later: Costs,
    /// Use of each CPU over the whole recording, by number.
    pub cpus: Vec<CpuTimes>,
    /// Demand of the programs that share CPUs with the vCPUs.
    pub others: OtherDemand,
    /// Number of expired timers in the part of the recording that is fitted.
    pub timers: u64,
    /// Behaviour that a demand does not describe.
    pub beyond: Beyond,
}

/// Number of records of behaviour that a demand does not describe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beyond {
    /// Hints of guests about their tasks or about I/O for others.
    pub hints: u64,
    /// Times that a vCPU gave up the rest of its timeslice.
    pub yields: u64,
    /// Times that a vCPU spun for a lock.
    pub spins: u64,
    /// Times that a driver domain served another domain.
    pub services: u64,
    /// Run intervals on a CPU that others slowed.
    pub slowed: u64,
    /// Orders that the host could not carry out.
    pub refused: u64,
    /// Intervals in which a vCPU was left to another program.
    pub elsewhere: u64,
    /// Times that the clock of the phases was set.
    pub clock_sets: u64,
}
