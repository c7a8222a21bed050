//! Distribution of credit to active vCPUs. The class of each vCPU then follows from its credit.

use slackline_units::VcpuId;

use crate::Moment;

use super::Credit;
use super::rules::{ClassChange, CreditOverflow, Floor, Park};
use super::runqueue::Class;

impl Credit {
    /// Gives credit to all active vCPUs and replenishes the budgets of capped VMs. Called at every
    /// third tick of CPU 0.
    pub(super) fn give_credit(&mut self, at: &Moment) {
        if !self.domains.spending.is_empty() {
            self.renew_budgets(at);
        }
        if self.claims.is_some() {
            self.renew_claims(at);
        }
        if self.rules.credits.is_some() {
            self.give_counted(at);
        } else {
            self.give_exactly(at);
        }
        let concerns = !self.free.is_empty() || self.rules.park == Park::Queue;
        if self.rules.changes == ClassChange::Now && concerns {
            self.apply_changes(at);
        }
    }

    /// Sets the class of a vCPU by its credit, and parks the vCPU if it is over its cap. `allowed`
    /// is the CPU time that the cap allows in a period, or `None` if there is no cap. Returns the
    /// credit to count in the total of all active vCPUs.
    #[inline]
    pub(super) fn close_account(&mut self, at: &Moment, vcpu: VcpuId, allowed: Option<i64>) -> i64 {
        let period = self.rules.period;
        let bound = match self.rules.floor {
            Floor::Period => period,
            Floor::Turns => period.saturating_mul(self.domains.active + 1),
        };
        let account = &mut self.vcpus[vcpu];
        if account.credit < 0 {
            let debt = -account.credit;
            account.credit = account.credit.max(-bound);
            let left = account.credit;
            match self.rules.park {
                Park::Budget => self.set_class(vcpu, Class::Over),
                Park::Queue | Park::Pause => self.hold_to_cap(vcpu, debt, allowed),
            }
            return left;
        }
        let left = account.credit;
        let keeps_boost = self.rules.changes == ClassChange::Now && account.class == Class::Boost;
        if !keeps_boost {
            self.set_class(vcpu, Class::Under);
        }
        if self.rules.park == Park::Pause {
            self.let_go(at, vcpu);
        }
        match self.rules.leaving {
            CreditOverflow::Forfeit if left > period => self.forfeit(vcpu),
            CreditOverflow::Keep if left > period && !at.is_awake(vcpu) => {
                self.vcpus[vcpu].credit = period;
                self.become_inactive(vcpu);
                period
            }
            CreditOverflow::Keep if left > bound => {
                self.vcpus[vcpu].credit = bound;
                bound
            }
            _ => left,
        }
    }

    /// Makes a vCPU active: it receives credit from the next accounting on.
    pub(super) fn become_active(&mut self, vcpu: VcpuId) {
        let account = &mut self.vcpus[vcpu];
        if !core::mem::replace(&mut account.is_active, true) {
            let domain = account.domain;
            self.settle(domain);
            self.domains.activate(domain, vcpu);
            self.reckon(domain);
        }
    }

    /// Makes a vCPU inactive: it receives no more credit.
    pub(super) fn become_inactive(&mut self, vcpu: VcpuId) {
        let account = &mut self.vcpus[vcpu];
        if core::mem::replace(&mut account.is_active, false) {
            let domain = account.domain;
            self.settle(domain);
            self.domains.deactivate(domain, vcpu);
            self.reckon(domain);
        }
    }
}
