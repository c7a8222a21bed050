//! Answers of `fit` as Python objects.

use pyo3::prelude::*;
use slackline_experiments::fit::{FitAnswer, MissWitness, PeriodRow};
use slackline_fit::Proof;
use slackline_units::{Reservation, Time};

use crate::scenario::{NamedFiles, Scenario};
use crate::task_set::{FitTask, rows};

/// A reservation: a slice in every period. Times are nanoseconds.
#[pyclass(frozen, get_all, module = "slackline")]
#[derive(Clone)]
pub(crate) struct FitReservation {
    /// CPU time in each period.
    pub(crate) slice_ns: u64,
    /// Length of a period.
    pub(crate) period_ns: u64,
    /// Share of a CPU in parts per million.
    pub(crate) share_ppm: u32,
}

#[pymethods]
impl FitReservation {
    fn __repr__(&self) -> String {
        format!("FitReservation(slice_ns={}, period_ns={})", self.slice_ns, self.period_ns)
    }
}

/// Point of a proof under EDF: the demand in intervals of one length, and the interval that
/// supplies it. Times are nanoseconds.
#[pyclass(frozen, get_all, module = "slackline")]
#[derive(Clone)]
pub(crate) struct ProofPoint {
    /// Length of the interval.
    interval_ns: u64,
    /// CPU time of all jobs that are released and due in an interval of this length.
    demand_ns: u64,
    /// Length of an interval in which the reservation always supplies `demand_ns`.
    supplied_within_ns: u64,
}

/// Longest response time of a task under fixed priorities. Times are nanoseconds.
#[pyclass(frozen, get_all, module = "slackline")]
#[derive(Clone)]
pub(crate) struct TaskResponse {
    /// Name of the task.
    name: String,
    /// Longest response time of a job.
    response_ns: u64,
    /// Time from the release of a job until it must be done.
    deadline_ns: u64,
    /// CPU time of the task and of all tasks with higher priorities in the response time.
    demand_ns: u64,
}

/// Proof that all jobs meet their deadlines in the reservation.
#[pyclass(frozen, get_all, module = "slackline")]
#[derive(Clone)]
pub(crate) struct FitProof {
    /// "demand" under EDF, "responses" under fixed priorities.
    kind: String,
    /// Longest time for which the VM can be busy with the tasks, in nanoseconds. None under fixed
    /// priorities.
    longest_busy_ns: Option<u64>,
    /// Points that together cover all intervals. Empty under fixed priorities.
    points: Vec<ProofPoint>,
    /// Response times in the order of the priorities. Empty under EDF.
    tasks: Vec<TaskResponse>,
}

/// Run in which a slightly smaller reservation misses a deadline or breaks a claim. Times are
/// nanoseconds from the start of the run.
#[pyclass(frozen, get_all, module = "slackline")]
#[derive(Clone)]
pub(crate) struct FitTrace {
    /// Reservation that is too small.
    pub(crate) reservation: FitReservation,
    /// Task that misses its deadline. None if the answer was found by simulation.
    pub(crate) task: Option<String>,
    /// Time at which the job was released. None if the answer was found by simulation.
    pub(crate) released_ns: Option<u64>,
    /// Deadline of the job. None if the answer was found by simulation.
    pub(crate) deadline_ns: Option<u64>,
    /// Time at which the job was done. None if it was not done when the run ended.
    pub(crate) done_ns: Option<u64>,
    /// Seed with which a claim fails. None if the answer has a proof.
    pub(crate) seed: Option<u64>,
    /// Claim that fails, and the measured value. None if the answer has a proof.
    pub(crate) claim: Option<String>,
    /// Scenario of the run. `slackline.run(trace.scenario)` repeats it.
    pub(crate) scenario: Scenario,
}

/// Smallest slice for a period other than that of the answer. Times are nanoseconds.
#[pyclass(frozen, get_all, module = "slackline")]
#[derive(Clone)]
pub(crate) struct FitPeriod {
    /// Period of the reservation.
    period_ns: u64,
    /// Smallest reservation. None if a whole CPU does not suffice.
    reservation: Option<FitReservation>,
    /// Number of equal VMs that fit on a CPU.
    vms_per_cpu: u64,
}

/// Periods with which `most_vms=True` searched for more VMs. Times are nanoseconds.
#[pyclass(frozen, get_all, module = "slackline")]
#[derive(Clone)]
pub(crate) struct TriedPeriods {
    /// Number of periods that were tried.
    count: u64,
    /// Shortest of the tried periods.
    shortest_ns: u64,
    /// Longest of the tried periods.
    longest_ns: u64,
    /// Step of the tried slices. It is at most the period.
    step_ns: u64,
    /// Shortest slice that was tried. 0 if each slice was allowed.
    shortest_slice_ns: u64,
    /// True if the utilisation of the tasks excludes one more VM, whatever the period.
    is_most: bool,
}

/// Answer of `fit`. Fields have the names of `slackline fit --json`.
#[pyclass(frozen, get_all, module = "slackline")]
#[derive(Clone)]
pub(crate) struct Fit {
    /// Title of the task set or of the scenario.
    pub(crate) title: String,
    /// The smallest reservation that suffices.
    pub(crate) reservation: FitReservation,
    /// Evidence for the answer: "proof" or "seeds", and "trace" if `trace` is not None.
    pub(crate) witnesses: Vec<String>,
    /// Proof that the reservation suffices. None if the reservation was found by simulation.
    pub(crate) proof: Option<FitProof>,
    /// Run in which a slightly smaller reservation misses a deadline or breaks a claim. None if no
    /// such run is known.
    pub(crate) trace: Option<FitTrace>,
    /// Run in which the largest slice that admission accepts breaks a claim. None if no claim
    /// limits the slice from above, and for a task set.
    pub(crate) larger: Option<FitTrace>,
    /// Advice in one line, for example that the period is long. None if there is no advice.
    pub(crate) hint: Option<String>,
    /// Tasks of a task set. Empty for a scenario.
    pub(crate) tasks: Vec<FitTask>,
    /// Scheduler of the guest: "edf" or "fixed". None if the source is a scenario.
    pub(crate) scheduler: Option<String>,
    /// Part of a CPU that the tasks use, in parts per million. None if the source is a scenario.
    pub(crate) utilisation_ppm: Option<u64>,
    /// Number of equal VMs that fit on a CPU. None if the source is a scenario.
    pub(crate) vms_per_cpu: Option<u64>,
    /// Periods that were tried. None unless the question was `most_vms=True`.
    pub(crate) tried_periods: Option<TriedPeriods>,
    /// Smallest slices for other periods. Empty for a scenario, and for a question with `delay`.
    pub(crate) periods: Vec<FitPeriod>,
    /// Number of jobs that a simulation of the worst phase of the reservation completed, all before
    /// their deadlines. None if the source is a scenario.
    pub(crate) simulated_jobs: Option<u64>,
    /// Name of the VM in the scenario. None if the source is a task set.
    pub(crate) vm: Option<String>,
    /// Policy of the scenario. None if the source is a task set.
    pub(crate) policy: Option<String>,
    /// Number of seeds in the search. The test after the search uses the same number of new seeds.
    /// None if the source is a task set.
    pub(crate) seeds: Option<u64>,
    /// First seed of the search. None if the source is a task set.
    pub(crate) first_seed: Option<u64>,
    /// First seed of the test after the search. None if the source is a task set.
    pub(crate) first_fresh_seed: Option<u64>,
    /// Upper bound of the failure rate: the fraction of all seeds with which a claim fails, from 0
    /// to 1. None if the source is a task set.
    pub(crate) failing_seeds_at_most: Option<f64>,
    /// Confidence of `failing_seeds_at_most`, from 0 to 1. None if the source is a task set.
    pub(crate) confidence: Option<f64>,
    /// Number of simulated runs of the search. None if the source is a task set.
    pub(crate) runs: Option<u64>,
}

#[pymethods]
impl Fit {
    fn __repr__(&self) -> String {
        let FitReservation { slice_ns, period_ns, .. } = self.reservation;
        let witnesses = self.witnesses.join(", ");
        format!("Fit(slice_ns={slice_ns}, period_ns={period_ns}, witnesses: {witnesses})")
    }
}

/// Returns a reservation as a Python object.
pub(crate) fn reservation(of: Reservation) -> FitReservation {
    FitReservation {
        slice_ns: of.slice().ns(),
        period_ns: of.period().ns(),
        share_ppm: of.share().ppm(),
    }
}

impl Fit {
    /// Converts the answer about a task set.
    pub(crate) fn of_tasks(py: Python<'_>, answer: &FitAnswer) -> PyResult<Fit> {
        let trace = answer.miss.as_ref().map(|miss| trace(py, miss)).transpose()?;
        let witnesses = [Some("proof"), trace.as_ref().map(|_| "trace")];
        Ok(Fit {
            title: answer.tasks.title.clone(),
            reservation: reservation(answer.fit.reservation),
            witnesses: witnesses.into_iter().flatten().map(str::to_owned).collect(),
            proof: Some(proof(answer)),
            trace,
            larger: None,
            hint: answer.hint(),
            tasks: rows(&answer.tasks),
            scheduler: Some(answer.tasks.set.scheduler().name().to_owned()),
            utilisation_ppm: Some(answer.tasks.set.utilisation_ppm()),
            vms_per_cpu: Some(answer.vms),
            tried_periods: answer.fit.tried.map(|tried| TriedPeriods {
                count: tried.count,
                shortest_ns: tried.shortest.ns(),
                longest_ns: tried.longest.ns(),
                step_ns: tried.step.ns(),
                shortest_slice_ns: tried.shortest_slice.ns(),
                is_most: tried.is_most,
            }),
            periods: answer.periods.iter().map(period).collect(),
            simulated_jobs: Some(answer.check.jobs),
            vm: None,
            policy: None,
            seeds: None,
            first_seed: None,
            first_fresh_seed: None,
            failing_seeds_at_most: None,
            confidence: None,
            runs: None,
        })
    }
}

fn proof(answer: &FitAnswer) -> FitProof {
    match &answer.fit.proof {
        Proof::Demand { points, busy } => FitProof {
            kind: "demand".into(),
            longest_busy_ns: Some(busy.ns()),
            points: points
                .iter()
                .map(|point| ProofPoint {
                    interval_ns: point.until.ns(),
                    demand_ns: point.demand.ns(),
                    supplied_within_ns: point.from.ns(),
                })
                .collect(),
            tasks: Vec::new(),
        },
        Proof::Responses(responses) => FitProof {
            kind: "responses".into(),
            longest_busy_ns: None,
            points: Vec::new(),
            tasks: responses
                .iter()
                .zip(&answer.tasks.names)
                .map(|(of, name)| TaskResponse {
                    name: name.clone(),
                    response_ns: of.response.ns(),
                    deadline_ns: of.deadline.ns(),
                    demand_ns: of.demand.ns(),
                })
                .collect(),
        },
    }
}

fn trace(py: Python<'_>, witness: &MissWitness) -> PyResult<FitTrace> {
    let at = |time: Time| Some(time.since(Time::START).ns());
    let miss = &witness.miss;
    Ok(FitTrace {
        reservation: reservation(witness.reservation),
        task: Some(miss.task.clone()),
        released_ns: at(miss.released),
        deadline_ns: at(miss.deadline),
        done_ns: miss.done.and_then(at),
        seed: None,
        claim: None,
        scenario: Scenario::of_text(py, (None, witness.phase.text()), NamedFiles::None)?,
    })
}

fn period(row: &PeriodRow) -> FitPeriod {
    FitPeriod {
        period_ns: row.period.ns(),
        reservation: row.fits.map(|(of, _)| reservation(of)),
        vms_per_cpu: row.fits.map_or(0, |(_, vms)| vms),
    }
}
