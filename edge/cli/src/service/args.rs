//! Options of the commands that send requests to the daemon.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use slackline_control::client::Remote;
use slackline_control::place::Fit;
use slackline_control::{
    End, Length, Moment, Phase, RequestedMechanism, ReservationParameters, Role, Share,
};
use slackline_top::SortKey;
use slackline_units::{Span, WallTime};

use super::view::View;
use crate::enforce::Enforce;
use crate::input::file;
use crate::parse::{share, span};

/// Address of the daemon and output format.
#[derive(Clone, Debug, Args)]
pub(crate) struct DaemonArgs {
    /// Unix socket of the daemon.
    #[arg(long, value_name = "PATH", default_value = slackline_control::SOCKET)]
    pub(crate) socket: PathBuf,
    /// Ask the daemon of another host, e.g. `https://web:7443`.
    #[arg(long, value_name = "URL", env = "SLACKLINE_HOST", hide_env_values = true)]
    #[arg(conflicts_with = "socket")]
    pub(crate) host: Option<String>,
    #[command(flatten)]
    pub(crate) trust: Trust,
    /// Print the daemon's answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Trust and credentials for daemons on other hosts.
#[derive(Clone, Debug, Args)]
pub(crate) struct Trust {
    /// For `https` hosts: CA of the server's certificate, as PEM.
    #[arg(long, value_name = "FILE", env = "SLACKLINE_CA", hide_env_values = true)]
    pub(crate) ca: Option<PathBuf>,
    /// For `https` hosts: file with a token, mode 0600.
    #[arg(long, value_name = "FILE", env = "SLACKLINE_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<PathBuf>,
    /// For `https` hosts: client certificate, as PEM.
    #[arg(long, value_name = "FILE", env = "SLACKLINE_CERTIFICATE", hide_env_values = true)]
    #[arg(requires = "client_key", conflicts_with = "token")]
    pub(crate) client_certificate: Option<PathBuf>,
    /// For `https` hosts: private key of the client certificate, as PEM with mode 0600.
    #[arg(long, value_name = "FILE", env = "SLACKLINE_KEY", hide_env_values = true)]
    pub(crate) client_key: Option<PathBuf>,
}

impl Trust {
    /// Returns the daemon at `url`, which is `https://NAME:PORT`.
    pub(crate) fn at(&self, url: &str) -> Remote {
        let certificate = self.client_certificate.clone().zip(self.client_key.clone());
        let (ca, token) = (self.ca.clone(), self.token.clone());
        Remote { url: url.into(), ca, token, certificate }
    }
}

#[derive(Debug, Args)]
#[command(after_help = crate::notes::notes("find"))]
pub(crate) struct Find {
    /// Only list VMs whose name or binding contains this text.
    pub(crate) text: Option<String>,
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

/// Amount of CPU time and other parameters of a reservation.
#[derive(Debug, Args)]
pub(crate) struct AmountArgs {
    /// CPU time of each vCPU per period, e.g. `2ms`.
    #[arg(long, value_name = "TIME", value_parser = length)]
    pub(crate) slice: Option<Length>,
    /// Period of the reservation [default: 10ms; in `change`: unchanged].
    #[arg(long, value_name = "TIME", value_parser = length)]
    pub(crate) period: Option<Length>,
    /// Total CPU for all vCPUs of the VM, e.g. `30%` or `1.5`.
    #[arg(long, value_name = "SHARE", value_parser = amount, conflicts_with = "slice")]
    pub(crate) cpu: Option<Share>,
    /// Number of vCPUs [default: as many as the VM has; in `change`: unchanged].
    #[arg(long, value_name = "N")]
    pub(crate) vcpus: Option<u16>,
    /// Set a hard limit: no CPU time beyond the reservation.
    #[arg(long)]
    pub(crate) exact: bool,
    /// Also allow slack beyond the reservation [default: allowed; in `change`: unchanged].
    #[arg(long, conflicts_with = "exact")]
    pub(crate) at_least: bool,
    /// Start each period this time after a multiple of the period on the wall clock, or `none`
    /// [default: none; in `change`: unchanged].
    #[arg(long, value_name = "TIME", value_parser = phase)]
    pub(crate) phase: Option<Phase>,
    /// End of the reservation: `2h` from now, `2026-12-01T18:00` in UTC, or `none` [default: none;
    /// in `change`: unchanged].
    #[arg(long, value_name = "TIME", value_parser = until)]
    pub(crate) until: Option<End>,
    /// Mechanism: auto, dispatcher or deadline [default: the daemon's; in `change`: unchanged].
    #[arg(long, value_name = "NAME", value_parser = mechanism)]
    pub(crate) enforce: Option<RequestedMechanism>,
}

#[derive(Debug, Args)]
#[command(after_help = crate::notes::notes("reserve"))]
pub(crate) struct Reserve {
    /// Name of the reservation; without `--for`, also the name of its VM.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) much: AmountArgs,
    /// VM as `find` lists it, e.g. `libvirt:web`, `unit:db.service`, `pid:17`.
    #[arg(long, value_name = "BINDING")]
    pub(crate) r#for: Option<String>,
    /// Number of the user who must own the VM [default: owner of the VM found, or you].
    #[arg(long, value_name = "UID")]
    pub(crate) user: Option<u32>,
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
    /// Command to start and reserve for, after `--`. The reservation ends with the command.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["for", "host", "json"])]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = crate::notes::notes("page"))]
pub(crate) struct PageArgs {
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// Name of the reservation on the chosen host.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) much: AmountArgs,
    /// VM of the reservation. The VM may start after the host is chosen.
    #[arg(long, value_name = "BINDING")]
    pub(crate) r#for: Option<String>,
    /// Candidate host: socket of its daemon or `https://NAME:PORT`; repeatable.
    #[arg(long = "host", value_name = "PATH|URL", required_unless_present = "hosts")]
    pub(crate) host: Vec<String>,
    /// File with one candidate host per line; `#` begins a comment line.
    #[arg(long, value_name = "FILE")]
    pub(crate) hosts: Option<PathBuf>,
    /// Choice among the hosts with enough capacity.
    #[arg(long, value_enum, default_value_t = HostChoice::First)]
    pub(crate) by: HostChoice,
    #[command(flatten)]
    pub(crate) trust: Trust,
    /// Print the chosen host and its daemon's answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = crate::notes::notes("gang"))]
pub(crate) struct Gang {
    /// Gang file in TOML: see the example below.
    pub(crate) file: PathBuf,
    /// Keep running and report a lost member to the daemons of the other members.
    #[arg(long)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) trust: Trust,
    /// Print the gang's start time and each daemon's answer as JSON.
    #[arg(long, conflicts_with = "watch")]
    pub(crate) json: bool,
}

/// Choice among the hosts with enough capacity.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum HostChoice {
    /// First host in the given order
    First,
    /// Host with the least capacity left afterwards
    Best,
    /// Host with the most capacity left afterwards
    Worst,
}

impl AmountArgs {
    /// Returns the body of the request to reserve.
    pub(crate) fn wanted(
        &self,
        binding: Option<&String>,
        user: Option<u32>,
    ) -> ReservationParameters {
        let AmountArgs { slice, period, cpu, vcpus, exact, phase, until, enforce, .. } = *self;
        let (binding, phase) = (binding.cloned(), phase.and_then(|phase| phase.0).map(Length));
        let until = until.and_then(|until| until.0).map(Moment);
        ReservationParameters {
            slice,
            period,
            cpu,
            exact,
            phase,
            vcpus,
            binding,
            user,
            until,
            enforce,
        }
    }
}

impl From<HostChoice> for Fit {
    fn from(by: HostChoice) -> Fit {
        match by {
            HostChoice::First => Fit::First,
            HostChoice::Best => Fit::Best,
            HostChoice::Worst => Fit::Worst,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Change {
    /// Name of the reservation, or a pattern for several, e.g. `web-*`.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) much: AmountArgs,
    /// New binding of the reservation: another VM, or another name for its present VM.
    #[arg(long, value_name = "BINDING")]
    pub(crate) r#for: Option<String>,
    /// Do nothing unless N is the current revision of the reservation, as in `list`.
    #[arg(long, value_name = "N")]
    pub(crate) if_revision: Option<u64>,
    /// Reason for the change, which `log` shows.
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: Option<String>,
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Pause {
    /// Name of the reservation, or a pattern for several, e.g. `web-*`.
    pub(crate) name: String,
    /// Do not ask for confirmation.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Do nothing unless N is the current revision of the reservation, as in `list`.
    #[arg(long, value_name = "N")]
    pub(crate) if_revision: Option<u64>,
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct NamedArgs {
    /// Name of the reservation, or a pattern for several, e.g. `web-*`.
    pub(crate) name: String,
    /// Do nothing unless N is the current revision of the reservation, as in `list`.
    #[arg(long, value_name = "N")]
    pub(crate) if_revision: Option<u64>,
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

#[derive(Debug, Args)]
#[command(after_help = crate::notes::notes("apply"))]
pub(crate) struct Apply {
    /// File with a table for each reservation, as `list --toml` prints it; `-` is standard input.
    #[arg(value_parser = crate::input::file)]
    pub(crate) file: PathBuf,
    /// Also release reservations that the file does not list.
    #[arg(long)]
    pub(crate) prune: bool,
    /// Show the changes and make none.
    #[arg(long, conflicts_with = "canary")]
    pub(crate) dry_run: bool,
    /// Change one VM first. Change the other VMs only if the first VM behaves as predicted.
    #[arg(long)]
    pub(crate) canary: bool,
    /// With --canary: time for which the first VM is watched, from 1s to 10m.
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10s")]
    #[arg(requires = "canary")]
    pub(crate) watch: Span,
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

/// Undo your last `apply`, `change` or `release`
///
/// `undo` undoes all changes of your last command. If one of the changed reservations has changed
/// again since, `undo` is refused and undoes nothing. While `apply --canary` watches its first VM,
/// `undo` restores that VM and cancels the other changes of the file.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct UndoArgs {
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

#[derive(Debug, Args)]
#[command(after_help = crate::notes::notes("list"))]
pub(crate) struct List {
    /// Show this reservation only [default: all].
    pub(crate) name: Option<String>,
    /// Print a file for `slackline apply`.
    #[arg(long, conflicts_with_all = ["json", "csv", "columns"])]
    pub(crate) toml: bool,
    #[command(flatten)]
    pub(crate) view: View,
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SelectionArgs {
    /// Show this reservation only [default: all].
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

#[derive(Debug, Args)]
#[command(after_help = crate::notes::notes("room"))]
pub(crate) struct Room {
    /// Period of the reservation to admit.
    #[arg(long, value_name = "TIME", value_parser = length, default_value = "10ms")]
    pub(crate) period: Length,
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

#[derive(Debug, Args)]
#[command(after_help = crate::notes::notes("log"))]
pub(crate) struct Log {
    /// Show events of this reservation only [default: all].
    pub(crate) name: Option<String>,
    /// Number of latest events to show [default: 20; with --since: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) last: Option<u32>,
    /// Start of the list: a time ago, e.g. `2h` or `7d`, or a day or time in UTC, e.g. `2026-11-26`
    /// or `2026-11-26T18:00`.
    #[arg(long, value_name = "TIME|DAY", value_parser = since)]
    pub(crate) since: Option<Since>,
    #[command(flatten)]
    pub(crate) view: View,
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

#[derive(Debug, Args)]
#[command(after_help = crate::notes::notes("history"))]
pub(crate) struct History {
    /// Name of the reservation, which may have ended.
    pub(crate) name: String,
    /// Start of the history: a time ago, e.g. `7d`, or a day or time in UTC, e.g. `2026-11-26` or
    /// `2026-11-26T18:00`.
    #[arg(long, value_name = "TIME|DAY", value_parser = since, default_value = "24h")]
    pub(crate) since: Since,
    /// Time covered by each line.
    #[arg(long, value_enum, default_value_t = Step::Hour)]
    pub(crate) by: Step,
    #[command(flatten)]
    pub(crate) view: View,
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

/// Time covered by one line of the history: an hour or a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    Hour,
    Day,
}

/// Start of the interval that a command shows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Since {
    /// A date and time, in nanoseconds since 1970.
    At(u64),
    /// A length of time before now.
    Ago(slackline_units::Span),
}

#[derive(Debug, Args)]
#[command(after_help = crate::notes::notes("access"))]
pub(crate) struct AccessArgs {
    #[command(subcommand)]
    pub(crate) what: AccessCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AccessCommand {
    /// List all grants, with their limits.
    List {
        #[command(flatten)]
        at: DaemonArgs,
    },
    /// Add or replace the grant of a local user or a remote client.
    Add(Add),
    /// After an upgrade: give the role tenant to members of group slackline without a grant.
    Migrate {
        #[command(flatten)]
        at: DaemonArgs,
    },
    /// Remove a grant. A local user then has the role of their groups again.
    Revoke {
        /// Number of a local user, or name of a remote client.
        #[arg(value_name = "WHOM")]
        whom: String,
        #[command(flatten)]
        at: DaemonArgs,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Add {
    /// Number of a local user, or a name for a remote client, whose token is printed.
    #[arg(value_name = "WHOM")]
    pub(crate) whom: String,
    /// Role: viewer, tenant, operator or administrator. Replaces the role of the user's groups.
    #[arg(long, value_parser = role)]
    pub(crate) role: Role,
    /// Limit on the total CPU of the user's reservations, e.g. `50%` or `1.5` [default: none].
    #[arg(long, value_name = "SHARE", value_parser = amount)]
    pub(crate) cpu: Option<Share>,
    /// Limit on the number of the user's reservations [default: 1000].
    #[arg(long, value_name = "N")]
    pub(crate) machines: Option<u16>,
    /// Numbers of other users for whose VMs the user may reserve.
    #[arg(long, value_name = "UID,UID", value_delimiter = ',')]
    pub(crate) users: Vec<u32>,
    /// Certificate of a remote client as PEM [default: create a token].
    #[arg(long, value_name = "FILE")]
    pub(crate) certificate: Option<PathBuf>,
    /// Days until the role expires; the limits of the user stay [default: never].
    #[arg(long, value_name = "N")]
    pub(crate) days: Option<u32>,
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

/// Parses a start time: a length of time before now such as `10s`, or a date with an optional time
/// of day.
fn since(text: &str) -> Result<Since, String> {
    if is_dated(text) {
        return Ok(Since::At(moment(text)?.ns()));
    }
    let ago = span(text).map_err(|why| format!("{why}, or write a day such as `2026-11-26`"))?;
    Ok(Since::Ago(ago))
}

/// Parses the end of a reservation: a length of time from now, a date and time, or `none`.
fn until(text: &str) -> Result<End, String> {
    if text == "none" {
        return Ok(End(None));
    }
    if is_dated(text) {
        return Ok(End(Some(moment(text)?)));
    }
    let ahead = span(text).map_err(|why| format!("{why}, or a time as `2026-12-01T18:00`"))?;
    // Rounded up to a second, so that a short reservation does not end before it begins.
    let ns = crate::date::now().saturating_add(ahead.ns()).saturating_add(999_999_999);
    Ok(End(Some(WallTime::from_ns(ns))))
}

/// Returns true if a text begins like a date, with a year and a dash. Such a text is not a length
/// of time.
fn is_dated(text: &str) -> bool {
    text.get(..5).is_some_and(|year| year.ends_with('-'))
}

fn moment(text: &str) -> Result<WallTime, String> {
    text.parse().map_err(|why| format!("it {why}"))
}

fn role(text: &str) -> Result<Role, String> {
    let role = Role::ALL.into_iter().find(|role| role.word() == text);
    role.ok_or_else(|| "write viewer, tenant, operator or administrator".into())
}

/// Parses the mechanism of a reservation.
pub(crate) fn mechanism(text: &str) -> Result<RequestedMechanism, String> {
    // Suggests the nearest name if there is no such mechanism.
    text.parse::<Enforce>()?;
    text.parse()
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

/// Record which threads ran on the CPUs of this host, as a trace. Needs root.
///
/// The recording has all VMs that `slackline find` lists, and the names of all other threads that
/// ran on the same CPUs. The file is readable only by its owner. The recording ends with Ctrl-C or
/// after --length. If the recorder is killed or the disk is full, the written part remains.
///
/// --for takes the same bindings as `slackline reserve`. NAME=BINDING records the VM under the name
/// NAME. Each thread of a process, unit or cgroup counts as a vCPU, including threads that start
/// during the recording.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// File to write, for `slackline show` and `slackline why`.
    pub(crate) file: PathBuf,
    /// Length of the recording.
    #[arg(long, value_parser = span, default_value = "60s")]
    pub(crate) length: Span,
    /// VM, process, unit or cgroup to record, e.g. `qemu:web` or `web=unit:db.service`; repeatable.
    #[arg(long, value_name = "BINDING")]
    pub(crate) r#for: Vec<String>,
    /// Leave out names of VMs, processes, groups, users and the host.
    #[arg(long)]
    pub(crate) anonymise: bool,
    /// Instead of recording, save the last part of the daemon's recording, e.g. `30s`.
    #[arg(long, value_parser = span, value_name = "TIME")]
    #[arg(conflicts_with_all = ["length", "for"])]
    pub(crate) since: Option<Span>,
    /// Unix socket of the daemon, for --since.
    #[arg(long, value_name = "PATH", default_value = slackline_control::SOCKET)]
    pub(crate) socket: PathBuf,
}

/// Show what kept a VM from running: each culprit with its time.
///
/// Each nanosecond that a runnable vCPU did not run has one culprit, so the times of all culprits
/// add up to the waiting time. As a check, `why` also prints CPU ready: the time that the vCPU
/// spent on run queues by the kernel's count. Without a file and without --incident, `why` uses the
/// daemon's recording of the last minute.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Name of the VM, or of one of its vCPUs.
    pub(crate) name: String,
    /// Recording of `slackline record` [default: the daemon's last minute].
    #[arg(value_parser = file)]
    pub(crate) file: Option<PathBuf>,
    /// Explain the VM's incident with this number, as `slackline incidents` lists it.
    #[arg(long, value_name = "NUMBER", conflicts_with = "file")]
    pub(crate) incident: Option<u64>,
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

/// Show the CPU time of all VMs on a screen that is updated regularly.
///
/// Without a file, `top` asks the daemon for CPU time reserved and used, CPU ready and missed
/// deadlines. `top` also asks for the culprit of the selected VM's waiting time. With a file, `top`
/// plays a recording, an incident or any saved trace, with XenMon's columns for each vCPU.
///
/// Keys: `q` quits, `s` sorts by the next column, `/` shows only names that contain a text, arrows
/// select a row, Enter shows what kept the selected VM from running, Space pauses, `+` plays a
/// recording faster and `-` slower.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Recording, incident or trace to play [default: ask the daemon].
    #[arg(value_parser = file)]
    pub(crate) file: Option<PathBuf>,
    /// Time between two updates, from 200ms to 1min.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = span)]
    pub(crate) interval: Span,
    /// Column by which rows are sorted.
    #[arg(long, value_name = "COLUMN", default_value = "missed", value_parser = sort_key())]
    pub(crate) sort: SortKey,
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

fn sort_key() -> impl TypedValueParser<Value = SortKey> {
    PossibleValuesParser::new(SortKey::ALL.map(SortKey::word))
        .map(|word| SortKey::ALL.into_iter().find(|key| key.word() == word).unwrap_or_default())
}

/// List the recordings of missed deadlines that the daemon saved.
#[derive(Debug, Args)]
pub(crate) struct IncidentsArgs {
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}

/// Show the predictions of applied plans, and the values measured afterwards.
///
/// `slackline whatif --save PLAN` writes predictions into a plan. After `slackline apply PLAN` the
/// daemon measures the predicted values. It measures for as long as the recording lasted, but at
/// most 30 s.
#[derive(Debug, Args)]
pub(crate) struct PredictionsArgs {
    #[command(flatten)]
    pub(crate) at: DaemonArgs,
}
