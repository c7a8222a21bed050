//! What is asked of the daemon, on the command line.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use slackline_control::place::Fit;
use slackline_control::{Length, Share};

use crate::parse::{share, span};

/// Where the daemon is, and how its answer is shown.
#[derive(Clone, Debug, Args)]
pub(crate) struct At {
    /// Where the daemon listens.
    #[arg(long, value_name = "PATH", default_value = slackline_control::SOCKET)]
    pub(crate) socket: PathBuf,
    /// Print the daemon's own answer, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Find {
    /// Only those whose name or binding has this in it.
    pub(crate) text: Option<String>,
    #[command(flatten)]
    pub(crate) at: At,
}

/// How much CPU time.
#[derive(Debug, Args)]
pub(crate) struct HowMuch {
    /// So much CPU time for each vCPU in every period.
    #[arg(long, value_name = "TIME", value_parser = length)]
    pub(crate) slice: Option<Length>,
    /// The period [default: 10ms, or as it was].
    #[arg(long, value_name = "TIME", value_parser = length)]
    pub(crate) period: Option<Length>,
    /// So much for all vCPUs together: `30%` of a CPU, or `1.5` CPUs.
    #[arg(long, value_name = "SHARE", value_parser = amount, conflicts_with = "slice")]
    pub(crate) cpu: Option<Share>,
    /// For how many vCPUs [default: as many as the machine has, or as it was].
    #[arg(long, value_name = "N")]
    pub(crate) vcpus: Option<u16>,
    /// No more than that either, even where nobody else wants the CPU.
    #[arg(long)]
    pub(crate) exact: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Reserve {
    /// What the reservation is to be called; unless `--for` says more, also its machine's name.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) much: HowMuch,
    /// Which machine, as `slackline find` shows them: `libvirt:web`, `unit:db.service`, `pid:17`.
    #[arg(long, value_name = "BINDING")]
    pub(crate) r#for: Option<String>,
    /// Whose machine, by the number of the user: nobody else's is taken for it [default: whose it is
    /// that is here, or yours].
    #[arg(long, value_name = "UID")]
    pub(crate) user: Option<u32>,
    #[command(flatten)]
    pub(crate) at: At,
}

#[derive(Debug, Args)]
pub(crate) struct Place {
    /// What the reservation is to be called, on whichever host takes it.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) much: HowMuch,
    /// Which machine: it may come when it is known where it has room.
    #[arg(long, value_name = "BINDING")]
    pub(crate) r#for: Option<String>,
    /// Where a daemon listens that may take it; once for each host.
    #[arg(long = "host", value_name = "PATH", required_unless_present = "hosts")]
    pub(crate) host: Vec<PathBuf>,
    /// A file of such places, one a line; a line that begins with # is none.
    #[arg(long, value_name = "FILE")]
    pub(crate) hosts: Option<PathBuf>,
    /// Which of the hosts that have room.
    #[arg(long, value_enum, default_value_t = By::First)]
    pub(crate) by: By,
    /// Print the host and the daemon's own answer, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which of the hosts that have room.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum By {
    /// The first, as they are named
    First,
    /// The one that has least left afterwards
    Best,
    /// The one that has most left afterwards
    Worst,
}

impl From<By> for Fit {
    fn from(by: By) -> Fit {
        match by {
            By::First => Fit::First,
            By::Best => Fit::Best,
            By::Worst => Fit::Worst,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Change {
    /// Which reservation.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) much: HowMuch,
    /// Let it have what nobody claims as well.
    #[arg(long, conflicts_with = "exact")]
    pub(crate) at_least: bool,
    /// Only if this is still its revision, as `list` shows it.
    #[arg(long, value_name = "N")]
    pub(crate) if_revision: Option<u64>,
    #[command(flatten)]
    pub(crate) at: At,
}

#[derive(Debug, Args)]
pub(crate) struct Pause {
    /// Which reservation.
    pub(crate) name: String,
    /// Do not ask.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Only if this is still its revision, as `list` shows it.
    #[arg(long, value_name = "N")]
    pub(crate) if_revision: Option<u64>,
    #[command(flatten)]
    pub(crate) at: At,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    /// Which reservation.
    pub(crate) name: String,
    /// Only if this is still its revision, as `list` shows it.
    #[arg(long, value_name = "N")]
    pub(crate) if_revision: Option<u64>,
    #[command(flatten)]
    pub(crate) at: At,
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Only this reservation.
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) at: At,
}

#[derive(Debug, Args)]
pub(crate) struct Room {
    /// For this period.
    #[arg(long, value_name = "TIME", value_parser = length, default_value = "10ms")]
    pub(crate) period: Length,
    #[command(flatten)]
    pub(crate) at: At,
}

#[derive(Debug, Args)]
pub(crate) struct Log {
    /// Only of this reservation.
    pub(crate) name: Option<String>,
    /// The last so many.
    #[arg(long, value_name = "N", default_value = "20")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=500))]
    pub(crate) last: u16,
    #[command(flatten)]
    pub(crate) at: At,
}

fn length(text: &str) -> Result<Length, String> {
    span(text).map(Length)
}

fn amount(text: &str) -> Result<Share, String> {
    share(text).map(Share)
}
