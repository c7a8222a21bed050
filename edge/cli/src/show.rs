//! `slackline show`: draws a saved trace.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read as _, Seek, Write as _};
use std::path::Path;

use slackline_experiments::Meters;
use slackline_export::Perfetto;
use slackline_scenario::LONGEST;
use slackline_terminal::{Glyphs, Listing, RunList, RunListError, Timeline, WindowError};
use slackline_trace::{Header, ReadError, Reader, Sink, VcpuName};
use slackline_units::{Span, Time};

use crate::args::Show;
use crate::names::Names;
use crate::outputs::tables;
use crate::pending::Pending;
use crate::places::Places;
use crate::problem::Problem;
use crate::{input, json, terminal};

pub(crate) fn show(args: &Show) -> Result<(), Problem> {
    if args.from > LONGEST {
        return Err(Problem::BadOption {
            message: format!("--from {} is beyond the longest run, {LONGEST}", args.from),
            hint: Some("write --from 0s".into()),
        });
    }
    let places = Places::of(&[("--perfetto", args.perfetto.as_deref())])?;
    places.read("the trace", &args.file)?;
    let (mut trace, names) = open(&args.file)?;
    let header = trace.header().clone();
    begins_before_its_end(args, &names)?;
    if let Some(name) = &args.perfetto {
        let (pending, out) = Pending::new(name)?;
        let mut perfetto = Perfetto::new(out, &header);
        pass_to(args, &mut trace, &mut perfetto)?;
        return pending.keep(perfetto.finish());
    }
    let from = Time::START + args.from;
    let usual = if args.list { LONGEST } else { Span::from_ms(100) };
    let length = args.r#for.unwrap_or(usual).min(LONGEST);
    let mut text = Vec::new();
    if args.list && args.json {
        let mut list = json::Stretches::new(&names, from, length);
        pass_to(args, &mut trace, &mut list)?;
        return terminal::print(&list.file());
    }
    if args.table || args.json || args.xenmon {
        let mut meters =
            if args.xenmon { Meters::with_xenmon(&header) } else { Meters::new(&header) };
        pass_to(args, &mut trace, &mut meters)?;
        let file = || args.file.clone();
        let stray = |error| Problem::StrayRecord { file: file(), error };
        let numbers = meters.finish().map_err(stray)?;
        return match args.json {
            true => {
                terminal::print(&json::numbers(&header.machine, &numbers, json::Completion::Whole))
            }
            false => terminal::say(&tables(&numbers)),
        };
    } else if let Some(vcpu) = &args.runs {
        let no_runs = |error: RunListError| Problem::BadOption {
            message: error.to_string(),
            hint: Some("list vCPUs with `slackline show TRACE --table`".into()),
        };
        let mut runs = RunList::new(&mut text, &header, &names.all, vcpu).map_err(no_runs)?;
        pass_to(args, &mut trace, &mut runs)?;
        runs.finish().map_err(Problem::Output)?;
    } else if args.list {
        // A list may be longer than the trace: it is written as it comes.
        let out = BufWriter::new(io::stdout().lock());
        let mut list = Listing::new(out, &names.all, from, length);
        pass_to(args, &mut trace, &mut list)?;
        return match list.finish() {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Problem::Output(error)),
            _ => Ok(()),
        };
    } else {
        text = picture(args, &mut trace, (&header, &names.all), (from, length))?.into_bytes();
    }
    terminal::print(&String::from_utf8_lossy(&text))
}

/// A window behind the end of the run shows nothing, and says so to nobody.
fn begins_before_its_end(args: &Show, names: &Names) -> Result<(), Problem> {
    let is_window = args.runs.is_none() && !args.table && !args.xenmon && args.perfetto.is_none();
    let Some(end) = names.ended.filter(|_| is_window && (args.list || !args.json)) else {
        return Ok(());
    };
    if Time::START + args.from < end {
        return Ok(());
    }
    let length = end - Time::START;
    Err(Problem::BadOption {
        message: format!("--from {} is not before the end of the run at {length}", args.from),
        hint: Some(format!("write --from {}", length / 2)),
    })
}

/// Wider than any screen; nobody could look at more.
const MOST_COLUMNS: usize = 10_000;

pub(crate) type Trace = Reader<BufReader<File>>;

/// Opens a trace that is whole, and says who there is in it.
pub(crate) fn open(file: &Path) -> Result<(Trace, Names), Problem> {
    let unreadable = |source| Problem::Unreadable { file: file.into(), source };
    let mut spooled = spool(input::open(file).map_err(unreadable)?).map_err(unreadable)?;
    let bad = |error| Problem::BadTrace { file: file.into(), error };
    // All of it is checked before any of it is believed: what damage says may have no end.
    let mut names = Names::default();
    let again = spooled.try_clone().map_err(unreadable)?;
    Reader::new(BufReader::new(again)).and_then(|mut all| all.pass_to(&mut names)).map_err(bad)?;
    let implausible = |error| Problem::Implausible { file: file.into(), error };
    names.effort.check().map_err(implausible)?;
    spooled.rewind().map_err(unreadable)?;
    Ok((Reader::new(BufReader::new(spooled)).map_err(bad)?, names))
}

/// Enough of a trace to see that it is one.
const BEGINS: u64 = 4096;
/// How long a trace may be that comes through a pipe: it has to fit on a disk.
const LONGEST_PIPED: u64 = 1 << 36;

/// A file that can be read twice: what comes through a pipe is put into one.
fn spool(mut file: File) -> io::Result<File> {
    let found = file.metadata()?;
    if found.is_dir() {
        // Reading it would only say that it is no trace.
        return Err(ErrorKind::IsADirectory.into());
    }
    if found.is_file() {
        return Ok(file);
    }
    let mut copy = tempfile::tempfile()?;
    let mut begins = Vec::new();
    (&mut file).take(BEGINS).read_to_end(&mut begins)?;
    copy.write_all(&begins)?;
    // What is no trace may have no end.
    let is_none =
        matches!(Reader::new(&*begins), Err(ReadError::NotATrace | ReadError::OtherVersion { .. }));
    if !is_none && io::copy(&mut file.take(LONGEST_PIPED), &mut copy)? == LONGEST_PIPED {
        return Err(ErrorKind::FileTooLarge.into());
    }
    copy.rewind()?;
    Ok(copy)
}

fn pass_to(args: &Show, trace: &mut Trace, sink: &mut impl Sink) -> Result<(), Problem> {
    trace.pass_to(sink).map_err(|error| Problem::BadTrace { file: args.file.clone(), error })
}

fn picture(
    args: &Show,
    trace: &mut Trace,
    about: (&Header, &[VcpuName]),
    (from, length): (Time, Span),
) -> Result<String, Problem> {
    let width = args.width.unwrap_or_else(terminal::width);
    if width > MOST_COLUMNS {
        return Err(Problem::BadOption {
            message: format!("--width {width} is more than {MOST_COLUMNS} columns"),
            hint: Some("write --width 200, or --list".into()),
        });
    }
    let empty = |error: WindowError| Problem::BadOption {
        message: error.to_string(),
        hint: Some("write --for 100ms".into()),
    };
    let mut timeline = Timeline::new(about, from, length, width).map_err(empty)?;
    pass_to(args, trace, &mut timeline)?;
    let glyphs = if args.ascii { Glyphs::Ascii } else { Glyphs::Blocks };
    Ok(timeline.render(glyphs, terminal::paint()))
}
