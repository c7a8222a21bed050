//! Work conservation: no vCPU waits while a CPU that its affinity allows is idle. Changes of class
//! take effect at once. A vCPU with more than a period's credit continues after its timeslice if it
//! has more credit than the first waiting vCPU.

use slackline_units::{CpuId, VcpuId};

use crate::Moment;

use crate::policies::credit::rules::ClassChange;
use crate::policies::credit::runqueue::Class;
use crate::policies::credit::{Credit, PassReason};

impl Credit {
    /// Requests a pass on each idle CPU that could run a waiting vCPU, and on each CPU whose vCPU
    /// is parked. Timeslices of other vCPUs are not cut short.
    #[inline(never)]
    pub(in crate::policies::credit) fn apply_changes(&mut self, at: &Moment) {
        for cpu in (0..self.cpus.len()).map(CpuId::new) {
            let passes = match self.cpus[cpu.index()].chosen {
                Some(vcpu) => self.vcpus[vcpu].class == Class::Parked,
                None => self.best(at, cpu).is_some(),
            };
            if passes {
                self.request(cpu, PassReason::Preempted);
            }
        }
    }

    /// Requests a pass on an idle CPU for a vCPU that waits. The CPU can be idle because no other
    /// vCPU could run there. In Xen the vCPU waited until the idle CPU ran a pass for another
    /// reason.
    #[inline]
    pub(in crate::policies::credit) fn offer(&mut self, at: &Moment, vcpu: VcpuId) {
        if !self.free.is_empty() {
            self.offer_free(at, vcpu);
        }
    }

    #[inline(never)] // On a busy host no CPU is free.
    pub(in crate::policies::credit) fn offer_free(&mut self, at: &Moment, vcpu: VcpuId) {
        if self.rules.changes == ClassChange::Now
            && self.queues.list_of(vcpu).is_some()
            && let Some(cpu) = self.idle(at, vcpu).first()
        {
            self.request(cpu, PassReason::Preempted);
        }
    }

    /// Requests passes on idle CPUs for the waiting siblings of a vCPU, unless their cap keeps
    /// these siblings from running.
    pub(in crate::policies::credit) fn offer_siblings(&mut self, at: &Moment, vcpu: VcpuId) {
        let row = self.vcpus[vcpu].domain;
        if self.free.is_empty() || self.domains.is_broke(row) {
            return;
        }
        for index in 0..self.domains[row].vcpus.len() {
            let sibling = self.domains[row].vcpus[index];
            if sibling != vcpu && self.vcpus[sibling].on.is_none() {
                self.offer(at, sibling);
            }
        }
    }

    /// Returns true if a pass is requested on `cpu`, an idle CPU that will then run another vCPU.
    /// Always false with `changes = "tick"`: in Xen such a CPU counts as idle until the pass.
    pub(in crate::policies::credit) fn is_spoken_for(&self, cpu: CpuId) -> bool {
        self.rules.changes == ClassChange::Now && self.requested.contains(cpu)
    }

    /// Returns true if `credit` exceeds the credit of the first vCPU that waits for the CPU. Called
    /// only with credit beyond that of a period. Without this rule a vCPU that is due nearly a
    /// whole CPU could not make up for the timeslices of other vCPUs.
    pub(in crate::policies::credit) fn is_owed_most(&self, cpu: CpuId, credit: i64) -> bool {
        self.queues.first(cpu).is_none_or(|(first, _)| self.vcpus[first].credit < credit)
    }

    /// Returns an allowed CPU whose chosen vCPU has a class below that of `vcpu`, the lowest class
    /// first. Returns `home` if there is no such CPU, or if `home` itself is such a CPU.
    pub(in crate::policies::credit) fn least_urgent(
        &self,
        at: &Moment,
        vcpu: VcpuId,
        home: CpuId,
    ) -> CpuId {
        let class = self.vcpus[vcpu].class;
        if self.class_on(home) < class {
            return home;
        }
        let allowed = at.allowed(vcpu);
        let mut lower = self.by_class[..class as usize].iter();
        lower.find_map(|cpus| cpus.and(&allowed).first()).unwrap_or(home)
    }
}
