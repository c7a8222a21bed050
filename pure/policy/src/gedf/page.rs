//! The manual page.

/// What `slackline help gedf` says, before the fields.
pub(super) const PAGE: &str =
    "Every vCPU has a budget of CPU time in each period: budget = \"4ms\", period = \"10ms\" is
0.4 of a CPU. All CPUs serve one queue: they run the vCPUs whose periods end first, and a
vCPU moves to whichever CPU is free, or runs the latest deadline. So the CPUs can be
promised as a whole: three vCPUs of two thirds of a CPU fit on two CPUs, which no way of
binding them to CPUs could do.

Beyond the budget: with extra = true (the default) a vCPU that has used it gets the same
again, but one level lower: it runs when nobody on a higher level wants to. At its next
period it is back on top. Extra time so goes round in budgets. With extra = false it
stops until then. What it overran is taken from the next budget; overrun = \"forgive\" does
not, as RTDS.

Asleep: the budget is kept until the period ends, and lost then (a deferrable server). It
reacts fast, but who wakes shortly before its deadline with all of its budget may make
others late. asleep = \"trimmed\" leaves it only what cannot: what it would have left had it
run, or the share of what is left of the period if that is more.

Admission: the sum of budget/period may not exceed the CPUs less the reserve of each;
likewise of those vCPUs that are confined to some of the CPUs. On one CPU that decides
exactly: whoever is always awake gets its budget in every period (beside sleepers,
with asleep = \"trimmed\"). On m CPUs nobody is late by more than (m + 1) / 2 of the largest
budget, a budget that is late comes first of all, and the long-run share is exact; Devi
and Anderson have a closer bound. If you need every deadline on several CPUs, take edf.
The bound is for vCPUs that may run anywhere: a confined one that takes a CPU pushes its
occupant to an idle CPU, if there is one, but never onto a third one's.

Misses: a budget that was not used by its deadline is kept until it is used. With
misses = \"forgotten\" it is lost, as in RTDS: three vCPUs that never block, each with 6 ms
in 10 ms, have 60, 60 and 60 % of two CPUs, but 60, 50 and 50 % where misses are
forgotten. The bound and the long-run share above hold where they are carried.

Changing terms: new ones begin a period at once. What was used of the old budget beyond
the part of the period that has passed is debt, whatever overrun says, also for who leaves
and comes back; what is given up stays promised until that is earned, if somebody waits.

RTDS has misses = \"forgotten\", overrun = \"forgive\" and asleep = \"kept\". What still
departs from it:
- admission refuses what does not fit, RTDS nothing; reserve = \"0cpu\" comes closest
- periods are counted from when a vCPU joins; in RTDS from when the host started
- of equal deadlines a running vCPU stays, and of waiting vCPUs the lowest number is
  first; in RTDS the one that was queued first
- a change of terms begins a period and keeps debt; RTDS fills the budget up
- a scheduling pass waits for no lock";
