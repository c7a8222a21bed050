//! Limits on the number of idempotency keys whose answers are kept.

use std::collections::{BTreeMap, BTreeSet};

use crate::name::Key;
use crate::principal::Principal;

/// Maximum number of answers kept for one principal. One more answer drops the oldest of that
/// principal.
pub const KEYS_OF_ONE: usize = 1_000;

/// Maximum number of answers kept for all principals together. One more answer drops the oldest of
/// all.
pub const KEYS_IN_ALL: usize = 20_000;

/// Idempotency keys in order of arrival, limited by [`KEYS_OF_ONE`] and [`KEYS_IN_ALL`].
///
/// `T` is the time at which a key expires. A key that is added later has a later time.
#[derive(Debug)]
pub struct KeyOrder<T> {
    /// Number of the next key. Keys are numbered in order of arrival.
    next: u64,
    by_age: BTreeMap<u64, (T, Principal, Key)>,
    numbers: BTreeMap<(Principal, Key), u64>,
    of_one: BTreeMap<Principal, BTreeSet<u64>>,
}

impl<T> Default for KeyOrder<T> {
    fn default() -> KeyOrder<T> {
        let (by_age, numbers, of_one) = Default::default();
        KeyOrder { next: 0, by_age, numbers, of_one }
    }
}

impl<T: PartialOrd> KeyOrder<T> {
    /// Adds a key as the newest. If the key is already kept, it becomes the newest. Returns the key
    /// that is dropped to make room, if any.
    pub fn add(&mut self, at: T, who: Principal, key: Key) -> Option<(Principal, Key)> {
        self.remove(who, &key);
        let number = self.next;
        self.next += 1;
        self.numbers.insert((who, key.clone()), number);
        self.by_age.insert(number, (at, who, key));
        let own = self.of_one.entry(who).or_default();
        own.insert(number);
        let is_over = own.len() > KEYS_OF_ONE;
        let oldest_own = own.first().copied().filter(|_| is_over);
        let is_over = self.by_age.len() > KEYS_IN_ALL;
        let oldest = self.by_age.keys().next().copied().filter(|_| is_over);
        self.take(oldest_own.or(oldest)?)
    }

    /// Removes and returns the oldest key if its time is before `since`.
    pub fn take_older(&mut self, since: &T) -> Option<(Principal, Key)> {
        let (&number, (at, ..)) = self.by_age.first_key_value()?;
        if at < since { self.take(number) } else { None }
    }

    /// Returns true if an answer with this key is kept.
    #[must_use]
    pub fn contains(&self, who: Principal, key: &Key) -> bool {
        self.numbers.contains_key(&(who, key.clone()))
    }

    /// Returns true if so many keys are kept that adding a key of any principal drops the oldest
    /// key.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.by_age.len() >= KEYS_IN_ALL
    }

    /// Returns true if the principal has so many keys that adding another drops its oldest key.
    #[must_use]
    pub fn has_most_of(&self, who: Principal) -> bool {
        self.of_one.get(&who).is_some_and(|own| own.len() >= KEYS_OF_ONE)
    }

    fn remove(&mut self, who: Principal, key: &Key) {
        if let Some(&number) = self.numbers.get(&(who, key.clone())) {
            self.take(number);
        }
    }

    fn take(&mut self, number: u64) -> Option<(Principal, Key)> {
        let (_, who, key) = self.by_age.remove(&number)?;
        if let Some(own) = self.of_one.get_mut(&who) {
            own.remove(&number);
            if own.is_empty() {
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
        assert_eq!(order.add(0, bob, key(0)), None);
        for number in 0..KEYS_OF_ONE {
            assert_eq!(order.add(number, alice, key(number)), None);
        }
        assert_eq!(order.add(KEYS_OF_ONE, alice, key(KEYS_OF_ONE)), Some((alice, key(0))));
        assert!(order.contains(bob, &key(0)) && !order.contains(alice, &key(0)));
        // Adding a key that is already kept drops no key.
        assert_eq!(order.add(KEYS_OF_ONE, alice, key(5)), None);
        assert_eq!(order.add(KEYS_OF_ONE, alice, key(KEYS_OF_ONE + 1)), Some((alice, key(1))));
    }

    #[test]
    fn oldest_idempotency_key_is_dropped_above_the_global_limit() {
        let mut order = KeyOrder::default();
        for number in 0..KEYS_IN_ALL {
            let who = Principal::User(u32::try_from(number / 500).unwrap());
            assert_eq!(order.add(number, who, key(number)), None);
        }
        let gone = order.add(KEYS_IN_ALL, Principal::User(900), key(1));
        assert_eq!(gone, Some((Principal::User(0), key(0))));
        assert!(order.is_full());
        assert_eq!(order.take_older(&1), None);
        assert_eq!(order.take_older(&2), Some((Principal::User(0), key(1))));
    }
}
