//! Help page of `credit`.

/// Text of `slackline help credit`.
pub(super) const PAGE: &str = "\
Each VM receives credit by its weight and pays with it for CPU time. vCPUs with
credit run before vCPUs without.

When to use it: to divide CPU time by weight on one or many CPUs, or to limit a
VM with a cap. It reserves nothing. For deadlines take `edf` or `sedf`.

  policy = { name = \"credit\" }
  [[domain]]
  name         = \"web\"
  work         = { kind = \"spin\" }
  share.credit = { weight = 512, cap = \"0.4cpu\" }

{parameters}
Rules:
- Weight: twice the weight is twice the CPU time. The vCPUs of a VM divide what
  it receives. A vCPU has at most one CPU. CPU time that its weight would give
  it beyond one CPU is divided among the others by weight.
- Classes: a vCPU is UNDER while it has credit and OVER without credit. UNDER
  vCPUs run before OVER vCPUs, for one timeslice (a tick) each, first come,
  first served. A vCPU keeps the CPU if it has more than a period's worth of
  credit, and more than the next vCPU in line.
- Several CPUs: a CPU with no UNDER vCPU of its own takes one from another CPU.
  No CPU idles while a vCPU waits that may run there and is below its cap. By
  Xen's rules it may idle for up to a timeslice.
- Boost: a vCPU that wakes UNDER runs before all others for up to one tick of
  CPU time. It pays credit for that time, so a vCPU that blocks rarely is soon
  OVER.
- Cap: a limit for all vCPUs of the VM together in every period of three ticks,
  even if a CPU idles. Unused time is not saved up, and an overrun is deducted
  in full.
- gang = \"relaxed\": when a vCPU of a VM with gang = true gets a CPU, its waiting
  siblings get CPUs too, and all stop together. A sibling takes a CPU only from
  a vCPU of a lower class, or of its own class if that vCPU has no more credit
  and is in no gang. If a sibling cannot run, the others stop after `skew` and
  go to the end of their class. Shares and caps stay the same. Gangs help VMs
  with spin locks.
- rules = \"xen-3.0.3\", \"xen-2006-10-30\" and \"xen-3.0.4\" behave like these Xen
  versions with their faults. Timeslices last three ticks. CPU time is charged
  at ticks only. Caps are rounded up (in 3.0.3 to 3.33 % of a CPU) and enforced
  from the next timeslice. A vCPU with more than a period's worth of credit
  loses all of it. Debt beyond a period is forgiven. Each such rule is a
  parameter.

Limits (rules = \"exact\"), with n active vCPUs of total weight W on m CPUs:
- A vCPU of weight w works off its debt in at most (n + 1) W / w / m periods.
- A vCPU of weight w waits at most (n + 1) (n + 2) W / w / m periods.
- The CPU time of a VM that always has work differs from its share by at most
  n + 2 periods for each of its vCPUs, however long the run.
- Gangs gain nothing if siblings rarely wait for a CPU or run in step anyway.
  With fewer CPUs than vCPUs a gang still spins most of its time.
- If other programs take much of the CPUs, as on a busy live host, gangs make
  shares less exact.
- Xen's rules in Slackline differ from Xen in three points: a change of weight
  or cap neither stops nor boosts a VM, timers expire together only if the host
  has `timer_slop`, and no CPU is skipped because it holds a lock.

See also: `slackline help gaps` (credit that listens to guests), `bvt`.";
