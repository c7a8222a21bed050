//! Where the periods of a promise begin and end, and what each is worth.

use crate::{Reservation, Span, Time};

/// A slice in every period, and where the periods begin: one after the other from the promise on,
/// or, with a phase, on a grid, so that those of several vCPUs, on several hosts, begin at once.
///
/// On a grid the first period ends where the next one of the grid begins, and is worth as much of
/// a slice as it is of a period: at any rate what slice/period comes to, and no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// How much, and how often.
    pub reservation: Reservation,
    /// The grid is all times at which [its clock](GridClock) shows this and whole periods more or
    /// less; none where there is no grid.
    pub phase: Option<Span>,
}

/// The clock by which phases are told, against the host's time.
///
/// It may be set at any time, and what is known of it may become better. Periods that have begun
/// go on as they are; the next ends at the point of the new grid that is nearest to where it would
/// have ended, so it is between half a period and one and a half long. What it is worth is in
/// proportion where it is shorter, and a slice where it is longer: nobody ever gains by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GridClock {
    /// By how much it is ahead of the host's time.
    ahead: Span,
    /// The same for periods that begin up to `since`.
    before: Span,
    since: Time,
}

impl GridClock {
    /// From now on it is so far ahead of the host's time.
    pub fn set(&mut self, now: Time, ahead: Span) {
        if now > self.since {
            (self.before, self.since) = (self.ahead, now);
        }
        self.ahead = ahead;
    }

    /// How long before `at` a period of this grid began.
    fn since_point(&self, at: Time, period: Span, phase: Span) -> Span {
        // What is set at an instant counts for what begins after it: which came first is no matter.
        let ahead = if at > self.since { self.ahead } else { self.before };
        let shown = i128::from(at.ns()) + i128::from(ahead.ns());
        let since = (shown - i128::from(phase.ns())).rem_euclid(i128::from(period.ns()));
        Span::from_ns(u64::try_from(since).expect("less than a period"))
    }
}

impl Periods {
    /// Where the first period ends of a promise that is made then.
    #[must_use]
    pub fn first_end(self, from: Time, clock: &GridClock) -> Time {
        let period = self.reservation.period();
        let Some(phase) = self.phase else { return from.after(period) };
        from.after(period - clock.since_point(from, period, phase))
    }

    /// Where a period ends that begins as the one before it ends.
    #[must_use]
    pub fn next_end(self, from: Time, clock: &GridClock) -> Time {
        let period = self.reservation.period();
        let Some(phase) = self.phase else { return from.after(period) };
        let late = clock.since_point(from, period, phase);
        let early = period - late;
        if late <= early { from.after(early) } else { from.after(period).after(early) }
    }

    /// What is promised in a period that begins and ends then.
    #[must_use]
    pub fn worth(self, from: Time, end: Time) -> Span {
        let length = end.since(from);
        if length < self.reservation.period() {
            self.reservation.over(length)
        } else {
            self.reservation.slice()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::START + Span::from_ms(ms)
    }

    fn periods(phase: Option<u64>) -> Periods {
        let reservation = Reservation::new(Span::from_ms(4), Span::from_ms(10)).unwrap();
        Periods { reservation, phase: phase.map(Span::from_ms) }
    }

    #[test]
    fn without_a_phase_they_are_counted_from_the_promise() {
        let (free, clock) = (periods(None), GridClock::default());
        assert_eq!(
            (free.first_end(at(3), &clock), free.next_end(at(13), &clock)),
            (at(13), at(23))
        );
    }

    #[test]
    fn the_first_ends_on_the_grid_and_is_worth_its_part() {
        let clock = GridClock::default();
        for (phase, from, end, worth) in
            [(2, 7, 12, 2_000), (2, 2, 12, 4_000), (2, 1, 2, 400), (12, 7, 12, 2_000)]
        {
            let periods = periods(Some(phase));
            assert_eq!(periods.first_end(at(from), &clock), at(end), "{phase} {from}");
            assert_eq!(periods.worth(at(from), at(end)), Span::from_us(worth));
            assert_eq!(periods.next_end(at(end), &clock), at(end + 10));
        }
    }

    /// The clock is set: the next period is shorter and worth less, or longer and worth a slice.
    #[test]
    fn a_clock_that_is_set_moves_what_begins_after_it() {
        let on_grid = periods(Some(0));
        for (ahead, end, worth) in [
            (1, 39, 3_600),
            (5, 35, 2_000),
            (6, 44, 4_000),
            (9, 41, 4_000),
            (10, 40, 4_000),
            (3_600_001, 39, 3_600),
        ] {
            let mut clock = GridClock::default();
            clock.set(at(25), Span::from_ms(ahead));
            assert_eq!(on_grid.next_end(at(20), &clock), at(30), "as it began");
            assert_eq!(on_grid.next_end(at(30), &clock), at(end), "{ahead}");
            assert_eq!(on_grid.worth(at(30), at(end)), Span::from_us(worth), "{ahead}");
            assert_eq!(on_grid.next_end(at(end), &clock), at(end + 10), "{ahead}");
        }
    }

    #[test]
    fn what_begins_as_the_clock_is_set_goes_by_what_was_before() {
        let mut clock = GridClock::default();
        clock.set(at(20), Span::from_ms(3));
        clock.set(at(20), Span::from_ms(4));
        assert_eq!(periods(Some(0)).next_end(at(20), &clock), at(30));
        assert_eq!(periods(Some(0)).next_end(at(30), &clock), at(36));
    }

    #[test]
    fn a_phase_may_be_later_than_the_clock_shows() {
        let century = Span::from_secs(100 * 365 * 24 * 3_600);
        let periods = Periods { phase: Some(century + Span::from_ms(1)), ..periods(None) };
        assert_eq!(periods.first_end(at(0), &GridClock::default()), at(1));
    }
}
