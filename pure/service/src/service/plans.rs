//! Plans of principals: plans with a canary, and undoing the last plan.

use slackline_units::{Span, Time};

use crate::answer::{Answer, AppliedChange};
use crate::event::EventKind;
use crate::input::ClientRequest;
use crate::name::Name;
use crate::plan::{
    LONGEST_WATCH, Plan, PlanStage, PlanStep, SETTLING, SHORTEST_WATCH, VmPrediction, Watch,
};
use crate::principal::{Principal, Role};
use crate::refusal::Refusal;
use crate::request::{Request, Ticket};
use crate::row::Row;
use crate::world::World;

use super::postponed::{List, Purpose};
use super::reserve::{check_end, check_run};
use super::steps::Step;
use super::{ChangeOrigin, Replied, Service};

/// Time after which a canary is checked again if the ledger could not be written.
const AGAIN: Span = Span::from_secs(1);

impl Service {
    /// Returns the last plan of a principal. `None` if the principal has no plan.
    #[must_use]
    pub fn plan_of(&self, principal: Principal) -> Option<&Plan> {
        self.plans.get(&principal)
    }

    /// Returns the revision of the host: the number of the event that last changed a reservation.
    /// Events that ended a reservation count only since the last restart of the service.
    #[must_use]
    pub fn revision(&self) -> u64 {
        let rows = self.book.iter().map(|entry| entry.row.revision);
        rows.max().unwrap_or(0).max(self.last_end)
    }

    /// Returns an error if the host does not have the revision for which a list was made. With
    /// `None`, the host may have any revision.
    pub(super) fn check_host(&self, revision: Option<u64>) -> Result<(), Refusal> {
        let is = self.revision();
        match revision.filter(|revision| *revision != is) {
            Some(asked) => Err(Refusal::HostMoved { asked, is }),
            None => Ok(()),
        }
    }

    /// Returns an error if a canary of the caller is being watched.
    pub(super) fn check_no_canary(&self, asked: &ClientRequest) -> Result<(), Refusal> {
        let plan = self.plans.get(&asked.principal);
        match plan.and_then(Plan::watched) {
            Some((_, prediction, watch)) => Err(Refusal::NotNow {
                why: format!("{} is watched as the first VM of a plan", prediction.name),
                again: watch,
            }),
            None => Ok(()),
        }
    }

    /// Changes the canary of a plan, and starts to watch it.
    pub(super) fn canary(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        world: &mut impl World,
    ) -> Replied {
        let Request::Canary { targets, prune, watch, revision, predictions } = &asked.request
        else {
            return Ok(None);
        };
        if !(SHORTEST_WATCH..=LONGEST_WATCH).contains(watch) {
            return Err(Refusal::Unkeepable(format!(
                "cannot watch for {watch}: it must be from {SHORTEST_WATCH} to {LONGEST_WATCH}"
            )));
        }
        self.check_no_canary(asked)?;
        if let Some(why) = self.writer.failing() {
            return Err(Refusal::NotDurable { why: why.to_owned() });
        }
        self.check_host(*revision)?;
        let mut steps = self.plan(now, asked, (targets, *prune), world)?;
        steps.sort_by(|a, b| a.name().cmp(b.name()));
        let mut shown: Vec<AppliedChange> = steps.iter().map(Step::shown).collect();
        self.check_plan_room(asked, &shown, true)?;
        steps.sort_by_key(Step::rank);
        let (prediction, changes) = self.begin_canary(now, (asked, predictions), steps, world)?;
        for change in &mut shown {
            let done = changes.iter().find(|one| one.name == *change.name());
            change.after = done.cloned().or_else(|| change.after.take());
        }
        let is_first = |change: &AppliedChange| *change.name() == prediction.name;
        let steps = shown.iter().filter(|change| change.before != change.after);
        let steps = steps.map(|change| PlanStep {
            before: change.before.clone(),
            after: change.after.clone(),
            is_done: is_first(change),
        });
        let steps: Vec<PlanStep> = steps.collect();
        let (rest, name) = (steps.len() - 1, &prediction.name);
        let says =
            format!("{name} is changed first and watched for {watch}; waiting changes: {rest}");
        self.note(now, asked.principal, EventKind::Canary(says));
        let stage = PlanStage::Watching { prediction, watch: *watch };
        self.keep_plan(asked, steps, stage);
        let due = now.after(SETTLING);
        self.watches.insert(asked.principal, Watch { due, begin: None });
        self.applied.insert(asked.ticket, shown);
        Ok(None)
    }

    /// Carries out the first step of `steps` that has a prediction and is admitted without the
    /// other steps. Only a change of an existing reservation can be chosen.
    fn begin_canary(
        &mut self,
        now: Time,
        (asked, predictions): (&ClientRequest, &[VmPrediction]),
        steps: Vec<Step>,
        world: &mut impl World,
    ) -> Result<(VmPrediction, Vec<Row>), Refusal> {
        let mut refused = None;
        for step in steps {
            let Some(prediction) = predictions.iter().find(|it| it.name == *step.name()) else {
                continue;
            };
            if !matches!(step, Step::Change { .. }) {
                continue;
            }
            let by = |_| ChangeOrigin::Together { asked, is_last: true };
            match self.carry_out(now, (asked, by), vec![step], world) {
                Ok(rows) => return Ok((prediction.clone(), rows)),
                Err(why) => refused = Some(why),
            }
        }
        let nothing = "the plan changes no reservation that has a prediction".to_owned();
        Err(refused.unwrap_or(Refusal::Unkeepable(nothing)))
    }

    /// Undoes the last plan of the caller.
    pub(super) fn undo_plan(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        world: &mut impl World,
    ) -> Replied {
        let plan = self.plans.get(&asked.principal).ok_or(Refusal::NothingToUndo)?.clone();
        if let Some(why) = self.writer.failing() {
            return Err(Refusal::NotDurable { why: why.to_owned() });
        }
        // Comes first, because the other checks depend on the present state of the reservations.
        check_owners(asked, &plan)?;
        let steps = self.steps_back(&plan)?;
        if steps.is_empty() {
            return Err(Refusal::NothingToUndo);
        }
        steps.iter().try_for_each(|step| check_rights(asked, step))?;
        steps.iter().try_for_each(|step| check_step_end(step, now, world))?;
        let mut shown: Vec<AppliedChange> = steps.iter().map(Step::shown).collect();
        shown.sort_by(|a, b| a.name().cmp(b.name()));
        let (asked, purpose) = (asked.clone(), Purpose::Undo(shown));
        self.begin_list(now, List { asked, steps, purpose }, world)?;
        Ok(None)
    }

    /// Returns the steps that undo the changes of a plan.
    ///
    /// # Errors
    /// If a reservation was changed again after the plan had changed it.
    fn steps_back(&self, plan: &Plan) -> Result<Vec<Step>, Refusal> {
        let done = plan.steps.iter().filter(|step| step.is_done);
        let mut steps: Vec<Step> =
            done.filter_map(|step| self.step_back(step).transpose()).collect::<Result<_, _>>()?;
        steps.sort_by_key(Step::rank);
        Ok(steps)
    }

    /// Returns the current row of a reservation, which must not have changed since `known` was
    /// read.
    ///
    /// # Errors
    /// If the reservation's revision differs from the revision of `known`.
    fn unmoved(&self, known: &Row) -> Result<Row, Refusal> {
        let (name, asked) = (&known.name, known.revision);
        let row = self.book.row(name);
        match row.filter(|row| row.revision == asked) {
            Some(row) => {
                self.check_lent(name)?;
                Ok(row.clone())
            }
            None => {
                let is = row.map(|row| row.revision);
                Err(Refusal::Moved { name: name.clone(), asked, is })
            }
        }
    }

    fn step_back(&self, step: &PlanStep) -> Result<Option<Step>, Refusal> {
        match (&step.before, &step.after) {
            (Some(before), Some(after)) => {
                let (now, terms) = (self.unmoved(after)?, before.terms);
                Ok(Some(Step::Change { before: now, change: None, terms }))
            }
            (None, Some(after)) => Ok(Some(Step::Release { before: self.unmoved(after)? })),
            (Some(before), None) => {
                if let Some(row) = self.book.row(&before.name) {
                    return Err(Refusal::Exists { name: row.name.clone(), is: row.to_string() });
                }
                if !before.binding.lasts() {
                    let binding = &before.binding;
                    let says = format!("cannot reserve for {binding} again after its release");
                    return Err(Refusal::Unkeepable(says));
                }
                self.check_free(&before.binding, (before.owner, before.user), None)?;
                let row = Row { identity: None, gang: None, paused: false, ..before.clone() };
                Ok(Some(Step::Create { row }))
            }
            (None, None) => Ok(None),
        }
    }

    /// Stores the plan of a principal in place of its previous plan.
    pub(super) fn keep_plan(
        &mut self,
        asked: &ClientRequest,
        steps: Vec<PlanStep>,
        stage: PlanStage,
    ) {
        let principal = asked.principal;
        let plan = Plan {
            principal,
            role: asked.role.unwrap_or(Role::Viewer),
            users: asked.users.clone(),
            since: self.writer.last_number(),
            steps,
            stage,
        };
        self.plans.insert(principal, plan);
        self.writer.touch_plan(principal);
        self.drop_surplus_plans();
    }

    /// Stores a single change or release as the last plan of the caller, unless a canary of the
    /// caller is being watched. `after` is `None` for a release.
    pub(super) fn keep_change(&mut self, asked: &ClientRequest, before: Row, after: Option<Row>) {
        if self.check_no_canary(asked).is_ok() {
            let step = PlanStep { before: Some(before), after, is_done: true };
            self.keep_plan(asked, vec![step], PlanStage::Done);
        }
    }

    /// Stores the changes of an applied list as the last plan of the caller.
    pub(super) fn keep_list(&mut self, asked: &ClientRequest, changes: &[AppliedChange]) {
        let changed = changes.iter().filter(|change| change.before != change.after);
        let steps = changed.map(|change| PlanStep {
            before: change.before.clone(),
            after: change.after.clone(),
            is_done: true,
        });
        self.keep_plan(asked, steps.collect(), PlanStage::Done);
    }

    pub(super) fn drop_plan(&mut self, principal: Principal) {
        self.plans.remove(&principal);
        self.watches.remove(&principal);
        self.writer.touch_plan(principal);
    }

    /// Records that a commit has written these plans to the ledger.
    pub(super) fn stored_plans(&mut self, written: &[(Principal, Option<Plan>)]) {
        for (principal, plan) in written {
            match plan {
                Some(plan) => self.stored_plans.insert(*principal, plan.clone()),
                None => self.stored_plans.remove(principal),
            };
        }
    }

    /// Resets each plan whose last stage could not be written to the stage that the ledger
    /// contains.
    pub(super) fn take_plans_back(&mut self, now: Time) {
        for principal in self.writer.unwritten_plans() {
            let stored = self.stored_plans.get(&principal);
            let stage = |plan: &Plan| (plan.since, plan.stage.clone());
            if self.plans.get(&principal).map(stage) == stored.map(stage) {
                continue;
            }
            match stored.cloned() {
                Some(plan) => self.plans.insert(principal, plan),
                None => self.plans.remove(&principal),
            };
        }
        self.watch_again(now);
    }

    /// Handles a change that the service itself made to a reservation. Updates all plans that
    /// contain the reservation, so that these plans can still be undone.
    pub(super) fn follow_in_plans(&mut self, before: &Row, after: &Row) {
        for (principal, plan) in &mut self.plans {
            if plan.follow(before, after) {
                self.writer.touch_plan(*principal);
            }
        }
    }

    /// Restarts the watching of all canaries from now.
    pub(super) fn watch_again(&mut self, now: Time) {
        let watched = self.plans.values().filter(|plan| plan.watched().is_some());
        let due = now.after(SETTLING);
        let again = watched.map(|plan| (plan.principal, Watch { due, begin: None }));
        self.watches = again.collect();
    }

    /// Checks the canaries that are due for a check. Returns the time of the next check. `None` if
    /// no canary is watched, or if a list waits for capacity.
    pub(super) fn look_at_canaries(&mut self, now: Time, world: &mut impl World) -> Option<Time> {
        let due = self.watches.iter().filter(|(_, watch)| watch.due <= now);
        let due: Vec<Principal> = due.map(|(principal, _)| *principal).collect();
        for principal in due {
            // A canary can need capacity that a list waits for.
            if self.has_postponed_list() {
                return None;
            }
            self.look_at_canary(now, principal, world);
        }
        let next = self.watches.values().map(|watch| watch.due).min();
        next.filter(|_| !self.has_postponed_list())
    }

    fn look_at_canary(&mut self, now: Time, principal: Principal, world: &mut impl World) {
        let Some(plan) = self.plans.get(&principal).cloned() else { return };
        let watched = plan.watched().map(|(first, prediction, watch)| {
            (first.after.as_ref().map_or(0, |row| row.revision), prediction.clone(), watch)
        });
        let Some((revision, prediction, length)) = watched else {
            self.watches.remove(&principal);
            return;
        };
        let name = prediction.name.clone();
        let entry = self.book.get(&name).filter(|entry| asked_again(&plan).owns(&entry.row));
        let entry = entry.map(|entry| (entry.domain, entry.row.revision));
        let Some((domain, _)) = entry.filter(|(_, is)| *is == revision) else {
            let is = entry.map_or_else(|| "released".to_owned(), |(_, is)| format!("at {is}"));
            let says = format!("{name} was at revision {revision} and is now {is}");
            return self.end_canary(now, plan, PlanStage::Stopped(says));
        };
        let measured = world.measured(domain);
        let watch = self.watches.get(&principal).copied();
        match watch.and_then(|watch| watch.begin) {
            _ if self.writer.failing().is_some() => {
                let again = Watch { due: now.after(AGAIN), begin: None };
                self.watches.insert(principal, again);
            }
            None => {
                let begin = Watch { due: now.after(length), begin: Some(measured) };
                self.watches.insert(principal, begin);
            }
            Some(begin) => match prediction.compare(begin, measured) {
                Ok(()) => self.spread(now, plan, &name, world),
                Err(why) => self.take_canary_back(now, plan, why, world),
            },
        }
    }

    /// Makes the remaining changes of a plan, after its canary has behaved as predicted.
    fn spread(&mut self, now: Time, plan: Plan, name: &Name, world: &mut impl World) {
        let asked = asked_again(&plan);
        let rest: Result<Vec<Step>, Refusal> = plan
            .steps
            .iter()
            .filter(|step| !step.is_done)
            .filter_map(|step| self.step_forward(step).transpose())
            .collect();
        let begun = rest.and_then(|mut steps| {
            steps.sort_by_key(Step::rank);
            let purpose = Purpose::Spread(Box::new(plan.clone()), name.clone());
            self.begin_list(now, List { asked, steps, purpose }, world)
        });
        if let Err(why) = begun {
            self.refuse_spread(now, plan, why, world);
        }
    }

    /// Records that all changes of a plan are made: the change of the canary `name`, and `others`
    /// further changes.
    pub(super) fn end_spread(&mut self, now: Time, mut plan: Plan, (name, others): (&Name, usize)) {
        for step in plan.steps.iter_mut().filter(|step| !step.is_done) {
            step.is_done = true;
            let done = step.after.as_ref().and_then(|row| self.book.row(&row.name));
            step.after = done.cloned();
        }
        let says = format!("{name} behaves as predicted; other changes made: {others}");
        self.note(now, plan.principal, EventKind::Canary(says));
        self.end_canary(now, plan, PlanStage::Done);
    }

    /// Restores the canary of a plan, because the remaining changes were refused.
    pub(super) fn refuse_spread(
        &mut self,
        now: Time,
        plan: Plan,
        why: Refusal,
        world: &mut impl World,
    ) {
        let why = self.without_hidden_names(&asked_again(&plan), why);
        let why = format!("cannot make the other changes: {why}");
        self.take_canary_back(now, plan, why, world);
    }

    /// Returns the step that makes one change of a plan, after the canary succeeded. `None` if the
    /// reservation already has the planned parameters, for instance because an earlier attempt made
    /// the change but could not write it to the ledger.
    ///
    /// # Errors
    /// If the reservation has changed since the plan was made, or if another reservation already
    /// has the name or the binding of a new reservation.
    fn step_forward(&self, step: &PlanStep) -> Result<Option<Step>, Refusal> {
        let current = step.name().and_then(|name| self.book.row(name)).map(|row| row.terms);
        if current == step.after.as_ref().map(|row| row.terms) {
            return Ok(None);
        }
        match (&step.before, &step.after) {
            (Some(before), Some(after)) => Ok(Some(Step::Change {
                before: self.unmoved(before)?,
                change: None,
                terms: after.terms,
            })),
            (Some(before), None) => Ok(Some(Step::Release { before: self.unmoved(before)? })),
            (None, Some(after)) => {
                if let Some(row) = self.book.row(&after.name) {
                    return Err(Refusal::Exists { name: row.name.clone(), is: row.to_string() });
                }
                self.check_free(&after.binding, (after.owner, after.user), None)?;
                Ok(Some(Step::Create { row: after.clone() }))
            }
            (None, None) => Ok(None),
        }
    }

    /// Restores the canary of a plan, and records the reason `why`.
    fn take_canary_back(&mut self, now: Time, plan: Plan, why: String, world: &mut impl World) {
        let asked = asked_again(&plan);
        let by = |_| ChangeOrigin::Plan(&asked);
        let undone = self
            .steps_back(&plan)
            .and_then(|steps| self.carry_out(now, (&asked, by), steps, world));
        let stage = match undone {
            Ok(_) => PlanStage::Undone(why),
            Err(refused) => {
                let refused = self.without_hidden_names(&asked, refused);
                PlanStage::Stopped(format!("{why}, and the first VM cannot be restored: {refused}"))
            }
        };
        self.end_canary(now, plan, stage);
    }

    fn end_canary(&mut self, now: Time, mut plan: Plan, stage: PlanStage) {
        self.watches.remove(&plan.principal);
        let says = match &stage {
            PlanStage::Undone(why) => Some(format!("undone: {why}")),
            PlanStage::Stopped(why) => Some(format!("stopped: {why}")),
            PlanStage::Watching { .. } | PlanStage::Done => None,
        };
        if let Some(says) = says {
            self.note(now, plan.principal, EventKind::Canary(says));
        }
        if let PlanStage::Undone(_) = stage {
            plan.steps.iter_mut().for_each(|step| step.is_done = false);
        }
        plan.stage = stage;
        self.writer.touch_plan(plan.principal);
        self.plans.insert(plan.principal, plan);
    }
}

/// Checks that the caller may still see the reservations that a plan has changed. A tenant may have
/// had another role when it asked for the plan.
fn check_owners(asked: &ClientRequest, plan: &Plan) -> Result<(), Refusal> {
    let done = plan.steps.iter().filter(|step| step.is_done);
    let mut rows = done.flat_map(|step| step.before.iter().chain(&step.after));
    match rows.find(|row| !asked.owns(row)) {
        Some(row) => Err(Refusal::NotOwner { name: row.name.clone() }),
        None => Ok(()),
    }
}

/// Checks that the caller still has the right to a step of a plan. The caller's rights may have
/// been reduced since the caller asked for the plan.
fn check_rights(asked: &ClientRequest, step: &Step) -> Result<(), Refusal> {
    let (row, terms) = match step {
        Step::Create { row } => (row, Some((None, row.terms))),
        Step::Change { before, terms, .. } => (before, Some((Some(before.terms), *terms))),
        Step::Release { before } | Step::Keep { row: before } => (before, None),
    };
    if matches!(step, Step::Create { .. }) && !asked.may_have(row.user) {
        let (binding, principal) = (row.binding.clone(), asked.principal);
        return Err(Refusal::NotYours { binding, user: row.user, principal });
    }
    terms.map_or(Ok(()), |(before, terms)| check_run(asked, before, terms))
}

/// Checks that the end time of a step is in the future. A step that sets no end time passes the
/// check.
fn check_step_end(step: &Step, now: Time, world: &mut impl World) -> Result<(), Refusal> {
    let until = match step {
        Step::Create { row } => row.terms.until(),
        Step::Change { before, terms, .. } => {
            terms.until().filter(|_| terms.until() != before.terms.until())
        }
        Step::Release { .. } | Step::Keep { .. } => None,
    };
    let refused = |why| Refusal::InList { name: step.name().clone(), why: Box::new(why) };
    check_end(until, now, world).map_err(refused)
}

/// Returns a request on behalf of the principal of a plan, with the rights that the principal had
/// when it asked for the plan.
fn asked_again(plan: &Plan) -> ClientRequest {
    ClientRequest {
        ticket: Ticket(0),
        principal: plan.principal,
        role: Some(plan.role),
        users: plan.users.clone(),
        key: None,
        request: Request::Undo,
    }
}

impl Service {
    /// Returns the answer that shows the caller's last plan. Reservations that the caller has no
    /// right to see any more are left out.
    pub(super) fn show_plan(&self, asked: &ClientRequest) -> Answer {
        let mut plan = self.plans.get(&asked.principal).cloned();
        if let Some(plan) = &mut plan {
            let owns = |row: &Option<Row>| row.as_ref().is_none_or(|row| asked.owns(row));
            plan.steps.retain(|step| owns(&step.before) && owns(&step.after));
        }
        Answer::Plan(plan.map(Box::new))
    }

    /// Handles a change of the access of the principal `whom`, or of all operators if `whom` is
    /// `None`. The canaries of these principals are restored, since the principals may have lost
    /// the right to the remaining changes of their plans.
    pub(super) fn access_changed(
        &mut self,
        now: Time,
        whom: Option<Principal>,
        world: &mut impl World,
    ) {
        let is_it = |plan: &&Plan| match whom {
            Some(whom) => plan.principal == whom,
            None => plan.role == Role::Operator,
        };
        let watched = self.plans.values().filter(is_it).filter(|plan| plan.watched().is_some());
        let watched: Vec<Plan> = watched.cloned().collect();
        for plan in watched {
            let why = "the access of its caller was changed".to_owned();
            self.take_canary_back(now, plan, why, world);
        }
    }
}
