//! What is asked of the daemon, on the command line.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use slackline_control::client::Remote;
use slackline_control::place::Fit;
use slackline_control::{Length, Phase, Role, Share, Wanted};

use crate::parse::{share, span};

/// Where the daemon is, and how its answer is shown.
#[derive(Clone, Debug, Args)]
pub(crate) struct At {
    /// Where the daemon listens.
    #[arg(long, value_name = "PATH", default_value = slackline_control::SOCKET)]
    pub(crate) socket: PathBuf,
    /// A daemon on another machine, as `https://NAME:PORT`.
    #[arg(long, value_name = "URL", env = "SLACKLINE_HOST", hide_env_values = true)]
    #[arg(conflicts_with = "socket")]
    pub(crate) host: Option<String>,
    #[command(flatten)]
    pub(crate) trust: Trust,
    /// Print the daemon's own answer, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Whom we trust on other machines, and who we are to them.
#[derive(Clone, Debug, Args)]
pub(crate) struct Trust {
    /// With --host: who signed that one's certificate, as PEM.
    #[arg(long, value_name = "FILE", env = "SLACKLINE_CA", hide_env_values = true)]
    pub(crate) ca: Option<PathBuf>,
    /// With --host: a file that has our token, for its owner alone.
    #[arg(long, value_name = "FILE", env = "SLACKLINE_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<PathBuf>,
    /// With --host: our certificate, as PEM.
    #[arg(long, value_name = "FILE", env = "SLACKLINE_CERTIFICATE", hide_env_values = true)]
    #[arg(requires = "client_key", conflicts_with = "token")]
    pub(crate) client_certificate: Option<PathBuf>,
    /// With --host: its key, as PEM, in a file for its owner alone.
    #[arg(long, value_name = "FILE", env = "SLACKLINE_KEY", hide_env_values = true)]
    pub(crate) client_key: Option<PathBuf>,
}

impl Trust {
    /// A daemon at such an `https://NAME:PORT`.
    pub(crate) fn at(&self, url: &str) -> Remote {
        let certificate = self.client_certificate.clone().zip(self.client_key.clone());
        let (ca, token) = (self.ca.clone(), self.token.clone());
        Remote { url: url.into(), ca, token, certificate }
    }
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
    /// So much for all vCPUs together, who wants more having what others leave: `30%` of a CPU, or
    /// `1.5` CPUs.
    #[arg(long, value_name = "SHARE", value_parser = amount, conflicts_with = "slice")]
    pub(crate) cpu: Option<Share>,
    /// For how many vCPUs [default: as many as the machine has, or as it was].
    #[arg(long, value_name = "N")]
    pub(crate) vcpus: Option<u16>,
    /// No more than that either, even where nobody else wants the CPU.
    #[arg(long)]
    pub(crate) exact: bool,
    /// Begin periods whenever the clock on the wall shows whole periods and this: with one phase
    /// and period, on all hosts at once; `none` is anywhere [default: none, or as it was].
    #[arg(long, value_name = "TIME", value_parser = phase)]
    pub(crate) phase: Option<Phase>,
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
    /// Whose machine, by the number of the user: nobody else's is taken for it [default: whose it
    /// is that is here, or yours].
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
    /// Where a daemon listens that may take it, its socket or `https://NAME:PORT`; once for each.
    #[arg(long = "host", value_name = "PATH|URL", required_unless_present = "hosts")]
    pub(crate) host: Vec<String>,
    /// A file of such places, one a line; a line that begins with # is none.
    #[arg(long, value_name = "FILE")]
    pub(crate) hosts: Option<PathBuf>,
    /// Which of the hosts that have room.
    #[arg(long, value_enum, default_value_t = By::First)]
    pub(crate) by: By,
    #[command(flatten)]
    pub(crate) trust: Trust,
    /// Print the host and the daemon's own answer, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Gang {
    /// What the gang is: TOML, as `slackline help service` shows it.
    pub(crate) file: PathBuf,
    /// Stay, and tell the others when a member is lost; ends with the gang, or by Ctrl-C.
    #[arg(long)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) trust: Trust,
    /// Print when it begins and the daemons' own answers, as JSON.
    #[arg(long, conflicts_with = "watch")]
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

impl HowMuch {
    /// The same as it is asked of a daemon.
    pub(crate) fn wanted(&self, binding: Option<&String>, user: Option<u32>) -> Wanted {
        let HowMuch { slice, period, cpu, vcpus, exact, phase } = *self;
        let (binding, phase) = (binding.cloned(), phase.and_then(|phase| phase.0).map(Length));
        Wanted { slice, period, cpu, exact, phase, vcpus, binding, user }
    }
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

#[derive(Debug, Args)]
pub(crate) struct AccessArgs {
    #[command(subcommand)]
    pub(crate) what: AccessCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AccessCommand {
    /// Show of whom something is said.
    List {
        #[command(flatten)]
        at: At,
    },
    /// Say what a user may do, instead of what his groups let him. Who is in neither of the groups
    /// stays a stranger.
    Add(Add),
    /// Make tenants of members of the group slackline without a grant, for a ledger that an older
    /// version made.
    Migrate {
        #[command(flatten)]
        at: At,
    },
    /// Say nothing of a user any more: he may do what his groups let him.
    Revoke {
        /// The user, by number, or the name of who comes from elsewhere.
        #[arg(value_name = "WHOM")]
        whom: String,
        #[command(flatten)]
        at: At,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Add {
    /// The user, by number; or a name for who comes from another machine: with a token that is
    /// printed, this once, or with his certificate.
    #[arg(value_name = "WHOM")]
    pub(crate) whom: String,
    /// What he may do: viewer, tenant, operator or administrator.
    #[arg(long, value_parser = role)]
    pub(crate) role: Role,
    /// How much all of his reservations may have together: `50%` of a CPU, or `1.5` CPUs.
    #[arg(long, value_name = "SHARE", value_parser = amount)]
    pub(crate) cpu: Option<Share>,
    /// How many reservations he may have.
    #[arg(long, value_name = "N")]
    pub(crate) machines: Option<u16>,
    /// The users whose machines he may have besides his own, by number.
    #[arg(long, value_name = "UID,UID", value_delimiter = ',')]
    pub(crate) users: Vec<u32>,
    /// The certificate of who comes from another machine, as PEM.
    #[arg(long, value_name = "FILE")]
    pub(crate) certificate: Option<PathBuf>,
    /// For so many days [default: for ever].
    #[arg(long, value_name = "N")]
    pub(crate) days: Option<u32>,
    #[command(flatten)]
    pub(crate) at: At,
}

fn role(text: &str) -> Result<Role, String> {
    let role = Role::ALL.into_iter().find(|role| role.word() == text);
    role.ok_or_else(|| "a role is viewer, tenant, operator or administrator".into())
}

fn length(text: &str) -> Result<Length, String> {
    span(text).map(Length)
}

fn phase(text: &str) -> Result<Phase, String> {
    if text == "none" { Ok(Phase(None)) } else { span(text).map(|phase| Phase(Some(phase))) }
}

fn amount(text: &str) -> Result<Share, String> {
    share(text).map(Share)
}
