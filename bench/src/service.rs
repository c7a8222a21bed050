//! The daemon: how soon it does what it is asked, what it needs, and how long promises lapse as it
//! is started again; beside what the kernel and the disk take for as much.
//!
//! Whoever asks has at most so many requests a second, and nobody can lift that: what goes through
//! many is asked by several, and what a connection can do at most is that of a burst.

mod change;
mod daemon;
mod flood;
pub(crate) mod gang;
mod many;
mod peers;
mod seeds;

use anyhow::Result;

use crate::report::{self, Part, Row, quantile};
use daemon::Setting;

/// What can be measured by itself, and how.
const PARTS: [(&str, Part<Setting>); 7] = [
    ("idle", change::idle),
    ("full", change::full),
    ("flood", flood::rows),
    ("gang", gang::rows),
    ("many", many::held),
    ("pairs", many::come_and_go),
    ("seeds", seeds::rows),
];

/// Measures these parts, or all if none is named; returns Markdown, a section a part. What `before`
/// has of the others, a result of earlier, is kept.
pub(crate) fn run(parts: &[String], before: &str) -> Result<String> {
    report::sections(&PARTS, &Setting::new()?, parts, before)
}

/// Lengths of time in milliseconds, as people read them.
fn milliseconds(values: &[f64]) -> String {
    let [p50, p99, worst] = [50, 99, 100].map(|percent| quantile(values, percent));
    format!("p50 {p50:.2}, p99 {p99:.2}, worst {worst:.2} ms, n {}", values.len())
}

/// How long something took, in milliseconds, to within a number at its 99th percentile.
fn within(what: String, took: &[f64], promised: &'static str, most: f64) -> Row {
    let holds = Some(quantile(took, 99) <= most);
    Row { what, got: milliseconds(took), promised, holds }
}

/// The same of a peer.
fn peer(what: String, took: &[f64]) -> Row {
    Row { what, got: milliseconds(took), promised: "(peer)", holds: None }
}
