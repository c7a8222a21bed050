//! Giving credit: who is given how much, and what becomes of the accounts.

use slackline_units::{CpuId, VcpuId};

use crate::Moment;

use super::rules::{Boost, Changes, Floor, Leaving, OverCap, Park, Placement, Sampling};
use super::runqueue::Class;
use super::{Credit, Why};

impl Credit {
    /// The master's third tick: credit for everybody who is active, and room under the caps.
    pub(super) fn give_credit(&mut self, at: &Moment) {
        if !self.domains.spending.is_empty() {
            self.renew_budgets(at);
        }
        if self.rules.credits.is_some() {
            self.give_counted(at);
        } else {
            self.give_exactly(at);
        }
        let concerns = !self.free.is_empty() || self.rules.park == Park::Queue;
        if self.rules.changes == Changes::Now && concerns {
            self.apply_changes(at);
        }
    }

    /// Nobody waits while a CPU idles, and nobody runs who is parked. A turn that has begun is not
    /// cut short otherwise.
    #[inline(never)]
    fn apply_changes(&mut self, at: &Moment) {
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

    /// Decides by its credit what class a vCPU is of, and whether it is held. `allowed` is what its
    /// cap lets it use in a period, if it has one. Returns its credit for the balance.
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
            let is_over_cap = allowed
                .is_some_and(|allowed| self.rules.over_cap == OverCap::Debt || debt > allowed);
            let is_parked = account.is_parked;
            match self.rules.park {
                Park::Queue if is_over_cap => self.set_class(vcpu, Class::Parked),
                Park::Pause if is_over_cap && !is_parked => {
                    self.set_class(vcpu, Class::Over);
                    self.pause(vcpu);
                }
                _ => self.set_class(vcpu, Class::Over),
            }
            return left;
        }
        let left = account.credit;
        let is_paused = account.is_parked && self.rules.park == Park::Pause;
        let keeps_boost = self.rules.changes == Changes::Now && account.class == Class::Boost;
        if !keeps_boost {
            self.set_class(vcpu, Class::Under);
        }
        if is_paused {
            self.vcpus[vcpu].is_parked = false;
            if at.is_awake(vcpu) {
                self.enqueue(at, vcpu);
            }
        }
        match self.rules.leaving {
            Leaving::Forfeit if left > period => {
                self.vcpus[vcpu].credit = 0;
                self.become_inactive(vcpu);
                // The first Xen forgot that it had just taken this credit away.
                if self.rules.credits == Some(10) { left } else { 0 }
            }
            Leaving::Keep if left > period && !at.is_awake(vcpu) => {
                self.vcpus[vcpu].credit = period;
                self.become_inactive(vcpu);
                period
            }
            Leaving::Keep if left > bound => {
                self.vcpus[vcpu].credit = bound;
                bound
            }
            _ => left,
        }
    }

    /// Stops a vCPU until it is out of debt.
    fn pause(&mut self, vcpu: VcpuId) {
        let account = &mut self.vcpus[vcpu];
        account.is_parked = true;
        match account.on {
            Some(cpu) => self.request(cpu, Why::Preempted),
            None => self.queues.remove(vcpu),
        }
    }

    /// Who runs as a CPU ticks pays for the whole tick, and is active from now on. It may also find
    /// itself a better CPU.
    pub(super) fn sample(&mut self, at: &Moment, cpu: CpuId) {
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

    pub(super) fn become_active(&mut self, vcpu: VcpuId) {
        let account = &mut self.vcpus[vcpu];
        if !core::mem::replace(&mut account.is_active, true) {
            let domain = account.domain;
            self.settle(domain);
            self.domains.activate(domain);
            self.reckon(domain);
        }
    }

    pub(super) fn become_inactive(&mut self, vcpu: VcpuId) {
        let account = &mut self.vcpus[vcpu];
        if core::mem::replace(&mut account.is_active, false) {
            let domain = account.domain;
            self.settle(domain);
            self.domains.deactivate(domain);
            self.reckon(domain);
        }
    }
}
