//! Protocol between front and core: one JSON message per line, in both directions.
//!
//! The front parses untrusted requests and identifies the caller. The core relies on that identity,
//! and checks everything else.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::access::{Access, Grant, Role};
use crate::flight::{Culprits, Incident, Recording};
use crate::numbers::Numbers;
use crate::predictions::{Prediction, PredictionRecord};
use crate::problem::Problem;
use crate::replies::{Account, AppliedChange, Event, Health, Host, Machine, Reservation, Room};
use crate::requests::{Apply, Change, GangWord, ReservationParameters};
use crate::times::Length;
use crate::whatif::{WhatIf, WhatIfAnswer};

/// Maximum length of a line to the core, in bytes: a list of reservations and the fields that the
/// front adds.
pub const LONGEST_ASKED: usize = crate::LONGEST_LIST + 64 * 1024;

/// Maximum length of a line to the front, in bytes: a page of reservations with the metrics of
/// each.
pub const LONGEST_SAID: usize = 4 * 1024 * 1024;

/// Message from the front to the core: a request of a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// Number that the answer will carry. Unique among the requests without an answer.
    pub ticket: u64,
    /// Caller of the request.
    pub who: CallerIdentity,
    /// Idempotency key of the request, at most [`LONGEST_KEY`] visible characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Request of the caller.
    pub request: Request,
}

/// Caller as the front identified it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum CallerIdentity {
    /// A user of this host, as the kernel reports.
    User {
        /// Number of the user.
        uid: u32,
        /// Ids of those of the user's groups that grant access.
        gids: Vec<u32>,
    },
    /// A client that sent a token, represented by the SHA-256 of the token in hexadecimal digits.
    Token(String),
    /// Any process of this host, on the loopback address for metrics. It may only ask for them.
    Loopback,
    /// A client with a certificate whose key it has. Contains its SHA-256 in hexadecimal digits.
    Certificate(String),
}

/// Maximum length of an idempotency key, in characters.
pub const LONGEST_KEY: usize = 64;

/// Requests of a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Request {
    /// Asks for a description of the host: [`Answer::Host`].
    Host,
    /// Asks for the health of the daemon: [`Answer::Health`].
    Health,
    /// Asks for the metrics: [`Answer::Numbers`].
    Numbers,
    /// Lists the VMs of this host: [`Answer::Machines`].
    Find {
        /// Text that the name or binding must contain. `None` lists all.
        text: Option<String>,
    },
    /// Makes a reservation: [`Answer::Done`].
    Reserve {
        /// Name of the reservation.
        name: String,
        /// Parameters of the reservation.
        wanted: ReservationParameters,
    },
    /// Command for a member of a gang: [`Answer::Done`].
    Gang {
        /// Command for the member.
        word: GangWord,
    },
    /// Changes the terms of a reservation: [`Answer::Done`].
    Change {
        /// Name of the reservation.
        name: String,
        /// New values of the terms.
        change: Change,
        /// Revision that the reservation must have. `None` accepts any.
        if_revision: Option<u64>,
    },
    /// Makes reservations match a list: [`Answer::Applied`].
    Apply {
        /// The reservations with their parameters, and options.
        list: Apply,
    },
    /// Stops the vCPUs of a reservation: [`Answer::Done`].
    Pause {
        /// Name of the reservation.
        name: String,
        /// Revision that the reservation must have. `None` accepts any.
        if_revision: Option<u64>,
    },
    /// Lets the vCPUs of a reservation run again: [`Answer::Done`].
    Resume {
        /// Name of the reservation.
        name: String,
        /// Revision that the reservation must have. `None` accepts any.
        if_revision: Option<u64>,
    },
    /// Ends a reservation: [`Answer::Done`].
    Release {
        /// Name of the reservation.
        name: String,
        /// Revision that the reservation must have. `None` accepts any.
        if_revision: Option<u64>,
    },
    /// Lists reservations by name: [`Answer::Reservations`].
    List {
        /// Name of the one reservation to list, which must exist. `None` lists all.
        name: Option<String>,
        /// Name after which the list begins, exclusive. `None` begins with the first name.
        after: Option<String>,
    },
    /// Asks for the available capacity: [`Answer::Room`].
    Room {
        /// Period of the slices.
        period: Length,
    },
    /// Lists events, newest first: [`Answer::Events`].
    Log {
        /// Reservation whose events are listed. `None` lists all.
        name: Option<String>,
        /// Number of the event before which the list begins, exclusive. `None` begins with the
        /// newest event.
        before: Option<u64>,
        /// Maximum number of events.
        limit: usize,
    },
    /// Shows the CPU time that a reservation received by hour or day, oldest first:
    /// [`Answer::History`].
    History {
        /// Name of the reservation, which may have ended.
        name: String,
        /// Start of the list, in nanoseconds since 1970. The hour or day that contains it is the
        /// first one.
        since_ns: u64,
        /// True to add up the hours of each day.
        by_day: bool,
    },
    /// Lists the access of all principals with a grant: [`Answer::Access`].
    ListAccess,
    /// Grants access: [`Answer::Access`], with one entry.
    Grant {
        /// Number of a user, or name of a remote client.
        whom: String,
        /// Role and limits. A certificate is replaced by its SHA-256.
        grant: Grant,
    },
    /// Reports that the caller of the request with this ticket has disconnected, so that the
    /// request need not be executed. Has no answer.
    Cancel,
    /// Makes all members of the operators' group without a grant tenants: [`Answer::Access`], with
    /// all grants.
    MigrateAccess,
    /// Asks for the role of the caller: [`Answer::You`].
    Whoami,
    /// Asks which causes kept a VM from running in the last minute: [`Answer::Why`].
    Why {
        /// Name of the reservation.
        name: String,
    },
    /// Lists the saved incidents: [`Answer::Incidents`].
    Incidents,
    /// Watches what comes of predictions that were applied: [`Answer::Predictions`].
    Predict(Vec<Prediction>),
    /// Lists all predictions that were applied: [`Answer::Predictions`].
    Predictions,
    /// Asks what the last seconds would have been with changes: [`Answer::Whatif`].
    Whatif(WhatIf),
    /// Saves what the flight recorder has: [`Answer::Recording`]. Administrators only.
    Record {
        /// Length of the recording, which ends now.
        since: Length,
    },
    /// Revokes a grant, so that only the user's groups count: [`Answer::Access`], with the revoked
    /// grant.
    Revoke {
        /// Number of a user, or name of a remote client.
        whom: String,
    },
}

/// Answers to requests that were executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Answer {
    /// Description of the host.
    Host(Host),
    /// Health of the daemon.
    Health(Health),
    /// Metrics of the core.
    Numbers(Box<Numbers>),
    /// VMs of this host.
    Machines(Vec<Machine>),
    /// The change was made, and is in the ledger.
    Done {
        /// The reservation after the change.
        reservation: Box<Reservation>,
        /// True if the request made the reservation.
        is_new: bool,
    },
    /// Changes that a list made, sorted by the name of the reservation.
    Applied(Vec<AppliedChange>),
    /// Reservations, at most [`crate::PAGE`] of them.
    Reservations(Vec<Reservation>),
    /// Largest slices that would be admitted now.
    Room(Room),
    /// Events, newest first, at most [`crate::PAGE`] of them.
    Events(Vec<Event>),
    /// CPU time of a reservation, oldest first, at most 1,000 hours or days.
    History(Vec<Account>),
    /// Access of principals with a grant.
    Access(Vec<Access>),
    /// Role of the caller.
    You(Role),
    /// Culprits of the waiting times of a VM.
    Why(Box<Culprits>),
    /// Incidents that were saved, newest first.
    Incidents(Vec<Incident>),
    /// Predictions that were applied, oldest first.
    Predictions(Vec<PredictionRecord>),
    /// The recording was saved.
    Recording(Recording),
    /// Prediction from the last seconds.
    Whatif(Box<WhatIfAnswer>),
}

/// Message from the core to the front.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum CoreMessage {
    /// Answer to a request that was executed.
    Answer {
        /// Ticket of the request.
        ticket: u64,
        /// Content of the answer.
        answer: Answer,
    },
    /// Refusal of a request.
    Refused {
        /// Ticket of the request.
        ticket: u64,
        /// Reason for the refusal.
        problem: Box<Problem>,
    },
    /// An event that is in the ledger. Each event is sent once, in the order of the numbers.
    Event(Event),
}

/// Serializes a message as a line, including its end.
///
/// # Panics
/// If the message contains a map whose keys are not strings. No message does.
#[must_use]
pub fn line<T: Serialize>(message: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("string keys serialize to JSON");
    line.push(b'\n');
    line
}

/// Splits a stream of bytes into lines of limited length.
#[derive(Debug)]
pub struct Lines {
    longest: usize,
    read: Vec<u8>,
    /// Number of bytes in `read` that are known to contain no end of a line.
    searched: usize,
}

/// A line is longer than the maximum, so it cannot be a message. Holds the maximum in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the link: a line has more than {0} bytes")]
pub struct TooLong(pub usize);

impl Lines {
    /// Returns an empty buffer for lines of at most `longest` bytes.
    #[must_use]
    pub fn new(longest: usize) -> Lines {
        Lines { longest, read: Vec::new(), searched: 0 }
    }

    /// Appends bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.read.extend_from_slice(bytes);
    }

    /// Returns the next complete line, without its end. `None` if there is none yet.
    ///
    /// # Errors
    /// If the line is too long. The caller must not read the rest of the stream then.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let end = self.read[self.searched..].iter().position(|&byte| byte == b'\n');
        let length = end.map_or(self.read.len(), |end| self.searched + end);
        if length > self.longest {
            return Err(TooLong(self.longest));
        }
        if end.is_none() {
            self.searched = length;
            return Ok(None);
        }
        self.searched = 0;
        let rest = self.read.split_off(length + 1);
        let mut line = std::mem::replace(&mut self.read, rest);
        line.pop();
        Ok(Some(line))
    }
}

/// Parses a line as a message.
///
/// # Errors
/// If the line is not such a message.
pub fn message<T: DeserializeOwned>(line: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_link_messages_round_trip_for_any_chunk_size() {
        let request = Request::Log { name: Some("web".into()), before: None, limit: 7 };
        let ask = |ticket| {
            let who = CallerIdentity::User { uid: 0, gids: vec![0] };
            Ask { ticket, who, key: None, request: request.clone() }
        };
        let bytes: Vec<u8> = (0..3).flat_map(|ticket| line(&ask(ticket))).collect();
        for size in 1..bytes.len() {
            let mut lines = Lines::new(LONGEST_ASKED);
            let mut heard = Vec::new();
            for part in bytes.chunks(size) {
                lines.push(part);
                while let Some(line) = lines.next_line().unwrap() {
                    heard.push(message::<Ask>(&line).unwrap());
                }
            }
            assert_eq!(heard, [ask(0), ask(1), ask(2)], "in parts of {size}");
        }
    }

    #[test]
    fn daemon_link_line_above_the_maximum_length_is_refused_unfinished() {
        let mut lines = Lines::new(100);
        lines.push(&[b'x'; 100]);
        assert_eq!(lines.next_line(), Ok(None));
        lines.push(b"x");
        assert_eq!(lines.next_line(), Err(TooLong(100)));
    }

    #[test]
    fn daemon_link_message_with_unknown_keys_or_request_is_refused() {
        for text in [
            r#"{"ticket":1,"who":{"user":{"uid":0,"gids":[]}},"request":"reboot"}"#,
            r#"{"ticket":1,"who":{"user":{"uid":0,"gids":[]}},"request":"host","more":1}"#,
            r#"{"ticket":1,"who":{"user":{"uid":-1,"gids":[]}},"request":"host"}"#,
            r#"{"ticket":1,"who":"service","request":"host"}"#,
            r#"{"ticket":1,"who":{"token":"a"},"request":{"pause":{"name":"a","b":1}}}"#,
        ] {
            assert!(message::<Ask>(text.as_bytes()).is_err(), "{text}");
        }
    }
}
