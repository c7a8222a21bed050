//! Runs every scenario twice, with the debug build of the tests or with the release build, and
//! compares the results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::metadata::Metadata;
use crate::step;

/// Builds the release build, which takes minutes, and runs each scenario with it.
///
/// # Errors
///
/// As for [`run`], and if the program cannot be built.
pub fn run_released(metadata: &Metadata) -> Result<String> {
    let mut cargo = step::cargo();
    step::run(cargo.args(["build", "--release", "--quiet", "--locked", "--package", "slackline"]))?;
    run(&metadata.target.join("release").join("slackline"), &metadata.target)
}

/// Runs each scenario. Its claims must hold, and both runs must write identical traces.
///
/// # Errors
///
/// If any scenario fails. The error contains all failures.
pub fn run(program: &Path, target: &Path) -> Result<String> {
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir("scenarios").context("no folder `scenarios`")? {
        files.push(entry?.path());
    }
    files.retain(|file| file.extension().is_some_and(|kind| kind == "toml"));
    files.sort();
    ensure!(!files.is_empty(), "no scenario in `scenarios`");
    let folder = target.join("scenarios");
    fs::create_dir_all(&folder)?;
    let (mut faults, mut kept) = (Vec::new(), 0);
    for file in &files {
        match twice(program, file, &folder) {
            Ok(bytes) => kept += bytes,
            Err(error) => faults.push(format!("{}: {error:#}", file.display())),
        }
    }
    if faults.is_empty() {
        Ok(format!(
            "claims of {} scenarios hold, and two runs each saved the same {kept} bytes of traces",
            files.len()
        ))
    } else {
        bail!("{}", faults.join("\n"))
    }
}

/// Runs a scenario twice and checks both runs. Returns the size of the trace in bytes, or zero if
/// admission refuses the scenario as expected.
fn twice(program: &Path, file: &Path, folder: &Path) -> Result<usize> {
    step::output(Command::new(program).arg("check").arg(file))?;
    let run = |number: &str| -> Result<(String, Option<Vec<u8>>)> {
        let trace = folder.join(number).with_extension("trace");
        // A trace of an earlier run is removed, so that it is not taken for the trace of this run.
        let _ = fs::remove_file(&trace);
        let mut command = Command::new(program);
        let said = step::output(command.arg("sim").arg(file).arg("--save").arg(&trace))?;
        let bytes = trace.exists().then(|| fs::read(&trace)).transpose()?;
        let _ = fs::remove_file(&trace);
        Ok((said, bytes))
    };
    let (first, second) = (run("first")?, run("second")?);
    let names = |text: &str| text.replace("first.trace", "").replace("second.trace", "");
    ensure!(names(&first.0) == names(&second.0), "two runs printed different text");
    ensure!(first.1 == second.1, "two runs saved different traces");
    Ok(first.1.map_or(0, |bytes| bytes.len()))
}
