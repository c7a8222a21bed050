//! What waits for a guest, as seen by who hands it on. It does no IO and is told the time.

use slackline_units::{Span, Time};

/// For how long something counts that is not answered: it may have been for nobody who answers.
pub const WAITS: Span = Span::from_ms(100);
/// How many changes a second are told on average, and how many at once where fewer came before:
/// who sends and who answers are both strangers.
const EACH: Span = Span::from_ms(1);
const SAVED: Span = Span::from_ms(32);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    items: u32,
    /// How much the guest has sent.
    asked: u32,
    /// When the last came of those that wait.
    last: Time,
    told: (u32, u32),
    /// Up to when changes have been paid for, at one in [`EACH`].
    paid: Time,
    pub(super) unanswered: u64,
}

impl Waiting {
    /// Something is on its way to the guest.
    pub(super) fn came(&mut self, now: Time) {
        self.items = self.items.saturating_add(1);
        self.last = now;
    }

    /// The guest has sent something.
    pub(super) fn answered(&mut self, now: Time) {
        (self.items, self.last) = (0, now);
        self.asked = self.asked.wrapping_add(1);
    }

    /// The guest is not there any more.
    pub(super) fn gone(&mut self, now: Time) {
        (self.items, self.last) = (0, now);
    }

    /// What there is to tell now: how much waits, and how much the guest has sent.
    pub(super) fn news(&mut self, now: Time) -> Option<(u32, u32)> {
        if self.items > 0 && now.since(self.last) >= WAITS {
            self.items = 0;
            self.unanswered += 1;
        }
        let news = (self.items, self.asked);
        if news == self.told || self.paid.since(now) > SAVED {
            return None;
        }
        self.told = news;
        self.paid = self.paid.max(now) + EACH;
        Some(news)
    }

    /// When there may be something to tell though nothing comes.
    pub(super) fn due(&self) -> Option<Time> {
        let is_late = (self.items, self.asked) != self.told;
        let late = is_late.then(|| self.paid - SAVED.min(self.paid - Time::START));
        let lapses = (self.items > 0).then(|| self.last + WAITS);
        late.into_iter().chain(lapses).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::START + Span::from_ms(ms)
    }

    #[test]
    fn what_came_waits_until_the_guest_sends() {
        let mut waiting = Waiting::default();
        assert_eq!((waiting.news(at(1)), waiting.due()), (None, None));
        waiting.came(at(10));
        assert_eq!(waiting.news(at(10)), Some((1, 0)));
        assert_eq!((waiting.news(at(11)), waiting.due()), (None, Some(at(110))));
        waiting.came(at(20));
        assert_eq!(waiting.news(at(20)), Some((2, 0)));
        waiting.answered(at(30));
        assert_eq!((waiting.news(at(30)), waiting.due()), (Some((0, 1)), None));
        // It sends of itself, which is told too: somebody may learn from it.
        waiting.answered(at(40));
        assert_eq!((waiting.news(at(40)), waiting.unanswered), (Some((0, 2)), 0));
    }

    #[test]
    fn what_nobody_answers_waits_for_100_ms() {
        let mut waiting = Waiting::default();
        waiting.came(at(10));
        waiting.came(at(60));
        assert_eq!(waiting.news(at(60)), Some((2, 0)));
        assert_eq!((waiting.news(at(159)), waiting.due()), (None, Some(at(160))));
        assert_eq!((waiting.news(at(160)), waiting.due()), (Some((0, 0)), None));
        assert_eq!(waiting.unanswered, 1);
        waiting.came(at(200));
        assert_eq!(waiting.news(at(200)), Some((1, 0)));
        waiting.gone(at(210));
        assert_eq!((waiting.news(at(210)), waiting.unanswered), (Some((0, 0)), 1));
    }

    /// Ten requests and ten answers in each millisecond, for a second: a thousand are told and
    /// those that may be saved up; and of what is not told at once the last is told later.
    #[test]
    fn a_flood_is_not_told_all() {
        let mut waiting = Waiting::default();
        let mut told = 0;
        for step in 0..20_000 {
            let now = Time::START + Span::from_us(50) * step;
            if step % 2 == 0 {
                waiting.came(now);
            } else {
                waiting.answered(now);
            }
            told += u32::from(waiting.news(now).is_some());
        }
        assert!((1_000..=1_034).contains(&told), "{told}");
        waiting.came(at(1_000));
        let due = waiting.due().expect("something is to be told");
        assert!(due > at(999) && due <= at(1_002), "{due:?}");
        assert_eq!(waiting.news(due), Some((1, 10_000)));
    }
}
