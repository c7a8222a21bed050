//! Types of queries to the ledger, and of their results.

use std::time::{Duration, SystemTime};

use slackline_service::{Budget, EventKind, Name, Principal, Role, Row};

/// Grant of access to a principal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessGrant {
    /// Principal that has the grant.
    pub principal: Principal,
    /// Role of the principal. For a user of this host, this role replaces the role from the user's
    /// groups.
    pub role: Role,
    /// Limits on the reservations of the principal.
    pub budget: Budget,
    /// Other users for whose VMs the principal may also reserve CPU time.
    pub users: Vec<u32>,
    /// Credential of a remote client. If `None`, the principal is a user of this host.
    pub proof: Option<Proof>,
    /// Time at which the grant was made.
    pub made: SystemTime,
    /// Time at which the role expires. `None` if the role never expires.
    pub expires: Option<SystemTime>,
}

/// Credential of a remote client, as SHA-256 in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Credential that is a token, by its hash.
    Token(String),
    /// Credential that is a certificate, by its hash.
    Certificate(String),
}

/// Change to the grants of access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessChange {
    /// Adds a grant, or replaces the grant of the same principal.
    Add(AccessGrant),
    /// Removes the grant of a principal.
    Revoke(Principal),
}

/// Bounds on the tables of the ledger that grow over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Maximum age of events, in days. Only days on which a daemon has run count.
    pub events: usize,
    /// Maximum number of events.
    pub rows: u64,
    /// Maximum size of the whole ledger, in bytes. If the ledger is larger, old events are deleted.
    pub bytes: u64,
    /// Maximum age of stored answers. The type [`slackline_service::KeyOrder`] limits their number.
    pub answers: Duration,
    /// Maximum age of the history of reservations, in days. Only days on which a daemon has run
    /// count.
    pub history: usize,
    /// Maximum size of the history table, in bytes. If the table is larger, old hours are first
    /// joined into days. If that is not enough, the oldest days are deleted.
    pub history_bytes: u64,
}

impl Keep {
    /// Default bounds. Events are kept for 90 days, at most a million events and 1 GiB in total.
    /// Answers are kept for a day, and the history is kept for 400 days in at most 64 MiB.
    pub const USUAL: Keep = Keep {
        events: 90,
        rows: 1_000_000,
        bytes: 1 << 30,
        answers: Duration::from_secs(24 * 3600),
        history: 400,
        history_bytes: 64 << 20,
    };
}

/// Maximum number of events in one reply.
pub const MOST_EVENTS: usize = 1_000;

/// Maximum number of history rows in one reply.
pub const MOST_HOURS: usize = slackline_control::MOST_ACCOUNTS;

/// An event that was read from the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedEvent {
    /// Number of the event.
    pub seq: u64,
    /// Wall-clock time of the event.
    pub at: SystemTime,
    /// Principal that caused the event.
    pub principal: Principal,
    /// Kind of the event, such as a change or the end of a VM.
    pub what: EventKind,
    /// Name of the reservation that the event concerns. `None` if it concerns no reservation.
    pub name: Option<Name>,
    /// State of the reservation before the event. `None` if the reservation did not exist.
    pub before: Option<Row>,
    /// State of the reservation after the event. `None` if the reservation ended.
    pub after: Option<Row>,
    /// True if the ledger could not be written when the event happened, so that the event was
    /// written later.
    pub was_late: bool,
}

/// Query for events, which are returned newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Reservation to which the events belong. If `None`, all events match.
    pub name: Option<Name>,
    /// Number of an event. Only events with lower numbers are returned. If `None`, the newest event
    /// is returned first.
    pub before: Option<u64>,
    /// Maximum number of events. At most [`MOST_EVENTS`] events are returned in any case.
    pub limit: usize,
}

/// Query for the history of a reservation, which is returned oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoursQuery {
    /// Name of the reservation.
    pub name: Name,
    /// Start of the history, in nanoseconds since 1970. The first entry of the reply is the hour or
    /// day that contains this time.
    pub since_ns: u64,
    /// True if the reply has one row per day, with the sums of the day's hours.
    pub by_day: bool,
}

/// State in which the previous daemon left the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    /// Boot id of the host when the previous daemon ran.
    pub boot_id: String,
    /// True if the previous daemon closed the ledger cleanly.
    pub was_clean: bool,
}
