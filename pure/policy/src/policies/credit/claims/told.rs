//! From what was told to a claim [Paper 3.2]: the most urgent task that wants the CPU; and, once
//! I/O has been done for the domain, the most urgent of those that wait and that I/O has woken
//! lately, for it is probably for one of these; or of those for which it is, where that is told.

use slackline_units::{TASKS, Task, TaskId, Tasks, Time, Urgency};

use crate::policies::credit::order::Claim;

use super::{Belief, Consider, Match};

/// What a domain has told of the tasks of it that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    blocked: [Option<Task>; TASKS],
    woken: [Option<TaskId>; TASKS],
    /// When I/O woke each of those.
    when: [Time; TASKS],
    /// For whom that is what has been done for it.
    meant: [Option<TaskId>; TASKS],
    /// What that comes to once I/O has been done for it.
    pub(super) claim: Claim,
}

impl Heard {
    pub(super) const NOTHING: Heard = Heard {
        blocked: [None; TASKS],
        woken: [None; TASKS],
        when: [Time::START; TASKS],
        meant: [None; TASKS],
        claim: Claim::NONE,
    };

    /// It tells this.
    #[inline]
    pub(super) fn hear(&mut self, now: Time, told: &Tasks, belief: &Belief) {
        if self.blocked == told.blocked && self.woken == told.woken {
            return;
        }
        self.when = self.wakes(now, told);
        (self.blocked, self.woken) = (told.blocked, told.woken);
        self.reckon(now, belief);
    }

    /// For whom that is what has been done for it; whether those are others now.
    #[inline]
    pub(super) fn mean(&mut self, tasks: &[Option<TaskId>; TASKS]) -> bool {
        core::mem::replace(&mut self.meant, *tasks) != *tasks
    }

    /// What its claim is now that I/O has been done for it.
    pub(super) fn reckon(&mut self, now: Time, belief: &Belief) {
        let is_late = |when: &Time| now.since(*when) > belief.list_time;
        let late = self.when.map(|when| is_late(&when));
        let woken = core::array::from_fn(|place| self.woken[place].filter(|_| !late[place]));
        let for_whom = if belief.matching == Match::Exact { &self.meant } else { &woken };
        self.claim = blocked(&self.blocked, for_whom, belief);
    }

    /// When each of those was woken that are told to have been. One that is new among them was now;
    /// so was the latest if it waited before and does not any more.
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

/// The claim of the most urgent task that wants the CPU.
#[inline]
pub(super) fn runnable(told: &Tasks) -> Claim {
    most_urgent(told.runnable.iter().flatten())
}

/// The claim of the most urgent task that waits and for which I/O is, or may be: those that it has
/// lately woken, or those for whom it is told to be.
fn blocked(
    blocked: &[Option<Task>; TASKS],
    for_whom: &[Option<TaskId>; TASKS],
    belief: &Belief,
) -> Claim {
    if belief.considers == Consider::RunQueue {
        return Claim::NONE;
    }
    let list = &for_whom[..belief.list.min(TASKS)];
    let counts = |task: &&Task| match belief.matching {
        Match::Any => true,
        Match::List => list.contains(&Some(task.id)),
        Match::Exact => for_whom.contains(&Some(task.id)),
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
    use crate::policies::credit::claims::{Ends, Place, Tell};
    use crate::policies::credit::order::Among;

    const PAPER: Belief = Belief {
        tell: Tell::Guest,
        considers: Consider::All,
        matching: Match::List,
        list: TASKS,
        list_time: Span::from_secs(1),
        bound: None,
        ends: Ends::Slice,
        place: Place::Tail,
        among: Among::Under,
    };
    const A: u16 = 1;
    const B: u16 = 2;
    const C: u16 = 3;

    fn tasks(of: &[(u16, u8)]) -> [Option<Task>; TASKS] {
        let task = |&(id, urgency)| Task { id: TaskId::new(id), urgency: Urgency(urgency) };
        core::array::from_fn(|index| of.get(index).map(task))
    }

    /// What the rules make of it: by run queues alone, with the list, and without it; and where it
    /// is known for whom that is what waits.
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
            (Consider::RunQueue, Match::List),
            (Consider::All, Match::List),
            (Consider::All, Match::Any),
            (Consider::All, Match::Exact),
        ];
        rules.map(|(considers, matching)| {
            let belief = Belief { considers, matching, ..PAPER };
            let mut heard = Heard::NOTHING;
            heard.mean(&ids(meant));
            heard.hear(Time::START, &told, &belief);
            let waiting = if pending > 0 { heard.claim } else { Claim::NONE };
            super::runnable(&told).min(waiting).urgency()
        })
    }

    /// The table of the reference, section 7.2; and what is known in the last column.
    #[test]
    fn a_claim_is_what_the_paper_says() {
        let some = |claims: [u8; 4]| claims.map(Some);
        let (b, none): (&[u16], &[u16]) = (&[B], &[]);
        assert_eq!(claims(&[(A, 10)], &[(B, 5)], (b, b), 1), some([10, 5, 5, 5]));
        assert_eq!(claims(&[(A, 10)], &[(B, 5)], (b, none), 0), some([10; 4]));
        assert_eq!(claims(&[(A, 10)], &[(B, 5)], (none, b), 3), some([10, 10, 5, 5]));
        assert_eq!(claims(&[(A, 10)], &[(B, 5), (C, 7)], (&[C], b), 1), some([10, 7, 5, 5]));
        // It woke B lately, and is for C, or for nobody who waits.
        assert_eq!(claims(&[(A, 10)], &[(B, 5), (C, 7)], (b, &[C]), 1), some([10, 5, 5, 7]));
        assert_eq!(claims(&[(A, 10)], &[(B, 5)], (b, none), 1), some([10, 5, 5, 10]));
        assert_eq!(claims(&[(A, 4)], &[(B, 5)], (b, b), 1), some([4; 4]));
        assert_eq!(claims(&[], &[(B, 5)], (b, b), 1), [None, Some(5), Some(5), Some(5)]);
        assert_eq!(claims(&[(A, 10)], &[(B, 10)], (b, b), 1), some([10; 4]));
    }

    /// Of wakes in order a, b, a, c a list of two has c and a: of b nothing is believed.
    #[test]
    fn no_more_of_the_list_is_believed_than_its_length() {
        let woken = [C, A, B].map(|task| Some(TaskId::new(task)));
        let told = Tasks {
            runnable: tasks(&[]),
            blocked: tasks(&[(B, 5), (A, 6), (C, 7)]),
            woken: core::array::from_fn(|index| woken.get(index).copied().flatten()),
        };
        let believed =
            |list| super::blocked(&told.blocked, &told.woken, &Belief { list, ..PAPER }).urgency();
        assert_eq!([3, 2, 1, 0].map(believed), [Some(5), Some(6), Some(7), None]);
    }

    /// I/O wakes B at 100 ms; then B waits again, and from 200 ms on it is not believed. A second
    /// wake counts anew, and so does one of A, which leaves B where it was.
    #[test]
    fn who_was_woken_is_believed_for_a_time() {
        let ms = |ms| Time::START + Span::from_ms(ms);
        let belief = Belief { list_time: Span::from_ms(100), ..PAPER };
        let mut heard = Heard::NOTHING;
        let tell = |heard: &mut Heard, at, blocked: &[(u16, u8)], woken: &[u16]| {
            let told = Tasks {
                runnable: tasks(&[]),
                blocked: tasks(blocked),
                woken: core::array::from_fn(|index| woken.get(index).copied().map(TaskId::new)),
            };
            heard.hear(ms(at), &told, &belief);
        };
        let claim = |heard: &Heard, at| {
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
        // While B runs it is not woken again, whatever else is told; when it is the latest anew
        // although it has not been told to wait, it is.
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
