//! The service as a state machine: its state, and the handling of each input.

mod adopt;
mod apply;
mod asked;
mod change;
mod expiry;
mod gang;
mod hold;
mod machines;
mod plan_room;
mod plans;
mod postponed;
mod rebind;
mod rename;
mod reserve;
mod show;
mod steps;
mod written;

use std::collections::BTreeMap;

use slackline_units::{CpuId, DomId, Span, Time};

use crate::answer::{Answer, AppliedChange, Health, ListedReservation};
use crate::binding::Binding;
use crate::book::{Book, Entry, Lease};
use crate::budget::Budgets;
use crate::deed::{KeyedRequest, Kind, UncommittedChange};
use crate::domains::Domains;
use crate::event::{Event, EventKind};
use crate::input::{ClientRequest, Input};
use crate::keys::Keys;
use crate::limits::{Limits, Rates};
use crate::name::Name;
use crate::overload::{CpuLoad, OverloadChange, Overloads};
use crate::plan::{Plan, Watch};
use crate::principal::{Principal, Role};
use crate::raise::{MOST_RAISES, Raises, is_raise};
use crate::refusal::Refusal;
use crate::request::{Request, Ticket};
use crate::row::{Reason, Row};
use crate::terms::Terms;
use crate::world::World;
use crate::writer::Writer;
pub use apply::MOST_TARGETS;
use postponed::PostponedList;

/// Time between two attempts to admit reservations that did not fit. If capacity is freed earlier,
/// the next attempt is made immediately.
const TRY_AGAIN: Span = Span::from_secs(1);

/// Settings of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Rate limits that apply to each principal. If `None`, there are no rate limits.
    pub rates: Option<Rates>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { rates: Some(Rates::USUAL) }
    }
}

/// Reference by which a request names the VM that must be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmLookup<'a> {
    /// The VM that has this name.
    Named(&'a Name),
    /// The VM that this binding refers to.
    Bound(&'a Binding),
}

/// State machine that holds all reservations and handles inputs.
#[derive(Debug)]
pub struct Service {
    book: Book,
    writer: Writer,
    keys: Keys,
    limits: Limits,
    domains: Domains,
    budgets: Budgets,
    raises: Raises,
    /// Raises that would count against budgets if all changes that are not in the ledger yet were
    /// reverted.
    lasting_raises: Raises,
    /// Changes in the answers to requests that apply a list, by ticket. Each answer is sent after
    /// the commit of its changes.
    applied: BTreeMap<Ticket, Vec<AppliedChange>>,
    overloads: Overloads,
    /// Last plan of each principal.
    plans: BTreeMap<Principal, Plan>,
    /// Plans as the ledger has them, by principal.
    stored_plans: BTreeMap<Principal, Plan>,
    /// Watches of canaries, by the principal to which the plan with the canary belongs.
    watches: BTreeMap<Principal, Watch>,
    /// Number of the last event that ended a reservation. Only events since the start of the
    /// service count.
    last_end: u64,
    /// Instant at which the timer expires. `None` if no timer is set.
    rings: Option<Time>,
    /// Time of the next attempt to admit reservations that did not fit. `None` if all reservations
    /// fit.
    try_again: Option<Time>,
    /// List that waits for capacity. `None` if no list waits.
    postponed: Option<PostponedList>,
}

/// Result of the handling of a request. `Ok(None)` means that the answer is sent later: after the
/// commit, or by the [`World`].
type Replied = Result<Option<Answer>, Refusal>;

impl Service {
    /// Handles an input. `now` must not be earlier than it was for the previous input.
    pub fn step(&mut self, now: Time, input: Input, world: &mut impl World) {
        self.give_up_list_before(now, &input, world);
        match input {
            Input::Asked(asked) => self.asked(now, &asked, world),
            Input::Sought(asked) => self.sought_and_asked(now, &asked, world),
            Input::Committed { seq } => self.committed(now, seq, world),
            Input::NotCommitted { seq, fault } => self.not_committed(now, seq, &fault, world),
            Input::Appeared { binding, user } => self.appeared(now, (&binding, user), world),
            Input::NotFound { binding, user, error } => {
                self.not_found(now, (&binding, user, &error), world);
            }
            Input::Unclear { domain, identity, why } => self.note_unclear((domain, identity), why),
            Input::Renamed { from, to } => self.renamed(now, &from, &to, world),
            Input::Vanished { domain, identity } => self.vanished(now, (domain, identity), world),
            Input::Vcpus { domain, machine } => self.vcpus(now, domain, machine, world),
            Input::Meddled { domain, what } => self.meddled(now, domain, what),
            Input::Contested { domain, place, what } => self.contest(now, domain, place, &what),
            Input::Settled { domain, place } => self.settled(now, domain, place),
            Input::Incident { name, missed, id } => self.note_incident(now, name, missed, id),
            Input::Suspended { domain, identity, what } => self.suspend((domain, identity), what),
            Input::Access { by, whom, what } => {
                self.note(now, by, what);
                self.access_changed(now, whom, world);
            }
            Input::KeeperReplaced => {
                self.note(now, Principal::Service, EventKind::KeeperReplaced);
            }
            Input::ClockStepped { by, is_ahead } => self.clock_stepped(now, by, is_ahead),
            Input::Load { cpu, load } => self.measured(now, cpu, load),
            Input::Rang => self.rings = None,
        }
        self.settle(now, world);
    }

    /// Returns the reservations that wait for their VM. The caller looks for these VMs by their
    /// bindings, and reports each VM that it finds as [`Input::Appeared`]. If no VM has the binding
    /// of a libvirt domain but a VM has the UUID of the domain, the caller reports
    /// [`Input::Renamed`].
    pub fn waiting(&self) -> impl Iterator<Item = &Row> {
        let waiting = self.book.iter().filter(|entry| entry.is_waiting());
        waiting.map(|entry| &entry.row)
    }

    /// Returns the same reservations as [`waiting`](Service::waiting), each with the reason why it
    /// waits. If the reason is `None`, the reservation waits for capacity.
    pub fn awaited(&self) -> impl Iterator<Item = (&Row, Option<&Reason>)> {
        let waiting = self.book.iter().filter(|entry| entry.is_waiting());
        waiting.map(|entry| (&entry.row, entry.awaiting()))
    }

    /// Returns the domains of scheduled VMs whose vCPUs cannot be told apart, each with the reason
    /// that was reported last.
    pub fn unclear(&self) -> impl Iterator<Item = (DomId, &str)> {
        self.book.iter().filter_map(|entry| Some((entry.domain, entry.unclear.as_deref()?)))
    }

    /// Returns the users whose VM monitors may be asked about vCPUs for a request. They are the
    /// caller, the users for whom the caller may reserve, and the user of the reservation that the
    /// request names, if the caller may see it. `None` if the caller may reserve for all users.
    #[must_use]
    pub fn users_to_ask(&self, asked: &ClientRequest) -> Option<Vec<u32>> {
        if asked.role == Some(Role::Administrator) {
            return None;
        }
        let row = asked.request.name().and_then(|name| self.book.row(name));
        let of_row = row.filter(|row| asked.owns(row)).map(|row| row.user);
        let own = match asked.principal {
            Principal::User(user) => Some(user),
            _ => None,
        };
        Some(asked.users.iter().copied().chain(own).chain(of_row).collect())
    }

    /// Returns the VM that must be looked up before a request is decided. `None` if no look-up is
    /// needed. The look-up is separate from [`Service::step`], because it can be slow and other
    /// requests should not wait for it.
    #[must_use]
    pub fn sought<'a>(&'a self, asked: &'a ClientRequest) -> Option<VmLookup<'a>> {
        if self.names_hidden(asked) {
            return None;
        }
        let request = match &asked.request {
            Request::Hold { member, .. } => member,
            request => request,
        };
        if let Request::Rebind { name, binding, .. } = request {
            return self.book.row(name).map(|_| VmLookup::Bound(binding));
        }
        let (Request::Reserve { name, .. } | Request::Resume { name, .. }) = request else {
            return None;
        };
        match (self.book.get(name), request) {
            (None, Request::Reserve { binding: Some(binding), .. }) => {
                Some(VmLookup::Bound(binding))
            }
            (None, Request::Reserve { .. }) => Some(VmLookup::Named(name)),
            (None, _) => None,
            (Some(entry), _) => entry.is_waiting().then_some(VmLookup::Bound(&entry.row.binding)),
        }
    }

    /// Returns the user who should own the VM that is [looked up](Service::sought) for a request.
    #[must_use]
    pub fn sought_user(&self, asked: &ClientRequest) -> u32 {
        let request = match &asked.request {
            Request::Hold { member, .. } => member,
            request => request,
        };
        let (name, said) = match request {
            Request::Reserve { name, user, .. } => (Some(name), *user),
            Request::Resume { name, .. } | Request::Rebind { name, .. } => (Some(name), None),
            _ => (None, None),
        };
        let row = name.and_then(|name| self.book.row(name));
        row.map_or(said.unwrap_or(asked.principal.user()), |row| row.user)
    }

    /// Returns all reservations, sorted by name, each with its domain.
    pub fn listed(&self) -> impl Iterator<Item = (DomId, ListedReservation)> {
        self.book.iter().map(|entry| (entry.domain, entry.listed()))
    }

    /// Replaces the budgets of all owners. An owner that exceeds its new budget keeps its
    /// reservations.
    pub fn set_budgets(&mut self, budgets: Budgets) {
        self.budgets = budgets;
    }

    /// Checks that the budget of an owner allows the new terms of a reservation.
    ///
    /// # Errors
    /// If the owner's budget would be exceeded.
    fn afford(&self, owner: Principal, name: &Name, terms: Terms) -> Result<(), Refusal> {
        let budget = self.budgets.get(&owner).copied().unwrap_or_default();
        let before = self.book.row(name).map(|row| row.terms);
        let rows = self.book.iter().map(|entry| &entry.row);
        budget.allows(owner, rows.filter(|row| row.name != *name), (before, terms))
    }

    /// Checks that the budgets allow the caller to give a reservation the new terms. The new terms
    /// count against the budget of the owner. If the caller is neither the owner nor an
    /// administrator, the new terms also count against the caller's budget. That budget covers the
    /// caller's own reservations, reservations for its VMs, and reservations that it raised. Only a
    /// larger share, a later end or a dropped hard limit is checked against it.
    ///
    /// # Errors
    /// If one of the two budgets would be exceeded.
    fn afford_change(
        &self,
        asked: &ClientRequest,
        before: &Row,
        terms: Terms,
    ) -> Result<(), Refusal> {
        self.afford(before.owner, &before.name, terms)?;
        let is_counted = self.raises.has(asked.principal, before);
        let is_known = is_counted || !terms.outlasts(before.terms);
        self.afford_for_other(asked, before, (is_known.then_some(before.terms), terms))
    }

    /// Checks that the caller's own budget allows `terms` for a reservation of another owner.
    /// `known` are the terms of this reservation that already count against the caller's budget.
    /// The check is skipped if the caller is the owner or an administrator.
    ///
    /// # Errors
    /// If the caller's budget would be exceeded, or if the raise cannot be recorded.
    fn afford_for_other(
        &self,
        asked: &ClientRequest,
        before: &Row,
        (known, terms): (Option<Terms>, Terms),
    ) -> Result<(), Refusal> {
        let caller = asked.principal;
        if asked.is_in_charge_of(before) {
            return Ok(());
        }
        if known.is_none_or(|known| !terms.is_within(known)) {
            self.check_raises(caller, before)?;
        }
        let budget = self.budgets.get(&caller).copied().unwrap_or_default();
        let rows = self.book.iter().map(|entry| &entry.row);
        let rows = rows.filter(|row| row.name != before.name);
        let rows = rows.filter(|row| self.counts_for(caller, row));
        budget.allows_beside(caller, rows, (known, terms))
    }

    /// Checks that a raise of this reservation by the caller can be recorded.
    ///
    /// # Errors
    /// If the maximum number of raises is recorded already, and none of them is by this caller for
    /// this reservation.
    fn check_raises(&self, caller: Principal, row: &Row) -> Result<(), Refusal> {
        let (is, most) = (self.raises.number(), MOST_RAISES);
        if is < most || self.raises.has(caller, row) {
            return Ok(());
        }
        Err(Refusal::TooManyRaises { name: row.name.clone(), is, most })
    }

    /// Returns true if a reservation counts against the budget of the principal `caller`.
    fn counts_for(&self, caller: Principal, row: &Row) -> bool {
        row.owner == caller || Principal::User(row.user) == caller || self.raises.has(caller, row)
    }

    /// Records the raise if the caller raised a reservation of another owner. If an administrator
    /// raises the reservation, its earlier raises no longer count.
    fn note_raise(&mut self, asked: &ClientRequest, before: &Row, terms: Terms) {
        let book = &self.book;
        self.raises.retain(|name| book.row(name).is_some());
        let is_more = is_raise(before.terms, terms);
        if is_more && !asked.is_in_charge_of(before) {
            self.raises.note(asked.principal, before, terms);
        } else {
            let approved = is_more && asked.role == Some(Role::Administrator);
            self.raises.drop_ended(before, terms, approved);
        }
    }

    /// Returns the scheduler's domain of the reservation with this name.
    #[must_use]
    pub fn domain_of(&self, name: &Name) -> Option<DomId> {
        self.book.get(name).map(|entry| entry.domain)
    }

    /// Returns the name of the reservation to which a domain of the scheduler belongs.
    #[must_use]
    pub fn name_of(&self, domain: DomId) -> Option<&Name> {
        self.book.of_domain(domain).map(|entry| &entry.row.name)
    }

    /// Returns the state of a guest that its monitor has suspended, in the monitor's words. `None`
    /// if the guest is not suspended.
    #[must_use]
    pub fn suspended(&self, domain: DomId) -> Option<&str> {
        self.book.of_domain(domain)?.suspended.as_deref()
    }

    /// Returns the CPUs that cannot deliver their reservations because of their load, each with the
    /// last measured load above its limit.
    pub fn overloads(&self) -> impl Iterator<Item = (CpuId, CpuLoad)> {
        self.overloads.iter()
    }

    /// Returns the health of the service: the number of all reservations, the number of waiting
    /// reservations, and, if the ledger cannot be written, the reason.
    #[must_use]
    pub fn health(&self) -> Health {
        Health {
            reservations: self.book.iter().count(),
            waiting: self.book.iter().filter(|entry| entry.is_waiting()).count(),
            ledger: self.writer.failing().map(ToOwned::to_owned),
        }
    }

    /// Completes the handling of an input. This step retries reservations that did not fit, ends
    /// expired leases and reservations, begins a commit, and sets the timer.
    fn settle(&mut self, now: Time, world: &mut impl World) {
        self.go_on_with_list(now, world);
        // This comes first, because undoing a canary can make reservations wait for capacity.
        let next_look = self.look_at_canaries(now, world);
        // If a list cannot be written, its reservations need their old capacity again. So nothing
        // else gets capacity until the commit of the list has ended. The result of the commit is an
        // input, after which this function runs again.
        let is_reserved = self.writer.has_list() || self.has_postponed_list();
        let try_again = self.try_again.filter(|_| !is_reserved);
        if try_again.is_some_and(|at| at <= now) {
            self.fit(now, world);
        }
        self.end_leases(now, world);
        let next_end = self.end_expired(now, world);
        // The first part of a list that waits for capacity is in force, but must not be written.
        let is_unwritten = |list: &PostponedList| {
            let mut names = list.names();
            names.any(|name| self.writer.is_unwritten(name))
        };
        if !self.postponed.as_ref().is_some_and(is_unwritten) {
            self.write(now, world);
        }
        let leases = self.book.iter().filter_map(|entry| entry.lease).map(Lease::over);
        let is_reserved = self.writer.has_list() || self.has_postponed_list();
        let try_again = self.try_again.filter(|_| !is_reserved);
        let rings = leases.chain(try_again).chain(self.writer.again()).chain(next_end);
        let next = self.postponed.as_ref().map(PostponedList::next);
        let rings = rings.chain(next_look).chain(next).min();
        if let Some(at) = rings.filter(|_| rings != self.rings) {
            world.ring(at);
            self.rings = rings;
        }
    }

    /// Records a change, or a request that changed nothing. If the ledger cannot be written now,
    /// returns the answer to the caller. Otherwise returns `None`, and the caller is answered after
    /// the commit.
    fn did(&mut self, now: Time, by: &ChangeOrigin<'_>, what: DoneChange) -> Option<Answer> {
        let DoneChange { kind, before, after, happened } = what;
        let name = after.name.clone();
        let is_over = matches!(kind, Kind::Ended);
        if is_over {
            self.last_end = self.last_end.max(after.revision);
        }
        if let (ChangeOrigin::Itself, Some(before), false) = (by, &before, is_over) {
            self.follow_in_plans(before, &after);
        }
        let event = happened.map(|what| Event {
            seq: after.revision,
            at: now,
            principal: by.principal(),
            what,
            name: Some(name.clone()),
            before,
            after: (!is_over).then(|| after.clone()),
            was_late: false,
        });
        let (tickets, key) = match by {
            ChangeOrigin::Itself | ChangeOrigin::Plan(_) => (Vec::new(), None),
            ChangeOrigin::Asked(asked) => (vec![asked.ticket], keyed(asked)),
            ChangeOrigin::Together { asked, is_last } => {
                (Vec::from_iter(is_last.then_some(asked.ticket)), None)
            }
        };
        let is_together = matches!(by, ChangeOrigin::Together { .. });
        let (row, remains) = (after, None);
        let deed = UncommittedChange { name, kind, row, tickets, key, event, is_together, remains };
        let deed = self.writer.add(deed)?;
        Some(self.answer_unwritten(now, &deed))
    }

    /// Logs a step of the wall clock in an event, if a reservation has a phase and the step is at
    /// least a tenth of its period.
    fn clock_stepped(&mut self, now: Time, by: Span, is_ahead: bool) {
        let terms = |entry: &&Entry| entry.row.terms;
        let feels = |entry: &&Entry| {
            terms(entry).phase().is_some() && by >= terms(entry).each().period() / 10
        };
        let mut names = self.book.oldest(|entry| feels(&entry)).into_iter();
        let Some(first) = names.next() else { return };
        let way = if is_ahead { "ahead" } else { "back" };
        let others = match names.len() {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let says = format!(
            "the wall clock was set {way} by {by}: one period of {first}{others} is longer or \
             shorter"
        );
        self.note(now, Principal::Service, EventKind::ClockStepped(says));
    }

    /// Handles the measured load of a CPU. Logs an event if an overload begins or ends.
    fn measured(&mut self, now: Time, cpu: CpuId, load: CpuLoad) {
        let Some(change) = self.overloads.measured(now, cpu, load) else { return };
        let says = format!("CPU {}: {load}", cpu.index());
        let what = match change {
            OverloadChange::Began => EventKind::Overloaded(says),
            OverloadChange::Ended => EventKind::OverloadEnded(says),
        };
        self.note(now, Principal::Service, what);
    }

    /// Logs an event about missed deadlines of a VM. The event contains the row of the reservation,
    /// so that the ledger counts the event for the reservation's owner.
    fn note_incident(&mut self, now: Time, name: Name, missed: u64, id: u64) {
        let row = self.book.row(&name).cloned();
        let event = Event {
            seq: self.writer.number(),
            at: now,
            principal: Principal::Service,
            what: EventKind::Incident(format!("{missed} missed deadlines, saved as incident {id}")),
            name: Some(name),
            before: row.clone(),
            after: row,
            was_late: false,
        };
        self.writer.note(event);
    }

    /// Logs an event that is about no reservation.
    fn note(&mut self, now: Time, principal: Principal, what: EventKind) {
        self.note_about(now, principal, None, what);
    }

    /// Logs an event that changes no reservation. `name` is the reservation that the event is
    /// about. `None` if the event is about no reservation.
    fn note_about(
        &mut self,
        now: Time,
        principal: Principal,
        name: Option<&Name>,
        what: EventKind,
    ) {
        let event = Event {
            seq: self.writer.number(),
            at: now,
            principal,
            what,
            name: name.cloned(),
            before: None,
            after: None,
            was_late: false,
        };
        self.writer.note(event);
    }
}

/// Cause of a change: a request, a plan, or the service itself.
enum ChangeOrigin<'a> {
    Asked(&'a ClientRequest),
    /// One of several changes that a single request makes. The request is answered after the commit
    /// of the last of these changes.
    Together {
        asked: &'a ClientRequest,
        is_last: bool,
    },
    /// A change of a plan after the change of its canary. The caller that asked for the plan was
    /// already answered when the canary was changed.
    Plan(&'a ClientRequest),
    Itself,
}

impl ChangeOrigin<'_> {
    const fn principal(&self) -> Principal {
        match self {
            ChangeOrigin::Asked(asked)
            | ChangeOrigin::Plan(asked)
            | ChangeOrigin::Together { asked, .. } => asked.principal,
            ChangeOrigin::Itself => Principal::Service,
        }
    }
}

/// A change that was made.
struct DoneChange {
    kind: Kind,
    before: Option<Row>,
    /// The reservation with its new revision. If the change ended the reservation, its last row.
    after: Row,
    /// Event to publish. `None` if nothing changed.
    happened: Option<EventKind>,
}

/// Returns the idempotency key and the text of a request. `None` if the request has no key.
fn keyed(asked: &ClientRequest) -> Option<KeyedRequest> {
    let (principal, text) = (asked.principal, asked.request.to_string());
    asked.key.clone().map(|key| KeyedRequest { principal, key, asked: text })
}
