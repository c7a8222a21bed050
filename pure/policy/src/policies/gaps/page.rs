//! Help page of `gaps`.

/// Text of `slackline help gaps`.
pub(super) const PAGE: &str = "\
gaps is `credit` with reports from guests: a VM with an urgent task may go ahead
of other VMs, for a bounded part of its own share.

When to use it: for guests that compute all the time and also serve requests. A
guest that does not compute is boosted when it wakes, so `credit` is enough.

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
- Reports: with tells = true a guest reports its most urgent runnable tasks, its
  most urgent blocked tasks, and the tasks that I/O woke lately. The driver
  domain reports for which VM I/O is pending. On a live host an agent in the
  guest makes these reports.
- Urgency is 0 (most urgent) to 255. The urgency of a task is 255 - `priority`:
  priority 135 is urgency 120, which is ordinary work.
- A vCPU claims the urgency of its most urgent runnable task, or of a blocked
  task that I/O woke lately if I/O is pending for its VM.
- The vCPU with the most urgent claim goes ahead of the vCPU whose turn it is.
- Bound: a VM runs ahead of others for at most `boost-cap` of its own share, and
  pays credit for that time. So a guest that lies gains no CPU time.
- With tell = \"inferred\" a VM that answers I/O quickly counts as urgent while
  I/O is pending. With tell = \"none\" all reports are ignored.
- rules = \"paper\" and \"paper-ro\" are GAPS as published, without a bound.

Limits:
- Under rules = \"paper\" a VM with the least urgent claim can starve.
- Each CPU compares the claims of the vCPUs in its own queue only.
- The daemon schedules by `edf` and ignores reports of guests.

See also: `slackline help credit`, `agent` (reports from live guests). The
book's chapter on gaps has the rules in full.";
