//! Sinks of a run: traits and types that receive records, names and exchanges as they are produced.

use slackline_units::{Time, VcpuId};

use crate::exchange::Exchange;
use crate::host_thread::{HostThread, Note};
use crate::record::Record;

/// Name of a vCPU from a given time on. The name precedes all other entries of the vCPU. If another
/// vCPU gets the same slot later, an entry with the name of that vCPU follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuName {
    /// Time from which the name holds.
    pub at: Time,
    /// vCPU that is named.
    pub vcpu: VcpuId,
    /// Name of the vCPU: the name of its domain, and its number if the domain has several vCPUs.
    pub name: String,
    /// Name of the domain to which the vCPU belongs.
    pub domain: String,
}

/// Receiver of the records of a run.
pub trait Sink {
    /// Receives the next record of the run.
    fn record(&mut self, record: &Record);

    /// Receives the name of a vCPU.
    fn named(&mut self, _named: &VcpuName) {}

    /// Receives the identity of a host thread.
    fn host_thread(&mut self, _thread: &HostThread) {}

    /// Receives a fact about the recording.
    fn note(&mut self, _note: &Note) {}

    /// Returns true if this sink uses exchanges. If false, the caller need not produce exchanges.
    fn wants_exchanges(&self) -> bool {
        false
    }

    /// Receives one exchange between the hardware and the host that drives the policy.
    fn exchange(&mut self, _exchange: &Exchange) {}
}

/// Entry of a trace: a record, a vCPU name, an exchange, the identity of a host thread, or a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Event of the run.
    Record(Record),
    /// Name of a vCPU from a given time on.
    Named(VcpuName),
    /// Exchange between the hardware and the host that drives the policy.
    Exchange(Exchange),
    /// Identity of a host thread from a given time on.
    HostThread(Box<HostThread>),
    /// Fact about the recording.
    Note(Note),
}

impl Entry {
    /// Passes the entry to a sink.
    pub fn pass_to(&self, sink: &mut (impl Sink + ?Sized)) {
        match self {
            Entry::Record(record) => sink.record(record),
            Entry::Named(named) => sink.named(named),
            Entry::Exchange(exchange) => sink.exchange(exchange),
            Entry::HostThread(thread) => sink.host_thread(thread),
            Entry::Note(note) => sink.note(note),
        }
    }
}

/// Sink that stores all entries in order.
impl Sink for Vec<Entry> {
    fn record(&mut self, record: &Record) {
        self.push(Entry::Record(*record));
    }

    fn named(&mut self, named: &VcpuName) {
        self.push(Entry::Named(named.clone()));
    }

    fn host_thread(&mut self, thread: &HostThread) {
        self.push(Entry::HostThread(Box::new(thread.clone())));
    }

    fn note(&mut self, note: &Note) {
        self.push(Entry::Note(note.clone()));
    }

    fn wants_exchanges(&self) -> bool {
        true
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.push(Entry::Exchange(exchange.clone()));
    }
}

/// Sink that stores the records, for tests and short runs.
impl Sink for Vec<Record> {
    fn record(&mut self, record: &Record) {
        self.push(*record);
    }
}

/// Sink that discards all entries.
impl Sink for () {
    fn record(&mut self, _: &Record) {}
}

/// Sink that passes each entry to two other sinks.
impl<A: Sink, B: Sink> Sink for (A, B) {
    fn record(&mut self, record: &Record) {
        self.0.record(record);
        self.1.record(record);
    }

    fn named(&mut self, named: &VcpuName) {
        self.0.named(named);
        self.1.named(named);
    }

    fn host_thread(&mut self, thread: &HostThread) {
        self.0.host_thread(thread);
        self.1.host_thread(thread);
    }

    fn note(&mut self, note: &Note) {
        self.0.note(note);
        self.1.note(note);
    }

    fn wants_exchanges(&self) -> bool {
        self.0.wants_exchanges() || self.1.wants_exchanges()
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.0.exchange(exchange);
        self.1.exchange(exchange);
    }
}

/// Sink that passes entries on to the inner sink if there is one.
impl<S: Sink> Sink for Option<S> {
    fn record(&mut self, record: &Record) {
        if let Some(sink) = self {
            sink.record(record);
        }
    }

    fn named(&mut self, named: &VcpuName) {
        if let Some(sink) = self {
            sink.named(named);
        }
    }

    fn host_thread(&mut self, thread: &HostThread) {
        if let Some(sink) = self {
            sink.host_thread(thread);
        }
    }

    fn note(&mut self, note: &Note) {
        if let Some(sink) = self {
            sink.note(note);
        }
    }

    fn wants_exchanges(&self) -> bool {
        self.as_ref().is_some_and(Sink::wants_exchanges)
    }

    fn exchange(&mut self, exchange: &Exchange) {
        if let Some(sink) = self {
            sink.exchange(exchange);
        }
    }
}

impl<S: Sink + ?Sized> Sink for &mut S {
    fn record(&mut self, record: &Record) {
        (**self).record(record);
    }

    fn named(&mut self, named: &VcpuName) {
        (**self).named(named);
    }

    fn host_thread(&mut self, thread: &HostThread) {
        (**self).host_thread(thread);
    }

    fn note(&mut self, note: &Note) {
        (**self).note(note);
    }

    fn wants_exchanges(&self) -> bool {
        (**self).wants_exchanges()
    }

    fn exchange(&mut self, exchange: &Exchange) {
        (**self).exchange(exchange);
    }
}
