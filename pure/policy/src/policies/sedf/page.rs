//! Help page of `sedf`.

/// Text of `slackline help sedf`.
pub(super) const PAGE: &str = "\
sedf is the earliest-deadline-first scheduler of Xen 3.0. Each vCPU has a slice
in every period, a part of the slack, or both.

When to use it: for reservations beside best-effort VMs that share the rest by
weight, and to reproduce Xen 3.0 or Diestelhorst's thesis.

  share.sedf = { slice = \"5ms\", period = \"20ms\" }     # a slice, and slack
  share.sedf = { slice = \"5ms\", period = \"20ms\", extra = false }  # no slack
  share.sedf = { extra-weight = 64 }                  # best effort: slack only
  share.sedf = { weight = 7, extra = false }          # a slice by weight

{parameters}
Rules:
- Of the vCPUs with budget left, the one whose period ends first runs.
- Each vCPU is bound to one CPU, where at most 1 - `reserve` is reserved.
- Slack goes first to vCPUs that lost budget by blocking or missed a deadline,
  then to vCPUs with `extra`, by `extra-weight` or slice/period.
- `weight`: in every 100 ms, the vCPUs with a `weight` divide 95 ms less the
  time that fixed slices reserve.
- A change of parameters starts a new period and yields no extra CPU time.
- `balancer` migrates best-effort vCPUs, so that they share all CPUs evenly.
- place = \"split\" divides a vCPU that fits on no single CPU among several CPUs.

Limits:
- place = \"split\" needs admission \"exact\", unblocking \"proportional\" and
  first-period \"at-once\". place = \"pack\" needs admission \"exact\".
- On a live host vCPUs that use slack compete with other programs.

See also: `slackline help edf`, `host`, and docs/schedulers/sedf.md.";
