//! Who asks, and what they may.

use std::fmt;

/// Who asked for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// The service itself: because a machine came or went, or because it was started.
    Service,
    /// A user of this machine, as the kernel says of the peer of a connection.
    User(u32),
}

impl Principal {
    /// The user whose machines are meant where nobody says whose.
    #[must_use]
    pub const fn user(self) -> u32 {
        match self {
            Principal::Service => 0,
            Principal::User(uid) => uid,
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Service => out.write_str("service"),
            Principal::User(uid) => write!(out, "uid {uid}"),
        }
    }
}

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Look.
    Viewer,
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
    /// Show reservations.
    List,
    /// Show what could be promised.
    Room,
    /// Show what happened.
    Log,
    /// Show machines.
    Find,
}

impl Verb {
    /// Whether it changes anything.
    #[must_use]
    pub const fn is_change(self) -> bool {
        match self {
            Verb::Reserve | Verb::Change | Verb::Pause | Verb::Resume | Verb::Release => true,
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
            Verb::List => "list",
            Verb::Room => "room",
            Verb::Log => "log",
            Verb::Find => "find",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.word())
    }
}

impl Role {
    /// Whether somebody in this role may do that. What others did is not for viewers.
    #[must_use]
    pub const fn may(self, verb: Verb) -> bool {
        match self {
            Role::Viewer => matches!(verb, Verb::List | Verb::Room | Verb::Find),
            Role::Operator | Role::Administrator => true,
        }
    }
}
