//! What the service is told.

use slackline_units::{CpuId, DomId, Span};

use crate::binding::Binding;
use crate::event::Happened;
use crate::machine::{Identity, Machine};
use crate::name::Key;
use crate::overload::CpuLoad;
use crate::principal::{Principal, Role};
use crate::request::{Request, Ticket};
use crate::row::Row;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Somebody asks for something.
    Asked(Asked),
    /// A request that [`Service::count`](crate::Service::count) let through, once its VM was looked
    /// up.
    Sought(Asked),
    /// What was [handed over](crate::World::commit) is written down, and safe from a loss of power.
    Committed {
        /// Its number.
        seq: u64,
    },
    /// It is not, and will not be: whatever was tried of it has no effect.
    NotCommitted {
        /// Its number.
        seq: u64,
        /// Why.
        fault: LedgerFault,
    },
    /// A machine that is [waited for](crate::Service::waiting) may be here now. To be told again as
    /// long as it is; of the number of a process each time, as what it meant may be gone.
    Appeared {
        /// What it was looked for by.
        binding: Binding,
    },
    /// A machine that was held has ended; its threads are held no more.
    Vanished {
        /// For whom it was held.
        domain: DomId,
        /// Which one.
        identity: Identity,
    },
    /// A machine that is held has other vCPUs than when it was last looked at.
    Vcpus {
        /// For whom it is held.
        domain: DomId,
        /// Which one, and all that it has now.
        machine: Machine,
    },
    /// A thread that is held had been changed, and that has been undone.
    Meddled {
        /// For whom it is held.
        domain: DomId,
        /// What was found.
        what: String,
    },
    /// Another program has changed a thread that is held, and that is respected: the thread is left
    /// to it.
    Contested {
        /// For whom it is held.
        domain: DomId,
        /// At which place.
        place: u16,
        /// What was found.
        what: String,
    },
    /// Such a change has been undone, and the thread is scheduled again.
    Settled {
        /// For whom it is held.
        domain: DomId,
        /// At which place.
        place: u16,
    },
    /// The monitor of a machine that is held has suspended its guest, or lets it run.
    Suspended {
        /// For whom it is held.
        domain: DomId,
        /// Which one.
        identity: Identity,
        /// What the monitor says; `None` if the guest runs.
        what: Option<String>,
    },
    /// Somebody was let in, or is let in no more: it is done and written down.
    Access {
        /// Who did it.
        by: Principal,
        /// What.
        what: Happened,
    },
    /// The keeper had died, and has been replaced: nothing has lapsed.
    KeeperReplaced,
    /// The clock on the wall was set: the grid that phases are told by is another.
    ClockStepped {
        /// By how much.
        by: Span,
        /// Whether ahead; else back.
        is_ahead: bool,
    },
    /// A measurement of a CPU that is scheduled, made about once a second.
    Load {
        /// Number of the CPU on this host.
        cpu: CpuId,
        /// Reservations and overhead there.
        load: CpuLoad,
    },
    /// It is [the time](crate::World::ring) that was asked for.
    Rang,
}

/// A request with who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Who is to be answered: exactly once.
    pub ticket: Ticket,
    /// Who asks.
    pub principal: Principal,
    /// What that principal may; none is nothing.
    pub role: Option<Role>,
    /// The users whose machines that principal may have besides its own.
    pub users: Vec<u32>,
    /// What the client calls this request.
    pub key: Option<Key>,
    /// The request.
    pub request: Request,
}

impl Asked {
    /// Whose machine is meant where it is not said: one of his own, or for who comes from elsewhere
    /// one of the first user whose he may have.
    pub(crate) fn usual_user(&self) -> u32 {
        let is_named = matches!(self.principal, Principal::Named(_));
        let first = self.users.first().copied().filter(|_| is_named);
        first.unwrap_or(self.principal.user())
    }

    /// Returns true if the caller may know and change this reservation: a tenant only its own.
    #[must_use]
    pub fn owns(&self, row: &Row) -> bool {
        self.role != Some(Role::Tenant) || row.owner == self.principal
    }

    /// Whether whoever asks may have a machine of this user: an administrator may have any, and
    /// everybody else his own and what he was let have.
    #[must_use]
    pub fn may_have(&self, user: u32) -> bool {
        let is_own = self.principal == Principal::User(user);
        is_own || self.users.contains(&user) || self.role == Some(Role::Administrator)
    }
}

/// Why the ledger did not write something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{says}")]
pub struct LedgerFault {
    /// What is wrong, such as `the disk is full`.
    pub says: String,
}
