//! Whom two CPUs swap so that what each has for its weight becomes more alike.
//! [Diestelhorst §4.2.2]
//!
//! `hot` is the CPU that has less for its weight. The weight that should go from there to the
//! idle one is *w_ideal*, `(t_idle w_hot - t_hot w_idle) / (t_hot + t_idle)` with the weights
//! as they are. (The thesis prints the weights after the move there, with which its own
//! examples do not come out.) Of what is marked to go and to come back the difference is
//! *w_total*.

use alloc::vec::Vec;
use core::cell::OnceCell;

use slackline_units::VcpuId;

use super::{Load, Member, Parts, Tau};

/// What the thesis leaves open, and what is done about what it does not see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// How near w_ideal is close enough, as a part of it. [balancer A2]
    pub(crate) close: Parts,
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

/// A CPU of a group as one of a pair: who could go, put in order when that is first asked for.
#[derive(Debug)]
pub(crate) struct Side<'a> {
    pub(crate) load: &'a Load,
    /// What the group has for its weight.
    ideal: Tau,
    going: OnceCell<Going<'a>>,
}

/// Those of a CPU who could go, in order of what they got for their weight, then of id.
#[derive(Debug)]
struct Going<'a> {
    members: Vec<&'a Member>,
    /// How many got less than what is ideal, and how many no more than that.
    under: usize,
    up_to: usize,
}

impl<'a> Side<'a> {
    pub(crate) fn new(load: &'a Load, ideal: Tau) -> Side<'a> {
        Side { load, ideal, going: OnceCell::new() }
    }

    /// Of who hardly was awake, what it got for its weight is a quotient of two small numbers, and
    /// it stays. [balancer A6, trap 2]
    fn going(&self) -> &Going<'a> {
        self.going.get_or_init(|| {
            let could_go = |member: &&Member| member.weight.0 > 0;
            let mut members: Vec<&Member> = self.load.members.iter().filter(could_go).collect();
            members.sort_unstable_by(|a, b| a.served.compare(b.served).then(a.vcpu.cmp(&b.vcpu)));
            let ideal = self.ideal;
            let under = members.partition_point(|member| member.served.compare(ideal).is_lt());
            let up_to = members.partition_point(|member| member.served.compare(ideal).is_le());
            Going { members, under, up_to }
        })
    }

    /// Who got less than what is ideal and may go to another CPU, the nearest to it first: that is
    /// the first to be dropped.
    fn under(&self, to: &Load) -> impl Iterator<Item = &'a Member> {
        let Going { members, under, .. } = self.going();
        let under = members[..*under].iter().rev().copied();
        under.filter(move |member| member.allowed.contains(to.cpu))
    }

    /// Who got more and may go there, again the nearest first.
    fn over(&self, to: &Load) -> impl Iterator<Item = &'a Member> {
        let Going { members, up_to, .. } = self.going();
        let over = members[*up_to..].iter().copied();
        over.filter(move |member| member.allowed.contains(to.cpu))
    }
}

/// Who is marked while a pair is looked at: lists that are there for all pairs of a run.
#[derive(Debug, Default)]
pub(crate) struct Lists<'a> {
    all: Marked<'a>,
    /// Those that are left.
    left: Marked<'a>,
}

/// Whom they swap, if that helps.
pub(crate) fn swap<'a>(
    hot: &Side<'a>,
    idle: &Side<'a>,
    rules: &'a Rules,
    lists: &mut Lists<'a>,
) -> Option<Swap> {
    let Lists { all, left } = lists;
    all.set(hot.under(idle.load), idle.over(hot.load));
    let pair = Pair::new(hot.load, idle.load, rules);
    if !pair.drop_in_order(all, left) && !pair.drop_by_weight(all, left) {
        return None;
    }
    if rules.thrift {
        left.spare_equals();
    }
    let ids = |members: &[&Member]| {
        let mut ids: Vec<VcpuId> = members.iter().map(|member| member.vcpu).collect();
        ids.sort_unstable();
        ids
    };
    Some(Swap { there: ids(&left.there), back: ids(&left.back) })
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
#[derive(Debug, Default)]
struct Marked<'a> {
    there: Vec<&'a Member>,
    back: Vec<&'a Member>,
    /// The weight of the ones less that of the others.
    total: i128,
}

impl<'a> Marked<'a> {
    fn set(
        &mut self,
        there: impl Iterator<Item = &'a Member>,
        back: impl Iterator<Item = &'a Member>,
    ) {
        let sum = |members: &[&Member]| -> i128 {
            members.iter().map(|member| i128::from(member.weight.0)).sum()
        };
        self.there.clear();
        self.there.extend(there);
        self.back.clear();
        self.back.extend(back);
        self.total = sum(&self.there) - sum(&self.back);
    }

    fn copy(&mut self, other: &Marked<'a>) {
        self.there.clone_from(&other.there);
        self.back.clone_from(&other.back);
        self.total = other.total;
    }

    fn is_empty(&self) -> bool {
        self.there.is_empty() && self.back.is_empty()
    }

    fn drop_there(&mut self, at: usize) {
        self.total -= i128::from(self.there.remove(at).weight.0);
    }

    fn drop_back(&mut self, at: usize) {
        self.total += i128::from(self.back.remove(at).weight.0);
    }

    /// Without pairs of equal weight, while anybody is left.
    fn spare_equals(&mut self) {
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
    /// that has too much, and so on, until it is close. O(n). Whether it ever is.
    fn drop_in_order(&self, all: &Marked<'a>, left: &mut Marked<'a>) -> bool {
        let (mut there, mut back) = (all.there.iter().copied(), all.back.iter().copied());
        let mut total = all.total;
        while there.len() + back.len() > 0 {
            if self.is_close(total) && self.is_harmless(total) {
                left.set(there, back);
                return true;
            }
            let is_too_much = self.beyond(total) > 0;
            let dropped = if is_too_much { there.next() } else { back.next() };
            let Some(dropped) = dropped else { return false };
            let weight = i128::from(dropped.weight.0);
            total += if is_too_much { -weight } else { weight };
        }
        false
    }

    /// Phase 3: who weighs what is too much is dropped, and w_ideal is not exceeded. O(n^2).
    fn drop_by_weight(&self, all: &Marked<'a>, left: &mut Marked<'a>) -> bool {
        left.copy(all);
        if self.beyond(left.total) > 0 {
            let excess = self.beyond(left.total);
            match self.best_fit(&left.there, (excess, left.total * self.shares)) {
                Some(heavy) => left.drop_there(heavy),
                None => self.drop_light(left),
            }
        }
        while self.beyond(left.total) <= 0
            && let Some(light) = self.best_fit(&left.back, (-self.beyond(left.total), 0))
        {
            left.drop_back(light);
        }
        if !left.is_empty() && left.total >= 0 && self.beyond(left.total) <= 0 {
            return true;
        }
        if self.beyond(all.total) > 0 {
            left.copy(all);
        }
        self.rules.improves && self.overshoot(left)
    }

    /// Phase 3 b.
    fn drop_light(&self, left: &mut Marked<'a>) {
        while self.beyond(left.total) > 0
            && let Some(light) = self.best_fit(&left.there, (self.beyond(left.total), 0))
        {
            left.drop_there(light);
        }
    }

    /// What is least beyond w_ideal of what phase 3 comes by: whether that helps the hot CPU.
    fn overshoot(&self, left: &mut Marked<'a>) -> bool {
        if self.beyond(left.total) > 0 {
            self.drop_light(left);
        } else {
            let lightest = (0..left.back.len()).min_by_key(|&at| left.back[at].weight);
            let Some(lightest) = lightest else { return false };
            left.drop_back(lightest);
        }
        // Of what the hot one has: of the ideal one R8 of the reference would miss it by a 20th.
        let Parts { some, of } = self.rules.least;
        let half = Parts { some, of: 2 * of };
        left.total > 0
            && self.idle_with(left.total).exceeds(self.hot, self.hot, half)
            && !left.is_empty()
    }

    /// The one of whose weight, times `shares`, lies between two and is nearest to the first; of
    /// equals the first.
    fn best_fit(&self, members: &[&Member], (near, far): (i128, i128)) -> Option<usize> {
        let weight = |at: usize| i128::from(members[at].weight.0) * self.shares;
        let within = |&at: &usize| (near.min(far)..=near.max(far)).contains(&weight(at));
        (0..members.len()).filter(within).min_by_key(|&at| (weight(at) - near).abs())
    }
}
