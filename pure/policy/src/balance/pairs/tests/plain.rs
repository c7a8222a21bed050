//! A run in plain words: for each pair of CPUs whoever could go is found and put in order anew.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, VcpuId};

use super::super::super::swap::{Swap, wanted};
use super::super::super::{Load, Member, Move, Parts, Tau};
use super::super::{Rules, ideal};

pub(super) fn run(
    loads: &[Load],
    groups: &[Vec<usize>],
    rules: &Rules,
    core_of: impl Fn(CpuId) -> CpuSet,
) -> Vec<Move> {
    let (used, received) = (CpuSet::NONE, CpuSet::NONE);
    let mut run = Run { loads, rules, core_of, used, received, moves: Vec::new() };
    groups.iter().for_each(|group| run.group(group));
    run.moves
}

struct Run<'a, C> {
    loads: &'a [Load],
    rules: &'a Rules,
    core_of: C,
    used: CpuSet,
    received: CpuSet,
    moves: Vec<Move>,
}

impl<C: Fn(CpuId) -> CpuSet> Run<'_, C> {
    fn group(&mut self, group: &[usize]) {
        let loads = self.loads;
        let counting = group.iter().map(|&place| &loads[place]).filter(|load| load.counts());
        let ahead = |load: &Load| load.members.iter().map(|member| member.lead).max();
        let by_lead = self.rules.by_lead;
        let mut order: Vec<(&Load, Option<i64>)> =
            counting.map(|load| (load, if by_lead { ahead(load) } else { None })).collect();
        order.sort_by(|(a, ahead_a), (b, ahead_b)| {
            let equal = a.tau().compare(b.tau()).then(ahead_a.cmp(ahead_b));
            equal.then(a.cpu.cmp(&b.cpu))
        });
        let order: Vec<&Load> = order.into_iter().map(|(load, _)| load).collect();
        let ideal = ideal(&order);
        for &hot in &order {
            if hot.weight > 0 && !self.used.contains(hot.cpu) {
                self.pair(hot, &order, ideal);
            }
        }
    }

    /// Looks for whom a CPU can swap with, beginning with the idlest.
    fn pair(&mut self, hot: &Load, order: &[&Load], ideal: Tau) {
        for &idle in order.iter().rev() {
            let is_open = hot.reach.contains(idle.cpu)
                && !self.used.contains(idle.cpu)
                && !self.received.contains(idle.cpu);
            if !is_open {
                continue;
            }
            if !idle.tau().exceeds(hot.tau(), ideal, self.rules.least) {
                return;
            }
            let found = swap(hot, idle, ideal, self.rules);
            let found = found.filter(|swap| self.may_receive(hot, idle, swap));
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

    /// Whether the hot CPU gets nothing back, or is on a core that receives nothing else.
    fn may_receive(&self, hot: &Load, idle: &Load, swap: &Swap) -> bool {
        let is_alone = swap.there.is_empty() || !(self.core_of)(idle.cpu).contains(hot.cpu);
        swap.back.is_empty() || (!self.received.contains(hot.cpu) && is_alone)
    }

    fn carry_out(&mut self, hot: &Load, idle: &Load, swap: &Swap) {
        let there = |&vcpu| Move { vcpu, from: hot.cpu, to: idle.cpu };
        let back = |&vcpu| Move { vcpu, from: idle.cpu, to: hot.cpu };
        self.moves.extend(swap.there.iter().map(there));
        self.moves.extend(swap.back.iter().map(back));
        if !swap.there.is_empty() {
            self.received.add(&(self.core_of)(idle.cpu));
        }
        if !swap.back.is_empty() {
            self.received.add(&(self.core_of)(hot.cpu));
        }
    }
}

/// Whom they swap, if that helps. `ideal` is what their group has for its weight.
fn swap(hot: &Load, idle: &Load, ideal: Tau, rules: &Rules) -> Option<Swap> {
    let mut under: Vec<&Member> = marked(hot, idle).collect();
    under.retain(|member| member.served.compare(ideal).is_lt());
    let mut over: Vec<&Member> = marked(idle, hot).collect();
    over.retain(|member| member.served.compare(ideal).is_gt());
    // The first of each is the first to be dropped: nearest to the ideal one.
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

/// Those of one CPU who may go to another and have been awake: of who hardly was, what it got for
/// its weight is a quotient of two small numbers. [balancer A6, trap 2]
fn marked<'a>(from: &'a Load, to: &'a Load) -> impl Iterator<Item = &'a Member> {
    from.members.iter().filter(|member| member.weight.0 > 0 && member.allowed.contains(to.cpu))
}

/// The pair, as whole numbers: weights times `shares`.
struct Pair<'a> {
    hot: Tau,
    idle: Tau,
    rules: &'a Rules,
    /// w_ideal times `shares`.
    wanted: i128,
    /// t_hot + t_idle.
    shares: i128,
}

/// Who is marked to go there and to come back.
#[derive(Clone, Debug)]
struct Marked<'a> {
    there: Vec<&'a Member>,
    back: Vec<&'a Member>,
    /// The weight of the ones less that of the others.
    total: i128,
}

fn sum(members: &[&Member]) -> i128 {
    members.iter().map(|member| i128::from(member.weight.0)).sum()
}

impl<'a> Marked<'a> {
    fn new(there: Vec<&'a Member>, back: Vec<&'a Member>) -> Marked<'a> {
        let total = sum(&there) - sum(&back);
        Marked { there, back, total }
    }

    fn is_empty(&self) -> bool {
        self.there.is_empty() && self.back.is_empty()
    }

    /// Without pairs of equal weight, while anybody is left.
    fn with_thrift(mut self) -> Marked<'a> {
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
    fn new(hot: &Load, idle: &Load, rules: &'a Rules) -> Pair<'a> {
        let (wanted, shares) = wanted(hot, idle);
        Pair { hot: hot.tau(), idle: idle.tau(), rules, wanted, shares }
    }

    /// How far a weight is beyond w_ideal, times `shares`.
    fn beyond(&self, weight: i128) -> i128 {
        weight * self.shares - self.wanted
    }

    fn is_close(&self, total: i128) -> bool {
        let Parts { some, of } = self.rules.close;
        self.beyond(total).abs() * i128::from(of) <= self.wanted * i128::from(some)
    }

    /// What the idle CPU has for its weight once so much more is there.
    fn idle_with(&self, total: i128) -> Tau {
        let weight = u64::try_from(i128::from(self.idle.weight) + total).unwrap_or(0);
        Tau { weight, ..self.idle }
    }

    /// Whether it leaves the idle CPU no worse off than the hot one is.
    fn is_harmless(&self, total: i128) -> bool {
        !self.rules.improves || total == 0 || self.idle_with(total).compare(self.hot).is_ge()
    }

    /// Phases 1 and 2: all who are marked, or without the one nearest to what is ideal on the side
    /// that has too much, and so on, until it is close. O(n).
    fn drop_in_order(&self, under: &[&'a Member], over: &[&'a Member]) -> Option<Marked<'a>> {
        let (mut there, mut back) = (under, over);
        let mut total = sum(there) - sum(back);
        loop {
            if there.is_empty() && back.is_empty() {
                return None;
            }
            if self.is_close(total) && self.is_harmless(total) {
                return Some(Marked { there: there.to_vec(), back: back.to_vec(), total });
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

    /// Phase 3: who weighs what is too much is dropped, and w_ideal is not exceeded. O(n^2).
    fn drop_by_weight(&self, there: Vec<&'a Member>, back: Vec<&'a Member>) -> Option<Marked<'a>> {
        let restored = Marked::new(there, back);
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

    /// Phase 3 b.
    fn drop_light(&self, marked: &mut Marked<'a>) {
        while self.beyond(marked.total) > 0
            && let Some(light) = self.best_fit(&marked.there, (self.beyond(marked.total), 0))
        {
            marked.total -= i128::from(marked.there.remove(light).weight.0);
        }
    }

    /// What is least beyond w_ideal of what phase 3 comes by, if that helps the hot CPU.
    fn overshoot(&self, mut marked: Marked<'a>) -> Option<Marked<'a>> {
        if !self.rules.improves {
            return None;
        }
        if self.beyond(marked.total) > 0 {
            self.drop_light(&mut marked);
        } else {
            let lightest = (0..marked.back.len()).min_by_key(|&at| marked.back[at].weight)?;
            marked.total += i128::from(marked.back.remove(lightest).weight.0);
        }
        // Of what the hot one has: of the ideal one R8 of the reference would miss it by a 20th.
        let Parts { some, of } = self.rules.least;
        let half = Parts { some, of: 2 * of };
        let helps = marked.total > 0
            && self.idle_with(marked.total).exceeds(self.hot, self.hot, half)
            && !marked.is_empty();
        helps.then_some(marked)
    }

    /// The one of whose weight, times `shares`, lies between two and is nearest to the first; of
    /// equals the first.
    fn best_fit(&self, members: &[&Member], (near, far): (i128, i128)) -> Option<usize> {
        let weight = |at: usize| i128::from(members[at].weight.0) * self.shares;
        let within = |&at: &usize| (near.min(far)..=near.max(far)).contains(&weight(at));
        (0..members.len()).filter(within).min_by_key(|&at| (weight(at) - near).abs())
    }
}
