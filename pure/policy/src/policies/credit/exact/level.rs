//! Distribution of credit without rounding, at a cost that does not grow with the number of vCPUs.
//!
//! The *level* is the credit that a unit of weight has received since the start. A visit gives a VM
//! `weight × (level now − level at its last visit)`. So it does not matter how often a VM is
//! visited, and an accounting visits only some of the VMs. The cap or the number of vCPUs of a VM
//! may prevent it from using all credit that its weight gives. Such a VM is *limited*: it receives
//! the CPU time that it can use, and the level rises faster for the others. The *pace* is the rate
//! at which the level rises.
//!
//! A VM counts as limited if, at the present pace, its weight gives it all CPU time that it can
//! use, or more. The pace follows from the limited VMs known so far. The last rise of the level is
//! not used for this decision, since it can contain credit that other VMs could not keep. The pace
//! is highest when exactly the right VMs are limited: each VM that is missing or limited wrongly
//! lowers the pace. So no VM is limited wrongly for long. VMs that can use the least CPU time per
//! weight are found first. All limited VMs are found when each of the *n* VMs has been visited *n*
//! times.

use slackline_units::{Span, Time, VcpuId};

use crate::Moment;

use crate::policies::credit::domains::{Domain, LevelContribution};
use crate::policies::credit::rules::Park;
use crate::policies::credit::runqueue::Class;
use crate::policies::credit::{Credit, Vcpu, nanoseconds};

/// Number of vCPUs that receive credit at one accounting, for each CPU of the host. If more vCPUs
/// are active, each receives credit once in `active / (8 * CPUs)` periods. In that time three
/// eighths of the active vCPUs can run for a tick each. With four in place of eight, VMs beside a
/// VM of great weight waited up to 1.5 times as long.
const VISITS: usize = 8;

/// Number of fractional bits of the level (in nanoseconds) and of the pace at which it rises (in
/// millionths of a CPU). Both are per unit of weight.
const PLACES: u32 = 20;

/// Largest rise of the credit level at one accounting: 2.4 hours of CPU time for each unit of
/// weight, far more than any credit that a vCPU may keep. The level itself wraps. A VM that
/// receives credit often enough can still compute the rise since it last received credit.
const HIGHEST_RISE: u64 = 1 << 63;

/// Highest rate at which the credit per unit of weight rises: 268 CPUs for each unit of weight. No
/// VM can use more. Multiplied by any weight, this rate still fits in 64 bits.
const HIGHEST_PACE: u64 = u64::MAX >> u16::BITS;

/// One CPU, in millionths.
const CPU: i64 = 1_000_000;

/// State of the distribution of credit without rounding.
#[derive(Debug, Default)]
pub(in crate::policies::credit) struct CreditLevel {
    /// Credit granted for each unit of weight since the start, in 2^-20 ns. The value wraps, since
    /// only its rise since a VM last received credit counts.
    level: u64,
    /// Time of the last accounting.
    at: Time,
    /// Total weight of active VMs that are not limited.
    weight: i64,
    /// CPU time that the limited VMs receive, in millionths of a CPU.
    limited: i64,
    /// Credit to carry over to the next accounting, in nanoseconds: credit that blocked vCPUs and
    /// limited VMs could not keep, plus rounding losses, minus credit given in excess.
    carry: i64,
    /// Rise of the credit level at the last accounting. The level is the credit granted per unit of
    /// weight.
    rise: Rise,
    /// Index, in the list of active VMs, of the VM that receives credit next.
    cursor: usize,
}

/// Rise of the credit level at one accounting.
#[derive(Clone, Copy, Debug, Default)]
struct Rise {
    /// Amount by which the level rises, in 2^-20 ns.
    by: u64,
    /// Rate at which the level rises: CPU time for each unit of weight, in 2^-20 millionths of a
    /// CPU.
    pace: u64,
    /// Credit left for the next accounting, in nanoseconds.
    carry: i64,
    /// Inputs from which the rise was computed.
    cause: RiseInputs,
}

/// Inputs from which a rise of the level is computed. If they are the same as at the previous
/// accounting, as they mostly are, so is the rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RiseInputs {
    /// CPU time that the limited VMs leave to the others, in millionths of a CPU.
    left: i64,
    /// Time since the last accounting.
    span: Span,
    carry: i64,
    /// Total weight of the VMs that are not limited.
    weight: i64,
}

impl Rise {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Clamped before.
    fn new(cause: RiseInputs) -> Rise {
        let RiseInputs { left, span, carry, weight } = cause;
        let spread = i128::from(left) * i128::from(span.ns()) / i128::from(CPU);
        let rest = (spread + i128::from(carry)).clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        // Credit given in excess is deducted from all VMs. Credit that no VM can use is forfeited.
        let carry = rest.min(0) as i64;
        if weight == 0 {
            let pace = if left >= 0 { HIGHEST_PACE } else { 0 };
            return Rise { by: 0, pace, carry, cause };
        }
        let all = rest.max(0) << PLACES;
        let by = (all / i128::from(weight)).min(i128::from(HIGHEST_RISE)) as u64;
        let lost = (all % i128::from(weight)) >> PLACES;
        let pace = (left.max(0).unsigned_abs() << PLACES) / weight.unsigned_abs();
        Rise { by, pace, carry: carry + lost as i64, cause }
    }
}

impl CreditLevel {
    /// Returns the credit that a VM's weight gives it for the time since the VM last received
    /// credit.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // A weight has 16 bits.
    fn given(&self, domain: &Domain) -> u64 {
        let risen = self.level.wrapping_sub(domain.level);
        ((u128::from(risen) * u128::from(domain.weight.get())) >> PLACES) as u64
    }

    /// Grants a VM the credit due since it last received credit. Returns the credit for each active
    /// vCPU.
    fn grant(&mut self, domain: &mut Domain) -> i64 {
        let by_weight = self.given(domain).cast_signed();
        domain.level = self.level;
        let span = self.at.since(core::mem::replace(&mut domain.settled, self.at));
        if domain.active == 0 {
            return 0;
        }
        let most = match domain.cap {
            None => nanoseconds(span).saturating_mul(domain.active),
            Some(_) => {
                let most = i128::from(domain.rate) * i128::from(span.ns()) / i128::from(CPU);
                i64::try_from(most).unwrap_or(i64::MAX)
            }
        };
        let mut grant = most;
        if !domain.is_limited {
            grant = by_weight.min(most);
            self.carry = self.carry.saturating_add(by_weight - grant);
        }
        grant / domain.active
    }

    /// Grants the credit due to a VM that has one vCPU and whose credit only its weight limits.
    /// Returns the new class of the vCPU. `None` if nothing was granted, because the grant would
    /// change more than that class.
    #[inline(always)]
    fn grant_plainly(&self, domain: &mut Domain, account: &mut Vcpu, period: i64) -> Option<Class> {
        let each = self.given(domain);
        let credit = account.credit.wrapping_add_unsigned(each);
        let class = account.plain_class(credit, period)?;
        if each > self.at.ns() - domain.settled.ns() || self.rise.pace >= domain.enough {
            return None;
        }
        (domain.level, domain.settled) = (self.level, self.at);
        account.credit = credit;
        Some(class)
    }
}

impl Domain {
    /// Returns the CPU time that the VM can use at most, in millionths of a CPU.
    fn rate_now(&self) -> u64 {
        let all = (self.active * CPU).unsigned_abs();
        self.cap.map_or(all, |cap| all.min(u64::from(cap.ppm())))
    }

    /// Returns true if the VM has one active vCPU and only the weight limits its credit.
    fn is_plain(&self) -> bool {
        self.active == 1 && self.cap.is_none() && !self.is_limited
    }

    /// Returns the rate of credit per unit of weight at which the VM's weight gives it all CPU time
    /// that it can use: `rate / weight`, rounded up.
    fn enough(&self) -> u64 {
        self.rate.saturating_mul(1 << PLACES).div_ceil(u64::from(self.weight.get()))
    }
}

impl Vcpu {
    /// Returns the class for an amount of credit. `None` if an accounting may change more than the
    /// class, since the vCPU is boosted or its credit or debt exceeds a period's credit. Only for
    /// VMs whose cap is enforced by a budget.
    #[inline]
    fn plain_class(&self, credit: i64, period: i64) -> Option<Class> {
        let is_within = credit.wrapping_add(period).cast_unsigned() <= 2 * period.unsigned_abs();
        let class = if credit < 0 { Class::Over } else { Class::Under };
        (self.class != Class::Boost && is_within).then_some(class)
    }
}

impl Credit {
    /// Raises the credit per unit of weight (the level) for the time since the last accounting.
    /// Then grants some VMs the credit due to them.
    pub(in crate::policies::credit) fn give_exactly(&mut self, at: &Moment) {
        let level = &mut self.level;
        let cause = RiseInputs {
            left: self.cpus.len() as i64 * CPU - level.limited,
            span: at.now().since(self.accounted),
            carry: level.carry,
            weight: level.weight,
        };
        if level.rise.cause != cause {
            level.rise = Rise::new(cause);
        }
        level.level = level.level.wrapping_add(level.rise.by);
        level.carry = level.rise.carry;
        level.at = at.now();
        self.visit_some(at);
    }

    /// Grants credit to some of the active VMs, in the order of the list. Visits no VM twice.
    fn visit_some(&mut self, at: &Moment) {
        let mut visits = VISITS * self.cpus.len();
        let mut unseen = self.domains.list.len();
        while visits > 0 && unseen > 0 {
            if self.level.cursor >= self.domains.list.len() {
                self.level.cursor = 0;
            }
            let most = unseen.min(visits);
            let seen = self.visit_plain_ones(most);
            (unseen, visits) = (unseen - seen, visits - seen);
            let place = self.level.cursor;
            if seen < most.min(VISITS)
                && let Some(&row) = self.domains.list.get(place)
            {
                let active = usize::try_from(self.domains[row].active).unwrap_or(usize::MAX);
                (unseen, visits) = (unseen - 1, visits.saturating_sub(active));
                self.visit(at, row);
                // If the VM left the list, another one took its index.
                let stays = self.domains.list.get(place) == Some(&row);
                self.level.cursor = place + usize::from(stays);
            }
            unseen = unseen.min(self.domains.list.len());
        }
    }

    /// Grants credit to up to `most` VMs, at most eight, in the order of the list. Stops at the
    /// first VM that needs more than a new class for its vCPU. Returns the number of VMs visited.
    #[inline(never)] // Kept apart so that its values fit in registers.
    fn visit_plain_ones(&mut self, most: usize) -> usize {
        let Credit { level, domains, vcpus, queues, rules, .. } = self;
        let list = &domains.list[level.cursor..];
        let list = &list[..most.min(VISITS).min(list.len())];
        // vCPUs whose class changes are collected without a branch and moved after the loop,
        // because a processor could not predict the branch.
        let mut moves = [None; VISITS];
        let mut moved = 0;
        let stop = list.iter().position(|&row| {
            let domain = &mut domains.rows[row];
            let Some(vcpu) = domain.plain else { return true };
            let account = &mut vcpus[vcpu];
            let class = level.grant_plainly(domain, account, rules.period);
            let Some(class) = class else { return true };
            moves[moved] = Some(vcpu);
            moved += usize::from(core::mem::replace(&mut account.class, class) != class);
            false
        });
        let seen = stop.unwrap_or(list.len());
        level.cursor += seen;
        for vcpu in moves[..moved].iter().copied().flatten() {
            queues.change(vcpu, vcpus[vcpu].class, rules.changes);
        }
        for vcpu in moves[..moved].iter().copied().flatten() {
            let Vcpu { on, class, .. } = self.vcpus[vcpu];
            on.into_iter().for_each(|cpu| self.set_class_on(cpu, class));
        }
        seen
    }

    /// Grants credit to a VM, updates the class and the credit limits of its vCPUs, and decides if
    /// the VM is limited.
    #[inline(never)]
    fn visit(&mut self, at: &Moment, row: usize) {
        self.settle(row);
        let active = self.domains[row].active;
        for index in 0..self.domains[row].vcpus.len() {
            let vcpu = self.domains[row].vcpus[index];
            let account = &self.vcpus[vcpu];
            if account.is_active {
                let class = account.plain_class(account.credit, self.rules.period);
                match class.filter(|_| self.rules.park == Park::Budget) {
                    Some(class) => self.set_class(vcpu, class),
                    None => self.close_exactly(at, vcpu, active),
                }
            }
        }
        let domain = &mut self.domains[row];
        let is_limited = self.level.rise.pace >= domain.enough;
        if core::mem::replace(&mut domain.is_limited, is_limited) != is_limited {
            self.reckon(row);
        }
    }

    /// Updates the class of a vCPU after a grant of credit, and limits its credit or debt. Its VM
    /// has `active` active vCPUs.
    fn close_exactly(&mut self, at: &Moment, vcpu: VcpuId, active: i64) {
        let Vcpu { domain, credit: before, .. } = self.vcpus[vcpu];
        let allowed = self.domains.allowance(domain, self.rules.tick * 3).map(|all| all / active);
        let kept = self.close_account(at, vcpu, allowed);
        // Others already ran in place of a runnable vCPU, so its cut credit is not given to them
        // again.
        if kept < before && !at.is_awake(vcpu) {
            self.level.carry = self.level.carry.saturating_add(before - kept);
        }
    }

    /// Grants a VM the credit due until now. Must be called before the VM's parameters or its
    /// number of active vCPUs change.
    pub(in crate::policies::credit) fn settle(&mut self, row: usize) {
        if self.rules.credits.is_some() {
            return;
        }
        let domain = &mut self.domains[row];
        let each = self.level.grant(domain);
        if each == 0 {
            return;
        }
        for &vcpu in &domain.vcpus {
            let account = &mut self.vcpus[vcpu];
            if account.is_active {
                account.credit = account.credit.saturating_add(each);
            }
        }
    }

    /// Updates the sums in `CreditLevel` after a VM's parameters, active vCPUs or limit changed.
    pub(in crate::policies::credit) fn reckon(&mut self, row: usize) {
        let domain = &mut self.domains[row];
        domain.rate = domain.rate_now();
        domain.enough = domain.enough();
        domain.plain = match domain.vcpus[..] {
            [vcpu] if self.rules.park == Park::Budget && domain.is_plain() => Some(vcpu),
            _ => None,
        };
        let counted = match (domain.active, domain.is_limited) {
            (0, _) => LevelContribution::default(),
            (_, true) => LevelContribution { weight: 0, limited: domain.rate.cast_signed() },
            (_, false) => LevelContribution { weight: i64::from(domain.weight.get()), limited: 0 },
        };
        let before = core::mem::replace(&mut domain.counted, counted);
        self.level.weight += counted.weight - before.weight;
        self.level.limited += counted.limited - before.limited;
    }
}

#[cfg(test)]
mod tests {
    use slackline_units::DomId;

    use super::*;
    use crate::policies::credit::{CreditRules, SPEC};
    use crate::{Policy, Topology, Values};

    /// If credit and debt are at most a period's credit, closing a vCPU's account after a grant
    /// changes only its class. A boosted vCPU stays boosted. Beyond that, the credit is cut or the
    /// vCPU becomes inactive.
    #[test]
    fn accounting_keeps_credit_or_debt_of_at_most_one_period() {
        let fields = Values::defaults(SPEC.policy_fields).expect("all fields have defaults");
        let share = Values::defaults(SPEC.share_fields).expect("all fields have defaults");
        let vcpu = VcpuId::new(0, DomId::new(0), 0);
        let period = CreditRules::read(&fields, "exact").period;
        for class in [Class::Over, Class::Under, Class::Boost] {
            for credit in [-5, -2, -1, 0, 1, 2, 5].map(|half| half * period / 2) {
                for credit in [credit - 1, credit, credit + 1] {
                    let rules = CreditRules::read(&fields, "exact");
                    let mut policy = Credit::new(rules, &Topology::flat(1), None);
                    let mut at = Moment::at_start(1);
                    at.join(vcpu);
                    policy.admit(&at, vcpu, &share).expect("credit admits every vCPU");
                    policy.become_active(vcpu);
                    let account = &mut policy.vcpus[vcpu];
                    (account.class, account.credit) = (class, credit);
                    let plain = account.plain_class(credit, period);
                    let is_plain = class != Class::Boost && (-period..=period).contains(&credit);
                    assert_eq!(plain.is_some(), is_plain, "{class:?} with {credit}");
                    policy.close_account(&at, vcpu, None);
                    let closed = &policy.vcpus[vcpu];
                    if let Some(plain) = plain {
                        assert_eq!((closed.class, closed.credit), (plain, credit), "{class:?}");
                        assert!(closed.is_active);
                    }
                    let stays = class == Class::Boost && credit >= 0;
                    let by_credit = if credit < 0 { Class::Over } else { Class::Under };
                    let expected = if stays { Class::Boost } else { by_credit };
                    assert_eq!(closed.class, expected, "{class:?} with {credit}");
                }
            }
        }
    }
}
