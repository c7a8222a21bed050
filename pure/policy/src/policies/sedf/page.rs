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
- `weight`: the part of 95 ms in every 100 ms that is not reserved by slices is
  divided by weight. So a slice by weight changes when vCPUs come and go.
- Slack is given in quanta: first to vCPUs that lost budget by blocking or were
  late, then to all with `extra`, by `extra-weight` or slice/period. An
  `extra-weight` of 128 counts as slice/period = 1. slack = \"penalty\" serves
  only the first group, \"weighted\" and \"round-robin\" only the second.
- `unblocking` is the budget of a vCPU that wakes within its period:
  proportional   the larger of two: its budget less the blocked time, or
                 slice/period of the rest of the period. It makes no other vCPU
                 late.
  isochronous    nothing until the vCPU's next period
  conservative   nothing; after a block beyond the period a new period begins
  short-resume   its budget less the blocked time, if that is a quantum or more
  latency-hint   as conservative; after a block beyond the period, the new
                 period is as short as `latency` and doubles until it has full
                 length
  burst          as short-resume; if too little is left, the period becomes as
                 long as the time between the last two wake-ups, and used time
                 stays, so the first short period is mostly skipped. A
                 `latency` counts as under latency-hint.
  extra-support  as conservative, and the lost budget comes from slack
- Changing parameters under \"proportional\" starts a new period at once and
  yields no extra CPU time: usage beyond slice x elapsed / period is deducted
  from the next slices. The same holds for a vCPU that leaves and rejoins.
  Capacity that a vCPU gives up stays reserved until slice x elapsed / period
  has reached its usage. It is free at once if no other vCPU of the CPU has
  budget left or can wake with some. Under other values of `unblocking`, a
  change keeps the period and its usage, as in Xen.
- A slice by weight holds for its 100 ms under \"proportional\" with admission. A
  new vCPU with a weight may get its part one period later. A new or larger
  reservation shrinks slices by weight at once, which may make a slice late
  once. Otherwise all are recomputed at every change, as in Xen.
- place = \"split\": a vCPU that fits on no single CPU runs the parts of its slice
  one after the other on several CPUs. It misses no deadline. It uses slack on
  the CPU on which it is.
- rules = \"best\" delivers every slice. \"xen-3.0.3\", \"xen-3.0.2\" and \"thesis\"
  (the tree of August 2005) set each field that is as-rules to its value in that
  version. In these versions lost budget is compensated by one quantum (3.0.3)
  or by whole quanta. Slack is charged in whole quanta, and a vCPU that uses
  slack is forgiven its overruns. Missed deadlines are forgotten. Gaps shorter
  than a quantum stay idle. The first period begins one slice late. Slices by
  weight have extra-weight 1. No slice is refused.

Balancing: each CPU hands out its own slack. So without balancing, three
best-effort loops on two CPUs have 1, 1/2 and 1/2 of a CPU. `balancer` migrates
best-effort vCPUs, within their `cpus`, and no others:
  thesis    every 500 ms a CPU with little slack per weight (tau) swaps vCPUs
            with a CPU that has much. Three loops on two CPUs then have 2/3 of a
            CPU each, on average.
  repaired  as thesis, without three faults: an idle CPU takes a vCPU even if
            that is more than its part, CPUs in a tie take turns, and a CPU that
            finds nothing to swap tries other CPUs
  planned   fair rates are computed. A vCPU that fits on no CPU alternates
            between CPUs at its rate. More exact for vCPUs that are always
            runnable. A vCPU that blocks is never split.
- The balancer is called every 50 ms on CPU 0. Every second call samples the CPU
  time of each vCPU and the slack of each CPU, every tenth call balances. A
  weight counts for the time in which its vCPU was runnable.
- The time of a call is charged to no vCPU, and `balancer-slice` of CPU 0 stays
  free for it. With [host] balancing a vCPU called [balancer] has that slice and
  makes the calls. A vCPU with balances = true pays instead: a call that is due
  is made when it has run and blocks.
- Sets of CPUs between which no vCPU may migrate are balanced separately.

Limits:
- Splitting needs admission = \"exact\", unblocking = \"proportional\" and
  first-period = \"at-once\". Packing needs admission = \"exact\". With other values
  they are refused.
- On a CPU with a split vCPU at least 0.1 % stays free, a vCPU that blocks loses
  the budget it would have used (and is compensated from slack), a change may
  take effect with the next period, and no slice by weight is placed.
- On a live host, slack competes with other programs. The vCPU whose turn it is
  runs as an ordinary thread. Other vCPUs of its CPU run behind all ordinary
  threads, except process trees and threads that a vCPU of QEMU just started.

See also: `slackline help edf`, `host` (what balancing costs).";
