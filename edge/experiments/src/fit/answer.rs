//! Answers about the reservation of a task set: the reservation, a proof, and a run in which a
//! smaller reservation misses a deadline.

use slackline_fit::search::{self, Fit, Goal, NoFit, ReservationLimits};
use slackline_service::Terms;
use slackline_units::{CpuShare, Reservation, Span};
use thiserror::Error;

use super::phase::{PhaseRun, RunPhaseError, WorstPhase};
use super::tasks::NamedTasks;
use super::{MissWitness, miss_below};

/// Maximum length of the run that checks that the answer meets all deadlines.
const LONGEST_CHECK: Span = Span::from_secs(10);

/// A question about the reservation of a task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FitQuestion {
    /// Goal of the search for a reservation.
    pub goal: Goal,
    /// Step of the slice in the search. For [`Goal::Period`], the step of the period.
    pub step: Span,
    /// Part of each CPU that is never reserved.
    pub reserve: CpuShare,
}

/// Kind of reservation that a user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedReservation {
    /// The smallest slice for a period. If `period` is `None`, the period is half of the shortest
    /// of all task periods.
    Slice {
        /// Period of the reservation.
        period: Option<Span>,
    },
    /// The largest period for a given share.
    Period {
        /// Share of a CPU.
        share: CpuShare,
    },
    /// The period with which the largest number of identical VMs fits on a CPU. Reservations that a
    /// daemon accepts are preferred.
    MostVms,
}

/// Default step of the slices in the search.
const STEP: Span = Span::from_us(1);

/// Reason why no share fits some tasks.
const NO_SHARE: &str = "the tasks miss deadlines even with a whole CPU";

impl FitQuestion {
    /// Creates the question of a user about a task set. The step is a microsecond by default.
    #[must_use]
    pub fn about(
        tasks: &NamedTasks,
        asked: AskedReservation,
        step: Option<Span>,
        reserve: CpuShare,
    ) -> FitQuestion {
        let half = Span::from_us(tasks.set.shortest_period() / 2 / Span::from_us(1));
        let goal = match asked {
            AskedReservation::MostVms => Goal::Vms {
                reserve,
                limits: ReservationLimits { period: Terms::SHORTEST, slice: Terms::LEAST },
            },
            AskedReservation::Period { share } => Goal::Period { share },
            AskedReservation::Slice { period } => {
                Goal::Slice { period: period.unwrap_or(half.max(STEP)) }
            }
        };
        FitQuestion { goal, step: step.unwrap_or(STEP), reserve }
    }
}

/// Answer about the reservation of a task set.
#[derive(Clone, Debug)]
pub struct FitAnswer {
    /// Task set of the question.
    pub tasks: NamedTasks,
    /// Reservation with its proof.
    pub fit: Fit,
    /// Run in which a slightly smaller reservation misses a deadline. `None` if no such run was
    /// found.
    pub miss: Option<MissWitness>,
    /// Run with the reservation of the answer in its worst phase (see [`WorstPhase`]). All
    /// deadlines in the run are met. The length of the run is the time within which a reservation
    /// one step smaller misses a deadline. If that time is unknown or longer than 10 s, the length
    /// is 10 s.
    pub check: PhaseRun,
    /// Number of identical VMs with this reservation that fit on a CPU.
    pub vms: u64,
    /// Smallest slice for each of the usual periods. Empty if the question was about a delay.
    pub periods: Vec<PeriodRow>,
}

/// Smallest slice for one of the usual periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodRow {
    /// Period of the reservation.
    pub period: Span,
    /// Reservation, and number of identical VMs with this reservation that fit on a CPU. `None` if
    /// a whole CPU does not suffice.
    pub fits: Option<(Reservation, u64)>,
}

/// Reason why a question has no answer.
#[derive(Debug, Error)]
pub enum FitError {
    /// No reservation fits the tasks.
    #[error("{error}")]
    NoFit {
        /// Reason why the search found no reservation.
        error: NoFit,
        /// Smallest share of a CPU with which the tasks meet their deadlines in a reservation with
        /// the period [`search::SHORT_PERIOD`]. `None` if a whole CPU does not suffice.
        least: Option<CpuShare>,
    },
    /// Admission refuses the reservation on every CPU.
    #[error("no CPU can admit {reservation}")]
    OverCapacity {
        /// Smallest reservation that was found.
        reservation: Reservation,
        /// Goal of the search.
        goal: Goal,
        /// Smallest share of a CPU with which the tasks meet their deadlines in a reservation with
        /// the period [`search::SHORT_PERIOD`]. `None` if a whole CPU does not suffice, or if the
        /// question is a share with a delay.
        least: Option<CpuShare>,
    },
    /// A simulation failed or contradicted the proof. Either is a bug.
    #[error(transparent)]
    Run(#[from] RunPhaseError),
    /// The delay is so short that the period would be below a microsecond.
    #[error("no reservation with this share has so short a delay")]
    Delay,
    /// The delay is longer than [`search::LONGEST_DELAY`].
    #[error("the delay {0} is not below one hour")]
    LongDelay(Span),
    /// The share is more than a whole CPU, which no vCPU can use.
    #[error("a vCPU uses at most one CPU, but the share is {0}")]
    LargeShare(CpuShare),
    /// The share is a whole CPU. A VM with a whole CPU never waits, so it has no delay.
    #[error("a VM with a share of {0} is never without CPU time")]
    NoDelay(CpuShare),
}

/// Refusal of a question, as a front end prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FitRefusal {
    /// Description of the reason in one line.
    pub message: String,
    /// Advice in one line. `None` if there is none.
    pub hint: Option<String>,
    /// True if the question is not valid. False if no reservation suffices.
    pub is_bad_question: bool,
}

impl FitError {
    /// Returns the refusal for users. `what` names the file or value of the question, and `share`
    /// is the share in the question. `option` formats the name of an option for the front end.
    /// Returns `None` if the error is a bug.
    #[must_use]
    pub fn refusal(
        &self,
        what: &str,
        (share, reserve): (Option<CpuShare>, CpuShare),
        option: impl Fn(&str) -> String,
    ) -> Option<FitRefusal> {
        let refused = |why: String, hint: Option<String>| FitRefusal {
            message: format!("cannot fit {what}: {why}"),
            hint,
            is_bad_question: false,
        };
        let capacity = CpuShare::ONE.less(reserve);
        Some(match self {
            FitError::Run(_) => return None,
            FitError::Delay | FitError::LongDelay(_) | FitError::NoDelay(_) => {
                self.delay_refusal(&option)
            }
            FitError::LargeShare(share) => FitRefusal {
                hint: Some(match is_percentage_without_sign(*share) {
                    true => format!("did you mean {}%?", share.ppm() / 1_000_000),
                    false => format!("use a {} of at most 100%", option("share")),
                }),
                is_bad_question: true,
                ..refused(self.to_string(), None)
            },
            FitError::NoFit { error: error @ NoFit::Step { period, .. }, .. } => FitRefusal {
                hint: Some(match period.is_zero() {
                    true => format!("use a longer {}", option("period")),
                    false => format!("use a shorter {}", option("step")),
                }),
                is_bad_question: true,
                ..refused(error.to_string(), None)
            },
            FitError::NoFit { error, least } => {
                let (why, hint) = no_fit(error, *least, share, &option);
                refused(why, Some(hint))
            }
            FitError::OverCapacity { reservation, goal, least } => {
                let hint = Some(over_capacity_hint(*goal, (*least, capacity), option));
                let (needs, capacity) = (percent(reservation.share()), percent(capacity));
                let why = format!(
                    "{reservation} is {needs} of a CPU, and at most {capacity} can be reserved"
                );
                refused(why, hint)
            }
        })
    }
}

/// Returns the hint if admission refuses the reservation on every CPU. `least` is the smallest
/// share that suffices with a short period.
fn over_capacity_hint(
    goal: Goal,
    (least, capacity): (Option<CpuShare>, CpuShare),
    option: impl Fn(&str) -> String,
) -> String {
    let reserve = option("reserve");
    if let Some(least) = least.filter(|&least| least > capacity) {
        let (short, share) = (search::SHORT_PERIOD, percent(least));
        return format!("use a smaller {reserve}; with a period of {short}, {share} suffices");
    }
    match (goal, least) {
        (Goal::Slice { .. }, Some(least)) => {
            format!("use a shorter {}; {} can suffice", option("period"), percent(least))
        }
        (Goal::Slice { .. } | Goal::Vms { .. }, _) => {
            format!("use a shorter {}, or a smaller {reserve}", option("step"))
        }
        (Goal::Period { .. }, _) => {
            format!("use a smaller {}, or a smaller {reserve}", option("share"))
        }
    }
}

impl FitError {
    /// Returns the refusal of a delay that no reservation can keep.
    fn delay_refusal(&self, option: impl Fn(&str) -> String) -> FitRefusal {
        let hint = match self {
            FitError::LongDelay(_) => format!("use a shorter {}", option("delay")),
            FitError::NoDelay(_) => format!("use a {share} below 100%", share = option("share")),
            _ => format!(
                "use a longer {delay}, or a larger {share}",
                delay = option("delay"),
                share = option("share")
            ),
        };
        let message = match self {
            FitError::Delay => {
                "cannot fit the delay: the period of the reservation would be below 1us".into()
            }
            error => format!("cannot fit the delay: {error}"),
        };
        FitRefusal { message, hint: Some(hint), is_bad_question: true }
    }
}

impl FitAnswer {
    /// Returns true if a daemon accepts the reservation, as far as its slice and period are
    /// concerned.
    #[must_use]
    pub fn is_reservable(&self) -> bool {
        Terms::new(self.fit.reservation, true, 1).is_ok()
    }

    /// Returns a hint if no daemon accepts the reservation, or if its period is long for its tasks.
    /// `None` if neither is the case.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let period = self.fit.reservation.period();
        let shortest = self.tasks.set.shortest_period();
        if !self.is_reservable() {
            return Some(format!(
                "the daemon and `hold` refuse periods below {}, slices below {least}, and slices \
                 that leave less than {least} of the period; simulated policies accept them",
                Terms::SHORTEST,
                least = Terms::LEAST
            ));
        }
        (!self.periods.is_empty() && period > shortest * 2).then(|| {
            format!(
                "the period {period} is more than twice the shortest period of a task, {shortest}; \
                 a period of {shortest} or less needs a smaller share"
            )
        })
    }
}

/// Returns the reason and the hint if no reservation fits the tasks. `least` is the smallest share
/// that suffices with a short period.
fn no_fit(
    error: &NoFit,
    least: Option<CpuShare>,
    share: Option<CpuShare>,
    option: &dyn Fn(&str) -> String,
) -> (String, String) {
    let Some(least) = least else {
        let why = match error {
            NoFit::WholeCpu(_) | NoFit::Share { .. } => NO_SHARE.to_owned(),
            NoFit::Step { .. } => error.to_string(),
        };
        return (why, "move tasks to another vCPU, or give them later deadlines".into());
    };
    let why = match (error, share) {
        (NoFit::Share { shortest }, Some(share)) => format!(
            "with {} of a CPU the tasks miss deadlines with each period that was tried, down to \
             {shortest}",
            percent(share)
        ),
        _ => error.to_string(),
    };
    let hint = match share.is_some_and(|share| share < least) {
        true => format!(
            "use a larger {}: with a period of {}, {} suffices",
            option("share"),
            search::SHORT_PERIOD,
            percent(least)
        ),
        false => format!("use a shorter {}", option("step")),
    };
    (why, hint)
}

/// Returns true if a share is a whole number of CPUs above 1 that could be meant as a percentage.
fn is_percentage_without_sign(share: CpuShare) -> bool {
    (2_000_000..100_000_000).contains(&share.ppm()) && share.ppm().is_multiple_of(1_000_000)
}

/// Formats a share in percent of a CPU, with two decimals.
fn percent(share: CpuShare) -> String {
    let hundredths = (u64::from(share.ppm()) + 50) / 100;
    format!("{}.{:02} %", hundredths / 100, hundredths % 100)
}

/// Answers a question about a task set.
///
/// # Errors
/// If no reservation fits the tasks, or if a simulation fails, which is a bug.
pub fn answer(tasks: NamedTasks, question: FitQuestion) -> Result<FitAnswer, FitError> {
    let FitQuestion { goal, step, reserve } = question;
    if let Goal::Period { share } = goal
        && share > CpuShare::ONE
    {
        return Err(FitError::LargeShare(share));
    }
    let least = || search::least_share(&tasks.set);
    let fit = search::find(&tasks.set, goal, step)
        .map_err(|error| FitError::NoFit { error, least: least() })?;
    let vms = search::vms_per_cpu(fit.reservation, reserve);
    if vms == 0 {
        let (reservation, least) = (fit.reservation, least());
        return Err(FitError::OverCapacity { reservation, goal, least });
    }
    let row = |period: Span| {
        let found = search::smallest_slice(&tasks.set, period, step.min(period)).ok();
        let with_vms = |fit: Fit| (fit.reservation, search::vms_per_cpu(fit.reservation, reserve));
        PeriodRow { period, fits: found.map(with_vms) }
    };
    let periods = search::usual_periods(&tasks.set).into_iter().map(row).collect();
    witnessed(tasks, fit, (vms, periods))
}

/// Finds a reservation with the share `share` under which a VM never waits for CPU time for longer
/// than `delay`.
///
/// # Errors
/// If the share is a whole CPU, if the period would be shorter than a microsecond, or if the delay
/// is too long. Also if a simulation fails, which is a bug.
pub fn answer_delay(
    share: CpuShare,
    delay: Span,
    reserve: CpuShare,
) -> Result<FitAnswer, FitError> {
    if share > CpuShare::ONE {
        return Err(FitError::LargeShare(share));
    }
    if share == CpuShare::ONE {
        return Err(FitError::NoDelay(share));
    }
    if delay > search::LONGEST_DELAY {
        return Err(FitError::LongDelay(delay));
    }
    let (set, fit) = search::fit_delay(share, delay).ok_or(FitError::Delay)?;
    let percent = f64::from(share.ppm()) / 10_000.0;
    let title = format!("VM with {percent} % of a CPU, never without CPU time for over {delay}");
    let tasks = NamedTasks { title, names: vec!["probe".into()], set };
    let vms = search::vms_per_cpu(fit.reservation, reserve);
    if vms == 0 {
        let (reservation, goal) = (fit.reservation, Goal::Period { share });
        return Err(FitError::OverCapacity { reservation, goal, least: None });
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
