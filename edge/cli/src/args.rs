//! The command line.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::Shell;
use slackline_units::{CpuId, CpuShare, Span};

use crate::input::file;
use crate::load::args::Load;
use crate::parse::{share, span};
use crate::service::args::{
    AccessArgs, Change, Find, Gang, Log, Named, Pause, Place, Reserve, Room, Which,
};

/// Returns the version and, if this program is a release, the commit that it was built from.
fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    match option_env!("SLACKLINE_COMMIT") {
        Some(commit) => format!("{version} (commit {commit})"),
        None => version.to_owned(),
    }
}

/// Gives virtual machines CPU time: reserves it, shares it out, and proves that it was delivered.
#[derive(Debug, Parser)]
#[command(name = "slackline", version = version(), disable_help_subcommand = true)]
#[command(after_help = "Exit codes: 0 done; 1 a claim failed; 2 bad input; 3 this host cannot; \
                        4 no room for it; 5 not allowed; 70 a bug of ours; 130 interrupted.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Simulate a scenario.
    Sim(Sim),
    /// Run a scenario on this machine: real processes, real virtual machines. Needs root.
    Run(Run),
    /// Give a process, a unit or a command its CPU time from now on, until Ctrl-C. Needs root.
    Hold(Hold),
    /// Be the daemon: hold reservations for machines that come and go. Needs root.
    Serve(Serve),
    /// Be what others run when a machine of theirs starts.
    Hook(crate::hook::Hook),
    /// Show the machines here that can have a reservation.
    Find(Find),
    /// Reserve CPU time for a machine, under a name.
    Reserve(Reserve),
    /// Reserve CPU time where there is room for it, on one of several hosts.
    Place(Place),
    /// Reserve for machines on several hosts that begin together, in one phase, all or none.
    Gang(Gang),
    /// Give a reservation other terms.
    Change(Change),
    /// Keep a machine from running until it is resumed; its promise is kept.
    Pause(Pause),
    /// Let it run again.
    Resume(Named),
    /// End a reservation: its machine goes back to ordinary scheduling.
    Release(Named),
    /// Show what is promised and what was delivered.
    List(Which),
    /// The same every second, and what happens, until Ctrl-C.
    Watch(Which),
    /// Show the largest slice that would be admitted now, on each CPU.
    Room(Room),
    /// Show who did what when.
    Log(Log),
    /// Say who may do what, and how much he may have. For administrators.
    Access(AccessArgs),
    /// Run a scenario under several policies, or simulated beside live, in one table.
    Compare(Compare),
    /// Run a family of scenarios, random hosts among them, under policies: one table, one page.
    Sweep(Sweep),
    /// Read a scenario and try its admission; runs nothing.
    Check(Check),
    /// Test how exactly shares are delivered second by second, simulated or on this machine: ALERT.
    Alert(Alert),
    /// Draw a saved trace as a timeline.
    Show(Show),
    /// Play the facts of a saved trace again: are the orders the same?
    Replay(Replay),
    /// Run the experiments of a paper and hold them against what was published.
    Paper(PaperArgs),
    /// Be a workload of a scenario, or a client of one, as a real process.
    Load(Load),
    /// Be what tells the host, inside a guest, what its urgent tasks are at.
    Agent(crate::agent::Agent),
    /// Say what this machine allows, and what to do about what is missing.
    Doctor(Doctor),
    /// Teach keys, workloads, claims, metrics, a policy or a command; without a name, list all.
    Help {
        /// A page, a policy or a command.
        topic: Option<String>,
    },
    /// Print what completes commands in a shell: `slackline completions bash >
    /// /etc/bash_completion.d/slackline`.
    Completions(Completions),
    /// Print the manual page of the program or of a command; `slackline man sim | man -l -`.
    Man(Manual),
    /// The keeper of a live run. Started by `run`, never by hand.
    #[command(hide = true)]
    Keep,
    /// The front of the service. Started by `serve`, never by hand.
    #[command(hide = true)]
    ServeFront(Tls),
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell.
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Manual {
    /// A command [default: the program]; one below another as `paper-run`.
    pub(crate) command: Option<String>,
    /// Write all pages into this folder instead, as `slackline.1`, `slackline-sim.1` and so on.
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    pub(crate) to: Option<PathBuf>,
}

/// What to do with a run besides showing its table.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Keeping {
    /// Print the numbers as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Save the trace, for `slackline show`.
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Save the trace for the Perfetto UI.
    #[arg(long, value_name = "FILE")]
    pub(crate) perfetto: Option<PathBuf>,
    /// Save what each domain had in each second, how long it waited and slept, and what became of
    /// each CPU, as CSV (`slackline help metrics` has the columns); of a scenario with axes the
    /// numbers of each vCPU at each point.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Show XenMon's metrics of each domain as well: gotten, allocated, blocked, waited, executions
    /// and I/O.
    #[arg(long)]
    pub(crate) xenmon: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Sim {
    /// The scenario; `-` is standard input.
    #[arg(value_parser = file)]
    pub(crate) file: PathBuf,
    /// Another policy than the scenario's, perhaps with some of its parameters:
    /// `credit:rules=xen-3.0.3`.
    #[arg(long, value_name = "NAME[:FIELD=VALUE]")]
    pub(crate) policy: Option<String>,
    /// Another seed than the scenario's.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// So many runs, each with the next seed: means with 95 % confidence intervals.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    #[arg(conflicts_with_all = ["save", "perfetto", "xenmon"])]
    pub(crate) seeds: Option<u64>,
    /// Another length than the scenario's.
    #[arg(long, value_parser = span)]
    pub(crate) length: Option<Span>,
    /// Say as well what it took: time, events, memory.
    #[arg(long, conflicts_with = "seeds")]
    pub(crate) cost: bool,
    #[command(flatten)]
    pub(crate) keeping: Keeping,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The scenario; `-` is standard input.
    #[arg(value_parser = file)]
    pub(crate) file: PathBuf,
    /// Another policy than the scenario's, perhaps with some of its parameters:
    /// `credit:rules=xen-3.0.3`.
    #[arg(long, value_name = "NAME[:FIELD=VALUE]")]
    pub(crate) policy: Option<String>,
    /// Another seed than the scenario's.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// So many runs, one after the other, each with the next seed: means with 95 % confidence
    /// intervals.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    #[arg(conflicts_with_all = ["save", "perfetto", "csv", "xenmon"])]
    pub(crate) seeds: Option<u64>,
    /// Another length than the scenario's.
    #[arg(long, value_parser = span)]
    pub(crate) length: Option<Span>,
    /// The CPUs of this machine to schedule, as many as the scenario has [default: the last ones].
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub(crate) cpus: Option<Vec<usize>>,
    #[command(flatten)]
    pub(crate) keeping: Keeping,
}

/// Whom `hold` can be about: one of these.
const TARGETS: [&str; 4] = ["pid", "unit", "cgroup", "command"];

/// Gives a process and all that it starts, a cgroup, a systemd unit or a command so much CPU time
/// and no more, whatever else runs here, until Ctrl-C or its end; then everything is as it was. A
/// command's exit code is handed on.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("target").required(true).args(TARGETS)))]
pub(crate) struct Hold {
    /// A process, with all that descends from it.
    #[arg(long)]
    pub(crate) pid: Option<i32>,
    /// A systemd unit, by its full name: `web.service`.
    #[arg(long, value_name = "NAME")]
    pub(crate) unit: Option<String>,
    /// A cgroup of version 2, by its folder or as `/proc/PID/cgroup` has it.
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Option<String>,
    /// How much: `30%` of a CPU, or `1.5` CPUs: for a process and all it starts, which then run on
    /// several CPUs at once, or for several vCPUs together, each of which is promised an equal part
    /// and has what others leave.
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "slice")]
    pub(crate) cpu: Option<CpuShare>,
    /// So much CPU time in every period.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) slice: Option<Span>,
    /// The period [default: 10ms].
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) period: Option<Span>,
    /// Let it have what nobody claims as well.
    #[arg(long)]
    pub(crate) at_least: bool,
    /// Hold each vCPU of a virtual machine monitor, instead of all its threads as one.
    #[arg(long, conflicts_with_all = ["unit", "cgroup"])]
    pub(crate) vcpus: bool,
    /// The CPUs of this machine to use [default: the last one, or as many as vCPUs or --cpu need].
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub(crate) cpus: Option<Vec<usize>>,
    /// Print a line of JSON each second.
    #[arg(long)]
    pub(crate) json: bool,
    /// A command, after `--`.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// What the daemon is started with.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The CPUs of this machine to schedule [default: all but the first, which is left for
    /// everybody else]. Where they are all CPUs, 0.1 ms in every 2 ms of one of them (5 %, and what
    /// switching takes) are promised to the daemon's own front, so that requests are heard.
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub(crate) cpus: Option<Vec<usize>>,
    /// The folder of the ledger: what is promised, and what happened.
    #[arg(long, value_name = "FOLDER", default_value = slackline_daemon::ledger::FOLDER)]
    pub(crate) state: PathBuf,
    /// Where to listen, unless systemd has passed a socket.
    #[arg(long, value_name = "PATH", default_value = slackline_control::SOCKET)]
    pub(crate) socket: PathBuf,
    /// What CPU time costs, as TOML: `list` shows what each reservation does.
    #[arg(long, value_name = "FILE")]
    pub(crate) prices: Option<PathBuf>,
    /// Where other machines may connect besides, with TLS 1.3, and a token or a certificate that
    /// `slackline access` knows.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "certificate")]
    pub(crate) listen: Option<std::net::SocketAddr>,
    #[command(flatten)]
    pub(crate) tls: Tls,
}

/// What TLS is set up with.
#[derive(Debug, Args)]
pub(crate) struct Tls {
    /// Our certificate and those between it and its root, as PEM.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) certificate: Option<PathBuf>,
    /// Its key, as PEM, in a file for its owner alone.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,
    /// Who signs the certificates of clients, as PEM [default: clients have tokens only].
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) client_ca: Option<PathBuf>,
}

impl Tls {
    pub(crate) fn files(&self) -> Option<slackline_daemon::front::TlsFiles> {
        let (certificate, key) = (self.certificate.clone()?, self.key.clone()?);
        let client_ca = self.client_ca.clone();
        Some(slackline_daemon::front::TlsFiles { certificate, key, client_ca })
    }
}

#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// The scenario; `-` is standard input.
    #[arg(value_parser = file)]
    pub(crate) file: PathBuf,
    /// The policies to compare, each perhaps with some of its parameters:
    /// `credit,credit:rules=xen-3.0.3:boost=off` [default: the scenario's own].
    #[arg(long, value_name = "NAME[:FIELD=VALUE],...", value_delimiter = ',')]
    pub(crate) policies: Vec<String>,
    /// Another seed than the scenario's.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// So many runs of each, each with the next seed: means with 95 % confidence intervals.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: Option<u64>,
    /// Run each on this machine as well, one after the other. Needs root.
    #[arg(long)]
    pub(crate) live: bool,
    /// As --live where that is possible; otherwise say why not, and simulate.
    #[arg(long, conflicts_with = "live")]
    pub(crate) live_if_possible: bool,
    /// Another length than the scenario's.
    #[arg(long, value_parser = span)]
    pub(crate) length: Option<Span>,
    /// The CPUs of this machine for the live run [default: the last ones].
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub(crate) cpus: Option<Vec<usize>>,
    /// Save the numbers of each vCPU in each run as CSV.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["live", "live_if_possible"])]
    pub(crate) csv: Option<PathBuf>,
    /// Print the numbers as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs a scenario at all points of its axes, or random hosts of a `[family]` by size, under
/// policies and with seeds, over all cores. Each run is a line of a CSV table. Killed in the
/// middle, the same command goes on with what is missing, and the table is the same.
///
/// A file with random hosts says what they are like in place of domains:
///
///   title  = "Hosts with loops"
///   length = "60s"
///   policy = { name = "sedf" }
///   [family]
///   cpus           = [2, 8, 64]                 # a host of each size with each seed
///   guests_per_cpu = [1.25, 3]                  # from, to: one number is drawn for a host
///   weights        = [1, 1, 1, 2, 4]            # one of them for each guest; default 1
///   reserved       = ["0%", "0%", "25%", "50%"] # one of them for each CPU; default 0%
///   period         = "20ms"                     # of what is reserved; default 20ms
///   sleepers       = "50%"                      # so many guests sleep; the others are loops
///   compute        = ["5ms", "50ms"]            # each sleeper has a mean between the two
///   sleep          = ["5ms", "100ms"]           # likewise
///   varies         = "50%"                      # each time is up to so far from its mean
///   jumps          = "2s"                       # a reserved part changes so often, on average
///   jumps_to       = ["0%", "25%", "50%"]       # to one of these
///   [family.share]                              # of a guest, by policy
///   sedf   = { extra-weight = "{weight}" }
///   credit = { weight = "{weight}" }
///   [family.reservation]                        # of who holds a reserved part, by policy
///   sedf   = { slice = "{slice}", period = "{period}", extra = false }
///   credit = { weight = 65535, cap = "{part}" }
///
/// An `[[axis]]` varies them as it does scenarios: `set = { "family.sleepers" = "50%" }`.
///
/// The table has the places on the axes, cpus, policy and seed, and then: outcome (`done`, or
/// `refused` if what it asks for cannot be promised), vcpus, share_error_percent (mean over guests
/// of how far each is from what would have been fair, weighted max-min over all CPUs at every
/// instant; where domains are written, over those that are promised anything of how far from
/// that), worst_error_percent (of the worst of them), second_error_p95_percent (in single seconds,
/// but for the worst 5 %), moves_per_cpu_second (a vCPU goes on on another CPU),
/// switches_per_cpu_second, deadlines and misses (of reservations), waiting_percent (of the time
/// awake), wait_worst_ms, busy_percent (of all CPUs), events (that were simulated).
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
#[allow(rustdoc::broken_intra_doc_links, reason = "the brackets of its help are TOML's")]
pub(crate) struct Sweep {
    /// The scenario or family; `-` is standard input.
    #[arg(value_parser = file)]
    pub(crate) file: PathBuf,
    /// The policies, each perhaps with some of its parameters:
    /// `credit,sedf:slack=weighted` [default: the scenario's own].
    #[arg(long, value_name = "NAME[:FIELD=VALUE],...", value_delimiter = ',')]
    pub(crate) policies: Vec<String>,
    /// Another first seed than the scenario's.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Other sizes of hosts than the family's.
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=CpuId::LIMIT as i64))]
    pub(crate) cpus: Vec<u16>,
    /// So many hosts of each size, or runs of each scenario, each with the next seed.
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) seeds: u64,
    /// Another length than the scenario's.
    #[arg(long, value_parser = span)]
    pub(crate) length: Option<Span>,
    /// Where the table goes, a line for each run. Until it is whole, what is done is in FILE.part.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: PathBuf,
    /// Where a page with plots goes: one file of HTML that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub(crate) page: Option<PathBuf>,
    /// Forget what FILE.part has, and begin anew.
    #[arg(long)]
    pub(crate) fresh: bool,
}

/// The allocation error test of Cherkasova, Gupta and Vahdat (2007, section 5.2): a domain that
/// never stops computing is limited to a share A of a CPU, next to Dom0 with 6 %, for 3 minutes at
/// each of 1, 2, ... 10, 20, ... 90 %. What it uses, U, is taken every second. The error is (U -
/// A)/A: positive where it had too much. (They define (A - U)/A, but report errors up to 370 %,
/// which only (U - A)/A can be.)
#[derive(Debug, Args)]
pub(crate) struct Alert {
    /// A policy to simulate, perhaps with some of its parameters: `sedf`, `credit:rules=xen-3.0.3`.
    /// Again for each more [default: SEDF and Credit as they were published, and edf].
    #[arg(long, value_name = "NAME[:FIELD=VALUE]")]
    pub(crate) policy: Vec<String>,
    /// A parameter of all these policies, or of the share: `period=10ms`. Again for each more.
    #[arg(long, value_name = "FIELD=VALUE")]
    pub(crate) set: Vec<String>,
    /// Turn one rule of each policy at a time, to show what each does to the error.
    #[arg(long, conflicts_with = "live")]
    pub(crate) ablate: bool,
    /// Three domains that never stop, limited to 66 % each, on two CPUs for ten minutes.
    #[arg(long, conflicts_with = "live")]
    pub(crate) smp: bool,
    /// On this machine instead: a process that never stops is limited in real ways. Needs root.
    #[arg(long)]
    pub(crate) live: bool,
    /// The ways of limiting to try live: slackline, deadline, quota-v1, quota-v2 [default: all that
    /// this machine has].
    #[arg(long, value_name = "WAY,WAY", value_delimiter = ',', requires = "live")]
    pub(crate) limiter: Vec<String>,
    /// A command that limits a process, tried live as well: `cpulimit -p {pid} -l {percent}`.
    #[arg(long, value_name = "COMMAND", requires = "live")]
    pub(crate) limiter_command: Vec<String>,
    /// The CPU on which the process is limited live [default: the last one].
    #[arg(long, value_name = "N", requires = "live")]
    pub(crate) cpu: Option<usize>,
    /// The shares to test, in percent of a CPU [default: 1 to 10 and 20 to 90].
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',')]
    pub(crate) targets: Vec<String>,
    /// How long each share is tested [default: 3min; 10min with --smp].
    #[arg(long, value_parser = span)]
    pub(crate) length: Option<Span>,
    /// How many times everything is simulated, each with its own seed [default: 10].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: Option<u64>,
    /// Less of everything: 20 seconds a share and 3 seeds; live 3 seconds and fewer shares.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write everything as one page with figures.
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Write every second as a line.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Print the numbers as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The commit of this program, for the foot of the report.
    #[arg(long, value_name = "ID")]
    pub(crate) commit: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The scenario; `-` is standard input.
    #[arg(value_parser = file)]
    pub(crate) file: PathBuf,
    /// Print what was found as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// A trace that was saved with --save; `-` is standard input.
    #[arg(value_parser = file)]
    pub(crate) file: PathBuf,
    /// From when.
    #[arg(long, value_parser = span, default_value = "0s")]
    pub(crate) from: Span,
    /// For how long.
    #[arg(long, value_parser = span, default_value = "100ms")]
    pub(crate) r#for: Span,
    /// How many columns the picture may have [default: those of the terminal, or 100].
    #[arg(long)]
    pub(crate) width: Option<usize>,
    /// Plain characters only.
    #[arg(long)]
    pub(crate) ascii: bool,
    /// Lines to search in, instead of a picture; with --json as JSON.
    #[arg(long, conflicts_with = "ascii")]
    pub(crate) list: bool,
    /// The run and block times of one vCPU over the whole trace, for a `replay` workload.
    #[arg(long, value_name = "VCPU", conflicts_with_all = ["list", "ascii"])]
    pub(crate) runs: Option<String>,
    /// The table of the whole trace, instead of a picture.
    #[arg(long, conflicts_with_all = ["list", "ascii", "runs"])]
    pub(crate) table: bool,
    /// That table, or the list, as JSON.
    #[arg(long, conflicts_with_all = ["ascii", "runs"])]
    pub(crate) json: bool,
    /// The table with XenMon's metrics of each domain.
    #[arg(long, conflicts_with_all = ["list", "ascii", "runs"])]
    pub(crate) xenmon: bool,
    /// Save the trace for the Perfetto UI.
    #[arg(long, value_name = "FILE")]
    pub(crate) perfetto: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// A trace that was saved with --save; `-` is standard input.
    #[arg(value_parser = file)]
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct PaperArgs {
    #[command(subcommand)]
    pub(crate) command: PaperCommand,
    /// The folder that has a folder for each paper.
    #[arg(long, global = true, value_name = "FOLDER", default_value = "papers")]
    pub(crate) papers: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PaperCommand {
    /// The papers, their experiments, and what came of these.
    List,
    /// Run experiments, compare, and write the results into the paper's folder.
    Run(PaperRun),
    /// Find the costs that a paper does not give, from its calibration rows alone.
    Calibrate {
        /// The paper.
        paper: String,
    },
    /// One page with each figure, ours and theirs, from the results as they are.
    Report(PaperReport),
}

#[derive(Debug, Args)]
pub(crate) struct PaperRun {
    /// The paper.
    pub(crate) paper: String,
    /// Its experiments, or figures of them [default: all but `sensitivity`].
    pub(crate) experiments: Vec<String>,
    /// Another number of seeds than the experiments'.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: Option<u64>,
    /// Fewer points and shorter runs, where an experiment has such a form.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write no results.
    #[arg(long = "no-results", action = clap::ArgAction::SetFalse)]
    pub(crate) keep: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PaperReport {
    /// The paper [default: all].
    pub(crate) paper: Option<String>,
    /// The page.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Print the findings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Give back the threads that a killed run left stopped, boosted or pinned.
    #[arg(long)]
    pub(crate) free: bool,
    /// Look through the ledger in this folder instead, whether a daemon has it or not.
    #[arg(long, value_name = "FOLDER", conflicts_with = "free")]
    #[arg(num_args = 0..=1, default_missing_value = slackline_daemon::ledger::FOLDER)]
    pub(crate) ledger: Option<PathBuf>,
    /// Set a damaged ledger aside, and build a new one of what is whole in it and in its backups.
    #[arg(long, requires = "ledger", conflicts_with = "json")]
    pub(crate) rebuild: bool,
}
