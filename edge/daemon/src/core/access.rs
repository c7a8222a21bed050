//! Permissions of callers. A caller has permissions through groups, or through a grant by an
//! administrator.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom, SystemRandom};
use slackline_control::link::CallerIdentity;
use slackline_control::{Grant, Share};
use slackline_service::{Budget, Budgets, EventKind, Principal, Role, Ticket};

use crate::front::tls::{TOKEN, known_by};
use crate::ledger::{AccessChange, AccessGrant, Proof};
use crate::people::People;

/// Maximum number of group members that the daemon lists in its log when it starts.
const MOST_LINES: usize = 20;

/// Maximum number of grants. Each grant is a row of the ledger.
const MOST_GRANTS: usize = 1_000;

/// Maximum number of users in one grant.
const MOST_USERS: usize = 1_000;

/// Maximum validity of a grant in days. A grant without a number of days does not expire.
const MOST_DAYS: u32 = 36_500;

/// Grants of access, and changes to them that the ledger has not written yet.
pub(super) struct Access {
    people: People,
    /// True if a member of the operators' group without a grant has the role of a tenant. If false,
    /// such a member has the role of an operator.
    has_tenants: bool,
    granted: BTreeMap<Principal, AccessGrant>,
    /// Changes that the ledger has not written yet, each with the principal that requested the
    /// change. The key is the ticket of the request.
    pending: BTreeMap<Ticket, (Principal, Change)>,
}

/// A change to grants. If the change creates a remote client with a token, it contains that token,
/// which is shown only in the answer to the request.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) write: AccessChange,
    token: Option<String>,
}

/// Identity and permissions of a caller of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    pub(super) principal: Principal,
    pub(super) role: Role,
    /// Ids of other users for whose VMs the caller may make reservations. No entry is needed for
    /// the caller's own VMs.
    pub(super) users: Vec<u32>,
}

/// A change to grants that has been written to the ledger.
pub(super) struct Done {
    pub(super) by: Principal,
    pub(super) whom: Principal,
    pub(super) what: EventKind,
    /// The grant after the change. If the grant was revoked, the grant before the change.
    pub(super) shown: slackline_control::Access,
}

impl Access {
    pub(super) fn new(people: People, granted: Vec<AccessGrant>, has_tenants: bool) -> Access {
        let granted = granted.into_iter().map(|granted| (granted.principal, granted)).collect();
        Access { people, has_tenants, granted, pending: BTreeMap::new() }
    }

    /// Gives members of the operators' group without a grant the role of a tenant from now on.
    pub(super) fn migrate(&mut self) {
        self.has_tenants = true;
    }

    /// Returns one line for each member of the operators' group that [`migrate`](Access::migrate)
    /// would make a tenant. The line states the rights that the member would lose. If there are
    /// more than [`MOST_LINES`] such members, the last line states how many members have no line.
    /// `owners` contains the owner of each reservation.
    pub(super) fn would_lose(
        &self,
        members: &[(String, Option<u32>)],
        owners: &[Principal],
        now: SystemTime,
    ) -> Vec<String> {
        if self.has_tenants {
            return Vec::new();
        }
        let is_granted = |uid: u32| {
            let said = self.granted.get(&Principal::User(uid));
            uid == 0 || said.is_some_and(|said| is_valid(said, now))
        };
        let members = members.iter().filter(|(_, uid)| !uid.is_some_and(is_granted));
        let members: Vec<&(String, Option<u32>)> = members.collect();
        let more = members.len().saturating_sub(MOST_LINES);
        let line = |(name, uid): &(String, Option<u32>)| {
            let own = uid.map(Principal::User);
            let others = owners.iter().filter(|owner| Some(**owner) != own).count();
            let reservations = if others == 1 { "reservation" } else { "reservations" };
            format!(
                "{name} is an operator without a grant. After `slackline access migrate`, {name} \
                 is a tenant: no access to the log, and no changes to the {others} {reservations} \
                 of other owners"
            )
        };
        let lines = members.into_iter().take(MOST_LINES).map(line);
        let rest = (more > 0).then(|| format!("{more} more operators would become tenants"));
        lines.chain(rest).collect()
    }

    /// Replaces the ids of the groups whose members have permissions.
    pub(super) fn set_people(&mut self, people: People) {
        self.people = people;
    }

    /// Returns the identity and permissions of a caller. `None` if the caller has no permission at
    /// all. A grant to a user of this host replaces the permissions from the user's groups until
    /// the grant expires. Root always has all permissions, since root could edit the ledger anyway.
    pub(super) fn rights(&self, who: &CallerIdentity, now: SystemTime) -> Option<Rights> {
        let counts = |said: &&AccessGrant| is_valid(said, now);
        let of = |said: &AccessGrant| Rights {
            principal: said.principal,
            role: said.role,
            users: said.users.clone(),
        };
        let proof = match who {
            CallerIdentity::User { uid, gids } => {
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
            CallerIdentity::Loopback => return None,
            CallerIdentity::Token(known) => Proof::Token(known.clone()),
            CallerIdentity::Certificate(known) => Proof::Certificate(known.clone()),
        };
        let said = self.granted.values().find(|said| said.proof.as_ref() == Some(&proof));
        said.filter(counts).map(of)
    }

    /// Returns the limits on reservations, for each owner that has limits. The limits of an expired
    /// grant remain in force. Otherwise its owner would have no limit.
    pub(super) fn budgets(&self) -> Budgets {
        let limited = self.granted.values().filter(|granted| granted.budget != Budget::default());
        limited.map(|granted| (granted.principal, granted.budget)).collect()
    }

    /// Returns all grants, including expired grants.
    pub(super) fn listed(&self) -> Vec<slackline_control::Access> {
        self.granted.values().map(|granted| shown(granted, None)).collect()
    }

    /// Returns the change that gives `grant` to the principal `whom`.
    ///
    /// # Errors
    /// If the name, the number of days or the certificate is not valid, or `whom` is root.
    pub(super) fn grant(whom: &str, grant: Grant, now: SystemTime) -> Result<Change, String> {
        let Grant { role, cpu, machines, mut users, days, certificate } = grant;
        let principal = principal(whom)?;
        if principal == Principal::User(0) {
            return Err("root needs no grant: root always has all permissions".into());
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
            return Err(format!("cannot grant for {days} days: 1 to {MOST_DAYS} are allowed"));
        }
        users.sort_unstable();
        users.dedup();
        if users.len() > MOST_USERS {
            let is = users.len();
            return Err(format!("cannot grant for VMs of {is} users: the maximum is {MOST_USERS}"));
        }
        let day = Duration::from_secs(24 * 3600);
        let expires = days.and_then(|days| now.checked_add(day * days));
        let budget = Budget { cpu: cpu.map(|cpu| cpu.0), machines };
        let (role, made) = (role.into(), now);
        let granted = AccessGrant { principal, role, budget, users, proof, made, expires };
        Ok(Change { write: AccessChange::Add(granted), token })
    }

    /// Returns the change that revokes the grant of `whom`. `None` if `whom` has no grant.
    ///
    /// # Errors
    /// If `whom` is neither a user number nor a valid name.
    pub(super) fn revoke(&self, whom: &str) -> Result<Option<Change>, String> {
        let principal = principal(whom)?;
        let change = Change { write: AccessChange::Revoke(principal), token: None };
        Ok(self.granted.contains_key(&principal).then_some(change))
    }

    /// Checks that the number of grants stays within the maximum if this change and all pending
    /// changes are made.
    ///
    /// # Errors
    /// If `change` adds a grant for a principal without one, and the grants and pending changes
    /// already add up to [`MOST_GRANTS`].
    pub(super) fn check_room(&self, change: &Change) -> Result<(), String> {
        let AccessChange::Add(granted) = &change.write else { return Ok(()) };
        let is_known = self.granted.contains_key(&granted.principal);
        if is_known || self.granted.len() + self.pending.len() < MOST_GRANTS {
            return Ok(());
        }
        Err(format!("cannot add a grant: there are {MOST_GRANTS} grants, which is the maximum"))
    }

    /// Stores a change while it is being written to the ledger. The change takes effect in
    /// [`finish`](Access::finish).
    pub(super) fn begin(&mut self, ticket: Ticket, by: Principal, change: Change) {
        self.pending.insert(ticket, (by, change));
    }

    /// Drops a pending change that could not be written to the ledger.
    pub(super) fn fail(&mut self, ticket: Ticket) {
        self.pending.remove(&ticket);
    }

    /// Applies a pending change that the ledger has written. `None` if another change has already
    /// revoked the grant that this change revokes.
    pub(super) fn finish(&mut self, ticket: Ticket) -> Option<Done> {
        let (by, Change { write, token }) = self.pending.remove(&ticket)?;
        match write {
            AccessChange::Add(granted) => {
                let (shown, what) = (shown(&granted, token), EventKind::Granted(says(&granted)));
                let whom = granted.principal;
                self.granted.insert(whom, granted);
                Some(Done { by, whom, what, shown })
            }
            AccessChange::Revoke(whom) => {
                let granted = self.granted.remove(&whom)?;
                let what = EventKind::Revoked(whom.to_string());
                let shown = shown(&granted, None);
                Some(Done { by, whom, what, shown })
            }
        }
    }
}

/// Returns true if a grant has not expired.
fn is_valid(granted: &AccessGrant, now: SystemTime) -> bool {
    granted.expires.is_none_or(|expires| now < expires)
}

/// Parses a principal: a user number, or the name of a remote client.
fn principal(text: &str) -> Result<Principal, String> {
    if let Ok(uid) = text.parse() {
        return Ok(Principal::User(uid));
    }
    let text: String = text.chars().take(80).collect();
    text.parse().map(Principal::Named).map_err(|error: slackline_service::NameError| {
        format!("`{}` {error}; write a user number such as 1000, or a name", text.escape_debug())
    })
}

/// Returns a new random token of 256 bits.
fn new_token() -> Result<String, String> {
    let mut secret = [0; 32];
    let filled = SystemRandom::new().fill(&mut secret);
    filled.map_err(|_| "cannot read random numbers from the kernel".to_owned())?;
    let digits = secret.iter().map(|byte| format!("{byte:02x}"));
    Ok(digits.fold(TOKEN.to_owned(), |token, digits| token + &digits))
}

/// Describes a grant in one line, for the log.
fn says(granted: &AccessGrant) -> String {
    let AccessGrant { principal, role, budget, users, .. } = granted;
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

fn shown(granted: &AccessGrant, token: Option<String>) -> slackline_control::Access {
    let ns = |at: SystemTime| {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    };
    slackline_control::Access {
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

    use super::*;

    const PEOPLE: People = People { operators: Some(990), administrators: Some(991) };

    fn grant(role: slackline_control::Role, days: Option<u32>) -> Grant {
        Grant { role, cpu: None, machines: Some(2), users: vec![7, 5, 7], days, certificate: None }
    }

    fn added(access: &mut Access, whom: &str, grant: Grant, now: SystemTime) -> Done {
        let change = Access::grant(whom, grant, now).unwrap();
        access.begin(Ticket(1), Principal::User(0), change);
        access.finish(Ticket(1)).unwrap()
    }

    #[test]
    fn access_grant_overrides_group_role_until_grant_expires() {
        let mut access = Access::new(PEOPLE, Vec::new(), false);
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let done = added(&mut access, "1000", grant(slackline_control::Role::Viewer, Some(2)), now);
        let said = "granted: uid 1000 is viewer, at most 2 reservations, \
                    also for VMs of uid 5, 7";
        assert_eq!(done.what.to_string(), said);
        let role = |access: &Access, uid, gids: &[u32], at| {
            let who = CallerIdentity::User { uid, gids: gids.to_vec() };
            access.rights(&who, at).map(|rights| (rights.role, rights.users))
        };
        assert_eq!(role(&access, 1000, &[990], now), Some((Role::Viewer, vec![5, 7])));
        assert_eq!(role(&access, 1000, &[], now), None, "a user in neither group has no role");
        let later = now + Duration::from_secs(2 * 24 * 3600);
        assert_eq!(role(&access, 1000, &[990], later), Some((Role::Operator, Vec::new())));
        assert_eq!(access.budgets()[&Principal::User(1000)].machines, Some(2));
        let change = access.revoke("1000").unwrap().unwrap();
        access.begin(Ticket(2), Principal::User(0), change);
        // A revocation has no effect until it is written.
        assert_eq!(role(&access, 1000, &[990], now), Some((Role::Viewer, vec![5, 7])));
        assert!(access.finish(Ticket(2)).is_some() && access.revoke("1000").unwrap().is_none());
        assert_eq!(role(&access, 1000, &[990], now), Some((Role::Operator, Vec::new())));
    }

    #[test]
    fn full_list_of_access_grants_accepts_changes_but_no_additions() {
        let mut access = Access::new(PEOPLE, Vec::new(), false);
        for uid in 1..=MOST_GRANTS {
            let change = Access::grant(
                &uid.to_string(),
                grant(slackline_control::Role::Viewer, None),
                UNIX_EPOCH,
            );
            let change = change.unwrap();
            access.check_room(&change).unwrap();
            access.begin(Ticket(1), Principal::User(0), change);
            access.finish(Ticket(1)).unwrap();
        }
        let check = |whom: &str| {
            let change =
                Access::grant(whom, grant(slackline_control::Role::Operator, None), UNIX_EPOCH)
                    .unwrap();
            access.check_room(&change)
        };
        assert!(check("1").is_ok());
        let says = "cannot add a grant: there are 1000 grants, which is the maximum";
        assert_eq!(check("5000").unwrap_err(), says);
        assert!(check("alice").is_err());
    }

    #[test]
    fn group_member_without_grant_becomes_tenant_after_access_migration() {
        let mut access = Access::new(PEOPLE, Vec::new(), false);
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        added(&mut access, "1001", grant(slackline_control::Role::Operator, None), now);
        let role = |access: &Access, uid, group| {
            access
                .rights(&CallerIdentity::User { uid, gids: vec![group] }, now)
                .map(|rights| rights.role)
        };
        assert_eq!(role(&access, 1000, 990), Some(Role::Operator));
        let members = [("ann".to_owned(), Some(1000)), ("bob".to_owned(), Some(1001))];
        let owners = [Principal::User(0), Principal::User(1000)];
        let lines = access.would_lose(&members, &owners, now);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].starts_with("ann ")
                && lines[0].ends_with("no changes to the 1 reservation of other owners"),
            "{lines:?}"
        );
        access.migrate();
        assert_eq!(role(&access, 1000, 990), Some(Role::Tenant));
        assert_eq!(
            role(&access, 1001, 990),
            Some(Role::Operator),
            "a user with a grant keeps the granted role"
        );
        assert_eq!(role(&access, 1000, 991), Some(Role::Administrator));
        assert_eq!(role(&access, 0, 990), Some(Role::Administrator));
        assert!(access.would_lose(&members, &owners, now).is_empty());
    }

    #[test]
    fn access_migration_preview_lists_twenty_affected_operators_and_counts_others() {
        let mut access = Access::new(PEOPLE, Vec::new(), false);
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        added(&mut access, "1000", grant(slackline_control::Role::Viewer, Some(2)), now);
        let ann = [("ann".to_owned(), Some(1000))];
        assert!(access.would_lose(&ann, &[], now).is_empty());
        let later = now + Duration::from_secs(2 * 24 * 3600);
        assert_eq!(access.would_lose(&ann, &[], later).len(), 1, "the grant has expired");
        let many: Vec<(String, Option<u32>)> =
            (2_000..2_023).map(|uid| (format!("user-{uid}"), Some(uid))).collect();
        let lines = access.would_lose(&many, &[], now);
        assert_eq!(lines.len(), 21);
        assert_eq!(lines[20], "3 more operators would become tenants");
    }

    #[test]
    fn access_grant_to_root_or_with_invalid_duration_is_refused() {
        let now = UNIX_EPOCH;
        assert!(Access::grant("0", grant(slackline_control::Role::Viewer, None), now).is_err());
        assert!(Access::grant("Alice", grant(slackline_control::Role::Viewer, None), now).is_err());
        let error =
            Access::grant("1", grant(slackline_control::Role::Viewer, Some(0)), now).unwrap_err();
        assert_eq!(error, "cannot grant for 0 days: 1 to 36500 are allowed");
        assert!(
            Access::grant("1", grant(slackline_control::Role::Viewer, Some(36_501)), now).is_err()
        );
    }

    #[test]
    fn number_of_users_in_one_access_grant_is_limited() {
        let of = |users| Grant {
            users: (0..users).collect(),
            ..grant(slackline_control::Role::Tenant, None)
        };
        assert!(Access::grant("1", of(1_000), UNIX_EPOCH).is_ok());
        let error = Access::grant("1", of(1_001), UNIX_EPOCH).unwrap_err();
        assert_eq!(error, "cannot grant for VMs of 1001 users: the maximum is 1000");
    }

    #[test]
    fn access_token_is_shown_once_and_stored_only_as_hash() {
        let mut access = Access::new(PEOPLE, Vec::new(), false);
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let Done { shown, what, .. } =
            added(&mut access, "alice", grant(slackline_control::Role::Operator, Some(1)), now);
        let token = shown.token.unwrap();
        assert!(token.starts_with("slk_") && token.len() == 68, "{token}");
        let kept = format!("{:?} {:?} {what}", access.granted, access.listed());
        assert!(!kept.contains(&token[4..]), "{kept}");
        let shows = |access: &Access, token: &str, at| {
            access
                .rights(&CallerIdentity::Token(known_by(token.as_bytes())), at)
                .map(|it| it.principal)
        };
        let alice = Principal::Named("alice".parse().unwrap());
        assert_eq!(shows(&access, &token, now), Some(alice));
        assert_eq!(shows(&access, "slk_another", now), None);
        // A certificate with the same hash is not accepted as the token.
        let certificate = CallerIdentity::Certificate(known_by(token.as_bytes()));
        assert_eq!(access.rights(&certificate, now), None);
        assert_eq!(shows(&access, &token, now + Duration::from_secs(24 * 3600)), None, "expired");
        // A new grant replaces the token.
        let next = added(&mut access, "alice", grant(slackline_control::Role::Operator, None), now);
        let next = next.shown.token.unwrap();
        assert_eq!((shows(&access, &token, now), shows(&access, &next, now)), (None, Some(alice)));
        let change = access.revoke("alice").unwrap().unwrap();
        access.begin(Ticket(2), Principal::User(0), change);
        access.finish(Ticket(2)).unwrap();
        assert_eq!(shows(&access, &next, now), None);
    }
}
