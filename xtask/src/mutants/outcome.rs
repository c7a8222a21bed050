//! Results of mutation testing: the result of each change, and the comparison with the threshold.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Settings, Survivor};

/// Result of the tests with one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// At least one test failed.
    Caught,
    /// All tests passed in spite of the change.
    Missed,
    /// The tests did not end within their time limit.
    Timeout,
    /// The changed crate could not be built.
    Unviable,
}

/// A change to the source that mutation testing tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriedMutant {
    /// Description of the change by cargo-mutants, with file, line and column.
    pub name: String,
    /// Path of the changed file.
    pub file: String,
    /// Result of the tests with the change.
    pub fate: Fate,
}

impl TriedMutant {
    /// Returns the description by cargo-mutants without file, line and column.
    #[must_use]
    pub fn change(&self) -> &str {
        self.name.split_once(": ").map_or(&self.name, |(_, change)| change)
    }
}

/// Number of changes for each result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Changes with at least one failed test.
    pub caught: usize,
    /// Changes with which all tests passed.
    pub missed: usize,
    /// Changes with which the tests did not end in time. These changes count as noticed.
    pub timeouts: usize,
    /// Changes that could not be built.
    pub unviable: usize,
}

impl Counts {
    fn of(changed: &[TriedMutant]) -> Counts {
        let count = |fate| changed.iter().filter(|one| one.fate == fate).count();
        Counts {
            caught: count(Fate::Caught),
            missed: count(Fate::Missed),
            timeouts: count(Fate::Timeout),
            unviable: count(Fate::Unviable),
        }
    }

    /// Returns true if the tests noticed at least `least` percent of the changes that could be
    /// built. Returns false if there was no such change, because the tests were then not checked.
    #[must_use]
    pub fn reaches(&self, least: usize) -> bool {
        let noticed = self.caught + self.timeouts;
        let built = noticed + self.missed;
        built > 0 && noticed * 100 >= least * built
    }
}

/// Returns the changes that no test noticed.
pub(super) fn missed(changed: &[TriedMutant]) -> impl Iterator<Item = &TriedMutant> {
    changed.iter().filter(|one| one.fate == Fate::Missed)
}

/// Merges the results of a later stage of tests into `all`. A result is replaced only if no test
/// had noticed the change before. Other results are ignored, because cargo-mutants also tries
/// changes that were not selected, such as deleted fields of structs.
pub(super) fn merge(all: &mut [TriedMutant], later: Vec<TriedMutant>) {
    for one in later {
        let is_it =
            |before: &&mut TriedMutant| before.name == one.name && before.fate == Fate::Missed;
        if let Some(before) = all.iter_mut().find(is_it) {
            *before = one;
        }
    }
}

/// Reads the output file of cargo-mutants.
pub(super) fn read(file: &Path) -> Result<Vec<TriedMutant>> {
    let text =
        fs::read_to_string(file).with_context(|| format!("there is no {}", file.display()))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<TriedMutant>> {
    let value: Value = serde_json::from_str(text)?;
    let outcomes = value["outcomes"].as_array().context("no outcomes")?;
    let mut changed = Vec::new();
    for outcome in outcomes {
        let summary = outcome["summary"].as_str().context("an outcome has no summary")?;
        let mutant = &outcome["scenario"]["Mutant"];
        if mutant.is_null() {
            ensure!(summary == "Success", "the tests fail before anything is changed: {summary}");
            continue;
        }
        let text = |key: &str| {
            mutant[key].as_str().map(str::to_owned).with_context(|| format!("no `{key}`"))
        };
        let fate = match summary {
            "CaughtMutant" => Fate::Caught,
            "MissedMutant" => Fate::Missed,
            "Timeout" => Fate::Timeout,
            "Unviable" => Fate::Unviable,
            other => anyhow::bail!("an unknown outcome, `{other}`"),
        };
        changed.push(TriedMutant { name: text("name")?, file: text("file")?, fate });
    }
    Ok(changed)
}

/// Returns settings of cargo-mutants that select only the named changes.
pub(super) fn examine(names: &[&str]) -> String {
    let mut text = String::from("examine_re = [\n");
    for name in names {
        let mut escaped = String::new();
        for character in name.chars() {
            // Only these characters are escaped. In a pattern, a backslash gives some other
            // characters a special meaning, as in `\<`.
            if r"\.+*?()|[]{}^$".contains(character) {
                escaped.push('\\');
            }
            escaped.push(character);
        }
        let _ = writeln!(text, "  '''^{escaped}$''',");
    }
    text + "]\n"
}

/// Returns the report that is printed, and true if the tests noticed enough changes.
#[must_use]
pub fn report(
    name: &str,
    settings: &Settings,
    changed: &[TriedMutant],
    is_whole: bool,
) -> (String, bool) {
    let counts = Counts::of(changed);
    let Counts { caught, missed, timeouts, unviable } = counts;
    let mut listed: Vec<&Survivor> = settings.survivors.iter().collect();
    let mut new = Vec::new();
    for one in self::missed(changed) {
        let is_it = |known: &&Survivor| known.file == one.file && known.change == one.change();
        match listed.iter().position(is_it) {
            Some(index) => {
                listed.remove(index);
            }
            None => new.push(one),
        }
    }
    let known = missed - new.len();
    let is_enough = counts.reaches(settings.least);
    let noticed = caught + timeouts;
    let part = 100.0 * noticed as f64 / (noticed + missed).max(1) as f64;
    let verdict = if is_enough { "enough" } else { "TOO FEW" };
    let mut text = format!(
        "{name}: {} changes: {caught} caught, {missed} missed ({known} of them listed), \
         {timeouts} timed out, {unviable} cannot be built\n  tests noticed {part:.1} %, at least \
         {} % are required: {verdict}\n",
        changed.len(),
        settings.least,
    );
    for one in new {
        let _ = writeln!(text, "  new survivor: {}", one.name);
    }
    // A partial run does not try all listed changes. So a listed change that does not survive means
    // nothing.
    for gone in listed.iter().filter(|_| is_whole) {
        let _ = writeln!(text, "  no longer survives: {}: {}", gone.file, gone.change);
    }
    (text, is_enough)
}

#[cfg(test)]
mod unit {
    use super::*;

    fn changed(line: usize, fate: Fate) -> TriedMutant {
        let name = format!("a.rs:{line}:9: replace < with <= in f");
        TriedMutant { name, file: "a.rs".into(), fate }
    }

    #[test]
    fn output_of_cargo_mutants_is_parsed() {
        let text = r#"{"outcomes": [
            {"scenario": "Baseline", "summary": "Success"},
            {"scenario": {"Mutant": {"name": "a.rs:1:2: b", "file": "a.rs"}}, "summary": "Timeout"}
        ]}"#;
        let read = parse(text).expect("it is well formed");
        assert_eq!(read.len(), 1);
        assert_eq!((read[0].change(), read[0].fate), ("b", Fate::Timeout));
        let failed = text.replace("Success", "Failure");
        assert!(parse(&failed).is_err());
    }

    #[test]
    fn listed_survivor_of_mutation_testing_matches_exactly_one_change() {
        let why = "both are the same there".to_owned();
        let change = "replace < with <= in f".to_owned();
        let survivors = vec![Survivor { file: "a.rs".into(), change, why }];
        let settings = Settings { least: 50, stages: Vec::new(), survivors };
        let mut all = vec![changed(1, Fate::Caught), changed(2, Fate::Missed)];
        let (text, is_enough) = report("a", &settings, &all, true);
        assert!(is_enough && !text.contains("survivor"), "{text}");
        all.push(changed(3, Fate::Missed));
        let (text, is_enough) = report("a", &settings, &all, true);
        assert!(!is_enough && text.contains("new survivor: a.rs:3:9: replace <"), "{text}");
        let (text, _) = report("a", &settings, &all[..1], true);
        assert!(text.contains("no longer survives: a.rs: replace <"), "{text}");
        let (text, _) = report("a", &settings, &all[..1], false);
        assert!(!text.contains("no longer"), "{text}");
    }

    #[test]
    fn mutation_threshold_ignores_changes_that_cannot_be_built() {
        let counts = |caught, missed| Counts { caught, missed, timeouts: 5, unviable: 100 };
        assert!(counts(90, 5).reaches(95));
        assert!(!counts(89, 5).reaches(95));
        assert!(!Counts::default().reaches(0), "no change was tried");
    }

    #[test]
    fn later_stage_of_mutation_testing_repeats_only_undetected_changes() {
        let mut all = vec![changed(1, Fate::Missed), changed(2, Fate::Missed)];
        merge(&mut all, vec![changed(2, Fate::Caught)]);
        // The other two results are of a change that was noticed earlier, and of a change that was
        // not selected.
        merge(&mut all, vec![changed(2, Fate::Missed), changed(3, Fate::Missed)]);
        assert_eq!(all, [changed(1, Fate::Missed), changed(2, Fate::Caught)]);
        assert_eq!(missed(&all).count(), 1);
        let names = ["a.rs:1:9: replace < with <= in f"];
        let line = "examine_re = [\n  '''^a\\.rs:1:9: replace < with <= in f$''',\n]\n";
        assert_eq!(examine(&names), line);
    }
}
