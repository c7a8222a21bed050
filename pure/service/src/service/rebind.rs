//! Changes of the VM to which a reservation is bound.

use slackline_units::Time;

use crate::binding::Binding;
use crate::book::Standing;
use crate::deed::Kind;
use crate::event::EventKind;
use crate::input::ClientRequest;
use crate::machine::Machine;
use crate::name::Name;
use crate::principal::Verb;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::row::{Reason, Row};
use crate::world::World;
use crate::writer::REST;

use super::reserve::{check_run, found};
use super::{ChangeOrigin, DoneChange, Replied, Service};

impl Service {
    /// Binds a reservation to another VM, or to the same VM by another name. The terms of the
    /// reservation stay unchanged. If the new VM does not exist, the reservation waits for it.
    pub(super) fn rebind(
        &mut self,
        now: Time,
        asked: &ClientRequest,
        world: &mut impl World,
    ) -> Replied {
        let Request::Rebind { name, binding, if_revision } = &asked.request else {
            return Ok(None);
        };
        let before = self.expected(name, *if_revision)?;
        if *binding == before.binding {
            return Ok(self.is_so(now, asked, before));
        }
        if let Some(why) = self.writer.failing() {
            return Err(Refusal::NotDurable { why: why.to_owned() });
        }
        if self.writer.has_list() {
            // If the list cannot be written, a reservation that it released needs its VM again.
            let why = "a list of reservations is being written to the ledger".to_owned();
            return Err(Refusal::NotNow { why, again: REST });
        }
        let owner = (asked, before.owner);
        let machine = found(owner, (binding, before.user), None, world)?;
        let user = machine.as_ref().map_or(before.user, |machine| machine.user);
        // The users for whom the owner may reserve are known only from the owner's own request.
        if user != before.user && !(asked.principal == before.owner && asked.may_have(user)) {
            let (binding, principal) = (binding.clone(), before.owner);
            return Err(Refusal::NotYours { binding, user, principal });
        }
        if !asked.is_in_charge_of(&before) {
            self.check_other_vm(asked, &before, (binding, machine.as_ref()))?;
        }
        self.check_free_for(&Row { user, ..before.clone() }, binding, machine.as_ref())?;
        let identity = machine.as_ref().map(|machine| machine.identity);
        let mut row = Row { binding: binding.clone(), by_uuid: None, ..before.clone() };
        row.note_uuid(machine.as_ref());
        self.take_machine(name, binding, machine, world)?;
        let revision = self.writer.number();
        let Some(entry) = self.book.get_mut(name) else { return Ok(None) };
        (entry.row.binding, entry.row.by_uuid) = (row.binding, row.by_uuid);
        (entry.row.user, entry.row.identity, entry.row.revision) = (user, identity, revision);
        let after = entry.row.clone();
        // The binding stays even if it cannot be written.
        for raises in [&mut self.raises, &mut self.lasting_raises] {
            if asked.is_in_charge_of(&before) {
                raises.drop_moves(&before);
            } else {
                raises.note_move(asked.principal, &before);
            }
        }
        let kind = Kind::Bound(binding.clone());
        let happened = Some(EventKind::Asked(Verb::Change));
        let done = DoneChange { kind, before: Some(before), after, happened };
        Ok(self.did(now, &ChangeOrigin::Asked(asked), done))
    }

    /// Checks that a caller who is neither the owner nor an administrator may bind a reservation to
    /// another VM. The whole reservation then counts against the caller's budget, the limits on the
    /// caller's reservations. If the reservation is for VMs of root (`before.user` is 0), the new
    /// VM must exist. Otherwise the reservation could later schedule a VM of another user, as
    /// [`Row::means`] describes.
    fn check_other_vm(
        &self,
        asked: &ClientRequest,
        before: &Row,
        (binding, machine): (&Binding, Option<&Machine>),
    ) -> Result<(), Refusal> {
        if before.user == 0 && machine.is_none() {
            let (binding, principal) = (binding.clone(), asked.principal);
            return Err(Refusal::NotYours { binding, user: 0, principal });
        }
        let known = self.counts_for(asked.principal, before).then_some(before.terms);
        check_run(asked, known, before.terms)?;
        self.check_raises(asked.principal, before)?;
        self.afford_for_other(asked, before, (known, before.terms))
    }

    /// Checks that no reservation other than `row` has the new VM or the new binding of `row`.
    fn check_free_for(
        &self,
        row: &Row,
        binding: &Binding,
        machine: Option<&Machine>,
    ) -> Result<(), Refusal> {
        let beside = Some(&row.name);
        let holder = machine.and_then(|machine| self.book.holder(machine.identity, beside));
        match holder.or_else(|| self.book.bound(binding, (row.owner, row.user), beside)) {
            Some(by) => Err(Refusal::Taken { binding: binding.clone(), by: Some(by.clone()) }),
            None => Ok(()),
        }
    }

    /// Assigns the places (reserved vCPUs) of a reservation to the threads of another VM. Nothing
    /// changes if the VM already has these places, or if the scheduler declines.
    fn take_machine(
        &mut self,
        name: &Name,
        binding: &Binding,
        machine: Option<Machine>,
        world: &mut impl World,
    ) -> Result<(), Refusal> {
        let Some(entry) = self.book.get_mut(name).filter(|entry| !entry.is_out()) else {
            return Ok(());
        };
        let old = entry.machine().cloned();
        let identity = |machine: &Option<Machine>| machine.as_ref().map(|one| one.identity);
        if old.is_some() && identity(&old) == identity(&machine) {
            return Ok(());
        }
        if entry.is_seated() {
            world.unseat(entry.domain);
        }
        entry.stand(Standing::Promised(Reason::Absent(binding.clone())));
        let Some(machine) = machine else { return Ok(()) };
        let taken = self.sit(name, machine, world);
        if let (Err(_), Some(old)) = (&taken, old)
            && self.sit(name, old, world).is_err()
            && let Some(entry) = self.book.get_mut(name)
        {
            let reason = Reason::Absent(entry.row.binding.clone());
            entry.stand(Standing::Promised(reason));
        }
        taken
    }
}
