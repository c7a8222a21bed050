//! What the live host has to tell, until it is taken away.

use slackline_trace::{Entry, Exchange, Named, Record, Sink};

/// Room for the records of a second of the busiest run there is; taken out ten times a second.
const RECORDS: usize = 1 << 15;

/// Keeps what comes, in its order.
pub(super) struct Recording {
    entries: Vec<Entry>,
    keeps_exchanges: bool,
}

impl Recording {
    /// Records and names; exchanges only from when they are wanted.
    pub(super) fn new() -> Recording {
        Recording { entries: Vec::with_capacity(RECORDS), keeps_exchanges: false }
    }

    /// Somebody wants exchanges, to replay the run.
    pub(super) fn keep_exchanges(&mut self) {
        self.keeps_exchanges = true;
    }

    /// Takes everything out that has come since the last time.
    pub(super) fn take(&mut self, into: &mut Vec<Entry>) {
        into.clear();
        std::mem::swap(&mut self.entries, into);
    }
}

impl Sink for Recording {
    fn record(&mut self, record: &Record) {
        self.entries.record(record);
    }

    fn named(&mut self, named: &Named) {
        self.entries.named(named);
    }

    fn wants_exchanges(&self) -> bool {
        self.keeps_exchanges
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.entries.exchange(exchange);
    }
}
