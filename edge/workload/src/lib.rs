//! Workloads that other programs describe, as scenarios. The design is Slackline's own, not from a
//! paper.
//!
//! Three kinds of CPU series are read: of Bitbrains (GWA-T-12), of Azure VMs, and of PlanetLab. A
//! series has the mean use of a VM in intervals of five minutes. A series does not state when the
//! VM was runnable in an interval, so a [`BurstModel`] decides that. Three kinds of task sets are
//! read: the JSON of rt-app, the XML of SimSo, and the text of EVA. A fourth kind is drawn by
//! UUniFast-discard.
//!
//! A conversion is a pure function: the same files and options give the same scenario. Each
//! assumption and each repair is a comment at the start of the scenario. Input that no scenario can
//! express is an error.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

mod bursts;
mod decimal;
mod error;
mod eva;
mod names;
mod rt_app;
mod series;
mod simso;
mod task_set;
mod task_vms;
mod uunifast;
mod write;

use slackline_units::Span;

pub use bursts::BurstModel;
pub use error::WorkloadError;
pub use task_set::{WrittenTaskSet, convert_tasks};
pub use uunifast::SetOptions;
pub use write::WrittenScenario;

/// Kind of a workload file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// CPU series of one VM in the format of Bitbrains: columns separated by semicolons.
    Bitbrains,
    /// CPU readings of Azure VMs: time, VM, and the least, largest and mean use.
    Azure,
    /// CPU series of one VM in the format of PlanetLab: one percentage on each line.
    PlanetLab,
    /// Threads of rt-app, in JSON with comments.
    RtApp,
    /// Tasks of SimSo, in XML.
    SimSo,
    /// Tasks of EVA-rt-Engine: WCET, deadline and period on each line.
    Eva,
    /// Random tasks, drawn by UUniFast-discard. There is no file.
    Uunifast,
}

/// Unit of the times in a file that states no unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeUnit {
    /// Times are in milliseconds.
    #[default]
    Millis,
    /// Times are in microseconds.
    Micros,
    /// Times are in nanoseconds.
    Nanos,
}

impl TimeUnit {
    /// Names of all units on the command line.
    pub const NAMES: [&str; 3] = ["ms", "us", "ns"];

    /// Returns the unit with a name.
    #[must_use]
    pub fn named(name: &str) -> Option<TimeUnit> {
        [TimeUnit::Millis, TimeUnit::Micros, TimeUnit::Nanos]
            .into_iter()
            .find(|unit| unit.name() == name)
    }

    /// Returns the name of the unit on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TimeUnit::Millis => "ms",
            TimeUnit::Micros => "us",
            TimeUnit::Nanos => "ns",
        }
    }

    /// Returns the number of decimal places that this unit needs to express a nanosecond: 6 for
    /// milliseconds.
    const fn digits(self) -> i32 {
        match self {
            TimeUnit::Millis => 6,
            TimeUnit::Micros => 3,
            TimeUnit::Nanos => 0,
        }
    }
}

impl Kind {
    /// All kinds, in the order of the help.
    pub const ALL: [Kind; 7] = [
        Kind::Bitbrains,
        Kind::Azure,
        Kind::PlanetLab,
        Kind::RtApp,
        Kind::SimSo,
        Kind::Eva,
        Kind::Uunifast,
    ];

    /// Returns the name of the kind on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Bitbrains => "bitbrains",
            Kind::Azure => "azure",
            Kind::PlanetLab => "planetlab",
            Kind::RtApp => "rt-app",
            Kind::SimSo => "simso",
            Kind::Eva => "eva",
            Kind::Uunifast => "uunifast",
        }
    }

    /// Returns true if the files are CPU series.
    #[must_use]
    pub const fn is_series(self) -> bool {
        matches!(self, Kind::Bitbrains | Kind::Azure | Kind::PlanetLab)
    }
}

/// A file to convert.
#[derive(Clone, Copy, Debug)]
pub struct SourceFile<'a> {
    /// Name of the file in messages.
    pub name: &'a str,
    /// Contents of the file.
    pub bytes: &'a [u8],
}

/// Choices of a conversion that the files do not determine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Burst models of CPU series. `sim` uses the first model. With several models, the scenario
    /// has an `[[axis]]` with a point for each model.
    pub bursts: Vec<BurstModel>,
    /// Distance of jobs in the model `even`, and mean length of a job in `random`.
    pub burst: Span,
    /// Simulated length of each interval of a CPU series.
    pub interval: Span,
    /// First and last interval that are converted, counted from zero. If `None`, all intervals are
    /// converted.
    pub part: Option<(usize, usize)>,
    /// Number of CPUs of the host. If `None`, the host has the smallest number that suffices.
    pub cpus: Option<u16>,
    /// Number of cores of each VM whose file does not state the number.
    pub cores: u16,
    /// Length of the run of a task set whose file does not state a length.
    pub length: Span,
    /// Seed of the model `random`, and of a random task set.
    pub seed: u64,
    /// Unit of the times in a file of EVA.
    pub unit: TimeUnit,
    /// Description of a random task set.
    pub set: SetOptions,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            bursts: vec![BurstModel::Even],
            burst: Span::from_ms(100),
            interval: Span::from_secs(1),
            part: None,
            cpus: None,
            cores: 1,
            length: Span::from_secs(10),
            seed: 1,
            unit: TimeUnit::default(),
            set: SetOptions::default(),
        }
    }
}

/// Converts files to a scenario. The names of job files begin with `stem`.
///
/// # Errors
/// If a file is damaged, or describes work that no scenario can express.
pub fn convert(
    kind: Kind,
    files: &[SourceFile<'_>],
    options: &Options,
    stem: &str,
) -> Result<WrittenScenario, WorkloadError> {
    let files = files.iter().map(readable).collect::<Result<Vec<_>, _>>()?;
    let files = &files[..];
    if kind == Kind::Uunifast {
        return task_set::drawn(files.len(), options);
    }
    if files.is_empty() {
        let why = format!("cannot import {}: no file is given", kind.name());
        return Err(WorkloadError::Options { why, hint: "name a file" });
    }
    if options.burst.is_zero() || options.interval.is_zero() {
        let why = "cannot import a series with bursts or intervals of length zero".to_owned();
        return Err(WorkloadError::Options { why, hint: "write --burst 100ms --interval 1s" });
    }
    match kind {
        Kind::RtApp => rt_app::convert(only(kind, files)?, options, stem),
        Kind::SimSo => simso::convert(only(kind, files)?, options),
        Kind::Eva => task_set::of_eva(only(kind, files)?, options),
        Kind::Uunifast => unreachable!("returned above"),
        Kind::Bitbrains | Kind::Azure | Kind::PlanetLab => {
            series::convert(kind, files, options, stem)
        }
    }
}

/// Returns the file without the byte order mark that some programs write at the start of a text.
///
/// # Errors
/// If the file is compressed with gzip.
fn readable<'a>(file: &SourceFile<'a>) -> Result<SourceFile<'a>, WorkloadError> {
    if file.bytes.starts_with(&[0x1f, 0x8b]) {
        let error = WorkloadError::file(file.name, "the file is compressed");
        return Err(error.advise("decompress the file first: gunzip -k FILE"));
    }
    let bytes = file.bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file.bytes);
    Ok(SourceFile { name: file.name, bytes })
}

/// Returns the file of a kind that has all tasks in one file.
fn only<'a, 'b>(
    kind: Kind,
    files: &'b [SourceFile<'a>],
) -> Result<&'b SourceFile<'a>, WorkloadError> {
    match files {
        [file] => Ok(file),
        _ => Err(WorkloadError::Count { kind: kind.name(), count: files.len() }),
    }
}
