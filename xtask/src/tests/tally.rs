//! Counts of passed and failed tests, read from the output of test programs.

/// Counts of tests, from the output that was read so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of tests that passed.
    pub passed: usize,
    /// Number of tests that failed.
    pub failed: usize,
    /// Messages of skipped tests, without duplicates.
    pub skipped: Vec<String>,
    /// Tests that failed and then passed when they were repeated alone.
    pub flaky: Vec<String>,
    /// True while the lines that are read repeat the output of tests that passed.
    in_successes: bool,
}

impl Tally {
    /// Counts a line of output. Returns true if the line should be shown.
    pub fn take(&mut self, line: &str) -> bool {
        // Output of other programs may come before this text on the line.
        if let Some(at) = line.find("skipped: needs") {
            let skipped = line[at..].to_owned();
            if !self.skipped.contains(&skipped) {
                self.skipped.push(skipped);
            }
        }
        if line == "successes:" {
            self.in_successes = true;
        } else if line == "failures:" {
            self.in_successes = false;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            self.passed += count(result, " passed");
            self.failed += count(result, " failed");
        }
        !self.in_successes
    }

    /// Counts the failed tests of a test program as passed, because all of them passed when
    /// repeated alone.
    pub fn take_repeated(&mut self, program: &str, tests: &[String]) {
        self.failed -= tests.len();
        self.passed += tests.len();
        self.flaky.extend(tests.iter().map(|test| format!("{program} {test}")));
    }

    /// Returns the last line of the report, with all counts.
    #[must_use]
    pub fn closing(&self) -> String {
        let verdict = if self.failed == 0 { "ok" } else { "FAILED" };
        let (passed, failed) = (self.passed, self.failed);
        // The words differ from cargo's words. A reader that adds up cargo's lines would otherwise
        // count these tests twice.
        format!("tests in all crates: {verdict}. {passed} passed; {failed} failed")
    }
}

/// Returns the names of the tests that failed, from the output of a test program.
#[must_use]
pub(super) fn failed_tests(lines: &[String]) -> Vec<String> {
    let last_list = lines.iter().rposition(|line| line == "failures:");
    let Some(first) = last_list.map(|heading| heading + 1) else { return Vec::new() };
    let names = lines[first..].iter().map_while(|line| line.strip_prefix("    "));
    names.map(str::to_owned).collect()
}

fn count(result: &str, what: &str) -> usize {
    let before = result.split(what).next().unwrap_or_default();
    before.rsplit([' ', ';', '.']).next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn test_runner_sums_results_and_hides_output_of_passing_tests() {
        let mut tally = Tally::default();
        let lines = [
            ("test a ... ok", true),
            ("successes:", false),
            ("---- a stdout ----", false),
            ("skipped: needs root", false),
            ("test result: ok. 12 passed; 0 failed; 1 ignored; finished in 0.0s", true),
            ("test result: FAILED. 3 passed; 2 failed; 0 ignored; finished in 0.0s", true),
        ];
        for (line, shown) in lines {
            assert_eq!(tally.take(line), shown, "{line}");
        }
        assert_eq!((tally.passed, tally.failed), (15, 2));
        assert_eq!(tally.skipped, ["skipped: needs root"]);
        assert!(tally.closing().ends_with("FAILED. 15 passed; 2 failed"));
    }

    #[test]
    fn failed_test_names_are_read_from_last_list_of_failures() {
        let output = "test a::b ... FAILED\nfailures:\n\n---- a::b stdout ----\n    panicked\n\n\
                      failures:\n    a::b\n    c\n\ntest result: FAILED. 1 passed; 2 failed";
        let lines: Vec<String> = output.lines().map(str::to_owned).collect();
        assert_eq!(failed_tests(&lines), ["a::b", "c"]);
        assert!(failed_tests(&lines[..4]).is_empty(), "a program that died gives no list");
    }

    #[test]
    fn test_that_passes_when_repeated_counts_as_passed_and_flaky() {
        let mut tally = Tally { passed: 3, failed: 2, ..Tally::default() };
        tally.take_repeated("-p live --test live", &["a".to_owned()]);
        assert_eq!((tally.passed, tally.failed), (4, 1));
        assert_eq!(tally.flaky, ["-p live --test live a"]);
    }
}
