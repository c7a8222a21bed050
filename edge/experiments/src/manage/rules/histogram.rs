//! Rule of the Vertical Pod Autoscaler of Kubernetes: a decaying histogram of the use. A margin of
//! 15 % is added to each percentile. If the share is below the 50th or above the 95th percentile,
//! the share is set to the 90th percentile. A sample loses half of its weight in 12 rounds. The
//! original has one sample per minute and a half-life of one day.

use std::collections::BTreeMap;

use slackline_service::Name;
use slackline_units::CpuShare;

use super::{Changes, RuleInput, ShareRule, explained};

/// Number of rounds in which the weight of a sample halves.
const HALF_LIFE: f64 = 12.0;

/// Upper end of the first bucket, in CPUs. Each bucket is 5 % wider than the previous one.
const FIRST: f64 = 0.01;
const RATIO: f64 = 1.05;

/// Factor for the safety margin above a percentile.
const MARGIN: f64 = 1.15;

/// Rule with a decaying histogram. It stores the weight of each bucket for each VM.
#[derive(Default)]
pub(crate) struct HistogramRule {
    weights: BTreeMap<Name, BTreeMap<i32, f64>>,
}

impl ShareRule for HistogramRule {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Shares are small.
    fn round(&mut self, input: RuleInput<'_>) -> Changes {
        let mut changes = Changes::new();
        for (index, vm) in input.round.vms.iter().enumerate() {
            if vm.goals == Default::default() {
                continue;
            }
            let weights = self.weights.entry(vm.name.clone()).or_default();
            weights.values_mut().for_each(|weight| *weight *= 0.5_f64.powf(1.0 / HALF_LIFE));
            let used = vm.received.ns() as f64 / input.round.length.ns().max(1) as f64;
            *weights.entry(bucket(used)).or_default() += 1.0;
            let percentile =
                |part| CpuShare::from_ppm((percentile(weights, part) * MARGIN * 1e6) as u32);
            let is_within = percentile(0.5) <= vm.share && vm.share <= percentile(0.95);
            if !is_within {
                let to = vm.within(percentile(0.9));
                changes.push((index, to, explained(&input, index, to)));
            }
        }
        changes
    }
}

#[allow(clippy::cast_possible_truncation)] // The number of buckets is small.
fn bucket(used: f64) -> i32 {
    (1.0 + used / FIRST * (RATIO - 1.0)).log(RATIO).floor() as i32
}

/// Returns the upper end of the bucket at which this part of the total weight is reached.
fn percentile(weights: &BTreeMap<i32, f64>, part: f64) -> f64 {
    let mut left = weights.values().sum::<f64>() * part;
    for (&bucket, weight) in weights {
        left -= weight;
        if left <= 0.0 {
            return FIRST * (RATIO.powi(bucket + 1) - 1.0) / (RATIO - 1.0);
        }
    }
    0.0
}
