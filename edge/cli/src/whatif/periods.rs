//! Demand and missed periods of the VMs of a recording, for the workload manager.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use slackline_control::{PredictedPeriods, RecordedPeriods, VmPeriods};
use slackline_experiments::manage::{PeriodPredictor, RecordedVm, measure_recording};
use slackline_manager::PredictedVm;
use slackline_units::Span;
use slackline_whatif::ForecastError;

use super::Answer;

/// Number of steps in a period. Demand is rounded up to a whole step.
const STEPS: u64 = 1_000;

/// Returns statistics of the periods of each VM: demand and misses measured in the second half of
/// the recording, and misses predicted with the model. `explain` describes why the model cannot be
/// simulated.
pub(super) fn periods(answer: &Answer<'_>, explain: impl FnOnce(ForecastError) -> String) -> Value {
    let (length, vms) = measure_recording(answer.recording);
    let (predicted, refused) = match predict(answer, &vms, explain) {
        Ok(predicted) => (predicted, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let vms = vms.iter().enumerate().map(|(nth, vm)| VmPeriods {
        name: vm.name.clone(),
        period_ns: vm.period.ns(),
        demand: stepped(&vm.measured.demand, vm.period),
        misses: vm.measured.misses,
        received_ns: vm.received.ns(),
        predicted: predicted.get(nth).map(shown),
    });
    json!(RecordedPeriods { length_ns: length.ns(), vms: vms.collect(), refused })
}

fn predict(
    answer: &Answer<'_>,
    vms: &[RecordedVm],
    explain: impl FnOnce(ForecastError) -> String,
) -> Result<Vec<PredictedVm>, String> {
    let Answer { recording, gate, model, .. } = *answer;
    let vms = vms.iter().map(|vm| (vm.name.clone(), vm.period));
    let Some(predictor) = PeriodPredictor::new(recording, gate, vms.collect()) else {
        let cause = gate.cause.as_ref().map(ToString::to_string).unwrap_or_default();
        return Err(format!(
            "the simulation does not repeat the recording, probably because {cause}"
        ));
    };
    predictor.predict(model).map_err(explain)
}

fn shown(vm: &PredictedVm) -> PredictedPeriods {
    let PredictedVm { misses, periods, share_ppm: (share_ppm, _), length } = *vm;
    PredictedPeriods { misses, periods, share_ppm, length_ns: length.ns() }
}

/// Rounds demand up to steps of a period, so that an answer stays short.
fn stepped(demand: &BTreeMap<Span, u64>, period: Span) -> Vec<(u64, u64)> {
    let step = (period.ns() / STEPS).max(1);
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for (amount, count) in demand {
        *counts.entry(amount.ns().div_ceil(step) * step).or_default() += count;
    }
    counts.into_iter().collect()
}
