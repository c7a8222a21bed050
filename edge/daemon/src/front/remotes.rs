//! Connections from other hosts, and the slots that they occupy.
//!
//! A connection gets a slot when it is accepted, but its caller is identified only after a TLS
//! handshake and a first request. If all slots are occupied, a new connection takes over the slot
//! of a connection whose caller is not identified yet. The address with the most such connections
//! loses one of them first. If several addresses have equally many, an address that has recently
//! ended a connection without being identified loses first. Some slots are reserved for addresses
//! that were identified recently.
//!
//! An IPv6 network of 64 bits counts as one address, since one host can use all its addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Maximum number of connections from other hosts. The remaining connections of the front process
/// are for local users.
pub(super) const REMOTE: usize = 32;

/// Maximum number of connections of one principal from all addresses together.
pub(super) const REMOTE_EACH: usize = 8;

/// Number of connections that each principal keeps when a connection from an unknown address needs
/// a slot.
const KEPT_EACH: usize = 4;

/// Maximum number of connections from addresses that were not identified recently.
const OF_UNKNOWN: usize = 24;

/// Time for which the only connection of an address keeps its slot, even if a new connection needs
/// a slot.
const SOON: Duration = Duration::from_millis(250);

/// Time for which an address counts as known after a caller at the address was identified.
const LATELY: Duration = Duration::from_secs(24 * 3600);

/// Maximum number of addresses that are remembered as known. The same maximum applies to silent
/// addresses.
const ADDRESSES: usize = 1024;

/// Time for which an address counts as silent. An address becomes silent when one of its
/// connections ends, or loses its slot, before its caller was identified.
const SILENT: Duration = Duration::from_secs(10);

/// Principal, or group of callers without identity, to which limits apply.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// A user of this host.
    User(u32),
    /// Processes of one user of this host that use the loopback address for metrics. `None` stands
    /// for all such processes whose user is unknown.
    Loopback(Option<u32>),
    /// Browsers without a session that one user of this host runs. `None` stands for all such
    /// browsers whose user is unknown.
    Visitor(Option<u32>),
    /// Browsers without a session on another host, at this address.
    RemoteVisitor(IpAddr),
    /// A remote client, identified by the hash of its credential.
    Proof(String),
}

/// All connections from other hosts.
#[derive(Debug, Default)]
pub(super) struct Remotes {
    next: u64,
    of: BTreeMap<u64, RemoteConnection>,
    /// For each known address, the time at which a caller at the address was last identified.
    known: BTreeMap<IpAddr, Instant>,
    /// For each silent address, the time at which a connection from it last ended without an
    /// identified caller.
    silent: BTreeMap<IpAddr, Instant>,
}

#[derive(Debug)]
struct RemoteConnection {
    address: IpAddr,
    since: Instant,
    /// Principal that was identified as the caller of the connection. `None` if no caller was
    /// identified yet.
    owner: Option<Owner>,
    /// Notifies the connection when it has lost its slot.
    end: Arc<Notify>,
}

/// Returns the address to which a client's connections are counted. For an IPv6 address, it is the
/// network of 64 bits that contains the address.
pub(super) fn counted_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64))
        }
        address => address,
    }
}

impl Remotes {
    /// Returns the number of connections from other hosts.
    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    /// Returns the number of connections of an address.
    pub(super) fn of_address(&self, address: IpAddr) -> usize {
        self.of.values().filter(|remote| remote.address == address).count()
    }

    /// Gives a slot to a new connection from `address`. If needed, takes the slot from another
    /// connection. `is_full` is true if the front process has the maximum number of connections.
    ///
    /// Returns the number of the connection, and a notification that is sent if the connection
    /// loses its slot. Returns `None` if the connection gets no slot.
    pub(super) fn connect(
        &mut self,
        address: IpAddr,
        now: Instant,
        is_full: bool,
    ) -> Option<(u64, Arc<Notify>)> {
        let is_known = self.is_known(address, now);
        let unknown = self.of.values().filter(|remote| !self.is_known(remote.address, now));
        let is_full =
            is_full || self.of.len() >= REMOTE || !is_known && unknown.count() >= OF_UNKNOWN;
        if is_full {
            let victim = self.victim((address, is_known), now)?;
            let victim = self.of.remove(&victim)?;
            self.note_silent(&victim, now);
            victim.end.notify_one();
        }
        let (number, end) = (self.next, Arc::new(Notify::new()));
        self.next += 1;
        let remote = RemoteConnection { address, since: now, owner: None, end: Arc::clone(&end) };
        self.of.insert(number, remote);
        Some((number, end))
    }

    /// Removes a connection that has ended. Does nothing if the connection has lost its slot
    /// before.
    pub(super) fn disconnect(&mut self, number: u64, now: Instant) {
        if let Some(remote) = self.of.remove(&number) {
            self.note_silent(&remote, now);
        }
    }

    /// Stores `owner` as the identified caller of a connection. If the owner already has
    /// [`REMOTE_EACH`] other connections, returns false, and the caller of this connection still
    /// counts as not identified.
    pub(super) fn let_in(&mut self, number: u64, now: Instant, owner: &Owner) -> bool {
        let is_of_owner = |remote: &RemoteConnection| remote.owner.as_ref() == Some(owner);
        let others = self.of.iter().filter(|(other, _)| **other != number);
        let held = others.filter(|(_, remote)| is_of_owner(remote)).count();
        // A connection that has just lost its slot is about to end.
        let Some(remote) = self.of.get_mut(&number) else { return true };
        if held >= REMOTE_EACH {
            return false;
        }
        remote.owner = Some(owner.clone());
        self.silent.remove(&remote.address);
        note(&mut self.known, remote.address, now);
        true
    }

    fn note_silent(&mut self, ended: &RemoteConnection, now: Instant) {
        if ended.owner.is_none() {
            note(&mut self.silent, ended.address, now);
        }
    }

    fn is_silent(&self, address: IpAddr, now: Instant) -> bool {
        let at = self.silent.get(&address);
        at.is_some_and(|at| now.saturating_duration_since(*at) < SILENT)
    }

    fn is_known(&self, address: IpAddr, now: Instant) -> bool {
        let at = self.known.get(&address);
        at.is_some_and(|at| now.saturating_duration_since(*at) < LATELY)
    }

    /// Returns the connection that must give its slot to a new connection from `address`. `None` if
    /// the new connection gets no slot. `is_known` is true if a caller at `address` was identified
    /// recently.
    ///
    /// Connections whose caller is not identified lose their slots first. Of these, connections
    /// from unknown addresses come first. Connections from known addresses follow only if
    /// `is_known` is true. The address with the most such connections loses its oldest one. If
    /// several addresses have equally many, a silent address (see [`SILENT`]) loses first. An
    /// address with only one such connection keeps it for [`SOON`]. The one exception is a silent
    /// address, if `address` is not silent.
    ///
    /// If no connection is found by these rules, the principal with the most connections loses its
    /// oldest one. Each principal keeps one connection if `is_known` is true, and [`KEPT_EACH`]
    /// connections if not.
    fn victim(&self, (address, is_known): (IpAddr, bool), now: Instant) -> Option<u64> {
        let unknown = self.unidentified(address, now, false);
        let known = || self.unidentified(address, now, true).filter(|_| is_known);
        let kept = if is_known { 1 } else { KEPT_EACH };
        unknown.or_else(known).or_else(|| self.of_largest_owner(kept))
    }

    /// Returns the oldest connection of the principal with the most connections. `None` if no
    /// principal has more than `kept` connections.
    fn of_largest_owner(&self, kept: usize) -> Option<u64> {
        let mut held: BTreeMap<&Owner, Vec<(Instant, u64)>> = BTreeMap::new();
        for (number, remote) in &self.of {
            if let Some(owner) = &remote.owner {
                held.entry(owner).or_default().push((remote.since, *number));
            }
        }
        let largest = held.into_values().max_by_key(Vec::len).filter(|of| of.len() > kept)?;
        largest.into_iter().min().map(|(_, number)| number)
    }

    fn unidentified(&self, newcomer: IpAddr, now: Instant, is_known: bool) -> Option<u64> {
        let may_lose = |remote: &&RemoteConnection| {
            remote.owner.is_none() && self.is_known(remote.address, now) == is_known
        };
        let is_new_silent = self.is_silent(newcomer, now);
        let mut held: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for remote in self.of.values().filter(may_lose) {
            *held.entry(remote.address).or_default() += 1;
        }
        let of = |remote: &RemoteConnection| held.get(&remote.address).copied().unwrap_or_default();
        let is_due = |remote: &&RemoteConnection| {
            of(remote) > 1
                || now.saturating_duration_since(remote.since) >= SOON
                || !is_new_silent && self.is_silent(remote.address, now)
        };
        let candidates = self.of.iter().filter(|(_, remote)| may_lose(remote) && is_due(remote));
        let order = |(number, remote): &(&u64, &RemoteConnection)| {
            let is_silent = self.is_silent(remote.address, now);
            (std::cmp::Reverse(of(remote)), !is_silent, remote.since, **number)
        };
        candidates.min_by_key(order).map(|(number, _)| *number)
    }
}

/// Stores `now` as the time of the latest event of an address. If there are more than [`ADDRESSES`]
/// addresses, forgets the address whose event is oldest.
fn note(times: &mut BTreeMap<IpAddr, Instant>, address: IpAddr, now: Instant) {
    times.insert(address, now);
    if times.len() > ADDRESSES {
        let oldest = times.iter().min_by_key(|(address, at)| (**at, **address));
        let oldest = oldest.map(|(address, _)| *address);
        oldest.map(|address| times.remove(&address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Identifies the caller of a connection as the user with the id `owner`.
    fn let_in(remotes: &mut Remotes, number: u64, now: Instant, owner: u32) -> bool {
        remotes.let_in(number, now, &Owner::User(owner))
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn new_remote_address_takes_slot_from_address_with_several_connections() {
        let (mut remotes, begin) = (Remotes::default(), Instant::now());
        for nth in 0..32 {
            let (number, _) = remotes.connect(address(nth / 4), begin, false).unwrap();
            assert_eq!(number, u64::from(nth));
        }
        assert_eq!(remotes.len(), OF_UNKNOWN);
        assert!((0..8).all(|last| remotes.of_address(address(last)) >= 2));
        let (number, _) = remotes.connect(address(100), begin, false).unwrap();
        // Further connections take slots only from each other, and not from this connection.
        for nth in 0..100 {
            remotes.connect(address(nth % 9), begin, false).unwrap();
        }
        assert!(remotes.of.contains_key(&number));
    }

    #[test]
    fn single_connection_of_remote_address_is_displaced_only_after_delay() {
        let (mut remotes, begin) = (Remotes::default(), Instant::now());
        for last in 0..24 {
            remotes.connect(address(last), begin, false).unwrap();
        }
        assert!(remotes.connect(address(99), begin, false).is_none());
        let (_, _) = remotes.connect(address(99), begin + SOON, false).unwrap();
        assert!(!remotes.of.contains_key(&0), "the oldest connection lost its slot");
    }

    #[test]
    fn connection_slots_are_reserved_for_addresses_that_authenticated_lately() {
        let (mut remotes, begin) = (Remotes::default(), Instant::now());
        let (friend, _) = remotes.connect(address(200), begin, false).unwrap();
        assert!(let_in(&mut remotes, friend, begin, 1));
        remotes.disconnect(friend, begin);
        // Each connection comes from another unknown address, and never completes its handshake.
        for last in 0..24 {
            remotes.connect(address(last), begin, false).unwrap();
        }
        let connect = |remotes: &mut Remotes, last| remotes.connect(address(last), begin, false);
        assert!(connect(&mut remotes, 99).is_none());
        let (number, _) = connect(&mut remotes, 200).unwrap();
        // This connection is not identified yet, but keeps its slot, since its address was
        // identified before.
        for nth in 0..60 {
            let _ = remotes.connect(address(nth), begin + SOON, false);
        }
        assert!(remotes.of.contains_key(&number));
        assert!(remotes.is_known(address(200), begin + LATELY - SOON));
        assert!(!remotes.is_known(address(200), begin + LATELY));
        assert!(remotes.connect(address(200), begin + LATELY + SOON, false).is_some());
    }

    #[test]
    fn authenticated_connection_is_never_displaced_by_new_addresses() {
        let (mut remotes, begin) = (Remotes::default(), Instant::now());
        for last in 0..24 {
            let (number, _) = remotes.connect(address(last), begin, false).unwrap();
            assert!(let_in(&mut remotes, number, begin, last.into()));
        }
        for last in 100..108 {
            remotes.connect(address(last), begin, false).unwrap();
        }
        assert_eq!(remotes.len(), REMOTE);
        assert!(remotes.connect(address(120), begin, false).is_none());
        for last in 0..24 {
            assert_eq!(remotes.of_address(address(last)), 1);
        }
    }

    #[test]
    fn principal_has_at_most_eight_connections_from_all_addresses_together() {
        let (mut remotes, begin) = (Remotes::default(), Instant::now());
        let mut held = 0;
        for nth in 0..32 {
            let Some((number, _)) = remotes.connect(address(nth / 4), begin, false) else { break };
            held += usize::from(let_in(&mut remotes, number, begin, 1));
        }
        assert_eq!(held, REMOTE_EACH);
        // The others were refused, so a new address takes the slot of one of them.
        let (number, _) = remotes.connect(address(100), begin, false).unwrap();
        assert!(let_in(&mut remotes, number, begin, 2));
        assert!(let_in(&mut remotes, number, begin, 2), "each request identifies the caller");
    }

    #[test]
    fn new_address_displaces_connection_of_user_with_over_four_connections() {
        let (mut remotes, begin) = (Remotes::default(), Instant::now());
        for nth in 0..32 {
            let (number, _) = remotes.connect(address(nth / 4), begin, false).unwrap();
            assert!(let_in(&mut remotes, number, begin, u32::from(nth / 8)));
        }
        for last in 100..116 {
            let (number, _) = remotes.connect(address(last), begin, false).unwrap();
            assert!(let_in(&mut remotes, number, begin, last.into()));
        }
        assert!(remotes.connect(address(116), begin, false).is_none());
        let of = |owner| {
            let owner = Some(Owner::User(owner));
            remotes.of.values().filter(|remote| remote.owner == owner).count()
        };
        assert!((0..4).all(|owner| of(owner) == KEPT_EACH));
    }

    #[test]
    fn newcomer_from_authenticated_address_displaces_connection_of_busy_principal() {
        let (mut remotes, begin) = (Remotes::default(), Instant::now());
        let (friend, _) = remotes.connect(address(200), begin, false).unwrap();
        assert!(let_in(&mut remotes, friend, begin, 100));
        remotes.disconnect(friend, begin);
        for nth in 0..32 {
            let (number, _) = remotes.connect(address(nth / 4), begin, false).unwrap();
            assert!(let_in(&mut remotes, number, begin, u32::from(nth / 4)));
        }
        assert!(remotes.connect(address(99), begin, false).is_none(), "an unknown address");
        let (number, _) = remotes.connect(address(200), begin, false).unwrap();
        assert!(let_in(&mut remotes, number, begin, 100));
        assert_eq!(remotes.len(), REMOTE);
    }

    #[test]
    fn unauthenticated_connection_loses_its_slot_to_previously_authenticated_address() {
        let (mut remotes, begin) = (Remotes::default(), Instant::now());
        for last in 0..9 {
            let (number, _) = remotes.connect(address(last), begin, false).unwrap();
            assert!(let_in(&mut remotes, number, begin, last.into()));
            remotes.disconnect(number, begin);
        }
        for nth in 0..32 {
            remotes.connect(address(nth / 4), begin, false).unwrap();
        }
        assert!(remotes.connect(address(8), begin, false).is_some());
    }

    #[test]
    fn new_address_gets_slot_beside_silent_addresses_that_reconnect_immediately() {
        let (mut remotes, begin) = (Remotes::default(), Instant::now());
        let mut now = begin;
        // Forty addresses connect in turn, each again as soon as it has lost its slot.
        for nth in 0..4_000_u32 {
            now += Duration::from_millis(1);
            let _ = remotes.connect(address(u8::try_from(nth % 40).unwrap()), now, false);
        }
        let (number, _) = remotes.connect(address(200), now, false).unwrap();
        for nth in 0..200_u32 {
            now += Duration::from_millis(1);
            let _ = remotes.connect(address(u8::try_from(nth % 40).unwrap()), now, false);
        }
        assert!(remotes.of.contains_key(&number), "it has 250 ms for its first request");
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_as_one_address() {
        let counted = |text: &str| counted_address(text.parse().unwrap()).to_string();
        assert_eq!(counted("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(counted("::ffff:10.0.0.1"), "10.0.0.1");
        assert_eq!((counted("::1"), counted("10.0.0.2")), ("::1".into(), "10.0.0.2".into()));
    }
}
