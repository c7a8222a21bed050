//! What is asked of a ledger, and what it answers.

use std::time::{Duration, SystemTime};

use slackline_service::{Budget, Happened, Name, Principal, Role, Row};

/// Who may do what besides what his groups let him.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Who.
    pub principal: Principal,
    /// What he may do: for a user of this host instead of what his groups let him.
    pub role: Role,
    /// How much he may have.
    pub budget: Budget,
    /// The users whose machines he may have besides his own.
    pub users: Vec<u32>,
    /// How he is known who comes from elsewhere; none for a user of this host.
    pub proof: Option<Proof>,
    /// Since when.
    pub made: SystemTime,
    /// Until when; none is for ever.
    pub expires: Option<SystemTime>,
}

/// How somebody is known: the SHA-256 of what he shows, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A token.
    Token(String),
    /// A certificate, whose key he has.
    Certificate(String),
}

/// A change of who may do what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessChange {
    /// Somebody is let in; whoever was is let in otherwise.
    Add(Granted),
    /// Somebody is not any more.
    Revoke(Principal),
}

/// Bounds of the tables that grow with what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Time for which events are kept.
    pub events: Duration,
    /// Most events.
    pub rows: u64,
    /// Most bytes of the whole ledger. The oldest events go first.
    pub bytes: u64,
    /// Time for which answers are kept. Their number is bounded by [`slackline_service::KeyOrder`].
    pub answers: Duration,
}

impl Keep {
    /// 90 days, a million events and 1 GiB; answers a day.
    pub const USUAL: Keep = Keep {
        events: Duration::from_secs(90 * 24 * 3600),
        rows: 1_000_000,
        bytes: 1 << 30,
        answers: Duration::from_secs(24 * 3600),
    };
}

/// How many events one question is answered with at most.
pub const MOST_EVENTS: usize = 1_000;

/// An event as it was written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Its number.
    pub seq: u64,
    /// When it happened, by the clock on the wall.
    pub at: SystemTime,
    /// By whom.
    pub principal: Principal,
    /// What.
    pub what: Happened,
    /// To which reservation.
    pub name: Option<Name>,
    /// What was promised before.
    pub before: Option<Row>,
    /// What is promised since.
    pub after: Option<Row>,
    /// Whether it could not be written down when it happened.
    pub was_late: bool,
}

/// Which events are asked for, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// About this reservation only.
    pub name: Option<Name>,
    /// Below this number only.
    pub before: Option<u64>,
    /// So many at most, and [`MOST_EVENTS`] in any case.
    pub limit: usize,
}

/// How the service that had the ledger before ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    /// The boot that it ran in.
    pub boot_id: String,
    /// Whether it closed the ledger.
    pub was_clean: bool,
}
