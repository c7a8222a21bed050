//! Results of one run of a sweep, as a row of its table.

use slackline_metrics::Summary;
use slackline_units::Span;

use super::Fairness;

/// Names of the table's columns, in the order of [`RunResults::cells`].
pub const COLUMNS: [&str; 13] = [
    "outcome",
    "vcpus",
    "share_error_percent",
    "worst_error_percent",
    "second_error_p95_percent",
    "moves_per_cpu_second",
    "switches_per_cpu_second",
    "deadlines",
    "misses",
    "waiting_percent",
    "wait_worst_ms",
    "busy_percent",
    "events",
];

/// Results of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunResults {
    /// Number of vCPUs that joined the host during the run.
    pub vcpus: usize,
    /// Mean deviation of all vCPUs in percent: from their fair CPU time if it is known, and
    /// otherwise from their reservations. `None` if neither is known.
    pub share_error: Option<f64>,
    /// Largest deviation of a vCPU, in percent. `None` if no deviation is known.
    pub worst_error: Option<f64>,
    /// 95th percentile of the deviations in single seconds, in percent. `None` if the fair CPU time
    /// is not known.
    pub second_error_p95: Option<f64>,
    /// Number of migrations per CPU and second.
    pub moves: f64,
    /// Number of context switches per CPU and second.
    pub switches: f64,
    /// Number of deadlines of reservations, and number of missed deadlines. `None` if no deadlines
    /// were counted.
    pub deadlines: Option<(u64, u64)>,
    /// Part of the runnable time in which vCPUs waited for a CPU, in percent. `None` if unknown.
    pub waiting: Option<f64>,
    /// Longest wait of a vCPU, in milliseconds. `None` if unknown.
    pub wait_worst: Option<f64>,
    /// Part of all CPU time that was used, in percent.
    pub busy: f64,
    /// Number of simulated events.
    pub events: u64,
}

impl RunResults {
    /// Computes the results of a run. Deviations are from the fair CPU time if `fairness` is given.
    /// Otherwise they are deviations of vCPUs from their reservations.
    #[must_use]
    pub fn of(summary: &Summary, fairness: Option<Fairness>, events: u64) -> RunResults {
        let vcpus = &summary.vcpus;
        let window = summary.cpus.iter().map(|cpu| cpu.busy + cpu.idle).max().unwrap_or(Span::ZERO);
        let cpu_seconds = window.ns() as f64 / 1e9 * summary.cpus.len() as f64;
        let a_cpu_second =
            |count: u64| if cpu_seconds > 0.0 { count as f64 / cpu_seconds } else { 0.0 };
        let off = vcpus.iter().filter_map(|vcpu| Some(vcpu.error_ppm?.unsigned_abs() as f64 / 1e6));
        let off: Vec<f64> = off.collect();
        let promised = (!off.is_empty()).then(|| Fairness {
            mean: off.iter().sum::<f64>() / off.len() as f64,
            worst: off.iter().copied().fold(0.0, f64::max),
            second_p95: f64::NAN,
        });
        let error = fairness.or(promised);
        let percent = |part: f64| (!part.is_nan()).then_some(100.0 * part);
        let sum = |of: fn(&slackline_metrics::VcpuSummary) -> Option<u64>| {
            vcpus.iter().filter_map(of).reduce(|a, b| a + b)
        };
        let waited = sum(|vcpu| Some(vcpu.waiting?.ns()));
        let awake = sum(|vcpu| Some((vcpu.present - vcpu.asleep?.min(vcpu.present)).ns()));
        let waiting = waited.zip(awake).filter(|&(_, awake)| awake > 0);
        RunResults {
            vcpus: vcpus.len(),
            share_error: error.and_then(|error| percent(error.mean)),
            worst_error: error.and_then(|error| percent(error.worst)),
            second_error_p95: error.and_then(|error| percent(error.second_p95)),
            moves: a_cpu_second(vcpus.iter().map(|vcpu| vcpu.migrations).sum()),
            switches: a_cpu_second(summary.cpus.iter().map(|cpu| cpu.switches).sum()),
            deadlines: sum(|vcpu| vcpu.deadlines).zip(sum(|vcpu| vcpu.misses)),
            waiting: waiting.map(|(waited, awake)| 100.0 * waited as f64 / awake as f64),
            wait_worst: vcpus
                .iter()
                .filter_map(|vcpu| vcpu.wait_worst)
                .max()
                .map(|worst| worst.ns() as f64 / 1e6),
            busy: {
                let busy: u64 = summary.cpus.iter().map(|cpu| cpu.busy.ns()).sum();
                if cpu_seconds > 0.0 { busy as f64 / cpu_seconds / 1e7 } else { 0.0 }
            },
            events,
        }
    }

    /// Returns the cells of the run's row in the table.
    #[must_use]
    pub fn cells(&self) -> [String; COLUMNS.len()] {
        let number = |number: f64| format!("{number:.3}");
        let some = |value: Option<f64>| value.map(number).unwrap_or_default();
        let count = |value: Option<u64>| value.map(|count| count.to_string()).unwrap_or_default();
        [
            "done".to_owned(),
            self.vcpus.to_string(),
            some(self.share_error),
            some(self.worst_error),
            some(self.second_error_p95),
            number(self.moves),
            number(self.switches),
            count(self.deadlines.map(|(all, _)| all)),
            count(self.deadlines.map(|(_, missed)| missed)),
            some(self.waiting),
            some(self.wait_worst),
            number(self.busy),
            self.events.to_string(),
        ]
    }

    /// Returns the cells of the row for a run that admission refused.
    #[must_use]
    pub fn refused(vcpus: usize) -> [String; COLUMNS.len()] {
        let mut cells = [const { String::new() }; COLUMNS.len()];
        cells[0] = "refused".to_owned();
        cells[1] = vcpus.to_string();
        cells
    }
}

/// Returns a quantile by the nearest-rank method. `None` if there are no values.
#[must_use]
pub fn quantile(values: &mut [f64], part: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // A rank fits.
    let rank = (part * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_of_values_is_computed_by_nearest_rank() {
        let mut values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&mut values, 0.5), Some(2.0));
        assert_eq!(quantile(&mut values, 0.95), Some(4.0));
        assert_eq!(quantile(&mut values, 0.0), Some(1.0));
        assert_eq!(quantile(&mut [], 0.5), None);
    }
}
