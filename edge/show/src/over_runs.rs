//! Several runs of each of several cases, as means with what they may be off.

use slackline_metrics::{OverRuns, Summary, VcpuSummary};
use slackline_units::Span;

use crate::layout::{Cell, Column, Group, Sheet};
use crate::numbers::{Unit, hundredths};
use crate::paint::Paint;

/// Runs that differ in their seeds only, under their heading.
pub type Case<'a> = (&'a str, &'a [Summary]);

/// What the numbers are.
const LEGEND: &str = "mean, and what is added and taken away is half of its 95 % confidence \
                      interval\n";

/// Cases side by side: of each vCPU what was delivered, how many deadlines it missed and how long
/// it took from waking to running, of how many wakes, as means over the runs of a case with 95 %
/// confidence intervals.
///
/// All runs of a case have the same vCPUs, in the same order.
#[must_use]
pub fn over_runs(cases: &[Case<'_>], width: usize, paint: Paint) -> String {
    let mut names: Vec<&str> = Vec::new();
    for vcpu in cases.iter().filter_map(|(_, runs)| runs.first()).flat_map(|run| &run.vcpus) {
        if !names.contains(&vcpu.name.as_str()) {
            names.push(&vcpu.name);
        }
    }
    let all = || cases.iter().flat_map(|(_, runs)| *runs).flat_map(|run| &run.vcpus);
    let longest = |of: fn(&VcpuSummary) -> Option<Span>| all().filter_map(of).max();
    let wake = |vcpu: &VcpuSummary| vcpu.wake_to_run.and_then(|wake| wake.p99);
    let unit = Unit::of(longest(wake).unwrap_or_default());
    let wakes = |vcpu: &VcpuSummary| {
        wake(vcpu)?;
        i64::try_from(vcpu.wake_to_run?.count).ok()
    };
    let ns = |span: Span| i64::try_from(span.ns()).unwrap_or(i64::MAX);
    let mut waits = group(
        &format!("wake to run p99, {}", unit.name),
        cases,
        &names,
        |vcpu| wake(vcpu).map(ns),
        |thousandths| {
            let ns = u64::try_from(thousandths / 1_000).unwrap_or(u64::MAX);
            unit.write(Span::from_ns(ns))
        },
    );
    waits.extend(group("n of wakes", cases, &names, wakes, |thousandths| {
        hundredths((thousandths + 5) / 10)
    }));
    let groups = vec![
        group("delivered %", cases, &names, |vcpu| i64::try_from(vcpu.delivered_ppm).ok(), percent),
        group(
            "misses",
            cases,
            &names,
            |vcpu| vcpu.promised.and(vcpu.misses).and_then(|misses| i64::try_from(misses).ok()),
            |thousandths| hundredths((thousandths + 5) / 10),
        ),
        waits,
    ];
    let runs = cases.iter().map(|(_, runs)| runs.len()).max().unwrap_or(0);
    let rows = Column::new("vCPU", &names, |name| Cell::Text((*name).to_string()));
    let table = Sheet { names: rows, groups }.render(width, paint);
    format!("{table} {runs} runs: {LEGEND}")
}

fn percent(thousandths: u128) -> String {
    hundredths((thousandths + 50_000) / 100_000)
}

/// A column for each case. A vCPU for which a run has no number has none.
fn group(
    over: &str,
    cases: &[Case<'_>],
    names: &[&str],
    number: impl Fn(&VcpuSummary) -> Option<i64>,
    written: impl Fn(u128) -> String,
) -> Group {
    let column = |(heading, runs): &Case<'_>| {
        let cell = |name: &&str| {
            let of = |run: &Summary| number(run.vcpus.iter().find(|vcpu| vcpu.name == **name)?);
            let numbers: Option<Vec<i64>> = runs.iter().map(of).collect();
            let over = numbers.and_then(|numbers| OverRuns::of(&numbers));
            over.map_or(Cell::Blank, |over| Cell::Text(in_words(&over, &written)))
        };
        Column::new(*heading, names, cell).under(over)
    };
    cases.iter().map(column).collect()
}

fn in_words(over: &OverRuns, written: impl Fn(u128) -> String) -> String {
    let mean = written(over.mean_thousandths.unsigned_abs());
    match over.half_width_thousandths {
        Some(half) => format!("{mean} ±{}", written(half)),
        None => mean,
    }
}
