//! Dates as text, and the current time.

use std::time::{SystemTime, UNIX_EPOCH};

use slackline_units::WallTime;

const DAY_NS: u64 = 86_400 * 1_000_000_000;

/// Returns the date that is `days` days after 1970-01-01.
pub(crate) fn date(days: u64) -> String {
    let mut text = WallTime::from_ns(days.saturating_mul(DAY_NS)).to_string();
    text.truncate(text.find('T').unwrap_or(text.len()));
    text
}

/// Returns the current time in nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_since_1970_are_converted_to_calendar_date() {
        let dates = [0, 58, 59, 11_016, 13_786].map(date);
        assert_eq!(dates, ["1970-01-01", "1970-02-28", "1970-03-01", "2000-02-29", "2007-09-30"]);
    }
}
