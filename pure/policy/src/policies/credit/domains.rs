//! The domains, and which of them are active: given credit at the next accounting.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use slackline_units::{CpuShare, DomId, Span, Time, VcpuId, Weight};

use super::rules::{Park, Rules};
use super::{Vcpu, nanoseconds};

/// A domain's account. Amounts are nanoseconds of CPU time.
#[derive(Debug)]
pub(super) struct Domain {
    id: DomId,
    pub(super) weight: Weight,
    pub(super) cap: Option<CpuShare>,
    pub(super) vcpus: Vec<VcpuId>,
    /// How many of its vCPUs are active.
    pub(super) active: i64,
    /// The active ones, newest last.
    pub(super) active_vcpus: Vec<VcpuId>,
    /// Its place in the list of active domains.
    place: usize,
    /// What it may use before the next accounting and has not handed out to a vCPU.
    pub(super) budget: i64,
    /// What its vCPUs hold of that.
    pub(super) held: i64,
    /// Up to where it has been given its part of the level.
    pub(super) level: u64,
    /// Whether it has used any of what its cap allows, and not been given all of it back.
    pub(super) is_spending: bool,
    /// When it was given credit last.
    pub(super) settled: Time,
    /// Its vCPU, where it is the only one, is active, and only the weight bounds what it is given.
    pub(super) plain: Option<VcpuId>,
    /// What it can use, in millionths of a CPU.
    pub(super) rate: u64,
    /// At this pace of the level it is limited.
    pub(super) enough: u64,
    /// What it counts for in the sums of the level.
    pub(super) counted: Counted,
    /// Whether its cap or the number of its vCPUs bounds what it is given, not its weight.
    pub(super) is_limited: bool,
    /// Whether its vCPUs run together.
    pub(super) is_gang: bool,
}

/// All domains, by a row of their own, for ids need not be dense.
#[derive(Debug, Default)]
pub(super) struct Domains {
    pub(super) rows: Vec<Domain>,
    by_id: BTreeMap<DomId, usize>,
    free: Vec<usize>,
    /// The active ones, last first.
    pub(super) list: Vec<usize>,
    /// Of all active domains.
    pub(super) weight: i64,
    /// Whether budgets hold vCPUs to their caps.
    has_budgets: bool,
    /// True if the order of the list decides who is given how much.
    keeps_order: bool,
    /// How many are held by a budget. Mostly none is, and then no domain needs to be looked at.
    capped: usize,
    /// The capped domains that are spending.
    pub(super) spending: Vec<usize>,
    /// Active vCPUs of all domains.
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

/// What a domain counts for in the sums of the level.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) weight: i64,
    pub(super) limited: i64,
}

impl Domains {
    pub(super) fn new(rules: &Rules) -> Domains {
        let (has_budgets, keeps_order) = (rules.park == Park::Budget, rules.credits.is_some());
        Domains { has_budgets, keeps_order, ..Domains::default() }
    }

    /// A vCPU joins its domain.
    pub(super) fn join(&mut self, vcpu: VcpuId) -> usize {
        let row = match self.by_id.get(&vcpu.domain()) {
            Some(&row) => row,
            None => self.create(vcpu.domain()),
        };
        self.rows[row].vcpus.push(vcpu);
        row
    }

    /// The row of a domain that is there.
    pub(super) fn row_of(&self, id: DomId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

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
            level: 0,
            settled: Time::START,
            plain: None,
            rate: 0,
            enough: 0,
            counted: Counted::default(),
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

    /// A vCPU that is not active leaves its domain.
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

    /// Whether budgets hold any domains.
    #[inline]
    pub(super) fn are_capped(&self) -> bool {
        self.capped > 0
    }

    /// Whether a budget holds a domain.
    #[inline]
    pub(super) fn is_capped(&self, row: usize) -> bool {
        self.are_capped() && self.rows[row].cap.is_some()
    }

    /// Whether a domain has nothing left under its cap.
    #[inline]
    pub(super) fn is_broke(&self, row: usize) -> bool {
        self.is_capped(row) && self.rows[row].budget <= 0
    }

    /// A domain's budget becomes less.
    fn spend(&mut self, row: usize, used: i64) {
        let domain = &mut self.rows[row];
        domain.budget = domain.budget.saturating_sub(used);
        if used != 0 && !core::mem::replace(&mut domain.is_spending, true) {
            self.spending.push(row);
        }
    }

    /// A vCPU is handed a part of its domain's budget.
    pub(super) fn hand_out(&mut self, row: usize, part: i64) {
        let held = &mut self.rows[row].held;
        *held = held.saturating_add(part);
        self.spend(row, part);
    }

    /// A vCPU uses some of what it holds. Off its CPU it holds nothing.
    pub(super) fn charge(&mut self, account: &mut Vcpu, used: i64) {
        account.held = account.held.saturating_sub(used);
        let held = &mut self.rows[account.domain].held;
        *held = held.saturating_sub(used);
        if account.on.is_none() {
            let owed = core::mem::take(&mut account.held);
            self.give_back(account.domain, owed);
        }
    }

    /// A vCPU that ran for so long gives back what it has not used; what it has used and not been
    /// charged for yet it still holds.
    pub(super) fn take_back(&mut self, account: &mut Vcpu, ran: Span) {
        let owes = nanoseconds(ran.left_after(account.paid)).clamp(0, account.held.max(0));
        let unused = core::mem::replace(&mut account.held, owes) - owes;
        self.give_back(account.domain, unused);
    }

    /// A vCPU gives back what it has not used, or owes what it has used beyond.
    pub(super) fn give_back(&mut self, row: usize, part: i64) {
        let held = &mut self.rows[row].held;
        *held = held.saturating_sub(part);
        self.spend(row, -part);
    }

    /// A vCPU of a domain becomes active; the first puts the domain at the front of the list.
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

    /// A vCPU of a domain is active no longer; the last takes the domain from the list.
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
        // While the list is walked it is out of reach, and who walks it puts it in order.
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

    /// Puts the list back, last first, without those that are no longer active.
    pub(super) fn relist(&mut self, mut list: Vec<usize>) {
        list.retain(|&row| self.rows[row].active > 0);
        for (place, &row) in list.iter().enumerate() {
            self.rows[row].place = place;
        }
        self.list = list;
    }

    /// What a domain's cap lets it use in so much time.
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

    /// What happens to one of four domains: a vCPU of it becomes active or stops being so, or its
    /// weight changes.
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

    /// The vCPU with a number of the domain in a row.
    fn of_row(row: usize, number: u16) -> VcpuId {
        VcpuId::new(0, DomId::new(u32::try_from(row).expect("a few")), number)
    }

    proptest! {
        /// The sums and the list are those of a recount: a domain counts with its weight while any
        /// of its vCPUs is active, once, and knows its place.
        #[test]
        fn the_sums_are_those_of_a_recount(
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

    /// As in Xen's linked lists: who becomes active goes to the front, and who leaves moves nobody.
    #[test]
    fn active_domains_and_vcpus_are_listed_newest_first() {
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

    /// A row that was left is taken by the next domain, which has nothing of the one before; while
    /// one vCPU is left it is the same domain.
    #[test]
    fn a_domain_is_there_from_its_first_vcpu_to_its_last() {
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
