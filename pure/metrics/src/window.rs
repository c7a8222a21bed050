//! Metrics of the most recent part of a run in progress.

use std::collections::{BTreeMap, VecDeque};

use slackline_trace::{Header, Record, Sink, VcpuName};
use slackline_units::{DomId, Span, Time};

use crate::{Meter, StrayRecord, Summary};

/// Sink that can return the summary of a moving window at any time. The numbers equal those of a
/// [`Meter`] that began to count at the start of the window.
///
/// The sink keeps the records of the window and the state of all vCPUs at the start of the window.
/// So the size of the sink depends on the events and vCPUs in the window, and not on the length of
/// the run. Each view reads these records once. vCPUs that were not joined in the window are not
/// shown. The overhead of scheduling covers the whole run, not only the window.
#[derive(Clone, Debug)]
pub struct MovingWindow {
    span: Span,
    warmup: Time,
    /// Time of the last record that the window has received.
    now: Time,
    /// State of all vCPUs at the start of the window. The counts in this state are zero.
    before: Meter,
    /// Records and names since the start of the window, in recorded order.
    since: VecDeque<WindowEntry>,
}

#[derive(Clone, Debug)]
enum WindowEntry {
    Record(Record),
    Named(Box<VcpuName>),
}

impl MovingWindow {
    /// Starts a window over the last `span` of a run. The window leaves out the warm-up of the run.
    #[must_use]
    pub fn new(header: &Header, span: Span) -> MovingWindow {
        let mut before = Meter::new(header);
        before.count_from(Time::NEVER);
        let warmup = Time::START.after(header.warmup);
        MovingWindow { span, warmup, now: Time::START, before, since: VecDeque::new() }
    }

    /// Returns the time of the last record.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the start of the window.
    #[must_use]
    pub fn start(&self) -> Time {
        let while_ago = self.now.since(Time::START).left_after(self.span);
        self.warmup.max(Time::START + while_ago)
    }

    /// Returns the summary of the window, up to the last record.
    ///
    /// # Errors
    /// If a record named an unknown vCPU or CPU.
    pub fn view(&self) -> Result<Summary, StrayRecord> {
        self.view_with_starts(&BTreeMap::new())
    }

    /// Returns the summary of the window, up to the last record. The vCPUs of the domains in
    /// `starts` are counted from these times on, if the times are in the window.
    ///
    /// # Errors
    /// If a record named an unknown vCPU or CPU.
    pub fn view_with_starts(&self, starts: &BTreeMap<DomId, Time>) -> Result<Summary, StrayRecord> {
        let mut meter = self.before.clone();
        meter.count_from(self.start());
        meter.count_domains_from(starts);
        self.since.iter().for_each(|kept| kept.pass_to(&mut meter));
        let mut summary = meter.view()?;
        summary.vcpus.retain(|vcpu| !vcpu.present.is_zero());
        Ok(summary)
    }

    /// Returns the number of records and names that the window keeps.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.since.len()
    }

    fn keep(&mut self, kept: WindowEntry) {
        self.now = self.now.max(kept.over());
        self.since.push_back(kept);
        let start = self.start();
        while let Some(kept) = self.since.pop_front_if(|kept| kept.over() < start) {
            kept.pass_to(&mut self.before);
            if matches!(kept, WindowEntry::Named(_)) {
                self.before.forget_gone();
            }
        }
    }
}

impl WindowEntry {
    /// Returns the time at which the recorded event ended.
    fn over(&self) -> Time {
        match self {
            WindowEntry::Record(record) => record.when().1,
            WindowEntry::Named(named) => named.at,
        }
    }

    fn pass_to(&self, meter: &mut Meter) {
        match self {
            WindowEntry::Record(record) => meter.record(record),
            WindowEntry::Named(named) => meter.named(named),
        }
    }
}

impl Sink for MovingWindow {
    fn record(&mut self, record: &Record) {
        self.keep(WindowEntry::Record(*record));
    }

    fn named(&mut self, named: &VcpuName) {
        self.keep(WindowEntry::Named(Box::new(named.clone())));
    }
}
