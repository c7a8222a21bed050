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

/// The one in the middle.
pub(crate) fn median(values: &[f64]) -> f64 {
    sorted(values)[values.len() / 2]
}

/// The median and the range, as people read them.
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
