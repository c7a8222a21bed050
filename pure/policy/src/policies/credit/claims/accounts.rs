//! Limit of the CPU time for which a VM may run before others by its claims. This time is called
//! *time ahead*. It is a fixed fraction of the VM's own share, so a VM that exaggerates its claims
//! uses up the time ahead that it needs later.
//!
//! The *level* is the time ahead that was granted per unit of weight since the start. A settlement
//! grants a VM `weight × (level now − level at its last settlement)`. An accounting settles only
//! the VMs that have no time ahead left.

use alloc::vec::Vec;

use slackline_units::{Span, VcpuId, Weight};

use super::{ClaimLimit, Claims, VmReports};
use crate::policies::credit::nanoseconds;

/// Number of fractional bits of `ClaimBudget::level`, which counts nanoseconds per unit of weight.
const PLACES: u32 = 20;

/// Account of the CPU time for which VMs may precede others by their urgency claims (*time ahead*).
#[derive(Debug, Default)]
pub(super) struct ClaimBudget {
    /// CPU time for running before others that has been granted per unit of weight since the start,
    /// in 2^-20 ns.
    pub(super) level: u128,
    /// Total weight of all VMs.
    weight: u64,
    /// Rows of the VMs that have used up the CPU time for which they may run before others.
    spent: Vec<usize>,
}

impl VmReports {
    /// Returns the CPU time for which the VM may still run before others, in nanoseconds, at most
    /// `depth`. `level` is the present value of `ClaimBudget::level`.
    fn left_at(&self, level: u128, ClaimLimit { depth, .. }: ClaimLimit) -> i64 {
        let weight = self.weight.map_or(0, |weight| u128::from(weight.get()));
        let given = ((level - self.level) * weight) >> PLACES;
        let given = i64::try_from(given).unwrap_or(i64::MAX);
        self.left.saturating_add(given).min(nanoseconds(depth))
    }

    /// Adds the time for running before others that was granted since the last call. `level` is the
    /// present value of `ClaimBudget::level`.
    fn settle(&mut self, level: u128, bound: ClaimLimit) {
        self.left = self.left_at(level, bound);
        self.level = level;
    }
}

impl Claims {
    /// Sets the weight of a VM. Time for preceding others is granted by the new weight from now on.
    pub(in crate::policies::credit) fn set_weight(&mut self, domain: usize, weight: Weight) {
        let Some(bound) = self.belief.bound else { return };
        let household = &mut self.domains[domain];
        household.settle(self.room.level, bound);
        let before = household.weight.replace(weight).map_or(0, |weight| u64::from(weight.get()));
        self.room.weight = self.room.weight + u64::from(weight.get()) - before;
    }

    /// Removes a VM and its weight.
    pub(super) fn forget(&mut self, domain: usize) {
        let weight = self.domains[domain].weight.take();
        self.room.weight -= weight.map_or(0, |weight| u64::from(weight.get()));
        self.room.spent.retain(|&other| other != domain);
    }

    /// Prevents a VM from running before others until an accounting grants it time for that again.
    /// Does nothing if this time is not limited.
    pub(super) fn spend_all(&mut self, domain: usize) {
        if self.belief.bound.is_some() {
            self.domains[domain].is_spent = true;
            self.room.spent.push(domain);
        }
    }

    /// Charges the VM of a vCPU for a run in which the vCPU preceded others by its urgency claim.
    /// Returns the row of the VM if the run used up its CPU time for that. `None` otherwise.
    #[inline]
    pub(super) fn spend(&mut self, vcpu: VcpuId, ran: Span) -> Option<usize> {
        let bound = self.belief.bound?;
        let claimant = &self.vcpus[vcpu];
        claimant.ahead?;
        let domain = claimant.domain;
        let household = &mut self.domains[domain];
        household.settle(self.room.level, bound);
        household.left = household.left.saturating_sub(nanoseconds(ran));
        if household.left > 0 || household.is_spent {
            return None;
        }
        self.spend_all(domain);
        Some(domain)
    }

    /// Returns the CPU time for which a vCPU may precede others by its urgency claim. `None` if
    /// there is no limit.
    pub(super) fn left(&self, vcpu: VcpuId) -> Option<Span> {
        let bound = self.belief.bound?;
        let left = self.domains[self.vcpus[vcpu].domain].left_at(self.room.level, bound);
        Some(Span::from_ns(left.max(0).unsigned_abs()))
    }

    /// Grants all VMs CPU time for which they may run before others by their urgency claims. In
    /// total this is `cap × cpus × span`, divided among the VMs by weight. Returns the rows of the
    /// VMs that had no such time left and have some again.
    pub(super) fn renew(&mut self, cpus: usize, span: Span) -> Vec<usize> {
        let Some(bound) = self.belief.bound else { return Vec::new() };
        if self.room.weight > 0 {
            let time = u128::from(span.ns()) * cpus as u128;
            let all = (time * u128::from(bound.cap.ppm())) << PLACES;
            self.room.level += all / (1_000_000 * u128::from(self.room.weight));
        }
        let spent = core::mem::take(&mut self.room.spent);
        let (again, spent) = spent.into_iter().partition(|&domain| {
            let household = &mut self.domains[domain];
            household.settle(self.room.level, bound);
            household.is_spent = household.left <= 0;
            !household.is_spent
        });
        self.room.spent = spent;
        again
    }
}

#[cfg(test)]
mod tests {
    use slackline_units::{CpuShare, DomId};

    use super::*;
    use crate::policies::credit::claims::{
        ClaimEnd, ClaimRules, ClaimSource, ClaimTasks, RequeuePosition, TaskMatching,
    };
    use crate::policies::credit::order::{Claim, ClaimScope};

    /// Creates five VMs of equal weight. Each may precede others for 25 % of its share and saves up
    /// at most 10 ms of this time.
    fn five() -> (Claims, Vec<VcpuId>) {
        let bound = ClaimLimit { cap: CpuShare::from_ppm(250_000), depth: Span::from_ms(10) };
        let mut claims = Claims::new(ClaimRules {
            tell: ClaimSource::Guest,
            considers: ClaimTasks::All,
            matching: TaskMatching::List,
            list: 5,
            list_time: Span::from_secs(1),
            bound: Some(bound),
            ends: ClaimEnd::Claim,
            place: RequeuePosition::Kept,
            among: ClaimScope::All,
        });
        let vcpu = |slot: u32| VcpuId::new(slot, DomId::new(slot), 0);
        let vcpus: Vec<VcpuId> = (0..5).map(vcpu).collect();
        for (domain, &vcpu) in vcpus.iter().enumerate() {
            claims.join(vcpu, domain);
            claims.set_weight(domain, Weight::new(256).unwrap());
        }
        (claims, vcpus)
    }

    const PERIOD: Span = Span::from_ms(30);

    /// Example of the reference on GAPS, section 7.4. Each of five VMs may precede others for 1500
    /// us in a period, and saves up at most 10 ms of this time.
    #[test]
    fn boost_allowance_under_gaps_accumulates_to_at_most_10_ms() {
        let (mut claims, vcpus) = five();
        assert_eq!(claims.left(vcpus[0]), Some(Span::ZERO));
        assert!(claims.domains[0].is_spent);
        assert_eq!(claims.renew(1, PERIOD), [0, 1, 2, 3, 4]);
        for period in 1..=7 {
            let saved = Span::from_us(1_500 * period).min(Span::from_ms(10));
            assert_eq!(claims.left(vcpus[3]), Some(saved), "{period}");
            assert_eq!(claims.renew(1, PERIOD), []);
        }
    }

    /// A request takes 60 us of CPU time. So the time in which a VM may precede others suffices for
    /// 25 requests in a period.
    #[test]
    fn boost_allowance_under_gaps_covers_25_requests_of_60_us() {
        let (mut claims, vcpus) = five();
        for _ in 0..3 {
            assert!(claims.renew(1, PERIOD).contains(&2));
            claims.begin(vcpus[2], Some(Claim::HIGHEST));
            for _ in 0..24 {
                assert_eq!(claims.spend(vcpus[2], Span::from_us(60)), None);
            }
            assert_eq!(claims.spend(vcpus[2], Span::from_us(60)), Some(2));
            assert_eq!(claims.left(vcpus[2]), Some(Span::ZERO));
        }
        // A run in the order of the queue is not charged, and other VMs are not charged either.
        claims.begin(vcpus[2], None);
        claims.spend(vcpus[2], Span::from_ms(5));
        claims.renew(1, PERIOD);
        assert_eq!(claims.left(vcpus[2]), Some(Span::from_us(1_500)));
        assert_eq!(claims.left(vcpus[1]), Some(Span::from_us(6_000)));
    }

    #[test]
    fn boost_allowance_under_gaps_is_redivided_when_a_vm_leaves() {
        let (mut claims, vcpus) = five();
        claims.set_weight(0, Weight::new(4 * 256).unwrap());
        claims.renew(2, PERIOD);
        // 15 ms on two CPUs are divided 4 : 1 : 1 : 1 : 1.
        assert_eq!(claims.left(vcpus[0]), Some(Span::from_us(7_500)));
        assert_eq!(claims.left(vcpus[4]), Some(Span::from_us(1_875)));
        claims.leave(vcpus[0]);
        claims.renew(1, PERIOD);
        // 7.5 ms are divided by four.
        assert_eq!(claims.left(vcpus[4]), Some(Span::from_us(2 * 1_875)));
        // A VM that joins in the same row starts with nothing.
        claims.join(vcpus[0], 0);
        claims.set_weight(0, Weight::new(256).unwrap());
        assert_eq!(claims.left(vcpus[0]), Some(Span::ZERO));
        assert_eq!(claims.renew(1, PERIOD), [0]);
    }

    /// The boost allowance is the CPU time for which a VM may precede others by urgency claims. Of
    /// five VMs, the four that stayed are granted a new allowance.
    #[test]
    fn departed_vm_gets_no_boost_allowance_under_policy_gaps() {
        let (mut claims, vcpus) = five();
        claims.leave(vcpus[3]);
        assert_eq!(claims.renew(1, PERIOD), [0, 1, 2, 4]);
    }
}
