//! A reservation: what of it is written down, and what is seen of it.

use std::fmt;

use crate::binding::Binding;
use crate::gang::Gang;
use crate::machine::{Identity, Machine};
use crate::name::Name;
use crate::principal::Principal;
use crate::terms::Terms;

/// A reservation as it is written down: what must be known to hold it again after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name.
    pub name: Name,
    /// Who reserved it.
    pub owner: Principal,
    /// What is promised.
    pub terms: Terms,
    /// How its machine is found again.
    pub binding: Binding,
    /// The user whose its machine is, or is to be: nobody else's is taken for it, whatever that
    /// calls itself.
    pub user: u32,
    /// Whether it is kept from running.
    pub paused: bool,
    /// The gang that it is of.
    pub gang: Option<Gang>,
    /// The number of the event by which it was reserved: who is older has the lower one.
    pub since: u64,
    /// The number of the event that changed it last. Never the same for two reservations, nor for
    /// one that is made again under the same name.
    pub revision: u64,
    /// The machine it was last held on; none is that there was none.
    pub identity: Option<Identity>,
}

impl Row {
    /// Whether a machine that goes by its binding is its machine: the one that it was, one of the
    /// same user, or one for root that only root can have named so.
    #[must_use]
    pub fn means(&self, machine: &Machine) -> bool {
        let is_named = machine.is_vouched && self.user == 0;
        self.identity == Some(machine.identity) || self.user == machine.user || is_named
    }
}

impl fmt::Display for Row {
    /// `2ms/10ms exact for 2 vCPUs, libvirt:web, paused`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paused = if self.paused { ", paused" } else { "" };
        write!(out, "{}, {}{paused}", self.terms, self.binding)?;
        self.gang.as_ref().map_or(Ok(()), |gang| write!(out, ", of gang {}", gang.name))
    }
}

/// How a reservation is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// There is no machine that could have it now. Its capacity stays promised, unless the reason
    /// is that there is no room.
    Waiting,
    /// Its machine gets what it is promised.
    Active,
    /// Its machine does not run; its capacity stays promised.
    Paused,
    /// Its machine has more vCPUs than it is promised anything for, which run as ordinary threads,
    /// or fewer.
    Partial,
    /// Another program has changed its threads and keeps them until that change is undone, or the
    /// reservation is resumed. Its capacity stays reserved.
    Contested,
    /// Its guest is suspended by its monitor. Its capacity stays reserved.
    Suspended,
    /// It is promised for a gang that has not begun.
    Held,
    /// It is over.
    Ended,
}

impl State {
    /// The state in a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Active => "active",
            State::Paused => "paused",
            State::Partial => "partial",
            State::Contested => "contested",
            State::Suspended => "suspended",
            State::Held => "held",
            State::Ended => "ended",
        }
    }
}

impl Reason {
    /// That a machine is not the one a row means.
    pub(crate) fn foreign(row: &Row, machine: &Machine) -> Reason {
        Reason::Foreign { binding: row.binding.clone(), user: machine.user, meant: row.user }
    }
}

impl fmt::Display for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.word())
    }
}

/// Why a reservation is not, or not wholly, in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Its machine is not here.
    #[error("{0} is not on this host")]
    Absent(Binding),
    /// What it is promised does not fit any more: its capacity is not promised.
    #[error("no room: {0}")]
    NoRoom(String),
    /// Its machine is held for another reservation.
    #[error("its VM has reservation {0}")]
    Taken(Name),
    /// What goes by its name is somebody else's.
    #[error("{binding} belongs to uid {user}, and this reservation is for uid {meant}")]
    Foreign {
        /// What it goes by.
        binding: Binding,
        /// Whose it is.
        user: u32,
        /// Whose it should be.
        meant: u32,
    },
    /// Its machine cannot be had.
    #[error("{0}")]
    Unavailable(String),
    /// Its gang has not begun.
    #[error("gang {0} has not begun")]
    Held(Name),
    /// Another program has changed its threads. Says how.
    #[error("{0}")]
    Contested(String),
    /// Its guest does not run. Says what the monitor reports.
    #[error("{0}")]
    Suspended(String),
    /// Its VM has another number of vCPUs, or one of them could not be held.
    #[error("{}", vcpus(*there, *promised, unseated, why.as_deref()))]
    Vcpus {
        /// How many there are.
        there: u16,
        /// How many are promised something.
        promised: u16,
        /// vCPUs without a reservation, and those that are not held.
        unseated: Vec<u16>,
        /// Reason why one could not be held. `None` if all could.
        why: Option<String>,
    },
}

fn vcpus(there: u16, promised: u16, unseated: &[u16], why: Option<&str>) -> String {
    let plural = |count: u16| if count == 1 { "" } else { "s" };
    let names: Vec<String> = unseated.iter().map(ToString::to_string).collect();
    let (names, s) = (names.join(", "), if unseated.len() == 1 { "" } else { "s" });
    match why {
        Some(why) if !unseated.is_empty() => format!("vCPU{s} {names} cannot be held: {why}"),
        _ if there > promised => format!(
            "its VM has {there} vCPU{}, and {promised} are reserved: vCPU{s} {names} run as \
             ordinary threads",
            plural(there)
        ),
        _ if there < promised => {
            format!("its VM has {there} vCPU{}, and {promised} are reserved", plural(there))
        }
        _ => format!("vCPU{s} {names} of its VM are not held"),
    }
}
