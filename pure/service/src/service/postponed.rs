//! Lists of reservations that wait for capacity.
//!
//! A VM may have used more CPU time than its reservation has accrued. If that reservation shrinks
//! or ends, the policy keeps the old share reserved until the zero-lag time: the time at which the
//! reservation has accrued that CPU time. So a list is carried out in two parts. The first part has
//! all steps that free capacity. The second part has the other steps. If the second part lacks
//! capacity that becomes free at a zero-lag time, the first part stays in force, and the second
//! part is tried again at that time.
//!
//! While a list waits, no other request changes a reservation, nothing of the list is written to
//! the ledger, and no other reservation gets the freed capacity. So the first part can be undone at
//! any time, and after a crash all reservations have their old parameters.

use slackline_units::{DomId, Enforcement, Span, Time};

use crate::answer::AppliedChange;
use crate::book::{Entry, Lease};
use crate::input::{ClientRequest, Input};
use crate::mechanism::MechanismChoice;
use crate::name::Name;
use crate::plan::Plan;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::row::Row;
use crate::world::World;

use super::steps::{Step, Undo};
use super::{ChangeOrigin, Service};

/// Longest time for which the list of an administrator waits. It is longer than a period of one
/// second.
const LONGEST_WAIT: Span = Span::from_ms(1_200);

/// Longest time for which the list of any other caller waits. It is short, because the changes of
/// all callers wait in the meantime.
const LONGEST_WAIT_OF_USER: Span = Span::from_ms(100);

/// Steps that are carried out together, and their purpose.
#[derive(Debug)]
pub(super) struct List {
    pub(super) asked: ClientRequest,
    /// Steps, at least one, in the order of their ranks.
    pub(super) steps: Vec<Step>,
    pub(super) purpose: Purpose,
}

/// Purpose for which a list is carried out.
#[derive(Debug)]
pub(super) enum Purpose {
    /// A request applies a list. The value contains the changes for the answer.
    Apply(Vec<AppliedChange>),
    /// A request undoes the last plan of the caller. The value contains the changes for the answer.
    Undo(Vec<AppliedChange>),
    /// The remaining changes of a plan are made after its canary behaved as predicted. The name is
    /// that of the canary's reservation.
    Spread(Box<Plan>, Name),
}

/// A list whose first part is in force, and whose second part waits for capacity.
#[derive(Debug)]
pub(super) struct PostponedList {
    list: List,
    /// Number of steps in the first part, which frees capacity.
    freeing: usize,
    /// Data to undo the first part.
    undo: Vec<Undo>,
    /// Names of the reservations for which the service chose the mechanism, and that mechanism.
    /// `None` if the service chose no mechanism.
    pub(super) choice: Option<(Vec<Name>, MechanismChoice)>,
    /// Time of the next attempt to carry out the second part.
    next: Time,
    /// Time after which no further attempt is made.
    until: Time,
}

impl PostponedList {
    /// Returns the time of the next attempt to carry out the second part of the list.
    pub(super) const fn next(&self) -> Time {
        self.next
    }

    /// Returns the names of all reservations of the list.
    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        self.list.steps.iter().map(Step::name)
    }

    fn has(&self, name: Option<&Name>) -> bool {
        // A reservation that the list has released has no name now.
        name.is_none_or(|name| self.names().any(|listed| listed == name))
    }
}

impl Service {
    /// Returns true if a list waits for capacity. A wait ends within 1.2 s. A list with `auto` can
    /// wait a second time: after its mechanism is refused, the list is tried with the dispatcher.
    #[must_use]
    pub fn has_postponed_list(&self) -> bool {
        self.postponed.is_some()
    }

    /// Returns true if a request must not be passed to the service now, because a list waits for
    /// capacity and the request could change a reservation. The caller keeps the request, and
    /// passes it when [`has_postponed_list`](Service::has_postponed_list) is false.
    #[must_use]
    pub fn must_wait(&self, asked: &ClientRequest) -> bool {
        // A member that begins has its capacity already, and is in no list.
        let is_begin = matches!(asked.request, Request::Begin { .. });
        self.has_postponed_list() && asked.request.verb().is_change() && !is_begin
    }

    /// Carries out all steps of a list or none. If the list lacks only capacity that is free soon,
    /// the list is postponed.
    pub(super) fn begin_list(
        &mut self,
        now: Time,
        list: List,
        world: &mut impl World,
    ) -> Result<(), Refusal> {
        let List { asked, steps, .. } = &list;
        let freeing = steps.iter().take_while(|step| step.frees()).count();
        let undo = self.do_all(now, asked, &steps[..freeing], world)?;
        let is_limited = !asked.is_administrator();
        let until = now.after(if is_limited { LONGEST_WAIT_OF_USER } else { LONGEST_WAIT });
        let list = PostponedList { list, freeing, undo, choice: None, next: now, until };
        self.complete_list(now, list, world).map_err(|refused| refused.1)
    }

    /// Carries out the second part of a list. If this part is refused, either the list is
    /// postponed, or its first part is undone and the refusal is returned.
    fn complete_list(
        &mut self,
        now: Time,
        mut list: PostponedList,
        world: &mut impl World,
    ) -> Result<(), Box<(List, Refusal)>> {
        let List { asked, steps, .. } = &list.list;
        match self.do_all(now, asked, &steps[list.freeing..], world) {
            Ok(more) => {
                list.undo.extend(more);
                self.finish_list(now, list);
                Ok(())
            }
            Err(why) => {
                let next = free_after(&why).map(|wait| now.after(wait));
                let next = next.filter(|next| *next <= list.until && self.postponed.is_none());
                match next {
                    Some(next) => {
                        self.postponed = Some(PostponedList { next, ..list });
                        Ok(())
                    }
                    None => {
                        self.undo_all(now, list.undo, world);
                        Err(Box::new((list.list, why)))
                    }
                }
            }
        }
    }

    /// Records the changes of a list whose steps are all done.
    fn finish_list(&mut self, now: Time, done: PostponedList) {
        let PostponedList { list: List { asked, steps, purpose }, undo, choice, .. } = done;
        let (asked, last) = (&asked, steps.len().saturating_sub(1));
        let choice = choice.map(|(names, choice)| (self.revisions_of(&names), choice));
        match purpose {
            Purpose::Apply(shown) => {
                let by = |number| ChangeOrigin::Together { asked, is_last: number == last };
                let rows = self.record_all(now, (asked, by), steps, undo);
                let changes = with_revisions(shown, &rows);
                self.keep_list(asked, &changes);
                self.applied.insert(asked.ticket, changes);
            }
            Purpose::Undo(shown) => {
                let by = |number| ChangeOrigin::Together { asked, is_last: number == last };
                let rows = self.record_all(now, (asked, by), steps, undo);
                self.drop_plan(asked.principal);
                self.applied.insert(asked.ticket, with_revisions(shown, &rows));
            }
            Purpose::Spread(plan, canary) => {
                let by = |_| ChangeOrigin::Plan(asked);
                let rows = self.record_all(now, (asked, by), steps, undo);
                self.end_spread(now, *plan, (&canary, rows.len()));
            }
        }
        if let Some((before, choice)) = choice {
            self.note_choice(now, asked.principal, before, &choice);
        }
    }

    /// Continues the postponed list. Does nothing if no list is postponed. Called after each input.
    pub(super) fn go_on_with_list(&mut self, now: Time, world: &mut impl World) {
        let Some(list) = self.postponed.take() else { return };
        let ahead = world.wall_ahead();
        let is_due = |entry: &Entry| {
            let end = entry.row.terms.until().map(|until| until.on(ahead));
            entry.lease.map(Lease::over).into_iter().chain(end).any(|at| at <= now)
        };
        if list.names().any(|name| self.book.get(name).is_some_and(is_due)) {
            self.give_up(now, list, world);
        } else if list.next > now {
            self.postponed = Some(list);
        } else {
            let chosen = list.choice.as_ref().map(|(_, choice)| choice.by);
            let Err(refused) = self.complete_list(now, list, world) else { return };
            let (list, why) = *refused;
            match chosen.filter(|by| *by != Enforcement::Dispatcher) {
                Some(by) => self.retry_by_dispatcher(now, &list.asked, (by, &why), world),
                None => self.refuse_list(now, list, why, world),
            }
        }
    }

    /// Gives up a waiting list before an input is handled that may change one of its reservations.
    pub(super) fn give_up_list_before(&mut self, now: Time, input: &Input, world: &mut impl World) {
        let Some(list) = self.postponed.take() else { return };
        let has_domain = |domain: DomId| list.has(self.name_of(domain));
        let is_concerned = match input {
            Input::Vanished { domain, .. }
            | Input::Vcpus { domain, .. }
            | Input::Meddled { domain, .. }
            | Input::Contested { domain, .. }
            | Input::Settled { domain, .. } => has_domain(*domain),
            Input::Appeared { binding, .. } | Input::NotFound { binding, .. } => {
                list.list.steps.iter().any(|step| step.row().binding == *binding)
            }
            Input::NotCommitted { .. } | Input::Renamed { .. } | Input::Access { .. } => true,
            Input::Asked(asked) | Input::Sought(asked) => {
                asked.request.verb().is_change() && !matches!(asked.request, Request::Begin { .. })
            }
            Input::Committed { .. }
            | Input::Unclear { .. }
            | Input::Incident { .. }
            | Input::Suspended { .. }
            | Input::KeeperReplaced
            | Input::ClockStepped { .. }
            | Input::Load { .. }
            | Input::Rang => false,
        };
        if is_concerned {
            self.give_up(now, list, world);
        } else {
            self.postponed = Some(list);
        }
    }

    /// Undoes the first part of a list that cannot wait any longer, and refuses the list.
    fn give_up(&mut self, now: Time, list: PostponedList, world: &mut impl World) {
        let why = "a reservation may have changed while the list waited for capacity".into();
        let again = list.next.since(now).max(Span::from_ms(1));
        self.undo_all(now, list.undo, world);
        self.refuse_list(now, list.list, Refusal::NotNow { why, again }, world);
    }

    /// Refuses a list after its first part was undone.
    fn refuse_list(&mut self, now: Time, list: List, why: Refusal, world: &mut impl World) {
        let List { asked, purpose, .. } = list;
        match (purpose, &why) {
            (Purpose::Apply(_) | Purpose::Undo(_), _) => {
                let why = self.without_hidden_names(&asked, why);
                world.reply(asked.ticket, &Err(why));
            }
            // The canary is compared with its prediction again.
            (Purpose::Spread(..), Refusal::NotNow { .. }) => {}
            (Purpose::Spread(plan, _), _) => self.refuse_spread(now, *plan, why, world),
        }
    }
}

/// Returns the time after which the capacity that a list lacks becomes free. `None` if the list was
/// refused for another reason.
fn free_after(why: &Refusal) -> Option<Span> {
    let Refusal::InList { why, .. } = why else { return None };
    let Refusal::NoRoom { free_after, .. } = &**why else { return None };
    *free_after
}

/// Returns the changes for an answer, with the rows `rows` that were recorded for these changes.
fn with_revisions(mut changes: Vec<AppliedChange>, rows: &[Row]) -> Vec<AppliedChange> {
    for change in &mut changes {
        let done = rows.iter().find(|row| row.name == *change.name());
        change.after = change.after.take().and_then(|after| done.cloned().or(Some(after)));
    }
    changes
}
