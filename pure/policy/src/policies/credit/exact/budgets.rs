//! Budgets that enforce the cap of a VM for all its vCPUs together.

use slackline_units::{CpuSet, Span, VcpuId};

use crate::Moment;

use crate::policies::credit::rules::Park;
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

    /// Lets the siblings of a vCPU run if the cap of their VM allows it now. Called after the vCPU
    /// has changed the cap. Some siblings are parked. Others were runnable before the budget was
    /// exhausted: they wait in lists, and CPUs may be idle because of the cap.
    pub(in crate::policies::credit) fn apply_cap(&mut self, at: &Moment, vcpu: VcpuId) {
        if self.rules.park == Park::Budget {
            // Waiting siblings come first, since a vCPU that is unparked requests a pass itself.
            self.offer_siblings(at, vcpu);
            self.unpark(at, self.vcpus[vcpu].domain);
        }
    }

    /// Lets waiting siblings of a vCPU run on idle CPUs if their VM has budget left. Called after
    /// the vCPU has returned its unused budget to the VM. Returns the CPUs to reschedule, an empty
    /// set if the VM has no cap.
    #[inline]
    pub(in crate::policies::credit) fn offer_returned_budget(
        &mut self,
        at: &Moment,
        vcpu: VcpuId,
    ) -> CpuSet {
        if !self.domains.is_capped(self.vcpus[vcpu].domain) {
            return CpuSet::NONE;
        }
        self.offer_siblings(at, vcpu);
        self.requested
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

#[cfg(test)]
mod tests {
    use slackline_units::{CpuId, DomId, Time};

    use super::*;
    use crate::policies::credit::SPEC;
    use crate::policies::credit::rules::CreditRules;
    use crate::{Pick, Policy, RawValue, TimesliceEnd, Topology, Values};

    const CPU: CpuId = CpuId::new(0);

    /// Returns the parameters of a VM. If `cap` is `None`, the VM has no cap.
    fn share(cap: Option<&'static str>) -> Values {
        let given = cap.map(|cap| ("cap", RawValue::Text(cap)));
        Values::read(SPEC.share_fields, given.into_iter()).unwrap()
    }

    /// Returns a vCPU of the only VM.
    fn of_vm(number: u16) -> VcpuId {
        VcpuId::new(u32::from(number), DomId::new(0), number)
    }

    /// Two vCPUs of a VM with a cap take turns on one CPU, until one of them has the last part of
    /// the budget. That vCPU blocks when the part is used up. The other one still waits in the
    /// list, and the CPU is idle. Returns the vCPU that waits and the vCPU that is blocked.
    fn exhausted() -> (Credit, Moment, VcpuId, VcpuId) {
        let values = Values::defaults(SPEC.policy_fields).unwrap();
        let rules = CreditRules::read(&values, "exact");
        let mut policy = Credit::new(rules, &Topology::flat(1), None);
        let mut at = Moment::at_start(1);
        for vcpu in [of_vm(0), of_vm(1)] {
            at.join(vcpu);
            policy.admit(&at, vcpu, &share(Some("10%"))).unwrap();
            at.set_awake(vcpu, true);
            policy.on_wake(&at, vcpu);
        }
        policy.prepare_pick(&at, CPU);
        loop {
            let Pick::Run { vcpu, limit: Some(limit), .. } = policy.pick(&at, CPU) else {
                panic!("a vCPU runs until the budget is exhausted");
            };
            at.occupy(CPU, vcpu);
            policy.on_start(&at, vcpu);
            let is_last = policy.is_broke(vcpu);
            at.advance(at.now().after(limit));
            if is_last {
                at.set_awake(vcpu, false);
                policy.charge(&at, vcpu, limit);
                at.vacate(CPU);
                policy.on_block(&at, vcpu);
                policy.prepare_pick(&at, CPU);
                let other = of_vm(1 - vcpu.number());
                assert_eq!(policy.queues.list_of(other), Some(CPU));
                assert_eq!(policy.pick(&at, CPU), Pick::Idle);
                return (policy, at, other, vcpu);
            }
            policy.charge(&at, vcpu, limit);
            policy.on_timeslice_end(&at, vcpu, TimesliceEnd::Limit);
            policy.prepare_pick(&at, CPU);
        }
    }

    /// A third vCPU joins without a cap, which lifts the cap of the whole VM.
    #[test]
    fn uncapped_newcomer_lifts_vm_cap_and_reschedules_idle_cpu() {
        let (mut policy, mut at, waits, _) = exhausted();
        at.join(of_vm(2));
        policy.admit(&at, of_vm(2), &share(None)).unwrap();
        assert_eq!(policy.on_join(&at, of_vm(2)), CpuSet::one(CPU));
        policy.prepare_pick(&at, CPU);
        assert!(matches!(policy.pick(&at, CPU), Pick::Run { vcpu, .. } if vcpu == waits));
    }

    /// The blocked vCPU of the VM gets a share without a cap. This lifts the cap of the whole VM.
    #[test]
    fn idle_cpu_is_rescheduled_if_blocked_sibling_loses_its_cap() {
        let (mut policy, at, waits, blocked) = exhausted();
        assert_eq!(policy.adjust(&at, blocked, &share(None)), Ok(CpuSet::one(CPU)));
        policy.prepare_pick(&at, CPU);
        assert!(matches!(policy.pick(&at, CPU), Pick::Run { vcpu, .. } if vcpu == waits));
    }

    /// A newcomer with the same cap does not give the VM another budget.
    #[test]
    fn newcomer_with_the_same_cap_requests_no_scheduling_pass() {
        let (mut policy, mut at, ..) = exhausted();
        at.join(of_vm(2));
        policy.admit(&at, of_vm(2), &share(Some("10%"))).unwrap();
        assert_eq!(policy.on_join(&at, of_vm(2)), CpuSet::NONE);
        assert_eq!(policy.pick(&at, CPU), Pick::Idle);
    }

    const OTHER: CpuId = CpuId::new(1);

    /// Runs a pass on a CPU and starts the vCPU of the pick. Returns the vCPU and the end of its
    /// timeslice.
    fn start(policy: &mut Credit, at: &mut Moment, cpu: CpuId) -> (VcpuId, Time) {
        policy.prepare_pick(at, cpu);
        let Pick::Run { vcpu, limit: Some(limit), .. } = policy.pick(at, cpu) else {
            panic!("a vCPU can run on {cpu}");
        };
        at.occupy(cpu, vcpu);
        policy.on_start(at, vcpu);
        (vcpu, at.now().after(limit))
    }

    /// Charges the vCPU on a CPU for its timeslice, which ends now.
    fn end_timeslice(policy: &mut Credit, at: &Moment, (cpu, since): (CpuId, Time)) {
        let vcpu = at.occupant(cpu).unwrap();
        policy.charge(at, vcpu, at.now().since(since));
        policy.on_timeslice_end(at, vcpu, TimesliceEnd::Limit);
    }

    /// Two vCPUs of a VM with a cap take turns on `OTHER`. A third one may use only `CPU`. It wakes
    /// shortly before the second timeslice on `OTHER` ends, and takes the rest of the budget.
    /// `OTHER` becomes idle, and the first vCPU waits in its list. Returns the waiting vCPU and the
    /// vCPU that runs on `CPU` and has used 1 us.
    fn rest_of_budget_taken() -> (Credit, Moment, VcpuId, VcpuId) {
        let values = Values::defaults(SPEC.policy_fields).unwrap();
        let rules = CreditRules::read(&values, "exact");
        let mut policy = Credit::new(rules, &Topology::flat(2), None);
        let mut at = Moment::at_start(2);
        for (number, cpu) in [(0, CPU), (1, OTHER), (2, OTHER)] {
            at.join(of_vm(number));
            at.allow(of_vm(number), CpuSet::one(cpu));
            policy.admit(&at, of_vm(number), &share(Some("10%"))).unwrap();
        }
        for number in [1, 2] {
            at.set_awake(of_vm(number), true);
            policy.on_wake(&at, of_vm(number));
        }
        let (waits, end) = start(&mut policy, &mut at, OTHER);
        let begin = at.now();
        at.advance(end);
        end_timeslice(&mut policy, &at, (OTHER, begin));
        let (second, end) = start(&mut policy, &mut at, OTHER);
        assert_ne!(second, waits);
        let (begin, short) = (at.now(), Span::from_us(1));
        at.advance(begin.after(end.since(begin).left_after(short)));
        at.set_awake(of_vm(0), true);
        policy.on_wake(&at, of_vm(0));
        assert_eq!(start(&mut policy, &mut at, CPU).0, of_vm(0));
        assert!(policy.is_broke(waits));
        at.advance(end);
        end_timeslice(&mut policy, &at, (OTHER, begin));
        policy.prepare_pick(&at, OTHER);
        assert_eq!(policy.pick(&at, OTHER), Pick::Idle);
        at.vacate(OTHER);
        policy.charge(&at, of_vm(0), short);
        (policy, at, waits, of_vm(0))
    }

    /// Asserts that a pass on `OTHER` is requested and chooses a vCPU.
    #[track_caller]
    fn assert_runs(policy: &mut Credit, at: &Moment, requested: CpuSet, waits: VcpuId) {
        assert!(requested.contains(OTHER), "{requested:?}");
        policy.prepare_pick(at, OTHER);
        assert!(matches!(policy.pick(at, OTHER), Pick::Run { vcpu, .. } if vcpu == waits));
    }

    /// The vCPU that took the rest of the budget blocks, leaves, or is preempted by another VM.
    #[test]
    fn waiting_sibling_gets_unused_budget_on_another_idle_cpu() {
        let (mut policy, mut at, waits, taker) = rest_of_budget_taken();
        at.set_awake(taker, false);
        at.vacate(CPU);
        let requested = policy.on_block(&at, taker);
        assert_runs(&mut policy, &at, requested, waits);

        let (mut policy, mut at, waits, taker) = rest_of_budget_taken();
        at.vacate(CPU);
        at.leave(taker);
        let requested = policy.on_leave(&at, taker);
        assert_runs(&mut policy, &at, requested, waits);

        let (mut policy, mut at, waits, _) = rest_of_budget_taken();
        let urgent = VcpuId::new(3, DomId::new(1), 0);
        at.join(urgent);
        at.allow(urgent, CpuSet::one(CPU));
        policy.admit(&at, urgent, &share(None)).unwrap();
        at.set_awake(urgent, true);
        policy.on_wake(&at, urgent);
        let requested = policy.prepare_pick(&at, CPU);
        assert!(matches!(policy.pick(&at, CPU), Pick::Run { vcpu, .. } if vcpu == urgent));
        assert_runs(&mut policy, &at, requested, waits);
    }
}
