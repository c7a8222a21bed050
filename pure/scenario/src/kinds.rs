//! Kinds of work, as users write them, and their programs.

pub(crate) mod jobs;

use slackline_units::Span;

use crate::error::ErrorKind;
use crate::keys;
use crate::names::checked_name;
use crate::run::RunContext;
use crate::table::{Item, Mistake, Table, shown};
use crate::{Draw, LONGEST, Program, Step};

/// Names of all kinds of work. Those that need no devices are read here, the others with the
/// devices.
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

/// Typical delay of a message in a local network.
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

/// Reads a node of a bulk-synchronous parallel program.
fn bsp(table: &Table<'_>) -> Result<Program, Mistake> {
    let table = table.taught(&keys::BSP)?;
    let compute = table.need("compute", "compute = \"10ms\"")?.some_draw()?;
    let exchange = table.maybe("exchange", |item| item.draw())?;
    let latency = table.maybe("latency", |item| item.some_span())?.unwrap_or(LATENCY);
    Ok(Program::superstep(compute, exchange.unwrap_or(Draw::Fixed(Span::ZERO)), latency))
}

/// Returns the parallel program that this work is a node of. `None` for other kinds of work.
pub(crate) fn parallel(table: &Table<'_>, kind: &str) -> Result<Option<String>, Mistake> {
    if kind != "bsp" {
        return Ok(None);
    }
    let name = table.need("program", "program = \"patterns\"")?;
    Ok(Some(checked_name(&name)?.to_owned()))
}

/// Reads a recording: runs and blocks in turn, repeated.
fn replay(run: &RunContext<'_>, table: &Table<'_>) -> Result<Program, Mistake> {
    let table = table.taught(&keys::REPLAY)?;
    let item = table.either("list", "file")?;
    let spans = if item.key == "list" {
        let elements = item.elements("an array of durations")?;
        elements.iter().map(Item::span).collect::<Result<Vec<Span>, Mistake>>()?
    } else {
        let path = item.text()?;
        let text = (run.load)(path);
        let text =
            text.map_err(|reason| item.fault(ErrorKind::NoFile { path: shown(path), reason }))?;
        recording(&item, path, &text)?
    };
    let step = |(index, span): (usize, Span)| {
        let draw = Draw::Fixed(span);
        if index % 2 == 0 { Step::Compute(draw) } else { Step::Sleep(draw) }
    };
    // Steps that take no time have no effect, and could let a round of a program take none.
    let some = spans.into_iter().enumerate().filter(|(_, span)| !span.is_zero());
    let steps: Vec<Step> = some.map(step).collect();
    // A VM may have been idle all the time, so zero runs are allowed. A round that takes no time
    // would never end.
    if steps.is_empty() {
        return Err(item.fault(ErrorKind::NoTime));
    }
    Ok(Program { steps, repeat: true })
}

/// Title line that a recording may have.
const HEADING: &str = "run_ns,block_ns";
/// The title lines of jobs.
const HEADED_READY: &str = "ready_ns,work_ns";
const HEADED_THINK: &str = "think_ns,work_ns";

/// Reads lines of `run_ns,block_ns`. Empty lines and lines that begin with `#` are skipped.
fn recording(item: &Item<'_>, path: &str, text: &str) -> Result<Vec<Span>, Mistake> {
    let mut spans = Vec::new();
    let mut is_first = true;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim().trim_start_matches('\u{feff}');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let is_first = std::mem::take(&mut is_first);
        if is_first && line == HEADING {
            continue;
        }
        if is_first && line.starts_with(|first: char| first.is_ascii_alphabetic()) {
            let (path, written) = (shown(path), shown(line));
            return Err(item.fault(ErrorKind::BadTitle { path, line: index + 1, written }));
        }
        let (run, block) = run_and_block(line).ok_or_else(|| {
            let (path, written) = (shown(path), shown(line));
            item.fault(ErrorKind::BadRecording { path, line: index + 1, written })
        })?;
        spans.extend([run, block]);
    }
    Ok(spans)
}

fn run_and_block(line: &str) -> Option<(Span, Span)> {
    let (run, block) = line.split_once(',')?;
    Some((number(run)?, number(block)?))
}

/// A length of time in nanoseconds, without a unit.
fn number(text: &str) -> Option<Span> {
    let digits = text.trim();
    let span = digits.bytes().all(|byte| byte.is_ascii_digit()).then_some(digits)?;
    Some(Span::from_ns(span.parse().ok()?)).filter(|&span| span <= LONGEST)
}
