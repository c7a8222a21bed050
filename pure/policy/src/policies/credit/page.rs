//! Help page of `credit`.

/// Text of `slackline help credit`.
pub(super) const PAGE: &str = "\
Each VM receives credit by its weight, and pays with credit for CPU time. vCPUs
with credit run before vCPUs without credit.

When to use it: to divide CPU time by weight on one or many CPUs, or to limit a
VM with a cap. `credit` reserves nothing. For deadlines take `edf` or `sedf`.

  policy = { name = \"credit\" }
  [[domain]]
  name         = \"web\"
  work         = { kind = \"spin\" }
  share.credit = { weight = 512, cap = \"0.4cpu\" }

{parameters}
Rules:
- Weight: twice the weight is twice the CPU time. The vCPUs of a VM divide the
  VM's CPU time, and a vCPU has at most one CPU.
- Classes: a vCPU is UNDER while it has credit and OVER without credit. UNDER
  vCPUs run before OVER vCPUs, for one timeslice (a tick) each.
- A CPU with no UNDER vCPU of its own takes an UNDER vCPU from another CPU.
- Boost: a vCPU that wakes UNDER runs before all others for up to one tick of
  CPU time. The vCPU pays credit for that time.
- Cap: a limit for all vCPUs of the VM together in every period of three ticks,
  even if a CPU idles. Unused time of a cap is not saved up.
- gang = \"relaxed\": when a vCPU of a VM with gang = true gets a CPU, its waiting
  siblings get CPUs too, and all vCPUs of the VM stop together.
- rules = \"xen-3.0.3\", \"xen-2006-10-30\" and \"xen-3.0.4\" behave like these
  versions of Xen, with their faults.

Limits (rules = \"exact\"), with n active vCPUs of total weight W on m CPUs, in
periods of three ticks:
- A vCPU of weight w works off its debt in at most (n + 1) W / w / m periods.
- A vCPU of weight w waits at most (n + 1) (n + 2) W / w / m periods.
- The CPU time of a VM that always has work differs from its share by at most
  n + 2 periods for each of its vCPUs.
- A gang gains nothing if its vCPUs rarely wait for a CPU. Gangs make shares
  less exact on a host where other programs take much of the CPUs.

See also: `slackline help gaps` (credit with reports from guests), `bvt`. The
book's chapter on credit has the rules in full.";
