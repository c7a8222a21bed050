//! What happens as a CPU ticks (reference, sections 7.2 and 7.4): who runs there pays for the whole
//! tick, its boost ends, and it may be moved to a better CPU.

use slackline_units::{CpuId, VcpuId};

use crate::Moment;

use crate::policies::credit::rules::{Boost, Placement, Sampling};
use crate::policies::credit::runqueue::Class;
use crate::policies::credit::{Credit, Why};

impl Credit {
    /// Who runs as a CPU ticks pays for the whole tick, and is active from now on. It may also find
    /// itself a better CPU.
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

    /// A running vCPU is to run elsewhere, once its CPU has passed.
    pub(in crate::policies::credit) fn migrate(&mut self, vcpu: VcpuId) {
        self.vcpus[vcpu].is_moving = true;
        self.request_all(self.vcpus[vcpu].on, Why::Preempted);
    }

    /// It has been stopped, and is woken where it runs best now.
    pub(in crate::policies::credit) fn move_away(&mut self, at: &Moment, vcpu: VcpuId) {
        self.vcpus[vcpu].is_moving = false;
        self.find_home(at, vcpu);
        if at.is_awake(vcpu) {
            self.wake_up(at, vcpu);
        }
    }
}
