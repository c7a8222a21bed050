//! Names of VMs and other machines, read from the command line and the cgroups of a process.

use slackline_linux::sys::Tid;
use slackline_service::{Binding, BindingKind};

use super::line::{Program, VmCommandLine};
use super::shown::bound;
use super::{Kind, groups};

/// Kind, name and UUID of a machine (VM, container, unit, cgroup or process).
pub(super) struct MachineIdentity {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) uuid: Option<String>,
}

/// Returns true if a binding refers to a machine with the given kind, name and UUID.
pub(super) fn is_called((kind, name, uuid): (Kind, &str, Option<&str>), binding: &Binding) -> bool {
    let is = |kinds: &[Kind]| kinds.contains(&kind) && name == binding.name();
    match binding.kind() {
        BindingKind::Libvirt => is(&[Kind::Libvirt]),
        BindingKind::Qemu => is(&[Kind::Libvirt, Kind::Qemu]),
        BindingKind::Firecracker => is(&[Kind::Firecracker]),
        BindingKind::CloudHypervisor => is(&[Kind::CloudHypervisor]),
        BindingKind::Uuid => uuid == Some(binding.name()),
        BindingKind::Unit | BindingKind::Group | BindingKind::Pid => false,
    }
}

impl MachineIdentity {
    /// Returns the binding by which the daemon can find the VM again. The binding contains the name
    /// of the VM or, if no binding can contain the name, its UUID. Without both it contains the
    /// process id. Returns `None` if no binding can contain the process id.
    pub(super) fn binding(&self, pid: Tid) -> Option<Binding> {
        let kind = match self.kind {
            Kind::Libvirt => Some(BindingKind::Libvirt),
            Kind::Qemu => Some(BindingKind::Qemu),
            Kind::Firecracker => Some(BindingKind::Firecracker),
            Kind::CloudHypervisor => Some(BindingKind::CloudHypervisor),
            _ => None,
        };
        let by_name = kind.and_then(|kind| Binding::new(kind, &self.name).ok());
        let by_uuid = || Binding::new(BindingKind::Uuid, self.uuid.as_deref()?).ok();
        by_name.or_else(by_uuid).or_else(|| Binding::new(BindingKind::Pid, &pid.to_string()).ok())
    }
}

/// Returns the kind, name and UUID of a VM, from its command line and its cgroups.
pub(super) fn called(said: &VmCommandLine, groups: &[u8]) -> MachineIdentity {
    let name = said.name.as_deref();
    let kind = match said.program {
        Program::Qemu => {
            let of_group = groups::of_libvirt(groups);
            let is_domain = of_group
                .is_some_and(|of_group| name.is_some_and(|name| groups::fits(&of_group, name)));
            if is_domain { Kind::Libvirt } else { Kind::Qemu }
        }
        Program::Firecracker => Kind::Firecracker,
        Program::CloudHypervisor => Kind::CloudHypervisor,
        Program::Crosvm => Kind::Crosvm,
        Program::Kvmtool => Kind::Kvmtool,
    };
    let of_jailer = || groups::of_jailer(groups).filter(|_| kind == Kind::Firecracker);
    let name = match kind {
        Kind::CloudHypervisor => name.map(socket_name),
        _ => name.or_else(of_jailer),
    };
    MachineIdentity { kind, name: bound(name.unwrap_or_default()), uuid: said.uuid.clone() }
}

/// Returns the VM name that follows from a socket's path: the file name without `.sock`.
fn socket_name(path: &[u8]) -> &[u8] {
    let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    file.strip_suffix(b".sock").filter(|name| !name.is_empty()).unwrap_or(file)
}
