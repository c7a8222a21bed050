//! Spin locks, one per domain. A vCPU that waits for the lock uses CPU time until it holds the
//! lock.

use std::collections::VecDeque;

use slackline_scenario::Scenario;
use slackline_units::{Span, VcpuId};

/// CPU time that a vCPU requests while it spins on a lock. No vCPU can use that much, because a run
/// lasts at most a year. The CPU time spent spinning is this value minus the time that is left.
pub(super) const SPIN: Span = Span::from_ns(1 << 62);

/// Locks of all domains.
pub(crate) struct Locks {
    /// Spin lock of each domain. Empty if no program takes locks.
    of_domain: Vec<Lock>,
    /// vCPUs that have been granted the lock they waited for but have not continued yet.
    granted: Vec<VcpuId>,
}

/// A lock, granted in the order of requests.
#[derive(Clone, Default)]
struct Lock {
    /// The vCPU that holds the lock, followed by the vCPUs that wait for it.
    queue: VecDeque<VcpuId>,
}

impl Locks {
    pub(crate) fn new(scenario: &Scenario) -> Locks {
        let any = scenario.domains.iter().any(|domain| domain.program.locks());
        let of_domain = if any { vec![Lock::default(); scenario.domains.len()] } else { vec![] };
        Locks { of_domain, granted: Vec::new() }
    }

    /// Requests the spin lock of the vCPU's domain. Returns true if the vCPU gets the lock
    /// immediately, and false if the vCPU has to wait.
    pub(crate) fn take(&mut self, vcpu: VcpuId) -> bool {
        let queue = &mut self.of(vcpu).queue;
        queue.push_back(vcpu);
        queue.len() == 1
    }

    /// Releases the lock of the vCPU's domain. The vCPU must hold the lock.
    pub(crate) fn give_back(&mut self, vcpu: VcpuId) {
        let queue = &mut self.of(vcpu).queue;
        debug_assert_eq!(queue.front(), Some(&vcpu), "a vCPU that releases a lock holds it");
        queue.pop_front();
        let next = queue.front().copied();
        self.granted.extend(next);
    }

    /// Removes a vCPU that left the host, whether it held the lock or waited for it.
    pub(crate) fn leave(&mut self, vcpu: VcpuId) {
        let Some(Lock { queue }) = self.of_domain.get_mut(vcpu.domain().number() as usize) else {
            return;
        };
        let held = queue.front() == Some(&vcpu);
        queue.retain(|&other| other != vcpu);
        let next = queue.front().copied().filter(|_| held);
        self.granted.extend(next);
    }

    /// Returns true if a vCPU waits for the lock of its domain.
    pub(crate) fn waits(&self, vcpu: VcpuId) -> bool {
        let lock = self.of_domain.get(vcpu.domain().number() as usize);
        lock.is_some_and(|lock| lock.queue.iter().skip(1).any(|&other| other == vcpu))
    }

    /// Returns the next vCPU that has been granted a lock it waited for. `None` if there is no such
    /// vCPU.
    #[inline]
    pub(crate) fn take_granted(&mut self) -> Option<VcpuId> {
        self.granted.pop()
    }

    fn of(&mut self, vcpu: VcpuId) -> &mut Lock {
        &mut self.of_domain[vcpu.domain().number() as usize]
    }
}

#[cfg(test)]
mod tests {
    use slackline_units::DomId;

    use super::*;

    /// Of three vCPUs, the first holds the lock and the others wait. The second leaves, which frees
    /// no lock. Then the holder leaves, and the third gets the lock.
    #[test]
    fn spinlock_of_leaving_vcpu_goes_to_the_next_waiting_vcpu() {
        let mut locks = Locks { of_domain: vec![Lock::default()], granted: Vec::new() };
        let [holder, second, third] =
            [0, 1, 2].map(|number| VcpuId::new(u32::from(number), DomId::new(0), number));
        assert_eq!([holder, second, third].map(|vcpu| locks.take(vcpu)), [true, false, false]);
        locks.leave(second);
        assert_eq!((locks.take_granted(), locks.waits(second)), (None, false));
        assert!(locks.waits(third));
        locks.leave(holder);
        assert_eq!((locks.take_granted(), locks.waits(third)), (Some(third), false));
        assert_eq!(locks.take_granted(), None);
        locks.give_back(third);
        assert!(locks.take(holder), "the lock is free");
    }
}
