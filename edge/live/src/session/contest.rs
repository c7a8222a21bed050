//! State of a member whose threads other programs may have changed.

use std::fs;

use slackline_units::{CpuSet, Time};

use super::finding::Finding;
use slackline_linux::cgroup::Surroundings;
use slackline_linux::sys::Tid;

/// Changes to a member that were not ordered.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Change for which it is contested. `None` if it is not.
    pub(super) found: Option<Finding>,
    /// CPUs that it was pinned to when that was found.
    pub(super) ordered: Option<CpuSet>,
    /// Times at which it changed its own affinity recently.
    pub(super) own: Vec<Time>,
    /// End of the stop for that. `None` if it is not stopped.
    pub(super) stopped_until: Option<Time>,
    /// Surroundings of its threads as they should be.
    pub(super) before: Vec<(Tid, Surroundings)>,
    /// Time of the last check of the surroundings. `None` before the first.
    pub(super) looked: Option<Time>,
    /// Time when the member joined.
    pub(super) joined: Time,
}

impl Changes {
    /// Returns the change for which the member is contested. `None` if it is not.
    pub(super) fn contested(&self) -> Option<&Finding> {
        self.found.as_ref()
    }

    /// Notes that the member has joined.
    pub(super) fn begin(&mut self, now: Time) {
        self.joined = now;
    }

    /// Forgets the surroundings, which we are about to change ourselves.
    pub(super) fn forget_surroundings(&mut self) {
        self.before.clear();
    }
}

/// Returns true if a process is a VM of libvirt. That shows by its group, which only root can make.
pub(super) fn is_of_libvirt(pid: Tid) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|group| {
        let is_below = group.starts_with("/machine.slice/") || group.starts_with("/machine/");
        let is_machine =
            |part: &str| part.starts_with("machine-qemu") || part.ends_with(".libvirt-qemu");
        is_below && group.split('/').any(is_machine)
    })
}
