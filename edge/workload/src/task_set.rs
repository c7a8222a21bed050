//! Task sets of EVA and random task sets. A task set becomes either a scenario with a VM for each
//! task, or the tasks of one guest for `slackline fit`.

use std::fmt::Write as _;

use slackline_fit::PeriodicTask;
use slackline_units::Span;

use crate::error::WorkloadError;
use crate::eva::EvaSet;
use crate::task_vms::{self, TaskVms, VmTask};
use crate::write::{WrittenScenario, comments, counted, quoted};
use crate::{Kind, Options, SourceFile, only, readable};

/// A task set for `slackline fit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenTaskSet {
    /// Text of the task set, in TOML.
    pub text: String,
    /// Assumptions, one sentence each. The text has them as comments.
    pub assumptions: Vec<String>,
}

/// Converts tasks to the task set of one guest, for `slackline fit`.
///
/// # Errors
/// If the kind is not `eva` or `uunifast`, or a task is not valid.
pub fn convert_tasks(
    kind: Kind,
    files: &[SourceFile<'_>],
    options: &Options,
) -> Result<WrittenTaskSet, WorkloadError> {
    let files = files.iter().map(readable).collect::<Result<Vec<_>, _>>()?;
    match kind {
        Kind::Eva => {
            let file = only(kind, &files)?;
            let set = EvaSet::read(file, options)?;
            for (task, &line) in set.tasks.iter().zip(&set.lines) {
                let period = task.period.unwrap_or(task.deadline);
                PeriodicTask::new(task.work, period, task.deadline).map_err(|bad| {
                    let wrong = WorkloadError::line(file.name, line, bad.to_string());
                    wrong.advise("`fit` needs WCET <= deadline <= period <= 1h")
                })?;
            }
            Ok(guest(kind, (&set.title, &set.tasks), EvaSet::assumed(options)))
        }
        Kind::Uunifast => {
            no_files(files.len())?;
            let tasks = options.set.draw(options.seed)?;
            let assumptions = options.set.assumed(options.seed);
            Ok(guest(kind, (&title(&tasks, options), &tasks), assumptions))
        }
        _ => {
            let why = format!(
                "cannot make a task set of kind {}: it does not describe tasks of one guest",
                kind.name()
            );
            Err(WorkloadError::Options { why, hint: "use eva or uunifast" })
        }
    }
}

/// Returns the scenario of a file of EVA.
pub(crate) fn of_eva(
    file: &SourceFile<'_>,
    options: &Options,
) -> Result<WrittenScenario, WorkloadError> {
    let set = EvaSet::read(file, options)?;
    Ok(scenario(Kind::Eva, (&set.title, &set.tasks), EvaSet::assumed(options), options))
}

/// Returns the scenario of a random task set. `files` is the number of files given.
pub(crate) fn drawn(files: usize, options: &Options) -> Result<WrittenScenario, WorkloadError> {
    no_files(files)?;
    let tasks = options.set.draw(options.seed)?;
    let assumptions = options.set.assumed(options.seed);
    Ok(scenario(Kind::Uunifast, (&title(&tasks, options), &tasks), assumptions, options))
}

fn no_files(count: usize) -> Result<(), WorkloadError> {
    match count {
        0 => Ok(()),
        count => {
            let why = format!(
                "cannot read {} for `uunifast`: its tasks are drawn at random",
                counted(count, "file")
            );
            Err(WorkloadError::Options { why, hint: "name only the file to write" })
        }
    }
}

fn title(tasks: &[VmTask], options: &Options) -> String {
    format!("{} by UUniFast, seed {}", counted(tasks.len(), "task"), options.seed)
}

fn scenario(
    kind: Kind,
    (title, tasks): (&str, &[VmTask]),
    mut assumptions: Vec<String>,
    options: &Options,
) -> WrittenScenario {
    let cpus = options.cpus.map_or_else(|| task_vms::cpus_for(tasks), usize::from);
    assumptions.extend(task_vms::assumed(tasks));
    if options.cpus.is_none() {
        assumptions.push(format!("the host has {}", counted(cpus, "CPU")));
    }
    assumptions.extend(task_vms::overload(tasks, cpus));
    assumptions.push(format!("the run takes {}", options.length));
    let (length, switch) = (options.length, Span::ZERO);
    TaskVms { kind: kind.name(), title, tasks, cpus, length, switch }.write(assumptions)
}

fn guest(
    kind: Kind,
    (title, tasks): (&str, &[VmTask]),
    mut assumptions: Vec<String>,
) -> WrittenTaskSet {
    assumptions.push("the tasks run in one guest with one vCPU, by deadline".to_owned());
    let mut text = comments(kind.name(), &assumptions);
    let _ = writeln!(text, "title     = {}\nscheduler = \"edf\"", quoted(title));
    for VmTask { name, work, period, deadline, .. } in tasks {
        let period = period.unwrap_or(*deadline);
        let _ = writeln!(text, "\n[[task]]\nname = {}", quoted(name));
        let _ = writeln!(text, "work = \"{work}\"\nperiod = \"{period}\"");
        if *deadline != period {
            let _ = writeln!(text, "deadline = \"{deadline}\"");
        }
    }
    WrittenTaskSet { text, assumptions }
}
