//! Kinds of work that need devices, as programs of tasks in an operating system.

use slackline_units::Span;

use super::Work;
use crate::io::DeviceStep;
use crate::io::quantity::bytes;
use crate::keys;
use crate::limits::MOST_TASKS;
use crate::table::{Mistake, Table};
use crate::{Draw, Program, Step, Task};

/// Names of the kinds of work that need devices.
pub(crate) const DEVICE_KINDS: &[&str] =
    &["web-server", "echo", "disk-read", "send", "sink", "compile"];

/// Reads work of a kind that needs an operating system with devices.
pub(crate) fn read(kind: &str, table: &Table<'_>) -> Result<Work, Mistake> {
    match kind {
        "web-server" => web_server(table),
        "echo" => {
            let table = table.taught(&keys::ECHO)?;
            let mut steps = vec![
                Step::Device(DeviceStep::Accept),
                each(&table)?,
                Step::Device(DeviceStep::Answer { bytes: 1 }),
            ];
            steps.extend(table.maybe("after", |item| item.some_draw())?.map(Step::Compute));
            Ok(Work::new(vec![repeating(steps)], None))
        }
        "disk-read" => {
            let table = table.taught(&keys::DISK_READ)?;
            let block = bytes(&table.need("block", "block = \"128KiB\"")?)?;
            let readers = table.maybe("readers", |item| item.count(1..=MOST_TASKS))?.unwrap_or(1);
            let task =
                repeating(vec![each(&table)?, Step::Device(DeviceStep::Read { bytes: block })]);
            Ok(Work::new(vec![task; readers], None))
        }
        "send" => {
            let table = table.taught(&keys::SEND)?;
            let block = bytes(&table.need("block", "block = \"8KiB\"")?)?;
            let task =
                repeating(vec![each(&table)?, Step::Device(DeviceStep::Send { bytes: block })]);
            Ok(Work::new(vec![task], None))
        }
        "sink" => table.taught(&keys::SINK).map(|_| Work::default()),
        _ => compile(table),
    }
}

fn web_server(table: &Table<'_>) -> Result<Work, Mistake> {
    let table = table.taught(&keys::WEB_SERVER)?;
    let response = bytes(&table.need("response", "response = \"10KiB\"")?)?;
    let processes = table.maybe("processes", |item| item.count(1..=MOST_TASKS))?.unwrap_or(1);
    let connections = table.maybe("connections", |item| item.count(1..=MOST_TASKS))?;
    let mut steps = vec![Step::Device(DeviceStep::Accept), each(&table)?];
    if let Some(bytes) = table.maybe("read", |item| bytes(&item))? {
        steps.push(Step::Device(DeviceStep::Read { bytes }));
    }
    steps.push(Step::Device(DeviceStep::Answer { bytes: response }));
    Ok(Work::new(vec![repeating(steps); processes], connections))
}

/// Reads work of kind `compile`: bursts of computing between reads from a file server.
fn compile(table: &Table<'_>) -> Result<Work, Mistake> {
    let table = table.taught(&keys::COMPILE)?;
    let jobs = table.maybe("jobs", |item| item.count(1..=MOST_TASKS))?.unwrap_or(1);
    let bytes = bytes(&table.need("read", "read = \"8KiB\"")?)?;
    let wait = table.maybe("wait", |item| item.draw())?.unwrap_or(Draw::Fixed(Span::ZERO));
    let total = table.maybe("total", |item| item.some_span())?;
    let mut task = repeating(vec![each(&table)?, Step::Device(DeviceStep::Ask { bytes, wait })]);
    task.total = total.map(|total| total / jobs as u64);
    Ok(Work::new(vec![task; jobs], None))
}

fn each(table: &Table<'_>) -> Result<Step, Mistake> {
    let each = table.need("each", "each = \"300us\"")?.some_draw()?;
    Ok(Step::Compute(each))
}

fn repeating(steps: Vec<Step>) -> Task {
    Task::new(Program::repeated(steps))
}
