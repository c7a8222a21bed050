//! Runs of scenarios with several seeds.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

use slackline_metrics::Summary;
use slackline_runs::grid::{self, GridError};
use slackline_runs::{SimulateError, simulate, with_seed};
use slackline_scenario::Scenario;

use crate::bug;
use crate::problem::Problem;
use crate::signals::stop_flag;
use crate::terminal::Counter;

/// So many seeds, from the scenario's own on; that one alone where no number is asked for.
pub(crate) fn seeds(scenario: &Scenario, count: Option<u64>) -> Result<Vec<u64>, Problem> {
    let (first, count) = (scenario.seed, count.unwrap_or(1));
    let last = first.checked_add(count - 1).ok_or_else(|| Problem::BadOption {
        message: format!("there are no {count} seeds from {first} on"),
        hint: Some("write --seed 1".into()),
    })?;
    Ok((first..=last).collect())
}

/// Simulates all of them with all seeds, over all cores: by scenario, then by seed.
pub(crate) fn simulated(
    file: &Path,
    scenarios: &[Scenario],
    seeds: &[u64],
) -> Result<Vec<Vec<Summary>>, Problem> {
    let (counter, stop) = (Counter::new("simulated"), stop_flag()?);
    let watch = |done| match stop.load(Ordering::Relaxed) {
        true => ControlFlow::Break(()),
        false => counter.at(done),
    };
    let one = |scenario: &Scenario, seed| simulate(&with_seed(scenario.clone(), seed));
    let results = grid::run(scenarios, seeds, &watch, one).map_err(|error| match error {
        GridError::Run { case, seed, error: SimulateError::Run(error) } => {
            bug::explain(file, &with_seed(scenarios[case].clone(), seed), error)
        }
        GridError::Run { error: SimulateError::Stray(stray), .. } => Problem::of_stray(stray),
        GridError::Stopped(_) => Problem::Interrupted,
    })?;
    let summaries = |runs: Vec<slackline_runs::Simulated>| {
        runs.into_iter().map(|run| run.numbers.summary).collect()
    };
    Ok(results.into_iter().map(summaries).collect())
}
