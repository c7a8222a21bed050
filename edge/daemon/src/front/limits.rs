//! Limits on the connections, streams and requests of each principal, and of all principals
//! together.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slackline_service::Role;
use tokio::sync::Notify;

pub(super) use super::remotes::{Owner, counted_address};

use super::remotes::{REMOTE, REMOTE_EACH, Remotes};

/// Maximum number of connections through the local socket and from other hosts together.
const CONNECTIONS: usize = 64;

/// Part of [`CONNECTIONS`] that is kept free for local administrators. One administrator may have
/// this number of connections.
const KEPT: usize = 8;

/// Maximum number of connections of one principal, or of one address on another host. Local
/// administrators have a higher limit.
const CONNECTIONS_EACH: usize = 4;

/// Maximum number of event streams of one principal.
const STREAMS_EACH: usize = 2;

/// Maximum number of requests that a principal may send in a burst after a pause.
const BURST: u32 = 100;

/// Time after which a principal may send one more request. It allows fifty requests per second.
const A_REQUEST: Duration = Duration::from_millis(20);

/// Weight of a request to the metrics address in the rate limit: it counts as five other requests.
/// Its answer takes more work than other answers, and any user can send such requests.
const WEIGHT_OF_METRICS: u32 = 5;

/// Number of known principals above which the front forgets those that have no connections and no
/// recent requests.
const MOST_PRINCIPALS: usize = 1_024;

/// Maximum number of connections that a user may open in a burst after a pause.
const CONNECTING_BURST: u32 = 200;

/// Time after which a user may open one more connection. It allows a hundred connections per
/// second.
const A_CONNECTION: Duration = Duration::from_millis(10);

/// Number of requests with unknown credentials that an address may send within [`A_WHILE`].
const FAILURES: u32 = 5;
const A_WHILE: Duration = Duration::from_secs(60);

/// Maximum number of addresses whose requests with unknown credentials are counted.
const ADDRESSES: usize = 1024;

/// Current connections, streams and request rates of all principals.
#[derive(Debug, Default)]
pub(super) struct Limits {
    /// Number of open connections of local users.
    connections: usize,
    of: BTreeMap<Owner, Had>,
    remotes: Remotes,
    /// Number of requests with unknown credentials from each address within a minute, and the time
    /// at which that minute began.
    failed: BTreeMap<IpAddr, (u32, Instant)>,
}

/// Present connections, streams and request rate of one principal.
#[derive(Debug, Default)]
struct Had {
    connections: usize,
    streams: usize,
    /// State of the rate limit for requests: the time at which all requests so far would be allowed
    /// at the steady rate. `None` if there were no requests.
    paid: Option<Instant>,
    /// State of the rate limit for connections: the time at which all connections so far would be
    /// allowed at the steady rate. `None` if there were no connections.
    connecting_paid: Option<Instant>,
}

/// Occupied slot: the right to one of a limited number of connections or streams. Dropping the
/// value frees the slot.
#[derive(Debug)]
pub(super) struct HeldSlot {
    limits: Arc<Mutex<Limits>>,
    what: SlotKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SlotKind {
    Connection(Owner),
    Stream(Owner),
    /// Connection from another host. The value is the number of the connection.
    Remote(u64),
}

/// Reason why a principal may not open another connection at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The principal already has the maximum number of connections. The value is that maximum.
    Own(usize),
    /// The front process already has the maximum number of connections. The value is that maximum.
    All(usize),
    /// The principal has opened connections faster than its rate limit allows.
    TooOften,
}

impl Limits {
    /// Takes a connection slot for a local principal, if a slot is free. One administrator may take
    /// up to [`KEPT`] slots. So an administrator can watch, scrape metrics and repair at the same
    /// time.
    ///
    /// # Errors
    /// If the principal or the front process has too many connections, or if the principal connects
    /// too often.
    pub(super) fn connect(
        limits: &Arc<Mutex<Limits>>,
        owner: Owner,
        role: Role,
    ) -> Result<HeldSlot, Full> {
        let (all, each) = match role {
            Role::Administrator => (CONNECTIONS, KEPT),
            Role::Operator | Role::Tenant | Role::Viewer => (CONNECTIONS - KEPT, CONNECTIONS_EACH),
        };
        let mut now = locked(limits);
        let is_full = now.connections + now.remotes.len() >= all;
        let had = now.of.entry(owner.clone()).or_default();
        // The rate comes first: a refusal for this reason needs no answer, so it is the cheapest.
        if role != Role::Administrator && !had.may_connect(Instant::now()) {
            return Err(Full::TooOften);
        }
        if is_full {
            return Err(Full::All(all));
        }
        if had.connections >= each {
            return Err(Full::Own(each));
        }
        had.connections += 1;
        now.connections += 1;
        Ok(HeldSlot { limits: Arc::clone(limits), what: SlotKind::Connection(owner) })
    }

    /// Takes a connection slot for a client at `address` on another host, if a slot is free.
    /// Also returns a notification that is sent when another connection takes over the slot.
    pub(super) fn connect_remote(
        limits: &Arc<Mutex<Limits>>,
        address: IpAddr,
    ) -> Result<(HeldSlot, Arc<Notify>), Full> {
        let (mut now, address) = (locked(limits), counted_address(address));
        if now.remotes.of_address(address) >= CONNECTIONS_EACH {
            return Err(Full::Own(CONNECTIONS_EACH));
        }
        let is_full = now.connections + now.remotes.len() >= CONNECTIONS - KEPT;
        let place = now.remotes.connect(address, Instant::now(), is_full);
        let (number, end) = place.ok_or(Full::All(REMOTE))?;
        Ok((HeldSlot { limits: Arc::clone(limits), what: SlotKind::Remote(number) }, end))
    }

    /// Takes a slot for an event stream. The error is the maximum number of streams of one
    /// principal.
    pub(super) fn stream(limits: &Arc<Mutex<Limits>>, owner: Owner) -> Result<HeldSlot, usize> {
        let mut now = locked(limits);
        let had = now.of.entry(owner.clone()).or_default();
        if had.streams >= STREAMS_EACH {
            return Err(STREAMS_EACH);
        }
        had.streams += 1;
        Ok(HeldSlot { limits: Arc::clone(limits), what: SlotKind::Stream(owner) })
    }

    /// Returns true if the rate limit allows the principal one more request now. In that case,
    /// counts the request.
    pub(super) fn may_ask(&mut self, owner: &Owner, now: Instant) -> bool {
        if self.of.len() >= MOST_PRINCIPALS && !self.of.contains_key(owner) {
            self.of.retain(|_, had| had.is_in_use(now));
        }
        let had = self.of.entry(owner.clone()).or_default();
        let weight = if matches!(owner, Owner::Loopback(_)) { WEIGHT_OF_METRICS } else { 1 };
        let paid = had.paid.map_or(now, |paid| paid.max(now)) + A_REQUEST * weight;
        if paid > now + A_REQUEST * BURST {
            return false;
        }
        had.paid = Some(paid);
        true
    }

    /// Returns true if the principal has used up its rate limit. The call itself is not counted as
    /// a request.
    pub(super) fn is_over_rate(&self, owner: &Owner, now: Instant) -> bool {
        let paid = self.of.get(owner).and_then(|had| had.paid);
        paid.is_some_and(|paid| paid + A_REQUEST > now + A_REQUEST * BURST)
    }

    /// Counts a request with unknown credentials from an address. Returns true if the address has
    /// sent too many such requests within a minute, or if too many other addresses are counted.
    pub(super) fn fails(&mut self, address: IpAddr, now: Instant) -> bool {
        let address = counted_address(address);
        self.failed.retain(|_, (_, since)| now.duration_since(*since) < A_WHILE);
        if self.failed.len() >= ADDRESSES && !self.failed.contains_key(&address) {
            return true;
        }
        let (count, _) = self.failed.entry(address).or_insert((0, now));
        *count = count.saturating_add(1);
        *count > FAILURES
    }
}

impl Had {
    /// Returns true if the principal has a connection or stream, or has used a part of a burst
    /// recently.
    fn is_in_use(&self, now: Instant) -> bool {
        let is_counted = |paid: Option<Instant>| paid.is_some_and(|paid| paid > now);
        self.connections + self.streams > 0
            || is_counted(self.paid)
            || is_counted(self.connecting_paid)
    }

    /// Returns true if the rate limit allows the principal one more connection now. In that case,
    /// counts the connection.
    fn may_connect(&mut self, now: Instant) -> bool {
        let paid = self.connecting_paid.map_or(now, |paid| paid.max(now)) + A_CONNECTION;
        if paid > now + A_CONNECTION * CONNECTING_BURST {
            return false;
        }
        self.connecting_paid = Some(paid);
        true
    }
}

impl HeldSlot {
    /// Assigns an identified caller to this connection, so that the connection keeps its slot.
    ///
    /// # Errors
    /// If the caller already has the maximum number of connections from other hosts. The error is
    /// that maximum.
    pub(super) fn let_in(&self, owner: &Owner) -> Result<(), usize> {
        let SlotKind::Remote(number) = self.what else { return Ok(()) };
        let is_let_in = locked(&self.limits).remotes.let_in(number, Instant::now(), owner);
        if is_let_in { Ok(()) } else { Err(REMOTE_EACH) }
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        let mut now = locked(&self.limits);
        match &self.what {
            SlotKind::Connection(owner) => {
                now.connections -= 1;
                if let Some(had) = now.of.get_mut(owner) {
                    had.connections -= 1;
                }
            }
            SlotKind::Stream(owner) => {
                if let Some(had) = now.of.get_mut(owner) {
                    had.streams -= 1;
                }
            }
            SlotKind::Remote(number) => now.remotes.disconnect(*number, Instant::now()),
        }
    }
}

/// Locks the limits. If a thread panicked while it held the lock, the limits are still consistent,
/// since each change is a single step.
fn locked(limits: &Mutex<Limits>) -> MutexGuard<'_, Limits> {
    limits.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Arc<Mutex<Limits>> {
        Arc::default()
    }

    #[test]
    fn eight_connections_to_the_daemon_are_reserved_for_administrators() {
        let limits = empty();
        let connect = |uid, role| Limits::connect(&limits, Owner::User(uid), role);
        let others: Vec<HeldSlot> =
            (0..56).map(|nth| connect(1000 + nth / 4, Role::Operator).unwrap()).collect();
        assert_eq!(connect(2000, Role::Operator).unwrap_err(), Full::All(56));
        let ours: Vec<HeldSlot> =
            (0..8).map(|_| connect(0, Role::Administrator).unwrap()).collect();
        assert_eq!(connect(1, Role::Administrator).unwrap_err(), Full::All(64));
        drop(others);
        assert_eq!(connect(0, Role::Administrator).unwrap_err(), Full::Own(8));
        drop(ours);
        let mine: Vec<HeldSlot> = (0..4).map(|_| connect(5, Role::Operator).unwrap()).collect();
        assert_eq!(connect(5, Role::Operator).unwrap_err(), Full::Own(4));
        drop(mine);
        assert!(connect(5, Role::Operator).is_ok());
        assert_eq!(locked(&limits).connections, 0);
    }

    #[test]
    fn remote_connections_leave_connection_slots_for_local_users() {
        let limits = empty();
        let connect = |nth: u8| Limits::connect_remote(&limits, IpAddr::from([10, 0, 0, nth]));
        let held: Vec<HeldSlot> = (0..24).map(|nth| connect(nth / 4).unwrap().0).collect();
        assert_eq!(connect(0).unwrap_err(), Full::Own(4));
        let let_in = |(owner, held): (u32, &HeldSlot)| {
            held.let_in(&Owner::User(owner)).unwrap();
        };
        (0..).zip(&held).for_each(let_in);
        let more: Vec<HeldSlot> = (24..32).map(|nth| connect(nth / 4).unwrap().0).collect();
        (100..).zip(&more).for_each(let_in);
        assert_eq!(connect(200).unwrap_err(), Full::All(32));
        assert!(Limits::connect(&limits, Owner::User(1000), Role::Operator).is_ok());
        drop(held);
        assert!(connect(200).is_ok());
        drop(more);
        assert_eq!(locked(&limits).remotes.len(), 0);
    }

    #[test]
    fn user_may_open_200_connections_and_then_100_per_second() {
        let (mut had, begin) = (Had::default(), Instant::now());
        let count = |had: &mut Had, at| (0..1000).filter(|_| had.may_connect(at)).count();
        assert_eq!(count(&mut had, begin), 200);
        assert_eq!(count(&mut had, begin + Duration::from_millis(9)), 0);
        assert_eq!(count(&mut had, begin + Duration::from_secs(1)), 100);
        let limits = empty();
        let connect = |role| Limits::connect(&limits, Owner::User(5), role).err();
        let refused = (0..300).filter_map(|_| connect(Role::Operator)).next();
        assert_eq!(refused, Some(Full::TooOften));
        assert!((0..300).all(|_| connect(Role::Administrator).is_none()));
    }

    #[test]
    fn address_with_six_unknown_credentials_per_minute_is_delayed() {
        let mut limits = Limits::default();
        let (begin, address) = (Instant::now(), IpAddr::from([10, 0, 0, 1]));
        let slow = (0..8).filter(|_| limits.fails(address, begin)).count();
        assert_eq!(slow, 3);
        assert!(
            !limits.fails(IpAddr::from([10, 0, 0, 2]), begin),
            "each address has its own count"
        );
        assert!(!limits.fails(address, begin + Duration::from_secs(61)));
        for number in 0..5000_u32 {
            limits.fails(IpAddr::from(number.to_be_bytes()), begin + Duration::from_secs(61));
        }
        assert!(limits.failed.len() <= ADDRESSES);
    }

    #[test]
    fn third_event_stream_of_one_user_is_refused() {
        let limits = empty();
        let first = Limits::stream(&limits, Owner::User(7)).unwrap();
        let _second = Limits::stream(&limits, Owner::User(7)).unwrap();
        assert_eq!(Limits::stream(&limits, Owner::User(7)).unwrap_err(), 2);
        assert!(Limits::stream(&limits, Owner::User(8)).is_ok());
        drop(first);
        assert!(Limits::stream(&limits, Owner::User(7)).is_ok());
    }

    #[test]
    fn user_may_send_100_requests_and_then_50_per_second() {
        let mut limits = Limits::default();
        let begin = Instant::now();
        let count = |limits: &mut Limits, at| {
            (0..1000).filter(|_| limits.may_ask(&Owner::User(1), at)).count()
        };
        assert!(!limits.is_over_rate(&Owner::User(1), begin));
        assert_eq!(count(&mut limits, begin), 100);
        assert!(limits.is_over_rate(&Owner::User(1), begin));
        assert!(!limits.is_over_rate(&Owner::User(1), begin + Duration::from_secs(1)));
        assert!(limits.may_ask(&Owner::User(2), begin), "each user has a separate limit");
        assert_eq!(count(&mut limits, begin + Duration::from_millis(19)), 0);
        assert_eq!(count(&mut limits, begin + Duration::from_secs(1)), 50);
        assert_eq!(count(&mut limits, begin + Duration::from_secs(60)), 100);
    }
    #[test]
    fn each_unauthenticated_web_client_has_its_own_request_limit() {
        let (mut limits, begin) = (Limits::default(), Instant::now());
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let mut count = |owner| (0..1000).filter(|_| limits.may_ask(&owner, begin)).count();
        assert_eq!(count(Owner::Visitor(Some(5001))), 100);
        assert_eq!(count(Owner::Visitor(Some(5002))), 100);
        assert_eq!(count(Owner::RemoteVisitor(address(1))), 100);
        assert_eq!(count(Owner::RemoteVisitor(address(2))), 100);
        assert_eq!(count(Owner::Loopback(Some(5001))), 20);
        assert_eq!(count(Owner::Loopback(Some(5002))), 20);
    }

    #[test]
    fn principals_without_recent_requests_are_forgotten() {
        let (mut limits, begin) = (Limits::default(), Instant::now());
        let from = |number: u32| Owner::RemoteVisitor(IpAddr::from(number.to_be_bytes()));
        for number in 0..100_000_u32 {
            let now = begin + Duration::from_millis(number.into());
            assert!(limits.may_ask(&from(number), now));
        }
        assert!(limits.of.len() <= MOST_PRINCIPALS, "{}", limits.of.len());
    }
}
