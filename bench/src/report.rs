//! The machine a bench ran on, and tables.

use std::fs;

use anyhow::{Context, Result};

/// What the numbers depend on, as a Markdown list.
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
    Ok(format!("- CPU: {model}, {cores} cores\n- kernel: {kernel}\n- load when it ended: {load}\n"))
}

/// A Markdown table.
pub(crate) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for row in rows {
        text += &format!("| {} |\n", row.join(" | "));
    }
    text
}

/// The median and the range, as people read them.
pub(crate) fn spread(values: &[f64], digits: usize) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let [least, middle, most] = [0, sorted.len() / 2, sorted.len() - 1].map(|at| sorted[at]);
    format!("{middle:.digits$} ({least:.digits$} to {most:.digits$})")
}
