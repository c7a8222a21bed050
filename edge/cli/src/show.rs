//! `slackline show`: draws a saved trace.

use std::fs::File;
use std::io::BufReader;

use slackline_export::{Glyphs, Listing, Paint, Perfetto, RunList, Timeline};
use slackline_metrics::Meter;
use slackline_trace::{Header, Reader, Sink};
use slackline_units::Time;

use crate::args::Show;
use crate::outputs::Pending;
use crate::problem::Problem;
use crate::{json, terminal};

pub(crate) fn show(args: &Show) -> Result<(), Problem> {
    let mut trace = open(args)?;
    let header = trace.header().clone();
    if let Some(name) = &args.perfetto {
        let (pending, out) = Pending::new(name)?;
        let mut perfetto = Perfetto::new(out, &header);
        replay(args, &mut trace, &mut perfetto)?;
        return pending.keep(perfetto.finish());
    }
    let from = Time::START + args.from;
    let mut text = Vec::new();
    if args.table || args.json {
        let mut meter = Meter::new(&header);
        replay(args, &mut trace, &mut meter)?;
        let summary = meter.finish();
        let text = if args.json {
            json::runs(&[(header.machine.as_str(), &summary)])
        } else {
            summary.render(terminal::width(), terminal::color())
        };
        return terminal::print(&text);
    } else if let Some(vcpu) = &args.runs {
        let no_runs = |error: slackline_export::RunListError| Problem::BadOption {
            message: error.to_string(),
            hint: None,
        };
        let mut runs = RunList::new(&mut text, &header, vcpu).map_err(no_runs)?;
        replay(args, &mut trace, &mut runs)?;
        runs.finish().map_err(Problem::Output)?;
    } else if args.list {
        let mut list = Listing::new(&mut text, &header, from, args.r#for);
        replay(args, &mut trace, &mut list)?;
        list.finish().map_err(Problem::Output)?;
    } else {
        text = picture(args, &mut trace, &header, from)?.into_bytes();
    }
    terminal::print(&String::from_utf8_lossy(&text))
}

type Trace = Reader<BufReader<File>>;

fn open(args: &Show) -> Result<Trace, Problem> {
    let file = File::open(&args.file)
        .map_err(|source| Problem::Unreadable { file: args.file.clone(), source })?;
    Reader::new(BufReader::new(file))
        .map_err(|error| Problem::BadTrace { file: args.file.clone(), error })
}

fn replay(args: &Show, trace: &mut Trace, sink: &mut impl Sink) -> Result<(), Problem> {
    trace.replay(sink).map_err(|error| Problem::BadTrace { file: args.file.clone(), error })
}

fn picture(
    args: &Show,
    trace: &mut Trace,
    header: &Header,
    from: Time,
) -> Result<String, Problem> {
    let width = args.width.unwrap_or_else(terminal::width);
    let empty = |error: slackline_export::WindowError| Problem::BadOption {
        message: error.to_string(),
        hint: Some("write --for 100ms".into()),
    };
    let mut timeline = Timeline::new(header, from, args.r#for, width).map_err(empty)?;
    replay(args, trace, &mut timeline)?;
    let glyphs = if args.ascii { Glyphs::Ascii } else { Glyphs::Blocks };
    let paint = if terminal::color() { Paint::Colour } else { Paint::Plain };
    Ok(timeline.render(glyphs, paint))
}
