//! Limits on the number and the total size of stored answers to requests with idempotency keys.

use std::collections::{BTreeMap, BTreeSet};

use crate::name::Key;
use crate::principal::Principal;

/// Maximum number of stored answers of one principal. If there are more, the oldest answer of this
/// principal is dropped.
pub const KEYS_OF_ONE: usize = 1_000;

/// Maximum number of stored answers of all principals together. If there are more, the oldest of
/// all answers is dropped.
pub const KEYS_IN_ALL: usize = 20_000;

/// Maximum size of the stored answers of one principal, in bytes. It is enough for a thousand
/// answers to usual requests.
pub const KEY_BYTES_OF_ONE: usize = 1 << 20;

/// Maximum size of the stored answers of all principals together, in bytes.
pub const KEY_BYTES_IN_ALL: usize = 20 << 20;

/// Idempotency keys in order of arrival, limited by [`KEYS_OF_ONE`], [`KEYS_IN_ALL`],
/// [`KEY_BYTES_OF_ONE`] and [`KEY_BYTES_IN_ALL`].
///
/// `T` is the type of the times that determine when keys expire. A key that is added later must
/// have a later time.
#[derive(Debug)]
pub struct KeyOrder<T> {
    /// Number for the next key. Keys are numbered in order of arrival.
    next: u64,
    by_age: BTreeMap<u64, OrderedKey<T>>,
    numbers: BTreeMap<(Principal, Key), u64>,
    of_one: BTreeMap<Principal, OwnKeys>,
    /// Size of all stored answers together, in bytes.
    bytes: usize,
}

/// An idempotency key, with the size of its stored answer.
#[derive(Debug)]
struct OrderedKey<T> {
    at: T,
    who: Principal,
    key: Key,
    bytes: usize,
}

/// Idempotency keys of one principal.
#[derive(Debug, Default)]
struct OwnKeys {
    numbers: BTreeSet<u64>,
    bytes: usize,
}

impl<T> Default for KeyOrder<T> {
    fn default() -> KeyOrder<T> {
        let (by_age, numbers, of_one) = Default::default();
        KeyOrder { next: 0, by_age, numbers, of_one, bytes: 0 }
    }
}

impl<T: PartialOrd> KeyOrder<T> {
    /// Adds a key as the newest key. If the key already exists, it becomes the newest. `bytes` is
    /// the size of its answer. If limits are exceeded, drops other keys and returns them, oldest
    /// first.
    pub fn add(&mut self, at: T, who: Principal, key: Key, bytes: usize) -> Vec<(Principal, Key)> {
        self.remove(who, &key);
        let number = self.next;
        self.next += 1;
        self.numbers.insert((who, key.clone()), number);
        self.by_age.insert(number, OrderedKey { at, who, key, bytes });
        self.bytes += bytes;
        let own = self.of_one.entry(who).or_default();
        own.numbers.insert(number);
        own.bytes += bytes;
        let mut dropped = Vec::new();
        while let Some(number) = self.surplus(who) {
            dropped.extend(self.take(number));
        }
        dropped
    }

    /// Returns the number of the key that must be dropped next, after a key of `who` was added.
    /// `None` if no limit is exceeded.
    fn surplus(&self, who: Principal) -> Option<u64> {
        let is_over =
            |own: &&OwnKeys| own.numbers.len() > KEYS_OF_ONE || own.bytes > KEY_BYTES_OF_ONE;
        let own = self.of_one.get(&who).filter(is_over);
        let oldest_own = own.and_then(|own| own.numbers.first());
        let is_over = self.by_age.len() > KEYS_IN_ALL || self.bytes > KEY_BYTES_IN_ALL;
        let oldest = self.by_age.keys().next().filter(|_| is_over);
        oldest_own.or(oldest).copied()
    }

    /// Returns true if a key of `who` whose answer has `bytes` bytes could be added without
    /// dropping another key.
    #[must_use]
    pub fn has_room(&self, who: Principal, bytes: usize) -> bool {
        let (number, own) = self.of_one.get(&who).map_or((0, 0), |own| {
            let OwnKeys { numbers, bytes } = own;
            (numbers.len(), *bytes)
        });
        number < KEYS_OF_ONE
            && own + bytes <= KEY_BYTES_OF_ONE
            && self.by_age.len() < KEYS_IN_ALL
            && self.bytes + bytes <= KEY_BYTES_IN_ALL
    }

    /// Removes and returns the oldest key if its time is before `since`. Otherwise returns `None`.
    pub fn take_older(&mut self, since: &T) -> Option<(Principal, Key)> {
        let (&number, oldest) = self.by_age.first_key_value()?;
        if oldest.at < *since { self.take(number) } else { None }
    }

    /// Returns true if the answer to the request of `who` with this key is stored.
    #[must_use]
    pub fn contains(&self, who: Principal, key: &Key) -> bool {
        self.numbers.contains_key(&(who, key.clone()))
    }

    fn remove(&mut self, who: Principal, key: &Key) {
        if let Some(&number) = self.numbers.get(&(who, key.clone())) {
            self.take(number);
        }
    }

    fn take(&mut self, number: u64) -> Option<(Principal, Key)> {
        let OrderedKey { who, key, bytes, .. } = self.by_age.remove(&number)?;
        self.bytes -= bytes;
        if let Some(own) = self.of_one.get_mut(&who) {
            own.numbers.remove(&number);
            own.bytes -= bytes;
            if own.numbers.is_empty() {
                self.of_one.remove(&who);
            }
        }
        self.numbers.remove(&(who, key.clone()));
        Some((who, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        format!("k{number}").parse().unwrap()
    }

    #[test]
    fn user_above_idempotency_key_limit_loses_own_oldest_key() {
        let (alice, bob) = (Principal::User(1), Principal::User(2));
        let mut order = KeyOrder::default();
        assert_eq!(order.add(0, bob, key(0), 1), []);
        for number in 0..KEYS_OF_ONE {
            assert_eq!(order.add(number, alice, key(number), 1), []);
        }
        assert!(!order.has_room(alice, 1) && order.has_room(bob, 1));
        assert_eq!(order.add(KEYS_OF_ONE, alice, key(KEYS_OF_ONE), 1), [(alice, key(0))]);
        assert!(order.contains(bob, &key(0)) && !order.contains(alice, &key(0)));
        // Adding a key that is already kept drops no key.
        assert_eq!(order.add(KEYS_OF_ONE, alice, key(5), 1), []);
        assert_eq!(order.add(KEYS_OF_ONE, alice, key(KEYS_OF_ONE + 1), 1), [(alice, key(1))]);
    }

    #[test]
    fn oldest_idempotency_key_is_dropped_above_the_global_limit() {
        let mut order = KeyOrder::default();
        for number in 0..KEYS_IN_ALL {
            let who = Principal::User(u32::try_from(number / 500).unwrap());
            assert_eq!(order.add(number, who, key(number), 1), []);
        }
        let gone = order.add(KEYS_IN_ALL, Principal::User(900), key(1), 1);
        assert_eq!(gone, [(Principal::User(0), key(0))]);
        assert!(!order.has_room(Principal::User(901), 1));
        assert_eq!(order.take_older(&1), None);
        assert_eq!(order.take_older(&2), Some((Principal::User(0), key(1))));
    }

    #[test]
    fn large_stored_answer_displaces_only_as_many_answers_as_needed() {
        let alice = Principal::User(1);
        let mut order = KeyOrder::default();
        let quarter = KEY_BYTES_OF_ONE / 4;
        for number in 0..4 {
            assert_eq!(order.add(number, alice, key(number), quarter), []);
        }
        assert!(!order.has_room(alice, 1));
        let gone = order.add(4, alice, key(4), quarter + 1);
        assert_eq!(gone, [(alice, key(0)), (alice, key(1))]);
        // All principals together have a limit too, and the oldest answers of all are dropped.
        let mut oldest = None;
        for number in 5..100 {
            let who = Principal::User(u32::try_from(number).unwrap());
            let gone = order.add(number, who, key(number), KEY_BYTES_OF_ONE);
            oldest = oldest.or(gone.into_iter().next());
        }
        assert_eq!((oldest, order.bytes), (Some((alice, key(2))), KEY_BYTES_IN_ALL));
        while order.take_older(&1_000).is_some() {}
        assert_eq!((order.bytes, order.of_one.len(), order.numbers.len()), (0, 0, 0));
    }
}
