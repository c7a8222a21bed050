//! Answers about the reservation of a task set, with both witnesses.

use slackline_fit::search::{self, Fit, Goal, NoFit};
use slackline_units::{CpuShare, Reservation, Span};
use thiserror::Error;

use super::phase::{PhaseRun, RunPhaseError, WorstPhase};
use super::tasks::NamedTasks;
use super::{MissWitness, miss_below};

/// Longest run that shows that the answer meets all deadlines.
const LONGEST_CHECK: Span = Span::from_secs(10);

/// A question about the reservation of a task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FitQuestion {
    /// Value that is searched.
    pub goal: Goal,
    /// Step of the slice in the search.
    pub step: Span,
    /// Part of each CPU that is never reserved.
    pub reserve: CpuShare,
}

/// Answer about the reservation of a task set.
#[derive(Clone, Debug)]
pub struct FitAnswer {
    /// Task set of the question.
    pub tasks: NamedTasks,
    /// Reservation with its proof.
    pub fit: Fit,
    /// Run in which a slightly smaller reservation misses a deadline. `None` if none was found.
    pub miss: Option<MissWitness>,
    /// Run of the answer in its worst phase, as long as that run but at most 10 s. It meets all
    /// deadlines.
    pub check: PhaseRun,
    /// Number of equal VMs that fit on a CPU.
    pub vms: u64,
    /// Smallest slices for other periods. Empty if the question names a delay.
    pub periods: Vec<PeriodRow>,
}

/// Smallest slice for one of the usual periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodRow {
    /// Period of the reservation.
    pub period: Span,
    /// Reservation and number of equal VMs that fit on a CPU. `None` if a whole CPU is too little.
    pub fits: Option<(Reservation, u64)>,
}

/// Reason why a question has no answer.
#[derive(Debug, Error)]
pub enum FitError {
    /// No reservation fits the tasks.
    #[error("{error}")]
    NoFit {
        /// Reason of the search.
        error: NoFit,
        /// Smallest share of a CPU with which the tasks meet their deadlines. `None` if a whole CPU
        /// does not suffice.
        least: Option<CpuShare>,
    },
    /// A CPU does not admit the reservation.
    #[error("a CPU does not admit {reservation}")]
    OverCapacity {
        /// Smallest reservation that was found.
        reservation: Reservation,
        /// Smallest share of a CPU with which the tasks meet their deadlines.
        least: Option<CpuShare>,
    },
    /// A simulation failed, or contradicted the proof, which is a bug.
    #[error(transparent)]
    Run(#[from] RunPhaseError),
    /// The delay is too short for a period of a microsecond.
    #[error("no period has so short a delay")]
    Delay,
}

/// Answers a question about a task set.
///
/// # Errors
/// If nothing fits, or if a simulation fails, which is a bug.
pub fn answer(tasks: NamedTasks, question: FitQuestion) -> Result<FitAnswer, FitError> {
    let FitQuestion { goal, step, reserve } = question;
    let least = || search::least_share(&tasks.set);
    let fit = search::find(&tasks.set, goal, step)
        .map_err(|error| FitError::NoFit { error, least: least() })?;
    let vms = search::vms_per_cpu(fit.reservation, reserve);
    if vms == 0 {
        return Err(FitError::OverCapacity { reservation: fit.reservation, least: least() });
    }
    let row = |period: Span| {
        let found = search::smallest_slice(&tasks.set, period, step.min(period)).ok();
        let with_vms = |fit: Fit| (fit.reservation, search::vms_per_cpu(fit.reservation, reserve));
        PeriodRow { period, fits: found.map(with_vms) }
    };
    let periods = search::usual_periods(&tasks.set).into_iter().map(row).collect();
    witnessed(tasks, fit, (vms, periods))
}

/// Answers which reservation of a share is never without CPU time for longer than a delay.
///
/// # Errors
/// If the period would be shorter than a microsecond, or if a simulation fails, which is a bug.
pub fn answer_delay(
    share: CpuShare,
    delay: Span,
    reserve: CpuShare,
) -> Result<FitAnswer, FitError> {
    let (set, fit) = search::fit_delay(share, delay).ok_or(FitError::Delay)?;
    let percent = f64::from(share.ppm()) / 10_000.0;
    let title = format!("{percent} % of a CPU that never waits longer than {delay}");
    let tasks = NamedTasks { title, names: vec!["probe".into()], set };
    let vms = search::vms_per_cpu(fit.reservation, reserve);
    if vms == 0 {
        return Err(FitError::OverCapacity { reservation: fit.reservation, least: None });
    }
    witnessed(tasks, fit, (vms, Vec::new()))
}

fn witnessed(
    tasks: NamedTasks,
    fit: Fit,
    (vms, periods): (u64, Vec<PeriodRow>),
) -> Result<FitAnswer, FitError> {
    let miss = miss_below(&tasks, &fit)?;
    let within = fit.below.and_then(|(_, refutation)| refutation.misses_within());
    let length = within.unwrap_or(LONGEST_CHECK).min(LONGEST_CHECK);
    let check = WorstPhase::new(&tasks, fit.reservation, length).run(None::<std::io::Sink>)?;
    if let Some(miss) = check.first_miss {
        return Err(RunPhaseError::Contradiction(miss).into());
    }
    Ok(FitAnswer { tasks, fit, miss, check, vms, periods })
}
