//! The scheduler inside a guest, which chooses the task that each vCPU of a simulated operating
//! system runs.
//!
//! Priorities are fixed. Tasks of the same priority run round-robin for a quantum each. A task that
//! is preempted, or that has more work right away, continues before the other tasks of its
//! priority.

use std::collections::VecDeque;

use slackline_scenario::Task;

/// Ready tasks that wait for a vCPU, by priority level. Level zero is the most urgent priority of
/// any task.
pub(crate) struct RunQueue {
    ready: Vec<VecDeque<u16>>,
    /// Priority level of each task.
    levels: Vec<u16>,
}

impl RunQueue {
    /// Creates an empty queue for these tasks.
    pub(crate) fn new(tasks: &[Task]) -> RunQueue {
        let mut priorities: Vec<u8> = tasks.iter().map(|task| task.priority).collect();
        priorities.sort_unstable_by(|a, b| b.cmp(a));
        priorities.dedup();
        let level = |task: &Task| priorities.iter().position(|&of| of == task.priority);
        let level = |task| level(task).and_then(|level| u16::try_from(level).ok());
        let levels = tasks
            .iter()
            .map(|task| level(task).expect("there are at most 256 priorities"))
            .collect();
        RunQueue { ready: vec![VecDeque::new(); priorities.len()], levels }
    }

    /// Returns the level of a task. A lower level is more urgent.
    #[inline]
    pub(crate) fn level(&self, task: u16) -> u16 {
        self.levels[usize::from(task)]
    }

    /// Removes and returns the task that runs next. `None` if no task is ready.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u16> {
        self.ready.iter_mut().find_map(VecDeque::pop_front)
    }

    /// Inserts a task before the other tasks of its priority.
    pub(crate) fn push_first(&mut self, task: u16) {
        self.of(task).push_front(task);
    }

    /// Inserts a task behind the other tasks of its priority.
    pub(crate) fn push_last(&mut self, task: u16) {
        self.of(task).push_back(task);
    }

    fn of(&mut self, task: u16) -> &mut VecDeque<u16> {
        &mut self.ready[usize::from(self.levels[usize::from(task)])]
    }
}
