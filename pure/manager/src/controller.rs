//! The controller: judges the last change, predicts proposals, and makes at most one change in each
//! round.

use std::collections::{BTreeMap, VecDeque};

use slackline_service::{MeasuredVm, Name, VmPrediction};
use slackline_units::CpuShare;

use crate::decision::{ChangeReason, Decision, why};
use crate::input::{PredictedVm, Predictor, Round, short_periods, uncovered};
use crate::proposal::{Memory, Pace, PredictedFall, Proposal, proposals};
use crate::target::target;

/// The last change, its prediction, and the number of periods that its VM missed in the round
/// before the change.
type Canary = (Decision, VmPrediction, u64);

/// The workload manager. The same inputs give the same decisions.
#[derive(Clone, Debug, Default)]
pub struct Manager {
    pace: Pace,
    memory: BTreeMap<Name, Memory>,
    canary: Option<Canary>,
}

impl Manager {
    /// Creates a manager that has seen nothing yet.
    #[must_use]
    pub fn new(pace: Pace) -> Manager {
        Manager { pace, ..Manager::default() }
    }

    /// Judges the last change, and undoes it or chooses the next change. Returns the change to
    /// make, or `None`.
    pub fn round(&mut self, round: &Round, predictor: &mut dyn Predictor) -> Option<Decision> {
        self.remember(round);
        let last = self.canary.take();
        if let Some(undo) = last.as_ref().and_then(|canary| undo(round, canary)) {
            self.note(&undo, None);
            return Some(undo);
        }
        let proposals = proposals(round, &self.pace, &self.memory);
        if proposals.is_empty() {
            return None;
        }
        let mut predict = |shares: &[CpuShare]| {
            let predicted = predictor.predict(shares)?;
            let is_known = predicted.len() == shares.len();
            (is_known && predicted.iter().all(PredictedVm::is_plausible)).then_some(predicted)
        };
        let before = predict(&round.shares())?;
        proposals.into_iter().find_map(|proposal| {
            let mut shares = round.shares();
            shares[proposal.vm] = proposal.to;
            let after = predict(&shares)?;
            is_better(round, &proposal, &before, &after).then(|| {
                let given = last.as_ref().map(|(made, ..)| made);
                let why = why(round, &proposal, (&before, &after), given);
                self.change(round, &proposal, why, &after[proposal.vm])
            })
        })
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

    /// Records a change of a reservation. `said` is its prediction, or `None` if the change undoes
    /// the last change. A large rise soon after a large fall delays the next fall of that VM. The
    /// misses after a predicted fall are counted until the next change of that VM.
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
        self.canary = Some((made.clone(), prediction, vm.misses));
        made
    }
}

/// Returns the change that undoes `made`. `None` if the measurements do not contradict the
/// prediction, if the VM does not have the new share any more, or if its limits or the capacity do
/// not allow the old share any more.
///
/// The demand can differ from the predicted demand. So a VM that received what it demanded does not
/// contradict the prediction. After a rise, the following number of missed periods is allowed in
/// addition to the prediction: the periods that demanded more than the reservation, or the periods
/// that the VM missed in the round before the rise, whichever is larger.
fn undo(round: &Round, (made, said, missed): &Canary) -> Option<Decision> {
    let vm = round.vms.iter().find(|vm| vm.name == made.name && vm.share == made.to)?;
    let demand = u128::from(vm.demanded().ns()) * 1_000_000 / u128::from(round.length.ns().max(1));
    let demand = u64::try_from(demand).unwrap_or(u64::MAX);
    let (least, most) = said.share_ppm;
    let share_ppm = (least.min(demand), most.max(demand));
    let excused = if made.to > made.from { uncovered(vm, vm.share).max(*missed) } else { 0 };
    let came = MeasuredVm {
        present: round.length,
        used: vm.received,
        deadlines: vm.periods(),
        missed: vm.misses.saturating_sub(excused),
    };
    let said = VmPrediction { share_ppm, ..said.clone() };
    let why = ChangeReason::Undo(said.compare(MeasuredVm::default(), came).err()?);
    let is_allowed = vm.within(made.from) == made.from && made.from.less(vm.share) <= round.room();
    let (from, to, name) = (made.to, made.from, made.name.clone());
    is_allowed.then_some(Decision { round: round.number, name, from, to, why })
}

/// Returns true if the prediction allows the change. No VM may miss more periods than its goal
/// allows, unless the VM would miss at least as many without the change. This condition does not
/// apply to a VM that gives up capacity to a VM with a higher priority.
///
/// A rise must also have one of these reasons:
///
/// - With the change the VM is predicted to miss fewer periods than without it.
/// - In the last round, more periods than the goal allows were missed, or demanded more than the
///   reservation.
/// - The share is below the smallest share that the VM's goals want.
/// - The VM has a goal for the use of its reservation.
fn is_better(round: &Round, it: &Proposal, before: &[PredictedVm], after: &[PredictedVm]) -> bool {
    let allowed = |index: usize, said: &PredictedVm| {
        let goal = u64::from(round.vms[index].goals.misses_ppm.unwrap_or(0));
        said.periods * goal / 1_000_000
    };
    let vm = &round.vms[it.vm];
    let is_below = |index: usize| {
        it.room_for
            .is_some_and(|of| round.vms[index].priority < round.vms[of].priority && index == it.vm)
    };
    let is_worse = before.iter().zip(after).enumerate().any(|(index, (now, then))| {
        then.misses > now.misses.max(allowed(index, then)) && !is_below(index)
    });
    let is_short =
        short_periods(vm) > vm.allowed() || vm.share < vm.least() || vm.goals.use_ppm.is_some();
    !is_worse && (it.to < vm.share || is_short || after[it.vm].misses < before[it.vm].misses)
}
