//! Handling of VMs that start or end, change their vCPUs, or are changed by other programs.

use slackline_units::{DomId, Time};

use crate::binding::Binding;
use crate::book::{Entry, Standing};
use crate::deed::Kind;
use crate::event::EventKind;
use crate::machine::{Identity, LookError, Machine, Seats};
use crate::name::Name;
use crate::refusal::Refusal;
use crate::row::{Reason, Row};
use crate::world::World;

use super::reserve::{join, refusal};
use super::{ChangeOrigin, DoneChange, Service, TRY_AGAIN};

impl Service {
    /// Handles a VM of `user` that may have started: schedules the VM for the reservations that
    /// wait for it. A reservation for another user can have the same binding but refer to another
    /// VM.
    pub(super) fn appeared(
        &mut self,
        now: Time,
        (binding, user): (&Binding, u32),
        world: &mut impl World,
    ) {
        let waits = |entry: &Entry| !entry.is_out() && entry.waits_for(binding, user);
        for name in self.book.oldest(waits) {
            let Some(row) = self.book.row(&name).cloned() else { continue };
            let found = world.look(binding, row.user);
            if self.ends(now, (&name, &found), world) {
                continue;
            }
            let machine = match found {
                Ok(machine) => machine,
                // The VM exists but cannot be identified.
                Err(error @ (LookError::Unclear { .. } | LookError::NotYours(_))) => {
                    let reason = Reason::not_found(&row, &error);
                    self.stand(&name, Standing::Promised(reason));
                    continue;
                }
                Err(_) => continue,
            };
            self.give(now, &row, machine, world);
        }
    }

    /// Handles a failed look-up of a VM of `user`. The reservations that wait for this VM continue
    /// to wait, now for the reason `error`. A reservation whose VM can never return is ended.
    pub(super) fn not_found(
        &mut self,
        now: Time,
        (binding, user, error): (&Binding, u32, &LookError),
        world: &mut impl World,
    ) {
        for name in self.book.oldest(|entry| entry.waits_for(binding, user)) {
            let found = Err(error.clone());
            if self.ends(now, (&name, &found), world) {
                continue;
            }
            if let Some(entry) = self.book.get_mut(&name).filter(|entry| !entry.is_out()) {
                entry.stand(Standing::Promised(Reason::not_found(&entry.row, error)));
            }
        }
    }

    /// Schedules a VM for a reservation that waits for it. If the VM belongs to another user or
    /// already has a reservation, the waiting reservation continues to wait, for that reason.
    pub(super) fn give(&mut self, now: Time, row: &Row, machine: Machine, world: &mut impl World) {
        let name = &row.name;
        if !row.means(&machine) {
            self.stand(name, Standing::Promised(Reason::foreign(row, &machine)));
            return;
        }
        if let Some(by) = self.book.holder(machine.identity, Some(name)).cloned() {
            self.stand(name, Standing::Promised(Reason::Taken(by)));
            return;
        }
        match self.sit(name, machine, world) {
            Ok(()) => self.machine_is(now, name, EventKind::Appeared),
            Err(Refusal::NoMachine { .. }) => {}
            Err(why) => {
                let reason = Reason::Unavailable(why.to_string());
                self.stand(name, Standing::Promised(reason));
            }
        }
    }

    /// Ends a reservation if its VM can never exist again. Returns true if the reservation was
    /// ended.
    pub(super) fn ends(
        &mut self,
        now: Time,
        (name, found): (&Name, &Result<Machine, LookError>),
        world: &mut impl World,
    ) -> bool {
        let row = self.book.row(name).filter(|row| is_over(row, found)).cloned();
        let is_over = row.is_some();
        if let Some(row) = row {
            self.let_go(now, name, world);
            self.over(now, row, EventKind::Vanished);
        }
        is_over
    }

    /// Assigns the threads of a VM to the places (reserved vCPUs) of its reservation.
    pub(super) fn sit(
        &mut self,
        name: &Name,
        machine: Machine,
        world: &mut impl World,
    ) -> Result<(), Refusal> {
        let Some(entry) = self.book.get_mut(name) else { return Ok(()) };
        let (domain, row) = (entry.domain, entry.row.clone());
        let declined = |declined| refusal(declined, &row.terms, &row.binding);
        let seats = Seats::fill(&machine, row.terms.vcpus(), &[]);
        world.seat(domain, &seats).map_err(declined)?;
        if row.paused
            && let Err(error) = world.pause(domain)
        {
            // A VM of a paused reservation must not run under the scheduler. If it cannot be
            // paused, it is left to the kernel.
            world.unseat(domain);
            return Err(declined(error));
        }
        self.domains.is(domain, machine.identity);
        self.stand(name, Standing::Seated { machine, seats });
        Ok(())
    }

    /// Records which part of a reservation is in force.
    pub(super) fn stand(&mut self, name: &Name, standing: Standing) {
        if let Some(entry) = self.book.get_mut(name) {
            entry.stand(standing);
        }
    }

    /// Writes the identity and the user of the VM into the row of its reservation, and logs an
    /// event.
    pub(super) fn machine_is(&mut self, now: Time, name: &Name, happened: EventKind) {
        let Some(entry) = self.book.get_mut(name) else { return };
        let identity = match entry.machine() {
            Some(machine) => Some(machine.identity),
            // A `pid:` binding still refers to the same process.
            None => entry.row.identity.filter(|_| !entry.row.binding.lasts()),
        };
        let before = entry.row.clone();
        entry.row.user = entry.machine().map_or(before.user, |machine| machine.user);
        entry.row.identity = identity;
        let machine = entry.machine().cloned();
        entry.row.note_uuid(machine.as_ref());
        entry.row.revision = self.writer.number();
        let after = entry.row.clone();
        let (kind, happened) = (Kind::Machine, Some(happened));
        self.did(
            now,
            &ChangeOrigin::Itself,
            DoneChange { kind, before: Some(before), after, happened },
        );
    }

    /// Handles the end of a VM that was scheduled for a reservation.
    pub(super) fn vanished(
        &mut self,
        now: Time,
        (domain, identity): (DomId, Identity),
        world: &mut impl World,
    ) {
        let Some(row) = self.held(domain, identity).map(|entry| entry.row.clone()) else { return };
        if row.binding.lasts() {
            world.unseat(domain);
            let reason = Reason::Absent(row.binding.clone());
            self.stand(&row.name, Standing::Promised(reason));
            self.machine_is(now, &row.name, EventKind::Vanished);
        } else {
            self.let_go(now, &row.name, world);
            self.over(now, row, EventKind::Vanished);
        }
    }

    /// Returns the reservation of a domain. `None` if the VM with this identity is not scheduled
    /// for it.
    fn held(&self, domain: DomId, identity: Identity) -> Option<&Entry> {
        let is_it = |machine: &Machine| machine.identity == identity;
        self.book.of_domain(domain).filter(|entry| entry.machine().is_some_and(is_it))
    }

    /// Handles a scheduled VM whose vCPUs have changed.
    pub(super) fn vcpus(
        &mut self,
        now: Time,
        domain: DomId,
        machine: Machine,
        world: &mut impl World,
    ) {
        let Some(name) = self.held(domain, machine.identity).map(|one| one.row.name.clone()) else {
            return;
        };
        let Some(entry) = self.book.get_mut(&name) else { return };
        let places = entry.row.terms.vcpus();
        let Standing::Seated { machine: before, seats } = &mut entry.standing else { return };
        let is_other = *before != machine;
        let filled = Seats::fill(&machine, places, &seats.vcpus);
        let is_reseated = filled != *seats;
        // This call is needed even if no place changes: a new thread may have the vCPU number of a
        // thread that has ended.
        match world.seat(domain, &filled) {
            Ok(()) => {
                let sat = |place: &u16| seats.vcpus.get(usize::from(*place)).copied();
                let sits = |place: &u16| filled.vcpus.get(usize::from(*place)).copied();
                entry.contested.retain(|place, _| sat(place) == sits(place));
                (entry.not_seated, entry.unclear) = (None, None);
                *seats = filled;
            }
            // The state of the reservation is partial until the next report about the VM succeeds.
            Err(declined) => entry.not_seated = Some(declined.to_string()),
        }
        let there = u16::try_from(machine.vcpus.len()).unwrap_or(u16::MAX);
        let is_served = is_reseated && entry.not_seated.is_none();
        *before = machine;
        if is_other || is_served {
            self.machine_is(now, &name, EventKind::Vcpus { there });
        }
    }

    /// Logs that the service undid a change to scheduled threads. At most one such event is logged
    /// for each VM in ten seconds.
    pub(super) fn meddled(&mut self, now: Time, domain: DomId, what: String) {
        let Some(name) = self.name_of(domain).cloned() else { return };
        let entry = self.book.get_mut(&name).filter(|entry| entry.is_seated());
        if entry.is_some_and(|entry| entry.is_meddling_news(now)) {
            self.machine_is(now, &name, EventKind::Meddled(what));
        }
    }

    /// Leaves the threads of a place (reserved vCPU) to the program that changed them, since an
    /// administrator may have wanted the change.
    pub(super) fn contest(&mut self, now: Time, domain: DomId, place: u16, what: &str) {
        let Some(name) = self.name_of(domain).cloned() else { return };
        let Some(entry) = self.book.get_mut(&name) else { return };
        let Standing::Seated { seats, .. } = &entry.standing else { return };
        let seat = seats.vcpus.get(usize::from(place)).copied().flatten();
        let what = seat.map_or_else(|| what.to_owned(), |vcpu| format!("vCPU {vcpu}: {what}"));
        if entry.contested.insert(place, what.clone()).as_ref() != Some(&what) {
            self.machine_is(now, &name, EventKind::Contested(what));
        }
    }

    /// Records that the service schedules the threads of a place (reserved vCPU) again, after they
    /// were left to another program.
    pub(super) fn settled(&mut self, now: Time, domain: DomId, place: u16) {
        let Some(name) = self.name_of(domain).cloned() else { return };
        let entry = self.book.get_mut(&name);
        if entry.is_some_and(|entry| entry.contested.remove(&place).is_some()) {
            self.machine_is(now, &name, EventKind::Settled);
        }
    }

    /// Records that the monitor of a scheduled VM has suspended or resumed the guest.
    pub(super) fn suspend(&mut self, whose: (DomId, Identity), what: Option<String>) {
        let Some(name) = self.held(whose.0, whose.1).map(|entry| entry.row.name.clone()) else {
            return;
        };
        if let Some(entry) = self.book.get_mut(&name) {
            entry.suspended = what;
        }
    }

    /// Records the reason `why` the vCPUs of a scheduled VM cannot be told apart. `None` if they
    /// can be told apart.
    pub(super) fn note_unclear(&mut self, whose: (DomId, Identity), why: Option<String>) {
        let name = self.held(whose.0, whose.1).map(|entry| entry.row.name.clone());
        if let Some(entry) = name.and_then(|name| self.book.get_mut(&name)) {
            entry.unclear = why;
        }
    }

    /// Tries again to admit the reservations that did not fit into the available capacity, oldest
    /// first.
    pub(super) fn fit(&mut self, now: Time, world: &mut impl World) {
        for name in self.book.oldest(Entry::is_out) {
            let Some(entry) = self.book.get_mut(&name) else { continue };
            if join(world, entry.domain, &entry.row, None).is_ok() {
                let reason = Reason::Absent(entry.row.binding.clone());
                entry.stand(Standing::Promised(reason));
                self.machine_is(now, &name, EventKind::Fits);
            }
        }
        let is_left = self.book.iter().any(Entry::is_out);
        self.try_again = is_left.then(|| now.after(TRY_AGAIN));
    }
}

/// Returns true if the VM of a row can never exist again: its binding is a process id, and the
/// process has ended.
pub(super) fn is_over(row: &Row, found: &Result<Machine, LookError>) -> bool {
    !row.binding.lasts()
        && match found {
            Ok(machine) => row.identity != Some(machine.identity),
            Err(LookError::Absent | LookError::Forbidden(_)) => true,
            Err(
                LookError::Starting { .. } | LookError::Unclear { .. } | LookError::NotYours(_),
            ) => false,
        }
}
