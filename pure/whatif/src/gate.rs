//! The gate: a test whether the simulation of an unchanged recording agrees with the recording. If
//! the test fails, no prediction is made.

use crate::cause::Cause;
use crate::change::LastChange;
use crate::form::Form;
use crate::model::Model;
use crate::recording::Recording;
use crate::simulate::{ForecastError, simulate};
use crate::tasks::{RunBoth, in_sequence, results};
use crate::verdict::{FormGate, GateRow};

/// Result of the gate: comparison of a recording with simulations of its unchanged model.
#[derive(Clone, Debug)]
pub struct Gate {
    /// Results of the gate: first for the open form, then for the closed form.
    pub forms: [FormGate; 2],
    /// Largest cause of the differences between recording and simulation. `None` if a form passes.
    pub cause: Option<Cause>,
    /// Last change of a VM during the recording. `None` if a form passes, or if no VM changed.
    pub change: Option<LastChange>,
}

impl Gate {
    /// Returns true if the simulation in at least one form passes the gate.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.forms.iter().any(FormGate::passes)
    }

    /// Returns the results of the forms that pass the gate.
    pub fn passing(&self) -> impl Iterator<Item = &FormGate> {
        self.forms.iter().filter(|form| form.passes())
    }
}

/// Simulates the unchanged model in both forms. Compares the second half of each simulation with
/// the second half of the recording.
///
/// # Errors
/// If the model cannot be simulated.
pub fn gate(recording: &Recording, model: &Model) -> Result<Gate, ForecastError> {
    gate_with(in_sequence, recording, model)
}

/// Returns the same result as [`gate`]. `run_both` runs the simulations of the two forms.
///
/// # Errors
/// If the model cannot be simulated.
pub fn gate_with(
    run_both: RunBoth,
    recording: &Recording,
    model: &Model,
) -> Result<Gate, ForecastError> {
    let judge = |form: &Form| -> Result<FormGate, ForecastError> {
        let run = simulate(model, &recording.demand, *form, recording.unjudged())?;
        let rows = recording.judged.iter().map(|recorded| {
            let simulated = run.measures.iter().find(|it| it.name == recorded.name).cloned();
            let tolerance = model.tolerance_of(recorded);
            let chance_ppm = recording.chance_ppm(recorded);
            GateRow { recorded: recorded.clone(), simulated, tolerance, chance_ppm }
        });
        Ok(FormGate { form: *form, rows: rows.collect() })
    };
    let forms = results(run_both, &Form::ALL, &judge);
    let forms = forms.into_iter().collect::<Result<Vec<FormGate>, ForecastError>>()?;
    let forms: [FormGate; 2] = forms.try_into().expect("two forms");
    let passes = forms.iter().any(FormGate::passes);
    let cause = (!passes).then(|| Cause::largest(recording, &forms));
    let change = if passes { None } else { LastChange::of(recording) };
    Ok(Gate { forms, cause, change })
}
