//! Records of all host threads that run on the CPUs of a live run.
//!
//! The session reports all context switches and wake-ups on its CPUs. The session itself records
//! its vCPUs, so this module records only the host threads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slackline_linux::sys::monotonic;
use slackline_live::recorder::assembler::Assembler;
use slackline_live::recorder::host::{follow, notes};
use slackline_live::recorder::identity::Procfs;
use slackline_live::session::{Session, SessionThread};
use slackline_live::watch::Event;
use slackline_live::watch::host::{Loss, take_until};
use slackline_live::watch::tap::Tap;
use slackline_trace::{Entry, Record, Sink, VcpuName, WakeMark};
use slackline_units::{CpuId, Span, Time, VcpuId};

/// Age of an event at which it can be recorded, because no CPU will report an earlier event any
/// more. Dispatchers read events at least every 20 ms.
const SETTLED: Span = Span::from_ms(60);

/// Recorder of the threads on the CPUs of a session.
#[derive(Debug)]
pub(crate) struct HostThreads {
    tap: Arc<Tap>,
    cpus: Vec<CpuId>,
    assembler: Assembler<Procfs>,
    names: BTreeMap<VcpuId, (String, String)>,
    threads: BTreeSet<SessionThread>,
    /// Events that are kept until it is certain that no other CPU reports an earlier event.
    waiting: Vec<Event>,
    /// Time up to which all events have been recorded, on the monotonic clock.
    settled: Time,
}

impl HostThreads {
    /// Starts recording the threads on these CPUs of the host.
    pub(crate) fn new(session: &Session, cpus: &[CpuId], sink: &mut impl Sink) -> HostThreads {
        let origin = session.origin();
        let numbered = cpus.iter().enumerate().map(|(index, &real)| (real, CpuId::new(index)));
        let mark = WakeMark::Wakeup;
        notes(cpus, mark).iter().for_each(|note| sink.note(note));
        HostThreads {
            tap: session.tap(),
            cpus: cpus.to_vec(),
            assembler: Assembler::new(origin, numbered, (mark, Procfs::new(BTreeMap::new()))),
            names: BTreeMap::new(),
            threads: BTreeSet::new(),
            waiting: Vec::new(),
            settled: origin,
        }
    }

    /// Learns the names of vCPUs from the records of the session.
    pub(crate) fn learn(&mut self, entries: &[Entry]) {
        for entry in entries {
            if let Entry::Named(VcpuName { vcpu, name, domain, .. }) = entry {
                self.names.insert(*vcpu, (name.clone(), domain.clone()));
            }
        }
    }

    /// Records the events that are older than [`SETTLED`].
    pub(crate) fn take(&mut self, session: &Session, sink: &mut impl Sink) {
        self.know(session.threads().collect());
        let until = Time::START + monotonic().since(Time::START + SETTLED);
        self.take_until(until, sink);
    }

    /// Records all remaining events, up to the end of the run.
    pub(crate) fn finish(mut self, end: Time, sink: &mut impl Sink) {
        self.take_until(end, sink);
        self.assembler.finish(end.max(self.settled), sink);
    }

    fn take_until(&mut self, until: Time, sink: &mut impl Sink) {
        let until = until.max(self.settled);
        for Loss { cpu, events } in self.tap.take(&mut self.waiting) {
            self.assembler.lost(cpu, (self.settled, until), events, sink);
        }
        let events = take_until(&mut self.waiting, until);
        let is_ours = |event: &Event| self.cpus.contains(&event.cpu);
        let events: Vec<Event> = events.into_iter().filter(is_ours).collect();
        self.assembler.take(&events, sink);
        self.assembler.tick(until, sink);
        self.settled = until;
    }

    fn know(&mut self, threads: BTreeSet<SessionThread>) {
        follow(&mut self.assembler, (&self.threads, &threads), &self.names);
        self.threads = threads;
    }
}

/// Adds the last records of host threads to `records`, before the record that ends the run.
pub(crate) fn end_host_threads(host_threads: HostThreads, origin: Time, records: &mut Vec<Entry>) {
    let end = records.pop_if(|entry| matches!(entry, Entry::Record(Record::Ended { .. })));
    if let Some(Entry::Record(Record::Ended { at })) = end {
        host_threads.finish(origin + at.since(Time::START), records);
    }
    records.extend(end);
}
