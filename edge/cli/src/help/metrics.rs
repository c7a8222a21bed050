//! Help pages about metrics: the list of all names, and the meaning of each metric.

use std::fmt::Write as _;

use slackline_metrics::{GLOSSARY, Glossary, Term, Unit};

use crate::by_second;
use crate::entries::{entries, wrapped};

const INTRO: &str = "\
Metrics are the numbers that Slackline computes from the trace of a run.

Use this list to find a metric for a claim, for `--metric` or in JSON.
`slackline help METRIC` explains one metric, by its name in claims, JSON or
tables:

  slackline help \"wake to run\"
  slackline help delivered_ppm

Rules:
  - A run is measured from the end of its warm-up to its end.
  - The list below has the names for claims. In JSON, blanks are `_`, and the
    name ends in its unit: _ns (nanoseconds) or _ppm (millionths). Counts have
    no unit.
  - A name with * is a distribution. Add p50, p90, p99, worst or count to the
    name: `wake to run p99`. In JSON this is `wake_to_run_p99_ns`. Tables call
    the count `n`.
  - p50 is the median: half of the samples are at most as large as p50. With 2
    to 99 samples, p99 equals the worst value.
  - With a single sample, JSON and tables have the worst value but no quantiles,
    and a claim on a quantile tests the sample.
  - Quantiles of up to 1000 samples are exact. Quantiles of more samples are
    less than 0.1 % too high.
";

/// Units in the order of the list of metrics, each with its heading in the list.
const UNITS: [(Unit, &str); 3] =
    [(Unit::Time, "durations"), (Unit::Part, "percentages"), (Unit::Things, "numbers")];

/// Suffixes with which claims name the values of a distribution, as in `wake to run p99`.
const SPREAD: [&str; 5] = ["p50", "p90", "p99", "worst", "count"];

/// Returns the page that lists all metrics.
pub(super) fn list() -> String {
    let mut text = INTRO.to_owned();
    for group in GLOSSARY {
        let _ = writeln!(text, "\nMetrics of {}:", group.of);
        for (unit, heading) in UNITS {
            listed(&mut text, heading, group, |term| term.unit() == Some(unit));
        }
        listed(&mut text, "only in JSON", group, |term| term.unit().is_none());
    }
    text += "\nColumns of --csv of `sim` and `run`. A row is a second of a domain or of a CPU:\n";
    entries(&mut text, by_second::columns());
    text + "\nSee also: `slackline help claims`.\n"
}

/// Appends a paragraph with a heading and the names of the metrics in a group for which `matches`
/// is true.
fn listed(text: &mut String, heading: &str, group: &Glossary, matches: impl Fn(&Term) -> bool) {
    let star = |term: &Term| if term.is_spread() { "*" } else { "" };
    let terms = group.terms.iter().filter(|&term| matches(term));
    let names: Vec<String> = terms.map(|term| name(group, term) + star(term)).collect();
    if !names.is_empty() {
        wrapped(text, 2, &format!("{heading}: {}", names.join(", ")));
    }
}

/// Returns the name of a metric in claims, or its JSON field if no claim can refer to the metric.
fn name(group: &Glossary, term: &Term) -> String {
    match group.are_claimed && term.unit().is_some() {
        true => term.claimed_as(),
        false => term.field.to_owned(),
    }
}

/// Returns the meaning of each metric that has this name in claims, JSON or tables. `None` if no
/// metric has the name.
pub(super) fn meaning(asked: &str) -> Option<String> {
    let mut text = String::new();
    for group in GLOSSARY {
        for term in group.terms.iter().filter(|term| is_named(term, asked)) {
            let gap = if text.is_empty() { "" } else { "\n" };
            text += gap;
            describe(&mut text, group, term);
        }
    }
    (!text.is_empty()).then_some(text)
}

/// Returns true if a metric has this name in claims, JSON or tables.
fn is_named(term: &Term, asked: &str) -> bool {
    let heading = term.heading.split([',', ':']).next().unwrap_or_default();
    let heading = heading.trim_end_matches([' ', '%']);
    let claimed = term.claimed_as();
    let is_quantile =
        || term.is_spread() && SPREAD.iter().any(|end| asked == format!("{claimed} {end}"));
    !asked.is_empty()
        && (asked == term.field
            || asked == claimed
            || asked == heading
            || is_quantile()
            || term.fields().iter().any(|field| field == asked))
}

/// Appends the names, the unit and the meaning of a metric.
fn describe(text: &mut String, group: &Glossary, term: &Term) {
    let unit = term.unit().map_or_else(|| "a text or a flag".to_owned(), |unit| unit.to_string());
    wrapped(text, 0, &format!("{}: {unit}, of {}", name(group, term), group.of));
    let end = if term.is_spread() { "_*" } else { "" };
    let _ = writeln!(text, "  JSON field: {}{end}", term.field);
    if !term.heading.is_empty() {
        let _ = writeln!(text, "  heading in tables: {}", term.heading);
    }
    wrapped(text, 2, &format!("meaning: {}", term.says));
}
