//! Tests of the errors of scenarios: message, position and hint.

use proptest::prelude::*;
use slackline_scenario::{Scenario, ScenarioError};

/// A valid scenario. Each case of `bad.txt` makes one change to it.
const GOOD: &str = r#"title = "good"
length = "30s"
policy = { name = "edf", reserve = "0.1cpu" }
[host]
cpus = 2
[[domain]]
name = "web"
vcpus = 2
work = { kind = "spin" }
share.edf = { slice = "4ms", period = "10ms" }
[[domain]]
name = "batch"
work = { kind = "periodic", period = "20ms", work = "2ms" }
share.edf = { slice = "1ms", period = "10ms" }
joins = "2s"
[[change]]
at = "5s"
domain = "web"
share.edf = { slice = "2ms", period = "10ms" }
[[claim]]
that = "share of web.0"
is = "within 2% of promised"
"#;

/// Returns the cases of `bad.txt`, each as lines of `(key, value)`.
fn cases() -> Vec<Vec<(&'static str, String)>> {
    let mut cases = vec![Vec::<(&str, String)>::new()];
    for line in include_str!("../bad.txt").lines().filter(|line| !line.starts_with('#')) {
        let case = cases.last_mut().unwrap();
        match (line.split_once(' ').unwrap_or((line, "")), case.last_mut()) {
            (("", ""), None) => {}
            (("", ""), Some(_)) => cases.push(Vec::new()),
            (("", more), Some((_, value))) => *value = format!("{value} {}", more.trim()),
            ((key, value), _) => case.push((key, value.trim_start().to_owned())),
        }
    }
    cases.retain(|case| !case.is_empty());
    cases
}

#[test]
fn invalid_scenario_is_refused_with_message_position_and_hint() {
    assert!(Scenario::read(GOOD).is_ok());
    let mut wrong = String::new();
    for case in cases() {
        let value = |key| {
            let line = case.iter().find(|(known, _)| *known == key);
            line.map_or(String::new(), |(_, value)| value.replace("\\n", "\n"))
        };
        let (from, to) = (value("change"), value("to"));
        assert!(!from.is_empty() && GOOD.contains(&from), "nothing to replace: {case:?}");
        let error = Scenario::read(&GOOD.replacen(&from, &to, 1)).err();
        let hint = error.as_ref().and_then(ScenarioError::hint).unwrap_or_default();
        let said = error.map(|error| format!("{}:{}: {error}", error.line, error.column));
        let said = said.unwrap_or_default();
        if said != value("error") || hint != value("hint") {
            wrong += &format!("\nchange {from}\nto     {to}\nerror  {said}\nhint   {hint}\n");
        }
    }
    assert!(wrong.is_empty(), "what is said instead:\n{wrong}");
}

#[test]
fn scenario_without_a_domain_is_refused() {
    let error = Scenario::read("title = 'x'\nlength = '1s'\npolicy.name = 'edf'").unwrap_err();
    assert_eq!(error.to_string(), "a scenario needs a domain");
    assert_eq!((error.line, error.column), (1, 1));
}

fn replaying(recording: &str) -> Result<Scenario, ScenarioError> {
    let text = GOOD.replacen("kind = \"spin\"", "kind = \"replay\", file = \"web.csv\"", 1);
    Scenario::with_files(&text, &|path| match path {
        "web.csv" => Ok(recording.to_owned()),
        _ => Err("it is not there".to_owned()),
    })
}

#[test]
fn recording_with_zero_run_times_needs_a_nonzero_block_time() {
    assert!(replaying("0,100000000\n").is_ok());
    let error = replaying("0,0\n").unwrap_err();
    assert!(error.to_string().ends_with("all run and block times in it are zero"), "{error}");
}

#[test]
fn wrong_recording_file_header_is_refused_with_the_right_header() {
    let error = replaying("# by hand\nblock_ns,run_ns\n1,2\n").unwrap_err();
    let says = "line 2: the header must be `run_ns,block_ns`, not `block_ns,run_ns`";
    assert!(error.to_string().ends_with(says), "{error}");
}

#[test]
fn recording_error_names_the_line_in_the_recording_file() {
    assert!(replaying("run_ns,block_ns\n# taken by hand\n\n3000000, 7000000\n").is_ok());
    let error = replaying("1,2\n3;4\n").unwrap_err();
    let says = "domain `web`: `web.csv`, line 2: `3;4` is not two durations in nanoseconds";
    assert_eq!(error.to_string(), says);
    assert_eq!(error.hint().unwrap(), "write a run and a block in a line, as in `3000000,7000000`");
    for bad in ["1,2\nrun_ns,block_ns", "1", "1,2,3", "-1,2", ",", "99999999999999999999,1"] {
        assert!(replaying(bad).is_err(), "{bad}");
    }
    assert_eq!(
        replaying("").unwrap_err().to_string(),
        "domain `web`: cannot replay this recording: all run and block times in it are zero"
    );
}

#[test]
fn scenario_error_column_counts_characters_for_any_line_ending() {
    let text = GOOD.replace("\"good\"", "\"gut für alle\", x").replace('\n', "\r\n");
    let error = Scenario::read(&format!("\u{feff}{text}")).unwrap_err();
    assert_eq!((error.line, error.column), (1, 23));
    let error = Scenario::read(&GOOD.replace("cpus = 2", "cpus = 0").replace('\n', "\r\n"));
    let error = error.unwrap_err();
    assert_eq!((error.line, error.column), (5, 8));
}

#[test]
fn scenario_with_100_000_nested_brackets_is_refused() {
    for text in ["[".repeat(100_000), format!("a = {}", "[".repeat(100_000))] {
        assert!(Scenario::read(&text).is_err());
    }
}

#[test]
fn unknown_policy_passed_by_caller_gives_error_without_line_number() {
    let scenario = Scenario::read(GOOD).unwrap();
    let error = scenario.with_policy("robin").unwrap_err();
    assert_eq!(error.to_string(), "no policy is called `robin`");
    assert!(error.hint().unwrap().starts_with("the policies are edf, round-robin"));
    assert_eq!((error.line, error.column), (0, 0));
}

/// Pattern that matches up to four random characters. Some of them are control characters.
const OTHER: &str = "[ -~\n\u{80}-\u{9f}é]{0,4}";

proptest! {
    #[test]
    fn arbitrary_scenario_text_is_parsed_or_refused_without_panic(text in ".*") {
        let _ = Scenario::read(&text);
    }

    /// Random characters replace parts of a valid file. The reader gets further in such a text than
    /// in random text before it finds an error.
    #[test]
    fn randomly_altered_scenario_is_parsed_or_gives_printable_error(
        cuts in prop::collection::vec((0..GOOD.len(), 0..12_usize, OTHER), 1..4),
    ) {
        let mut text = GOOD.to_owned();
        for (from, length, with) in cuts {
            let from = from.min(text.len());
            let from = (0..=from).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            let to = (from + length).min(text.len());
            let to = (to..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
            text.replace_range(from..to, &with);
        }
        if let Err(error) = Scenario::read(&text) {
            prop_assert!(error.line >= 1 && error.line <= text.split('\n').count(), "{error:?}");
            prop_assert!(error.column >= 1, "{error:?}");
            let says = error.to_string();
            prop_assert!(!says.contains(|c: char| c.is_control()), "{says:?}");
        }
    }
}
