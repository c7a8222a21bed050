//! Which number the scheduler knows whom by.
//!
//! What a machine has had in advance of what it is promised stands on the policy's account under
//! its domain. So who comes back within the time for which that may matter has to come back under
//! the number it had, whatever it is called this time.

use std::collections::{BTreeMap, BTreeSet};

use slackline_units::{DomId, Span, Time};

use crate::binding::Binding;
use crate::machine::Identity;

/// As many domains as an id can tell apart, but for one; then their numbers begin again.
const NUMBERS: u32 = (1 << 23) - 1;

/// The domain that no reservation ever has: for whoever keeps them.
pub const NO_RESERVATION: DomId = DomId::new(NUMBERS);

/// How many are remembered whose reservation is over. Beyond that the one goes first whose account
/// matters for the shortest time.
const REMEMBERED: usize = 50_000;

/// Numbers in use, and numbers that are remembered.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    next: u32,
    rows: BTreeMap<DomId, Account>,
    by_binding: BTreeMap<Binding, DomId>,
    by_identity: BTreeMap<Identity, DomId>,
    /// Those that are remembered only, by when they are not any more.
    ends: BTreeSet<(Time, DomId)>,
}

#[derive(Debug)]
struct Account {
    bindings: Vec<Binding>,
    identities: Vec<Identity>,
    /// Until when it is remembered; none while it is in use.
    until: Option<Time>,
    /// The longest period it was ever promised something for.
    longest: Span,
}

impl Domains {
    /// The number for a reservation that begins now, in use from now on.
    pub(crate) fn take(
        &mut self,
        now: Time,
        binding: &Binding,
        identity: Option<Identity>,
    ) -> DomId {
        self.forget(now);
        let known = identity.and_then(|identity| self.by_identity.get(&identity));
        let known = known.or_else(|| self.by_binding.get(binding)).copied();
        let remembered = known.and_then(|domain| Some((domain, self.rows.get(&domain)?.until?)));
        let domain = match remembered {
            Some((domain, until)) => {
                self.ends.remove(&(until, domain));
                domain
            }
            None => self.unused(),
        };
        let fresh = Account {
            bindings: Vec::new(),
            identities: Vec::new(),
            until: None,
            longest: Span::ZERO,
        };
        let account = self.rows.entry(domain).or_insert(fresh);
        account.until = None;
        if !account.bindings.contains(binding) {
            account.bindings.push(binding.clone());
        }
        self.by_binding.insert(binding.clone(), domain);
        if let Some(identity) = identity {
            self.is(domain, identity);
        }
        domain
    }

    /// A domain is this machine now.
    pub(crate) fn is(&mut self, domain: DomId, identity: Identity) {
        let Some(account) = self.rows.get_mut(&domain) else { return };
        if !account.identities.contains(&identity) {
            // Of machines that ended nobody asks again: the newest are enough.
            if account.identities.len() >= 4 {
                let oldest = account.identities.remove(0);
                self.by_identity.remove(&oldest);
            }
            account.identities.push(identity);
        }
        self.by_identity.insert(identity, domain);
    }

    /// It is promised something for such a period.
    pub(crate) fn promised(&mut self, domain: DomId, period: Span) {
        if let Some(account) = self.rows.get_mut(&domain) {
            account.longest = account.longest.max(period);
        }
    }

    /// It is not in use any more. Its account may matter for as long as its longest period.
    pub(crate) fn leave(&mut self, now: Time, domain: DomId) {
        let Some(account) = self.rows.get_mut(&domain) else { return };
        let until = now.after(account.longest);
        account.until = Some(until);
        self.ends.insert((until, domain));
        if self.ends.len() > REMEMBERED {
            self.forget_first();
        }
    }

    fn forget(&mut self, now: Time) {
        while self.ends.first().is_some_and(|(until, _)| *until <= now) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some((_, domain)) = self.ends.pop_first() else { return };
        let Some(account) = self.rows.remove(&domain) else { return };
        for binding in account.bindings {
            if self.by_binding.get(&binding) == Some(&domain) {
                self.by_binding.remove(&binding);
            }
        }
        for identity in account.identities {
            if self.by_identity.get(&identity) == Some(&domain) {
                self.by_identity.remove(&identity);
            }
        }
    }

    /// A number that nobody has.
    fn unused(&mut self) -> DomId {
        loop {
            let domain = DomId::new(self.next);
            self.next = (self.next + 1) % NUMBERS;
            if !self.rows.contains_key(&domain) {
                return domain;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Identity = Identity::Process { pid: 7, started: 1, inode: 1 };

    fn binding(text: &str) -> Binding {
        text.parse().unwrap()
    }

    const fn ms(ms: u64) -> Time {
        Time::START.after(Span::from_ms(ms))
    }

    #[test]
    fn who_comes_back_within_its_period_has_its_number_under_any_name() {
        let mut domains = Domains::default();
        let web = domains.take(ms(0), &binding("qemu:web"), Some(MACHINE));
        domains.promised(web, Span::from_ms(100));
        domains.promised(web, Span::from_ms(10));
        domains.leave(ms(0), web);
        let other = domains.take(ms(1), &binding("qemu:other"), None);
        assert_ne!(other, web);
        assert_eq!(domains.take(ms(50), &binding("pid:7"), Some(MACHINE)), web);
        domains.leave(ms(60), web);
        assert_eq!(domains.take(ms(159), &binding("qemu:web"), None), web);
        domains.leave(ms(200), web);
        assert_ne!(domains.take(ms(300), &binding("qemu:web"), Some(MACHINE)), web);
    }

    #[test]
    fn a_number_in_use_is_nobody_elses() {
        let mut domains = Domains::default();
        let web = domains.take(ms(0), &binding("qemu:web"), Some(MACHINE));
        assert_ne!(domains.take(ms(0), &binding("qemu:web"), Some(MACHINE)), web);
    }

    #[test]
    fn a_hundred_thousand_that_come_and_go_are_not_all_remembered() {
        let mut domains = Domains::default();
        for pid in 1..=100_000 {
            let domain = domains.take(ms(0), &binding(&format!("pid:{pid}")), None);
            domains.promised(domain, Span::from_secs(1));
            domains.leave(ms(0), domain);
        }
        assert_eq!(domains.rows.len(), REMEMBERED);
        assert_eq!(domains.by_binding.len(), REMEMBERED);
        let _ = domains.take(ms(1000), &binding("pid:1"), None);
        assert_eq!((domains.rows.len(), domains.ends.len()), (1, 0));
    }
}
