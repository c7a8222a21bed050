//! Giving credit without rounding, at a cost that does not grow with the number of vCPUs.
//!
//! What a unit of weight has been given since the start is the *level*; a domain is given what the
//! level has risen since it was last visited, times its weight. So it does not matter how often a
//! domain is visited, and at one accounting only some are. A domain that its weight would give more
//! than it can use, by its cap or by the number of its vCPUs, is limited: it is given just that,
//! and the level rises the faster for the others.
//!
//! Who is limited is decided by the pace at which the level rises, as far as the limited are known,
//! and not by its last rise, in which may be what others could not keep. No such pace exceeds the
//! one at which all the limited are known: leaving out one that is limited, or limiting one that is
//! not, makes it less. So none is limited for long that should not be, those with the least use for
//! their weight are found first, and all are when each has been visited as often as there are
//! domains.

use slackline_units::{Span, Time, VcpuId};

use crate::Moment;

use crate::policies::credit::domains::{Counted, Domain};
use crate::policies::credit::rules::Park;
use crate::policies::credit::runqueue::Class;
use crate::policies::credit::{Credit, Vcpu, nanoseconds};

/// How many vCPUs an accounting visits for each CPU. With more, each is visited once in `active /
/// (8 * CPUs)` periods: three eighths of the time that so many need for a turn of a tick each. With
/// half as many, those beside one of great weight were seen to wait for up to a half longer.
const VISITS: usize = 8;

/// Binary places of the level and of its pace.
const PLACES: u32 = 20;

/// The level rises by no more at once: 2.4 hours of a CPU for each unit of weight, far beyond what
/// anybody may keep. A domain that is visited in time can tell then how far it has risen.
const HIGHEST_RISE: u64 = 1 << 63;

/// Nobody can use more than he is given: 268 CPUs for a unit of weight, and times any weight it
/// still is a number of 64 bits.
const HIGHEST_PACE: u64 = u64::MAX >> u16::BITS;

/// In millionths.
const CPU: i64 = 1_000_000;

/// How far credit has been given.
#[derive(Debug, Default)]
pub(in crate::policies::credit) struct Level {
    /// Nanoseconds for each unit of weight, in 2^-20. It wraps: only how far it has risen since a
    /// visit counts.
    level: u64,
    at: Time,
    /// The weight of all domains that are not limited.
    weight: i64,
    /// What the limited are given, in millionths of a CPU.
    limited: i64,
    /// What sleepers and the limited could not keep, and what was lost in rounding, less what was
    /// given beyond all there was: for everybody at the next accounting. In nanoseconds.
    carry: i64,
    /// How it rose last.
    rise: Rise,
    /// Whose turn to be visited it is.
    cursor: usize,
}

/// How the level rises at an accounting.
#[derive(Clone, Copy, Debug, Default)]
struct Rise {
    by: u64,
    /// What it gives a unit of weight all the time, in 2^-20 millionths of a CPU.
    pace: u64,
    /// What is over, for the next accounting.
    carry: i64,
    cause: Cause,
}

/// What makes the level rise as it does. From one accounting to the next mostly nothing changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cause {
    /// What the limited leave to the others, in millionths of a CPU.
    left: i64,
    span: Span,
    carry: i64,
    /// That of all others.
    weight: i64,
}

impl Rise {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Clamped before.
    fn new(cause: Cause) -> Rise {
        let Cause { left, span, carry, weight } = cause;
        let spread = i128::from(left) * i128::from(span.ns()) / i128::from(CPU);
        let rest = (spread + i128::from(carry)).clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        // What was given too much is everybody's; where nobody can use more, the rest is nobody's.
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

impl Level {
    /// What a domain has been given by its weight since it was last visited.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // A weight has 16 bits.
    fn given(&self, domain: &Domain) -> u64 {
        let risen = self.level.wrapping_sub(domain.level);
        ((u128::from(risen) * u128::from(domain.weight.get())) >> PLACES) as u64
    }

    /// What each active vCPU of a domain has not been given yet, and is now.
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

    /// Gives a plain domain what it has not been given yet, if that changes no more than the class
    /// of its vCPU, and says of which it is then.
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
    /// What it can use, in millionths of a CPU.
    fn rate_now(&self) -> u64 {
        let all = (self.active * CPU).unsigned_abs();
        self.cap.map_or(all, |cap| all.min(u64::from(cap.ppm())))
    }

    /// Whether nothing bounds what it is given but its weight.
    fn is_plain(&self) -> bool {
        self.active == 1 && self.cap.is_none() && !self.is_limited
    }

    /// The pace from which on its weight gives it all that it can use, or more.
    fn enough(&self) -> u64 {
        self.rate.saturating_mul(1 << PLACES).div_ceil(u64::from(self.weight.get()))
    }
}

impl Vcpu {
    /// What class so much credit makes it, where closing its account decides nothing else: budgets
    /// hold it to its cap, if it has one, and it is within all bounds.
    #[inline]
    fn plain_class(&self, credit: i64, period: i64) -> Option<Class> {
        let is_within = credit.wrapping_add(period).cast_unsigned() <= 2 * period.unsigned_abs();
        let class = if credit < 0 { Class::Over } else { Class::Under };
        (self.class != Class::Boost && is_within).then_some(class)
    }
}

impl Credit {
    pub(in crate::policies::credit) fn give_exactly(&mut self, at: &Moment) {
        let level = &mut self.level;
        let cause = Cause {
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

    /// Visits as many as an accounting does, one after the other, and nobody twice.
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
                // Where it has left the list another has taken its place.
                let stays = self.domains.list.get(place) == Some(&row);
                self.level.cursor = place + usize::from(stays);
            }
            unseen = unseen.min(self.domains.list.len());
        }
    }

    /// Gives so many domains credit, eight at most, but only as far as they are plain and nothing
    /// follows from it but the class of their vCPU. Mostly that is so. Returns how many those are.
    #[inline(never)] // Tight as it is, it fits into the registers.
    fn visit_plain_ones(&mut self, most: usize) -> usize {
        let Credit { level, domains, vcpus, queues, rules, .. } = self;
        let list = &domains.list[level.cursor..];
        let list = &list[..most.min(VISITS).min(list.len())];
        // Who is of another class is moved afterwards: no processor could guess who that will be.
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

    /// Gives a domain credit, and decides what becomes of its vCPUs and whether it is limited.
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

    /// Closes the account of one of so many active vCPUs of a domain.
    fn close_exactly(&mut self, at: &Moment, vcpu: VcpuId, active: i64) {
        let Vcpu { domain, credit: before, .. } = self.vcpus[vcpu];
        let allowed = self.domains.allowance(domain, self.rules.tick * 3).map(|all| all / active);
        let kept = self.close_account(at, vcpu, allowed);
        // What somebody awake is owed is not for those who ran in its stead.
        if kept < before && !at.is_awake(vcpu) {
            self.level.carry = self.level.carry.saturating_add(before - kept);
        }
    }

    /// Gives a domain what it has not been given yet. To be done before its terms or the number of
    /// its active vCPUs change.
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

    /// Corrects the sums by what a domain counts for now.
    pub(in crate::policies::credit) fn reckon(&mut self, row: usize) {
        let domain = &mut self.domains[row];
        domain.rate = domain.rate_now();
        domain.enough = domain.enough();
        domain.plain = match domain.vcpus[..] {
            [vcpu] if self.rules.park == Park::Budget && domain.is_plain() => Some(vcpu),
            _ => None,
        };
        let counted = match (domain.active, domain.is_limited) {
            (0, _) => Counted::default(),
            (_, true) => Counted { weight: 0, limited: domain.rate.cast_signed() },
            (_, false) => Counted { weight: i64::from(domain.weight.get()), limited: 0 },
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
    use crate::policies::credit::{Rules, SPEC};
    use crate::{Policy, Topology, Values};

    /// Within a period's credit either way closing an account decides nothing but the class, unless
    /// somebody is boosted, who stays that. Beyond, credit is cut or its owner is given no more.
    #[test]
    fn a_plain_account_is_one_that_closing_leaves_as_it_is() {
        let fields = Values::defaults(SPEC.policy_fields).expect("they have defaults");
        let share = Values::defaults(SPEC.share_fields).expect("they have defaults");
        let vcpu = VcpuId::new(0, DomId::new(0), 0);
        let period = Rules::read(&fields, "exact").period;
        for class in [Class::Over, Class::Under, Class::Boost] {
            for credit in [-5, -2, -1, 0, 1, 2, 5].map(|half| half * period / 2) {
                for credit in [credit - 1, credit, credit + 1] {
                    let rules = Rules::read(&fields, "exact");
                    let mut policy = Credit::new(rules, &Topology::flat(1), None);
                    let mut at = Moment::at_start(1);
                    at.join(vcpu);
                    policy.admit(&at, vcpu, &share).expect("nobody is refused");
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
