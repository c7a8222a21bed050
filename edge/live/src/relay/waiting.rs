//! Count of the data that is pending for a guest, as the guest's relay observes it. This module
//! does no I/O and reads no clock.

use slackline_units::{Span, Time};

/// Maximum time for which unanswered data counts as pending. After this time the data is assumed to
/// be for a program that never answers.
pub const WAITS: Span = Span::from_ms(100);
/// Average interval between reports about pending data at the maximum rate. The rate is limited
/// because guest and client are not trusted.
const EACH: Span = Span::from_ms(1);
/// Burst allowance. After a time without reports, up to 32 reports may be made without an interval.
/// The maximum rate allows this number in 32 ms.
const SAVED: Span = Span::from_ms(32);

/// Count of the data that is pending for one guest, and the latest report about it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    /// Number of times that data arrived for the guest since the guest last sent data.
    items: u32,
    /// Number of times that the guest has sent data. The number wraps around.
    asked: u32,
    /// Arrival time of the oldest data that is pending for the guest. If no data is pending, the
    /// value has no meaning.
    since: Time,
    /// Values of `items` and `asked` that the latest report has.
    told: (u32, u32),
    /// Rate limiter. Each report moves this time ahead by [`EACH`]. While this time is more than
    /// [`SAVED`] ahead of the present time, no report is made.
    paid: Time,
    /// Number of times that the guest did not answer within [`WAITS`].
    pub(super) unanswered: u64,
}

impl Waiting {
    /// Counts data for the guest that has arrived from a client. Later data does not prolong the
    /// time for which earlier data counts as pending.
    pub(super) fn came(&mut self, now: Time) {
        self.expire(now);
        if self.items == 0 {
            self.since = now;
        }
        self.items = self.items.saturating_add(1);
    }

    /// Counts data that the guest has sent. After that, no data is pending for the guest.
    pub(super) fn answered(&mut self) {
        self.items = 0;
        self.asked = self.asked.wrapping_add(1);
    }

    /// Handles the end of the guest's connection. After that, no data is pending for the guest.
    pub(super) fn gone(&mut self) {
        self.items = 0;
    }

    /// Drops pending data that the guest has not answered within [`WAITS`].
    fn expire(&mut self, now: Time) {
        if self.items > 0 && now.since(self.since) >= WAITS {
            self.items = 0;
            self.unanswered += 1;
        }
    }

    /// Returns the report that is due: the number of pending items, and the number of times that
    /// the guest has sent data. `None` if neither number has changed, or if the rate limit forbids
    /// a report now.
    pub(super) fn news(&mut self, now: Time) -> Option<(u32, u32)> {
        self.expire(now);
        let news = (self.items, self.asked);
        if news == self.told || self.paid.since(now) > SAVED {
            return None;
        }
        self.told = news;
        self.paid = self.paid.max(now) + EACH;
        Some(news)
    }

    /// Returns the time when a report may be due even if no data arrives. At that time pending data
    /// expires, or the rate limit permits a report that was delayed. `None` if no report can be
    /// due.
    pub(super) fn due(&self) -> Option<Time> {
        let is_late = (self.items, self.asked) != self.told;
        let late = is_late.then(|| self.paid - SAVED.min(self.paid - Time::START));
        let lapses = (self.items > 0).then(|| self.since + WAITS);
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
    fn relayed_data_is_pending_until_the_guest_sends_data() {
        let mut waiting = Waiting::default();
        assert_eq!((waiting.news(at(1)), waiting.due()), (None, None));
        waiting.came(at(10));
        assert_eq!(waiting.news(at(10)), Some((1, 0)));
        assert_eq!((waiting.news(at(11)), waiting.due()), (None, Some(at(110))));
        waiting.came(at(20));
        assert_eq!(waiting.news(at(20)), Some((2, 0)));
        waiting.answered();
        assert_eq!((waiting.news(at(30)), waiting.due()), (Some((0, 1)), None));
        // The guest sends data although none is pending. That is reported too, since a policy may
        // use the count.
        waiting.answered();
        assert_eq!((waiting.news(at(40)), waiting.unanswered), (Some((0, 2)), 0));
    }

    #[test]
    fn relayed_data_is_pending_for_at_most_100_ms() {
        let mut waiting = Waiting::default();
        waiting.came(at(10));
        waiting.came(at(60));
        assert_eq!(waiting.news(at(60)), Some((2, 0)));
        assert_eq!((waiting.news(at(109)), waiting.due()), (None, Some(at(110))));
        assert_eq!((waiting.news(at(110)), waiting.due()), (Some((0, 0)), None));
        assert_eq!(waiting.unanswered, 1);
        waiting.came(at(200));
        assert_eq!(waiting.news(at(200)), Some((1, 0)));
        waiting.gone();
        assert_eq!((waiting.news(at(210)), waiting.unanswered), (Some((0, 0)), 1));
        // The first data expires after 100 ms. Data that arrives later counts for its own 100 ms.
        waiting.came(at(300));
        waiting.came(at(401));
        assert_eq!((waiting.news(at(401)), waiting.unanswered), (Some((1, 0)), 2));
        assert_eq!(waiting.due(), Some(at(501)));
    }

    /// A guest and its client send ten requests and ten answers in each millisecond, for a second.
    /// The rate limit permits a thousand reports in this second, and the burst allowance a few
    /// more. The latest change is reported as soon as the rate limit permits it.
    #[test]
    fn changes_of_pending_io_are_reported_at_a_limited_rate() {
        let mut waiting = Waiting::default();
        let mut told = 0;
        for step in 0..20_000 {
            let now = Time::START + Span::from_us(50) * step;
            if step % 2 == 0 {
                waiting.came(now);
            } else {
                waiting.answered();
            }
            told += u32::from(waiting.news(now).is_some());
        }
        assert!((1_000..=1_034).contains(&told), "{told}");
        waiting.came(at(1_000));
        let due = waiting.due().expect("the report of the latest change is delayed");
        assert!(due > at(999) && due <= at(1_002), "{due:?}");
        assert_eq!(waiting.news(due), Some((1, 10_000)));
    }
}
