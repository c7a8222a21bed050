//! What a guest that tells says of its tasks: for each of its vCPUs the most urgent of those that
//! want it, and for all of them those that wait for something, and which of them I/O has woken
//! lately.

use std::collections::{BTreeSet, VecDeque};

use slackline_scenario::{Lie, Task, Tells};
use slackline_units::{TASKS, Task as ToldTask, TaskId, Tasks, Urgency};

/// What a task is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It runs, or could.
    Wants,
    /// It sleeps, or waits for a device.
    Waits,
    /// Its program is over.
    Over,
}

/// A task that is not there: no guest has so many.
const NOT_THERE: u16 = u16::MAX;

/// The tasks of a guest, as it tells them.
pub(crate) struct TaskInfo {
    urgencies: Vec<Urgency>,
    wants: BTreeSet<(Urgency, u16)>,
    waits: BTreeSet<(Urgency, u16)>,
    /// Whom I/O has woken, the latest first.
    woken: VecDeque<u16>,
    /// What was told last of each vCPU.
    told: Vec<Tasks>,
    /// Whom I/O has woken that is not there.
    pretended: Option<TaskId>,
}

impl TaskInfo {
    /// Before any task has begun, of a guest with so many vCPUs; none if it tells nothing.
    pub(crate) fn new(tasks: &[Task], tells: Tells, vcpus: usize) -> Option<TaskInfo> {
        let mut info = TaskInfo {
            urgencies: tasks.iter().map(|task| Urgency::of_priority(task.priority)).collect(),
            wants: BTreeSet::new(),
            waits: BTreeSet::new(),
            woken: VecDeque::new(),
            told: vec![Tasks::default(); vcpus],
            pretended: None,
        };
        match tells {
            Tells::Nothing => return None,
            Tells::Truth => {}
            Tells::Lie { at: Lie::Runnable, priority } => {
                info.wants.insert((Urgency::of_priority(priority), NOT_THERE));
            }
            Tells::Lie { at: Lie::Blocked, priority } => {
                info.waits.insert((Urgency::of_priority(priority), NOT_THERE));
                info.pretended = Some(TaskId::new(NOT_THERE));
            }
        }
        Some(info)
    }

    /// What a task is at from now on.
    pub(crate) fn set(&mut self, task: u16, state: State) {
        let key = (self.urgencies[usize::from(task)], task);
        self.wants.remove(&key);
        self.waits.remove(&key);
        match state {
            State::Wants => self.wants.insert(key),
            State::Waits => self.waits.insert(key),
            State::Over => false,
        };
    }

    /// The end of some I/O has woken a task.
    pub(crate) fn woken_by_io(&mut self, task: u16) {
        self.woken.retain(|&other| other != task);
        self.woken.push_front(task);
        self.woken.truncate(TASKS);
    }

    /// What is to be told of a vCPU now, where others have the tasks of which `are_others` holds;
    /// none if that is what was told last.
    pub(crate) fn news(&mut self, vcpu: usize, are_others: impl Fn(u16) -> bool) -> Option<Tasks> {
        let woken = self.woken.iter().map(|&task| TaskId::new(task));
        let now = Tasks {
            runnable: first(self.wants.iter().filter(|(_, task)| !are_others(*task))),
            blocked: first(self.waits.iter()),
            woken: some(self.pretended.into_iter().chain(woken)),
        };
        let is_new = now != self.told[vcpu];
        self.told[vcpu] = now;
        is_new.then_some(now)
    }
}

/// The most urgent of some tasks.
fn first<'a>(tasks: impl Iterator<Item = &'a (Urgency, u16)>) -> [Option<ToldTask>; TASKS] {
    some(tasks.map(|&(urgency, task)| ToldTask { id: TaskId::new(task), urgency }))
}

fn some<T: Copy>(mut all: impl Iterator<Item = T>) -> [Option<T>; TASKS] {
    std::array::from_fn(|_| all.next())
}
