//! Runs on the simulated host, and their results.

mod batch;
mod sweep;

use std::fs::File;
use std::io::{self, BufWriter};
use std::ops::ControlFlow;
use std::path::PathBuf;

use pyo3::exceptions::{PyKeyError, PyOSError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyType};
use slackline_experiments::{Meters, NamedMetric, Numbers, SimulateError};
use slackline_metrics::FieldValue;
use slackline_trace::{Exchange, Record, Sink, VcpuName, Writer};
use slackline_units::Time;

use batch::Subjects;

use crate::columns::{Columns, Table};
use crate::error::{self, SlacklineError};
use crate::metrics::MetricColumns;
use crate::policy::{PythonRun, python_policy};
use crate::scenario::{Overrides, Scenario, changed};

pub(crate) use batch::{run_many, run_rows};
pub(crate) use sweep::sweep_rows;

/// Results of one run. Metrics have the same names as in `slackline sim --json`.
#[pyclass(frozen, name = "Run", module = "slackline")]
pub(crate) struct RunResults {
    numbers: Numbers,
    /// Number of events that the simulator handled.
    events: u64,
    intervals: Option<Py<Table>>,
    changes: Option<Py<Table>>,
}

/// A run to be made: a scenario, and the values that replace values of the scenario.
#[derive(Clone)]
struct Job {
    scenario: slackline_scenario::Scenario,
    /// Name of the policy in the results. `None` unless the policy is written in Python.
    policy: Option<String>,
    has_columns: bool,
    /// Path of the file to which the trace is written. If `None`, no trace is written.
    save: Option<String>,
}

/// Results of a finished run, before they are converted to a `Run`.
struct FinishedJob {
    numbers: Numbers,
    events: u64,
    columns: Option<Columns>,
    /// Path of the saved trace and the result of writing it. `None` if no trace was requested.
    saved: Option<(String, io::Result<()>)>,
}

/// Sink that computes metrics and, if requested, stores columns and writes a trace.
struct Sinks {
    meters: Meters,
    columns: Option<Columns>,
    writer: Option<Writer<BufWriter<File>>>,
}

impl Sink for Sinks {
    fn record(&mut self, record: &Record) {
        self.meters.record(record);
        if let Some(columns) = &mut self.columns {
            columns.record(record);
        }
        if let Some(writer) = &mut self.writer {
            writer.record(record);
        }
    }

    fn named(&mut self, named: &VcpuName) {
        self.meters.named(named);
        if let Some(writer) = &mut self.writer {
            writer.named(named);
        }
    }

    fn wants_exchanges(&self) -> bool {
        self.writer.is_some()
    }

    fn exchange(&mut self, exchange: &Exchange) {
        if let Some(writer) = &mut self.writer {
            writer.exchange(exchange);
        }
    }
}

impl Job {
    /// Simulates the run. Returns `None` if `watch` stopped it.
    fn simulate(
        &self,
        mut watch: impl FnMut(Time) -> ControlFlow<()>,
    ) -> Result<Option<FinishedJob>, SimulateError> {
        let mut header = slackline_sim::trace_header(&self.scenario);
        if let Some(policy) = &self.policy {
            header.policy.clone_from(policy);
        }
        let names = || self.scenario.vcpus().map(|(_, name)| name).collect();
        let columns = self.has_columns.then(|| Columns::new(names()));
        let opened = self.save.as_ref().map(|path| (path.clone(), File::create(path)));
        let (writer, failed) = match opened {
            Some((_, Ok(file))) => (Some(Writer::new(BufWriter::new(file), &header)), None),
            Some((path, Err(error))) => (None, Some((path, Err(error)))),
            None => (None, None),
        };
        let mut sinks = Sinks { meters: Meters::new(&header), columns, writer };
        let finished = slackline_sim::run_while(&self.scenario, &mut sinks, &mut watch)?;
        if finished.stopped.is_some() {
            return Ok(None);
        }
        let numbers = sinks.meters.finish()?;
        let saved = match (sinks.writer, &self.save) {
            (Some(writer), Some(path)) => Some((path.clone(), writer.finish())),
            _ => failed,
        };
        Ok(Some(FinishedJob { numbers, events: finished.events, columns: sinks.columns, saved }))
    }
}

impl FinishedJob {
    fn into_run(self, py: Python<'_>) -> PyResult<RunResults> {
        if let Some((path, Err(error))) = &self.saved {
            return Err(PyOSError::new_err(format!("cannot write {path}: {error}")));
        }
        let (intervals, changes) = match self.columns.map(Columns::finish).transpose()? {
            Some((intervals, changes)) => {
                (Some(Py::new(py, intervals)?), Some(Py::new(py, changes)?))
            }
            None => (None, None),
        };
        Ok(RunResults { numbers: self.numbers, events: self.events, intervals, changes })
    }
}

/// Policy of a run: the policy of the scenario, a built-in policy by name, or a class written in
/// Python.
enum Choice<'py> {
    Own,
    BuiltIn(String),
    Python(Bound<'py, PyType>),
}

fn choice<'py>(policy: Option<&Bound<'py, PyAny>>) -> PyResult<Choice<'py>> {
    let Some(policy) = policy else { return Ok(Choice::Own) };
    if let Ok(name) = policy.extract::<String>() {
        return Ok(Choice::BuiltIn(name));
    }
    policy.cast::<PyType>().map(|class| Choice::Python(class.clone())).map_err(|_| {
        PyTypeError::new_err("policy must be the name of a built-in policy, or a class")
    })
}

/// Simulates a scenario and returns its results.
///
/// `policy` is a built-in policy as on the command line ("credit", "sedf:extra=false"), or a
/// subclass of slackline.Policy. `length` is a text such as "10s". With `columns=True` the result
/// has the run intervals and events for Arrow. `save` is the path of a trace to write, for `whatif`
/// and for `slackline show`. Other Python threads can run during the simulation, unless the policy
/// is written in Python.
#[pyfunction]
#[pyo3(signature = (scenario, *, policy=None, seed=None, length=None, columns=false, save=None))]
pub(crate) fn run(
    py: Python<'_>,
    scenario: &Scenario,
    policy: Option<&Bound<'_, PyAny>>,
    seed: Option<u64>,
    length: Option<String>,
    columns: bool,
    save: Option<PathBuf>,
) -> PyResult<RunResults> {
    let overrides = Overrides { seed, length };
    let save = save.map(|path| path.display().to_string());
    let job = |scenario, policy| -> PyResult<Job> {
        let (scenario, save) = (changed(scenario, &overrides)?, save.clone());
        Ok(Job { scenario, policy, has_columns: columns, save })
    };
    match choice(policy)? {
        Choice::Own => simulate(py, &job(scenario.inner.clone(), None)?),
        Choice::BuiltIn(name) => simulate(py, &job(scenario.under(py, &name)?, None)?),
        Choice::Python(class) => {
            let (inner, python) = python_policy(py, scenario, &class)?;
            simulate_python(py, &job(inner, Some(python.name.clone()))?, &python)
        }
    }
}

/// Simulates without holding the interpreter's lock. A signal such as Ctrl-C ends the run.
fn simulate(py: Python<'_>, job: &Job) -> PyResult<RunResults> {
    let mut signal = None;
    let finished = py.detach(|| {
        job.simulate(|_| match Python::attach(|py| py.check_signals()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                signal = Some(error);
                ControlFlow::Break(())
            }
        })
    });
    match finished {
        Ok(Some(finished)) => finished.into_run(py),
        Ok(None) => Err(signal.unwrap_or_else(|| SlacklineError::new_err("the run was stopped"))),
        Err(error) => Err(error::of_run(py, &error)),
    }
}

/// Simulates with a policy written in Python. The first exception of the policy ends the run.
fn simulate_python(py: Python<'_>, job: &Job, python: &PythonRun) -> PyResult<RunResults> {
    let mut signal = None;
    let finished = python.with(|| {
        job.simulate(|_| {
            signal = py.check_signals().err();
            match python.has_failed() || signal.is_some() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
    });
    if let Some(raised) = python.take_error().or(signal) {
        return Err(raised);
    }
    match finished {
        Ok(Some(finished)) => finished.into_run(py),
        Ok(None) => Err(SlacklineError::new_err("the run was stopped")),
        Err(error) => Err(error::of_run(py, &error)),
    }
}

/// Returns a row of metrics as a dictionary. An unknown value is None.
fn row<'py>(
    py: Python<'py>,
    fields: Vec<slackline_metrics::Field>,
) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    for (name, value) in fields {
        match value {
            FieldValue::Text(text) => row.set_item(name, text)?,
            FieldValue::Count(count) => row.set_item(name, count)?,
            FieldValue::Signed(number) => row.set_item(name, number)?,
            FieldValue::Flag(flag) => row.set_item(name, flag)?,
            FieldValue::Missing => row.set_item(name, py.None())?,
        }
    }
    Ok(row)
}

fn rows<'py>(
    py: Python<'py>,
    rows: Vec<Vec<slackline_metrics::Field>>,
) -> PyResult<Bound<'py, PyList>> {
    let rows: PyResult<Vec<_>> = rows.into_iter().map(|fields| row(py, fields)).collect();
    PyList::new(py, rows?)
}

#[pymethods]
impl RunResults {
    /// Metrics of the whole run.
    #[getter]
    fn summary<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        row(py, self.numbers.summary.fields())
    }

    /// Metrics of each vCPU.
    #[getter]
    fn vcpus<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        rows(py, self.numbers.summary.vcpu_fields())
    }

    /// Metrics of each domain (VM): sums over its vCPUs.
    #[getter]
    fn domains<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        rows(py, self.numbers.summary.domain_fields())
    }

    /// Metrics of each CPU.
    #[getter]
    fn cpus<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        rows(py, self.numbers.summary.cpu_fields())
    }

    /// Metrics of each named task.
    #[getter]
    fn tasks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        rows(py, self.numbers.summary.task_fields())
    }

    /// Metrics of each client.
    #[getter]
    fn clients<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        rows(py, self.numbers.summary.client_fields())
    }

    /// Returns metrics as a table for Arrow. `of` chooses the rows: one for each of the "vcpus",
    /// "domains", "cpus", "tasks" or "clients", or a single row for "summary".
    #[pyo3(signature = (of="vcpus"))]
    fn table(&self, of: &str) -> PyResult<Table> {
        let mut columns = MetricColumns::default();
        for row in Subjects::named(of)?.rows(&self.numbers) {
            columns.push(&row)?;
        }
        columns.finish()
    }

    /// Number of events that the simulator handled.
    #[getter]
    fn events(&self) -> u64 {
        self.events
    }

    /// Run intervals, with the columns from_ns, to_ns, used_ns, cpu, vcpu and reserved. None if the
    /// run was made without `columns=True`.
    #[getter]
    fn intervals(&self, py: Python<'_>) -> Option<Py<Table>> {
        self.intervals.as_ref().map(|table| table.clone_ref(py))
    }

    /// Joins, wake-ups, blocks, pauses and leaves, with the columns at_ns, vcpu and event. None if
    /// the run was made without `columns=True`.
    #[getter]
    fn changes(&self, py: Python<'_>) -> Option<Py<Table>> {
        self.changes.as_ref().map(|table| table.clone_ref(py))
    }

    /// Returns the metric with this name, in the notation of claims, such as "wake to run p99 of
    /// web". The value is in nanoseconds, parts per million, or a count. None if the run has no
    /// value of the metric. Raises KeyError for an unknown name.
    fn metric(&self, name: &str) -> PyResult<Option<i64>> {
        let words = name.split_whitespace().collect::<Vec<_>>().join(" ");
        let (metric, of) = match words.rsplit_once(" of ") {
            Some((metric, "total")) => (metric, None),
            Some((metric, of)) => (metric, Some(of)),
            None => (words.as_str(), None),
        };
        let known = self.numbers.summary.unit(metric, of);
        known.map_err(|error| PyKeyError::new_err(error.to_string()))?;
        Ok(NamedMetric::read(name).value(&self.numbers.summary))
    }

    fn __repr__(&self) -> String {
        let summary = &self.numbers.summary;
        format!("Run({:?}, policy={:?}, seed={})", summary.title, summary.policy, summary.seed)
    }
}
