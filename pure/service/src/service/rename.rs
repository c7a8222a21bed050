//! Libvirt domains that were renamed with `virsh domrename` while they were off.

use slackline_units::Time;

use crate::binding::{Binding, BindingKind};
use crate::book::Entry;
use crate::deed::Kind;
use crate::event::EventKind;
use crate::world::World;

use super::{ChangeOrigin, DoneChange, Service};

impl Service {
    /// Binds a reservation that waits for a libvirt domain to the domain's new name, and schedules
    /// the domain. The name of the reservation stays the same. The domain must have the UUID and
    /// the user of the domain that was last scheduled. The user is checked because the UUID is read
    /// from the VM's command line, which any user can choose.
    pub(super) fn renamed(
        &mut self,
        now: Time,
        from: &Binding,
        to: &Binding,
        world: &mut impl World,
    ) {
        let are_names = [from, to].iter().all(|one| one.kind() == BindingKind::Libvirt);
        if !are_names {
            return;
        }
        // Reservations of other users can have the same binding, but they have no UUID of the
        // domain.
        let waits = |entry: &Entry| {
            let is_from = entry.row.binding == *from && entry.row.by_uuid.is_some();
            entry.is_waiting() && !entry.is_out() && is_from
        };
        let Some(name) = self.book.oldest(waits).into_iter().next() else { return };
        let Some(before) = self.book.row(&name).cloned() else { return };
        // If another reservation has the new name, this reservation keeps the old one.
        if self.book.bound(to, (before.owner, before.user), Some(&name)).is_some() {
            return;
        }
        let Ok(machine) = world.look(to, before.user) else { return };
        let is_it = before.by_uuid.is_some()
            && machine.by_uuid == before.by_uuid
            && machine.user == before.user
            && self.book.holder(machine.identity, None).is_none();
        if !is_it {
            return;
        }
        let revision = self.writer.number();
        let Some(entry) = self.book.get_mut(&name) else { return };
        (entry.row.binding, entry.row.revision) = (to.clone(), revision);
        let after = entry.row.clone();
        let happened = Some(EventKind::Renamed(format!("{from} is now {to}")));
        let kind = Kind::Bound(to.clone());
        let done = DoneChange { kind, before: Some(before), after: after.clone(), happened };
        self.did(now, &ChangeOrigin::Itself, done);
        self.give(now, &after, machine, world);
    }
}
