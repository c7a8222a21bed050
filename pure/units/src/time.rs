//! Points in time and durations, in nanoseconds.

use core::fmt;
use core::ops::{Add, AddAssign, Div, Mul, Rem, Sub, SubAssign};
use core::str::FromStr;

/// A point on the host's clock: nanoseconds since the host started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

/// A length of real time, never negative, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

const OVERFLOW: &str = "time overflowed 584 years";

impl Time {
    /// Start of the host, time zero.
    pub const START: Time = Time(0);
    /// Latest time, 584 years after the start of the host. It stands for "never".
    pub const NEVER: Time = Time(u64::MAX);

    /// Creates the time `ns` nanoseconds after the start of the host.
    #[must_use]
    #[inline]
    pub const fn from_ns(ns: u64) -> Time {
        Time(ns)
    }

    /// Returns the nanoseconds since the start of the host.
    #[must_use]
    #[inline]
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`. Zero if `earlier` is later.
    #[must_use]
    #[inline]
    pub const fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time `span` later. [`Time::NEVER`] on overflow.
    #[must_use]
    #[inline]
    pub const fn after(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl Span {
    /// Span of zero length.
    pub const ZERO: Span = Span(0);
    /// Longest span, 584 years.
    pub const MAX: Span = Span(u64::MAX);

    /// Creates a span of `ns` nanoseconds.
    #[must_use]
    #[inline]
    pub const fn from_ns(ns: u64) -> Span {
        Span(ns)
    }

    /// Creates a span of `us` microseconds.
    #[must_use]
    #[inline]
    pub const fn from_us(us: u64) -> Span {
        Span(us * 1_000)
    }

    /// Creates a span of `ms` milliseconds.
    #[must_use]
    #[inline]
    pub const fn from_ms(ms: u64) -> Span {
        Span(ms * 1_000_000)
    }

    /// Creates a span of `secs` seconds.
    #[must_use]
    #[inline]
    pub const fn from_secs(secs: u64) -> Span {
        Span(secs * 1_000_000_000)
    }

    /// Returns the length in nanoseconds.
    #[must_use]
    #[inline]
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// Returns true if the length is zero.
    #[must_use]
    #[inline]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Returns this span minus `used`. Zero if `used` is longer.
    #[must_use]
    #[inline]
    pub const fn left_after(self, used: Span) -> Span {
        Span(self.0.saturating_sub(used.0))
    }

    /// Returns the sum of two spans. `None` if it exceeds 584 years.
    #[must_use]
    #[inline]
    pub const fn checked_add(self, other: Span) -> Option<Span> {
        match self.0.checked_add(other.0) {
            Some(ns) => Some(Span(ns)),
            None => None,
        }
    }
}

impl Add<Span> for Time {
    type Output = Time;
    #[inline]
    fn add(self, span: Span) -> Time {
        Time(self.0.checked_add(span.0).expect(OVERFLOW))
    }
}

impl AddAssign<Span> for Time {
    #[inline]
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}

impl Sub<Span> for Time {
    type Output = Time;
    #[inline]
    fn sub(self, span: Span) -> Time {
        Time(self.0.checked_sub(span.0).expect("a time before the start"))
    }
}

impl Sub for Time {
    type Output = Span;
    #[inline]
    fn sub(self, earlier: Time) -> Span {
        Span(self.0.checked_sub(earlier.0).expect("a negative length of time"))
    }
}

impl Add for Span {
    type Output = Span;
    #[inline]
    fn add(self, other: Span) -> Span {
        Span(self.0.checked_add(other.0).expect(OVERFLOW))
    }
}

impl AddAssign for Span {
    #[inline]
    fn add_assign(&mut self, other: Span) {
        *self = *self + other;
    }
}

impl Sub for Span {
    type Output = Span;
    #[inline]
    fn sub(self, other: Span) -> Span {
        Span(self.0.checked_sub(other.0).expect("a negative length of time"))
    }
}

impl SubAssign for Span {
    #[inline]
    fn sub_assign(&mut self, other: Span) {
        *self = *self - other;
    }
}

impl Mul<u64> for Span {
    type Output = Span;
    #[inline]
    fn mul(self, times: u64) -> Span {
        Span(self.0.checked_mul(times).expect(OVERFLOW))
    }
}

impl Div for Span {
    type Output = u64;
    #[inline]
    fn div(self, other: Span) -> u64 {
        self.0 / other.0
    }
}

impl Div<u64> for Span {
    type Output = Span;
    #[inline]
    fn div(self, parts: u64) -> Span {
        Span(self.0 / parts)
    }
}

impl Rem for Span {
    type Output = Span;
    #[inline]
    fn rem(self, other: Span) -> Span {
        Span(self.0 % other.0)
    }
}

impl core::iter::Sum for Span {
    #[inline]
    fn sum<I: Iterator<Item = Span>>(spans: I) -> Span {
        spans.fold(Span::ZERO, |sum, span| sum + span)
    }
}

impl fmt::Display for Time {
    /// Writes milliseconds with three decimal places, as in `1.250ms`. The text is for display
    /// only.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{:03}ms", self.0 / 1_000_000, self.0 / 1_000 % 1_000)
    }
}

/// Units that the parser of spans accepts, longest first, with their length in nanoseconds. A
/// printed span is in seconds or a shorter unit.
const UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl fmt::Display for Span {
    /// Writes the span in seconds, or in a shorter unit if it is less than one second: `250us`,
    /// `10ms`, `1.5ms`, `90s`. The text reads back as the same span.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return out.pad("0s");
        }
        let seconds = |&&(name, _): &&(&str, u64)| !matches!(name, "d" | "h" | "min");
        let fits = |&&(_, unit): &&(&str, u64)| self.0 >= unit;
        let &(name, unit) =
            UNITS.iter().filter(seconds).find(fits).expect("a span has at least one nanosecond");
        let (whole, mut part) = (self.0 / unit, self.0 % unit);
        if part == 0 {
            return write!(out, "{whole}{name}");
        }
        let mut digits = unit.ilog10() as usize;
        while part % 10 == 0 {
            part /= 10;
            digits -= 1;
        }
        write!(out, "{whole}.{part:0digits$}{name}")
    }
}

/// Reason why a text is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseSpanError {
    /// The number has no unit.
    NoUnit,
    /// The text after the number is not a unit of time.
    UnknownUnit,
    /// The number is missing or malformed.
    NotANumber,
    /// The number is negative.
    Negative,
    /// The fraction is finer than a nanosecond.
    TooFine,
    /// The duration is longer than 584 years.
    TooLong,
}

impl fmt::Display for ParseSpanError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            ParseSpanError::NoUnit => "has no unit",
            ParseSpanError::UnknownUnit => "has an unknown unit of time",
            ParseSpanError::NotANumber => "is not a duration",
            ParseSpanError::Negative => "is negative",
            ParseSpanError::TooFine => "is finer than a nanosecond",
            ParseSpanError::TooLong => "is longer than 584 years",
        })
    }
}

impl core::error::Error for ParseSpanError {}

impl FromStr for Span {
    type Err = ParseSpanError;

    /// Reads a decimal number and a unit: `250us`, `10ms`, `1.5s`, `2min`, `1h`, `7d`.
    fn from_str(text: &str) -> Result<Span, ParseSpanError> {
        let text = text.trim();
        if text.starts_with('-') {
            return Err(ParseSpanError::Negative);
        }
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..end], text[end..].trim());
        if !number.starts_with(|c: char| c.is_ascii_digit()) || number.ends_with('.') {
            return Err(ParseSpanError::NotANumber);
        }
        if unit.is_empty() {
            return Err(ParseSpanError::NoUnit);
        }
        let &(_, unit) =
            UNITS.iter().find(|(name, _)| *name == unit).ok_or(ParseSpanError::UnknownUnit)?;
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        if part.contains('.') {
            return Err(ParseSpanError::NotANumber);
        }
        let whole: u64 = whole.parse().map_err(|_| ParseSpanError::TooLong)?;
        let whole = whole.checked_mul(unit).ok_or(ParseSpanError::TooLong)?;
        let part = fraction(part, unit)?;
        Ok(Span(whole.checked_add(part).ok_or(ParseSpanError::TooLong)?))
    }
}

/// Returns the decimal fraction `0.part` of `unit`, in nanoseconds and without rounding.
fn fraction(part: &str, unit: u64) -> Result<u64, ParseSpanError> {
    let part = part.trim_end_matches('0');
    if part.is_empty() {
        return Ok(0);
    }
    let digits = u32::try_from(part.len()).map_err(|_| ParseSpanError::TooFine)?;
    let scale = 10_u128.checked_pow(digits).ok_or(ParseSpanError::TooFine)?;
    let part: u128 = part.parse().map_err(|_| ParseSpanError::TooFine)?;
    let scaled = part.checked_mul(u128::from(unit)).ok_or(ParseSpanError::TooFine)?;
    if scaled % scale != 0 {
        return Err(ParseSpanError::TooFine);
    }
    u64::try_from(scaled / scale).map_err(|_| ParseSpanError::TooLong)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn time_spans_are_unchanged_if_printed_and_parsed() {
        for text in ["1ns", "250us", "10ms", "1.5ms", "2s", "90s", "1.000000001s", "0s", "999ns"] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.to_string(), text);
        }
        assert_eq!("2min".parse(), Ok(Span::from_secs(120)));
        assert_eq!("1h".parse(), Ok(Span::from_secs(3600)));
        assert_eq!("0.10 ms".parse(), Ok(Span::from_us(100)));
    }

    #[test]
    fn invalid_time_span_is_refused_with_the_reason() {
        let cases = [
            ("4", ParseSpanError::NoUnit),
            ("4 parsecs", ParseSpanError::UnknownUnit),
            ("ms", ParseSpanError::NotANumber),
            ("", ParseSpanError::NotANumber),
            ("1.2.3ms", ParseSpanError::NotANumber),
            ("1.ms", ParseSpanError::NotANumber),
            ("-4ms", ParseSpanError::Negative),
            ("0.5ns", ParseSpanError::TooFine),
            ("99999999999999999999ns", ParseSpanError::TooLong),
            ("18446744073709551615s", ParseSpanError::TooLong),
        ];
        for (text, why) in cases {
            assert_eq!(text.parse::<Span>(), Err(why), "{text}");
        }
    }

    #[test]
    #[should_panic(expected = "a negative length of time")]
    fn subtracting_a_later_time_from_an_earlier_time_panics() {
        let _ = Time::START - Time::from_ns(1);
    }

    #[test]
    #[should_panic(expected = "time overflowed")]
    fn adding_a_span_beyond_the_largest_time_panics() {
        let _ = Time::NEVER + Span::from_ns(1);
    }
}
