//! The record of all reservations of the service, with their states.

use std::collections::BTreeMap;

use slackline_units::{DomId, Span, Time};

use crate::answer::ListedReservation;
use crate::binding::Binding;
use crate::machine::{Identity, Machine, Seats};
use crate::mechanism::MechanismChoice;
use crate::name::Name;
use crate::principal::Principal;
use crate::row::{Reason, Row, State};

/// Minimum time between two `meddled` events of one VM. Such an event reports that the VM itself or
/// a user has changed the scheduling of the VM's threads, and that the daemon has undone the
/// change.
const MEDDLED_INTERVAL: Span = Span::from_secs(10);

/// A reservation, with its state in the scheduler.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) row: Row,
    /// Identifier of the reservation in the scheduler.
    pub(crate) domain: DomId,
    pub(crate) standing: Standing,
    pub(crate) lease: Option<Lease>,
    /// Changes by which another program has taken over threads of a vCPU, described in words. The
    /// service leaves these threads to that program. The key is the place (index of the reserved
    /// vCPU).
    pub(crate) contested: BTreeMap<u16, String>,
    /// Reason why a vCPU of the VM could not be scheduled at the last attempt. `None` if all could
    /// be scheduled.
    pub(crate) not_seated: Option<String>,
    /// Reason why the vCPUs of the VM cannot be told apart, such as two threads with the name of
    /// one vCPU. `None` if they can be told apart.
    pub(crate) unclear: Option<String>,
    /// State of the guest in the words of the VM's monitor. `None` if the guest is running.
    pub(crate) suspended: Option<String>,
    /// Mechanism that the service chose for `auto`, with the reason. `None` if a request named the
    /// mechanism, or if the daemon has restarted since the choice.
    pub(crate) chosen: Option<MechanismChoice>,
    /// Time of the last `meddled` event, which reported that changes to the VM's threads were
    /// undone. `None` before the first such event.
    meddled: Option<Time>,
}

/// Time limit of a gang member that is held: its capacity is reserved, but its VM is not scheduled
/// yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    /// Time at which the member's reservation ends if no order to begin arrives before. The ledger
    /// has no row for the member.
    Ends(Time),
    /// Time at which the member's periods begin.
    Begins(Time),
}

impl Lease {
    /// Returns the time at which the member stops being held. At that time, its reservation either
    /// begins or ends.
    pub(crate) const fn over(self) -> Time {
        match self {
            Lease::Ends(at) | Lease::Begins(at) => at,
        }
    }
}

/// Part of a reservation that is in force: the scheduling of the VM, only the capacity, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The VM is scheduled: its vCPUs occupy places of the reservation.
    Seated {
        /// The VM, as the last look-up found it.
        machine: Machine,
        /// Assignment of the VM's vCPUs to places. There is one place for each reserved vCPU.
        seats: Seats,
    },
    /// Capacity is reserved, but no vCPU is scheduled for the reservation.
    Promised(Reason),
    /// No capacity is reserved, because too little capacity is available.
    Out(Reason),
}

impl Entry {
    pub(crate) const fn new(row: Row, domain: DomId, standing: Standing) -> Entry {
        Entry {
            row,
            domain,
            standing,
            lease: None,
            contested: BTreeMap::new(),
            not_seated: None,
            unclear: None,
            suspended: None,
            chosen: None,
            meddled: None,
        }
    }

    /// Sets the part of the reservation that is in force. Drops what was reported about the VM that
    /// was scheduled before.
    pub(crate) fn stand(&mut self, standing: Standing) {
        self.standing = standing;
        self.contested.clear();
        (self.not_seated, self.unclear, self.suspended) = (None, None, None);
    }

    /// Returns the VM that is scheduled for the reservation. `None` if no VM is scheduled.
    pub(crate) const fn machine(&self) -> Option<&Machine> {
        match &self.standing {
            Standing::Seated { machine, .. } => Some(machine),
            Standing::Promised(_) | Standing::Out(_) => None,
        }
    }

    pub(crate) const fn is_seated(&self) -> bool {
        self.machine().is_some()
    }

    /// Returns true if no VM is scheduled for the reservation, and the service must search for its
    /// VM. Returns false if the reservation is held for a gang that has not begun.
    pub(crate) const fn is_waiting(&self) -> bool {
        match &self.standing {
            Standing::Seated { .. } => false,
            Standing::Promised(reason) | Standing::Out(reason) => {
                !matches!(reason, Reason::Held(_))
            }
        }
    }

    /// Returns true if the reservation waits for the VM of `user` to which `binding` refers.
    pub(crate) fn waits_for(&self, binding: &Binding, user: u32) -> bool {
        self.is_waiting() && self.row.binding == *binding && self.row.user == user
    }

    /// Returns true if the reservation is held for a gang member that has not received the order to
    /// begin.
    pub(crate) const fn is_lent(&self) -> bool {
        matches!(self.lease, Some(Lease::Ends(_)))
    }

    /// Returns the reason why the reservation waits for its VM. `None` if the reservation does not
    /// wait, or waits for capacity.
    pub(crate) const fn awaiting(&self) -> Option<&Reason> {
        match &self.standing {
            Standing::Promised(reason) if self.is_waiting() => Some(reason),
            _ => None,
        }
    }

    pub(crate) const fn is_out(&self) -> bool {
        matches!(self.standing, Standing::Out(_))
    }

    /// Returns true if the service leaves threads of at least one vCPU to another program.
    pub(crate) fn is_contested(&self) -> bool {
        !self.contested.is_empty()
    }

    /// Returns true if enough time has passed since the last `meddled` event, so that another one
    /// may be written. In that case, the call stores `now` as the time of the last event.
    pub(crate) fn is_meddling_news(&mut self, now: Time) -> bool {
        let is_news = self.meddled.is_none_or(|then| now.since(then) >= MEDDLED_INTERVAL);
        if is_news {
            self.meddled = Some(now);
        }
        is_news
    }

    /// Returns the reason for [`State::Partial`]: places without a vCPU, or vCPUs without a place.
    /// `None` if every place has a vCPU and every vCPU has a place.
    fn unserved(&self, machine: &Machine, seats: &Seats) -> Option<Reason> {
        let is_seated = |vcpu: &u16| seats.vcpus.contains(&Some(*vcpu));
        let unseated = machine.vcpus.iter().copied().filter(|vcpu| !is_seated(vcpu)).collect();
        let reason = Reason::Vcpus {
            there: count(machine.vcpus.len()),
            promised: self.row.terms.vcpus(),
            unseated,
            why: self.not_seated.clone(),
        };
        let is_partial = seats.vcpus.contains(&None) || machine.vcpus.len() > seats.vcpus.len();
        is_partial.then_some(reason)
    }

    /// Returns the reservation and its state, as clients see them.
    pub(crate) fn listed(&self) -> ListedReservation {
        let (state, reason, served) = match &self.standing {
            Standing::Seated { machine, seats } => {
                let served = count(seats.vcpus.iter().flatten().count());
                let found: Vec<&str> = self.contested.values().map(String::as_str).collect();
                let contested = self.is_contested().then(|| Reason::Contested(found.join("; ")));
                let unclear = self.unclear.clone().map(Reason::Unavailable);
                let partial = unclear.or_else(|| self.unserved(machine, seats));
                let suspended = self.suspended.clone().map(Reason::Suspended);
                let state = match (self.row.paused, &contested, &suspended, &partial) {
                    (true, ..) => State::Paused,
                    (_, Some(_), ..) => State::Contested,
                    (_, _, Some(_), _) => State::Suspended,
                    (.., Some(_)) => State::Partial,
                    _ => State::Active,
                };
                (state, contested.or(suspended).or(partial), served)
            }
            Standing::Promised(reason @ Reason::Held(_)) => (State::Held, Some(reason.clone()), 0),
            Standing::Promised(reason) | Standing::Out(reason) => {
                (State::Waiting, Some(reason.clone()), 0)
            }
        };
        // If a change to another mechanism was reverted, the reason for that mechanism no longer
        // applies.
        let by = self.row.terms.enforcement();
        let chosen = self.chosen.as_ref().filter(|chosen| chosen.by == by);
        let chosen = chosen.map(|chosen| chosen.why.clone());
        ListedReservation { row: self.row.clone(), state, reason, served, chosen }
    }
}

fn count(vcpus: usize) -> u16 {
    u16::try_from(vcpus).unwrap_or(u16::MAX)
}

/// Returns a reservation that has ended, as clients see it.
pub(crate) const fn ended(row: Row) -> ListedReservation {
    ListedReservation { row, state: State::Ended, reason: None, served: 0, chosen: None }
}

/// Record of all reservations, by name.
#[derive(Debug, Default)]
pub(crate) struct Book {
    entries: BTreeMap<Name, Entry>,
    /// Name of the reservation of each domain.
    by_domain: BTreeMap<DomId, Name>,
}

impl Book {
    pub(crate) fn get(&self, name: &Name) -> Option<&Entry> {
        self.entries.get(name)
    }

    pub(crate) fn get_mut(&mut self, name: &Name) -> Option<&mut Entry> {
        self.entries.get_mut(name)
    }

    pub(crate) fn insert(&mut self, entry: Entry) {
        let (name, domain) = (entry.row.name.clone(), entry.domain);
        self.by_domain.insert(domain, name.clone());
        let former = self.entries.insert(name, entry).filter(|former| former.domain != domain);
        former.map(|former| self.by_domain.remove(&former.domain));
    }

    pub(crate) fn remove(&mut self, name: &Name) -> Option<Entry> {
        let entry = self.entries.remove(name)?;
        if self.by_domain.get(&entry.domain) == Some(name) {
            self.by_domain.remove(&entry.domain);
        }
        Some(entry)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    pub(crate) fn row(&self, name: &Name) -> Option<&Row> {
        self.entries.get(name).map(|entry| &entry.row)
    }

    /// Returns the row that the ledger must have under a name. `None` if no reservation has the
    /// name, or if the reservation only holds capacity for a gang member that was not told to
    /// begin. The row of an earlier reservation with the name is never returned.
    pub(crate) fn lasting(&self, name: &Name) -> Option<&Row> {
        self.get(name).filter(|entry| !entry.is_lent()).map(|entry| &entry.row)
    }

    pub(crate) fn of_domain(&self, domain: DomId) -> Option<&Entry> {
        self.get(self.by_domain.get(&domain)?)
    }

    /// Returns the name of the reservation for which the VM is scheduled, ignoring the reservation
    /// `beside`. `None` if the VM is scheduled for no other reservation.
    pub(crate) fn holder(&self, identity: Identity, beside: Option<&Name>) -> Option<&Name> {
        let has = |entry: &&Entry| entry.machine().is_some_and(|one| one.identity == identity);
        let others = self.iter().filter(|entry| Some(&entry.row.name) != beside);
        others.filter(has).map(|entry| &entry.row.name).next()
    }

    /// Returns the name of a reservation that has this binding, ignoring the reservation `beside`.
    /// A reservation counts only if it has the owner `owner`, or is for VMs of the user `user`.
    /// Other reservations do not count: they must not prevent a reservation for the VM of `user`.
    pub(crate) fn bound(
        &self,
        binding: &Binding,
        (owner, user): (Principal, u32),
        beside: Option<&Name>,
    ) -> Option<&Name> {
        let is_it = |row: &&Row| {
            let is_same = row.owner == owner || row.user == user;
            is_same && row.binding == *binding && Some(&row.name) != beside
        };
        self.iter().map(|entry| &entry.row).find(is_it).map(|row| &row.name)
    }

    /// Returns the names of the reservations for which `fits` returns true, oldest first.
    pub(crate) fn oldest(&self, fits: impl Fn(&Entry) -> bool) -> Vec<Name> {
        let mut found: Vec<&Entry> = self.iter().filter(|entry| fits(entry)).collect();
        found.sort_by_key(|entry| entry.row.since);
        found.into_iter().map(|entry| entry.row.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use slackline_units::Reservation;

    use super::*;
    use crate::terms::Terms;

    fn entry(name: &str, domain: u32) -> Entry {
        let each = Reservation::new(Span::from_ms(1), Span::from_ms(10)).unwrap();
        let binding: Binding = format!("qemu:{name}").parse().unwrap();
        let terms = Terms::new(each, true, 1).unwrap();
        let name = name.parse().unwrap();
        let row = Row::new(name, (Principal::User(0), 0), terms, binding.clone());
        Entry::new(row, DomId::new(domain), Standing::Promised(Reason::Absent(binding)))
    }

    #[test]
    fn reservation_is_found_by_its_domain_id_until_its_release() {
        let mut book = Book::default();
        book.insert(entry("a", 1));
        book.insert(entry("b", 2));
        let name = |book: &Book, domain| {
            book.of_domain(DomId::new(domain)).map(|entry| entry.row.name.to_string())
        };
        assert_eq!((name(&book, 1), name(&book, 2)), (Some("a".into()), Some("b".into())));
        // The same name with another domain replaces the first entry.
        book.insert(entry("a", 3));
        assert_eq!((name(&book, 1), name(&book, 3)), (None, Some("a".into())));
        assert!(book.remove(&"a".parse().unwrap()).is_some());
        assert_eq!((name(&book, 3), book.by_domain.len()), (None, 1));
    }
}
