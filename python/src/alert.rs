//! ALERT, the allocation error test, as a Python function.

use std::sync::Arc;

use arrow_array::builder::{Int64Builder, StringDictionaryBuilder, UInt32Builder, UInt64Builder};
use arrow_array::types::UInt16Type;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use slackline_experiments::OverSeeds;
use slackline_experiments::alert::{
    Case, CaseError, CaseResult, Form, Trials, target_of_percent, usual_cases,
};
use slackline_experiments::grid::GridError;
use slackline_units::{CpuShare, Span};

use crate::columns::{Table, table};
use crate::error::{self, SlacklineError};
use crate::interrupt::interruptible;
use crate::value::{shown, span};

/// Minimum and maximum length of the test of one target share.
const LENGTHS: (Span, Span) = (Span::from_secs(1), Span::from_secs(24 * 3600));

/// Maximum number of tested seconds. The errors of so many seconds take 800 MB of memory.
const MOST_SECONDS: u64 = 100_000_000;

/// Results of a test of CPU allocation errors: how far the CPU time that a VM used differs from its
/// target share.
#[pyclass(frozen, module = "slackline")]
pub(crate) struct Alert {
    results: Vec<CaseResult>,
}

#[pymethods]
impl Alert {
    /// A list with a row for each policy and target share. A row is a dictionary with the keys of
    /// `slackline alert --json`: `case`, `target_ppm`, `seconds`, `error_least_ppm`,
    /// `error_median_ppm`, `error_most_ppm`, `error_mean_size_ppm`, and `whole_time_error_percent`
    /// with `least`, `median` and `most` over the seeds. Errors are `(used - target) / target`, in
    /// parts per million of the target.
    #[getter]
    fn targets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rows = PyList::empty(py);
        for result in &self.results {
            for target in result.targets() {
                rows.append(row(py, result, target)?)?;
            }
        }
        Ok(rows)
    }

    /// The error of each second, with the columns case, target_ppm, seed, second and error_ppm.
    #[getter]
    fn seconds(&self) -> PyResult<Table> {
        let mut case = StringDictionaryBuilder::<UInt16Type>::new();
        let (mut target, mut seed) = (UInt32Builder::new(), UInt64Builder::new());
        let (mut second, mut error) = (UInt64Builder::new(), Int64Builder::new());
        for result in &self.results {
            for run in &result.runs {
                for (at, &ppm) in run.seconds.iter().enumerate() {
                    case.append(&result.name)
                        .map_err(|error| SlacklineError::new_err(error.to_string()))?;
                    target.append_value(run.target.ppm());
                    seed.append_value(run.seed);
                    second.append_value(at as u64);
                    error.append_value(ppm);
                }
            }
        }
        table(vec![
            ("case", Arc::new(case.finish())),
            ("target_ppm", Arc::new(target.finish())),
            ("seed", Arc::new(seed.finish())),
            ("second", Arc::new(second.finish())),
            ("error_ppm", Arc::new(error.finish())),
        ])
    }

    fn __repr__(&self) -> String {
        let names: Vec<&str> = self.results.iter().map(|result| &*result.name).collect();
        format!("Alert({})", names.join(", "))
    }
}

fn row<'py>(
    py: Python<'py>,
    result: &CaseResult,
    target: CpuShare,
) -> PyResult<Bound<'py, PyDict>> {
    let errors = result.errors(None, |other| other == target);
    let row = PyDict::new(py);
    row.set_item("case", &result.name)?;
    row.set_item("target_ppm", target.ppm())?;
    row.set_item("seconds", errors.sorted().len())?;
    row.set_item("error_least_ppm", errors.smallest())?;
    row.set_item("error_median_ppm", errors.median())?;
    row.set_item("error_most_ppm", errors.largest())?;
    row.set_item("error_mean_size_ppm", errors.mean_size())?;
    let whole = result.averages(target).map(|of| over_seeds(py, of)).transpose()?;
    row.set_item("whole_time_error_percent", whole)?;
    Ok(row)
}

fn over_seeds(py: Python<'_>, of: OverSeeds) -> PyResult<Bound<'_, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("least", of.lowest)?;
    row.set_item("median", of.median)?;
    row.set_item("most", of.highest)?;
    Ok(row)
}

/// Measures how exactly simulated policies deliver a share in each second, as `slackline alert`
/// does (Cherkasova, Gupta, Vahdat 2007).
///
/// `policies` are built-in policies that can limit a VM, such as "credit" or "sedf:period=20ms".
/// The default is SEDF as published, Credit as published, and edf. With `smp=True` the default is
/// Credit only. `set` has parameters for all policies, such as ["period=10ms"]. `targets` are
/// shares in percent of a CPU. `length` is the time for which each share is tested, and `seeds` is
/// the number of runs of each test. `smp=True` limits three VMs on two CPUs. The defaults are those
/// of the paper: 3 minutes and 10 seeds. With `quick=True` the defaults are 20 seconds and 3 seeds.
/// The test uses all cores, and other Python threads can run.
#[pyfunction]
#[pyo3(signature = (
    policies=None, *, set=None, targets=None, length=None, seeds=None, smp=false, quick=false
))]
#[allow(clippy::too_many_arguments)] // Python's keyword arguments.
pub(crate) fn alert(
    py: Python<'_>,
    policies: Option<Vec<String>>,
    set: Option<Vec<String>>,
    targets: Option<Vec<f64>>,
    length: Option<&str>,
    seeds: Option<u64>,
    smp: bool,
    quick: bool,
) -> PyResult<Alert> {
    let form = if smp { Form::Smp } else { Form::One };
    let names =
        policies.unwrap_or_else(|| usual_cases(form).into_iter().map(str::to_owned).collect());
    let set = set.unwrap_or_default();
    let read = |name: &String| Case::read(name, &set).map_err(|error| of_case(&error));
    let cases = names.iter().map(read).collect::<PyResult<Vec<_>>>()?;
    let mut trials = if quick { Trials::quick(form) } else { Trials::as_published(form) };
    if let Some(targets) = targets {
        trials.targets = targets.into_iter().map(target).collect::<PyResult<_>>()?;
    }
    if let Some(text) = length {
        trials.length = span("length", text)?;
    }
    trials.seeds = seeds.unwrap_or(trials.seeds);
    check(&cases, &trials)?;
    let done = interruptible(py, |stop| trials.run(&cases, &|_| stop.flow()))?;
    match done {
        Ok(results) => Ok(Alert { results }),
        Err(GridError::Run { error, .. }) => Err(error::of_value(error.to_string(), &error.hint())),
        Err(GridError::Stopped(_)) => Err(SlacklineError::new_err("the test was stopped")),
    }
}

fn of_case(error: &CaseError) -> PyErr {
    error::of_value(shown(&error.to_string()), &error.hint())
}

fn target(percent: f64) -> PyResult<CpuShare> {
    target_of_percent(percent).ok_or_else(|| {
        let message = format!("targets has {percent}: each must be above 0 and at most 100");
        error::of_value(message, "write targets=[1, 2, 5, 10, 50]")
    })
}

/// Checks the length and the number of trials.
fn check(cases: &[Case], trials: &Trials) -> PyResult<()> {
    let (least, most) = LENGTHS;
    if !(least..=most).contains(&trials.length) {
        let message = format!("length {}: must be from {least} to {most}", trials.length);
        return Err(error::of_value(message, "write length=\"180s\""));
    }
    if !(1..=1000).contains(&trials.seeds) {
        let message = format!("seeds {}: must be from 1 to 1000", trials.seeds);
        return Err(error::of_value(message, "write seeds=10"));
    }
    if cases.is_empty() || trials.targets.is_empty() {
        let message = format!("{} policies and {} targets", cases.len(), trials.targets.len());
        return Err(error::of_value(message, "name at least one policy and one target"));
    }
    let runs = (cases.len() * trials.targets.len()) as u64;
    let seconds =
        runs.saturating_mul(trials.seeds).saturating_mul(trials.length.ns() / 1_000_000_000);
    if seconds > MOST_SECONDS {
        let message =
            format!("{seconds} seconds are tested in all; at most {MOST_SECONDS} are possible");
        return Err(error::of_value(message, "use a shorter length, or fewer seeds"));
    }
    Ok(())
}
