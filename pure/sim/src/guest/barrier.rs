//! Parallel programs: their nodes wait for each other.

use std::collections::BTreeMap;

use slackline_scenario::Scenario;
use slackline_units::{Span, VcpuId};

/// Who waits at a barrier, and how long its messages take.
pub(crate) type Waiting = (VcpuId, Span);

/// All parallel programs.
pub(crate) struct Barriers {
    /// By domain: which program its vCPUs are nodes of; empty if there is no program at all.
    of_domain: Vec<Option<usize>>,
    programs: Vec<Program>,
}

/// A parallel program.
struct Program {
    /// How many nodes have not left; those that have not joined yet are waited for.
    nodes: usize,
    waiting: Vec<Waiting>,
}

impl Program {
    /// Those who go on now, by slot, if all are here.
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

    /// A node has come to the barrier; who goes on now, it among them: all, if it was the last.
    pub(crate) fn come(&mut self, vcpu: VcpuId, latency: Span) -> Vec<Waiting> {
        let Some(program) = self.program(vcpu) else { return Vec::new() };
        program.waiting.push((vcpu, latency));
        program.release()
    }

    /// A node leaves; who goes on now, if it was the only one who was missing.
    pub(crate) fn leave(&mut self, vcpu: VcpuId) -> Vec<Waiting> {
        let Some(program) = self.program(vcpu) else { return Vec::new() };
        program.nodes -= 1;
        program.waiting.retain(|&(other, _)| other != vcpu);
        program.release()
    }

    /// Whether a node waits for others.
    pub(crate) fn waits(&self, vcpu: VcpuId) -> bool {
        let program = self.of_domain.get(vcpu.domain().number() as usize).copied().flatten();
        program.is_some_and(|program| {
            self.programs[program].waiting.iter().any(|&(other, _)| other == vcpu)
        })
    }
}
