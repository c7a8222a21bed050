//! Many runs at once, on all cores.

use pyo3::prelude::*;
use rayon::prelude::*;
use slackline_experiments::{Numbers, with_seed};
use slackline_metrics::{Field, FieldValue};

use super::{FinishedJob, Job, RunResults};
use crate::columns::Table;
use crate::error::{self, SlacklineError};
use crate::interrupt::interruptible;
use crate::metrics::MetricColumns;
use crate::scenario::{Overrides, Scenario, changed};
use crate::value::shown;

/// Runs of scenarios under built-in policies with several seeds.
struct Batch {
    /// Each scenario under each policy, the index of the scenario in the caller's list, and the
    /// policy's name. If the policy is the scenario's own policy, the name is `None`.
    cases: Vec<(slackline_scenario::Scenario, usize, Option<String>)>,
    seeds: Vec<u64>,
}

impl Batch {
    fn new(
        py: Python<'_>,
        scenarios: &[PyRef<'_, Scenario>],
        policies: &[Option<String>],
        (seeds, length): (Vec<u64>, Option<String>),
    ) -> PyResult<Batch> {
        let overrides = Overrides { seed: None, length };
        let mut cases = Vec::new();
        for (number, scenario) in scenarios.iter().enumerate() {
            for policy in policies {
                let inner = match policy {
                    Some(policy) => scenario.under(py, policy)?,
                    None => scenario.inner.clone(),
                };
                cases.push((changed(inner, &overrides)?, number, policy.clone()));
            }
        }
        Ok(Batch { cases, seeds })
    }

    /// Makes all runs on all cores, and returns the result of `keep` for each run. The runs of a
    /// case are adjacent, in the order of the seeds.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        keep: impl Fn(FinishedJob) -> T + Sync,
    ) -> PyResult<Vec<T>> {
        let all = self.cases.len() * self.seeds.len();
        let results = interruptible(py, |stop| {
            let simulate = |at: usize| {
                let (case, _, _) = &self.cases[at / self.seeds.len()];
                let scenario = with_seed(case.clone(), self.seeds[at % self.seeds.len()]);
                let job = Job { scenario, policy: None, has_columns: false, save: None };
                Ok(job.simulate(|_| stop.flow())?.map(&keep))
            };
            (0..all).into_par_iter().map(simulate).collect::<Result<Option<Vec<T>>, _>>()
        })?;
        match results {
            Ok(Some(kept)) => Ok(kept),
            Ok(None) => Err(SlacklineError::new_err("the runs were stopped by a signal")),
            Err(error) => Err(error::of_run(py, &error)),
        }
    }
}

/// Simulates scenarios under built-in policies with several seeds, on all cores.
///
/// Returns one list of runs for each scenario and policy, in the order of
/// `[(scenario, policy) for scenario in scenarios for policy in policies]`. Each list has one run
/// per seed. A policy of None stands for the policy of each scenario.
#[pyfunction]
#[pyo3(signature = (scenarios, policies, seeds, *, length=None))]
pub(crate) fn run_many(
    py: Python<'_>,
    scenarios: Vec<PyRef<'_, Scenario>>,
    policies: Vec<Option<String>>,
    seeds: Vec<u64>,
    length: Option<String>,
) -> PyResult<Vec<Vec<RunResults>>> {
    let batch = Batch::new(py, &scenarios, &policies, (seeds, length))?;
    let finished = batch.run(py, |finished| finished)?;
    let runs = finished.into_iter().map(|finished| finished.into_run(py));
    let mut runs = runs.collect::<PyResult<Vec<_>>>()?.into_iter();
    let each = batch.seeds.len();
    Ok(batch.cases.iter().map(|_| runs.by_ref().take(each).collect()).collect())
}

/// Simulates scenarios under built-in policies with several seeds, on all cores, and returns the
/// metrics as one table for Arrow.
///
/// The table has a row for each run and each subject: "vcpus", "domains", "cpus", "tasks",
/// "clients", or "summary" for one row per run. The columns `scenario` (an index), `policy` and
/// `seed` precede the metrics of `Run.table`. A policy of None stands for the policy of each
/// scenario.
#[pyfunction]
#[pyo3(signature = (scenarios, policies, seeds, *, of="vcpus", length=None))]
pub(crate) fn run_rows(
    py: Python<'_>,
    scenarios: Vec<PyRef<'_, Scenario>>,
    policies: Vec<Option<String>>,
    seeds: Vec<u64>,
    of: &str,
    length: Option<String>,
) -> PyResult<Table> {
    let of = Subjects::named(of)?;
    let batch = Batch::new(py, &scenarios, &policies, (seeds, length))?;
    let all = batch.run(py, |finished| of.rows(&finished.numbers))?;
    let mut columns = MetricColumns::default();
    for (at, rows) in all.into_iter().enumerate() {
        let (scenario, number, policy) = &batch.cases[at / batch.seeds.len()];
        let policy = policy.clone().unwrap_or_else(|| scenario.policy.to_string());
        for row in rows {
            // A summary row has these columns already.
            let is_own = |name: &str| matches!(name, "policy" | "seed");
            let mut whole = vec![
                ("scenario", FieldValue::Count(*number as u64)),
                ("policy", FieldValue::Text(policy.clone())),
                ("seed", FieldValue::Count(batch.seeds[at % batch.seeds.len()])),
            ];
            whole.extend(row.into_iter().filter(|(name, _)| !is_own(name)));
            columns.push(&whole)?;
        }
    }
    columns.finish()
}

/// Kind of the rows of a table of metrics.
#[derive(Clone, Copy)]
pub(super) enum Subjects {
    Summary,
    Vcpus,
    Domains,
    Cpus,
    Tasks,
    Clients,
}

impl Subjects {
    pub(super) fn named(name: &str) -> PyResult<Subjects> {
        Ok(match name {
            "summary" => Subjects::Summary,
            "vcpus" => Subjects::Vcpus,
            "domains" => Subjects::Domains,
            "cpus" => Subjects::Cpus,
            "tasks" => Subjects::Tasks,
            "clients" => Subjects::Clients,
            other => {
                return Err(error::of_value(
                    format!("there are no rows `{}`", shown(other)),
                    "use summary, vcpus, domains, cpus, tasks or clients",
                ));
            }
        })
    }

    pub(super) fn rows(self, numbers: &Numbers) -> Vec<Vec<Field>> {
        let summary = &numbers.summary;
        match self {
            Subjects::Summary => vec![summary.fields()],
            Subjects::Vcpus => summary.vcpu_fields(),
            Subjects::Domains => summary.domain_fields(),
            Subjects::Cpus => summary.cpu_fields(),
            Subjects::Tasks => summary.task_fields(),
            Subjects::Clients => summary.client_fields(),
        }
    }
}
