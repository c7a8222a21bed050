//! The last while of a run that goes on.

use std::collections::VecDeque;

use slackline_trace::{Header, Named, Record, Sink};
use slackline_units::{Span, Time};

use crate::{Meter, StrayRecord, Summary};

/// Takes the records of a run as they come and can say at any time what its last while amounts to:
/// the same numbers, to the last digit, as a [`Meter`] that had counted from there on.
///
/// It keeps the records of that while and how everybody was at its start, so that its size depends
/// on what happens in a while and on how many are there at once, not on how long the run is. To
/// look goes once through what it keeps. Who was not there in the while is not shown. What
/// scheduling itself took is told of the whole run, as ever.
#[derive(Clone, Debug)]
pub struct MovingWindow {
    span: Span,
    warmup: Time,
    /// The time of the last record.
    now: Time,
    /// How everybody was when the while began. It has counted nothing.
    before: Meter,
    /// What has happened since, in the order in which it was told.
    since: VecDeque<Kept>,
}

#[derive(Clone, Debug)]
enum Kept {
    Record(Record),
    Named(Box<Named>),
}

impl MovingWindow {
    /// The last `span` of the run that this header is of, as far as its warm-up is over.
    #[must_use]
    pub fn new(header: &Header, span: Span) -> MovingWindow {
        let mut before = Meter::new(header);
        before.count_from(Time::NEVER);
        let warmup = Time::START.after(header.warmup);
        MovingWindow { span, warmup, now: Time::START, before, since: VecDeque::new() }
    }

    /// When the while begins.
    #[must_use]
    pub fn start(&self) -> Time {
        let while_ago = self.now.since(Time::START).left_after(self.span);
        self.warmup.max(Time::START + while_ago)
    }

    /// What the last while has amounted to, up to the last record.
    ///
    /// # Errors
    /// When there was a record of somebody who is not known.
    pub fn view(&self) -> Result<Summary, StrayRecord> {
        self.view_since(self.start())
    }

    /// The same of the time since `at`, if that is less.
    ///
    /// # Errors
    /// As for [`MovingWindow::view`].
    pub fn view_since(&self, at: Time) -> Result<Summary, StrayRecord> {
        let mut meter = self.before.clone();
        meter.count_from(self.start().max(at));
        self.since.iter().for_each(|kept| kept.pass_to(&mut meter));
        let mut summary = meter.view()?;
        summary.vcpus.retain(|vcpu| !vcpu.present.is_zero());
        Ok(summary)
    }

    /// How many records and names it keeps.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.since.len()
    }

    fn keep(&mut self, kept: Kept) {
        self.now = self.now.max(kept.over());
        self.since.push_back(kept);
        let start = self.start();
        while let Some(kept) = self.since.pop_front_if(|kept| kept.over() < start) {
            kept.pass_to(&mut self.before);
            if matches!(kept, Kept::Named(_)) {
                self.before.forget_gone();
            }
        }
    }
}

impl Kept {
    /// When all that it tells was over.
    fn over(&self) -> Time {
        match self {
            Kept::Record(record) => record.when().1,
            Kept::Named(named) => named.at,
        }
    }

    fn pass_to(&self, meter: &mut Meter) {
        match self {
            Kept::Record(record) => meter.record(record),
            Kept::Named(named) => meter.named(named),
        }
    }
}

impl Sink for MovingWindow {
    fn record(&mut self, record: &Record) {
        self.keep(Kept::Record(*record));
    }

    fn named(&mut self, named: &Named) {
        self.keep(Kept::Named(Box::new(named.clone())));
    }
}
