//! All checks of CI in one place. CI and developers run the same command.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::metadata::{self, Metadata};
use crate::{browser as story, contract, fuzz, no_std, service, soak, step, tests, tidy};

/// A check: its name, and a function that runs it and returns a line about its success.
type Step = (&'static str, fn(&Metadata) -> Result<String>);

/// Steps of CI before the tests, in their order. Quick checks come first.
const STEPS: [Step; 5] = [
    ("fmt", fmt),
    ("tidy", all_tidy),
    ("build", build),
    ("scenarios", scenarios),
    ("browser", browser),
];

/// Steps that run one after the other beside the tests, at the lowest priority. Live tests mostly
/// wait, so they leave CPU time for these steps.
const STEPS_BESIDE_TESTS: [Step; 3] =
    [("no-std", no_std::prove), ("docs", docs), ("python", python)];

/// Steps that run the tests. Their output comes last, because CI shows the end of the output.
const TESTS: Step = ("tests", |_| tests_of(tests::Selection::Usual));
const ALL_TESTS: Step = ("tests", |_| tests_of(tests::Selection::All));

/// Long checks, which only [`Extent::All`] runs.
const LONG_STEPS: [Step; 5] = [
    ("contract", |_| ended(contract::run(&contract::Scripts::read(&[])?)?)),
    ("service", |_| ended(service::run("10000", "0")?)),
    ("fuzz", |_| ended(fuzz::run("1", None)?)),
    ("soak", |_| ended(soak::session("5")?)),
    ("soak-service", |_| ended(soak::service(&["--minutes", "10"])?)),
];

/// Checks that one run of CI makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The checks of every change.
    Usual,
    /// The usual checks with the long tests, then the long checks.
    All,
}

/// Runs every step, even after a failure, so that one run of CI reports all faults.
///
/// # Errors
///
/// If the workspace cannot be read.
pub fn run(extent: Extent) -> Result<ExitCode> {
    let metadata = metadata::read()?;
    let began = Instant::now();
    let run = |step: &Step| run_step(step, &metadata);
    let mut results: Vec<StepResult> = STEPS.iter().map(run).collect();
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            step::give_way()?;
            Ok(STEPS_BESIDE_TESTS.iter().map(run).collect::<Vec<_>>())
        });
        let tests = match extent {
            Extent::Usual => run(&TESTS),
            Extent::All => run(&ALL_TESTS),
        };
        let beside: Result<_> = beside.join().expect("a step returns its error");
        results.extend(beside?);
        results.push(tests);
        anyhow::Ok(())
    })?;
    if extent == Extent::All {
        results.extend(LONG_STEPS.iter().map(run));
    }
    println!("\nall steps, {:.1} s:", began.elapsed().as_secs_f64());
    for result in &results {
        println!("  {}", result.line);
    }
    let failed = results.iter().filter(|result| result.has_failed).count();
    if failed == 0 {
        Ok(ExitCode::SUCCESS)
    } else {
        println!("{failed} of {} steps FAILED", results.len());
        Ok(ExitCode::FAILURE)
    }
}

/// Result of a step, as a line of the report.
struct StepResult {
    line: String,
    has_failed: bool,
}

/// Runs a step and prints its result.
fn run_step((name, step): &Step, metadata: &Metadata) -> StepResult {
    let began = Instant::now();
    let (has_failed, verdict, says) = match step(metadata) {
        Ok(says) => (false, "ok", says),
        Err(error) => {
            eprintln!("{name}: {error:#}");
            (true, "FAILED", String::new())
        }
    };
    let took = began.elapsed().as_secs_f64();
    let line = format!("{name:<12} {verdict:<6} {took:6.1} s  {says}");
    println!("{}", line.trim_end());
    StepResult { line: line.trim_end().to_owned(), has_failed }
}

/// Converts the exit code of a long check to the result of a step.
fn ended(code: ExitCode) -> Result<String> {
    ensure!(code == ExitCode::SUCCESS, "the check failed; its output is above");
    Ok(String::new())
}

fn fmt(_: &Metadata) -> Result<String> {
    step::run(step::cargo().args(["fmt", "--all", "--check"]))?;
    Ok(String::new())
}

fn all_tidy(metadata: &Metadata) -> Result<String> {
    ensure!(tidy::tidy(metadata)?, "`tidy` found the faults that are listed above");
    Ok(String::new())
}

fn docs(_: &Metadata) -> Result<String> {
    let mut cargo = step::cargo();
    cargo.args(["doc", "--workspace", "--no-deps", "--locked", "--quiet"]);
    step::run(cargo.env("RUSTDOCFLAGS", "-D warnings -D missing-docs"))?;
    Ok(String::new())
}

/// Builds the programs that the scenarios and tests need, and runs clippy's lints in the same pass.
fn build(_: &Metadata) -> Result<String> {
    let built = tests::build()?;
    ensure!(built.warnings == 0, "{} warnings; see above", built.warnings);
    Ok(format!("{} test programs, no warning", built.tests.len()))
}

/// Runs every scenario with the debug build of `slackline` that the tests use.
///
/// # Errors
///
/// If the program cannot be built, or a scenario fails. The error contains all failures.
pub fn scenarios(metadata: &Metadata) -> Result<String> {
    crate::scenarios::run(&tests::build()?.program, &metadata.target)
}

/// Runs the browser test of the daemon's page, with the program that the tests use.
fn browser(_: &Metadata) -> Result<String> {
    let program = tests::build()?.program;
    repeat_once(|| story::run(&program))
}

fn python(_: &Metadata) -> Result<String> {
    repeat_once(crate::python::run)
}

/// Runs a step that uses real browsers or clusters, and repeats it once if it fails. If the step
/// passes only the second time, the report calls the step flaky, because that is a defect too.
fn repeat_once(step: impl Fn() -> Result<String>) -> Result<String> {
    step().or_else(|first| {
        eprintln!("the step failed and is repeated: {first:#}");
        Ok(format!("{}, FLAKY: failed the first time", step()?))
    })
}

fn tests_of(selection: tests::Selection) -> Result<String> {
    let tally = tests::run(selection)?;
    let flaky = if tally.flaky.is_empty() {
        String::new()
    } else {
        format!(", {} FLAKY", tally.flaky.len())
    };
    Ok(format!("{} passed, tests skipped for {} reasons{flaky}", tally.passed, tally.skipped.len()))
}
