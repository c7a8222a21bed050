//! Rate limits for requests.

use std::collections::BTreeMap;

use slackline_units::{Span, Time};

use crate::principal::{Principal, Verb};
use crate::refusal::Refusal;

/// Rate limit of one principal for one kind of request, as a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Number of requests per second that are allowed permanently, at least one.
    pub a_second: u32,
    /// Number of requests that are allowed in a burst after a pause, at least one.
    pub burst: u32,
}

/// Rate limits of one principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Limit for all requests together.
    pub requests: Rate,
    /// Limit for requests that change something. Such a request counts in `requests` too.
    pub changes: Rate,
}

impl Rates {
    /// Default rate limits. They are high enough for a user who drags a slider in a graphical
    /// interface, and so low that a flood of requests causes no deadline miss.
    pub const USUAL: Rates = Rates {
        requests: Rate { a_second: 50, burst: 100 },
        changes: Rate { a_second: 30, burst: 60 },
    };
}

/// Maximum number of principals whose requests are counted at the same time. A principal without
/// recent requests needs no counter.
const PRINCIPALS: usize = 4096;

/// Request counters of all principals.
#[derive(Debug)]
pub(crate) struct Limits {
    rates: Option<Rates>,
    /// For each principal, the state of two rate limits: for its requests, and for its changes.
    /// Each state is the time at which all requests (or changes) so far would be allowed at the
    /// sustained rate. If this time is in the past, a whole burst is allowed.
    asked: BTreeMap<Principal, (Time, Time)>,
}

impl Limits {
    /// Creates counters with the rate limits `rates`. If `rates` is `None`, there are no limits.
    pub(crate) const fn new(rates: Option<Rates>) -> Limits {
        Limits { rates, asked: BTreeMap::new() }
    }

    /// Counts a request in the rate limits. A request that changes something counts also as
    /// `number` changes, but at most as a whole burst.
    ///
    /// # Errors
    /// If the principal exceeds its rate, or if too many principals are counted. A refused request
    /// is not counted.
    pub(crate) fn count(
        &mut self,
        now: Time,
        who: Principal,
        (verb, number): (Verb, u32),
    ) -> Result<(), Refusal> {
        let Some(rates) = self.rates else { return Ok(()) };
        let rested = (Time::START, Time::START);
        let (requests, changes) = self.asked.get(&who).copied().unwrap_or(rested);
        let requests = rates.requests.count(now, (requests, 1), "requests")?;
        let changes = match verb.is_change() {
            true => rates.changes.count(now, (changes, number), "changes")?,
            false => changes,
        };
        if self.asked.len() >= PRINCIPALS && !self.asked.contains_key(&who) {
            self.asked.retain(|_, (requests, changes)| *requests > now || *changes > now);
            if self.asked.len() >= PRINCIPALS {
                return Err(too_many(
                    "requests of all clients",
                    rates.requests,
                    Span::from_secs(1),
                ));
            }
        }
        self.asked.insert(who, (requests, changes));
        Ok(())
    }
}

impl Rate {
    /// Returns the new state of the rate limit after `number` requests at the time `now`. It is the
    /// later of `now` and the previous state `counted`, plus `number` times the time between two
    /// requests at the sustained rate. A `number` larger than a burst counts as a burst.
    ///
    /// # Errors
    /// If the requests exceed the burst.
    fn count(
        self,
        now: Time,
        (counted, number): (Time, u32),
        what: &'static str,
    ) -> Result<Time, Refusal> {
        let apart = Span::from_ns(1_000_000_000_u64.div_ceil(u64::from(self.a_second.max(1))));
        let burst = self.burst.max(1);
        let most = now.after(apart * u64::from(burst));
        let counted = counted.max(now).after(apart * u64::from(number.min(burst)));
        if counted > most {
            return Err(too_many(what, self, counted.since(most)));
        }
        Ok(counted)
    }
}

fn too_many(what: &'static str, rate: Rate, again: Span) -> Refusal {
    Refusal::TooMany { what, most: rate.a_second, again }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Time {
        Time::START.after(Span::from_ms(ms))
    }

    #[test]
    fn user_is_limited_to_a_steady_rate_after_request_burst() {
        let mut limits = Limits::new(Some(Rates::USUAL));
        let mut looks = |at, who| limits.count(at, Principal::User(who), (Verb::List, 1)).is_ok();
        assert_eq!((0..200).filter(|_| looks(ms(0), 1)).count(), 100);
        assert!(looks(ms(0), 2), "requests of another user count separately");
        assert!(!looks(ms(19), 1));
        assert!(looks(ms(20), 1) && !looks(ms(20), 1));
        let steady = (21..=2020).filter(|&at| looks(ms(at), 1)).count();
        assert_eq!(steady, 100, "in two seconds");
    }

    #[test]
    fn refusal_of_a_change_contains_rate_limit_and_retry_time() {
        let mut limits = Limits::new(Some(Rates::USUAL));
        let mut changes = |at| limits.count(at, Principal::User(1), (Verb::Change, 1));
        assert_eq!((0..200).filter(|_| changes(ms(0)).is_ok()).count(), 60);
        let Err(Refusal::TooMany { what, most, again }) = changes(ms(0)) else {
            panic!("one more change must be refused")
        };
        assert_eq!((what, most), ("changes", 30));
        assert!(changes(Time::START.after(again)).is_ok());
        assert!(limits.count(ms(0), Principal::User(1), (Verb::List, 1)).is_ok());
    }

    #[test]
    fn long_apply_request_uses_at_most_one_rate_limit_burst() {
        let mut limits = Limits::new(Some(Rates::USUAL));
        let mut applies =
            |at, number| limits.count(at, Principal::User(1), (Verb::Apply, number)).is_ok();
        assert!(applies(ms(0), 51) && !applies(ms(0), 51));
        assert!(!applies(ms(1_000), 51), "30 changes a second");
        assert!(applies(ms(1_500), 51));
        assert!(applies(ms(10_000), 1_000), "a list is never too long for the rate");
    }

    #[test]
    fn full_rate_limit_table_drops_idle_users() {
        let mut limits = Limits::new(Some(Rates::USUAL));
        for uid in 0..4096 {
            limits.count(ms(0), Principal::User(uid), (Verb::List, 1)).unwrap();
        }
        assert!(limits.count(ms(0), Principal::User(5000), (Verb::List, 1)).is_err());
        assert!(limits.count(ms(0), Principal::User(0), (Verb::List, 1)).is_ok());
        assert!(limits.count(ms(20), Principal::User(5000), (Verb::List, 1)).is_ok());
        assert_eq!(limits.asked.len(), 2);
    }
}
