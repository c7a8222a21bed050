//! Enforcement of caps in Xen (sections 7.3 and 7.4 of the reference on Credit). An accounting that
//! finds a vCPU over its cap parks it, behind the idle vCPU or by a stop. The vCPU stays parked
//! until an accounting finds it out of debt.

use slackline_units::VcpuId;

use crate::Moment;

use crate::policies::credit::rules::{OverCap, Park};
use crate::policies::credit::runqueue::Class;
use crate::policies::credit::{Credit, PassReason};

impl Credit {
    /// Sets the class of a vCPU with a debt, and parks it if it is over its cap. `allowed` is the
    /// CPU time that the cap allows in a period, or `None` if there is no cap.
    pub(in crate::policies::credit) fn hold_to_cap(
        &mut self,
        vcpu: VcpuId,
        debt: i64,
        allowed: Option<i64>,
    ) {
        let is_debt_enough = self.rules.over_cap == OverCap::Debt;
        let is_over = allowed.is_some_and(|allowed| is_debt_enough || debt > allowed);
        if is_over && self.rules.park == Park::Queue {
            return self.set_class(vcpu, Class::Parked);
        }
        self.set_class(vcpu, Class::Over);
        if is_over && self.rules.park == Park::Pause && !self.vcpus[vcpu].is_parked {
            self.pause(vcpu);
        }
    }

    /// Makes a vCPU that is out of debt runnable again if it was stopped for being over its cap.
    pub(in crate::policies::credit) fn let_go(&mut self, at: &Moment, vcpu: VcpuId) {
        if core::mem::take(&mut self.vcpus[vcpu].is_parked) && at.is_awake(vcpu) {
            self.enqueue(at, vcpu);
        }
    }

    /// Takes all credit from a vCPU that has more than a period's credit, and makes it inactive.
    /// Returns the credit to count in the total of all active vCPUs.
    pub(in crate::policies::credit) fn forfeit(&mut self, vcpu: VcpuId) -> i64 {
        let lost = core::mem::take(&mut self.vcpus[vcpu].credit);
        self.become_inactive(vcpu);
        // The first version of Xen did not subtract the lost credit from the balance.
        if self.rules.credits == Some(10) { lost } else { 0 }
    }

    /// Stops a vCPU until an accounting finds it out of debt.
    fn pause(&mut self, vcpu: VcpuId) {
        let account = &mut self.vcpus[vcpu];
        account.is_parked = true;
        match account.on {
            Some(cpu) => self.request(cpu, PassReason::Preempted),
            None => self.queues.remove(vcpu),
        }
    }
}
