//! Plans: changes that the manager makes together, limited to the capacity that can be reserved.

use std::collections::BTreeMap;

use slackline_service::Name;
use slackline_units::CpuShare;

use crate::input::{Round, VmRound};
use crate::proposal::{Memory, Pace};

/// Weight of a rise against a fall of equal size, when the manager chooses the most urgent change.
/// The priority of the rising VM is added to this weight.
const RISE_HASTE: u64 = 4;

/// A proposed change that has no prediction yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proposal {
    pub(crate) vm: usize,
    pub(crate) to: CpuShare,
    /// VM for which the change makes room. `None` if the change is for its own VM.
    pub(crate) room_for: Option<usize>,
}

/// Returns the plans of a round in the order in which they are tried. The first plan has all
/// changes that VMs want, and the second plan all rises. Each further plan has a single change. The
/// largest change is the most urgent, and a rise weighs more than a fall.
pub(crate) fn plans(
    round: &Round,
    pace: &Pace,
    memory: &BTreeMap<Name, Memory>,
) -> Vec<Vec<Proposal>> {
    let vms = round.vms.iter().enumerate();
    let wanted = vms.filter_map(|(index, vm)| {
        let memory = memory.get(&vm.name).filter(|it| it.rests_until <= round.number)?;
        Some((index, memory.wanted(vm, pace)))
    });
    let mut wanted: Vec<_> = wanted.filter(|&(vm, to)| to != round.vms[vm].share).collect();
    wanted.sort_by_key(|&(index, to)| {
        let vm = &round.vms[index];
        let haste = if to > vm.share { RISE_HASTE + u64::from(vm.priority) } else { 1 };
        (u64::MAX - u64::from(to.ppm().abs_diff(vm.share.ppm())) * haste, index)
    });
    let is_fall = |&&(vm, to): &&(usize, CpuShare)| to < round.vms[vm].share;
    let (falls, rises): (Vec<_>, Vec<_>) = wanted.iter().partition(is_fall);
    let together = [[falls, rises.clone()].concat(), rises];
    let alone = wanted.iter().map(|&change| vec![change]);
    let mut plans: Vec<_> =
        together.into_iter().chain(alone).map(|it| plan(round, memory, &it)).collect();
    plans.retain(|plan| !plan.is_empty());
    plans.dedup();
    plans
}

/// Returns the plan that makes the wanted changes in this order, as far as the capacity suffices.
/// The plan lists reductions first.
fn plan(
    round: &Round,
    memory: &BTreeMap<Name, Memory>,
    wanted: &[(usize, CpuShare)],
) -> Vec<Proposal> {
    let mut after = round.clone();
    let mut plan: Vec<Proposal> = Vec::new();
    for &(vm, to) in wanted {
        // Each pass but the last reduces the share of another VM.
        for _ in &round.vms {
            let Some(it) = fit(&after, memory, vm, to) else { break };
            after.vms[it.vm].share = it.to;
            let is_done = it.vm == vm;
            plan.retain(|other| other.vm != it.vm);
            plan.push(it);
            if is_done {
                break;
            }
        }
    }
    let is_fall = |it: &Proposal| it.to < round.vms[it.vm].share;
    plan.iter_mut().filter(|it| !is_fall(it)).for_each(|it| it.room_for = None);
    plan.retain(|it| it.to != round.vms[it.vm].share);
    plan.sort_by_key(|it| !is_fall(it));
    plan
}

/// Limits a rise to the capacity that can be reserved. If too little capacity is left, proposes a
/// fall of another VM first. The falling VM must have a target below its share, or a lower priority
/// than the VM that rises.
fn fit(
    round: &Round,
    memory: &BTreeMap<Name, Memory>,
    vm: usize,
    to: CpuShare,
) -> Option<Proposal> {
    let (this, room) = (&round.vms[vm], round.room());
    let more = to.less(this.share);
    if more <= room {
        return Some(Proposal { vm, to, room_for: None });
    }
    let part = CpuShare::from_ppm(this.share.ppm().saturating_add(room.ppm()));
    let part = Proposal { vm, to: this.within(part), room_for: None };
    // A rise to a floor is not made in part: it waits until the whole rise fits.
    let part = Some(part).filter(|it| this.share < it.to && it.to.less(this.share) <= room);
    if room.ppm() >= more.ppm() / 2 && part.is_some() {
        return part;
    }
    let spare = |other: &VmRound| {
        let wants = memory.get(&other.name).and_then(|it| it.targets.back().copied());
        let wants = wants.unwrap_or(other.share);
        let least = other.goals.at_least.unwrap_or(CpuShare::NONE);
        let least = if other.priority < this.priority { least } else { wants.max(least) };
        other.share.less(other.within(least))
    };
    let others = round.vms.iter().enumerate();
    let others = others.filter(|(index, it)| *index != vm && it.goals != Default::default());
    let lender = others.max_by_key(|(_, it)| (spare(it), u8::MAX - it.priority));
    match lender.map(|(index, other)| (index, other.share, spare(other))) {
        Some((index, share, spare)) if spare > CpuShare::NONE => {
            // If the other VM has a lower priority than the rising VM, its share falls only by the
            // capacity that the rise lacks. Otherwise its share falls to its own target.
            let lends = round.vms[index].priority < this.priority;
            let given = if lends { spare.min(more.less(room)) } else { spare };
            let to = round.vms[index].within(share.less(given));
            Some(Proposal { vm: index, to, room_for: Some(vm) })
        }
        _ => part,
    }
}
