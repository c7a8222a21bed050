//! One run of the thesis's balancer: CPUs with little CPU time per weight (*hot*) swap vCPUs with
//! CPUs that have more (*idle*). [Diestelhorst §4.2.2, §4.2.3]

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet};

use super::swap::{Swap, swap};
use super::{BalancerCpu, Move, Tau};

pub(crate) use super::swap::SwapRules;

/// Returns the migrations of one run of the balancer. Each migration stays within a group of CPUs.
/// `groups` has indices into `loads`, and `core_of` returns the threads of a core.
///
/// A pair has a *hot* CPU, with little CPU time per weight, and an *idle* CPU, with more. In one
/// run, at most one thread of each core takes over vCPUs as the idle CPU of a pair. The other
/// thread can still be a hot CPU, even of the same pair.
pub(crate) fn run<C: Fn(CpuId) -> CpuSet>(
    loads: &[BalancerCpu],
    groups: &[Vec<usize>],
    rules: &SwapRules,
    core_of: C,
) -> Vec<Move> {
    let (used, closed) = (CpuSet::NONE, CpuSet::NONE);
    let mut run = PairSearch { loads, rules, core_of, used, closed, moves: Vec::new() };
    groups.iter().for_each(|group| run.group(group));
    run.moves
}

/// Search for pairs of CPUs that swap vCPUs, in one run of the balancer.
struct PairSearch<'a, C> {
    loads: &'a [BalancerCpu],
    rules: &'a SwapRules,
    core_of: C,
    /// CPUs that have been in a pair in this run. A CPU is in at most one pair.
    used: CpuSet,
    /// All CPUs of each core of which one thread has taken over vCPUs in this run, as the *idle*
    /// CPU of a pair (the CPU with more CPU time per weight).
    closed: CpuSet,
    /// Migrations of the pairs found so far.
    moves: Vec<Move>,
}

impl<C: Fn(CpuId) -> CpuSet> PairSearch<'_, C> {
    /// Searches for pairs of CPUs that swap vCPUs, within one group of CPUs.
    fn group(&mut self, group: &[usize]) {
        let loads = self.loads;
        let counting = group.iter().map(|&place| &loads[place]).filter(|load| load.counts());
        let ahead = |load: &BalancerCpu| load.members.iter().map(|member| member.lead).max();
        let by_lead = self.rules.by_lead;
        let mut order: Vec<(&BalancerCpu, Option<i64>)> =
            counting.map(|load| (load, if by_lead { ahead(load) } else { None })).collect();
        order.sort_by(|(a, ahead_a), (b, ahead_b)| {
            let equal = a.tau().compare(b.tau()).then(ahead_a.cmp(ahead_b));
            equal.then(a.cpu.cmp(&b.cpu))
        });
        let order: Vec<&BalancerCpu> = order.into_iter().map(|(load, _)| load).collect();
        let ideal = ideal(&order);
        for &hot in &order {
            if hot.weight > 0 && !self.used.contains(hot.cpu) {
                self.pair(hot, &order, ideal);
            }
        }
    }

    /// Searches for a CPU with which `hot`, a CPU with less CPU time per weight, can swap vCPUs.
    /// Tries the CPU with the most CPU time per weight first.
    fn pair(&mut self, hot: &BalancerCpu, order: &[&BalancerCpu], ideal: Tau) {
        for &idle in order.iter().rev() {
            let is_open = hot.reach.contains(idle.cpu)
                && !self.used.contains(idle.cpu)
                && !self.closed.contains(idle.cpu);
            if !is_open {
                continue;
            }
            if !idle.tau().exceeds(hot.tau(), ideal, self.rules.least) {
                return;
            }
            let found = swap(hot, idle, ideal, self.rules);
            if let Some(swap) = &found {
                self.carry_out(hot, idle, swap);
            }
            if found.is_some() || !self.rules.retries {
                self.used.insert(hot.cpu);
                self.used.insert(idle.cpu);
                return;
            }
        }
    }

    /// Records the migrations of a swap.
    fn carry_out(&mut self, hot: &BalancerCpu, idle: &BalancerCpu, swap: &Swap) {
        let there = |&vcpu| Move { vcpu, from: hot.cpu, to: idle.cpu };
        let back = |&vcpu| Move { vcpu, from: idle.cpu, to: hot.cpu };
        self.moves.extend(swap.there.iter().map(there));
        self.moves.extend(swap.back.iter().map(back));
        if !swap.there.is_empty() {
            self.closed.add(&(self.core_of)(idle.cpu));
        }
    }
}

/// Returns the ideal tau: the CPU time per weight of a group as a whole.
pub(super) fn ideal(loads: &[&BalancerCpu]) -> Tau {
    let time = loads.iter().map(|load| load.available).sum();
    let weight = loads.iter().fold(0_u64, |sum, load| sum.saturating_add(load.weight));
    Tau { time, weight }
}

#[cfg(test)]
mod tests;
