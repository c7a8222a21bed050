//! The kernel's own ways of limiting a process to 1 % of a CPU.

use slackline_live::cgroup::Version;
use slackline_live::limit::Way;

/// Each with what it is called here.
pub(super) const ALL: [(&str, Way); 3] = [
    ("SCHED_DEADLINE, 0.1 ms of 10 ms", Way::Deadline),
    ("a CFS quota (version 1), 1 ms of 100 ms", Way::Quota(Version::V1)),
    ("a CFS quota (version 2), 1 ms of 100 ms", Way::Quota(Version::V2)),
];
