//! Commands for scenarios with axes: all points are run and shown in one table.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use slackline_experiments::axes::Axis;
use slackline_experiments::claims::expects_refusal;
use slackline_experiments::{Meters, with_seed};
use slackline_metrics::{FieldValue, Summary};
use slackline_scenario::Scenario;
use slackline_terminal::over_points;

use crate::args::{Compare, Keeping, Sim};
use crate::cumulative::{CumulativeFile, CumulativeRun};
use crate::grid::{Grid, Point};
use crate::json::Case;
use crate::metric::Metrics;
use crate::pending::{Out, Pending};
use crate::problem::Problem;
use crate::quoted::{axis_headings, quoted};
use crate::{claims, input, json, seeds, terminal};

/// Simulates all points of a scenario.
pub(crate) fn sim(args: &Sim, grid: &Grid) -> Result<(), Problem> {
    let csv = args.keeping.csv.as_deref().map(Csv::begin).transpose()?;
    let others = Keeping { csv: None, ..args.keeping.clone() };
    others.is_of_one_run("axes")?;
    let policies: Vec<String> = args.policy.iter().cloned().collect();
    let asked = PointOptions {
        file: &args.file,
        seed: args.seed,
        seeds: args.seeds,
        policies: &policies,
        metrics: &[],
    };
    run(grid, &asked, args.keeping.json, (csv, None))
}

/// Simulates all points of a scenario under each policy.
pub(crate) fn compare(args: &Compare, grid: &Grid) -> Result<(), Problem> {
    if args.live || args.live_if_possible {
        return Err(Problem::BadOption {
            message: "cannot run a scenario with axes live: --live runs a single scenario".into(),
            hint: Some("drop --live, or copy one point's values into the scenario".into()),
        });
    }
    if args.report.is_some() {
        return Err(Problem::BadOption {
            message: "cannot write --report for a scenario with axes: it has many runs".into(),
            hint: Some("use `slackline sweep --report`, which draws axes".into()),
        });
    }
    let csv = args.csv.as_deref().map(Csv::begin).transpose()?;
    let cdf = args.cdf.as_deref().map(CumulativeFile::begin).transpose()?;
    let (file, policies, metrics) = (&args.file, &args.policies, args.metric.as_slice());
    let asked = PointOptions { file, seed: args.seed, seeds: args.seeds, policies, metrics };
    run(grid, &asked, args.json, (csv, cdf))
}

/// Options that apply to all points of a scenario with axes.
struct PointOptions<'a> {
    file: &'a Path,
    seed: Option<u64>,
    seeds: Option<u64>,
    /// Policies under which each point is run. Empty for the scenario's own policy.
    policies: &'a [String],
    /// Metrics to show in place of the usual table.
    metrics: &'a [String],
}

fn run(
    grid: &Grid,
    asked: &PointOptions<'_>,
    as_json: bool,
    (csv, cdf): (Option<Csv>, Option<CumulativeFile>),
) -> Result<(), Problem> {
    let own = [grid.points[0].scenario.policy.spec.name.to_string()];
    let policies = if asked.policies.is_empty() { &own[..] } else { asked.policies };
    let mut scenarios = Vec::new();
    for policy in policies {
        for point in &grid.points {
            let mut scenario = point.scenario.clone();
            if !asked.policies.is_empty() {
                scenario = input::under(asked.file, &scenario, policy)?;
            }
            can_run(asked.file, point, &scenario)?;
            scenarios.push(with_seed(scenario, asked.seed.unwrap_or(point.scenario.seed)));
        }
    }
    let metrics = Metrics::read(asked.metrics, &scenarios)?;
    let seeds = seeds::seeds(&scenarios[0], asked.seeds)?;
    let meters = if cdf.is_some() { Meters::with_cumulative } else { Meters::new };
    let runs = seeds::simulated_into(asked.file, &scenarios, &seeds, meters)?;
    let finished = runs.finished();
    let places = policies.iter().flat_map(|policy| grid.points.iter().map(move |it| (policy, it)));
    let cases = places.clone().zip(finished).map(|((policy, point), runs)| Case {
        name: policy.clone(),
        point: grid.point(&point.place),
        runs,
    });
    let cases: Vec<Case> = cases.collect();
    if as_json {
        terminal::print(&json::cases(&cases, &seeds, json::Completion::of(&runs.was_whole())))?;
    } else {
        terminal::say(&match metrics.is_empty() {
            true => table(grid, policies, &cases),
            false => metrics.table(&cases, grid.points.len()),
        })?;
    }
    if let Some(csv) = csv {
        csv.keep(&cases)?;
    }
    if let Some(cdf) = cdf {
        let cases = cases.iter().map(|case| (case.name.as_str(), case.point.as_slice()));
        cdf.keep(&CumulativeRun::all(&runs, cases))?;
    }
    let name = |(policy, point): (&String, &Point)| match policies.len() {
        1 => point.name.clone(),
        _ => format!("{policy} at {}", point.name),
    };
    terminal::tell(&runs.missing(&places.map(name).collect::<Vec<_>>(), &seeds));
    runs.was_whole()?;
    check(grid, asked.file, (&scenarios, &cases))
}

/// Checks that a point can be run: no claim expects its refusal, and it passes admission.
fn can_run(file: &Path, point: &Point, scenario: &Scenario) -> Result<(), Problem> {
    if expects_refusal(scenario) {
        let hint = "remove the claim `refused`, or use `slackline check`";
        let what = "cannot run a scenario with the claim `refused`: a refused run has no metrics";
        return Err(point.wrong(file, what, hint));
    }
    point.admitted(file, scenario)
}

fn table(grid: &Grid, policies: &[String], cases: &[Case]) -> String {
    let scenario = &grid.points[0].scenario;
    let names: Vec<&str> = grid.axes.iter().map(Axis::name).collect();
    let points: Vec<&str> = grid.points.iter().map(|point| point.name.as_str()).collect();
    let count = points.len();
    let column = |(policy, cases): (&String, &[Case])| {
        (policy.clone(), cases.iter().map(|case| case.runs.clone()).collect::<Vec<_>>())
    };
    let columns: Vec<(String, Vec<Vec<Summary>>)> =
        policies.iter().zip(cases.chunks(count)).map(column).collect();
    let title = format!("{}, over {}\n\n", scenario.title, names.join(" / "));
    title
        + &over_points((&names.join("/"), &points), &columns, terminal::width(), terminal::paint())
}

/// Checks the claims of each point on the runs under the policy that the scenario names. Runs under
/// other policies are not checked.
fn check(
    grid: &Grid,
    file: &Path,
    (scenarios, cases): (&[Scenario], &[Case]),
) -> Result<(), Problem> {
    let mut failed = 0;
    for (scenario, (point, case)) in scenarios.iter().zip(grid.points.iter().cycle().zip(cases)) {
        if scenario.policy.to_string() != point.scenario.policy.to_string() {
            continue;
        }
        let checked: Vec<_> = case.runs.iter().map(claims::CheckedRun::sim).collect();
        match claims::check_at(&point.name, file, scenario, &checked) {
            Err(Problem::ClaimsFailed(count)) => failed += count,
            result => result?,
        }
    }
    if failed == 0 { Ok(()) } else { Err(Problem::ClaimsFailed(failed)) }
}

/// CSV file with a line for each vCPU in each run.
pub(crate) struct Csv(Pending, Out);

impl Csv {
    pub(crate) fn begin(file: &Path) -> Result<Csv, Problem> {
        let (pending, out) = Pending::new(file)?;
        Ok(Csv(pending, out))
    }

    pub(crate) fn keep(self, cases: &[Case]) -> Result<(), Problem> {
        let Csv(pending, mut out) = self;
        let text = lines(cases);
        pending.keep(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
    }
}

fn lines(cases: &[Case]) -> String {
    let mut text = String::new();
    for Case { name, point, runs } in cases {
        for run in runs {
            for fields in run.vcpu_fields() {
                if text.is_empty() {
                    let axes: Vec<&str> = point.iter().map(|(axis, _)| axis.as_str()).collect();
                    let fields = fields.iter().map(|&(field, _)| field);
                    let others: Vec<&str> = ["policy", "seed"].into_iter().chain(fields).collect();
                    let axes = axis_headings(&axes, &others);
                    let axes = axes.iter().map(|axis| quoted(axis));
                    let all = axes.chain(others.iter().map(|&other| other.to_owned()));
                    let _ = writeln!(text, "{}", all.collect::<Vec<_>>().join(","));
                }
                let place = point.iter().map(|(_, name)| quoted(name));
                let fields = fields.iter().map(|(_, value)| written(value));
                let all = place.chain([quoted(name), run.seed.to_string()]).chain(fields);
                let _ = writeln!(text, "{}", all.collect::<Vec<_>>().join(","));
            }
        }
    }
    text
}

/// Formats a value as a CSV cell.
fn written(value: &FieldValue) -> String {
    match value {
        FieldValue::Text(text) => quoted(text),
        FieldValue::Count(count) => count.to_string(),
        FieldValue::Signed(number) => number.to_string(),
        FieldValue::Flag(flag) => flag.to_string(),
        FieldValue::Missing => String::new(),
    }
}
