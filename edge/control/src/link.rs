//! What front and core say to each other: a line of JSON each, in both directions.
//!
//! The front reads what strangers wrote and says who they are; the core believes it that, and
//! checks everything else.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::access::{Access, Grant, Role};
use crate::numbers::Numbers;
use crate::problem::Problem;
use crate::replies::{AppliedChange, Event, Health, Host, Machine, Reservation, Room};
use crate::requests::{Apply, Change, GangWord, Wanted};
use crate::times::Length;

/// The longest line to the core, in bytes: a list of reservations and what the front adds to it.
pub const LONGEST_ASKED: usize = crate::LONGEST_LIST + 64 * 1024;

/// The longest line to the front, in bytes: a page of reservations with their numbers.
pub const LONGEST_SAID: usize = 4 * 1024 * 1024;

/// From the front to the core: somebody asks for something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// What the answer is to carry; no two at a time are the same.
    pub ticket: u64,
    /// Who asks.
    pub who: Who,
    /// What makes a repetition recognisable: at most [`LONGEST_KEY`] visible characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What for.
    pub request: Request,
}

/// Who asks, as the front has seen it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Who {
    /// A user of this machine, as the kernel says.
    User {
        /// Which.
        uid: u32,
        /// The groups he is in that give a right.
        gids: Vec<u32>,
    },
    /// Who showed a token: its SHA-256, in hexadecimal digits.
    Token(String),
    /// Who proved to have the key of a certificate: its SHA-256, in hexadecimal digits.
    Certificate(String),
}

/// The most characters of a key.
pub const LONGEST_KEY: usize = 64;

/// What can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Request {
    /// The host: [`Answer::Host`].
    Host,
    /// Whether all is well: [`Answer::Health`].
    Health,
    /// What is counted: [`Answer::Numbers`].
    Numbers,
    /// The machines here: [`Answer::Machines`].
    Find {
        /// Only those whose name or binding has this in it.
        text: Option<String>,
    },
    /// A new reservation: [`Answer::Done`].
    Reserve {
        /// Its name.
        name: String,
        /// What it is to be.
        wanted: Wanted,
    },
    /// A word about a member of a gang: [`Answer::Done`].
    Gang {
        /// Which.
        word: GangWord,
    },
    /// Other terms: [`Answer::Done`].
    Change {
        /// Whose.
        name: String,
        /// What changes.
        change: Change,
        /// Only if this is its revision.
        if_revision: Option<u64>,
    },
    /// Reservations as they should be: [`Answer::Applied`].
    Apply {
        /// The reservations, and what else to do.
        list: Apply,
    },
    /// Its vCPUs are not to run: [`Answer::Done`].
    Pause {
        /// Whose.
        name: String,
        /// Only if this is its revision.
        if_revision: Option<u64>,
    },
    /// They are to run again: [`Answer::Done`].
    Resume {
        /// Whose.
        name: String,
        /// Only if this is its revision.
        if_revision: Option<u64>,
    },
    /// It ends: [`Answer::Done`].
    Release {
        /// Which.
        name: String,
        /// Only if this is its revision.
        if_revision: Option<u64>,
    },
    /// Reservations by name: [`Answer::Reservations`].
    List {
        /// Only this one, which must be there.
        name: Option<String>,
        /// Only those whose name comes after this.
        after: Option<String>,
    },
    /// What would be admitted now: [`Answer::Room`].
    Room {
        /// For this period.
        period: Length,
    },
    /// Events, newest first: [`Answer::Events`].
    Log {
        /// Only those of this reservation.
        name: Option<String>,
        /// Only those before this one.
        before: Option<u64>,
        /// No more than so many.
        limit: usize,
    },
    /// Who may do what: [`Answer::Access`].
    ListAccess,
    /// Somebody is to be let do something: [`Answer::Access`], his line.
    Grant {
        /// The user, by number, or the name of somebody who comes from elsewhere.
        whom: String,
        /// What. For a certificate there is its SHA-256 here.
        grant: Grant,
    },
    /// The caller of the request with this ticket has gone: it need not be done. No answer.
    Cancel,
    /// Members of the group without a grant are to be tenants: [`Answer::Access`], all grants.
    MigrateAccess,
    /// Who it is that asks: [`Answer::You`].
    Whoami,
    /// Somebody is to be let do what his groups let him, and no more: [`Answer::Access`], his line
    /// as it was.
    Revoke {
        /// The user, by number, or the name of somebody who comes from elsewhere.
        whom: String,
    },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Answer {
    /// The host.
    Host(Host),
    /// Whether all is well.
    Health(Health),
    /// What is counted.
    Numbers(Box<Numbers>),
    /// Machines.
    Machines(Vec<Machine>),
    /// It is done and written down.
    Done {
        /// How the reservation is now.
        reservation: Box<Reservation>,
        /// Whether it was not there before.
        is_new: bool,
    },
    /// The changes by a list, by name of the reservation.
    Applied(Vec<AppliedChange>),
    /// Reservations, at most [`crate::PAGE`].
    Reservations(Vec<Reservation>),
    /// What would be admitted now.
    Room(Room),
    /// Events, newest first.
    Events(Vec<Event>),
    /// Who may do what.
    Access(Vec<Access>),
    /// What who asks may do.
    You(Role),
}

/// From the core to the front.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Said {
    /// What was asked for.
    Answer {
        /// By whom.
        ticket: u64,
        /// What it is.
        answer: Answer,
    },
    /// Why it was not done.
    Refused {
        /// Who is told.
        ticket: u64,
        /// Why.
        problem: Box<Problem>,
    },
    /// Something happened and is written down; each once, in order.
    Event(Event),
}

/// A message as a line, with its end.
///
/// # Panics
/// When it has keys that are no texts: none of ours does.
#[must_use]
pub fn line<T: Serialize>(message: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("keys are texts, and memory takes it");
    line.push(b'\n');
    line
}

/// Lines out of a stream of bytes, none longer than said.
#[derive(Debug)]
pub struct Lines {
    longest: usize,
    read: Vec<u8>,
    /// So much of it has no end of a line.
    searched: usize,
}

/// A line is longer than any message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line of the link has more than {0} bytes")]
pub struct TooLong(pub usize);

impl Lines {
    /// None yet.
    #[must_use]
    pub fn new(longest: usize) -> Lines {
        Lines { longest, read: Vec::new(), searched: 0 }
    }

    /// These bytes have come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.read.extend_from_slice(bytes);
    }

    /// The next whole line, without its end.
    ///
    /// # Errors
    /// When it is too long; nothing after it is to be believed.
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

/// The message that a line is.
///
/// # Errors
/// When it is none.
pub fn message<T: DeserializeOwned>(line: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in_however_they_are_cut() {
        let request = Request::Log { name: Some("web".into()), before: None, limit: 7 };
        let ask = |ticket| {
            let who = Who::User { uid: 0, gids: vec![0] };
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
    fn a_line_without_an_end_is_refused_before_it_fills_memory() {
        let mut lines = Lines::new(100);
        lines.push(&[b'x'; 100]);
        assert_eq!(lines.next_line(), Ok(None));
        lines.push(b"x");
        assert_eq!(lines.next_line(), Err(TooLong(100)));
    }

    #[test]
    fn an_unknown_word_is_refused() {
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
