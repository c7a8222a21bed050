//! Queue of changes for the ledger. One commit is written at a time, and changes that are made in
//! the meantime go into the next commit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use slackline_units::{Span, Time};

use crate::deed::{Change, KeyedRequest, UncommittedChange};
use crate::event::Event;
use crate::name::Name;
use crate::plan::Plan;
use crate::principal::{Principal, Role};
use crate::raise::Raise;
use crate::row::Row;
use crate::world::{Commit, KeptAnswer};

/// Time from a failed commit to the next attempt to write to the ledger.
pub(crate) const REST: Span = Span::from_secs(1);

/// Number of changes waiting for a commit at which the service refuses further changes of callers
/// who are not administrators. A list that is accepted below this number can exceed it.
const WAITING: usize = 1000;

/// Number of changes waiting for a commit at which the service refuses further changes of
/// administrators too.
const WAITING_OF_ALL: usize = 10_000;

/// Maximum number of events that are kept while the ledger cannot be written.
const EVENTS: usize = 10_000;

/// Queue of changes for the ledger, with the state of the current commit.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// Highest number that the writer has given to an event or a commit.
    seq: u64,
    under_way: Option<PendingCommit>,
    next: Batch,
    /// Rows, by name, that would stay in force if nothing could ever be written to the ledger
    /// again.
    remains: BTreeMap<Name, Row>,
    failing: Option<LedgerFailure>,
}

/// A commit that was begun and whose result is not known yet.
#[derive(Debug)]
struct PendingCommit {
    commit: Commit,
    batch: Batch,
}

/// Contents of one commit.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Names of the reservations whose rows must be written.
    touched: BTreeSet<Name>,
    /// Principals whose plans must be written.
    plans: BTreeSet<Principal>,
    /// Changes whose callers wait for the commit.
    pub(crate) deeds: Vec<UncommittedChange>,
    /// Events that were kept while the ledger could not be written, and events that belong to no
    /// queued change. The field `kept` has the answers from the time in which the ledger failed.
    events: VecDeque<Event>,
    kept: Vec<KeptAnswer>,
    /// Number of events that were dropped because more than the maximum were waiting.
    lost: u64,
}

/// Reason for which the ledger cannot be written, and the time of the next attempt.
#[derive(Debug)]
struct LedgerFailure {
    why: String,
    again: Time,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.touched.is_empty()
            && self.plans.is_empty()
            && self.deeds.is_empty()
            && self.events.is_empty()
    }

    /// Keeps an event until the ledger can be written again. If too many events are kept, the
    /// oldest event is dropped.
    fn keep(&mut self, event: Event) {
        self.events.push_back(Event { was_late: true, ..event });
        if self.events.len() > EVENTS {
            self.events.pop_front();
            self.lost += 1;
        }
    }
}

impl Writer {
    /// Creates a writer for a ledger that contains `rows`. `seq` is the highest number of an event
    /// or commit in the ledger.
    pub(crate) fn new(seq: u64, rows: &[Row]) -> Writer {
        let remains = rows.iter().map(|row| (row.name.clone(), row.clone())).collect();
        Writer { seq, remains, ..Writer::default() }
    }

    /// Returns a new number for an event or a commit. The number is higher than all earlier
    /// numbers.
    pub(crate) const fn number(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// Returns the highest number that the writer has given to an event or a commit.
    pub(crate) const fn last_number(&self) -> u64 {
        self.seq
    }

    /// Returns the reason why the ledger cannot be written. `None` if the ledger can be written.
    pub(crate) fn failing(&self) -> Option<&str> {
        self.failing.as_ref().map(|failing| failing.why.as_str())
    }

    /// Returns true if too many changes wait for a commit, so that a caller with this role should
    /// make no new change. The limit for administrators is higher, so that the changes of other
    /// callers leave room for theirs.
    pub(crate) fn is_full(&self, role: Option<Role>) -> bool {
        let is_administrator = role == Some(Role::Administrator);
        let most = if is_administrator { WAITING_OF_ALL } else { WAITING };
        self.next.deeds.len() >= most
    }

    /// Returns true if the current row of a reservation is not in the ledger yet.
    pub(crate) fn is_unwritten(&self, name: &Name) -> bool {
        let under_way = self.under_way.as_ref().map(|under_way| &under_way.batch);
        under_way.into_iter().chain([&self.next]).any(|batch| batch.touched.contains(name))
    }

    /// Returns the row that would stay in force under this name if nothing could ever be written to
    /// the ledger again.
    pub(crate) fn remains(&self, name: &Name) -> Option<&Row> {
        self.remains.get(name)
    }

    /// Returns the names whose current row can differ from the row that would stay in force if
    /// nothing could ever be written to the ledger again.
    pub(crate) fn unsettled(&self) -> Vec<Name> {
        self.next.touched.iter().cloned().collect()
    }

    /// Records that a row stays in force although it is not in the ledger, because it could not be
    /// reverted.
    pub(crate) fn let_remain(&mut self, row: Row) {
        self.remains.insert(row.name.clone(), row);
    }

    /// Returns the unwritten change of an earlier request with the same key. `None` if no request
    /// has the key, or if the earlier request was already answered.
    pub(crate) fn waiting(&mut self, keyed: &KeyedRequest) -> Option<&mut UncommittedChange> {
        let under_way = self.under_way.as_mut().map(|under_way| &mut under_way.batch);
        let batches = under_way.into_iter().chain([&mut self.next]);
        let is_same = |deed: &&mut UncommittedChange| {
            let key = deed.key.as_ref();
            key.is_some_and(|key| key.principal == keyed.principal && key.key == keyed.key)
        };
        batches.flat_map(|batch| &mut batch.deeds).find(is_same)
    }

    /// Queues a change for the ledger. If the ledger cannot be written now, only the row and the
    /// event are queued, and the change is returned so that its caller can be answered.
    pub(crate) fn add(&mut self, mut deed: UncommittedChange) -> Option<UncommittedChange> {
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

    /// Queues an event that belongs to no queued change.
    pub(crate) fn note(&mut self, event: Event) {
        match self.failing {
            None => self.next.events.push_back(event),
            Some(_) => self.next.keep(event),
        }
    }

    /// Records that the plan of a principal must be written to the ledger.
    pub(crate) fn touch_plan(&mut self, principal: Principal) {
        self.next.plans.insert(principal);
    }

    /// Returns the principals whose plans wait for the next commit.
    pub(crate) fn unwritten_plans(&self) -> Vec<Principal> {
        self.next.plans.iter().copied().collect()
    }

    /// Queues an answer that was given while the ledger could not be written. The next commit
    /// stores it. If too many answers are queued, the oldest is dropped.
    pub(crate) fn keep(&mut self, kept: KeptAnswer) {
        self.next.kept.push(kept);
        if self.next.kept.len() > EVENTS {
            self.next.kept.remove(0);
        }
    }

    /// Returns true if changes by a list of reservations are not in the ledger yet.
    pub(crate) fn has_list(&self) -> bool {
        self.has_list_where(|_| true)
    }

    /// Returns true if changes by a list of this principal are not in the ledger yet.
    pub(crate) fn has_list_of(&self, principal: Principal) -> bool {
        self.has_list_where(|event| event.principal == principal)
    }

    fn has_list_where(&self, is_it: impl Fn(&Event) -> bool) -> bool {
        let under_way = self.under_way.as_ref().map(|under_way| &under_way.batch);
        let mut batches = under_way.into_iter().chain([&self.next]);
        let is_it =
            |deed: &UncommittedChange| deed.is_together && deed.event.as_ref().is_none_or(&is_it);
        batches.any(|batch| batch.deeds.iter().any(is_it))
    }

    /// Applies a change to the row that would stay in force without the ledger. Changes by a list
    /// are left out, because some of them without the others would be half of the list.
    fn apply(&mut self, deed: &UncommittedChange) -> Option<Change> {
        if deed.is_together {
            return None;
        }
        let before = self.remains.remove(&deed.name);
        let mut after = before.clone();
        let remains = deed.kind.remains_in(&mut after, &deed.row);
        if let Some(row) = after.clone() {
            self.remains.insert(deed.name.clone(), row);
        }
        remains.then_some((before, after))
    }

    /// Returns the time of the next attempt to write. `None` if the ledger works, or if a commit is
    /// in progress.
    pub(crate) fn again(&self) -> Option<Time> {
        let waits = self.under_way.is_none();
        self.failing.as_ref().filter(|_| waits).map(|failing| failing.again)
    }

    /// Begins the next commit. Returns `None` if no commit is due or another commit is in progress.
    /// `row` returns the current row of a name, and `raises` returns the raises of that row. `plan`
    /// returns the plan of a principal, and `answer` returns the answer to store for a change.
    /// `whole` creates the event that reports the end of the ledger's failure, from the event's
    /// number and the number of lost events.
    pub(crate) fn begin(
        &mut self,
        now: Time,
        (row, raises, plan): (
            impl Fn(&Name) -> Option<Row>,
            impl Fn(&Row) -> Vec<Raise>,
            impl Fn(Principal) -> Option<Plan>,
        ),
        answer: impl Fn(&UncommittedChange, Option<&Row>) -> Option<KeptAnswer>,
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
        let images: BTreeMap<&Name, Option<&Row>> =
            rows.iter().map(|(name, row)| (name, row.as_ref())).collect();
        let image = |name: &Name| images.get(name).copied().flatten();
        let mut kept = batch.kept.clone();
        kept.extend(batch.deeds.iter().filter_map(|deed| answer(deed, image(&deed.name))));
        let mut events: Vec<Event> = batch.events.iter().cloned().collect();
        events.extend(batch.deeds.iter().filter_map(|deed| deed.event.clone()));
        events.sort_by_key(|event| event.seq);
        if self.failing.is_some() {
            events.push(whole(self.number(), batch.lost));
        }
        let seq = if events.is_empty() { self.number() } else { self.seq };
        let plans = batch.plans.iter().map(|&principal| (principal, plan(principal)));
        let plans = plans.collect();
        let raises = rows.iter().map(|(name, row)| {
            let all = row.as_ref().map_or_else(Vec::new, &raises);
            (name.clone(), all)
        });
        let raises = raises.collect();
        let commit = Commit { seq, rows, events, kept, plans, raises };
        self.under_way = Some(PendingCommit { commit, batch });
        self.under_way.as_ref().map(|under_way| &under_way.commit)
    }

    /// Records that the commit `seq` was written. Returns the commit, and the changes whose callers
    /// wait for the commit.
    pub(crate) fn committed(&mut self, seq: u64) -> Option<(Commit, Vec<UncommittedChange>)> {
        let PendingCommit { commit, batch } =
            self.under_way.take_if(|one| one.commit.seq == seq)?;
        if self.failing.take().is_some() {
            // `remains` already contains all changes made since the failure.
            return Some((commit, batch.deeds));
        }
        for (name, row) in &commit.rows {
            match row {
                Some(row) => self.remains.insert(name.clone(), row.clone()),
                None => self.remains.remove(name),
            };
        }
        let mut deeds = std::mem::take(&mut self.next.deeds);
        let written: BTreeSet<&Name> = commit.rows.iter().map(|(name, _)| name).collect();
        for deed in &mut deeds {
            if written.contains(&deed.name) {
                deed.remains = self.apply(deed);
            }
        }
        self.next.deeds = deeds;
        Some((commit, batch.deeds))
    }

    /// Handles a failed commit. The ledger cannot be written for now, so changes that were queued
    /// after the commit have failed too. Returns the changes of the commit and these later changes,
    /// oldest first.
    pub(crate) fn not_committed(
        &mut self,
        now: Time,
        seq: u64,
        why: &str,
    ) -> Option<Vec<UncommittedChange>> {
        let PendingCommit { batch, .. } = self.under_way.take_if(|one| one.commit.seq == seq)?;
        let later = std::mem::replace(&mut self.next, batch);
        self.next.touched.extend(later.touched);
        self.next.plans.extend(later.plans);
        self.next.kept.extend(later.kept);
        self.next.lost += later.lost;
        let mut deeds = std::mem::take(&mut self.next.deeds);
        deeds.extend(later.deeds);
        let events: Vec<Event> = self.next.events.drain(..).chain(later.events).collect();
        for event in events {
            self.next.keep(event);
        }
        self.failing = Some(LedgerFailure { why: why.to_owned(), again: now.after(REST) });
        Some(deeds)
    }
}
