//! What is to be written down: one commit at a time, and what comes meanwhile goes into the next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use slackline_units::{Span, Time};

use crate::deed::{Change, Deed, Keyed};
use crate::event::Event;
use crate::name::Name;
use crate::row::Row;
use crate::world::{Commit, Kept};

/// How long a ledger that failed is left alone.
pub(crate) const REST: Span = Span::from_secs(1);

/// The most that wait to be written down together.
const WAITING: usize = 1000;

/// The most events that are kept while nothing can be written.
const EVENTS: usize = 10_000;

/// The way to the ledger.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// The number that was given out last.
    seq: u64,
    under_way: Option<UnderWay>,
    next: Batch,
    /// What would remain if nothing could be written down any more, by name.
    remains: BTreeMap<Name, Row>,
    failing: Option<Failing>,
}

/// A commit that was begun.
#[derive(Debug)]
struct UnderWay {
    commit: Commit,
    batch: Batch,
}

/// What goes into one commit.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Whose rows are to be written.
    touched: BTreeSet<Name>,
    /// What waits to be written.
    pub(crate) deeds: Vec<Deed>,
    /// What happened while nothing could be written, and what was answered then.
    events: VecDeque<Event>,
    kept: Vec<Kept>,
    /// How many events were too many.
    lost: u64,
}

/// Why nothing can be written, and when it is tried again.
#[derive(Debug)]
struct Failing {
    why: String,
    again: Time,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.touched.is_empty() && self.deeds.is_empty() && self.events.is_empty()
    }

    /// What happened is kept to be written later.
    fn keep(&mut self, event: Event) {
        self.events.push_back(Event { was_late: true, ..event });
        if self.events.len() > EVENTS {
            self.events.pop_front();
            self.lost += 1;
        }
    }
}

impl Writer {
    /// A way to a ledger that holds these rows, and has given out that number last.
    pub(crate) fn new(seq: u64, rows: &[Row]) -> Writer {
        let remains = rows.iter().map(|row| (row.name.clone(), row.clone())).collect();
        Writer { seq, remains, ..Writer::default() }
    }

    /// A number that is higher than all before.
    pub(crate) const fn number(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// Why nothing can be written.
    pub(crate) fn failing(&self) -> Option<&str> {
        self.failing.as_ref().map(|failing| failing.why.as_str())
    }

    /// Whether so much waits to be written that nothing more is to be begun.
    pub(crate) fn is_full(&self) -> bool {
        self.next.deeds.len() >= WAITING
    }

    /// Whether what is promised under a name is not written down yet.
    pub(crate) fn is_unwritten(&self, name: &Name) -> bool {
        let under_way = self.under_way.as_ref().map(|under_way| &under_way.batch);
        under_way.into_iter().chain([&self.next]).any(|batch| batch.touched.contains(name))
    }

    /// What would remain under a name if nothing could be written down any more.
    pub(crate) fn remains(&self, name: &Name) -> Option<&Row> {
        self.remains.get(name)
    }

    /// All names of which that may differ from what is in force.
    pub(crate) fn unsettled(&self) -> Vec<Name> {
        self.next.touched.iter().cloned().collect()
    }

    /// What could not be taken back remains after all.
    pub(crate) fn let_remain(&mut self, row: Row) {
        self.remains.insert(row.name.clone(), row);
    }

    /// Whoever asked for the same before, and has not been answered.
    pub(crate) fn waiting(&mut self, keyed: &Keyed) -> Option<&mut Deed> {
        let under_way = self.under_way.as_mut().map(|under_way| &mut under_way.batch);
        let batches = under_way.into_iter().chain([&mut self.next]);
        let is_same = |deed: &&mut Deed| {
            let key = deed.key.as_ref();
            key.is_some_and(|key| key.principal == keyed.principal && key.key == keyed.key)
        };
        batches.flat_map(|batch| &mut batch.deeds).find(is_same)
    }

    /// Something was done. While nothing can be written it is given back, for whoever asked to be
    /// answered at once.
    pub(crate) fn add(&mut self, mut deed: Deed) -> Option<Deed> {
        deed.remains = self.apply(&deed);
        if deed.event.is_some() {
            self.next.touched.insert(deed.name.clone());
        }
        if self.failing.is_none() {
            self.next.deeds.push(deed);
            return None;
        }
        if let Some(event) = deed.event.take() {
            self.next.keep(event);
        }
        Some(deed)
    }

    /// Something happened to nobody's reservation.
    pub(crate) fn note(&mut self, event: Event) {
        match self.failing {
            None => self.next.events.push_back(event),
            Some(_) => self.next.keep(event),
        }
    }

    /// An answer that was given while nothing could be written.
    pub(crate) fn keep(&mut self, kept: Kept) {
        self.next.kept.push(kept);
        if self.next.kept.len() > EVENTS {
            self.next.kept.remove(0);
        }
    }

    fn apply(&mut self, deed: &Deed) -> Option<Change> {
        let before = self.remains.remove(&deed.name);
        let mut after = before.clone();
        let remains = deed.kind.remains_in(&mut after, &deed.row);
        if let Some(row) = after.clone() {
            self.remains.insert(deed.name.clone(), row);
        }
        remains.then_some((before, after))
    }

    /// When to try again to write.
    pub(crate) fn again(&self) -> Option<Time> {
        let waits = self.under_way.is_none();
        self.failing.as_ref().filter(|_| waits).map(|failing| failing.again)
    }

    /// What is to be written now, if anything: with what is promised under each name, and with an
    /// event that says that it can be written again.
    pub(crate) fn begin(
        &mut self,
        now: Time,
        row: impl Fn(&Name) -> Option<Row>,
        answer: impl Fn(&Deed, Option<&Row>) -> Option<Kept>,
        whole: impl FnOnce(u64, u64) -> Event,
    ) -> Option<&Commit> {
        let is_due = self.failing.as_ref().is_none_or(|failing| failing.again <= now);
        let has_cause = self.failing.is_some() || !self.next.is_empty();
        if self.under_way.is_some() || !is_due || !has_cause {
            return None;
        }
        let batch = std::mem::take(&mut self.next);
        let rows: Vec<(Name, Option<Row>)> =
            batch.touched.iter().map(|name| (name.clone(), row(name))).collect();
        let image =
            |name| rows.iter().find(|(one, _)| one == name).and_then(|(_, row)| row.as_ref());
        let mut kept = batch.kept.clone();
        kept.extend(batch.deeds.iter().filter_map(|deed| answer(deed, image(&deed.name))));
        let mut events: Vec<Event> = batch.events.iter().cloned().collect();
        events.extend(batch.deeds.iter().filter_map(|deed| deed.event.clone()));
        events.sort_by_key(|event| event.seq);
        if self.failing.is_some() {
            events.push(whole(self.number(), batch.lost));
        }
        let seq = if events.is_empty() { self.number() } else { self.seq };
        let commit = Commit { seq, rows, events, kept };
        self.under_way = Some(UnderWay { commit, batch });
        self.under_way.as_ref().map(|under_way| &under_way.commit)
    }

    /// It is written down: what it was, and who waited for it.
    pub(crate) fn committed(&mut self, seq: u64) -> Option<(Commit, Vec<Deed>)> {
        let UnderWay { commit, batch } = self.under_way.take_if(|one| one.commit.seq == seq)?;
        if self.failing.take().is_some() {
            // Nothing has been done since that would not remain.
            return Some((commit, batch.deeds));
        }
        for (name, row) in &commit.rows {
            match row {
                Some(row) => self.remains.insert(name.clone(), row.clone()),
                None => self.remains.remove(name),
            };
        }
        let mut deeds = std::mem::take(&mut self.next.deeds);
        for deed in &mut deeds {
            if commit.rows.iter().any(|(name, _)| *name == deed.name) {
                deed.remains = self.apply(deed);
            }
        }
        self.next.deeds = deeds;
        Some((commit, batch.deeds))
    }

    /// It is not, and neither is what was to follow: nothing can be written for now. Returns all
    /// that waited, oldest first.
    pub(crate) fn not_committed(&mut self, now: Time, seq: u64, why: &str) -> Option<Vec<Deed>> {
        let UnderWay { batch, .. } = self.under_way.take_if(|one| one.commit.seq == seq)?;
        let later = std::mem::replace(&mut self.next, batch);
        self.next.touched.extend(later.touched);
        self.next.kept.extend(later.kept);
        self.next.lost += later.lost;
        let mut deeds = std::mem::take(&mut self.next.deeds);
        deeds.extend(later.deeds);
        let events: Vec<Event> = self.next.events.drain(..).chain(later.events).collect();
        for event in events {
            self.next.keep(event);
        }
        self.failing = Some(Failing { why: why.to_owned(), again: now.after(REST) });
        Some(deeds)
    }
}
