//! Comparison of policies as one HTML page.

use std::io::Write as _;
use std::path::Path;

use slackline_daemon::front::TIMELINE_SCRIPT;
use slackline_experiments::{header, with_seed};
use slackline_html::{Axis, Cell, Figure, FigureOrigin, Layer, Page, Plot, Table};
use slackline_metrics::VcpuSummary;
use slackline_scenario::Scenario;
use slackline_terminal::percent;
use slackline_units::{Span, Time};

use super::PolicyComparison;
use crate::bug;
use crate::counted::counted;
use crate::json::Case;
use crate::pending::Pending;
use crate::problem::Problem;
use crate::report::timeline::RunTimeline;
use crate::report::{claims, figures};
use crate::seeds::Runs;

/// Metric of a vCPU in one run. `None` if the run did not measure the metric.
type Measure = fn(&VcpuSummary) -> Option<f64>;

/// Writes the report of a comparison. `runs` are the simulated runs of all policies.
pub(super) fn write(
    (to, file): (&Path, &Path),
    compared: &PolicyComparison,
    runs: &Runs,
    (cases, seeds): (&[Case], &[u64]),
) -> Result<(), Problem> {
    let page = overview(&compared.scenario, cases, seeds);
    let page = waits(page, compared, runs).section("Numbers").table(table(cases));
    let page = timelines(page, file, compared, seeds)?;
    let checked = compared.checked().map(|(number, run)| {
        (format!("{}, {}", compared.policies[number], run.summary.machine), run)
    });
    let page = claims::section(page, &compared.scenario, &checked.collect::<Vec<_>>());
    let html = page.section("Scenario").code(&compared.scenario.text).html();
    let (pending, mut out) = Pending::new(to)?;
    pending.keep(out.write_all(html.as_bytes()).and_then(|()| out.flush()))
}

/// Adds the distributions of waits under each policy, in the simulated runs with the first seed.
fn waits(page: Page, compared: &PolicyComparison, runs: &Runs) -> Page {
    compared.policies.iter().zip(runs.cumulative()).fold(page, |page, (policy, runs)| {
        let Some((seed, distributions)) = runs.first() else { return page };
        let title = format!("Waits: {policy}, seed {seed}");
        figures::distributions(distributions).into_iter().fold(page.section(&title), Page::figure)
    })
}

/// Adds, for each policy, the timelines of the simulated run and of the live run with the first
/// seed.
fn timelines(
    mut page: Page,
    file: &Path,
    compared: &PolicyComparison,
    seeds: &[u64],
) -> Result<Page, Problem> {
    for (number, policy) in compared.policies.iter().enumerate() {
        let scenario = with_seed(compared.scenarios[number].clone(), seeds[0]);
        let mut timeline =
            RunTimeline::new(&header::of_simulation(&scenario), Time::START.after(scenario.length));
        slackline_sim::run(&scenario, &mut timeline)
            .map_err(|error| bug::explain(file, &scenario, error))?;
        page = page.section(&format!("Timeline: {policy}, simulated, seed {}", seeds[0]));
        page = page.timeline(&timeline.finish().1, TIMELINE_SCRIPT);
        if let Some(timeline) = compared.live_timelines.get(number) {
            page = page.section(&format!("Timeline: {policy}, live, seed {}", seeds[0]));
            page = page.timeline(timeline, TIMELINE_SCRIPT);
        }
    }
    Ok(page)
}

fn overview(scenario: &Scenario, cases: &[Case], seeds: &[u64]) -> Page {
    let made = FigureOrigin::by("slackline compare --report")
        .with(&format!("Slackline {}", env!("CARGO_PKG_VERSION")));
    let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    let seeds: Vec<String> = seeds.iter().map(ToString::to_string).collect();
    let about = format!(
        "{length} of {policies} on {cpus}, seeds {seeds}.",
        length = scenario.length,
        policies = names.join(", "),
        cpus = counted(scenario.host.cpus, "CPU"),
        seeds = seeds.join(", ")
    );
    let measures: [(&str, &str, &str, Measure); 3] = [
        ("CPU time received", "share", "% of a CPU", |it| Some(it.delivered_ppm as f64 / 10_000.0)),
        ("Deadlines missed", "missed", "%", missed_percent),
        ("Longest waits (p99)", "wake to run", "ms", wait_ms),
    ];
    let page = Page::new(&format!("Comparison: {}", scenario.title), made).text(&about);
    let is_measured = |of: Measure| {
        let mut runs = cases.iter().flat_map(|case| &case.runs);
        runs.any(|run| run.vcpus.iter().any(|vcpu| of(vcpu).is_some()))
    };
    measures
        .into_iter()
        .filter(|(.., of)| is_measured(*of))
        .fold(page, |page, (title, what, unit, of)| {
            page.figure(figure(cases, (title, what, unit), of))
        })
}

fn missed_percent(vcpu: &VcpuSummary) -> Option<f64> {
    let (missed, deadlines) = vcpu.misses.zip(vcpu.deadlines)?;
    Some(missed as f64 * 100.0 / deadlines.max(1) as f64)
}

fn wait_ms(vcpu: &VcpuSummary) -> Option<f64> {
    vcpu.wake_to_run.and_then(|wait| wait.p99).map(|wait| wait.ns() as f64 / 1e6)
}

/// Returns the names of all vCPUs, in the order of the first run.
fn vcpus(cases: &[Case]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for vcpu in cases.iter().flat_map(|case| &case.runs).flat_map(|run| &run.vcpus) {
        if !names.contains(&vcpu.name) {
            names.push(vcpu.name.clone());
        }
    }
    names
}

/// Returns the values of a vCPU in all runs of a case.
fn values(case: &Case, name: &str, of: Measure) -> Vec<f64> {
    let vcpus = case.runs.iter().flat_map(|run| &run.vcpus);
    vcpus.filter(|vcpu| vcpu.name == name).filter_map(of).collect()
}

/// Draws bars with the mean and the range over the seeds, for each vCPU and case.
fn figure(cases: &[Case], (title, what, unit): (&str, &str, &str), of: Measure) -> Figure {
    let names = vcpus(cases);
    let axis = Axis::names("vCPU", names.iter().cloned());
    let plot = Plot::new(axis, Axis::linear(what, unit).including(0.0));
    let bars = |case: &Case| {
        let bar = |(x, name): (f64, &String)| {
            let values = values(case, name, of);
            let least = values.iter().copied().reduce(f64::min)?;
            let most = values.iter().copied().reduce(f64::max)?;
            Some((x, least, values.iter().sum::<f64>() / values.len() as f64, most))
        };
        let bars: Vec<_> = (0_u32..).map(f64::from).zip(&names).filter_map(bar).collect();
        Layer::bars_with_range(&case.name, bars)
    };
    let plot = cases.iter().map(bars).fold(plot, Plot::with);
    Figure::new(title, plot)
        .caption("The mean over the seeds, with the smallest and the largest value.")
}

fn table(cases: &[Case]) -> Table {
    let headings = ["run", "vCPU", "reserved", "share %", "missed", "worst p99 wait"];
    let mut table = Table::new(headings).caption("Means and sums over all seeds");
    for case in cases {
        for name in vcpus(cases) {
            let all: Vec<&VcpuSummary> =
                case.runs.iter().flat_map(|run| &run.vcpus).filter(|it| it.name == name).collect();
            if !all.is_empty() {
                table = table.row(cells(&case.name, &all));
            }
        }
    }
    table
}

/// Returns the table row of one vCPU, from all runs of a case.
fn cells(case: &str, all: &[&VcpuSummary]) -> [Cell; 6] {
    let number = |text: Option<String>| text.map_or(Cell::Dash, Cell::Number);
    let share = all.iter().map(|it| it.delivered_ppm).sum::<u64>() / all.len() as u64;
    let sum = |of: fn(&VcpuSummary) -> Option<u64>| all.iter().filter_map(|it| of(it)).sum::<u64>();
    let has_deadlines = all.iter().any(|it| it.deadlines.is_some());
    let missed = format!("{} of {}", sum(|it| it.misses), sum(|it| it.deadlines));
    let wait: Option<Span> =
        all.iter().filter_map(|it| it.wake_to_run.and_then(|wait| wait.p99)).max();
    let reserved = all[0].promised.map(|it| format!("{}/{}", it.slice(), it.period()));
    [
        Cell::Text(case.to_owned()),
        Cell::Text(all[0].name.clone()),
        number(reserved),
        Cell::Number(percent(share)),
        number(has_deadlines.then_some(missed)),
        number(wait.map(|wait| wait.to_string())),
    ]
}
