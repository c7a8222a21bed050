//! Reservations that fit a task set. They have the smallest slice, or the largest period, with
//! which all jobs of periodic tasks in a VM meet their deadlines.
//!
//! A vCPU has a reservation (slice, period) with a hard limit. The guest schedules its tasks on the
//! vCPU by deadline (EDF) or by fixed priority. The supply of the reservation is bounded from below
//! by the supply bound function of the periodic resource model (Shin and Lee, RTSS 2003). In the
//! worst phase one slice comes as early as possible in its period, and the next slice comes as late
//! as possible. Between these two slices the VM is without CPU time for `2 × (period - slice)`. For
//! EDF the demand is the demand bound function of Baruah, Mok and Rosier (RTSS 1990). This demand
//! is compared with the supply at the points of QPA (Zhang and Burns 2009). For fixed priorities
//! the response times come from the crate `response-time-analysis`.
//!
//! Both tests are exact for tasks that can be released together. If a test fails, a common release
//! of all tasks in the worst phase of the supply leads to a missed deadline. All arithmetic is in
//! whole nanoseconds. Only [`generate`] uses floats.

#![forbid(unsafe_code)]

pub mod edf;
pub mod fixed;
pub mod generate;
pub mod search;
mod supply;
mod tasks;

pub use supply::PeriodicSupply;
pub use tasks::{BadTask, BadTaskSet, PeriodicTask, TaskScheduler, TaskSet};

use edf::{DemandPoint, DemandShortfall};
use fixed::{LateResponse, TaskResponse};
use slackline_units::{Reservation, Span};

/// Proof that all jobs of a task set meet their deadlines in a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// For EDF: the demand of the tasks is at most the supply in intervals of every length.
    Demand {
        /// Points that together cover all interval lengths up to `busy`. The longest interval comes
        /// first.
        points: Vec<DemandPoint>,
        /// Longest time for which the VM can be busy with the tasks. Longer intervals need no test.
        busy: Span,
    },
    /// For fixed priorities: the longest response time of each task. The task with the highest
    /// priority comes first.
    Responses(Vec<TaskResponse>),
}

/// Reason why a reservation has no proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refutation {
    /// The tasks use at least the whole share of the reservation, so the VM may never finish its
    /// backlog of work.
    Overload,
    /// For EDF: an interval in which the demand exceeds the supply.
    Shortfall(DemandShortfall),
    /// For fixed priorities: a task whose response time exceeds its deadline.
    Late(LateResponse),
    /// No proof was found up to `limit`. The VM may be busy for longer than that, and longer
    /// intervals were not tested.
    Undecided {
        /// Longest interval that was tested.
        limit: Span,
    },
}

/// Tests whether a task set meets its deadlines in a reservation.
///
/// # Errors
/// If no proof was found. The error names the first missed deadline, except for
/// [`Refutation::Undecided`].
pub fn prove(tasks: &TaskSet, reservation: Reservation) -> Result<Proof, Refutation> {
    check(tasks, reservation).map_err(|refutation| {
        let supply = PeriodicSupply::of(reservation);
        let first = match (tasks.scheduler(), refutation) {
            (TaskScheduler::Edf, Refutation::Overload | Refutation::Shortfall(_)) => {
                edf::first_shortfall(tasks, &supply).map(Refutation::Shortfall)
            }
            (TaskScheduler::Fixed, Refutation::Overload) => fixed::prove(tasks, &supply).err(),
            _ => None,
        };
        first.unwrap_or(refutation)
    })
}

/// Tests whether a task set meets its deadlines in a reservation. This takes much less time than
/// [`prove`] if the reservation does not suffice.
///
/// # Errors
/// If no proof was found. A deadline in the error is not always the first that is missed, and
/// [`Refutation::Overload`] names no deadline.
pub(crate) fn check(tasks: &TaskSet, reservation: Reservation) -> Result<Proof, Refutation> {
    let supply = PeriodicSupply::of(reservation);
    if tasks.fills(reservation) && reservation.slice() < reservation.period() {
        return Err(Refutation::Overload);
    }
    match tasks.scheduler() {
        TaskScheduler::Edf => edf::prove(tasks, &supply),
        TaskScheduler::Fixed => fixed::prove(tasks, &supply).map(Proof::Responses),
    }
}

impl Refutation {
    /// Returns the time from a common release of all tasks to the missed deadline, in the worst
    /// phase of the supply. `None` if no missed deadline is known.
    #[must_use]
    pub fn misses_within(&self) -> Option<Span> {
        match self {
            Refutation::Shortfall(shortfall) => Some(shortfall.within),
            Refutation::Late(late) => Some(late.deadline),
            Refutation::Overload | Refutation::Undecided { .. } => None,
        }
    }
}

impl Proof {
    /// Returns true if the proof holds for a task set in a reservation. Each demand, supply and
    /// response time is computed again, independently of the search that found the proof.
    #[must_use]
    pub fn is_valid(&self, tasks: &TaskSet, reservation: Reservation) -> bool {
        let supply = PeriodicSupply::of(reservation);
        match self {
            Proof::Demand { points, busy } => edf::is_proof(tasks, &supply, points, *busy),
            Proof::Responses(responses) => fixed::is_proof(tasks, &supply, responses),
        }
    }

    /// Returns the number of points or of response times of the proof.
    #[must_use]
    pub fn steps(&self) -> usize {
        match self {
            Proof::Demand { points, .. } => points.len(),
            Proof::Responses(responses) => responses.len(),
        }
    }
}

#[cfg(test)]
mod tests;
