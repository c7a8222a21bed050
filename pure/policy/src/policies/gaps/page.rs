//! Help page of `gaps`.

/// Text of `slackline help gaps`.
pub(super) const PAGE: &str = "\
gaps is `credit` that listens to guests: a VM with an urgent task may go ahead
of other VMs, for a bounded part of its own share.

When to use it: for guests that compute all the time and also serve requests. A
guest that only waits is boosted at wake-up anyway: there `credit` is enough.

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
- Accounts, timeslices, caps and weights are those of `credit`.
- Reports: a guest reports its most urgent runnable tasks, its most urgent
  blocked tasks, and the tasks that I/O woke lately. The driver domain reports
  for which VM I/O is pending. Both need tells = true in the scenario. Live, an
  agent in the guest reports, and its claim expires after 100 ms.
- Urgency: 0 is most urgent. 0 to 99 is real time, 120 is ordinary. A task's
  `priority` counts the other way: priority 135 is urgency 120.
- Claim: a vCPU claims the urgency of its most urgent runnable task. If I/O is
  pending for its VM, a blocked task counts too if I/O woke it lately, for the
  I/O is probably for it. A VM that does I/O for others is most urgent.
- Going ahead: when a CPU chooses, the vCPU of its queue that claims most goes
  ahead of the one whose turn it is. Only boosted vCPUs still come first.
- Bound: a VM may run ahead of others for `boost-cap` of its own share, and may
  save up `boost-depth`. All of it is paid for in credit, so a guest that lies
  gains no CPU time. All claims together delay other VMs by at most `boost-cap`
  of the time and `boost-depth` of each VM.
- A turn ahead ends with the claim, when the bound is used up, or after a
  timeslice. The VM then has its old place in the queue.
- A vCPU that claims most also pays from the bound in its own turn. Ordinary
  work (urgency 120 or more) claims nothing there.
- match = \"exact\": a blocked task counts only if the driver domain says that the
  pending I/O is for it. By default each task that I/O woke lately counts, so
  with other I/O tasks in the guest it often boosts the wrong one.
- tell = \"inferred\" needs no guest, only the driver domain. A VM that answered
  at least eight of its last ten requests within `answers-within` of CPU time
  has urgency 100 while a request is pending, for at most `answers-within`.
- tell = \"none\" listens to no guest and is `credit`.
- rules = \"paper\" is GAPS as published, on Xen 3.0.4's Credit: among vCPUs that
  are UNDER the one that claims most runs for a whole timeslice, without bound.
  \"paper-ro\" looks at runnable tasks only. Set rotation = \"turn\" as well, or a
  server loses its turn when its answer wakes the driver domain.

Limits:
- By the paper's rules a VM that claims least may get no CPU time at all.
- tell = \"inferred\" sees VMs, not tasks. Ordinary work that answers as fast is
  served like a server, and a server that answers more slowly is not seen.
- Each CPU looks at its own queue. From another CPU it takes the first vCPU.
- The service schedules by `edf` and listens to no guest.

See also: `slackline help credit`, `agent` (reports from live guests).";
