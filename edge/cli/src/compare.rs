//! `slackline compare`: one scenario, several runs, one table.

use std::path::Path;

use slackline_metrics::Summary;
use slackline_runs::grid::{self, GridError};
use slackline_runs::{SimulateError, simulate};
use slackline_scenario::Scenario;
use slackline_show::side_by_side;

use crate::args::{Compare, Keeping};
use crate::places::Places;
use crate::problem::Problem;
use crate::terminal::{self, Counter};
use crate::{claims, input, json, run, sim};

pub(crate) fn compare(args: &Compare) -> Result<(), Problem> {
    let scenario = input::scenario(&args.file, args.length, &Places::of(&[])?)?;
    let own = scenario.policy.spec.name.to_string();
    let policies = if args.policies.is_empty() { vec![own.clone()] } else { args.policies.clone() };
    let scenarios = policies.iter().map(|policy| input::under(&args.file, &scenario, policy));
    let scenarios = scenarios.collect::<Result<Vec<_>, _>>()?;
    let simulated = simulated(&args.file, &scenarios)?;
    let mut lives = Vec::new();
    for scenario in scenarios.iter().filter(|_| args.live || args.live_if_possible) {
        match run::live(&args.file, scenario, args.cpus.as_deref(), &Keeping::default()) {
            Ok(live) => lives.push(live),
            Err(problem) if args.live_if_possible && problem.is_about_the_host() => {
                terminal::report(&problem);
                terminal::tell("note:  simulated only\n\n");
                break;
            }
            Err(problem) => return Err(problem),
        }
        if lives.last().is_some_and(|live| live.was_whole().is_err()) {
            break;
        }
    }
    // With one policy the machines are what differs, with several the policies.
    let heading = |policy: &str, machine: &str, alone: &str| match (policies.len(), lives.len()) {
        (_, 0) => policy.to_string(),
        (1, _) => alone.to_string(),
        _ => format!("{policy}, {machine}"),
    };
    let mut runs: Vec<(String, &Summary)> = Vec::new();
    for (number, (policy, summary)) in policies.iter().zip(&simulated).enumerate() {
        runs.push((heading(policy, "simulated", "simulated"), summary));
        if let Some(live) = lives.get(number) {
            runs.push((heading(policy, "live", "delivered"), live.summary()));
        }
    }
    let runs: Vec<(&str, &Summary)> =
        runs.iter().map(|(name, run)| (name.as_str(), *run)).collect();
    if args.json {
        terminal::print(&json::runs(&runs))?;
    } else {
        let notes: String =
            lives.iter().zip(&scenarios).map(|(live, scenario)| live.notes(scenario)).collect();
        terminal::print(&(side_by_side(&runs) + &notes))?;
    }
    lives.iter().try_for_each(run::Live::was_whole)?;
    // Claims are about the scenario's own policy.
    let of_own = |number: &usize| policies[*number] == own;
    let mut checked = Vec::new();
    for number in (0..policies.len()).filter(of_own) {
        checked.push(claims::Checked::sim(&simulated[number]));
        checked.extend(lives.get(number).map(|live| claims::Checked::live(live.summary())));
    }
    claims::check(&args.file, &scenario, &checked)
}

/// Simulates all of them, each with the seed it has.
fn simulated(file: &Path, scenarios: &[Scenario]) -> Result<Vec<Summary>, Problem> {
    let counter = Counter::new("simulated");
    let watch = |done| counter.at(done);
    let one = |scenario: &Scenario, _| simulate(scenario);
    let seeds: Vec<u64> = scenarios.first().map(|scenario| scenario.seed).into_iter().collect();
    let results = grid::run(scenarios, &seeds, &watch, one).map_err(|error| match error {
        GridError::Run { case, error: SimulateError::Run(error), .. } => {
            sim::explain(file, &scenarios[case], error)
        }
        GridError::Run { error: SimulateError::Stray(stray), .. } => Problem::of_stray(stray),
        GridError::Stopped(_) => Problem::Interrupted,
    })?;
    Ok(results.into_iter().flatten().map(|done| done.numbers.summary).collect())
}
