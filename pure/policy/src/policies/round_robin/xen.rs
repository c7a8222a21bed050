//! Round robin as in Xen 2.0: one queue per CPU, a vCPU that wakes goes to the front, and no vCPU
//! is preempted.

use alloc::string::ToString;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

use crate::admission::placement::Population;
use crate::queues::ordered::Queues;
use crate::{
    Account, AdmitError, Entitlement, Moment, Pick, Policy, Roster, TimesliceEnd, Topology, Values,
};

pub(super) struct XenRoundRobin {
    quantum: Span,
    /// One queue per CPU, by position. The vCPU in its timeslice stays in the queue.
    queues: Queues<i64>,
    lines: Vec<RoundRobinCpu>,
    population: Population,
    /// CPU in whose queue each vCPU waits and on which it runs.
    homes: Roster<CpuId>,
}

/// State of one CPU: the current vCPU, its timeslice, and the positions in the queue.
#[derive(Clone, Debug)]
struct RoundRobinCpu {
    /// vCPU in its timeslice, which ends at `until`.
    current: Option<VcpuId>,
    until: Time,
    /// Start of the timeslice, if it began with a wake on an idle CPU. Xen chooses after all wakes
    /// of an instant, so the vCPU that woke last at that instant is first.
    woken: Time,
    /// Last position assigned at the front of the queue.
    front: i64,
    /// Last position assigned at the tail of the queue.
    back: i64,
}

impl Policy for XenRoundRobin {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, _: &Values) -> Result<(), AdmitError> {
        let home = self.population.join(at.allowed(vcpu));
        self.homes.insert(vcpu, home);
        Ok(())
    }

    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, _: &Values) -> Result<CpuSet, AdmitError> {
        let before = self.homes[vcpu];
        let after = self.population.stay_or_move(before, at.allowed(vcpu));
        if after == before {
            return Ok(CpuSet::NONE);
        }
        let is_queued = self.queues.queue_of(vcpu).is_some();
        self.retire(at, vcpu);
        self.homes.insert(vcpu, after);
        if is_queued {
            self.join_front(at, vcpu);
        }
        Ok([before, after].into_iter().collect())
    }

    fn on_leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.retire(at, vcpu);
        let home = self.homes.remove(vcpu).expect("a joined vCPU has a home CPU");
        self.population.leave(home);
        CpuSet::NONE
    }

    fn on_wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.join_front(at, vcpu);
        CpuSet::one(self.homes[vcpu])
    }

    /// Handles the start of a vCPU. If the host barred the current vCPU and another vCPU was
    /// picked, the vCPU that starts becomes the current vCPU.
    fn on_start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let line = &mut self.lines[self.homes[vcpu].index()];
        if line.current != Some(vcpu) {
            (line.current, line.until) = (Some(vcpu), at.now().after(self.quantum));
        }
        CpuSet::NONE
    }

    fn charge(&mut self, _: &Moment, _: VcpuId, _: Span) -> CpuSet {
        CpuSet::NONE
    }

    fn on_timeslice_end(&mut self, at: &Moment, vcpu: VcpuId, _: TimesliceEnd) -> CpuSet {
        let home = self.homes[vcpu];
        let line = &mut self.lines[home.index()];
        if line.current == Some(vcpu) {
            line.back += 1;
            self.queues.change(line.back, vcpu);
            self.pass(at, home);
        }
        CpuSet::NONE
    }

    fn on_block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.retire(at, vcpu);
        CpuSet::NONE
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        let line = &self.lines[cpu.index()];
        let current = line.current.filter(|&vcpu| at.is_eligible(vcpu, cpu));
        let Some(vcpu) = current.or_else(|| self.first(at, cpu)) else { return Pick::Idle };
        let limit = match current {
            Some(_) => line.until.since(at.now()),
            None => self.quantum,
        };
        Pick::Run { vcpu, limit: Some(limit), entitlement: Entitlement::Due }
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        alloc::vec![("cpu", self.homes[vcpu].to_string())]
    }
}

impl XenRoundRobin {
    pub(super) fn new(quantum: Span, topology: &Topology) -> XenRoundRobin {
        let line = RoundRobinCpu {
            current: None,
            until: Time::START,
            woken: Time::NEVER,
            front: 0,
            back: 0,
        };
        XenRoundRobin {
            quantum,
            queues: Queues::new(topology.cpus()),
            lines: alloc::vec![line; topology.cpus()],
            population: Population::new(topology.cpus()),
            homes: Roster::default(),
        }
    }

    /// Puts a vCPU at the front of the queue of its CPU. If the CPU is idle, the vCPU becomes the
    /// current vCPU.
    fn join_front(&mut self, at: &Moment, vcpu: VcpuId) {
        let home = self.homes[vcpu];
        let line = &mut self.lines[home.index()];
        line.front -= 1;
        self.queues.insert(home.index(), line.front, vcpu);
        let is_idle = line.current.is_none();
        if is_idle || line.woken == at.now() {
            line.woken = at.now();
            self.pass(at, home);
        }
    }

    /// Removes a vCPU from its queue. If it was the current vCPU, the next vCPU takes its place.
    fn retire(&mut self, at: &Moment, vcpu: VcpuId) {
        self.queues.remove(vcpu);
        let home = self.homes[vcpu];
        if self.lines[home.index()].current == Some(vcpu) {
            self.pass(at, home);
        }
    }

    /// Begins the timeslice of the next vCPU of a CPU.
    fn pass(&mut self, at: &Moment, cpu: CpuId) {
        let next = self.first(at, cpu);
        let line = &mut self.lines[cpu.index()];
        (line.current, line.until) = (next, at.now().after(self.quantum));
    }

    /// Returns the first vCPU in the queue of `cpu` that may be picked for `cpu`.
    fn first(&self, at: &Moment, cpu: CpuId) -> Option<VcpuId> {
        let can = |vcpu| at.is_eligible(vcpu, cpu);
        self.queues.first_that(cpu.index(), can).map(|(_, vcpu)| vcpu)
    }
}
