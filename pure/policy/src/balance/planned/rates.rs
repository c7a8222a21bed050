//! What each of a group should have: by weight, as far as the CPUs can give it.
//!
//! Nobody has more than the part of the time that it is awake, and nobody is on two CPUs at
//! once, so the heaviest one fits on the roomiest CPU, the two heaviest on the two roomiest,
//! and so on. Where that is less than their part by weight they share exactly that, and the
//! others have more. [balancer §4.4, step 1]

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::super::{Load, Member, Tau};

/// Tells the rate of every member of a group, and takes from the room of each CPU what those have
/// who stay there.
pub(super) fn set(
    loads: &[Load],
    group: &[usize],
    rooms: &mut [u64],
    mut tell: impl FnMut(&Member, u64),
) {
    let mut shares: Vec<Share<'_>> = Vec::new();
    for &place in group {
        let members = &loads[place].members;
        let of_members: u64 = members.iter().map(|member| member.weight.0).sum();
        let staying = loads[place].weight.saturating_sub(of_members);
        let most = loads[place].available;
        if staying > 0 {
            shares.push(Share { weight: staying, most, who: Who::Staying(place), rate: 0 });
        }
        shares.extend(members.iter().map(|member| Share {
            weight: member.weight.0,
            most: member.runnable,
            who: Who::Member(member),
            rate: 0,
        }));
    }
    let mut rooms_down: Vec<u64> = group.iter().map(|&place| rooms[place]).collect();
    rooms_down.sort_unstable_by(|a, b| b.cmp(a));
    // Heaviest first; the sort is stable.
    shares.sort_by_key(|share| u64::MAX - share.weight);
    fill(&mut shares, &rooms_down);
    for share in shares {
        match share.who {
            Who::Staying(place) => rooms[place] = rooms[place].saturating_sub(share.rate),
            Who::Member(member) => tell(member, share.rate),
        }
    }
}

/// Whose rate is set.
#[derive(Clone, Copy, Debug)]
enum Who<'a> {
    /// All who stay on a CPU.
    Staying(usize),
    Member(&'a Member),
}

#[derive(Clone, Copy, Debug)]
struct Share<'a> {
    weight: u64,
    /// More it cannot have.
    most: u64,
    who: Who<'a>,
    rate: u64,
}

/// What holds the rates of the first so many, or of all, down.
#[derive(Clone, Copy)]
enum Bound {
    First(usize),
    All,
}

/// Raises all rates by weight until a bound holds some of them, and then the others.
fn fill(shares: &mut [Share<'_>], rooms: &[u64]) {
    let mut open: Vec<usize> = (0..shares.len()).filter(|&at| shares[at].weight > 0).collect();
    let mut rooms = rooms;
    let mut left: u64 = rooms.iter().sum();
    while !open.is_empty() {
        let weight: u64 = open.iter().map(|&at| shares[at].weight).sum();
        let mut lowest = (Tau { time: left, weight }, Bound::All);
        let mut first = Tau::default();
        for (count, (&at, &room)) in open.iter().zip(rooms).enumerate() {
            first.time += room;
            first.weight += shares[at].weight;
            if first.compare(lowest.0) == Ordering::Less {
                lowest = (first, Bound::First(count + 1));
            }
        }
        let level = lowest.0;
        let by_weight = |share: &Share<'_>| {
            let rate = u128::from(level.time) * u128::from(share.weight) / u128::from(level.weight);
            u64::try_from(rate).unwrap_or(u64::MAX)
        };
        let mut gone = 0;
        open.retain(|&at| {
            // Who could fill the roomiest CPU is held by that.
            let sleeps = rooms.first().is_some_and(|&room| shares[at].most < room);
            let is_capped = sleeps && shares[at].most <= by_weight(&shares[at]);
            if is_capped {
                shares[at].rate = shares[at].most;
                gone += shares[at].most;
            }
            !is_capped
        });
        if gone > 0 {
            left = left.saturating_sub(gone);
            continue;
        }
        let count = match lowest.1 {
            Bound::First(count) => count,
            Bound::All => open.len(),
        };
        for at in open.drain(..count.min(open.len())) {
            shares[at].rate = by_weight(&shares[at]).min(shares[at].most);
        }
        left = left.saturating_sub(level.time);
        rooms = &rooms[count.min(rooms.len())..];
    }
}
