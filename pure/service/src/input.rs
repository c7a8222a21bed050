//! Inputs of the service: events from outside.

use slackline_units::{CpuId, DomId, Span};

use crate::binding::Binding;
use crate::event::EventKind;
use crate::machine::{Identity, LookError, Machine};
use crate::name::{Key, Name};
use crate::overload::CpuLoad;
use crate::principal::{Principal, Role};
use crate::request::{Request, Ticket};
use crate::row::Row;

/// An event from outside the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A client sent a request.
    Asked(ClientRequest),
    /// A request that [`Service::count`](crate::Service::count) accepted, and whose VM has been
    /// looked up since then.
    Sought(ClientRequest),
    /// A [commit](crate::World::commit) is in the ledger, and survives a loss of power.
    Committed {
        /// Number of the commit.
        seq: u64,
    },
    /// A [commit](crate::World::commit) failed, and will not be tried again. None of its changes is
    /// in the ledger.
    NotCommitted {
        /// Number of the commit.
        seq: u64,
        /// Failure that the ledger reported.
        fault: LedgerFault,
    },
    /// A VM for which a reservation [waits](crate::Service::waiting) may have started. The input is
    /// repeated as long as the VM exists. For a `pid:` binding, the input is repeated even after
    /// the process has ended, so that the service can end the reservation.
    Appeared {
        /// Binding by which the VM was found.
        binding: Binding,
        /// User for whom the VM was looked up, as the reservation names that user. Reservations for
        /// other users can have the same binding.
        user: u32,
    },
    /// A VM for which a reservation [waits](crate::Service::waiting) cannot be scheduled now. The
    /// input is needed only in two cases: it changes the [reason](crate::Service::awaited) why the
    /// reservation waits, or a process of a `pid:` binding has ended.
    NotFound {
        /// Binding of the reservation.
        binding: Binding,
        /// User whom the reservation names as the owner of the VM.
        user: u32,
        /// Reason why the VM cannot be scheduled, from its look-up.
        error: LookError,
    },
    /// A libvirt domain for which a reservation [waits](crate::Service::waiting) may run under
    /// another name: a VM has the UUID of the domain that was last scheduled for the reservation.
    /// The input is repeated as long as that VM exists.
    Renamed {
        /// Present binding of the reservation.
        from: Binding,
        /// Binding that contains the new name of the domain.
        to: Binding,
    },
    /// A scheduled VM has ended, and its threads are no longer scheduled.
    Vanished {
        /// Domain of the VM's reservation.
        domain: DomId,
        /// Identity of the VM that ended.
        identity: Identity,
    },
    /// The vCPUs of a scheduled VM have changed since they were last reported.
    Vcpus {
        /// Domain of the VM's reservation.
        domain: DomId,
        /// The VM, with its current vCPUs.
        machine: Machine,
    },
    /// The vCPUs of a scheduled VM cannot be told apart any more, or can be told apart again.
    Unclear {
        /// Domain of the VM's reservation.
        domain: DomId,
        /// Identity of the VM.
        identity: Identity,
        /// Reason why the vCPUs cannot be told apart. `None` if they can be told apart again.
        why: Option<String>,
    },
    /// The VM itself or a user changed the scheduling of one of the VM's scheduled threads, and the
    /// daemon undid the change.
    Meddled {
        /// Domain of the reservation of the thread's VM.
        domain: DomId,
        /// Description of the change.
        what: String,
    },
    /// Another program has changed a scheduled thread, and the service leaves the thread to that
    /// program.
    Contested {
        /// Domain of the reservation of the thread's VM.
        domain: DomId,
        /// Place of the thread: index of its vCPU in the reservation.
        place: u16,
        /// Description of the change.
        what: String,
    },
    /// A change that was reported as [`Input::Contested`] was undone, and the service schedules the
    /// thread again.
    Settled {
        /// Domain of the reservation of the thread's VM.
        domain: DomId,
        /// Place of the thread: index of its vCPU in the reservation.
        place: u16,
    },
    /// A VM missed deadlines, and a recording of them was saved.
    Incident {
        /// Name of the VM's reservation.
        name: Name,
        /// Number of missed deadlines.
        missed: u64,
        /// Number of the incident.
        id: u64,
    },
    /// The monitor of a scheduled VM has suspended or resumed the guest.
    Suspended {
        /// Domain of the VM's reservation.
        domain: DomId,
        /// Identity of the VM.
        identity: Identity,
        /// State of the guest in the words of the monitor. `None` if the guest is running.
        what: Option<String>,
    },
    /// Access was granted or revoked. The change is already in force and in the ledger.
    Access {
        /// Principal that granted or revoked the access.
        by: Principal,
        /// Principal whose access was changed. `None` if the access of several principals was
        /// changed.
        whom: Option<Principal>,
        /// Change of the access: [`EventKind::Granted`](crate::EventKind::Granted) or
        /// [`EventKind::Revoked`](crate::EventKind::Revoked).
        what: EventKind,
    },
    /// The keeper process, which restores threads if the daemon dies, has died and was replaced. No
    /// reservation was affected.
    KeeperReplaced,
    /// The wall clock was set. Periods with a phase are aligned on the wall clock, so they begin at
    /// other times from now on.
    ClockStepped {
        /// Length of time by which the wall clock was set.
        by: Span,
        /// True if the clock was set ahead. False if it was set back.
        is_ahead: bool,
    },
    /// Load of a CPU that the daemon schedules, measured about once a second.
    Load {
        /// Number of the CPU on this host.
        cpu: CpuId,
        /// Reservations and overhead on that CPU.
        load: CpuLoad,
    },
    /// The timer that [`World::ring`](crate::World::ring) set has expired.
    Rang,
}

/// A request and its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRequest {
    /// Number that connects the reply with this request. Each ticket gets exactly one reply.
    pub ticket: Ticket,
    /// Principal that sent the request.
    pub principal: Principal,
    /// Role of the principal. If `None`, the principal has no rights.
    pub role: Option<Role>,
    /// Users, in addition to the principal's own uid, for whose VMs the principal may reserve.
    pub users: Vec<u32>,
    /// Idempotency key that the client chose for this request. `None` if the client chose no key.
    pub key: Option<Key>,
    /// The request to decide about.
    pub request: Request,
}

impl ClientRequest {
    /// Returns the user whose VM is meant if the request names no user. For a user of this host,
    /// this is the user's own uid. For a client on another host, it is the first of its `users`.
    pub(crate) fn usual_user(&self) -> u32 {
        let is_named = matches!(self.principal, Principal::Named(_));
        let first = self.users.first().copied().filter(|_| is_named);
        first.unwrap_or(self.principal.user())
    }

    /// Returns true if the caller may see and change this reservation. A tenant may see and change
    /// only its own reservations.
    #[must_use]
    pub fn owns(&self, row: &Row) -> bool {
        self.role != Some(Role::Tenant) || row.owner == self.principal
    }

    /// Returns true if the VM of the user `user` to which this binding refers must look absent to
    /// the caller. A tenant must not learn the names of other users' VMs. A `pid:` binding contains
    /// no name, so its VM need not look absent.
    pub(crate) fn must_not_find(&self, binding: &Binding, user: u32) -> bool {
        self.role == Some(Role::Tenant) && binding.lasts() && !self.may_have(user)
    }

    /// Returns true if the caller is an administrator or the owner of this reservation. If such a
    /// caller changes the reservation, only the owner's budget limits the change.
    pub(crate) fn is_in_charge_of(&self, row: &Row) -> bool {
        row.owner == self.principal || self.role == Some(Role::Administrator)
    }

    /// Returns true if the caller may reserve for VMs of the user `user`. An administrator may
    /// reserve for all users. Other callers may reserve for themselves and for their
    /// [`users`](ClientRequest::users).
    #[must_use]
    pub fn may_have(&self, user: u32) -> bool {
        let is_own = self.principal == Principal::User(user);
        is_own || self.users.contains(&user) || self.is_administrator()
    }

    pub(crate) fn is_administrator(&self) -> bool {
        self.role == Some(Role::Administrator)
    }
}

/// Failure to write a commit to the ledger.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{says}")]
pub struct LedgerFault {
    /// Description of the failure, such as `the disk is full`.
    pub says: String,
}
