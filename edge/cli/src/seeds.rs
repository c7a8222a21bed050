//! Runs of scenarios with several seeds.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

use slackline_experiments::grid::{self, GridError};
use slackline_experiments::{SimulateError, Simulated, simulate_while, with_seed};
use slackline_metrics::Summary;
use slackline_scenario::Scenario;

use crate::bug;
use crate::problem::Problem;
use crate::signals::stop_flag;
use crate::terminal::Counter;

/// Returns `count` consecutive seeds from the scenario's own on. Only that one if `count` is
/// `None`.
pub(crate) fn seeds(scenario: &Scenario, count: Option<u64>) -> Result<Vec<u64>, Problem> {
    let (first, count) = (scenario.seed, count.unwrap_or(1));
    let last = first.checked_add(count - 1).ok_or_else(|| Problem::BadOption {
        message: format!("cannot use {count} seeds from {first} on: the largest is {}", u64::MAX),
        hint: Some("write --seed 1".into()),
    })?;
    Ok((first..=last).collect())
}

/// Simulates all scenarios with all seeds, on all cores, until a signal asks to stop.
pub(crate) fn simulated(
    file: &Path,
    scenarios: &[Scenario],
    seeds: &[u64],
) -> Result<Runs, Problem> {
    let (counter, stop) = (Counter::new("simulated"), stop_flag()?);
    let goes_on = || match stop.load(Ordering::Relaxed) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let watch = |done| {
        counter.at(done);
        goes_on()
    };
    let one = |scenario: &Scenario, seed| {
        simulate_while(&with_seed(scenario.clone(), seed), |_| goes_on())
    };
    let results = grid::run_some(scenarios, seeds, &watch, one).map_err(|error| match error {
        GridError::Run { case, seed, error: SimulateError::Run(error) } => {
            bug::explain(file, &with_seed(scenarios[case].clone(), seed), error)
        }
        GridError::Run { error: SimulateError::Stray(stray), .. } => Problem::of_stray(stray),
        GridError::Stopped(_) => Problem::Interrupted,
    })?;
    let summary = |run: Option<Simulated>| run.map(|run| run.numbers.summary);
    let results = results.into_iter().map(|runs| runs.into_iter().map(summary).collect());
    Ok(Runs(results.collect()))
}

/// Results by scenario and then by seed. `None` for runs that a signal has interrupted.
#[derive(Debug)]
pub(crate) struct Runs(Vec<Vec<Option<Summary>>>);

/// Most scenarios that are named as not run.
const MOST_MISSING: usize = 10;

impl Runs {
    /// Returns the results of the complete runs, by scenario.
    pub(crate) fn finished(&self) -> Vec<Vec<Summary>> {
        self.0.iter().map(|runs| runs.iter().flatten().cloned().collect()).collect()
    }

    /// Returns an error if a run is not complete.
    pub(crate) fn was_whole(&self) -> Result<(), Problem> {
        match self.0.iter().flatten().all(Option::is_some) {
            true => Ok(()),
            false => Err(Problem::Interrupted),
        }
    }

    /// Returns a note on the runs that are not complete. Empty if all are.
    pub(crate) fn missing(&self, names: &[String], seeds: &[u64]) -> String {
        let all = self.0.iter().flatten();
        let (of, finished) = (all.clone().count(), all.flatten().count());
        if finished == of {
            return String::new();
        }
        let missing = |(name, runs): (&String, &Vec<Option<Summary>>)| {
            let without = seeds.iter().zip(runs).filter(|(_, run)| run.is_none());
            let without: Vec<String> = without.map(|(seed, _)| seed.to_string()).collect();
            match without.len() {
                0 => None,
                count if count == runs.len() => Some(name.clone()),
                1 => Some(format!("{name} with seed {}", without[0])),
                _ => Some(format!("{name} with seeds {}", without.join(" "))),
            }
        };
        let missing: Vec<String> = names.iter().zip(&self.0).filter_map(missing).collect();
        let mut named = missing[..missing.len().min(MOST_MISSING)].join(", ");
        if let Some(more @ 1..) = missing.len().checked_sub(MOST_MISSING) {
            named += &format!(", and {more} more");
        }
        format!("note: stopped after {finished} of {of} runs; not run: {named}\n")
    }
}
