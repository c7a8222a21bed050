//! Answers to requests that were not refused.

use crate::machine::CpuCapacity;
use crate::name::Name;
use crate::plan::Plan;
use crate::row::{Reason, Row, State};

/// Answer of the service to a successful request. The requests
/// [`Request::Log`](crate::Request::Log), [`Request::History`](crate::Request::History) and
/// [`Request::Find`](crate::Request::Find) have no such answer: the [`World`](crate::World) answers
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The requested change was made. Or nothing was changed, because the reservation already was
    /// as requested.
    Done {
        /// The reservation immediately after the change.
        reservation: Box<ListedReservation>,
        /// True if the request made a new reservation.
        is_new: bool,
        /// Warning about the change. `None` if there is no warning.
        warning: Option<Warning>,
    },
    /// A list of reservations was applied. After a dry run, the changes are only planned. The
    /// changes are sorted by the name of the reservation.
    Applied {
        /// One change for each reservation that the applied list names or releases.
        changes: Vec<AppliedChange>,
    },
    /// The requested reservations, sorted by name.
    List(Vec<ListedReservation>),
    /// Available capacity of each CPU.
    Room(Vec<CpuCapacity>),
    /// Last plan of the caller. `None` if the caller has no plan.
    Plan(Option<Box<Plan>>),
}

/// Effect that applying a list has on one reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Makes a new reservation.
    Create,
    /// Gives an existing reservation other terms.
    Change,
    /// Ends a reservation that the applied list leaves out.
    Release,
    /// Leaves a reservation unchanged, since it already matches the list.
    Keep,
}

impl Action {
    /// Returns the word for the action, such as `create`.
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

/// Effect of an applied list on one reservation: the reservation before and after the list is
/// applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedChange {
    /// Effect of the applied list on the reservation.
    pub action: Action,
    /// The reservation before the list is applied. `None` if the list creates the reservation.
    pub before: Option<Row>,
    /// The reservation after the list is applied. `None` if the list releases the reservation.
    pub after: Option<Row>,
}

impl AppliedChange {
    /// Returns the name of the reservation.
    ///
    /// # Panics
    /// If both `before` and `after` are `None`.
    #[must_use]
    pub fn name(&self) -> &Name {
        let row = self.after.as_ref().or(self.before.as_ref());
        &row.expect("a change has a reservation before or after").name
    }
}

/// A reservation with its current state, as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedReservation {
    /// The reservation as the ledger stores it.
    pub row: Row,
    /// Current state of the reservation.
    pub state: State,
    /// Reason why the reservation is not fully in force. `None` if it is fully in force.
    pub reason: Option<Reason>,
    /// Number of vCPUs of the VM that are currently scheduled for this reservation.
    pub served: u16,
    /// Reason why the service chose the reservation's mechanism. `None` if a request named the
    /// mechanism, or if the daemon has restarted since the choice.
    pub chosen: Option<String>,
}

/// Warning that comes with a successful answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// The change is in force, but it could not be written to the ledger.
    #[error(
        "the change is in force, but not written to the ledger, so a restart may lose it: {why}"
    )]
    NotDurable {
        /// Reason why the ledger cannot be written.
        why: String,
    },
}

/// State of the service as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Number of all reservations.
    pub reservations: usize,
    /// Number of reservations that wait for a VM or for capacity.
    pub waiting: usize,
    /// Reason why the ledger cannot be written. `None` if the ledger can be written.
    pub ledger: Option<String>,
}
