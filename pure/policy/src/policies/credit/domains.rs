//! Credit accounts of VMs, and the list of active VMs. An active VM receives credit at the next
//! accounting.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use slackline_units::{CpuShare, DomId, Span, Time, VcpuId, Weight};

use super::rules::{CreditRules, Park};
use super::{Vcpu, nanoseconds};

/// Credit account of a VM. Amounts are in nanoseconds of CPU time.
#[derive(Debug)]
pub(super) struct Domain {
    id: DomId,
    pub(super) weight: Weight,
    pub(super) cap: Option<CpuShare>,
    pub(super) vcpus: Vec<VcpuId>,
    /// Number of active vCPUs of the VM.
    pub(super) active: i64,
    /// Active vCPUs of the VM, in the order in which they became active.
    pub(super) active_vcpus: Vec<VcpuId>,
    /// Index of the VM in the list of active VMs.
    place: usize,
    /// CPU time that the cap leaves the VM until the next accounting, without the part in `held`. A
    /// vCPU that gets a CPU moves a part of this budget to `held`, for its timeslice.
    pub(super) budget: i64,
    /// CPU time that the vCPUs of the VM have taken from `budget` for their timeslices, and have
    /// not used yet.
    pub(super) held: i64,
    /// Part of a negative budget that comes from lower caps and not from overruns. The next
    /// accounting cancels it, because the VM used that CPU time under a higher cap.
    pub(super) cap_debt: i64,
    /// Value of `CreditLevel::level`, the credit granted per unit of weight, when this VM last
    /// received credit.
    pub(super) level: u64,
    /// True if the VM is in `Domains::spending`, because its budget is not full.
    pub(super) is_spending: bool,
    /// Time up to which the VM has received credit.
    pub(super) settled: Time,
    /// The only vCPU of the VM, if three things are true: the vCPU is active, only the VM's weight
    /// limits its credit, and budgets enforce caps. `None` otherwise.
    pub(super) plain: Option<VcpuId>,
    /// CPU time that the VM can use at most, in millionths of a CPU.
    pub(super) rate: u64,
    /// Rate of credit per unit of weight from which the VM is limited: `rate / weight`, rounded up,
    /// in 2^-20 millionths of a CPU. At this rate, the VM's weight gives it all CPU time that it
    /// can use.
    pub(super) enough: u64,
    /// Amounts that the VM contributes to the sums in `CreditLevel`.
    pub(super) counted: LevelContribution,
    /// True if the VM's cap or its number of vCPUs limits its credit, false if only its weight
    /// does.
    pub(super) is_limited: bool,
    /// True if the vCPUs of the VM run as a gang.
    pub(super) is_gang: bool,
}

/// All VMs. Each has a row number, since ids of VMs need not be dense.
#[derive(Debug, Default)]
pub(super) struct Domains {
    pub(super) rows: Vec<Domain>,
    by_id: BTreeMap<DomId, usize>,
    /// Rows without a VM, which the next VMs get.
    free: Vec<usize>,
    /// Rows of the active VMs. If `keeps_order`, in the reverse order of Xen's list: the VM that
    /// became active last is at the end.
    pub(super) list: Vec<usize>,
    /// Total weight of the active VMs.
    pub(super) weight: i64,
    /// True if budgets enforce the caps.
    has_budgets: bool,
    /// True if credit depends on the order of the list of active VMs.
    keeps_order: bool,
    /// Number of VMs whose cap is enforced by a budget. If zero, no VM needs a check of its budget.
    capped: usize,
    /// Rows of capped VMs whose budget is not full.
    pub(super) spending: Vec<usize>,
    /// Number of active vCPUs of all VMs.
    pub(super) active: i64,
}

impl core::ops::Index<usize> for Domains {
    type Output = Domain;
    fn index(&self, row: usize) -> &Domain {
        &self.rows[row]
    }
}

impl core::ops::IndexMut<usize> for Domains {
    fn index_mut(&mut self, row: usize) -> &mut Domain {
        &mut self.rows[row]
    }
}

/// Amounts that a VM contributes to the sums in `CreditLevel`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LevelContribution {
    pub(super) weight: i64,
    /// CPU time that the VM receives if it is limited, in millionths of a CPU. Zero otherwise.
    pub(super) limited: i64,
}

impl Domains {
    pub(super) fn new(rules: &CreditRules) -> Domains {
        let (has_budgets, keeps_order) = (rules.park == Park::Budget, rules.credits.is_some());
        Domains { has_budgets, keeps_order, ..Domains::default() }
    }

    /// Adds a vCPU to its VM. Returns the row of the VM.
    pub(super) fn join(&mut self, vcpu: VcpuId) -> usize {
        let row = match self.by_id.get(&vcpu.domain()) {
            Some(&row) => row,
            None => self.create(vcpu.domain()),
        };
        self.rows[row].vcpus.push(vcpu);
        row
    }

    /// Returns the row of a VM. `None` if the VM has no vCPU.
    pub(super) fn row_of(&self, id: DomId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// Creates the account of a VM without vCPUs. Returns its row.
    fn create(&mut self, id: DomId) -> usize {
        let domain = Domain {
            id,
            weight: Weight::ONE,
            cap: None,
            vcpus: Vec::new(),
            active: 0,
            active_vcpus: Vec::new(),
            place: usize::MAX,
            budget: 0,
            held: 0,
            cap_debt: 0,
            level: 0,
            settled: Time::START,
            plain: None,
            rate: 0,
            enough: 0,
            counted: LevelContribution::default(),
            is_spending: false,
            is_limited: false,
            is_gang: false,
        };
        let row = match self.free.pop() {
            Some(row) => {
                self.rows[row] = domain;
                row
            }
            None => {
                self.rows.push(domain);
                self.rows.len() - 1
            }
        };
        self.by_id.insert(id, row);
        row
    }

    /// Changes the weight and the cap of a VM.
    pub(super) fn change(&mut self, row: usize, weight: Weight, cap: Option<CpuShare>) {
        let domain = &mut self.rows[row];
        let before = core::mem::replace(&mut domain.weight, weight);
        self.capped += usize::from(self.has_budgets && cap.is_some());
        self.capped -= usize::from(self.has_budgets && domain.cap.is_some());
        domain.cap = cap;
        if domain.active > 0 {
            self.weight += i64::from(weight.get()) - i64::from(before.get());
        }
    }

    /// Removes a vCPU that is not active from its VM.
    pub(super) fn leave(&mut self, row: usize, vcpu: VcpuId) {
        let domain = &mut self.rows[row];
        domain.vcpus.retain(|&other| other != vcpu);
        if domain.vcpus.is_empty() {
            self.capped -= usize::from(self.has_budgets && domain.cap.is_some());
            self.by_id.remove(&domain.id);
            self.free.push(row);
            self.spending.retain(|&other| other != row);
        }
    }

    /// Returns true if at least one VM has a cap that a budget enforces.
    #[inline]
    pub(super) fn are_capped(&self) -> bool {
        self.capped > 0
    }

    /// Returns true if a budget enforces the cap of this VM.
    #[inline]
    pub(super) fn is_capped(&self, row: usize) -> bool {
        self.are_capped() && self.rows[row].cap.is_some()
    }

    /// Returns true if the budget of a capped VM is exhausted.
    #[inline]
    pub(super) fn is_broke(&self, row: usize) -> bool {
        self.is_capped(row) && self.rows[row].budget <= 0
    }

    /// Lowers the budget of a VM. A negative amount raises it.
    fn spend(&mut self, row: usize, used: i64) {
        let domain = &mut self.rows[row];
        domain.budget = domain.budget.saturating_sub(used);
        domain.cap_debt = domain.cap_debt.min(domain.budget.saturating_neg().max(0));
        if used != 0 {
            self.note_spending(row);
        }
    }

    /// Notes that the budget of a VM is not full, so that the next accounting replenishes it.
    pub(super) fn note_spending(&mut self, row: usize) {
        if !core::mem::replace(&mut self.rows[row].is_spending, true) {
            self.spending.push(row);
        }
    }

    /// Moves a part of a VM's budget to one of its vCPUs.
    pub(super) fn hand_out(&mut self, row: usize, part: i64) {
        let held = &mut self.rows[row].held;
        *held = held.saturating_add(part);
        self.spend(row, part);
    }

    /// Charges CPU time to the budget that a vCPU has taken from its VM. If the vCPU is not chosen
    /// for a CPU, its unused budget returns to the VM.
    pub(super) fn charge(&mut self, account: &mut Vcpu, used: i64) {
        account.held = account.held.saturating_sub(used);
        let held = &mut self.rows[account.domain].held;
        *held = held.saturating_sub(used);
        if account.on.is_none() {
            let owed = core::mem::take(&mut account.held);
            self.give_back(account.domain, owed);
        }
    }

    /// Gives the unused budget of a vCPU, which ran for `ran`, back to its VM. The vCPU keeps
    /// enough budget to pay for CPU time that was used but is not charged yet.
    pub(super) fn take_back(&mut self, account: &mut Vcpu, ran: Span) {
        let owes = nanoseconds(ran.left_after(account.paid)).clamp(0, account.held.max(0));
        let unused = core::mem::replace(&mut account.held, owes) - owes;
        self.give_back(account.domain, unused);
    }

    /// Gives a part of the budget back from a vCPU to its VM. A negative part is an overrun, which
    /// lowers the VM's budget.
    pub(super) fn give_back(&mut self, row: usize, part: i64) {
        let held = &mut self.rows[row].held;
        *held = held.saturating_sub(part);
        self.spend(row, -part);
    }

    /// Makes a vCPU active. With its first active vCPU, a VM enters the list of active VMs. The VM
    /// is appended, because the list is stored in reverse: its end is the front of Xen's list.
    pub(super) fn activate(&mut self, row: usize, vcpu: VcpuId) {
        self.active += 1;
        let domain = &mut self.rows[row];
        domain.active += 1;
        domain.active_vcpus.push(vcpu);
        if domain.active == 1 {
            self.weight += i64::from(domain.weight.get());
            domain.place = self.list.len();
            self.list.push(row);
        }
    }

    /// Makes a vCPU inactive. With its last active vCPU, a VM leaves the list of active VMs.
    pub(super) fn deactivate(&mut self, row: usize, vcpu: VcpuId) {
        self.active -= 1;
        let domain = &mut self.rows[row];
        domain.active -= 1;
        domain.active_vcpus.retain(|&other| other != vcpu);
        if domain.active > 0 {
            return;
        }
        self.weight -= i64::from(domain.weight.get());
        let place = domain.place;
        // During an accounting the list is empty, and the accounting restores it with `relist`.
        if self.list.get(place) != Some(&row) {
            return;
        }
        if self.keeps_order {
            let list = core::mem::take(&mut self.list);
            return self.relist(list);
        }
        self.list.swap_remove(place);
        if let Some(&moved) = self.list.get(place) {
            self.rows[moved].place = place;
        }
    }

    /// Restores the list of active VMs from `list`, without VMs that are no longer active.
    pub(super) fn relist(&mut self, mut list: Vec<usize>) {
        list.retain(|&row| self.rows[row].active > 0);
        for (place, &row) in list.iter().enumerate() {
            self.rows[row].place = place;
        }
        self.list = list;
    }

    /// Returns the CPU time that the VM's cap allows in `span`. `None` if the VM has no cap.
    pub(super) fn allowance(&self, row: usize, span: Span) -> Option<i64> {
        let cap = self.rows[row].cap?;
        let amount = u128::from(cap.ppm()) * u128::from(span.ns()) / 1_000_000;
        Some(i64::try_from(amount).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Step of the test for one of four VMs: a vCPU becomes active or inactive, or the weight
    /// changes.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Activate(usize),
        Deactivate(usize),
        Weigh(usize, u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        let row = 0usize..4;
        prop_oneof![
            row.clone().prop_map(Step::Activate),
            row.clone().prop_map(Step::Deactivate),
            (row, 1u16..1_000).prop_map(|(row, weight)| Step::Weigh(row, weight)),
        ]
    }

    /// Returns a vCPU of the VM in row `row`.
    fn of_row(row: usize, number: u16) -> VcpuId {
        VcpuId::new(0, DomId::new(u32::try_from(row).expect("the test has four rows")), number)
    }

    proptest! {
        /// Sums and list equal the sums and the list of a recount. A VM with an active vCPU counts
        /// once, with its weight, and its index in the list is right.
        #[test]
        fn active_domain_totals_under_credit_always_equal_a_recount(
            steps in prop::collection::vec(step(), 1..60),
            keeps_order in any::<bool>(),
        ) {
            let mut domains = Domains { keeps_order, ..Domains::default() };
            let vcpu = |row| of_row(row, 0);
            for row in 0..4 {
                domains.join(vcpu(row));
            }
            let (mut active, mut weights) = ([0i64; 4], [1i64; 4]);
            for step in steps {
                match step {
                    Step::Activate(row) => {
                        active[row] += 1;
                        domains.activate(row, vcpu(row));
                    }
                    Step::Deactivate(row) if active[row] > 0 => {
                        active[row] -= 1;
                        domains.deactivate(row, vcpu(row));
                    }
                    Step::Deactivate(_) => {}
                    Step::Weigh(row, weight) => {
                        weights[row] = i64::from(weight);
                        domains.change(row, Weight::new(weight).unwrap(), None);
                    }
                }
                let counts = |row: &usize| active[*row] > 0;
                let weight: i64 = (0..4).filter(counts).map(|row| weights[row]).sum();
                prop_assert_eq!(domains.weight, weight);
                prop_assert_eq!(domains.active, active.iter().sum::<i64>());
                let mut listed = domains.list.clone();
                listed.sort_unstable();
                prop_assert_eq!(listed, (0..4).filter(counts).collect::<Vec<_>>());
                for (place, &row) in domains.list.iter().enumerate() {
                    prop_assert_eq!(domains[row].place, place);
                }
            }
        }
    }

    /// A VM that becomes active goes to the front of Xen's list, which is stored in reverse. A VM
    /// that becomes inactive leaves the order of the other VMs unchanged.
    #[test]
    fn credit_keeps_active_domains_and_vcpus_in_order_of_activation() {
        let mut domains = Domains { keeps_order: true, ..Domains::default() };
        for row in 0..3 {
            domains.join(of_row(row, 0));
            domains.activate(row, of_row(row, 0));
        }
        domains.activate(1, of_row(1, 1));
        domains.deactivate(0, of_row(0, 0));
        assert_eq!(domains.list, [1, 2], "newest last");
        assert_eq!(domains[1].active_vcpus, [of_row(1, 0), of_row(1, 1)], "newest last");
        domains.deactivate(1, of_row(1, 0));
        domains.activate(1, of_row(1, 0));
        assert_eq!(domains[1].active_vcpus, [of_row(1, 1), of_row(1, 0)], "newest last");
    }

    /// A VM keeps its row while it has a vCPU. The next VM in a free row starts with a new account.
    #[test]
    fn credit_account_of_a_domain_ends_when_last_vcpu_leaves() {
        let mut domains = Domains { has_budgets: true, ..Domains::default() };
        let vcpu = |domain, number| VcpuId::new(0, DomId::new(domain), number);
        let row = domains.join(vcpu(5, 0));
        assert_eq!(domains.join(vcpu(5, 1)), row);
        let cap = CpuShare::from_ppm(500_000);
        domains.change(row, Weight::ONE, Some(cap));
        domains.hand_out(row, 7);
        assert!(domains.is_capped(row) && domains.spending == [row]);
        domains.leave(row, vcpu(5, 0));
        assert_eq!((domains.row_of(DomId::new(5)), domains.are_capped()), (Some(row), true));
        domains.leave(row, vcpu(5, 1));
        assert_eq!((domains.row_of(DomId::new(5)), domains.are_capped()), (None, false));
        assert!(domains.spending.is_empty());
        assert_eq!(domains.join(vcpu(6, 0)), row);
        let Domain { cap, budget, held, .. } = &domains[row];
        assert_eq!((*cap, *budget, *held, domains.row_of(DomId::new(6))), (None, 0, 0, Some(row)));
        assert_ne!(domains.join(vcpu(7, 0)), row);
    }
}
