//! The service: what it keeps, and what it does with each input.

mod adopt;
mod apply;
mod asked;
mod change;
mod gang;
mod hold;
mod machines;
mod reserve;
mod show;
mod written;

use std::collections::BTreeMap;

use slackline_units::{CpuId, DomId, Span, Time};

use crate::answer::{Answer, AppliedChange, Health, Listed};
use crate::binding::Binding;
use crate::book::{Book, Entry, Lease};
use crate::budget::Budgets;
use crate::deed::{Deed, Keyed, Kind};
use crate::domains::Domains;
use crate::event::{Event, Happened};
use crate::input::{Asked, Input};
use crate::keys::Keys;
use crate::limits::{Limits, Rates};
use crate::name::Name;
use crate::overload::{CpuLoad, OverloadChange, Overloads};
use crate::principal::{Principal, Role};
use crate::refusal::Refusal;
use crate::request::{Request, Ticket};
use crate::row::Row;
use crate::terms::Terms;
use crate::world::World;
use crate::writer::Writer;
pub use apply::MOST_TARGETS;
pub use reserve::MOST_RESERVATIONS;

/// How long what has no room is left alone before it is tried again, if nothing is given up before.
const TRY_AGAIN: Span = Span::from_secs(1);

/// How a service is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often one principal may ask; none is as often as it likes.
    pub rates: Option<Rates>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { rates: Some(Rates::USUAL) }
    }
}

/// A machine that somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought<'a> {
    /// The one that goes by this name.
    Named(&'a Name),
    /// The one that a binding means.
    Bound(&'a Binding),
}

/// Who may have what, under which name.
#[derive(Debug)]
pub struct Service {
    book: Book,
    writer: Writer,
    keys: Keys,
    limits: Limits,
    domains: Domains,
    budgets: Budgets,
    /// Who raised a reservation of another owner last, by its name.
    raised: BTreeMap<Name, Principal>,
    /// Answers to lists that wait to be written down, by who is to be answered.
    applied: BTreeMap<Ticket, Vec<AppliedChange>>,
    overloads: Overloads,
    /// When it is to be rung, as it was asked for last.
    rings: Option<Time>,
    /// When what has no room is tried again.
    try_again: Option<Time>,
}

/// What a request comes to: an answer, or none yet; then it will be answered when what was done is
/// written down, or by the world.
type Replied = Result<Option<Answer>, Refusal>;

impl Service {
    /// Something happened, at a time that is never earlier than that of the input before.
    pub fn step(&mut self, now: Time, input: Input, world: &mut impl World) {
        match input {
            Input::Asked(asked) => self.asked(now, &asked, world),
            Input::Sought(asked) => self.sought_and_asked(now, &asked, world),
            Input::Committed { seq } => self.committed(now, seq, world),
            Input::NotCommitted { seq, fault } => self.not_committed(now, seq, &fault, world),
            Input::Appeared { binding } => self.appeared(now, &binding, world),
            Input::Vanished { domain, identity } => self.vanished(now, (domain, identity), world),
            Input::Vcpus { domain, machine } => self.vcpus(now, domain, machine, world),
            Input::Meddled { domain, what } => self.meddled(now, domain, what),
            Input::Contested { domain, place, what } => self.contest(now, domain, place, &what),
            Input::Settled { domain, place } => self.settled(now, domain, place),
            Input::Suspended { domain, identity, what } => self.suspend((domain, identity), what),
            Input::Access { by, what } => self.note(now, by, what),
            Input::KeeperReplaced => {
                self.note(now, Principal::Service, Happened::KeeperReplaced);
            }
            Input::ClockStepped { by, is_ahead } => self.clock_stepped(now, by, is_ahead),
            Input::Load { cpu, load } => self.measured(now, cpu, load),
            Input::Rang => self.rings = None,
        }
        self.settle(now, world);
    }

    /// What is bound to a machine that it does not have: what to look for, and to tell of as
    /// [`Input::Appeared`]; and whose it should be.
    pub fn waiting(&self) -> impl Iterator<Item = (&Binding, u32)> {
        let waiting = self.book.iter().filter(|entry| entry.is_waiting());
        waiting.map(|entry| (&entry.row.binding, entry.row.user))
    }

    /// The machine that has to be looked for before a request can be done, if any: to look for one
    /// may take long, and nobody else is to wait for that.
    #[must_use]
    pub fn sought<'a>(&'a self, request: &'a Request) -> Option<Sought<'a>> {
        let request = match request {
            Request::Hold { member, .. } => member,
            request => request,
        };
        let (Request::Reserve { name, .. } | Request::Resume { name, .. }) = request else {
            return None;
        };
        match (self.book.get(name), request) {
            (None, Request::Reserve { binding: Some(binding), .. }) => Some(Sought::Bound(binding)),
            (None, Request::Reserve { .. }) => Some(Sought::Named(name)),
            (None, _) => None,
            (Some(entry), _) => entry.is_waiting().then_some(Sought::Bound(&entry.row.binding)),
        }
    }

    /// Whose the machine should be that is [sought](Service::sought) for a request.
    #[must_use]
    pub fn sought_user(&self, asked: &Asked) -> u32 {
        let request = match &asked.request {
            Request::Hold { member, .. } => member,
            request => request,
        };
        let (name, said) = match request {
            Request::Reserve { name, user, .. } => (Some(name), *user),
            Request::Resume { name, .. } => (Some(name), None),
            _ => (None, None),
        };
        let row = name.and_then(|name| self.book.row(name));
        row.map_or(said.unwrap_or(asked.principal.user()), |row| row.user)
    }

    /// All reservations, by name, and how the scheduler knows them.
    pub fn listed(&self) -> impl Iterator<Item = (DomId, Listed)> {
        self.book.iter().map(|entry| (entry.domain, entry.listed()))
    }

    /// How much each owner may have from now on. Who has more keeps it.
    pub fn set_budgets(&mut self, budgets: Budgets) {
        self.budgets = budgets;
    }

    /// Whether the owner of a reservation may have these terms for it.
    fn afford(&self, owner: Principal, name: &Name, terms: Terms) -> Result<(), Refusal> {
        let budget = self.budgets.get(&owner).copied().unwrap_or_default();
        let before = self.book.row(name).map(|row| row.terms);
        let rows = self.book.iter().map(|entry| &entry.row);
        budget.allows(owner, rows.filter(|row| row.name != *name), (before, terms))
    }

    /// Returns an error unless the caller may change a reservation to these terms. A change counts
    /// against the owner, and against a caller who is another: beside what it owns, what is
    /// reserved for its VMs, and what it raised.
    fn afford_change(&self, asked: &Asked, before: &Row, terms: Terms) -> Result<(), Refusal> {
        self.afford(before.owner, &before.name, terms)?;
        let caller = asked.principal;
        if caller == before.owner || asked.role == Some(Role::Administrator) {
            return Ok(());
        }
        let budget = self.budgets.get(&caller).copied().unwrap_or_default();
        let counts = |row: &&Row| {
            row.owner == caller
                || Principal::User(row.user) == caller
                || self.raised.get(&row.name) == Some(&caller)
        };
        let rows = self.book.iter().map(|entry| &entry.row);
        let rows = rows.filter(|row| row.name != before.name).filter(counts);
        budget.allows_beside(caller, rows, (Some(before.terms), terms))
    }

    /// Notes who changed a reservation.
    fn note_raise(&mut self, asked: &Asked, before: &Row, terms: Terms) {
        let book = &self.book;
        self.raised.retain(|name, _| book.row(name).is_some());
        if asked.principal == before.owner || asked.role == Some(Role::Administrator) {
            self.raised.remove(&before.name);
        } else if !terms.is_within(before.terms) {
            self.raised.insert(before.name.clone(), asked.principal);
        }
    }

    /// How the scheduler knows a reservation.
    #[must_use]
    pub fn domain_of(&self, name: &Name) -> Option<DomId> {
        self.book.get(name).map(|entry| entry.domain)
    }

    /// Which reservation the scheduler knows so.
    #[must_use]
    pub fn name_of(&self, domain: DomId) -> Option<&Name> {
        self.book.of_domain(domain).map(|entry| &entry.row.name)
    }

    /// What the monitor of a domain's machine says, if it has suspended the guest.
    #[must_use]
    pub fn suspended(&self, domain: DomId) -> Option<&str> {
        self.book.of_domain(domain)?.suspended.as_deref()
    }

    /// Returns the CPUs that cannot deliver their reservations, each with its last load in excess.
    pub fn overloads(&self) -> impl Iterator<Item = (CpuId, CpuLoad)> {
        self.overloads.iter()
    }

    /// How it is doing.
    #[must_use]
    pub fn health(&self) -> Health {
        Health {
            reservations: self.book.iter().count(),
            waiting: self.book.iter().filter(|entry| entry.is_waiting()).count(),
            ledger: self.writer.failing().map(ToOwned::to_owned),
        }
    }

    /// After each input: what has no room is tried again, what is to be written is begun, and
    /// whoever rings us is told when.
    fn settle(&mut self, now: Time, world: &mut impl World) {
        if self.try_again.is_some_and(|at| at <= now) {
            self.fit(now, world);
        }
        self.end_leases(now, world);
        self.write(now, world);
        let leases = self.book.iter().filter_map(|entry| entry.lease).map(Lease::over);
        let rings = leases.chain(self.try_again).chain(self.writer.again()).min();
        if let Some(at) = rings.filter(|_| rings != self.rings) {
            world.ring(at);
            self.rings = rings;
        }
    }

    /// Something was done to a reservation, or is so already: whoever asked is answered when that
    /// is written down, or now if nothing can be.
    fn did(&mut self, now: Time, by: &By<'_>, what: Done) -> Option<Answer> {
        let Done { kind, before, after, happened } = what;
        let name = after.name.clone();
        let is_over = matches!(kind, Kind::Ended);
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
            By::Itself => (Vec::new(), None),
            By::Asked(asked) => (vec![asked.ticket], keyed(asked)),
            By::Together { asked, is_last } => {
                (Vec::from_iter(is_last.then_some(asked.ticket)), None)
            }
        };
        let deed = Deed { name, kind, row: after, tickets, key, event, remains: None };
        let deed = self.writer.add(deed)?;
        Some(self.answer_unwritten(now, &deed))
    }

    /// The clock on the wall was set: that is told of where it is a tenth of a period or more of
    /// somebody whose periods go by it.
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
        let says = format!("by {by} {way}; one period of {first}{others} is longer or shorter");
        self.note(now, Principal::Service, Happened::ClockStepped(says));
    }

    /// Takes a measurement of a CPU, and reports the begin or end of an overload.
    fn measured(&mut self, now: Time, cpu: CpuId, load: CpuLoad) {
        let Some(change) = self.overloads.measured(now, cpu, load) else { return };
        let says = format!("CPU {}: {load}", cpu.index());
        let what = match change {
            OverloadChange::Began => Happened::Overloaded(says),
            OverloadChange::Ended => Happened::OverloadEnded(says),
        };
        self.note(now, Principal::Service, what);
    }

    /// Something happened to no reservation.
    fn note(&mut self, now: Time, principal: Principal, what: Happened) {
        let event = Event {
            seq: self.writer.number(),
            at: now,
            principal,
            what,
            name: None,
            before: None,
            after: None,
            was_late: false,
        };
        self.writer.note(event);
    }
}

/// Who has something done.
enum By<'a> {
    Asked(&'a Asked),
    /// One of several changes of a request, which is answered with its last one.
    Together {
        asked: &'a Asked,
        is_last: bool,
    },
    Itself,
}

impl By<'_> {
    const fn principal(&self) -> Principal {
        match self {
            By::Asked(asked) | By::Together { asked, .. } => asked.principal,
            By::Itself => Principal::Service,
        }
    }
}

/// What was done.
struct Done {
    kind: Kind,
    before: Option<Row>,
    /// The reservation now, with its new revision; as it was last if it is over.
    after: Row,
    /// What is told of it; nothing, if nothing changed.
    happened: Option<Happened>,
}

/// What a request was asked for with.
fn keyed(asked: &Asked) -> Option<Keyed> {
    let (principal, text) = (asked.principal, asked.request.to_string());
    asked.key.clone().map(|key| Keyed { principal, key, asked: text })
}
