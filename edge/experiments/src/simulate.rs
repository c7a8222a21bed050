//! Simulation of one run, with its results.

use std::ops::ControlFlow;

use slackline_metrics::StrayRecord;
use slackline_scenario::Scenario;
use slackline_sim::{RunError, SimResults};
use slackline_units::Time;
use thiserror::Error;

use crate::header;
use crate::numbers::{Meters, Numbers};

/// Results of a simulation.
#[derive(Debug)]
pub struct SimulationResults {
    /// Results that are computed from the records of the run.
    pub numbers: Numbers,
    /// Results that the simulator returns in addition to the records.
    pub finished: SimResults,
}

/// Reason why a simulation has no results.
#[derive(Debug, Error)]
pub enum SimulateError {
    /// The run did not complete.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A record is about an unknown vCPU or CPU, which is a bug.
    #[error(transparent)]
    Stray(#[from] StrayRecord),
}

/// Returns the same scenario with another seed.
#[must_use]
pub fn with_seed(mut scenario: Scenario, seed: u64) -> Scenario {
    scenario.seed = seed;
    scenario
}

/// Simulates a scenario and returns its results. No files are written.
///
/// # Errors
/// If the scenario is invalid or not admitted, or if the contract between policy and host is
/// broken.
pub fn simulate(scenario: &Scenario) -> Result<SimulationResults, SimulateError> {
    let to_the_end = |_| ControlFlow::Continue(());
    let whole = simulate_while(scenario, to_the_end)?;
    Ok(whole.expect("the run is not stopped"))
}

/// Simulates a scenario like [`simulate`]. `watch` is called at intervals with the simulated time,
/// and can stop the run. The result is `None` if the run was stopped.
///
/// # Errors
/// As for [`simulate`].
pub fn simulate_while(
    scenario: &Scenario,
    watch: impl FnMut(Time) -> ControlFlow<()>,
) -> Result<Option<SimulationResults>, SimulateError> {
    simulate_into(scenario, Meters::new(&header::of_simulation(scenario)), watch)
}

/// Simulates a scenario like [`simulate_while`], and computes the results with `meters`.
///
/// # Errors
/// As for [`simulate`].
pub fn simulate_into(
    scenario: &Scenario,
    mut meters: Meters,
    mut watch: impl FnMut(Time) -> ControlFlow<()>,
) -> Result<Option<SimulationResults>, SimulateError> {
    let finished = slackline_sim::run_while(scenario, &mut meters, &mut watch)?;
    if finished.stopped.is_some() {
        return Ok(None);
    }
    Ok(Some(SimulationResults { numbers: meters.finish()?, finished }))
}
