//! The worker of the daemon: answers questions about a recording that it reads from a pipe.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use slackline_control::{Kind, WhatIf};
use slackline_daemon::worker::{PredictionFields, WorkerQuestion, main};
use slackline_trace::Reader;
use slackline_whatif::{Edit, Gate, Model, Recording, forecast, gate};

use super::periods::periods;
use super::{
    Answer, NAME_OF_LAST, RecordingReader, gate_refusal, json, no_model, problem, refused,
};
use crate::edits::{bad_edit, cpu_list};
use crate::names::Names;
use crate::problem::Problem;

/// Recording with the result of the gate, which decides if predictions from it are possible.
struct LoadedRecording {
    recording: Recording,
    gate: Gate,
}

pub(crate) fn worker() -> ExitCode {
    main(
        |bytes| load(&bytes).map_err(|problem| in_service(&problem)),
        |loaded, question| answer(loaded, question).map_err(|problem| in_service(&problem)),
    )
}

fn load(bytes: &[u8]) -> Result<LoadedRecording, Problem> {
    let file = Path::new(NAME_OF_LAST);
    let bad = |error| Problem::BadTrace { file: file.into(), error };
    let mut names = Names::default();
    Reader::new(bytes).map_err(bad)?.pass_to(&mut names).map_err(bad)?;
    let implausible = |error| Problem::Implausible { file: file.into(), error };
    names.effort.check().map_err(implausible)?;
    let trace = Reader::new(bytes).map_err(bad)?;
    let recording = RecordingReader { file, names: &names }.read(trace)?;
    let model = Model::new(&recording).map_err(|error| no_model(&error))?;
    let gate = gate(&recording, &model).map_err(|error| problem(file, error))?;
    Ok(LoadedRecording { recording, gate })
}

fn answer(
    loaded: &LoadedRecording,
    question: &WorkerQuestion,
) -> Result<PredictionFields, Problem> {
    let LoadedRecording { recording, gate } = loaded;
    let mut model = Model::new(recording).map_err(|error| no_model(&error))?;
    let policy = model.policy();
    let edits = edits(&question.asked)?;
    model.edit(&edits).map_err(|error| bad_edit(&error))?;
    let answer = Answer { recording, gate, model: &model, policy: &policy };
    if question.asked.periods {
        let mut all = json::gate(&answer);
        all["periods"] = periods(&answer);
        return Ok(for_caller(all, question));
    }
    if edits.is_empty() {
        return Ok(for_caller(json::gate(&answer), question));
    }
    gate_refusal(NAME_OF_LAST, gate)?;
    let file = Path::new(NAME_OF_LAST);
    let forecast = forecast(recording, gate, &model).map_err(|error| refused(file, error))?;
    Ok(for_caller(json::forecast(&answer, &forecast), question))
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

/// Removes the numbers of VMs that the caller may not see.
fn for_caller(answer: Value, question: &WorkerQuestion) -> PredictionFields {
    let Value::Object(answer) = answer else { return PredictionFields::new() };
    let mut answer: PredictionFields = answer.into_iter().collect();
    let Some(own) = &question.own else { return answer };
    let added = question.asked.add.iter().map(|added| &added.name);
    let own: Vec<&String> = own.iter().chain(added).collect();
    let is_own = |row: &Value| {
        let name = row["name"].as_str().unwrap_or_default();
        let vm = name.rsplit_once('.').map_or(name, |(vm, _)| vm);
        own.iter().any(|own| *own == name || *own == vm)
    };
    let keep_own = |rows: &mut Value| {
        if let Value::Array(rows) = rows {
            rows.retain(is_own);
        }
    };
    if let Some(rows) = answer.get_mut("vcpus") {
        keep_own(rows);
    }
    if let Some(periods) = answer.get_mut("periods") {
        keep_own(&mut periods["vms"]);
    }
    if let Some(Value::Array(forms)) = answer.get_mut("gate").map(|gate| &mut gate["forms"]) {
        forms.iter_mut().for_each(|form| keep_own(&mut form["vcpus"]));
    }
    if let Some(Value::Array(losses)) = answer.get_mut("losses") {
        for loss in losses.iter_mut().filter(|loss| !is_own(loss)) {
            let says = "less CPU time, more deadline misses or a longer wait";
            *loss = json!({
                "name": loss["name"], "share_ppm": 0, "misses": 0, "wait_p99": null, "says": says
            });
        }
    }
    answer
}

/// Returns a problem as the service reports it.
fn in_service(problem: &Problem) -> slackline_control::Problem {
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
