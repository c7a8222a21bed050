//! What is known of a member whose threads others may have changed.

use std::fs;

use slackline_units::{CpuSet, Time};

use super::finding::Finding;
use slackline_linux::cgroup::Surroundings;
use slackline_linux::sys::Tid;

/// What is known of changes to a member that were not ordered.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Why it is contested.
    pub(super) found: Option<Finding>,
    /// The CPUs that it was kept on when that was found.
    pub(super) ordered: Option<CpuSet>,
    /// When it bound itself elsewhere, of late.
    pub(super) own: Vec<Time>,
    /// Until when it is stopped for that.
    pub(super) stopped_until: Option<Time>,
    /// The surroundings of its threads as they should be.
    pub(super) before: Vec<(Tid, Surroundings)>,
    /// When they were last looked at.
    pub(super) looked: Option<Time>,
    /// When the member joined.
    pub(super) joined: Time,
}

impl Changes {
    /// Why the member is contested, if it is.
    pub(super) fn contested(&self) -> Option<&Finding> {
        self.found.as_ref()
    }

    /// The member has joined.
    pub(super) fn begin(&mut self, now: Time) {
        self.joined = now;
    }

    /// The surroundings are about to be changed by ourselves.
    pub(super) fn forget_surroundings(&mut self) {
        self.before.clear();
    }
}

/// True if a process is a machine of libvirt, by the group that only root makes.
pub(super) fn is_of_libvirt(pid: Tid) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|group| {
        let is_below = group.starts_with("/machine.slice/") || group.starts_with("/machine/");
        let is_machine =
            |part: &str| part.starts_with("machine-qemu") || part.ends_with(".libvirt-qemu");
        is_below && group.split('/').any(is_machine)
    })
}
