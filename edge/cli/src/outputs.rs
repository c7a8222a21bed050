//! Where the records of a run go: the meter always, files if somebody wants them.
//!
//! A file appears under its name only when it is whole: it is written beside it and renamed.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use slackline_export::Perfetto;
use slackline_metrics::{Meter, Summary};
use slackline_scenario::Scenario;
use slackline_trace::{Header, Knowledge, Record, Sink, VcpuName, Writer};
use slackline_units::Time;
use tempfile::NamedTempFile;

use crate::args::Keeping;
use crate::problem::Problem;
use crate::terminal::Progress;

/// A file on its way.
pub(crate) struct Pending {
    /// None if it is written under its own name: a device, a pipe.
    file: Option<NamedTempFile>,
    name: PathBuf,
}

type Out = BufWriter<File>;

/// The sink of a run.
pub(crate) struct Outputs {
    meter: Meter,
    trace: Option<(Pending, Writer<Out>)>,
    perfetto: Option<(Pending, Perfetto<Out>)>,
    progress: Option<Progress>,
    records: u64,
}

/// What a trace of this scenario says about itself.
pub(crate) fn header(scenario: &Scenario, machine: &str, knows: Knowledge) -> Header {
    Header {
        title: scenario.title.clone(),
        machine: machine.into(),
        policy: scenario.policy.to_string(),
        seed: scenario.seed,
        cpus: scenario.host.cpus,
        warmup: scenario.warmup,
        knows,
        scenario: scenario.text.clone(),
        vcpus: scenario.vcpus().map(|(id, name)| VcpuName { id, name }).collect(),
    }
}

impl Pending {
    /// Begins a file that will have this name.
    pub(crate) fn new(name: &Path) -> Result<(Pending, Out), Problem> {
        Pending::open(name).map_err(|source| Problem::Unwritable { file: name.into(), source })
    }

    fn open(name: &Path) -> io::Result<(Pending, Out)> {
        let name = match fs::metadata(name) {
            Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            // A device or a pipe is written to, never replaced.
            Ok(found) if !found.is_file() => {
                let out = File::options().write(true).open(name)?;
                return Ok((Pending { file: None, name: name.into() }, BufWriter::new(out)));
            }
            // A link stays, and what it leads to is replaced.
            Ok(_) => fs::canonicalize(name)?,
            Err(_) => name.into(),
        };
        let folder = match name.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // A result is for everybody the umask lets.
        let mode = Permissions::from_mode(0o666);
        let mut beside = tempfile::Builder::new();
        let file = beside.prefix(".slackline-").permissions(mode).tempfile_in(folder);
        let file = file.map_err(plain)?;
        let out = BufWriter::new(file.reopen()?);
        Ok((Pending { file: Some(file), name }, out))
    }

    /// The file is whole: gives it its name.
    pub(crate) fn keep(self, written: io::Result<()>) -> Result<(), Problem> {
        let Pending { file, name } = self;
        let named = |file: NamedTempFile| {
            file.as_file().sync_all()?;
            file.persist(&name).map(|_| ()).map_err(|error| plain(error.error))
        };
        written
            .and_then(|()| file.map_or(Ok(()), named))
            .map_err(|source| Problem::Unwritable { file: name, source })
    }
}

/// What the kernel said, without the name of a file that nobody has heard of.
fn plain(error: io::Error) -> io::Error {
    if error.raw_os_error().is_some() { error } else { error.kind().into() }
}

impl Outputs {
    pub(crate) fn new(
        header: &Header,
        keeping: &Keeping,
        progress: Option<Progress>,
    ) -> Result<Outputs, Problem> {
        let meter = Meter::new(header);
        if keeping.save.is_some() && keeping.save == keeping.perfetto {
            return Err(Problem::BadOption {
                message: "--save and --perfetto name one file".into(),
                hint: Some("give each its own".into()),
            });
        }
        let trace = keeping.save.as_deref().map(Pending::new).transpose()?;
        let trace = trace.map(|(pending, out)| (pending, Writer::new(out, header)));
        let perfetto = keeping.perfetto.as_deref().map(Pending::new).transpose()?;
        let perfetto = perfetto.map(|(pending, out)| (pending, Perfetto::new(out, header)));
        Ok(Outputs { meter, trace, perfetto, progress, records: 0 })
    }

    /// Ends the files; returns the numbers.
    pub(crate) fn finish(self) -> Result<Summary, Problem> {
        drop(self.progress);
        if let Some((pending, writer)) = self.trace {
            pending.keep(writer.finish().map(|_| ()))?;
        }
        if let Some((pending, perfetto)) = self.perfetto {
            pending.keep(perfetto.finish())?;
        }
        Ok(self.meter.finish())
    }

    fn show_progress(&mut self, record: &Record) {
        const OFTEN: u64 = 1 << 16;
        self.records += 1;
        if self.records.is_multiple_of(OFTEN)
            && let Record::Ran { to, .. } = record
        {
            self.progress_at(*to);
        }
    }

    pub(crate) fn progress_at(&mut self, now: Time) {
        if let Some(progress) = &mut self.progress {
            progress.at(now);
        }
    }
}

impl Sink for Outputs {
    fn record(&mut self, record: &Record) {
        self.meter.record(record);
        if let Some((_, writer)) = &mut self.trace {
            writer.record(record);
        }
        if let Some((_, perfetto)) = &mut self.perfetto {
            perfetto.record(record);
        }
        self.show_progress(record);
    }
}
