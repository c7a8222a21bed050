//! Execution of the balancer's plan. At scheduled times a split vCPU migrates from one of its CPUs
//! to the next, and it receives its planned rate on each CPU. [balancer §4.4]
//!
//! The queue for slack (*extra*) enforces the rate. While a vCPU is on a CPU as planned, its weight
//! there is set such that its part of the slack equals its rate. The other vCPUs on the CPU share
//! the rest by their weights.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, VcpuId};

use crate::balance::planned::{Split, plan};
use crate::balance::{Move, groups};
use crate::policies::sedf::Sedf;
use crate::policies::sedf::balancer::Balancer;
use crate::policies::sedf::balancer::planning::PlanState;
use crate::policies::sedf::terms::Cost;
use crate::{Moment, Roster};

/// Maximum ratio of a split vCPU's weight to the total weight of the other vCPUs on the CPU, so
/// that the other vCPUs always receive some slack.
const MOST_TIMES: u64 = 64;

impl Sedf {
    /// Executes a run of the balancer: updates the plan and schedules its migrations. Returns the
    /// migrations that are due at once.
    pub(in crate::policies::sedf) fn plan_moves(
        &mut self,
        at: &Moment,
        all: &[VcpuId],
    ) -> Vec<Move> {
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

    /// Carries out the planned migrations that are due. Returns the CPUs to reschedule.
    pub(in crate::policies::sedf) fn go_on(&mut self, at: &Moment) -> CpuSet {
        let planned = self.balancer.as_mut().and_then(|balancer| balancer.planned.as_mut());
        let moves = planned.map(|planned| planned.take_due(at.now())).unwrap_or_default();
        // A change of parameters may have moved the vCPU to another CPU.
        let is_there = |going: &Move| self.servers[going.vcpu].cpu == going.from;
        let moves: Vec<Move> = moves.into_iter().filter(is_there).collect();
        let cpus = self.carry_out(at, &moves);
        self.set_paces(at, cpus);
        cpus
    }

    /// Sets the slack weights of the split vCPUs on `cpus`, so that each of these vCPUs receives
    /// slack at the rate that the plan gives to the vCPU.
    pub(in crate::policies::sedf) fn set_paces(&mut self, at: &Moment, cpus: CpuSet) {
        let Some(mut balancer) = self.balancer.take() else { return };
        if let Some(mut planned) = balancer.planned.take() {
            self.set_costs(at, &balancer, &mut planned, cpus);
            balancer.planned = Some(planned);
        }
        self.balancer = Some(balancer);
    }

    /// Sets the cost of slack for the split vCPUs on `cpus` such that each receives its planned
    /// rate.
    fn set_costs(&self, at: &Moment, balancer: &Balancer, planned: &mut PlanState, cpus: CpuSet) {
        let paces = self.paces(planned, cpus);
        if paces.is_empty() {
            return;
        }
        let others = self.weights_of_others(at, balancer, &paces);
        let mut all = alloc::vec![0; self.cpus.len()];
        paces.iter().for_each(|pace| all[pace.cpu.index()] += pace.rate);
        for Pace { vcpu, cpu, rate } in paces {
            let available = balancer.books.available(cpu).ns();
            let rest = available.saturating_sub(all[cpu.index()]);
            let rest = rest.max(available / MOST_TIMES).max(1);
            // If no other vCPU shares the slack, the vCPU gets all of it with any weight.
            let others = others[cpu.index()].max(1);
            let weight = u128::from(others) * u128::from(rate) / u128::from(rest);
            let weight = u64::try_from(weight).unwrap_or(u64::MAX).max(1);
            planned.costs.insert(vcpu, Cost::of_weight(weight));
        }
    }

    /// Returns the planned rates of those split vCPUs that are on one of `cpus` as the plan says,
    /// in order of id.
    fn paces(&self, planned: &PlanState, cpus: CpuSet) -> Vec<Pace> {
        let pace = |split: &Split| {
            let (vcpu, cpu) = (split.vcpu, self.servers.get(split.vcpu)?.cpu);
            let rate = planned.pace(split, cpu).filter(|_| cpus.contains(cpu))?;
            Some(Pace { vcpu, cpu, rate })
        };
        let splits = planned.plan.iter().flat_map(|plan| &plan.splits);
        let mut paces: Vec<Pace> = splits.filter_map(pace).collect();
        paces.sort_unstable_by_key(|pace| pace.vcpu);
        paces
    }

    /// Returns the total slack weight of the vCPUs on each CPU of `paces`, without the vCPUs in
    /// `paces`. Zero for other CPUs.
    fn weights_of_others(&self, at: &Moment, balancer: &Balancer, paces: &[Pace]) -> Vec<u64> {
        let cpus: CpuSet = paces.iter().map(|pace| pace.cpu).collect();
        let is_paced = |vcpu| paces.binary_search_by_key(&vcpu, |pace| pace.vcpu).is_ok();
        let mut weights = alloc::vec![0; self.cpus.len()];
        for vcpu in at.members() {
            let Some(server) = self.servers.get(vcpu) else { continue };
            if server.terms.extra && cpus.contains(server.cpu) && !is_paced(vcpu) {
                let weight = balancer.books.weight(vcpu, self.slack_weight(vcpu));
                weights[server.cpu.index()] += weight.units();
            }
        }
        weights
    }
}

/// Planned rate of a split vCPU on the CPU where it is now, in ns of CPU time per sample (100 ms).
#[derive(Clone, Copy, Debug)]
struct Pace {
    vcpu: VcpuId,
    cpu: CpuId,
    rate: u64,
}
