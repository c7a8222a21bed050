//! Choice of a process if several processes match the name in a binding.

use slackline_linux::sys::Tid;
use slackline_live::vcpus;
use slackline_service::Binding;

use super::called::{MachineIdentity, called, is_called};
use super::process::{self, Process};
use super::{Absent, FoundMachine, Kind, all, found_process, line, not_here};

/// Permission of a search to ask VMs' monitors for the vCPUs that procfs does not show.
#[derive(Clone, Copy)]
pub(super) enum Asks<'a> {
    Monitors,
    /// The search may ask the monitors of the users for whom the function returns true.
    MonitorsOf(&'a dyn Fn(u32) -> bool),
    /// The search by name finds only VMs of the users for whom the function returns true. It may
    /// ask the monitors of these users.
    VmsOf(&'a dyn Fn(u32) -> bool),
    Nobody,
}

impl Asks<'_> {
    /// Returns true if monitors of this user's VMs may be asked.
    pub(super) fn may_ask(self, owner: u32) -> bool {
        match self {
            Asks::MonitorsOf(may_have) | Asks::VmsOf(may_have) => may_have(owner),
            Asks::Monitors | Asks::Nobody => true,
        }
    }

    /// Returns true if the search may find VMs of the user `owner`. `owner` is `None` if the owner
    /// of a VM cannot be read.
    fn may_find(self, owner: Option<u32>) -> bool {
        match self {
            Asks::VmsOf(may_have) => owner.is_some_and(may_have),
            Asks::Monitors | Asks::MonitorsOf(_) | Asks::Nobody => true,
        }
    }
}

/// Finds a machine by its name in all of procfs.
pub(super) fn found_by_name(
    binding: &Binding,
    user: Option<u32>,
    asks: Asks<'_>,
) -> Result<FoundMachine, Absent> {
    let mut fitting = Vec::new();
    for pid in all()? {
        let Ok(Some(process)) = Process::read(pid) else { continue };
        let Some(said) = line::read(&process.line) else { continue };
        let groups = process.groups().unwrap_or_default();
        let MachineIdentity { kind, name, uuid } = called(&said, &groups);
        let is_it = is_called((kind, &name, uuid.as_deref()), binding);
        if is_it && process::may_be_held(pid).is_ok() {
            fitting.push(Candidate { pid, kind, owner: process.owner().ok() });
        }
    }
    chosen(binding, fitting, (user, asks))
}

/// A process that may be the machine to which a binding refers.
pub(super) struct Candidate {
    pub(super) pid: Tid,
    pub(super) kind: Kind,
    /// Id of the user that owns the process. `None` if the owner cannot be read.
    pub(super) owner: Option<u32>,
}

/// Returns the machine to which a binding refers. `fitting` contains the processes that match the
/// binding.
pub(super) fn chosen(
    binding: &Binding,
    mut fitting: Vec<Candidate>,
    (user, asks): (Option<u32>, Asks<'_>),
) -> Result<FoundMachine, Absent> {
    fitting.retain(|one| asks.may_find(one.owner));
    let is_meant = |one: &Candidate| {
        let is_roots = one.kind == Kind::Libvirt && user == Some(0);
        is_roots || user.is_some() && one.owner == user
    };
    if fitting.len() > 1 && fitting.iter().any(is_meant) {
        fitting.retain(is_meant);
    }
    // Programs fork to become a daemon or to confine a helper. Such children have the same command
    // line. So processes with vCPU threads are preferred.
    let carries =
        |one: &Candidate| vcpus::find_named(one.pid.raw()).is_ok_and(|found| !found.is_empty());
    if fitting.len() > 1 && fitting.iter().any(carries) {
        fitting.retain(carries);
    }
    match *fitting {
        [] => Err(not_here(binding)),
        [Candidate { pid, .. }] => found_process(binding, pid, asks),
        [Candidate { pid: first, owner, .. }, Candidate { pid: second, .. }, ..] => {
            let of_others = |one: &Candidate| one.owner.is_none_or(|owner| !asks.may_ask(owner));
            match owner {
                Some(user) if fitting.iter().all(of_others) => {
                    Err(Absent::NotYours { binding: binding.clone(), user })
                }
                _ => Err(Absent::Several { binding: binding.clone(), first, second }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_for_a_tenant_finds_no_vms_of_other_users() {
        let pid = i32::try_from(std::process::id()).ok().and_then(Tid::new).unwrap();
        let binding: Binding = "qemu:web".parse().unwrap();
        let is_own = |user: u32| user == 5002;
        let search = |asks| {
            let of = |owner| Candidate { pid, kind: Kind::Qemu, owner };
            chosen(&binding, vec![of(Some(5001)), of(None)], (Some(5002), asks)).unwrap_err()
        };
        let of_tenant = search(Asks::VmsOf(&is_own));
        assert!(matches!(of_tenant, Absent::NotHere { .. }), "{of_tenant}");
        let of_operator = search(Asks::MonitorsOf(&is_own));
        assert!(matches!(of_operator, Absent::NotYours { user: 5001, .. }), "{of_operator}");
    }
}
