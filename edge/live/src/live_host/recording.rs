//! Buffer of the live host's records, from which the session takes them.

use slackline_trace::{Entry, Exchange, Record, Sink, VcpuName};

/// Initial capacity of the buffer, in records. It suffices for one second of a very busy run. The
/// session takes records ten times a second.
const RECORDS: usize = 1 << 15;

/// Buffer of records in the order in which they were made.
pub(super) struct Recording {
    entries: Vec<Entry>,
    /// True if calls to and from the [`Host`](slackline_host::Host) are recorded too.
    keeps_exchanges: bool,
}

impl Recording {
    /// Creates an empty buffer. Calls to and from the [`Host`](slackline_host::Host) are not
    /// recorded until [`keep_exchanges`](Recording::keep_exchanges).
    pub(super) fn new() -> Recording {
        Recording { entries: Vec::with_capacity(RECORDS), keeps_exchanges: false }
    }

    /// Starts recording each call to and from the [`Host`](slackline_host::Host) that drives the
    /// policy, in addition to the trace. The run can then be replayed.
    pub(super) fn keep_exchanges(&mut self) {
        self.keeps_exchanges = true;
    }

    /// Moves the records made since the last call into `into`.
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
