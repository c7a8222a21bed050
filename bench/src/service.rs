//! The daemon: latency of its answers, memory and CPU time, and interruption of reservations by a
//! restart. The kernel and the disk are measured for comparable work.
//!
//! A client is limited to a number of requests per second, which cannot be lifted. So high request
//! rates are measured with several clients, and the maximum rate of one connection with a single
//! burst.

mod change;
mod changes;
mod daemon;
mod flood;
pub(crate) mod gang;
mod many;
mod peers;
mod seeds;
mod whatif;

use anyhow::Result;

use crate::report::{self, Part, Row, quantile};
use daemon::ServiceSetting;

/// Parts that can be measured alone.
const PARTS: [(&str, Part<ServiceSetting>); 9] = [
    ("idle", change::idle),
    ("full", change::full),
    ("flood", flood::rows),
    ("gang", gang::rows),
    ("many", many::held),
    ("pairs", many::come_and_go),
    ("seeds", seeds::rows),
    ("whatif", whatif::rows),
    ("changes", changes::rows),
];

/// Measures the named parts, or all if none is named. Returns Markdown with a section for each
/// part. Sections of the other parts are kept from `before`, an earlier result.
pub(crate) fn run(parts: &[String], before: &str) -> Result<String> {
    report::sections(&PARTS, &ServiceSetting::new()?, parts, before)
}

/// Formats percentiles of durations in milliseconds.
fn milliseconds(values: &[f64]) -> String {
    let [p50, p99, worst] = [50, 99, 100].map(|percent| quantile(values, percent));
    format!("p50 {p50:.2}, p99 {p99:.2}, worst {worst:.2} ms, n {}", values.len())
}

/// Returns a row about durations in milliseconds. Its target is that the 99th percentile is at most
/// `most`.
fn within(what: String, took: &[f64], promised: &'static str, most: f64) -> Row {
    let holds = Some(quantile(took, 99) <= most);
    Row { what, got: milliseconds(took), promised, holds }
}

/// Returns a row about durations of a system that is compared with Slackline. Such a row has no
/// target.
fn peer(what: String, took: &[f64]) -> Row {
    Row { what, got: milliseconds(took), promised: "(peer)", holds: None }
}
