//! Claims: results that a scenario states in advance. They are checked after the run.

use core::fmt;

use slackline_units::Span;

use crate::Domain;
use crate::error::ErrorKind;
use crate::keys;
use crate::names::Names;
use crate::table::{Item, Mistake, Source, Table, decimal, percentage, shown};

/// A result that a run must have. This crate does not check that the metric exists. The checker of
/// claims does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Name of the metric, as in `latency p99`.
    pub metric: String,
    /// Domain, vCPU, CPU (`cpu0`), client (`client0`) or task (`web/0`) that the metric describes.
    /// If `None`, the metric describes the whole run.
    pub of: Option<String>,
    /// Test that the metric must pass.
    pub test: Test,
    /// The claim as a sentence: `latency p99 of web is below 8ms`.
    pub text: String,
    /// Line of the claim in the file, counted from 1.
    pub line: usize,
    /// Hosts on which the claim is checked.
    pub on: ClaimHosts,
}

/// Hosts on which a claim is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClaimHosts {
    /// The claim is checked on the simulated host and on a live host.
    #[default]
    Both,
    /// The claim is checked on the simulated host only.
    Sim,
    /// The claim is checked on a live host only.
    Live,
}

/// Test of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// Admission must refuse the domains. This is the only test without a metric.
    Refused,
    /// The metric is less than the amount.
    Below(Amount),
    /// The metric is greater than the amount.
    Above(Amount),
    /// The metric is at most the amount.
    AtMost(Amount),
    /// The metric is at least the amount.
    AtLeast(Amount),
    /// The metric differs from the amount by at most some percent of the amount.
    WithinPercent {
        /// Largest allowed difference between the metric and the amount, in millionths of the
        /// amount.
        tolerance_ppm: u64,
        /// Amount with which the metric is compared.
        of: AmountOrPromised,
    },
    /// The metric differs from a percentage by at most some percentage points.
    WithinPoints {
        /// Largest allowed difference between the metric and the percentage, in millionths. One
        /// percentage point is 10,000.
        tolerance_ppm: u64,
        /// Percentage with which the metric is compared.
        of: AmountOrPromised,
    },
}

/// Amount with which a metric is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A duration, such as `8ms`.
    Span(Span),
    /// A percentage, in millionths: 20% is 200,000.
    Ppm(i64),
    /// A plain number, such as `12`.
    Count(u64),
}

/// Amount with which a metric is compared: a stated amount, or the reservation of the vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmountOrPromised {
    /// An amount that the claim states.
    Amount(Amount),
    /// The reserved share of the vCPU.
    Promised,
}

impl fmt::Display for Claim {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl fmt::Display for Amount {
    /// Writes the amount as in a scenario: `8ms`, `20%`, `12`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Span(span) => span.fmt(out),
            Amount::Ppm(ppm) => {
                let sign = if *ppm < 0 { "-" } else { "" };
                write!(out, "{sign}{}%", Hundredths(ppm.unsigned_abs()))
            }
            Amount::Count(count) => count.fmt(out),
        }
    }
}

impl fmt::Display for AmountOrPromised {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AmountOrPromised::Amount(amount) => amount.fmt(out),
            AmountOrPromised::Promised => out.write_str(PROMISED),
        }
    }
}

impl fmt::Display for Test {
    /// Writes the test as in a scenario: `below 8ms`, `within 2% of promised`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Test::Refused => out.write_str(REFUSED),
            Test::Below(amount) => write!(out, "below {amount}"),
            Test::Above(amount) => write!(out, "above {amount}"),
            Test::AtMost(amount) => write!(out, "at most {amount}"),
            Test::AtLeast(amount) => write!(out, "at least {amount}"),
            Test::WithinPercent { tolerance_ppm, of } => {
                write!(out, "within {}% of {of}", Hundredths(*tolerance_ppm))
            }
            Test::WithinPoints { tolerance_ppm, of } => {
                write!(out, "within {} points of {of}", Hundredths(*tolerance_ppm))
            }
        }
    }
}

/// Part of a whole in millionths, printed in percent with up to four decimal places.
struct Hundredths(u64);

impl fmt::Display for Hundredths {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 10_000, self.0 % 10_000);
        let part = format!("{part:04}");
        match part.trim_end_matches('0') {
            "" => write!(out, "{whole}"),
            part => write!(out, "{whole}.{part}"),
        }
    }
}

const ONS: &[&str] = &["both", "sim", "live"];
const REFUSED: &str = "refused";
const PROMISED: &str = "promised";
/// Name that stands for all domains together in claims.
const TOTAL: &str = "total";

impl Claim {
    /// Reads one `[[claim]]` table.
    pub(crate) fn read(
        source: &Source<'_>,
        table: Table<'_>,
        domains: &[Domain],
        names: &Names,
    ) -> Result<Claim, Mistake> {
        let table = table.taught(&keys::CLAIM)?;
        let that = table.need("that", "that = \"misses of web\"")?;
        let words = that.text()?.split_whitespace().collect::<Vec<_>>().join(" ");
        let (metric, of) = match words.rsplit_once(" of ") {
            Some((metric, of)) => (metric, Some(of)),
            None => (words.as_str(), None),
        };
        if metric.is_empty() || words.starts_with("of ") {
            return Err(that.fault(ErrorKind::NoMetric { written: that.written() }));
        }
        let of = of.filter(|&of| of != TOTAL);
        if let Some(of) = of.filter(|of| !is_row(of, names) || names.is_domain(of)) {
            names.find(of, domains, &that)?;
        }
        let (test, text) = if metric == REFUSED && of.is_none() && table.get("is").is_none() {
            (Test::Refused, "the domains are refused".to_owned())
        } else {
            let test = test(&table.need("is", "is = \"below 8ms\"")?)?;
            (test, format!("{words} is {test}"))
        };
        let on = match table.maybe("on", |item| item.word(ONS))? {
            Some(1) => ClaimHosts::Sim,
            Some(2) => ClaimHosts::Live,
            _ => ClaimHosts::Both,
        };
        let (line, _) = source.position(table.at);
        let (metric, of) = (metric.to_owned(), of.map(str::to_owned));
        Ok(Claim { metric, of, test, text, line, on })
    }
}

/// Returns true if `name` has the form of a CPU (`cpu0`), a client (`client0`) or a task (`web/0`).
/// Only the checker of claims knows if that CPU, client or task exists.
fn is_row(name: &str, names: &Names) -> bool {
    let task = name.split_once('/').filter(|(domain, _)| names.is_domain(domain));
    let number = match task {
        Some((_, number)) => number,
        None => name.strip_prefix("cpu").or(name.strip_prefix("client")).unwrap_or_default(),
    };
    number.parse::<u16>().is_ok_and(|parsed| parsed.to_string() == number)
}

/// Test that compares a metric with one amount. The first part is the words before the amount, such
/// as `at most`. The second part is the function that creates the test.
type Plain = (&'static str, fn(Amount) -> Test);
pub(crate) const PLAIN: [Plain; 4] = [
    ("below ", Test::Below),
    ("above ", Test::Above),
    ("at most ", Test::AtMost),
    ("at least ", Test::AtLeast),
];

/// Reads the test of a claim's metric.
fn test(item: &Item<'_>) -> Result<Test, Mistake> {
    let words = item.text()?.split_whitespace().collect::<Vec<_>>();
    let text = words.join(" ");
    for (prefix, test) in PLAIN {
        if let Some(text) = text.strip_prefix(prefix) {
            return Ok(test(amount(item, text)?));
        }
    }
    let not_a_test = || item.fault(ErrorKind::NotATest { written: item.written() });
    let within = text.strip_prefix("within ").and_then(|text| text.split_once(" of "));
    let (tolerance, of) = within.ok_or_else(not_a_test)?;
    let of = match of {
        PROMISED => AmountOrPromised::Promised,
        of => AmountOrPromised::Amount(amount(item, of)?),
    };
    if let Some(tolerance_ppm) = percentage(tolerance) {
        return Ok(Test::WithinPercent { tolerance_ppm, of });
    }
    let points = tolerance.strip_suffix(" points").or_else(|| tolerance.strip_suffix(" point"));
    let tolerance_ppm = points.and_then(decimal).ok_or_else(not_a_test)?;
    if matches!(of, AmountOrPromised::Amount(Amount::Span(_) | Amount::Count(_))) {
        return Err(item.fault(ErrorKind::PointsOfNoPercentage { written: item.written() }));
    }
    Ok(Test::WithinPoints { tolerance_ppm, of })
}

fn amount(item: &Item<'_>, text: &str) -> Result<Amount, Mistake> {
    let read = || {
        if text.ends_with('%') {
            let (negative, text) =
                text.strip_prefix('-').map_or((false, text), |text| (true, text));
            let ppm = i64::try_from(percentage(text)?).ok()?;
            return Some(Amount::Ppm(if negative { -ppm } else { ppm }));
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().ok().map(Amount::Count);
        }
        text.parse().ok().map(Amount::Span)
    };
    read().ok_or_else(|| {
        let (written, amount) = (item.written(), shown(text));
        item.fault(ErrorKind::NotAnAmount { written, amount })
    })
}
