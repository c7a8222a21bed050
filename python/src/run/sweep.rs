//! Runs of a chunk of a sweep, in one call from Python.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use rayon::prelude::*;
use slackline_experiments::SimulateError;
use slackline_metrics::{Field, FieldValue};
use slackline_scenario::ScenarioError;
use slackline_sim::RunError;

use super::Job;
use super::batch::Subjects;
use crate::columns::Table;
use crate::error::{self, SlacklineError};
use crate::interrupt::{StopFlag, interruptible};
use crate::metrics::MetricColumns;
use crate::scenario::{NamedFiles, Overrides, changed};

/// Scenarios of a chunk, by their numbers in the sweep.
type Scenarios = BTreeMap<u64, Result<slackline_scenario::Scenario, ScenarioError>>;

/// A run of a sweep: the number of its scenario, its policy and its seed.
type SweepRun = (u64, String, u64);

/// Reason why a run has no metrics.
enum NoMetrics {
    /// Admission refused the scenario.
    Refused,
    /// A signal ended the run.
    Stopped,
    /// The scenario is not valid for the policy.
    Scenario(ScenarioError),
    /// An argument of the call is wrong, as the exception states.
    Argument(PyErr),
    /// The simulation failed, which is a bug.
    Failed(SimulateError),
}

impl NoMetrics {
    /// Returns the exception with which a run without metrics ends the sweep.
    fn exception(self, py: Python<'_>, (number, policy, _): &SweepRun) -> PyErr {
        let raised = match self {
            NoMetrics::Scenario(error) => error::of_scenario(py, None, &error),
            NoMetrics::Argument(raised) => raised,
            NoMetrics::Failed(error) => return error::of_run(py, &error),
            NoMetrics::Refused | NoMetrics::Stopped => {
                return SlacklineError::new_err("the runs were stopped by a signal");
            }
        };
        let note = format!("in scenario {number} of the sweep, under policy {policy}");
        match raised.value(py).call_method1("add_note", (note,)) {
            Ok(_) => raised,
            Err(error) => error,
        }
    }
}

/// Simulates the runs of a chunk of a sweep on all cores, and returns the metrics of their vCPUs as
/// one table for Arrow.
///
/// `texts` has each scenario with its number, and `runs` the number of the scenario, the policy and
/// the seed of each run. The table has the rows in the order of the runs. The columns `scenario`,
/// `title`, `policy`, `seed` and `outcome` precede the metrics. A run that admission refuses has
/// one row without metrics, whose outcome is "refused".
#[pyfunction]
#[pyo3(name = "_sweep_rows", signature = (texts, runs, *, length=None))]
pub(crate) fn sweep_rows(
    py: Python<'_>,
    texts: Vec<(u64, String)>,
    runs: Vec<(u64, String, u64)>,
    length: Option<String>,
) -> PyResult<Table> {
    let (scenarios, made) = interruptible(py, |stop| {
        let parse =
            |(number, text): &(u64, String)| (*number, NamedFiles::None.scenario(text.as_str()));
        let scenarios: Scenarios = texts.par_iter().map(parse).collect();
        let rows = |run: &SweepRun| rows_of(&scenarios, run, length.as_ref(), stop);
        let made: Vec<Result<Vec<Vec<Field>>, NoMetrics>> = runs.par_iter().map(rows).collect();
        (scenarios, made)
    })?;
    let first: Option<&Vec<Field>> = made.iter().flatten().flatten().next();
    let missing = first.into_iter().flatten().map(|(name, _)| (*name, FieldValue::Missing));
    let missing: Vec<Field> = missing.collect();
    let mut columns = MetricColumns::default();
    for (run, rows) in runs.iter().zip(made) {
        let (rows, outcome) = match rows {
            Ok(rows) => (rows, "done"),
            Err(NoMetrics::Refused) => (vec![missing.clone()], "refused"),
            Err(reason) => return Err(reason.exception(py, run)),
        };
        let (number, policy, seed) = run;
        let title = scenarios.get(number).and_then(|one| one.as_ref().ok());
        let title = title.map_or("", |scenario| scenario.title.as_str());
        for row in rows {
            let mut whole = vec![
                ("scenario", FieldValue::Count(*number)),
                ("title", FieldValue::Text(title.to_owned())),
                ("policy", FieldValue::Text(policy.clone())),
                ("seed", FieldValue::Count(*seed)),
                ("outcome", FieldValue::Text(outcome.to_owned())),
            ];
            whole.extend(row);
            columns.push(&whole)?;
        }
    }
    columns.finish()
}

/// Makes one run, and returns the metrics of its vCPUs.
fn rows_of(
    scenarios: &Scenarios,
    (number, policy, seed): &SweepRun,
    length: Option<&String>,
    stop: &StopFlag,
) -> Result<Vec<Vec<Field>>, NoMetrics> {
    let scenario = match scenarios.get(number) {
        Some(Ok(scenario)) => scenario.with_policy(policy).map_err(NoMetrics::Scenario)?,
        Some(Err(error)) => return Err(NoMetrics::Scenario(error.clone())),
        None => {
            let missing = format!("the chunk lacks the text of scenario {number}");
            return Err(NoMetrics::Argument(SlacklineError::new_err(missing)));
        }
    };
    let overrides = Overrides { seed: Some(*seed), length: length.cloned() };
    let scenario = changed(scenario, &overrides).map_err(NoMetrics::Argument)?;
    let job = Job { scenario, policy: None, has_columns: false, save: None };
    match job.simulate(|_| stop.flow()) {
        Ok(Some(finished)) => Ok(Subjects::Vcpus.rows(&finished.numbers)),
        Ok(None) => Err(NoMetrics::Stopped),
        Err(SimulateError::Run(RunError::Declined(_))) => Err(NoMetrics::Refused),
        Err(SimulateError::Run(RunError::Scenario(error))) => Err(NoMetrics::Scenario(error)),
        Err(error) => Err(NoMetrics::Failed(error)),
    }
}
