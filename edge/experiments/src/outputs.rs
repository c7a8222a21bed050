//! Where the records of a run go: numbers always, files if somebody wants them.

use std::io::{self, Write};

use slackline_export::Perfetto;
use slackline_metrics::StrayRecord;
use slackline_trace::{Exchange, Header, Named, Record, Sink, Writer};

use crate::numbers::{Meters, Numbers};

/// What is wanted of a run besides what everybody was promised and got.
#[derive(Clone, Debug)]
pub struct Wanted<W> {
    /// Where its trace goes.
    pub trace: Option<W>,
    /// Where its trace goes for the Perfetto UI.
    pub perfetto: Option<W>,
    /// Whether XenMon's metrics of each domain are wanted.
    pub xenmon: bool,
}

/// The sink of a run.
pub struct Outputs<W: Write> {
    meters: Meters,
    trace: Option<Writer<W>>,
    perfetto: Option<Perfetto<W>>,
}

/// What came out of a run.
#[derive(Debug)]
pub struct Kept {
    /// Its numbers, unless there was a record of somebody who is not known.
    pub numbers: Result<Numbers, StrayRecord>,
    /// Whether its trace was written.
    pub trace: Option<io::Result<()>>,
    /// Whether it was written for the Perfetto UI.
    pub perfetto: Option<io::Result<()>>,
}

impl<W> Default for Wanted<W> {
    fn default() -> Wanted<W> {
        Wanted { trace: None, perfetto: None, xenmon: false }
    }
}

impl<W: Write> Outputs<W> {
    /// For the run that this header is of.
    pub fn new(header: &Header, wanted: Wanted<W>) -> Outputs<W> {
        let meters = if wanted.xenmon { Meters::with_xenmon(header) } else { Meters::new(header) };
        let trace = wanted.trace.map(|out| Writer::new(out, header));
        let perfetto = wanted.perfetto.map(|out| Perfetto::new(out, header));
        Outputs { meters, trace, perfetto }
    }

    /// Ends what is written, and makes the numbers.
    #[must_use]
    pub fn finish(self) -> Kept {
        let trace = self.trace.map(Writer::finish);
        let perfetto = self.perfetto.map(Perfetto::finish);
        Kept { numbers: self.meters.finish(), trace, perfetto }
    }
}

impl<W: Write> Sink for Outputs<W> {
    fn record(&mut self, record: &Record) {
        self.meters.record(record);
        if let Some(writer) = &mut self.trace {
            writer.record(record);
        }
        if let Some(perfetto) = &mut self.perfetto {
            perfetto.record(record);
        }
    }

    fn named(&mut self, named: &Named) {
        self.meters.named(named);
        self.trace.named(named);
        self.perfetto.named(named);
    }

    fn wants_exchanges(&self) -> bool {
        self.trace.is_some()
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.trace.exchange(exchange);
    }
}
