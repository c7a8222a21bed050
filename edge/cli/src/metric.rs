//! Metrics that the user names with `--metric`. They are checked before the first run, and printed
//! in a separate table.

use slackline_experiments::NamedMetric;
use slackline_metrics::{Summary, Unit, VcpuSummary};
use slackline_scenario::Scenario;
use slackline_terminal::{MetricValues, by_metric};

use crate::json::Case;
use crate::problem::Problem;
use crate::terminal;

/// Metrics that the command line names, each with the unit of its values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics(Vec<(NamedMetric, Unit)>);

impl Metrics {
    /// Parses the values of `--metric`, and checks that each scenario has these metrics.
    ///
    /// # Errors
    /// If a scenario has no such metric, or no VM, vCPU or CPU of that name.
    pub(crate) fn read<'a>(
        texts: &[String],
        scenarios: impl IntoIterator<Item = &'a Scenario>,
    ) -> Result<Metrics, Problem> {
        let mut metrics = Vec::new();
        if texts.is_empty() {
            return Ok(Metrics(metrics));
        }
        let scenarios: Vec<&Scenario> = scenarios.into_iter().collect();
        for text in texts {
            let metric = NamedMetric::read(text);
            let mut unit = Unit::Things;
            for scenario in &scenarios {
                unit = metric.unit(scenario).map_err(|unknown| Problem::BadOption {
                    message: format!("cannot show --metric `{text}`: {unknown}"),
                    hint: Some(match &unknown.nearest {
                        Some(nearest) => format!("did you mean `{nearest}`?"),
                        None => format!("use one of: {}", unknown.known.join(", ")),
                    }),
                })?;
            }
            metrics.push((metric, unit));
        }
        Ok(Metrics(metrics))
    }

    /// Returns the number of metrics.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the command line names no metric.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the headings that the metrics have in a CSV file.
    pub(crate) fn columns(&self) -> Vec<String> {
        self.0.iter().map(|(metric, unit)| metric.column(*unit)).collect()
    }

    /// Returns the values of a run as CSV cells. A value that the run does not have is empty.
    pub(crate) fn cells(&self, run: &Summary) -> Vec<String> {
        let cell = |(metric, _): &(NamedMetric, Unit)| {
            value(metric, run).map(|value| value.to_string()).unwrap_or_default()
        };
        self.0.iter().map(cell).collect()
    }

    /// Returns the name of each metric with its unit.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (String, Unit)> {
        self.0.iter().map(|(metric, unit)| (metric.name(), *unit))
    }

    /// Returns a table of the metrics. Cases are ordered by policy, then by point of the axes.
    pub(crate) fn table(&self, cases: &[Case], points: usize) -> String {
        let name = |case: &Case| {
            let places = case.point.iter().map(|(_, name)| name.clone());
            places.chain([case.name.clone()]).collect::<Vec<_>>().join(", ")
        };
        let names: Vec<String> = cases.iter().map(name).collect();
        let values = |(metric, unit): &(NamedMetric, Unit)| MetricValues {
            name: metric.name(),
            unit: *unit,
            values: cases
                .iter()
                .map(|case| case.runs.iter().map(|run| value(metric, run)).collect())
                .collect(),
        };
        let metrics: Vec<MetricValues> = self.0.iter().map(values).collect();
        by_metric(&names, points, &metrics, terminal::width(), terminal::paint())
    }
}

/// Returns the value of a metric in a run. `None` if the run did not measure the metric. Also
/// `None` if the metric counts deadlines or misses of vCPUs without a reservation: under a policy
/// without periods there are no deadlines.
fn value(metric: &NamedMetric, run: &Summary) -> Option<i64> {
    let name = metric.name();
    let (field, of) =
        name.split_once(" of ").map_or((&*name, None), |(field, of)| (field, Some(of)));
    let is_of = |vcpu: &&VcpuSummary| of.is_none_or(|of| vcpu.name == of || vcpu.domain == of);
    let has_deadlines = run.vcpus.iter().filter(is_of).any(|vcpu| vcpu.promised.is_some());
    metric.value(run).filter(|_| has_deadlines || !matches!(field, "deadlines" | "misses"))
}
