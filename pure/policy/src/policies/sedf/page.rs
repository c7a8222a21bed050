//! Manual page of the policy `sedf`.

/// Text of `slackline help sedf`.
pub(super) const PAGE: &str = "\
sedf is the earliest-deadline-first scheduler of Xen 3.0. Each vCPU has a slice
in every period, a part of the slack, or both.

When to use it: for reservations beside best-effort VMs that share the rest by
weight, and to reproduce Xen 3.0 or the thesis.

  share.sedf = { slice = \"5ms\", period = \"20ms\" }     # a slice, and slack
  share.sedf = { slice = \"5ms\", period = \"20ms\", extra = false }  # no slack
  share.sedf = {}                                     # best effort: slack only
  share.sedf = { extra-weight = 64 }                  # 64 times as much slack
  share.sedf = { weight = 7, extra = false }          # a slice by weight

{parameters}
Rules:
- Slices: of the vCPUs with budget left, the one whose period ends first runs.
  Each vCPU is bound to one CPU, where the sum of slice/period may not exceed
  1 - `reserve`.
- `weight`: what slices leave of 95 ms in every 100 ms is divided by weight, as
  slices that change when others come and go.
- Slack goes out in quanta: first to vCPUs that lost budget by blocking or were
  late, then to all with `extra`, by `extra-weight` or slice/period. An
  `extra-weight` of 128 counts as slice/period = 1. slack = \"penalty\" serves
  only the first group, \"weighted\" and \"round-robin\" only the second.
- `unblocking` is what a vCPU that wakes within its period may still use:
  proportional   the larger of two: its budget less the blocked time, or
                 slice/period of the rest. No other vCPU is late for it.
  isochronous    nothing until its next period
  conservative   nothing; after a block beyond the period a new period begins
  short-resume   what is left if the blocked time counts as used, if that is a
                 quantum or more
  latency-hint   as conservative; after a long block the period is as short as
                 `latency` and doubles until it has its length
  burst          as short-resume; if too little is left, the period becomes as
                 long as the time between the last two wake-ups, and used time
                 stays, so the first short period is mostly skipped. A
                 `latency` counts as under latency-hint.
  extra-support  as conservative, and the lost budget comes from slack
- Changing parameters under \"proportional\" starts a new period at once and
  yields no extra CPU time: usage beyond slice x elapsed / period is deducted
  from the next slices. The same holds for a vCPU that leaves and rejoins. CPU
  time given up stays reserved until that usage is accrued, if another vCPU
  waits for its slice. Otherwise period and usage stay as they were, as in Xen.
- A slice by weight holds for its 100 ms under \"proportional\" with admission. A
  newcomer with a weight may have its part one period later. A reservation that
  comes or grows shrinks slices by weight at once, which may make a slice late
  once. Otherwise all are recomputed at every change, as in Xen.
- place = \"split\": a vCPU that fits on no CPU as a whole runs one part of its
  slice after the other on several CPUs, and misses no deadline. It has its
  slack where it is.
- rules = \"best\" keeps every slice. \"xen-3.0.3\", \"xen-3.0.2\" and \"thesis\" (the
  tree of August 2005) set all fields that say as-rules as in these versions.
  There lost budget is compensated by one quantum (3.0.3) or by whole quanta,
  slack counts in whole quanta and forgives overruns, a missed deadline is
  forgotten, gaps shorter than a quantum stay idle, the first period begins one
  slice late, slices by weight have extra-weight 1, and nothing is refused.

Balancing: each CPU hands out its own slack, so three best-effort loops on two
CPUs have 1, 1/2 and 1/2. `balancer` migrates best-effort vCPUs, within their
`cpus`, and no others:
  thesis    every 500 ms a CPU with little slack per weight (tau) swaps vCPUs
            with one that has much. Of three loops each then has 2/3, in turns.
  repaired  the same without three faults: an idle CPU takes a vCPU even if that
            is more than its part, CPUs in a tie take turns, and a CPU that
            finds nothing to swap tries others
  planned   fair rates are computed. A vCPU that fits on no CPU alternates
            between CPUs at its rate. More exact for vCPUs that are always
            runnable. A vCPU that blocks is never split.
- Calls come every 50 ms on CPU 0. Every second one samples the CPU time of each
  vCPU and the slack of each CPU, every tenth balances. Weights count for the
  time a vCPU was runnable.
- The time of a call is charged to no vCPU, and `balancer-slice` of CPU 0 stays
  free for it. With [host] balancing a vCPU called [balancer] has that slice and
  makes the calls. A vCPU with balances = true pays instead: a call that is due
  is made when it has run and blocks.
- CPUs on which no common vCPU may run are balanced apart.

Limits:
- Splitting needs admission = \"exact\", unblocking = \"proportional\" and
  first-period = \"at-once\", packing needs admission = \"exact\". Other rules
  refuse them.
- On a CPU with a split vCPU at least 0.1 % stays free, a vCPU that blocks loses
  the budget it would have used (and is compensated from slack), a change may
  take effect with the next period, and no slice by weight is placed.
- Live, slack competes with other programs. Only the vCPU whose turn it is runs
  as an ordinary thread. The others of its CPU come behind all ordinary threads,
  except process trees and threads that a vCPU of QEMU starts just then.

See also: `slackline help edf`, `host` (what balancing costs).";
