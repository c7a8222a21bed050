//! Distribution of whole credits to every active vCPU, at every third tick of CPU 0 (section 7.3 of
//! the reference on Credit).

use alloc::vec::Vec;

use crate::Moment;
use crate::policies::credit::Credit;

use super::sharing::{ActiveDomain, Pool, Sharing, div_up};

impl Credit {
    /// Distributes a period's credits, one VM after the other, and updates the class and credit
    /// limits of their vCPUs.
    #[inline(never)]
    pub(in crate::policies::credit) fn give_counted(&mut self, at: &Moment) {
        let weight = self.domains.weight;
        if weight == 0 {
            self.balance = 0;
            return;
        }
        let credit = self.rules.credit;
        let period = self.rules.period / credit;
        let cpus = i64::try_from(self.cpus.len()).expect("a host has few CPUs");
        let mut sharing = Sharing::new(Pool { period, cpus, weight, balance: self.balance });
        let mut balance = 0;
        let list = core::mem::take(&mut self.domains.list);
        let (mut firsts, mut others) = (Vec::new(), Vec::new());
        for &row in list.iter().rev() {
            let domain = &self.domains[row];
            let cap = domain.cap.map(|cap| div_up(period, i64::from(cap.ppm()), 1_000_000));
            let active = domain.active;
            let grant =
                sharing.grant(ActiveDomain { weight: i64::from(domain.weight.get()), active, cap });
            (if grant.comes_first { &mut firsts } else { &mut others }).push(row);
            let allowed = cap.map(|cap| div_up(cap, 1, active) * credit);
            // Newest first: closing an account removes at most this vCPU, so no index still to come
            // changes.
            for index in (0..self.domains[row].active_vcpus.len()).rev() {
                let vcpu = self.domains[row].active_vcpus[index];
                self.vcpus[vcpu].credit += grant.each * credit;
                balance += self.close_account(at, vcpu, allowed) / credit;
            }
        }
        self.balance = balance;
        // The list is stored in reverse. So the VMs that come first next time are appended, and the
        // last of them becomes the first.
        others.reverse();
        others.append(&mut firsts);
        self.domains.relist(others);
    }
}
