//! What a guest that tells says of its tasks: the most urgent of those that want a vCPU and of
//! those that wait for something, and which of them I/O has woken lately.

use std::collections::{BTreeSet, VecDeque};

use slackline_scenario::Task;
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

/// The tasks of a guest, as it tells them.
pub(crate) struct TaskInfo {
    urgencies: Vec<Urgency>,
    wants: BTreeSet<(Urgency, u16)>,
    waits: BTreeSet<(Urgency, u16)>,
    /// Whom I/O has woken, the latest first.
    woken: VecDeque<u16>,
    /// What was told last.
    told: Tasks,
}

impl TaskInfo {
    /// Before any task has begun.
    pub(crate) fn new(tasks: &[Task]) -> TaskInfo {
        // Priorities are higher first, urgencies less first.
        let urgencies = tasks.iter().map(|task| Urgency(u8::MAX - task.priority)).collect();
        TaskInfo {
            urgencies,
            wants: BTreeSet::new(),
            waits: BTreeSet::new(),
            woken: VecDeque::new(),
            told: Tasks::default(),
        }
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

    /// What is to be told now; none if that is what was told last.
    pub(crate) fn news(&mut self) -> Option<Tasks> {
        let now = Tasks {
            runnable: first(&self.wants),
            blocked: first(&self.waits),
            woken: some(self.woken.iter().map(|&task| TaskId::new(task))),
        };
        let is_new = now != self.told;
        self.told = now;
        is_new.then_some(now)
    }
}

/// The most urgent of some tasks.
fn first(tasks: &BTreeSet<(Urgency, u16)>) -> [Option<ToldTask>; TASKS] {
    some(tasks.iter().map(|&(urgency, task)| ToldTask { id: TaskId::new(task), urgency }))
}

fn some<T: Copy>(mut all: impl Iterator<Item = T>) -> [Option<T>; TASKS] {
    std::array::from_fn(|_| all.next())
}
