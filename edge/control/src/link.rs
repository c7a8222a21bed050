//! Protocol between the front process and the core process of the daemon. Both directions carry one
//! JSON message per line.
//!
//! The front parses untrusted requests and identifies the caller. The core trusts the front's
//! identification of the caller, and checks everything else again.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::access::{Access, Grant, Role};
use crate::flight::{Culprits, Incident, Recording};
use crate::numbers::Numbers;
use crate::plans::AppliedPlan;
use crate::predictions::{Prediction, PredictionRecord};
use crate::problem::Problem;
use crate::replies::{Account, AppliedChange, Event, Health, Host, Machine, Reservation, Room};
use crate::requests::{Apply, Change, GangWord, ReservationParameters};
use crate::timeline::Timeline;
use crate::times::Length;
use crate::whatif::{WhatIf, WhatIfAnswer};

/// Maximum length of a line from the daemon's front process to its core process, in bytes. It is
/// enough for a list of reservations and the fields that the front adds.
pub const LONGEST_ASKED: usize = crate::LONGEST_LIST + 64 * 1024;

/// Maximum length of a line from the daemon's core process to its front process, in bytes. It is
/// enough for a page of reservations with all their metrics.
pub const LONGEST_SAID: usize = 4 * 1024 * 1024;

/// Message from the daemon's front process to its core process: a request of a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// Ticket that identifies the request. The answer to the request repeats the ticket. Two
    /// requests that wait for an answer never have equal tickets.
    pub ticket: u64,
    /// Caller of the request.
    pub who: CallerIdentity,
    /// Idempotency key of the request, at most [`LONGEST_KEY`] visible characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Request that the caller made.
    pub request: Request,
}

/// Identity of the caller, as the daemon's front process determined it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum CallerIdentity {
    /// A user of this host, whom the kernel identified as the peer of the socket.
    User {
        /// Id of the user.
        uid: u32,
        /// Ids of the user's groups that grant access.
        gids: Vec<u32>,
    },
    /// A client that sent a token. The value is the SHA-256 of the token in hexadecimal digits.
    Token(String),
    /// A process of this host that connected through the loopback address for metrics. It may
    /// request only metrics.
    Loopback,
    /// A client that proved by TLS that it has the key of its certificate. The value is the SHA-256
    /// of the certificate in hexadecimal digits.
    Certificate(String),
}

/// Maximum length of an idempotency key, in characters.
pub const LONGEST_KEY: usize = 64;

/// Request of a caller to the daemon's core process. The description of each variant links the
/// answer to that request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Request {
    /// Asks for a description of the host: [`Answer::Host`].
    Host,
    /// Asks for the health of the daemon: [`Answer::Health`].
    Health,
    /// Asks for the metrics: [`Answer::Numbers`].
    Numbers,
    /// Lists VMs of this host: [`Answer::Machines`].
    Find {
        /// Text that the name or binding of a listed VM must contain. `None` lists all VMs.
        text: Option<String>,
    },
    /// Makes a reservation: [`Answer::Done`].
    Reserve {
        /// Name of the reservation.
        name: String,
        /// Parameters of the reservation.
        wanted: ReservationParameters,
    },
    /// Carries out a command for a member of a gang: [`Answer::Done`]. A gang is a set of VMs on
    /// several hosts.
    Gang {
        /// Command for the member.
        word: GangWord,
    },
    /// Changes the parameters of a reservation: [`Answer::Done`].
    Change {
        /// Name of the reservation.
        name: String,
        /// New values of the parameters (slice, period and so on).
        change: Change,
        /// Revision that the reservation must have. `None` accepts any revision.
        if_revision: Option<u64>,
    },
    /// Makes or changes all reservations of a list, or none of them: [`Answer::Applied`].
    Apply {
        /// Reservations with their parameters, and options of the list.
        list: Apply,
    },
    /// Stops the vCPUs of a reservation: [`Answer::Done`].
    Pause {
        /// Name of the reservation.
        name: String,
        /// Revision that the reservation must have. `None` accepts any revision.
        if_revision: Option<u64>,
    },
    /// Lets the vCPUs of a reservation run again: [`Answer::Done`].
    Resume {
        /// Name of the reservation.
        name: String,
        /// Revision that the reservation must have. `None` accepts any revision.
        if_revision: Option<u64>,
    },
    /// Ends a reservation: [`Answer::Done`].
    Release {
        /// Name of the reservation.
        name: String,
        /// Revision that the reservation must have. `None` accepts any revision.
        if_revision: Option<u64>,
    },
    /// Lists reservations in the order of their names: [`Answer::Reservations`].
    List {
        /// Name of a reservation, which must exist. Only this reservation is listed. `None` lists
        /// all reservations.
        name: Option<String>,
        /// Name after which the list begins. `None` lists from the first name on.
        after: Option<String>,
    },
    /// Asks for the available capacity: [`Answer::Room`].
    Room {
        /// Period for which the largest slices are computed.
        period: Length,
    },
    /// Lists past events, newest first: [`Answer::Events`].
    Log {
        /// Name of the reservation whose events are listed. `None` lists all events.
        name: Option<String>,
        /// Number of an event. Only events with lower numbers are listed. If `None`, the list
        /// begins with the newest event.
        before: Option<u64>,
        /// Maximum number of events.
        limit: usize,
    },
    /// Shows the CPU time that a reservation received by hour or day, oldest first:
    /// [`Answer::History`].
    History {
        /// Name of the reservation, which may have ended.
        name: String,
        /// Start of the history, in nanoseconds since 1970. The first entry is the hour or day that
        /// contains this time.
        since_ns: u64,
        /// True if the history has one entry per day instead of one per hour.
        by_day: bool,
    },
    /// Lists the access of every user and remote client that has a grant: [`Answer::Access`].
    ListAccess,
    /// Grants access to a user or remote client: [`Answer::Access`] with one entry.
    Grant {
        /// Id of a user, or name of a remote client.
        whom: String,
        /// Role and limits. If the grant contains a certificate, the daemon's front process
        /// replaces the certificate by its SHA-256.
        grant: Grant,
    },
    /// Cancels the request that has the ticket of this message, because its caller has
    /// disconnected. There is no answer.
    Cancel,
    /// Grants the role of a tenant to all members of the operators' group that have no grant:
    /// [`Answer::Access`] with all grants.
    MigrateAccess,
    /// Asks for the role of the caller: [`Answer::You`].
    Whoami,
    /// Asks for the causes that kept a VM from running in the last minute: [`Answer::Why`].
    Why {
        /// Name of the reservation.
        name: String,
    },
    /// Asks for the causes that kept the VM of a saved incident from running: [`Answer::Why`].
    WhyIncident {
        /// Number of the incident.
        id: u64,
    },
    /// Lists the saved incidents: [`Answer::Incidents`].
    Incidents,
    /// Starts comparing the predictions of an applied plan with measurements:
    /// [`Answer::Predictions`].
    Predict(Vec<Prediction>),
    /// Lists the predictions of all applied plans: [`Answer::Predictions`].
    Predictions,
    /// Predicts how VMs would have run in the last seconds with changes: [`Answer::Whatif`].
    Whatif(WhatIf),
    /// Undoes the caller's last applied list or change: [`Answer::Applied`].
    Undo,
    /// Shows the caller's last applied list or change: [`Answer::Plan`].
    Plan,
    /// Saves a recording from the flight recorder: [`Answer::Recording`]. Administrators only.
    Record {
        /// Length of the recording. It ends when the request is carried out.
        since: Length,
    },
    /// Asks for the timeline, whose columns show which vCPUs ran in the last seconds:
    /// [`Answer::Timeline`].
    Timeline {
        /// Number of the first column of the answer. Earlier columns are left out.
        from: u64,
    },
    /// Revokes a grant: [`Answer::Access`] with the revoked grant. A local user then has only the
    /// role of the user's groups.
    Revoke {
        /// Id of a user, or name of a remote client.
        whom: String,
    },
}

/// Answer to a request that the daemon's core process has carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Answer {
    /// Description of the host.
    Host(Host),
    /// Health of the daemon.
    Health(Health),
    /// Metrics of the daemon's core process.
    Numbers(Box<Numbers>),
    /// VMs of this host.
    Machines(Vec<Machine>),
    /// The requested change was made, and is in the ledger.
    Done {
        /// The reservation after the change.
        reservation: Box<Reservation>,
        /// True if the request created the reservation.
        is_new: bool,
    },
    /// Changes made by an applied list, sorted by the name of the reservation.
    Applied(Vec<AppliedChange>),
    /// Reservations, at most [`crate::PAGE`] of them.
    Reservations(Vec<Reservation>),
    /// Largest slice that each CPU would admit now.
    Room(Room),
    /// Events, newest first, at most [`crate::PAGE`] of them.
    Events(Vec<Event>),
    /// CPU time that a reservation received by hour or day, oldest first. At most 1,000 entries.
    History(Vec<Account>),
    /// Access of every user and remote client that has a grant, or only of the one in the request.
    Access(Vec<Access>),
    /// Role of the caller.
    You(Role),
    /// Causes that kept a VM from running, with the time of each cause.
    Why(Box<Culprits>),
    /// Saved incidents, newest first.
    Incidents(Vec<Incident>),
    /// Predictions of all applied plans, oldest first.
    Predictions(Vec<PredictionRecord>),
    /// The recording was saved.
    Recording(Recording),
    /// Timeline, whose columns show which vCPUs ran in the last seconds.
    Timeline(Box<Timeline>),
    /// Last applied list or change of the caller. `None` if there is none.
    Plan(Option<Box<AppliedPlan>>),
    /// Prediction for the changes, based on the last seconds.
    Whatif(Box<WhatIfAnswer>),
}

/// Message from the daemon's core process to its front process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum CoreMessage {
    /// Answer to a request that the core process has carried out.
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
    /// An event that was written to the ledger. The core process sends each event once, in the
    /// order of event numbers.
    Event(Event),
}

/// Serializes a message as JSON on one line, including the line break.
///
/// # Panics
/// If the message contains a map whose keys are not strings. No message does.
#[must_use]
pub fn line<T: Serialize>(message: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("string keys serialize to JSON");
    line.push(b'\n');
    line
}

/// Splitter of a byte stream into lines of limited length.
#[derive(Debug)]
pub struct Lines {
    longest: usize,
    read: Vec<u8>,
    /// Number of bytes at the start of `read` in which there is no line break.
    searched: usize,
}

/// Error for a line that is too long. The value is the maximum length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the link: a line has more than {0} bytes")]
pub struct TooLong(pub usize);

impl Lines {
    /// Creates an empty buffer for lines of at most `longest` bytes.
    #[must_use]
    pub fn new(longest: usize) -> Lines {
        Lines { longest, read: Vec::new(), searched: 0 }
    }

    /// Appends bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.read.extend_from_slice(bytes);
    }

    /// Returns the next complete line, without its line break. `None` if the line break has not
    /// arrived yet.
    ///
    /// # Errors
    /// If the line is too long. The caller must then stop reading from the stream.
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
/// If the line is not a valid message of the type `T`.
pub fn message<T: DeserializeOwned>(line: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_between_daemon_processes_are_parsed_for_any_chunk_size() {
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
            assert_eq!(heard, [ask(0), ask(1), ask(2)], "in chunks of {size} bytes");
        }
    }

    #[test]
    fn overlong_message_between_daemon_processes_is_refused() {
        let mut lines = Lines::new(100);
        lines.push(&[b'x'; 100]);
        assert_eq!(lines.next_line(), Ok(None));
        lines.push(b"x");
        assert_eq!(lines.next_line(), Err(TooLong(100)));
    }

    #[test]
    fn message_between_daemon_processes_with_unknown_keys_is_refused() {
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
