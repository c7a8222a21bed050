//! Predictor of the manager in a simulated run. It uses `whatif` on the last recorded seconds.

use std::cell::OnceCell;

use slackline_manager::{PredictedVm, Predictor};
use slackline_units::{CpuShare, Time};
use slackline_whatif::{Edit, Model, gate};

use super::knob::Knob;
use super::measured::PeriodPredictor;
use super::window::Window;

/// Predictor that simulates the last rounds again. It makes the recording of these rounds when the
/// first prediction is requested.
pub(super) struct WhatIf<'a> {
    window: &'a Window,
    now: Time,
    /// Name and parameters of each managed VM.
    vms: Vec<(&'a str, &'a Knob)>,
    prepared: OnceCell<Option<(Model, PeriodPredictor)>>,
}

impl<'a> WhatIf<'a> {
    /// Creates a predictor for the managed VMs.
    pub(super) fn new(window: &'a Window, now: Time, vms: Vec<(&'a str, &'a Knob)>) -> WhatIf<'a> {
        WhatIf { window, now, vms, prepared: OnceCell::new() }
    }

    fn prepare(&self) -> Option<(Model, PeriodPredictor)> {
        let recording = self.window.recording(self.now)?;
        let model = Model::new(&recording).ok()?;
        let gate = gate(&recording, &model).ok()?;
        let vms = self.vms.iter().map(|(name, knob)| ((*name).to_owned(), knob.period));
        Some((model, PeriodPredictor::new(&recording, &gate, vms.collect())?))
    }
}

impl Predictor for WhatIf<'_> {
    fn predict(&mut self, shares: &[CpuShare]) -> Option<Vec<PredictedVm>> {
        let (model, predictor) = self.prepared.get_or_init(|| self.prepare()).as_ref()?;
        let mut model = model.clone();
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
        predictor.predict(&model).ok()
    }
}
