//! The long forms of tests whose length can be chosen.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::{long_run, step};

/// Environment variable with the length of a test in seconds.
const LENGTH: &str = "SLACKLINE_SOAK_SECONDS";

/// Environment variable with the number of kills in direct succession at the start of a test.
const KILLS: &str = "SLACKLINE_SOAK_KILLS";

/// Environment variable with the number of kills that a test makes for each mechanism.
const ROUNDS: &str = "SLACKLINE_SOAK_ROUNDS";

/// Environment variable with the path of the program that a test uses.
const PROGRAM: &str = "SLACKLINE_TEST_PROGRAM";

/// Kills the owner of a live session and its keeper in turn, again and again, for `minutes`
/// minutes.
///
/// # Errors
///
/// If `minutes` is no integer above zero, or the test is skipped, as it is without root.
pub fn session(minutes: &str) -> Result<ExitCode> {
    let mut cargo = step::cargo();
    cargo.args(["test", "-p", "slackline-live", "--locked", "--test", "live", "soak::"]);
    cargo.args(["--", "--nocapture"]).env(LENGTH, seconds(minutes)?);
    long_run::run(&mut cargo)
}

/// Runs a release build of the daemon while VMs start and end, and causes a fault every minute.
///
/// # Errors
///
/// If an option is unknown, its value is no integer above zero, or the test is skipped.
pub fn service(options: &[&str]) -> Result<ExitCode> {
    let mut wanted: Vec<(&str, String)> = Vec::new();
    for pair in options.chunks(2) {
        match pair {
            ["--minutes", minutes] => wanted.push((LENGTH, seconds(minutes)?)),
            ["--kills", kills] => wanted.push((KILLS, step::positive(kills)?.to_string())),
            _ => bail!("`{}` is neither `--minutes N` nor `--kills N`", pair.join(" ")),
        }
    }
    if wanted.is_empty() {
        wanted.push((LENGTH, seconds("10")?));
    }
    step::build_release()?;
    let program = std::env::current_dir()?.join("target/release/slackline");
    let mut cargo = step::cargo();
    cargo.args(["test", "-p", "slackline", "--locked", "--test", "live", "soak_service::"]);
    cargo.args(["--", "--nocapture"]).env(PROGRAM, program).envs(wanted);
    long_run::run(&mut cargo)
}

/// For each mechanism of `--enforce`, kills processes of `hold` in turn, `rounds` times. Then does
/// the same with processes of the daemon.
///
/// # Errors
///
/// If `rounds` is no integer above zero, or the test is skipped.
pub fn mechanisms(rounds: &str) -> Result<ExitCode> {
    let mut cargo = step::cargo();
    cargo.args(["test", "-p", "slackline", "--locked", "--test", "live", "soak_mechanisms::"]);
    cargo.args(["--", "--nocapture"]).env(ROUNDS, step::positive(rounds)?.to_string());
    long_run::run(&mut cargo)
}

fn seconds(minutes: &str) -> Result<String> {
    Ok((step::positive(minutes)? * 60).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xtask_soak_refuses_invalid_options_before_building() {
        for options in [&["--minutes", "0"][..], &["--kills", "many"], &["--hours", "1"], &["1"]] {
            assert!(service(options).is_err(), "{options:?}");
        }
        assert!(session("-1").is_err() && mechanisms("0").is_err());
        assert_eq!(seconds("2").ok().as_deref(), Some("120"));
    }

    #[test]
    fn test_modules_and_environment_variables_used_by_xtask_soak_exist() {
        for (file, variables) in [
            ("edge/live/tests/live/soak.rs", &[LENGTH][..]),
            ("edge/cli/tests/live/soak_service.rs", &[LENGTH, KILLS]),
            ("edge/cli/tests/live/soak_mechanisms.rs", &[ROUNDS]),
            ("edge/cli/tests/common/mod.rs", &[PROGRAM]),
        ] {
            long_run::assert_source_names(file, variables);
        }
    }
}
