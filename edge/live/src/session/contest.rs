//! State of a member (a scheduled vCPU) whose threads other programs may have changed.

use std::fs;

use slackline_units::{CpuSet, Time};

use super::finding::ForeignChange;
use slackline_linux::cgroup::Surroundings;
use slackline_linux::sys::Tid;

/// Record of changes to a member's threads that the session did not order.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Change by another program that makes the member contested. `None` if the member is not
    /// contested.
    pub(super) found: Option<ForeignChange>,
    /// CPUs to which the session had pinned the member when the change was found.
    pub(super) ordered: Option<CpuSet>,
    /// Times at which the member itself recently changed its affinity.
    pub(super) own: Vec<Time>,
    /// Time at which a member that was stopped for changing its own affinity too often may run
    /// again. `None` if it is not stopped for that.
    pub(super) stopped_until: Option<Time>,
    /// Cgroups, CPU limits and freeze states of the member's threads, as the session expects them.
    pub(super) before: Vec<(Tid, Surroundings)>,
    /// Time of the last check of the threads' cgroups. `None` before the first check.
    pub(super) looked: Option<Time>,
    /// Time when the member joined.
    pub(super) joined: Time,
}

impl Changes {
    /// Returns the change by another program that makes the member contested. `None` if it is not
    /// contested.
    pub(super) fn contested(&self) -> Option<&ForeignChange> {
        self.found.as_ref()
    }

    /// Notes that the member has joined.
    pub(super) fn begin(&mut self, now: Time) {
        self.joined = now;
    }

    /// Drops the recorded cgroups of the threads, because the session is about to change the
    /// cgroups itself.
    pub(super) fn forget_surroundings(&mut self) {
        self.before.clear();
    }
}

/// Returns true if the name of a process's cgroup shows that the process is a VM of libvirt. Only
/// root can create a cgroup of that name.
pub(super) fn is_of_libvirt(pid: Tid) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|group| {
        let is_below = group.starts_with("/machine.slice/") || group.starts_with("/machine/");
        let is_machine =
            |part: &str| part.starts_with("machine-qemu") || part.ends_with(".libvirt-qemu");
        is_below && group.split('/').any(is_machine)
    })
}
