//! What a run of a sweep comes to: a row of its table.

use slackline_metrics::Summary;
use slackline_units::Span;

use super::Fairness;

/// What is measured, in the order of [`Measured::cells`].
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

/// One run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// How many vCPUs there were.
    pub vcpus: usize,
    /// How far from fair, or from what was promised: the mean over vCPUs, in percent.
    pub share_error: Option<f64>,
    /// The same of the worst vCPU.
    pub worst_error: Option<f64>,
    /// In single seconds, but for the worst 5 %.
    pub second_error_p95: Option<f64>,
    /// How often a vCPU went on on another CPU than before, on each CPU in each second.
    pub moves: f64,
    /// How often another one ran, likewise.
    pub switches: f64,
    /// Deadlines of reservations, and how many were missed.
    pub deadlines: Option<(u64, u64)>,
    /// The part of the time awake in which vCPUs waited for a CPU, in percent.
    pub waiting: Option<f64>,
    /// The longest that one waited, in milliseconds.
    pub wait_worst: Option<f64>,
    /// The part of all CPUs that was used, in percent.
    pub busy: f64,
    /// How many events were simulated.
    pub events: u64,
}

impl Measured {
    /// The numbers of a run, and how far from fair it was where that is known; else how far from
    /// what was promised those are who were promised anything.
    #[must_use]
    pub fn of(summary: &Summary, fairness: Option<Fairness>, events: u64) -> Measured {
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
        Measured {
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

    /// As cells of a table.
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

    /// The cells of a run whose set could not be promised.
    #[must_use]
    pub fn refused(vcpus: usize) -> [String; COLUMNS.len()] {
        let mut cells = [const { String::new() }; COLUMNS.len()];
        cells[0] = "refused".to_owned();
        cells[1] = vcpus.to_string();
        cells
    }
}

/// What such a part of all values is not above, by the nearest rank; none of none.
#[must_use]
pub fn quantile(values: &mut [f64], part: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // A rank.
    let rank = (part * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_by_the_nearest_rank() {
        let mut values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&mut values, 0.5), Some(2.0));
        assert_eq!(quantile(&mut values, 0.95), Some(4.0));
        assert_eq!(quantile(&mut values, 0.0), Some(1.0));
        assert_eq!(quantile(&mut [], 0.5), None);
    }
}
