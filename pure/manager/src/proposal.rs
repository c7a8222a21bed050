//! Proposals: the share that each VM wants, limited to the capacity that can be reserved.

use std::collections::{BTreeMap, VecDeque};

use slackline_service::{Name, exceeds_prediction};
use slackline_units::CpuShare;

use crate::input::{Round, VmRound, short_periods};

/// Weight of a rise when the manager chooses the most urgent change. The priority of the rising VM
/// is added to this weight. A fall has the weight 1.
const RISE_HASTE: u64 = 4;

/// Delays and margins of the manager. Times are in rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Number of consecutive rounds in which a VM must want a larger share before its reservation
    /// rises.
    pub rise_after: usize,
    /// Number of consecutive rounds in which a VM must want a smaller share before its reservation
    /// falls.
    pub fall_after: usize,
    /// Smallest fall, in millionths of the reservation. Smaller falls are not made.
    pub margin_ppm: u32,
    /// Number of rounds in which a VM is not changed after a rise of its reservation was undone.
    pub rest: u64,
    /// Number of rounds after a large fall in which a large rise shows that the fall was wrong.
    /// After such a rise, the number of consecutive rounds in which the VM must want a smaller
    /// share before its next fall is doubled.
    pub regret: u64,
    /// Size above which a fall or rise is large, in millionths of the smaller of its old and new
    /// share. Smaller changes do not affect the delay of the next fall.
    pub regret_ppm: u32,
    /// Upper limit of the number of consecutive rounds in which a VM must want a smaller share
    /// before a fall, even if earlier falls were wrong.
    pub most_patience: usize,
    /// Number of most recent rounds whose misses count as evidence that the last fall was wrong.
    pub evidence: usize,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            rise_after: 1,
            fall_after: 2,
            margin_ppm: 60_000,
            rest: 4,
            regret: 6,
            regret_ppm: 200_000,
            most_patience: 4,
            evidence: 6,
        }
    }
}

impl Pace {
    /// Returns true if `to` exceeds `from` by more than `regret_ppm` millionths of `from`.
    pub(crate) fn is_large_rise(&self, from: CpuShare, to: CpuShare) -> bool {
        let least = u64::from(from.ppm()) * u64::from(self.regret_ppm) / 1_000_000;
        u64::from(to.less(from).ppm()) > least
    }

    fn margin_below(&self, vm: &VmRound) -> CpuShare {
        let margin = u64::from(vm.share.ppm()) * u64::from(self.margin_ppm) / 1_000_000;
        vm.share.less(CpuShare::from_ppm(u32::try_from(margin).unwrap_or(u32::MAX)))
    }
}

/// Targets and changes that the manager remembers of one VM.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    /// Targets of the VM in the last rounds, oldest first.
    pub(crate) targets: VecDeque<CpuShare>,
    /// First round in which the VM may change again after its rise was undone.
    pub(crate) rests_until: u64,
    /// Number of consecutive rounds in which the VM must want a smaller share before a fall. Used
    /// if it exceeds `Pace::fall_after`.
    pub(crate) patience: usize,
    /// Number of the round of the last large fall. `None` if there was no large fall, or if there
    /// was a large rise since then.
    pub(crate) fell: Option<u64>,
    /// Last fall of the reservation, with its prediction. `None` if the last change was no fall, or
    /// had no prediction.
    pub(crate) fall: Option<PredictedFall>,
}

/// A fall of a reservation, with its prediction and the misses since then.
#[derive(Clone, Debug)]
pub(crate) struct PredictedFall {
    /// Share of the VM after the fall.
    pub(crate) to: CpuShare,
    /// Predicted number of missed periods, and number of periods that the prediction covers.
    pub(crate) predicted: (u64, u64),
    /// Two counts for each of the last rounds since the fall, oldest first. The first count is the
    /// larger of two numbers: periods that were missed, and periods that demanded more than the
    /// reservation. The second count is the number of all periods.
    pub(crate) rounds: VecDeque<(u64, u64)>,
}

impl PredictedFall {
    /// Adds the misses of a round, and keeps only the last `most` rounds.
    pub(crate) fn observe(&mut self, vm: &VmRound, most: usize) {
        self.rounds.push_back((short_periods(vm), vm.periods()));
        self.rounds.drain(..self.rounds.len().saturating_sub(most));
    }

    /// Returns true if the VM has missed more periods since the fall than the prediction and chance
    /// can explain.
    fn is_refuted(&self) -> bool {
        let add = |(missed, periods): (u64, u64), round: &(u64, u64)| {
            (missed.saturating_add(round.0), periods.saturating_add(round.1))
        };
        let (missed, periods) = self.rounds.iter().fold((0, 0), add);
        let (predicted, of) = self.predicted;
        let scaled = (u128::from(predicted) * u128::from(periods)).div_ceil(of.max(1).into());
        exceeds_prediction(missed, u64::try_from(scaled).unwrap_or(u64::MAX), periods)
    }
}

/// A proposed change that has no prediction yet.
pub(crate) struct Proposal {
    pub(crate) vm: usize,
    pub(crate) to: CpuShare,
    /// VM for which the change makes room. `None` if the change is for its own VM.
    pub(crate) room_for: Option<usize>,
}

impl Memory {
    /// Returns true if the reservation may rise. If the last change was a fall with a prediction,
    /// the reservation may rise only for one of three reasons:
    ///
    /// - The share is below the smallest share that the VM's goals want.
    /// - The VM has a goal for the use of its reservation.
    /// - The VM has missed more periods since the fall than the prediction and chance explain.
    fn may_rise(&self, vm: &VmRound) -> bool {
        let Some(fall) = self.fall.as_ref().filter(|fall| fall.to == vm.share) else { return true };
        vm.share < vm.least() || vm.goals.use_ppm.is_some() || fall.is_refuted()
    }

    /// Returns the share that the VM has wanted for enough rounds. If there is no such share,
    /// returns the VM's present share.
    fn wanted(&self, vm: &VmRound, pace: &Pace) -> CpuShare {
        let targets = &self.targets;
        let last = |count: usize| {
            targets.iter().rev().take(count).copied().filter(move |_| targets.len() >= count)
        };
        let rise = last(pace.rise_after).min().unwrap_or(vm.share);
        let fall = last(pace.fall_after.max(self.patience)).max().unwrap_or(vm.share);
        match () {
            () if rise > vm.share && self.may_rise(vm) => {
                vm.within(CpuShare::from_ppm(rise.ppm().saturating_add(growth(targets))))
            }
            () if fall < pace.margin_below(vm) => vm.within(fall),
            () => vm.share,
        }
    }
}

/// Returns the proposals, the most urgent first: at most one for each VM that wants another share.
/// A larger change is more urgent, and a rise weighs more than a fall.
pub(crate) fn proposals(
    round: &Round,
    pace: &Pace,
    memory: &BTreeMap<Name, Memory>,
) -> Vec<Proposal> {
    let vms = round.vms.iter().enumerate();
    let wanted = vms.filter_map(|(index, vm)| {
        let memory = memory.get(&vm.name).filter(|it| it.rests_until <= round.number)?;
        Some((index, vm, memory.wanted(vm, pace)))
    });
    let mut wanted: Vec<_> = wanted.filter(|(_, vm, to)| *to != vm.share).collect();
    wanted.sort_by_key(|&(index, vm, to)| {
        let haste = if to > vm.share { RISE_HASTE + u64::from(vm.priority) } else { 1 };
        (u64::MAX - u64::from(to.ppm().abs_diff(vm.share.ppm())) * haste, index)
    });
    wanted.into_iter().filter_map(|(vm, _, to)| fit(round, memory, vm, to)).collect()
}

/// Returns the proposal for a change of the VM with the index `vm` to the share `to`. A rise is
/// limited to the capacity that can be reserved. If too little capacity is left, returns a fall of
/// another VM instead, to make room. This other VM must have a target below its share, or a lower
/// priority than the VM that rises. `None` if no change is possible.
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

/// Returns the expected growth of the target in the next round, in millionths of a CPU: the smaller
/// of the target's last two increases. Zero if the target did not increase twice in a row.
fn growth(targets: &VecDeque<CpuShare>) -> u32 {
    let mut last = targets.iter().rev().map(|target| target.ppm());
    match (last.next(), last.next(), last.next()) {
        (Some(third), Some(second), Some(first)) => {
            third.saturating_sub(second).min(second.saturating_sub(first))
        }
        _ => 0,
    }
}
