//! Spin locks: who holds the one of a domain, and who uses CPU time until it has it.

use std::collections::VecDeque;

use slackline_scenario::Scenario;
use slackline_units::{Span, VcpuId};

/// Who waits for a lock wants this much CPU time, which it never comes to the end of: a run lasts a
/// year at most. Of what is left of it one sees what has been used.
pub(super) const SPIN: Span = Span::from_ns(1 << 62);

/// The locks of all domains.
pub(crate) struct Locks {
    /// By domain; empty where nobody takes any.
    of_domain: Vec<Lock>,
    /// Who has got a lock for which it waited and has not been let go on yet.
    granted: Vec<VcpuId>,
}

/// A lock: whoever asks for it gets it in the order of asking.
#[derive(Clone, Default)]
struct Lock {
    /// The first holds it.
    queue: VecDeque<VcpuId>,
}

impl Locks {
    pub(crate) fn new(scenario: &Scenario) -> Locks {
        let any = scenario.domains.iter().any(|domain| domain.program.locks());
        let of_domain = if any { vec![Lock::default(); scenario.domains.len()] } else { vec![] };
        Locks { of_domain, granted: Vec::new() }
    }

    /// A vCPU asks for the lock of its domain; whether it has it at once.
    pub(crate) fn take(&mut self, vcpu: VcpuId) -> bool {
        let queue = &mut self.of(vcpu).queue;
        queue.push_back(vcpu);
        queue.len() == 1
    }

    /// Who holds the lock of its domain gives it back.
    pub(crate) fn give_back(&mut self, vcpu: VcpuId) {
        let queue = &mut self.of(vcpu).queue;
        debug_assert_eq!(queue.front(), Some(&vcpu), "it holds the lock");
        queue.pop_front();
        let next = queue.front().copied();
        self.granted.extend(next);
    }

    /// A vCPU is gone, with or without the lock.
    pub(crate) fn leave(&mut self, vcpu: VcpuId) {
        let Some(Lock { queue }) = self.of_domain.get_mut(vcpu.domain().number() as usize) else {
            return;
        };
        let held = queue.front() == Some(&vcpu);
        queue.retain(|&other| other != vcpu);
        let next = queue.front().copied().filter(|_| held);
        self.granted.extend(next);
    }

    /// Whether a vCPU waits for the lock of its domain.
    pub(crate) fn waits(&self, vcpu: VcpuId) -> bool {
        let lock = self.of_domain.get(vcpu.domain().number() as usize);
        lock.is_some_and(|lock| lock.queue.iter().skip(1).any(|&other| other == vcpu))
    }

    /// Who has got a lock, one after the other.
    #[inline]
    pub(crate) fn take_granted(&mut self) -> Option<VcpuId> {
        self.granted.pop()
    }

    fn of(&mut self, vcpu: VcpuId) -> &mut Lock {
        &mut self.of_domain[vcpu.domain().number() as usize]
    }
}
