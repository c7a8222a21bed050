//! The planned split: what each should have is worked out, everybody is whole on one CPU where that
//! fits, and the few that fit nowhere are on two CPUs one after the other. [balancer §4.4]
//!
//! Rates, room and quotas are CPU time in a sample, in ns.

mod rates;

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, VcpuId};

use super::{Load, Member, SAMPLE};

/// What may be beyond the room of a CPU, as a part of what guarantees leave of it: less exact, and
/// fewer splits. [balancer §4.4, step 2]
const SLOP: u64 = 64;

/// A plan is made anew if a rate has moved by more than this part of it. [balancer §4.4, step 1]
const MOVED: u64 = 10;

/// What is to be done in each period until another plan is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Who is whole on which CPU.
    pub(crate) whole: Vec<(VcpuId, CpuId)>,
    pub(crate) splits: Vec<Split>,
    /// For whom it was made, by id.
    made_for: Vec<Wanted>,
}

/// Who is on some CPUs, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) vcpu: VcpuId,
    pub(crate) rate: u64,
    pub(crate) pieces: Vec<Piece>,
}

/// What somebody is to have on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) cpu: CpuId,
    pub(crate) quota: u64,
    /// How fast it gets that while it is there: its rate, or all that there is.
    pub(crate) rate: u64,
}

/// What a vCPU should have, and where it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    vcpu: VcpuId,
    rate: u64,
    allowed: CpuSet,
}

/// The plan for these groups of places in `loads`: if that which is there still holds, everybody
/// stays where it is by that, and only what there is to be had on each CPU is another.
pub(crate) fn plan(loads: &[Load], groups: &[Vec<usize>], before: Option<Plan>) -> Plan {
    let mut wanted: Vec<Wanted> = Vec::new();
    let mut rooms: Vec<u64> = loads.iter().map(|load| load.available).collect();
    for group in groups {
        rates::set(loads, group, &mut rooms, |member: &Member, rate| {
            wanted.push(Wanted { vcpu: member.vcpu, rate, allowed: member.allowed });
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
    fn holds_for(&self, wanted: &[Wanted]) -> bool {
        let is_near = |(before, now): (&Wanted, &Wanted)| {
            let moved = before.rate.abs_diff(now.rate);
            (before.vcpu, before.allowed) == (now.vcpu, now.allowed)
                && moved <= before.rate.max(SAMPLE.ns() / 100) / MOVED
        };
        self.made_for.len() == wanted.len() && self.made_for.iter().zip(wanted).all(is_near)
    }

    /// Whether it is another one, as rates have moved.
    pub(crate) fn is_made_anew(&self, before: &Plan) -> bool {
        self.made_for != before.made_for
    }

    /// The same for rates that have moved a little: who is split has on each of its CPUs but the
    /// last what there is beside those who are whole there.
    fn at_rates(mut self, loads: &[Load], wanted: &[Wanted], mut rooms: Vec<u64>) -> Plan {
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

    /// Of two ways to pack a group the one with fewer splits, then fewer moves.
    fn add(&mut self, loads: &[Load], group: &[usize], rooms: &[u64]) {
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
        // The tied ones first, then the heaviest.
        items.sort_unstable_by_key(|item| (!item.is_tied, u64::MAX - item.rate, item.vcpu));
        let pack = |stays| Packing::new(loads, group, rooms).pack(&items, stays);
        let cost = |packed: &Packing| (packed.splits.len(), packed.moves);
        let staying = pack(true);
        // Without a split and a move nothing is better.
        let anew = if cost(&staying) == (0, 0) { None } else { Some(pack(false)) };
        let best = match anew {
            Some(anew) if cost(&anew) < cost(&staying) => anew,
            _ => staying,
        };
        self.whole.extend(best.whole);
        self.splits.extend(best.splits);
    }

    /// What somebody should have.
    fn rate_of(&self, vcpu: VcpuId) -> u64 {
        rate_of(&self.made_for, vcpu)
    }
}

/// What somebody is to have, of those who are there by id.
fn rate_of(wanted: &[Wanted], vcpu: VcpuId) -> u64 {
    let at = wanted.binary_search_by_key(&vcpu, |wanted| wanted.vcpu);
    at.map_or(0, |at| wanted[at].rate)
}

/// Somebody to be placed.
#[derive(Clone, Copy, Debug)]
struct Item {
    vcpu: VcpuId,
    allowed: CpuSet,
    rate: u64,
    /// The place of the CPU where it is.
    home: usize,
    /// Bound to a CPU, or asleep part of the time: it is never split.
    is_tied: bool,
}

/// A packing as it comes about.
struct Packing<'a> {
    loads: &'a [Load],
    /// The places to pack into with their room, those with the least first.
    open: Vec<(u64, usize)>,
    /// The greatest tolerance of any of them.
    most_tolerance: u64,
    /// By place.
    room: Vec<u64>,
    /// By place: how many splits have a piece there.
    pieces: Vec<u8>,
    whole: Vec<(VcpuId, CpuId)>,
    splits: Vec<Split>,
    moves: usize,
}

impl<'a> Packing<'a> {
    fn new(loads: &'a [Load], group: &[usize], rooms: &[u64]) -> Packing<'a> {
        let mut open: Vec<(u64, usize)> =
            group.iter().map(|&place| (rooms[place], place)).collect();
        open.sort_unstable();
        let most = group.iter().map(|&place| loads[place].available).max();
        Packing {
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

    fn pack(mut self, items: &[Item], stays: bool) -> Packing<'a> {
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

    fn tolerance(&self, place: usize) -> u64 {
        self.loads[place].available / SLOP
    }

    fn may_go(&self, item: &Item, place: usize) -> bool {
        item.allowed.contains(self.loads[place].cpu)
    }

    fn fits(&self, item: &Item, place: usize) -> bool {
        item.rate <= self.room[place] + self.tolerance(place)
    }

    /// Home, or where the least room is left beside it; for who is tied somewhere in any case.
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

    /// Whether any place with such room could hold a rate.
    fn may_hold(&self, room: u64, rate: u64) -> bool {
        rate <= room + self.most_tolerance
    }

    /// Home among equals.
    fn home_or(&self, item: &Item, (room, place): (u64, usize)) -> usize {
        let is_equal = self.room[item.home] == room && self.may_go(item, item.home);
        if is_equal { item.home } else { place }
    }

    /// Takes some of the room of a place, if there is as much.
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

    fn put(&mut self, item: &Item, place: usize) {
        self.take(place, item.rate);
        self.moves += usize::from(place != item.home);
        self.whole.push((item.vcpu, self.loads[place].cpu));
    }

    /// Where somebody is to have more of what is left of its rate, if there is room anywhere.
    fn next_piece(&self, item: &Item, left: u64, taken: &[(usize, u64)]) -> Option<usize> {
        let mut best: Option<(bool, bool, u64, usize)> = None;
        for &(room, place) in self.open.iter().rev().take_while(|&&(room, _)| room > 0) {
            // The others have less room.
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

    /// Over the roomiest CPUs, those first where no other one is split; as few as will do.
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
            let Load { cpu, available, .. } = self.loads[place];
            Piece { cpu, quota, rate: item.rate.min(available).max(1) }
        };
        let pieces = taken.into_iter().map(piece).collect();
        self.splits.push(Split { vcpu: item.vcpu, rate: item.rate, pieces });
    }
}

#[cfg(test)]
mod tests;
