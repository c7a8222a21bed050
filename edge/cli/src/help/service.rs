//! Help page about the daemon. Its lists of commands, states, columns and refusals come from the
//! code.

use std::fmt::Write as _;

use slackline_control::{EventKind, Kind, NAME, State};

use super::pages::entries;
use crate::service::HEADINGS;

const INTRO: &str = "\
The daemon (`slackline serve`) keeps CPU reservations for the VMs of a host.

Use it to guarantee CPU time to VMs that come and go. A VM here is a libvirt
guest, another VM monitor (QEMU, Firecracker, ...), a container, a systemd unit, a
cgroup or any process: whatever `slackline find` lists.

  slackline serve                                    # as root, or by systemd
  slackline find                                     # list VMs
  slackline reserve web --slice 2ms --period 10ms    # 20 % of a CPU for each vCPU of `web`
  slackline reserve db --cpu 1.5 --for libvirt:db-7  # 1.5 CPUs for all its vCPUs
  slackline place job --cpu 30% --vcpus 1 --for qemu:job --host a.sock --host b.sock
  slackline change web --slice 3ms
  slackline apply list.toml --dry-run                # a file of reservations, all or none
  slackline watch
  slackline history web --since 7d --by day          # also --csv, --json
  slackline top                                      # all VMs on one screen; Enter shows culprits
  slackline why web                                  # who took its CPU in the last minute
  slackline incidents                                # recordings of missed deadlines
  slackline whatif --since 30s --set db.slice=1ms --save plan   # predict a change
  slackline apply plan                               # make it
  slackline predictions                              # what came of it

Reservations:
  - A reservation gives each vCPU of a VM its slice of CPU time in every period.
  - A reservation survives shutdown of the VM and restart of the daemon. When the VM
    starts again under its name, its reservation applies again.
  - A reservation whose VM is absent keeps its capacity.
  - While no daemon runs, VMs run as ordinary threads and no reservation is enforced.
  - The daemon schedules by `edf` and ignores guest agents (`slackline help agent`).

--slice or --cpu:
  - With --slice each vCPU has its own slice, and no vCPU uses the slice of another.
  - With --cpu each vCPU is guaranteed an equal share. A vCPU that needs more may use
    budget that the other vCPUs of its VM left unused in their last period, up to the
    unreserved capacity of its CPU (`slackline help edf`: spread = 'use').

--until ends a reservation by itself, also while no daemon runs:
  - `--until 2h` is a length from now, `--until 2026-12-01T18:00` a time in UTC. Other
    zones are written as 2026-12-01T18:00+01:00.
  - `change --until none` removes the end. In a file it is until = '2026-12-01T18:00'.
  - At the end the VM runs on as ordinary threads, and `log` shows `expired`.
  - The end follows the wall clock, also if that is set.

--phase aligns periods of VMs that work in step, on one or several hosts:
  - With --phase 3ms every period starts 3 ms after a multiple of the period on the
    wall clock. With the same phase and period, periods start together.
  - If the first period is shorter, its slice is prorated.
  - When the wall clock is set, one period is longer or shorter. `log` shows this if
    the step is a tenth of the period or more.

`slackline apply FILE` makes reservations as a file lists them, all or none:

  [web]
  cpu = '30%'
  [db]
  slice = '2ms'               # also period, exact, phase, vcpus, for, user, until

  - Capacity is given up before other capacity is taken. If one reservation is refused,
    nothing changes.
  - --prune also releases reservations that the file does not list.
  - `slackline list --toml` prints such a file.
  - `change`, `pause`, `resume` and `release` take a pattern, e.g. 'web-*'.

`slackline history NAME` shows what a reservation received by hour or by day:
  - Times are sums over all vCPUs. Hours and days are those of UTC.
  - Time is unknown while no daemon runs or the host is suspended. If the daemon is
    killed, at most the last minute before that is unknown too.
  - The ledger keeps 400 days in at most 64 MiB. If that is too little, the oldest
    hours are merged into days, and then the oldest days are deleted.
  - Tenants and viewers may not see the history, nor the events of `log`.

`slackline gang FILE` reserves for several VMs on several hosts, all or none, and
starts their first periods together. The hosts need not know each other. FILE:

  name   = 'bsp'
  slice  = '4ms'
  period = '10ms'
  phase  = '0ms'                                       # default; also exact, strict, cpu
  [[member]]
  host = '/run/slackline/slackline.sock'               # or https://NAME:PORT
  for  = 'libvirt:node-a'                              # also name, vcpus
  [[member]]
  host = 'https://b:7443'
  for  = 'libvirt:node-b'

  - slice, period, cpu and exact apply to each member.
  - `gang FILE --watch` reports a lost member to the other members' daemons. Their `log`
    shows `gang-broken`. With strict = true the other reservations then end.
  - The state of members is `held` for up to 10 s until all hosts have agreed. Held
    members end by themselves if the command dies.
  - A gang is refused if the clocks of its hosts differ by more than half a slice. If
    they may differ by more than a twentieth of a slice, there is a warning.

A libvirt guest can carry its reservation in its metadata. libvirt asks for it when
the guest starts:

  slackline hook libvirt --script > /etc/libvirt/hooks/qemu.d/slackline
  chmod +x /etc/libvirt/hooks/qemu.d/slackline       # then restart libvirt
  <metadata>
    <slackline:reservation xmlns:slackline='urn:slackline:1' slice='2ms' period='10ms'/>
  </metadata>

  - Other attributes of the element: cpu='40%', exact='yes', phase='3ms', vcpus='2',
    name='web'.
  - The guest starts even without a reservation, unless it has require='yes'.

Changes that other programs make to threads of a reserved VM:
  - These changes count as an administrator's and stay: another cpuset or cgroup that
    the VM's user may not choose, a freeze, a new CPU quota, SIGSTOP, and any change to
    a vCPU of libvirt, e.g. `virsh vcpupin`. Within 3 s the threads leave the real-time
    class and run without a limit. The reservation is `contested`, with the reason. It
    is enforced again once the change is undone, or after `resume`.
  - Any other change counts as the VM's own, also a `taskset` or `chrt` by root. It is
    undone within 100 ms, and `log` shows `meddled`. A VM that repeatedly moves to
    other CPUs is stopped for 1 s each time. CPU time received there is charged.
  - In the first 2 s of a reservation, other programs may still place the threads.

HTTP: the same commands on the Unix socket, described by /v1/openapi.json:
  curl --unix-socket /run/slackline/slackline.sock http://slackline/v1/reservations
";

const WHO: &str = "
Access:
  - Root and the group slackline-admin may do everything.
  - Members of the group slackline are tenants: they make and change their own
    reservations, for VMs of their own user, and see others as `another VM`.
  - All other local users may do nothing.
  - `slackline access add` gives a user another role, limits, or VMs of other users.
  - With a ledger of version 6 or older, members of the group slackline are operators,
    who may change all reservations, until `slackline access migrate`.
  - Only administrators may reserve a slice of more than 1 s, because it runs without a
    break. With a shorter slice, a period of more than 1 s is enforced in parts of at
    most 1 s.
  - A reservation applies to VMs of one user. Another user's VM of the same name does
    not get it.

Other hosts, over TLS 1.3:
  1. On the server: `slackline serve --listen 0.0.0.0:7443 --certificate FILE --key FILE`
  2. On the server: `slackline access add alice --role operator > token`
  3. On the client: `chmod 600 token`, then
     `slackline list --host https://web:7443 --ca ca.pem --token token`
  - SLACKLINE_HOST, SLACKLINE_CA and SLACKLINE_TOKEN replace the options.
  - With `serve --client-ca FILE`, `access add alice --certificate FILE` lets a client
    authenticate by a certificate instead of a token.
  - The systemd unit of the daemon allows no network. Set RestrictAddressFamilies= and
    IPAddressDeny= in a drop-in.

Metrics for a Prometheus on this host, without TLS: `serve --metrics 127.0.0.1:9391`.
All users of the host can read them. Nothing else is served there.

Files: the daemon reads certificates, prices and the host's groups at start and on
SIGHUP (`systemctl reload slackline`). Reservations stay in force; clients reconnect. A
file for `serve --prices` has currency = 'EUR', cpu-hour = '0.04', and [[period]] tables
with `up-to` (a period) and `times` (a factor of the price for shorter periods).

See also: `slackline help edf`, `agent`, `doctor`.
";

pub(super) fn service(commands: &[(String, String)]) -> String {
    let mut text = INTRO.to_owned();
    text += "\nCommands (`slackline help COMMAND` lists its options):\n";
    let verbs = commands.iter().filter(|(name, _)| VERBS.contains(&name.as_str()));
    entries(&mut text, verbs.map(|(name, says)| (name.as_str(), says.as_str())));
    let _ = writeln!(text, "\nNames: {NAME}.");
    text += "\nStates:\n";
    entries(&mut text, State::ALL.iter().map(|(state, says)| (state.word(), *says)));
    text += "\nEvents in `log` that are not requests:\n";
    entries(&mut text, EventKind::WORDS.into_iter());
    for (table, columns) in HEADINGS {
        let _ = writeln!(text, "\nColumns of {table}:");
        entries(&mut text, columns.iter().copied());
    }
    text += "\nRefusals, with HTTP status and exit code of a command:\n";
    let kinds: Vec<(&str, String)> = Kind::ALL
        .iter()
        .map(|kind| {
            let (word, status, says, code) = kind.about();
            (word, format!("{says} (HTTP {status}, exit code {code})"))
        })
        .collect();
    entries(&mut text, kinds.iter().map(|(word, says)| (*word, says.as_str())));
    text + WHO
}

/// The command that starts the daemon, and the commands that send requests to it.
pub(super) const VERBS: [&str; 16] = [
    "serve", "find", "reserve", "place", "gang", "apply", "change", "pause", "resume", "release",
    "list", "watch", "room", "log", "history", "access",
];
