//! Runs the long forms of tests. A run in which a test is skipped, or no test is run at all, is an
//! error. Otherwise a renamed test would make a long run silently empty.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::step;
use crate::tests::Tally;

/// Runs `cargo test`, and passes its output to the terminal. Returns success if all selected tests
/// pass.
///
/// # Errors
///
/// If the command cannot be started, or is killed. Also if no test fails, but a test was skipped or
/// no test was run.
pub fn run(command: &mut Command) -> Result<ExitCode> {
    run_and_hear(command, |_| {})
}

/// Does the same as [`run`], and also passes each line of the output to `hear`.
///
/// # Errors
///
/// As for [`run`].
pub fn run_and_hear(command: &mut Command, mut hear: impl FnMut(&str)) -> Result<ExitCode> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child =
        command.spawn().with_context(|| format!("cannot start {}", step::shown(command)))?;
    let output = child.stdout.take().context("the output is a pipe")?;
    let mut tally = Tally::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        tally.take(&line);
        hear(&line);
    }
    let status = child.wait()?;
    match status.code() {
        Some(0) => {}
        Some(_) => return Ok(ExitCode::FAILURE),
        None => bail!("{} ended with {status}", step::shown(command)),
    }
    ensure!(tally.passed > 0, "no test was run by {}", step::shown(command));
    if let Some(skipped) = tally.skipped.first() {
        bail!("{} tested nothing, or only a part: {skipped}", step::shown(command));
    }
    Ok(ExitCode::SUCCESS)
}

/// Asserts that a source file contains the names of tests and variables that a long run uses.
#[cfg(test)]
#[track_caller]
pub fn assert_source_names(file: &str, names: &[&str]) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let text = std::fs::read_to_string(&path).expect("the source is part of the repository");
    for name in names {
        assert!(text.contains(name), "{file} does not contain `{name}`");
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    fn printing(text: &str, code: u8) -> Result<ExitCode> {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("printf '{text}'; exit {code}")]);
        run(&mut shell)
    }

    #[test]
    fn long_run_fails_without_tests_or_with_a_skipped_test() {
        let passed = "\\ntest result: ok. 1 passed; 0 failed; 0 ignored\\n";
        assert_eq!(printing(passed, 0).expect("a test passes"), ExitCode::SUCCESS);
        assert_eq!(printing(passed, 101).expect("a test fails"), ExitCode::FAILURE);
        let filtered = "test result: ok. 0 passed; 0 failed; 0 ignored; 9 filtered out\\n";
        for empty in ["", filtered] {
            let error = printing(empty, 0).expect_err("no test is run").to_string();
            assert!(error.starts_with("no test was run by sh"), "{error}");
        }
        let skipped = format!("test soak ... skipped: needs root\\nok\\n{passed}");
        let error = printing(&skipped, 0).expect_err("the test is skipped").to_string();
        assert!(error.ends_with("skipped: needs root"), "{error}");
    }

    #[test]
    fn caller_of_long_run_receives_each_line_of_output() {
        let mut lines = Vec::new();
        let mut shell = Command::new("sh");
        shell.args(["-c", "printf 'a\nb\ntest result: ok. 1 passed; 0 failed\n'"]);
        let code = run_and_hear(&mut shell, |line| lines.push(line.to_owned()));
        assert_eq!(code.expect("a test passes"), ExitCode::SUCCESS);
        assert_eq!(lines[..2], ["a", "b"]);
    }
}
