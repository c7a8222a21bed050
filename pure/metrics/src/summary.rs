//! Results of a run.

use slackline_trace::Knowledge;
use slackline_units::{CpuId, Reservation, Span, VcpuId};

use crate::TaskSummary;
use crate::split::ppm;
use crate::{ClientSummary, Distribution, ErrorDistribution, OverheadTimes, PartDistribution};

/// Results of a run without its warm-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Title of the scenario.
    pub title: String,
    /// Kind of host: `sim` or `live`.
    pub machine: String,
    /// Policy with its parameters, as a scenario states them.
    pub policy: String,
    /// Seed of the run.
    pub seed: u64,
    /// Length of the measured window, from the end of the warm-up to the end of the run.
    pub length: Span,
    /// One row per vCPU, in order of id. vCPUs that never joined are left out.
    pub vcpus: Vec<VcpuSummary>,
    /// One row per CPU.
    pub cpus: Vec<CpuSummary>,
    /// Lateness of the timers of all CPUs. `None` if no timer expired.
    pub timer_lateness: Option<Distribution>,
    /// Delay from the time at which a change of parameters was due until the change took effect.
    /// `None` if there were no changes.
    pub changes: Option<Distribution>,
    /// Events that the host could observe in this run.
    pub knows: Knowledge,
    /// Number of parameter changes that were not admitted.
    pub declined: u64,
    /// Number of scheduling decisions of the policy that the host could not carry out.
    pub refused: u64,
    /// One row per named task with jobs, in order of vCPU and task.
    pub tasks: Vec<TaskSummary>,
    /// One row per client that has started, in the order of the scenario.
    pub clients: Vec<ClientSummary>,
}

/// Reservation and measurements of one vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuSummary {
    /// Identity of the vCPU.
    pub id: VcpuId,
    /// Display name of the vCPU: the name of its domain, with a number if the domain has several
    /// vCPUs.
    pub name: String,
    /// Display name of the vCPU's domain.
    pub domain: String,
    /// Last reservation of the vCPU. `None` if the vCPU never had a reservation.
    pub promised: Option<Reservation>,
    /// Average reserved share in millionths of one CPU, over the time that `delivered_ppm` covers.
    /// `None` if the vCPU never had a reservation.
    pub promised_share_ppm: Option<u64>,
    /// True if the last reservation is a hard limit.
    pub exact: bool,
    /// CPU time to which the vCPU's reservations entitled it: the sum of slice / period × time in
    /// force. Each reservation counts for the time in which it was in force.
    pub entitled: Span,
    /// Part of `entitled` for the time in which the vCPU was not blocked. Equal to `entitled` if
    /// the host does not know blocks and wakes.
    pub due: Span,
    /// CPU time received in the measured window.
    pub delivered: Span,
    /// Part of the measured window for which the vCPU was joined.
    pub present: Span,
    /// CPU time received in all whole periods, in millionths of one CPU. In three cases, the value
    /// covers all time for which the vCPU was joined: without a reservation, without a whole
    /// period, or if the reservation changed.
    pub delivered_ppm: u64,
    /// Error of the CPU time received in all whole periods, in millionths of the reservation.
    /// Negative if the vCPU received less than reserved. A positive error exists only with a hard
    /// limit. `None` if the vCPU has no reservation, or if it blocked and received less than
    /// reserved.
    pub error_ppm: Option<i64>,
    /// Absolute error of the CPU time received in each whole second. `None` if no whole second
    /// counts.
    pub second_error: Option<ErrorDistribution>,
    /// Number of deadlines of the vCPU that count. `None` if the host cannot judge deadlines.
    pub deadlines: Option<u64>,
    /// Number of deadlines that the vCPU missed. `None` if the host cannot judge deadlines.
    pub misses: Option<u64>,
    /// Tardiness: time from a missed deadline until the slice was complete. `None` if no deadline
    /// was missed, or if the host cannot judge deadlines.
    pub miss_time: Option<Distribution>,
    /// Sum of the tardiness over all missed deadlines. `None` if the host cannot judge deadlines.
    pub late: Option<Span>,
    /// Tardiness in millionths of the slice. `None` if no deadline was missed, or if the host
    /// cannot judge deadlines.
    pub miss_time_of_slice: Option<PartDistribution>,
    /// Time from a wake of the vCPU until it ran. `None` if there were no wakes, or if the host
    /// does not know wakes and run intervals.
    pub wake_to_run: Option<Distribution>,
    /// Interval in which the 99th percentile of `wake_to_run` lies with about 95 % confidence.
    /// `None` if there were fewer than two wakes, or if `wake_to_run` is `None`.
    pub wake_to_run_p99: Option<(Span, Span)>,
    /// Number of times the vCPU was dispatched on a CPU. Meaningless if the host does not know run
    /// intervals.
    pub switches: u64,
    /// Number of times the vCPU was dispatched on another CPU than the CPU on which it ran last.
    /// Meaningless if the host does not know run intervals.
    pub migrations: u64,
    /// Number of boosts with which the vCPU ran. A boost lets a vCPU that has just woken run before
    /// others, as in Xen's Credit scheduler.
    pub boosts: u64,
    /// Number of boosts counted in `boosts` that ended while the vCPU was still running.
    pub false_boosts: u64,
    /// Time for which the vCPU ran with a boost.
    pub boosted: Span,
    /// Time in which the vCPU was runnable and did not run. On a live host, `stopped` counts the
    /// time in which the vCPU was kept stopped, and this field does not. `None` if the host does
    /// not know blocks and wakes.
    pub waiting: Option<Span>,
    /// Longest time in which the vCPU was runnable and did not run. A wait that is still going on
    /// ends with the run. `None` if the host does not know blocks, wakes and run intervals.
    pub wait_worst: Option<Span>,
    /// Time in which the vCPU was kept stopped although it had work. `None` on a simulated host,
    /// where `waiting` includes this time.
    pub stopped: Option<Span>,
    /// Part of `stopped` in which the vCPU was stopped because it had escaped its limit. In this
    /// time the vCPU was not entitled to CPU time.
    pub escaped: Span,
    /// Time in which the vCPU was blocked. `None` if the host does not know blocks and wakes.
    pub asleep: Option<Span>,
    /// Number of jobs that were released in the measured window, and were finished or due in that
    /// window.
    pub jobs: u64,
    /// Number of jobs counted in `jobs` that have a deadline.
    pub jobs_due: u64,
    /// Number of jobs counted in `jobs` that were not finished by their deadline.
    pub jobs_late: u64,
    /// Number of jobs that the vCPU finished in the measured window, including jobs released before
    /// the window. For a server these are the requests answered.
    pub jobs_done: u64,
    /// Number of bytes that arrived at the vCPU, or that the vCPU sent and that arrived at the
    /// other side.
    pub moved: u64,
    /// Lateness of the vCPU's jobs that missed their deadline. `None` if no job missed its
    /// deadline.
    pub job_lateness: Option<Distribution>,
    /// Response time: from the release of a job until it is done. `None` if no job was done.
    pub response: Option<Distribution>,
    /// Overrun: CPU time that the vCPU used beyond the ends of its timeslices.
    pub overrun: Span,
    /// CPU time lost because other busy CPUs slowed the CPU of this vCPU. `None` if the host cannot
    /// observe this.
    pub slowed: Option<Span>,
    /// CPU time spent spinning on a lock. `None` if the host cannot observe spinning.
    pub spun: Option<Span>,
    /// CPU time spent on overhead. `None` if the trace does not record it.
    pub overhead: Option<OverheadTimes>,
    /// Minimum and maximum CPU time received in any whole second, in millionths of a CPU. `None` if
    /// there was no whole second, or if the host does not know run intervals.
    pub second: Option<(u64, u64)>,
    /// Minimum and maximum CPU time received in any whole interval of ten seconds, in millionths of
    /// a CPU. `None` if there was no such interval, or if the host does not know run intervals.
    pub ten_seconds: Option<(u64, u64)>,
}

impl VcpuSummary {
    /// Returns the CPU time that the vCPU spent in its program: useful, spinning on a lock, or
    /// slowed by other CPUs. `None` if the trace does not record overhead.
    #[must_use]
    pub fn program(&self) -> Option<Span> {
        // Overhead is recorded when it is paid, but CPU time only when the vCPU stops. So the
        // overhead recorded so far can exceed the recorded CPU time.
        Some(self.delivered.left_after(self.overhead?.total()))
    }

    /// Returns the CPU time that the vCPU spent on useful work, as time at full speed. Zero for the
    /// balancer vCPU, because all of its CPU time is overhead. `None` if the trace does not record
    /// overhead, or the host cannot observe slowdown or spinning.
    #[must_use]
    pub fn work(&self) -> Option<Span> {
        // A spin is recorded when it ends. A spin in progress at the end of the warm-up counts in
        // full, so the result is clamped to zero.
        Some(self.program()?.left_after(self.slowed?).left_after(self.spun?))
    }

    /// Returns the useful work of the vCPU, in millionths of the work that one CPU does at full
    /// speed while the vCPU is joined. `None` if [`VcpuSummary::work`] is `None`.
    #[must_use]
    pub fn work_ppm(&self) -> Option<u64> {
        Some(ppm(self.work()?, self.present))
    }

    /// Returns the part of the vCPU's CPU time spent spinning on a lock, in millionths. `None` if
    /// the host cannot observe spinning, or the vCPU received no CPU time.
    #[must_use]
    pub fn spun_ppm(&self) -> Option<u64> {
        let spun = self.spun?;
        (!self.delivered.is_zero()).then(|| ppm(spun, self.delivered))
    }
}

/// Parts of a shared CPU's time that vCPUs do not use, in millionths. The remaining time was used
/// by vCPUs and by scheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedCpu {
    /// Part of the CPU's time used by other programs, kernel threads and interrupts, in millionths.
    pub others_ppm: u64,
    /// Part of the CPU's time that a hypervisor below the host gave to other VMs (steal), in
    /// millionths.
    pub stolen_ppm: u64,
    /// Part of the CPU's time in which the CPU was idle, in millionths.
    pub unused_ppm: u64,
}

/// Use of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSummary {
    /// Number of the CPU.
    pub cpu: CpuId,
    /// Time used by vCPUs.
    pub busy: Span,
    /// Part of `busy` that vCPUs received by their reservations.
    pub due: Span,
    /// Part of `busy` that was slack.
    pub spare: Span,
    /// Time in which no vCPU ran. On a simulated host this time excludes overhead. On a live host
    /// this time includes the time that scheduling took.
    pub idle: Span,
    /// Time that vCPUs spent in their programs. `None` if the trace does not record overhead.
    pub program: Option<Span>,
    /// Use of the CPU by programs other than vCPUs. `None` if the trace has no kernel accounting.
    pub shared: Option<SharedCpu>,
    /// Overhead of the CPU. On a simulated host, all kinds of overhead. On a live host, the CPU
    /// time that scheduling took in the whole run including the warm-up. `None` if it was not
    /// measured.
    pub overhead: Option<Span>,
    /// Overhead of the CPU by kind. `None` if the trace does not record it.
    pub overheads: Option<OverheadTimes>,
    /// Number of dispatches on the CPU.
    pub switches: u64,
}
