//! Checks a daemon from outside, with Python programs that share no code with Slackline.

use std::process::ExitCode;

use anyhow::Result;

use crate::step;

/// Compares the daemon's reports with the kernel's counts for `minutes` minutes. Needs root.
///
/// # Errors
/// If `minutes` is not a whole number above zero, or Python cannot be started.
pub fn observe(minutes: &str) -> Result<ExitCode> {
    step::check_by_python("observe.py", step::positive(minutes)? * 60)
}

/// Attacks the daemon for `minutes` minutes as users with few rights, and measures what other
/// clients and VMs notice. Needs root.
///
/// # Errors
/// If `minutes` is not a whole number above zero, or Python cannot be started.
pub fn attack(minutes: &str) -> Result<ExitCode> {
    step::check_by_python("attack.py", step::positive(minutes)? * 60)
}

/// Gives `count` mutated inputs to the program: traces, recordings, scenarios, hook texts and
/// ledgers. Checks that the program refuses each input in time and without a panic. Needs root.
///
/// # Errors
/// If `count` is not a whole number above zero, or Python cannot be started.
pub fn mutate(count: &str) -> Result<ExitCode> {
    step::check_by_python("mutate.py", step::positive(count)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xtask_subcommands_refuse_invalid_number_before_building() {
        for number in ["0", "-1", "many", ""] {
            assert!(observe(number).is_err(), "{number}");
            assert!(attack(number).is_err(), "{number}");
            assert!(mutate(number).is_err(), "{number}");
        }
    }
}
