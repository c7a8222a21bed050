//! Claims from reports of guests [Paper 3.2]. A VM claims the urgency of its most urgent runnable
//! task. While I/O is pending for the VM, some blocked tasks count too. These are the tasks that
//! I/O woke recently, since one of them probably waits for this I/O, or the tasks that the driver
//! VM names.

use slackline_units::{TASKS, Task, TaskId, Tasks, Time, Urgency};

use crate::policies::credit::order::Claim;

use super::{ClaimRules, ClaimTasks, TaskMatching};

/// Latest report of a guest about its blocked tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GuestReport {
    /// Most urgent blocked tasks, the most urgent first.
    blocked: [Option<Task>; TASKS],
    /// Tasks that I/O woke, the latest first.
    woken: [Option<TaskId>; TASKS],
    /// Times at which I/O woke the tasks in `woken`.
    when: [Time; TASKS],
    /// Tasks that the driver VM names as receivers of the pending I/O.
    meant: [Option<TaskId>; TASKS],
    /// Most urgent claim of the blocked tasks, which counts while I/O is pending.
    pub(super) claim: Claim,
}

impl GuestReport {
    pub(super) const NOTHING: GuestReport = GuestReport {
        blocked: [None; TASKS],
        woken: [None; TASKS],
        when: [Time::START; TASKS],
        meant: [None; TASKS],
        claim: Claim::NONE,
    };

    /// Handles a report of the guest about its tasks.
    #[inline]
    pub(super) fn hear(&mut self, now: Time, told: &Tasks, belief: &ClaimRules) {
        if self.blocked == told.blocked && self.woken == told.woken {
            return;
        }
        self.when = self.wakes(now, told);
        (self.blocked, self.woken) = (told.blocked, told.woken);
        self.reckon(now, belief);
    }

    /// Sets the tasks that the driver VM names. Returns true if they differ from the tasks that the
    /// driver VM named before.
    #[inline]
    pub(super) fn mean(&mut self, tasks: &[Option<TaskId>; TASKS]) -> bool {
        core::mem::replace(&mut self.meant, *tasks) != *tasks
    }

    /// Computes the urgency claim of the guest's blocked tasks at `now`. Called when I/O becomes
    /// pending or the report changes.
    pub(super) fn reckon(&mut self, now: Time, belief: &ClaimRules) {
        let is_late = |when: &Time| now.since(*when) > belief.list_time;
        let late = self.when.map(|when| is_late(&when));
        let woken = core::array::from_fn(|place| self.woken[place].filter(|_| !late[place]));
        let for_whom = if belief.matching == TaskMatching::Exact { &self.meant } else { &woken };
        self.claim = blocked(&self.blocked, for_whom, belief);
    }

    /// Returns the times at which I/O woke the tasks in `told.woken`. A task that is new in the
    /// list was woken now. The first task of the list was also woken now if it was blocked at the
    /// last report and no longer is.
    fn wakes(&self, now: Time, told: &Tasks) -> [Time; TASKS] {
        let waits = |tasks: &[Option<Task>], id| tasks.iter().flatten().any(|task| task.id == id);
        core::array::from_fn(|place| {
            let Some(id) = told.woken[place] else { return now };
            let before = self.woken.iter().position(|&woken| woken == Some(id));
            let was_woken = place == 0
                && (before != Some(0) || waits(&self.blocked, id))
                && !waits(&told.blocked, id);
            before.filter(|_| !was_woken).map_or(now, |before| self.when[before])
        })
    }
}

/// Returns the claim of the most urgent runnable task of a report.
#[inline]
pub(super) fn runnable(told: &Tasks) -> Claim {
    most_urgent(told.runnable.iter().flatten())
}

/// Returns the urgency claim of the most urgent blocked task that may wait for pending I/O.
/// Depending on the rules, all blocked tasks count, or only tasks that I/O woke recently, or only
/// tasks that the driver VM names.
fn blocked(
    blocked: &[Option<Task>; TASKS],
    for_whom: &[Option<TaskId>; TASKS],
    belief: &ClaimRules,
) -> Claim {
    if belief.considers == ClaimTasks::RunQueue {
        return Claim::NONE;
    }
    let list = &for_whom[..belief.list.min(TASKS)];
    let counts = |task: &&Task| match belief.matching {
        TaskMatching::Any => true,
        TaskMatching::List => list.contains(&Some(task.id)),
        TaskMatching::Exact => for_whom.contains(&Some(task.id)),
    };
    most_urgent(blocked.iter().flatten().filter(counts))
}

fn most_urgent<'a>(tasks: impl Iterator<Item = &'a Task>) -> Claim {
    tasks.map(|task| task.urgency).min().map_or(Claim::NONE, |Urgency(urgency)| Claim::of(urgency))
}

#[cfg(test)]
mod tests {
    use slackline_units::Span;

    use super::*;
    use crate::policies::credit::claims::{ClaimEnd, ClaimSource, RequeuePosition};
    use crate::policies::credit::order::ClaimScope;

    const PAPER: ClaimRules = ClaimRules {
        tell: ClaimSource::Guest,
        considers: ClaimTasks::All,
        matching: TaskMatching::List,
        list: TASKS,
        list_time: Span::from_secs(1),
        bound: None,
        ends: ClaimEnd::Slice,
        place: RequeuePosition::Tail,
        among: ClaimScope::Under,
    };
    const A: u16 = 1;
    const B: u16 = 2;
    const C: u16 = 3;

    fn tasks(of: &[(u16, u8)]) -> [Option<Task>; TASKS] {
        let task = |&(id, urgency)| Task { id: TaskId::new(id), urgency: Urgency(urgency) };
        core::array::from_fn(|index| of.get(index).map(task))
    }

    /// Returns the urgency claim of a vCPU by four rules. The first rule uses only runnable tasks.
    /// The others add blocked tasks: those in the list of recently woken tasks, all of them, or
    /// those that the driver VM names.
    fn claims(
        runnable: &[(u16, u8)],
        blocked: &[(u16, u8)],
        (woken, meant): (&[u16], &[u16]),
        pending: u32,
    ) -> [Option<u8>; 4] {
        let ids =
            |of: &[u16]| core::array::from_fn(|index| of.get(index).copied().map(TaskId::new));
        let told = Tasks { runnable: tasks(runnable), blocked: tasks(blocked), woken: ids(woken) };
        let rules = [
            (ClaimTasks::RunQueue, TaskMatching::List),
            (ClaimTasks::All, TaskMatching::List),
            (ClaimTasks::All, TaskMatching::Any),
            (ClaimTasks::All, TaskMatching::Exact),
        ];
        rules.map(|(considers, matching)| {
            let belief = ClaimRules { considers, matching, ..PAPER };
            let mut heard = GuestReport::NOTHING;
            heard.mean(&ids(meant));
            heard.hear(Time::START, &told, &belief);
            let waiting = if pending > 0 { heard.claim } else { Claim::NONE };
            super::runnable(&told).min(waiting).urgency()
        })
    }

    /// Table of the reference on GAPS, section 7.2. Of the blocked tasks, the last column counts
    /// only those that the driver VM names.
    #[test]
    fn urgency_claims_under_policy_gaps_equal_the_reference_table() {
        let some = |claims: [u8; 4]| claims.map(Some);
        let (b, none): (&[u16], &[u16]) = (&[B], &[]);
        assert_eq!(claims(&[(A, 10)], &[(B, 5)], (b, b), 1), some([10, 5, 5, 5]));
        assert_eq!(claims(&[(A, 10)], &[(B, 5)], (b, none), 0), some([10; 4]));
        assert_eq!(claims(&[(A, 10)], &[(B, 5)], (none, b), 3), some([10, 10, 5, 5]));
        assert_eq!(claims(&[(A, 10)], &[(B, 5), (C, 7)], (&[C], b), 1), some([10, 7, 5, 5]));
        // I/O woke B recently, and the pending I/O is for C, or for no blocked task.
        assert_eq!(claims(&[(A, 10)], &[(B, 5), (C, 7)], (b, &[C]), 1), some([10, 5, 5, 7]));
        assert_eq!(claims(&[(A, 10)], &[(B, 5)], (b, none), 1), some([10, 5, 5, 10]));
        assert_eq!(claims(&[(A, 4)], &[(B, 5)], (b, b), 1), some([4; 4]));
        assert_eq!(claims(&[], &[(B, 5)], (b, b), 1), [None, Some(5), Some(5), Some(5)]);
        assert_eq!(claims(&[(A, 10)], &[(B, 10)], (b, b), 1), some([10; 4]));
    }

    /// I/O wakes task A, then B, then A again, then C. If the list of woken tasks holds two tasks,
    /// it contains C and A. B is not in the list, so B does not count.
    #[test]
    fn blocked_task_claims_urgency_only_if_recently_woken_by_io() {
        let woken = [C, A, B].map(|task| Some(TaskId::new(task)));
        let told = Tasks {
            runnable: tasks(&[]),
            blocked: tasks(&[(B, 5), (A, 6), (C, 7)]),
            woken: core::array::from_fn(|index| woken.get(index).copied().flatten()),
        };
        let believed = |list| {
            super::blocked(&told.blocked, &told.woken, &ClaimRules { list, ..PAPER }).urgency()
        };
        assert_eq!([3, 2, 1, 0].map(believed), [Some(5), Some(6), Some(7), None]);
    }

    /// I/O wakes task B at 100 ms. B blocks again, and from 200 ms on B no longer counts. A second
    /// wake-up of B starts its time again. A wake-up of A leaves the time of B unchanged.
    #[test]
    fn blocked_task_woken_by_io_claims_urgency_for_configured_time() {
        let ms = |ms| Time::START + Span::from_ms(ms);
        let belief = ClaimRules { list_time: Span::from_ms(100), ..PAPER };
        let mut heard = GuestReport::NOTHING;
        let tell = |heard: &mut GuestReport, at, blocked: &[(u16, u8)], woken: &[u16]| {
            let told = Tasks {
                runnable: tasks(&[]),
                blocked: tasks(blocked),
                woken: core::array::from_fn(|index| woken.get(index).copied().map(TaskId::new)),
            };
            heard.hear(ms(at), &told, &belief);
        };
        let claim = |heard: &GuestReport, at| {
            let mut heard = *heard;
            heard.reckon(ms(at), &belief);
            heard.claim.urgency()
        };
        tell(&mut heard, 50, &[(B, 5)], &[]);
        tell(&mut heard, 100, &[], &[B]);
        tell(&mut heard, 110, &[(B, 5)], &[B]);
        assert_eq!([200, 201].map(|at| claim(&heard, at)), [Some(5), None]);
        tell(&mut heard, 300, &[], &[B]);
        tell(&mut heard, 310, &[(B, 5), (A, 6)], &[B]);
        tell(&mut heard, 350, &[(B, 5)], &[A, B]);
        tell(&mut heard, 360, &[(B, 5), (A, 6)], &[A, B]);
        assert_eq!([400, 401, 451].map(|at| claim(&heard, at)), [Some(5), Some(6), None]);
        // While B runs, other reports do not count as wake-ups of B. If B becomes the first task of
        // the list again, that is a wake-up although B was not reported as blocked.
        tell(&mut heard, 500, &[], &[B]);
        tell(&mut heard, 550, &[(A, 6)], &[B]);
        tell(&mut heard, 560, &[(B, 5)], &[B]);
        assert_eq!([600, 601].map(|at| claim(&heard, at)), [Some(5), None]);
        tell(&mut heard, 700, &[], &[A, B]);
        tell(&mut heard, 750, &[], &[B, A]);
        tell(&mut heard, 760, &[(B, 5)], &[B, A]);
        assert_eq!([850, 851].map(|at| claim(&heard, at)), [Some(5), None]);
    }
}
