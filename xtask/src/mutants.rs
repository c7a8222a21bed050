//! Mutation testing. It applies one change at a time to the source of a crate, runs the tests, and
//! reports the changes that no test notices. Mutation testing is run by hand, because there are
//! thousands of changes and each takes seconds.

mod outcome;
mod settings;
mod tree;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::step;
pub use outcome::{Counts, Fate, TriedMutant, report};
pub use settings::{Settings, Stage, Survivor};

/// Folder for a copy of the repository in which changes are made, for its builds and for the
/// results.
const FOLDER: &str = "target/mutants";

/// Selection of the changes to try.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MutantSelection {
    /// Names of the crates' folders. If empty, all crates are selected.
    pub crates: Vec<String>,
    /// Fraction of all changes, such as `0/4` for every fourth change from the first on. If `None`,
    /// all changes are tried.
    pub shard: Option<String>,
    /// Patterns of file paths. Only changes in matching files are tried.
    pub files: Vec<String>,
    /// Maximum number of stages of tests. If `None`, all stages are run.
    pub stages: Option<usize>,
}

impl MutantSelection {
    /// Parses the arguments after `mutants`.
    ///
    /// # Errors
    ///
    /// If an argument is unknown.
    pub fn read(words: &[&str]) -> Result<MutantSelection> {
        let mut part = MutantSelection::default();
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let mut value = || words.next().with_context(|| format!("`{word}` needs a value"));
            match word {
                "--shard" => part.shard = Some((*value()?).to_owned()),
                "--file" => part.files.push((*value()?).to_owned()),
                "--stages" => part.stages = Some(value()?.parse().context("--stages")?),
                _ if word.starts_with('-') => bail!("`{word}` is not an option of mutants"),
                _ => part.crates.push(word.to_owned()),
            }
        }
        Ok(part)
    }

    fn is_whole(&self) -> bool {
        *self == MutantSelection { crates: self.crates.clone(), ..MutantSelection::default() }
    }
}

/// Tries the changes of each crate. Succeeds if the tests noticed enough changes in each crate.
///
/// # Errors
///
/// If cargo-mutants is not installed, or if the tests fail even without a change.
pub fn run(part: &MutantSelection) -> Result<ExitCode> {
    let has_tool = step::output(step::cargo().args(["mutants", "--version"])).is_ok();
    ensure!(
        has_tool,
        "cargo-mutants is missing: install it with `cargo install --locked cargo-mutants`"
    );
    let settings = settings::read()?;
    for name in &part.crates {
        let known: Vec<&str> = settings.keys().map(String::as_str).collect();
        ensure!(settings.contains_key(name), "no `{name}` among {}", known.join(", "));
    }
    let tree = tree::copy(&Path::new(FOLDER).join("tree"))?;
    let mut is_good = true;
    for (name, settings) in &settings {
        if part.crates.is_empty() || part.crates.contains(name) {
            let changed = all_stages(name, settings, part, &tree)?;
            let (text, is_enough) = report(name, settings, &changed, part.is_whole());
            print!("{text}");
            is_good &= is_enough;
        }
    }
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs all stages of tests on a crate. Quick tests come first. A later stage tries only the
/// changes that no earlier stage noticed.
fn all_stages(
    name: &str,
    settings: &Settings,
    part: &MutantSelection,
    tree: &Path,
) -> Result<Vec<TriedMutant>> {
    let mut all: Vec<TriedMutant> = Vec::new();
    let stages = part.stages.unwrap_or(usize::MAX);
    for (index, stage) in settings.stages.iter().enumerate().take(stages) {
        let missed: Vec<&str> = outcome::missed(&all).map(|one| one.name.as_str()).collect();
        if index > 0 && missed.is_empty() {
            break;
        }
        let folder = std::env::current_dir()?.join(FOLDER).join(format!("{name}-{index}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let mut command = command(name, stage, &folder, tree);
        if index == 0 {
            // Taking every n-th change gives a fair sample.
            let shard = |shard| ["--sharding=round-robin", "--shard", shard];
            command.args(part.shard.iter().flat_map(|part| shard(part)));
            command.args(part.files.iter().flat_map(|file| ["--file", file]));
        } else {
            let file = folder.join("missed.toml");
            fs::write(&file, outcome::examine(&missed))?;
            command.arg("--config").arg(file);
            let files: BTreeSet<&str> =
                outcome::missed(&all).map(|one| one.file.as_str()).collect();
            command.args(files.into_iter().flat_map(|file| ["--file", file]));
        }
        command.arg("--").args(&stage.arguments);
        let status = command.stdin(Stdio::null()).status()?;
        let changed = outcome::read(&folder.join("mutants.out/outcomes.json"))
            .with_context(|| format!("{} ended with {status}", step::shown(&command)))?;
        match index {
            0 => all = changed,
            _ => outcome::merge(&mut all, changed),
        }
    }
    Ok(all)
}

fn command(name: &str, stage: &Stage, folder: &Path, tree: &Path) -> Command {
    let mut cargo = step::cargo();
    cargo.args(["mutants", "--in-place", "--no-shuffle", "--colors=never"]);
    cargo.args(["--minimum-test-timeout=60", "--package"]).arg(format!("slackline-{name}"));
    cargo.args(stage.tests_of.iter().map(|tests| format!("--test-package=slackline-{tests}")));
    cargo.arg("--output").arg(folder).current_dir(tree);
    // Builds are kept between runs. Debug information is not needed.
    cargo.env("CARGO_TARGET_DIR", build_folder(tree)).env("CARGO_PROFILE_TEST_DEBUG", "0");
    // A random case that fails is not reduced, and is not kept for the next change.
    cargo.env("PROPTEST_MAX_SHRINK_ITERS", "0");
    cargo.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
    cargo
}

fn build_folder(tree: &Path) -> PathBuf {
    tree.with_file_name("build")
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn arguments_of_xtask_mutants_select_crates_shards_and_files() {
        let part = MutantSelection::read(&[
            "host", "--shard", "1/4", "--file", "edf.rs", "--stages", "2", "sim",
        ]);
        let part = part.expect("all arguments are valid");
        assert_eq!(part.crates, ["host", "sim"]);
        assert_eq!(part.shard.as_deref(), Some("1/4"));
        assert_eq!(part.files, ["edf.rs"]);
        assert_eq!(part.stages, Some(2));
        assert!(!part.is_whole() && MutantSelection::default().is_whole());
    }

    #[test]
    fn unknown_argument_of_xtask_mutants_is_refused() {
        let says =
            |words: &[&str]| MutantSelection::read(words).expect_err("not known").to_string();
        assert_eq!(says(&["--all"]), "`--all` is not an option of mutants");
        assert_eq!(says(&["host", "--shard"]), "`--shard` needs a value");
    }
}
