//! Begin and end of the periods of a reservation, and the budget of each period.

use crate::{Reservation, Span, Time};

/// Slice in each period, and the times at which periods begin. Without a phase, periods follow one
/// another from the time of the reservation. With a phase they lie on a *grid* of fixed times, so
/// that the periods of several vCPUs, even on several hosts, begin together.
///
/// On a grid the first period ends at the next grid point. Its budget is prorated: slice × length /
/// period, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// Reservation of a slice in each period.
    pub reservation: Reservation,
    /// Phase of the grid. The grid points are all times at which [its clock](GridClock) shows the
    /// phase plus a multiple of the period. `None` if there is no grid.
    pub phase: Option<Span>,
}

/// Clock to which phases refer, as an offset to the host's time.
///
/// The clock can be set at any time, for example when its offset is measured more exactly. This
/// does not affect current periods. The next period ends at the point of the new grid that is
/// nearest to one period after its start, so it is 0.5 to 1.5 periods long. Its budget is prorated
/// if it is shorter than a period, and a full slice if it is longer. So setting the clock never
/// yields extra CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GridClock {
    /// Time by which the clock is ahead of the host's time. Applies to periods that begin after
    /// `since`, the time at which the clock was last set.
    ahead: Span,
    /// Time by which the clock is ahead of the host's time. Applies to periods that begin at
    /// `since` or before.
    before: Span,
    since: Time,
}

impl GridClock {
    /// Sets the time by which the clock is ahead of the host's time, from `now` on.
    pub fn set(&mut self, now: Time, ahead: Span) {
        if now > self.since {
            (self.before, self.since) = (self.ahead, now);
        }
        self.ahead = ahead;
    }

    /// Returns the time from the last grid point at or before `at` until `at`.
    fn since_point(&self, at: Time, period: Span, phase: Span) -> Span {
        // A new offset applies only to periods that begin after the instant of the change. So the
        // order of events within that instant does not matter.
        let ahead = if at > self.since { self.ahead } else { self.before };
        let shown = i128::from(at.ns()) + i128::from(ahead.ns());
        let since = (shown - i128::from(phase.ns())).rem_euclid(i128::from(period.ns()));
        Span::from_ns(u64::try_from(since).expect("the remainder is less than a period"))
    }
}

impl Periods {
    /// Returns the end of the first period of a reservation that is made at `from`.
    #[must_use]
    pub fn first_end(self, from: Time, clock: &GridClock) -> Time {
        let period = self.reservation.period();
        let Some(phase) = self.phase else { return from.after(period) };
        from.after(period - clock.since_point(from, period, phase))
    }

    /// Returns the end of a period that begins at `from`, where the previous period ends.
    #[must_use]
    pub fn next_end(self, from: Time, clock: &GridClock) -> Time {
        let period = self.reservation.period();
        let Some(phase) = self.phase else { return from.after(period) };
        let late = clock.since_point(from, period, phase);
        let early = period - late;
        if late <= early { from.after(early) } else { from.after(period).after(early) }
    }

    /// Returns the budget of a period that lasts from `from` to `end`.
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
    fn periods_without_a_phase_start_at_the_time_of_reservation() {
        let (free, clock) = (periods(None), GridClock::default());
        assert_eq!(
            (free.first_end(at(3), &clock), free.next_end(at(13), &clock)),
            (at(13), at(23))
        );
    }

    #[test]
    fn first_period_of_a_phased_reservation_has_prorated_budget() {
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

    /// After the clock is set, the next period is shorter with a prorated budget, or longer with a
    /// full slice.
    #[test]
    fn setting_the_clock_affects_only_periods_that_begin_later() {
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
    fn period_starting_when_clock_is_set_uses_the_previous_offset() {
        let mut clock = GridClock::default();
        clock.set(at(20), Span::from_ms(3));
        clock.set(at(20), Span::from_ms(4));
        assert_eq!(periods(Some(0)).next_end(at(20), &clock), at(30));
        assert_eq!(periods(Some(0)).next_end(at(30), &clock), at(36));
    }

    #[test]
    fn phase_of_a_reservation_may_exceed_the_current_clock_time() {
        let century = Span::from_secs(100 * 365 * 24 * 3_600);
        let periods = Periods { phase: Some(century + Span::from_ms(1)), ..periods(None) };
        assert_eq!(periods.first_end(at(0), &GridClock::default()), at(1));
    }
}
