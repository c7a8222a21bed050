//! Demand of one vCPU.

use slackline_trace::WrittenTerms;
use slackline_units::{CpuId, Enforcement, Reservation, Span, Time, VcpuId};

use crate::cost::Samples;

/// Demand of a vCPU during one stay on the host, from its join until it leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuDemand {
    /// Identity of the vCPU in the trace.
    pub vcpu: VcpuId,
    /// Display name of the vCPU: the name of its domain, with a number if the domain has several
    /// vCPUs.
    pub name: String,
    /// Name of the vCPU's domain.
    pub domain: String,
    /// Time at which the vCPU joined.
    pub joined: Time,
    /// Time at which the vCPU left. `None` if it stayed until the end of the recording.
    pub left: Option<Time>,
    /// Parameters with which the vCPU joined. `None` if the trace does not contain the exchanges
    /// between hardware and host.
    pub terms: Option<WrittenTerms>,
    /// Reservation with which the vCPU joined. `None` if the trace does not record this
    /// reservation.
    pub reserved: Option<RecordedReservation>,
    /// CPU on which the vCPU was placed when it joined. `None` if the policy chose the CPU.
    pub starts_on: Option<CpuId>,
    /// Changes of the vCPU during its stay, in order of time.
    pub changes: Vec<Change>,
    /// Jobs of the vCPU in order of time. All but the last have ended.
    pub jobs: Vec<Job>,
    /// Overrun of each reserved timeslice that reached its limit: CPU time used beyond the limit.
    /// Only timeslices in the first part of the recording, from which costs are fitted, are
    /// included.
    pub overruns: Samples,
}

/// Job: work of a vCPU from the time at which it becomes runnable until it blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Time at which the vCPU became runnable.
    pub ready: Time,
    /// CPU time that the job needed. For a job that has not ended, this is only a lower bound.
    pub work: Span,
    /// Time at which the vCPU blocked. `NEVER` if the job has not ended.
    pub blocked: Time,
}

/// Change of a vCPU between its join and its leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Time of the change.
    pub at: Time,
    /// Kind of the change.
    pub what: ChangeKind,
}

/// Reservation as a trace records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedReservation {
    /// Slice and period. If `None`, nothing is reserved.
    pub reservation: Option<Reservation>,
    /// True if the slice is a hard limit.
    pub exact: bool,
    /// Phase: offset of the periods from multiples of the period on the clock. `None` if periods
    /// count from the time of the reservation.
    pub phase: Option<Span>,
    /// Mechanism that enforces the reservation.
    pub by: Enforcement,
}

/// Kind of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// New parameters were accepted.
    Terms(WrittenTerms),
    /// A new reservation took effect.
    Reserved(RecordedReservation),
    /// The vCPU was paused.
    Paused,
    /// The vCPU was resumed.
    Resumed,
}

impl Job {
    /// Returns true if the vCPU blocked at the end of the job.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.blocked != Time::NEVER
    }
}

impl VcpuDemand {
    /// Returns true if the vCPU counts as CPU-bound from its last wake on. Then its last job has
    /// not ended, and has received at least as much CPU time as the longest ended job.
    #[must_use]
    pub fn is_endless(&self) -> bool {
        let Some((last, ended)) = self.jobs.split_last() else { return false };
        !last.has_ended() && ended.iter().all(|job| job.work <= last.work)
    }

    /// Returns the think time and the work of each job. The think time is the time from the end of
    /// the previous job until the job is ready. For the first job it begins at the vCPU's join.
    /// Jobs without work are left out, and their think time is added to the think time of the next
    /// job.
    pub fn thinking(&self) -> impl Iterator<Item = (Span, Span)> + '_ {
        let mut since = self.joined;
        let mut pending = Span::ZERO;
        self.jobs.iter().filter_map(move |job| {
            let think = pending + job.ready.since(since);
            since = job.blocked;
            let work = self.work_of(job);
            pending = if work.is_zero() { think } else { Span::ZERO };
            (!work.is_zero()).then_some((think, work))
        })
    }

    /// Returns an estimate of the think time after the last job, for a simulation in which the vCPU
    /// repeats its jobs. The recording ends, or the vCPU leaves, during this think time. So only a
    /// lower bound is known. The estimate is the mean of all recorded think times above the lower
    /// bound. `None` if the vCPU is [CPU-bound](Self::is_endless) or has no jobs. Also `None` if no
    /// think time is above the lower bound, because the vCPU may have nothing more to do.
    #[must_use]
    pub fn think_after_last(&self, end: Time) -> Option<Span> {
        let last = self.jobs.last().filter(|_| !self.is_endless())?;
        let end = self.left.unwrap_or(end);
        let past = if last.has_ended() { end.since(last.blocked) } else { Span::ZERO };
        let longer = self.thinking().skip(1).map(|(think, _)| think).filter(|it| *it > past);
        let (count, sum) =
            longer.fold((0, 0), |(count, sum), it| (count + 1, sum + u128::from(it.ns())));
        let mean = u64::try_from(sum.checked_div(count)?).ok()?;
        Some(Span::from_ns(mean))
    }

    /// Returns the ready time and the work of each job. Ready times are counted from the vCPU's
    /// join. Jobs without work are left out.
    pub fn arrivals(&self) -> impl Iterator<Item = (Span, Span)> + '_ {
        let jobs = self.jobs.iter().map(|job| (job.ready.since(self.joined), self.work_of(job)));
        jobs.filter(|(_, work)| !work.is_zero())
    }

    /// Returns the CPU time that a job needs. For a job that has not ended, returns the mean work
    /// of the ended jobs that needed more CPU time than this job has received. If there are no such
    /// jobs, returns 1 ns more than this job has received.
    #[must_use]
    pub fn work_of(&self, job: &Job) -> Span {
        if job.has_ended() {
            return job.work;
        }
        let longer = self.jobs.iter().filter(|it| it.has_ended() && it.work > job.work);
        let (count, sum) =
            longer.fold((0, 0), |(count, sum), it| (count + 1, sum + u128::from(it.work.ns())));
        let mean = sum.checked_div(count).and_then(|mean| u64::try_from(mean).ok());
        mean.map_or(job.work + Span::from_ns(1), Span::from_ns)
    }

    /// Returns the number of missed periods that ended after `from`. The periods of a job are
    /// counted from its ready time, and a period is missed if it ends before the job is done. So a
    /// job that takes more than `n` periods and at most `n + 1` misses `n` periods. A job that has
    /// not ended counts as done at `end`.
    #[must_use]
    pub fn missed_periods(&self, period: Span, (from, end): (Time, Time)) -> u64 {
        if period.is_zero() {
            return 0;
        }
        let within = |at: Time, ready: Time| at.since(ready).ns().div_ceil(period.ns()).max(1) - 1;
        let missed = |job: &Job| {
            let (ready, done) = (job.ready, job.blocked.min(end).max(job.ready));
            within(done, ready) - within(from.clamp(ready, done), ready)
        };
        self.jobs.iter().map(missed).sum()
    }

    /// Returns this demand with long jobs split. Each job that took longer than a period becomes
    /// one job per period, with equal work. The recording shows a single job because, while the
    /// first job waited for budget, the jobs of later periods became ready.
    #[must_use]
    pub fn spread(&self, period: Span, end: Time) -> VcpuDemand {
        let mut jobs = Vec::with_capacity(self.jobs.len());
        for job in &self.jobs {
            let took = job.blocked.min(end).max(job.ready).since(job.ready);
            let parts = if period.is_zero() { 1 } else { took.ns().div_ceil(period.ns()).max(1) };
            for part in 0..parts {
                let ready = job.ready.after(period * part);
                let is_last = part + 1 == parts;
                let blocked = if is_last { job.blocked } else { ready.after(period) };
                let work =
                    if is_last { job.work - job.work / parts * part } else { job.work / parts };
                jobs.push(Job { ready, work, blocked });
            }
        }
        VcpuDemand { jobs, ..self.clone() }
    }

    /// Returns the work of all jobs.
    #[must_use]
    pub fn work(&self) -> Span {
        self.jobs.iter().map(|job| job.work).sum()
    }
}
