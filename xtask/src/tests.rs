//! Runs the tests with features that cargo lacks. Test programs run in parallel. The report has one
//! total and a list of the slowest programs. Skipped tests are reported with the reason.

mod built;
mod long;
mod tally;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::step;
pub use built::{BuildResults, Test, build, build_of};
pub use long::{LONG_TESTS, LongTest, long_tests};
pub use tally::Tally;
use tally::failed_tests;

/// Tests of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All tests but the [long ones](LONG_TESTS).
    Usual,
    /// All tests, also the long ones.
    All,
}

/// A part of the tests that runs on its own: a test program without the tests that are named, or
/// the examples in the documentation.
enum TestPart<'a> {
    Program(&'a Test, Vec<String>),
    Examples,
}

impl TestPart<'_> {
    fn name(&self) -> String {
        match self {
            TestPart::Program(test, _) => test.name(),
            TestPart::Examples => "the examples in the documentation".to_owned(),
        }
    }

    fn command(&self) -> Command {
        match self {
            // The program runs in the same environment as under cargo.
            TestPart::Program(test, left_out) => {
                let mut command = Command::new(&test.program);
                command.current_dir(&test.folder).env("CARGO_MANIFEST_DIR", &test.folder);
                if !left_out.is_empty() {
                    command.arg("--exact");
                    command.args(left_out.iter().flat_map(|name| ["--skip", name]));
                }
                command
            }
            TestPart::Examples => {
                let mut cargo = step::linting_cargo();
                cargo.args(["test", "--workspace", "--locked", "--no-fail-fast", "--doc", "--"]);
                cargo
            }
        }
    }

    /// Runs the part to its end. `options` are added for the test program. Each line of its output
    /// is passed to `hear` when it arrives. Returns true if all tests passed.
    fn play(&self, options: &[&str], mut hear: impl FnMut(String)) -> Result<bool> {
        let (output, input) = std::io::pipe()?;
        let mut command = self.command();
        // A test that skips something prints a message. The output of passing tests is shown only
        // on request.
        command.arg("--show-output").args(options).stdin(Stdio::null());
        let mut child = command.stdout(input.try_clone()?).stderr(input).spawn()?;
        // The command holds the other end of the pipe. The command is dropped, because the pipe
        // would otherwise never end.
        drop(command);
        for line in BufReader::new(output).split(b'\n') {
            hear(String::from_utf8_lossy(&line?).into_owned());
        }
        Ok(child.wait()?.success())
    }
}

/// Maximum number of failed tests of a program that are repeated. If more tests failed, no test is
/// repeated, because the failures probably have a common cause.
const MOST_REPEATED: usize = 3;

/// Repeats each failed test alone, and adds its output to `lines`. Returns true if all of them pass
/// when repeated.
fn all_pass_alone(part: &TestPart<'_>, tests: &[String], lines: &mut Vec<String>) -> Result<bool> {
    let TestPart::Program(program, _) = part else { return Ok(false) };
    if tests.is_empty() || tests.len() > MOST_REPEATED {
        return Ok(false);
    }
    // The repeated program leaves no other tests out, because it accepts `--exact` only once.
    let part = TestPart::Program(program, Vec::new());
    for test in tests {
        lines.push(format!("\n   Repeating {} {test}", part.name()));
        let mut again = Vec::new();
        let passes = part.play(&["--exact", test], |line| again.push(line))?;
        // The counts of the repetition are not added to those of the first run.
        again.retain(|line| !line.starts_with("test result: "));
        lines.append(&mut again);
        if !passes {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Results of the parts that have run so far.
#[derive(Default)]
struct Results {
    tally: Tally,
    failed: Vec<String>,
    times: Vec<(Duration, String)>,
}

impl Results {
    fn print(&mut self, line: &str) {
        if self.tally.take(line) {
            println!("{line}");
        }
    }

    fn end(&mut self, part: &TestPart<'_>, took: Duration, is_good: Result<bool>) {
        self.times.push((took, part.name()));
        match is_good {
            Ok(true) => {}
            Ok(false) => self.failed.push(part.name()),
            Err(error) => self.failed.push(format!("{}: {error:#}", part.name())),
        }
    }

    /// Prints the programs that took the longest time.
    fn print_slowest(&mut self) {
        self.times.sort();
        println!("\nslowest test programs:");
        for (took, name) in self.times.iter().rev().take(10) {
            println!("{:8.1} s  {name}", took.as_secs_f64());
        }
    }
}

/// Runs the tests of the workspace, even after a failure.
///
/// Tests that schedule CPUs of this host run one program at a time. The other tests run beside them
/// at the lowest priority.
///
/// # Errors
///
/// If the tests cannot be built, or if a test fails.
pub fn run(selection: Selection) -> Result<Tally> {
    let built = build()?;
    let (live, others): (Vec<&Test>, Vec<&Test>) =
        built.tests.iter().partition(|test| test.is_live());
    let long = match selection {
        Selection::Usual => long_tests()?,
        Selection::All => Vec::new(),
    };
    let live = live.into_iter().map(|test| TestPart::Program(test, long::left_out(test, &long)));
    let others = others.into_iter().map(|test| TestPart::Program(test, Vec::new()));
    play(live.collect(), others.chain([TestPart::Examples]).collect())
}

/// Runs the tests of some packages, except tests that schedule CPUs of this host.
///
/// # Errors
///
/// If the tests cannot be built or have warnings, or if a test fails.
pub fn run_of(packages: &[&str]) -> Result<Tally> {
    let options: Vec<&str> = packages.iter().flat_map(|package| ["--package", *package]).collect();
    let built = build_of(&options)?;
    ensure!(built.warnings == 0, "{} warnings; see above", built.warnings);
    let tests = built.tests.iter().filter(|test| !test.is_live());
    play(Vec::new(), tests.map(|test| TestPart::Program(test, Vec::new())).collect())
}

/// Runs all parts and prints the results. Parts in `live` run one at a time, and the last part of
/// the list runs first. One CPU is left to the parts in `live`, and the other parts have the lowest
/// priority.
fn play(live: Vec<TestPart<'_>>, others: Vec<TestPart<'_>>) -> Result<Tally> {
    let count = live.len() + others.len();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (live, others) = (Mutex::new(live), Mutex::new(others));
    let results = Mutex::new(Results::default());
    std::thread::scope(|scope| {
        for _ in 1..cores.max(2) {
            scope.spawn(|| {
                // Without the lower priority, the tests would only be slower.
                let _ = step::give_way();
                one_after_the_other(&others, &results);
            });
        }
        one_after_the_other(&live, &results);
        one_after_the_other(&others, &results);
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.print_slowest();
    for skipped in &results.tally.skipped {
        println!("{skipped}");
    }
    for test in &results.tally.flaky {
        println!("FLAKY: {test} failed, and passed when repeated alone; fix the test");
    }
    println!("{}", results.tally.closing());
    let failed = &results.failed;
    ensure!(failed.is_empty(), "{} of {count} FAILED: {}", failed.len(), failed.join(", "));
    Ok(results.tally)
}

/// Runs parts from the shared list until the list is empty. Outputs of different parts are not
/// mixed.
fn one_after_the_other(parts: &Mutex<Vec<TestPart<'_>>>, results: &Mutex<Results>) {
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).pop();
    while let Some(part) = next() {
        let began = Instant::now();
        let mut lines = vec![format!("\n     Running {}", part.name())];
        let mut is_good = part.play(&[], |line| lines.push(line));
        let failed = if let Ok(false) = is_good { failed_tests(&lines) } else { Vec::new() };
        let is_flaky =
            !failed.is_empty() && matches!(all_pass_alone(&part, &failed, &mut lines), Ok(true));
        if is_flaky {
            is_good = Ok(true);
        }
        let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().for_each(|line| results.print(line));
        if is_flaky {
            results.tally.take_repeated(&part.name(), &failed);
        }
        results.end(&part, began.elapsed(), is_good);
    }
}
