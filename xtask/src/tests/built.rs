//! Test programs that cargo has built, and how to build them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::step;

/// Results of a build.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct BuildResults {
    /// Test programs of the workspace.
    pub tests: Vec<Test>,
    /// Path of the program `slackline`, which some tests start.
    pub program: PathBuf,
    /// Number of warnings of the compiler and of clippy.
    pub warnings: usize,
}

/// A program that contains tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// Name of the package.
    pub package: String,
    /// Name of the target: a file in `tests`, or the name of the package for its unit tests.
    pub target: String,
    /// Folder of the package, which is the working directory of the tests.
    pub folder: PathBuf,
    /// Path of the program.
    pub program: PathBuf,
}

impl Test {
    /// Returns the arguments of `cargo test` that select this test program.
    #[must_use]
    pub fn name(&self) -> String {
        format!("-p {} {}", self.package, self.target)
    }

    /// Returns true if the test program schedules CPUs of this host. Such programs must not run in
    /// parallel.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.target == "--test live"
    }
}

/// Builds every test, and the program `slackline` that some of them start. Prints the warnings of
/// the compiler and of clippy.
///
/// # Errors
///
/// If something cannot be built, or cargo's output has an unknown form.
pub fn build() -> Result<BuildResults> {
    let built = build_of(&["--workspace"])?;
    ensure!(built.program.is_file(), "cargo built no slackline");
    Ok(built)
}

/// Builds the tests of the packages that `options` of cargo select.
///
/// # Errors
///
/// As for [`build`].
pub fn build_of(options: &[&str]) -> Result<BuildResults> {
    let mut cargo = step::linting_cargo();
    cargo.args(["test", "--locked", "--no-run", "--quiet"]).args(options);
    cargo.arg("--message-format=json-diagnostic-rendered-ansi");
    let mut child = cargo.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let messages = child.stdout.take().context("cargo has no output")?;
    let mut built = BuildResults::default();
    for line in BufReader::new(messages).lines() {
        take(
            &mut built,
            &serde_json::from_str(&line?).context("cannot parse the output of cargo")?,
        )?;
    }
    let status = child.wait()?;
    ensure!(status.success(), "cargo ended with {status}: the tests cannot be built");
    ensure!(!built.tests.is_empty(), "cargo built no test");
    built.tests.sort_by_key(Test::name);
    Ok(built)
}

fn take(built: &mut BuildResults, message: &Value) -> Result<()> {
    if let Some(text) = message["message"]["rendered"].as_str() {
        eprint!("{text}");
        built.warnings += usize::from(message["message"]["level"] == "warning");
    }
    let Some(program) = message["executable"].as_str().map(PathBuf::from) else { return Ok(()) };
    let text = |value: &Value| value.as_str().map(str::to_owned).context("an unknown artifact");
    let (kind, target) = (text(&message["target"]["kind"][0])?, text(&message["target"]["name"])?);
    if message["profile"]["test"] == false {
        if kind == "bin" && target == "slackline" {
            built.program = program;
        }
        return Ok(());
    }
    let manifest = text(&message["manifest_path"])?;
    let folder = Path::new(&manifest).parent().context("a manifest in no folder")?.to_owned();
    let target = match kind.as_str() {
        "test" => format!("--test {target}"),
        "bin" => format!("--bin {target}"),
        _ => "--lib".to_owned(),
    };
    // The id is `path+file:///slackline/pure/units#slackline-units@0.1.0`. If the package has the
    // name of its folder, the id does not repeat the name.
    let id = text(&message["package_id"])?;
    let name = id.rsplit('#').next().and_then(|end| end.split_once('@'));
    let package = match name {
        Some((name, _)) => name.to_owned(),
        None => folder.file_name().context("a package in no folder")?.to_string_lossy().into(),
    };
    built.tests.push(Test { package, target, folder, program });
    Ok(())
}

#[cfg(test)]
mod unit {
    use serde_json::json;

    use super::*;

    fn artifact(id: &str, kind: &str, target: &str, is_test: bool) -> Value {
        json!({
            "reason": "compiler-artifact",
            "package_id": id,
            "manifest_path": "/slackline/edge/cli/Cargo.toml",
            "target": { "kind": [kind], "name": target },
            "profile": { "test": is_test },
            "executable": format!("/target/{target}"),
        })
    }

    #[test]
    fn test_programs_are_distinguished_from_other_artifacts_of_cargo() {
        let mut built = BuildResults::default();
        let id = "path+file:///slackline/edge/cli#slackline@0.1.0";
        let messages = [
            artifact(id, "bin", "slackline", false),
            artifact(id, "bin", "slackline", true),
            artifact(id, "test", "live", true),
            artifact("path+file:///slackline/papers#0.1.0", "bin", "other", false),
            json!({ "reason": "compiler-artifact", "executable": null }),
            json!({ "reason": "build-finished", "success": true }),
        ];
        for message in messages {
            take(&mut built, &message).expect("all messages have a known form");
        }
        assert_eq!(built.program, Path::new("/target/slackline"));
        let names: Vec<String> = built.tests.iter().map(Test::name).collect();
        assert_eq!(names, ["-p slackline --bin slackline", "-p slackline --test live"]);
        assert_eq!(built.tests[0].folder, Path::new("/slackline/edge/cli"));
        assert_eq!(built.tests.iter().map(Test::is_live).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn package_name_is_parsed_from_both_package_id_formats() {
        let mut built = BuildResults::default();
        let id = |end: &str| format!("path+file:///slackline/edge/cli#{end}");
        for (end, kind) in [("0.1.0", "lib"), ("slackline-live@0.1.0", "test")] {
            take(&mut built, &artifact(&id(end), kind, "live", true))
                .expect("the message has a known form");
        }
        let packages: Vec<&str> = built.tests.iter().map(|test| test.package.as_str()).collect();
        assert_eq!(packages, ["cli", "slackline-live"]);
        assert!(built.tests[1].is_live() && !built.tests[0].is_live());
    }
}
