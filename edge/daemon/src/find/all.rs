//! Lists of all machines of this host. A *machine* is a VM, container, unit, cgroup or process that
//! can have a reservation.

use std::collections::{BTreeMap, BTreeSet};

use super::called::{MachineIdentity, called};
use super::process::Process;
use super::{Absent, Kind, Machine, all, group_of, groups, line, named_machine};

/// Machines of this host, with the number of VMs that were left out.
#[derive(Debug, Default)]
pub struct MachineList {
    /// Machines, sorted by kind and name.
    pub machines: Vec<Machine>,
    /// Number of VMs that were left out, by the user id of their owner.
    pub omitted: BTreeMap<u32, u64>,
}

/// Returns all VMs, containers and services of this host that can be scheduled, sorted by kind and
/// name. The search asks no monitor, so a QEMU whose threads have no names is listed without vCPUs.
/// A VM whose vCPUs cannot be found is listed with the reason.
///
/// A machine that has just started or is ending may be missing. A listed machine may have ended
/// after the search. The function [`find`](super::find) checks that.
///
/// # Errors
/// If procfs is not mounted.
pub fn find_all() -> Result<Vec<Machine>, Absent> {
    Ok(list_all(usize::MAX)?.machines)
}

/// Returns machines as [`find_all`] does. A VM that is not in a cgroup of libvirt is left out
/// unless its name or UUID is in `names`. So other processes that look like VMs cost little time.
///
/// # Errors
/// The same errors as [`find_all`].
pub(super) fn find_named(names: &BTreeSet<&str>) -> Result<Vec<Machine>, Absent> {
    let is_sought = |identity: &MachineIdentity| {
        let is_named = |name: &str| names.contains(name);
        let has_uuid = || identity.uuid.as_deref().is_some_and(is_named);
        identity.kind == Kind::Libvirt || is_named(&identity.name) || has_uuid()
    };
    Ok(list(usize::MAX, &is_sought)?.machines)
}

/// Lists machines as [`find_all`] does, but at most `most` VMs of each owner. They are the VMs with
/// the lowest process ids. The limit is needed because any user can start any number of processes
/// that look like VMs.
///
/// # Errors
/// The same errors as [`find_all`].
pub fn list_all(most: usize) -> Result<MachineList, Absent> {
    list(most, &|_| true)
}

fn list(most: usize, is_sought: &dyn Fn(&MachineIdentity) -> bool) -> Result<MachineList, Absent> {
    let (mut machines, mut omitted) = (Vec::new(), BTreeMap::new());
    let (mut known, mut of_owner) = (BTreeMap::new(), BTreeMap::new());
    for pid in all()? {
        // A process that has ended meanwhile is left out.
        let Ok(Some(process)) = Process::read(pid) else { continue };
        let groups = process.groups().unwrap_or_default();
        if let Some(said) = line::read(&process.line)
            && is_sought(&called(&said, &groups))
        {
            let owner = if most < usize::MAX { process.owner().ok() } else { None };
            let is_full = owner.is_some_and(|user| of_owner.get(&user) >= Some(&most));
            if let Some(user) = owner.filter(|_| is_full) {
                *omitted.entry(user).or_default() += 1;
            } else if let Ok(Some(machine)) = named_machine(&process, &said, &groups) {
                *of_owner.entry(machine.owner).or_default() += 1;
                machines.push(machine);
            }
        }
        if let Some(group) = groups::unified(&groups).and_then(groups::known) {
            known.entry(group.group.clone()).or_insert(group);
        }
    }
    machines.extend(known.into_values().filter_map(|known| group_of(&known)));
    machines.sort_by(|a, b| (a.kind, &a.name, a.identity).cmp(&(b.kind, &b.name, b.identity)));
    Ok(MachineList { machines, omitted })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    #[test]
    fn vm_list_has_a_limited_number_of_vms_per_owner() {
        let start = |number: usize| {
            let mut command = Command::new("sh");
            let name = format!("list-{number}");
            command.arg0("qemu-system-x86_64").args(["-c", "echo @; read line", "-name", &name]);
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
            child
        };
        let mut all: Vec<Child> = (0..3).map(start).collect();
        let uid = rustix::process::getuid().as_raw();
        let list = list_all(1).unwrap();
        let own = |one: &&Machine| one.owner == uid && one.kind == Kind::Qemu;
        assert_eq!(list.machines.iter().filter(own).count(), 1);
        assert!(list.omitted[&uid] >= 2, "{:?}", list.omitted);
        let sought = find_named(&BTreeSet::from(["list-1"])).unwrap();
        let is_vm = |one: &&Machine| one.kind == Kind::Qemu;
        let names: Vec<&str> = sought.iter().filter(is_vm).map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["list-1"]);
        for child in &mut all {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
