//! The manager's predictor: `whatif` on the last recorded seconds.

use std::cell::OnceCell;

use slackline_demand::{Collector, Demand, VcpuDemand};
use slackline_manager::{PredictedVm, Predictor};
use slackline_units::{CpuShare, Span, Time};
use slackline_whatif::{Edit, Form, Model, gate};

use super::knob::Knob;
use super::window::Window;

/// Predictor that simulates the last rounds again. The recording is made for the first question.
pub(super) struct WhatIf<'a> {
    window: &'a Window,
    now: Time,
    /// Name and parameters of each managed VM.
    vms: Vec<(&'a str, &'a Knob)>,
    prepared: OnceCell<Option<PreparedModel>>,
}

struct PreparedModel {
    model: Model,
    /// Recorded demand, in which a job that took several periods is one job in each.
    demand: Demand,
    /// First form that repeats the recording, the open form before the closed form.
    form: Form,
}

impl<'a> WhatIf<'a> {
    /// Creates a predictor for the managed VMs.
    pub(super) fn new(window: &'a Window, now: Time, vms: Vec<(&'a str, &'a Knob)>) -> WhatIf<'a> {
        WhatIf { window, now, vms, prepared: OnceCell::new() }
    }

    fn prepare(&self) -> Option<PreparedModel> {
        let recording = self.window.recording(self.now)?;
        let model = Model::new(&recording).ok()?;
        let gate = gate(&recording, &model).ok()?;
        let form = gate.passing().next()?.form;
        let mut demand = recording.demand;
        let periods = |vcpu: &VcpuDemand| {
            let of = self.vms.iter().find(|(name, _)| *name == vcpu.domain);
            of.map(|(_, knob)| knob.period).filter(|_| !vcpu.is_endless())
        };
        for vcpu in &mut demand.vcpus {
            if let Some(period) = periods(vcpu) {
                *vcpu = vcpu.spread(period, self.now);
            }
        }
        Some(PreparedModel { model, demand, form })
    }
}

impl Predictor for WhatIf<'_> {
    fn predict(&mut self, shares: &[CpuShare]) -> Option<Vec<PredictedVm>> {
        let prepared = self.prepared.get_or_init(|| self.prepare()).as_ref()?;
        let mut model = prepared.model.clone();
        let set = |((name, knob), share): (&(&str, &Knob), &CpuShare)| {
            let edit = |(field, value): (&str, String)| Edit::Set {
                name: (*name).into(),
                field: field.into(),
                value,
            };
            knob.settings(*share).into_iter().map(edit).collect::<Vec<Edit>>()
        };
        let edits: Vec<Edit> = self.vms.iter().zip(shares).flat_map(set).collect();
        model.edit(&edits).ok()?;
        self.simulate(prepared, &model)
    }
}

impl WhatIf<'_> {
    fn simulate(&self, of: &PreparedModel, model: &Model) -> Option<Vec<PredictedVm>> {
        let scenario = model.written(&of.demand, of.form, "jobs").ok()?.scenario().ok()?;
        let mut collector = Collector::new(Time::START);
        let finished = slackline_sim::run(&scenario, &mut collector).ok()?;
        if !finished.declined.is_empty() {
            return None;
        }
        let played = collector.finish();
        let (length, end) = (scenario.length, Time::START + scenario.length);
        let predicted = |(name, knob): &(&str, &Knob)| {
            let stays = played.vcpus.iter().filter(|stay| stay.domain == *name);
            let (mut misses, mut used) = (0, Span::ZERO);
            for stay in stays {
                misses += stay.missed_periods(knob.period, (Time::START, end));
                used += stay.work();
            }
            let share = u128::from(used.ns()) * 1_000_000 / u128::from(length.ns().max(1));
            let share = u64::try_from(share).unwrap_or(u64::MAX);
            PredictedVm { misses, periods: length / knob.period, share_ppm: (share, share), length }
        };
        Some(self.vms.iter().map(predicted).collect())
    }
}
