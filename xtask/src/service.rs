//! The long form of the simulation test of the service (crate `service`).

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::{long_run, step};

/// Environment variable with the range of seeds for the test.
const SEEDS: &str = "SLACKLINE_SEEDS";

/// Name of the test.
const TEST: &str = "random_faults_leave_each_command_completely_done_or_reverted";

/// Runs the simulated service with `seeds` seeds, starting at the seed `from`, and prints the
/// duration.
///
/// # Errors
///
/// If an argument is no integer, cargo cannot be started, or no test is run.
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
    cargo.args([TEST, "--", "--exact"]).env(SEEDS, format!("{seeds} from {from}"));
    let code = long_run::run(&mut cargo)?;
    println!("{seeds} seeds, the first is {from}, in {:.1} s", began.elapsed().as_secs_f64());
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_and_environment_variable_used_by_xtask_service_exist() {
        let test = format!("fn {TEST}(");
        long_run::assert_source_names("pure/service/tests/simulation/main.rs", &[&test, SEEDS]);
    }
}
