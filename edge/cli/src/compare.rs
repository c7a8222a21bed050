//! `slackline compare`: runs one scenario several times and shows one table.

mod report;

use slackline_experiments::{Meters, with_seed};
use slackline_metrics::Summary;
use slackline_scenario::Scenario;
use slackline_terminal::{over_runs, side_by_side};
use slackline_trace::Header;
use slackline_units::Time;

use crate::args::{Compare, Keeping};
use crate::claims::CheckedRun;
use crate::cumulative::{CumulativeFile, CumulativeRun};
use crate::grid::{self, Input};
use crate::json::Case;
use crate::metric::Metrics;
use crate::places::Places;
use crate::points::Csv;
use crate::problem::Problem;
use crate::report::timeline::RunTimeline;
use crate::run::{self, Live};
use crate::{claims, input, json, points, seeds, terminal};

/// A comparison of policies, with its results.
struct PolicyComparison {
    /// The scenario with the policy that its file names.
    scenario: Scenario,
    /// Names of the compared policies, as the user gave them.
    policies: Vec<String>,
    /// The scenario under each compared policy.
    scenarios: Vec<Scenario>,
    /// Results of the simulated runs, by policy and then by seed.
    simulated: Vec<Vec<Summary>>,
    /// Results of the live runs, by policy and then by seed. Policies without live runs are
    /// missing.
    lives: Vec<Vec<Live>>,
    /// Timelines of the live runs with the first seed, by policy, in the form that the report uses.
    /// Empty if no report is requested.
    live_timelines: Vec<String>,
}

/// Results of live runs, by policy and then by seed, and the timelines of the runs with the first
/// seed.
type LiveRuns = (Vec<Vec<Live>>, Vec<String>);

pub(crate) fn compare(args: &Compare) -> Result<(), Problem> {
    let places = Places::of(&[
        ("--csv", args.csv.as_deref()),
        ("--cdf", args.cdf.as_deref()),
        ("--report", args.report.as_deref()),
    ])?;
    input::without_repeats(&args.policies)?;
    let mut scenario = match grid::read(&args.file, args.length, &places)? {
        Input::One(scenario) => *scenario,
        Input::Grid(grid) => return points::compare(args, &grid),
    };
    let csv = args.csv.as_deref().map(Csv::begin).transpose()?;
    let cdf = args.cdf.as_deref().map(CumulativeFile::begin).transpose()?;
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    let own = scenario.policy.spec.name.to_string();
    let policies = if args.policies.is_empty() { vec![own] } else { args.policies.clone() };
    let scenarios = policies.iter().map(|policy| input::under(&args.file, &scenario, policy));
    let scenarios = scenarios.collect::<Result<Vec<_>, _>>()?;
    let metrics = Metrics::read(&args.metric, &scenarios)?;
    let seeds = seeds::seeds(&scenario, args.seeds)?;
    let wants_distributions = cdf.is_some() || args.report.is_some();
    let meters = if wants_distributions { Meters::with_cumulative } else { Meters::new };
    let runs = seeds::simulated_into(&args.file, &scenarios, &seeds, meters)?;
    let simulated = runs.finished();
    let (lives, live_timelines) = match runs.was_whole() {
        Ok(()) => live(args, &scenarios, &seeds)?,
        Err(_) => LiveRuns::default(),
    };
    let not_run = runs.missing(&policies, &seeds);
    let compared =
        PolicyComparison { scenario, policies, scenarios, simulated, lives, live_timelines };
    let cases = compared.cases();
    let mut lives = compared.lives.iter().flatten();
    let whole = runs.was_whole().and_then(|()| lives.try_for_each(Live::was_whole));
    if args.json {
        terminal::print(&json::cases(&cases, &seeds, json::Completion::of(&whole)))?;
    } else if !cases.is_empty() {
        let table = match metrics.is_empty() {
            true => table(&cases, &seeds),
            false => metrics.table(&cases, 1),
        };
        terminal::say(&(table + &compared.notes()))?;
    }
    if let Some(csv) = csv {
        csv.keep(&cases)?;
    }
    if let Some(file) = &args.report {
        report::write((file, &args.file), &compared, &runs, (&cases, &seeds))?;
    }
    if let Some(cdf) = cdf {
        cdf.keep(&CumulativeRun::all(
            &runs,
            compared.policies.iter().map(|policy| (policy.as_str(), &[][..])),
        ))?;
    }
    terminal::tell(&(not_run + &compared.not_run_live(args, &seeds)));
    whole?;
    compared.check(args)
}

fn table(cases: &[Case], seeds: &[u64]) -> String {
    if seeds.len() > 1 {
        let cases: Vec<_> =
            cases.iter().map(|case| (case.name.as_str(), case.runs.as_slice())).collect();
        return over_runs(&cases, terminal::width(), terminal::paint());
    }
    let runs = cases.iter().filter_map(|case| Some((case.name.as_str(), case.runs.first()?)));
    side_by_side(&runs.collect::<Vec<_>>(), terminal::columns())
}

/// Runs the scenarios on this host, if the user requested that. With `--live`, a scenario that this
/// host cannot run is an error. With `--live-if-possible`, such a scenario ends the live runs, and
/// the results so far are returned.
fn live(args: &Compare, scenarios: &[Scenario], seeds: &[u64]) -> Result<LiveRuns, Problem> {
    let (mut lives, mut timelines) = LiveRuns::default();
    for scenario in scenarios.iter().filter(|_| args.live || args.live_if_possible) {
        let mut runs = Vec::new();
        for &seed in seeds {
            let scenario = with_seed(scenario.clone(), seed);
            // A timeline is made in each run, so that all runs do the same work.
            let end = Time::START.after(scenario.length);
            let timeline =
                |header: &Header| args.report.is_some().then(|| RunTimeline::new(header, end));
            let keeping = Keeping::default();
            match run::live_into(&args.file, &scenario, args.cpus.as_deref(), &keeping, timeline) {
                Ok((live, timeline)) => {
                    runs.push(live);
                    timelines.extend(timeline.filter(|_| seed == seeds[0]).map(|it| it.finish().1));
                }
                Err(problem) if args.live_if_possible && problem.is_about_the_host() => {
                    terminal::report(&problem);
                    terminal::tell(
                        "note:  no live run is possible here, so only simulated runs follow\n\n",
                    );
                    return Ok((lives, timelines));
                }
                Err(problem) => return Err(problem),
            }
            if runs.last().is_some_and(|live| live.was_whole().is_err()) {
                lives.push(runs);
                return Ok((lives, timelines));
            }
        }
        lives.push(runs);
    }
    Ok((lives, timelines))
}

impl PolicyComparison {
    /// Returns the columns of the table. With one policy, their headings are `simulated` and
    /// `live`. With several policies, the headings are the names of the policies.
    fn cases(&self) -> Vec<Case> {
        let heading = |policy: &str, machine: &str, alone: &str| match (
            self.policies.len(),
            self.lives.len(),
        ) {
            (_, 0) => policy.to_string(),
            (1, _) => alone.to_string(),
            _ => format!("{policy}, {machine}"),
        };
        let mut cases = Vec::new();
        for (number, (policy, runs)) in self.policies.iter().zip(&self.simulated).enumerate() {
            cases.push(Case::new(heading(policy, "simulated", "simulated"), runs.clone()));
            if let Some(lives) = self.lives.get(number) {
                let runs = lives.iter().map(|live| live.summary().clone()).collect();
                cases.push(Case::new(heading(policy, "live", "delivered"), runs));
            }
        }
        cases.retain(|case| !case.runs.is_empty());
        cases
    }

    /// Returns a note about live runs that were left out because of a signal.
    fn not_run_live(&self, args: &Compare, seeds: &[u64]) -> String {
        let of = self.policies.len() * seeds.len();
        let was_stopped = self.lives.iter().flatten().any(|live| live.was_whole().is_err());
        let begun = self.lives.iter().flatten().count();
        if !(args.live || args.live_if_possible) || !was_stopped || begun == of {
            return String::new();
        }
        format!("note: stopped in live run {begun} of {of}; later live runs were not started\n")
    }

    /// Returns true if the policy with this number is the policy of the scenario. The claims of the
    /// scenario apply only to runs under that policy.
    fn is_own(&self, number: usize) -> bool {
        self.scenarios[number].policy.to_string() == self.scenario.policy.to_string()
    }

    /// Returns notes about the live runs, and about policies under which no claim was checked.
    fn notes(&self) -> String {
        let mut text = String::new();
        for (lives, scenario) in self.lives.iter().zip(&self.scenarios) {
            lives.iter().for_each(|live| text += &live.notes(scenario));
        }
        let others = (0..self.policies.len()).filter(|&number| !self.is_own(number));
        let others: Vec<&str> = others.map(|number| self.policies[number].as_str()).collect();
        if !others.is_empty() && !self.scenario.claims.is_empty() {
            let (own, others) = (&self.scenario.policy, others.join(", "));
            text += &format!(
                "note: claims were checked only under the scenario's policy {own}, \
                 not under {others}\n"
            );
        }
        text
    }

    /// Returns the runs on which claims are checked: all runs under the policy of the scenario.
    /// Each run comes with the index of that policy in `policies`.
    fn checked(&self) -> impl Iterator<Item = (usize, CheckedRun<'_>)> {
        let own = (0..self.policies.len()).filter(|&number| self.is_own(number));
        own.flat_map(|number| {
            let simulated = self.simulated[number].iter().map(CheckedRun::sim);
            let lives = self.lives.get(number).into_iter().flatten();
            let lives = lives.map(|live| CheckedRun::live(live.summary()));
            simulated.chain(lives).map(move |run| (number, run))
        })
    }

    /// Checks the claims on all runs under the policy of the scenario.
    fn check(&self, args: &Compare) -> Result<(), Problem> {
        let checked: Vec<_> = self.checked().map(|(_, run)| run).collect();
        claims::check(&args.file, &self.scenario, &checked)
    }
}
