//! Parallel programs, whose nodes wait for each other at barriers.

use std::collections::BTreeMap;

use slackline_scenario::Scenario;
use slackline_units::{Span, VcpuId};

/// A vCPU that waits at a barrier, and the message latency after which it continues when all nodes
/// have arrived.
pub(crate) type Waiting = (VcpuId, Span);

/// Barriers of all parallel programs.
pub(crate) struct Barriers {
    /// Index of the parallel program of each domain, by index of the domain. Empty if the scenario
    /// has no parallel program.
    of_domain: Vec<Option<usize>>,
    programs: Vec<Program>,
}

/// State of a parallel program.
struct Program {
    /// Number of nodes that have not left, including those that have not joined yet.
    nodes: usize,
    waiting: Vec<Waiting>,
}

impl Program {
    /// If all nodes have reached the barrier, returns the nodes that continue, in order of vCPU
    /// slot. Otherwise returns an empty list.
    fn release(&mut self) -> Vec<Waiting> {
        if self.waiting.len() < self.nodes {
            return Vec::new();
        }
        let mut all = std::mem::take(&mut self.waiting);
        all.sort_unstable_by_key(|(vcpu, _)| vcpu.slot());
        all
    }
}

impl Barriers {
    pub(crate) fn new(scenario: &Scenario) -> Barriers {
        let mut this = Barriers { of_domain: Vec::new(), programs: Vec::new() };
        if scenario.domains.iter().all(|domain| domain.parallel.is_none()) {
            return this;
        }
        let mut known = BTreeMap::new();
        for domain in &scenario.domains {
            let program = domain.parallel.as_deref().map(|name| {
                let new = known.len();
                let program = *known.entry(name).or_insert(new);
                if program == new {
                    this.programs.push(Program { nodes: 0, waiting: Vec::new() });
                }
                this.programs[program].nodes += domain.vcpus.len();
                program
            });
            this.of_domain.push(program);
        }
        this
    }

    fn program(&mut self, vcpu: VcpuId) -> Option<&mut Program> {
        let program = (*self.of_domain.get(vcpu.domain().number() as usize)?)?;
        self.programs.get_mut(program)
    }

    /// Records that a node has reached the barrier. If all other nodes have reached the barrier
    /// too, returns all nodes, which then continue. Otherwise returns an empty list.
    pub(crate) fn come(&mut self, vcpu: VcpuId, latency: Span) -> Vec<Waiting> {
        let Some(program) = self.program(vcpu) else { return Vec::new() };
        program.waiting.push((vcpu, latency));
        program.release()
    }

    /// Removes a node from its parallel program. If all remaining nodes have reached the barrier,
    /// returns these nodes, which then continue. Otherwise returns an empty list.
    pub(crate) fn leave(&mut self, vcpu: VcpuId) -> Vec<Waiting> {
        let Some(program) = self.program(vcpu) else { return Vec::new() };
        program.nodes -= 1;
        program.waiting.retain(|&(other, _)| other != vcpu);
        program.release()
    }

    /// Returns true if a node waits at the barrier.
    pub(crate) fn waits(&self, vcpu: VcpuId) -> bool {
        let program = self.of_domain.get(vcpu.domain().number() as usize).copied().flatten();
        program.is_some_and(|program| {
            self.programs[program].waiting.iter().any(|&(other, _)| other == vcpu)
        })
    }
}
