//! Command `slackline hook`, which libvirt runs when a guest starts.

use std::io::{Read, Write, stdin};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use slackline_control::client::{Client, ClientError};
use slackline_control::{Change, Kind, Phase, Problem, Reservation, ReservationParameters};
use slackline_daemon::front::give_up_rights;
use slackline_daemon::hook::{self, Metadata};
use slackline_units::Span;

use crate::parse::span;
use crate::terminal;

/// Script that libvirt runs when a guest starts. It prevents the start only if the guest's metadata
/// requires a reservation and this program reports that the guest has none. If this program is
/// missing, the guest starts.
const SCRIPT: &str = "\
#!/bin/sh
# When a libvirt guest starts, reserves the CPU time that its metadata requests. Written by
# `slackline hook libvirt --script`; install as /etc/libvirt/hooks/qemu.d/slackline.
# Exit code 1 prevents the start of a guest that requires a reservation and has none.
case \"$2 $3\" in
\"start begin\" | \"started begin\") ;;
*) exit 0 ;;
esac
PROGRAM hook libvirt --socket SOCKET -- \"$1\" \"$2\" \"$3\"
[ $? -ne 1 ]
";

#[derive(Debug, Args)]
#[command(after_help = crate::notes::notes("hook"))]
pub(crate) struct Hook {
    #[command(subcommand)]
    of: HookCommand,
}

#[derive(Debug, Subcommand)]
enum HookCommand {
    /// Make the reservation that a guest's metadata requests; read the domain XML from standard
    /// input.
    Libvirt(Libvirt),
}

#[derive(Debug, Args)]
struct Libvirt {
    /// Name of the guest.
    #[arg(required_unless_present = "script")]
    guest: Option<String>,
    /// Operation of libvirt; all but `start` and `started` are ignored.
    operation: Option<String>,
    /// Phase of the operation; all but `begin` are ignored.
    part: Option<String>,
    /// Unix socket of the daemon.
    #[arg(long, value_name = "PATH", default_value = slackline_control::SOCKET)]
    socket: PathBuf,
    /// Time limit on each answer of the daemon.
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "100ms")]
    within: Span,
    /// Print the hook script for libvirt.
    #[arg(long)]
    script: bool,
}

/// Makes the reservation that a guest's metadata requests. Returns failure only if the guest must
/// not start.
pub(crate) fn hook(args: &Hook) -> ExitCode {
    let HookCommand::Libvirt(args) = &args.of;
    if args.script {
        let program = std::env::current_exe().unwrap_or_else(|_| "slackline".into());
        let quoted = |path: &std::path::Path| format!("'{}'", path.display());
        let script = SCRIPT.replace("PROGRAM", &quoted(&program));
        let script = script.replace("SOCKET", &quoted(&args.socket));
        return match terminal::print(&script) {
            Ok(()) => ExitCode::SUCCESS,
            Err(problem) => problem.exit_code(),
        };
    }
    let starts = match (args.operation.as_deref(), args.part.as_deref()) {
        (Some("start"), Some("begin")) => true,
        (Some("started"), Some("begin")) => false,
        _ => return ExitCode::SUCCESS,
    };
    let Err(refused) = reserve(args) else { return ExitCode::SUCCESS };
    let guest = args.guest.as_deref().unwrap_or_default().escape_debug();
    // Errors go to libvirt's journal. A failure to write there does not prevent the start.
    let _ = writeln!(std::io::stderr(), "slackline: cannot reserve for {guest}: {}", refused.why);
    // With `started` the guest already runs. It is not ended, so the hook does not fail.
    if starts && refused.is_required { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Reason why a guest has no reservation, with a flag that is true if the guest must not start
/// without one.
struct ReservationRefusal {
    why: String,
    is_required: bool,
}

/// Reads the domain XML of the guest, and makes the reservation that the guest's metadata requests.
fn reserve(args: &Libvirt) -> Result<(), ReservationRefusal> {
    let not_ours = |why: String| ReservationRefusal { why, is_required: false };
    // The connection is opened with full privileges. The metadata is parsed without privileges.
    let client = Client::connect(&args.socket);
    let own = format!("uid {}", rustix::process::geteuid().as_raw());
    give_up_rights().map_err(|error| not_ours(format!("cannot drop privileges: {error}")))?;
    let mut xml = Vec::new();
    let most = u64::try_from(hook::LONGEST_SEARCHED).unwrap_or(u64::MAX);
    let read = stdin().take(most).read_to_end(&mut xml);
    read.map_err(|error| not_ours(format!("cannot read the domain XML: {error}")))?;
    let found = hook::read(&xml);
    let found = found
        .map_err(|bad| ReservationRefusal { why: bad.to_string(), is_required: bad.is_required })?;
    let Some(metadata) = found else { return Ok(()) };
    let within = std::time::Duration::from_nanos(args.within.ns());
    let asked = client.and_then(|client| ask(&mut client.within(within), &metadata, &own));
    let asked = asked.map(|made| {
        if made.name != metadata.name {
            let (name, made) = (&metadata.name, &made.name);
            let says = format!("slackline: another user has the name {name}: reserved as {made}");
            let _ = writeln!(std::io::stderr(), "{says}");
        }
    });
    asked.map_err(|error| {
        let hint = match &error {
            ClientError::Refused(problem) => problem.hint.clone(),
            _ => None,
        };
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        ReservationRefusal { why: format!("{error}{hint}"), is_required: metadata.is_required }
    })
}

/// Requests to the daemon that the hook makes.
trait Reservations {
    fn reserve(
        &mut self,
        name: &str,
        wanted: &ReservationParameters,
    ) -> Result<Reservation, ClientError>;
    fn show(&mut self, name: &str) -> Result<Reservation, ClientError>;
    fn change(
        &mut self,
        name: &str,
        change: &Change,
        revision: u64,
    ) -> Result<Reservation, ClientError>;
}

impl Reservations for Client {
    fn reserve(
        &mut self,
        name: &str,
        wanted: &ReservationParameters,
    ) -> Result<Reservation, ClientError> {
        Client::reserve(self, name, wanted).map(|(made, _)| made)
    }

    fn show(&mut self, name: &str) -> Result<Reservation, ClientError> {
        Client::show(self, name).map(|(shown, _)| shown)
    }

    fn change(
        &mut self,
        name: &str,
        change: &Change,
        revision: u64,
    ) -> Result<Reservation, ClientError> {
        Client::change(self, name, change, Some(revision)).map(|(changed, _)| changed)
    }
}

/// Makes the reservation that a guest's metadata requests. If another user has a reservation with
/// the requested name, the guest's reservation gets the name that [`hook::other_name`] returns.
/// Otherwise that user could prevent the guest from starting.
fn ask(
    client: &mut impl Reservations,
    metadata: &Metadata,
    own: &str,
) -> Result<Reservation, ClientError> {
    let Metadata { name, wanted, .. } = metadata;
    let problem = match ask_as(client, (name, wanted), own)? {
        AskedName::Done(reservation) => return Ok(*reservation),
        AskedName::Taken(problem) => problem,
    };
    match ask_as(client, (&hook::other_name(name), wanted), own) {
        Ok(AskedName::Done(reservation)) => Ok(*reservation),
        _ => Err(ClientError::Refused(problem)),
    }
}

/// Result of a request for a reservation with a certain name.
enum AskedName {
    Done(Box<Reservation>),
    /// The name belongs to another user, or the guest has a reservation with another name.
    Taken(Box<Problem>),
}

/// Makes a reservation. If the reservation exists for the same guest and belongs to the user `own`,
/// changes it to the wanted parameters.
fn ask_as(
    client: &mut impl Reservations,
    (name, wanted): (&str, &ReservationParameters),
    own: &str,
) -> Result<AskedName, ClientError> {
    let exists = match client.reserve(name, wanted) {
        Err(ClientError::Refused(problem)) if problem.kind == Kind::Exists => problem,
        made => return made.map(|made| AskedName::Done(Box::new(made))),
    };
    let there = match client.show(name) {
        Ok(there) if there.owner == own => there,
        _ => return Ok(AskedName::Taken(exists)),
    };
    if Some(&there.binding) != wanted.binding.as_ref() {
        return Err(ClientError::Refused(exists));
    }
    let change = Change {
        binding: None,
        slice: wanted.slice,
        period: wanted.period,
        cpu: wanted.cpu,
        exact: Some(wanted.exact),
        phase: Some(Phase(wanted.phase.map(|phase| phase.0))),
        vcpus: wanted.vcpus,
        until: None,
        enforce: wanted.enforce,
        why: None,
    };
    let changed = client.change(name, &change, there.revision);
    changed.map(|changed| AskedName::Done(Box::new(changed)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    /// Reservations by name, each with its owner and the VM to which it is bound.
    #[derive(Default)]
    struct FakeDaemon(BTreeMap<String, (String, String)>);

    impl FakeDaemon {
        fn with(all: &[(&str, &str, &str)]) -> FakeDaemon {
            let all = all.iter().map(|&(name, owner, binding)| {
                (name.to_owned(), (owner.to_owned(), binding.to_owned()))
            });
            FakeDaemon(all.collect())
        }

        fn names(&self) -> Vec<&str> {
            self.0.keys().map(String::as_str).collect()
        }
    }

    fn refused(kind: Kind) -> ClientError {
        ClientError::Refused(Box::new(Problem::new(kind, "no")))
    }

    impl Reservations for FakeDaemon {
        fn reserve(
            &mut self,
            name: &str,
            wanted: &ReservationParameters,
        ) -> Result<Reservation, ClientError> {
            let binding = wanted.binding.clone().unwrap();
            let is_taken = |(owner, of): &(String, String)| owner == "uid 0" && *of == binding;
            if self.0.contains_key(name) || self.0.values().any(is_taken) {
                return Err(refused(Kind::Exists));
            }
            self.0.insert(name.to_owned(), ("uid 0".to_owned(), binding));
            self.show(name)
        }

        fn show(&mut self, name: &str) -> Result<Reservation, ClientError> {
            let there = self.0.get(name).ok_or_else(|| refused(Kind::NoSuchReservation))?;
            let shown = json!({
                "name": name, "owner": there.0, "for": there.1, "user": 0, "slice": "1ms",
                "slice_ns": 1_000_000, "period": "10ms", "period_ns": 10_000_000, "exact": false,
                "vcpus": 1, "served": 0, "state": "waiting", "revision": 1,
            });
            Ok(serde_json::from_value(shown).unwrap())
        }

        fn change(&mut self, name: &str, _: &Change, _: u64) -> Result<Reservation, ClientError> {
            self.show(name)
        }
    }

    #[test]
    fn reservation_name_taken_by_another_user_gets_libvirt_suffix() {
        let wanted = ReservationParameters {
            binding: Some("libvirt:web".into()),
            ..ReservationParameters::default()
        };
        let metadata = Metadata { name: "web".into(), wanted, is_required: true };
        let asked = |daemon: &mut FakeDaemon| {
            let asked = ask(daemon, &metadata, "uid 0");
            asked.ok().map(|made| made.name)
        };
        let name = |name: &str| Some(name.to_owned());
        let of_tenant = ("web", "uid 5001", "qemu:nothing");
        let mut daemon = FakeDaemon::with(&[of_tenant]);
        // The guest keeps its reservation at its next start, even if its own name is free by then.
        for _ in 0..2 {
            assert_eq!(asked(&mut daemon), name("web.libvirt"));
        }
        assert_eq!(daemon.names(), ["web", "web.libvirt"]);
        daemon.0.remove("web");
        assert_eq!(asked(&mut daemon), name("web.libvirt"));
        assert_eq!(daemon.names(), ["web.libvirt"]);
        let mut free = FakeDaemon::default();
        for _ in 0..2 {
            assert_eq!(asked(&mut free), name("web"));
        }
        // A reservation of root for another VM does not change.
        let mut of_root = FakeDaemon::with(&[("web", "uid 0", "qemu:other")]);
        assert_eq!(asked(&mut of_root), None);
        assert_eq!(of_root.names(), ["web"]);
    }
}
