//! Wall-clock times, printed as dates and times in UTC.

use core::fmt;
use core::str::FromStr;

use crate::time::{Span, Time};

/// A wall-clock time, in whole seconds since the start of 1970 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(u64);

const DAY: u64 = 86_400;
const SECOND_NS: u64 = 1_000_000_000;

/// Number of days from 1 March of year 0 to 1 January 1970.
const DAYS_TO_1970: u64 = 719_468;

/// Number of days in 400 years.
const ERA: u64 = 146_097;

/// First year that is not accepted: times in nanoseconds must fit into 63 bits.
const TOO_LATE: u64 = 2262;

/// Reason why a text is not a wall-clock time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseWallTimeError {
    /// The text is neither a date nor a date with a time.
    Form,
    /// The text names a day or a time of day that does not exist.
    NoSuchTime,
    /// The year is before 1970 or after 2261.
    Year,
}

impl fmt::Display for ParseWallTimeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseWallTimeError::Form => {
                out.write_str("is not a date such as `2026-12-01` or `2026-12-01T18:00`")
            }
            ParseWallTimeError::NoSuchTime => out.write_str("does not exist in the calendar"),
            ParseWallTimeError::Year => write!(out, "is not between 1970 and {}", TOO_LATE - 1),
        }
    }
}

impl core::error::Error for ParseWallTimeError {}

impl WallTime {
    /// Returns the wall-clock time `ns` nanoseconds after the start of 1970, rounded down to whole
    /// seconds.
    #[must_use]
    pub const fn from_ns(ns: u64) -> WallTime {
        WallTime(ns / SECOND_NS)
    }

    /// Returns the nanoseconds since the start of 1970.
    #[must_use]
    pub const fn ns(self) -> u64 {
        self.0.saturating_mul(SECOND_NS)
    }

    /// Returns the wall-clock time when another clock shows `now`. `ahead` is the amount by which
    /// the wall clock is ahead of the other clock.
    #[must_use]
    pub const fn at(now: Time, ahead: Span) -> WallTime {
        WallTime::from_ns(now.after(ahead).ns())
    }

    /// Converts this wall-clock time to a time of another clock. `ahead` is the amount by which the
    /// wall clock is ahead of the other clock. Returns time zero of the other clock if the result
    /// would be earlier.
    #[must_use]
    pub const fn on(self, ahead: Span) -> Time {
        Time::from_ns(self.ns().saturating_sub(ahead.ns()))
    }

    /// Returns year, month and day.
    const fn date(self) -> (u64, u64, u64) {
        // Years are counted from 1 March, so that a leap day is the last day of its year.
        let days = self.0 / DAY + DAYS_TO_1970;
        let (era, day) = (days / ERA, days % ERA);
        let year = (day - day / 1_460 + day / 36_524 - day / (ERA - 1)) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        (400 * era + year + (month <= 2) as u64, month, day)
    }

    /// Returns the start of a day. `None` if the date does not exist.
    fn midnight(year: u64, month: u64, day: u64) -> Option<WallTime> {
        if !(1970..TOO_LATE).contains(&year) || !(1..=12).contains(&month) || day == 0 {
            return None;
        }
        let years = year - u64::from(month <= 2);
        let (era, of_era) = (years / 400, years % 400);
        let months = if month > 2 { month - 3 } else { month + 9 };
        let of_year = (153 * months + 2) / 5 + day - 1;
        let days = era * ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
        let at = WallTime(days.checked_sub(DAYS_TO_1970)? * DAY);
        (at.date() == (year, month, day)).then_some(at)
    }
}

impl fmt::Display for WallTime {
    /// Writes date and time in UTC to the second, as in `2026-12-01T18:00:00Z`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((year, month, day), rest) = (self.date(), self.0 % DAY);
        let (hours, minutes, seconds) = (rest / 3_600, rest / 60 % 60, rest % 60);
        write!(out, "{year}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}Z")
    }
}

impl FromStr for WallTime {
    type Err = ParseWallTimeError;

    /// Reads a date, `2026-12-01`, or a date and a time: `2026-12-01T18:00`, `2026-12-01 18:00:30`,
    /// `2026-12-01T18:00Z` or `2026-12-01T18:00+01:00`. Without an offset the time is in UTC.
    fn from_str(text: &str) -> Result<WallTime, ParseWallTimeError> {
        use ParseWallTimeError::{Form, NoSuchTime, Year};
        let (date, rest) = text.split_at_checked(10).ok_or(Form)?;
        let [year, month, day] = numbers(date, '-', [4, 2, 2]).ok_or(Form)?;
        if !(1970..TOO_LATE).contains(&year) {
            return Err(Year);
        }
        let midnight = WallTime::midnight(year, month, day).ok_or(NoSuchTime)?;
        if rest.is_empty() {
            return Ok(midnight);
        }
        let rest = rest.strip_prefix(['T', ' ']).ok_or(Form)?;
        let end = rest.find(['Z', '+', '-']).unwrap_or(rest.len());
        let (time, offset) = rest.split_at(end);
        let [hours, minutes, seconds] = match time.len() {
            5 => numbers(time, ':', [2, 2]).map(|[hours, minutes]| [hours, minutes, 0]),
            _ => numbers(time, ':', [2, 2, 2]),
        }
        .ok_or(Form)?;
        if hours > 23 || minutes > 59 || seconds > 59 {
            return Err(NoSuchTime);
        }
        let at = midnight.0 + hours * 3_600 + minutes * 60 + seconds;
        let sign = match offset {
            "" | "Z" => return Ok(WallTime(at)),
            offset => offset.chars().next().ok_or(Form)?,
        };
        let [hours, minutes] = numbers(&offset[1..], ':', [2, 2]).ok_or(Form)?;
        if hours > 23 || minutes > 59 {
            return Err(NoSuchTime);
        }
        let offset = hours * 3_600 + minutes * 60;
        match sign {
            '+' => at.checked_sub(offset).map(WallTime).ok_or(Year),
            '-' => Ok(WallTime(at + offset)),
            _ => Err(Form),
        }
    }
}

/// Parses numbers that are separated by `between`. Each must have as many digits as `lengths` says.
fn numbers<const N: usize>(text: &str, between: char, lengths: [usize; N]) -> Option<[u64; N]> {
    let mut found = [0; N];
    let mut parts = text.split(between);
    for (number, length) in found.iter_mut().zip(lengths) {
        let part = parts.next()?;
        let is_number = part.len() == length && part.bytes().all(|byte| byte.is_ascii_digit());
        *number = part.parse().ok().filter(|_| is_number)?;
    }
    parts.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn read(text: &str) -> Result<WallTime, ParseWallTimeError> {
        text.parse()
    }

    #[test]
    fn wall_clock_times_are_unchanged_if_parsed_and_printed() {
        for text in ["1970-01-01T00:00:00Z", "2000-02-29T23:59:59Z", "2026-12-01T18:00:07Z"] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        assert_eq!(read("2007-09-30").unwrap().ns(), 1_191_110_400 * SECOND_NS);
        assert_eq!(
            WallTime::from_ns(1_191_153_659_999_999_999).to_string(),
            "2007-09-30T12:00:59Z"
        );
    }

    #[test]
    fn every_date_until_2262_is_unchanged_if_printed_and_parsed() {
        let mut days = 0;
        while days < 106_650 {
            let at = WallTime(days * DAY);
            assert_eq!(read(&at.to_string()), Ok(at));
            days += 1;
        }
    }

    #[test]
    fn wall_clock_time_without_an_offset_is_parsed_as_utc() {
        let at = read("2026-12-01T18:00").unwrap();
        let same = [
            "2026-12-01 18:00",
            "2026-12-01T18:00:00",
            "2026-12-01T18:00Z",
            "2026-12-01T19:00+01:00",
            "2026-12-01T12:30:00-05:30",
        ];
        for text in same {
            assert_eq!(read(text), Ok(at), "{text}");
        }
    }

    #[test]
    fn invalid_wall_clock_time_is_refused_with_the_reason() {
        use ParseWallTimeError::{Form, NoSuchTime, Year};
        for (text, why) in [
            ("", Form),
            ("7d", Form),
            ("2026-12-1", Form),
            ("2026-12-01T", Form),
            ("2026-12-01T18", Form),
            ("2026-12-01x18:00", Form),
            ("2026-12-01T18:00+1", Form),
            ("2026-12-01T+8:00", Form),
            ("2026-02-29", NoSuchTime),
            ("2026-13-01", NoSuchTime),
            ("2026-12-00", NoSuchTime),
            ("2026-12-01T24:00", NoSuchTime),
            ("2026-12-01T18:00+24:00", NoSuchTime),
            ("2026-12-01T18:00-05:60", NoSuchTime),
            ("1969-12-31", Year),
            ("2262-01-01", Year),
            ("1970-01-01T00:00+01:00", Year),
            ("\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}x", Form),
        ] {
            assert_eq!(read(text), Err(why), "{text}");
        }
    }

    #[test]
    fn wall_clock_time_survives_conversion_to_host_time_and_back() {
        let (now, ahead) = (Time::from_ns(5 * SECOND_NS), Span::from_secs(1_000));
        let at = WallTime::at(now, ahead);
        assert_eq!((at, at.on(ahead)), (WallTime(1_005), now));
        assert_eq!(WallTime(3).on(ahead), Time::START);
    }
}
