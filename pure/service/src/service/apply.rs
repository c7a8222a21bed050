//! Lists of reservations. All reservations of a list are admitted, or nothing changes.
//!
//! A request lists the reservations that should exist. Changes that free capacity are made before
//! changes that reserve capacity, so the order of the list does not matter. If one reservation is
//! refused, the earlier changes are undone in reverse order. All changes are written in one commit.
//! So after a crash, either all reservations have their old parameters or all have their new
//! parameters.

use std::collections::BTreeSet;

use slackline_units::Time;

use crate::answer::{Answer, AppliedChange};
use crate::book::{Entry, Standing};
use crate::deed::Kind;
use crate::event::EventKind;
use crate::input::ClientRequest;
use crate::machine::WorldError;
use crate::name::Name;
use crate::principal::{Role, Verb};
use crate::raise::is_raise;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::row::{Reason, Row};
use crate::terms::{TermsChange, TermsError};
use crate::world::World;

use super::postponed::{List, Purpose};
use super::reserve::{check_end, check_name, check_run, join, new_terms, refusal};
use super::steps::{Step, Undo};
use super::{ChangeOrigin, DoneChange, Replied, Service};

/// Maximum number of reservations in one list.
pub const MOST_TARGETS: usize = 1_000;

impl Service {
    pub(super) fn apply(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        world: &mut impl World,
    ) -> Replied {
        let Request::Apply { targets, prune, dry_run, revision } = &asked.request else {
            return Ok(None);
        };
        if targets.len() > MOST_TARGETS {
            return Err(Refusal::TooManyTargets { is: targets.len(), most: MOST_TARGETS });
        }
        let current = self.check_host(*revision);
        let planned = self.plan(now, asked, (targets, *prune), world);
        let mut steps = match (planned, &current) {
            (Err(_), Err(moved)) => return Err(moved.clone()),
            (planned, _) => planned?,
        };
        steps.sort_by(|a, b| a.name().cmp(b.name()));
        let shown: Vec<AppliedChange> = steps.iter().map(Step::shown).collect();
        self.check_plan_room(asked, &shown, false)?;
        steps.retain(|step| !matches!(step, Step::Keep { .. }));
        // A client repeats a list if it got no answer. The list has then changed the revision
        // itself, and changes nothing more.
        if !steps.is_empty() {
            current?;
        }
        if steps.is_empty() || *dry_run {
            return Ok(Some(Answer::Applied { changes: shown }));
        }
        if let Some(why) = self.writer.failing() {
            return Err(Refusal::NotDurable { why: why.to_owned() });
        }
        self.check_no_canary(asked)?;
        steps.sort_by_key(Step::rank);
        let (asked, purpose) = (asked.clone(), Purpose::Apply(shown));
        self.begin_list(now, List { asked, steps, purpose }, world)?;
        Ok(None)
    }

    /// Carries out all steps or none, and queues their changes for the ledger in one commit. `by`
    /// returns the cause of the change by a step, given the index of the step. Returns the changed
    /// rows with their new revisions.
    pub(super) fn carry_out<'a>(
        &mut self,
        now: Time,
        (asked, by): (&ClientRequest, impl Fn(usize) -> ChangeOrigin<'a>),
        steps: Vec<Step>,
        world: &mut impl World,
    ) -> Result<Vec<Row>, Refusal> {
        let done = self.do_all(now, asked, &steps, world)?;
        Ok(self.record_all(now, (asked, by), steps, done))
    }

    /// Queues the changes of completed steps for the ledger, in one commit. Returns the changed
    /// rows with their new revisions.
    pub(super) fn record_all<'a>(
        &mut self,
        now: Time,
        (asked, by): (&ClientRequest, impl Fn(usize) -> ChangeOrigin<'a>),
        steps: Vec<Step>,
        done: Vec<Undo>,
    ) -> Vec<Row> {
        self.leave_for_good(now, done);
        let steps = steps.into_iter().enumerate();
        steps.map(|(number, step)| self.record(now, (asked, &by(number)), step)).collect()
    }

    fn leave_for_good(&mut self, now: Time, done: Vec<Undo>) {
        for undo in done {
            if let Undo::Release(entry) = undo {
                self.domains.leave(now, entry.domain);
            }
        }
        self.try_again = self.try_again.map(|_| now);
    }

    /// Returns the steps that make the reservations match the list. With `prune`, reservations that
    /// are not in the list are released.
    pub(super) fn plan(
        &self,
        now: Time,
        asked: &ClientRequest,
        (targets, prune): (&[Request], bool),
        world: &mut impl World,
    ) -> Result<Vec<Step>, Refusal> {
        let mut steps = Vec::new();
        let mut listed = BTreeSet::new();
        for target in targets {
            let Some(name) = target.name() else { continue };
            if !listed.insert(name) {
                let says = "it is listed twice".to_owned();
                return Err(of(name, Refusal::Unkeepable(says)));
            }
            let step = check_target_end(target, now, world);
            let step = step.and_then(|()| match self.book.row(name) {
                Some(row) => self.plan_change(asked, target, row),
                None => self.plan_new(asked, target),
            });
            steps.push(step.map_err(|why| of(name, why))?);
        }
        let rest = self.book.iter().filter(|entry| !listed.contains(&entry.row.name));
        let may_release = |entry: &&Entry| {
            let is_own = entry.row.owner == asked.principal;
            prune && !entry.is_lent() && (is_own || asked.role == Some(Role::Administrator))
        };
        let released = rest.filter(may_release);
        steps.extend(released.map(|entry| Step::Release { before: entry.row.clone() }));
        let created = steps.iter().filter(|step| matches!(step, Step::Create { .. })).count();
        self.check_count(asked, created)?;
        Ok(steps)
    }

    fn plan_change(
        &self,
        asked: &ClientRequest,
        target: &Request,
        row: &Row,
    ) -> Result<Step, Refusal> {
        let Request::Reserve { amount, exact, phase, vcpus, binding, user, until, enforce, .. } =
            target
        else {
            return Err(Refusal::Unkeepable("the request names no reservation".into()));
        };
        if !asked.owns(row) {
            return Err(Refusal::NameTaken { name: row.name.clone() });
        }
        self.check_lent(&row.name)?;
        let is_another = binding.as_ref().is_some_and(|binding| *binding != row.binding)
            || user.is_some_and(|user| user != row.user);
        if is_another {
            return Err(Refusal::Exists { name: row.name.clone(), is: row.to_string() });
        }
        let vcpus = vcpus.unwrap_or(row.terms.vcpus());
        let change = TermsChange {
            amount: Some(*amount),
            exact: Some(*exact),
            phase: Some(*phase),
            vcpus: Some(vcpus),
            until: Some(*until),
            // With `auto`, an existing reservation keeps its mechanism if that mechanism supports
            // the new parameters.
            enforce: (!enforce.is_auto()).then_some(enforce.by()),
        };
        let by = TermsChange { enforce: Some(enforce.by()), ..change };
        let (change, terms) = match change.of(row.terms) {
            Err(TermsError::Mechanism { .. }) => (by, by.of(row.terms)),
            terms => (change, terms),
        };
        let terms = terms.map_err(Refusal::Terms)?;
        if terms == row.terms {
            return Ok(Step::Keep { row: row.clone() });
        }
        check_run(asked, Some(row.terms), terms)?;
        Ok(Step::Change { before: row.clone(), change: Some(change), terms })
    }

    /// Returns the step that makes a new reservation. The VM is not looked up now. It is found
    /// later, like a VM that starts after its reservation was made.
    fn plan_new(&self, asked: &ClientRequest, target: &Request) -> Result<Step, Refusal> {
        let Request::Reserve { name, amount, vcpus, binding, user, .. } = target else {
            return Err(Refusal::Unkeepable("the request names no reservation".into()));
        };
        let Some(binding) = binding.clone() else {
            return Err(Refusal::NoMachine {
                what: format!("a VM for {name}, which has no `for`,"),
            });
        };
        if !binding.lasts() {
            let says =
                format!("a list cannot reserve for {binding}: a process id ends with its process");
            return Err(Refusal::Unkeepable(says));
        }
        check_name(asked, name)?;
        let user = user.unwrap_or(asked.usual_user());
        if !asked.may_have(user) {
            return Err(Refusal::NotYours { binding, user, principal: asked.principal });
        }
        self.check_free(&binding, (asked.principal, user), None)?;
        let vcpus = vcpus.ok_or_else(|| Refusal::VcpusUnknown { what: binding.clone() })?;
        let terms = new_terms(target, *amount, vcpus)?;
        check_run(asked, None, terms)?;
        let row = Row::new(name.clone(), (asked.principal, user), terms, binding);
        Ok(Step::Create { row })
    }

    /// Does all steps, or none of them. Returns the data to undo them.
    pub(super) fn do_all(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        steps: &[Step],
        world: &mut impl World,
    ) -> Result<Vec<Undo>, Refusal> {
        let mut done = Vec::new();
        for step in steps {
            match self.do_one(now, asked, step, world) {
                Ok(undo) => done.extend(undo),
                Err(why) => {
                    self.undo_all(now, done, world);
                    return Err(of(step.name(), why));
                }
            }
        }
        Ok(done)
    }

    fn do_one(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        step: &Step,
        world: &mut impl World,
    ) -> Result<Option<Undo>, Refusal> {
        match step {
            Step::Keep { .. } => Ok(None),
            Step::Release { before } => {
                let Some(entry) = self.book.remove(&before.name) else { return Ok(None) };
                if !entry.is_out() {
                    world.leave(entry.domain);
                }
                Ok(Some(Undo::Release(Box::new(entry))))
            }
            Step::Change { before, terms, .. } => {
                self.afford_change(asked, before, *terms)?;
                self.check_vcpus(asked, (&before.name, before.owner), *terms)?;
                self.enforce(&before.name, *terms, world)?;
                let raises = self.raises.of(before);
                // The raise counts for the next steps of the list.
                if !asked.is_in_charge_of(before) && is_raise(before.terms, *terms) {
                    self.raises.note(asked.principal, before, *terms);
                }
                Ok(Some(Undo::Change(Box::new(before.clone()), raises)))
            }
            Step::Create { row } => {
                self.afford(row.owner, &row.name, row.terms)?;
                self.check_vcpus(asked, (&row.name, row.owner), row.terms)?;
                let domain = self.domains.take(now, &row.binding, None);
                self.domains.promised(domain, row.terms.each().period());
                if let Err(declined) = join(world, domain, row, None) {
                    self.domains.leave(now, domain);
                    return Err(refusal(declined, &row.terms, &row.binding));
                }
                let standing = Standing::Promised(Reason::Absent(row.binding.clone()));
                self.book.insert(Entry::new(row.clone(), domain, standing));
                Ok(Some(Undo::Create(row.name.clone())))
            }
        }
    }

    /// Undoes steps in reverse order.
    pub(super) fn undo_all(&mut self, now: Time, done: Vec<Undo>, world: &mut impl World) {
        done.into_iter().rev().for_each(|undo| self.undo(now, undo, world));
    }

    /// Undoes a step. If the old terms do not fit immediately, the reservation waits for capacity,
    /// and the next attempt to admit it follows immediately.
    fn undo(&mut self, now: Time, undo: Undo, world: &mut impl World) {
        match undo {
            Undo::Create(name) => {
                let Some(entry) = self.book.remove(&name) else { return };
                world.leave(entry.domain);
                self.domains.leave(now, entry.domain);
            }
            Undo::Change(before, raises) => {
                self.raises.set(&before.name, raises);
                if let Err(why) = self.enforce(&before.name, before.terms, world) {
                    let Some(entry) = self.book.get_mut(&before.name) else { return };
                    world.leave(entry.domain);
                    entry.row.terms = before.terms;
                    entry.stand(Standing::Out(Reason::NoRoom(why.to_string())));
                    self.try_again = Some(now);
                }
            }
            Undo::Release(entry) => self.undo_release(now, *entry, world),
        }
    }

    fn undo_release(&mut self, now: Time, mut entry: Entry, world: &mut impl World) {
        if !entry.is_out() {
            let seats = match &entry.standing {
                Standing::Seated { seats, .. } => Some(seats),
                Standing::Promised(_) | Standing::Out(_) => None,
            };
            match join(world, entry.domain, &entry.row, seats) {
                Ok(()) if entry.row.paused && entry.is_seated() => {
                    // If the VM cannot be paused, it runs. Its state in the list of reservations
                    // shows that.
                    let _ = world.pause(entry.domain);
                }
                Ok(()) => {}
                Err(WorldError::Gone) => {
                    let absent = Reason::Absent(entry.row.binding.clone());
                    entry.stand(Standing::Out(absent));
                    self.try_again = Some(now);
                }
                Err(declined) => {
                    let why = refusal(declined, &entry.row.terms, &entry.row.binding);
                    entry.stand(Standing::Out(Reason::NoRoom(why.to_string())));
                    self.try_again = Some(now);
                }
            }
        }
        self.book.insert(entry);
    }

    /// Queues a change for the ledger. Returns the row with its new revision.
    fn record(
        &mut self,
        now: Time,
        (asked, by): (&ClientRequest, &ChangeOrigin<'_>),
        step: Step,
    ) -> Row {
        let done = self.done(asked, step);
        let row = done.after.clone();
        let _ = self.did(now, by, done);
        row
    }

    fn done(&mut self, asked: &ClientRequest, step: Step) -> DoneChange {
        let revision = self.writer.number();
        let happened = |verb| Some(EventKind::Asked(verb));
        match step {
            Step::Create { mut row } => {
                (row.revision, row.since) = (revision, revision);
                if let Some(entry) = self.book.get_mut(&row.name) {
                    entry.row = row.clone();
                }
                let happened = happened(Verb::Reserve);
                DoneChange { kind: Kind::Reserved, before: None, after: row, happened }
            }
            Step::Change { before, change, terms } => {
                self.note_raise(asked, &before, terms);
                let after = Row { terms, revision, ..before.clone() };
                if let Some(entry) = self.book.get_mut(&before.name) {
                    entry.row.revision = revision;
                    self.domains.promised(entry.domain, terms.each().period());
                }
                let kind = change.map_or(Kind::Put(terms), Kind::Terms);
                let happened = happened(Verb::Change);
                DoneChange { kind, before: Some(before), after, happened }
            }
            Step::Release { before } => {
                let after = Row { revision, ..before.clone() };
                let happened = happened(Verb::Release);
                DoneChange { kind: Kind::Ended, before: Some(before), after, happened }
            }
            Step::Keep { row } => {
                DoneChange { kind: Kind::Same, before: None, after: row, happened: None }
            }
        }
    }
}

/// Checks the end time of a listed reservation, if it has one. The end must be in the future.
fn check_target_end(target: &Request, now: Time, world: &mut impl World) -> Result<(), Refusal> {
    let Request::Reserve { until, .. } = target else { return Ok(()) };
    check_end(*until, now, world)
}

/// Returns the refusal of a whole list, given the refusal `why` of one of its reservations.
fn of(name: &Name, why: Refusal) -> Refusal {
    Refusal::InList { name: name.clone(), why: Box::new(why) }
}
