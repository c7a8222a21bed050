//! Reports of a guest about its tasks: for each vCPU the most urgent tasks that want it, and for
//! all vCPUs the tasks that wait and those that I/O has woken lately.

use std::collections::{BTreeSet, VecDeque};

use slackline_scenario::{FalseTask, GuestReports, Task};
use slackline_units::{TASKS, Task as ToldTask, TaskId, Tasks, Urgency};

/// State of a task in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The task runs or could run.
    Wants,
    /// The task sleeps or waits for a device.
    Waits,
    /// The program of the task is over.
    Over,
}

/// Number of a task that does not exist, since no guest has that many.
const NOT_THERE: u16 = u16::MAX;

/// Tasks of a guest as it reports them.
pub(crate) struct TaskInfo {
    urgencies: Vec<Urgency>,
    wants: BTreeSet<(Urgency, u16)>,
    waits: BTreeSet<(Urgency, u16)>,
    /// Tasks that I/O has woken, the latest first.
    woken: VecDeque<u16>,
    /// Last report of each vCPU.
    told: Vec<Tasks>,
    /// Task that does not exist, reported as woken by I/O.
    pretended: Option<TaskId>,
}

impl TaskInfo {
    /// Creates the report of a guest with this number of vCPUs, before any task has begun. `None`
    /// if it reports nothing.
    pub(crate) fn new(tasks: &[Task], tells: GuestReports, vcpus: usize) -> Option<TaskInfo> {
        let mut info = TaskInfo {
            urgencies: tasks.iter().map(|task| Urgency::of_priority(task.priority)).collect(),
            wants: BTreeSet::new(),
            waits: BTreeSet::new(),
            woken: VecDeque::new(),
            told: vec![Tasks::default(); vcpus],
            pretended: None,
        };
        match tells {
            GuestReports::Nothing => return None,
            GuestReports::Truth => {}
            GuestReports::Lie { at: FalseTask::Runnable, priority } => {
                info.wants.insert((Urgency::of_priority(priority), NOT_THERE));
            }
            GuestReports::Lie { at: FalseTask::Blocked, priority } => {
                info.waits.insert((Urgency::of_priority(priority), NOT_THERE));
                info.pretended = Some(TaskId::new(NOT_THERE));
            }
        }
        Some(info)
    }

    /// Sets the state of a task.
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

    /// Notes that the end of I/O has woken a task.
    pub(crate) fn woken_by_io(&mut self, task: u16) {
        self.woken.retain(|&other| other != task);
        self.woken.push_front(task);
        self.woken.truncate(TASKS);
    }

    /// Returns the report of a vCPU, without the tasks that other vCPUs run (`are_others`). `None`
    /// if it equals the last one.
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

/// Returns the most urgent tasks.
fn first<'a>(tasks: impl Iterator<Item = &'a (Urgency, u16)>) -> [Option<ToldTask>; TASKS] {
    some(tasks.map(|&(urgency, task)| ToldTask { id: TaskId::new(task), urgency }))
}

fn some<T: Copy>(mut all: impl Iterator<Item = T>) -> [Option<T>; TASKS] {
    std::array::from_fn(|_| all.next())
}
