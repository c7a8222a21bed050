//! Outputs of a run: its results, and files on request.

use std::io::{self, Write};

use slackline_export::Perfetto;
use slackline_metrics::StrayRecord;
use slackline_trace::{Exchange, Header, HostThread, Note, Record, Sink, VcpuName, Writer};

use crate::numbers::{Meters, Numbers};

/// Optional outputs of a run in addition to its results.
#[derive(Clone, Debug)]
pub struct OutputRequest<W> {
    /// Writer for the trace. If `None`, no trace is written.
    pub trace: Option<W>,
    /// Writer for the trace in Perfetto's format. If `None`, no such file is written.
    pub perfetto: Option<W>,
    /// True if XenMon's metrics of each domain are computed.
    pub xenmon: bool,
}

/// Sink that produces all outputs of a run.
pub struct Outputs<W: Write> {
    meters: Meters,
    trace: Option<Writer<W>>,
    perfetto: Option<Perfetto<W>>,
}

/// Results of all outputs.
#[derive(Debug)]
pub struct OutputResults {
    /// Results of the run. The error means that a record is about an unknown vCPU or CPU.
    pub numbers: Result<Numbers, StrayRecord>,
    /// Result of writing the trace. `None` if it was not requested.
    pub trace: Option<io::Result<()>>,
    /// Result of writing the trace for the Perfetto UI. `None` if it was not requested.
    pub perfetto: Option<io::Result<()>>,
}

impl<W> Default for OutputRequest<W> {
    fn default() -> OutputRequest<W> {
        OutputRequest { trace: None, perfetto: None, xenmon: false }
    }
}

impl<W: Write> Outputs<W> {
    /// Creates the outputs for a run with this trace header.
    pub fn new(header: &Header, wanted: OutputRequest<W>) -> Outputs<W> {
        let meters = if wanted.xenmon { Meters::with_xenmon(header) } else { Meters::new(header) };
        let trace = wanted.trace.map(|out| Writer::new(out, header));
        let perfetto = wanted.perfetto.map(|out| Perfetto::new(out, header));
        Outputs { meters, trace, perfetto }
    }

    /// Completes the files and the results.
    #[must_use]
    pub fn finish(self) -> OutputResults {
        let trace = self.trace.map(Writer::finish);
        let perfetto = self.perfetto.map(Perfetto::finish);
        OutputResults { numbers: self.meters.finish(), trace, perfetto }
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

    fn named(&mut self, named: &VcpuName) {
        self.meters.named(named);
        self.trace.named(named);
        self.perfetto.named(named);
    }

    fn host_thread(&mut self, thread: &HostThread) {
        self.trace.host_thread(thread);
        self.perfetto.host_thread(thread);
    }

    fn note(&mut self, note: &Note) {
        self.trace.note(note);
    }

    fn wants_exchanges(&self) -> bool {
        self.trace.is_some()
    }

    fn exchange(&mut self, exchange: &Exchange) {
        self.trace.exchange(exchange);
    }
}
