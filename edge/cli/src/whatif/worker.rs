//! The worker of the daemon: answers questions about a recording that it reads from a pipe.

use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;
use slackline_control::{Kind, WhatIf};
use slackline_daemon::worker::{PredictionFields, WorkerQuestion, main, run_both};
use slackline_sim::RunError;
use slackline_trace::Reader;
use slackline_whatif::{
    Edit, ForecastError, Gate, Model, ModelError, Recording, forecast_with, gate_with,
};

use super::caller::{Caller, RefusedRecording};
use super::periods::periods;
use super::{
    Answer, NAME_OF_LAST, RecordingReader, gate_refusal, json, no_model, of_last_seconds, problem,
};
use crate::edits::{bad_edit, cpu_list};
use crate::names::Names;
use crate::problem::Problem;

/// Recording with its model, and the result of the gate: the check that decides if the recording
/// allows a prediction.
struct LoadedRecording {
    recording: Recording,
    model: Model,
    gate: Gate,
}

/// Recording that the worker loaded, or the reason why no prediction from it is possible.
type Loaded = Result<LoadedRecording, RefusedRecording>;

pub(crate) fn worker() -> ExitCode {
    main(
        |bytes| load(&bytes).map_err(in_service),
        |loaded, question| answer(loaded, question).map_err(in_service),
    )
}

fn load(bytes: &[u8]) -> Result<Loaded, Problem> {
    let file = Path::new(NAME_OF_LAST);
    let bad = |error| Problem::BadTrace { file: file.into(), error };
    let mut all = Reader::new(bytes).map_err(bad)?;
    let mut names = Names::with_cpus(all.header().cpus);
    all.pass_to(&mut names).map_err(bad)?;
    let implausible = |error| Problem::Implausible { file: file.into(), error };
    names.effort.check().map_err(implausible)?;
    let trace = Reader::new(bytes).map_err(bad)?;
    let recording = RecordingReader { file, names: &names }.read(trace)?;
    let model = match Model::new(&recording) {
        Ok(model) => model,
        Err(ModelError::AllLeftOut(vms)) => return Ok(Err(RefusedRecording::LeftOut(vms))),
        Err(error) => return Err(no_model(&error)),
    };
    let gate = match gate_with(run_both, &recording, &model) {
        Ok(gate) => gate,
        Err(ForecastError::Run(RunError::Declined(declined))) => {
            return Ok(Err(RefusedRecording::Declined(declined)));
        }
        Err(error) => return Err(problem(file, error)),
    };
    Ok(Ok(LoadedRecording { recording, model, gate }))
}

fn answer(loaded: &Loaded, question: &WorkerQuestion) -> Result<PredictionFields, Problem> {
    let loaded = loaded.as_ref().map_err(|refused| refused.problem(question))?;
    let recording = &loaded.recording;
    let caller = Caller::of(question);
    let gate = &caller.gate(&loaded.gate);
    let mut model = loaded.model.clone();
    let policy = model.policy();
    let edits = edits(&question.asked)?;
    caller.check(&edits)?;
    model.edit(&edits).map_err(|error| bad_edit(&error, false))?;
    let left_out = caller.visible(model.left_out());
    let (model, policy, left_out) = (&model, policy.as_str(), left_out.as_slice());
    let answer = Answer { recording, gate, model, policy, left_out };
    let file = Path::new(NAME_OF_LAST);
    if question.asked.periods {
        let mut all = json::gate(&answer);
        all["periods"] = periods(&answer, |error| caller.refused(file, error).to_string());
        return Ok(caller.answer(all));
    }
    if edits.is_empty() {
        return Ok(caller.answer(json::gate(&answer)));
    }
    gate_refusal(NAME_OF_LAST, gate)?;
    let forecast = forecast_with(run_both, recording, gate, model);
    let mut forecast = forecast.map_err(|error| caller.refused(file, error))?;
    let hidden = caller.hide_changes(&mut forecast);
    let mut all = json::forecast(&answer, &forecast);
    if let Some(Value::Array(limits)) = all.get_mut("not_known") {
        limits.extend(hidden.map(Value::from));
    }
    Ok(caller.answer(all))
}

/// Returns the changes of a question, in the order of the options of `slackline whatif`.
fn edits(asked: &WhatIf) -> Result<Vec<Edit>, Problem> {
    let mut edits: Vec<Edit> = asked.policy.iter().cloned().map(Edit::Policy).collect();
    let adds = asked.add.iter();
    edits.extend(adds.map(|it| Edit::Add { name: it.name.clone(), like: it.like.clone() }));
    edits.extend(asked.remove.iter().cloned().map(Edit::Remove));
    if let Some(cpus) = &asked.cpus {
        edits.push(Edit::Cpus(cpu_list(cpus)?));
    }
    for set in &asked.set {
        edits.extend(set.fields.iter().map(|(field, value)| Edit::Set {
            name: set.name.clone(),
            field: field.clone(),
            value: value.written(),
        }));
    }
    let moves = asked.moves.iter();
    edits.extend(moves.map(|it| Edit::Move { name: it.name.clone(), cpu: it.to_cpu }));
    Ok(edits)
}

/// Converts a problem to the form in which the service reports problems.
fn in_service(problem: Problem) -> slackline_control::Problem {
    let problem = of_last_seconds(problem);
    let kind = match problem {
        Problem::BadOption { .. } => Kind::Bad,
        Problem::NotAdmitted { .. } => Kind::NoRoom,
        Problem::NoForecast { .. } => Kind::NotNow,
        _ => Kind::Bug,
    };
    let refusal = slackline_control::Problem::new(kind, problem.to_string());
    match problem.hint() {
        Some(hint) => refusal.hinting(hint),
        None => refusal,
    }
}
