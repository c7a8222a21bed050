//! Description of the test machine, and tables of results.

use std::fs;

use anyhow::{Context, Result, ensure};

/// Describes the test machine as a Markdown list.
pub(crate) fn machine() -> Result<String> {
    let cpus = fs::read_to_string("/proc/cpuinfo").context("no /proc/cpuinfo")?;
    let named = |name| {
        cpus.lines()
            .filter_map(|line| line.split_once(':'))
            .filter(move |(key, _)| key.trim() == name)
    };
    let model = named("model name").next().map_or("unknown", |(_, model)| model.trim());
    let cores = named("processor").count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").context("no kernel release")?;
    let load = fs::read_to_string("/proc/loadavg").context("no /proc/loadavg")?;
    let load = load.split(' ').next().unwrap_or_default();
    let kernel = kernel.trim();
    Ok(format!(
        "- CPU: {model}, {cores} cores\n- kernel: {kernel}\n- load when the bench ended: {load}\n"
    ))
}

/// Returns a Markdown table.
pub(crate) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for row in rows {
        text += &format!("| {} |\n", row.join(" | "));
    }
    text
}

/// A row of the table of results: subject, value and target.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) got: String,
    pub(crate) promised: &'static str,
    /// True if the value meets the target. `None` if the row has no target.
    pub(crate) holds: Option<bool>,
}

impl Row {
    /// Returns a row for a part that could not be measured, with the reason.
    fn failed(part: &str, error: &anyhow::Error) -> Row {
        // A program may print notes before its error.
        let said = format!("{error:#}");
        let is_error = |line: &&str| line.starts_with("error:");
        let got =
            said.lines().find(is_error).map_or_else(|| said.replace('\n', " "), str::to_owned);
        Row { what: part.to_owned(), got, promised: "to be measured", holds: Some(false) }
    }
}

/// Function that measures the rows of one part. Its argument is the common parameters of all parts.
pub(crate) type Part<S> = fn(&S) -> Result<Vec<Row>>;

/// Measures the parts in `asked`, or all parts if the list is empty. Returns a section for each
/// part, with a description of the test machine. Sections of parts that were not measured are taken
/// from `before`, an earlier result.
pub(crate) fn sections<S>(
    parts: &[(&str, Part<S>)],
    setting: &S,
    asked: &[String],
    before: &str,
) -> Result<String> {
    let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
    for part in asked {
        ensure!(
            names.contains(&part.as_str()),
            "there is no part `{part}`; the parts are {names:?}"
        );
    }
    let mut text = String::new();
    for (name, measure) in parts {
        let head = format!("## {name}\n");
        if asked.is_empty() || asked.iter().any(|part| part == name) {
            let rows = measure(setting);
            text += &head;
            text += &format!("\n{}", machine()?);
            text += "\n| measured | result | promised | holds |\n|---|---|---|---|\n";
            // If one part fails, the results of the other parts are kept.
            let rows = rows.unwrap_or_else(|error| vec![Row::failed(name, &error)]);
            for Row { what, got, promised, holds } in rows {
                let holds = holds.map_or("", |holds| if holds { "yes" } else { "NO" });
                text += &format!("| {what} | {got} | {promised} | {holds} |\n");
            }
            text += "\n";
        } else if let Some((_, kept)) = before.split_once(&head) {
            text += &head;
            text += kept.split("## ").next().unwrap_or_default();
        }
    }
    Ok(text)
}

/// Returns a percentile of `values`, which must not be empty.
pub(crate) fn quantile(values: &[f64], percent: usize) -> f64 {
    sorted(values)[(values.len() * percent).div_ceil(100).max(1) - 1]
}

/// Returns the median of the values. If the number of values is even, this is the larger of the two
/// middle values.
pub(crate) fn median(values: &[f64]) -> f64 {
    sorted(values)[values.len() / 2]
}

/// Returns the median and the range of the values as text, with `digits` decimals.
pub(crate) fn spread(values: &[f64], digits: usize) -> String {
    let (sorted, middle) = (sorted(values), median(values));
    let (least, most) = (sorted[0], sorted[sorted.len() - 1]);
    format!("{middle:.digits$} ({least:.digits$} to {most:.digits$})")
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}
