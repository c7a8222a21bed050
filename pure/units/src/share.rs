//! Amounts of CPU: a share of CPUs, and a slice in every period.

use core::fmt;
use core::str::FromStr;

use crate::Span;

/// An amount of CPU in millionths of one CPU. The amount may exceed one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuShare(u32);

impl CpuShare {
    /// Share of zero, which is no CPU time.
    pub const NONE: CpuShare = CpuShare(0);
    /// Share of one whole CPU.
    pub const ONE: CpuShare = CpuShare(1_000_000);

    /// Creates a share of `ppm` millionths of one CPU.
    #[must_use]
    pub const fn from_ppm(ppm: u32) -> CpuShare {
        CpuShare(ppm)
    }

    /// Returns the share in millionths of one CPU.
    #[must_use]
    pub const fn ppm(self) -> u32 {
        self.0
    }

    /// Returns this share minus `other`. Zero if `other` is larger.
    #[must_use]
    pub const fn less(self, other: CpuShare) -> CpuShare {
        CpuShare(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for CpuShare {
    /// Writes the share with its unit: `0.25cpu`, `2cpu`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, mut part) = (self.0 / 1_000_000, self.0 % 1_000_000);
        if part == 0 {
            return write!(out, "{whole}cpu");
        }
        let mut digits = 6;
        while part % 10 == 0 {
            part /= 10;
            digits -= 1;
        }
        write!(out, "{whole}.{part:0digits$}cpu")
    }
}

/// Reason why a text is not an amount of CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseShareError {
    /// The number has no unit.
    NoUnit,
    /// The number before the unit is missing or malformed, or it is finer than a millionth of a
    /// CPU.
    NotANumber,
    /// The amount exceeds 4,294 CPUs.
    TooMuch,
}

impl fmt::Display for ParseShareError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            ParseShareError::NoUnit => "has no unit",
            ParseShareError::NotANumber => "is not an amount of CPU in steps of 0.000001cpu",
            ParseShareError::TooMuch => "is more than 4294 CPUs",
        })
    }
}

impl core::error::Error for ParseShareError {}

impl FromStr for CpuShare {
    type Err = ParseShareError;

    /// Reads an amount of CPU such as `0.25cpu`, or `25%` (of one CPU).
    fn from_str(text: &str) -> Result<CpuShare, ParseShareError> {
        let text = text.trim();
        let (number, places) = if let Some(number) = text.strip_suffix("cpu") {
            (number, 6)
        } else if let Some(number) = text.strip_suffix('%') {
            (number, 4)
        } else {
            return Err(ParseShareError::NoUnit);
        };
        let (whole, part) = number.trim().split_once('.').unwrap_or((number.trim(), ""));
        if whole.is_empty() || part.len() > places || !part.bytes().all(|b| b.is_ascii_digit()) {
            return Err(ParseShareError::NotANumber);
        }
        let scale = |digits: usize| 10_u64.pow(u32::try_from(digits).expect("at most six"));
        let whole: u64 = whole.parse().map_err(|_| ParseShareError::NotANumber)?;
        let part: u64 = if part.is_empty() {
            0
        } else {
            part.parse::<u64>().expect("checked digits") * scale(places - part.len())
        };
        let ppm = whole.checked_mul(scale(places)).and_then(|whole| whole.checked_add(part));
        let ppm = ppm.and_then(|ppm| u32::try_from(ppm).ok()).ok_or(ParseShareError::TooMuch)?;
        Ok(CpuShare(ppm))
    }
}

/// Reservation of `slice` of CPU time in every `period`, as in periodic real-time scheduling.
///
/// Always 0 < slice ≤ period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reservation {
    slice: Span,
    period: Span,
}

/// Reason why a slice and a period do not make a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationError {
    /// The slice is zero.
    NoSlice,
    /// The slice is longer than the period.
    SliceOverPeriod {
        /// Slice that was requested.
        slice: Span,
        /// Period that was requested, which is shorter than the slice.
        period: Span,
    },
    /// The latency hint, which is the length of the first period after a long block, exceeds the
    /// period.
    LatencyOverPeriod {
        /// Latency hint that was requested.
        latency: Span,
        /// Period that was requested, which is shorter than the latency hint.
        period: Span,
    },
}

impl fmt::Display for ReservationError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReservationError::NoSlice => out.write_str("the slice is zero"),
            ReservationError::SliceOverPeriod { slice, period } => {
                write!(out, "a slice of {slice} does not fit into a period of {period}")
            }
            ReservationError::LatencyOverPeriod { latency, period } => {
                write!(out, "a latency hint of {latency} is longer than the period of {period}")
            }
        }
    }
}

impl core::error::Error for ReservationError {}

impl Reservation {
    /// Creates a reservation of `slice` in every `period`.
    ///
    /// # Errors
    /// If the slice is zero or longer than the period.
    pub fn new(slice: Span, period: Span) -> Result<Reservation, ReservationError> {
        if slice.is_zero() {
            return Err(ReservationError::NoSlice);
        }
        if slice > period {
            return Err(ReservationError::SliceOverPeriod { slice, period });
        }
        Ok(Reservation { slice, period })
    }

    /// Returns the CPU time that is reserved in each period.
    #[must_use]
    pub const fn slice(self) -> Span {
        self.slice
    }

    /// Returns the length of a period.
    #[must_use]
    pub const fn period(self) -> Span {
        self.period
    }

    /// Returns `slice × time / period`, rounded down.
    #[must_use]
    pub fn over(self, time: Span) -> Span {
        let ns = u128::from(self.slice.ns()) * u128::from(time.ns()) / u128::from(self.period.ns());
        Span::from_ns(u64::try_from(ns).expect("a slice is at most its period"))
    }

    /// Returns `slice × time / period`, rounded up.
    #[must_use]
    pub fn over_rounded_up(self, time: Span) -> Span {
        let ns = u128::from(self.slice.ns()) * u128::from(time.ns());
        let ns = ns.div_ceil(u128::from(self.period.ns()));
        Span::from_ns(u64::try_from(ns).expect("a slice is at most its period"))
    }

    /// Returns the time in which this reservation grants `used` of CPU time:
    /// `used × period / slice`, rounded up. At most [`Span::MAX`].
    #[must_use]
    pub fn time_for(self, used: Span) -> Span {
        let ns = u128::from(used.ns()) * u128::from(self.period.ns());
        let ns = ns.div_ceil(u128::from(self.slice.ns()));
        Span::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Returns true if slice/period of `self` is larger than slice/period of `other`. Compares
    /// without rounding.
    #[must_use]
    pub fn is_more_than(self, other: Reservation) -> bool {
        let of = |slice: Span, period: Span| u128::from(slice.ns()) * u128::from(period.ns());
        of(self.slice, other.period) > of(other.slice, self.period)
    }

    /// Returns slice/period as a share of one CPU, rounded to the nearest millionth, for display.
    /// Exact sums must add slice/period as fractions.
    #[must_use]
    pub fn share(self) -> CpuShare {
        let (slice, period) = (u128::from(self.slice.ns()), u128::from(self.period.ns()));
        let ppm = (slice * 1_000_000 + period / 2) / period;
        CpuShare(u32::try_from(ppm).expect("a slice is at most its period"))
    }
}

impl fmt::Display for Reservation {
    /// Writes slice and period, as in `4ms/10ms`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.slice, self.period)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn reservation_with_zero_slice_or_slice_above_period_is_refused() {
        let (one, ten) = (Span::from_ms(1), Span::from_ms(10));
        assert_eq!(Reservation::new(one, ten).unwrap().to_string(), "1ms/10ms");
        assert_eq!(Reservation::new(one, ten).unwrap().share(), CpuShare::from_ppm(100_000));
        assert_eq!(Reservation::new(Span::ZERO, ten), Err(ReservationError::NoSlice));
        let error = Reservation::new(ten, one).unwrap_err();
        assert_eq!(error.to_string(), "a slice of 10ms does not fit into a period of 1ms");
    }

    #[test]
    fn cpu_time_accrued_by_a_reservation_is_exact_without_overflow() {
        let third = Reservation::new(Span::from_ns(1), Span::from_ns(3)).unwrap();
        assert_eq!(third.over(Span::from_ns(8)), Span::from_ns(2));
        assert_eq!(third.over_rounded_up(Span::from_ns(7)), Span::from_ns(3));
        assert_eq!(third.time_for(Span::from_ns(2)), Span::from_ns(6));
        let two_fifths = Reservation::new(Span::from_ns(2), Span::from_ns(5)).unwrap();
        assert_eq!(two_fifths.time_for(Span::from_ns(3)), Span::from_ns(8));
        assert!(two_fifths.is_more_than(third) && !third.is_more_than(third));
        let whole = Reservation::new(Span::MAX, Span::MAX).unwrap();
        assert_eq!(
            (whole.over(Span::MAX), whole.over_rounded_up(Span::MAX)),
            (Span::MAX, Span::MAX)
        );
        let least = Reservation::new(Span::from_ns(1), Span::MAX).unwrap();
        assert_eq!(least.time_for(Span::from_ns(2)), Span::MAX);
        assert!(whole.is_more_than(least) && !least.is_more_than(whole));
    }

    #[test]
    fn cpu_shares_are_printed_without_trailing_zeros() {
        assert_eq!(CpuShare::from_ppm(250_000).to_string(), "0.25cpu");
        assert_eq!(CpuShare::from_ppm(2_000_000).to_string(), "2cpu");
        assert_eq!(CpuShare::from_ppm(1).to_string(), "0.000001cpu");
    }

    #[test]
    fn cpu_share_requires_cpus_or_percent_as_unit() {
        assert_eq!("0.25cpu".parse(), Ok(CpuShare::from_ppm(250_000)));
        assert_eq!("2cpu".parse(), Ok(CpuShare::from_ppm(2_000_000)));
        assert_eq!("12.5%".parse(), Ok(CpuShare::from_ppm(125_000)));
        assert_eq!("0.25".parse::<CpuShare>(), Err(ParseShareError::NoUnit));
        assert_eq!("-1cpu".parse::<CpuShare>(), Err(ParseShareError::NotANumber));
        assert_eq!("0.0000001cpu".parse::<CpuShare>(), Err(ParseShareError::NotANumber));
        assert_eq!("5000cpu".parse::<CpuShare>(), Err(ParseShareError::TooMuch));
    }
}
