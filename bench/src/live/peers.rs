//! The kernel's own ways of limiting a process to 1 % of a CPU.

use anyhow::Result;
use slackline_live::cgroup::Version;
use slackline_live::limit::{Limited, Way, target};
use slackline_units::CpuShare;

use super::Setting;

/// Each with what it is called here.
pub(super) const ALL: [(&str, Way); 3] = [
    ("SCHED_DEADLINE, 0.1 ms of 10 ms", Way::Deadline),
    ("a CFS quota (version 1), 1 ms of 100 ms", Way::Quota(Version::V1)),
    ("a CFS quota (version 2), 1 ms of 100 ms", Way::Quota(Version::V2)),
];

/// Puts the limit on, until what is returned is dropped.
pub(super) fn apply(setting: &Setting, way: &Way, pid: i32, share: CpuShare) -> Result<Limited> {
    let target = target(share, way.usual_period(share))?;
    Ok(Limited::apply(way, pid, target, setting.keeper())?)
}
