//! Runnable vCPUs in two orders: the waiting vCPU with the best rank is next, and the running vCPU
//! with the worst rank is preempted first.
//!
//! The host does not notify a policy when a vCPU loses its CPU. The policy finds out when another
//! vCPU starts on that CPU, or when it handles an event of the vCPU. Until then the vCPU counts as
//! running although it has no CPU. Only a vCPU that is out of budget or barred can lose its CPU in
//! this way. Such a vCPU cannot be picked, so its absence among the waiting vCPUs changes no
//! decision.

use alloc::vec::Vec;
use core::cmp::Reverse;

use slackline_units::{CpuId, CpuSet, Time, VcpuId};

use crate::queues::ordered::Queues;
use crate::{Moment, Roster};

/// Rank of a vCPU: its level (the number of times that its budget was exhausted in this period) and
/// its deadline. A lower rank has precedence.
pub(super) type Rank = (u64, Time);

/// Rank of a vCPU without budget, after all other ranks.
const OUT_OF_BUDGET: Rank = (u64::MAX, Time::NEVER);

/// Index of the only queue.
const ALL: usize = 0;

/// Runnable vCPUs that run, or that wait with budget left, in order of rank.
pub(super) struct RankOrder {
    /// vCPUs with budget left that occupy no CPU.
    waiting: Queues<Rank>,
    /// Running vCPUs that can be preempted, the worst rank first. Of equal ranks the vCPU on the
    /// CPU with the lowest number is first.
    running: Queues<(Reverse<Rank>, CpuId)>,
    /// vCPU that runs on each CPU.
    runs: Vec<Option<VcpuId>>,
    /// CPU of each running vCPU, by slot.
    places: Roster<CpuId>,
    /// CPUs that are marked for rescheduling and have not been rescheduled yet. Each of them takes
    /// the best waiting vCPU, so its occupant is no candidate for preemption by another waiting
    /// vCPU.
    told: CpuSet,
}

impl RankOrder {
    /// Creates an empty order for `cpus` CPUs.
    pub(super) fn new(cpus: usize) -> RankOrder {
        RankOrder {
            waiting: Queues::new(1),
            running: Queues::new(1),
            runs: alloc::vec![None; cpus],
            places: Roster::default(),
            told: CpuSet::NONE,
        }
    }

    /// Marks a CPU for rescheduling. Its occupant is then no candidate for preemption.
    #[inline]
    pub(super) fn tell(&mut self, cpu: CpuId) {
        self.told.insert(cpu);
        if let Some(vcpu) = self.runs_on(cpu) {
            self.running.remove(vcpu);
        }
    }

    /// Clears the mark of a CPU that is being rescheduled. `rank` returns the rank of the vCPU that
    /// runs there, or `None` if that vCPU is out of budget.
    #[inline]
    pub(super) fn ask(&mut self, cpu: CpuId, rank: impl Fn(VcpuId) -> Option<Rank>) {
        if self.told.contains(cpu) {
            self.told.remove(cpu);
            if let Some(vcpu) = self.runs_on(cpu) {
                self.running.insert(ALL, key(rank(vcpu), cpu), vcpu);
            }
        }
    }

    /// Returns the CPUs in `cpus` that are not marked for rescheduling.
    #[inline]
    pub(super) fn untold(&self, cpus: &CpuSet) -> CpuSet {
        cpus.without(&self.told)
    }

    /// Returns the vCPU that started last on a CPU.
    #[inline]
    pub(super) fn runs_on(&self, cpu: CpuId) -> Option<VcpuId> {
        self.runs[cpu.index()]
    }

    /// Returns all running vCPUs.
    pub(super) fn running(&self) -> impl Iterator<Item = VcpuId> {
        self.runs.iter().copied().flatten()
    }

    /// Returns the waiting vCPU with the best rank for which `holds` is true.
    #[inline(always)]
    pub(super) fn first_waiting(&self, holds: impl Fn(VcpuId) -> bool) -> Option<(Rank, VcpuId)> {
        self.waiting.first_that(ALL, holds)
    }

    /// Returns true if the vCPU waits: it has budget left and occupies no CPU.
    #[inline]
    pub(super) fn waits(&self, vcpu: VcpuId) -> bool {
        self.waiting.queue_of(vcpu).is_some()
    }

    /// Returns the worst rank of the running vCPUs on these CPUs, and the CPU of the vCPU that has
    /// it. Leaves out vCPUs that cannot be preempted.
    pub(super) fn last_running(&self, at: &Moment, cpus: &CpuSet) -> Option<(Rank, CpuId)> {
        let is_there = |vcpu| at.cpu_of(vcpu).is_some_and(|cpu| cpus.contains(cpu));
        let ((Reverse(rank), cpu), _) = self.running.first_that(ALL, is_there)?;
        Some((rank, cpu))
    }

    /// Enters a runnable vCPU among the running or the waiting vCPUs. `rank` is `None` if the vCPU
    /// is out of budget. A vCPU whose affinity no longer allows its CPU waits.
    pub(super) fn put(&mut self, at: &Moment, vcpu: VcpuId, rank: Option<Rank>) {
        self.take_out(vcpu);
        if let Some(cpu) = at.cpu_of(vcpu).filter(|&cpu| at.is_allowed(vcpu, cpu)) {
            self.runs[cpu.index()] = Some(vcpu);
            self.places.insert(vcpu, cpu);
            if !self.told.contains(cpu) {
                self.running.insert(ALL, key(rank, cpu), vcpu);
            }
        } else if let Some(rank) = rank {
            self.waiting.insert(ALL, rank, vcpu);
        }
    }

    /// Removes a vCPU that neither runs nor waits any more.
    pub(super) fn take_out(&mut self, vcpu: VcpuId) {
        self.waiting.remove(vcpu);
        if let Some(cpu) = self.places.remove(vcpu) {
            self.running.remove(vcpu);
            self.runs[cpu.index()] = None;
        }
    }
}

/// Returns the key of a running vCPU. `None` as rank means out of budget.
fn key(rank: Option<Rank>, cpu: CpuId) -> (Reverse<Rank>, CpuId) {
    (Reverse(rank.unwrap_or(OUT_OF_BUDGET)), cpu)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slackline_units::DomId;

    use super::*;

    const CPUS: usize = 3;

    proptest! {
        /// Compares the orders with a search of all CPUs and vCPUs under random events.
        #[test]
        fn gedf_finds_same_first_and_last_vcpu_as_exhaustive_search(
            steps in prop::collection::vec((0..6, 0..CPUS, 0..8_u32, 0..3_u64), 1..200),
            allowed in 1..8_usize,
        ) {
            let mut at = Moment::at_start(CPUS);
            let vcpus = [0, 1, 2, 3, 4, 5, 6, 7].map(|slot| VcpuId::new(slot, DomId::new(slot), 0));
            for vcpu in vcpus {
                at.join(vcpu);
                at.set_awake(vcpu, true);
            }
            let bits = (0..CPUS).filter(|cpu| allowed >> cpu & 1 == 1);
            let cpus: CpuSet = bits.map(CpuId::new).collect();
            at.allow(vcpus[7], cpus);
            let (mut order, mut told) = (RankOrder::new(CPUS), CpuSet::NONE);
            // `None`: out of budget. Each vCPU has been put once.
            let mut ranks: [Option<Rank>; 8] = [None; 8];
            for (step, cpu, slot, level) in steps {
                let (cpu, who) = (CpuId::new(cpu), vcpus[slot as usize]);
                match step {
                    0 | 1 => {
                        ranks[who.slot()] = (level > 0).then(|| (level, Time::from_ns(level % 2)));
                        order.put(&at, who, ranks[who.slot()]);
                    }
                    2 | 3 if at.is_eligible(who, cpu) => {
                        let before = order.runs_on(cpu).filter(|&before| before != who);
                        at.occupy(cpu, who);
                        before.into_iter().for_each(|one| order.put(&at, one, ranks[one.slot()]));
                        order.put(&at, who, ranks[who.slot()]);
                    }
                    4 => {
                        order.tell(cpu);
                        told.insert(cpu);
                    }
                    _ => {
                        order.ask(cpu, |vcpu| ranks[vcpu.slot()]);
                        told.remove(cpu);
                    }
                }
                let waits = |&vcpu: &VcpuId| at.cpu_of(vcpu).is_none();
                let ranked = |&vcpu: &VcpuId| Some((ranks[vcpu.slot()]?, vcpu));
                let first = vcpus.iter().filter(|vcpu| waits(vcpu)).filter_map(ranked).min();
                prop_assert_eq!(order.first_waiting(|_| true), first);
                let untold = order.untold(&cpus);
                prop_assert_eq!(untold, cpus.without(&told));
                let runs = untold.iter().filter_map(|cpu| Some((at.occupant(cpu)?, cpu)));
                let runs = runs.map(|(vcpu, cpu)| (ranks[vcpu.slot()], cpu));
                let runs = runs.map(|(rank, cpu)| (rank.unwrap_or(OUT_OF_BUDGET), cpu));
                let last = runs.max_by_key(|&(rank, cpu)| (rank, Reverse(cpu)));
                prop_assert_eq!(order.last_running(&at, &untold), last);
            }
        }
    }
}
