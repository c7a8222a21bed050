//! Work conservation: no vCPU waits while a CPU idles that its affinity allows. A vCPU with the
//! most credit does not wait for one with less. Changes count at once.

use slackline_units::{CpuId, VcpuId};

use crate::Moment;

use crate::policies::credit::rules::ClassChange;
use crate::policies::credit::runqueue::Class;
use crate::policies::credit::{Credit, PassReason};

impl Credit {
    /// Requests a pass of each idle CPU that could run a waiting vCPU, and of each CPU whose vCPU
    /// is parked. Turns of other vCPUs are not cut short.
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

    /// Requests a pass of an idle CPU for a vCPU that waits. That CPU may be idle because no other
    /// vCPU could run there. In Xen the vCPU waited until that CPU passed by itself.
    #[inline]
    pub(in crate::policies::credit) fn offer(&mut self, at: &Moment, vcpu: VcpuId) {
        if !self.free.is_empty() {
            self.offer_free(at, vcpu);
        }
    }

    #[inline(never)] // Mostly no CPU is free.
    pub(in crate::policies::credit) fn offer_free(&mut self, at: &Moment, vcpu: VcpuId) {
        if self.rules.changes == ClassChange::Now
            && self.queues.list_of(vcpu).is_some()
            && let Some(cpu) = self.idle(at, vcpu).first()
        {
            self.request(cpu, PassReason::Preempted);
        }
    }

    /// Returns true if an idle CPU has a pass requested, so that it will run another vCPU. In Xen
    /// it counted as idle until its pass.
    pub(in crate::policies::credit) fn is_spoken_for(&self, cpu: CpuId) -> bool {
        self.rules.changes == ClassChange::Now && self.requested.contains(cpu)
    }

    /// Returns true if the credit exceeds that of the first waiting vCPU. The caller asks only
    /// about credit beyond a period's. Otherwise a vCPU that is due nearly a whole CPU could not
    /// make up for the turns of others.
    pub(in crate::policies::credit) fn is_owed_most(&self, cpu: CpuId, credit: i64) -> bool {
        self.queues.first(cpu).is_none_or(|(first, _)| self.vcpus[first].credit < credit)
    }

    /// Returns the CPU with the chosen vCPU of the lowest class, if that is below the class of
    /// `vcpu`. Otherwise `home`.
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
