//! Help page about agents: which tasks a guest reports, and how the reports reach the host.

/// Text of `slackline help agent`.
pub(super) const PAGE: &str = "\
`slackline agent` runs inside a guest and reports which tasks of the guest are
urgent.

Use the agent with a policy that reads such reports (`slackline help gaps`), in
a scenario for `slackline run`. While an urgent task of a guest wants the CPU,
the policy may run that guest before others. The host does not trust reports: by
default a guest may run ahead of others for at most 25 % of its own share.

Example, in the guest, as root:

  slackline agent --urgent name=nginx --urgent nice=-5

QEMU needs a virtio-serial port. The scenario names the port's socket on the
host:

  -device virtio-serial-pci -device virtserialport,chardev=c,name=slackline.gaps.0
  -chardev socket,id=c,path=/run/web.gaps,server=on,wait=off

  [domain.live]
  command = [\"qemu-system-x86_64\", ...]
  threads = \"vcpus\"
  agent   = \"/run/web.gaps\"

`slackline-agent` is the command `slackline agent` as one small static program.

Each --urgent adds a rule. Up to four rules, the most urgent first [default:
real-time, nice=-1]:
  name=NAME      tasks of this name (up to 15 bytes, as `ps -o comm` shows it);
                 at least as urgent as nice -20
  cgroup=/PATH   tasks in this cgroup or below it; at least as urgent as nice -20
  real-time      tasks under SCHED_FIFO, SCHED_RR or SCHED_DEADLINE, by priority
  nice=N         tasks with nice value N or lower (-20 to -1), and real-time tasks

Each rule makes a class of tasks. Tasks that match no rule are in the ordinary
class.

What the agent does:
  - For each class the agent reports the tasks that want the CPU, the tasks that
    wait, and the tasks that I/O has woken lately.
  - The agent reads wake-ups from the guest's tracing (tracefs). Without tracing
    the agent polls tasks every 5 ms, and cannot see wake-ups by I/O.
  - The agent reports at once if the most urgent class with a runnable task
    changes, at most 1000 times per second. The agent repeats each report every
    40 ms.
  - The agent runs with nice -20 and its memory is locked. If real-time tasks of
    the guest never block, start the agent with `chrt --fifo 1 slackline-agent
    ...`.

What the host does:
  - A claim is the request of a guest to run first. A claim expires 100 ms after
    the last report. A guest that waits for a CPU cannot report. The claim of
    such a guest expires when the guest has run for 5 ms, at the latest after
    1 s.
  - A report is a frame of 36 bytes with a checksum (units/src/frame.rs in the
    source). Frames that are damaged, out of order or for an unknown vCPU are
    dropped and counted. After eight dropped frames in a row all claims of the
    agent end.
  - The host passes at most 1000 reports per second to the policy. If an agent
    sends more, the policy gets only the latest.
  - Agent and host must use the same version of the report format (frames). If
    not, `run` warns.
  - If the channel is full or closed, the agent drops its reports. This does not
    delay other VMs.
  - After a run, `slackline run` prints what each agent and each relay has sent,
    and what was dropped.

Pending I/O: without a relay the host does not know when I/O is pending for a
QEMU guest, so the policy considers only tasks that want the CPU. To add a
relay, use two options of QEMU and a key of `live` in the scenario:

  -device virtserialport,chardev=e,name=my.requests
  -chardev socket,id=e,path=/run/web.port,server=on,wait=off

  relay = { guest = \"/run/web.port\", outside = \"/run/web.requests\" }

  - One client at a time connects to /run/web.requests and talks to the guest's
    port.
  - With a relay, I/O is pending from the moment when data is passed to the
    guest until the guest sends data, at most for 100 ms. The relay does not
    change the data.
  - The policy setting `tell = \"inferred\"` needs a relay, but no agent in the
    guest. The relay shows the guest's I/O to the host.
  - `slackline load ping --to /run/web.requests` sends requests.

To try agents without a VM, let an agent listen on a Unix socket (--socket
/run/web.gaps). `slackline load guest` is a process that acts as a guest with a
busy task, an urgent server, and devices that report pending I/O.

Limits:
  - Relays are tested with virtio-serial ports only. Vsock is not supported.
  - The daemon schedules by `edf`, which ignores agents. Agents are for `run`.

See also: `slackline help gaps`, `live`, `service`.
";
