//! Whom two CPUs swap so that what each has for its weight becomes more alike.
//! [Diestelhorst §4.2.2]
//!
//! `hot` is the CPU that has less for its weight. The weight that should go from there to the
//! idle one is *w_ideal*, `(t_idle w_hot - t_hot w_idle) / (t_hot + t_idle)` with the weights
//! as they are. (The thesis prints the weights after the move there, with which its own
//! examples do not come out.) Of what is marked to go and to come back the difference is
//! *w_total*.

use alloc::vec::Vec;

use slackline_units::VcpuId;

use super::{Load, Member, Parts, Tau};

/// What the thesis leaves open, and what is done about what it does not see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// How near w_ideal is close enough: by one of so many parts of it. [balancer A2]
    pub(crate) close: u64,
    /// The least difference of tau for a pair of CPUs, as a part of the ideal one. [balancer A3]
    pub(crate) least: Parts,
    /// Whether more than w_ideal may go if nothing else can, the hot CPU gains by that, and no swap
    /// may leave either with less for its weight than the hot one has. [balancer §1.8, 1; trap 13]
    pub(crate) improves: bool,
    /// Whether those of equal weight stay where they are instead of changing places, where that
    /// makes no difference to w_total. [balancer §4.2]
    pub(crate) thrift: bool,
    /// Whether equal CPUs are taken in order of how far ahead those there are. [balancer §1.8, 2]
    pub(crate) by_lead: bool,
    /// Whether a CPU that found nothing to swap may try another one. [balancer §1.8, 3]
    pub(crate) retries: bool,
}

/// Who goes from the hot CPU to the idle one, and who comes back, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swap {
    pub(crate) there: Vec<VcpuId>,
    pub(crate) back: Vec<VcpuId>,
}

/// Whom they swap, if that helps. `ideal` is what their group has for its weight.
pub(crate) fn swap(hot: &Load, idle: &Load, ideal: Tau, rules: &Rules) -> Option<Swap> {
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

/// w_ideal, as a fraction.
pub(super) fn wanted(hot: &Load, idle: &Load) -> (i128, i128) {
    let wide = i128::from;
    let wanted = wide(idle.available) * wide(hot.weight) - wide(hot.available) * wide(idle.weight);
    (wanted, wide(hot.available) + wide(idle.available))
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
        self.beyond(total).abs() * i128::from(self.rules.close) <= self.wanted
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
