//! Options of `slackline fit`.

use std::path::PathBuf;

use clap::Args;
use slackline_units::{CpuShare, Span};

use crate::input::file;
use crate::parse::{share, span};

/// Find the smallest reservation with which a VM meets its deadlines
///
/// FILE is a task set (`slackline help tasks`) or a scenario. For a task set the answer comes with
/// a proof and a trace. The proof compares the demand of the tasks with the least supply of the
/// reservation. The trace is a simulated run in which a slightly smaller reservation misses a
/// deadline. For a VM of a scenario the simulator searches for the smallest slice with which the
/// claims of the scenario hold with each of the N seeds of --seeds. This slice is then tested with
/// N other seeds, from which the confidence of the answer is computed.
///
/// Without FILE, `fit` computes a reservation from --share and --delay by a formula. A VM with this
/// reservation never waits longer than the delay for CPU time.
///
/// Examples:
///   slackline fit tasks.toml
///   slackline fit tasks.toml --period 5ms --save miss.trace
///   slackline fit tasks.toml --share 30%
///   slackline fit tasks.toml --most-vms
///   slackline fit host.toml --vm web
///   slackline fit --share 20% --delay 15ms
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct FitArgs {
    /// Task set or scenario; `-` is standard input.
    #[arg(value_parser = file, required_unless_present = "delay")]
    pub(crate) file: Option<PathBuf>,
    /// Find the smallest slice for this period [default: half of the shortest task period].
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) period: Option<Span>,
    /// Find the largest period, in steps of --step, for this share of a CPU, e.g. `30%`.
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "period")]
    pub(crate) share: Option<CpuShare>,
    /// Longest wait for CPU time that is allowed; needs --share, and no FILE.
    #[arg(long, value_name = "TIME", value_parser = span)]
    #[arg(requires = "share", conflicts_with_all = ["file", "period"])]
    pub(crate) delay: Option<Span>,
    /// Find the period with which the largest number of equal VMs fits on a CPU.
    #[arg(long, conflicts_with_all = ["period", "share", "delay"])]
    pub(crate) most_vms: bool,
    /// Step between the slices (with --share: periods) that are tried [default: 1us; for a
    /// scenario 1 % of the period].
    #[arg(long, value_name = "TIME", value_parser = span, conflicts_with = "delay")]
    pub(crate) step: Option<Span>,
    /// Part of each CPU that is never reserved, e.g. `10%` [default: 5%; a scenario states it].
    #[arg(long, value_name = "SHARE", value_parser = reserve)]
    pub(crate) reserve: Option<CpuShare>,
    /// VM of the scenario, with all its copies [default: its only VM].
    #[arg(long, value_name = "NAME", conflicts_with = "delay")]
    pub(crate) vm: Option<String>,
    /// Number of seeds with which a slice must pass all claims of a scenario [default: 60].
    #[arg(long, value_name = "N", conflicts_with = "delay")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) seeds: Option<u64>,
    /// Print all points of the proof.
    #[arg(long)]
    pub(crate) proof: bool,
    /// Save the trace of the run that misses a deadline.
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Save the scenario of the run that misses a deadline.
    #[arg(long, value_name = "FILE")]
    pub(crate) save_scenario: Option<PathBuf>,
    /// Print the answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Part of a CPU that is never reserved if the user states no other part.
const RESERVE: CpuShare = CpuShare::from_ppm(50_000);

impl FitArgs {
    /// Returns the part of each CPU that is never reserved.
    pub(crate) fn reserve(&self) -> CpuShare {
        self.reserve.unwrap_or(RESERVE)
    }
}

/// Parses a share of a CPU, from zero to less than one CPU.
fn reserve(text: &str) -> Result<CpuShare, String> {
    let share = text.parse::<CpuShare>().map_err(|why| format!("{why}; write it as `5%`"))?;
    if share >= CpuShare::ONE {
        return Err("must be less than 100%; write it as `5%`".into());
    }
    Ok(share)
}
