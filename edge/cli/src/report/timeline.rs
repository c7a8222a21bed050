//! Timeline of a run with marks of missed deadlines.

use std::collections::BTreeMap;

use slackline_metrics::Meter;
use slackline_trace::{Header, Record, Sink, VcpuName};
use slackline_units::{Span, Time};

use super::columns::Columns;

/// Number of equal parts into which a run is divided. The deadlines that were missed in a part are
/// marked at the end of the part.
const MARKS: u64 = 100;

/// Reads the records of a run, and computes its metrics and its timeline.
pub(crate) struct RunTimeline {
    meter: Meter,
    columns: Columns,
    cpus: usize,
    end: Time,
    /// For each vCPU, the number of missed deadlines that the timeline already marks.
    marked: BTreeMap<String, u64>,
    /// Time between two marks, and time of the next mark.
    marks: (Span, Time),
}

impl RunTimeline {
    pub(crate) fn new(header: &Header, end: Time) -> RunTimeline {
        let part = equal_part(end, MARKS);
        RunTimeline {
            meter: Meter::new(header),
            columns: Columns::new(end),
            cpus: header.cpus,
            end,
            marked: BTreeMap::new(),
            marks: (part, Time::START.after(part)),
        }
    }

    /// Returns the metrics of the run, and the timeline in the form that the page's script reads.
    pub(crate) fn finish(mut self) -> (Meter, String) {
        self.mark_misses(self.end);
        (self.meter, self.columns.json(self.cpus))
    }

    /// Marks the deadlines that were missed since the last mark.
    fn mark_misses(&mut self, at: Time) {
        let Ok(summary) = self.meter.view() else { return };
        for vcpu in summary.vcpus {
            let missed = vcpu.misses.unwrap_or(0);
            let marked = self.marked.insert(vcpu.name.clone(), missed).unwrap_or(0);
            if missed > marked {
                self.columns.mark_misses(at, &vcpu.name, missed - marked);
            }
        }
    }
}

impl Sink for RunTimeline {
    fn record(&mut self, record: &Record) {
        self.meter.record(record);
        self.columns.record(record);
        let (_, at) = record.when();
        let (interval, next) = self.marks;
        if at >= next {
            self.mark_misses(at);
            self.marks.1 = at.after(interval);
        }
    }

    fn named(&mut self, named: &VcpuName) {
        self.meter.named(named);
        self.columns.named(named);
    }
}

/// Divides a run that ends at `end` into equal parts. Parts from 10 ms on are rounded up to whole
/// milliseconds, which are easier to read.
pub(super) fn equal_part(end: Time, parts: u64) -> Span {
    match end.since(Time::START) / parts {
        part if part >= Span::from_ms(10) => Span::from_ms(part.ns().div_ceil(1_000_000)),
        part => part.max(Span::from_us(1)),
    }
}
