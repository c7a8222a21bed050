//! Kinds of work that need devices, as programs for the tasks of a system.

use slackline_units::Span;

use super::quantity::bytes;
use super::{MOST_TASKS, Task, TaskStep};
use crate::table::{Mistake, Table};
use crate::{Draw, Program, Step};

/// The priority of a task that says none.
pub(crate) const PRIORITY: u8 = 100;

/// What the work of a domain asks of its system.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    pub(crate) tasks: Vec<Task>,
    pub(crate) connections: Option<usize>,
}

impl Task {
    fn repeat(steps: Vec<TaskStep>) -> Task {
        Task { priority: PRIORITY, steps, repeat: true, total: None }
    }

    /// A program that needs no devices.
    pub(crate) fn plain(program: &Program) -> Task {
        let steps = program.steps.iter().copied().map(TaskStep::Plain).collect();
        Task { priority: PRIORITY, steps, repeat: program.repeat, total: None }
    }
}

/// Reads work of a kind that needs a system with devices.
pub(crate) fn read(kind: &str, table: &Table<'_>) -> Result<Work, Mistake> {
    match kind {
        "web-server" => web_server(table),
        "echo" => {
            let table = table.allow(&["kind", "each"])?;
            let steps = vec![TaskStep::Accept, each(&table)?, TaskStep::Answer { bytes: 1 }];
            Ok(Work { tasks: vec![Task::repeat(steps)], connections: None })
        }
        "disk-read" => {
            let table = table.allow(&["kind", "each", "block", "readers"])?;
            let block = bytes(&table.need("block", "block = \"128KiB\"")?)?;
            let readers = table.maybe("readers", |item| item.count(1..=MOST_TASKS))?.unwrap_or(1);
            let task = Task::repeat(vec![each(&table)?, TaskStep::Read { bytes: block }]);
            Ok(Work { tasks: vec![task; readers], connections: None })
        }
        "send" => {
            let table = table.allow(&["kind", "each", "block"])?;
            let block = bytes(&table.need("block", "block = \"8KiB\"")?)?;
            let task = Task::repeat(vec![each(&table)?, TaskStep::Send { bytes: block }]);
            Ok(Work { tasks: vec![task], connections: None })
        }
        "sink" => table.allow(&["kind"]).map(|_| Work::default()),
        _ => compile(table),
    }
}

fn web_server(table: &Table<'_>) -> Result<Work, Mistake> {
    let table = table.allow(&["kind", "each", "response", "connections", "processes", "read"])?;
    let response = bytes(&table.need("response", "response = \"10KiB\"")?)?;
    let processes = table.maybe("processes", |item| item.count(1..=MOST_TASKS))?.unwrap_or(1);
    let connections = table.maybe("connections", |item| item.count(1..=MOST_TASKS))?;
    let mut steps = vec![TaskStep::Accept, each(&table)?];
    if let Some(bytes) = table.maybe("read", |item| bytes(&item))? {
        steps.push(TaskStep::Read { bytes });
    }
    steps.push(TaskStep::Answer { bytes: response });
    Ok(Work { tasks: vec![Task::repeat(steps); processes], connections })
}

/// Bursts of computing between reads from a file server.
fn compile(table: &Table<'_>) -> Result<Work, Mistake> {
    let table = table.allow(&["kind", "jobs", "each", "read", "wait", "total"])?;
    let jobs = table.maybe("jobs", |item| item.count(1..=MOST_TASKS))?.unwrap_or(1);
    let bytes = bytes(&table.need("read", "read = \"8KiB\"")?)?;
    let wait = table.maybe("wait", |item| item.draw())?.unwrap_or(Draw::Fixed(Span::ZERO));
    let total = table.maybe("total", |item| item.some_span())?;
    let mut task = Task::repeat(vec![each(&table)?, TaskStep::Ask { bytes, wait }]);
    task.total = total.map(|total| total / jobs as u64);
    Ok(Work { tasks: vec![task; jobs], connections: None })
}

fn each(table: &Table<'_>) -> Result<TaskStep, Mistake> {
    let each = table.need("each", "each = \"300us\"")?.some_draw()?;
    Ok(TaskStep::Plain(Step::Compute(each)))
}
