//! Growing VMs: VMs whose new threads become vCPUs of the recording.

use std::collections::BTreeMap;

use slackline_linux::sys::Tid;
use slackline_units::DomId;

/// VM whose new threads count as vCPUs, such as a process or all processes of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrowingVm {
    /// Id of the VM in the trace.
    pub domain: DomId,
    /// Name of the VM.
    pub name: String,
    /// Number that the next new thread gets as a vCPU.
    pub next: u16,
    /// Processes of the VM.
    pub processes: Vec<Tid>,
    /// True if processes that a process of the VM starts belong to the VM too.
    pub has_children: bool,
}

/// All growing VMs, with their processes.
#[derive(Debug, Default)]
pub(super) struct GrowingVms {
    vms: BTreeMap<DomId, GrowingVm>,
    processes: BTreeMap<i32, DomId>,
}

impl GrowingVms {
    pub(super) fn add(&mut self, vm: GrowingVm) {
        self.processes.extend(vm.processes.iter().map(|process| (process.raw(), vm.domain)));
        self.vms.insert(vm.domain, vm);
    }

    /// Removes a process that has ended from its VM.
    pub(super) fn forget(&mut self, process: Tid) {
        self.processes.remove(&process.raw());
    }

    /// Returns the growing VM to which a new thread belongs, as id and name, and the number of the
    /// thread's vCPU. `parent` is the process that started the thread, and `process` is the
    /// thread's own process. `None` if the thread belongs to no growing VM, or the VM has used all
    /// vCPU numbers.
    pub(super) fn next(
        &mut self,
        parent: Option<Tid>,
        process: Tid,
    ) -> Option<(DomId, String, u16)> {
        let of_parent = parent.and_then(|parent| self.processes.get(&parent.raw())).copied();
        let has_children = |domain: &DomId| self.vms.get(domain).is_some_and(|vm| vm.has_children);
        if let Some(domain) = of_parent.filter(has_children) {
            self.processes.entry(process.raw()).or_insert(domain);
        }
        let vm = self.vms.get_mut(self.processes.get(&process.raw())?)?;
        let number = vm.next;
        vm.next = number.checked_add(1)?;
        Some((vm.domain, vm.name.clone(), number))
    }
}
