//! Long tests, which only `./test all` runs.

use anyhow::{Context, Result};

use super::Test;

/// File that lists the long tests.
pub const LONG_TESTS: &str = "xtask/long-tests.txt";

/// A test that only `./test all` runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongTest {
    /// Package of the test. The test is in the package's program `live`.
    pub package: String,
    /// Modules and name of the test, as the test program states them.
    pub name: String,
}

/// Reads the list of long tests.
///
/// # Errors
///
/// If the list cannot be read, or if a line has no package, name and time.
pub fn long_tests() -> Result<Vec<LongTest>> {
    let text = std::fs::read_to_string(LONG_TESTS).with_context(|| LONG_TESTS.to_owned())?;
    parse(&text)
}

/// Parses the list. Each line has the package, the name of the test and its time, for example
/// `slackline-live soak::killed_session_frees_all_threads 12s`. Lines with `#` are comments.
fn parse(text: &str) -> Result<Vec<LongTest>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let test = |line: &str| {
        let [package, name, _] = line.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
        Some(LongTest { package: package.to_owned(), name: name.to_owned() })
    };
    lines
        .map(|line| {
            let usage = || format!("{LONG_TESTS}: `{line}` is not a package, a test and a time");
            test(line).with_context(usage)
        })
        .collect()
}

/// Returns the names of the long tests in a test program.
pub(super) fn left_out(program: &Test, long: &[LongTest]) -> Vec<String> {
    let of = |test: &&LongTest| program.is_live() && test.package == program.package;
    long.iter().filter(of).map(|test| test.name.clone()).collect()
}

#[cfg(test)]
mod unit {
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn long_test_is_skipped_only_in_the_listed_live_program() {
        let long = parse("# Long.\n\nslackline a::b 5s\nslackline-live c 7s\n").unwrap();
        let program = |package: &str, target: &str| Test {
            package: package.into(),
            target: target.into(),
            folder: PathBuf::new(),
            program: PathBuf::new(),
        };
        assert_eq!(left_out(&program("slackline", "--test live"), &long), ["a::b"]);
        assert_eq!(left_out(&program("slackline-live", "--test live"), &long), ["c"]);
        assert!(left_out(&program("slackline", "--test all"), &long).is_empty());
    }

    #[test]
    fn every_listed_long_test_exists() {
        let text = std::fs::read_to_string(Path::new("..").join(LONG_TESTS)).unwrap();
        for LongTest { package, name } in parse(&text).unwrap() {
            let folder = match package.strip_prefix("slackline-") {
                Some(rest) => format!("../edge/{rest}"),
                None => "../edge/cli".to_owned(),
            };
            let (module, test) = name.rsplit_once("::").unwrap();
            let path = format!("{folder}/tests/live/{}.rs", module.replace("::", "/"));
            let source = std::fs::read_to_string(&path).unwrap();
            assert!(source.contains(&format!("fn {test}(")), "no test {name} in {path}");
        }
    }

    #[test]
    fn line_without_duration_in_long_test_list_is_refused() {
        let error = parse("slackline a::b\n").unwrap_err().to_string();
        assert!(error.contains("`slackline a::b`"), "{error}");
    }
}
