//! Demand of one vCPU.

use slackline_trace::WrittenTerms;
use slackline_units::{CpuId, Reservation, Span, Time, VcpuId};

/// Demand of a vCPU during one stay on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuDemand {
    /// Identity in the trace.
    pub vcpu: VcpuId,
    /// Display name: that of its domain, with a number if the domain has several vCPUs.
    pub name: String,
    /// Name of its domain.
    pub domain: String,
    /// Time at which it joined.
    pub joined: Time,
    /// Time at which it left. `None` if it stayed until the end.
    pub left: Option<Time>,
    /// Parameters with which it joined. `None` if the trace holds no exchanges.
    pub terms: Option<WrittenTerms>,
    /// Reservation with which it joined. `None` if the trace has no record of it.
    pub reserved: Option<RecordedReservation>,
    /// CPU on which it was placed when it joined. `None` if the policy chose.
    pub starts_on: Option<CpuId>,
    /// Changes during its stay, by time.
    pub changes: Vec<Change>,
    /// Jobs by time. All but the last have ended.
    pub jobs: Vec<Job>,
}

/// Work of a vCPU from becoming runnable until it blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Time at which the vCPU became runnable.
    pub ready: Time,
    /// CPU time that the job needed. A lower bound if it has not ended.
    pub work: Span,
    /// Time at which the vCPU blocked. `NEVER` if the job has not ended.
    pub blocked: Time,
}

/// Change of a vCPU during its stay.
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
    /// Slice and period. `None` reserves nothing.
    pub reservation: Option<Reservation>,
    /// True if the slice is a hard limit.
    pub exact: bool,
    /// Phase of the grid on which periods begin. `None` without a grid.
    pub phase: Option<Span>,
}

/// Kind of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// New parameters were accepted.
    Terms(WrittenTerms),
    /// A new reservation holds.
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
    /// Returns true if the last job has not ended and received at least as much as the longest job
    /// that ended: the vCPU is CPU-bound from its last wake on.
    #[must_use]
    pub fn is_endless(&self) -> bool {
        let Some((last, ended)) = self.jobs.split_last() else { return false };
        !last.has_ended() && ended.iter().all(|job| job.work <= last.work)
    }

    /// Returns the jobs with the times from the end of one job to the begin of the next. The first
    /// time counts from joining. Jobs without work are left out: their times add up.
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

    /// Returns the jobs with their ready times, counted from joining. Jobs without work are left
    /// out.
    pub fn arrivals(&self) -> impl Iterator<Item = (Span, Span)> + '_ {
        let jobs = self.jobs.iter().map(|job| (job.ready.since(self.joined), self.work_of(job)));
        jobs.filter(|(_, work)| !work.is_zero())
    }

    /// Returns the work of a job. A job that has not ended needs more than it received: the mean of
    /// all ended jobs that needed more, or 1 ns more if there are none.
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

    /// Returns the work of all jobs.
    #[must_use]
    pub fn work(&self) -> Span {
        self.jobs.iter().map(|job| job.work).sum()
    }
}
