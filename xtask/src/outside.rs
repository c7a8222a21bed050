//! Checks a daemon from outside, with Python programs that share no code with Slackline.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::step;

/// Compares the daemon's reports with the kernel's counts for `minutes` minutes. Needs root.
///
/// # Errors
/// If `minutes` is not a whole number above zero, or Python cannot be started.
pub fn observe(minutes: &str) -> Result<ExitCode> {
    run("xtask/observe.py", minutes)
}

/// Attacks the daemon for `minutes` minutes as users with few rights, and measures what other
/// clients and VMs notice. Needs root.
///
/// # Errors
/// If `minutes` is not a whole number above zero, or Python cannot be started.
pub fn attack(minutes: &str) -> Result<ExitCode> {
    run("xtask/attack.py", minutes)
}

/// Builds Slackline, and runs a Python program with the path of that build and a number of seconds.
fn run(program: &str, minutes: &str) -> Result<ExitCode> {
    let minutes = minutes.parse::<u64>().ok().filter(|minutes| *minutes > 0);
    let seconds = minutes.context("the number of minutes must be a whole number above zero")? * 60;
    let mut build = step::cargo();
    step::run(build.args(["build", "--release", "--locked", "-p", "slackline"]))?;
    let mut python = Command::new("python3");
    python.args([program, "target/release/slackline"]).arg(seconds.to_string());
    let status = python.status().context("cannot start python3")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xtask_observe_and_attack_refuse_invalid_minutes_before_they_build() {
        for minutes in ["0", "-1", "many", ""] {
            assert!(observe(minutes).is_err(), "{minutes}");
            assert!(attack(minutes).is_err(), "{minutes}");
        }
    }
}
