//! Checks that are quick enough to run after each change, for changed crates only.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::metadata::Metadata;
use crate::{step, tests, tidy};

/// Checks style and the rules of this repository, and runs the tests of every crate that has
/// uncommitted changes. Tests that schedule CPUs of this host are left out.
///
/// # Errors
///
/// If a check fails.
pub fn run(metadata: &Metadata) -> Result<String> {
    step::run(step::cargo().args(["fmt", "--all", "--check"]))?;
    ensure!(tidy::tidy(metadata)?, "`tidy` found the faults that are listed above");
    let mut git = Command::new("git");
    let changes = step::output(git.args(["status", "--porcelain", "--untracked-files=all"]))?;
    let packages = changed(metadata, &changes);
    if packages.is_empty() {
        return Ok("no crate has changes that are not committed".to_owned());
    }
    let passed = tests::run_of(&packages)?.passed;
    Ok(format!("{passed} tests of {} passed", packages.join(", ")))
}

/// Returns the packages with changed files. `changes` is the output of `git status --porcelain`.
fn changed<'a>(metadata: &'a Metadata, changes: &str) -> Vec<&'a str> {
    // Each line has two letters, a space and the path. For a renamed file, the new path comes last.
    let paths: Vec<&str> =
        changes.lines().filter_map(|line| line.get(3..)?.rsplit(" -> ").next()).collect();
    let has_change = |folder: &str| paths.iter().any(|path| path.starts_with(folder));
    let crates = metadata.crates.iter();
    let changed = crates.filter(|one| has_change(&format!("{}/", one.folder)));
    changed.map(|one| one.package.as_str()).collect()
}

#[cfg(test)]
mod unit {
    use super::*;
    use crate::metadata::Crate;

    #[test]
    fn xtask_quick_runs_tests_of_crates_with_changed_files() {
        let named = |package: &str, folder: &str| Crate {
            package: package.into(),
            folder: folder.into(),
            normal: vec![],
            other: vec![],
        };
        let crates = vec![
            named("units", "pure/units"),
            named("sim", "pure/sim"),
            named("cli", "edge/cli"),
            named("clippy", "edge/clippy"),
        ];
        let metadata = Metadata { target: "target".into(), crates, foreign: vec![] };
        let changes = " M pure/units/src/lib.rs\nR  README.md -> edge/cli/README.md\n\
                       ?? pure/sim/tests/all/new.rs\n M README.md\n";
        assert_eq!(changed(&metadata, changes), ["units", "sim", "cli"]);
        assert!(changed(&metadata, " M README.md\n").is_empty());
    }
}
