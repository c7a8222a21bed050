//! The model kernel: processes with vCPU threads, whose numbers are given again.

use std::collections::BTreeMap;

use slackline_service::{Binding, BindingKind, Identity, Machine};

/// Who runs what root has started and named.
pub(crate) const DAEMON: u32 = 64;

/// A process that is a machine.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) machine: Machine,
}

/// All processes, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kernel {
    pub(crate) processes: BTreeMap<u32, Process>,
    started: u64,
}

impl Kernel {
    /// A machine of a user starts under that name, with the lowest number that is free: numbers
    /// come back soon.
    pub(crate) fn start(&mut self, name: &str, user: u32, vcpus: u16) {
        if self.named(name).is_some() {
            return;
        }
        self.started += 1;
        let free = |pid: &u32| !self.processes.contains_key(pid);
        let pid = (100..).find(free).expect("few processes");
        let (started, inode) = (self.started, 1000 + self.started);
        let identity = Identity::Process { pid, started, inode };
        let is_vouched = user == DAEMON;
        let machine = Machine { identity, user, is_vouched, vcpus: (0..vcpus).collect() };
        self.processes.insert(pid, Process { name: name.to_owned(), machine });
    }

    /// The machine of that name ends.
    pub(crate) fn end(&mut self, name: &str) {
        self.processes.retain(|_, process| process.name != name);
    }

    /// One more vCPU, with the lowest number that is free, or without the first one.
    pub(crate) fn plug(&mut self, name: &str, more: bool) {
        let Some(process) = self.processes.values_mut().find(|one| one.name == name) else {
            return;
        };
        let vcpus = &mut process.machine.vcpus;
        if more && vcpus.len() < 4 {
            let number = (0..).find(|number| !vcpus.contains(number)).expect("a number");
            vcpus.push(number);
            vcpus.sort_unstable();
        } else if !more && vcpus.len() > 1 {
            vcpus.remove(0);
        }
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Process> {
        self.processes.values().find(|process| process.name == name)
    }

    /// What a binding means now.
    pub(crate) fn meant(&self, binding: &Binding) -> Option<&Process> {
        match binding.kind() {
            BindingKind::Pid => binding.pid().and_then(|pid| self.processes.get(&pid)),
            _ => self.named(binding.name()),
        }
    }

    /// The process, if that very one is still there.
    pub(crate) fn alive(&self, identity: Identity) -> Option<&Process> {
        self.processes.values().find(|process| process.machine.identity == identity)
    }
}
