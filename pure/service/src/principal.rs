//! Principals, their roles, and the requests that each role allows.

use std::fmt;
use std::str::FromStr;

use crate::name::Holder;

/// User, client or service that has sent a request or caused a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// The service itself, which acts when a VM starts or ends and when the service starts.
    Service,
    /// A user of this host, by the uid that the kernel reports for a connection.
    User(u32),
    /// A client on another host, identified by its credentials.
    Named(Holder),
}

impl Principal {
    /// Returns the uid whose VMs belong to this principal. A client on another host owns no VMs, so
    /// the result for it is a uid that no user has.
    #[must_use]
    pub const fn user(self) -> u32 {
        match self {
            Principal::Service => 0,
            Principal::User(uid) => uid,
            Principal::Named(_) => NO_USER,
        }
    }
}

impl FromStr for Principal {
    type Err = NoPrincipal;

    /// Parses a principal from the text that `Display` writes.
    fn from_str(text: &str) -> Result<Principal, NoPrincipal> {
        let user = text.strip_prefix("uid ").and_then(|uid| uid.parse().ok());
        let service = (text == "service").then_some(Principal::Service);
        let wrong = || NoPrincipal(text.escape_debug().take(80).collect());
        let named = || text.strip_prefix('@')?.parse().ok().map(Principal::Named);
        user.map(Principal::User).or(service).or_else(named).ok_or_else(wrong)
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Service => out.write_str("service"),
            Principal::User(uid) => write!(out, "uid {uid}"),
            Principal::Named(holder) => write!(out, "@{holder}"),
        }
    }
}

/// Error: the text is not a principal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a principal")]
pub struct NoPrincipal(String);

/// A uid that no user has.
const NO_USER: u32 = u32::MAX;

/// Role of a principal. The role decides which requests the principal may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// May see reservations and VMs.
    Viewer,
    /// May manage its own reservations, for its own VMs.
    Tenant,
    /// May manage all reservations.
    Operator,
    /// May do everything, including access control.
    Administrator,
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Make a new reservation.
    Reserve,
    /// Change the terms of a reservation.
    Change,
    /// Keep a VM from running.
    Pause,
    /// Let a paused VM run.
    Resume,
    /// End a reservation, and free its capacity.
    Release,
    /// Apply a list of reservations.
    Apply,
    /// Show reservations and their state.
    List,
    /// Show the available capacity.
    Room,
    /// Show the past events.
    Log,
    /// Show the VMs of this host.
    Find,
    /// Hold capacity for a member of a gang (VMs on several hosts that begin together), let the
    /// member begin, or report that the gang is broken.
    Gang,
    /// Manage the access of principals.
    Access,
}

impl Verb {
    /// Returns true if requests of this kind change something.
    #[must_use]
    pub const fn is_change(self) -> bool {
        match self {
            Verb::Reserve
            | Verb::Change
            | Verb::Pause
            | Verb::Resume
            | Verb::Release
            | Verb::Gang
            | Verb::Apply
            | Verb::Access => true,
            Verb::List | Verb::Room | Verb::Log | Verb::Find => false,
        }
    }

    /// Returns the word for the kind of request, such as `reserve`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Verb::Reserve => "reserve",
            Verb::Change => "change",
            Verb::Pause => "pause",
            Verb::Resume => "resume",
            Verb::Release => "release",
            Verb::Apply => "apply",
            Verb::List => "list",
            Verb::Room => "room",
            Verb::Log => "log",
            Verb::Find => "find",
            Verb::Gang => "gang",
            Verb::Access => "access",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.word())
    }
}

impl Role {
    /// All roles, from the role with the fewest rights to the role with the most rights.
    pub const ALL: [Role; 4] = [Role::Viewer, Role::Tenant, Role::Operator, Role::Administrator];

    /// Returns the word for the role, such as `viewer`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Tenant => "tenant",
            Role::Operator => "operator",
            Role::Administrator => "administrator",
        }
    }

    /// Returns true if this role allows requests of this kind. Viewers and tenants may not see past
    /// events, because events mention other owners. A tenant may change only its own reservations.
    #[must_use]
    pub const fn may(self, verb: Verb) -> bool {
        match self {
            Role::Viewer => matches!(verb, Verb::List | Verb::Room | Verb::Find),
            Role::Tenant => !matches!(verb, Verb::Access | Verb::Log),
            Role::Operator => !matches!(verb, Verb::Access),
            Role::Administrator => true,
        }
    }
}
