//! The reservations there are, and how each of them is doing.

use std::collections::BTreeMap;

use slackline_units::{DomId, Span, Time};

use crate::answer::Listed;
use crate::binding::Binding;
use crate::machine::{Identity, Machine, Seats};
use crate::name::Name;
use crate::row::{Reason, Row, State};

/// How often it is written down at most that changes to a machine's threads were undone.
const MEDDLED_INTERVAL: Span = Span::from_secs(10);

/// A reservation, and what of it is in force.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) row: Row,
    /// How the scheduler knows it.
    pub(crate) domain: DomId,
    pub(crate) standing: Standing,
    pub(crate) lease: Option<Lease>,
    /// What was found of places whose threads are left to whoever has changed them.
    pub(crate) contested: BTreeMap<u16, String>,
    /// Why a vCPU of its machine could not be held, when that was last tried.
    pub(crate) not_seated: Option<String>,
    /// Why the guest of its machine does not run, if its monitor has suspended it.
    pub(crate) suspended: Option<String>,
    /// When it was last written down that changes to its threads were undone.
    meddled: Option<Time>,
}

/// Until when a member of a gang is promised its places and has nobody there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    /// It ends then, and is written down nowhere.
    Ends(Time),
    /// It begins then.
    Begins(Time),
}

impl Lease {
    /// When.
    pub(crate) const fn over(self) -> Time {
        match self {
            Lease::Ends(at) | Lease::Begins(at) => at,
        }
    }
}

/// What of a reservation is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Its machine sits at its places.
    Seated {
        /// As it was when it was looked at last.
        machine: Machine,
        /// Who sits where.
        seats: Seats,
    },
    /// Its places are promised, and nobody sits there.
    Promised(Reason),
    /// Nothing is promised: there is no room.
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
            suspended: None,
            meddled: None,
        }
    }

    /// It is in force so far. What was found of the machine before counts no more.
    pub(crate) fn stand(&mut self, standing: Standing) {
        self.standing = standing;
        self.contested.clear();
        (self.not_seated, self.suspended) = (None, None);
    }

    /// The machine that is held for it.
    pub(crate) const fn machine(&self) -> Option<&Machine> {
        match &self.standing {
            Standing::Seated { machine, .. } => Some(machine),
            Standing::Promised(_) | Standing::Out(_) => None,
        }
    }

    pub(crate) const fn is_seated(&self) -> bool {
        self.machine().is_some()
    }

    /// Whether it would take its machine if that were there.
    pub(crate) const fn is_waiting(&self) -> bool {
        match &self.standing {
            Standing::Seated { .. } => false,
            Standing::Promised(reason) | Standing::Out(reason) => {
                !matches!(reason, Reason::Held(_))
            }
        }
    }

    /// Whether it is promised for a gang, and nobody has been told that it begins.
    pub(crate) const fn is_lent(&self) -> bool {
        matches!(self.lease, Some(Lease::Ends(_)))
    }

    pub(crate) const fn is_out(&self) -> bool {
        matches!(self.standing, Standing::Out(_))
    }

    /// True if the threads of a place are left to whoever has changed them.
    pub(crate) fn is_contested(&self) -> bool {
        !self.contested.is_empty()
    }

    /// True if it is to be written down that changes to its threads were undone.
    pub(crate) fn is_meddling_news(&mut self, now: Time) -> bool {
        let is_news = self.meddled.is_none_or(|then| now.since(then) >= MEDDLED_INTERVAL);
        if is_news {
            self.meddled = Some(now);
        }
        is_news
    }

    /// Which of its machine's vCPUs are promised nothing, and how many places nobody has.
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

    /// As people see it.
    pub(crate) fn listed(&self) -> Listed {
        let (state, reason, served) = match &self.standing {
            Standing::Seated { machine, seats } => {
                let served = count(seats.vcpus.iter().flatten().count());
                let found: Vec<&str> = self.contested.values().map(String::as_str).collect();
                let contested = self.is_contested().then(|| Reason::Contested(found.join("; ")));
                let partial = self.unserved(machine, seats);
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
        Listed { row: self.row.clone(), state, reason, served }
    }
}

fn count(vcpus: usize) -> u16 {
    u16::try_from(vcpus).unwrap_or(u16::MAX)
}

/// A reservation that is over.
pub(crate) const fn ended(row: Row) -> Listed {
    Listed { row, state: State::Ended, reason: None, served: 0 }
}

/// All reservations, by name.
#[derive(Debug, Default)]
pub(crate) struct Book {
    entries: BTreeMap<Name, Entry>,
}

impl Book {
    pub(crate) fn get(&self, name: &Name) -> Option<&Entry> {
        self.entries.get(name)
    }

    pub(crate) fn get_mut(&mut self, name: &Name) -> Option<&mut Entry> {
        self.entries.get_mut(name)
    }

    pub(crate) fn insert(&mut self, entry: Entry) {
        self.entries.insert(entry.row.name.clone(), entry);
    }

    pub(crate) fn remove(&mut self, name: &Name) -> Option<Entry> {
        self.entries.remove(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    pub(crate) fn row(&self, name: &Name) -> Option<&Row> {
        self.entries.get(name).map(|entry| &entry.row)
    }

    /// What is to be written down under a name: of what is only held for a gang, nothing, also
    /// where somebody else has just given the name back.
    pub(crate) fn lasting(&self, name: &Name) -> Option<&Row> {
        self.get(name).filter(|entry| !entry.is_lent()).map(|entry| &entry.row)
    }

    pub(crate) fn of_domain(&self, domain: DomId) -> Option<&Entry> {
        self.iter().find(|entry| entry.domain == domain)
    }

    /// Who has this machine, beside one.
    pub(crate) fn holder(&self, identity: Identity, beside: Option<&Name>) -> Option<&Name> {
        let has = |entry: &&Entry| entry.machine().is_some_and(|one| one.identity == identity);
        let others = self.iter().filter(|entry| Some(&entry.row.name) != beside);
        others.filter(has).map(|entry| &entry.row.name).next()
    }

    /// Who is bound to this.
    pub(crate) fn bound(&self, binding: &Binding) -> Option<&Name> {
        self.iter().find(|entry| entry.row.binding == *binding).map(|entry| &entry.row.name)
    }

    /// Those that fulfil a condition, oldest first.
    pub(crate) fn oldest(&self, fits: impl Fn(&Entry) -> bool) -> Vec<Name> {
        let mut found: Vec<&Entry> = self.iter().filter(|entry| fits(entry)).collect();
        found.sort_by_key(|entry| entry.row.since);
        found.into_iter().map(|entry| entry.row.name.clone()).collect()
    }
}
