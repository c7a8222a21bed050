//! One list of the host's machines that serves many look-ups. A *machine* is a VM, container, unit,
//! cgroup or process that can have a reservation.

use std::collections::BTreeSet;

use slackline_linux::cgroup::UnitFolders;
use slackline_service::{Binding, BindingKind};

use super::all::find_named;
use super::by_name::{Asks, Candidate, chosen};
use super::{Absent, FoundMachine, Kind, Machine, find_asking, found_group};

/// List of the host's VMs and of the cgroups of systemd units, made once for many look-ups. A
/// look-up in this list takes only the time for one machine, however many processes and cgroups the
/// host has.
#[derive(Debug, Default)]
pub(crate) struct Around {
    machines: Vec<Machine>,
    /// Cgroups of the units that bindings name. `None` if no binding names a unit, or no cgroups
    /// are mounted.
    units: Option<UnitFolders>,
}

/// Returns true if the search for a binding of this kind compares names in all of procfs.
pub(crate) const fn is_by_name(kind: BindingKind) -> bool {
    !matches!(kind, BindingKind::Unit | BindingKind::Group | BindingKind::Pid)
}

impl Around {
    /// Makes the list from which the machines of these bindings can be looked up.
    pub(crate) fn look<'a>(bindings: impl IntoIterator<Item = &'a Binding>) -> Around {
        let (mut names, mut units) = (BTreeSet::new(), BTreeSet::new());
        for binding in bindings {
            if is_by_name(binding.kind()) {
                names.insert(binding.name());
            }
            if binding.kind() == BindingKind::Unit {
                units.insert(binding.name());
            }
        }
        // If nothing can be read, no VM is found. A request for the VM gets the reason.
        let is_name_sought = !names.is_empty();
        let found = || find_named(&names).unwrap_or_default();
        let machines = if is_name_sought { found() } else { Vec::new() };
        let units = if units.is_empty() { None } else { UnitFolders::find(&units).ok() };
        Around { machines, units }
    }

    /// Returns the VMs whose name or UUID is in one of the bindings, and all VMs of libvirt. Empty
    /// if no binding refers to a VM by its name.
    pub(crate) fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// Finds a machine in this list as [`find_at_once`](super::find_at_once) does. `binding` must
    /// be one of the bindings for which the list was made.
    ///
    /// # Errors
    /// The same errors as [`find_at_once`](super::find_at_once).
    pub(crate) fn find(
        &self,
        binding: &Binding,
        user: Option<u32>,
    ) -> Result<FoundMachine, Absent> {
        self.find_asking(binding, user, Asks::Nobody)
    }

    /// Finds a machine for a reservation as [`find`](Around::find) does. If needed, asks the
    /// machine's monitor, which can take two seconds. A monitor serves one client at a time, so
    /// only monitors of VMs of `user` are asked. If `user` is root, monitors of other users' VMs
    /// are asked too, if only root can set the names of these VMs. A reservation for root can get
    /// such VMs.
    ///
    /// # Errors
    /// The same errors as [`find_for`](super::find_for).
    pub(crate) fn ask(&self, binding: &Binding, user: u32) -> Result<FoundMachine, Absent> {
        let is_of_root = |owner| {
            let mut machines = self.machines.iter();
            machines.any(|one| one.owner == owner && one.is_vouched && one.is(binding))
        };
        let may_ask = |owner| owner == user || user == 0 && is_of_root(owner);
        self.find_asking(binding, Some(user), Asks::MonitorsOf(&may_ask))
    }

    fn find_asking(
        &self,
        binding: &Binding,
        user: Option<u32>,
        asks: Asks<'_>,
    ) -> Result<FoundMachine, Absent> {
        match (binding.kind(), &self.units) {
            (BindingKind::Unit, Some(units)) => {
                found_group(binding, Kind::Unit, &units.place_of(binding.name())?)
            }
            (kind, _) if is_by_name(kind) => {
                let fitting = self.machines.iter().filter(|machine| machine.is(binding));
                let fitting = fitting.filter_map(|machine| {
                    let (kind, owner) = (machine.kind, machine.owner);
                    Some(Candidate { pid: machine.pid()?, kind, owner: Some(owner) })
                });
                let fitting: Vec<Candidate> = fitting.collect();
                let stranger = stranger(&fitting, user);
                match (chosen(binding, fitting, (user, asks)), stranger) {
                    // The owner of the reservation must learn nothing else about these VMs.
                    (Err(absent), Some(user)) if !absent.is_yet_to_come() => {
                        Err(Absent::NotYours { binding: binding.clone(), user })
                    }
                    (found, _) => found,
                }
            }
            _ => find_asking(binding, user, asks),
        }
    }
}

/// Returns the owner of a VM that matches a binding, if all matching VMs belong to other users than
/// `user`. `None` if a VM belongs to `user`, or if no VM matches. Also `None` if `user` is root,
/// because a reservation for root can accept VMs of other users.
fn stranger(fitting: &[Candidate], user: Option<u32>) -> Option<u32> {
    let user = user.filter(|user| *user != 0)?;
    let is_of_others = fitting.iter().all(|one| one.owner != Some(user));
    fitting.first().filter(|_| is_of_others)?.owner
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use slackline_service::LookError;

    use super::super::process::SCANS;
    use super::*;

    /// Starts a process with the command line of a QEMU whose VM has the name `name`. The threads
    /// of the process have no names.
    fn qemu(name: &str) -> Child {
        let mut command = Command::new("sh");
        command.arg0("qemu-system-x86_64").args(["-c", "echo @; read line", "-name", name]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut up = [0; 2];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut up).unwrap();
        child
    }

    #[test]
    fn vm_search_reveals_only_the_owner_of_foreign_vms() {
        let name = format!("foreign-{}", std::process::id());
        let mut all = [qemu(&name), qemu(&name)];
        let binding = Binding::new(BindingKind::Qemu, &name).unwrap();
        let around = Around::look([&binding]);
        let own = rustix::process::getuid().as_raw();
        let found = [own, own + 1].map(|user| around.find(&binding, Some(user)));
        for child in &mut all {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let [of_owner, of_other] = found;
        assert!(matches!(of_owner, Err(Absent::Several { .. })), "{of_owner:?}");
        let is_hidden = matches!(of_other, Err(Absent::NotYours { user, .. }) if user == own);
        assert!(is_hidden, "{of_other:?}");
    }

    #[test]
    fn vm_process_without_vcpu_threads_is_reported_as_starting() {
        let mut child = qemu(&format!("starting-{}", std::process::id()));
        let binding = Binding::new(BindingKind::Pid, &child.id().to_string()).unwrap();
        let found = Around::look([&binding]).find(&binding, Some(0));
        child.kill().unwrap();
        child.wait().unwrap();
        let error = found.unwrap_err().in_service();
        let LookError::Starting { says } = &error else { panic!("{error:?}") };
        let process = format!("cannot find the vCPU threads of process {}", child.id());
        assert!(says.starts_with(&process), "{says}");
    }

    #[test]
    fn two_thousand_vm_lookups_need_only_one_process_scan() {
        let name = format!("around-{}", std::process::id());
        let mut all = [qemu(&name), qemu(&format!("{name}-b")), qemu(&format!("{name}-b"))];
        let binding = |name: &str| Binding::new(BindingKind::Qemu, name).unwrap();
        let absent = (0..2_000).map(|number| binding(&format!("{name}-absent-{number}")));
        let mut bindings: Vec<Binding> = absent.collect();
        bindings.extend([binding(&name), binding(&format!("{name}-b"))]);
        SCANS.set(0);
        let around = Around::look(&bindings);
        for binding in &bindings[..2_000] {
            let found = around.find(binding, Some(0));
            assert!(matches!(found, Err(Absent::NotHere { .. })), "{found:?}");
        }
        let found = around.find(&bindings[2_000], Some(0));
        assert!(matches!(found, Err(Absent::NoVcpus(_))), "{found:?}");
        let found = around.find(&bindings[2_001], Some(0));
        assert!(matches!(found, Err(Absent::Several { .. })), "{found:?}");
        assert_eq!(SCANS.get(), 1);
        for child in &mut all {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
