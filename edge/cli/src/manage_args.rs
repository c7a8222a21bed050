//! Command-line options of the command `manage`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use slackline_units::{CpuShare, Span};

use crate::input;
use crate::parse::span;
use crate::service::args::DaemonArgs;

/// Policies that a series of demand can be run under.
const POLICIES: [&str; 3] = ["edf", "sedf", "credit"];

/// Options of a simulation that a live manager does not have.
const SIMULATED: [&str; 8] =
    ["file", "rule", "window", "seeds", "noise", "policy", "limited", "csv"];

/// Arguments that choose a use of `manage` other than `--live`. The options of `--live` are
/// declared to conflict with these arguments. `requires = "live"` is not enough: `--live` conflicts
/// with these arguments, and clap ignores a missing requirement that conflicts with a given
/// argument.
const NOT_LIVE: [&str; 2] = ["file", "replay"];

/// Help of `--json`, which a simulation and a live manager have.
const JSON_HELP: &str = "Print JSON: the results of every rule; with --live the lines of --save";

/// Change reservations as demand changes, in a simulation or for a daemon
///
/// At the end of each round the manager proposes one change, and simulates the last rounds with and
/// without that change. The manager makes the change only if the simulation with the change is
/// better. If the next round is worse than predicted, the manager undoes the change.
///
/// With FILE, the manager is simulated and compared with other rules. FILE is a scenario or a
/// series of demand. A series is a CSV file whose first line names the VMs. Each other line has the
/// demand of a round in % of a CPU. In a series, an additional batch VM takes all slack.
///
/// With --live, the manager measures and predicts with the daemon. By default it only prints its
/// decisions. With --mode act it also makes the changes.
///
/// Examples:
///   slackline manage scenarios/demand/step-swap.csv
///   slackline manage --live --goals goals.toml
///   slackline manage --live --mode act --save rounds.jsonl
///   slackline manage --replay rounds.jsonl
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
#[command(mut_arg("socket", |socket| {
    let socket = socket.help("With --live: Unix socket of the daemon");
    socket.requires("live").conflicts_with_all(NOT_LIVE)
}))]
#[command(mut_arg("host", |host| host.help("With --live: daemon of another host")))]
#[command(mut_arg("json", |json| json.help(JSON_HELP)))]
pub(crate) struct Manage {
    /// Scenario (TOML) or series of demand (`*.csv`); `-` is a scenario on standard input.
    #[arg(value_name = "FILE", value_parser = input::file)]
    #[arg(required_unless_present_any = ["live", "replay"])]
    pub(crate) file: Option<PathBuf>,
    /// Goals and limits of VMs, in TOML [default: at most 0.1 % of periods missed].
    #[arg(long, value_name = "FILE", value_parser = input::file)]
    pub(crate) goals: Option<PathBuf>,
    /// Time between two decisions; with --live from 1s to 30s.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = span)]
    pub(crate) round: Span,
    /// Rule whose decisions are printed.
    #[arg(long, value_name = "RULE", default_value = "manager",
          value_parser = ["fixed", "oracle", "manager", "neon", "vpa", "proxmox"])]
    pub(crate) rule: String,
    /// Number of past rounds that a prediction simulates.
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) window: u64,
    /// Number of seeds. The table shows sums over all seeds.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) seeds: u64,
    /// With a series: largest random deviation of a job from the demand, in % of the demand.
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = noise)]
    pub(crate) noise: CpuShare,
    /// With a series: policy, one of edf, sedf and credit.
    #[arg(long, value_name = "POLICY", default_value = "edf", value_parser = POLICIES)]
    pub(crate) policy: String,
    /// With a series: make all shares hard limits.
    #[arg(long)]
    pub(crate) limited: bool,
    /// Write share, use, need and misses of each VM and round to a CSV file.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Manage the reservations of a daemon.
    #[arg(long, conflicts_with_all = SIMULATED)]
    pub(crate) live: bool,
    #[command(flatten)]
    pub(crate) at: LiveArgs,
    /// Repeat the decisions from a file of --save; a decision that differs is an error.
    #[arg(long, value_name = "FILE", value_parser = input::file, conflicts_with_all = SIMULATED)]
    #[arg(conflicts_with_all = ["live", "goals", "round", "json"])]
    pub(crate) replay: Option<PathBuf>,
}

/// Options of the live manager.
#[derive(Debug, Args)]
pub(crate) struct LiveArgs {
    /// With --live: observe, recommend (print decisions) or act (also make the changes).
    #[arg(long, value_enum, value_name = "MODE", default_value_t = Mode::Recommend)]
    #[arg(requires = "live", conflicts_with_all = NOT_LIVE, hide_possible_values = true)]
    pub(crate) mode: Mode,
    /// With --live: number of rounds [default: until Ctrl-C].
    #[arg(long, value_name = "N", requires = "live", conflicts_with_all = NOT_LIVE)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rounds: Option<u64>,
    /// With --live: write measurements and decisions to a file, one JSON object per line.
    #[arg(long, value_name = "FILE", requires = "live", conflicts_with_all = NOT_LIVE)]
    pub(crate) save: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// Actions that a live manager may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Prints only the measurements of each round.
    Observe,
    /// Prints decisions, with the commands that make the changes.
    Recommend,
    /// Makes the changes that the manager decides.
    Act,
}

impl Mode {
    /// Returns the word that users type.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Mode::Observe => "observe",
            Mode::Recommend => "recommend",
            Mode::Act => "act",
        }
    }
}

/// Parses the largest deviation of a job: a percentage, or a number from 0 to 1.
fn noise(text: &str) -> Result<CpuShare, String> {
    let text = text.trim_end();
    let text = text.strip_suffix("cpu").unwrap_or(text);
    let has_unit = text.ends_with('%');
    let whole = if has_unit { text.to_owned() } else { format!("{text}cpu") };
    let noise = whole.parse::<CpuShare>().map_err(|why| format!("{why}; write it as `10%`"))?;
    match noise > CpuShare::ONE && !has_unit {
        true => Err(format!("more than 1 needs a percent sign; write it as `{text}%`")),
        false => Ok(noise),
    }
}
