//! What a load that talks to others, or to a disk, amounted to.

use hdrhistogram::Histogram;
use slackline_units::{Span, Time};

use crate::LoadError;
use crate::clock::monotonic;
use crate::job::{Note, Reporter};

/// What a load with devices, or a client, did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Time from its start to its end.
    pub elapsed: Span,
    /// CPU time that it used.
    pub used: Span,
    /// Requests: asked, if it asks; taken, if it answers.
    pub asked: u64,
    /// Those of them that were answered.
    pub answered: u64,
    /// Those of them that were given up: nobody listened, or nobody answered in time.
    pub lost: u64,
    /// Bytes of data that it sent, headers not counted.
    pub sent: u64,
    /// Bytes of data that it received, headers not counted.
    pub received: u64,
    /// Bytes that it read from its file.
    pub read: u64,
    /// Whether that was past the cache of the operating system; none if nothing was read.
    pub is_direct: Option<bool>,
    /// How long answers took; none where it did not ask, or had none.
    pub responses: Option<Responses>,
    /// What it could not tell whoever started it, because nobody read.
    pub dropped: u64,
}

/// How long answers took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Responses {
    /// What they took on average.
    pub mean: Span,
    /// Half of them took no longer; none of a single one.
    pub p50: Option<Span>,
    /// All but a hundredth took no longer; none of a single one.
    pub p99: Option<Span>,
    /// The longest.
    pub worst: Span,
}

impl Done {
    /// Adds what another thread did in the same time.
    pub(crate) fn add(&mut self, other: &Done) {
        self.used += other.used;
        self.asked += other.asked;
        self.answered += other.answered;
        self.lost += other.lost;
        self.sent += other.sent;
        self.received += other.received;
        self.read += other.read;
    }
}

/// What took longer counts as this.
const LONGEST: Span = Span::from_secs(3_600);

/// Response times as they come. Its size does not depend on how many.
#[derive(Debug)]
pub(crate) struct Tally {
    spans: Histogram<u64>,
    sum: Span,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        let bounds = Histogram::new_with_bounds(1, LONGEST.ns(), 3);
        Tally { spans: bounds.expect("three digits are possible"), sum: Span::ZERO }
    }

    pub(crate) fn add(&mut self, span: Span) {
        self.spans.saturating_record(span.ns());
        self.sum += span;
    }

    /// Less than a thousandth too high.
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

/// So often data that has moved is told at most.
const TELL_EVERY: Span = Span::from_ms(10);

/// Data that has moved and has not been told.
#[derive(Debug)]
pub(crate) struct Moved<'a> {
    notes: &'a Reporter,
    bytes: u64,
    told: Time,
}

impl<'a> Moved<'a> {
    pub(crate) fn new(notes: &'a Reporter) -> Moved<'a> {
        Moved { notes, bytes: 0, told: Time::START }
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
