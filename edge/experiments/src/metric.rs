//! Metrics that users request by name, such as `wake to run p99 of web`.

use slackline_metrics::{Measure, Summary, Unit, UnknownMetric};
use slackline_scenario::Scenario;

use crate::numbers::of_nothing;

/// A metric of a vCPU, a domain, a CPU or the whole run. Its name is the name in claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedMetric {
    metric: String,
    of: Option<String>,
}

/// Name that represents the whole run, in place of a VM, vCPU or CPU.
const TOTAL: &str = "total";

impl NamedMetric {
    /// Parses `METRIC of NAME`, or `METRIC` for the whole run.
    #[must_use]
    pub fn read(text: &str) -> NamedMetric {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let (metric, of) = match words.rsplit_once(" of ") {
            Some((metric, TOTAL)) => (metric, None),
            Some((metric, of)) => (metric, Some(of.to_owned())),
            None => (words.as_str(), None),
        };
        NamedMetric { metric: metric.to_owned(), of }
    }

    /// Returns the name of the metric as users write it, such as `wake to run p99 of web`.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.of {
            Some(of) => format!("{} of {of}", self.metric),
            None => self.metric.clone(),
        }
    }

    /// Returns the unit that the metric has in a scenario. No run is needed.
    ///
    /// # Errors
    /// If the scenario has no such metric, or no VM, vCPU or CPU of that name.
    pub fn unit(&self, scenario: &Scenario) -> Result<Unit, UnknownMetric> {
        of_nothing(scenario).unit(&self.metric, self.of.as_deref())
    }

    /// Returns the heading of a column of values: the name with `_` between its words and the unit
    /// at the end, such as `wake_to_run_p99_of_web_ns`.
    #[must_use]
    pub fn column(&self, unit: Unit) -> String {
        let suffix = match unit {
            Unit::Time => "_ns",
            Unit::Part => "_ppm",
            Unit::Things => "",
        };
        self.name().replace(' ', "_") + suffix
    }

    /// Returns the value of the metric in a run, in nanoseconds, in millionths or as a count.
    /// `None` if the run did not measure it.
    #[must_use]
    pub fn value(&self, summary: &Summary) -> Option<i64> {
        match summary.lookup(&self.metric, self.of.as_deref()).ok()? {
            Measure::Span(span) => i64::try_from(span.ns()).ok(),
            Measure::Ppm(ppm) => Some(ppm),
            Measure::Count(count) => i64::try_from(count).ok(),
            Measure::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_text_is_normalized_and_word_total_means_whole_run() {
        let metric = NamedMetric::read("wake  to run p99 of web.1");
        assert_eq!(metric.name(), "wake to run p99 of web.1");
        assert_eq!(metric.column(Unit::Time), "wake_to_run_p99_of_web.1_ns");
        let whole = NamedMetric::read("misses of total");
        assert_eq!(
            (whole.column(Unit::Things), whole),
            ("misses".into(), NamedMetric::read("misses"))
        );
    }
}
