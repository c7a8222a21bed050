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
    /// Somebody else kept changing its threads, and has them now. Its capacity stays promised;
    /// resuming takes them back.
    Contested,
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
    /// Somebody else changed its threads again and again.
    #[error("somebody else keeps changing its threads")]
    Meddled,
    /// Its machine has another number of vCPUs.
    #[error("its machine has {there} vCPUs, and {promised} are promised")]
    Vcpus {
        /// How many there are.
        there: u16,
        /// How many are promised something.
        promised: u16,
    },
}
