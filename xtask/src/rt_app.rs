//! Comparison of rt-app with its workloads imported into Slackline.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::step;

/// Shortest comparison in seconds. The threads of rt-app are measured for two seconds less.
const SHORTEST: u64 = 5;

/// Runs each workload by rt-app, in a simulation and in a live run, for `seconds` seconds each.
/// Compares the CPU times of the threads. Needs root and the package `rt-app`.
///
/// # Errors
/// If `seconds` is not a whole number of at least 5, or a program cannot be started.
pub fn run(seconds: &str) -> Result<ExitCode> {
    let seconds: u64 = seconds.parse().context("the number of seconds must be a whole number")?;
    ensure!(seconds >= SHORTEST, "{seconds} seconds are too few; use at least {SHORTEST}");
    let rt_app = Command::new("rt-app").arg("--help").output();
    rt_app.context("cannot start rt-app: apt-get install rt-app")?;
    step::check_by_python("rt_app.py", seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xtask_rt_app_refuses_invalid_seconds_before_building() {
        for seconds in ["4", "-1", "many", ""] {
            assert!(run(seconds).is_err(), "{seconds}");
        }
    }
}
