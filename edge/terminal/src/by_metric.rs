//! Tables of selected metrics, with a row for each case. With several policies, the tables also
//! show how each policy differs from the first policy.

use slackline_metrics::OverRuns;
use slackline_units::Span;

use crate::layout::{Cell, Column, Group, Sheet};
use crate::numbers::{Unit, hundredths};
use crate::paint::Paint;

/// Values of one metric in several cases.
#[derive(Clone, Debug)]
pub struct MetricValues {
    /// Name of the metric, such as `wake to run p99 of web`.
    pub name: String,
    /// Unit of the values: nanoseconds, millionths, or a count.
    pub unit: slackline_metrics::Unit,
    /// Value of the metric by case, then by seed. `None` if the run did not measure the metric.
    pub values: Vec<Vec<Option<i64>>>,
}

/// Explanation below a table of runs with several seeds.
const LEGEND: &str = "mean and its 95 % confidence interval\n";

/// Footnote for a dash in the table. A dash means that a value is missing.
const NOT_KNOWN: &str = "some runs do not have this metric";

/// Returns a table of metrics with a row for each case.
///
/// Cases are ordered by policy, then by point. With several policies, each case of a later policy
/// also shows its difference from the first policy's case at the same point. With several seeds the
/// difference is the mean of the differences between runs with the same seed. This mean varies less
/// than the difference of the means.
#[must_use]
pub fn by_metric(
    cases: &[String],
    points: usize,
    metrics: &[MetricValues],
    width: usize,
    paint: Paint,
) -> String {
    let names = Column::new("run", cases, |name| Cell::Text(name.clone()));
    let groups = metrics.iter().map(|metric| group(metric, points, cases)).collect();
    let table = Sheet { names, groups }.render(width, paint);
    let seeds = metrics.iter().flat_map(|metric| &metric.values).map(Vec::len).max().unwrap_or(0);
    let mut text = table;
    for metric in
        metrics.iter().filter(|metric| metric.values.iter().flatten().all(Option::is_none))
    {
        text += &format!(" no run has the metric `{}`\n", metric.name);
    }
    if seeds > 1 {
        text += &format!(" {seeds} runs: {LEGEND}");
    }
    if cases.len() > points {
        let over = if seeds > 1 { ", run by run with the same seed" } else { "" };
        text += &format!(
            " difference: compared with the run of the first policy at the same point{over}\n"
        );
    }
    text
}

/// Returns the columns of one metric.
fn group(metric: &MetricValues, points: usize, cases: &[String]) -> Group {
    let scale = Scale::of(metric);
    let rows: Vec<usize> = (0..cases.len()).collect();
    let over = scale.heading(&metric.name);
    let mean = Column::new("mean", &rows, |&case| {
        let values: Option<Vec<i64>> = metric.values[case].iter().copied().collect();
        cell(values, |over| scale.in_words(over, false))
    });
    let mut columns = vec![mean.under(&over).keeping_dashes()];
    if cases.len() > points {
        let difference = Column::new("difference", &rows, |&case| match case < points {
            true => Cell::Blank,
            false => {
                cell(differences(metric, case, case % points), |over| scale.in_words(over, true))
            }
        });
        columns.push(difference.under(&over));
    }
    columns
}

/// Returns, for each seed, the value of `case` minus the value of `first`. `None` if any run of the
/// two cases did not measure the metric.
fn differences(metric: &MetricValues, case: usize, first: usize) -> Option<Vec<i64>> {
    let pairs = metric.values[case].iter().zip(&metric.values[first]);
    pairs.map(|(this, other)| Some((*this)?.saturating_sub((*other)?))).collect()
}

fn cell(values: Option<Vec<i64>>, written: impl Fn(&OverRuns) -> String) -> Cell {
    let over = values.and_then(|values| OverRuns::of(&values));
    over.map_or(Cell::Dash(NOT_KNOWN), |over| Cell::Text(written(&over)))
}

/// Format in which the values of a column are shown.
struct Scale {
    unit: slackline_metrics::Unit,
    time: Unit,
    /// True if no case has several runs. Then counts are whole numbers and not means.
    is_single: bool,
}

impl Scale {
    fn of(metric: &MetricValues) -> Scale {
        let values = metric.values.iter().flatten().flatten();
        let longest = values.map(|value| value.unsigned_abs()).max().unwrap_or(0);
        let is_single = metric.values.iter().all(|runs| runs.len() <= 1);
        Scale { unit: metric.unit, time: Unit::of(Span::from_ns(longest)), is_single }
    }

    fn heading(&self, name: &str) -> String {
        match self.unit {
            slackline_metrics::Unit::Time => format!("{name}, {}", self.time.name),
            slackline_metrics::Unit::Part => format!("{name}, %"),
            slackline_metrics::Unit::Things => name.to_owned(),
        }
    }

    fn in_words(&self, over: &OverRuns, has_plus: bool) -> String {
        let mean = self.written(over.mean_thousandths.unsigned_abs());
        let sign = match over.mean_thousandths {
            _ if mean.chars().all(|digit| matches!(digit, '0' | '.')) => "",
            mean if mean < 0 => "-",
            mean if mean > 0 && has_plus => "+",
            _ => "",
        };
        match over.half_width_thousandths {
            Some(half) => format!("{sign}{mean} ±{}", self.written(half)),
            None => format!("{sign}{mean}"),
        }
    }

    fn written(&self, thousandths: u128) -> String {
        match self.unit {
            slackline_metrics::Unit::Time => self
                .time
                .write(Span::from_ns(u64::try_from(thousandths / 1_000).unwrap_or(u64::MAX))),
            slackline_metrics::Unit::Part => hundredths((thousandths + 50_000) / 100_000),
            slackline_metrics::Unit::Things if self.is_single => (thousandths / 1_000).to_string(),
            slackline_metrics::Unit::Things => hundredths((thousandths + 5) / 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_between_policies_excludes_variation_between_seeds() {
        let metric = MetricValues {
            name: "misses of web".into(),
            unit: slackline_metrics::Unit::Things,
            values: vec![vec![Some(10), Some(20), Some(90)], vec![Some(12), Some(22), Some(92)]],
        };
        let cases = ["edf".to_owned(), "credit".to_owned()];
        let table = by_metric(&cases, 1, &[metric], 100, Paint::Plain);
        let row = table.lines().find(|line| line.contains("credit")).unwrap();
        assert!(row.contains("42.00 ±") && row.ends_with("+2.00 ±0.00"), "{table}");
        let first = table.lines().find(|line| line.contains("edf")).unwrap();
        assert!(!first.contains('+'), "{table}");
    }

    #[test]
    fn table_shows_no_number_for_case_without_the_metric() {
        let metric = MetricValues {
            name: "response p99 of web".into(),
            unit: slackline_metrics::Unit::Time,
            values: vec![vec![Some(2_000_000)], vec![None]],
        };
        let cases = ["edf".to_owned(), "bvt".to_owned()];
        let table = by_metric(&cases, 1, &[metric], 100, Paint::Plain);
        let row = table.lines().find(|line| line.contains("bvt")).unwrap();
        assert!(!row.contains(|c: char| c.is_ascii_digit()), "{table}");
        assert!(table.contains(NOT_KNOWN), "{table}");
    }
}
