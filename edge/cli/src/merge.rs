//! `slackline merge`: puts traces of several hosts into one file for the Perfetto UI.

use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use serde_json::{Value, json};
use slackline_trace::{Record, Sink};
use slackline_units::Span;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::import_args::{MergeArgs, NamedTrace};
use crate::pending::{Out, Pending};
use crate::places::Places;
use crate::problem::Problem;
use crate::{input, show, terminal};

/// Name of the file in the archive that tells Perfetto how the traces belong together.
const MANIFEST: &str = "perfetto_manifest.json";

/// Clock of the times in our Perfetto files, as the manifest names it.
const CLOCK: &str = "BOOTTIME";

pub(crate) fn merge(args: &MergeArgs) -> Result<(), Problem> {
    let places = Places::of(&[("the archive", Some(&args.archive))])?;
    for (index, trace) in args.traces.iter().enumerate() {
        if trace.file == Path::new(input::STANDARD_INPUT) {
            return Err(Problem::BadOption {
                message: format!("the trace of `{}` cannot be standard input", trace.name),
                hint: Some("save it to a file first, because `merge` reads it twice".into()),
            });
        }
        places.read("a trace", &trace.file)?;
        if args.traces[..index].iter().any(|before| before.name == trace.name) {
            return Err(Problem::BadOption {
                message: format!("two traces have the name `{}`", trace.name),
                hint: Some("give each host a name of its own".into()),
            });
        }
    }
    let clocks: Vec<Option<Span>> =
        args.traces.iter().map(|trace| wall_clock(&trace.file)).collect::<Result<_, _>>()?;
    let delays = delays(&args.traces, &clocks)?;
    let (pending, out) = Pending::new(&args.archive)?;
    let unwritable = |source| Problem::Unwritable { file: args.archive.clone(), source };
    let mut archive = ZipWriter::new(ArchiveFile::new(out));
    let manifest = manifest(&args.traces, &delays).to_string();
    begin(&mut archive, MANIFEST).map_err(unwritable)?;
    archive.write_all(manifest.as_bytes()).map_err(unwritable)?;
    for trace in &args.traces {
        begin(&mut archive, &path_of(trace)).map_err(unwritable)?;
        show::write_perfetto(&trace.file, &mut archive)?.map_err(unwritable)?;
    }
    let finished = archive.finish().map_err(io::Error::from);
    pending.keep(finished.and_then(ArchiveFile::finish))?;
    terminal::say(&summary(args, &delays))
}

/// Begins a file in the archive. Traces of any size are allowed.
fn begin(archive: &mut ZipWriter<ArchiveFile>, path: &str) -> io::Result<()> {
    let options = SimpleFileOptions::default();
    let options = options.compression_method(CompressionMethod::Stored).large_file(true);
    archive.start_file(path, options).map_err(io::Error::from)
}

/// File of an archive, which keeps its first error until [`ArchiveFile::finish`]. After an error it
/// accepts all data and drops it. A [`ZipWriter`] that sees an error prints a message of its own.
struct ArchiveFile {
    out: Out,
    position: u64,
    end: u64,
    failed: Option<io::Error>,
}

impl ArchiveFile {
    fn new(out: Out) -> ArchiveFile {
        ArchiveFile { out, position: 0, end: 0, failed: None }
    }

    /// Completes the file.
    ///
    /// # Errors
    /// The first error since the file was created.
    fn finish(mut self) -> io::Result<()> {
        self.failed.map_or_else(|| self.out.flush(), Err)
    }

    /// Accesses the file, unless an earlier access failed.
    fn access<T>(&mut self, access: impl FnOnce(&mut Out) -> io::Result<T>) {
        if self.failed.is_none() {
            self.failed = access(&mut self.out).err();
        }
    }
}

impl Write for ArchiveFile {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.access(|out| out.write_all(data));
        self.position += data.len() as u64;
        self.end = self.end.max(self.position);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.access(Write::flush);
        Ok(())
    }
}

impl Seek for ArchiveFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
            SeekFrom::End(offset) => self.end.checked_add_signed(offset),
        };
        let position = position.ok_or(io::ErrorKind::InvalidInput)?;
        if position != self.position {
            self.access(|out| out.seek(SeekFrom::Start(position)));
            self.position = position;
        }
        Ok(position)
    }
}

fn path_of(trace: &NamedTrace) -> String {
    format!("{}.pftrace", trace.name)
}

/// Sink that keeps the first offset from the times of a trace to the wall clock.
#[derive(Default)]
struct FirstClock(Option<Span>);

impl Sink for FirstClock {
    fn record(&mut self, record: &Record) {
        if let Record::ClockSet { ahead, .. } = *record {
            self.0.get_or_insert(ahead);
        }
    }
}

/// Returns the offset from the times of a trace to the wall clock. `None` if the trace has no such
/// offset. Traces of `sim` and `run` never have one.
fn wall_clock(file: &Path) -> Result<Option<Span>, Problem> {
    let (mut trace, _) = show::open(file)?;
    let mut clock = FirstClock::default();
    let bad = |error| Problem::BadTrace { file: file.into(), error };
    trace.pass_to(&mut clock).map_err(bad)?;
    Ok(clock.0)
}

/// Returns the delay of each trace: the time to add to the trace's times, so that events at the
/// same wall clock time have equal times. The trace whose time 0 is the earliest has no delay. No
/// delay is negative, because Perfetto drops events before time 0.
fn delays(traces: &[NamedTrace], clocks: &[Option<Span>]) -> Result<Vec<Span>, Problem> {
    let Some(first) = clocks.iter().flatten().min() else {
        return Ok(vec![Span::ZERO; traces.len()]);
    };
    if let Some(other) = clocks.iter().position(Option::is_none) {
        return Err(Problem::BadOption {
            message: format!(
                "{} does not contain the wall clock, but another trace does",
                traces[other].file.display()
            ),
            hint: Some(
                "merge traces that all contain the wall clock (recordings by `slackline record` \
                 and incidents), or traces without it"
                    .into(),
            ),
        });
    }
    Ok(clocks.iter().flatten().map(|&clock| clock - *first).collect())
}

/// Returns the manifest of an archive, in version 1 of Perfetto's format.
fn manifest(traces: &[NamedTrace], delays: &[Span]) -> Value {
    let reference = delays.iter().position(|delay| delay.is_zero()).unwrap_or(0);
    let reference = path_of(&traces[reference]);
    let files = traces.iter().zip(delays).map(|(trace, delay)| {
        let path = path_of(trace);
        let mut file = json!({ "path": path, "machine": { "name": trace.name } });
        if path != reference {
            file["clocks"] = json!({
                "clock": CLOCK,
                "sync_to": { "file": reference, "clock": CLOCK },
                "offset_ns": delay.ns(),
            });
        }
        file
    });
    json!({
        "perfetto_manifest": {
            "version": 1,
            "trace_time": { "clock": CLOCK, "file": reference },
            "files": files.collect::<Vec<Value>>(),
        }
    })
}

fn summary(args: &MergeArgs, delays: &[Span]) -> String {
    let mut text = format!("{}: {} traces\n", args.archive.display(), args.traces.len());
    for (trace, delay) in args.traces.iter().zip(delays) {
        let moved = match delay.is_zero() {
            true => "begins at 0s".to_owned(),
            false => format!("time 0s of this trace is time {delay} of the archive"),
        };
        text += &format!("  {}: {moved}\n", trace.name);
    }
    text + "Open the file at https://ui.perfetto.dev.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces() -> Vec<NamedTrace> {
        ["web=a.trace", "db=b.trace"].map(|text| text.parse().unwrap()).to_vec()
    }

    #[test]
    fn merged_traces_are_shifted_by_difference_of_their_wall_clocks() {
        let secs = Span::from_secs;
        let delays = delays(&traces(), &[Some(secs(107)), Some(secs(100))]).unwrap();
        assert_eq!(delays, [secs(7), Span::ZERO]);
        let manifest = &manifest(&traces(), &delays)["perfetto_manifest"];
        assert_eq!(manifest["trace_time"]["file"], "db.pftrace");
        assert_eq!(manifest["files"][0]["clocks"]["sync_to"]["file"], "db.pftrace");
        assert_eq!(manifest["files"][0]["clocks"]["offset_ns"], 7_000_000_000_u64);
        assert_eq!(manifest["files"][1]["machine"]["name"], "db");
        assert!(manifest["files"][1]["clocks"].is_null());
    }

    #[test]
    fn traces_with_and_without_wall_clock_cannot_be_merged() {
        let error = delays(&traces(), &[Some(Span::from_secs(1)), None]).unwrap_err();
        assert!(error.to_string().contains("b.trace does not contain the wall clock"), "{error}");
        assert_eq!(delays(&traces(), &[None, None]).unwrap(), [Span::ZERO; 2]);
    }

    #[test]
    fn merge_refuses_trace_name_with_slash_and_trace_without_name() {
        assert!("web/1=a.trace".parse::<NamedTrace>().unwrap_err().contains("`web/1`"));
        assert!("a.trace".parse::<NamedTrace>().unwrap_err().contains("NAME=TRACE"));
    }
}
