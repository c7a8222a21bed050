//! Help pages about the daemon. The lists of commands, states and refusals come from the
//! code.

use slackline_control::{Kind, NAME, State};

use crate::entries::{entries, wrapped};

const INTRO: &str = "\
The daemon (`slackline serve`) keeps CPU reservations for the VMs of a host.

Use the daemon to guarantee CPU time to VMs that come and go. A VM here is a
libvirt guest, a VM of another monitor (QEMU, Firecracker, ...), a container, a
systemd unit, a cgroup or any process. `slackline find` lists these VMs.

  slackline serve                                    # as root, or by systemd
  slackline find                                     # list VMs
  slackline reserve web --slice 2ms --period 10ms    # 20 % of a CPU for each vCPU of `web`
  slackline reserve db --cpu 1.5 --for libvirt:db-7  # 1.5 CPUs for all vCPUs of the guest
  slackline change web --slice 3ms
  slackline list
  slackline release web
";

const RULES: &str = "
Rules:
  - A reservation gives each vCPU of a VM its slice of CPU time in every period.
  - A reservation outlives its VM and the daemon. When a VM of the same name
    starts again, the reservation applies to that VM.
  - The capacity of a reservation stays reserved while its VM is absent.
  - While no daemon runs, VMs run as ordinary threads and no reservation is
    enforced.
  - The daemon undoes changes that a VM makes to its own threads. A change by an
    administrator or by libvirt stays, and the reservation is then `contested`.
  - The daemon also accepts its commands as HTTP requests on its Unix socket.
    /v1/openapi.json describes the requests:
    curl --unix-socket /run/slackline/slackline.sock http://slackline/v1/reservations

Access:
  - Root and members of the group slackline-admin may do everything.
  - Members of the group slackline are tenants. They make and change their own
    reservations, for VMs of their own user. They see VMs of other users as
    `another VM`, and cannot find out the names of others by trying names.
  - All other local users may do nothing.
  - `slackline access add` gives a user another role, limits, or the right to
    reserve for VMs of other users.
  - A slice of more than 1 s may be reserved only by administrators.

Limits:
  - The daemon schedules by `edf` and ignores guest agents (`slackline help
    agent`).
  - A reservation is for the VM of one user. Another user's VM of the same name
    does not get the reservation.

See also: `slackline help reserve`, `apply`, `gang`, `history`, `serve`, `hook`,
`access`, `log`, `refusals`, `edf`, and the chapter \"Reserve CPU for VMs\" of the
book.
";

/// Returns the page about the daemon.
pub(super) fn service(commands: &[(String, String)]) -> String {
    let mut text = INTRO.to_owned();
    text += "\nCommands (`slackline help COMMAND` lists the options, and the columns of tables):\n";
    let verbs = commands.iter().filter(|(name, _)| VERBS.contains(&name.as_str()));
    entries(&mut text, verbs.map(|(name, says)| (name.as_str(), says.as_str())));
    text.push('\n');
    wrapped(&mut text, 0, &format!("Names of reservations: {NAME}."));
    text += "\nStates of a reservation:\n";
    entries(&mut text, State::ALL.iter().map(|(state, says)| (state.word(), *says)));
    text + RULES
}

const REFUSALS: &str = "\
A refusal is the daemon's answer to a request that it does not carry out.

Use this page to handle refusals in a program. In HTTP, the field `type` of
application/problem+json has one of the words below.

  slackline reserve web --cpu 90%; echo $?    # 4 if the capacity is not available

Refusals, with HTTP status and exit code of a command:
";

/// Returns the page about refusals of the daemon.
pub(super) fn refusals() -> String {
    let kinds: Vec<(&str, String)> = Kind::ALL
        .iter()
        .map(|kind| {
            let (word, status, says, code) = kind.about();
            (word, format!("{says} (HTTP {status}, exit code {code})"))
        })
        .collect();
    let mut text = REFUSALS.to_owned();
    entries(&mut text, kinds.iter().map(|(word, says)| (*word, says.as_str())));
    text + "\nSee also: `slackline help service`.\n"
}

/// The command that starts the daemon, and the commands that send requests to the daemon.
const VERBS: [&str; 17] = [
    "serve", "find", "reserve", "place", "gang", "apply", "change", "pause", "resume", "release",
    "list", "watch", "room", "log", "history", "page", "access",
];
