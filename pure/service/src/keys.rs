//! Stored answers to requests with an idempotency key. A repeated request gets the stored answer
//! and has no second effect.

use std::collections::BTreeMap;

use slackline_units::{Span, Time};

use crate::key_order::KeyOrder;
use crate::name::Key;
use crate::principal::Principal;
use crate::refusal::Refusal;
use crate::world::KeptAnswer;

/// Time for which the answer to a request with an idempotency key is stored.
pub(crate) const KEPT_FOR: Span = Span::from_secs(24 * 3600);

/// Stored answers to requests with an idempotency key, by principal and key.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    kept: BTreeMap<(Principal, Key), KeptAnswer>,
    /// Idempotency keys in order, each with the time at which its answer expires.
    order: KeyOrder<Time>,
}

impl Keys {
    /// Returns the stored answer to an earlier copy of this request. `None` if there was no earlier
    /// copy.
    ///
    /// # Errors
    /// If the key was used before for another request.
    pub(crate) fn find(
        &mut self,
        now: Time,
        who: Principal,
        key: &Key,
        asked: &str,
    ) -> Result<Option<&KeptAnswer>, Refusal> {
        self.forget(now);
        match self.kept.get(&(who, key.clone())) {
            Some(kept) if kept.asked != asked => {
                Err(Refusal::KeyReused { was: kept.asked.clone() })
            }
            found => Ok(found),
        }
    }

    /// Stores an answer that was given `age` ago. Answers must be stored in the order in which they
    /// were given.
    pub(crate) fn keep(&mut self, now: Time, kept: KeptAnswer, age: Span) {
        self.forget(now);
        let (who, key) = (kept.principal, kept.key.clone());
        if age >= KEPT_FOR || self.order.contains(who, &key) {
            return;
        }
        let until = now.after(KEPT_FOR.left_after(age));
        let gone = self.order.add(until, who, key.clone(), kept.stored_bytes());
        self.kept.insert((who, key), kept);
        for gone in gone {
            self.kept.remove(&gone);
        }
    }

    fn forget(&mut self, now: Time) {
        // An answer that expires exactly now counts as expired.
        while let Some(gone) = self.order.take_older(&now.after(Span::from_ns(1))) {
            self.kept.remove(&gone);
        }
    }
}
