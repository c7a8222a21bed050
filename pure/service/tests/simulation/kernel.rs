//! Model of the kernel: processes with vCPU threads. The ids of ended processes are reused.

use std::collections::BTreeMap;

use slackline_service::{Binding, BindingKind, Identity, Machine};

/// Unprivileged user of processes that root has started. Root gave these processes their names.
pub(crate) const DAEMON: u32 = 64;

/// A process that is a VM.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) machine: Machine,
}

/// All processes, by process id.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kernel {
    pub(crate) processes: BTreeMap<u32, Process>,
    started: u64,
}

impl Kernel {
    /// Starts a VM of a user under a name. The process gets the lowest free process id, so that ids
    /// are reused soon.
    pub(crate) fn start(&mut self, name: &str, user: u32, vcpus: u16) {
        if self.named(name).is_some() {
            return;
        }
        self.started += 1;
        let free = |pid: &u32| !self.processes.contains_key(pid);
        let pid = (100..).find(free).expect("there are few processes");
        let (started, inode) = (self.started, 1000 + self.started);
        let identity = Identity::Process { pid, started, inode };
        let is_vouched = user == DAEMON;
        let (by_uuid, vcpus) = (None, (0..vcpus).collect());
        let machine = Machine { identity, user, is_vouched, by_uuid, vcpus };
        self.processes.insert(pid, Process { name: name.to_owned(), machine });
    }

    /// Starts a libvirt domain with one vCPU, owned by an unprivileged user.
    pub(crate) fn start_domain(&mut self, name: &str, user: u32, by_uuid: &Binding) {
        self.start(name, user, 1);
        let started = self.processes.values_mut().find(|process| process.name == name);
        let started = started.expect("it was just started");
        started.machine.by_uuid = Some(by_uuid.clone());
    }

    /// Ends the VM with this name.
    pub(crate) fn end(&mut self, name: &str) {
        self.processes.retain(|_, process| process.name != name);
    }

    /// Adds a vCPU with the lowest free number to a VM if `more` is true. Otherwise removes the
    /// VM's first vCPU. The VM keeps at least one and gets at most four vCPUs.
    pub(crate) fn plug(&mut self, name: &str, more: bool) {
        let Some(process) = self.processes.values_mut().find(|one| one.name == name) else {
            return;
        };
        let vcpus = &mut process.machine.vcpus;
        if more && vcpus.len() < 4 {
            let number =
                (0..).find(|number| !vcpus.contains(number)).expect("some vCPU number is free");
            vcpus.push(number);
            vcpus.sort_unstable();
        } else if !more && vcpus.len() > 1 {
            vcpus.remove(0);
        }
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Process> {
        self.processes.values().find(|process| process.name == name)
    }

    /// Returns the process to which a binding refers now.
    pub(crate) fn meant(&self, binding: &Binding) -> Option<&Process> {
        match binding.kind() {
            BindingKind::Pid => binding.pid().and_then(|pid| self.processes.get(&pid)),
            _ => self.named(binding.name()),
        }
    }

    /// Returns the process with this identity. `None` if it has ended.
    pub(crate) fn alive(&self, identity: Identity) -> Option<&Process> {
        self.processes.values().find(|process| process.machine.identity == identity)
    }
}
