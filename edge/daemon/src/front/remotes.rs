//! Connections from other hosts, and the slots that they occupy.
//!
//! A connection gets a slot when it is accepted, but its caller is identified only after a TLS
//! handshake and a first request. If all slots are occupied, a new connection takes over the slot
//! of one that is not identified yet. The address with the most such connections loses one first.
//! Some slots are reserved for addresses that were identified recently.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Maximum number of connections from other hosts. The other connections of the front process are
/// for local users.
pub(super) const REMOTE: usize = 32;

/// Maximum number of connections from addresses that were not identified recently.
const OF_UNKNOWN: usize = 24;

/// Time for which the only connection of an address keeps its slot, even if all slots are occupied.
const SOON: Duration = Duration::from_millis(250);

/// Time for which an address counts as known after it was identified.
const LATELY: Duration = Duration::from_secs(24 * 3600);

/// Maximum number of addresses that are remembered as known.
const ADDRESSES: usize = 1024;

/// All connections from other hosts.
#[derive(Debug, Default)]
pub(super) struct Remotes {
    next: u64,
    of: BTreeMap<u64, RemoteConnection>,
    /// Time at which each known address was last identified.
    known: BTreeMap<IpAddr, Instant>,
}

#[derive(Debug)]
struct RemoteConnection {
    address: IpAddr,
    since: Instant,
    is_let_in: bool,
    /// Notifies the connection when it has lost its slot.
    end: Arc<Notify>,
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

    /// Gives a slot to a new connection, if needed by taking it from another connection. `is_full`
    /// is true if the front process has the maximum number of connections.
    ///
    /// Returns the number of the connection, and a notification for when it loses its slot. `None`
    /// if there is no slot.
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
            let victim = self.victim(now)?;
            let victim = self.of.remove(&victim)?;
            victim.end.notify_one();
        }
        let (number, end) = (self.next, Arc::new(Notify::new()));
        self.next += 1;
        let remote =
            RemoteConnection { address, since: now, is_let_in: false, end: Arc::clone(&end) };
        self.of.insert(number, remote);
        Some((number, end))
    }

    /// Removes a connection that has ended. A connection that lost its slot has already been
    /// removed.
    pub(super) fn disconnect(&mut self, number: u64) {
        self.of.remove(&number);
    }

    /// Notes that the caller of this connection was identified.
    pub(super) fn let_in(&mut self, number: u64, now: Instant) {
        let Some(remote) = self.of.get_mut(&number) else { return };
        remote.is_let_in = true;
        self.known.insert(remote.address, now);
        if self.known.len() > ADDRESSES {
            let oldest = self.known.iter().min_by_key(|(address, at)| (**at, **address));
            let oldest = oldest.map(|(address, _)| *address);
            oldest.map(|address| self.known.remove(&address));
        }
    }

    fn is_known(&self, address: IpAddr, now: Instant) -> bool {
        let at = self.known.get(&address);
        at.is_some_and(|at| now.saturating_duration_since(*at) < LATELY)
    }

    /// Returns the connection that loses its slot to a new connection. Candidates are connections
    /// from unknown addresses whose caller is not identified. The oldest candidate of the address
    /// with the most candidates is chosen. A candidate that is the only one of its address keeps
    /// its slot for [`SOON`].
    fn victim(&self, now: Instant) -> Option<u64> {
        let may_lose =
            |remote: &&RemoteConnection| !remote.is_let_in && !self.is_known(remote.address, now);
        let mut held: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for remote in self.of.values().filter(may_lose) {
            *held.entry(remote.address).or_default() += 1;
        }
        let of = |remote: &RemoteConnection| held.get(&remote.address).copied().unwrap_or_default();
        let is_due = |remote: &&RemoteConnection| {
            of(remote) > 1 || now.saturating_duration_since(remote.since) >= SOON
        };
        let candidates = self.of.iter().filter(|(_, remote)| may_lose(remote) && is_due(remote));
        let order = |(number, remote): &(&u64, &RemoteConnection)| {
            (std::cmp::Reverse(of(remote)), remote.since, **number)
        };
        candidates.min_by_key(order).map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        remotes.let_in(friend, begin);
        remotes.disconnect(friend);
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
            remotes.let_in(number, begin);
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
}
