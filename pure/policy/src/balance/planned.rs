//! Planned split: computes the CPU time of each best-effort vCPU in a period and places the vCPU on
//! one CPU if it fits there. The few vCPUs that fit on no CPU are split over several CPUs and run
//! on them one after the other. [balancer §4.4]
//!
//! Rates, room and quotas are CPU time in a sample of 100 ms, in ns. The *room* of a CPU is its
//! available time that is not planned yet. A *place* is the index of a CPU in `loads`.

mod rates;

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, VcpuId};

use super::{BalancerCpu, Member, SAMPLE};

/// Divisor of a CPU's available time that gives the tolerance: a CPU may be planned beyond its
/// available time by `available / SLOP`. The tolerance costs some exactness and saves splits.
/// [balancer §4.4, step 2]
const SLOP: u64 = 64;

/// Divisor of a rate: a new plan is made if a rate has changed by more than a tenth of itself. A
/// rate below 1 ms per sample counts as 1 ms here. [balancer §4.4, step 1]
const MOVED: u64 = 10;

/// Placement of best-effort vCPUs for all periods until another plan is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// vCPUs that are not split, each with its CPU.
    pub(crate) whole: Vec<(VcpuId, CpuId)>,
    pub(crate) splits: Vec<Split>,
    /// Rates and affinities for which the plan was made, in order of vCPU id.
    made_for: Vec<PlannedRate>,
}

/// A split vCPU, with its pieces in the order in which the vCPU receives them in a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) vcpu: VcpuId,
    pub(crate) rate: u64,
    pub(crate) pieces: Vec<Piece>,
}

/// Part of a split vCPU's CPU time that the vCPU receives on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) cpu: CpuId,
    /// CPU time that the vCPU receives on this CPU, in ns per sample.
    pub(crate) quota: u64,
    /// CPU time per sample, in ns, that the vCPU would receive if it stayed on this CPU. It is the
    /// vCPU's planned rate, or the CPU's available time if that is less.
    pub(crate) rate: u64,
}

/// Rate and affinity of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlannedRate {
    vcpu: VcpuId,
    rate: u64,
    allowed: CpuSet,
}

/// Returns the plan for `groups` of CPUs, given as indices into `loads`. If the plan `before` still
/// holds, all vCPUs stay on the CPUs of that plan. Only the quotas then follow the available time.
pub(crate) fn plan(loads: &[BalancerCpu], groups: &[Vec<usize>], before: Option<Plan>) -> Plan {
    let mut wanted: Vec<PlannedRate> = Vec::new();
    let mut rooms: Vec<u64> = loads.iter().map(|load| load.available).collect();
    for group in groups {
        rates::set(loads, group, &mut rooms, |member: &Member, rate| {
            wanted.push(PlannedRate { vcpu: member.vcpu, rate, allowed: member.allowed });
        });
    }
    wanted.sort_unstable_by_key(|wanted| wanted.vcpu);
    if let Some(before) = before.filter(|before| before.holds_for(&wanted)) {
        return before.at_rates(loads, &wanted, rooms);
    }
    let mut plan = Plan { made_for: wanted, ..Plan::default() };
    for group in groups {
        plan.add(loads, group, &rooms);
    }
    plan
}

impl Plan {
    /// Returns true if the plan still holds for these rates: the vCPUs and affinities are the same,
    /// and no rate has changed by more than a tenth.
    fn holds_for(&self, wanted: &[PlannedRate]) -> bool {
        let is_near = |(before, now): (&PlannedRate, &PlannedRate)| {
            let moved = before.rate.abs_diff(now.rate);
            (before.vcpu, before.allowed) == (now.vcpu, now.allowed)
                && moved <= before.rate.max(SAMPLE.ns() / 100) / MOVED
        };
        self.made_for.len() == wanted.len() && self.made_for.iter().zip(wanted).all(is_near)
    }

    /// Returns true if this plan was newly made. False if it is the plan `before`, perhaps with
    /// other quotas.
    pub(crate) fn is_made_anew(&self, before: &Plan) -> bool {
        self.made_for != before.made_for
    }

    /// Returns the plan with new quotas, after rates have changed slightly. On each of its CPUs but
    /// the last, a split vCPU gets the time that whole vCPUs leave. On the last CPU it gets the
    /// rest of its rate.
    fn at_rates(
        mut self,
        loads: &[BalancerCpu],
        wanted: &[PlannedRate],
        mut rooms: Vec<u64>,
    ) -> Plan {
        if self.splits.is_empty() {
            return self;
        }
        let place = |cpu: CpuId| loads.binary_search_by_key(&cpu, |load| load.cpu);
        for &(vcpu, cpu) in &self.whole {
            if let Ok(place) = place(cpu) {
                rooms[place] = rooms[place].saturating_sub(rate_of(wanted, vcpu));
            }
        }
        for split in &mut self.splits {
            split.rate = rate_of(wanted, split.vcpu);
            let mut left = split.rate;
            let last = split.pieces.len() - 1;
            for (index, piece) in split.pieces.iter_mut().enumerate() {
                let Ok(place) = place(piece.cpu) else { continue };
                piece.quota = if index == last { left } else { left.min(rooms[place]) };
                piece.rate = split.rate.min(loads[place].available).max(1);
                rooms[place] = rooms[place].saturating_sub(piece.quota);
                left -= piece.quota;
            }
        }
        self
    }

    /// Packs the vCPUs of a group in two ways, with and without a preference for their current
    /// CPUs. Adds the packing with fewer splits. With equally many splits, adds the packing with
    /// fewer migrations.
    fn add(&mut self, loads: &[BalancerCpu], group: &[usize], rooms: &[u64]) {
        let mut items: Vec<Item> = Vec::new();
        for &place in group {
            items.extend(loads[place].members.iter().map(|member| Item {
                vcpu: member.vcpu,
                allowed: member.allowed,
                rate: self.rate_of(member.vcpu),
                home: place,
                is_tied: member.allowed.len() == 1 || member.runnable < SAMPLE.ns() / 16 * 15,
            }));
        }
        // First the tied vCPUs, then the heaviest.
        items.sort_unstable_by_key(|item| (!item.is_tied, u64::MAX - item.rate, item.vcpu));
        let pack = |stays| PlanPacking::new(loads, group, rooms).pack(&items, stays);
        let cost = |packed: &PlanPacking| (packed.splits.len(), packed.moves);
        let staying = pack(true);
        // A packing without splits and migrations cannot be improved.
        let anew = if cost(&staying) == (0, 0) { None } else { Some(pack(false)) };
        let best = match anew {
            Some(anew) if cost(&anew) < cost(&staying) => anew,
            _ => staying,
        };
        self.whole.extend(best.whole);
        self.splits.extend(best.splits);
    }

    /// Returns the planned rate of a vCPU. Zero if the vCPU is not in the plan.
    fn rate_of(&self, vcpu: VcpuId) -> u64 {
        rate_of(&self.made_for, vcpu)
    }
}

/// Returns the rate of a vCPU from a list in order of vCPU id. Zero if the vCPU is not in the list.
fn rate_of(wanted: &[PlannedRate], vcpu: VcpuId) -> u64 {
    let at = wanted.binary_search_by_key(&vcpu, |wanted| wanted.vcpu);
    at.map_or(0, |at| wanted[at].rate)
}

/// A vCPU to be placed on a CPU.
#[derive(Clone, Copy, Debug)]
struct Item {
    vcpu: VcpuId,
    allowed: CpuSet,
    rate: u64,
    /// Index in `loads` of the vCPU's current CPU.
    home: usize,
    /// True if the vCPU is bound to one CPU or was blocked for more than 1/16 of the sample. Such a
    /// vCPU is never split.
    is_tied: bool,
}

/// An assignment of the vCPUs of a group to CPUs, in progress.
struct PlanPacking<'a> {
    loads: &'a [BalancerCpu],
    /// CPUs of the group, those with the least room (unplanned time) first. Each entry has the room
    /// and the index in `loads`.
    open: Vec<(u64, usize)>,
    /// Greatest tolerance of any CPU in `open`.
    most_tolerance: u64,
    /// Room (unplanned time) of each CPU, by index in `loads`.
    room: Vec<u64>,
    /// Number of split vCPUs that have a piece on a CPU, by index in `loads`.
    pieces: Vec<u8>,
    whole: Vec<(VcpuId, CpuId)>,
    splits: Vec<Split>,
    /// Number of vCPUs that would migrate.
    moves: usize,
}

impl<'a> PlanPacking<'a> {
    fn new(loads: &'a [BalancerCpu], group: &[usize], rooms: &[u64]) -> PlanPacking<'a> {
        let mut open: Vec<(u64, usize)> =
            group.iter().map(|&place| (rooms[place], place)).collect();
        open.sort_unstable();
        let most = group.iter().map(|&place| loads[place].available).max();
        PlanPacking {
            loads,
            open,
            most_tolerance: most.unwrap_or(0) / SLOP,
            room: rooms.to_vec(),
            pieces: alloc::vec![0; loads.len()],
            whole: Vec::new(),
            splits: Vec::new(),
            moves: 0,
        }
    }

    /// Places all vCPUs that fit on one CPU, then splits the others. If `stays` is true, each vCPU
    /// that fits on its current CPU stays there.
    fn pack(mut self, items: &[Item], stays: bool) -> PlanPacking<'a> {
        let mut left: Vec<&Item> = Vec::new();
        for item in items {
            match self.place_for(item, stays) {
                Some(place) => self.put(item, place),
                None => left.push(item),
            }
        }
        for item in left {
            self.split(item);
        }
        self
    }

    /// Returns the time by which a CPU may be planned beyond its available time.
    fn tolerance(&self, place: usize) -> u64 {
        self.loads[place].available / SLOP
    }

    /// Returns true if the affinity of a vCPU allows a CPU.
    fn may_go(&self, item: &Item, place: usize) -> bool {
        item.allowed.contains(self.loads[place].cpu)
    }

    /// Returns true if the rate of a vCPU is at most the unplanned time of a CPU plus that CPU's
    /// tolerance.
    fn fits(&self, item: &Item, place: usize) -> bool {
        item.rate <= self.room[place] + self.tolerance(place)
    }

    /// Returns the index of the CPU that takes the whole vCPU: its current CPU if `stays` is true
    /// and the vCPU fits there, otherwise the CPU with the least unplanned time in which the vCPU
    /// fits. A *tied* vCPU (one that is never split) that fits nowhere gets the CPU with the most
    /// unplanned time. `None` for any other vCPU that fits nowhere.
    fn place_for(&self, item: &Item, stays: bool) -> Option<usize> {
        if stays && self.fits(item, item.home) {
            return Some(item.home);
        }
        let may_go = |&&(_, place): &&(u64, usize)| self.may_go(item, place);
        let scarce = self.open.partition_point(|&(room, _)| !self.may_hold(room, item.rate));
        let mut open = self.open[scarce..].iter().filter(may_go);
        let tightest = open.find(|&&(_, place)| self.fits(item, place));
        if let Some(&tightest) = tightest {
            let home_too = self.fits(item, item.home);
            return Some(if home_too { self.home_or(item, tightest) } else { tightest.1 });
        }
        let roomiest = self.open.iter().rev().filter(|_| item.is_tied).find(may_go);
        roomiest.map(|&roomiest| self.home_or(item, roomiest))
    }

    /// Returns true if a vCPU with `rate` may fit on a CPU with `room` unplanned time. This quick
    /// filter assumes the largest tolerance of all CPUs, so `fits` must still be checked.
    fn may_hold(&self, room: u64, rate: u64) -> bool {
        rate <= room + self.most_tolerance
    }

    /// Returns the index of the vCPU's current CPU if this CPU has as much unplanned time as the
    /// CPU `place`. Otherwise returns `place`.
    fn home_or(&self, item: &Item, (room, place): (u64, usize)) -> usize {
        let is_equal = self.room[item.home] == room && self.may_go(item, item.home);
        if is_equal { item.home } else { place }
    }

    /// Takes `rate` from the unplanned time of a CPU, or all of that time if less than `rate` is
    /// left.
    fn take(&mut self, place: usize, rate: u64) {
        let before = (self.room[place], place);
        let after = (before.0.saturating_sub(rate), place);
        self.room[place] = after.0;
        if let Ok(at) = self.open.binary_search(&before) {
            let to = self.open[..at].partition_point(|&other| other < after);
            self.open[to..=at].rotate_right(1);
            self.open[to] = after;
        }
    }

    /// Places a whole vCPU on a CPU.
    fn put(&mut self, item: &Item, place: usize) {
        self.take(place, item.rate);
        self.moves += usize::from(place != item.home);
        self.whole.push((item.vcpu, self.loads[place].cpu));
    }

    /// Returns the index of the best CPU for the next piece of a vCPU that is being split. `None`
    /// if no CPU that the vCPU may use has unplanned time.
    fn next_piece(&self, item: &Item, left: u64, taken: &[(usize, u64)]) -> Option<usize> {
        let mut best: Option<(bool, bool, u64, usize)> = None;
        for &(room, place) in self.open.iter().rev().take_while(|&&(room, _)| room > 0) {
            // CPUs come in order of falling unplanned time, so all further CPUs have less.
            let is_best = |&(ends, is_free, most, _): &(bool, bool, u64, usize)| {
                is_free && room < most && (ends || !self.may_hold(room, left))
            };
            if best.as_ref().is_some_and(is_best) {
                break;
            }
            if self.may_go(item, place) && taken.iter().all(|&(other, _)| other != place) {
                let is_free = self.pieces[place] == 0;
                let ends = room + self.tolerance(place) >= left;
                best = best.max(Some((ends && is_free, is_free, room, usize::MAX - place)));
            }
        }
        best.map(|(.., last)| usize::MAX - last)
    }

    /// Splits a vCPU over as few CPUs as possible. CPUs without other splits come first, then those
    /// with the most unplanned time.
    fn split(&mut self, item: &Item) {
        let mut left = item.rate;
        let mut taken: Vec<(usize, u64)> = Vec::new();
        while left > 0 {
            let Some(place) = self.next_piece(item, left, &taken) else { break };
            let all = self.room[place] + self.tolerance(place) >= left;
            let quota = if all { left } else { self.room[place] };
            self.take(place, quota);
            self.pieces[place] += 1;
            taken.push((place, quota));
            left -= quota;
        }
        if taken.is_empty() {
            return self.put(item, item.home);
        }
        self.moves += usize::from(taken.iter().all(|&(place, _)| place != item.home));
        if let [(place, _)] = taken[..] {
            self.whole.push((item.vcpu, self.loads[place].cpu));
            return;
        }
        let piece = |(place, quota): (usize, u64)| {
            let BalancerCpu { cpu, available, .. } = self.loads[place];
            Piece { cpu, quota, rate: item.rate.min(available).max(1) }
        };
        let pieces = taken.into_iter().map(piece).collect();
        self.splits.push(Split { vcpu: item.vcpu, rate: item.rate, pieces });
    }
}

#[cfg(test)]
mod tests;
