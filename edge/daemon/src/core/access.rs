//! Who may do what: by his groups, or by what an administrator has said of him.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom, SystemRandom};
use slackline_control::link::Who;
use slackline_control::{Access as Shown, Grant, Share};
use slackline_service::{Budget, Budgets, EventKind, Principal, Role, Ticket};

use crate::front::tls::{TOKEN, known_by};
use crate::ledger::{AccessChange, Granted, Proof};
use crate::people::People;

/// Most members that are named at a start.
const MOST_LINES: usize = 20;

/// Most principals of whom something is said: each is a row of the ledger.
const MOST_GRANTS: usize = 1_000;

/// The longest that somebody is let in for, in days, if not for ever.
const MOST_DAYS: u32 = 36_500;

/// Of whom something is said, and what is being written down of it.
pub(super) struct Access {
    people: People,
    /// True if members of the group without a grant are tenants, not operators.
    has_tenants: bool,
    granted: BTreeMap<Principal, Granted>,
    /// What is not written down yet, by who is to be answered, and who did it.
    pending: BTreeMap<Ticket, (Principal, Change)>,
}

/// What is to be written down, and what is to be told of it this once.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) write: AccessChange,
    token: Option<String>,
}

/// Who somebody is, and what he may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    pub(super) principal: Principal,
    pub(super) role: Role,
    /// The users whose machines he may have besides his own.
    pub(super) users: Vec<u32>,
}

/// What was written down of who may do what.
pub(super) struct Done {
    pub(super) by: Principal,
    pub(super) what: EventKind,
    /// How it is now, or was.
    pub(super) shown: Shown,
}

impl Access {
    pub(super) fn new(people: People, granted: Vec<Granted>, has_tenants: bool) -> Access {
        let granted = granted.into_iter().map(|granted| (granted.principal, granted)).collect();
        Access { people, has_tenants, granted, pending: BTreeMap::new() }
    }

    /// Members of the group without a grant are tenants from now on.
    pub(super) fn migrate(&mut self) {
        self.has_tenants = true;
    }

    /// Who would lose what by that, in lines: members of the group without a grant.
    pub(super) fn would_lose(
        &self,
        members: &[(String, Option<u32>)],
        owners: &[Principal],
    ) -> Vec<String> {
        if self.has_tenants {
            return Vec::new();
        }
        let is_granted = |uid: u32| uid == 0 || self.granted.contains_key(&Principal::User(uid));
        let members = members.iter().filter(|(_, uid)| !uid.is_some_and(is_granted));
        let line = |(name, uid): &(String, Option<u32>)| {
            let own = uid.map(Principal::User);
            let others = owners.iter().filter(|owner| Some(**owner) != own).count();
            format!(
                "{name} is an operator without a grant. `slackline access migrate` makes {name} \
                 a tenant, who could no longer see the log nor change reservations of others \
                 ({others} now)"
            )
        };
        members.take(MOST_LINES).map(line).collect()
    }

    /// These groups give rights from now on.
    pub(super) fn set_people(&mut self, people: People) {
        self.people = people;
    }

    /// Who asks and what he may do; none is somebody whom nobody knows. What is said of a user of
    /// this host counts instead of his groups until it expires. Root may do all: whoever is root
    /// can write the ledger himself.
    pub(super) fn rights(&self, who: &Who, now: SystemTime) -> Option<Rights> {
        let counts = |said: &&Granted| said.expires.is_none_or(|expires| now < expires);
        let of = |said: &Granted| Rights {
            principal: said.principal,
            role: said.role,
            users: said.users.clone(),
        };
        let proof = match who {
            Who::User { uid, gids } => {
                let role = self.people.role(*uid, gids)?;
                let principal = Principal::User(*uid);
                let said = self.granted.get(&principal).filter(|_| *uid != 0).filter(counts);
                let role = match role {
                    Role::Operator if self.has_tenants => Role::Tenant,
                    role => role,
                };
                let by_groups = || Rights { principal, role, users: Vec::new() };
                return Some(said.map_or_else(by_groups, of));
            }
            Who::Token(known) => Proof::Token(known.clone()),
            Who::Certificate(known) => Proof::Certificate(known.clone()),
        };
        let said = self.granted.values().find(|said| said.proof.as_ref() == Some(&proof));
        said.filter(counts).map(of)
    }

    /// How much each owner may have. What has expired still limits: it is the lesser evil.
    pub(super) fn budgets(&self) -> Budgets {
        let limited = self.granted.values().filter(|granted| granted.budget != Budget::default());
        limited.map(|granted| (granted.principal, granted.budget)).collect()
    }

    /// All of whom something is said.
    pub(super) fn listed(&self) -> Vec<Shown> {
        self.granted.values().map(|granted| shown(granted, None)).collect()
    }

    /// What is to be written down so that somebody may do this.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn grant(whom: &str, grant: Grant, now: SystemTime) -> Result<Change, String> {
        let Grant { role, cpu, machines, mut users, days, certificate } = grant;
        let principal = principal(whom)?;
        if principal == Principal::User(0) {
            return Err("root may always do everything; it needs no grant".into());
        }
        let is_hash = |known: &String| {
            known.len() == 64 && known.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let (proof, token) = match (principal, certificate) {
            (Principal::Named(_), None) => {
                let token = new_token()?;
                (Some(Proof::Token(known_by(token.as_bytes()))), Some(token))
            }
            (Principal::Named(_), Some(known)) if is_hash(&known) => {
                (Some(Proof::Certificate(known)), None)
            }
            (_, None) => (None, None),
            (_, Some(_)) => return Err("a certificate is for remote clients only".into()),
        };
        if let Some(days) = days.filter(|days| !(1..=MOST_DAYS).contains(days)) {
            return Err(format!("{days} days are not from 1 to {MOST_DAYS}"));
        }
        users.sort_unstable();
        users.dedup();
        let day = Duration::from_secs(24 * 3600);
        let expires = days.and_then(|days| now.checked_add(day * days));
        let budget = Budget { cpu: cpu.map(|cpu| cpu.0), machines };
        let (role, made) = (role.into(), now);
        let granted = Granted { principal, role, budget, users, proof, made, expires };
        Ok(Change { write: AccessChange::Add(granted), token })
    }

    /// What is to be written down so that nothing is said of somebody any more; none if nothing is.
    ///
    /// # Errors
    /// When that is nobody.
    pub(super) fn revoke(&self, whom: &str) -> Result<Option<Change>, String> {
        let principal = principal(whom)?;
        let change = Change { write: AccessChange::Revoke(principal), token: None };
        Ok(self.granted.contains_key(&principal).then_some(change))
    }

    /// Makes sure that there is room for a change beside all others.
    ///
    /// # Errors
    /// If there are as many grants as there can be.
    pub(super) fn check_room(&self, change: &Change) -> Result<(), String> {
        let AccessChange::Add(granted) = &change.write else { return Ok(()) };
        let is_known = self.granted.contains_key(&granted.principal);
        if is_known || self.granted.len() + self.pending.len() < MOST_GRANTS {
            return Ok(());
        }
        Err(format!("there are {MOST_GRANTS} grants, the most that there can be"))
    }

    /// It is being written down.
    pub(super) fn begin(&mut self, ticket: Ticket, by: Principal, change: Change) {
        self.pending.insert(ticket, (by, change));
    }

    /// It is not written down.
    pub(super) fn fail(&mut self, ticket: Ticket) {
        self.pending.remove(&ticket);
    }

    /// It is written down, and holds from now on. None if that was done meanwhile.
    pub(super) fn finish(&mut self, ticket: Ticket) -> Option<Done> {
        let (by, Change { write, token }) = self.pending.remove(&ticket)?;
        match write {
            AccessChange::Add(granted) => {
                let (shown, what) = (shown(&granted, token), EventKind::Granted(says(&granted)));
                self.granted.insert(granted.principal, granted);
                Some(Done { by, what, shown })
            }
            AccessChange::Revoke(principal) => {
                let granted = self.granted.remove(&principal)?;
                let what = EventKind::Revoked(principal.to_string());
                let shown = shown(&granted, None);
                Some(Done { by, what, shown })
            }
        }
    }
}

/// Who is meant: a user by number, or who comes from elsewhere by name.
fn principal(text: &str) -> Result<Principal, String> {
    if let Ok(uid) = text.parse() {
        return Ok(Principal::User(uid));
    }
    let text: String = text.chars().take(80).collect();
    text.parse().map(Principal::Named).map_err(|error: slackline_service::NameError| {
        format!("`{}` {error}; write a user number such as 1000, or a name", text.escape_debug())
    })
}

/// A token that nobody can guess.
fn new_token() -> Result<String, String> {
    let mut secret = [0; 32];
    let filled = SystemRandom::new().fill(&mut secret);
    filled.map_err(|_| "cannot read random numbers from the kernel".to_owned())?;
    let digits = secret.iter().map(|byte| format!("{byte:02x}"));
    Ok(digits.fold(TOKEN.to_owned(), |token, digits| token + &digits))
}

/// In a line, for the log.
fn says(granted: &Granted) -> String {
    let Granted { principal, role, budget, users, .. } = granted;
    let mut text = format!("{principal} is {}", role.word());
    if let Some(cpu) = budget.cpu {
        text += &format!(", at most {cpu}");
    }
    if let Some(machines) = budget.machines {
        text += &format!(", at most {machines} reservations");
    }
    if !users.is_empty() {
        let users: Vec<String> = users.iter().map(ToString::to_string).collect();
        text += &format!(", also for VMs of uid {}", users.join(", "));
    }
    text
}

fn shown(granted: &Granted, token: Option<String>) -> Shown {
    let ns = |at: SystemTime| {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    };
    Shown {
        principal: granted.principal.to_string(),
        by: match granted.proof {
            None => "socket",
            Some(Proof::Token(_)) => "token",
            Some(Proof::Certificate(_)) => "certificate",
        }
        .into(),
        role: granted.role.into(),
        cpu: granted.budget.cpu.map(Share),
        cpu_ppm: granted.budget.cpu.map(slackline_units::CpuShare::ppm),
        machines: granted.budget.machines,
        users: granted.users.clone(),
        made_ns: ns(granted.made),
        expires_ns: granted.expires.map(ns),
        token,
    }
}

#[cfg(test)]
mod tests {
    use slackline_control::Role as Word;

    use super::*;

    const PEOPLE: People = People { operators: Some(990), administrators: Some(991) };

    fn grant(role: Word, days: Option<u32>) -> Grant {
        Grant { role, cpu: None, machines: Some(2), users: vec![7, 5, 7], days, certificate: None }
    }

    fn added(access: &mut Access, whom: &str, grant: Grant, now: SystemTime) -> Done {
        let change = Access::grant(whom, grant, now).unwrap();
        access.begin(Ticket(1), Principal::User(0), change);
        access.finish(Ticket(1)).unwrap()
    }

    #[test]
    fn what_is_said_of_somebody_counts_until_it_expires_and_lets_no_stranger_in() {
        let mut access = Access::new(PEOPLE, Vec::new(), false);
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let done = added(&mut access, "1000", grant(Word::Viewer, Some(2)), now);
        let said = "granted: uid 1000 is viewer, at most 2 reservations, \
                    also for VMs of uid 5, 7";
        assert_eq!(done.what.to_string(), said);
        let role = |access: &Access, uid, gids: &[u32], at| {
            let who = Who::User { uid, gids: gids.to_vec() };
            access.rights(&who, at).map(|rights| (rights.role, rights.users))
        };
        assert_eq!(role(&access, 1000, &[990], now), Some((Role::Viewer, vec![5, 7])));
        assert_eq!(role(&access, 1000, &[], now), None, "who is in no group is a stranger");
        let later = now + Duration::from_secs(2 * 24 * 3600);
        assert_eq!(role(&access, 1000, &[990], later), Some((Role::Operator, Vec::new())));
        assert_eq!(access.budgets()[&Principal::User(1000)].machines, Some(2));
        let change = access.revoke("1000").unwrap().unwrap();
        access.begin(Ticket(2), Principal::User(0), change);
        // Until it is written down it is as it was.
        assert_eq!(role(&access, 1000, &[990], now), Some((Role::Viewer, vec![5, 7])));
        assert!(access.finish(Ticket(2)).is_some() && access.revoke("1000").unwrap().is_none());
        assert_eq!(role(&access, 1000, &[990], now), Some((Role::Operator, Vec::new())));
    }

    #[test]
    fn grants_have_a_bound_and_known_principals_are_changed_beyond_it() {
        let mut access = Access::new(PEOPLE, Vec::new(), false);
        for uid in 1..=MOST_GRANTS {
            let change = Access::grant(&uid.to_string(), grant(Word::Viewer, None), UNIX_EPOCH);
            let change = change.unwrap();
            access.check_room(&change).unwrap();
            access.begin(Ticket(1), Principal::User(0), change);
            access.finish(Ticket(1)).unwrap();
        }
        let check = |whom: &str| {
            let change = Access::grant(whom, grant(Word::Operator, None), UNIX_EPOCH).unwrap();
            access.check_room(&change)
        };
        assert!(check("1").is_ok());
        assert_eq!(check("5000").unwrap_err(), "there are 1000 grants, the most that there can be");
        assert!(check("alice").is_err());
    }

    #[test]
    fn member_without_a_grant_is_a_tenant_once_access_is_migrated() {
        let mut access = Access::new(PEOPLE, Vec::new(), false);
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        added(&mut access, "1001", grant(Word::Operator, None), now);
        let role = |access: &Access, uid, group| {
            access.rights(&Who::User { uid, gids: vec![group] }, now).map(|rights| rights.role)
        };
        assert_eq!(role(&access, 1000, 990), Some(Role::Operator));
        let members = [("ann".to_owned(), Some(1000)), ("bob".to_owned(), Some(1001))];
        let owners = [Principal::User(0), Principal::User(1000)];
        let lines = access.would_lose(&members, &owners);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("ann ") && lines[0].contains("(1 now)"), "{lines:?}");
        access.migrate();
        assert_eq!(role(&access, 1000, 990), Some(Role::Tenant));
        assert_eq!(role(&access, 1001, 990), Some(Role::Operator), "a grant keeps its role");
        assert_eq!(role(&access, 1000, 991), Some(Role::Administrator));
        assert_eq!(role(&access, 0, 990), Some(Role::Administrator));
        assert!(access.would_lose(&members, &owners).is_empty());
    }

    #[test]
    fn root_is_not_to_be_limited_and_days_have_bounds() {
        let now = UNIX_EPOCH;
        assert!(Access::grant("0", grant(Word::Viewer, None), now).is_err());
        assert!(Access::grant("Alice", grant(Word::Viewer, None), now).is_err());
        let error = Access::grant("1", grant(Word::Viewer, Some(0)), now).unwrap_err();
        assert_eq!(error, "0 days are not from 1 to 36500");
        assert!(Access::grant("1", grant(Word::Viewer, Some(36_501)), now).is_err());
    }

    #[test]
    fn a_token_is_told_once_and_only_its_hash_is_kept() {
        let mut access = Access::new(PEOPLE, Vec::new(), false);
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let Done { shown, what, .. } =
            added(&mut access, "alice", grant(Word::Operator, Some(1)), now);
        let token = shown.token.unwrap();
        assert!(token.starts_with("slk_") && token.len() == 68, "{token}");
        let kept = format!("{:?} {:?} {what}", access.granted, access.listed());
        assert!(!kept.contains(&token[4..]), "{kept}");
        let shows = |access: &Access, token: &str, at| {
            access.rights(&Who::Token(known_by(token.as_bytes())), at).map(|it| it.principal)
        };
        let alice = Principal::Named("alice".parse().unwrap());
        assert_eq!(shows(&access, &token, now), Some(alice));
        assert_eq!(shows(&access, "slk_another", now), None);
        // The same hash, of a certificate, is nobody's.
        let certificate = Who::Certificate(known_by(token.as_bytes()));
        assert_eq!(access.rights(&certificate, now), None);
        assert_eq!(shows(&access, &token, now + Duration::from_secs(24 * 3600)), None, "expired");
        // Another one takes its place.
        let next = added(&mut access, "alice", grant(Word::Operator, None), now);
        let next = next.shown.token.unwrap();
        assert_eq!((shows(&access, &token, now), shows(&access, &next, now)), (None, Some(alice)));
        let change = access.revoke("alice").unwrap().unwrap();
        access.begin(Ticket(2), Principal::User(0), change);
        access.finish(Ticket(2)).unwrap();
        assert_eq!(shows(&access, &next, now), None);
    }
}
