//! Help page of `edf`.

/// Text of `slackline help edf`.
pub(super) const PAGE: &str = "\
Each vCPU has a slice of CPU time in every period. Of the vCPUs that are
runnable and have budget left, the one whose period ends first runs.

When to use it: for VMs that need their CPU time by a deadline, live or
simulated. `slackline hold` and the daemon schedule by `edf`. For shares by
weight without reservations take `credit`.

  policy = { name = \"edf\", reserve = \"0.1cpu\" }
  [[domain]]
  name      = \"web\"
  work      = { kind = \"spin\" }
  share.edf = { slice = \"2ms\", period = \"10ms\" }   # 20 % of a CPU

The share of a vCPU is slice/period. The period decides how long the vCPU may
wait for its slice: choose a few milliseconds for sound and games, seconds for
batch work.

{parameters}
In place of `slice`, cpu = \"1.5cpu\" is an amount for all vCPUs of the VM. Each
vCPU reserves an equal part of the amount, and `spread` is then \"use\" unless
set.

Rules:
- Admission: each vCPU is bound to one CPU, where the sum of slice/period may
  not exceed 1 - `reserve`. A vCPU that is always runnable then has its slice in
  every period. On a live host dispatch overhead counts as reserved too.
- Slack is divided evenly among the vCPUs of a CPU that are not `exact`. A vCPU
  whose slice was incomplete at its deadline gets slack first.
- Blocking: a vCPU that wakes within its period has the larger of two budgets:
  its budget less the blocked time, or slice/period of the rest of the period.
- unblocking = \"new-period\": a vCPU that wakes with more budget than its share
  of the rest of its period starts a new period with a whole slice. So a vCPU
  that uses little never waits for its next period. Its periods then start at
  wake-ups. vCPUs with a phase or spread = \"use\" keep their periods.
- Overrun: CPU time used past the end of a slice is debt. Overrun that recurs in
  every period is deducted from the next slice. Other overrun is paid from
  slack, or from later slices if there is no slack. An `exact` vCPU gets no
  slack, but is forgiven a quarter of its slice (50us to 250us) per period.
  Unused amounts of up to 40 periods add up. Further debt shortens later slices.
  It is at most 10 slices, or the share of 1s if that is more. With overrun =
  \"repay\" all debt of any vCPU is deducted from later slices: the share is
  exact over time, but slices may be short.
- Changing parameters takes effect at once and starts a new period. A change
  yields no extra CPU time: usage beyond slice x elapsed / period is deducted
  from the next slices. A vCPU that leaves and rejoins gains nothing either.
- Capacity that a vCPU gives up stays reserved until slice x elapsed / period
  has reached the CPU time that the vCPU used, at most until the period ends.
  The capacity is free at once if no other vCPU of the CPU has budget left or
  can wake with some.
- Phase: periods start `phase` after multiples of the period on the host's
  clock, so that the vCPUs of a parallel program start together. In a scenario
  the host's clock starts with the run. For the daemon the host's clock is the
  wall clock. The first period is shorter, and its slice is prorated.
- place = \"split\": a vCPU that fits on no single CPU runs the parts of its slice
  one after the other on several CPUs. A split vCPU misses no deadline.
- spread = \"use\": budget that a vCPU leaves unused in a period is lent, in equal
  parts, to siblings whose own budget is exhausted. A loan lasts until the
  borrower's period ends. A vCPU borrows at most the unreserved capacity of its
  CPU. New reservations may take that capacity.

Limits:
- A single vCPU never has more than one CPU.
- With `exact` a vCPU receives at most its slice and what it borrows. Without
  slack, the vCPUs of a VM together never have more than their slices plus one
  slice each.
- On a CPU with a split vCPU at least 0.1 % stays free, a vCPU that blocks loses
  the budget it would have used, and nothing is lent. A change of parameters may
  take effect only with the next period.
- A vCPU with a phase is not split, and its CPU has no split vCPU.
- Splitting on a live host needs a larger `reserve`, because the first part of a
  split slice must run without delay.

See also: `slackline help gedf` (one queue for all CPUs), `sedf` (slack by
weight), `service`.";
