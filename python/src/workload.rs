//! CPU series and task sets of other programs as scenarios.

use std::path::PathBuf;
use std::str::FromStr as _;

use pyo3::prelude::*;
use slackline_units::ParseShareError;
use slackline_workload::{
    BurstModel, Kind, Options, SetOptions, SourceFile, TimeUnit, WorkloadError, convert,
    convert_tasks,
};

use crate::error::{self, SlacklineError};
use crate::files;
use crate::scenario::{NamedFiles, Scenario};
use crate::task_set::TaskSet;
use crate::value::{shown, span};

/// Arguments of a conversion, parsed.
struct Conversion {
    kind: Kind,
    files: Vec<String>,
    options: Options,
}

impl Conversion {
    /// Reads the files and converts them, without the interpreter's lock.
    fn convert<T: Send>(
        &self,
        py: Python<'_>,
        convert: impl Fn(Kind, &[SourceFile<'_>], &Options) -> Result<T, WorkloadError> + Sync,
    ) -> PyResult<T> {
        let bytes = self.files.iter().map(|path| files::bytes(path));
        let bytes = bytes.collect::<PyResult<Vec<_>>>()?;
        let sources: Vec<SourceFile<'_>> =
            self.files.iter().zip(&bytes).map(|(name, bytes)| SourceFile { name, bytes }).collect();
        let converted = py.detach(|| convert(self.kind, &sources, &self.options));
        converted.map_err(|error| of_workload(&error))
    }
}

/// Turns CPU series or a task set of another program into a scenario.
///
/// `kind` is "bitbrains", "azure", "planetlab", "rt-app", "simso", "eva" or "uunifast". `files` are
/// paths: one for each VM of "bitbrains" and "planetlab", none for "uunifast", and one for all
/// other kinds. `bursts` says when a VM is runnable in an interval of a CPU series: "even",
/// "random" or "block". `burst` is the time between two jobs with "even", and the mean length of a
/// job with "random". `interval` is the simulated time that stands for each recorded interval of
/// five minutes. `intervals` is the first and the last recorded interval that are used, counted
/// from 0. `cpus` is the number of CPUs of the host, by default the smallest that suffices. `cores`
/// is the number of cores of a VM whose file does not state the number. `length` is the length of
/// the run if the file does not state a length. `unit` is the unit of the times of "eva": "ms",
/// "us" or "ns".
///
/// "uunifast" draws `tasks` tasks whose utilisations have the sum `utilisation` ("150%"), with
/// log-uniform `periods`. With `constrained=True` deadlines are shorter than the periods.
///
/// Returns the scenario and a list of all assumptions and repairs.
#[pyfunction]
#[pyo3(signature = (
    kind, files=None, *, bursts="even", burst="100ms", interval="1s", intervals=None, cpus=None,
    cores=1, length="10s", seed=1, unit="ms", tasks=5, utilisation="70%", periods=None,
    constrained=false
))]
#[allow(clippy::too_many_arguments)] // Python's keyword arguments.
pub(crate) fn import_workload(
    py: Python<'_>,
    kind: &str,
    files: Option<Vec<PathBuf>>,
    bursts: &str,
    burst: &str,
    interval: &str,
    intervals: Option<(usize, usize)>,
    cpus: Option<u16>,
    cores: u16,
    length: &str,
    seed: u64,
    unit: &str,
    tasks: u16,
    utilisation: &str,
    periods: Option<(String, String)>,
    constrained: bool,
) -> PyResult<(Scenario, Vec<String>)> {
    let counts = [("cpus", cpus.unwrap_or(1)), ("cores", cores)];
    if let Some((name, count)) = counts.into_iter().find(|(_, count)| !(1..=256).contains(count)) {
        let message = format!("{name} {count}: must be from 1 to 256");
        return Err(error::of_value(message, "leave it out for the default"));
    }
    let options = Options {
        bursts: vec![BurstModel::from_str(bursts).map_err(SlacklineError::new_err)?],
        burst: span("burst", burst)?,
        interval: span("interval", interval)?,
        part: intervals,
        cpus,
        cores,
        length: span("length", length)?,
        seed,
        unit: time_unit(unit)?,
        set: set(tasks, utilisation, periods, constrained)?,
    };
    let conversion = Conversion { kind: named(kind)?, files: paths(files), options };
    let written =
        conversion.convert(py, |kind, sources, options| convert(kind, sources, options, "jobs"))?;
    // The text names no files, so that sweeps can send it to other processes.
    let scenario = Scenario::of_text(py, (None, &written.inlined()), NamedFiles::None)?;
    Ok((scenario, written.assumptions))
}

/// Turns the tasks of another program into the task set of one guest, for `fit`.
///
/// `kind` is "eva", with one file, or "uunifast". The other arguments are those of
/// `import_workload`. Returns the task set and a list of all assumptions.
#[pyfunction]
#[pyo3(signature = (
    kind, files=None, *, seed=1, unit="ms", tasks=5, utilisation="70%", periods=None,
    constrained=false
))]
#[allow(clippy::too_many_arguments)] // Python's keyword arguments.
pub(crate) fn import_task_set(
    py: Python<'_>,
    kind: &str,
    files: Option<Vec<PathBuf>>,
    seed: u64,
    unit: &str,
    tasks: u16,
    utilisation: &str,
    periods: Option<(String, String)>,
    constrained: bool,
) -> PyResult<(TaskSet, Vec<String>)> {
    let set = set(tasks, utilisation, periods, constrained)?;
    let options = Options { seed, unit: time_unit(unit)?, set, ..Options::default() };
    let conversion = Conversion { kind: named(kind)?, files: paths(files), options };
    let written = conversion.convert(py, convert_tasks)?;
    Ok((TaskSet::of_text(py, (None, &written.text))?, written.assumptions))
}

fn paths(files: Option<Vec<PathBuf>>) -> Vec<String> {
    files.into_iter().flatten().map(|path| path.display().to_string()).collect()
}

fn time_unit(name: &str) -> PyResult<TimeUnit> {
    TimeUnit::named(name).ok_or_else(|| {
        let message = format!("there is no unit `{}`", shown(name));
        error::of_value(message, "use ms, us or ns")
    })
}

/// Reads the description of a random task set.
fn set(
    tasks: u16,
    utilisation: &str,
    periods: Option<(String, String)>,
    has_constrained_deadlines: bool,
) -> PyResult<SetOptions> {
    let utilisation = utilisation.parse().map_err(|why: ParseShareError| {
        let message = format!("utilisation `{}`: {why}", shown(utilisation));
        error::of_value(message, "write it as \"70%\" or \"1.5cpu\"")
    })?;
    let periods = match periods {
        Some((shortest, longest)) => (span("periods", &shortest)?, span("periods", &longest)?),
        None => SetOptions::default().periods,
    };
    Ok(SetOptions { tasks, utilisation, periods, has_constrained_deadlines })
}

fn named(name: &str) -> PyResult<Kind> {
    Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let names = Kind::ALL.map(Kind::name).join(", ");
        let message = format!("there is no kind `{}`; there are {names}", shown(name));
        error::of_value(message, "name one of them")
    })
}

fn of_workload(error: &WorkloadError) -> PyErr {
    error::hinted(SlacklineError::new_err(error.to_string()), error.hint())
}
