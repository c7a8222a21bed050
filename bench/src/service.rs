//! The daemon: latency of its answers, its memory and CPU time, and the interruption of
//! reservations by a restart. The kernel and the disk are measured with comparable work.
//!
//! The number of requests per second of a client is limited, and the limit cannot be switched off.
//! So high request rates are measured with several clients. The maximum rate of one connection is
//! measured with a single burst.

mod change;
mod changes;
mod culprits;
mod daemon;
mod flood;
pub(crate) mod gang;
mod many;
mod peers;
mod recorder;
mod seeds;
mod whatif;

use anyhow::Result;

use crate::report::{self, Part, Row, quantile};
use daemon::ServiceSetting;

/// Parts of the benchmark. Each part can be measured alone.
const PARTS: [(&str, Part<ServiceSetting>); 12] = [
    ("idle", change::idle),
    ("full", change::full),
    ("flood", flood::rows),
    ("gang", gang::rows),
    ("many", many::held),
    ("deadline", many::deadline),
    ("pairs", many::come_and_go),
    ("seeds", seeds::rows),
    ("recorder", recorder::rows),
    ("culprits", culprits::rows),
    ("whatif", whatif::rows),
    ("changes", changes::rows),
];

/// Measures the parts in `parts`, or all parts if the list is empty. Returns Markdown with a
/// section for each part. Sections of parts that were not measured are taken from `before`, an
/// earlier result. `changes` is the number of measured changes in the part of that name.
pub(crate) fn run((parts, changes): (&[String], usize), before: &str) -> Result<String> {
    report::sections(&PARTS, &ServiceSetting::new(changes)?, parts, before)
}

/// Formats percentiles of durations in milliseconds.
fn milliseconds(values: &[f64]) -> String {
    let [p50, p99, worst] = [50, 99, 100].map(|percent| quantile(values, percent));
    format!("p50 {p50:.2}, p99 {p99:.2}, worst {worst:.2} ms, n {}", values.len())
}

/// Returns a row about durations in milliseconds. The target is a 99th percentile of at most
/// `most`.
fn within(what: String, took: &[f64], promised: &'static str, most: f64) -> Row {
    let holds = Some(quantile(took, 99) <= most);
    Row { what, got: milliseconds(took), promised, holds }
}

/// Returns a row about durations of another system that is compared with Slackline. The row has no
/// target.
fn peer(what: String, took: &[f64]) -> Row {
    Row { what, got: milliseconds(took), promised: "(peer)", holds: None }
}
