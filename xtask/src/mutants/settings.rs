//! Settings of mutation testing: tests, threshold and known survivors of each crate.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use toml::{Table, Value};

/// Path of the settings.
const FILE: &str = "xtask/mutants.toml";

/// Settings of a crate.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Threshold: the tests must notice at least this percentage of the changes that could be
    /// built.
    pub least: usize,
    /// Stages of tests. The stage with quick tests comes first.
    pub stages: Vec<Stage>,
    /// Known survivors: changes that no test can notice.
    pub survivors: Vec<Survivor>,
}

/// A stage of tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Stage {
    /// Crates whose tests the stage runs.
    pub tests_of: Vec<String>,
    /// Arguments of `cargo test` that select the tests of the stage.
    pub arguments: Vec<String>,
}

/// A known survivor: a change that has no effect on behaviour, with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survivor {
    /// Path of the changed file.
    pub file: String,
    /// Description of the change by cargo-mutants, without the line number.
    pub change: String,
    /// Reason why no test can notice the change.
    pub why: String,
}

/// Reads the settings of all crates.
pub(super) fn read() -> Result<BTreeMap<String, Settings>> {
    let text = fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    parse(&text).context(FILE)
}

fn parse(text: &str) -> Result<BTreeMap<String, Settings>> {
    let table: Table = text.parse()?;
    table
        .into_iter()
        .map(|(name, value)| {
            let settings = one(&value).with_context(|| format!("[{name}]"))?;
            Ok((name, settings))
        })
        .collect()
}

fn one(value: &Value) -> Result<Settings> {
    let least = value.get("least").and_then(Value::as_integer).context("no `least`")?;
    let least = usize::try_from(least)?;
    ensure!(least <= 100, "`least` is a percentage");
    let mut settings = Settings { least, ..Settings::default() };
    for stage in list(value, "stages") {
        let (tests_of, arguments) = (words(stage, "tests-of"), words(stage, "arguments"));
        ensure!(!tests_of.is_empty(), "a stage has no `tests-of`");
        settings.stages.push(Stage { tests_of, arguments });
    }
    ensure!(!settings.stages.is_empty(), "no `stages`");
    for survivor in list(value, "survives") {
        let text = |key: &str| {
            let text = survivor.get(key).and_then(Value::as_str).map(str::trim);
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let text = |key: &str| text(key).with_context(|| format!("a survivor has no `{key}`"));
        let (file, change, why) = (text("file")?, text("change")?, text("why")?);
        settings.survivors.push(Survivor { file, change, why });
    }
    Ok(settings)
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn words(value: &Value, key: &str) -> Vec<String> {
    list(value, key).filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn committed_settings_of_mutation_testing_can_be_parsed() {
        let text = include_str!("../../mutants.toml");
        let settings = parse(text).expect("it is well formed");
        assert_eq!(settings["host"].least, 95);
        for name in ["policy", "metrics", "sim"] {
            assert_eq!(settings[name].least, 85);
        }
        for survivor in settings.values().flat_map(|settings| &settings.survivors) {
            assert!(survivor.file.starts_with("pure/"), "{survivor:?}");
        }
    }

    #[test]
    fn survivor_of_mutation_testing_without_a_reason_is_refused() {
        let stage = "stages = [{ tests-of = [\"host\"] }]";
        let text = format!("[a]\nleast = 95\n{stage}\nsurvives = [{{ file = \"a\" }}]");
        let error = parse(&text).expect_err("it says nothing");
        assert_eq!(format!("{error:#}"), "[a]: a survivor has no `change`");
        let error = parse("[a]\nleast = 101").expect_err("more than all");
        assert_eq!(format!("{error:#}"), "[a]: `least` is a percentage");
    }
}
