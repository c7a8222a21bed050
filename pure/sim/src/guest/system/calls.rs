//! Waking ("calling") of a blocked vCPU of a guest for a task that becomes ready.
//!
//! A called vCPU that is on a CPU looks for work as soon as it has paid for its dispatch. Until
//! then the other vCPUs leave a ready task for it. Without this rule the vCPU that made the task
//! ready would always take the task itself, because it looks for its next item at the same instant.
//! The called vCPU would wake in vain. If the called vCPU gets no CPU, the other vCPUs do not leave
//! the task for it. A vCPU that has a CPU must not block while a task is ready.

use slackline_units::VcpuId;

use super::{ItemKind, Seat, System, Systems, Vcpu};

impl<D: Copy> Systems<'_, D> {
    /// Counts the other vCPUs of a system that were called (woken) for a ready task and can still
    /// take it: they have a CPU and have not looked for the task yet. `runs` returns true if a vCPU
    /// runs on a CPU.
    #[inline]
    pub(crate) fn called(&self, seat: Seat, runs: impl Fn(VcpuId) -> bool) -> usize {
        let vcpus = &self.systems[usize::from(seat.system)].vcpus;
        if vcpus.len() == 1 {
            return 0; // Most guests have one vCPU.
        }
        let others = (0..).zip(vcpus).filter(|&(number, _)| number != seat.number);
        others.filter(|(_, vcpu)| vcpu.is_called && runs(vcpu.id)).count()
    }
}

impl<D: Copy> System<'_, D> {
    /// Chooses the vCPU that should look for work because `task` is ready. `None` if the next vCPU
    /// that becomes free will find the task anyway.
    pub(super) fn place(&mut self, task: u16) -> Option<VcpuId> {
        let rank = self.ready.rank(task);
        let asleep = self.vcpus.iter().position(|vcpu| vcpu.is_here && vcpu.is_asleep);
        if let Some(number) = asleep {
            self.vcpus[number].is_called = true;
            return self.alert(number);
        }
        let least = |vcpu: &Vcpu<D>| match vcpu.item.doing {
            ItemKind::Task(other) => Some(self.ready.rank(other)),
            _ => None,
        };
        let (number, runs) = self
            .vcpus
            .iter()
            .map(least)
            .enumerate()
            .max_by_key(|&(number, rank)| (rank, std::cmp::Reverse(number)))?;
        if runs > Some(rank) { self.alert(number) } else { None }
    }
}
