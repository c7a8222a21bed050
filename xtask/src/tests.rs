//! The tests, with what cargo leaves out: those that can run beside others do, there is one total,
//! and what was skipped is said with its reason.

mod built;
mod tally;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};

use crate::step;
pub use built::{Built, Test, build};
pub use tally::Tally;

/// What is played: a program of tests, or the examples in the documentation.
enum Part<'a> {
    Program(&'a Test),
    Examples,
}

impl Part<'_> {
    fn name(&self) -> String {
        match self {
            Part::Program(test) => test.name(),
            Part::Examples => "the examples in the documentation".to_owned(),
        }
    }

    fn command(&self) -> Command {
        match self {
            // As cargo runs it.
            Part::Program(test) => {
                let mut command = Command::new(&test.program);
                command.current_dir(&test.folder).env("CARGO_MANIFEST_DIR", &test.folder);
                command
            }
            Part::Examples => {
                let mut cargo = step::cargo();
                cargo.args(["test", "--workspace", "--locked", "--no-fail-fast", "--doc", "--"]);
                cargo
            }
        }
    }

    /// Plays it to its end; each line is given to `hear` as it comes. Says whether all is well.
    fn play(&self, mut hear: impl FnMut(String)) -> Result<bool> {
        let (output, input) = std::io::pipe()?;
        let mut command = self.command();
        // Passing tests that skip something say so, and their words are shown only when asked for.
        command.arg("--show-output").stdin(Stdio::null());
        let mut child = command.stdout(input.try_clone()?).stderr(input).spawn()?;
        // It holds the pipe's other end too, and the pipe would never end.
        drop(command);
        for line in BufReader::new(output).split(b'\n') {
            hear(String::from_utf8_lossy(&line?).into_owned());
        }
        Ok(child.wait()?.success())
    }
}

/// What all that run at a time say and come to.
#[derive(Default)]
struct Heard {
    tally: Tally,
    failed: Vec<String>,
}

impl Heard {
    fn hear(&mut self, line: &str) {
        if self.tally.take(line) {
            println!("{line}");
        }
    }

    fn end(&mut self, part: &Part<'_>, is_good: Result<bool>) {
        match is_good {
            Ok(true) => {}
            Ok(false) => self.failed.push(part.name()),
            Err(error) => self.failed.push(format!("{}: {error:#}", part.name())),
        }
    }
}

/// Runs the tests of the workspace, all of them, also after a failure.
///
/// # Errors
///
/// When they cannot be built or one fails.
pub fn run() -> Result<Tally> {
    let built = build()?;
    let (alone, together): (Vec<&Test>, Vec<&Test>) =
        built.tests.iter().partition(|test| test.is_alone());
    let mut parts: Vec<Part<'_>> = together.into_iter().map(Part::Program).collect();
    parts.push(Part::Examples);
    let heard = Mutex::new(Heard::default());
    all_at_once(parts, &heard);
    let mut heard = heard.into_inner().unwrap_or_else(PoisonError::into_inner);
    // What waits for this machine's own CPUs is not disturbed by us, and told as it goes: one that
    // does not end is the last that was begun.
    for test in alone {
        let part = Part::Program(test);
        println!("\n     Running {}", part.name());
        let is_good = part.play(|line| heard.hear(&line));
        heard.end(&part, is_good);
    }
    for skipped in &heard.tally.skipped {
        println!("{skipped}");
    }
    println!("{}", heard.tally.closing());
    let failed = &heard.failed;
    ensure!(
        failed.is_empty(),
        "{} of {} FAILED: {}",
        failed.len(),
        built.tests.len() + 1,
        failed.join(", ")
    );
    Ok(heard.tally)
}

/// As many at a time as there are cores; what each says stays in one piece.
fn all_at_once(parts: Vec<Part<'_>>, heard: &Mutex<Heard>) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let parts = Mutex::new(parts);
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).pop();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(part) = next() {
                    let mut lines = vec![format!("\n     Running {}", part.name())];
                    let is_good = part.play(|line| lines.push(line));
                    let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                    lines.iter().for_each(|line| heard.hear(line));
                    heard.end(&part, is_good);
                }
            });
        }
    });
}
