//! Command `slackline show`, which shows a saved trace as a timeline, table or list.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read as _, Seek, Write};
use std::path::Path;

use slackline_experiments::Meters;
use slackline_export::Perfetto;
use slackline_import::Kind;
use slackline_metrics::CulpritFinder;
use slackline_scenario::LONGEST;
use slackline_terminal::{Glyphs, Listing, RunList, RunListError, Timeline, WindowError};
use slackline_trace::{
    Effort, Header, IndexedTrace, ReadError, Reader, Record, Sink, TooManyPoints, VcpuName,
};
use slackline_units::{Span, Time};

use crate::args::Show;
use crate::import::{self, Tells};
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
    check_window(args)?;
    let places = Places::of(&[("--perfetto", args.perfetto.as_deref())])?;
    places.read("the trace", &args.file)?;
    if let Some(trace) = indexed(args)? {
        return window(args, trace);
    }
    if shows_only_numbers(args) {
        return numbers(args);
    }
    let (mut trace, names) = open(&args.file)?;
    let header = trace.header().clone();
    begins_before_its_end(args, &names)?;
    if let Some(name) = &args.perfetto {
        let (pending, out) = Pending::new(name)?;
        return pending.keep(finish_perfetto(&args.file, &mut trace, out)?);
    }
    let (from, length) = span(args);
    let mut text = Vec::new();
    if args.list && args.json {
        let mut list = json::Stretches::new(&names, from, length, args.passes);
        pass_to(args, &mut trace, &mut list)?;
        return terminal::print(&list.file());
    }
    if args.xenmon {
        names.effort.check_points().map_err(|error| too_many_points(&args.file, &error))?;
        let mut meters = Meters::with_xenmon(&header);
        pass_to(args, &mut trace, &mut meters)?;
        return print_numbers(args, &header, meters);
    }
    if let Some(vcpu) = &args.runs {
        let no_runs = |error: RunListError| Problem::BadOption {
            message: error.to_string(),
            hint: Some("list vCPUs with `slackline show TRACE --table`".into()),
        };
        let mut runs = RunList::new(&mut text, &header, &names.all, vcpu).map_err(no_runs)?;
        pass_to(args, &mut trace, &mut runs)?;
        runs.finish().map_err(Problem::Output)?;
    } else if args.list {
        // The output may be larger than the trace, so it is written while the trace is read.
        let out = BufWriter::new(io::stdout().lock());
        let mut list = Listing::new(out, &names.all, from, length);
        if args.passes {
            list = list.with_passes();
        }
        pass_to(args, &mut trace, &mut list)?;
        return finish(list);
    } else {
        let mut timeline = timeline(args, (&header, &names.all))?;
        pass_to(args, &mut trace, &mut timeline)?;
        text = render(args, &timeline).into_bytes();
    }
    terminal::print(&String::from_utf8_lossy(&text))
}

/// Returns true if the output consists of the usual metrics of the whole run.
fn shows_only_numbers(args: &Show) -> bool {
    let is_wanted = args.table || args.json && !args.list;
    is_wanted && !args.xenmon && args.perfetto.is_none()
}

/// Prints the metrics of a trace. Reads the trace only once, because it can be long.
fn numbers(args: &Show) -> Result<(), Problem> {
    let bad = |error| Problem::BadTrace { file: args.file.clone(), error };
    let mut trace = Reader::new(open_file(&args.file, Tells::Vms)?).map_err(bad)?;
    let header = trace.header().clone();
    let mut meters = Meters::new(&header);
    pass_checked(&args.file, &mut trace, &mut meters)?;
    print_numbers(args, &header, meters)
}

fn print_numbers(args: &Show, header: &Header, meters: Meters) -> Result<(), Problem> {
    let stray = |error| Problem::StrayRecord { file: args.file.clone(), error };
    let numbers = meters.finish().map_err(stray)?;
    match args.json {
        true => terminal::print(&json::numbers(&header.machine, &numbers, json::Completion::Whole)),
        false => terminal::say(&tables(&numbers)),
    }
}

/// Checks that no window is requested for an output of the whole trace. The parser refuses a window
/// with `--table`, `--runs` and `--xenmon`.
fn check_window(args: &Show) -> Result<(), Problem> {
    let is_table = args.json && !args.list;
    let is_window = !args.from.is_zero() || args.r#for.is_some();
    if !is_window || !(is_table || args.perfetto.is_some()) {
        return Ok(());
    }
    let option = if is_table { "--json without --list" } else { "--perfetto" };
    Err(Problem::BadOption {
        message: format!("cannot use --from or --for with {option}: it has the whole trace"),
        hint: Some("drop --from and --for".into()),
    })
}

fn too_many_points(file: &Path, error: &TooManyPoints) -> Problem {
    let message = format!("cannot show XenMon's metrics of {}: {error}", file.display());
    Problem::BadOption { message, hint: Some("drop --xenmon".into()) }
}

/// Writes a trace in Perfetto's format. The outer error is about reading the trace, the inner error
/// about writing to `out`.
pub(crate) fn write_perfetto(file: &Path, out: impl Write) -> Result<io::Result<()>, Problem> {
    let (mut trace, _) = open_again(file)?;
    finish_perfetto(file, &mut trace, out)
}

fn finish_perfetto(
    file: &Path,
    trace: &mut Trace,
    out: impl Write,
) -> Result<io::Result<()>, Problem> {
    let mut perfetto = Perfetto::new(out, &trace.header().clone());
    let bad = |error| Problem::BadTrace { file: file.into(), error };
    trace.pass_to(&mut perfetto).map_err(bad)?;
    add_waits(file, &mut perfetto)?;
    Ok(perfetto.finish())
}

/// Adds the culprits of each vCPU's waits to the Perfetto trace. Only recordings of threads have
/// culprits.
fn add_waits(file: &Path, perfetto: &mut Perfetto<impl Write>) -> Result<(), Problem> {
    if file == Path::new(input::STANDARD_INPUT) {
        return Ok(());
    }
    let (mut trace, _) = open_again(file)?;
    let mut finder = CulpritFinder::of_all();
    trace.pass_to(&mut finder).map_err(|error| Problem::BadTrace { file: file.into(), error })?;
    for vcpu in finder.answer().vcpus {
        let parts = vcpu.parts.iter().map(|(from, to, culprit)| (*from, *to, culprit.to_string()));
        perfetto.waits(vcpu.vcpu, &vcpu.name, parts.collect());
    }
    Ok(())
}

/// Checks that the requested window begins before the end of the run. A later window would be
/// empty.
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

/// Maximum width of a timeline in columns.
const MOST_COLUMNS: usize = 10_000;

pub(crate) type Trace = Reader<'static>;

/// Opens a trace of Slackline, or a recording that perf or ftrace made, and reads the index of its
/// vCPUs.
pub(crate) fn open(file: &Path) -> Result<(Trace, Names), Problem> {
    open_telling(file, Tells::Vms)
}

/// Opens a second time a trace that this command has already opened.
pub(crate) fn open_again(file: &Path) -> Result<(Trace, Names), Problem> {
    open_telling(file, Tells::Nothing)
}

fn open_telling(file: &Path, tells: Tells) -> Result<(Trace, Names), Problem> {
    let unreadable = |source| Problem::Unreadable { file: file.into(), source };
    let bad = |error| Problem::BadTrace { file: file.into(), error };
    let mut opened = open_file(file, tells)?;
    let again = opened.try_clone().map_err(unreadable)?;
    let names = pass_checked(file, &mut Reader::new(again).map_err(bad)?, &mut ())?;
    opened.rewind().map_err(unreadable)?;
    Ok((Reader::new(opened).map_err(bad)?, names))
}

/// Opens a trace as a file that can be read again. If the input is a pipe or a recording of perf or
/// ftrace, returns a temporary copy.
fn open_file(file: &Path, tells: Tells) -> Result<File, Problem> {
    let unreadable = |source| Problem::Unreadable { file: file.into(), source };
    let spooled = spool(input::open(file).map_err(unreadable)?).map_err(unreadable)?;
    import::as_trace(file, spooled, tells)
}

/// Passes a whole trace to a sink, and returns the index of its vCPUs. The sink receives no more
/// entries from the first implausible entry on, because damaged records could cause endless work.
fn pass_checked(file: &Path, trace: &mut Trace, sink: &mut dyn Sink) -> Result<Names, Problem> {
    let mut checked = CheckedSink { names: Names::with_cpus(trace.header().cpus), sink };
    let passed = trace.pass_to(&mut checked);
    passed.map_err(|error| Problem::BadTrace { file: file.into(), error })?;
    let names = checked.names;
    if trace.is_cut() {
        let name = file.display();
        terminal::tell(&format!(
            "note:  the trace {name} ends early, because recording was stopped\n"
        ));
    }
    let implausible = |error| Problem::Implausible { file: file.into(), error };
    names.effort.check().map_err(implausible)?;
    Ok(names)
}

/// Sink that passes plausible records and names on.
struct CheckedSink<'a> {
    names: Names,
    sink: &'a mut dyn Sink,
}

impl Sink for CheckedSink<'_> {
    fn record(&mut self, record: &Record) {
        self.names.record(record);
        if self.names.effort.check().is_ok() {
            self.sink.record(record);
        }
    }

    fn named(&mut self, named: &VcpuName) {
        self.names.named(named);
        if self.names.effort.check().is_ok() {
            self.sink.named(named);
        }
    }
}

/// Number of bytes at the start of a file that are enough to recognize a trace.
const BEGINS: u64 = 4096;
/// Maximum length of a trace from a pipe, in bytes. The trace is copied to disk.
const LONGEST_PIPED: u64 = 1 << 36;

/// Returns a file that can be read twice. A pipe is copied to a temporary file.
fn spool(mut file: File) -> io::Result<File> {
    let found = file.metadata()?;
    if found.is_dir() {
        // Reading a folder would only report that it is not a trace.
        return Err(ErrorKind::IsADirectory.into());
    }
    if found.is_file() {
        return Ok(file);
    }
    let mut copy = tempfile::tempfile()?;
    let mut begins = Vec::new();
    (&mut file).take(BEGINS).read_to_end(&mut begins)?;
    copy.write_all(&begins)?;
    // Input that is not a trace could be endless, so only a trace is copied.
    let is_none = Kind::of(&begins).is_none()
        && matches!(
            Reader::new(&*begins),
            Err(ReadError::NotATrace | ReadError::OtherVersion { .. })
        );
    if !is_none && io::copy(&mut file.take(LONGEST_PIPED), &mut copy)? == LONGEST_PIPED {
        return Err(ErrorKind::FileTooLarge.into());
    }
    copy.rewind()?;
    Ok(copy)
}

/// Passes a whole trace to a sink.
fn pass_to(args: &Show, trace: &mut Trace, sink: &mut dyn Sink) -> Result<(), Problem> {
    trace.pass_to(sink).map_err(|error| Problem::BadTrace { file: args.file.clone(), error })
}

/// Returns the start and the length of the window to show.
fn span(args: &Show) -> (Time, Span) {
    let usual = if args.list { LONGEST } else { Span::from_ms(100) };
    (Time::START + args.from, args.r#for.unwrap_or(usual).min(LONGEST))
}

type Indexed = IndexedTrace<File>;

/// Opens a trace with its index of blocks. `None` if the trace has no such index, or if the whole
/// trace is to be shown.
fn indexed(args: &Show) -> Result<Option<Indexed>, Problem> {
    let is_window = args.runs.is_none() && !args.table && !args.xenmon && args.perfetto.is_none();
    let is_part =
        is_window && if args.list { args.r#for.is_some() && !args.passes } else { !args.json };
    let unreadable = |source| Problem::Unreadable { file: args.file.clone(), source };
    // Standard input has one position, and a pipe can be read only once.
    let is_standard_input = args.file == Path::new(input::STANDARD_INPUT);
    if !is_part
        || is_standard_input
        || !std::fs::metadata(&args.file).map_err(unreadable)?.is_file()
    {
        return Ok(None);
    }
    let mut opened = input::open(&args.file).map_err(unreadable)?;
    let mut begin = Vec::new();
    (&opened).take(BEGINS).read_to_end(&mut begin).map_err(unreadable)?;
    if Kind::of(&begin).is_some() {
        return Ok(None);
    }
    opened.rewind().map_err(unreadable)?;
    IndexedTrace::open(opened).map_err(|error| Problem::BadTrace { file: args.file.clone(), error })
}

/// Shows a window of a trace, without reading the rest of the trace.
fn window(args: &Show, mut trace: Indexed) -> Result<(), Problem> {
    let (from, length) = span(args);
    let ended = trace.ended();
    let all = trace.names().to_vec();
    let last = ended.unwrap_or(Time::START);
    let mut names = Names::of_all(all);
    (names.last, names.ended) = (last, ended);
    begins_before_its_end(args, &names)?;
    let bad = |error| Problem::BadTrace { file: args.file.clone(), error };
    // For a period that is only partly in a timeline, the CPU time used in the whole period counts.
    let period = if args.list { Span::ZERO } else { trace.longest_period() };
    let end = from.after(length).after(period);
    let from = Time::START + args.from.left_after(period);
    // The blocks are checked before use, because damaged records could cause endless work.
    let mut effort = Effort::of_window(trace.header().cpus, from, end);
    trace.pass_window(from, end, &mut effort).map_err(bad)?;
    let implausible = |error| Problem::Implausible { file: args.file.clone(), error };
    effort.check().map_err(implausible)?;
    if !args.list {
        let header = trace.header().clone();
        let mut timeline = timeline(args, (&header, &names.all))?;
        trace.pass_window(from, end, &mut timeline).map_err(bad)?;
        return terminal::print(&render(args, &timeline));
    }
    if args.json {
        let mut list = json::Stretches::new(&names, from, length, false);
        let skipped = trace.pass_window(from, end, &mut list).map_err(bad)?;
        list.skip(skipped);
        return terminal::print(&list.file());
    }
    let out = BufWriter::new(io::stdout().lock());
    let mut list = Listing::new(out, &names.all, from, length);
    let skipped = trace.pass_window(from, end, &mut list).map_err(bad)?;
    list.skip(skipped);
    finish(list)
}

/// Completes a list. It is no error if the reader closes the pipe early.
fn finish(list: Listing<impl Write>) -> Result<(), Problem> {
    match list.finish() {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Problem::Output(error)),
        _ => Ok(()),
    }
}

fn timeline(args: &Show, about: (&Header, &[VcpuName])) -> Result<Timeline, Problem> {
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
    let (from, length) = span(args);
    Timeline::new(about, from, length, width).map_err(empty)
}

fn render(args: &Show, timeline: &Timeline) -> String {
    timeline.render(if args.ascii { Glyphs::Ascii } else { Glyphs::Blocks }, terminal::paint())
}
