//! Help page of `gedf`.

/// Text of `slackline help gedf`.
pub(super) const PAGE: &str = "\
Each vCPU has a budget of CPU time in every period. All CPUs serve one queue and
run the vCPUs whose periods end first, so vCPUs migrate.

When to use it: if the sum of the reservations matters and a bounded delay does
not, or as a model of Xen's RTDS. If every deadline counts on several CPUs, take
`edf` with place = \"split\".

  policy = { name = \"gedf\" }
  [[domain]]
  name       = \"web\"
  work       = { kind = \"spin\" }
  share.gedf = { budget = \"4ms\", period = \"10ms\" }   # 40 % of a CPU

{parameters}
Rules:
- Admission: the sum of budget/period may not exceed the CPUs less the `reserve`
  of each. The same holds for the vCPUs that are confined to some of the CPUs.
  Three vCPUs of 0.6 of a CPU fit on two CPUs.
- Extra time: with `extra` a vCPU that has used its budget gets the same again,
  one level lower. It runs when no vCPU on a higher level wants to, and returns
  to the top with its next period. Without `extra` it waits for that.
- Blocking: unused budget is kept until the period ends and is lost then (a
  deferrable server). A vCPU that wakes late in its period may thus make others
  late. asleep = \"trimmed\" leaves it the larger of two: its budget less the
  blocked time, or budget/period of the rest of the period.
- A late budget keeps its deadline and comes first until it is used. With
  misses = \"forgotten\" it is lost, as in RTDS: three vCPUs that never block,
  each with 6 ms in 10 ms, have 60, 50 and 50 % of two CPUs, not 60 % each.
- Overrun is deducted from the next budget. overrun = \"forgive\" does not, as
  RTDS.
- Changing parameters starts a new period at once and yields no extra CPU time:
  usage beyond budget x elapsed / period is deducted, whatever `overrun` says.
  The same holds for a vCPU that leaves and rejoins. CPU time given up stays
  reserved until that usage is accrued, if another vCPU waits for its budget.

Limits:
- On one CPU, with asleep = \"trimmed\", a vCPU that is always runnable has its
  budget in every period.
- On m CPUs no budget is later than (m + 1) / 2 x the largest budget, and the
  long-run share is exact. What is later is dropped: the host caused it.
- That bound is for vCPUs that may run on every CPU. A confined vCPU that takes
  a CPU moves its occupant to an idle CPU if there is one, but never to a CPU
  where a third vCPU runs.
- The bounds hold if misses are carried.

RTDS is misses = \"forgotten\", overrun = \"forgive\" and asleep = \"kept\". What
still departs from it:
- Admission refuses what does not fit; RTDS admits all. reserve = \"0cpu\" comes
  closest.
- Periods count from when a vCPU joins; in RTDS from the start of the host.
- Of equal deadlines a running vCPU stays, and of waiting vCPUs the one with the
  lowest number is first. In RTDS it is the one that was queued first.
- Changing parameters starts a period and keeps debt; RTDS fills the budget up.
- A scheduling pass waits for no lock.

See also: `slackline help edf`.";
