//! Answers that are kept, so that the same request with the same key has no second effect.

use std::collections::{BTreeMap, VecDeque};

use slackline_units::{Span, Time};

use crate::name::Key;
use crate::principal::Principal;
use crate::refusal::Refusal;
use crate::world::Kept;

/// How long an answer is kept.
pub(crate) const KEPT_FOR: Span = Span::from_secs(24 * 3600);

/// How many answers are kept of one principal. Beyond that the oldest goes.
const OF_ONE: usize = 1000;

/// How many are kept in all.
const IN_ALL: usize = 20_000;

/// Answers by key.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    kept: BTreeMap<(Principal, Key), Kept>,
    /// In the order in which they end, of one principal and of all.
    of_one: BTreeMap<Principal, VecDeque<Key>>,
    ends: VecDeque<(Time, Principal, Key)>,
}

impl Keys {
    /// What was answered before to the same request.
    ///
    /// # Errors
    /// When the key belongs to another request.
    pub(crate) fn find(
        &mut self,
        now: Time,
        who: Principal,
        key: &Key,
        asked: &str,
    ) -> Result<Option<&Kept>, Refusal> {
        self.forget(now);
        match self.kept.get(&(who, key.clone())) {
            Some(kept) if kept.asked != asked => {
                Err(Refusal::KeyReused { was: kept.asked.clone() })
            }
            found => Ok(found),
        }
    }

    /// Keeps an answer from now on that has been kept for so long already. Older ones come first.
    pub(crate) fn keep(&mut self, now: Time, kept: Kept, age: Span) {
        self.forget(now);
        let (who, key) = (kept.principal, kept.key.clone());
        if age >= KEPT_FOR || self.kept.contains_key(&(who, key.clone())) {
            return;
        }
        self.ends.push_back((now.after(KEPT_FOR.left_after(age)), who, key.clone()));
        let own = self.of_one.entry(who).or_default();
        own.push_back(key.clone());
        let oldest = if own.len() > OF_ONE { own.front().cloned() } else { None };
        self.kept.insert((who, key), kept);
        if let Some(oldest) = oldest {
            let place = self.ends.iter().position(|(_, one, key)| *one == who && *key == oldest);
            self.end(place.unwrap_or(0));
        } else if self.ends.len() > IN_ALL {
            self.end(0);
        }
    }

    fn forget(&mut self, now: Time) {
        while self.ends.front().is_some_and(|(end, ..)| *end <= now) {
            self.end(0);
        }
    }

    /// The one at this place goes.
    fn end(&mut self, place: usize) {
        let Some((_, who, key)) = self.ends.remove(place) else { return };
        if let Some(own) = self.of_one.get_mut(&who) {
            own.retain(|other| *other != key);
            if own.is_empty() {
                self.of_one.remove(&who);
            }
        }
        self.kept.remove(&(who, key));
    }
}
