//! Which task of a system runs: the guest's own scheduler, above its vCPUs.
//!
//! Fixed priorities. Tasks of one priority run in turns of a quantum; who is preempted, or has more
//! to do right away, goes on before the others of its priority.

use std::collections::VecDeque;

use slackline_scenario::Task;

/// The tasks that wait for a vCPU, by level: zero is the most urgent priority that a task has.
pub(crate) struct RunQueue {
    ready: Vec<VecDeque<u16>>,
    /// By task.
    levels: Vec<u16>,
}

impl RunQueue {
    /// Nobody waits yet.
    pub(crate) fn new(tasks: &[Task]) -> RunQueue {
        let mut priorities: Vec<u8> = tasks.iter().map(|task| task.priority).collect();
        priorities.sort_unstable_by(|a, b| b.cmp(a));
        priorities.dedup();
        let level = |task: &Task| priorities.iter().position(|&of| of == task.priority);
        let level = |task| level(task).and_then(|level| u16::try_from(level).ok());
        let levels = tasks.iter().map(|task| level(task).expect("256 levels at most")).collect();
        RunQueue { ready: vec![VecDeque::new(); priorities.len()], levels }
    }

    /// How urgent a task is: less is more.
    #[inline]
    pub(crate) fn level(&self, task: u16) -> u16 {
        self.levels[usize::from(task)]
    }

    /// Takes out who runs next.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u16> {
        self.ready.iter_mut().find_map(VecDeque::pop_front)
    }

    /// A task waits before the others of its priority.
    pub(crate) fn push_first(&mut self, task: u16) {
        self.of(task).push_front(task);
    }

    /// A task waits behind the others of its priority.
    pub(crate) fn push_last(&mut self, task: u16) {
        self.of(task).push_back(task);
    }

    fn of(&mut self, task: u16) -> &mut VecDeque<u16> {
        &mut self.ready[usize::from(self.levels[usize::from(task)])]
    }
}
