//! Commits to the ledger, and reverting changes that a failed commit could not write.

use std::collections::BTreeSet;

use slackline_units::{Span, Time};

use crate::answer::{Answer, ListedReservation, Warning};
use crate::book::{Entry, Standing, ended};
use crate::deed::{Kind, UncommittedChange};
use crate::event::{Event, EventKind};
use crate::input::{ClientRequest, LedgerFault};
use crate::name::Name;
use crate::principal::Principal;
use crate::refusal::Refusal;
use crate::row::{Reason, Row};
use crate::terms::Terms;
use crate::world::{KeptAnswer, World};

use super::reserve::{join, refusal};
use super::{ChangeOrigin, DoneChange, Service};

impl Service {
    /// Begins a commit. Does nothing if there is nothing to write or if another commit is in
    /// progress.
    pub(super) fn write(&mut self, now: Time, world: &mut impl World) {
        let book = &self.book;
        let whole = |seq, lost| Event {
            seq,
            at: now,
            principal: Principal::Service,
            what: EventKind::LedgerWhole { lost },
            name: None,
            before: None,
            after: None,
            was_late: false,
        };
        let (plans, raises) = (&self.plans, &self.raises);
        let images = (
            |name: &Name| book.lasting(name).cloned(),
            |row: &Row| raises.of(row),
            |principal| plans.get(&principal).cloned(),
        );
        let commit = self.writer.begin(now, images, kept, whole);
        if let Some(commit) = commit {
            world.commit(commit);
        }
    }

    /// Handles a completed commit: answers the callers that waited for the commit, and publishes
    /// the events of the commit.
    pub(super) fn committed(&mut self, now: Time, seq: u64, world: &mut impl World) {
        let Some((commit, deeds)) = self.writer.committed(seq) else { return };
        self.stored_plans(&commit.plans);
        for (name, raises) in &commit.raises {
            self.lasting_raises.set(name, raises.clone());
        }
        for deed in &deeds {
            // The rows are sorted by name.
            let row = commit.rows.binary_search_by(|(name, _)| name.cmp(&deed.name));
            let row = row.ok().and_then(|at| commit.rows[at].1.as_ref());
            self.keys_keep(now, deed, row);
            let reservation = self.seen(committed_row(deed, row));
            let is_new = matches!(deed.kind, Kind::Reserved);
            let answer = Answer::Done { reservation: Box::new(reservation), is_new, warning: None };
            self.reply_deed(deed, &Ok(answer), world);
        }
        for event in &commit.events {
            world.publish(event);
        }
    }

    fn keys_keep(&mut self, now: Time, deed: &UncommittedChange, row: Option<&Row>) {
        if let Some(kept) = kept(deed, row) {
            self.keys.keep(now, kept, Span::ZERO);
        }
    }

    /// Returns a reservation as the request `list` shows it, with the parameters of this row and
    /// its current state.
    fn seen(&self, row: Row) -> ListedReservation {
        let entry = self.book.get(&row.name).filter(|entry| entry.row.since == row.since);
        match entry.map(Entry::listed) {
            Some(listed) => ListedReservation { row, ..listed },
            None => ended(row),
        }
    }

    /// Handles a failed commit. After the failure, the ledger cannot be written for a while. A
    /// change that takes CPU time from no other reservation stays in force, unless the change
    /// belongs to a list. All other changes are reverted.
    pub(super) fn not_committed(
        &mut self,
        now: Time,
        seq: u64,
        fault: &LedgerFault,
        world: &mut impl World,
    ) {
        let was_failing = self.writer.failing().is_some();
        let Some(deeds) = self.writer.not_committed(now, seq, &fault.says) else { return };
        if !was_failing {
            self.note(now, Principal::Service, EventKind::LedgerFailing(fault.says.clone()));
        }
        self.take_plans_back(now);
        let listed = deeds.iter().filter(|deed| deed.is_together);
        let listed: BTreeSet<Name> = listed.map(|deed| deed.name.clone()).collect();
        let stays = self.take_back_all(now, &listed, world);
        self.take_raises_back(&stays);
        for mut deed in deeds {
            let changed = deed.remains.take();
            let reply = if changed.is_some() || stays.contains(&deed.name) {
                // If an earlier change of this reservation was reverted, the rows before and after
                // this change are different now. The event must have these rows.
                let changed = changed.filter(|_| !stays.contains(&deed.name));
                let event = deed.event.take().map(|event| match changed {
                    Some((before, after)) => Event { before, after, ..event },
                    None => event,
                });
                event.into_iter().for_each(|event| self.writer.note(event));
                Ok(self.answer_unwritten(now, &deed))
            } else {
                Err(Refusal::NotDurable { why: fault.says.clone() })
            };
            self.reply_deed(&deed, &reply, world);
        }
    }

    /// Answers all callers that wait for a change. The answer to a request with a list contains all
    /// changes of the list.
    fn reply_deed(
        &mut self,
        deed: &UncommittedChange,
        reply: &Result<Answer, Refusal>,
        world: &mut impl World,
    ) {
        for ticket in &deed.tickets {
            let reply = match (self.applied.remove(ticket), reply) {
                (Some(changes), Ok(_)) => Ok(Answer::Applied { changes }),
                (_, reply) => reply.clone(),
            };
            world.reply(*ticket, &reply);
        }
    }

    /// Reverts all changes that must not stay in force while they are not in the ledger. Changes
    /// whose reversal frees capacity are reverted first. `listed` contains the names of
    /// reservations that a list changed. Returns the names of reservations that could not be
    /// reverted.
    fn take_back_all(
        &mut self,
        now: Time,
        listed: &BTreeSet<Name>,
        world: &mut impl World,
    ) -> BTreeSet<Name> {
        let (mut larger, mut ended, mut stays) = (Vec::new(), Vec::new(), BTreeSet::new());
        for name in self.writer.unsettled() {
            let row = self.book.lasting(&name).cloned();
            match (row, self.writer.remains(&name).cloned()) {
                (None, None) => {}
                (Some(_), None) => self.let_go(now, &name, world),
                (Some(row), Some(remains)) if row.since == remains.since => {
                    if remains.terms.is_within(row.terms) {
                        stays.extend(self.put_back(now, (remains, row.terms), listed, world));
                    } else {
                        larger.push((remains, row.terms));
                    }
                }
                // A list released the reservation. Another reservation may have its name now.
                (_, Some(remains)) => {
                    self.let_go(now, &name, world);
                    ended.push(remains);
                }
            }
        }
        for change in larger {
            stays.extend(self.put_back(now, change, listed, world));
        }
        ended.into_iter().for_each(|row| self.make_again(now, row, world));
        stays
    }

    /// Reverts the raises of all reservations whose changes were reverted, so that a raise counts
    /// for exactly as long as it is in force. `stays` contains the names of reservations that could
    /// not be reverted. The raises of these reservations stay too.
    fn take_raises_back(&mut self, stays: &BTreeSet<Name>) {
        for name in self.writer.unsettled() {
            let Some(row) = self.book.lasting(&name) else { continue };
            if stays.contains(&name) {
                self.lasting_raises.set(&name, self.raises.of(row));
            } else {
                self.raises.take_back(row, &self.lasting_raises);
            }
        }
    }

    /// Reverts a reservation from its current terms to the earlier row `remains`. If that row no
    /// longer fits, for instance because vCPUs are now placed on other CPUs, the current row stays,
    /// and the name of the reservation is returned. The exception is a reservation that a list
    /// changed: it gets the earlier row and waits for capacity.
    fn put_back(
        &mut self,
        now: Time,
        (remains, terms): (Row, Terms),
        listed: &BTreeSet<Name>,
        world: &mut impl World,
    ) -> Option<Name> {
        let name = remains.name.clone();
        let is_same = remains.terms == terms;
        let refused = if is_same { None } else { self.enforce(&name, remains.terms, world).err() };
        let entry = self.book.get_mut(&name)?;
        match refused {
            None => entry.row = remains,
            Some(why) if listed.contains(&name) => {
                if !entry.is_out() {
                    world.leave(entry.domain);
                }
                entry.row = remains;
                entry.stand(Standing::Out(Reason::NoRoom(why.to_string())));
                self.try_again = Some(now);
            }
            Some(_) => {
                self.writer.let_remain(entry.row.clone());
                return Some(name);
            }
        }
        None
    }

    /// Makes a reservation again after a list released it. The VM is looked up later, like a VM
    /// that starts after its reservation was made.
    fn make_again(&mut self, now: Time, row: Row, world: &mut impl World) {
        let domain = self.domains.take(now, &row.binding, row.identity);
        self.domains.promised(domain, row.terms.each().period());
        let standing = match join(world, domain, &row, None) {
            Ok(()) => Standing::Promised(Reason::Absent(row.binding.clone())),
            Err(declined) => {
                self.try_again = Some(now);
                let why = refusal(declined, &row.terms, &row.binding);
                Standing::Out(Reason::NoRoom(why.to_string()))
            }
        };
        self.book.insert(Entry::new(row, domain, standing));
    }

    /// Returns the answer to a request whose change is in force but cannot be written to the
    /// ledger.
    pub(super) fn answer_unwritten(&mut self, now: Time, deed: &UncommittedChange) -> Answer {
        let row = self.book.row(&deed.name).filter(|row| row.since == deed.row.since).cloned();
        if let Some(kept) = kept(deed, row.as_ref()) {
            self.writer.keep(kept.clone());
            self.keys.keep(now, kept, Span::ZERO);
        }
        let reservation = self.seen(committed_row(deed, row.as_ref()));
        let is_new = matches!(deed.kind, Kind::Reserved);
        let why = self.writer.failing().unwrap_or_default().to_owned();
        let (reservation, warning) = (Box::new(reservation), Some(Warning::NotDurable { why }));
        Answer::Done { reservation, is_new, warning }
    }

    /// Answers a request that changed nothing. If the row in the answer is not in the ledger yet,
    /// or if the request has a key, the answer waits for the commit.
    pub(super) fn is_so(&mut self, now: Time, asked: &ClientRequest, row: Row) -> Option<Answer> {
        if self.writer.is_unwritten(&row.name) || asked.key.is_some() {
            let done = DoneChange { kind: Kind::Same, before: None, after: row, happened: None };
            return self.did(now, &ChangeOrigin::Asked(asked), done);
        }
        let reservation = self.seen(row);
        let reservation = Box::new(reservation);
        Some(Answer::Done { reservation, is_new: false, warning: None })
    }
}

/// Returns the row for an answer: the row `written` in the ledger. If the change ended the
/// reservation, or if `written` belongs to another reservation or is `None`, returns the row of the
/// change.
fn committed_row(deed: &UncommittedChange, written: Option<&Row>) -> Row {
    let written = written.filter(|row| row.since == deed.row.since && deed.kind != Kind::Ended);
    written.unwrap_or(&deed.row).clone()
}

/// Returns the answer to store for repetitions of a request. `None` if the request has no key.
fn kept(deed: &UncommittedChange, written: Option<&Row>) -> Option<KeptAnswer> {
    let key = deed.key.as_ref()?;
    Some(KeptAnswer {
        principal: key.principal,
        key: key.key.clone(),
        asked: key.asked.clone(),
        row: committed_row(deed, written),
        is_new: matches!(deed.kind, Kind::Reserved),
    })
}
