//! What a domain does says of it, where guests tell nothing: whether it is quick to answer.
//!
//! Source: Kim, Lim, Jeong, Jo and Lee, *Task-aware virtual machine scheduling for I/O
//! performance*, 2009: what is woken by I/O and soon done is to be served at once, and only until
//! it is done. They told tasks apart by address spaces, which a host does not see cheaply any more.
//! What is left is seen by whoever does the I/O: that a domain has taken notice of something, and
//! that it has asked for something then, after so much CPU time. A domain that computes besides
//! never sleeps, so only that tells its server from what it computes.

use slackline_units::Span;

/// Of so many that it took notice of last,
const LAST: u32 = 10;
/// so many must have been answered in time.
const ENOUGH: u32 = 8;

/// How a domain deals with what is done for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habit {
    /// CPU time for which its vCPUs have been charged.
    pub(super) ran: Span,
    /// What it had had, charged or not, when something came, it took notice, or answered.
    since: Span,
    /// How much it has taken notice of and not answered.
    owed: u32,
    /// How much it had asked for.
    asked: u32,
    /// Whether it answered the last ones in time, one bit each, the latest the lowest.
    answers: u32,
}

impl Habit {
    /// Of a domain of which nothing is known: it is not quick.
    pub(super) const UNKNOWN: Habit =
        Habit { ran: Span::ZERO, since: Span::ZERO, owed: 0, asked: 0, answers: 0 };

    /// So much waits for it, where so much did, and it has asked for so much in all; it has had
    /// `ran` of CPU time by now.
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

    /// It has run. Who has something to do and has not done it after `within` does something else.
    #[inline]
    pub(super) fn run(&mut self, ran: Span, has_items: bool, within: Span) {
        self.ran += ran;
        if (has_items || self.owed > 0) && self.ran.left_after(self.since) >= within {
            (self.owed, self.since) = (0, self.ran);
            self.note(1, 0);
        }
    }

    /// It sleeps: it has done what there was to do.
    pub(super) fn rest(&mut self) {
        let answered = core::mem::take(&mut self.owed);
        self.note(answered, 1);
    }

    fn note(&mut self, count: u32, in_time: u32) {
        for _ in 0..count.min(LAST) {
            self.answers = self.answers << 1 | in_time;
        }
    }

    /// Whether it has something to do for which it should have the CPU at once.
    #[inline]
    pub(super) fn is_at_it(&self, items: u32) -> bool {
        (items > 0 || self.owed > 0) && self.answered() >= ENOUGH
    }

    /// How many of the last ten it answered in time.
    pub(super) fn answered(&self) -> u32 {
        (self.answers & ((1 << LAST) - 1)).count_ones()
    }

    /// How much longer it may take to answer, while it does not run.
    pub(super) fn left(&self, within: Span) -> Span {
        within.left_after(self.ran.left_after(self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Span = Span::from_ms(1);

    /// It takes notice of one packet and runs for so long before it sends one.
    fn answer(habit: &mut Habit, after: Span) {
        let before = habit.asked;
        habit.hear(habit.ran, (0, 1), before);
        habit.hear(habit.ran, (1, 0), before);
        habit.run(after, false, WITHIN);
        habit.hear(habit.ran, (0, 0), before.wrapping_add(1));
    }

    #[test]
    fn eight_of_ten_answers_in_time_are_a_habit() {
        let mut habit = Habit { asked: u32::MAX - 3, ..Habit::UNKNOWN };
        for count in 0..8 {
            assert!(!habit.is_at_it(1), "{count}");
            answer(&mut habit, Span::from_us(999));
        }
        assert!(habit.is_at_it(1) && !habit.is_at_it(0));
        // Two late ones of ten may be; a third is one too many, until one is out of the ten.
        for (late, is_quick) in [(true, true), (true, true), (true, false), (false, false)] {
            answer(&mut habit, Span::from_us(if late { 1_000 } else { 10 }));
            assert_eq!(habit.is_at_it(1), is_quick, "{habit:?}");
        }
    }

    #[test]
    fn what_was_asked_for_unasked_and_what_is_never_answered_is_no_answer() {
        let mut habit = Habit::UNKNOWN;
        // It sends, and nothing had come.
        (1..50).for_each(|asked| habit.hear(habit.ran, (0, 0), asked));
        assert_eq!(habit.answered(), 0);
        (0..10).for_each(|_| answer(&mut habit, Span::from_us(30)));
        assert_eq!(habit.answered(), 10);
        // It takes notice of what comes and computes on, or does not even take notice.
        habit.hear(habit.ran, (0, 2), habit.asked);
        habit.hear(habit.ran, (2, 1), habit.asked);
        assert!(habit.is_at_it(1) && habit.left(WITHIN) == WITHIN);
        habit.run(Span::from_us(400), true, WITHIN);
        assert_eq!(habit.left(WITHIN), Span::from_us(600));
        (0..3).for_each(|_| habit.run(Span::from_ms(30), true, WITHIN));
        assert!(!habit.is_at_it(1));
    }

    /// Of three at once each is answered; and who sleeps has no more to do.
    #[test]
    fn several_at_once_are_answered_one_by_one() {
        let mut habit = Habit::UNKNOWN;
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
