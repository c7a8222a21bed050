//! Python exceptions, made from errors of Rust.

use pyo3::exceptions::PyOSError;
use pyo3::import_exception;
use pyo3::prelude::*;
use slackline_experiments::SimulateError;
use slackline_sim::RunError;

import_exception!(slackline._errors, SlacklineError);
import_exception!(slackline._errors, ScenarioError);
import_exception!(slackline._errors, NotAdmitted);
import_exception!(slackline._errors, ContractBroken);

/// Returns the exception for a scenario with an error.
pub(crate) fn of_scenario(
    py: Python<'_>,
    file: Option<&str>,
    error: &slackline_scenario::ScenarioError,
) -> PyErr {
    let place = match (file, error.line) {
        (None, 0) => String::new(),
        (Some(file), 0) => format!("{file}: "),
        (None, line) => format!("{line}:{}: ", error.column),
        (Some(file), line) => format!("{file}:{line}:{}: ", error.column),
    };
    let raised = ScenarioError::new_err(format!("{place}{}", error.kind));
    let at = |number: usize| (error.line > 0).then_some(number);
    let value = raised.value(py);
    let attributes = [("line", at(error.line)), ("column", at(error.column))];
    let set = attributes.into_iter().try_for_each(|(name, number)| value.setattr(name, number));
    match set.and_then(|()| value.setattr("hint", error.hint())) {
        Ok(()) => raised,
        Err(error) => error,
    }
}

/// Returns an exception of Slackline with advice.
pub(crate) fn hinted(raised: PyErr, hint: Option<&str>) -> PyErr {
    let set = Python::attach(|py| raised.value(py).setattr("hint", hint));
    match set {
        Ok(()) => raised,
        Err(error) => error,
    }
}

/// Returns the exception for a wrong value of an argument.
pub(crate) fn of_value(message: String, hint: &str) -> PyErr {
    hinted(SlacklineError::new_err(message), Some(hint))
}

/// Returns the exception for a file that cannot be read.
pub(crate) fn of_file(path: &str, error: &std::io::Error) -> PyErr {
    PyOSError::new_err(format!("cannot read {path}: {error}"))
}

/// Returns the exception for a failed simulation.
pub(crate) fn of_run(py: Python<'_>, error: &SimulateError) -> PyErr {
    match error {
        SimulateError::Run(RunError::Scenario(error)) => of_scenario(py, None, error),
        SimulateError::Run(RunError::Declined(declined)) => {
            NotAdmitted::new_err(declined.to_string())
        }
        SimulateError::Run(RunError::Broken(broken)) => ContractBroken::new_err(broken.to_string()),
        other => SlacklineError::new_err(other.to_string()),
    }
}
