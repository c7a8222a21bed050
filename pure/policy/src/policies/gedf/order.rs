//! Who runs and who waits, each in the order in which it is needed: whoever comes first of those
//! who wait is next, and whoever comes last of those who run gives way.
//!
//! A policy is not told that somebody lost its CPU: it is found out as somebody else begins to run
//! there, or as it is looked at. Until then it stands among those who run, and has no CPU; that is
//! so only of one that has no budget, or may not run, so nobody looks for it among those who wait.

use alloc::vec::Vec;
use core::cmp::Reverse;

use slackline_units::{CpuId, CpuSet, Time, VcpuId};

use crate::queues::ordered::Queues;
use crate::{Moment, Roster};

/// Lower comes first: the level, and the deadline.
pub(super) type Rank = (u64, Time);

/// After every rank there is.
const OUT_OF_BUDGET: Rank = (u64::MAX, Time::NEVER);

/// The one queue.
const ALL: usize = 0;

/// Everybody awake who runs or has budget.
pub(super) struct Order {
    /// Who has budget and no CPU.
    waiting: Queues<Rank>,
    /// Who has begun to run on a CPU that can be taken: whoever comes last is first, and of equals
    /// the one on the CPU with the lowest number.
    running: Queues<(Reverse<Rank>, CpuId)>,
    /// By CPU, who runs there.
    runs: Vec<Option<VcpuId>>,
    /// By slot, where it runs.
    places: Roster<CpuId>,
    /// CPUs that have been named to be asked and have not been yet: each takes the best there is.
    told: CpuSet,
}

impl Order {
    /// Nobody on so many CPUs.
    pub(super) fn new(cpus: usize) -> Order {
        Order {
            waiting: Queues::new(1),
            running: Queues::new(1),
            runs: alloc::vec![None; cpus],
            places: Roster::default(),
            told: CpuSet::NONE,
        }
    }

    /// A CPU is named to be asked: nobody else can take it.
    #[inline]
    pub(super) fn tell(&mut self, cpu: CpuId) {
        self.told.insert(cpu);
        if let Some(vcpu) = self.runs_on(cpu) {
            self.running.remove(vcpu);
        }
    }

    /// A CPU is asked. Whoever runs there has this rank, if it has budget.
    #[inline]
    pub(super) fn ask(&mut self, cpu: CpuId, rank: impl Fn(VcpuId) -> Option<Rank>) {
        if self.told.contains(cpu) {
            self.told.remove(cpu);
            if let Some(vcpu) = self.runs_on(cpu) {
                self.running.insert(ALL, key(rank(vcpu), cpu), vcpu);
            }
        }
    }

    /// Those of some CPUs that nobody has been told to take.
    #[inline]
    pub(super) fn untold(&self, cpus: &CpuSet) -> CpuSet {
        cpus.without(&self.told)
    }

    /// Who has begun to run on a CPU last.
    #[inline]
    pub(super) fn runs_on(&self, cpu: CpuId) -> Option<VcpuId> {
        self.runs[cpu.index()]
    }

    /// Everybody who has begun to run.
    pub(super) fn running(&self) -> impl Iterator<Item = VcpuId> {
        self.runs.iter().copied().flatten()
    }

    /// The first of those who wait and of whom something holds.
    #[inline(always)]
    pub(super) fn first_waiting(&self, holds: impl Fn(VcpuId) -> bool) -> Option<(Rank, VcpuId)> {
        self.waiting.first_that(ALL, holds)
    }

    /// Whether it waits.
    #[inline]
    pub(super) fn waits(&self, vcpu: VcpuId) -> bool {
        self.waiting.queue_of(vcpu).is_some()
    }

    /// Who comes last of those that run on these CPUs, where it can be taken, and where that is.
    pub(super) fn last_running(&self, at: &Moment, cpus: &CpuSet) -> Option<(Rank, CpuId)> {
        let is_there = |vcpu| at.cpu_of(vcpu).is_some_and(|cpu| cpus.contains(cpu));
        let ((Reverse(rank), cpu), _) = self.running.first_that(ALL, is_there)?;
        Some((rank, cpu))
    }

    /// Puts somebody awake where it belongs now, whatever it did before; it has no rank if it has
    /// no budget. One that may not go on where it is waits.
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

    /// It neither runs nor waits.
    pub(super) fn take_out(&mut self, vcpu: VcpuId) {
        self.waiting.remove(vcpu);
        if let Some(cpu) = self.places.remove(vcpu) {
            self.running.remove(vcpu);
            self.runs[cpu.index()] = None;
        }
    }
}

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
        /// Against a look at all CPUs and everybody, whatever happens in whatever order.
        #[test]
        fn whoever_comes_first_and_last_is_who_a_look_at_everybody_finds(
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
            let (mut order, mut told) = (Order::new(CPUS), CpuSet::NONE);
            // None has no budget. Everybody has said so once.
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
