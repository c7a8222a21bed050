//! The long form of the simulation test of the service (crate `service`).

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::step;

/// Environment variable with the range of seeds for the test.
const SEEDS: &str = "SLACKLINE_SEEDS";

/// Runs the simulated service with `seeds` seeds, starting at the seed `from`, and prints the
/// duration.
///
/// # Errors
///
/// If an argument is no integer, or cargo cannot be started.
pub fn run(seeds: &str, from: &str) -> Result<ExitCode> {
    for number in [seeds, from] {
        number.parse::<u64>().with_context(|| format!("`{number}` is not a number of seeds"))?;
    }
    let mut build = step::cargo();
    build.args(["test", "-p", "slackline-service", "--locked", "--test", "simulation"]);
    step::run(build.arg("--no-run"))?;
    let began = Instant::now();
    let mut cargo = step::cargo();
    cargo.args(["test", "-p", "slackline-service", "--locked", "--test", "simulation"]);
    let status = cargo.arg("whatever").env(SEEDS, format!("{seeds} from {from}")).status()?;
    println!("{seeds} seeds, the first is {from}, in {:.1} s", began.elapsed().as_secs_f64());
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
