//! Help page of `gaps`.

/// Text of `slackline help gaps`.
pub(super) const PAGE: &str = "\
gaps is `credit` with reports from guests: a VM with an urgent task may go ahead
of other VMs, for a bounded part of its own share.

When to use it: for guests that compute all the time and also serve requests. A
guest that does not compute is boosted when it wakes: for it `credit` is enough.

  policy = { name = \"gaps\" }
  [[domain]]
  name       = \"web\"
  tells      = true                 # the guest reports its tasks
  share.gaps = { weight = 256 }
  [[domain.task]]
  name     = \"server\"
  priority = 200
  work     = { kind = \"interactive\", compute = \"60us\", sleep = \"10ms\" }

{parameters}
Rules:
- Credit, timeslices, caps and weights are those of the policy `credit`.
- Reports: a guest reports its most urgent runnable tasks, its most urgent
  blocked tasks, and the tasks that I/O woke lately. The driver domain reports
  for which VM I/O is pending. Both need tells = true in the scenario. Live, an
  agent in the guest reports, and its claim expires after 100 ms.
- Urgency: 0 is most urgent. 0 to 99 is real time, 120 is ordinary. A task's
  `priority` counts the other way: priority 135 is urgency 120.
- Claim: a vCPU claims the urgency of its most urgent runnable task. If I/O is
  pending for its VM, a blocked task that I/O woke lately counts too, because
  the I/O is probably for that task. A VM that does I/O for others is most
  urgent.
- Going ahead: when a CPU chooses, the vCPU of its queue with the most urgent
  claim goes ahead of the vCPU whose turn it is. Only boosted vCPUs run before
  it.
- Bound: a VM may run ahead of others for `boost-cap` of its own share, and may
  save up `boost-depth` of this allowance. It pays credit for this time, so a
  guest that lies gains no CPU time. All claims together delay other VMs by at
  most `boost-cap` of the time and `boost-depth` of each VM.
- A timeslice ahead of others ends with the claim, when the allowance is used
  up, or after its normal length. The VM then returns to its place in the queue.
- A vCPU with the most urgent claim uses up its allowance in its regular
  timeslices too. Ordinary work (urgency 120 or more) does not.
- match = \"exact\": a blocked task counts only if the driver domain says that the
  pending I/O is for this task. By default each task that I/O woke lately
  counts. If the guest has other I/O tasks, the default often boosts for the
  wrong task.
- tell = \"inferred\" needs reports of the driver domain, not of guests. A VM that
  answered at least eight of its last ten requests within `answers-within` of
  CPU time has urgency 100 while a request is pending, for at most
  `answers-within`.
- tell = \"none\" ignores all reports, so that gaps equals `credit`.
- rules = \"paper\" is GAPS as published, on Xen 3.0.4's Credit: of the vCPUs that
  are UNDER, the one with the most urgent claim runs for a whole timeslice,
  without bound. \"paper-ro\" considers runnable tasks only. Set rotation = \"turn\"
  too. Otherwise a server loses its timeslice when its answer wakes the driver
  domain.

Limits:
- By the paper's rules a VM with the least urgent claim may get no CPU time.
- tell = \"inferred\" sees VMs, not tasks. Ordinary work that answers within
  `answers-within` is treated as a server, and a server that needs more is not.
- Each CPU compares the claims in its own queue only. If it takes a vCPU from
  another CPU, it takes the first one.
- The service schedules by `edf` and ignores reports of guests.

See also: `slackline help credit`, `agent` (reports from live guests).";
