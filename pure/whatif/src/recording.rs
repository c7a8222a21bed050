//! Reads a recording from a trace.

use slackline_demand::{Collector, Demand};
use slackline_metrics::{Meter, StrayRecord, Summary};
use slackline_trace::{Exchange, Header, Record, Sink, VcpuName};
use slackline_units::{Span, Time};

use crate::measure::Measures;

/// Takes a trace and returns its recording.
#[derive(Debug)]
pub struct Recorder {
    header: Header,
    split: Time,
    collector: Collector,
    whole: Meter,
    judged: Meter,
}

/// Demand and results of a recording.
#[derive(Debug)]
pub struct Recording {
    /// Header of the trace.
    pub header: Header,
    /// Time that divides the recording: costs are fitted before it, and the gate judges after it.
    pub split: Time,
    /// Demand of all vCPUs.
    pub demand: Demand,
    /// Results without the warm-up.
    pub summary: Summary,
    /// Results of each vCPU without the warm-up.
    pub whole: Vec<Measures>,
    /// Results of each vCPU after the division.
    pub judged: Vec<Measures>,
}

impl Recorder {
    /// Creates a recorder of a trace with this header that ends at this time.
    #[must_use]
    pub fn new(header: &Header, end: Time) -> Recorder {
        let split = Time::START + end.since(Time::START) / 2;
        let warmup = header.warmup.max(split - Time::START);
        let judged = Meter::new(&Header { warmup, ..header.clone() });
        Recorder {
            header: header.clone(),
            split,
            collector: Collector::new(split),
            whole: Meter::new(header),
            judged,
        }
    }

    /// Returns the recording.
    ///
    /// # Errors
    /// If a record names an unknown vCPU or CPU.
    pub fn finish(self) -> Result<Recording, StrayRecord> {
        let Recorder { header, split, collector, whole, judged } = self;
        let demand = collector.finish();
        let summary = whole.view()?;
        let warmup = Time::START + header.warmup;
        let judged = Measures::all(&judged.view()?, &demand, split.max(warmup));
        let whole = Measures::all(&summary, &demand, warmup);
        Ok(Recording { header, split, demand, summary, whole, judged })
    }
}

impl Recording {
    /// Returns the length of the recording.
    #[must_use]
    pub fn length(&self) -> Span {
        self.demand.length
    }
}

impl Sink for Recorder {
    fn record(&mut self, record: &Record) {
        self.collector.record(record);
        self.whole.record(record);
        self.judged.record(record);
    }

    fn named(&mut self, named: &VcpuName) {
        self.collector.named(named);
        self.whole.named(named);
        self.judged.named(named);
    }

    fn wants_exchanges(&self) -> bool {
        true
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.collector.exchange(exchange);
    }
}
