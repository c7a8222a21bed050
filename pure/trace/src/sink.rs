//! Where a run goes: something that takes its records, names and exchanges as they come.

use slackline_units::{Time, VcpuId};

use crate::exchange::Exchange;
use crate::record::Record;

/// From now on this is what people call a vCPU. It comes before anything else that is told of the
/// vCPU, and again whenever another takes its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// From when on.
    pub at: Time,
    /// Who.
    pub vcpu: VcpuId,
    /// The name: that of its domain, and its number where the domain has several vCPUs.
    pub name: String,
    /// The name of its domain.
    pub domain: String,
}

/// Something that takes records as they come.
pub trait Sink {
    /// Takes one record.
    fn record(&mut self, record: &Record);

    /// Takes a name.
    fn named(&mut self, _named: &Named) {}

    /// Whether exchanges are of any use here; where not, none need be made.
    fn wants_exchanges(&self) -> bool {
        false
    }

    /// Takes one thing that passed between a machine and its host.
    fn exchange(&mut self, _exchange: &Exchange) {}
}

/// Anything that a trace holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Something that happened.
    Record(Record),
    /// What a vCPU is called from now on.
    Named(Named),
    /// Something that passed between a machine and its host.
    Exchange(Exchange),
}

impl Entry {
    /// Hands it to a sink.
    pub fn pass_to(&self, sink: &mut (impl Sink + ?Sized)) {
        match self {
            Entry::Record(record) => sink.record(record),
            Entry::Named(named) => sink.named(named),
            Entry::Exchange(exchange) => sink.exchange(exchange),
        }
    }
}

/// Keeps everything in its order.
impl Sink for Vec<Entry> {
    fn record(&mut self, record: &Record) {
        self.push(Entry::Record(*record));
    }

    fn named(&mut self, named: &Named) {
        self.push(Entry::Named(named.clone()));
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

/// Keeps nothing.
impl Sink for () {
    fn record(&mut self, _: &Record) {}
}

/// Hands everything to both.
impl<A: Sink, B: Sink> Sink for (A, B) {
    fn record(&mut self, record: &Record) {
        self.0.record(record);
        self.1.record(record);
    }

    fn named(&mut self, named: &Named) {
        self.0.named(named);
        self.1.named(named);
    }

    fn wants_exchanges(&self) -> bool {
        self.0.wants_exchanges() || self.1.wants_exchanges()
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.0.exchange(exchange);
        self.1.exchange(exchange);
    }
}

/// Hands everything on, if there is anybody to hand it to.
impl<S: Sink> Sink for Option<S> {
    fn record(&mut self, record: &Record) {
        if let Some(sink) = self {
            sink.record(record);
        }
    }

    fn named(&mut self, named: &Named) {
        if let Some(sink) = self {
            sink.named(named);
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

    fn named(&mut self, named: &Named) {
        (**self).named(named);
    }

    fn wants_exchanges(&self) -> bool {
        (**self).wants_exchanges()
    }

    fn exchange(&mut self, exchange: &Exchange) {
        (**self).exchange(exchange);
    }
}
