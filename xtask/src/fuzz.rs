//! The long form of the tests with random untrusted input.

use std::process::{Command, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail, ensure};

use crate::{long_run, step};

/// Environment variable with the target, the number of seconds and the first seed for the tests.
const FUZZ: &str = "SLACKLINE_FUZZ";

/// Targets of random input. Each is a parser of untrusted data.
const TARGETS: [&str; 6] = ["http", "body", "link", "proc", "qmp", "hook"];

/// Tests one target with random input for `minutes` minutes. If `target` is `None`, tests every
/// target for that time.
///
/// # Errors
/// If `minutes` is no integer above zero, there is no such target, or no sample was tried.
pub fn run(minutes: &str, target: Option<&str>) -> Result<ExitCode> {
    let length = step::positive(minutes)? * 60;
    if let Some(target) = target.filter(|target| !TARGETS.contains(target)) {
        bail!("there is no target `{target}`; there are {}", TARGETS.join(", "));
    }
    // Each run uses other samples. A sample that fails is reported with its seed.
    let seed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let mut all_good = true;
    for target in TARGETS.iter().filter(|one| target.is_none_or(|target| target == **one)) {
        let mut build = step::cargo();
        step::run(build.args(["test", "-p", "slackline-daemon", "--locked", "--lib", "--no-run"]))?;
        // The tests have the lowest priority, so that they do not delay other programs.
        let mut cargo = Command::new("nice");
        cargo.args(["-n", "19"]).arg(step::cargo().get_program());
        cargo.args(["test", "-p", "slackline-daemon", "--locked", "--lib", "--quiet"]);
        cargo.args(["--", "--nocapture", "fuzz::"]).env(FUZZ, format!("{target} {length} {seed}"));
        // A test of another target passes without a sample.
        let (mut is_tried, report) = (false, format!("{target}: "));
        let hear = |line: &str| {
            is_tried |= line.contains(&report) && line.contains(" samples in ");
        };
        let is_good = long_run::run_and_hear(&mut cargo, hear)? == ExitCode::SUCCESS;
        ensure!(is_tried || !is_good, "no test tries the target `{target}`");
        all_good &= is_good;
    }
    Ok(if all_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_and_environment_variable_used_by_xtask_fuzz_exist() {
        let targets = TARGETS.map(|target| format!("each(\"{target}\""));
        let mut names: Vec<&str> = targets.iter().map(String::as_str).collect();
        names.push(FUZZ);
        long_run::assert_source_names("edge/daemon/src/fuzz.rs", &names);
    }
}
