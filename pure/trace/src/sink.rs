//! Receivers of a run: traits and types that take records, names and exchanges as they are
//! produced.

use slackline_units::{Time, VcpuId};

use crate::exchange::Exchange;
use crate::host_thread::{HostThread, Note};
use crate::record::Record;

/// Name of a vCPU from now on. It precedes all else that is recorded of the vCPU, and comes again
/// whenever another vCPU takes the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuName {
    /// Time from which the name holds.
    pub at: Time,
    /// vCPU that is named.
    pub vcpu: VcpuId,
    /// Name of the vCPU: that of its domain, and its number if the domain has several vCPUs.
    pub name: String,
    /// The name of its domain.
    pub domain: String,
}

/// Receiver of the records of a run.
pub trait Sink {
    /// Takes the next record of the run.
    fn record(&mut self, record: &Record);

    /// Takes the name of a vCPU.
    fn named(&mut self, _named: &VcpuName) {}

    /// Takes the identity of a host thread.
    fn host_thread(&mut self, _thread: &HostThread) {}

    /// Takes a fact about the recording.
    fn note(&mut self, _note: &Note) {}

    /// Returns true if exchanges are used. If not, they need not be made.
    fn wants_exchanges(&self) -> bool {
        false
    }

    /// Takes one exchange between the hardware and its host.
    fn exchange(&mut self, _exchange: &Exchange) {}
}

/// Entry of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Event of the run.
    Record(Record),
    /// Name of a vCPU from now on.
    Named(VcpuName),
    /// Exchange between the hardware and its host.
    Exchange(Exchange),
    /// Identity of a host thread from now on.
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

/// Keeps all entries in their order.
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

/// Keeps the records, for tests and short runs.
impl Sink for Vec<Record> {
    fn record(&mut self, record: &Record) {
        self.push(*record);
    }
}

/// Sink that discards all records.
impl Sink for () {
    fn record(&mut self, _: &Record) {}
}

/// Passes each entry to both sinks.
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

/// Passes entries on if there is a sink.
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
