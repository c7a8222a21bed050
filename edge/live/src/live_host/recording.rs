//! Records of the live host, until they are taken.

use slackline_trace::{Entry, Exchange, Record, Sink, VcpuName};

/// Capacity for the records of one second of the busiest run. They are taken ten times a second.
const RECORDS: usize = 1 << 15;

/// Keeps records in the order of their arrival.
pub(super) struct Recording {
    entries: Vec<Entry>,
    keeps_exchanges: bool,
}

impl Recording {
    /// Creates a recording of records and names. Exchanges are left out until they are wanted.
    pub(super) fn new() -> Recording {
        Recording { entries: Vec::with_capacity(RECORDS), keeps_exchanges: false }
    }

    /// Records exchanges too from now on, so that the run can be replayed.
    pub(super) fn keep_exchanges(&mut self) {
        self.keeps_exchanges = true;
    }

    /// Moves everything since the last call to `into`.
    pub(super) fn take(&mut self, into: &mut Vec<Entry>) {
        into.clear();
        std::mem::swap(&mut self.entries, into);
    }
}

impl Sink for Recording {
    fn record(&mut self, record: &Record) {
        self.entries.record(record);
    }

    fn named(&mut self, named: &VcpuName) {
        self.entries.named(named);
    }

    fn wants_exchanges(&self) -> bool {
        self.keeps_exchanges
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.entries.exchange(exchange);
    }
}
