//! Command-line options of the command `manage`.

use std::path::PathBuf;

use clap::Args;
use slackline_units::{CpuShare, Span};

use crate::input;
use crate::parse::{share, span};

/// Policies that a series of demand can be run under.
const POLICIES: [&str; 3] = ["edf", "sedf", "credit"];

/// Simulate a manager that changes reservations, and compare it with other rules.
///
/// Use `manage` before you let a manager change reservations: FILE has the demand, and the output
/// every decision with its reason. At the end of each round the manager proposes one change,
/// simulates the last rounds again with it, and makes it only if the prediction is better.
///
/// FILE is a scenario, or a series of demand: a CSV file whose first line names the VMs, and whose
/// other lines have the demand of a round in % of a CPU. A batch VM takes all slack of a series.
#[derive(Debug, Args)]
pub(crate) struct Manage {
    /// Scenario (TOML) or series of demand (`*.csv`); `-` is a scenario on standard input.
    #[arg(value_name = "FILE", value_parser = input::file)]
    pub(crate) file: PathBuf,
    /// Goals and limits of VMs, in TOML [default: at most 0.1 % of periods missed].
    #[arg(long, value_name = "FILE")]
    pub(crate) goals: Option<PathBuf>,
    /// Rule whose decisions are printed.
    #[arg(long, value_name = "RULE", default_value = "manager",
          value_parser = ["fixed", "oracle", "manager", "neon", "vpa", "proxmox"])]
    pub(crate) rule: String,
    /// Time between two decisions.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = span)]
    pub(crate) round: Span,
    /// Number of rounds that a prediction simulates again.
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) window: u64,
    /// Number of seeds, of which the table has the sums.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: u64,
    /// Largest difference of a job of a series from the demand, in % of it.
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = share)]
    pub(crate) noise: CpuShare,
    /// Policy of a series: edf, sedf or credit.
    #[arg(long, value_name = "POLICY", default_value = "edf", value_parser = POLICIES)]
    pub(crate) policy: String,
    /// Make the shares of a series hard limits.
    #[arg(long)]
    pub(crate) limited: bool,
    /// Print JSON: decisions, rounds and scores of every rule.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write share, use, need and misses of each VM and round to a CSV file.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
}
