//! Judgements of changes: by their predictions before a change is made, and by measurements after.

use slackline_service::{MeasuredVm, VmPrediction};

use crate::decision::{ChangeReason, Decision};
use crate::input::{PredictedVm, Round, short_periods, uncovered};
use crate::plan::Proposal;

/// A change of the last round, its prediction, and the missed periods of its VM in the round before
/// the change.
pub(crate) type Canary = (Decision, VmPrediction, u64);

/// Returns the changes that undo those changes of the last round that did not do as predicted. The
/// reductions come first, because an undone fall needs capacity.
pub(crate) fn undo(round: &Round, canaries: &[Canary]) -> Vec<Decision> {
    let mut after = round.clone();
    let (rises, falls) = canaries.iter().partition::<Vec<_>, _>(|(it, ..)| it.to > it.from);
    let undone = rises.into_iter().chain(falls).filter_map(|canary| {
        let undone = undo_one(&after, canary)?;
        let vm = after.vms.iter_mut().find(|vm| vm.name == undone.name)?;
        vm.share = undone.to;
        Some(undone)
    });
    undone.collect()
}

/// Returns the change that undoes the change of a canary, if the VM did not do as predicted, and if
/// the VM's limits and the capacity still allow the old share. The demand can differ from the
/// predicted demand, so a VM that received what it demanded did as predicted. After a rise, some
/// missed periods are excused. The number of excused periods is the larger of two numbers: the
/// periods that demanded more than the reservation, and the periods that the VM missed in the round
/// before the rise.
fn undo_one(round: &Round, (made, said, missed): &Canary) -> Option<Decision> {
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

/// Returns true if the prediction with the plan is better than the prediction without it. No VM may
/// miss more periods than its goal allows, unless the VM would miss at least as many without the
/// plan. This condition does not apply to a VM that gives up capacity to a VM with a higher
/// priority.
///
/// Each rise has a further condition. The VM must miss fewer periods than without the plan, or must
/// need a larger share now. A VM needs a larger share if it missed more periods than its goal
/// allows, or if its share is below its smallest share. A VM with a goal for its use counts as
/// needing a larger share.
pub(crate) fn is_better(
    round: &Round,
    plan: &[Proposal],
    before: &[PredictedVm],
    after: &[PredictedVm],
) -> bool {
    let allowed = |index: usize, said: &PredictedVm| {
        let goal = u64::from(round.vms[index].goals.misses_ppm.unwrap_or(0));
        said.periods * goal / 1_000_000
    };
    let is_lender = |index: usize| {
        let is_below = |of: usize| round.vms[index].priority < round.vms[of].priority;
        plan.iter().any(|it| it.vm == index && it.room_for.is_some_and(is_below))
    };
    let is_worse = before.iter().zip(after).enumerate().any(|(index, (now, then))| {
        then.misses > now.misses.max(allowed(index, then)) && !is_lender(index)
    });
    let is_useful = |it: &Proposal| {
        let vm = &round.vms[it.vm];
        let is_short =
            short_periods(vm) > vm.allowed() || vm.share < vm.least() || vm.goals.use_ppm.is_some();
        it.to < vm.share || is_short || after[it.vm].misses < before[it.vm].misses
    };
    !is_worse && plan.iter().all(is_useful)
}
