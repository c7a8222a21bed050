//! The long form of the test that kills every process of a live session in turn.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::step;

/// Says to the test how long it goes on.
const LENGTH: &str = "SLACKLINE_SOAK_SECONDS";

/// Runs it for so many minutes.
///
/// # Errors
///
/// When `minutes` is no whole number above zero.
pub fn run(minutes: &str) -> Result<ExitCode> {
    let length = minutes.parse::<u64>().ok().filter(|minutes| *minutes > 0);
    let length = length.with_context(|| format!("`{minutes}` is not a number of minutes"))?;
    let mut cargo = step::cargo();
    cargo.args(["test", "-p", "slackline-live", "--locked", "--test", "soak"]);
    cargo.args(["--", "--nocapture"]).env(LENGTH, (length * 60).to_string());
    Ok(if cargo.status()?.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
