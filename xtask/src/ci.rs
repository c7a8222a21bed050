//! Everything that CI runs, in one place, so that nothing fails there that passes here.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::metadata::{self, Metadata};
use crate::{no_std, step, tests, tidy};

/// A check: its name, and what it says when all is well.
type Step = (&'static str, fn(&Metadata) -> Result<String>);

/// Quick ones first, and the tests last, whose output CI reads the end of.
const STEPS: [Step; 7] = [
    ("fmt", fmt),
    ("tidy", all_tidy),
    ("no-std", no_std::prove),
    ("docs", docs),
    ("build", build),
    ("scenarios", scenarios),
    ("tests", all_tests),
];

/// Runs every step, also after a failure: a round of CI should tell all there is to mend.
///
/// # Errors
///
/// When there is nothing to run the steps on.
pub fn all() -> Result<ExitCode> {
    let metadata = metadata::read()?;
    let began = Instant::now();
    let mut lines = Vec::new();
    let mut failed = 0;
    for (name, step) in STEPS {
        let began = Instant::now();
        let (verdict, says) = match step(&metadata) {
            Ok(says) => ("ok", says),
            Err(error) => {
                failed += 1;
                eprintln!("{name}: {error:#}");
                ("FAILED", String::new())
            }
        };
        let took = began.elapsed().as_secs_f64();
        let line = format!("{name:<10} {verdict:<6} {took:6.1} s  {says}");
        println!("{}", line.trim_end());
        lines.push(line);
    }
    println!("\nall steps, {:.1} s:", began.elapsed().as_secs_f64());
    for line in &lines {
        println!("  {}", line.trim_end());
    }
    if failed == 0 {
        Ok(ExitCode::SUCCESS)
    } else {
        println!("{failed} of {} steps FAILED", STEPS.len());
        Ok(ExitCode::FAILURE)
    }
}

fn fmt(_: &Metadata) -> Result<String> {
    step::run(step::cargo().args(["fmt", "--all", "--check"]))?;
    Ok(String::new())
}

fn all_tidy(metadata: &Metadata) -> Result<String> {
    ensure!(tidy::tidy(metadata)?, "not tidy; see above");
    Ok(String::new())
}

fn docs(_: &Metadata) -> Result<String> {
    let mut cargo = step::cargo();
    cargo.args(["doc", "--workspace", "--no-deps", "--locked", "--quiet"]);
    step::run(cargo.env("RUSTDOCFLAGS", "-D warnings -D missing-docs"))?;
    Ok(String::new())
}

/// Builds what the next two steps use, with clippy's lints in the same pass.
fn build(_: &Metadata) -> Result<String> {
    let built = tests::build()?;
    ensure!(built.warnings == 0, "{} warnings; see above", built.warnings);
    Ok(format!("{} programs of tests, no warning", built.tests.len()))
}

/// Runs the scenarios with the program as the tests use it.
///
/// # Errors
///
/// When it cannot be built, and with all that went wrong.
pub fn scenarios(metadata: &Metadata) -> Result<String> {
    crate::scenarios::run(&tests::build()?.program, &metadata.target)
}

fn all_tests(_: &Metadata) -> Result<String> {
    let tally = tests::run()?;
    Ok(format!("{} passed, {} reasons to skip", tally.passed, tally.skipped.len()))
}
