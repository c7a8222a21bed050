//! Boosts: intervals in which vCPUs run with precedence over others because of their last wake-up.
//!
//! A policy reports only whether a vCPU is boosted now. The recorded boost begins when the vCPU is
//! dispatched. The recorded boost ends when the vCPU stops running. The policy can end the boost
//! earlier, when CPU time is charged or a timer expires.

use slackline_policy::Policy;
use slackline_trace::{Record, Sink};
use slackline_units::{CpuId, CpuSet, Time, VcpuId};

/// Running vCPUs that are boosted: because of their last wake-up they have precedence over other
/// vCPUs.
pub(crate) struct Boosts {
    /// CPUs on which a boosted vCPU runs. Always empty under a policy without boosts.
    cpus: CpuSet,
    /// Boosted vCPU that runs on each CPU, with the time at which its recorded boost began. `None`
    /// if no boosted vCPU runs on the CPU.
    running: Vec<Option<(VcpuId, Time)>>,
}

impl Boosts {
    pub(crate) fn new(cpus: usize) -> Boosts {
        Boosts { cpus: CpuSet::NONE, running: vec![None; cpus] }
    }

    /// Records that a boosted vCPU runs on a CPU from now on. Does nothing if a boost is already
    /// recorded for the CPU.
    pub(crate) fn begin(&mut self, cpu: CpuId, vcpu: VcpuId, now: Time) {
        if self.running[cpu.index()].is_none() {
            self.running[cpu.index()] = Some((vcpu, now));
            self.cpus.insert(cpu);
        }
    }

    /// Ends the boost on a CPU, since the boosted vCPU no longer runs on this CPU.
    #[inline]
    pub(crate) fn stop<S: Sink>(&mut self, cpu: CpuId, now: Time, sink: &mut S) {
        if !self.cpus.is_empty() {
            self.end(cpu, (now, false), sink);
        }
    }

    /// Ends the boosts on all CPUs, since the run is over.
    pub(crate) fn stop_all<S: Sink>(&mut self, now: Time, sink: &mut S) {
        while let Some(cpu) = self.cpus.first() {
            self.end(cpu, (now, false), sink);
        }
    }

    /// Checks the boosts on the CPUs in `among`, and records the end of each boost that the policy
    /// has ended.
    #[inline]
    pub(crate) fn check<S: Sink>(
        &mut self,
        among: impl FnOnce() -> CpuSet,
        (policy, now): (&dyn Policy, Time),
        sink: &mut S,
    ) {
        if self.cpus.is_empty() {
            return;
        }
        for cpu in self.cpus.and(&among()).iter() {
            if self.running[cpu.index()].is_some_and(|(vcpu, _)| !policy.is_boosted(vcpu)) {
                self.end(cpu, (now, true), sink);
            }
        }
    }

    /// Records that the boost on a CPU ended at the time `to`. `used_up` is true if the policy
    /// ended the boost, false if the vCPU stopped running or the run is over.
    fn end<S: Sink>(&mut self, cpu: CpuId, (to, used_up): (Time, bool), sink: &mut S) {
        self.cpus.remove(cpu);
        if let Some((vcpu, from)) = self.running[cpu.index()].take() {
            sink.record(&Record::Boosted { vcpu, from, to, used_up });
        }
    }
}
