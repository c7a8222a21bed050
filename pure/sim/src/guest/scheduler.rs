//! The scheduler inside a guest, which chooses the task that each vCPU of a simulated operating
//! system runs.
//!
//! The guest configures one of two schedulers. With fixed priorities, the urgency of a task is its
//! priority. With EDF, the urgency of a task is the deadline of its current job. Tasks of the same
//! urgency run round-robin for a quantum each. A task that is preempted, or that has more work
//! right away, continues before the other tasks of its urgency.

use std::collections::VecDeque;

use slackline_scenario::{GuestScheduler, Task};
use slackline_units::Time;

/// Urgency of a task. The lower value is more urgent. With fixed priorities, the rank is the level
/// of the priority, where level zero is the most urgent priority of any task. With EDF, the rank is
/// the deadline of the task's current job in nanoseconds.
pub(crate) type Rank = u64;

/// Ready tasks that wait for a vCPU.
pub(crate) struct RunQueue {
    ready: ReadyTasks,
    /// Rank of each task. With EDF it is the rank at the time when the task became ready last.
    ranks: Vec<Rank>,
}

enum ReadyTasks {
    /// One queue for each priority, most urgent first.
    Priorities(Vec<VecDeque<u16>>),
    /// One queue in the order of the deadlines.
    Deadlines(VecDeque<u16>),
}

/// Place at which a task is inserted: before or behind the ready tasks of the same urgency.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueEnd {
    First,
    Last,
}

impl RunQueue {
    /// Creates an empty queue for these tasks.
    pub(crate) fn new(tasks: &[Task], scheduler: GuestScheduler) -> RunQueue {
        if scheduler == GuestScheduler::Edf {
            let ranks = vec![Time::NEVER.ns(); tasks.len()];
            return RunQueue { ready: ReadyTasks::Deadlines(VecDeque::new()), ranks };
        }
        let mut priorities: Vec<u8> = tasks.iter().map(|task| task.priority).collect();
        priorities.sort_unstable_by(|a, b| b.cmp(a));
        priorities.dedup();
        let level = |task: &Task| priorities.iter().position(|&of| of == task.priority);
        let level = |task| level(task).and_then(|level| Rank::try_from(level).ok());
        let ranks = tasks
            .iter()
            .map(|task| level(task).expect("there are at most 256 priorities"))
            .collect();
        let ready = ReadyTasks::Priorities(vec![VecDeque::new(); priorities.len()]);
        RunQueue { ready, ranks }
    }

    /// Returns the rank of a task.
    #[inline]
    pub(crate) fn rank(&self, task: u16) -> Rank {
        self.ranks[usize::from(task)]
    }

    /// Returns the number of ready tasks.
    pub(crate) fn len(&self) -> usize {
        match &self.ready {
            ReadyTasks::Priorities(levels) => levels.iter().map(VecDeque::len).sum(),
            ReadyTasks::Deadlines(tasks) => tasks.len(),
        }
    }

    /// Removes and returns the task that runs next. `None` if no task is ready.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u16> {
        match &mut self.ready {
            ReadyTasks::Priorities(levels) => levels.iter_mut().find_map(VecDeque::pop_front),
            ReadyTasks::Deadlines(tasks) => tasks.pop_front(),
        }
    }

    /// Inserts a task before or behind the other tasks of its urgency. `deadline` is the deadline
    /// of the task's current job, or `NEVER` if the job has none.
    pub(crate) fn push(&mut self, task: u16, end: QueueEnd, deadline: Time) {
        let queue = match &mut self.ready {
            ReadyTasks::Priorities(levels) => {
                let level = usize::try_from(self.ranks[usize::from(task)]);
                &mut levels[level.expect("there are at most 256 priorities")]
            }
            ReadyTasks::Deadlines(tasks) => {
                let rank = deadline.ns();
                self.ranks[usize::from(task)] = rank;
                let precedes = |&other: &u16| match end {
                    QueueEnd::First => self.ranks[usize::from(other)] < rank,
                    QueueEnd::Last => self.ranks[usize::from(other)] <= rank,
                };
                let place = tasks.partition_point(precedes);
                tasks.insert(place, task);
                return;
            }
        };
        match end {
            QueueEnd::First => queue.push_front(task),
            QueueEnd::Last => queue.push_back(task),
        }
    }
}
