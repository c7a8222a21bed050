//! Reports that a guest sends about its tasks. The report for a vCPU names the most urgent tasks
//! that could run on this vCPU. For the whole guest, the report also names the tasks that wait, and
//! the tasks that I/O has woken recently.

use std::collections::{BTreeSet, VecDeque};

use slackline_scenario::{FalseTask, GuestReports, Task};
use slackline_units::{TASKS, TaskId, Tasks, Urgency};

/// State of a task in the reports of its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The task runs, or is ready to run.
    Wants,
    /// The task sleeps or waits for a device.
    Waits,
    /// The program of the task has ended.
    Over,
}

/// Number that stands for a task that does not exist. No guest has that many tasks.
const NOT_THERE: u16 = u16::MAX;

/// Tasks of a guest, as the guest reports them to the scheduler.
pub(crate) struct TaskInfo {
    urgencies: Vec<Urgency>,
    wants: BTreeSet<(Urgency, u16)>,
    waits: BTreeSet<(Urgency, u16)>,
    /// Tasks that I/O has woken, most recent first.
    woken: VecDeque<u16>,
    /// Last report sent for each vCPU.
    told: Vec<Tasks>,
    /// A task that does not exist but is reported as woken by I/O: models a guest that lies.
    pretended: Option<TaskId>,
}

impl TaskInfo {
    /// Creates the reports of a guest with `vcpus` vCPUs, before any task has begun. `None` if the
    /// guest reports nothing.
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

    /// Sets the state in which a task is reported.
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

    /// Records that completed I/O has woken a task.
    pub(crate) fn woken_by_io(&mut self, task: u16) {
        self.woken.retain(|&other| other != task);
        self.woken.push_front(task);
        self.woken.truncate(TASKS);
    }

    /// Returns the report for a vCPU. The report leaves out tasks that run on other vCPUs, for
    /// which `are_others` returns true. `None` if the report equals the last report sent.
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

/// Returns the most urgent of the given tasks, up to the number that fits in a report.
fn first<'a>(
    tasks: impl Iterator<Item = &'a (Urgency, u16)>,
) -> [Option<slackline_units::Task>; TASKS] {
    some(tasks.map(|&(urgency, task)| slackline_units::Task { id: TaskId::new(task), urgency }))
}

fn some<T: Copy>(mut all: impl Iterator<Item = T>) -> [Option<T>; TASKS] {
    std::array::from_fn(|_| all.next())
}
