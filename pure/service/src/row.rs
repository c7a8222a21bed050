//! Reservations: their rows in the ledger, and their states.

use std::fmt;

use crate::binding::{Binding, BindingKind};
use crate::gang::Gang;
use crate::machine::{Identity, LookError, Machine};
use crate::name::Name;
use crate::principal::Principal;
use crate::terms::Terms;

/// A reservation as the ledger stores it: with everything that a restarted service needs to restore
/// the reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name of the reservation.
    pub name: Name,
    /// Principal that made the reservation.
    pub owner: Principal,
    /// Reserved slice and period, number of vCPUs, and the other terms.
    pub terms: Terms,
    /// Binding by which the service finds the VM.
    pub binding: Binding,
    /// User id of the VM's owner. A VM of another user is never scheduled for this reservation,
    /// even if the VM has the right name. The exceptions are described at [`Row::means`].
    pub user: u32,
    /// True if the VM is kept from running.
    pub paused: bool,
    /// Gang to which the reservation belongs. `None` if it belongs to no gang.
    pub gang: Option<Gang>,
    /// Number of the event that made the reservation. Reservations that were made earlier have
    /// lower numbers.
    pub since: u64,
    /// Number of the event that last changed the reservation. No two reservations ever have the
    /// same revision, not even two successive reservations with the same name.
    pub revision: u64,
    /// Identity of the VM that was last scheduled for this reservation. `None` if no VM was
    /// scheduled yet.
    pub identity: Option<Identity>,
    /// UUID of the libvirt domain that was last scheduled for this reservation, as a binding.
    /// `None` if the VM is of another kind, or if no domain was scheduled yet.
    pub by_uuid: Option<Binding>,
}

impl Row {
    /// Returns a reservation that is not in the ledger yet. Its VM belongs to `user` and was not
    /// scheduled yet.
    #[must_use]
    pub fn new(name: Name, (owner, user): (Principal, u32), terms: Terms, binding: Binding) -> Row {
        let (since, revision, paused) = (0, 0, false);
        let (gang, identity, by_uuid) = (None, None, None);
        Row { name, owner, terms, binding, user, paused, gang, since, revision, identity, by_uuid }
    }

    /// Returns true if a VM with the binding of this reservation belongs to the reservation. The VM
    /// must be the one that was scheduled before, or must be owned by the user of the reservation.
    /// A reservation for VMs of root also accepts a VM of another user, if only root can have given
    /// the VM its name.
    #[must_use]
    pub fn means(&self, machine: &Machine) -> bool {
        let is_named = machine.is_vouched && self.user == 0;
        self.identity == Some(machine.identity) || self.user == machine.user || is_named
    }
}

impl Row {
    /// Returns an upper bound for the number of bytes that the reservation needs in a stored plan
    /// or answer. The constant covers all fields of limited length. JSON at most doubles the length
    /// of the binding.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        600 + self.name.as_str().len() + 2 * self.binding.name().len()
    }

    /// Records the UUID of the VM that is now scheduled for this reservation.
    pub(crate) fn note_uuid(&mut self, machine: Option<&Machine>) {
        if self.binding.kind() != BindingKind::Libvirt {
            self.by_uuid = None;
        } else if let Some(machine) = machine {
            self.by_uuid.clone_from(&machine.by_uuid);
        }
    }
}

impl fmt::Display for Row {
    /// Writes the reservation as `2ms/10ms exact for 2 vCPUs, libvirt:web, paused`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paused = if self.paused { ", paused" } else { "" };
        write!(out, "{}, {}{paused}", self.terms, self.binding)?;
        self.gang.as_ref().map_or(Ok(()), |gang| write!(out, ", of gang {}", gang.name))
    }
}

/// State of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// No VM is scheduled for the reservation, for example because its VM does not exist now. The
    /// capacity stays reserved, unless the reason is [`Reason::NoRoom`].
    Waiting,
    /// The VM gets the CPU time that is reserved for it.
    Active,
    /// The VM is kept from running. The capacity of the VM stays reserved.
    Paused,
    /// The VM has fewer or more vCPUs than the reservation, or not all of its vCPUs can be
    /// identified and scheduled. vCPUs without a place (reserved vCPU) in the reservation run as
    /// ordinary threads.
    Partial,
    /// Another program has changed threads of the VM, and controls them until the change is undone
    /// or the reservation is resumed. The capacity of the VM stays reserved.
    Contested,
    /// The VM's monitor has suspended the guest. The capacity of the VM stays reserved.
    Suspended,
    /// The reservation is held for a gang that has not begun yet. Its VM is not scheduled.
    Held,
    /// The reservation has ended.
    Ended,
}

impl State {
    /// Returns the name of the state, such as `waiting`.
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
    /// Returns the reason why the reservation waits although a VM has its binding: the VM belongs
    /// to another user.
    pub(crate) fn foreign(row: &Row, machine: &Machine) -> Reason {
        Reason::Foreign { binding: row.binding.clone(), user: machine.user, meant: row.user }
    }

    /// Returns the reason why a reservation waits after the look-up of its VM failed with `error`.
    #[must_use]
    pub fn not_found(row: &Row, error: &LookError) -> Reason {
        let binding = row.binding.clone();
        match error {
            LookError::Absent => Reason::Absent(binding),
            LookError::NotYours(user) => Reason::Foreign { binding, user: *user, meant: row.user },
            LookError::Starting { .. } | LookError::Forbidden(_) | LookError::Unclear { .. } => {
                Reason::Unavailable(error.to_string())
            }
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.word())
    }
}

/// Reason why a reservation is not fully in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The VM with this binding does not exist on this host.
    #[error("{0} is not on this host")]
    Absent(Binding),
    /// The terms of the reservation no longer fit on the host, so no capacity is reserved. The text
    /// gives the reason.
    #[error("not enough capacity: {0}")]
    NoRoom(String),
    /// The VM is already scheduled for another reservation, which has this name.
    #[error("the VM has another reservation, {0}")]
    Taken(Name),
    /// The VM with the binding of the reservation belongs to another user.
    #[error("{binding} belongs to uid {user}, and this reservation is for uid {meant}")]
    Foreign {
        /// Binding of the reservation.
        binding: Binding,
        /// User id of the VM's owner.
        user: u32,
        /// User id of the owner that the reservation requires.
        meant: u32,
    },
    /// The VM exists, but cannot be scheduled. The text gives the reason.
    #[error("{0}")]
    Unavailable(String),
    /// The gang of the reservation has not begun yet. The value is the name of the gang.
    #[error("gang {0} of this reservation has not started")]
    Held(Name),
    /// Another program has changed threads of the VM. The text describes the change.
    #[error("{0}")]
    Contested(String),
    /// The guest does not run. The text is the guest's state in the words of the monitor.
    #[error("{0}")]
    Suspended(String),
    /// The VM has another number of vCPUs than the reservation, or one of its vCPUs could not be
    /// scheduled.
    #[error("{}", vcpus(*there, *promised, unseated, why.as_deref()))]
    Vcpus {
        /// Number of vCPUs of the VM.
        there: u16,
        /// Number of vCPUs in the reservation.
        promised: u16,
        /// Numbers of the vCPUs that have no reservation or could not be scheduled.
        unseated: Vec<u16>,
        /// Reason why a vCPU could not be scheduled. `None` if all reserved vCPUs could be
        /// scheduled.
        why: Option<String>,
    },
}

fn vcpus(there: u16, promised: u16, unseated: &[u16], why: Option<&str>) -> String {
    let plural = if there == 1 { "" } else { "s" };
    let reserved =
        if promised == 1 { "1 is reserved" } else { &format!("{promised} are reserved") };
    let says = format!("the VM has {there} vCPU{plural}, and {reserved}");
    let names: Vec<String> = unseated.iter().map(ToString::to_string).collect();
    let is_one = unseated.len() == 1;
    let which = format!("vCPU{} {}", if is_one { "" } else { "s" }, names.join(", "));
    match why {
        Some(why) if !unseated.is_empty() => format!("{which} cannot be scheduled: {why}"),
        _ if there > promised && is_one => format!("{says}: {which} runs as an ordinary thread"),
        _ if there > promised => format!("{says}: {which} run as ordinary threads"),
        _ if there < promised => says,
        _ => format!("{which} of the VM {} not scheduled", if is_one { "is" } else { "are" }),
    }
}
