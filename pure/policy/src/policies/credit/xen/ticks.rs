//! Ticks of a CPU in Xen (sections 7.2 and 7.4 of the reference on Credit). The running vCPU pays
//! for the whole tick, its boost ends, and it may move to a better CPU.

use slackline_units::{CpuId, VcpuId};

use crate::Moment;

use crate::policies::credit::rules::{Boost, Placement, Sampling};
use crate::policies::credit::runqueue::Class;
use crate::policies::credit::{Credit, PassReason};

impl Credit {
    /// Charges the vCPU that runs when a CPU ticks, and makes it active. A vCPU that was active
    /// already may move to a better CPU.
    pub(in crate::policies::credit) fn sample(&mut self, at: &Moment, cpu: CpuId) {
        let chosen = self.cpus[cpu.index()].chosen;
        let Some(vcpu) = chosen.filter(|_| at.occupant(cpu) == chosen) else { return };
        if self.rules.boost == Boost::Tick && self.vcpus[vcpu].class == Class::Boost {
            self.set_class(vcpu, Class::Under);
        }
        if self.rules.sampling == Sampling::Tick {
            self.vcpus[vcpu].credit -= self.rules.period / 3;
        }
        if !self.vcpus[vcpu].is_active {
            self.become_active(vcpu);
        } else if self.rules.placement == Placement::Tick && self.better_cpu(at, vcpu) != cpu {
            self.migrate(vcpu);
        }
    }

    /// Marks a running vCPU to migrate after the next scheduling pass of its CPU.
    pub(in crate::policies::credit) fn migrate(&mut self, vcpu: VcpuId) {
        self.vcpus[vcpu].is_moving = true;
        self.request_all(self.vcpus[vcpu].on, PassReason::Preempted);
    }

    /// Moves a vCPU that was taken from its CPU to the CPU where it runs best now, and wakes it
    /// there.
    pub(in crate::policies::credit) fn move_away(&mut self, at: &Moment, vcpu: VcpuId) {
        self.vcpus[vcpu].is_moving = false;
        self.find_home(at, vcpu);
        if at.is_awake(vcpu) {
            self.wake_up(at, vcpu);
        }
    }
}
