//! Division of CPU time at a point in time.

use slackline_units::{Span, Time};

/// CPU time used between two points in time. The CPU time is assumed to be spread evenly between
/// these points.
///
/// On a simulated host all time of an interval is used, so a division is exact. If only the use
/// between two measurements is known, a division is an estimate. The parts always add up to the
/// whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) from: Time,
    pub(crate) to: Time,
    pub(crate) used: Span,
}

impl Stretch {
    /// Returns the parts of the interval before and after `at`. The later part gets the rounding
    /// remainder.
    pub(crate) fn split(self, at: Time) -> (Stretch, Stretch) {
        let at = at.max(self.from).min(self.to);
        let (part, length) = (at - self.from, self.to - self.from);
        // An interval that is fully used, as on a simulated host, needs no rounding.
        let used = if self.used == length { part } else { proportion(self.used, part, length) };
        let before = Stretch { from: self.from, to: at, used };
        (before, Stretch { from: at, to: self.to, used: self.used - used })
    }

    /// Returns the CPU time used in the interval at or after `at`.
    pub(crate) fn used_from(self, at: Time) -> Span {
        if self.from >= at { self.used } else { self.split(at).1.used }
    }

    /// Returns the earliest time, in whole nanoseconds, by which the CPU time `amount` had
    /// certainly been used.
    pub(crate) fn when(self, amount: Span) -> Time {
        if amount >= self.used {
            return self.to;
        }
        let length = u128::from((self.to - self.from).ns());
        let after = (u128::from(amount.ns()) * length).div_ceil(u128::from(self.used.ns()));
        self.from
            + Span::from_ns(u64::try_from(after).expect("the result lies within the interval"))
    }
}

/// Returns `whole` × `part` / `of`, rounded down. Zero if `of` is zero.
pub(crate) fn proportion(whole: Span, part: Span, of: Span) -> Span {
    if of.is_zero() {
        return Span::ZERO;
    }
    let ns = u128::from(whole.ns()) * u128::from(part.ns()) / u128::from(of.ns());
    Span::from_ns(u64::try_from(ns).expect("a part is not more than the whole"))
}

/// Returns `part` in millionths of `of`, rounded to the nearest. Zero if `of` is zero.
pub(crate) fn ppm(part: Span, of: Span) -> u64 {
    if of.is_zero() {
        return 0;
    }
    let (part, of) = (u128::from(part.ns()), u128::from(of.ns()));
    u64::try_from((part * 1_000_000 + of / 2) / of).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(from: u64, to: u64, used: u64) -> Stretch {
        Stretch { from: Time::from_ns(from), to: Time::from_ns(to), used: Span::from_ns(used) }
    }

    #[test]
    fn run_interval_split_divides_cpu_time_in_proportion_to_length() {
        let (before, after) = stretch(10, 20, 7).split(Time::from_ns(13));
        assert_eq!((before, after), (stretch(10, 13, 2), stretch(13, 20, 5)));
        let whole = stretch(10, 20, 7);
        assert_eq!(whole.split(Time::from_ns(5)), (stretch(10, 10, 0), whole));
        assert_eq!(whole.split(Time::from_ns(25)), (whole, stretch(20, 20, 0)));
    }

    #[test]
    fn instant_of_given_cpu_time_is_interpolated_within_run_interval() {
        assert_eq!(stretch(10, 20, 10).when(Span::from_ns(3)), Time::from_ns(13));
        assert_eq!(stretch(10, 20, 4).when(Span::from_ns(1)), Time::from_ns(13), "12.5");
        assert_eq!(stretch(10, 20, 4).when(Span::from_ns(4)), Time::from_ns(20));
    }
}
