//! Help page of `bvt`.

/// Text of `slackline help bvt`.
pub(super) const PAGE: &str = "\
Each vCPU has a virtual clock that advances while the vCPU runs. A higher weight
makes the clock slower. The runnable vCPU with the earliest clock runs.

When to use it: to divide CPU time by weight, with short waits for a few vCPUs
that warp. `bvt` reserves nothing, has no hard limit and does not migrate vCPUs.

  policy = { name = \"bvt\", allowance = \"5ms\" }
  [[domain]]
  name      = \"sound\"
  work      = { kind = \"periodic\", period = \"20ms\", work = \"1ms\" }
  share.bvt = { weight = 1, warp = \"20ms\" }

{parameters}
Rules:
- Weight: weight = 2 gets twice the CPU time of weight = 1. No CPU idles while a
  vCPU on it can run.
- Allowance: the running vCPU goes on until its clock is `allowance` ahead of
  the clock of the next vCPU. A long allowance makes switches rare, a short
  allowance makes waits short.
- Blocking: a vCPU that wakes starts at the earliest clock of the runnable
  vCPUs, or at its own clock if that is later. So a vCPU saves up no CPU time
  while it is blocked.
- Warp: the clock of a vCPU with a warp is read `warp` earlier, so the vCPU runs
  as soon as it wakes. Time used is charged as usual, so the share stays the
  same. After `warpl` of CPU time the warp pauses for `warpu`.
- Placement: each CPU has its own queue. A vCPU joins the CPU with the fewest
  vCPUs and stays there.
- rules = \"xen-2.0\" decides as Xen 2.0 and 3.0.0, \"xen-3.0.2\" as Xen 3.0.2.
  Under Xen's rules `advance`, `warpback` and `warpvalue` replace `weight` and
  `warp`, and `warpl` limits a single run interval. The usual `advance` is 10.
  Twice the `advance` gives half the share.
- Xen's rules have five faults: the parameters marked `fault`. Each fault can be
  switched on or off by itself.

Limits (rules of the paper):
- The CPU times of two spinning vCPUs, divided by their weights, never differ by
  more than `allowance`.
- Without warps, the longest wait of a runnable vCPU is a sum over the other
  vCPUs on its CPU: each adds allowance x (1 + its weight / weight of the
  waiting vCPU).

See also: `slackline help credit` (several CPUs, caps), `sedf` (reservations).";
