//! `slackline show`: draws a saved trace.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Seek};

use slackline_export::Perfetto;
use slackline_runs::Meters;
use slackline_scenario::LONGEST;
use slackline_show::{Glyphs, Listing, RunList, RunListError, Timeline, WindowError};
use slackline_trace::{Header, ReadError, Reader, Sink};
use slackline_units::{Span, Time};

use crate::args::Show;
use crate::outputs::tables;
use crate::pending::Pending;
use crate::problem::Problem;
use crate::{json, terminal};

pub(crate) fn show(args: &Show) -> Result<(), Problem> {
    if args.from > LONGEST {
        return Err(Problem::BadOption {
            message: format!("--from {} is later than any run lasts", args.from),
            hint: Some(format!("the longest lasts {LONGEST}")),
        });
    }
    let mut trace = open(args)?;
    let header = trace.header().clone();
    if let Some(name) = &args.perfetto {
        let (pending, out) = Pending::new(name)?;
        let mut perfetto = Perfetto::new(out, &header);
        replay(args, &mut trace, &mut perfetto)?;
        return pending.keep(perfetto.finish());
    }
    let from = Time::START + args.from;
    let length = args.r#for.min(LONGEST);
    let mut text = Vec::new();
    if args.table || args.json || args.xenmon {
        let mut meters =
            if args.xenmon { Meters::with_xenmon(&header) } else { Meters::new(&header) };
        replay(args, &mut trace, &mut meters)?;
        let numbers = meters.finish();
        let text =
            if args.json { json::numbers(&header.machine, &numbers) } else { tables(&numbers) };
        return terminal::print(&text);
    } else if let Some(vcpu) = &args.runs {
        let no_runs = |error: RunListError| Problem::BadOption {
            message: error.to_string(),
            hint: Some("`slackline show TRACE --table` shows who there is".into()),
        };
        let mut runs = RunList::new(&mut text, &header, vcpu).map_err(no_runs)?;
        replay(args, &mut trace, &mut runs)?;
        runs.finish().map_err(Problem::Output)?;
    } else if args.list {
        let mut list = Listing::new(&mut text, &header, from, length);
        replay(args, &mut trace, &mut list)?;
        list.finish().map_err(Problem::Output)?;
    } else {
        text = picture(args, &mut trace, &header, (from, length))?.into_bytes();
    }
    terminal::print(&String::from_utf8_lossy(&text))
}

/// Wider than any screen; nobody could look at more.
const MOST_COLUMNS: usize = 10_000;

type Trace = Reader<BufReader<File>>;

fn open(args: &Show) -> Result<Trace, Problem> {
    let file = File::open(&args.file)
        .map_err(|source| Problem::Unreadable { file: args.file.clone(), source })?;
    let mut file =
        spool(file).map_err(|source| Problem::Unreadable { file: args.file.clone(), source })?;
    // All of it is checked before any of it is believed: what damage says may have no end.
    let checked = file
        .try_clone()
        .map_err(ReadError::Io)
        .and_then(|file| Reader::new(BufReader::new(file))?.replay(&mut ()));
    let opened = checked
        .and_then(|()| file.rewind().map_err(ReadError::Io))
        .and_then(|()| Reader::new(BufReader::new(file)));
    opened.map_err(|error| Problem::BadTrace { file: args.file.clone(), error })
}

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
    io::copy(&mut file, &mut copy)?;
    copy.rewind()?;
    Ok(copy)
}

fn replay(args: &Show, trace: &mut Trace, sink: &mut impl Sink) -> Result<(), Problem> {
    trace.replay(sink).map_err(|error| Problem::BadTrace { file: args.file.clone(), error })
}

fn picture(
    args: &Show,
    trace: &mut Trace,
    header: &Header,
    (from, length): (Time, Span),
) -> Result<String, Problem> {
    let width = args.width.unwrap_or_else(terminal::width);
    if width > MOST_COLUMNS {
        return Err(Problem::BadOption {
            message: format!("--width {width} is more than {MOST_COLUMNS} columns"),
            hint: Some("write --width 200, or --list for all there is".into()),
        });
    }
    let empty = |error: WindowError| Problem::BadOption {
        message: error.to_string(),
        hint: Some("write --for 100ms".into()),
    };
    let mut timeline = Timeline::new(header, from, length, width).map_err(empty)?;
    replay(args, trace, &mut timeline)?;
    let glyphs = if args.ascii { Glyphs::Ascii } else { Glyphs::Blocks };
    Ok(timeline.render(glyphs, terminal::paint()))
}
