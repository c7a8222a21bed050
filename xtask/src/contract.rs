//! The long form of the contract tests between policy and host. It runs more random scripts than
//! `./test`, from other seeds.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::{long_run, step};

/// Number of random scripts to run, and the seed from which they are generated.
#[derive(Debug, PartialEq, Eq)]
pub struct Scripts {
    count: u32,
    seed: u64,
}

impl Scripts {
    /// Parses the arguments after `cargo xtask contract`.
    ///
    /// # Errors
    ///
    /// If an argument is unknown or is not a number.
    pub fn read(words: &[&str]) -> Result<Scripts> {
        let mut scripts = Scripts { count: 20_000, seed: 2 };
        for pair in words.chunks(2) {
            match *pair {
                ["--scripts", count] => scripts.count = count.parse().context("--scripts")?,
                ["--seed", seed] => scripts.seed = seed.parse().context("--seed")?,
                [word, ..] => {
                    bail!("`{word}` is not an option of contract, or its value is missing")
                }
                [] => {}
            }
        }
        Ok(scripts)
    }
}

/// Runs the scripts under every policy, including scripts with split vCPUs and scripts with several
/// vCPUs in a domain. A script that fails is reduced to a shorter script that still fails, and
/// printed.
///
/// # Errors
///
/// If cargo cannot be started, or no test is run.
pub fn run(scripts: &Scripts) -> Result<ExitCode> {
    let mut cargo = step::cargo();
    // The names of all three tests of the contract contain "obey".
    cargo.args(["test", "-p", "slackline-host", "--locked", "--test", "contract", "obey"]);
    cargo.env("PROPTEST_CASES", scripts.count.to_string());
    cargo.env("PROPTEST_RNG_SEED", scripts.seed.to_string());
    // The build is optimized. It has its own target folder, so that other builds are not repeated.
    cargo.env("CARGO_PROFILE_TEST_OPT_LEVEL", "3").env("CARGO_TARGET_DIR", "target/contract");
    long_run::run(&mut cargo)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn xtask_contract_reads_script_count_and_seed_from_arguments() {
        let read = |words: &[&str]| Scripts::read(words).expect("all arguments are valid");
        assert_eq!(read(&[]), Scripts { count: 20_000, seed: 2 });
        assert_eq!(read(&["--seed", "7", "--scripts", "50"]), Scripts { count: 50, seed: 7 });
        let says = |words: &[&str]| Scripts::read(words).expect_err("not known").to_string();
        assert_eq!(
            says(&["--all"]),
            "`--all` is not an option of contract, or its value is missing"
        );
        assert_eq!(says(&["--seed", "none"]), "--seed");
    }
}
