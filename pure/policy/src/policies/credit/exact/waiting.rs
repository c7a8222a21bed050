//! Nobody waits while a CPU idles on which it may run, and who is owed most does not wait for who
//! is owed less. What changes counts at once.

use slackline_units::{CpuId, VcpuId};

use crate::Moment;

use crate::policies::credit::rules::Changes;
use crate::policies::credit::runqueue::Class;
use crate::policies::credit::{Credit, Why};

impl Credit {
    /// Nobody waits while a CPU idles, and nobody runs who is parked. A turn that has begun is not
    /// cut short otherwise.
    #[inline(never)]
    pub(in crate::policies::credit) fn apply_changes(&mut self, at: &Moment) {
        for cpu in (0..self.cpus.len()).map(CpuId::new) {
            let passes = match self.cpus[cpu.index()].chosen {
                Some(vcpu) => self.vcpus[vcpu].class == Class::Parked,
                None => self.best(at, cpu).is_some(),
            };
            if passes {
                self.request(cpu, Why::Preempted);
            }
        }
    }

    /// Who waits from now on may find a CPU that is idle because nobody else could run there. Xen
    /// let it wait until that CPU looked for work by itself.
    #[inline]
    pub(in crate::policies::credit) fn offer(&mut self, at: &Moment, vcpu: VcpuId) {
        if !self.free.is_empty() {
            self.offer_free(at, vcpu);
        }
    }

    #[inline(never)] // Mostly none is free.
    pub(in crate::policies::credit) fn offer_free(&mut self, at: &Moment, vcpu: VcpuId) {
        if self.rules.changes == Changes::Now
            && self.queues.list_of(vcpu).is_some()
            && let Some(cpu) = self.idle(at, vcpu).first()
        {
            self.request(cpu, Why::Preempted);
        }
    }

    /// Whether somebody else is to have an idle CPU. In Xen it was idle until its pass.
    pub(in crate::policies::credit) fn is_spoken_for(&self, cpu: CpuId) -> bool {
        self.rules.changes == Changes::Now && self.requested.contains(cpu)
    }

    /// Whether so much credit, more than a period's, is more than the first that waits has. Who is
    /// due nearly a whole CPU could not make up for the turns of others otherwise.
    pub(in crate::policies::credit) fn is_owed_most(&self, cpu: CpuId, credit: i64) -> bool {
        self.queues.first(cpu).is_none_or(|(first, _)| self.vcpus[first].credit < credit)
    }

    /// The CPU with somebody of the lowest class, if that is below the vCPU's; or else `home`.
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
