//! The controller: one proposal, one prediction and at most one change in each round.

use std::collections::{BTreeMap, VecDeque};

use slackline_service::{MeasuredVm, Name, VmPrediction};
use slackline_units::{CpuShare, Span};

use crate::decision::{Decision, Why};
use crate::input::{Predicted, Predictor, Round, VmRound};
use crate::target::target;

/// Number of times that a rise is more urgent than a fall by as much.
const RISE_HASTE: u64 = 4;

/// Pace of the manager, in rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Number of rounds in which a VM must want more before it gets more.
    pub rise_after: usize,
    /// Number of rounds in which a VM must want less before it gets less.
    pub fall_after: usize,
    /// A reservation falls only if it falls by more than this part of itself, in millionths.
    pub margin_ppm: u32,
    /// Number of rounds for which a VM is left alone after its change was undone.
    pub rest: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { rise_after: 1, fall_after: 2, margin_ppm: 80_000, rest: 4 }
    }
}

/// The workload manager. The same inputs give the same decisions.
#[derive(Clone, Debug, Default)]
pub struct Manager {
    pace: Pace,
    /// Last targets of each VM, oldest first.
    targets: BTreeMap<Name, VecDeque<CpuShare>>,
    /// Round from which a VM whose change was undone may change again.
    rests: BTreeMap<Name, u64>,
    canary: Option<(Decision, VmPrediction)>,
}

/// A change that is proposed, not predicted yet.
struct Proposal {
    vm: usize,
    to: CpuShare,
    /// VM that needs the room which the change makes.
    room_for: Option<usize>,
}

impl Manager {
    /// Creates a manager that has seen nothing yet.
    #[must_use]
    pub fn new(pace: Pace) -> Manager {
        Manager { pace, ..Manager::default() }
    }

    /// Judges the last change and proposes the next. Returns the change to make, if any.
    pub fn round(&mut self, round: &Round, predictor: &mut dyn Predictor) -> Option<Decision> {
        self.remember(round);
        let last = self.canary.take();
        if let Some(undo) = last.as_ref().and_then(|(made, said)| undo(round, made, said)) {
            self.rests.insert(undo.name.clone(), round.number + self.pace.rest);
            return Some(undo);
        }
        let proposals = self.proposals(round);
        if proposals.is_empty() {
            return None;
        }
        let before = predictor.predict(&round.shares())?;
        proposals.into_iter().find_map(|proposal| {
            let mut shares = round.shares();
            shares[proposal.vm] = proposal.to;
            let after = predictor.predict(&shares)?;
            let is_known = before.len() == shares.len() && after.len() == shares.len();
            (is_known && is_better(round, &proposal, &before, &after)).then(|| {
                let given = last.as_ref().map(|(made, _)| made);
                let why = why(round, &proposal, (&before, &after), given);
                self.change(round, &proposal, why, &after[proposal.vm])
            })
        })
    }

    /// Remembers the last targets of each VM.
    fn remember(&mut self, round: &Round) {
        let most = self.pace.rise_after.max(self.pace.fall_after).max(3);
        self.targets.retain(|name, _| round.vms.iter().any(|vm| vm.name == *name));
        for vm in &round.vms {
            let targets = self.targets.entry(vm.name.clone()).or_default();
            targets.push_back(target(vm));
            targets.drain(..targets.len().saturating_sub(most));
        }
    }

    /// Returns the proposals, the most urgent first: the largest change, where a rise counts more.
    fn proposals(&self, round: &Round) -> Vec<Proposal> {
        let vms = round.vms.iter().enumerate();
        let free = |vm: &VmRound| self.rests.get(&vm.name).is_none_or(|rest| round.number >= *rest);
        let wanted = vms.filter(|(_, vm)| free(vm)).map(|(index, vm)| (index, vm, self.wanted(vm)));
        let mut wanted: Vec<_> = wanted.filter(|(_, vm, to)| *to != vm.share).collect();
        wanted.sort_by_key(|&(index, vm, to)| {
            let haste = if to > vm.share { RISE_HASTE + u64::from(vm.priority) } else { 1 };
            (u64::MAX - u64::from(to.ppm().abs_diff(vm.share.ppm())) * haste, index)
        });
        wanted.into_iter().filter_map(|(vm, _, to)| self.fit(round, vm, to)).collect()
    }

    /// Returns the share that the VM has wanted for long enough. Its present share if none.
    fn wanted(&self, vm: &VmRound) -> CpuShare {
        let targets = &self.targets[&vm.name];
        let last = |count: usize| {
            targets.iter().rev().take(count).copied().filter(move |_| targets.len() >= count)
        };
        let rise = last(self.pace.rise_after).min().unwrap_or(vm.share);
        let fall = last(self.pace.fall_after).max().unwrap_or(vm.share);
        match () {
            () if rise > vm.share => vm.within(CpuShare::from_ppm(rise.ppm() + growth(targets))),
            () if fall < self.margin_below(vm) => vm.within(fall),
            () => vm.share,
        }
    }

    fn margin_below(&self, vm: &VmRound) -> CpuShare {
        let margin = u64::from(vm.share.ppm()) * u64::from(self.pace.margin_ppm) / 1_000_000;
        vm.share.less(CpuShare::from_ppm(u32::try_from(margin).unwrap_or(u32::MAX)))
    }

    /// Fits a rise into what can be reserved. If that is too little, another VM falls first: one
    /// that wants less, else one with a lower priority.
    fn fit(&self, round: &Round, vm: usize, to: CpuShare) -> Option<Proposal> {
        let (this, room) = (&round.vms[vm], round.room());
        let more = to.less(this.share);
        if more <= room {
            return Some(Proposal { vm, to, room_for: None });
        }
        let spare = |other: &VmRound| {
            let wants = self.targets[&other.name].back().copied().unwrap_or(other.share);
            let least = other.goals.at_least.unwrap_or(CpuShare::NONE);
            let least = if other.priority < this.priority { least } else { wants.max(least) };
            other.share.less(other.within(least))
        };
        let others = round.vms.iter().enumerate().filter(|(index, _)| *index != vm);
        let lender = others.max_by_key(|(_, it)| (spare(it), u8::MAX - it.priority));
        match lender.map(|(index, other)| (index, other.share, spare(other))) {
            Some((index, share, spare)) if spare > CpuShare::NONE => {
                // A VM that wants less gives up all that it does not want.
                let lends = round.vms[index].priority < this.priority;
                let part = if lends { spare.min(more.less(room)) } else { spare };
                Some(Proposal { vm: index, to: share.less(part), room_for: Some(vm) })
            }
            _ if room > CpuShare::NONE => {
                let to = CpuShare::from_ppm(this.share.ppm() + room.ppm());
                Some(Proposal { vm, to: this.within(to), room_for: None })
            }
            _ => None,
        }
    }

    /// Makes a change, and watches it in the next round.
    fn change(&mut self, round: &Round, it: &Proposal, why: Why, said: &Predicted) -> Decision {
        let vm = &round.vms[it.vm];
        let made =
            Decision { round: round.number, name: vm.name.clone(), from: vm.share, to: it.to, why };
        // A larger reservation lets the VM use as much as it reserves, if it wants that.
        let (least, most) = said.share_ppm;
        let share_ppm = (least, most.max(u64::from(it.to.max(vm.share).ppm())));
        let prediction = VmPrediction {
            name: vm.name.clone(),
            share_ppm,
            missed: Some(said.misses),
            length: said.length,
        };
        self.canary = Some((made.clone(), prediction));
        made
    }
}

/// Returns the growth to expect in the next round: the smaller of the last two, if both grew.
fn growth(targets: &VecDeque<CpuShare>) -> u32 {
    let mut last = targets.iter().rev().map(|target| target.ppm());
    match (last.next(), last.next(), last.next()) {
        (Some(third), Some(second), Some(first)) => {
            third.saturating_sub(second).min(second.saturating_sub(first))
        }
        _ => 0,
    }
}

/// Returns the change that undoes `made` if the VM did not do as predicted, and its old share is
/// still allowed. Demand may move meanwhile. A VM that received what it demanded did as predicted,
/// and periods that demanded more than a risen reservation are not missed because of the rise.
fn undo(round: &Round, made: &Decision, said: &VmPrediction) -> Option<Decision> {
    let vm = round.vms.iter().find(|vm| vm.name == made.name && vm.share == made.to)?;
    let demand = u128::from(vm.demanded().ns()) * 1_000_000 / u128::from(round.length.ns().max(1));
    let demand = u64::try_from(demand).unwrap_or(u64::MAX);
    let (least, most) = said.share_ppm;
    let share_ppm = (least.min(demand), most.max(demand));
    let excused = if made.to > made.from { uncovered(vm, vm.share) } else { 0 };
    let came = MeasuredVm {
        present: round.length,
        used: vm.received,
        deadlines: vm.periods(),
        missed: vm.misses.saturating_sub(excused),
    };
    let said = VmPrediction { share_ppm, ..said.clone() };
    let why = Why::Undo(said.compare(MeasuredVm::default(), came).err()?);
    let is_allowed = vm.within(made.from) == made.from && made.from.less(vm.share) <= round.room();
    let (from, to, name) = (made.to, made.from, made.name.clone());
    is_allowed.then_some(Decision { round: round.number, name, from, to, why })
}

/// Returns true if the prediction with the change is better by a margin. No VM misses more than
/// its goal allows, or else more than it would without the change. In exchange one VM misses less,
/// has more of its demand covered, or leaves more to others.
fn is_better(round: &Round, it: &Proposal, before: &[Predicted], after: &[Predicted]) -> bool {
    let allowed = |index: usize, said: &Predicted| {
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
    let is_short = uncovered(vm, vm.share).max(vm.misses) > vm.allowed();
    !is_worse && (it.to < vm.share || is_short || after[it.vm].misses < before[it.vm].misses)
}

/// Returns the number of periods that demanded more than a share.
fn uncovered(vm: &VmRound, share: CpuShare) -> u64 {
    let slice = u128::from(vm.period.ns()) * u128::from(share.ppm()) / 1_000_000;
    let above = vm.demand.iter().filter(|(amount, _)| u128::from(amount.ns()) > slice);
    above.map(|(_, count)| count).sum()
}

fn why(
    round: &Round,
    it: &Proposal,
    (before, after): (&[Predicted], &[Predicted]),
    given: Option<&Decision>,
) -> Why {
    let (vm, predicted) = (&round.vms[it.vm], after[it.vm].misses);
    if let Some(of) = it.room_for {
        return Why::Room { of: round.vms[of].name.clone(), predicted };
    }
    if it.to < vm.share {
        let slice = u128::from(vm.period.ns()) * u128::from(vm.share.ppm()) / 1_000_000;
        let reserved = (slice * u128::from(vm.periods())).max(1);
        let used =
            u64::try_from(u128::from(vm.demanded().ns()) * 100 / reserved).unwrap_or(u64::MAX);
        return Why::Fall { used, predicted };
    }
    let of_this = |made: &&Decision| matches!(&made.why, Why::Room { of, .. } if *of == vm.name);
    let from = given.filter(of_this).map(|made| (made.name.clone(), made.from.less(made.to)));
    let seconds = before[it.vm].length / Span::from_secs(1);
    let misses = before[it.vm].misses;
    Why::Rise { misses, seconds, predicted, uncovered: uncovered(vm, vm.share), from }
}
