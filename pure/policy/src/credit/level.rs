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

use super::domains::Domain;
use super::rules::{Park, Rules};
use super::runqueue::Class;
use super::{Credit, Vcpu, nanoseconds};

/// How many vCPUs an accounting visits for each CPU. With more, each is visited once in `active /
/// (8 * CPUs)` periods: three eighths of the time that so many need for a turn of a tick each. With
/// half as many, those beside one of great weight were seen to wait for up to a half longer.
const VISITS: i64 = 8;

/// Binary places of the level.
const PLACES: u32 = 32;

const MILLION: i64 = 1_000_000;

/// How far credit has been given.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// Nanoseconds for each unit of weight, in 2^-32.
    level: i128,
    /// What it gives a unit of weight all the time, in 2^-32 millionths of a CPU. None where
    /// nobody can use more than he is given.
    pace: Option<i64>,
    at: Time,
    /// The weight of all domains that are not limited.
    weight: i64,
    /// What the limited are given, in millionths of a CPU.
    limited: i64,
    /// What sleepers and the limited could not keep, less what was given beyond all there was: for
    /// everybody at the next accounting.
    carry: i128,
    /// Whose turn to be visited it is.
    cursor: usize,
}

/// What a domain counts for in the sums of the level.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    weight: i64,
    limited: i64,
}

/// A quotient, in 64 bits where these are enough: that is several times as fast.
fn divided(amount: i128, parts: i64) -> i128 {
    match i64::try_from(amount) {
        Ok(amount) => i128::from(amount / parts),
        Err(_) => amount / i128::from(parts),
    }
}

impl Level {
    /// What each active vCPU of a domain has not been given yet, and is now.
    #[inline]
    fn grant(&mut self, domain: &mut Domain) -> i64 {
        let span = self.at.since(core::mem::replace(&mut domain.settled, self.at));
        let risen = self.level - core::mem::replace(&mut domain.level, self.level);
        if domain.active == 0 {
            return 0;
        }
        let most = match domain.cap {
            None => i128::from(domain.active) * i128::from(span.ns()),
            Some(_) => divided(i128::from(domain.rate()) * i128::from(span.ns()), MILLION),
        };
        let mut grant = most;
        if !domain.is_limited {
            let by_weight = (risen * i128::from(domain.weight)) >> PLACES;
            if by_weight > most {
                self.carry += by_weight - most;
            } else {
                grant = by_weight;
            }
        }
        let each = if domain.active == 1 { grant } else { divided(grant, domain.active) };
        i64::try_from(each).unwrap_or(i64::MAX / 4)
    }
}

impl Domain {
    /// What it can use, in millionths of a CPU.
    #[inline]
    fn rate(&self) -> i64 {
        let all = self.active * MILLION;
        self.cap.map_or(all, |cap| all.min(i64::from(cap.ppm())))
    }

    /// Whether by its weight it would be given all that it can use, or more.
    #[inline]
    fn is_limited_at(&self, pace: Option<i64>) -> bool {
        let rises = |pace| (i128::from(pace) * i128::from(self.weight)) >> PLACES;
        pace.is_none_or(|pace| rises(pace) >= i128::from(self.rate()))
    }
}

impl Vcpu {
    /// What class its credit makes it, where closing its account decides nothing else: it is
    /// within all bounds, and its cap counts for nothing here.
    #[inline]
    fn plain_class(&self, rules: &Rules) -> Option<Class> {
        let is_plain = rules.park == Park::Budget && self.class != Class::Boost;
        let is_within = (-rules.period..=rules.period).contains(&self.credit);
        let class = if self.credit < 0 { Class::Over } else { Class::Under };
        (is_plain && is_within).then_some(class)
    }
}

impl Credit {
    pub(super) fn give_exactly(&mut self, at: &Moment) {
        let span = at.now().since(self.accounted);
        let level = &mut self.level;
        // In millionths of a CPU: what the limited leave to the others.
        let left = self.cpus.len() as i64 * MILLION - level.limited;
        level.pace = match level.weight {
            0 if left >= 0 => None,
            0 => Some(0),
            // No host has so many CPUs that this needs more places.
            weight => Some((left.max(0) << PLACES) / weight),
        };
        let rest = divided(i128::from(left) * i128::from(span.ns()), MILLION) + level.carry;
        // Where nobody can use more, the rest is nobody's; what was given too much is everybody's.
        level.carry = rest.min(0);
        if level.weight > 0 {
            level.level += divided(rest.max(0) << PLACES, level.weight);
        }
        level.at = at.now();
        let mut visits = VISITS * self.cpus.len() as i64;
        let mut unseen = self.domains.list.len();
        while visits > 0 && unseen > 0 {
            let list = &self.domains.list;
            let place = if self.level.cursor < list.len() { self.level.cursor } else { 0 };
            let Some(&row) = list.get(place) else { break };
            visits -= self.domains[row].active;
            unseen -= 1;
            self.visit(at, row);
            let stays = self.domains.list.get(place) == Some(&row);
            self.level.cursor = place + usize::from(stays);
        }
    }

    /// Gives a domain credit. Mostly that changes nothing else.
    #[inline]
    fn visit(&mut self, at: &Moment, row: usize) {
        let domain = &mut self.domains[row];
        let each = self.level.grant(domain);
        let mut stays = domain.is_limited_at(self.level.pace) == domain.is_limited;
        for &vcpu in &domain.vcpus {
            let account = &mut self.vcpus[vcpu];
            if account.is_active {
                account.credit = account.credit.saturating_add(each);
                stays &= account.plain_class(&self.rules) == Some(account.class);
            }
        }
        if !stays {
            self.judge(at, row);
        }
    }

    /// Decides what class the vCPUs of a domain are of, and whether it is limited.
    #[inline(never)]
    fn judge(&mut self, at: &Moment, row: usize) {
        let active = self.domains[row].active;
        for index in 0..self.domains[row].vcpus.len() {
            let vcpu = self.domains[row].vcpus[index];
            let account = &self.vcpus[vcpu];
            if account.is_active {
                match account.plain_class(&self.rules) {
                    Some(class) => self.set_class(vcpu, class),
                    None => self.close_exactly(at, vcpu, active),
                }
            }
        }
        let domain = &mut self.domains[row];
        let is_limited = domain.is_limited_at(self.level.pace);
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
            self.level.carry += i128::from(before - kept);
        }
    }

    /// Gives a domain what it has not been given yet. To be done before its terms or the number of
    /// its active vCPUs change.
    pub(super) fn settle(&mut self, row: usize) {
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
    pub(super) fn reckon(&mut self, row: usize) {
        let domain = &mut self.domains[row];
        let counted = match (domain.active, domain.is_limited) {
            (0, _) => Counted::default(),
            (_, true) => Counted { weight: 0, limited: domain.rate() },
            (_, false) => Counted { weight: domain.weight, limited: 0 },
        };
        let before = core::mem::replace(&mut domain.counted, counted);
        self.level.weight += counted.weight - before.weight;
        self.level.limited += counted.limited - before.limited;
    }

    /// What a domain that has just come may use until the next accounting.
    pub(super) fn renew_budget(&mut self, row: usize) {
        let most = self.domains.allowance(row, self.rules.tick * 3);
        let domain = &mut self.domains[row];
        domain.budget = most.map_or(0, |most| most.saturating_sub(domain.held));
    }

    /// What a turn of a vCPU may take from its domain's budget: an even part, but not a sliver.
    #[inline]
    pub(super) fn portion(&self, row: usize) -> Option<Span> {
        if !self.domains.is_capped(row) {
            return None;
        }
        let domain = &self.domains[row];
        let even = domain.budget / domain.active.max(1);
        let sliver = nanoseconds(self.rules.tick / 10);
        let portion = even.max(sliver).min(domain.budget).max(0);
        Some(Span::from_ns(portion.unsigned_abs()))
    }
}
