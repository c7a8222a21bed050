//! The page about agents: what a guest tells, and how it gets to the host.

/// What `slackline help agent` says.
pub(super) const PAGE: &str = "\
An agent runs inside a guest and tells the host which of its tasks want the CPU, which wait, and
which of those I/O has woken lately, in up to five classes. A policy that listens (`slackline help
gaps`) lets the guest go ahead of others while something urgent of it wants the CPU. Nobody vouches
for an agent, so what a guest may gain by it is bounded by the policy: 25 % of its own share.

In the guest, as root; `slackline-agent`, built by itself, is the same in one small static file:

  slackline agent --urgent name=nginx --urgent nice=-5

Who is urgent is said in order, the most urgent first, four times at most; everybody else is the
fifth class, and ordinary. Unless said: real-time, then nice=-1.
  name=NAME      tasks of this name, as ps -o comm has it: as urgent as nice -20
  cgroup=/PATH   tasks in this cgroup or below it: the same
  real-time      tasks under SCHED_FIFO, SCHED_RR or SCHED_DEADLINE, by their priorities
  nice=N         tasks with a nice value of N or less, by that

It hears of wakes from the guest's tracing (tracefs); where there is none it looks at tasks each
5 ms, and does not see who was woken by I/O. It sends only when the best class changes, at most
1000 times a second, and what it claims again each 40 ms.

QEMU gets a port of virtio-serial, and the scenario the other end of it:

  -device virtio-serial-pci -device virtserialport,chardev=c,name=slackline.gaps.0
  -chardev socket,id=c,path=/run/web.gaps,server=on,wait=off

  [domain.live]
  command = [\"qemu-system-x86_64\", ...]
  threads = \"vcpus\"
  agent   = \"/run/web.gaps\"

A stock host does not know what I/O waits for a guest of QEMU. What goes through `relay` it does:

  -device virtserialport,chardev=e,name=my.requests
  -chardev socket,id=e,path=/run/web.port,server=on,wait=off

  relay = { guest = \"/run/web.port\", outside = \"/run/web.requests\" }

Whoever comes to /run/web.requests, one at a time, talks to the guest's port, and something
waits for the guest from when it is handed on until the guest sends something, or for 100 ms.
The policy hears of it as it comes, and of how often the guest has sent. That is also all that
`tell = \"inferred\"` needs, which works with no agent in the guest. Bytes are handed on as they
are; tried with ports of virtio-serial. `slackline load ping --to /run/web.requests` asks.

In a process that plays a guest an agent listens itself: --socket /run/web.gaps. `slackline load
guest` is such a process, with a busy task, an urgent server and devices that tell what waits.
There is no vsock: that needs a host with /dev/vhost-vsock, and it could not be tried.

The agent has the least nice value and is locked in memory. In a guest with work in real time that
never sleeps start it as `chrt --fifo 1 slackline-agent`: it has no way to ask for that itself.

What the host makes of it:
  - Frames are 36 bytes with a checksum (the source's units/src/frame.rs has the layout). What is
    none, of a vCPU that is not there, or not after the last is dropped and counted; after eight in
    a row the agent is as good as silent. An agent of another version is not heard, and `run` says
    so: take the one that was built with the host's slackline.
  - A claim is a lease: not told again for 100 ms it is gone. A guest that waits for a CPU cannot
    tell it again and has until it has run for 5 ms, and no longer than a second in all.
  - More than 1000 things a second are not told; of more that come at once only the last counts.
  - A full or closed channel holds up nobody but the agent, which drops what it cannot send.
  - Where nobody knows what I/O waits for a guest only tasks that want the CPU count (GAPS by run
    queues). A relay knows; `load guest`'s devices tell it on the agent's socket.
`slackline run` says after the run what it heard of each agent, and what it dropped or let lapse,
and what went through each relay.
The service (`slackline help service`) schedules by `edf`, which hears nobody: agents are for `run`.
";
