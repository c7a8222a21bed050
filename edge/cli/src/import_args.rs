//! Options of `import`, `diff` and `merge`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum, value_parser};
use slackline_import::{Kind, Target};
use slackline_units::{CpuShare, Span};
use slackline_workload::{BurstModel, Kind as WorkloadKind, Options, SetOptions, TimeUnit};

use crate::input::file;
use crate::parse::{share, span};

/// Turn a recording, a CPU series or a task set of another program into a file of Slackline
///
/// Files of perf and trace-cmd become a recording for `show`, `why` and `whatif`. All commands that
/// read recordings can also read files of perf and trace-cmd without an import. CPU series and task
/// sets become a scenario for `sim`, `compare` and `sweep`. The assumptions of the import are
/// printed, and written at the start of the scenario.
///
/// Examples:
///   slackline import perf perf.data host.trace --for web=pid:17
///   slackline import bitbrains 1.csv 2.csv fleet.toml --intervals 0-287
///   slackline import planetlab vm1 vm2 fleet.toml --bursts even,random,block
///   slackline import rt-app threads.json threads.toml
///   slackline import simso tasks.xml tasks.toml
///   slackline import eva taskset.txt tasks.toml --task-set
///   slackline import uunifast tasks.toml --tasks 8 --utilisation 70%
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ImportArgs {
    /// Kind of the file.
    #[arg(value_enum)]
    pub(crate) kind: ImportKind,
    /// Files to read (`-` is standard input), then the file to write; for a scenario, its name must
    /// end in .toml.
    #[arg(value_parser = file, num_args = 1.., required = true, value_name = "FILE... OUT")]
    pub(crate) files: Vec<PathBuf>,
    /// Process that is a VM, e.g. `web=pid:17`; repeatable [default: VMs are recognised by thread
    /// names].
    #[arg(long, value_name = "[NAME=]pid:NUMBER", help_heading = "Recordings")]
    pub(crate) r#for: Vec<Target>,
    /// Leave out names of VMs and processes.
    #[arg(long, help_heading = "Recordings")]
    pub(crate) anonymise: bool,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
}

/// Options for CPU series and task sets.
#[derive(Debug, Args)]
#[command(next_help_heading = "CPU series and task sets")]
pub(crate) struct WorkloadArgs {
    /// Burst models, which say when a VM is runnable in an interval. With several models, the
    /// scenario has an axis with a point for each model [default: even].
    #[arg(long, value_name = "MODEL,...", value_delimiter = ',', value_parser = burst_models())]
    pub(crate) bursts: Vec<BurstModel>,
    /// Time between two jobs of the model `even`, and mean length of a job of the model `random`
    /// [default: 100ms].
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) burst: Option<Span>,
    /// Simulated length of each interval of five minutes [default: 1s].
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) interval: Option<Span>,
    /// Intervals to take, counted from 0, e.g. `0-287` for a day [default: all].
    #[arg(long, value_name = "FIRST-LAST", value_parser = intervals)]
    pub(crate) intervals: Option<(usize, usize)>,
    /// Number of CPUs of the host [default: the fewest that suffice].
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u16).range(1..=256))]
    pub(crate) cpus: Option<u16>,
    /// Number of cores of each VM, for files that do not state the number [default: 1].
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u16).range(1..=256))]
    pub(crate) cores: Option<u16>,
    /// Length of the run if the task set states no duration [default: 10s].
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) length: Option<Span>,
    /// Seed of the burst model `random` and of the kind `uunifast` [default: 1].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
    /// Unit of the times in a file of the kind `eva` [default: ms].
    #[arg(long, value_name = "UNIT", value_parser = time_unit())]
    pub(crate) unit: Option<TimeUnit>,
    /// Number of tasks of `uunifast` [default: 5].
    #[arg(long, value_name = "NUMBER")]
    pub(crate) tasks: Option<u16>,
    /// Sum of the utilisations of `uunifast`, e.g. `150%` [default: 70%].
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) utilisation: Option<CpuShare>,
    /// Shortest and longest period of `uunifast` [default: 10ms-1s].
    #[arg(long, value_name = "TIME-TIME", value_parser = periods)]
    pub(crate) periods: Option<(Span, Span)>,
    /// Draw deadlines of `uunifast` that are shorter than the periods.
    #[arg(long)]
    pub(crate) constrained: bool,
    /// Write a task set for `slackline fit` instead of a scenario.
    #[arg(long)]
    pub(crate) task_set: bool,
}

/// Compare how two runs or recordings were scheduled, and show which differences exceed noise
///
/// Wake latency, preemption wait, length of run intervals (`slice`) and CPU time are compared for
/// each VM and for all VMs together. Imbalance is compared for the CPUs. Each run is divided into
/// 20 blocks of time. A difference exceeds noise if 99 % of 500 random draws of blocks agree on its
/// sign.
///
/// Examples:
///   slackline diff before.trace after.trace
///   slackline diff perf.data host.trace --json
///   slackline diff before.trace after.trace --check
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct DiffArgs {
    /// Trace or recording of the first run, e.g. before a change.
    #[arg(value_name = "A")]
    pub(crate) first: PathBuf,
    /// Trace or recording of the second run, e.g. after the change.
    #[arg(value_name = "B")]
    pub(crate) second: PathBuf,
    /// Print the differences as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// End with exit code 1 if B waits longer or has more imbalance than A, by more than noise.
    #[arg(long)]
    pub(crate) check: bool,
}

/// Maximum length of a host's name.
const LONGEST_NAME: usize = 64;

/// Put traces of several hosts, or of a host and its guests, into one file for the Perfetto UI
///
/// The file is a zip archive with a manifest and one Perfetto trace for each host. Open the file at
/// `ui.perfetto.dev`: the hosts are machines on one timeline. Recordings by `slackline record` are
/// placed by the wall clocks of their hosts. Traces of `sim` and `run` all begin at the same point.
///
/// Examples:
///   slackline merge both.zip web1=web1.trace web2=web2.trace
///   slackline merge both.zip host=host.trace guest=guest.trace
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct MergeArgs {
    /// Zip archive to write.
    #[arg(value_name = "FILE.zip")]
    pub(crate) archive: PathBuf,
    /// Name of a host and its trace or recording; at least two.
    #[arg(value_name = "NAME=TRACE", required = true, num_args = 2..)]
    pub(crate) traces: Vec<NamedTrace>,
}

/// A trace with the name of its host.
#[derive(Clone, Debug)]
pub(crate) struct NamedTrace {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
}

impl FromStr for NamedTrace {
    type Err = String;

    fn from_str(text: &str) -> Result<NamedTrace, String> {
        let (name, trace) = text.split_once('=').ok_or("write NAME=TRACE, e.g. web1=web1.trace")?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_plain) {
            return Err(format!(
                "a name has 1 to {LONGEST_NAME} letters, digits, `-`, `_` or `.`, not `{}`",
                name.escape_debug()
            ));
        }
        Ok(NamedTrace { name: name.to_owned(), file: file(trace)? })
    }
}

/// Kind of a file of another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImportKind {
    /// `perf.data` of `perf sched record`.
    Perf,
    /// Text of `trace-cmd report`, `perf script` or tracefs.
    #[value(alias = "ftrace")]
    TraceCmd,
    /// CPU series of Bitbrains (GWA-T-12), one file for each VM.
    Bitbrains,
    /// CPU readings of Azure VMs, all VMs in one file.
    Azure,
    /// CPU series of PlanetLab, one file for each VM.
    #[value(name = "planetlab")]
    PlanetLab,
    /// Threads of rt-app, in JSON.
    RtApp,
    /// Tasks of SimSo, in XML.
    #[value(name = "simso")]
    SimSo,
    /// Tasks of EVA and HCBS: WCET, deadline and period on each line.
    Eva,
    /// Random tasks by UUniFast-discard; takes only the file to write.
    Uunifast,
}

impl ImportKind {
    /// Returns the kind of the recording. `None` if the file is a workload.
    pub(crate) fn recording(self) -> Option<Kind> {
        match self {
            ImportKind::Perf => Some(Kind::Perf),
            ImportKind::TraceCmd => Some(Kind::Ftrace),
            _ => None,
        }
    }

    /// Returns the kind of the workload. `None` if the file is a recording.
    pub(crate) fn workload(self) -> Option<WorkloadKind> {
        match self {
            ImportKind::Perf | ImportKind::TraceCmd => None,
            ImportKind::Bitbrains => Some(WorkloadKind::Bitbrains),
            ImportKind::Azure => Some(WorkloadKind::Azure),
            ImportKind::PlanetLab => Some(WorkloadKind::PlanetLab),
            ImportKind::RtApp => Some(WorkloadKind::RtApp),
            ImportKind::SimSo => Some(WorkloadKind::SimSo),
            ImportKind::Eva => Some(WorkloadKind::Eva),
            ImportKind::Uunifast => Some(WorkloadKind::Uunifast),
        }
    }
}

impl WorkloadArgs {
    /// Returns the first workload option that the user gave. Recordings accept no such option.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let all = [
            ("--bursts", !self.bursts.is_empty()),
            ("--burst", self.burst.is_some()),
            ("--interval", self.interval.is_some()),
            ("--intervals", self.intervals.is_some()),
            ("--cpus", self.cpus.is_some()),
            ("--cores", self.cores.is_some()),
            ("--length", self.length.is_some()),
            ("--seed", self.seed.is_some()),
        ];
        let set_options = self.task_set_options().map(|(name, is_given, _)| (name, is_given));
        let mut all = all.into_iter().chain(set_options);
        all.find(|(_, is_given)| *is_given).map(|(name, _)| name)
    }

    /// Returns the options of task sets. Each option has three values: its name, true if the user
    /// gave the option, and the kinds that accept the option.
    fn task_set_options(&self) -> [(&'static str, bool, &'static [WorkloadKind]); 6] {
        use WorkloadKind::{Eva, Uunifast};
        [
            ("--unit", self.unit.is_some(), &[Eva]),
            ("--tasks", self.tasks.is_some(), &[Uunifast]),
            ("--utilisation", self.utilisation.is_some(), &[Uunifast]),
            ("--periods", self.periods.is_some(), &[Uunifast]),
            ("--constrained", self.constrained, &[Uunifast]),
            ("--task-set", self.task_set, &[Eva, Uunifast]),
        ]
    }

    /// Returns the chosen burst models without repetitions. `None` if none was chosen.
    fn chosen(&self) -> Option<Vec<BurstModel>> {
        let mut chosen = Vec::new();
        for model in &self.bursts {
            if !chosen.contains(model) {
                chosen.push(*model);
            }
        }
        (!chosen.is_empty()).then_some(chosen)
    }

    /// Returns the first option that was given although the kind does not use it.
    pub(crate) fn unused(&self, kind: WorkloadKind) -> Option<&'static str> {
        let (is_series, has_cores) = (kind.is_series(), kind == WorkloadKind::Bitbrains);
        let all = [
            ("--bursts", !self.bursts.is_empty() && !is_series),
            ("--burst", self.burst.is_some() && !is_series),
            ("--interval", self.interval.is_some() && !is_series),
            ("--intervals", self.intervals.is_some() && !is_series),
            ("--cores", self.cores.is_some() && (has_cores || !is_series)),
            ("--length", self.length.is_some() && is_series),
            ("--seed", self.seed.is_some() && !is_series && kind != WorkloadKind::Uunifast),
        ];
        let set_options = self.task_set_options();
        let set_options =
            set_options.map(|(name, is_given, of)| (name, is_given && !of.contains(&kind)));
        let mut all = all.into_iter().chain(set_options);
        all.find(|(_, is_unused)| *is_unused).map(|(name, _)| name)
    }

    /// Returns the options of the conversion, with defaults for those that were not given.
    pub(crate) fn options(&self) -> Options {
        let usual = Options::default();
        Options {
            bursts: self.chosen().unwrap_or(usual.bursts),
            burst: self.burst.unwrap_or(usual.burst),
            interval: self.interval.unwrap_or(usual.interval),
            part: self.intervals,
            cpus: self.cpus.or(usual.cpus),
            cores: self.cores.unwrap_or(usual.cores),
            length: self.length.unwrap_or(usual.length),
            seed: self.seed.unwrap_or(usual.seed),
            unit: self.unit.unwrap_or(usual.unit),
            set: SetOptions {
                tasks: self.tasks.unwrap_or(usual.set.tasks),
                utilisation: self.utilisation.unwrap_or(usual.set.utilisation),
                periods: self.periods.unwrap_or(usual.set.periods),
                has_constrained_deadlines: self.constrained,
            },
        }
    }
}

/// Returns the parser of a burst model, which lists the models in help and errors.
fn burst_models() -> impl TypedValueParser<Value = BurstModel> {
    PossibleValuesParser::new(BurstModel::NAMES).try_map(|name| name.parse::<BurstModel>())
}

/// Returns the parser of a unit, which lists the units in help and errors.
fn time_unit() -> impl TypedValueParser<Value = TimeUnit> {
    PossibleValuesParser::new(TimeUnit::NAMES)
        .map(|name| TimeUnit::named(&name).expect("a possible value"))
}

/// Reads the shortest and the longest period, such as `10ms-1s`.
fn periods(text: &str) -> Result<(Span, Span), String> {
    let example = "write the shortest and the longest period: `10ms-1s`";
    let (shortest, longest) = text.split_once('-').ok_or(example)?;
    Ok((span(shortest)?, span(longest)?))
}

/// Reads a range of intervals, such as `0-287`, or one interval.
fn intervals(text: &str) -> Result<(usize, usize), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse::<usize>().ok().filter(|&number| number < 10_000_000);
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok((first, last)),
        _ => Err("write the first and the last interval: `0-287`".to_owned()),
    }
}
