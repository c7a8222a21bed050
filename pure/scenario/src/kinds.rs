//! Kinds of work, as users write them, and their programs.

pub(crate) mod jobs;

use slackline_units::Span;

use crate::error::ErrorKind;
use crate::keys;
use crate::names::checked_name;
use crate::recording::Recording;
use crate::run::RunContext;
use crate::table::{Item, Mistake, Table, shown};
use crate::{Draw, Program, Step};

/// Names of all kinds of work. Kinds that need no devices are read in this module, the others in
/// `guest::tasks`.
pub(crate) const KINDS: &[&str] = &[
    "spin",
    "periodic",
    "interactive",
    "batch",
    "replay",
    "jobs",
    "yield",
    "clock",
    "bsp",
    "spinlock",
    "web-server",
    "echo",
    "disk-read",
    "send",
    "sink",
    "compile",
];

/// Default `latency` of work of kind `bsp`: the typical delay of a message in a local network.
const LATENCY: Span = Span::from_us(50);

/// Reads `work` of one of the [`KINDS`] that need no devices.
pub(crate) fn program(
    run: &RunContext<'_>,
    item: &Item<'_>,
    kind: &str,
) -> Result<Program, Mistake> {
    let table = item.table("work of kind `spin`")?;
    match kind {
        "spin" => table.taught(&keys::SPIN).map(|_| Program::spin()),
        "periodic" => periodic(&item.table("work of kind `periodic`")?),
        "interactive" => interactive(&item.table("work of kind `interactive`")?),
        "batch" => batch(&item.table("work of kind `batch`")?),
        "yield" => yielding(&item.table("work of kind `yield`")?),
        "clock" => clock(&item.table("work of kind `clock`")?),
        "spinlock" => locking(&item.table("work of kind `spinlock`")?),
        "bsp" => bsp(&item.table("work of kind `bsp`")?),
        "jobs" => jobs::read(run, &item.table("work of kind `jobs`")?),
        _ => replay(run, &item.table("work of kind `replay`")?),
    }
}

fn periodic(table: &Table<'_>) -> Result<Program, Mistake> {
    let table = table.taught(&keys::PERIODIC)?;
    let period = table.need("period", "period = \"10ms\"")?.some_span()?;
    let work = table.need("work", "work = \"3ms\"")?.some_draw()?;
    let deadline = table.maybe("deadline", |item| item.some_span())?.unwrap_or(period);
    let offset = table.maybe("offset", |item| item.span())?.unwrap_or(Span::ZERO);
    let none = Draw::Fixed(Span::ZERO);
    let gap = table.maybe("gap", |item| item.draw())?.unwrap_or(none);
    let jitter = table.maybe("jitter", |item| item.draw())?.unwrap_or(none);
    let deadline = Some(deadline);
    Ok(Program::periodic(Step::Release { period, deadline, offset, gap, jitter }, work))
}

fn interactive(table: &Table<'_>) -> Result<Program, Mistake> {
    let table = table.taught(&keys::INTERACTIVE)?;
    let compute = table.need("compute", "compute = \"exponential 2ms\"")?.some_draw()?;
    let sleep = table.need("sleep", "sleep = \"exponential 20ms\"")?.some_draw()?;
    Ok(Program::interactive(compute, sleep))
}

fn batch(table: &Table<'_>) -> Result<Program, Mistake> {
    let table = table.taught(&keys::BATCH)?;
    let item = table.either("total", "until")?;
    let span = item.some_span()?;
    Ok(if item.key == "total" { Program::batch(span) } else { Program::until(span) })
}

fn yielding(table: &Table<'_>) -> Result<Program, Mistake> {
    let table = table.taught(&keys::YIELD)?;
    Ok(Program::yielding(table.need("compute", "compute = \"100us\"")?.some_draw()?))
}

fn clock(table: &Table<'_>) -> Result<Program, Mistake> {
    let table = table.taught(&keys::CLOCK)?;
    let period = table.need("period", "period = \"10ms\"")?.some_span()?;
    let item = table.either("compute", "until")?;
    let compute = if item.key == "compute" {
        Step::Compute(item.some_draw()?)
    } else {
        Step::ComputeUntil { period: Some(period), offset: item.span()? }
    };
    let offset = table.maybe("offset", |item| item.span())?.unwrap_or(Span::ZERO);
    Ok(Program::by_the_clock(Step::Instant { period, offset }, compute))
}

fn locking(table: &Table<'_>) -> Result<Program, Mistake> {
    let table = table.taught(&keys::SPINLOCK)?;
    let compute = table.need("compute", "compute = \"80us\"")?.some_draw()?;
    let hold = table.need("hold", "hold = \"10us\"")?.some_draw()?;
    Ok(Program::locking(compute, hold))
}

/// Reads work of kind `bsp`: a node of a bulk-synchronous parallel program.
fn bsp(table: &Table<'_>) -> Result<Program, Mistake> {
    let table = table.taught(&keys::BSP)?;
    let compute = table.need("compute", "compute = \"10ms\"")?.some_draw()?;
    let exchange = table.maybe("exchange", |item| item.draw())?;
    let latency = table.maybe("latency", |item| item.some_span())?.unwrap_or(LATENCY);
    Ok(Program::superstep(compute, exchange.unwrap_or(Draw::Fixed(Span::ZERO)), latency))
}

/// Returns the name of the parallel program of which this work is a node. `None` if the work is of
/// another kind.
pub(crate) fn parallel(table: &Table<'_>, kind: &str) -> Result<Option<String>, Mistake> {
    if kind != "bsp" {
        return Ok(None);
    }
    let name = table.need("program", "program = \"patterns\"")?;
    Ok(Some(checked_name(&name)?.to_owned()))
}

/// Reads work of kind `replay`: a recording of alternating runs and blocks, which is repeated.
fn replay(run: &RunContext<'_>, table: &Table<'_>) -> Result<Program, Mistake> {
    let table = table.taught(&keys::REPLAY)?;
    let item = table.either("list", "file")?;
    if item.key == "file" {
        let path = item.text()?;
        let file = (run.load)(path);
        let file =
            file.map_err(|reason| item.fault(ErrorKind::NoFile { path: shown(path), reason }))?;
        return recorded(Recording::new(path.to_owned(), file)).map_err(|kind| item.fault(kind));
    }
    let elements = item.elements("an array of durations")?;
    let spans = elements.iter().map(Item::span).collect::<Result<Vec<Span>, Mistake>>()?;
    // Steps of zero length have no effect. A program that has only such steps would repeat forever
    // without any time passing.
    let some = spans.into_iter().enumerate().filter(|(_, span)| !span.is_zero());
    let step = |(index, span)| if index % 2 == 0 { run_for(span) } else { block_for(span) };
    let steps: Vec<Step> = some.map(step).collect();
    // Runs of zero length are allowed, because a VM may have been idle all the time. But no time
    // would pass if all runs and all blocks had zero length.
    if steps.is_empty() {
        return Err(item.fault(ErrorKind::NoTime));
    }
    Ok(Program::repeated(steps))
}

/// Maximum number of lines of a recording that is kept in memory. A longer recording stays in its
/// file.
const KEPT_LINES: usize = 4096;

/// Checks each line of a recording, and makes a program of the recording. A long recording is read
/// again while the program runs.
fn recorded(recording: Recording) -> Result<Program, ErrorKind> {
    let mut reader = recording.reader();
    let (mut steps, mut lines, mut takes_time) = (Vec::new(), 0, false);
    while let Some((run, block)) = reader.next_line()? {
        lines += 1;
        takes_time |= !run.is_zero() || !block.is_zero();
        if lines <= KEPT_LINES {
            steps.extend((!run.is_zero()).then(|| run_for(run)));
            steps.extend((!block.is_zero()).then(|| block_for(block)));
        }
    }
    match takes_time {
        false => Err(ErrorKind::NoTime),
        true if lines > KEPT_LINES => Ok(Program::recorded(recording)),
        true => Ok(Program::repeated(steps)),
    }
}

fn run_for(span: Span) -> Step {
    Step::Compute(Draw::Fixed(span))
}

fn block_for(span: Span) -> Step {
    Step::Sleep(Draw::Fixed(span))
}

/// Header of a file of jobs with ready times. A file with think times has the header
/// [`HEADED_THINK`].
const HEADED_READY: &str = "ready_ns,work_ns";
const HEADED_THINK: &str = "think_ns,work_ns";
