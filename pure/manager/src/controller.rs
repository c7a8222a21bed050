//! The controller: in each round it simulates plans of changes, and makes the first better plan.

use std::collections::{BTreeMap, VecDeque};

use slackline_service::{Name, VmPrediction};
use slackline_units::CpuShare;

use crate::decision::{ChangeReason, Decision, why};
use crate::input::{PredictedVm, Predictor, Round};
use crate::judgement::{Canary, is_better, undo};
use crate::plan::{Proposal, plans};
use crate::proposal::{Memory, Pace, PredictedFall};
use crate::target::target;

/// The workload manager. The same inputs give the same decisions.
#[derive(Clone, Debug, Default)]
pub struct Manager {
    pace: Pace,
    memory: BTreeMap<Name, Memory>,
    canaries: Vec<Canary>,
}

impl Manager {
    /// Creates a manager that has seen nothing yet.
    #[must_use]
    pub fn new(pace: Pace) -> Manager {
        Manager { pace, ..Manager::default() }
    }

    /// Judges the last changes and proposes the next ones. Returns the changes to make, in this
    /// order. The reductions come first, so that the capacity suffices for each rise.
    pub fn round(&mut self, round: &Round, predictor: &mut dyn Predictor) -> Vec<Decision> {
        self.remember(round);
        let undone = undo(round, &std::mem::take(&mut self.canaries));
        if !undone.is_empty() {
            undone.iter().for_each(|undo| self.note(undo, None));
            return undone;
        }
        self.act(round, predictor).unwrap_or_default()
    }

    /// Simulates the plans of the round. Makes the first plan whose prediction is better than the
    /// prediction without changes. `None` if there is no such plan, or no prediction.
    fn act(&mut self, round: &Round, predictor: &mut dyn Predictor) -> Option<Vec<Decision>> {
        let plans = plans(round, &self.pace, &self.memory);
        let mut predict = |shares: &[CpuShare]| {
            let predicted = predictor.predict(shares)?;
            let is_known = predicted.len() == shares.len();
            (is_known && predicted.iter().all(PredictedVm::is_plausible)).then_some(predicted)
        };
        let before = predict(&plans.first().map(|_| round.shares())?)?;
        let (plan, after) = plans.into_iter().find_map(|plan| {
            let after = predict(&plan.iter().fold(round.shares(), |mut shares, it| {
                shares[it.vm] = it.to;
                shares
            }))?;
            is_better(round, &plan, &before, &after).then_some((plan, after))
        })?;
        let change = |it: &Proposal| {
            let why = why(round, it, &plan, (&before, &after));
            self.change(round, it, why, &after[it.vm])
        };
        Some(plan.iter().map(change).collect())
    }

    /// Adds this round's target of each VM to the manager's memory.
    fn remember(&mut self, round: &Round) {
        self.memory.retain(|name, _| round.vms.iter().any(|vm| vm.name == *name));
        for vm in &round.vms {
            let memory = self.memory.entry(vm.name.clone()).or_default();
            memory.targets.push_back(target(vm));
            let most = self.pace.rise_after.max(self.pace.most_patience).max(3);
            memory.targets.drain(..memory.targets.len().saturating_sub(most));
            if let Some(fall) = &mut memory.fall {
                fall.observe(vm, self.pace.evidence);
            }
        }
    }

    /// Records a change of a reservation. After a large rise soon after a large fall, the next fall
    /// of that VM must wait longer. A fall with a prediction is watched until the next change.
    fn note(&mut self, made: &Decision, said: Option<&PredictedVm>) {
        let (pace, memory) = (self.pace, self.memory.entry(made.name.clone()).or_default());
        memory.fall = said.filter(|_| made.to < made.from).map(|said| PredictedFall {
            to: made.to,
            predicted: (said.misses, said.periods),
            rounds: VecDeque::new(),
        });
        if matches!(made.why, ChangeReason::Undo(_)) && made.to < made.from {
            memory.rests_until = made.round + pace.rest;
        }
        if pace.is_large_rise(made.to, made.from) {
            memory.fell = Some(made.round);
        } else if pace.is_large_rise(made.from, made.to)
            && let Some(fell) = memory.fell.take()
        {
            let is_soon = made.round - fell <= pace.regret;
            let doubled = memory.patience.max(pace.fall_after) * 2;
            memory.patience = if is_soon { doubled.min(pace.most_patience) } else { 0 };
        }
    }

    /// Makes a change, and records its prediction for the comparison in the next round.
    fn change(
        &mut self,
        round: &Round,
        it: &Proposal,
        why: ChangeReason,
        said: &PredictedVm,
    ) -> Decision {
        let vm = &round.vms[it.vm];
        let made =
            Decision { round: round.number, name: vm.name.clone(), from: vm.share, to: it.to, why };
        // With a larger reservation the VM may use all of it, whatever the prediction says.
        let (least, most) = said.share_ppm;
        let share_ppm = (least, most.max(u64::from(it.to.max(vm.share).ppm())));
        let prediction = VmPrediction {
            name: vm.name.clone(),
            share_ppm,
            missed: Some(said.misses),
            length: said.length,
        };
        self.note(&made, Some(said));
        self.canaries.push((made.clone(), prediction, vm.misses));
        made
    }
}
