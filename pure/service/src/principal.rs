//! Who asks, and what they may.

use std::fmt;
use std::str::FromStr;

use crate::name::Holder;

/// Who asked for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// The service itself: because a machine came or went, or because it was started.
    Service,
    /// A user of this machine, as the kernel says of the peer of a connection.
    User(u32),
    /// Somebody from another machine, by what he showed to be known.
    Named(Holder),
}

impl Principal {
    /// The user whose machines are its own; nobody's for who comes from elsewhere.
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

    /// As it is shown.
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

/// A text that names nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a principal")]
pub struct NoPrincipal(String);

/// The number of a user that the kernel gives to none.
const NO_USER: u32 = u32::MAX;

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Look.
    Viewer,
    /// All about the reservations of its own, for VMs of its own.
    Tenant,
    /// All about reservations.
    Operator,
    /// All there is.
    Administrator,
}

/// What is asked for, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Promise something under a new name.
    Reserve,
    /// Promise something else under a name.
    Change,
    /// Keep a machine from running.
    Pause,
    /// Let it run again.
    Resume,
    /// Promise nothing any more.
    Release,
    /// Have the reservations of a list.
    Apply,
    /// Show reservations.
    List,
    /// Show what could be promised.
    Room,
    /// Show what happened.
    Log,
    /// Show machines.
    Find,
    /// Hold a member of a gang, have it begin, or say that it is broken.
    Gang,
    /// Say who may do what.
    Access,
}

impl Verb {
    /// Whether it changes anything.
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

    /// The command of that name.
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
    /// All of them, least first.
    pub const ALL: [Role; 4] = [Role::Viewer, Role::Tenant, Role::Operator, Role::Administrator];

    /// It in a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Tenant => "tenant",
            Role::Operator => "operator",
            Role::Administrator => "administrator",
        }
    }

    /// Returns true if a principal of this role may do that. What others did is not for viewers and
    /// tenants. A tenant may change what it owns only.
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
