//! The long form of the tests of the workload manager (crate `manager`).

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::step;

/// Environment variable that tells the test its number of seeds.
const SEEDS: &str = "SLACKLINE_MANAGER_SEEDS";

/// Runs drawn rounds with `seeds` seeds, optimised, and prints the duration.
///
/// # Errors
///
/// If the argument is no integer, or cargo cannot be started.
pub fn run(seeds: &str) -> Result<ExitCode> {
    seeds.parse::<u64>().with_context(|| format!("`{seeds}` is not a number of seeds"))?;
    let tests =
        ["test", "--release", "-p", "slackline-manager", "--locked", "--test", "properties"];
    step::run(step::cargo().args(tests).arg("--no-run"))?;
    let began = Instant::now();
    let status = step::cargo().args(tests).arg("lying").env(SEEDS, seeds).status()?;
    println!("{seeds} seeds in {:.1} s", began.elapsed().as_secs_f64());
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
