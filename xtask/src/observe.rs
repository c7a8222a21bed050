//! Checks a daemon from outside, with a Python program that shares no code with Slackline.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::step;

/// Compares the daemon's reports with the kernel's counts for `minutes` minutes. Needs root.
///
/// # Errors
/// If `minutes` is not a whole number above zero, or Python cannot be started.
pub fn run(minutes: &str) -> Result<ExitCode> {
    let minutes = minutes.parse::<u64>().ok().filter(|minutes| *minutes > 0);
    let seconds = minutes.context("the number of minutes must be a whole number above zero")? * 60;
    let mut build = step::cargo();
    step::run(build.args(["build", "--release", "--locked", "-p", "slackline"]))?;
    let mut python = Command::new("python3");
    python.args(["xtask/observe.py", "target/release/slackline"]).arg(seconds.to_string());
    let status = python.status().context("cannot start python3")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xtask_observe_refuses_invalid_minutes_before_it_builds() {
        for minutes in ["0", "-1", "many", ""] {
            assert!(run(minutes).is_err(), "{minutes}");
        }
    }
}
