//! Help page of `gedf`.

/// Text of `slackline help gedf`.
pub(super) const PAGE: &str = "\
Each vCPU has a budget of CPU time in every period. All CPUs serve one queue and
run the vCPUs whose periods end first, so vCPUs migrate.

When to use it: if the sum of the reservations matters and a bounded tardiness
does no harm, or as a model of Xen's RTDS. If every deadline counts on several
CPUs, take `edf` with place = \"split\".

  policy = { name = \"gedf\" }
  [[domain]]
  name       = \"web\"
  work       = { kind = \"spin\" }
  share.gedf = { budget = \"4ms\", period = \"10ms\" }   # 40 % of a CPU

{parameters}
Rules:
- Admission: the sum of budget/period may not exceed the number of CPUs, less
  the `reserve` of each CPU. So three vCPUs of 0.6 of a CPU fit on two CPUs. The
  same holds for each set of CPUs to which vCPUs are confined, and for unions of
  overlapping sets. If there are more than 512 such sets, a further vCPU must
  fit on one of its CPUs.
- Extra time: with `extra` a vCPU that exhausts its budget gets the same budget
  again, one level lower. On a lower level the vCPU runs when no vCPU of a
  higher level is runnable. It returns to the top level with its next period.
  Without `extra` a vCPU is throttled until its next period.
- Blocking: unused budget is kept until the period ends and is lost then (a
  deferrable server). So a vCPU that wakes late in its period can make other
  vCPUs late. With asleep = \"trimmed\" a vCPU that wakes has the larger of two
  budgets: its budget less the blocked time, or budget/period of the rest of the
  period.
- Budget that was not received by its deadline is late. It keeps its deadline,
  so it has precedence until it is used. With misses = \"forgotten\" late budget
  is lost, as in RTDS. Three vCPUs that never block, each with 6 ms in 10 ms,
  then have 60, 50 and 50 % of two CPUs, not 60 % each.
- An overrun is deducted from the next budget. With overrun = \"forgive\" an
  overrun is not deducted, as in RTDS.
- Changing parameters starts a new period at once and yields no extra CPU time:
  usage beyond budget x elapsed / period is deducted, whatever `overrun` says.
  A vCPU that leaves and rejoins gains nothing either.
- Capacity that a vCPU gives up stays reserved until budget x elapsed / period
  has reached the CPU time that the vCPU used. The capacity is free at once if
  no other vCPU has budget left or can wake with some.

Limits:
- On one CPU, with asleep = \"trimmed\", a vCPU that is always runnable has its
  budget in every period.
- On m CPUs each vCPU receives its budget with a tardiness of at most
  (m + 1) / 2 x the largest budget, and the long-run share is exact. Budget that
  is later than this bound is dropped, because only the host can have delayed
  it.
- The bound on m CPUs is for vCPUs that may run on every CPU. If a confined vCPU
  takes the CPU of another vCPU, the other vCPU moves to an idle CPU if there is
  one. Otherwise it waits, and does not take the CPU of a third vCPU.
- The bounds of this page hold only with misses = \"carried\".

To model RTDS, set misses = \"forgotten\", overrun = \"forgive\" and asleep =
\"kept\". Five differences from RTDS remain:
- `gedf` refuses reservations that do not fit; RTDS admits everything. With
  reserve = \"0cpu\" the difference is smallest.
- The first period of a vCPU starts when the vCPU joins; in RTDS periods start
  at multiples of their length since the start of the host.
- Among equal deadlines, `gedf` lets a running vCPU go on, and otherwise runs
  the waiting vCPU with the lowest number. RTDS runs the vCPU that was queued
  first.
- A change of parameters of `gedf` starts a new period and keeps debt; RTDS
  refills the budget.
- A scheduling pass of `gedf` waits for no lock; RTDS has one lock for each pool
  of CPUs.

See also: `slackline help edf`.";
