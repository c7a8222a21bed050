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
  it receives. A vCPU has at most one CPU. What its weight would give it beyond
  that is divided among the others by weight.
- Classes: a vCPU is UNDER while it has credit and OVER without. UNDER runs
  before OVER, for one timeslice (a tick) each, first come, first served. A vCPU
  that has more than a period of credit, and more than the next one, keeps the
  CPU.
- Several CPUs: a CPU with no UNDER vCPU of its own takes one from another CPU.
  No CPU idles while a vCPU waits that may run there and is below its cap. By
  Xen's rules it may idle for up to a timeslice.
- Boost: a vCPU that wakes UNDER runs before all others for up to one tick of
  CPU time. It pays for it, so a vCPU that blocks rarely is soon OVER.
- Cap: a limit for all vCPUs of the VM together in every period of three ticks,
  even if a CPU idles. Unused time is not saved up, an overrun is owed in full.
- gang = \"relaxed\": when a vCPU of a VM with gang = true gets a CPU, its waiting
  siblings get CPUs too and all stop together. A sibling takes a CPU only from a
  lower class, or from its own class if the vCPU there is not owed more and is
  of no gang. If a sibling cannot run, the others stop after `skew` and go
  behind their class. Shares and caps stay the same. It helps VMs with spin
  locks.
- rules = \"xen-3.0.3\", \"xen-2006-10-30\" and \"xen-3.0.4\" behave like these Xen
  versions with their faults: timeslices of three ticks, charging at ticks only,
  caps rounded up (in 3.0.3 to 3.33 % of a CPU) and enforced from the next
  timeslice, all credit lost if it is more than a period's, debt beyond a period
  forgiven. Each such rule is a parameter.

Limits (rules = \"exact\"), with n active vCPUs of total weight W:
- A vCPU of weight w works off its debt in at most (n + 1) W / w periods / CPUs.
- It runs again within (n + 1) (n + 2) W / w periods / CPUs.
- A VM that always has work has its share to within n + 2 periods for each of
  its vCPUs, however long the run.
- Gangs gain nothing if siblings rarely wait for a CPU or run in step anyway.
  With fewer CPUs than vCPUs a gang still spins most of its time.
- If other programs take much of the CPUs, as on a busy live host, gangs make
  shares less exact.
- Xen's rules here differ from Xen in three points: a change of weight or cap
  neither stops nor boosts a VM, timers expire together only if the host has
  `timer_slop`, and no CPU is passed over because it holds a lock.

See also: `slackline help gaps` (credit that listens to guests), `bvt`.";
