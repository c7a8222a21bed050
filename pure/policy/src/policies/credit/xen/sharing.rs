//! Distribution of a period's credits as in Xen (section 7.3 of the reference on Credit). VMs get
//! credits one after the other, by weight, and no VM gets more than it can use. Credits that a VM
//! cannot use go to the VMs after it. All division rounds up. Amounts are in credits.

/// Credits to distribute to all active VMs at one accounting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    /// Credits that one CPU adds in a period.
    pub(super) period: i64,
    pub(super) cpus: i64,
    /// Total weight of all active VMs.
    pub(super) weight: i64,
    /// Credit that all active vCPUs had left after the last accounting.
    pub(super) balance: i64,
}

/// Properties of an active VM that decide its credits.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActiveDomain {
    pub(super) weight: i64,
    /// Number of active vCPUs of the VM.
    pub(super) active: i64,
    /// Credits that the cap allows in a period. `None` if the VM has no cap.
    pub(super) cap: Option<i64>,
}

/// Credits that one VM gets at an accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// Credits for each active vCPU.
    pub(super) each: i64,
    /// True if the VM comes first at the next accounting: it left credits that VMs before it could
    /// have used.
    pub(super) comes_first: bool,
}

/// State of the distribution of credits at one accounting.
pub(super) struct Sharing {
    pool: Pool,
    /// Credits to divide by weight, including those that earlier VMs could not use.
    credit: i64,
    /// Total weight of the VMs that have no grant yet.
    weight_to_come: i64,
    /// True if a VM with a grant could use more credits than it got.
    somebody_wants_more: bool,
}

impl Sharing {
    pub(super) fn new(pool: Pool) -> Sharing {
        let credit = pool.period * pool.cpus - pool.balance.min(0);
        Sharing { pool, credit, weight_to_come: pool.weight, somebody_wants_more: false }
    }

    /// Returns the credits of the next VM in the list.
    pub(super) fn grant(&mut self, domain: ActiveDomain) -> Grant {
        let Pool { period, weight, balance, .. } = self.pool;
        self.weight_to_come -= domain.weight;
        let mut peak = domain.active * period;
        if balance < 0 {
            peak += div_up(-balance, domain.weight, weight);
        }
        if let Some(cap) = domain.cap {
            peak = peak.min(cap);
        }
        let fair = div_up(self.credit, domain.weight, weight);
        let wants_more = fair < peak;
        if !wants_more && self.weight_to_come > 0 {
            self.credit += div_up(fair - peak, weight, self.weight_to_come);
        }
        let comes_first = !wants_more && self.somebody_wants_more;
        self.somebody_wants_more |= wants_more;
        let each = div_up(fair.min(peak), 1, domain.active);
        Grant { each, comes_first }
    }
}

/// Returns `amount * times / parts`, rounded up. The amount must not be negative.
pub(super) fn div_up(amount: i64, times: i64, parts: i64) -> i64 {
    let whole = i128::from(amount) * i128::from(times);
    let parts = i128::from(parts);
    // Only an extreme excess exceeds 64 bits, and no VM can take more of it than its peak.
    i64::try_from((whole + parts - 1) / parts).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Runs one accounting, and moves the VMs that come first next time to the front of the list.
    fn account(pool: Pool, list: &mut Vec<(char, ActiveDomain)>) -> Vec<(char, i64)> {
        let mut sharing = Sharing::new(pool);
        let grants: Vec<_> = list.iter().map(|&(_, domain)| sharing.grant(domain)).collect();
        let mut each: Vec<_> = list.iter().zip(&grants).map(|(row, g)| (row.0, g.each)).collect();
        each.sort_unstable();
        for (index, grant) in grants.iter().enumerate() {
            if grant.comes_first {
                let row = list.remove(index);
                list.insert(0, row);
            }
        }
        each
    }

    fn domain(weight: i64, active: i64, cap: Option<i64>) -> ActiveDomain {
        ActiveDomain { weight, active, cap }
    }

    /// Table of the reference on Credit, section 13.1.
    #[test]
    fn xen_credit_of_three_domains_equals_the_reference_table() {
        for (period, balance, cap, first, second) in [
            (300, 0, 120, [150, 150, 120], [160, 160, 120]),
            (30, 0, 12, [15, 15, 12], [16, 16, 12]),
            (300, -200, 120, [200, 200, 120], [227, 227, 120]),
        ] {
            let pool = Pool { period, cpus: 2, weight: 1024, balance };
            let mut list = alloc::vec![
                ('A', domain(256, 1, None)),
                ('B', domain(512, 2, None)),
                ('C', domain(256, 1, Some(cap))),
            ];
            for granted in [first, second] {
                let [a, b, c] = granted;
                assert_eq!(account(pool, &mut list), [('A', a), ('B', b), ('C', c)]);
                let names: Vec<char> = list.iter().map(|row| row.0).collect();
                assert_eq!(names, ['C', 'A', 'B']);
            }
        }
    }

    #[test]
    fn division_rounded_up_saturates_if_the_result_overflows() {
        assert_eq!([div_up(7, 3, 4), div_up(8, 3, 4), div_up(0, 3, 4)], [6, 6, 0]);
        assert!(div_up(i64::MAX, 2, 1) > i64::MAX / 8);
    }

    /// A cap is a whole percentage of a period's credits, rounded up (section 7.8 of the reference
    /// on Credit).
    #[test]
    fn xen_credit_rounds_caps_up_to_whole_credits_per_period() {
        let millionths = [
            (&[1, 2, 3][..], 33_334),
            (&[4, 5, 6], 66_667),
            (&[7, 8, 9, 10], 100_000),
            (&[11, 12, 13], 133_334),
            (&[15], 166_667),
            (&[20], 200_000),
            (&[25], 266_667),
            (&[30], 300_000),
            (&[50], 500_000),
            (&[75], 766_667),
            (&[90], 900_000),
        ];
        for (percents, granted) in millionths {
            for &percent in percents {
                let credits = div_up(30, percent * 10_000, 1_000_000);
                assert_eq!(div_up(credits, 1_000_000, 30), granted, "{percent} %");
            }
        }
        for percent in 1..=100 {
            assert_eq!(div_up(300, percent * 10_000, 1_000_000), 3 * percent);
        }
    }
}
