//! Habit of a VM if guests report nothing: whether it answers I/O quickly.
//!
//! Source: Kim, Lim, Jeong, Jo and Lee, *Task-aware virtual machine scheduling for I/O
//! performance*, 2009. A task that I/O wakes and that is soon done is served at once, and only
//! until it is done. They told tasks apart by address spaces, which a host cannot observe cheaply
//! any more. The VM that does the I/O still observes two events: a VM takes notice of an item, and
//! it sends a request after some CPU time. A VM that also computes never blocks, so only these
//! events tell its server from its computation.

use slackline_units::Span;

/// Number of latest items that count.
const LAST: u32 = 10;
/// Number of these that must have been answered in time.
const ENOUGH: u32 = 8;

/// Record of how a VM answers the items that are done for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseHistory {
    /// CPU time for which its vCPUs have been charged.
    pub(super) ran: Span,
    /// CPU time of the VM, charged or not, at the latest of these: an item came, the VM took notice
    /// of one, or it answered one.
    since: Span,
    /// Number of items that it has taken notice of and not answered.
    owed: u32,
    /// Number of requests that it had sent at the last report.
    asked: u32,
    /// Answers to the latest items, one bit each, the latest lowest. A bit is set if the answer was
    /// in time.
    answers: u32,
}

impl ResponseHistory {
    /// Habit of a new VM. It does not count as quick.
    pub(super) const UNKNOWN: ResponseHistory =
        ResponseHistory { ran: Span::ZERO, since: Span::ZERO, owed: 0, asked: 0, answers: 0 };

    /// Takes a report: `items` wait for the VM where `before` did, and it has sent `asked` requests
    /// in all. `ran` is its CPU time up to now.
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

    /// Charges CPU time. A VM that has an item and has not answered after `within` counts as late:
    /// it does something else.
    #[inline]
    pub(super) fn run(&mut self, ran: Span, has_items: bool, within: Span) {
        self.ran += ran;
        if (has_items || self.owed > 0) && self.ran.left_after(self.since) >= within {
            (self.owed, self.since) = (0, self.ran);
            self.note(1, 0);
        }
    }

    /// Records that the VM is blocked: it has answered all that it took notice of.
    pub(super) fn rest(&mut self) {
        let answered = core::mem::take(&mut self.owed);
        self.note(answered, 1);
    }

    fn note(&mut self, count: u32, in_time: u32) {
        for _ in 0..count.min(LAST) {
            self.answers = self.answers << 1 | in_time;
        }
    }

    /// Returns true if the VM has an item and the habit of answering in time.
    #[inline]
    pub(super) fn is_at_it(&self, items: u32) -> bool {
        (items > 0 || self.owed > 0) && self.answered() >= ENOUGH
    }

    /// Returns how many of the last ten items were answered in time.
    pub(super) fn answered(&self) -> u32 {
        (self.answers & ((1 << LAST) - 1)).count_ones()
    }

    /// Returns the CPU time that remains until the answer is late.
    pub(super) fn left(&self, within: Span) -> Span {
        within.left_after(self.ran.left_after(self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Span = Span::from_ms(1);

    /// Takes notice of one packet, runs for `after`, and then sends one.
    fn answer(habit: &mut ResponseHistory, after: Span) {
        let before = habit.asked;
        habit.hear(habit.ran, (0, 1), before);
        habit.hear(habit.ran, (1, 0), before);
        habit.run(after, false, WITHIN);
        habit.hear(habit.ran, (0, 0), before.wrapping_add(1));
    }

    #[test]
    fn gaps_infers_a_quick_server_from_eight_of_ten_timely_answers() {
        let mut habit = ResponseHistory { asked: u32::MAX - 3, ..ResponseHistory::UNKNOWN };
        for count in 0..8 {
            assert!(!habit.is_at_it(1), "{count}");
            answer(&mut habit, Span::from_us(999));
        }
        assert!(habit.is_at_it(1) && !habit.is_at_it(0));
        // Two late answers of ten are allowed. A third is too many until one leaves the ten.
        for (late, is_quick) in [(true, true), (true, true), (true, false), (false, false)] {
            answer(&mut habit, Span::from_us(if late { 1_000 } else { 10 }));
            assert_eq!(habit.is_at_it(1), is_quick, "{habit:?}");
        }
    }

    #[test]
    fn gaps_counts_neither_unsolicited_requests_nor_unanswered_items_as_answers() {
        let mut habit = ResponseHistory::UNKNOWN;
        // The VM sends although nothing came.
        (1..50).for_each(|asked| habit.hear(habit.ran, (0, 0), asked));
        assert_eq!(habit.answered(), 0);
        (0..10).for_each(|_| answer(&mut habit, Span::from_us(30)));
        assert_eq!(habit.answered(), 10);
        // The VM takes notice of one item and computes on, and of another it takes no notice.
        habit.hear(habit.ran, (0, 2), habit.asked);
        habit.hear(habit.ran, (2, 1), habit.asked);
        assert!(habit.is_at_it(1) && habit.left(WITHIN) == WITHIN);
        habit.run(Span::from_us(400), true, WITHIN);
        assert_eq!(habit.left(WITHIN), Span::from_us(600));
        (0..3).for_each(|_| habit.run(Span::from_ms(30), true, WITHIN));
        assert!(!habit.is_at_it(1));
    }

    /// Three items at once are answered one by one. A VM that blocks has answered the rest.
    #[test]
    fn gaps_counts_simultaneous_items_as_answered_one_by_one() {
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
