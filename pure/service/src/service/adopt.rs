//! Start of the service, which restores the reservations of the ledger.

use std::collections::BTreeMap;

use slackline_units::{DomId, Time};

use crate::book::{Book, Entry, Standing};
use crate::budget::Budgets;
use crate::deed::Kind;
use crate::domains::Domains;
use crate::event::EventKind;
use crate::keys::Keys;
use crate::limits::Limits;
use crate::machine::{Machine, Seats, WorldError};
use crate::overload::Overloads;
use crate::raise::Raises;
use crate::row::{Reason, Row};
use crate::world::{JoiningDomain, LedgerContents, World};
use crate::writer::Writer;

use super::expiry::has_expired;
use super::machines::is_over;
use super::reserve::join;
use super::{ChangeOrigin, DoneChange, Service, Settings, TRY_AGAIN};

/// A row of the ledger that is to be restored.
struct RestoredRow {
    row: Row,
    domain: DomId,
    /// The VM and the assignment of its vCPUs, or the reason why the VM cannot be scheduled.
    machine: Result<(Machine, Seats), Reason>,
}

impl Service {
    /// Starts a service from the contents of the ledger. The scheduler adds all reservations at the
    /// same instant, oldest first. A reservation that no longer fits waits for capacity, and its
    /// state gives the reason. A reservation for a process that has ended is removed.
    pub fn recover(
        settings: Settings,
        now: Time,
        loaded: LedgerContents,
        world: &mut impl World,
    ) -> Service {
        let LedgerContents { mut rows, kept, plans, raises, last_seq } = loaded;
        rows.sort_by_key(|row| row.since);
        let mut service = Service {
            book: Book::default(),
            writer: Writer::new(last_seq, &rows),
            keys: Keys::default(),
            limits: Limits::new(settings.rates),
            domains: Domains::default(),
            budgets: Budgets::new(),
            lasting_raises: Raises::new(raises.clone()),
            raises: Raises::new(raises),
            applied: BTreeMap::new(),
            overloads: Overloads::default(),
            stored_plans: plans.iter().map(|plan| (plan.principal, plan.clone())).collect(),
            plans: plans.into_iter().map(|plan| (plan.principal, plan)).collect(),
            watches: BTreeMap::new(),
            last_end: 0,
            rings: None,
            try_again: None,
            postponed: None,
        };
        let mut kept = kept;
        kept.sort_by_key(|(_, age)| std::cmp::Reverse(*age));
        for (kept, age) in kept {
            service.keys.keep(now, kept, age);
        }
        service.drop_surplus_plans();
        let heirs = service.heirs(now, rows, world);
        service.adopt(now, heirs, world);
        service.watch_again(now);
        service.settle(now, world);
        service
    }

    /// Looks up the VMs of all rows, oldest row first. Removes rows whose process has ended, and
    /// rows whose end time has passed. Returns the other rows.
    fn heirs(&mut self, now: Time, rows: Vec<Row>, world: &mut impl World) -> Vec<RestoredRow> {
        let mut heirs: Vec<RestoredRow> = Vec::with_capacity(rows.len());
        for row in rows {
            if has_expired(&row, now, world) {
                self.over(now, row, EventKind::Expired);
                continue;
            }
            let found = world.look(&row.binding, row.user);
            if is_over(&row, &found) {
                self.over(now, row, EventKind::Vanished);
                continue;
            }
            let machine = found.map_err(|error| Reason::not_found(&row, &error));
            let machine = machine.and_then(|machine| {
                if !row.means(&machine) {
                    return Err(Reason::foreign(&row, &machine));
                }
                let is_it = |heir: &&RestoredRow| {
                    heir.machine.as_ref().is_ok_and(|(one, _)| one.identity == machine.identity)
                };
                match heirs.iter().find(is_it) {
                    Some(heir) => Err(Reason::Taken(heir.row.name.clone())),
                    None => Ok(machine),
                }
            });
            let machine = machine.map(|machine| {
                let seats = Seats::fill(&machine, row.terms.vcpus(), &[]);
                (machine, seats)
            });
            let identity = machine.as_ref().ok().map(|(machine, _)| machine.identity);
            let domain = self.domains.take(now, &row.binding, identity);
            self.domains.promised(domain, row.terms.each().period());
            heirs.push(RestoredRow { row, domain, machine });
        }
        heirs
    }

    /// Adds all restored reservations to the scheduler at the same instant.
    fn adopt(&mut self, now: Time, heirs: Vec<RestoredRow>, world: &mut impl World) {
        let group: Vec<JoiningDomain<'_>> = heirs
            .iter()
            .map(|heir| JoiningDomain {
                domain: heir.domain,
                name: &heir.row.name,
                owner: heir.row.owner,
                terms: &heir.row.terms,
                seats: heir.machine.as_ref().ok().map(|(_, seats)| seats),
            })
            .collect();
        let answers = if group.is_empty() { Vec::new() } else { world.join(&group) };
        for (heir, answer) in heirs.into_iter().zip(answers) {
            let RestoredRow { row, domain, machine } = heir;
            if answer == Err(WorldError::Gone) && !row.binding.lasts() {
                // The process has ended after it was looked up.
                self.domains.leave(now, domain);
                self.over(now, row, EventKind::Vanished);
                continue;
            }
            let standing = match (answer, machine) {
                (Ok(()), Ok((machine, seats))) => Standing::Seated { machine, seats },
                (Ok(()), Err(reason)) => Standing::Promised(reason),
                (Err(declined), machine) => {
                    let machine = machine.map(drop);
                    not_held(&row, domain, (declined, machine), world)
                }
            };
            self.enter(now, row, (domain, standing), world);
        }
    }

    /// Adds a restored reservation to the service. `standing` tells which part of the reservation
    /// is in force.
    fn enter(
        &mut self,
        now: Time,
        row: Row,
        (domain, mut standing): (DomId, Standing),
        world: &mut impl World,
    ) {
        if row.paused
            && matches!(standing, Standing::Seated { .. })
            && let Err(declined) = world.pause(domain)
        {
            // A VM of a paused reservation must not run under the scheduler. If it cannot be
            // paused, it is left to the kernel.
            world.unseat(domain);
            standing = Standing::Promised(Reason::Unavailable(declined.to_string()));
        }
        let name = row.name.clone();
        let happened = match &standing {
            Standing::Seated { .. } => EventKind::Adopted,
            Standing::Promised(reason) | Standing::Out(reason) => {
                EventKind::NotAdopted(reason.to_string())
            }
        };
        if matches!(standing, Standing::Out(_)) {
            self.try_again = Some(now.after(TRY_AGAIN));
        }
        self.book.insert(Entry::new(row, domain, standing));
        self.machine_is(now, &name, happened);
    }

    /// Records the end of a reservation whose VM has ended or whose end time has passed. `happened`
    /// is the event to publish.
    pub(super) fn over(&mut self, now: Time, before: Row, happened: EventKind) {
        let after = Row { revision: self.writer.number(), ..before.clone() };
        let (kind, happened) = (Kind::Ended, Some(happened));
        self.did(
            now,
            &ChangeOrigin::Itself,
            DoneChange { kind, before: Some(before), after, happened },
        );
    }
}

/// Returns which part of a reservation is in force after the scheduler declined it. If the VM
/// cannot be scheduled but there is enough capacity, the capacity alone is reserved.
fn not_held(
    row: &Row,
    domain: DomId,
    (declined, machine): (WorldError, Result<(), Reason>),
    world: &mut impl World,
) -> Standing {
    let no_room = |error: &WorldError| Standing::Out(Reason::NoRoom(error.to_string()));
    match (&declined, machine) {
        (WorldError::Admission(_) | WorldError::Interference { .. }, _) | (_, Err(_)) => {
            no_room(&declined)
        }
        (_, Ok(())) => match join(world, domain, row, None) {
            Ok(()) => Standing::Promised(match declined {
                WorldError::Gone => Reason::Absent(row.binding.clone()),
                declined => Reason::Unavailable(declined.to_string()),
            }),
            Err(error) => no_room(&error),
        },
    }
}
