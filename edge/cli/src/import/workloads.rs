//! Import of CPU series and task sets of other programs, as scenarios or task sets.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum as _;
use slackline_experiments::fit::NamedTasks;
use slackline_workload::{
    Kind, Options, SourceFile, WorkloadError, WrittenScenario, convert, convert_tasks,
};

use super::read_whole;
use crate::import_args::{ImportArgs, ImportKind};
use crate::pending::Pending;
use crate::places::Places;
use crate::problem::Problem;
use crate::terminal;

/// Maximum number of job files whose names are printed.
const FEW: usize = 4;

/// Converts files to a scenario and the job files that the scenario names.
pub(super) fn import(
    args: &ImportArgs,
    kind: Kind,
    files: &[PathBuf],
    out: &Path,
) -> Result<(), Problem> {
    let of_recordings = [("--for", !args.r#for.is_empty()), ("--anonymise", args.anonymise)];
    if let Some((option, _)) = of_recordings.into_iter().find(|(_, is_given)| *is_given) {
        return Err(not_for(option, args.kind));
    }
    if let Some(option) = args.workload.unused(kind) {
        return Err(not_for(option, args.kind));
    }
    // The file named last is written. If the user forgot to name it, the last input file must not
    // be overwritten.
    if out.extension().is_none_or(|extension| extension != "toml") {
        let message = format!("cannot write a scenario to `{}`: not a .toml file", out.display());
        let hint = "name the scenario last: slackline import KIND FILE... OUT.toml";
        return Err(Problem::BadOption { message, hint: Some(hint.into()) });
    }
    let mut places = Places::of(&[("the scenario", Some(out))])?;
    let read = files.iter().map(|file| read_whole(file)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let sources: Vec<SourceFile<'_>> =
        names.iter().zip(&read).map(|(name, bytes)| SourceFile { name, bytes }).collect();
    if args.workload.task_set {
        files.iter().try_for_each(|file| places.read("the file", file))?;
        return task_set((kind, &sources), &args.workload.options(), out);
    }
    let stem = out.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let written = convert(kind, &sources, &args.workload.options(), &stem)
        .map_err(|error| problem(&error))?;
    // A scenario that no command accepts is not written.
    if let Err(error) = written.scenario() {
        return Err(Problem::Scenario { file: out.into(), error });
    }
    for (name, _) in &written.files {
        places.write("the jobs", &out.with_file_name(name))?;
    }
    for file in files {
        places.read("the file", file)?;
    }
    for (name, text) in &written.files {
        save(&out.with_file_name(name), text)?;
    }
    save(out, &written.whole())?;
    terminal::say(&summary(&written, out))
}

/// Converts tasks to a task set for `slackline fit`.
fn task_set(
    (kind, sources): (Kind, &[SourceFile<'_>]),
    options: &Options,
    out: &Path,
) -> Result<(), Problem> {
    let written = convert_tasks(kind, sources, options).map_err(|error| problem(&error))?;
    // A task set that `fit` does not accept is not written.
    if let Err(error) = NamedTasks::read(&written.text) {
        let message = format!("cannot write {}: {error}", out.display());
        return Err(Problem::BadOption { message, hint: error.hint });
    }
    save(out, &written.text)?;
    let mut text = format!("task set: {}\n", out.display());
    for assumption in &written.assumptions {
        let _ = writeln!(text, "assumed:  {assumption}");
    }
    terminal::say(&text)
}

/// Returns the error for an option that `import` does not accept for this kind of file.
pub(super) fn not_for(option: &str, kind: ImportKind) -> Problem {
    let name = kind.to_possible_value();
    let name = name.as_ref().map_or("this kind", |value| value.get_name());
    let message = format!("cannot use {option} with `import {name}`");
    Problem::BadOption { message, hint: Some(format!("drop {option}")) }
}

fn problem(error: &WorkloadError) -> Problem {
    let hint = error.hint().map(str::to_owned);
    Problem::BadOption { message: error.to_string(), hint }
}

fn save(file: &Path, text: &str) -> Result<(), Problem> {
    let (pending, mut out) = Pending::new(file)?;
    pending.keep(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

fn summary(written: &WrittenScenario, out: &Path) -> String {
    let mut text = format!("scenario: {}\n", out.display());
    for (name, _) in written.files.iter().take(FEW) {
        let _ = writeln!(text, "jobs:     {}", out.with_file_name(name).display());
    }
    if written.files.len() > FEW {
        let more = written.files.len() - FEW;
        let noun = if more == 1 { "file" } else { "files" };
        let _ = writeln!(text, "jobs:     and {more} more {noun}");
    }
    for assumption in &written.assumptions {
        let _ = writeln!(text, "assumed:  {assumption}");
    }
    text
}
