//! The long form of the tests of the workload manager (crate `manager`).

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::{long_run, step};

/// Environment variable with the number of seeds for the test.
const SEEDS: &str = "SLACKLINE_MANAGER_SEEDS";

/// Environment variable with the number of seeds for the test with the real predictor.
const RUNS: &str = "SLACKLINE_MANAGER_RUNS";

/// Name of the test with random predictors and wrong measurements.
const WITH_WRONG_INPUTS: &str = "manager_with_wrong_inputs_respects_floor_ceiling_and_capacity";

/// Name of the test with the real predictor.
const WITH_PREDICTOR: &str =
    "manager_with_whatif_predictor_keeps_floor_ceiling_and_admission_limit";

/// Runs random rounds of the manager with `seeds` seeds, in an optimised build, and prints the
/// duration.
///
/// # Errors
///
/// If the argument is no integer, cargo cannot be started, or no test is run.
pub fn run(seeds: &str) -> Result<ExitCode> {
    let tests = ["-p", "slackline-manager", "--test", "properties"];
    run_test(&tests, WITH_WRONG_INPUTS, (SEEDS, seeds))
}

/// Simulates `seeds` random hosts with a manager that predicts with `whatif`, and prints the
/// duration.
///
/// # Errors
///
/// If the argument is no integer, cargo cannot be started, or no test is run.
pub fn run_with_predictor(seeds: &str) -> Result<ExitCode> {
    run_test(&["-p", "slackline-experiments", "--lib"], WITH_PREDICTOR, (RUNS, seeds))
}

fn run_test(package: &[&str], test: &str, (variable, seeds): (&str, &str)) -> Result<ExitCode> {
    seeds.parse::<u64>().with_context(|| format!("`{seeds}` is not a number of seeds"))?;
    let mut tests = vec!["test", "--release", "--locked"];
    tests.extend(package);
    step::run(step::cargo().args(&tests).arg("--no-run"))?;
    let began = Instant::now();
    let code = long_run::run(step::cargo().args(&tests).arg(test).env(variable, seeds))?;
    println!("{seeds} seeds in {:.1} s", began.elapsed().as_secs_f64());
    Ok(code)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn tests_and_environment_variables_used_by_xtask_manager_exist() {
        let test = |name: &str| format!("fn {name}(");
        for (file, name, variable) in [
            ("pure/manager/tests/properties.rs", WITH_WRONG_INPUTS, SEEDS),
            ("edge/experiments/src/manage/tests.rs", WITH_PREDICTOR, RUNS),
        ] {
            long_run::assert_source_names(file, &[&test(name), variable]);
        }
    }
}
