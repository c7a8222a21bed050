//! Selection of the vCPUs that two CPUs swap to bring their taus closer together. [Diestelhorst
//! §4.2.2]
//!
//! *Tau* is CPU time per weight. `hot` is the CPU with the lower tau, `idle` the other CPU.
//! *w_ideal* is the weight that should migrate from the hot to the idle CPU: `(t_idle w_hot - t_hot
//! w_idle) / (t_hot + t_idle)` with the weights before the swap. The thesis prints this formula
//! with the weights after the swap, which contradicts its examples. *w_total* is the weight marked
//! to migrate to the idle CPU, minus the weight marked to migrate back.

use alloc::vec::Vec;

use slackline_units::VcpuId;

use super::{BalancerCpu, Member, Ratio, Tau};

/// Rules for swaps: choices that the thesis leaves open, and repairs of flaws of the thesis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwapRules {
    /// Tolerance for w_ideal, the weight that should migrate: a swap is close enough if it misses
    /// w_ideal by at most w_ideal / `close`. [balancer A2]
    pub(crate) close: u64,
    /// Least difference of the taus (CPU time per weight) of two CPUs that may swap, as a fraction
    /// of the group's tau. [balancer A3]
    pub(crate) least: Ratio,
    /// True if two rules apply. First, no swap may leave either CPU with less CPU time per weight
    /// than the hot CPU (the one that has less) had before. Second, if no other swap is possible,
    /// more than the ideal weight may migrate, provided that the hot CPU gains CPU time per weight.
    /// [balancer §1.8, 1; trap 13]
    pub(crate) improves: bool,
    /// True if vCPUs of equal weight are not exchanged for each other, since that does not change
    /// the weight of either CPU. [balancer §4.2]
    pub(crate) thrift: bool,
    /// True if CPUs with equal CPU time per weight are ordered by the greatest lead of their vCPUs.
    /// A lead is CPU time received beyond the share by weight. [balancer §1.8, 2]
    pub(crate) by_lead: bool,
    /// True if a CPU that could not swap vCPUs with one CPU can try another CPU in the same run.
    /// [balancer §1.8, 3]
    pub(crate) retries: bool,
}

/// vCPUs that migrate between two CPUs, in order of id. Those in `there` migrate from the hot CPU
/// to the idle CPU, those in `back` from the idle CPU to the hot CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swap {
    pub(crate) there: Vec<VcpuId>,
    pub(crate) back: Vec<VcpuId>,
}

/// Returns the vCPUs to swap between `hot`, the CPU with less CPU time per weight, and `idle`.
/// `None` if no swap helps. `ideal` is the CPU time per weight of the whole group.
pub(crate) fn swap(
    hot: &BalancerCpu,
    idle: &BalancerCpu,
    ideal: Tau,
    rules: &SwapRules,
) -> Option<Swap> {
    let mut under: Vec<&Member> = marked(hot, idle).collect();
    under.retain(|member| member.served.compare(ideal).is_lt());
    let mut over: Vec<&Member> = marked(idle, hot).collect();
    over.retain(|member| member.served.compare(ideal).is_gt());
    // Both lists begin with the vCPU nearest to the ideal tau, which is the first to be dropped.
    under.sort_by(|a, b| b.served.compare(a.served).then(b.vcpu.cmp(&a.vcpu)));
    over.sort_by(|a, b| a.served.compare(b.served).then(a.vcpu.cmp(&b.vcpu)));
    let pair = Pair::new(hot, idle, rules);
    let found = pair.drop_in_order(&under, &over).or_else(|| pair.drop_by_weight(under, over))?;
    let found = if rules.thrift { found.with_thrift() } else { found };
    let ids = |members: Vec<&Member>| {
        let mut ids: Vec<VcpuId> = members.into_iter().map(|member| member.vcpu).collect();
        ids.sort_unstable();
        ids
    };
    Some(Swap { there: ids(found.there), back: ids(found.back) })
}

/// Returns the vCPUs of the CPU `from` that may migrate to the CPU `to` and were runnable often
/// enough. For a vCPU that was hardly runnable, CPU time per weight is a quotient of two small
/// numbers, so such vCPUs are left out. [balancer A6, trap 2]
fn marked<'a>(from: &'a BalancerCpu, to: &'a BalancerCpu) -> impl Iterator<Item = &'a Member> {
    from.members.iter().filter(|member| member.weight.0 > 0 && member.allowed.contains(to.cpu))
}

/// Returns w_ideal, the weight that should migrate from `hot` to `idle`, as a fraction.
pub(super) fn wanted(hot: &BalancerCpu, idle: &BalancerCpu) -> (i128, i128) {
    let wide = i128::from;
    let wanted = wide(idle.available) * wide(hot.weight) - wide(hot.available) * wide(idle.weight);
    (wanted, wide(hot.available) + wide(idle.available))
}

/// Pair of CPUs that may swap vCPUs. Weights are multiplied by `shares` to make them integers.
struct Pair<'a> {
    hot: Tau,
    idle: Tau,
    rules: &'a SwapRules,
    /// The weight that should migrate (w_ideal), multiplied by `shares`.
    wanted: i128,
    /// Denominator of w_ideal, the weight that should migrate: t_hot + t_idle, the available times
    /// of both CPUs.
    shares: i128,
}

/// vCPUs marked to migrate to the idle CPU (`there`) and to the hot CPU (`back`).
#[derive(Clone, Debug)]
struct MarkedVcpus<'a> {
    there: Vec<&'a Member>,
    back: Vec<&'a Member>,
    /// Weight that would migrate (w_total): weight of `there` minus weight of `back`.
    total: i128,
}

/// Returns the total weight of the vCPUs in `members`.
fn sum(members: &[&Member]) -> i128 {
    members.iter().map(|member| i128::from(member.weight.0)).sum()
}

impl<'a> MarkedVcpus<'a> {
    fn new(there: Vec<&'a Member>, back: Vec<&'a Member>) -> MarkedVcpus<'a> {
        let total = sum(&there) - sum(&back);
        MarkedVcpus { there, back, total }
    }

    fn is_empty(&self) -> bool {
        self.there.is_empty() && self.back.is_empty()
    }

    /// Removes pairs of vCPUs that have equal weight and would only take each other's place. Keeps
    /// at least two vCPUs.
    fn with_thrift(mut self) -> MarkedVcpus<'a> {
        let mut at = 0;
        while at < self.back.len() && self.there.len() + self.back.len() > 2 {
            let weight = self.back[at].weight;
            match self.there.iter().position(|member| member.weight == weight) {
                Some(equal) => {
                    self.there.remove(equal);
                    self.back.remove(at);
                }
                None => at += 1,
            }
        }
        self
    }
}

impl<'a> Pair<'a> {
    fn new(hot: &BalancerCpu, idle: &BalancerCpu, rules: &'a SwapRules) -> Pair<'a> {
        let (wanted, shares) = wanted(hot, idle);
        Pair { hot: hot.tau(), idle: idle.tau(), rules, wanted, shares }
    }

    /// Returns the amount by which a weight exceeds w_ideal, the weight that should migrate.
    /// Negative if the weight is less than w_ideal. The result is multiplied by `shares`, the
    /// denominator of w_ideal.
    fn beyond(&self, weight: i128) -> i128 {
        weight * self.shares - self.wanted
    }

    /// Returns true if the weight `total` is close enough to w_ideal for a swap.
    fn is_close(&self, total: i128) -> bool {
        self.beyond(total).abs() * i128::from(self.rules.close) <= self.wanted
    }

    /// Returns the CPU time per weight that the idle CPU has after it took over the weight `total`.
    fn idle_with(&self, total: i128) -> Tau {
        let weight = u64::try_from(i128::from(self.idle.weight) + total).unwrap_or(0);
        Tau { weight, ..self.idle }
    }

    /// Returns true if a migration of the weight `total` does not harm the idle CPU. The idle CPU
    /// then keeps at least as much CPU time per weight as the hot CPU has now. Always true without
    /// the rule `improves`.
    fn is_harmless(&self, total: i128) -> bool {
        !self.rules.improves || total == 0 || self.idle_with(total).compare(self.hot).is_ge()
    }

    /// Phases 1 and 2 of the swap: starts with all vCPUs that may migrate. Drops the vCPU nearest
    /// to the group's CPU time per weight, on the side that has too much weight. Repeats this until
    /// the weight that migrates is close to w_ideal. O(n).
    fn drop_in_order(&self, under: &[&'a Member], over: &[&'a Member]) -> Option<MarkedVcpus<'a>> {
        let (mut there, mut back) = (under, over);
        let mut total = sum(there) - sum(back);
        loop {
            if there.is_empty() && back.is_empty() {
                return None;
            }
            if self.is_close(total) && self.is_harmless(total) {
                return Some(MarkedVcpus { there: there.to_vec(), back: back.to_vec(), total });
            }
            if self.beyond(total) > 0 {
                let (dropped, rest) = there.split_first()?;
                (there, total) = (rest, total - i128::from(dropped.weight.0));
            } else {
                let (dropped, rest) = back.split_first()?;
                (back, total) = (rest, total + i128::from(dropped.weight.0));
            }
        }
    }

    /// Phase 3 of the swap: drops vCPUs whose weight matches the excess over w_ideal, the weight
    /// that should migrate. The result does not exceed w_ideal. O(n^2).
    fn drop_by_weight(
        &self,
        there: Vec<&'a Member>,
        back: Vec<&'a Member>,
    ) -> Option<MarkedVcpus<'a>> {
        let restored = MarkedVcpus::new(there, back);
        let mut marked = restored.clone();
        if self.beyond(marked.total) > 0 {
            let excess = self.beyond(marked.total);
            let all = marked.total * self.shares;
            if let Some(heavy) = self.best_fit(&marked.there, (excess, all)) {
                marked.total -= i128::from(marked.there.remove(heavy).weight.0);
            } else {
                self.drop_light(&mut marked);
            }
        }
        while self.beyond(marked.total) <= 0
            && let Some(light) = self.best_fit(&marked.back, (-self.beyond(marked.total), 0))
        {
            marked.total += i128::from(marked.back.remove(light).weight.0);
        }
        let is_found = !marked.is_empty() && marked.total >= 0 && self.beyond(marked.total) <= 0;
        match is_found {
            true => Some(marked),
            false if self.beyond(restored.total) > 0 => self.overshoot(restored),
            false => self.overshoot(marked),
        }
    }

    /// Phase 3 b of the swap: drops light vCPUs while the weight that would migrate exceeds
    /// w_ideal, the weight that should migrate.
    fn drop_light(&self, marked: &mut MarkedVcpus<'a>) {
        while self.beyond(marked.total) > 0
            && let Some(light) = self.best_fit(&marked.there, (self.beyond(marked.total), 0))
        {
            marked.total -= i128::from(marked.there.remove(light).weight.0);
        }
    }

    /// Returns the swap that exceeds w_ideal, the weight that should migrate, by the least amount
    /// that phase 3 can reach. `None` if that swap does not help the hot CPU, or if the rule
    /// `improves` is off.
    fn overshoot(&self, mut marked: MarkedVcpus<'a>) -> Option<MarkedVcpus<'a>> {
        if !self.rules.improves {
            return None;
        }
        if self.beyond(marked.total) > 0 {
            self.drop_light(&mut marked);
        } else {
            let lightest = (0..marked.back.len()).min_by_key(|&at| marked.back[at].weight)?;
            marked.total += i128::from(marked.back.remove(lightest).weight.0);
        }
        // The threshold is a fraction of the tau of the hot CPU. With a fraction of the ideal tau,
        // the swap in case R8 of [balancer] would miss the threshold by a twentieth.
        let Ratio { some, of } = self.rules.least;
        let half = Ratio { some, of: 2 * of };
        let helps = marked.total > 0
            && self.idle_with(marked.total).exceeds(self.hot, self.hot, half)
            && !marked.is_empty();
        helps.then_some(marked)
    }

    /// Returns the index of the vCPU whose weight, times `shares`, lies between `near` and `far`
    /// and is nearest to `near`. Of equally near vCPUs, the first. `None` if no weight lies in that
    /// range.
    fn best_fit(&self, members: &[&Member], (near, far): (i128, i128)) -> Option<usize> {
        let weight = |at: usize| i128::from(members[at].weight.0) * self.shares;
        let within = |&at: &usize| (near.min(far)..=near.max(far)).contains(&weight(at));
        (0..members.len()).filter(within).min_by_key(|&at| (weight(at) - near).abs())
    }
}
