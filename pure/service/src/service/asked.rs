//! Handling of a request: rate limits, rights, retries with an idempotency key, and the call of the
//! function that handles this kind of request.

use slackline_units::{Enforcement, Time};

use crate::answer::{Answer, Warning};
use crate::book::{Entry, ended};
use crate::event::EventKind;
use crate::input::ClientRequest;
use crate::mechanism::MechanismChoice;
use crate::name::Name;
use crate::principal::{Principal, Role, Verb};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::world::{KeptAnswer, World};

use super::{Replied, Service, keyed};

impl Service {
    pub(super) fn asked(&mut self, now: Time, asked: &ClientRequest, world: &mut impl World) {
        let outcome = self.count(now, asked).and_then(|()| self.decide(now, asked, world));
        reply(asked, outcome, world);
    }

    /// Handles a request whose VM has been looked up. The rate limits are not checked here, because
    /// the request was counted before the look-up.
    pub(super) fn sought_and_asked(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        world: &mut impl World,
    ) {
        let outcome = self.decide(now, asked, world);
        reply(asked, outcome, world);
    }

    /// Counts a request against the rate limits of its caller. Must be called before any slow work
    /// is done for the request.
    ///
    /// # Errors
    /// If the caller may not send a request of this kind, or exceeds a rate limit.
    pub fn count(&mut self, now: Time, asked: &ClientRequest) -> Result<(), Refusal> {
        let verb = asked.request.verb();
        let is_administrator = asked.role == Some(Role::Administrator);
        let changes = if is_administrator { 1 } else { asked.request.counted_changes() };
        self.limits.count(now, asked.principal, (verb, changes))?;
        if asked.role.is_some_and(|role| role.may(verb)) {
            Ok(())
        } else {
            Err(Refusal::NotAllowed { verb })
        }
    }

    fn decide(&mut self, now: Time, asked: &ClientRequest, world: &mut impl World) -> Replied {
        let outcome = self.decide_with_names(now, asked, world);
        outcome.map_err(|refusal| self.without_hidden_names(asked, refusal))
    }

    /// Removes from a refusal what a tenant has no right to see: the names, VMs and parameters of
    /// other owners' reservations.
    pub(super) fn without_hidden_names(&self, asked: &ClientRequest, refusal: Refusal) -> Refusal {
        let is_hidden = |name: &Name| self.book.row(name).is_some_and(|row| !asked.owns(row));
        match refusal {
            Refusal::Taken { binding, by } => {
                Refusal::Taken { binding, by: by.filter(|name| !is_hidden(name)) }
            }
            Refusal::Exists { name, .. } if is_hidden(&name) => Refusal::NameTaken { name },
            // The name belongs to another owner now, so the caller's reservation has ended.
            Refusal::Moved { name, asked, .. } if is_hidden(&name) => {
                Refusal::Moved { name, asked, is: None }
            }
            Refusal::InList { name, why } => {
                let why = Box::new(self.without_hidden_names(asked, *why));
                Refusal::InList { name, why }
            }
            other => other,
        }
    }

    fn decide_with_names(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        world: &mut impl World,
    ) -> Replied {
        match self.answered_before(now, asked)? {
            EarlierRequest::Answered(answer) => Ok(Some(*answer)),
            EarlierRequest::Waits => Ok(None),
            EarlierRequest::Never => self.answer(now, asked, world),
        }
    }

    /// Returns true if the request names a reservation that must look absent to the caller, since
    /// the caller is a tenant and the reservation has another owner.
    pub(super) fn names_hidden(&self, asked: &ClientRequest) -> bool {
        let name = match &asked.request {
            Request::Hold { member, .. } => member.name(),
            request => request.name(),
        };
        name.and_then(|name| self.book.row(name)).is_some_and(|row| !asked.owns(row))
    }

    /// Checks that the request of a tenant names no reservation of another owner. Such a request
    /// gets the refusal that an unknown name gets. Only a request to make a reservation learns that
    /// the name is taken.
    ///
    /// This check comes immediately before the handling of the request, where an unknown name is
    /// refused too. If it came earlier, the refusals of other checks, such as the check of the
    /// idempotency key, would show that the name exists.
    fn check_owner(&self, asked: &ClientRequest) -> Result<(), Refusal> {
        if !self.names_hidden(asked) {
            return Ok(());
        }
        let request = match &asked.request {
            Request::Hold { member, .. } => member,
            request => request,
        };
        match (request, request.name()) {
            (Request::Reserve { name, .. }, _) => Err(Refusal::NameTaken { name: name.clone() }),
            (_, Some(name)) => Err(Refusal::NoSuchReservation { name: name.clone() }),
            (_, None) => Ok(()),
        }
    }

    /// Looks for an earlier request with the same idempotency key, and returns its outcome.
    fn answered_before(
        &mut self,
        now: Time,
        asked: &ClientRequest,
    ) -> Result<EarlierRequest, Refusal> {
        let verb = asked.request.verb();
        // Applying a list a second time changes nothing, so the answer to a list is not kept.
        let is_kept = verb.is_change() && verb != Verb::Apply;
        let Some(keyed) = keyed(asked).filter(|_| is_kept) else {
            return Ok(EarlierRequest::Never);
        };
        if let Some(deed) = self.writer.waiting(&keyed) {
            if !asked.owns(&deed.row) {
                return Ok(EarlierRequest::Never);
            }
            let was = deed.key.as_ref().map(|key| key.asked.clone()).unwrap_or_default();
            if was != keyed.asked {
                return Err(Refusal::KeyReused { was });
            }
            deed.tickets.push(asked.ticket);
            return Ok(EarlierRequest::Waits);
        }
        let kept = self.keys.find(now, keyed.principal, &keyed.key, &keyed.asked)?.cloned();
        // A tenant may have had another role when it sent the earlier request.
        let kept = kept.filter(|kept| asked.owns(&kept.row));
        Ok(kept.map_or(EarlierRequest::Never, |kept| {
            EarlierRequest::Answered(Box::new(self.again(kept)))
        }))
    }

    /// Returns the stored answer to an earlier request, with the present state of its reservation.
    fn again(&self, kept: KeptAnswer) -> Answer {
        let now = self.book.get(&kept.row.name).filter(|entry| entry.row.since == kept.row.since);
        let mut reservation = now.map_or_else(|| ended(kept.row.clone()), |entry| entry.listed());
        reservation.row = kept.row;
        let failing =
            self.writer.failing().filter(|_| self.writer.is_unwritten(&reservation.row.name));
        let warning = failing.map(|why| Warning::NotDurable { why: why.to_owned() });
        Answer::Done { reservation: Box::new(reservation), is_new: kept.is_new, warning }
    }

    fn answer(&mut self, now: Time, asked: &ClientRequest, world: &mut impl World) -> Replied {
        let again = crate::writer::REST;
        if asked.request.verb().is_change() && self.writer.is_full(asked.role) {
            let why = "too many changes wait to be written to the ledger".to_owned();
            return Err(Refusal::NotNow { why, again });
        }
        let is_limited = asked.role != Some(Role::Administrator);
        if is_limited && asked.request.is_list() && self.writer.has_list_of(asked.principal) {
            let why = "another list of this principal is being written to the ledger".to_owned();
            return Err(Refusal::NotNow { why, again });
        }
        let outcome = if asked.request.names_with_auto().is_empty() {
            self.carry_out_as_named(now, asked, world)
        } else {
            self.carry_out_by_best_mechanism(now, asked, world)
        };
        if outcome.is_ok() {
            self.forget_choices(&asked.request);
        }
        outcome
    }

    /// Carries out a request with `auto`: first with the mechanism of [`World::best_mechanism`],
    /// and, if the service refuses that mechanism, with the dispatcher. Logs the mechanism of each
    /// changed reservation.
    fn carry_out_by_best_mechanism(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        world: &mut impl World,
    ) -> Replied {
        let choice = world.best_mechanism();
        let by = choice.by;
        match self.carry_out_by(now, asked, choice, world) {
            Err(refusal) if by != Enforcement::Dispatcher => {
                self.carry_out_by_dispatcher(now, asked, (by, &refusal), world)
            }
            outcome => outcome,
        }
    }

    /// Carries out a request with `auto` with the dispatcher, because the mechanism `by` was
    /// refused.
    fn carry_out_by_dispatcher(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        (by, refusal): (Enforcement, &Refusal),
        world: &mut impl World,
    ) -> Replied {
        let why = format!("`{by}` cannot be used: {refusal}");
        let choice = MechanismChoice { by: Enforcement::Dispatcher, why };
        self.carry_out_by(now, asked, choice, world)
    }

    /// Carries out a request with `auto` with the dispatcher, and replies to the request. The
    /// mechanism `by` was refused after the request had waited for capacity.
    pub(super) fn retry_by_dispatcher(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        refused: (Enforcement, &Refusal),
        world: &mut impl World,
    ) {
        let outcome = self.carry_out_by_dispatcher(now, asked, refused, world);
        let outcome = outcome.map_err(|refusal| self.without_hidden_names(asked, refusal));
        reply(asked, outcome, world);
    }

    /// Carries out a request with `auto`, using the chosen mechanism.
    fn carry_out_by(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        choice: MechanismChoice,
        world: &mut impl World,
    ) -> Replied {
        let names: Vec<Name> = asked.request.names_with_auto().into_iter().cloned().collect();
        let before = self.revisions_of(&names);
        let mut chosen = asked.clone();
        chosen.request.choose_mechanism(choice.by);
        let answer = self.carry_out_as_named(now, &chosen, world)?;
        if let Some(list) = self.postponed.as_mut().filter(|_| answer.is_none()) {
            list.choice = Some((names, choice));
        } else {
            self.note_choice(now, asked.principal, before, &choice);
        }
        Ok(answer)
    }

    /// Logs which mechanism the service chose for each reservation that has changed. `before`
    /// contains the names of the reservations, with their revisions before the change.
    pub(super) fn note_choice(
        &mut self,
        now: Time,
        principal: Principal,
        before: Vec<(Name, Option<u64>)>,
        choice: &MechanismChoice,
    ) {
        for (name, revision) in before {
            let is_changed = |entry: &&mut Entry| Some(entry.row.revision) != revision;
            let Some(entry) = self.book.get_mut(&name).filter(is_changed) else { continue };
            let by = entry.row.terms.enforcement();
            let says = format!("{name} by {by}: {}", choice.why);
            entry.chosen = Some(MechanismChoice { by, why: choice.why.clone() });
            self.note_about(now, principal, Some(&name), EventKind::Chosen(says));
        }
    }

    /// Deletes the record of the service's own choice for each reservation for which the request
    /// names a mechanism.
    fn forget_choices(&mut self, request: &Request) {
        match request {
            Request::Reserve { name, enforce, .. }
            | Request::Change { name, enforce: Some(enforce), .. }
                if !enforce.is_auto() =>
            {
                if let Some(entry) = self.book.get_mut(name) {
                    entry.chosen = None;
                }
            }
            Request::Apply { targets, dry_run: false, .. } => {
                targets.iter().for_each(|target| self.forget_choices(target));
            }
            _ => {}
        }
    }

    /// Returns the names, each with the revision of the reservation. The revision is `None` if no
    /// reservation has that name.
    pub(super) fn revisions_of(&self, names: &[Name]) -> Vec<(Name, Option<u64>)> {
        let revision = |name: &Name| self.book.row(name).map(|row| row.revision);
        names.iter().map(|name| (name.clone(), revision(name))).collect()
    }

    fn carry_out_as_named(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        world: &mut impl World,
    ) -> Replied {
        self.check_owner(asked)?;
        match &asked.request {
            Request::Reserve { .. } => self.reserve(now, asked, world),
            Request::Hold { gang, member } => self.hold(now, (asked, gang, member), world),
            Request::Begin { gang, name, at } => self.begin(now, (asked, gang, name, *at), world),
            Request::Break { gang, name, lost } => {
                self.break_gang(now, (asked, gang, name, lost), world)
            }
            Request::Change { .. } => self.change(now, asked, world),
            Request::Rebind { .. } => self.rebind(now, asked, world),
            Request::Apply { .. } => self.apply(now, asked, world),
            Request::Canary { .. } => self.canary(now, asked, world),
            Request::Undo => self.undo_plan(now, asked, world),
            Request::Plan => Ok(Some(self.show_plan(asked))),
            Request::Pause { name, if_revision } => {
                self.pause(now, (asked, name, *if_revision), world)
            }
            Request::Resume { name, if_revision } => {
                self.resume(now, (asked, name, *if_revision), world)
            }
            Request::Release { name, if_revision } => {
                self.release(now, (asked, name, *if_revision), world)
            }
            Request::List { name } => self.list(name.as_ref()).map(Some),
            Request::Room { period } => Ok(Some(Answer::Room(world.room(*period)))),
            Request::Log { .. } | Request::History { .. } | Request::Find { .. } => {
                world.hand_over(asked);
                Ok(None)
            }
        }
    }
}

/// Replies to a request. Does nothing if the answer is sent later: after a commit, or by the
/// [`World`].
fn reply(asked: &ClientRequest, outcome: Replied, world: &mut impl World) {
    match outcome {
        Ok(Some(answer)) => world.reply(asked.ticket, &Ok(answer)),
        Ok(None) => {}
        Err(refusal) => world.reply(asked.ticket, &Err(refusal)),
    }
}

/// Outcome of an earlier request that has the same idempotency key.
enum EarlierRequest {
    /// No earlier request has this key.
    Never,
    /// The earlier request waits for its commit. After the commit, both requests get the same
    /// answer.
    Waits,
    /// The earlier request was answered.
    Answered(Box<Answer>),
}
