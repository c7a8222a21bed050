//! Budgets that enforce the cap of a VM for all its vCPUs together.

use slackline_units::{Span, VcpuId};

use crate::Moment;

use crate::policies::credit::{Credit, nanoseconds};

impl Credit {
    /// Replenishes the budgets of capped VMs in proportion to the time since the last accounting. A
    /// budget never exceeds the CPU time that the cap allows in a period.
    pub(in crate::policies::credit) fn renew_budgets(&mut self, at: &Moment) {
        let since = at.now().since(self.accounted);
        let spending = core::mem::take(&mut self.domains.spending);
        for row in spending {
            let more = self.domains.allowance(row, since).unwrap_or(0);
            let most = self.domains.allowance(row, self.rules.tick * 3).unwrap_or(0);
            let domain = &mut self.domains[row];
            let excused = domain.cap_debt.min(debt(domain.budget));
            let renewed = domain.budget.saturating_add(excused).saturating_add(more);
            let kept = most.saturating_sub(domain.held);
            domain.budget = renewed.min(kept);
            // A timeslice that began under a higher cap can use more than the cap now allows in a
            // period.
            domain.cap_debt = (debt(kept) - debt(renewed)).max(0);
            if domain.budget < most && domain.cap.is_some() {
                self.domains.spending.push(row);
            } else {
                domain.is_spending = false;
            }
            self.unpark(at, row);
        }
    }

    /// Charges a vCPU's CPU time to the budget of its VM.
    #[inline(never)] // Caps are rare.
    pub(in crate::policies::credit) fn charge_budget(&mut self, vcpu: VcpuId, ran: Span) {
        let account = &mut self.vcpus[vcpu];
        if self.domains.is_capped(account.domain) {
            self.domains.charge(account, nanoseconds(ran));
        }
    }

    /// Changes the budget of a VM for a new cap. The old cap allowed the CPU time `before` in a
    /// period, and `None` means that there was no cap. CPU time that the VM has used since the last
    /// accounting still counts, so a changed cap gives no second budget. The budget of a VM that
    /// had no cap is the CPU time that the cap allows in a period, minus the parts that the VM's
    /// vCPUs have taken.
    pub(in crate::policies::credit) fn change_budget(&mut self, row: usize, before: Option<i64>) {
        let most = self.domains.allowance(row, self.rules.tick * 3);
        let domain = &mut self.domains[row];
        match (before, most) {
            (Some(before), Some(most)) => {
                let budget = domain.budget.saturating_add(most.saturating_sub(before));
                let owed = debt(budget).saturating_sub(debt(domain.budget));
                domain.cap_debt = domain.cap_debt.saturating_add(owed).max(0);
                domain.budget = budget;
            }
            _ => {
                domain.cap_debt = 0;
                domain.budget = most.map_or(0, |most| most.saturating_sub(domain.held));
            }
        }
        if most.is_some_and(|most| self.domains[row].budget < most) {
            self.domains.note_spending(row);
        }
    }

    /// Returns the CPU time that a timeslice may take from the budget of a VM. Each active vCPU
    /// gets an equal share, but at least a tenth of a tick if the budget has that much.
    pub(in crate::policies::credit) fn portion(&self, row: usize) -> Span {
        let domain = &self.domains[row];
        let even = domain.budget / domain.active.max(1);
        let sliver = nanoseconds(self.rules.tick / 10);
        let portion = even.max(sliver).min(domain.budget).max(0);
        Span::from_ns(portion.unsigned_abs())
    }

    /// Returns true if a vCPU may not start a timeslice because the budget of its VM is exhausted.
    #[inline]
    pub(in crate::policies::credit) fn is_broke(&self, vcpu: VcpuId) -> bool {
        self.domains.are_capped() && self.domains.is_broke(self.vcpus[vcpu].domain)
    }

    /// Makes the parked vCPUs of a VM runnable again if the VM has budget left.
    pub(in crate::policies::credit) fn unpark(&mut self, at: &Moment, row: usize) {
        for index in 0..self.domains[row].vcpus.len() {
            let vcpu = self.domains[row].vcpus[index];
            if self.vcpus[vcpu].is_parked && !self.is_broke(vcpu) {
                self.vcpus[vcpu].is_parked = false;
                self.enqueue(at, vcpu);
            }
        }
    }
}

/// Returns the amount by which a budget is below zero.
fn debt(budget: i64) -> i64 {
    budget.saturating_neg().max(0)
}
