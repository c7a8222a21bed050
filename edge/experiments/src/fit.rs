//! Reservations that fit a task set, with two witnesses. The first is a proof that the reservation
//! suffices. The second is a simulated run in which a slightly smaller reservation misses a
//! deadline.

mod answer;
mod phase;
pub mod simulated;
mod tasks;
mod vm;

pub use answer::{
    AskedReservation, FitAnswer, FitError, FitQuestion, FitRefusal, PeriodRow, answer, answer_delay,
};
pub use phase::{DeadlineMiss, PhaseRun, RunPhaseError, WorstPhase};
pub use tasks::{BadTasksFile, NamedTasks, is_scenario};
pub use vm::{SearchedVm, SearchedVmError, USUAL_SEEDS};

use slackline_fit::search::Fit;
use slackline_fit::{Refutation, prove};
use slackline_units::{Reservation, Span};

/// Longest run that is simulated to show a deadline miss.
const LONGEST_RUN: Span = Span::from_secs(600);

/// A reservation that is too small, with a run in which the VM misses a deadline under this
/// reservation.
#[derive(Clone, Debug)]
pub struct MissWitness {
    /// Reservation of the VM in the run.
    pub reservation: Reservation,
    /// Scenario of the run.
    pub phase: WorstPhase,
    /// Results of the run.
    pub run: PhaseRun,
    /// First deadline that the run missed.
    pub miss: DeadlineMiss,
}

/// Returns a run in which a slightly smaller reservation than the answer misses a deadline. The
/// reservation one step below the answer is tried first, then the answer with a slice that is 1 %
/// shorter. `None` if no missed deadline is known for either of these reservations.
///
/// # Errors
/// If a simulation fails, which is a bug.
pub fn miss_below(tasks: &NamedTasks, fit: &Fit) -> Result<Option<MissWitness>, RunPhaseError> {
    let one_percent = || {
        let slice = Span::from_ns(fit.reservation.slice().ns() / 100 * 99);
        let reservation = Reservation::new(slice, fit.reservation.period()).ok()?;
        Some((reservation, prove(&tasks.set, reservation).err()?))
    };
    for below in [fit.below, one_percent()].into_iter().flatten() {
        if let Some(witness) = miss_in(tasks, below)? {
            return Ok(Some(witness));
        }
    }
    Ok(None)
}

/// Returns a run in which a reservation misses a deadline. The analysis could not prove that this
/// reservation suffices. `None` if no missed deadline is known, or if the run would take too long.
///
/// # Errors
/// If a simulation fails, which is a bug.
pub fn miss_in(
    tasks: &NamedTasks,
    (reservation, refutation): (Reservation, Refutation),
) -> Result<Option<MissWitness>, RunPhaseError> {
    let Some(within) = refutation.misses_within().filter(|&within| within <= LONGEST_RUN) else {
        return Ok(None);
    };
    let phase = WorstPhase::new(tasks, reservation, within);
    let run = phase.run(None::<std::io::Sink>)?;
    let Some(miss) = run.first_miss.clone() else { return Ok(None) };
    Ok(Some(MissWitness { reservation, phase, run, miss }))
}
