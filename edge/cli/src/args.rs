//! Definition of the command line.

use crate::amounts::{CpuList, cpu_list};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use slackline_units::{CpuId, Span};

use crate::edits::Whatif;
use crate::enforce::Enforce;
use crate::fit_args::FitArgs;
use crate::hold_args::HoldArgs;
use crate::import_args::{DiffArgs, ImportArgs, MergeArgs};
use crate::input::file;
use crate::load::args::LoadArgs;
use crate::manual_args::{Completions, Manual};
use crate::parse::span;
use crate::part::PartOfSweep;
use crate::service::args::{
    AccessArgs, Apply, Change, Find, Gang, History, IncidentsArgs, List, Log, NamedArgs, PageArgs,
    Pause, PlaceArgs, PredictionsArgs, RecordArgs, Reserve, Room, SelectionArgs, TopArgs, UndoArgs,
    WhyArgs,
};
use crate::tls::ServeFront;

/// Returns the version and, if this program is a release, the commit that it was built from.
fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    match option_env!("SLACKLINE_COMMIT") {
        Some(commit) => format!("{version} (commit {commit})"),
        None => version.to_owned(),
    }
}

/// Reserves and shares CPU time for virtual machines (VMs), and measures what each VM received.
#[derive(Debug, Parser)]
#[command(name = "slackline", version = version(), disable_help_subcommand = true)]
#[command(after_help = "Exit codes: 0 success; 1 a claim failed; 2 bad input; 3 not possible on \
                        this host; 4 no capacity on a daemon, or for `fit` or `whatif` (2 for a \
                        scenario or `hold`); 5 not permitted; 70 bug in Slackline; \
                        130 interrupted.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Simulate a scenario and print its metrics.
    Sim(Sim),
    /// Run a scenario on this host with real processes or VMs. Needs root.
    Run(RunArgs),
    Hold(HoldArgs),
    /// Run the daemon that keeps CPU reservations for VMs. Needs root.
    Serve(crate::serve::Serve),
    /// Run as a libvirt hook when a guest starts.
    Hook(crate::hook::Hook),
    /// List VMs on this host and their reservations.
    Find(Find),
    /// Reserve CPU time for a VM under a name.
    Reserve(Reserve),
    /// Reserve CPU time on one of several hosts with enough capacity.
    Place(PlaceArgs),
    /// Reserve CPU time for VMs on several hosts, all or none, with aligned periods.
    Gang(Gang),
    /// Apply a file of reservations: all of them or none.
    Apply(Apply),
    Undo(UndoArgs),
    /// Change the parameters of a reservation.
    Change(Change),
    /// Stop a VM until `resume`; the reservation stays.
    Pause(Pause),
    /// Resume a paused VM.
    Resume(NamedArgs),
    /// End a reservation; its VM returns to ordinary scheduling.
    Release(NamedArgs),
    /// List reservations and the CPU time each received.
    List(List),
    /// Show reservations every second and events as they happen, until Ctrl-C.
    Watch(SelectionArgs),
    /// Show the largest slice that each CPU can still admit.
    Room(Room),
    /// Show the latest events: when, who and what.
    Log(Log),
    /// Show the CPU time that a reservation received, by hour or day.
    History(History),
    /// Show or change what users may do. Administrators only.
    Access(AccessArgs),
    Top(TopArgs),
    /// Print the address of the web page, with a code that logs a browser in once.
    Page(PageArgs),
    /// Run a demo: a daemon with four guests and a web page.
    Demo(crate::demo::Demo),
    /// Compare a scenario under several policies, or simulated and live.
    Compare(Compare),
    Sweep(Sweep),
    Join(Join),
    Fit(FitArgs),
    /// Check a scenario and its admission without running it.
    Check(Check),
    Alert(Alert),
    Manage(crate::manage_args::Manage),
    Record(RecordArgs),
    Import(ImportArgs),
    Diff(DiffArgs),
    Merge(MergeArgs),
    Why(WhyArgs),
    Incidents(IncidentsArgs),
    Predictions(PredictionsArgs),
    /// Draw a saved trace as a timeline, or print its metrics or run intervals.
    Show(Show),
    /// Replay a saved trace and check that every decision is the same.
    Replay(Replay),
    Whatif(Whatif),
    /// Run a paper's experiments and compare the results with the published values.
    Paper(PaperArgs),
    /// Run a workload or a client of a scenario as a real process.
    Load(LoadArgs),
    /// Run the guest agent: report urgent tasks to the host.
    Agent(crate::agent::Agent),
    /// Check what this host supports, and how to fix what is missing.
    Doctor(Doctor),
    /// Show the help page of a topic, policy or command, or list all.
    Help {
        /// Topic, policy or command [default: list all].
        topic: Option<String>,
    },
    /// Print shell completions, e.g. `slackline completions bash > FILE`.
    Completions(Completions),
    /// Print a manual page, e.g. `slackline man sim | man -l -`.
    Man(Manual),
    /// Run the keeper, which restores threads if a live command is killed. Started by such
    /// commands.
    #[command(hide = true)]
    Keep,
    /// Run the front: the unprivileged process that parses requests for the daemon. Started by
    /// `serve`.
    #[command(hide = true)]
    ServeFront(ServeFront),
    /// Predict from a recording on standard input. Started by `serve`.
    #[command(hide = true)]
    ServeWorker,
}

/// Output options of a run, in addition to its table.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Keeping {
    /// Print metrics as JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Save the trace for `slackline show` and `slackline replay`.
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Save the trace in the format of the Perfetto UI.
    #[arg(long, value_name = "FILE")]
    pub(crate) perfetto: Option<PathBuf>,
    /// Save CSV: one row per second for each domain and each CPU; with axes, one row for each vCPU
    /// at each point.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Save numbers, timeline and scenario as an HTML page.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Also print XenMon metrics: gotten, allocated, blocked, waited, executions, I/O.
    #[arg(long)]
    pub(crate) xenmon: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Sim {
    /// Scenario file; `-` is standard input.
    #[arg(value_parser = file)]
    pub(crate) file: PathBuf,
    /// Replace the scenario's policy, e.g. `credit:rules=xen-3.0.3`.
    #[arg(long, value_name = "NAME[:FIELD=VALUE]")]
    pub(crate) policy: Option<String>,
    /// Replace the scenario's seed.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Run with N consecutive seeds; print means and 95 % confidence intervals.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    #[arg(conflicts_with_all = ["save", "perfetto", "report", "xenmon"])]
    pub(crate) seeds: Option<u64>,
    /// Replace the scenario's length, e.g. `30s`.
    #[arg(long, value_parser = span)]
    pub(crate) length: Option<Span>,
    /// Also print elapsed time, simulated events and peak memory.
    #[arg(long, conflicts_with = "seeds")]
    pub(crate) cost: bool,
    #[command(flatten)]
    pub(crate) keeping: Keeping,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Scenario file; `-` is standard input.
    #[arg(value_parser = file)]
    pub(crate) file: PathBuf,
    /// Replace the scenario's policy, e.g. `credit:rules=xen-3.0.3`.
    #[arg(long, value_name = "NAME[:FIELD=VALUE]")]
    pub(crate) policy: Option<String>,
    /// Replace the scenario's seed.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Run with N consecutive seeds; print means and 95 % confidence intervals.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    #[arg(conflicts_with_all = ["save", "perfetto", "csv", "report", "xenmon"])]
    pub(crate) seeds: Option<u64>,
    /// Replace the scenario's length, e.g. `30s`.
    #[arg(long, value_parser = span)]
    pub(crate) length: Option<Span>,
    /// CPUs of this host, as many as the scenario has [default: the last CPUs].
    #[arg(long, value_name = "N-N,N", value_parser = cpu_list)]
    pub(crate) cpus: Option<CpuList>,
    /// Mechanism that runs the policy: auto or dispatcher [default: dispatcher].
    #[arg(long, value_name = "NAME")]
    pub(crate) enforce: Option<Enforce>,
    #[command(flatten)]
    pub(crate) keeping: Keeping,
}

#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// Scenario file; `-` is standard input.
    #[arg(value_parser = file)]
    pub(crate) file: PathBuf,
    /// Policies, e.g. `edf,credit:rules=xen-3.0.3:boost=off` [default: the scenario's].
    #[arg(long, value_name = "NAME[:FIELD=VALUE],...", value_delimiter = ',')]
    pub(crate) policies: Vec<String>,
    /// Replace the scenario's seed.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Run each policy with N consecutive seeds; print means and 95 % confidence intervals.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: Option<u64>,
    /// Show only this metric, e.g. `wake to run p99 of web`; repeatable.
    #[arg(long, value_name = "METRIC")]
    pub(crate) metric: Vec<String>,
    /// Also run each policy on this host. Needs root.
    #[arg(long)]
    pub(crate) live: bool,
    /// Also run live if this host can run the scenario; otherwise only simulate.
    #[arg(long, conflicts_with = "live")]
    pub(crate) live_if_possible: bool,
    /// Replace the scenario's length, e.g. `30s`.
    #[arg(long, value_parser = span)]
    pub(crate) length: Option<Span>,
    /// CPUs of this host for live runs [default: the last CPUs].
    #[arg(long, value_name = "N-N,N", value_parser = cpu_list)]
    pub(crate) cpus: Option<CpuList>,
    /// Save the metrics of each vCPU in each run as CSV.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["live", "live_if_possible"])]
    pub(crate) csv: Option<PathBuf>,
    /// Save the distributions of wake to run, response and job lateness as CSV.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["live", "live_if_possible"])]
    pub(crate) cdf: Option<PathBuf>,
    /// Write shares, misses, waits and timelines of all policies as one HTML page.
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Print metrics as JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Run all points of a scenario or family into one CSV table
///
/// Each combination of axis points, policy and seed is one run and one row of the table. A family
/// draws random hosts (`slackline help family`); for a family, each combination is run with each
/// host size. Runs are made in parallel on all cores. A sweep that was stopped continues when the
/// same command is run again.
///
/// Columns: the axes (`axis_NAME` if the name is taken), cpus, policy and seed, then
///   outcome                   `done`, or `refused` if admission refused the run
///   vcpus                     number of vCPUs
///   share_error_percent       mean deviation of vCPUs' CPU time from the share, in % of the share;
///                             the share is the reservation or, in a family, the weighted max-min
///                             fair share over all CPUs at every instant
///   worst_error_percent       deviation of the vCPU that deviates most, in % of its share
///   second_error_p95_percent  95th percentile of the deviation in single seconds; families only
///   moves_per_cpu_second      migrations per CPU and second
///   switches_per_cpu_second   context switches per CPU and second
///   deadlines, misses         number of deadlines of reservations, and number of missed deadlines
///   waiting_percent           time spent waiting for a CPU, in % of the time runnable
///   wait_worst_ms             longest wait for a CPU, in ms
///   busy_percent              CPU time used, in % of all CPUs
///   events                    number of simulated events
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Sweep {
    /// Scenario or family file; `-` is standard input.
    #[arg(value_parser = file)]
    pub(crate) file: PathBuf,
    /// Policies, e.g. `credit,sedf:slack=weighted` [default: the scenario's].
    #[arg(long, value_name = "NAME[:FIELD=VALUE],...", value_delimiter = ',')]
    pub(crate) policies: Vec<String>,
    /// Replace the scenario's seed, which is the first seed of --seeds.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Replace the family's host sizes, in CPUs.
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=CpuId::LIMIT as i64))]
    pub(crate) cpus: Vec<u16>,
    /// Run each point with N consecutive seeds.
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) seeds: u64,
    /// Replace the scenario's length, e.g. `30s`.
    #[arg(long, value_parser = span)]
    pub(crate) length: Option<Span>,
    /// Also tabulate and plot this metric, e.g. `wake to run p99 of web`; repeatable.
    #[arg(long, value_name = "METRIC")]
    pub(crate) metric: Vec<String>,
    /// File for the table, one row per run; FILE.part has the finished runs.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: PathBuf,
    /// Also write one self-contained HTML page with plots.
    #[arg(long, alias = "page", value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Discard the runs in FILE.part and start over.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Make only the runs of part K of N, into FILE.K-of-N for `slackline join`.
    #[arg(long, value_name = "K/N", conflicts_with = "report")]
    pub(crate) part: Option<PartOfSweep>,
}

/// Join the parts of a sweep into the table that one sweep would write
///
/// Each part was written by `slackline sweep --part K/N`, on any machine with the same program. The
/// table is the same, byte for byte, as that of a sweep without --part. `join` fails if a part is
/// missing, incomplete, damaged or given twice, or if it is from another sweep or another build of
/// the program. Files that the scenario names must exist on this machine too.
///
/// Example:
///   slackline sweep host.toml --csv host.csv --part 1/2
///   slackline sweep host.toml --csv host.csv --part 2/2
///   slackline join host.csv.*-of-2 --csv host.csv
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Join {
    /// Files of all parts.
    #[arg(required = true, value_name = "PART")]
    pub(crate) parts: Vec<PathBuf>,
    /// File for the table, one row per run.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: PathBuf,
    /// Also write one self-contained HTML page with plots.
    #[arg(long, alias = "page", value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

/// Test how exactly shares are enforced, second by second (ALERT).
///
/// ALERT is the allocation error test of Cherkasova, Gupta and Vahdat (2007, section 5.2),
/// simulated or on this host. A VM that never blocks is limited to a share A of a CPU. A Dom0 with
/// 6 % uses the same CPU. The shares 1, 2, ... 10, 20, ... 90 % are tested for 3 minutes each. The
/// CPU time used, U, is read every second. The error is (U - A)/A, positive if the VM received too
/// much. The paper defines (A - U)/A, but its errors of up to 370 % are only possible as (U - A)/A.
#[derive(Debug, Args)]
pub(crate) struct Alert {
    /// Policy to simulate, repeatable [default: published SEDF and Credit, and edf].
    #[arg(long, value_name = "NAME[:FIELD=VALUE]")]
    pub(crate) policy: Vec<String>,
    /// Set a parameter of the policies or shares, e.g. `period=10ms`; repeatable.
    #[arg(long, value_name = "FIELD=VALUE")]
    pub(crate) set: Vec<String>,
    /// Change one rule of each policy at a time and show the effect.
    #[arg(long, conflicts_with = "live")]
    pub(crate) ablate: bool,
    /// Limit three VMs to 66 % each on two CPUs [default policy: published Credit].
    #[arg(long, conflicts_with = "live")]
    pub(crate) smp: bool,
    /// Limit a real process on this host instead of simulating. Needs root.
    #[arg(long)]
    pub(crate) live: bool,
    /// Live limiters: dispatcher, deadline, quota, quota-v1, quota-v2 [default: all].
    #[arg(long, value_name = "WAY,WAY", value_delimiter = ',', requires = "live")]
    pub(crate) limiter: Vec<String>,
    /// Also test this limiter, e.g. `cpulimit -p {pid} -l {percent}`; repeatable.
    #[arg(long, value_name = "COMMAND", requires = "live")]
    pub(crate) limiter_command: Vec<String>,
    /// CPU of the limited process in a live test [default: the last CPU].
    #[arg(long, value_name = "N", requires = "live")]
    pub(crate) cpu: Option<usize>,
    /// Shares to test, in % of a CPU [default: 1, 2, ... 10, 20, ... 90; with --smp: 66].
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',')]
    pub(crate) targets: Vec<String>,
    /// Length of the test of each share [default: 3min; with --smp: 10min].
    #[arg(long, value_parser = span)]
    pub(crate) length: Option<Span>,
    /// Number of simulated runs, each with its own seed [default: 10].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: Option<u64>,
    /// Shorten the test. Simulated: 20s per share, 3 seeds. Live: 3s per share, 7 shares.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write results and figures as one HTML page.
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Write one row per second as CSV.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Print metrics as JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Commit of this program, shown in the footer of the report.
    #[arg(long, value_name = "ID")]
    pub(crate) commit: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Scenario file; `-` is standard input.
    #[arg(value_parser = file)]
    pub(crate) file: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Trace saved with --save; `-` is standard input.
    #[arg(value_parser = file)]
    pub(crate) file: PathBuf,
    /// Start of the window, as time from the start of the run.
    #[arg(long, value_parser = span, default_value = "0s")]
    pub(crate) from: Span,
    /// Length of the window [default: 100ms; with --list, to the end of the run].
    #[arg(long, value_parser = span)]
    pub(crate) r#for: Option<Span>,
    /// Width of the picture in columns [default: the terminal's, or 100].
    #[arg(long)]
    pub(crate) width: Option<usize>,
    /// Draw with ASCII characters only.
    #[arg(long)]
    pub(crate) ascii: bool,
    /// Print one line per run interval; with --json, as JSON.
    #[arg(long, conflicts_with = "ascii")]
    pub(crate) list: bool,
    /// With --list, also print scheduling passes and empty timeslices.
    #[arg(long, requires = "list")]
    pub(crate) passes: bool,
    /// Print one vCPU's run and block times, for a `replay` workload.
    #[arg(long, value_name = "VCPU", conflicts_with_all = ["list", "ascii", "from", "for"])]
    pub(crate) runs: Option<String>,
    /// Print the metrics of the whole trace as a table.
    #[arg(long, conflicts_with_all = ["list", "ascii", "runs", "from", "for"])]
    pub(crate) table: bool,
    /// Print the metrics, or with --list the run intervals, as JSON.
    #[arg(long, conflicts_with_all = ["ascii", "runs"])]
    pub(crate) json: bool,
    /// Print the metrics of the whole trace, with XenMon metrics of each domain.
    #[arg(long, conflicts_with_all = ["list", "ascii", "runs", "from", "for"])]
    pub(crate) xenmon: bool,
    /// Save the trace in the format of the Perfetto UI.
    #[arg(long, value_name = "FILE")]
    pub(crate) perfetto: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// Trace saved with --save; `-` is standard input.
    #[arg(value_parser = file)]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct PaperArgs {
    #[command(subcommand)]
    pub(crate) command: PaperCommand,
    /// Folder with one folder per paper.
    #[arg(long, global = true, value_name = "FOLDER", default_value = "papers")]
    pub(crate) papers: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PaperCommand {
    /// List papers, their experiments and verdicts.
    List,
    /// Run experiments, compare them with the paper, and write the results to the paper's folder.
    Run(PaperRun),
    /// Find costs that a paper does not state: fit them to the rows marked for calibration.
    Calibrate {
        /// Name of the paper.
        paper: String,
    },
    /// Write one page with the paper's figures and ours, from the stored results.
    Report(PaperReport),
}

#[derive(Debug, Args)]
pub(crate) struct PaperRun {
    /// Name of the paper.
    pub(crate) paper: String,
    /// Experiments or figures to run [default: all but `sensitivity`].
    pub(crate) experiments: Vec<String>,
    /// Replace the number of seeds of each experiment.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: Option<u64>,
    /// Run the quick form of each experiment that has one.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write no results to the folder of the paper.
    #[arg(long = "no-results", action = clap::ArgAction::SetFalse)]
    pub(crate) keep: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PaperReport {
    /// Name of the paper [default: all].
    pub(crate) paper: Option<String>,
    /// File for the page.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Print the findings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Restore threads that a killed run left stopped, boosted or pinned.
    #[arg(long)]
    pub(crate) free: bool,
    /// With --free: do not restore `deadline` threads of a killed `serve --on-death keep`. In a
    /// systemd service, a timer restores them after the time of `--keep-for`.
    #[arg(long, requires = "free")]
    pub(crate) unless_kept: bool,
    /// Try each mechanism for two seconds beside busy threads; rank the mechanisms. Needs root.
    #[arg(long, conflicts_with_all = ["free", "ledger"])]
    pub(crate) trial: bool,
    /// Check the ledger in this folder instead of the host [default folder: the daemon's].
    #[arg(long, value_name = "FOLDER", conflicts_with = "free")]
    #[arg(num_args = 0..=1, default_missing_value = slackline_daemon::ledger::FOLDER)]
    pub(crate) ledger: Option<PathBuf>,
    /// Rebuild a damaged ledger from its intact rows and its backups.
    #[arg(long, requires = "ledger", conflicts_with = "json")]
    pub(crate) rebuild: bool,
}
