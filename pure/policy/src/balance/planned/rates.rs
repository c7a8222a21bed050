//! Rates of the vCPUs of a group of CPUs: by weight, limited by the time that the CPUs have
//! available.
//!
//! A vCPU never gets more than the time for which it is runnable, and it cannot run on two CPUs at
//! once. So for each n, the n heaviest vCPUs together are limited by the n CPUs with the most
//! available time. If such a limit is less than their shares by weight, these vCPUs divide exactly
//! that limit, and the others get more.
//! [balancer §4.4, step 1]

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::super::{BalancerCpu, Member, Tau};

/// Computes the rate of each vCPU of a group and passes it to `tell`. The rates of vCPUs that may
/// not migrate are instead deducted from `rooms`, the unplanned time of each CPU.
pub(super) fn set(
    loads: &[BalancerCpu],
    group: &[usize],
    rooms: &mut [u64],
    mut tell: impl FnMut(&Member, u64),
) {
    let mut shares: Vec<RateShare<'_>> = Vec::new();
    for &place in group {
        let members = &loads[place].members;
        let of_members: u64 = members.iter().map(|member| member.weight.0).sum();
        let staying = loads[place].weight.saturating_sub(of_members);
        let most = loads[place].available;
        if staying > 0 {
            shares.push(RateShare {
                weight: staying,
                most,
                who: RateRecipient::Staying(place),
                rate: 0,
            });
        }
        shares.extend(members.iter().map(|member| RateShare {
            weight: member.weight.0,
            most: member.runnable,
            who: RateRecipient::Member(member),
            rate: 0,
        }));
    }
    let mut rooms_down: Vec<u64> = group.iter().map(|&place| rooms[place]).collect();
    rooms_down.sort_unstable_by(|a, b| b.cmp(a));
    // Heaviest first. The sort is stable.
    shares.sort_by_key(|share| u64::MAX - share.weight);
    fill(&mut shares, &rooms_down);
    for share in shares {
        match share.who {
            RateRecipient::Staying(place) => rooms[place] = rooms[place].saturating_sub(share.rate),
            RateRecipient::Member(member) => tell(member, share.rate),
        }
    }
}

/// Recipient of CPU time from the balancer's plan: a vCPU, or all vCPUs that must stay on a CPU.
#[derive(Clone, Copy, Debug)]
enum RateRecipient<'a> {
    /// All vCPUs that may not migrate from the CPU with this index, taken together.
    Staying(usize),
    Member(&'a Member),
}

/// Weight, limit and rate of one recipient while CPU time is divided.
#[derive(Clone, Copy, Debug)]
struct RateShare<'a> {
    weight: u64,
    /// Largest rate that the recipient can use, in ns of a sample. For a vCPU, the part of the
    /// sample for which it is runnable. For the vCPUs that must stay on a CPU, the available time
    /// of that CPU.
    most: u64,
    who: RateRecipient<'a>,
    /// CPU time that the recipient gets, in ns of a sample.
    rate: u64,
}

/// Limit that is reached first when all rates rise. `First(n)` is the joint limit of the `n`
/// heaviest vCPUs, `All` the joint limit of all vCPUs.
#[derive(Clone, Copy)]
enum RateLimit {
    First(usize),
    All,
}

/// Raises all rates in proportion to weight until a limit is reached. Fixes the rates at that limit
/// and continues with the other vCPUs.
fn fill(shares: &mut [RateShare<'_>], rooms: &[u64]) {
    let mut open: Vec<usize> = (0..shares.len()).filter(|&at| shares[at].weight > 0).collect();
    let mut rooms = rooms;
    let mut left: u64 = rooms.iter().sum();
    while !open.is_empty() {
        let weight: u64 = open.iter().map(|&at| shares[at].weight).sum();
        let mut lowest = (Tau { time: left, weight }, RateLimit::All);
        let mut first = Tau::default();
        for (count, (&at, &room)) in open.iter().zip(rooms).enumerate() {
            first.time += room;
            first.weight += shares[at].weight;
            if first.compare(lowest.0) == Ordering::Less {
                lowest = (first, RateLimit::First(count + 1));
            }
        }
        let level = lowest.0;
        let by_weight = |share: &RateShare<'_>| {
            let rate = u128::from(level.time) * u128::from(share.weight) / u128::from(level.weight);
            u64::try_from(rate).unwrap_or(u64::MAX)
        };
        let mut gone = 0;
        open.retain(|&at| {
            // A vCPU that could use all of the largest room is limited by that room, and not by the
            // time for which it is runnable.
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
            RateLimit::First(count) => count,
            RateLimit::All => open.len(),
        };
        for at in open.drain(..count.min(open.len())) {
            shares[at].rate = by_weight(&shares[at]).min(shares[at].most);
        }
        left = left.saturating_sub(level.time);
        rooms = &rooms[count.min(rooms.len())..];
    }
}
