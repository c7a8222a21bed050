//! The long form of the tests of the workload manager (crate `manager`).

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::step;

/// Environment variable with the number of seeds for the test.
const SEEDS: &str = "SLACKLINE_MANAGER_SEEDS";

/// Environment variable with the number of seeds for the test with the real predictor.
const RUNS: &str = "SLACKLINE_MANAGER_RUNS";

/// Runs random rounds of the manager with `seeds` seeds, in an optimised build, and prints the
/// duration.
///
/// # Errors
///
/// If the argument is no integer, or cargo cannot be started.
pub fn run(seeds: &str) -> Result<ExitCode> {
    let tests = ["-p", "slackline-manager", "--test", "properties"];
    run_test(&tests, "lying", (SEEDS, seeds))
}

/// Simulates `seeds` random hosts with a manager that predicts with `whatif`, and prints the
/// duration.
///
/// # Errors
///
/// If the argument is no integer, or cargo cannot be started.
pub fn run_with_predictor(seeds: &str) -> Result<ExitCode> {
    run_test(&["-p", "slackline-experiments", "--lib"], "real_predictor", (RUNS, seeds))
}

fn run_test(package: &[&str], test: &str, (variable, seeds): (&str, &str)) -> Result<ExitCode> {
    seeds.parse::<u64>().with_context(|| format!("`{seeds}` is not a number of seeds"))?;
    let mut tests = vec!["test", "--release", "--locked"];
    tests.extend(package);
    step::run(step::cargo().args(&tests).arg("--no-run"))?;
    let began = Instant::now();
    let status = step::cargo().args(&tests).arg(test).env(variable, seeds).status()?;
    println!("{seeds} seeds in {:.1} s", began.elapsed().as_secs_f64());
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
