//! Removal of names from a recording, so that its VMs, processes and users cannot be recognised.

use std::collections::{BTreeMap, BTreeSet};

use slackline_trace::{Exchange, HostThread, HostThreadKind, Note, Record, Sink, VcpuName};

/// Sink that removes names from the entries of a recording and passes the entries on to another
/// sink. Kernel threads keep their names, which are the same on each host.
#[derive(Debug)]
pub struct Anonymiser<S> {
    sink: S,
    /// Names of VMs that are kept. `None` if no name is kept.
    kept: Option<BTreeSet<String>>,
    vms: BTreeMap<String, usize>,
    commands: BTreeMap<String, usize>,
}

/// Keys of the host's notes that are kept, because they do not identify the host or its users.
const KEPT_NOTES: [&str; 7] = ["recorder", "sight", "origin", "policy", "cpus", "assumed", "lost"];

/// Domain name of the reservations with which the daemon keeps CPU time free for a thread under the
/// kernel's `SCHED_DEADLINE`. Such a reservation belongs to no VM, but its vCPU has the name of a
/// vCPU of the thread's VM, such as `web.3`.
const KEPT_FREE: &str = "deadline";

impl<S: Sink> Anonymiser<S> {
    /// Creates an anonymiser that passes all entries on to `sink`.
    pub fn new(sink: S) -> Anonymiser<S> {
        Anonymiser { sink, kept: None, vms: BTreeMap::new(), commands: BTreeMap::new() }
    }

    /// Keeps the names of these VMs. All other VMs are called `another-VM-1`, `another-VM-2` and so
    /// on. No reservation can have such a name, because names of reservations have no capital
    /// letters.
    #[must_use]
    pub fn keeping(self, vms: &BTreeSet<String>) -> Anonymiser<S> {
        Anonymiser { kept: Some(vms.clone()), ..self }
    }

    /// Returns the sink to which entries are passed.
    pub fn sink(&mut self) -> &mut S {
        &mut self.sink
    }

    /// Returns the sink to which entries were passed.
    #[must_use]
    pub fn into_sink(self) -> S {
        self.sink
    }

    /// Returns the name that replaces the name of a VM. The same VM always gets the same
    /// replacement.
    fn vm(&mut self, name: &str) -> String {
        let is_kept = self.kept.as_ref().is_some_and(|kept| kept.contains(name));
        if name.is_empty() || is_kept {
            return name.to_owned();
        }
        let next = self.vms.len() + 1;
        let word = if self.kept.is_none() { "vm" } else { "another-VM-" };
        format!("{word}{}", self.vms.entry(name.into()).or_insert(next))
    }
}

impl<S: Sink> Sink for Anonymiser<S> {
    fn record(&mut self, record: &Record) {
        self.sink.record(record);
    }

    fn named(&mut self, named: &VcpuName) {
        let vm = named.name.rsplit_once('.').map_or(&*named.name, |(vm, _)| vm);
        let is_kept_free = named.domain == KEPT_FREE && vm != KEPT_FREE;
        let vm = self.vm(if is_kept_free { vm } else { &named.domain });
        let name = format!("{vm}.{}", named.vcpu.number());
        let domain = if is_kept_free { KEPT_FREE.to_owned() } else { vm };
        self.sink.named(&VcpuName { name, domain, ..named.clone() });
    }

    fn host_thread(&mut self, thread: &HostThread) {
        let HostThread { at, id, kind, vcpu, .. } = *thread;
        let vm = self.vm(&thread.vm);
        let next = self.commands.len() + 1;
        let (name, command) = match kind {
            HostThreadKind::Kernel | HostThreadKind::Slackline => {
                (thread.name.clone(), thread.command.clone())
            }
            _ => {
                let number = self.commands.entry(thread.command.clone()).or_insert(next);
                (format!("thread {}", id.number()), format!("process {number}"))
            }
        };
        let (tid, process, user, group) = (0, 0, 0, String::new());
        self.sink.host_thread(&HostThread {
            at,
            id,
            kind,
            vcpu,
            tid,
            process,
            user,
            name,
            command,
            vm,
            group,
        });
    }

    fn note(&mut self, note: &Note) {
        if KEPT_NOTES.contains(&note.name.as_str()) {
            self.sink.note(note);
        }
    }

    fn wants_exchanges(&self) -> bool {
        self.sink.wants_exchanges()
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.sink.exchange(exchange);
    }
}

#[cfg(test)]
mod tests {
    use slackline_trace::{Entry, HostThreadId};
    use slackline_units::{DomId, Time, VcpuId};

    use super::*;

    #[test]
    fn recording_that_is_anonymised_contains_no_thread_or_vm_name() {
        let vcpu = VcpuId::new(0, DomId::new(0), 0);
        let at = Time::START;
        let thread = |number, kind, vm: &str| HostThread {
            at,
            id: HostThreadId::new(number),
            kind,
            vcpu: None,
            tid: 7,
            process: 7,
            user: 1000,
            name: "secret".into(),
            command: "secret".into(),
            vm: vm.into(),
            group: "secret.service".into(),
        };
        let mut anonymised = Anonymiser::new(Vec::<Entry>::new());
        let (name, domain) = ("secret.0".into(), "secret".into());
        anonymised.named(&VcpuName { at, vcpu, name, domain });
        anonymised.host_thread(&thread(0, HostThreadKind::Monitor, "secret"));
        anonymised.host_thread(&thread(1, HostThreadKind::Process, ""));
        anonymised.note(&Note { name: "host".into(), text: "secret".into() });
        let kept = ["assumed", "lost"].map(|name| Note { name: name.into(), text: "7".into() });
        kept.iter().for_each(|note| anonymised.note(note));
        let entries = anonymised.into_sink();
        assert!(!format!("{entries:?}").contains("secret"), "{entries:?}");
        let [Entry::Named(named), Entry::HostThread(first), _, notes @ ..] = entries.as_slice()
        else {
            panic!("{entries:?}")
        };
        assert_eq!(notes, kept.map(Entry::Note));
        assert_eq!((named.domain.as_str(), first.vm.as_str()), ("vm1", "vm1"));
    }

    #[test]
    fn anonymised_recording_keeps_only_the_listed_vm_names() {
        let at = Time::START;
        let mut anonymised =
            Anonymiser::new(Vec::<Entry>::new()).keeping(&BTreeSet::from(["web".to_owned()]));
        for (slot, domain) in [(0, "web"), (1, "secret")] {
            let vcpu = VcpuId::new(slot, DomId::new(slot), 0);
            let (name, domain) = (format!("{domain}.0"), domain.to_owned());
            anonymised.named(&VcpuName { at, vcpu, name, domain });
        }
        let entries = format!("{:?}", anonymised.into_sink());
        assert!(entries.contains("\"web.0\"") && entries.contains("\"another-VM-1.0\""));
        assert!(!entries.contains("secret"), "{entries}");
    }

    /// The first name is of a reservation that keeps CPU time free for a thread under
    /// `SCHED_DEADLINE`. Its domain name must stay, because predictions recognise such a
    /// reservation by it. The second name is of a VM that is itself called `deadline`.
    #[test]
    fn anonymised_deadline_thread_reservation_differs_from_vm_named_deadline() {
        let own = BTreeSet::from(["deadline".to_owned()]);
        let mut anonymised = Anonymiser::new(Vec::<Entry>::new()).keeping(&own);
        let at = Time::START;
        for (slot, name) in [(0, "secret.3"), (1, "deadline.0")] {
            let vcpu = VcpuId::new(slot, DomId::new(slot), 0);
            let (name, domain) = (name.to_owned(), "deadline".to_owned());
            anonymised.named(&VcpuName { at, vcpu, name, domain });
        }
        let names = anonymised.into_sink().into_iter().map(|entry| match entry {
            Entry::Named(named) => (named.name, named.domain),
            other => panic!("{other:?}"),
        });
        let expected = [("another-VM-1.0", "deadline"), ("deadline.0", "deadline")];
        let expected = expected.map(|(name, domain)| (name.to_owned(), domain.to_owned()));
        assert_eq!(names.collect::<Vec<_>>(), expected);
    }
}
