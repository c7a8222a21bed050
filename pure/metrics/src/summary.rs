//! What a run amounted to.

use slackline_trace::Knowledge;
use slackline_units::{CpuId, Reservation, Span, VcpuId};

use crate::split::ppm;
use crate::{Distribution, ErrorDistribution, OverheadTimes, PartDistribution};

/// What a run amounted to, warm-up left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The title of the scenario.
    pub title: String,
    /// The machine: `sim` or `live`.
    pub machine: String,
    /// The policy, as one would write it in a scenario.
    pub policy: String,
    /// The seed of the run.
    pub seed: u64,
    /// The measured window: from the end of the warm-up to the end of the run.
    pub length: Span,
    /// A row a vCPU, in order of id; those that never joined are left out.
    pub vcpus: Vec<VcpuSummary>,
    /// A row a CPU.
    pub cpus: Vec<CpuSummary>,
    /// How late timers rang.
    pub timer_lateness: Option<Distribution>,
    /// How long changes took to take effect, from when they were due.
    pub changes: Option<Distribution>,
    /// What the machine could see.
    pub knows: Knowledge,
    /// Changes that could not be admitted.
    pub declined: u64,
    /// Orders that the machine could not carry out.
    pub refused: u64,
}

/// What one vCPU was promised and got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuSummary {
    /// Who.
    pub id: VcpuId,
    /// What people call it.
    pub name: String,
    /// What it was promised last, if anything.
    pub promised: Option<Reservation>,
    /// The average of all its promises over the time that `delivered_ppm` is of, in millionths of
    /// one CPU; none if it was never promised anything.
    pub promised_share_ppm: Option<u64>,
    /// Whether it was to get this and no more.
    pub exact: bool,
    /// CPU time it got.
    pub delivered: Span,
    /// How long it was there.
    pub present: Span,
    /// What it got in all its whole periods together, in millionths of one CPU; of all the time it
    /// was there without a promise or a whole period, and where its promise changed.
    pub delivered_ppm: u64,
    /// How far what it got in all its whole periods together was from what it was promised, in
    /// millionths of what it was promised; less is negative. More is an error only for an exact
    /// vCPU. None where nothing was promised, and where it got less but slept.
    pub error_ppm: Option<i64>,
    /// The same for each whole second, without sign.
    pub second_error: Option<ErrorDistribution>,
    /// Deadlines that counted.
    pub deadlines: Option<u64>,
    /// How many of them were missed.
    pub misses: Option<u64>,
    /// How much later than the missed deadlines the slices were complete.
    pub miss_time: Option<Distribution>,
    /// All of that together, over all missed deadlines that were made up or given up.
    pub late: Option<Span>,
    /// How much later they were, in millionths of the slice.
    pub miss_time_of_slice: Option<PartDistribution>,
    /// How long it took from waking to running.
    pub wake_to_run: Option<Distribution>,
    /// How often it was put on a CPU. Means nothing where the machine does not know stretches.
    pub switches: u64,
    /// How often that was another CPU than before. Means nothing where the machine does not know
    /// stretches.
    pub migrations: u64,
    /// How long it was awake and not running, though nothing kept it from running.
    pub waiting: Option<Span>,
    /// The longest that it was awake and not running without a break, if not for good then to the
    /// end. Means nothing where the machine does not know stretches.
    pub wait_worst: Option<Span>,
    /// How long it was kept from running though it had work. `None` on a simulated host, where that
    /// is part of `waiting`.
    pub stopped: Option<Span>,
    /// How long it slept.
    pub asleep: Option<Span>,
    /// Pieces of work that were released and that it finished.
    pub jobs: u64,
    /// How many of them had a deadline.
    pub jobs_due: u64,
    /// How many of them were done after their deadline.
    pub jobs_late: u64,
    /// Pieces of work that it finished, also those released before: requests answered, if it
    /// answers requests.
    pub jobs_done: u64,
    /// Bytes of data that reached it, or that it sent and that reached the other side.
    pub moved: u64,
    /// How late those were.
    pub job_lateness: Option<Distribution>,
    /// How long its pieces of work took, from release to done.
    pub response: Option<Distribution>,
    /// CPU time it used beyond the limits it had been given.
    pub overrun: Span,
    /// CPU time that was lost to it because others slowed its CPU; none where the machine does not
    /// see that.
    pub slowed: Option<Span>,
    /// CPU time that it used waiting for a spin lock; none where the machine does not see that.
    pub spun: Option<Span>,
    /// CPU time that it paid for overhead. `None` where the trace does not tell.
    pub overhead: Option<OverheadTimes>,
    /// The least and the most CPU time that it had in a whole second, in millionths of a CPU. None
    /// where there was none, and where the machine does not know stretches.
    pub second: Option<(u64, u64)>,
    /// The same in whole ten seconds.
    pub ten_seconds: Option<(u64, u64)>,
}

impl VcpuSummary {
    /// CPU time in its program: useful, spinning on a lock, or slowed by other CPUs.
    #[must_use]
    pub fn program(&self) -> Option<Span> {
        // Overhead is told as it is paid, CPU time only when the vCPU stops.
        Some(self.delivered.left_after(self.overhead?.total()))
    }

    /// CPU time at full speed in which its useful work could have been done. Zero for the balancer,
    /// whose time is overhead also where other CPUs slowed it.
    #[must_use]
    pub fn work(&self) -> Option<Span> {
        // A spin is told when it ends, so that one in progress at the end of the warm-up is told in
        // full: never more than the program's time.
        Some(self.program()?.left_after(self.slowed?).left_after(self.spun?))
    }

    /// Useful work in millionths of what one CPU does at full speed in the time it was there.
    #[must_use]
    pub fn work_ppm(&self) -> Option<u64> {
        Some(ppm(self.work()?, self.present))
    }

    /// How much of its CPU time it used waiting for a spin lock, in millionths.
    #[must_use]
    pub fn spun_ppm(&self) -> Option<u64> {
        let spun = self.spun?;
        (!self.delivered.is_zero()).then(|| ppm(spun, self.delivered))
    }
}

/// What became of the time of a CPU that is not the run's alone, in millionths of it. What is left
/// is what vCPUs and scheduling had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedCpu {
    /// Whoever else there is had it: other programs, the kernel's own threads, interrupts.
    pub others_ppm: u64,
    /// A hypervisor below had it for other machines.
    pub stolen_ppm: u64,
    /// Nobody had it.
    pub unused_ppm: u64,
}

/// What became of one CPU's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSummary {
    /// Which.
    pub cpu: CpuId,
    /// Time used by vCPUs.
    pub busy: Span,
    /// How much of it they were owed.
    pub due: Span,
    /// How much of it nobody was owed.
    pub spare: Span,
    /// All other time: simulated, none of it was spent on overhead; live, that of scheduling is in
    /// it.
    pub idle: Span,
    /// Time that vCPUs used in their programs. `None` where the trace does not tell overhead.
    pub program: Option<Span>,
    /// What others had of it, where the machine has books of that.
    pub shared: Option<SharedCpu>,
    /// Simulated, all overhead. Live, CPU time that scheduling took over the whole run with its
    /// warm-up, where measured.
    pub overhead: Option<Span>,
    /// Overhead by kind. `None` where the trace does not tell.
    pub overheads: Option<OverheadTimes>,
    /// How often a vCPU was put on it.
    pub switches: u64,
}
