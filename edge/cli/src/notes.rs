//! Notes below the options of a command: rules, examples, and the columns of its table.

use std::fmt::Write as _;

use slackline_control::EventKind;

use crate::entries::entries;
use crate::headings::HEADINGS;

const RESERVE: &str = "\
--slice or --cpu:
  - With --slice each vCPU has a slice of its own, and no vCPU uses the slice of
    another.
  - With --cpu each vCPU is guaranteed an equal share. A vCPU that needs more
    may borrow budget that the other vCPUs of its VM left unused in their last
    period. A vCPU borrows at most the unreserved capacity of its CPU
    (`slackline help edf`: spread = 'use').

With --until the reservation ends by itself, even if no daemon runs then:
  - `--until 2h` means 2 hours from now. `--until 2026-12-01T18:00` is a time in
    UTC. A time of another zone is written as 2026-12-01T18:00+01:00.
  - After the end the VM runs on as ordinary threads. `log` shows `expired`.

With --enforce deadline the kernel enforces the slice of each vCPU, as a hard
limit:
  - A vCPU thread may then run on all CPUs. Its slice is reserved on each CPU.
  - Such a reservation cannot be paused, have a phase, or use slack.

--phase aligns the periods of VMs that work in step, on one or several hosts:
  - With --phase 3ms every period starts 3 ms after a multiple of the period on
    the wall clock. If the first period is shorter, its slice is prorated.
";

const APPLY: &str = "\
Each table of FILE is a reservation. The keys of a table are options of
`reserve`:

  [web]
  cpu = '30%'
  [db]
  slice = '2ms'               # also period, exact, phase, vcpus, for, user,
                              # until, enforce

Rules:
  - `apply` first frees capacity, and then reserves the new capacity. If one
    reservation is refused, nothing changes.
  - `slackline list --toml` prints the present reservations as such a file.
  - FILE may be a plan from `slackline whatif --save`. A plan also has
    predictions.
";

const GANG: &str = "\
Use `gang` for a program whose VMs work in step on several hosts. The daemons of
the hosts need not know each other. FILE:

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

Rules:
  - The keys slice, period, cpu and exact of a gang file apply to each member.
  - `gang FILE --watch` reports a lost member to the daemons of the other
    members, whose `log` shows `gang-broken`. With strict = true the other
    reservations then end.
  - Until all hosts have agreed, the reservations of the members are `held`. If
    the command `gang` dies, the held reservations end after at most 10 s.
  - A gang is refused if two of its hosts' clocks surely differ by more than
    half a slice. `gang` prints a warning if two clocks may differ by more than
    a twentieth of a slice.
";

const HISTORY: &str = "\
Rules:
  - Times in the history are sums over all vCPUs. Hours and days are those of
    UTC.
  - Time in which no daemon runs or the host is suspended counts as `unknown`.
    If the daemon is killed, up to a minute before its end is unknown too.
  - The ledger keeps a history of 400 days in at most 64 MiB. If 64 MiB are too
    little, the oldest hours are merged into days, and then the oldest days are
    deleted.
  - Tenants and viewers may not see the history.
";

const HOOK: &str = "\
A libvirt guest can carry its reservation in its metadata. libvirt runs the hook
when the guest starts. Install the hook, then restart libvirt:

  slackline hook libvirt --script > /etc/libvirt/hooks/qemu.d/slackline
  chmod +x /etc/libvirt/hooks/qemu.d/slackline

  <metadata>
    <slackline:reservation xmlns:slackline='urn:slackline:1' slice='2ms' period='10ms'/>
  </metadata>

Rules:
  - Other attributes of the element: cpu='40%', exact='yes', phase='3ms',
    vcpus='2', name='web'.
  - A guest starts even if its reservation is refused, unless the element has
    require='yes'.
";

const ACCESS: &str = "\
Use `access` for users other than root and the groups slackline-admin
(administrators) and slackline (tenants).

  slackline access add 1000 --role operator --cpu 150% --machines 4
  slackline access add alice --role viewer --days 30 > token    # a client on another host

Rules:
  - A viewer may list reservations and VMs. A tenant manages reservations of its
    own VMs. An operator manages all reservations. An administrator also grants
    access.
  - With a ledger of version 6 or older, members of the group slackline are
    operators until `slackline access migrate`.
";

const SERVE: &str = "\
Requests from other hosts, over TLS 1.3:
  1. On the server: `slackline serve --listen 0.0.0.0:7443 --certificate FILE
     --key FILE`
  2. On the server: `slackline access add alice --role operator > token`
  3. On the client: `chmod 600 token`, then
     `slackline list --host https://web:7443 --ca ca.pem --token token`
  - On the client, SLACKLINE_HOST, SLACKLINE_CA and SLACKLINE_TOKEN can replace
    the options --host, --ca and --token.
  - With `serve --client-ca FILE`, `access add alice --certificate FILE` lets a
    client authenticate by a certificate instead of a token.
  - The systemd unit of the daemon forbids network access. To allow it, set
    RestrictAddressFamilies= and IPAddressDeny= in a drop-in.

--on-death keep is for reservations with --enforce deadline. If the daemon is
killed, the kernel enforces these reservations for the time of --keep-for. A
daemon that starts within this time adopts their threads. `slackline doctor
--free` restores the threads earlier.

--metrics serves only the metrics, for a Prometheus on this host. All users of
the host can read the metrics.

--page: the page shows data only in a session, which `slackline page` starts.
With --listen, the page is also served over TLS.

Files: the daemon reads certificates, prices and the host's groups at start and
on SIGHUP (`systemctl reload slackline`). Reservations stay in force then, and
clients reconnect. A file for --prices has currency = 'EUR', cpu-hour = '0.04',
and [[period]] tables with `up-to` (a period) and `times` (a factor). For
periods of at most `up-to`, the price is multiplied by `times`.
";

const PAGE: &str = "\
Use `page` to see all VMs in a browser, and to change reservations by sliders.
The page predicts the effect of a change before you make it.

  sudo slackline serve --page &
  sudo slackline page                  # open the printed address in a browser
  slackline page --host https://web:7443 --ca ca.pem --token token

Rules:
  - The code in the address works once, within a minute. The session lasts
    8 hours.
  - The page has the rights of the user who ran `page`, but cannot grant access.
  - `slackline access revoke` ends the sessions of a user or remote client.
  - To reach a page on another host: `ssh -L 9392:127.0.0.1:9392 HOST`.
";

/// Returns the notes below the options of a command of the daemon.
pub(crate) fn notes(command: &str) -> String {
    let mut text = match command {
        "reserve" => RESERVE,
        "apply" => APPLY,
        "gang" => GANG,
        "history" => HISTORY,
        "hook" => HOOK,
        "access" => ACCESS,
        "serve" => SERVE,
        "page" => PAGE,
        _ => "",
    }
    .to_owned();
    let is_of = |tables: &str| tables.split(", ").any(|table| table == command);
    for (_, columns) in HEADINGS.iter().filter(|&&(tables, _)| is_of(tables)) {
        let gap = if text.is_empty() { "" } else { "\n" };
        let _ = writeln!(text, "{gap}Columns of the table:");
        entries(&mut text, columns.iter().copied());
    }
    if command == "log" {
        text += "\nEvents that are not requests:\n";
        entries(&mut text, EventKind::WORDS.into_iter());
    }
    text.trim_end().to_owned()
}
