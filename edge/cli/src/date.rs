//! Conversion between days and dates.

/// Returns the date that is `days` days after 1970-01-01.
pub(crate) fn date(mut days: u64) -> String {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= months[month] {
        days -= months[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, days + 1)
}

/// Returns the start of a day such as `2007-09-30`, in nanoseconds since 1970. `None` if there is
/// no such day.
pub(crate) fn midnight(text: &str) -> Option<u64> {
    // Dates as text have the same order as days, so the day is found by binary search.
    let (mut low, mut high) = (0, 200_000);
    while low < high {
        let middle = u64::midpoint(low, high);
        if date(middle).as_str() < text { low = middle + 1 } else { high = middle }
    }
    (date(low) == text).then(|| low * 86_400 * 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_converts_to_its_midnight_and_invalid_dates_are_refused() {
        assert_eq!(midnight("1970-01-02"), Some(86_400_000_000_000));
        let day = midnight("2026-11-26").expect("the date is valid") / 86_400_000_000_000;
        assert_eq!(date(day), "2026-11-26");
        for wrong in ["2026-02-30", "2026-11", "7d", "", "x"] {
            assert_eq!(midnight(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn day_numbers_since_1970_convert_to_calendar_dates() {
        let dates = [0, 58, 59, 11_016, 13_786].map(date);
        assert_eq!(dates, ["1970-01-01", "1970-02-28", "1970-03-01", "2000-02-29", "2007-09-30"]);
    }
}
