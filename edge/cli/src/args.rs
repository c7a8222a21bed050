//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use slackline_units::Span;

/// Gives virtual machines CPU time: reserves it, shares it out, and proves that it was delivered.
#[derive(Debug, Parser)]
#[command(name = "slackline", version, disable_help_subcommand = true)]
#[command(after_help = "Exit codes: 0 done; 1 a claim failed; 2 bad input; 3 this host cannot; \
                        70 a bug of ours; 130 interrupted.")]
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
    /// Run a scenario under several policies, or simulated beside live, in one table.
    Compare(Compare),
    /// Read a scenario and try its admission; runs nothing.
    Check(Check),
    /// Draw a saved trace as a timeline.
    Show(Show),
    /// Be a workload: one of the programs of a scenario as a real process.
    Load(Load),
    /// Say what this machine allows, and what to do about what is missing.
    Doctor(Doctor),
    /// Teach a policy in a page; without a name, list them.
    Help {
        /// The policy.
        policy: Option<String>,
    },
    /// The keeper of a live run. Started by `run`, never by hand.
    #[command(hide = true)]
    Keep,
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
}

#[derive(Debug, Args)]
pub(crate) struct Sim {
    /// The scenario.
    pub(crate) file: PathBuf,
    /// Another policy than the scenario's.
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// Another seed than the scenario's.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Another length than the scenario's.
    #[arg(long, value_parser = span)]
    pub(crate) length: Option<Span>,
    #[command(flatten)]
    pub(crate) keeping: Keeping,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The scenario.
    pub(crate) file: PathBuf,
    /// Another length than the scenario's.
    #[arg(long, value_parser = span)]
    pub(crate) length: Option<Span>,
    /// The CPUs of this machine to schedule, as many as the scenario has [default: the last ones].
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub(crate) cpus: Option<Vec<usize>>,
    #[command(flatten)]
    pub(crate) keeping: Keeping,
}

#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// The scenario.
    pub(crate) file: PathBuf,
    /// The policies to simulate [default: the scenario's own].
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    pub(crate) policies: Vec<String>,
    /// Run the scenario's own policy on this machine as well. Needs root.
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
    /// Print the numbers as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The scenario.
    pub(crate) file: PathBuf,
    /// Print what was found as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// A trace that was saved with --save.
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
    /// Lines to search in, instead of a picture.
    #[arg(long, conflicts_with = "ascii")]
    pub(crate) list: bool,
    /// The run and block times of one vCPU over the whole trace, for a `replay` workload.
    #[arg(long, value_name = "VCPU", conflicts_with_all = ["list", "ascii"])]
    pub(crate) runs: Option<String>,
    /// The table of the whole trace, instead of a picture.
    #[arg(long, conflicts_with_all = ["list", "ascii", "runs"])]
    pub(crate) table: bool,
    /// That table as JSON.
    #[arg(long, conflicts_with_all = ["list", "ascii", "runs"])]
    pub(crate) json: bool,
    /// Save the trace for the Perfetto UI.
    #[arg(long, value_name = "FILE")]
    pub(crate) perfetto: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Load {
    #[command(subcommand)]
    pub(crate) kind: Kind,
    /// End after so long.
    #[arg(long, global = true, value_parser = span)]
    pub(crate) length: Option<Span>,
    /// The seed of the draws.
    #[arg(long, global = true, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Whose draws to make: a domain and a vCPU by number.
    #[arg(long, global = true, value_parser = who, default_value = "0.0", hide = true)]
    pub(crate) who: (u32, u16),
    /// When to begin, in nanoseconds of the monotonic clock.
    #[arg(long, global = true, hide = true)]
    pub(crate) start: Option<u64>,
    /// Write finished jobs to standard output, as `run` wants them.
    #[arg(long, global = true, hide = true)]
    pub(crate) report_jobs: bool,
}

/// The programs. Lengths of time may be drawn: `4ms`, `uniform 1ms 3ms`, `exponential 4ms`.
#[derive(Debug, Subcommand)]
pub(crate) enum Kind {
    /// Use all the CPU time there is.
    Spin,
    /// Do a piece of work in every period.
    Periodic {
        /// How often work is released.
        #[arg(long)]
        period: String,
        /// How much CPU time each piece of work takes.
        #[arg(long)]
        work: String,
        /// How long after its release it must be done [default: the period].
        #[arg(long)]
        deadline: Option<String>,
    },
    /// Compute and sleep in turn.
    Interactive {
        /// How much CPU time to use at a time.
        #[arg(long)]
        compute: String,
        /// How long to sleep then.
        #[arg(long)]
        sleep: String,
    },
    /// Use a total of CPU time, then end.
    Batch {
        /// How much.
        #[arg(long)]
        total: String,
    },
    /// Run and block as recorded.
    Replay {
        /// A file of lines `run_ns,block_ns`, as `slackline show --runs` writes it.
        #[arg(long)]
        file: PathBuf,
    },
    /// What the workload of a scenario says, step by step, as `run` hands it over.
    #[command(hide = true)]
    Steps {
        /// The steps.
        steps: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Print the findings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Give back the threads that a killed run left stopped, boosted or pinned.
    #[arg(long)]
    pub(crate) free: bool,
}

fn span(text: &str) -> Result<Span, String> {
    text.parse::<Span>().map_err(|why| format!("{why}; write it as `4ms`, `250us` or `2s`"))
}

fn who(text: &str) -> Result<(u32, u16), String> {
    let parts = text
        .split_once('.')
        .and_then(|(domain, number)| Some((domain.parse().ok()?, number.parse().ok()?)));
    parts.ok_or_else(|| "write it as DOMAIN.NUMBER".into())
}
