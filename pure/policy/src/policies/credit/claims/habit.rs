//! Inference of whether a VM usually answers I/O quickly, for guests that report nothing.
//!
//! Source: Kim, Lim, Jeong, Jo and Lee, *Task-aware virtual machine scheduling for I/O
//! performance*, 2009. There, a task that is woken by I/O and is soon done is served at once, and
//! only until it is done. The authors distinguish tasks by address spaces, which a host cannot
//! observe cheaply any more. The driver VM can still observe two events: another VM notices an I/O
//! item, and after some CPU time that VM sends a request. A VM that also computes never blocks, so
//! only these two events distinguish its server tasks from its computation.

use slackline_units::Span;

/// Number of latest I/O items whose answers count.
const ITEMS_COUNTED: u32 = 10;
/// Minimum number of the latest I/O items that the VM must have answered in time to count as quick.
const MIN_QUICK_ANSWERS: u32 = 8;

/// Record of how quickly a VM answers the I/O items that are completed for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseHistory {
    /// CPU time for which the vCPUs of the VM have been charged.
    pub(super) ran: Span,
    /// CPU time of the VM, charged or not, at the latest of three events: an I/O item arrived for
    /// the VM, the VM noticed an item, or the VM answered an item.
    since: Span,
    /// Number of I/O items that the VM has noticed and not answered yet.
    owed: u32,
    /// Total number of I/O requests that the VM had sent at its last report.
    asked: u32,
    /// Answers to the latest I/O items, one bit each, the latest in the lowest bit. A bit is set if
    /// the answer was in time.
    answers: u32,
}

impl ResponseHistory {
    /// Record of a new VM, which does not count as quick in its answers to I/O.
    pub(super) const UNKNOWN: ResponseHistory =
        ResponseHistory { ran: Span::ZERO, since: Span::ZERO, owed: 0, asked: 0, answers: 0 };

    /// Handles a report about a VM. The number of its waiting I/O items changed from `before` to
    /// `items`, and the VM has sent `asked` I/O requests in total. `ran` is the CPU time of the VM
    /// up to now.
    pub(super) fn hear(&mut self, ran: Span, (before, items): (u32, u32), asked: u32) {
        if items < before {
            self.owed = self.owed.saturating_add(before - items);
            self.since = ran;
        } else if before == 0 && self.owed == 0 {
            self.since = ran;
        }
        let answered = asked.wrapping_sub(core::mem::replace(&mut self.asked, asked));
        let answered = answered.min(self.owed);
        if answered > 0 {
            self.owed -= answered;
            self.since = ran;
            self.note(answered, 1);
        }
    }

    /// Charges the CPU time `ran`. If the VM has an I/O item and has used `within` without
    /// answering the item, the item counts as answered late: the VM did other work in that time.
    #[inline]
    pub(super) fn run(&mut self, ran: Span, has_items: bool, within: Span) {
        self.ran += ran;
        if (has_items || self.owed > 0) && self.ran.left_after(self.since) >= within {
            (self.owed, self.since) = (0, self.ran);
            self.note(1, 0);
        }
    }

    /// Records that the VM is blocked, which means that it has answered all I/O items that it
    /// noticed.
    pub(super) fn rest(&mut self) {
        let answered = core::mem::take(&mut self.owed);
        self.note(answered, 1);
    }

    /// Records the answers to `count` items. `in_time` is 1 if they were in time, else 0.
    fn note(&mut self, count: u32, in_time: u32) {
        for _ in 0..count.min(ITEMS_COUNTED) {
            self.answers = self.answers << 1 | in_time;
        }
    }

    /// Returns true if the VM has an I/O item to answer and usually answers such items in time.
    #[inline]
    pub(super) fn is_at_it(&self, items: u32) -> bool {
        (items > 0 || self.owed > 0) && self.answered() >= MIN_QUICK_ANSWERS
    }

    /// Returns the number of I/O items, of the last ten, that were answered in time.
    pub(super) fn answered(&self) -> u32 {
        (self.answers & ((1 << ITEMS_COUNTED) - 1)).count_ones()
    }

    /// Returns the CPU time that the VM can still use before its answer counts as late.
    pub(super) fn left(&self, within: Span) -> Span {
        within.left_after(self.ran.left_after(self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Span = Span::from_ms(1);

    /// Simulates a VM that notices one packet, runs for `after`, and then sends one packet.
    fn answer(habit: &mut ResponseHistory, after: Span) {
        let before = habit.asked;
        habit.hear(habit.ran, (0, 1), before);
        habit.hear(habit.ran, (1, 0), before);
        habit.run(after, false, WITHIN);
        habit.hear(habit.ran, (0, 0), before.wrapping_add(1));
    }

    #[test]
    fn vm_with_eight_timely_answers_in_ten_counts_as_server() {
        let mut habit = ResponseHistory { asked: u32::MAX - 3, ..ResponseHistory::UNKNOWN };
        for count in 0..8 {
            assert!(!habit.is_at_it(1), "{count}");
            answer(&mut habit, Span::from_us(999));
        }
        assert!(habit.is_at_it(1) && !habit.is_at_it(0));
        // Of the last ten answers two may be late. After a third late answer the VM is not quick
        // until the first late answer is no longer one of the last ten.
        for (late, is_quick) in [(true, true), (true, true), (true, false), (false, false)] {
            answer(&mut habit, Span::from_us(if late { 1_000 } else { 10 }));
            assert_eq!(habit.is_at_it(1), is_quick, "{habit:?}");
        }
    }

    #[test]
    fn response_history_ignores_unprompted_requests_and_penalises_unanswered_io() {
        let mut habit = ResponseHistory::UNKNOWN;
        // The VM sends requests although no I/O item has arrived.
        (1..50).for_each(|asked| habit.hear(habit.ran, (0, 0), asked));
        assert_eq!(habit.answered(), 0);
        (0..10).for_each(|_| answer(&mut habit, Span::from_us(30)));
        assert_eq!(habit.answered(), 10);
        // Two items arrive. The VM notices one of them, and continues to compute.
        habit.hear(habit.ran, (0, 2), habit.asked);
        habit.hear(habit.ran, (2, 1), habit.asked);
        assert!(habit.is_at_it(1) && habit.left(WITHIN) == WITHIN);
        habit.run(Span::from_us(400), true, WITHIN);
        assert_eq!(habit.left(WITHIN), Span::from_us(600));
        (0..3).for_each(|_| habit.run(Span::from_ms(30), true, WITHIN));
        assert!(!habit.is_at_it(1));
    }

    /// Three I/O items that arrive at once are answered one by one. When the VM blocks, the
    /// remaining items count as answered.
    #[test]
    fn response_history_counts_answers_to_simultaneous_requests_one_by_one() {
        let mut habit = ResponseHistory::UNKNOWN;
        for _ in 0..3 {
            habit.hear(habit.ran, (0, 3), habit.asked);
            habit.hear(habit.ran, (3, 0), habit.asked);
            for _ in 0..2 {
                habit.run(Span::from_us(900), false, WITHIN);
                habit.hear(habit.ran, (0, 0), habit.asked + 1);
            }
            assert_eq!(habit.owed, 1);
            habit.rest();
            assert_eq!(habit.owed, 0);
        }
        assert_eq!(habit.answered(), 9);
        assert!(!habit.is_at_it(0) && habit.is_at_it(1));
    }
}
