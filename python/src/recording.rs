//! Recordings: predictions from a trace, and replays of its decisions.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use slackline_replay::Replay;
use slackline_trace::{Effort, Reader, Record, Sink, VcpuName};
use slackline_units::{Span, Time};
use slackline_whatif::{
    Edit, Forecast, Form, Gate, LeftOutVm, Measures, Model, Recorder, Recording, forecast, gate,
};

use crate::error::{self, SlacklineError};

/// First and last time in a trace, and the amount of work of reading it ([`Effort`]).
#[derive(Default)]
struct Extent {
    began: Option<Time>,
    ended: Time,
    effort: Effort,
}

impl Sink for Extent {
    fn record(&mut self, record: &Record) {
        self.effort.record(record);
        let (from, to) = record.when();
        self.began = self.began.or(Some(from));
        self.ended = self.ended.max(to);
    }

    fn named(&mut self, named: &VcpuName) {
        self.effort.named(named);
    }
}

/// Predicts what other parameters, another policy or other VMs would have changed in a recording.
///
/// `recording` is a trace of `slackline record`, `slackline run --save`, `slackline sim --save` or
/// `slackline.run(..., save=...)`. `set` has parameters by VM or vCPU: {"web": {"slice": "3ms"}}.
/// `add` has new VMs, each with the VM that it copies: {"db2": "db"}. `remove` has the names of VMs
/// to leave out. `cpus` has the numbers of the CPUs of the host. `move` confines a VM or vCPU to
/// one CPU: {"web": 1}.
///
/// Returns a dictionary: `gate` says if the simulation of the unchanged recording repeats the
/// recording. `vcpus` has a row for each vCPU: its recorded metrics `now`, and its simulated
/// metrics `then`. `then` has up to two forms of the simulation. In the form "open", each job
/// becomes ready at its recorded time. In the form "closed", each job becomes ready after its
/// recorded think time. `other_phases` has results with other phases of changed reservations, if
/// they were simulated. The prediction is the interval of all results. `losses` lists the vCPUs
/// that the change harms. Without a change, or if the gate does not pass, `vcpus` is empty.
/// `left_out` lists the VMs that have no prediction, each with the reason `why`.
/// Times are nanoseconds, shares are parts per million of a CPU.
#[pyfunction]
#[pyo3(signature = (
    recording, *, set=None, policy=None, add=None, remove=None, cpus=None, r#move=None
))]
#[allow(clippy::too_many_arguments)] // Python's keyword arguments.
pub(crate) fn whatif<'py>(
    py: Python<'py>,
    recording: PathBuf,
    set: Option<BTreeMap<String, BTreeMap<String, String>>>,
    policy: Option<String>,
    add: Option<BTreeMap<String, String>>,
    remove: Option<Vec<String>>,
    cpus: Option<Vec<usize>>,
    r#move: Option<BTreeMap<String, usize>>,
) -> PyResult<Bound<'py, PyDict>> {
    let mut edits: Vec<Edit> = policy.into_iter().map(Edit::Policy).collect();
    let added = add.into_iter().flatten();
    edits.extend(added.map(|(name, like)| Edit::Add { name, like }));
    edits.extend(remove.into_iter().flatten().map(Edit::Remove));
    edits.extend(cpus.into_iter().map(Edit::Cpus));
    for (name, fields) in set.into_iter().flatten() {
        let of = |(field, value)| Edit::Set { name: name.clone(), field, value };
        edits.extend(fields.into_iter().map(of));
    }
    let moved = r#move.into_iter().flatten();
    edits.extend(moved.map(|(name, cpu)| Edit::Move { name, cpu }));
    let recording = recording.display().to_string();
    let (gate, forecast, vms) = py.detach(|| predict(&recording, &edits))?;
    let answer = PyDict::new(py);
    answer.set_item("gate", gate_row(py, &gate)?)?;
    let forms: Vec<&str> = gate.passing().map(|form| form_name(form.form)).collect();
    let (rows, harmed) = forecast.map_or_else(Default::default, |it| (it.rows, it.losses));
    let vcpus = PyList::empty(py);
    for row in &rows {
        let then = PyDict::new(py);
        for (form, measures) in forms.iter().zip(&row.then) {
            then.set_item(form, metrics(py, measures)?)?;
        }
        let vcpu = PyDict::new(py);
        vcpu.set_item("name", &row.name)?;
        vcpu.set_item("now", row.now.as_ref().map(|now| metrics(py, now)).transpose()?)?;
        vcpu.set_item("then", then)?;
        let others = row.in_other_phases.iter().map(|it| metrics(py, it));
        vcpu.set_item("other_phases", others.collect::<PyResult<Vec<_>>>()?)?;
        vcpus.append(vcpu)?;
    }
    answer.set_item("vcpus", vcpus)?;
    let losses = PyList::empty(py);
    for loss in &harmed {
        let row = PyDict::new(py);
        row.set_item("name", &loss.name)?;
        row.set_item("share_ppm", loss.share_ppm)?;
        row.set_item("misses", loss.misses)?;
        row.set_item("wait_p99_ns", loss.wait_p99.map(|(now, then)| (now.ns(), then.ns())))?;
        losses.append(row)?;
    }
    answer.set_item("losses", losses)?;
    let left_out = PyList::empty(py);
    for vm in &vms {
        let row = PyDict::new(py);
        row.set_item("name", &vm.name)?;
        row.set_item("why", vm.why.to_string())?;
        left_out.append(row)?;
    }
    answer.set_item("left_out", left_out)?;
    Ok(answer)
}

/// Replays a trace through host and policy, and checks that all decisions are as recorded.
///
/// Returns the number of events and of decisions. Raises SlacklineError with the entry of the trace
/// at which a decision differs.
#[pyfunction]
pub(crate) fn replay(py: Python<'_>, recording: PathBuf) -> PyResult<(u64, u64)> {
    let recording = &recording.display().to_string();
    py.detach(|| {
        let bad = |why: &dyn ToString| failed(recording, why);
        checked(recording)?;
        let mut trace = open(recording)?;
        let mut replay = Replay::new(trace.header()).map_err(|error| bad(&error))?;
        trace.pass_to(&mut replay).map_err(|error| bad(&error))?;
        let result = replay.finish().map_err(|error| bad(&error))?;
        match result.difference {
            Some(difference) => Err(failed(
                recording,
                &format!("the replayed decisions differ from entry {} on", difference.entry),
            )),
            None => Ok((result.facts, result.orders)),
        }
    })
}

pub(crate) fn failed(file: &str, why: &dyn ToString) -> PyErr {
    SlacklineError::new_err(format!("{file}: {}", why.to_string()))
}

fn open(file: &str) -> PyResult<Reader<'static>> {
    let opened = File::open(file).map_err(|error| error::of_file(file, &error))?;
    Reader::new(opened).map_err(|error| failed(file, &error))
}

fn predict(file: &str, edits: &[Edit]) -> PyResult<(Gate, Option<Forecast>, Vec<LeftOutVm>)> {
    let recording = read(file)?;
    let bad = |why: &dyn ToString| failed(file, why);
    let mut model = Model::new(&recording).map_err(|error| bad(&error))?;
    let gate = gate(&recording, &model).map_err(|error| bad(&error))?;
    model
        .edit(edits)
        .map_err(|error| SlacklineError::new_err(format!("{error}; {}", error.hint())))?;
    let left_out = model.left_out();
    if edits.is_empty() || !gate.passes() {
        return Ok((gate, None, left_out));
    }
    let forecast = forecast(&recording, &gate, &model).map_err(|error| bad(&error))?;
    Ok((gate, Some(forecast), left_out))
}

/// Checks a whole trace before it is used, because damaged records could cause endless work.
fn checked(file: &str) -> PyResult<Extent> {
    let mut trace = open(file)?;
    let effort = Effort::with_cpus(trace.header().cpus);
    let mut extent = Extent { effort, ..Extent::default() };
    trace.pass_to(&mut extent).map_err(|error| failed(file, &error))?;
    extent.effort.check().map_err(|error| failed(file, &error))?;
    Ok(extent)
}

pub(crate) fn read(file: &str) -> PyResult<Recording> {
    let extent = checked(file)?;
    let mut trace = open(file)?;
    let mut recorder = Recorder::of_trace(trace.header(), extent.began, extent.ended);
    trace.pass_to(&mut recorder).map_err(|error| failed(file, &error))?;
    recorder.finish().map_err(|error| failed(file, &error))
}

const fn form_name(form: Form) -> &'static str {
    match form {
        Form::Open => "open",
        Form::Closed => "closed",
    }
}

fn gate_row<'py>(py: Python<'py>, gate: &Gate) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("passes", gate.passes())?;
    row.set_item("cause", gate.cause.as_ref().map(ToString::to_string))?;
    let forms: Vec<&str> = gate.passing().map(|form| form_name(form.form)).collect();
    row.set_item("forms", forms)?;
    Ok(row)
}

fn metrics<'py>(py: Python<'py>, of: &Measures) -> PyResult<Bound<'py, PyDict>> {
    let ns = |span: Option<Span>| span.map(Span::ns);
    let row = PyDict::new(py);
    row.set_item("share_ppm", of.share_ppm)?;
    row.set_item("deadlines", of.deadlines)?;
    row.set_item("misses", of.misses)?;
    row.set_item("wakes", of.wakes)?;
    for (name, span) in [
        ("wait_p50_ns", of.wait_p50),
        ("wait_p99_ns", of.wait_p99),
        ("response_p50_ns", of.response_p50),
        ("response_p99_ns", of.response_p99),
        ("slice_ns", of.reserved.map(|reserved| reserved.slice())),
        ("period_ns", of.reserved.map(|reserved| reserved.period())),
    ] {
        row.set_item(name, ns(span))?;
    }
    Ok(row)
}
