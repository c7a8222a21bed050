//! Results of a load with devices (serving requests or reading a disk), or of a client.

use hdrhistogram::Histogram;
use slackline_units::{Span, Time};

use crate::LoadError;
use crate::clock::monotonic;
use crate::job::{Note, Reporter};

/// Results of a system with devices, or of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadResults {
    /// Time from the start of the load to its end.
    pub elapsed: Span,
    /// CPU time that the load used.
    pub used: Span,
    /// Number of requests that a client sent, or that a server accepted.
    pub asked: u64,
    /// Number of requests that were answered.
    pub answered: u64,
    /// Number of requests that were given up, because no process listened or no answer arrived in
    /// time.
    pub lost: u64,
    /// Bytes of data that the load sent, without headers.
    pub sent: u64,
    /// Bytes of data that the load received, without headers.
    pub received: u64,
    /// Bytes that the load read from its file.
    pub read: u64,
    /// True if the reads bypassed the page cache. `None` if nothing was read.
    pub is_direct: Option<bool>,
    /// Response times of a client's requests. `None` if the load is a server, or if the client got
    /// no answer.
    pub responses: Option<Responses>,
    /// Number of notes (reports of jobs or data) that were dropped, because their reader was too
    /// slow or had ended.
    pub dropped: u64,
}

/// Summary of response times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Responses {
    /// Mean of all response times.
    pub mean: Span,
    /// Median of all response times. `None` if there is only one response.
    pub p50: Option<Span>,
    /// 99th percentile of all response times. `None` if there is only one response.
    pub p99: Option<Span>,
    /// Longest of all response times.
    pub worst: Span,
}

impl LoadResults {
    /// Adds the results of another thread that ran at the same time.
    pub(crate) fn add(&mut self, other: &LoadResults) {
        self.used += other.used;
        self.asked += other.asked;
        self.answered += other.answered;
        self.lost += other.lost;
        self.sent += other.sent;
        self.received += other.received;
        self.read += other.read;
    }
}

/// Longest response time that is recorded. A longer time is counted as this value.
const LONGEST: Span = Span::from_secs(3_600);

/// Histogram of response times. Its size does not depend on the number of samples.
#[derive(Debug)]
pub(crate) struct Tally {
    spans: Histogram<u64>,
    sum: Span,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        let bounds = Histogram::new_with_bounds(1, LONGEST.ns(), 3);
        Tally { spans: bounds.expect("three significant digits are supported"), sum: Span::ZERO }
    }

    pub(crate) fn add(&mut self, span: Span) {
        self.spans.saturating_record(span.ns());
        self.sum += span;
    }

    /// Returns a summary of the response times. Its values are at most 0.1 % too high. `None`
    /// if there were no answers.
    pub(crate) fn responses(&self) -> Option<Responses> {
        let worst = Span::from_ns(self.spans.max());
        let has = self.spans.len() > 1;
        let at =
            |part: f64| has.then(|| Span::from_ns(self.spans.value_at_quantile(part)).min(worst));
        let mean = self.sum / self.spans.len().max(1);
        let responses = Responses { mean, p50: at(0.5), p99: at(0.99), worst };
        (!self.spans.is_empty()).then_some(responses)
    }
}

/// Minimum time between two reports of transferred data.
const TELL_EVERY: Span = Span::from_ms(10);

/// Counter of transferred data that has not been reported yet.
#[derive(Debug)]
pub(crate) struct TransferCounter<'a> {
    notes: &'a Reporter,
    bytes: u64,
    told: Time,
}

impl<'a> TransferCounter<'a> {
    pub(crate) fn new(notes: &'a Reporter) -> TransferCounter<'a> {
        TransferCounter { notes, bytes: 0, told: Time::START }
    }

    pub(crate) fn add(&mut self, bytes: u64) -> Result<(), LoadError> {
        self.bytes += bytes;
        let now = monotonic();
        if now.since(self.told) < TELL_EVERY { Ok(()) } else { self.tell() }
    }

    pub(crate) fn tell(&mut self) -> Result<(), LoadError> {
        let at = monotonic();
        self.told = at;
        match std::mem::take(&mut self.bytes) {
            0 => Ok(()),
            bytes => self.notes.report(Note::Moved { at, bytes }),
        }
    }
}
