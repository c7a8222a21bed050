//! What a request comes to.

use crate::machine::Room;
use crate::name::Name;
use crate::row::{Reason, Row, State};

/// What a request came to. [`Request::Log`](crate::Request::Log) and
/// [`Request::Find`](crate::Request::Find) are answered by the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done, or was so already.
    Done {
        /// The reservation, as it was committed.
        reservation: Box<Listed>,
        /// Whether it is new.
        is_new: bool,
        /// What is to be known besides.
        warning: Option<Warning>,
    },
    /// Changes by a list, sorted by name: in force, or with a dry run only planned.
    Applied {
        /// A change for each reservation that is listed or released.
        changes: Vec<AppliedChange>,
    },
    /// The reservations asked for, by name.
    List(Vec<Listed>),
    /// What could be promised, by CPU.
    Room(Vec<Room>),
}

/// Effect of a list on a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Makes a reservation that there was not.
    Create,
    /// Gives a reservation other parameters.
    Change,
    /// Ends a reservation that the list leaves out.
    Release,
    /// Leaves a reservation that is as the list has it.
    Keep,
}

impl Action {
    /// Returns the action in a word, such as `create`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Action::Create => "create",
            Action::Change => "change",
            Action::Release => "release",
            Action::Keep => "keep",
        }
    }
}

/// A reservation before and after a list was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedChange {
    /// The action on this reservation.
    pub action: Action,
    /// The reservation before. `None` if it is created.
    pub before: Option<Row>,
    /// The reservation after. `None` if it is released.
    pub after: Option<Row>,
}

impl AppliedChange {
    /// The name of the reservation.
    ///
    /// # Panics
    /// If there is a reservation neither before nor after.
    #[must_use]
    pub fn name(&self) -> &Name {
        let row = self.after.as_ref().or(self.before.as_ref());
        &row.expect("a change has a reservation before or after").name
    }
}

/// A reservation, and how it is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// What is written down.
    pub row: Row,
    /// How it is doing.
    pub state: State,
    /// Why it is not, or not wholly, in force.
    pub reason: Option<Reason>,
    /// How many vCPUs of its machine are scheduled for it now.
    pub served: u16,
}

/// What is to be known besides.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// It is in force, and is not written down.
    #[error("in force, but not written to the ledger, so a restart may lose it: {why}")]
    NotDurable {
        /// Why.
        why: String,
    },
}

/// How the service is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// How many reservations there are.
    pub reservations: usize,
    /// How many of them wait for a machine or for room.
    pub waiting: usize,
    /// Why the ledger cannot be written; none is that it can.
    pub ledger: Option<String>,
}
