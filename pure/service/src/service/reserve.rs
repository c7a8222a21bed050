//! Requests that make a new reservation.

use slackline_policy::AdmitError;
use slackline_units::{Span, Time, WallTime};

use crate::binding::Binding;
use crate::book::{Entry, Standing};
use crate::budget::{check_count, check_vcpus};
use crate::deed::Kind;
use crate::event::EventKind;
use crate::input::ClientRequest;
use crate::machine::{LookError, Machine, Seats, WorldError};
use crate::name::Name;
use crate::principal::{Principal, Role, Verb};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::row::{Reason, Row};
use crate::terms::{Amount, Terms};
use crate::world::{JoiningDomain, World};

use super::{ChangeOrigin, DoneChange, Replied, Service};

impl Service {
    pub(super) fn reserve(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        world: &mut impl World,
    ) -> Replied {
        let Request::Reserve { name, .. } = &asked.request else { return Ok(None) };
        self.let_go_if_over(now, name, world);
        if self.book.get(name).is_some() {
            return self.reserve_again(now, asked, world);
        }
        let (row, machine) = self.checked(now, asked, &asked.request, world)?;
        self.make(now, (asked, row, machine), world)
    }

    /// Makes all checks for a new reservation except admission. Returns the row of the reservation,
    /// and its VM if the VM exists.
    pub(super) fn checked(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        request: &Request,
        world: &mut impl World,
    ) -> Result<(Row, Option<Machine>), Refusal> {
        let Request::Reserve { name, amount, vcpus, binding, user, until, .. } = request else {
            return Err(Refusal::Unkeepable("the request names no reservation".into()));
        };
        check_end(*until, now, world)?;
        check_name(asked, name)?;
        let by_name = binding.is_none().then_some(name);
        let binding = match binding {
            Some(binding) => binding.clone(),
            None => named(name, world)?,
        };
        self.check_count(asked, 1)?;
        if let Some(why) = self.writer.failing() {
            return Err(Refusal::NotDurable { why: why.to_owned() });
        }
        let meant = user.unwrap_or(asked.usual_user());
        let machine = found((asked, asked.principal), (&binding, meant), by_name, world)?;
        let user = whose(asked, (&binding, *user), machine.as_ref())?;
        self.check_free(&binding, (asked.principal, user), machine.as_ref())?;
        let there = machine.as_ref().and_then(|one| u16::try_from(one.vcpus.len()).ok());
        let unknown = || Refusal::VcpusUnknown { what: binding.clone() };
        let vcpus = vcpus.or(there.filter(|there| *there > 0)).ok_or_else(unknown)?;
        let terms = new_terms(request, *amount, vcpus)?;
        check_run(asked, None, terms)?;
        self.afford(asked.principal, name, terms)?;
        self.check_vcpus(asked, (name, asked.principal), terms)?;
        let mut row = Row::new(name.clone(), (asked.principal, user), terms, binding);
        row.identity = machine.as_ref().map(|machine| machine.identity);
        row.note_uuid(machine.as_ref());
        Ok((row, machine))
    }

    /// Ends a reservation if its process has ended but the service was not notified yet, for
    /// instance after a restart of the service. The name of the reservation is then free.
    fn let_go_if_over(&mut self, now: Time, name: &Name, world: &mut impl World) {
        let Some(entry) = self.book.get(name).filter(|entry| !entry.row.binding.lasts()) else {
            return;
        };
        let Some(machine) = entry.machine() else { return };
        let (domain, identity) = (entry.domain, machine.identity);
        let is_over = match world.look(&entry.row.binding, entry.row.user) {
            Ok(there) => there.identity != identity,
            Err(error) => error == LookError::Absent,
        };
        if is_over {
            self.vanished(now, (domain, identity), world);
        }
    }

    /// Answers a repeated request to make a reservation, if it comes from the same principal. If
    /// the reservation waits for its VM, looks for the VM now, because a program that starts a VM
    /// often repeats its request.
    fn reserve_again(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        world: &mut impl World,
    ) -> Replied {
        let Request::Reserve { name, .. } = &asked.request else { return Ok(None) };
        let Some(row) = self.book.row(name).cloned() else { return Ok(None) };
        self.check_lent(name)?;
        if row.owner == asked.principal && is_promised(&asked.request, &row) {
            if self.book.get(name).is_some_and(Entry::is_waiting) && row.binding.lasts() {
                self.appeared(now, (&row.binding, row.user), world);
            }
            let row = self.book.row(name).cloned().unwrap_or(row);
            Ok(self.is_so(now, asked, row))
        } else {
            Err(Refusal::Exists { name: name.clone(), is: row.to_string() })
        }
    }

    /// Checks that the number of reservations stays within [`MOST_RESERVATIONS`] if `new` are
    /// added.
    pub(super) fn check_count(&self, asked: &ClientRequest, new: usize) -> Result<(), Refusal> {
        check_count(asked.is_administrator(), self.book.iter().count(), new)
    }

    /// Checks that new terms of a reservation of `owner` stay within the limits on the number of
    /// vCPUs.
    pub(super) fn check_vcpus(
        &self,
        asked: &ClientRequest,
        (name, owner): (&Name, Principal),
        terms: Terms,
    ) -> Result<(), Refusal> {
        let before = self.book.row(name);
        let others = self.book.iter().map(|entry| &entry.row).filter(|row| row.name != *name);
        let change = (before.map(|row| row.terms), terms);
        check_vcpus((owner, asked.is_administrator()), others, change)
    }

    /// Checks that no other reservation has the VM. Also checks that the binding belongs to no
    /// other reservation with the same owner or for the same user. `new` contains the owner and the
    /// user of the new reservation.
    pub(super) fn check_free(
        &self,
        binding: &Binding,
        new: (Principal, u32),
        machine: Option<&Machine>,
    ) -> Result<(), Refusal> {
        let holder = machine.and_then(|machine| self.book.holder(machine.identity, None));
        match holder.or_else(|| self.book.bound(binding, new, None)) {
            Some(by) => Err(Refusal::Taken { binding: binding.clone(), by: Some(by.clone()) }),
            None => Ok(()),
        }
    }

    /// Makes a reservation. If its VM exists, the VM is scheduled immediately.
    fn make(
        &mut self,
        now: Time,
        (asked, mut row, mut machine): (&ClientRequest, Row, Option<Machine>),
        world: &mut impl World,
    ) -> Replied {
        let domain = self.domains.take(now, &row.binding, row.identity);
        self.domains.promised(domain, row.terms.each().period());
        let mut seats =
            machine.as_ref().map(|machine| Seats::fill(machine, row.terms.vcpus(), &[]));
        let mut joined = join(world, domain, &row, seats.as_ref());
        if joined == Err(WorldError::Gone) && row.binding.lasts() {
            // The VM has ended after it was looked up.
            (machine, seats, row.identity) = (None, None, None);
            joined = join(world, domain, &row, None);
        }
        if let Err(declined) = joined {
            self.domains.leave(now, domain);
            return Err(refusal(declined, &row.terms, &row.binding));
        }
        row.revision = self.writer.number();
        row.since = row.revision;
        let standing = match (machine, seats) {
            (Some(machine), Some(seats)) => Standing::Seated { machine, seats },
            _ => Standing::Promised(Reason::Absent(row.binding.clone())),
        };
        self.book.insert(Entry::new(row.clone(), domain, standing));
        let happened = Some(EventKind::Asked(Verb::Reserve));
        let done = DoneChange { kind: Kind::Reserved, before: None, after: row, happened };
        Ok(self.did(now, &ChangeOrigin::Asked(asked), done))
    }
}

/// Returns the terms of a new reservation.
pub(super) fn new_terms(request: &Request, amount: Amount, vcpus: u16) -> Result<Terms, Refusal> {
    let Request::Reserve { exact, phase, until, enforce, .. } = request else {
        return Err(Refusal::Unkeepable("the request reserves nothing".into()));
    };
    let terms = amount.terms(*exact, vcpus).and_then(|terms| terms.with_phase(*phase));
    let terms = terms.and_then(|terms| terms.enforced_by(enforce.by()));
    Ok(terms.map_err(Refusal::Terms)?.with_end(*until))
}

/// Checks the end time of a reservation, if it has one. The end must be in the future.
pub(super) fn check_end(
    until: Option<WallTime>,
    now: Time,
    world: &mut impl World,
) -> Result<(), Refusal> {
    let Some(until) = until else { return Ok(()) };
    let now = WallTime::at(now, world.wall_ahead());
    if until > now { Ok(()) } else { Err(Refusal::EndPassed { until, now }) }
}

/// Checks that a name that ends with [`Name::OF_LIBVIRT`] is used only by an administrator. The
/// libvirt hook uses such a name for a guest if another user's reservation already has the guest's
/// own name.
pub(super) fn check_name(asked: &ClientRequest, name: &Name) -> Result<(), Refusal> {
    if name.as_str().ends_with(Name::OF_LIBVIRT) && !asked.is_administrator() {
        return Err(Refusal::KeptName { name: name.clone() });
    }
    Ok(())
}

/// Checks that only an administrator reserves a slice longer than [`Terms::LONGEST_RUN`]. A caller
/// who is no administrator may keep or shorten a slice that is already so long.
pub(super) fn check_run(
    asked: &ClientRequest,
    before: Option<Terms>,
    terms: Terms,
) -> Result<(), Refusal> {
    let slice = |terms: Terms| terms.each().slice();
    let is_longer = before.is_none_or(|before| slice(terms) > slice(before));
    if terms.runs_long() && is_longer && asked.role != Some(Role::Administrator) {
        return Err(Refusal::LongRun { terms });
    }
    Ok(())
}

/// Returns the binding of the only VM with this name.
///
/// # Errors
/// If no VM or several VMs have this name.
fn named(name: &Name, world: &mut impl World) -> Result<Binding, Refusal> {
    let mut bindings = world.named(name);
    match (bindings.pop(), bindings.is_empty()) {
        (None, _) => Err(none_called(name)),
        (Some(binding), true) => Ok(binding),
        (Some(last), false) => {
            bindings.push(last);
            Err(Refusal::Ambiguous { name: name.clone(), bindings })
        }
    }
}

/// Returns the refusal of a request that names its VM only by this name, if no VM has the name.
fn none_called(name: &Name) -> Refusal {
    Refusal::NoMachine { what: format!("a VM called {name}") }
}

/// Returns the user who owns the VM of a new reservation. If the VM does not exist yet, this is the
/// user who will own it.
///
/// # Errors
/// If the caller may not reserve for that user, or if the request named another user.
fn whose(
    asked: &ClientRequest,
    (binding, said): (&Binding, Option<u32>),
    machine: Option<&Machine>,
) -> Result<u32, Refusal> {
    let user = machine.map_or(said.unwrap_or(asked.usual_user()), |machine| machine.user);
    if !asked.may_have(user) {
        let (binding, principal) = (binding.clone(), asked.principal);
        return Err(Refusal::NotYours { binding, user, principal });
    }
    match said {
        Some(said) if said != user => {
            Err(Refusal::NoMachine { what: format!("{binding} of uid {said}") })
        }
        _ => Ok(user),
    }
}

/// Returns the VM to which the binding refers, preferably a VM of `user`. `None` if no such VM runs
/// now, but one can start later. Also `None` if a tenant must not see the VM. The reservation
/// belongs to `owner`. `by_name` is its name if the request names the VM only by that name.
///
/// # Errors
/// If the binding is a process id and no such process exists, if the VM must never be scheduled, if
/// the owner may not reserve for it, or if the host cannot identify the VM. With `by_name`, also if
/// a tenant must not see the VM.
pub(super) fn found(
    (asked, owner): (&ClientRequest, Principal),
    (binding, user): (&Binding, u32),
    by_name: Option<&Name>,
    world: &mut impl World,
) -> Result<Option<Machine>, Refusal> {
    let is_hidden = |of: u32| of != user && asked.must_not_find(binding, of);
    let hidden = || by_name.map_or(Ok(None), |name| Err(none_called(name)));
    match world.look(binding, user) {
        Ok(machine) if is_hidden(machine.user) => hidden(),
        Err(LookError::NotYours(of)) if is_hidden(of) => hidden(),
        Ok(machine) => Ok(Some(machine)),
        Err(LookError::Absent | LookError::Starting { .. }) if binding.lasts() => Ok(None),
        Err(LookError::Absent) => Err(Refusal::NoMachine { what: binding.to_string() }),
        Err(LookError::Starting { says }) => {
            let hint = Some("try again in some seconds".to_owned());
            Err(Refusal::Host { says, hint })
        }
        Err(LookError::Forbidden(says)) => Err(Refusal::Forbidden(says)),
        Err(LookError::NotYours(user)) => {
            Err(Refusal::NotYours { binding: binding.clone(), user, principal: owner })
        }
        Err(LookError::Unclear { says, hint }) => Err(Refusal::Host { says, hint }),
    }
}

/// Adds the domain of one reservation to the scheduler.
pub(super) fn join(
    world: &mut impl World,
    domain: slackline_units::DomId,
    row: &Row,
    seats: Option<&Seats>,
) -> Result<(), WorldError> {
    let (name, owner, terms) = (&row.name, row.owner, &row.terms);
    let joining = JoiningDomain { domain, name, owner, terms, seats };
    let mut answers = world.join(&[joining]);
    // A missing answer must not count as success.
    answers.pop().unwrap_or_else(|| {
        Err(WorldError::Host { says: "the scheduler did not answer".into(), hint: None })
    })
}

/// Returns the refusal for a call that the [`World`] declined.
pub(super) fn refusal(declined: WorldError, terms: &Terms, binding: &Binding) -> Refusal {
    match declined {
        WorldError::Admission(error) => {
            let says = error.to_string();
            let free_after = match error {
                AdmitError::NoRoom { free_after, .. } => Some(free_after),
                _ => None,
            };
            let free_after = free_after.filter(|wait| !wait.is_zero());
            match error {
                AdmitError::NoRoom { promised, capacity, room, .. }
                | AdmitError::NoRoomInParts { promised, capacity, room, .. }
                | AdmitError::NoRoomTogether { promised, capacity, room, .. } => {
                    let (asked, largest) = (terms.each(), of_whole_period(room, terms));
                    Refusal::NoRoom { asked, promised, capacity, largest, free_after, says }
                }
                AdmitError::Reservation(_) | AdmitError::SliceTooShort { .. } => {
                    Refusal::Unkeepable(says)
                }
            }
        }
        WorldError::Interference { promised, capacity, largest, says } => {
            let (asked, free_after) = (terms.each(), None);
            Refusal::NoRoom { asked, promised, capacity, largest, free_after, says }
        }
        WorldError::Gone => Refusal::NoMachine { what: binding.to_string() },
        WorldError::Host { says, hint } => Refusal::Host { says, hint },
    }
}

/// Returns the slice for a whole period, if `room` is the slice that fits into each part of the
/// period. A long period is enforced in several equal parts.
fn of_whole_period(room: Span, terms: &Terms) -> Span {
    let (whole, part) = (terms.each().period(), terms.in_each_second().each().period());
    let ns = u128::from(room.ns()) * u128::from(whole.ns()) / u128::from(part.ns().max(1));
    Span::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// Returns true if a request to reserve would make exactly the reservation `row`.
pub(super) fn is_promised(request: &Request, row: &Row) -> bool {
    let Request::Reserve { name, amount, vcpus, binding, user, .. } = request else {
        return false;
    };
    let vcpus = vcpus.unwrap_or(row.terms.vcpus());
    // With `auto`, the service might choose another mechanism now. The repeated request still means
    // the existing reservation, so compare it with the mechanism of that reservation.
    let mut like_row = request.clone();
    like_row.choose_mechanism(row.terms.enforcement());
    *name == row.name
        && new_terms(&like_row, *amount, vcpus) == Ok(row.terms)
        && binding.as_ref().is_none_or(|binding| *binding == row.binding)
        && user.is_none_or(|user| user == row.user)
}
