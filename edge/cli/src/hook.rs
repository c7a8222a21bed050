//! Command `slackline hook`, which libvirt runs when a guest starts.

use std::io::{Read, Write, stdin};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use slackline_control::client::{Client, ClientError};
use slackline_control::{Change, Kind, Phase, Reservation};
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
    /// Reserve as a guest's metadata asks; read the domain XML from standard input.
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
/// without a reservation.
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
    asked.map(drop).map_err(|error| {
        let hint = match &error {
            ClientError::Refused(problem) => problem.hint.clone(),
            _ => None,
        };
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        ReservationRefusal { why: format!("{error}{hint}"), is_required: metadata.is_required }
    })
}

/// Makes the reservation that a guest's metadata requests. If the reservation exists and belongs to
/// the user `own`, changes it to what the metadata requests now.
fn ask(client: &mut Client, metadata: &Metadata, own: &str) -> Result<Reservation, ClientError> {
    let Metadata { name, wanted, .. } = metadata;
    let exists = match client.reserve(name, wanted) {
        Err(ClientError::Refused(problem)) if problem.kind == Kind::Exists => problem,
        made => return made.map(|(made, _)| made),
    };
    let (there, _) = client.show(name).map_err(|_| ClientError::Refused(exists.clone()))?;
    if Some(&there.binding) != wanted.binding.as_ref() || there.owner != own {
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
    client.change(name, &change, Some(there.revision)).map(|(changed, _)| changed)
}
