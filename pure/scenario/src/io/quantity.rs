//! Reading of amounts of data and of rates, as users write them.

use slackline_units::Span;
use toml::de::DeValue;

use crate::error::ErrorKind;
use crate::table::{Item, Mistake, decimal};

/// Units of data with their sizes in bytes. If the name of one unit is the end of another unit's
/// name, the longer name comes first.
const BYTES: [(&str, u64); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// Units of rates, in bits per second.
const RATES: [(&str, u64); 6] = [
    ("kbit/s", 1_000),
    ("Mbit/s", 1_000_000),
    ("Gbit/s", 1_000_000_000),
    ("kB/s", 8_000),
    ("MB/s", 8_000_000),
    ("GB/s", 8_000_000_000),
];

/// Largest accepted amount of data in bytes, and largest accepted rate in bits per second. Both are
/// a thousand times as large as on real hosts.
const MOST: u64 = 1_000_000_000_000_000;

/// Reads an amount of data in bytes, which must not be zero.
pub(crate) fn bytes(item: &Item<'_>) -> Result<u64, Mistake> {
    scaled(item, &BYTES, "an amount of data, as in \"10KiB\"")
}

/// Reads a number of events per second, which may be a decimal fraction. Returns the mean time
/// between two events.
pub(crate) fn mean_between(item: &Item<'_>) -> Result<Span, Mistake> {
    const LEAST: u64 = 10;
    const MOST: u64 = 1_000_000 * PARTS;
    /// One event per second, counted in the smallest step of a rate. A rate has at most four
    /// decimal places, so a step is 0.0001 events per second.
    const PARTS: u64 = 10_000;
    let parts = match item.value() {
        DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix())
            .ok()
            .and_then(|number| number.checked_mul(PARTS)),
        DeValue::Float(number) => decimal(number.as_str()),
        _ => return Err(item.wrong_type("a number of events a second")),
    };
    let parts = parts
        .filter(|parts| (LEAST..=MOST).contains(parts))
        .ok_or_else(|| item.fault(ErrorKind::NotAFrequency { written: item.written() }))?;
    Ok(Span::from_secs(1) * PARTS / parts)
}

/// Reads a rate in bits per second, which must not be zero.
pub(crate) fn rate(item: &Item<'_>) -> Result<u64, Mistake> {
    scaled(item, &RATES, "a rate, as in \"1Gbit/s\" or \"30MB/s\"")
}

fn scaled(item: &Item<'_>, units: &[(&str, u64)], wants: &'static str) -> Result<u64, Mistake> {
    let wrong = || item.fault(ErrorKind::WrongType { written: item.written(), wants });
    let text = item.text().map_err(|_| wrong())?.trim();
    let with = |&(name, scale): &(&str, u64)| {
        let number = text.strip_suffix(name)?.trim();
        let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| number.parse::<u64>().ok()?.checked_mul(scale)).flatten()
    };
    let amount = units.iter().find_map(with);
    amount.filter(|&amount| amount > 0 && amount <= MOST).ok_or_else(wrong)
}
