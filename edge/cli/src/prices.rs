//! The daemon's table of prices, read from its file.

use std::path::Path;

use serde::Deserialize;
use slackline_daemon::core::{Factor, Prices};
use slackline_units::Span;
use toml::Spanned;

use crate::grid::position;
use crate::input;
use crate::problem::Problem;

/// Example of a price file, shown in error messages.
const EXAMPLE: &str = "write currency = \"EUR\", cpu-hour = \"0.04\", and for short periods \
                       [[period]] with up-to = \"5ms\" and times = \"2\"";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    currency: Spanned<String>,
    cpu_hour: Spanned<String>,
    #[serde(default)]
    period: Vec<Period>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Period {
    up_to: Spanned<String>,
    times: Spanned<String>,
}

/// Reads the daemon's table of prices from a file.
pub(crate) fn read(file: &Path) -> Result<Prices, Problem> {
    parse(file, &input::text(file)?)
}

fn parse(file: &Path, text: &str) -> Result<Prices, Problem> {
    let bad = |start: usize, message: String| {
        let (line, column) = position(text, start);
        Problem::BadAxis { file: file.into(), line, column, message, hint: Some(EXAMPLE.into()) }
    };
    let read: File = toml::from_str(text).map_err(|error| {
        let message =
            error.message().lines().next().unwrap_or("the file is not a price table").to_owned();
        bad(error.span().map_or(0, |span| span.start), message)
    })?;
    let number = |text: &Spanned<String>, places| {
        decimal(text.get_ref(), places).ok_or_else(|| {
            let message =
                format!("`{}` is not a number with up to {places} decimals", text.get_ref());
            bad(text.span().start, message)
        })
    };
    let currency = read.currency.get_ref().clone();
    if currency.is_empty()
        || currency.len() > 8
        || !currency.bytes().all(|it| it.is_ascii_alphabetic())
    {
        let message = format!("`{}` is not a currency such as EUR", currency.escape_debug());
        return Err(bad(read.currency.span().start, message));
    }
    let cpu_hour = number(&read.cpu_hour, 6)?;
    let mut factors: Vec<Factor> = Vec::new();
    for period in &read.period {
        let place = period.up_to.span().start;
        let up_to = period.up_to.get_ref().parse::<Span>();
        let up_to =
            up_to.map_err(|why| bad(place, format!("`{}` {why}", period.up_to.get_ref())))?;
        if factors.last().is_some_and(|last| last.up_to >= up_to) {
            return Err(bad(
                place,
                format!("{up_to} must be longer than `up-to` of the previous entry"),
            ));
        }
        let times = number(&period.times, 3)?;
        let beyond = |_| {
            bad(
                period.times.span().start,
                "`times` is too large: the maximum is 4294967.295".into(),
            )
        };
        factors.push(Factor { up_to, thousandths: u32::try_from(times).map_err(beyond)? });
    }
    Ok(Prices { currency, cpu_hour, factors })
}

/// Parses a number with at most `places` decimals. Returns it in units of the last decimal.
fn decimal(text: &str, places: u32) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    let length = u32::try_from(part.len()).ok().filter(|length| *length <= places.max(1))?;
    if !is_number(whole) || !is_number(part) {
        return None;
    }
    let scaled = part.parse::<u64>().ok()?.checked_mul(10_u64.checked_pow(places - length)?)?;
    whole.parse::<u64>().ok()?.checked_mul(10_u64.pow(places))?.checked_add(scaled)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "currency = \"EUR\"\ncpu-hour = \"0.04\"\n\
                        [[period]]\nup-to = \"5ms\"\ntimes = \"2\"\n\
                        [[period]]\nup-to = \"10ms\"\ntimes = \"1.5\"\n";

    #[test]
    fn price_with_more_than_six_decimals_is_refused() {
        let prices = parse(Path::new("prices"), GOOD).unwrap();
        assert_eq!((prices.currency.as_str(), prices.cpu_hour), ("EUR", 40_000));
        let factors: Vec<_> =
            prices.factors.iter().map(|it| (it.up_to.ns(), it.thousandths)).collect();
        assert_eq!(factors, [(5_000_000, 2_000), (10_000_000, 1_500)]);
        assert_eq!((decimal("12", 6), decimal("0.000001", 6)), (Some(12_000_000), Some(1)));
        for wrong in ["", ".", "1.", "-1", "1e3", "0.0000001", "99999999999999999999"] {
            assert_eq!(decimal(wrong, 6), None, "{wrong}");
        }
    }

    #[test]
    fn invalid_price_is_refused_with_line_and_column() {
        let says = |from: &str, to: &str| {
            let text = GOOD.replacen(from, to, 1);
            parse(Path::new("prices"), &text).unwrap_err().to_string()
        };
        assert!(says("\"0.04\"", "\"much\"").starts_with("prices:2:12: `much` is not a number"));
        assert!(says("\"0.04\"", "0.04").starts_with("prices:2:12: invalid type"));
        assert!(says("\"EUR\"", "\"E R\"").starts_with("prices:1:12: `E R` is not a currency"));
        assert!(says("cpu-hour", "cpu-our").starts_with("prices:2:1: unknown field `cpu-our`"));
        assert!(
            says("\"10ms\"", "\"5ms\"")
                .contains("5ms must be longer than `up-to` of the previous entry")
        );
        assert!(says("\"5ms\"", "\"5\"").starts_with("prices:4:9: `5` has no unit"));
    }
}
