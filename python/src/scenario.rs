//! Scenarios: the VMs of a host, their shares, and what changes during the run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use slackline_experiments::room::{CpuRoom, RoomError, room};
use slackline_experiments::{file_bytes, with_seed};
use slackline_units::Span;

use crate::error::{self, NotAdmitted, ScenarioError};
use crate::files;
use crate::interrupt::interruptible;
use crate::value::span;

/// A scenario: the VMs of a host, their shares, and what changes during the run.
///
/// `Scenario(text)` reads TOML as `slackline help scenario` describes. Raises ScenarioError with
/// the line, the column and a hint.
#[pyclass(frozen, module = "slackline")]
#[derive(Clone)]
pub(crate) struct Scenario {
    pub(crate) inner: slackline_scenario::Scenario,
    pub(crate) files: NamedFiles,
}

/// Files that a scenario may name.
#[derive(Clone)]
pub(crate) enum NamedFiles {
    /// The scenario names no files.
    None,
    /// Files in a folder.
    Folder(PathBuf),
    /// Files that were made from a recording, by name.
    Made(Arc<Vec<(String, String)>>),
}

impl NamedFiles {
    /// Reads a scenario that may name these files.
    pub(crate) fn scenario(
        &self,
        text: &str,
    ) -> Result<slackline_scenario::Scenario, slackline_scenario::ScenarioError> {
        use slackline_scenario::Scenario;
        match self {
            NamedFiles::None => Scenario::read(text),
            NamedFiles::Folder(folder) => {
                Scenario::with_bytes(text, &|name| file_bytes(&folder.join(name)))
            }
            NamedFiles::Made(made) => Scenario::with_files(text, &|name| {
                let file = made.iter().find(|(known, _)| known == name);
                file.map(|(_, text)| text.clone()).ok_or_else(|| "there is no such file".into())
            }),
        }
    }
}

/// Values for a run that replace the values in the scenario.
#[derive(Clone, Default)]
pub(crate) struct Overrides {
    pub(crate) seed: Option<u64>,
    pub(crate) length: Option<String>,
}

impl Scenario {
    /// Reads a scenario from a text. `file` is the name of the scenario in messages.
    pub(crate) fn of_text(
        py: Python<'_>,
        (file, text): (Option<&str>, &str),
        files: NamedFiles,
    ) -> PyResult<Scenario> {
        match files.scenario(text) {
            Ok(inner) => Ok(Scenario { inner, files }),
            Err(error) => Err(error::of_scenario(py, file, &error)),
        }
    }

    /// Reads a scenario file whose text is known.
    pub(crate) fn of_file(py: Python<'_>, path: &str, text: &str) -> PyResult<Scenario> {
        let folder = Path::new(path).parent().unwrap_or(Path::new("")).to_owned();
        Scenario::of_text(py, (Some(path), text), NamedFiles::Folder(folder))
    }

    /// Returns the scenario with another built-in policy.
    pub(crate) fn under(
        &self,
        py: Python<'_>,
        policy: &str,
    ) -> PyResult<slackline_scenario::Scenario> {
        self.inner.with_policy(policy).map_err(|error| error::of_scenario(py, None, &error))
    }
}

/// Returns the scenario with another seed and length.
pub(crate) fn changed(
    scenario: slackline_scenario::Scenario,
    overrides: &Overrides,
) -> PyResult<slackline_scenario::Scenario> {
    let mut scenario = match overrides.seed {
        Some(seed) => with_seed(scenario, seed),
        None => scenario,
    };
    if let Some(text) = &overrides.length {
        let wrong = |why: String| ScenarioError::new_err(format!("length `{text}`: {why}"));
        let length: Span = text.parse().map_err(|error| wrong(format!("{error}")))?;
        if length <= scenario.warmup {
            return Err(wrong(format!("not longer than the warm-up of {}", scenario.warmup)));
        }
        scenario.length = length;
    }
    Ok(scenario)
}

#[pymethods]
impl Scenario {
    #[new]
    fn new(py: Python<'_>, text: &str) -> PyResult<Scenario> {
        Scenario::of_text(py, (None, text), NamedFiles::None)
    }

    /// Reads a scenario file. Paths in the scenario are relative to the folder of the file.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Scenario> {
        let path = &path.display().to_string();
        Scenario::of_file(py, path, &files::text(path)?)
    }

    /// Title of the scenario.
    #[getter]
    fn title(&self) -> &str {
        &self.inner.title
    }

    /// Policy as written in a scenario: its name, and the parameters that differ from the defaults.
    #[getter]
    fn policy(&self) -> String {
        self.inner.policy.to_string()
    }

    /// Length of a run in nanoseconds, including the warm-up.
    #[getter]
    fn length_ns(&self) -> u64 {
        self.inner.length.ns()
    }

    /// Length of the warm-up in nanoseconds, which metrics leave out.
    #[getter]
    fn warmup_ns(&self) -> u64 {
        self.inner.warmup.ns()
    }

    /// Seed of all random draws.
    #[getter]
    fn seed(&self) -> u64 {
        self.inner.seed
    }

    /// Number of CPUs of the host.
    #[getter]
    fn cpus(&self) -> usize {
        self.inner.host.cpus
    }

    /// Names of all vCPUs, in the order of their ids.
    #[getter]
    fn vcpus(&self) -> Vec<String> {
        self.inner.vcpus().map(|(_, name)| name).collect()
    }

    /// Text of the scenario.
    #[getter]
    fn text(&self) -> &str {
        &self.inner.text
    }

    /// True if the scenario names files, so that its text alone cannot be run.
    #[getter]
    fn names_files(&self) -> bool {
        match self.files {
            NamedFiles::None => false,
            // The text was valid with its files, so it fails only if it names a file.
            _ => NamedFiles::None.scenario(&self.inner.text).is_err(),
        }
    }

    /// Raises NotAdmitted if the vCPUs cannot be admitted together under the scenario's policy.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let scenario = &self.inner;
        let admitted = py.detach(|| scenario.admit().map_err(|error| error.to_string()));
        admitted.map_err(NotAdmitted::new_err)
    }

    /// Returns the largest slice that each CPU can still admit with this period. The slice is for
    /// one more VM, which stays until the end.
    ///
    /// The answer has the fields of `Service.room`: `period_ns`, and `cpus` with `cpu` and
    /// `slice_ns` for each CPU. `slice_ns` is 0 if the CPU admits nothing. `policy` is a built-in
    /// policy as on the command line. Raises SlacklineError if the shares of that policy reserve no
    /// time.
    #[pyo3(signature = (period="10ms", *, policy=None))]
    fn room<'py>(
        &self,
        py: Python<'py>,
        period: &str,
        policy: Option<&str>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let period = span("period", period)?;
        let inner = match policy {
            Some(policy) => self.under(py, policy)?,
            None => self.inner.clone(),
        };
        let read = |text: &str| self.files.scenario(text);
        let found = interruptible(py, |stop| room(&inner, period, read, &|| stop.flow()))?;
        let found = found.map_err(|error| match error {
            RoomError::NotAdmitted(error) => NotAdmitted::new_err(error.to_string()),
            RoomError::Scenario(error) => error::of_scenario(py, None, &error),
            other => error::of_value(
                format!("cannot compute the available capacity: {other}"),
                other.hint(),
            ),
        })?;
        let cpus = PyList::empty(py);
        for CpuRoom { cpu, slice } in found {
            let row = PyDict::new(py);
            row.set_item("cpu", cpu)?;
            row.set_item("slice_ns", slice.ns())?;
            cpus.append(row)?;
        }
        let answer = PyDict::new(py);
        answer.set_item("period_ns", period.ns())?;
        answer.set_item("cpus", cpus)?;
        Ok(answer)
    }

    fn __repr__(&self) -> String {
        format!("Scenario({:?}, policy={:?})", self.inner.title, self.policy())
    }
}

/// Reads a scenario and tests its admission, as `slackline check --json` does. Runs nothing.
///
/// Returns a dictionary: `title`, `policy`, the numbers of `cpus`, `domains`, `vcpus`, `changes`
/// and `claims`, `length_ns`, `admitted`, and `refused` with the reason of a refusal or None.
/// `scenario` is a Scenario or the path of a scenario file. This function does not raise
/// NotAdmitted, but the method `Scenario.check` does.
#[pyfunction]
pub(crate) fn check<'py>(
    py: Python<'py>,
    scenario: ScenarioOrPath<'py>,
) -> PyResult<Bound<'py, PyDict>> {
    let scenario = scenario.scenario(py)?;
    let inner = &scenario.inner;
    let refused = py.detach(|| inner.admit().err().map(|error| error.to_string()));
    let answer = PyDict::new(py);
    answer.set_item("title", &inner.title)?;
    answer.set_item("policy", inner.policy.to_string())?;
    answer.set_item("cpus", inner.host.cpus)?;
    answer.set_item("domains", inner.domains.len())?;
    answer.set_item("vcpus", inner.vcpus().count())?;
    answer.set_item("changes", inner.changes.len())?;
    answer.set_item("claims", inner.claims.len())?;
    answer.set_item("length_ns", inner.length.ns())?;
    answer.set_item("admitted", refused.is_none())?;
    answer.set_item("refused", refused)?;
    Ok(answer)
}

/// A scenario, or the path of its file.
#[derive(FromPyObject)]
pub(crate) enum ScenarioOrPath<'py> {
    Scenario(PyRef<'py, Scenario>),
    Path(PathBuf),
}

impl ScenarioOrPath<'_> {
    fn scenario(&self, py: Python<'_>) -> PyResult<Scenario> {
        match self {
            ScenarioOrPath::Scenario(scenario) => Ok((**scenario).clone()),
            ScenarioOrPath::Path(path) => Scenario::read(py, path.clone()),
        }
    }
}
