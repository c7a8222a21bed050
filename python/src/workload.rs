//! CPU series and task sets of other programs as scenarios.

use std::path::PathBuf;
use std::str::FromStr as _;

use pyo3::prelude::*;
use slackline_units::Span;
use slackline_workload::{BurstModel, Kind, Options, SourceFile, WorkloadError, convert};

use crate::error::{self, SlacklineError};
use crate::scenario::Scenario;

/// Turns CPU series or a task set of another program into a scenario.
///
/// `kind` is "bitbrains", "azure", "planetlab", "rt-app" or "simso". `files` are paths: one for
/// each VM of "bitbrains" and "planetlab", else one. `bursts` says when a VM is runnable in an
/// interval of a CPU series: "even", "random" or "block". `interval` is the simulated length of
/// each interval of five minutes. `intervals` is the first and the last interval, counted from 0.
///
/// Returns the scenario and a list of all assumptions and repairs.
#[pyfunction]
#[pyo3(signature = (
    kind, files, *, bursts="even", burst="100ms", interval="1s", intervals=None, cpus=None, cores=1,
    length="10s", seed=1
))]
#[allow(clippy::too_many_arguments)] // Python's keyword arguments.
pub(crate) fn import_workload(
    py: Python<'_>,
    kind: &str,
    files: Vec<PathBuf>,
    bursts: &str,
    burst: &str,
    interval: &str,
    intervals: Option<(usize, usize)>,
    cpus: Option<u16>,
    cores: u16,
    length: &str,
    seed: u64,
) -> PyResult<(Scenario, Vec<String>)> {
    let options = Options {
        bursts: vec![BurstModel::from_str(bursts).map_err(SlacklineError::new_err)?],
        burst: span("burst", burst)?,
        interval: span("interval", interval)?,
        part: intervals,
        cpus,
        cores,
        length: span("length", length)?,
        seed,
    };
    let kind = named(kind)?;
    let files: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    let read = |path: &String| std::fs::read(path).map_err(|error| error::of_file(path, &error));
    let bytes = files.iter().map(read).collect::<PyResult<Vec<_>>>()?;
    let sources: Vec<SourceFile<'_>> =
        files.iter().zip(&bytes).map(|(name, bytes)| SourceFile { name, bytes }).collect();
    let written = py.detach(|| convert(kind, &sources, &options, "jobs"));
    let written = written.map_err(|error| of_workload(py, &error))?;
    // The text stands alone, so that sweeps can send it to other processes.
    let inner = slackline_scenario::Scenario::read(&written.inlined());
    let inner = inner.map_err(|error| error::of_scenario(py, None, &error))?;
    Ok((Scenario { inner }, written.assumptions))
}

fn named(name: &str) -> PyResult<Kind> {
    const KINDS: [Kind; 5] =
        [Kind::Bitbrains, Kind::Azure, Kind::PlanetLab, Kind::RtApp, Kind::SimSo];
    KINDS.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let names = KINDS.map(Kind::name).join(", ");
        SlacklineError::new_err(format!("there is no kind `{name}`; there are {names}"))
    })
}

fn span(name: &str, text: &str) -> PyResult<Span> {
    let span: Result<Span, _> = text.parse();
    let span = span.map_err(|why| SlacklineError::new_err(format!("{name} `{text}`: {why}")))?;
    if span.is_zero() {
        return Err(SlacklineError::new_err(format!("{name} `{text}`: must be above zero")));
    }
    Ok(span)
}

fn of_workload(py: Python<'_>, error: &WorkloadError) -> PyErr {
    let raised = SlacklineError::new_err(error.to_string());
    match raised.value(py).setattr("hint", error.hint()) {
        Ok(()) => raised,
        Err(error) => error,
    }
}
