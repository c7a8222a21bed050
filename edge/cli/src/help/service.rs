//! The page about the service: its words, verbs, tables and refusals, each from where it is used.

use std::fmt::Write as _;

use slackline_control::{Kind, NAME, State};

use super::pages::entries;
use crate::service::HEADINGS;

const INTRO: &str = "\
`slackline serve` holds reservations: so much CPU time in every period for each vCPU of a machine,
under a name. They outlive the machine and the daemon: a machine that comes back under its name has
its reservation again, and what waits for its machine stays promised. When the daemon stops or dies
machines run on as ordinary threads; what lapses is the promise.

  slackline serve                                    # as root; or by systemd
  slackline find                                     # what can have a reservation
  slackline reserve web --slice 2ms --period 10ms    # a fifth of a CPU for each vCPU of `web`
  slackline reserve db --cpu 1.5 --for libvirt:db-7  # one and a half for all of them together
  slackline place job --cpu 30% --vcpus 1 --for qemu:job --host a.sock --host b.sock
  slackline change web --slice 3ms
  slackline watch

With --cpu each vCPU is promised an even part, which it has whenever it wants it. One that wants
more has what the others left of theirs in their last period, as far as its CPU has not promised it
to anybody (`slackline help edf`: spread = 'use'). With --slice each has its own, and no other's.

Machines that work in step, here or on several hosts, take one phase: with --phase 3ms each of their
periods begins 3 ms after whole periods of the clock on the wall, whenever they came. A first period
that is shorter is worth its part. When that clock is set, one period of each is longer or shorter,
and `log` says so where it was by a tenth of a period.

`slackline gang FILE` reserves for all of them or none, on hosts that know nothing of each other,
and has them begin at once. Its terms are for each member; strict = true ends all if one is lost,
of which `gang FILE --watch` tells the others (`gang-broken` in their `log`). FILE:

  name   = 'bsp'
  slice  = '4ms'
  period = '10ms'
  phase  = '0ms'                                       # unless said; also exact, strict, cpu
  [[member]]
  host = '/run/slackline/slackline.sock'               # or https://NAME:PORT
  for  = 'libvirt:node-a'                              # also name, vcpus
  [[member]]
  host = 'https://b:7443'
  for  = 'libvirt:node-b'

Members are held for 10 s at most while all are asked, and end by themselves if whoever asks dies.
Clocks of hosts that differ by half a slice are refused, and by a twentieth warned of.

A guest of libvirt can bring its terms along, in its metadata; libvirt asks for them as it starts:

  slackline hook libvirt --script > /etc/libvirt/hooks/qemu.d/slackline
  chmod +x /etc/libvirt/hooks/qemu.d/slackline       # and start libvirt again
  <metadata>
    <slackline:reservation xmlns:slackline='urn:slackline:1' slice='2ms' period='10ms'/>
  </metadata>

Also cpu='40%', exact='yes', phase='3ms', vcpus='2', name='web'. It starts whatever comes of that,
unless it says require='yes' and is refused.

Changes that other programs make to held threads are undone or respected, by this rule:

- An administrator's change is respected: a move to another cpuset or cgroup that the machine's
  user may not make, a freeze, a new CPU quota, SIGSTOP, and any change to a vCPU of libvirt, as by
  `virsh vcpupin`. The threads become ordinary within 3 s and run on without a limit. The
  reservation is `contested` and says what was found. It is held again once the change is undone,
  or by `resume`.
- Everything else counts as the machine's own, also a `taskset` or `chrt` by root. It is undone
  within 100 ms, and `log` says `meddled`. A machine that leaves its CPUs again and again is stopped
  for a second each time. CPU time received on other CPUs counts as used.
- Threads of a machine that has just been taken may be placed by whoever starts it, for 2 s.

The service schedules by `edf`, which hears nothing that guests tell (`slackline help agent`).

The same over HTTP on its Unix socket, described by /v1/openapi.json:
  curl --unix-socket /run/slackline/slackline.sock http://slackline/v1/reservations
";

const WHO: &str = "
Root and the group slackline-admin may do all. The group slackline may do all about reservations,
and make new ones for machines of their own user. Everybody else may do nothing. `slackline access`
says otherwise of a user: less, more, how much, and whose machines besides his own.
A reservation is for machines of one user: what another user calls so is not taken for its machine.

Other machines: `slackline serve --listen 0.0.0.0:7443 --certificate FILE --key FILE`, with TLS 1.3
only. Here `slackline access add alice --role operator > token`, there `chmod 600 token` and
  slackline list --host https://web:7443 --ca ca.pem --token token
or with SLACKLINE_HOST, SLACKLINE_CA and SLACKLINE_TOKEN set. With --client-ca, `access add alice
--certificate FILE` lets in who has the key of that. Certificates, prices
and the groups of the host are read when the daemon starts, and again when it is sent SIGHUP
(`systemctl reload slackline`): what is promised goes on, and whoever is connected connects again.
A file for `serve --prices` has currency = 'EUR', cpu-hour = '0.04', and [[period]] tables with
up-to and times for short periods.
Under systemd the unit allows no network: RestrictAddressFamilies= and IPAddressDeny= in a drop-in.
";

pub(super) fn service(commands: &[(String, String)]) -> String {
    let mut text = INTRO.to_owned();
    text += "\nVerbs (`slackline help VERB` lists its options):\n";
    let verbs = commands.iter().filter(|(name, _)| VERBS.contains(&name.as_str()));
    entries(&mut text, verbs.map(|(name, says)| (name.as_str(), says.as_str())));
    let _ = writeln!(text, "\nA name has {NAME}.");
    text += "\nStates:\n";
    entries(&mut text, State::ALL.iter().map(|(state, says)| (state.word(), *says)));
    for (table, columns) in HEADINGS {
        let _ = writeln!(text, "\nColumns of {table}:");
        entries(&mut text, columns.iter().copied());
    }
    text += "\nWhat can be refused, and the exit code of a command then:\n";
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

/// The commands that speak with the daemon, and that itself.
pub(super) const VERBS: [&str; 14] = [
    "serve", "find", "reserve", "place", "gang", "change", "pause", "resume", "release", "list",
    "watch", "room", "log", "access",
];
