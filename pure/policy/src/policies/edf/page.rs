//! Help page of `edf`.

/// Text of `slackline help edf`.
pub(super) const PAGE: &str = "\
Each vCPU has a slice of CPU time in every period. Of the vCPUs that are
runnable and have budget left, the one whose period ends first runs.

When to use it: for VMs that need their CPU time by a deadline, live or
simulated. `slackline hold` and the service schedule by it. For shares by weight
without reservations take `credit`.

  policy = { name = \"edf\", reserve = \"0.1cpu\" }
  [[domain]]
  name      = \"web\"
  work      = { kind = \"spin\" }
  share.edf = { slice = \"2ms\", period = \"10ms\" }   # 20 % of a CPU

The share is slice/period. The period is how long the vCPU may wait for it: a
few milliseconds for sound and games, seconds for batch work.

{parameters}
In place of `slice`, cpu = \"1.5cpu\" is an amount for all vCPUs of the VM. Each
has an equal share of it reserved, and `spread` is then \"use\" unless set.

Rules:
- Admission: each vCPU is bound to one CPU, where the sum of slice/period may
  not exceed 1 - `reserve`. A vCPU that is always runnable then has its slice in
  every period. On a live host dispatch overhead counts as reserved too.
- Slack is divided evenly among the vCPUs of a CPU that are not `exact`. A slice
  that was incomplete at its deadline has precedence.
- Blocking: a vCPU that wakes within its period has the larger of two budgets:
  its budget less the blocked time, or slice/period of the rest of the period.
- unblocking = \"new-period\": a vCPU that wakes with more budget than its share
  of the rest of its period begins a period with a whole slice (the wake-up rule
  of the constant bandwidth server). So a vCPU that uses little never waits for
  its next period. Slices are then counted from wakes. vCPUs with a phase or
  spread = \"use\" keep their periods.
- Overrun: time past the end of a slice is debt. The part that recurs every
  period is deducted from the next slice. The rest is paid from slack, and from
  later slices if there is none. So slices are whole, but an `exact` vCPU may
  have slightly more than its share. With overrun = \"repay\" slices pay for all
  of it: the share is exact over time, but slices may be short.
- Changing parameters takes effect at once and starts a new period. It yields no
  extra CPU time: usage beyond slice x elapsed / period is deducted from the
  next slices. The same holds for a vCPU that leaves and rejoins. CPU time given
  up stays reserved until that usage is accrued, at most until the period ends,
  if another vCPU waits for its budget.
- Phase: periods start at whole periods of the host's clock plus `phase`, so
  that the vCPUs of a parallel program start together. The clock starts with the
  run. In the service it is the wall clock. The first period is shorter, and its
  slice is prorated.
- place = \"split\": a vCPU that fits on no CPU as a whole runs one part of its
  slice after the other on several CPUs, and misses no deadline.
- spread = \"use\": what a vCPU leaves unused of a period is lent to siblings that
  used up their own, in equal parts, until the borrower's period ends. A vCPU
  borrows at most the unreserved capacity of its CPU. Newcomers may reserve it.

Limits:
- A single vCPU never has more than one CPU.
- With `exact` a vCPU has at most its slice and its loans. Without slack, the
  vCPUs of a VM together never have more than their slices plus one slice each.
- On a CPU with a split vCPU at least 0.1 % stays free, a vCPU that blocks loses
  the budget it would have used, and nothing is lent. A change may then take
  effect with the next period. A vCPU with a phase is not split, and none is
  split on its CPU. Live, choose a larger `reserve`: a first part cannot wait.

See also: `slackline help gedf` (one queue for all CPUs), `sedf` (slack by
weight), `service`.";
