//! Predicts the results of an edited model.

use slackline_units::{Span, Time};

use crate::form::Form;
use crate::gate::Gate;
use crate::measure::Measures;
use crate::model::Model;
use crate::phases::OtherPhase;
use crate::recording::Recording;
use crate::simulate::{ForecastError, simulate};
use crate::tasks::{RunBoth, in_sequence, results};
use crate::verdict::Tolerance;

/// Prediction for an edited model.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// One row for each vCPU of the recording or of the edited model.
    pub rows: Vec<Row>,
    /// Changes of parameters during the run that admission would refuse: time, vCPU and reason.
    pub declined: Vec<(Time, String, String)>,
    /// vCPUs that lose by the edits: they get less CPU time, miss more deadlines, wait longer
    /// or respond later.
    /// The largest loss of share comes first.
    pub losses: Vec<Loss>,
}

/// Prediction for one vCPU: its recorded and its simulated results.
#[derive(Clone, Debug)]
pub struct Row {
    /// Display name of the vCPU.
    pub name: String,
    /// Recorded results. `None` if the edits added the vCPU.
    pub now: Option<Measures>,
    /// Simulated results, one for each [form](crate::Form) of the simulation that passed the
    /// [gate](crate::Gate). Empty if the edits removed the vCPU.
    pub then: Vec<Measures>,
    /// Simulated results with other phases of the changed reservations, in the [forms](crate::Form)
    /// that passed the [gate](crate::Gate). Empty for a simulated host, and if the prediction
    /// [assumes the recorded phases](Model::assumes_phases).
    pub in_other_phases: Vec<Measures>,
}

/// Loss of one vCPU through the edits: CPU time, deadlines or latency. Each result that is reported
/// as lost is worse in every simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Display name of the vCPU.
    pub name: String,
    /// Smallest loss of share in all simulations, in millionths of a CPU. Zero if the loss is
    /// within the [tolerance](Tolerance) of the gate.
    pub share_ppm: u64,
    /// Smallest number of additional deadline misses in all simulations.
    pub misses: u64,
    /// Recorded p99 wait and shortest simulated p99 wait. `None` unless the simulated wait is
    /// longer by more than a fifth and by more than 50 us.
    pub wait_p99: Option<(Span, Span)>,
    /// Recorded p99 response and shortest simulated p99 response. `None` unless the simulated
    /// response is longer by more than a fifth and by more than 50 us.
    pub response_p99: Option<(Span, Span)>,
}

/// Predicts the results of the edited model, in the [forms](crate::Form) of the simulation that
/// passed the [gate](crate::Gate).
///
/// # Errors
/// If the model cannot be simulated, for instance because admission refuses it.
pub fn forecast(
    recording: &Recording,
    gate: &Gate,
    model: &Model,
) -> Result<Forecast, ForecastError> {
    forecast_with(in_sequence, recording, gate, model)
}

/// Returns the same result as [`forecast`]. `run_both` runs the simulations.
///
/// # Errors
/// If the model cannot be simulated, for instance because admission refuses it.
pub fn forecast_with(
    run_both: RunBoth,
    recording: &Recording,
    gate: &Gate,
    model: &Model,
) -> Result<Forecast, ForecastError> {
    let warmup = recording.warmup();
    let others = model.other_phases(&recording.demand);
    let mut inputs: Vec<(Form, Option<&OtherPhase>)> = Vec::new();
    for form in gate.passing() {
        inputs.push((form.form, None));
        inputs.extend(others.iter().map(|other| (form.form, Some(other))));
    }
    let run = |&(form, other): &(Form, Option<&OtherPhase>)| match other {
        None => simulate(model, &recording.demand, form, warmup),
        Some(OtherPhase { model, delay }) => {
            simulate(model, &recording.demand, form, warmup + *delay)
        }
    };
    let mut then: Vec<Vec<Measures>> = Vec::new();
    let mut in_other_phases: Vec<Vec<Measures>> = Vec::new();
    let mut declined = Vec::new();
    for ((_, other), run) in inputs.iter().zip(results(run_both, &inputs, &run)) {
        let run = run?;
        match other {
            None => {
                then.push(run.measures);
                declined.extend(run.declined);
            }
            Some(_) => in_other_phases.push(run.measures),
        }
    }
    declined.sort();
    declined.dedup();
    let rows = rows(&recording.whole, &then, &in_other_phases);
    let mut losses: Vec<Loss> =
        rows.iter().filter_map(|row| row.loss(row.tolerance(model))).collect();
    losses.sort_by_key(|loss| (u64::MAX - loss.share_ppm, u64::MAX - loss.misses));
    Ok(Forecast { rows, declined, losses })
}

/// Joins recorded and simulated results by the name of the vCPU. Recorded vCPUs come first.
fn rows(now: &[Measures], then: &[Vec<Measures>], in_other_phases: &[Vec<Measures>]) -> Vec<Row> {
    let of = |runs: &[Vec<Measures>], name: &str| -> Vec<Measures> {
        runs.iter().filter_map(|run| run.iter().find(|it| it.name == name).cloned()).collect()
    };
    let row = |it: &Measures, now: Option<Measures>| Row {
        name: it.name.clone(),
        now,
        then: of(then, &it.name),
        in_other_phases: of(in_other_phases, &it.name),
    };
    let recorded = now.iter().map(|it| row(it, Some(it.clone())));
    let added = then.first().into_iter().flatten();
    let added = added.filter(|it| now.iter().all(|known| known.name != it.name));
    let added = added.map(|it| row(it, None));
    recorded.chain(added).collect()
}

impl Row {
    /// Returns the results of all simulations.
    pub fn simulated(&self) -> impl Iterator<Item = &Measures> {
        self.then.iter().chain(&self.in_other_phases)
    }

    /// Returns the smallest and the largest value of a result over all simulations. `None` if a
    /// simulation has no value.
    pub fn interval<T: Copy + Ord>(&self, of: impl Fn(&Measures) -> Option<T>) -> Option<(T, T)> {
        let values: Option<Vec<T>> = self.simulated().map(of).collect();
        let values = values?;
        Some((values.iter().copied().min()?, values.iter().copied().max()?))
    }

    /// Returns the smallest and the largest number of missed deadlines. The smallest number is from
    /// the simulations with the recorded phases only, because simulations with other phases are
    /// shorter. `None` if the vCPU has no reservation.
    #[must_use]
    pub fn misses(&self) -> Option<(u64, u64)> {
        let (_, most) = self.interval(|it| it.misses)?;
        let least = self.then.iter().filter_map(|it| it.misses).min()?;
        Some((least, most.max(least)))
    }

    /// Returns the largest of the tolerances with which the [gate](crate::Gate) would judge the
    /// recorded and the simulated results of the vCPU.
    #[must_use]
    pub fn tolerance(&self, model: &Model) -> Tolerance {
        let results = self.now.iter().chain(&self.then);
        let all = results.map(|results| model.tolerance_of(results));
        all.max_by_key(|tolerance| tolerance.share_ppm()).unwrap_or(model.tolerance())
    }

    /// Returns the loss of a vCPU that exists before and after the edits. A result is lost only if
    /// it is worse in every simulation. If no result is lost, returns `None`. Waits and responses
    /// count only if `tolerance` judges waits.
    fn loss(&self, tolerance: Tolerance) -> Option<Loss> {
        let now = self.now.as_ref()?;
        let share = self.interval(|it| Some(it.share_ppm))?;
        let share_ppm = now.share_ppm.saturating_sub(share.1);
        let share_ppm = if share_ppm > tolerance.share_ppm() { share_ppm } else { 0 };
        let misses = self.misses().zip(now.misses);
        let misses = misses.map_or(0, |((least, _), now)| least.saturating_sub(now));
        let is_longer = |(now, then): &(Span, Span)| {
            then.left_after(*now) > Span::from_us(50) && then.ns() > now.ns() / 10 * 12
        };
        let longer = |of: fn(&Measures) -> Option<Span>| {
            let ((least, _), now) = self.interval(of).zip(of(now))?;
            Some((now, least)).filter(|_| tolerance.judges_waits()).filter(is_longer)
        };
        let (wait_p99, response_p99) = (longer(|it| it.wait_p99), longer(|it| it.response_p99));
        let is_loss = share_ppm > 0 || misses > 0 || wait_p99.is_some() || response_p99.is_some();
        let name = self.name.clone();
        is_loss.then_some(Loss { name, share_ppm, misses, wait_p99, response_p99 })
    }
}
