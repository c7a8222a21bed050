//! Domain ids, which identify reservations in the scheduler.
//!
//! For each domain, the policy records the excess: CPU time that its VM used beyond its
//! reservation. So a VM that returns while its excess still counts must get its old domain id, even
//! if its reservation has another name.

use std::collections::{BTreeMap, BTreeSet};

use slackline_units::{DomId, Span, Time};

use crate::binding::Binding;
use crate::machine::Identity;

/// Number of different domain ids for reservations. When all ids have been used, they are used
/// again.
const NUMBERS: u32 = DomId::OF_SERVICE.number();

/// Domain id that no reservation ever has. The daemon schedules its front process under this id.
pub const NO_RESERVATION: DomId = DomId::OF_SERVICE;

/// Maximum number of domains that are remembered after their reservation has ended. If there are
/// more, the domain that would be forgotten next is forgotten early.
const REMEMBERED: usize = 50_000;

/// Domains that reservations use, and domains that are remembered after their reservation has
/// ended.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    next: u32,
    rows: BTreeMap<DomId, DomainEntry>,
    by_binding: BTreeMap<Binding, DomId>,
    by_identity: BTreeMap<Identity, DomId>,
    /// Remembered domains that are not in use, in the order in which they will be forgotten.
    ends: BTreeSet<(Time, DomId)>,
}

#[derive(Debug)]
struct DomainEntry {
    bindings: Vec<Binding>,
    identities: Vec<Identity>,
    /// Time until which the domain is remembered. `None` while a reservation uses it.
    until: Option<Time>,
    /// Longest period that any reservation of the domain has had.
    longest: Span,
}

impl Domains {
    /// Returns the domain for a new reservation, and marks the domain as in use. If a remembered
    /// domain has the same VM or binding, returns that domain.
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
        let fresh = DomainEntry {
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

    /// Records the identity of the VM that is scheduled for a domain.
    pub(crate) fn is(&mut self, domain: DomId, identity: Identity) {
        let Some(account) = self.rows.get_mut(&domain) else { return };
        if !account.identities.contains(&identity) {
            // VMs that have ended do not return, so the newest identities are enough.
            if account.identities.len() >= 4 {
                let oldest = account.identities.remove(0);
                self.by_identity.remove(&oldest);
            }
            account.identities.push(identity);
        }
        self.by_identity.insert(identity, domain);
    }

    /// Records the period of a reservation of a domain.
    pub(crate) fn promised(&mut self, domain: DomId, period: Span) {
        if let Some(account) = self.rows.get_mut(&domain) {
            account.longest = account.longest.max(period);
        }
    }

    /// Marks a domain as not in use. The domain is then remembered for the length of its longest
    /// period, because its excess can count that long.
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

    /// Returns a domain id that is neither in use nor remembered.
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
    fn vm_returning_within_its_longest_period_gets_same_domain_id() {
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
    fn domain_id_in_use_is_not_given_to_second_reservation() {
        let mut domains = Domains::default();
        let web = domains.take(ms(0), &binding("qemu:web"), Some(MACHINE));
        assert_ne!(domains.take(ms(0), &binding("qemu:web"), Some(MACHINE)), web);
    }

    #[test]
    fn number_of_remembered_domain_ids_of_ended_vms_is_limited() {
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
