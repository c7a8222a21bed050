//! Periodic tasks of a guest.

use slackline_units::{Reservation, Span};
use thiserror::Error;

/// Longest period of a task and of a reservation: one hour. Sums and multiples of it cannot
/// overflow a [`Span`].
pub(crate) const LONGEST: Span = Span::from_secs(3600);

/// Maximum number of tasks of a set. Each task has its own priority, and priorities are below 255.
const MOST_TASKS: usize = 200;

/// A periodic task, which releases one job in every period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodicTask {
    work: Span,
    period: Span,
    deadline: Span,
}

/// Reason why a task is not valid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BadTask {
    /// The CPU time of a job is zero.
    #[error("work must be greater than zero")]
    NoWork,
    /// A job needs more CPU time than the time between its release and its deadline.
    #[error("work {work} is more than the deadline {deadline}")]
    WorkOverDeadline {
        /// Longest CPU time of a job.
        work: Span,
        /// Time from release to deadline.
        deadline: Span,
    },
    /// The deadline of a job is later than the next release of its task.
    #[error("deadline {deadline} is more than the period {period}")]
    DeadlineOverPeriod {
        /// Time from release to deadline.
        deadline: Span,
        /// Time between two releases.
        period: Span,
    },
    /// The period is longer than the analysis supports.
    #[error("period {period} is more than {LONGEST}")]
    LongPeriod {
        /// Time between two releases.
        period: Span,
    },
}

impl PeriodicTask {
    /// Creates a periodic task. `work` is the longest CPU time of a job. `deadline` is the time
    /// from the release of a job to its deadline.
    ///
    /// # Errors
    /// Unless `0 < work ≤ deadline ≤ period`, and the period is at most an hour.
    pub fn new(work: Span, period: Span, deadline: Span) -> Result<PeriodicTask, BadTask> {
        if work.is_zero() {
            return Err(BadTask::NoWork);
        }
        if period > LONGEST {
            return Err(BadTask::LongPeriod { period });
        }
        if deadline > period {
            return Err(BadTask::DeadlineOverPeriod { deadline, period });
        }
        if work > deadline {
            return Err(BadTask::WorkOverDeadline { work, deadline });
        }
        Ok(PeriodicTask { work, period, deadline })
    }

    /// Returns the longest CPU time that a job of the task needs.
    #[must_use]
    pub fn work(&self) -> Span {
        self.work
    }

    /// Returns the shortest time between two releases of the task.
    #[must_use]
    pub fn period(&self) -> Span {
        self.period
    }

    /// Returns the time from the release of a job to its deadline.
    #[must_use]
    pub fn deadline(&self) -> Span {
        self.deadline
    }

    /// Returns the CPU time of all jobs that are released in the interval from 0 to `length`. The
    /// first job is released at time zero. A job that is released exactly at `length` does not
    /// count.
    #[must_use]
    pub fn requested_in(&self, length: Span) -> Span {
        self.work * length.ns().div_ceil(self.period.ns())
    }

    /// Returns the CPU time of all jobs whose release and deadline are both in the interval from 0
    /// to `length`. The first job is released at time zero. This is the task's demand bound
    /// function.
    #[must_use]
    pub fn demand_in(&self, length: Span) -> Span {
        if length < self.deadline {
            return Span::ZERO;
        }
        self.work * ((length - self.deadline) / self.period + 1)
    }

    /// Returns the latest deadline before `time`, if a job is released at time zero.
    #[must_use]
    pub fn last_deadline_before(&self, time: Span) -> Option<Span> {
        let jobs = time.ns().checked_sub(self.deadline.ns() + 1)? / self.period.ns();
        Some(self.deadline + self.period * jobs)
    }
}

/// Rule by which the guest chooses the task that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskScheduler {
    /// The guest runs the job with the earliest deadline.
    #[default]
    Edf,
    /// The guest runs the runnable task that comes first in the set: tasks are ordered by priority.
    Fixed,
}

impl TaskScheduler {
    /// Returns the name of the scheduler in files: `edf` or `fixed`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TaskScheduler::Edf => "edf",
            TaskScheduler::Fixed => "fixed",
        }
    }
}

/// Tasks that a guest schedules on one vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSet {
    tasks: Vec<PeriodicTask>,
    scheduler: TaskScheduler,
}

/// Reason why tasks are not a valid set.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BadTaskSet {
    /// The set has no task.
    #[error("a task set needs at least one task")]
    NoTask,
    /// The set has more tasks than the analysis supports.
    #[error("a task set has at most {MOST_TASKS} tasks, but this set has {tasks}")]
    TooManyTasks {
        /// Number of tasks in the set.
        tasks: usize,
    },
}

impl TaskSet {
    /// Creates a task set. For fixed priorities, the first task has the highest priority.
    ///
    /// # Errors
    /// If there are no tasks, or more than 200.
    pub fn new(tasks: Vec<PeriodicTask>, scheduler: TaskScheduler) -> Result<TaskSet, BadTaskSet> {
        match tasks.len() {
            0 => Err(BadTaskSet::NoTask),
            tasks if tasks > MOST_TASKS => Err(BadTaskSet::TooManyTasks { tasks }),
            _ => Ok(TaskSet { tasks, scheduler }),
        }
    }

    /// Returns the tasks of the set. For fixed priorities, the first task has the highest priority.
    #[must_use]
    pub fn tasks(&self) -> &[PeriodicTask] {
        &self.tasks
    }

    /// Returns the rule by which the guest chooses the task that runs.
    #[must_use]
    pub fn scheduler(&self) -> TaskScheduler {
        self.scheduler
    }

    /// Returns the utilisation of the tasks in millionths of a CPU, rounded to the nearest.
    #[must_use]
    pub fn utilisation_ppm(&self) -> u64 {
        let fine: u128 = self.tasks.iter().map(|task| part(task.work, task.period).1).sum();
        u64::try_from((fine * 1_000_000 + FINE / 2) / FINE).expect("at most 200 CPUs")
    }

    /// Returns the shortest of the periods of all tasks.
    #[must_use]
    pub fn shortest_period(&self) -> Span {
        self.tasks.iter().map(PeriodicTask::period).min().expect("a set has a task")
    }

    /// Returns the longest of the periods of all tasks.
    #[must_use]
    pub fn longest_period(&self) -> Span {
        self.tasks.iter().map(PeriodicTask::period).max().expect("a set has a task")
    }

    /// Returns the longest delay after a release that leaves every task time to do its work: the
    /// smallest value of `deadline - work`.
    #[must_use]
    pub fn longest_delay(&self) -> Span {
        let slack = |task: &PeriodicTask| task.deadline - task.work;
        self.tasks.iter().map(slack).min().expect("a set has a task")
    }

    /// Returns true if the utilisation of the tasks is at least the share of a reservation.
    /// Differences below 2^-40 of a CPU count as equal.
    pub(crate) fn fills(&self, reservation: Reservation) -> bool {
        let used: u128 = self.tasks.iter().map(|task| part(task.work, task.period).1).sum();
        used >= part(reservation.slice(), reservation.period()).0
    }

    /// Returns the CPU time of all jobs that are released in an interval of this length.
    pub(crate) fn requested_in(&self, length: Span) -> Span {
        self.tasks.iter().map(|task| task.requested_in(length)).sum()
    }

    /// Returns the CPU time of all jobs that are released and due in an interval of this length.
    pub(crate) fn demand_in(&self, length: Span) -> Span {
        self.tasks.iter().map(|task| task.demand_in(length)).sum()
    }

    /// Returns the latest deadline before `time`, if all tasks release a job at time zero.
    pub(crate) fn last_deadline_before(&self, time: Span) -> Option<Span> {
        self.tasks.iter().filter_map(|task| task.last_deadline_before(time)).max()
    }
}

/// One whole CPU in the fixed-point numbers that [`part`] returns.
const FINE: u128 = 1 << 48;

/// Returns `work / period` as two fixed-point numbers: one rounded down, one rounded up.
fn part(work: Span, period: Span) -> (u128, u128) {
    let fine = u128::from(work.ns()) * FINE;
    let period = u128::from(period.ns());
    (fine / period, fine.div_ceil(period))
}
