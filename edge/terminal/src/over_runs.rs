//! Tables of cases with several runs each, as means with confidence intervals.

use slackline_metrics::{OverRuns, Summary, VcpuSummary};
use slackline_units::Span;

use crate::layout::{Cell, Column, Group, Sheet};
use crate::numbers::{Unit, hundredths};
use crate::paint::Paint;

/// A case: its heading, and its runs, which differ only in their seeds.
pub type Case<'a> = (&'a str, &'a [Summary]);

/// Explanation below the table.
const LEGEND: &str = "mean ± half of its 95 % confidence interval\n";

/// Returns cases side by side: for each vCPU the CPU time delivered, deadline misses, wake-up
/// latency and the number of wakes. Values are means over the runs of a case, with 95 % confidence
/// intervals.
///
/// All runs of a case have the same vCPUs, in the same order.
#[must_use]
pub fn over_runs(cases: &[Case<'_>], width: usize, paint: Paint) -> String {
    let cases = cases.iter().map(|&(heading, runs)| (heading, vec![runs]));
    table(("", &[""]), &cases.collect::<Vec<_>>(), width, paint)
}

/// Returns a table of cases side by side, at several points of a scenario's axes. A point is a
/// combination of values, one for each axis. `points` has the heading for the column of points, and
/// the names of the points. Each case has its runs at each point, in the order of the points.
#[must_use]
pub fn over_points(
    points: (&str, &[&str]),
    cases: &[(String, Vec<Vec<Summary>>)],
    width: usize,
    paint: Paint,
) -> String {
    let cases = cases.iter().map(|(heading, points)| {
        (heading.as_str(), points.iter().map(Vec::as_slice).collect::<Vec<_>>())
    });
    table(points, &cases.collect::<Vec<_>>(), width, paint)
}

/// A case: its heading, and its runs at each point.
type AtPoints<'a> = (&'a str, Vec<&'a [Summary]>);

/// A row: the number of a point, and the name of a vCPU.
type Row<'a> = (usize, &'a str);

fn table(
    (heading, points): (&str, &[&str]),
    cases: &[AtPoints<'_>],
    width: usize,
    paint: Paint,
) -> String {
    let mut names: Vec<Row<'_>> = Vec::new();
    for point in 0..points.len() {
        let runs = cases.iter().filter_map(|(_, points)| points[point].first());
        for vcpu in runs.flat_map(|run| &run.vcpus) {
            if !names.contains(&(point, vcpu.name.as_str())) {
                names.push((point, &vcpu.name));
            }
        }
    }
    let all = || cases.iter().flat_map(|(_, runs)| runs).copied().flatten();
    let all = || all().flat_map(|run| &run.vcpus);
    let longest = |of: fn(&VcpuSummary) -> Option<Span>| all().filter_map(of).max();
    let wake = |vcpu: &VcpuSummary| vcpu.wake_to_run.and_then(|wake| wake.p99);
    let unit = Unit::of(longest(wake).unwrap_or_default());
    let wakes = |vcpu: &VcpuSummary| {
        wake(vcpu)?;
        i64::try_from(vcpu.wake_to_run?.count).ok()
    };
    let ns = |span: Span| i64::try_from(span.ns()).unwrap_or(i64::MAX);
    let runs = cases.iter().flat_map(|(_, runs)| runs).map(|runs| runs.len()).max().unwrap_or(0);
    let number = |thousandths: u128| match runs {
        1 => (thousandths / 1_000).to_string(),
        _ => hundredths((thousandths + 5) / 10),
    };
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
    waits.extend(group("n of wakes", cases, &names, wakes, number));
    let groups = vec![
        group("delivered %", cases, &names, |vcpu| i64::try_from(vcpu.delivered_ppm).ok(), percent),
        group(
            "misses",
            cases,
            &names,
            |vcpu| vcpu.promised.and(vcpu.misses).and_then(|misses| i64::try_from(misses).ok()),
            number,
        ),
        waits,
    ];
    let widest = points.iter().map(|point| point.chars().count()).max().unwrap_or(0);
    let widest = widest.max(heading.chars().count());
    let named = |point: &str, vcpu: &str| match points {
        [""] => vcpu.to_string(),
        _ => format!("{point:<widest$}  {vcpu}"),
    };
    let rows = Column::new(named(heading, "vCPU"), &names, |&(point, vcpu)| {
        Cell::Text(named(points[point], vcpu))
    });
    let table = Sheet { names: rows, groups }.render(width, paint);
    if runs > 1 { format!("{table} {runs} runs: {LEGEND}") } else { table }
}

fn percent(thousandths: u128) -> String {
    hundredths((thousandths + 50_000) / 100_000)
}

/// Returns a column for each case. A cell is empty if one of the case's runs has no value for the
/// vCPU.
fn group(
    over: &str,
    cases: &[AtPoints<'_>],
    names: &[Row<'_>],
    number: impl Fn(&VcpuSummary) -> Option<i64>,
    written: impl Fn(u128) -> String,
) -> Group {
    let column = |(heading, runs): &AtPoints<'_>| {
        let cell = |&(point, name): &Row<'_>| {
            let of = |run: &Summary| number(run.vcpus.iter().find(|vcpu| vcpu.name == name)?);
            let numbers: Option<Vec<i64>> = runs[point].iter().map(of).collect();
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
