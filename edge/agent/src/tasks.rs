//! States of a guest's urgent tasks, and the reports about them. This module does no I/O and reads
//! no clock.

use std::collections::{BTreeMap, VecDeque};

use slackline_units::frame::{Class, Says};
use slackline_units::{TASKS, Urgency};

use crate::stat::State;

/// State of an urgent task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    /// Index of the rule that selects the task, which is the index of the task's class.
    pub(crate) class: usize,
    pub(crate) urgency: Urgency,
    pub(crate) cpu: u16,
    pub(crate) state: State,
}

/// Urgent tasks of the guest, by thread id, and the number of its other runnable tasks.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    tasks: BTreeMap<u32, Task>,
    /// Thread ids of the urgent tasks that I/O woke, beginning with the latest wake. At most
    /// [`TASKS`] ids.
    woken: VecDeque<u32>,
    /// Number of runnable tasks that are not urgent.
    ordinary: usize,
}

impl Tasks {
    /// Replaces the set of urgent tasks, and the number of runnable tasks that are not urgent.
    pub(crate) fn set(&mut self, tasks: BTreeMap<u32, Task>, ordinary: usize) {
        self.woken.retain(|tid| tasks.contains_key(tid));
        (self.tasks, self.ordinary) = (tasks, ordinary);
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.tasks.keys().copied()
    }

    /// Sets the state and the CPU of an urgent task. Does nothing for other tasks.
    pub(crate) fn is_at(&mut self, tid: u32, state: State, cpu: u16) {
        if let Some(task) = self.tasks.get_mut(&tid) {
            (task.state, task.cpu) = (state, cpu);
        }
    }

    /// Marks an urgent task as runnable on a CPU. If an interrupt woke the task, I/O counts as the
    /// cause of the wake.
    pub(crate) fn woke(&mut self, tid: u32, cpu: u16, by_interrupt: bool) {
        self.is_at(tid, State::Wants, cpu);
        if by_interrupt && self.tasks.contains_key(&tid) {
            self.woken.retain(|&other| other != tid);
            self.woken.push_front(tid);
            self.woken.truncate(TASKS);
        }
    }

    /// Returns the report for a vCPU. Each class has the urgency of its most urgent task, but is
    /// always less urgent than the class before it: if necessary, it gets the next urgency below
    /// that class.
    pub(crate) fn of(&self, vcpu: u16) -> Says {
        let mut classes = [None; TASKS];
        let mut last = None;
        for (number, place) in classes.iter_mut().enumerate().take(TASKS - 1) {
            let those = || self.tasks.iter().filter(|(_, task)| task.class == number);
            let Some(urgency) = those().map(|(_, task)| task.urgency).min() else { continue };
            let wants = |task: &Task| task.state == State::Wants && task.cpu == vcpu;
            let runnable = some(those().filter(|(_, task)| wants(task)).count());
            let waits = |task: &Task| task.state == State::Waits;
            let blocked = some(those().filter(|(_, task)| waits(task)).count());
            let is_woken = |tid: &u32| self.woken.contains(tid);
            let woken = those().any(|(tid, _)| is_woken(tid));
            let urgency = less_than(last, urgency);
            if runnable > 0 || blocked > 0 {
                last = Some(urgency);
                *place = Some(Class { urgency, runnable, blocked, woken });
            }
        }
        if self.ordinary > 0 {
            let urgency = less_than(last, Urgency::ORDINARY);
            let runnable = some(self.ordinary);
            classes[TASKS - 1] = Some(Class { urgency, runnable, blocked: 0, woken: false });
        }
        Says::Classes(classes)
    }
}

/// Returns the lower of two urgencies: `urgency`, and the urgency one step below `last`. Lower
/// urgencies have larger numbers. If `last` is `None`, returns `urgency`.
fn less_than(last: Option<Urgency>, urgency: Urgency) -> Urgency {
    last.map_or(urgency, |Urgency(last)| urgency.max(Urgency(last.saturating_add(1))))
}

fn some(count: usize) -> u8 {
    u8::try_from(count).unwrap_or(u8::MAX)
}

/// Returns two indexes: of the most urgent class with a runnable task, and of the most urgent class
/// with both a blocked task and a task that I/O woke. `None` if there is no such class. A change of
/// either index must be reported at once.
pub(crate) fn best(says: &Says) -> (Option<usize>, Option<usize>) {
    let Says::Classes(classes) = says else { return (None, None) };
    let first =
        |is: fn(&Class) -> bool| classes.iter().position(|class| class.is_some_and(|it| is(&it)));
    (first(|class| class.runnable > 0), first(|class| class.blocked > 0 && class.woken))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(class: usize, urgency: u8, cpu: u16) -> Task {
        Task { class, urgency: Urgency(urgency), cpu, state: State::Waits }
    }

    fn classes(tasks: &Tasks, vcpu: u16) -> [Option<(u8, u8, u8, bool)>; TASKS] {
        let Says::Classes(classes) = tasks.of(vcpu) else { panic!("the report contains tasks") };
        classes.map(|it| it.map(|it| (it.urgency.0, it.runnable, it.blocked, it.woken)))
    }

    /// Tasks of the guest: two servers in the first class, one server in the second class, and a
    /// busy ordinary task. I/O wakes the first server on vCPU 1.
    #[test]
    fn agent_reports_woken_task_as_runnable_only_on_one_vcpu() {
        let mut tasks = Tasks::default();
        let all = [(7, task(0, 100, 0)), (8, task(0, 99, 0)), (9, task(1, 90, 0))];
        tasks.set(all.into(), 1);
        let rest = Some((120, 1, 0, false));
        let at_first = [Some((99, 0, 2, false)), Some((100, 0, 1, false)), None, None, rest];
        assert_eq!([classes(&tasks, 0), classes(&tasks, 1)], [at_first; 2]);
        assert_eq!(best(&tasks.of(0)), (Some(4), None));
        tasks.woke(7, 1, true);
        tasks.woke(55, 1, true);
        let first = |runnable| Some((99, runnable, 1, true));
        assert_eq!([0, 1].map(|vcpu| classes(&tasks, vcpu)[0]), [first(0), first(1)]);
        assert_eq!(best(&tasks.of(1)), (Some(0), Some(0)));
        tasks.is_at(7, State::Waits, 1);
        assert_eq!(best(&tasks.of(1)), (Some(4), Some(0)));
        // Another task wakes, but not by an interrupt. That does not count as I/O.
        tasks.woke(9, 0, false);
        assert_eq!(classes(&tasks, 0)[1], Some((100, 1, 0, false)));
        // Tasks that have exited are forgotten.
        tasks.set([(9, task(1, 90, 0))].into(), 0);
        assert_eq!(classes(&tasks, 0), [None, Some((90, 0, 1, false)), None, None, None]);
    }

    #[test]
    fn agent_report_for_600_tasks_fits_in_one_valid_frame() {
        let mut tasks = Tasks::default();
        tasks.set((0..600).map(|tid| (tid, task(tid as usize % 4, 140, 0))).collect(), 1_000);
        let frame = slackline_units::frame::Frame { vcpu: 0, sequence: 1, says: tasks.of(0) };
        assert_eq!(
            slackline_units::frame::Frame::read(&frame.to_bytes()).map(|it| it.says),
            Ok(frame.says)
        );
    }
}
