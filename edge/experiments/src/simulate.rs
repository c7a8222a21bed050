//! One run on the simulated host.

use std::ops::ControlFlow;

use slackline_metrics::StrayRecord;
use slackline_scenario::Scenario;
use slackline_sim::{Finished, RunError};
use slackline_units::Time;
use thiserror::Error;

use crate::header;
use crate::numbers::{Meters, Numbers};

/// What came of a simulation.
#[derive(Debug)]
pub struct Simulated {
    /// Its numbers.
    pub numbers: Numbers,
    /// What it tells besides its trace.
    pub finished: Finished,
}

/// Why there are no numbers of a simulation.
#[derive(Debug, Error)]
pub enum SimulateError {
    /// It did not come to its end.
    #[error(transparent)]
    Run(#[from] RunError),
    /// It told of somebody who is not known: a bug.
    #[error(transparent)]
    Stray(#[from] StrayRecord),
}

/// The same scenario with another seed.
#[must_use]
pub fn with_seed(mut scenario: Scenario, seed: u64) -> Scenario {
    scenario.seed = seed;
    scenario
}

/// Simulates a scenario for its numbers alone.
///
/// # Errors
/// When it says something wrong, asks for more than can be promised, or breaks the contract.
pub fn simulate(scenario: &Scenario) -> Result<Simulated, SimulateError> {
    let to_the_end = |_| ControlFlow::Continue(());
    let whole = simulate_while(scenario, to_the_end)?;
    Ok(whole.expect("nobody breaks it off"))
}

/// As [`simulate`], as long as `watch`, which is told the simulated time now and then, wants it to
/// go on; none if it does not until the end.
///
/// # Errors
/// As for [`simulate`].
pub fn simulate_while(
    scenario: &Scenario,
    mut watch: impl FnMut(Time) -> ControlFlow<()>,
) -> Result<Option<Simulated>, SimulateError> {
    let mut meters = Meters::new(&header::of_simulation(scenario));
    let finished = slackline_sim::run_while(scenario, &mut meters, &mut watch)?;
    if finished.stopped.is_some() {
        return Ok(None);
    }
    Ok(Some(Simulated { numbers: meters.finish()?, finished }))
}
