//! Formatting of numbers, rounded to the nearest. All values of a column have the same unit.

use slackline_units::Span;

/// A unit of time, with a fixed number of decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) name: &'static str,
    /// Value of the last digit that is shown, in nanoseconds.
    last_digit: u64,
    decimals: usize,
}

/// Units of time, each with an exclusive upper limit, in ascending order of the limits. A column
/// uses the first unit whose limit is above the longest time in the column.
const UNITS: [(Span, Unit); 4] = [
    (Span::from_us(10), Unit { name: "us", last_digit: 1, decimals: 3 }),
    (Span::from_ms(10), Unit { name: "us", last_digit: 100, decimals: 1 }),
    (Span::from_secs(100), Unit { name: "ms", last_digit: 1_000, decimals: 3 }),
    (Span::MAX, Unit { name: "s", last_digit: 1_000_000, decimals: 3 }),
];

impl Unit {
    /// Unit of milliseconds with three decimals.
    const MILLISECONDS: Unit = UNITS[2].1;

    /// Unit of seconds with three decimals.
    pub(crate) const SECONDS: Unit = UNITS[3].1;

    /// Returns the unit for a column whose longest time is `longest`.
    pub(crate) fn of(longest: Span) -> Unit {
        let fitting = UNITS.iter().find(|(limit, _)| longest < *limit);
        fitting.map_or(Unit::SECONDS, |(_, unit)| *unit)
    }

    /// Formats a time in this unit, without the unit's name.
    pub(crate) fn write(self, span: Span) -> String {
        decimal(rounded(span.ns(), self.last_digit), self.decimals)
    }
}

/// Formats millionths in percent, with two decimals.
#[must_use]
pub fn percent(ppm: u64) -> String {
    decimal(rounded(ppm, 100), 2)
}

/// Formats a time in milliseconds, with three decimals and without the unit's name.
#[must_use]
pub fn milliseconds(span: Span) -> String {
    Unit::MILLISECONDS.write(span)
}

/// Formats `part` / `of` in percent, with two decimals.
#[must_use]
pub fn part_percent(part: Span, of: Span) -> String {
    let (part, of) = (u128::from(part.ns()), u128::from(of.ns()));
    let ppm = (part * 1_000_000 + of / 2).checked_div(of).unwrap_or(0);
    percent(u64::try_from(ppm).unwrap_or(u64::MAX))
}

/// Formats a small number of millionths in percent, with three decimals.
pub(crate) fn fine_percent(ppm: u64) -> String {
    decimal(rounded(ppm, 10), 3)
}

/// Formats millionths in percent, with three decimals. The result has a sign unless it is zero.
pub(crate) fn signed_percent(ppm: i64) -> String {
    let size = fine_percent(ppm.unsigned_abs());
    let is_zero = rounded(ppm.unsigned_abs(), 10) == 0;
    let sign = if is_zero {
        ""
    } else if ppm < 0 {
        "-"
    } else {
        "+"
    };
    format!("{sign}{size}")
}

/// Formats thousandths as a number with one decimal.
pub(crate) fn thousandths(milli: u64) -> String {
    decimal(rounded(milli, 100), 1)
}

/// Formats hundredths as a number with two decimals.
pub(crate) fn hundredths(number: u128) -> String {
    decimal(u64::try_from(number).unwrap_or(u64::MAX), 2)
}

/// Formats an amount of data per time in megabits per second, with one decimal.
pub(crate) fn megabits(bytes: u64, time: Span) -> String {
    let time = u128::from(time.ns().max(1));
    let tenths = (u128::from(bytes) * 80_000 + time / 2) / time;
    decimal(u64::try_from(tenths).unwrap_or(u64::MAX), 1)
}

/// Formats a number with a comma after each group of three digits.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn rounded(value: u64, to: u64) -> u64 {
    value / to + u64::from(value % to * 2 >= to)
}

/// Formats a number with a decimal point before its last `decimals` digits.
fn decimal(digits: u64, decimals: usize) -> String {
    let text = format!("{digits:0width$}", width = decimals + 1);
    let (whole, part) = text.split_at(text.len() - decimals);
    format!("{whole}.{part}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_tables_are_rounded_to_the_nearest_last_digit() {
        assert_eq!(percent(199_950), "20.00");
        assert_eq!(percent(199_949), "19.99");
        assert_eq!(milliseconds(Span::from_ns(2_000_500)), "2.001");
        assert_eq!(milliseconds(Span::from_ns(2_000_499)), "2.000");
        assert_eq!(signed_percent(-15), "-0.002");
        assert_eq!(signed_percent(-4), "0.000");
        assert_eq!(signed_percent(12_345), "+1.235");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(999), "999");
    }

    #[test]
    fn table_column_uses_the_unit_of_its_longest_time() {
        let write = |longest, ns| {
            let unit = Unit::of(longest);
            format!("{} {}", unit.write(Span::from_ns(ns)), unit.name)
        };
        assert_eq!(write(Span::from_us(9), 850), "0.850 us");
        assert_eq!(write(Span::from_us(10), 850), "0.9 us");
        assert_eq!(write(Span::from_ms(10), 850), "0.001 ms");
        assert_eq!(write(Span::from_secs(100), 850_000_000), "0.850 s");
    }
}
