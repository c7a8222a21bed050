//! The planned split carried out: who is on several CPUs goes from one to the next when it is time,
//! and has its planned rate on each. [balancer §4.4]
//!
//! The rate is kept by the extra queue: while somebody is on a CPU as planned, its weight there is
//! such that its part comes to its rate. The others share the rest by their weights.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, VcpuId};

use super::Sedf;
use super::balancing::Balancer;
use super::planning::Planned;
use super::terms::Cost;
use crate::balance::planned::{Plan, Split, plan};
use crate::balance::{Move, groups};
use crate::{Moment, Roster};

/// How far above the others' weight one may be set, so that they have something in any case.
const MOST_TIMES: u64 = 64;

impl Sedf {
    /// A run: the plan, made anew if need be, and who goes for that now.
    pub(super) fn plan_moves(&mut self, at: &Moment, all: &[VcpuId]) -> Vec<Move> {
        let Some(mut balancer) = self.balancer.take() else { return Vec::new() };
        let loads = self.loads(at, &balancer, all);
        let mut planned = balancer.planned.take().unwrap_or_default();
        planned.note_owed(&balancer.books);
        let before = planned.plan.take();
        let kept = before.clone();
        let now = plan(&loads, &groups::groups(&loads), before);
        if kept.is_none_or(|kept| now.is_made_anew(&kept)) {
            planned.costs = Roster::default();
            planned.owed = Roster::default();
        }
        planned.coming.clear();
        let mut moves = Vec::new();
        for &(vcpu, to) in &now.whole {
            let from = self.servers[vcpu].cpu;
            if from != to {
                moves.push(Move { vcpu, from, to });
            }
        }
        for split in &now.splits {
            let home = self.servers[split.vcpu].cpu;
            moves.extend(planned.set_out(split, home, at.now()));
        }
        planned.coming.sort_by_key(|&(at, going)| (at, going.vcpu));
        planned.plan = Some(now);
        balancer.books.end_run(all);
        balancer.planned = Some(planned);
        self.balancer = Some(balancer);
        moves
    }

    /// Those whose time on a CPU is over go on. The CPUs to ask.
    pub(super) fn go_on(&mut self, at: &Moment) -> CpuSet {
        let planned = self.balancer.as_mut().and_then(|balancer| balancer.planned.as_mut());
        let moves = planned.map(|planned| planned.take_due(at.now())).unwrap_or_default();
        // New terms may have taken it elsewhere.
        let is_there = |going: &Move| self.servers[going.vcpu].cpu == going.from;
        let moves: Vec<Move> = moves.into_iter().filter(is_there).collect();
        let cpus = self.carry_out(at, &moves);
        self.set_paces(at, cpus);
        cpus
    }

    /// On each of these CPUs those who are there as planned have a weight that comes to their rate.
    pub(super) fn set_paces(&mut self, at: &Moment, cpus: CpuSet) {
        let Some(mut balancer) = self.balancer.take() else { return };
        if let Some(mut planned) = balancer.planned.take() {
            let splits = planned.plan.take();
            if let Some(plan) = &splits {
                cpus.iter()
                    .for_each(|cpu| self.set_paces_on(at, &balancer, plan, (&mut planned, cpu)));
            }
            planned.plan = splits;
            balancer.planned = Some(planned);
        }
        self.balancer = Some(balancer);
    }

    fn set_paces_on(
        &self,
        at: &Moment,
        balancer: &Balancer,
        plan: &Plan,
        (planned, cpu): (&mut Planned, CpuId),
    ) {
        let here = |split: &&Split| self.servers.get(split.vcpu).is_some_and(|on| on.cpu == cpu);
        let here = plan.splits.iter().filter(here);
        let paces: Vec<(VcpuId, u64)> =
            here.filter_map(|split| Some((split.vcpu, planned.pace(split, cpu)?))).collect();
        if paces.is_empty() {
            return;
        }
        let is_other = |vcpu: &VcpuId| paces.iter().all(|(paced, _)| paced != vcpu);
        let others = self.sharers(at, cpu).filter(is_other);
        let others: u64 =
            others.map(|vcpu| balancer.books.weight(vcpu, self.slack_weight(vcpu)).units()).sum();
        let all: u64 = paces.iter().map(|(_, pace)| pace).sum();
        let available = balancer.books.available(cpu).ns();
        let rest = available.saturating_sub(all).max(available / MOST_TIMES).max(1);
        for (vcpu, pace) in paces {
            // Alone it has all of it, whatever its weight.
            let weight = u128::from(others.max(1)) * u128::from(pace) / u128::from(rest);
            let weight = u64::try_from(weight).unwrap_or(u64::MAX).max(1);
            planned.costs.insert(vcpu, Cost::of_weight(weight));
        }
    }

    /// Those on a CPU who share slack.
    fn sharers(&self, at: &Moment, cpu: CpuId) -> impl Iterator<Item = VcpuId> {
        at.members().filter(move |&vcpu| {
            let server = self.servers.get(vcpu);
            server.is_some_and(|server| server.cpu == cpu && server.terms.extra)
        })
    }
}
