//! The long form of the test of `fit` with random task sets (crate `experiments`).

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::{long_run, step};

/// Environment variable with the number of task sets for the test.
const SETS: &str = "SLACKLINE_FIT_SETS";

/// Computes the smallest slice for `sets` random task sets, checks the proof and the missed
/// deadline of each, and prints the duration.
///
/// # Errors
///
/// If the argument is no integer, cargo cannot be started, or no test is run.
pub fn run(sets: &str) -> Result<ExitCode> {
    sets.parse::<u64>().with_context(|| format!("`{sets}` is not a number of task sets"))?;
    let test = ["test", "-p", "slackline-experiments", "--locked", "--test", "fit"];
    step::run(step::cargo().args(test).arg("--no-run"))?;
    let began = Instant::now();
    let mut cargo = step::cargo();
    let code = long_run::run(cargo.args(test).args(["--", "--nocapture"]).env(SETS, sets))?;
    println!("{sets} task sets in {:.1} s", began.elapsed().as_secs_f64());
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_variable_set_by_xtask_fit_is_read_by_test() {
        long_run::assert_source_names("edge/experiments/tests/fit.rs", &[SETS]);
    }
}
