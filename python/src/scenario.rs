//! Scenarios: the VMs of a host, their shares, and what changes during the run.

use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use slackline_experiments::{file_bytes, with_seed};
use slackline_units::Span;

use crate::error::{self, NotAdmitted, ScenarioError};

/// A scenario: the VMs of a host, their shares, and what changes during the run.
///
/// `Scenario(text)` reads TOML as `slackline help scenario` describes. Raises ScenarioError with
/// the line, the column and a hint.
#[pyclass(frozen, module = "slackline")]
#[derive(Clone)]
pub(crate) struct Scenario {
    pub(crate) inner: slackline_scenario::Scenario,
}

/// Values for a run that replace the values in the scenario.
#[derive(Clone, Default)]
pub(crate) struct Overrides {
    pub(crate) seed: Option<u64>,
    pub(crate) length: Option<String>,
}

impl Scenario {
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
        match slackline_scenario::Scenario::read(text) {
            Ok(inner) => Ok(Scenario { inner }),
            Err(error) => Err(error::of_scenario(py, None, &error)),
        }
    }

    /// Reads a scenario file. Paths in the scenario are relative to the folder of the file.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Scenario> {
        let path = &path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| error::of_file(path, &error))?;
        let folder = Path::new(path).parent().unwrap_or(Path::new(""));
        let load = |name: &str| file_bytes(&folder.join(name));
        match slackline_scenario::Scenario::with_bytes(&text, &load) {
            Ok(inner) => Ok(Scenario { inner }),
            Err(error) => Err(error::of_scenario(py, Some(path), &error)),
        }
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

    /// Raises NotAdmitted if the vCPUs cannot be admitted together under the scenario's policy.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let scenario = &self.inner;
        let admitted = py.detach(|| scenario.admit().map_err(|error| error.to_string()));
        admitted.map_err(NotAdmitted::new_err)
    }

    fn __repr__(&self) -> String {
        format!("Scenario({:?}, policy={:?})", self.inner.title, self.policy())
    }
}
