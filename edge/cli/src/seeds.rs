//! Runs of scenarios with several seeds.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

use slackline_experiments::grid::{self, GridError};
use slackline_experiments::{
    Meters, Numbers, SimulateError, SimulationResults, header, simulate_into, with_seed,
};
use slackline_metrics::{Cumulative, Summary};
use slackline_scenario::Scenario;
use slackline_trace::Header;

use crate::bug;
use crate::counted::counted;
use crate::problem::Problem;
use crate::signals::stop_flag;
use crate::terminal::Counter;

/// Returns `count` consecutive seeds, beginning with the scenario's own. Returns only the
/// scenario's own seed if `count` is `None`.
pub(crate) fn seeds(scenario: &Scenario, count: Option<u64>) -> Result<Vec<u64>, Problem> {
    let (first, count) = (scenario.seed, count.unwrap_or(1));
    let last = first.checked_add(count - 1).ok_or_else(|| Problem::BadOption {
        message: format!(
            "cannot use {count} seeds from {first} on: the largest seed is {}",
            u64::MAX
        ),
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
    simulated_into(file, scenarios, seeds, Meters::new)
}

/// Simulates all scenarios with all seeds, as [`simulated`] does. `meters` selects what is measured
/// in each run.
pub(crate) fn simulated_into(
    file: &Path,
    scenarios: &[Scenario],
    seeds: &[u64],
    meters: fn(&Header) -> Meters,
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
        let scenario = with_seed(scenario.clone(), seed);
        simulate_into(&scenario, meters(&header::of_simulation(&scenario)), |_| goes_on())
    };
    let results = grid::run_some(scenarios, seeds, &watch, one).map_err(|error| match error {
        GridError::Run { case, seed, error: SimulateError::Run(error) } => {
            bug::explain(file, &with_seed(scenarios[case].clone(), seed), error)
        }
        GridError::Run { error: SimulateError::Stray(stray), .. } => Problem::of_stray(stray),
        GridError::Stopped(_) => Problem::Interrupted,
    })?;
    let numbers = |run: Option<SimulationResults>| run.map(|run| run.numbers);
    let results = results.into_iter().map(|runs| runs.into_iter().map(numbers).collect());
    Ok(Runs(results.collect()))
}

/// Results of runs, by scenario and then by seed. If a signal has interrupted a run, its result is
/// `None`.
#[derive(Debug)]
pub(crate) struct Runs(Vec<Vec<Option<Numbers>>>);

/// Maximum number of scenarios that a note names as not run.
const MOST_MISSING: usize = 10;

impl Runs {
    /// Returns the results of the complete runs, by scenario.
    pub(crate) fn finished(&self) -> Vec<Vec<Summary>> {
        let summary = |run: &Numbers| run.summary.clone();
        self.0.iter().map(|runs| runs.iter().flatten().map(summary).collect()).collect()
    }

    /// Returns the cumulative distributions of the complete runs, by scenario. Each distribution
    /// comes with the seed of its run.
    pub(crate) fn cumulative<'a>(&'a self) -> Vec<Vec<(u64, &'a [Cumulative])>> {
        let of = |runs: &'a Vec<Option<Numbers>>| {
            let runs = runs.iter().flatten();
            runs.map(|run| (run.summary.seed, run.cumulative.as_deref().unwrap_or(&[]))).collect()
        };
        self.0.iter().map(of).collect()
    }

    /// Returns an error if any run is not complete.
    pub(crate) fn was_whole(&self) -> Result<(), Problem> {
        match self.0.iter().flatten().all(Option::is_some) {
            true => Ok(()),
            false => Err(Problem::Interrupted),
        }
    }

    /// Returns a note on the runs that are not complete. Empty if all runs are complete.
    pub(crate) fn missing(&self, names: &[String], seeds: &[u64]) -> String {
        let all = self.0.iter().flatten();
        let (of, finished) = (all.clone().count(), all.flatten().count());
        if finished == of {
            return String::new();
        }
        let missing = |(name, runs): (&String, &Vec<Option<Numbers>>)| {
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
        let of = counted(of, "run");
        format!("note: stopped after {finished} of {of}; not run: {named}\n")
    }
}
