//! How often somebody may ask.

use std::collections::BTreeMap;

use slackline_units::{Span, Time};

use crate::principal::{Principal, Verb};
use crate::refusal::Refusal;

/// How often one principal may ask for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// So many in a second, at least one.
    pub a_second: u32,
    /// So many at once after a rest, at least one.
    pub burst: u32,
}

/// How often one principal may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// All requests.
    pub requests: Rate,
    /// Those that change something: they count among the others, too.
    pub changes: Rate,
}

impl Rates {
    /// What a service begins with: enough for a slider that is dragged, and little enough that an
    /// ordinary flood costs nobody a deadline.
    pub const USUAL: Rates = Rates {
        requests: Rate { a_second: 50, burst: 100 },
        changes: Rate { a_second: 30, burst: 60 },
    };
}

/// How many principals are counted at a time; a principal who rests is not.
const PRINCIPALS: usize = 4096;

/// Who has asked how often.
#[derive(Debug)]
pub(crate) struct Limits {
    rates: Option<Rates>,
    /// By principal, when requests and changes at the steady rate would have come to as many as
    /// there were.
    asked: BTreeMap<Principal, (Time, Time)>,
}

impl Limits {
    /// No limits where there are no rates.
    pub(crate) const fn new(rates: Option<Rates>) -> Limits {
        Limits { rates, asked: BTreeMap::new() }
    }

    /// Counts a request.
    ///
    /// # Errors
    /// When there are too many. Then it is not counted.
    pub(crate) fn count(&mut self, now: Time, who: Principal, verb: Verb) -> Result<(), Refusal> {
        let Some(rates) = self.rates else { return Ok(()) };
        let rested = (Time::START, Time::START);
        let (requests, changes) = self.asked.get(&who).copied().unwrap_or(rested);
        let requests = rates.requests.count(now, requests, "requests")?;
        let changes = match verb.is_change() {
            true => rates.changes.count(now, changes, "changes")?,
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
    /// When the steady rate would have come to one more.
    fn count(self, now: Time, counted: Time, what: &'static str) -> Result<Time, Refusal> {
        let apart = Span::from_ns(1_000_000_000_u64.div_ceil(u64::from(self.a_second.max(1))));
        let most = now.after(apart * u64::from(self.burst.max(1)));
        let counted = counted.max(now).after(apart);
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
    fn after_a_burst_it_goes_on_at_the_steady_rate() {
        let mut limits = Limits::new(Some(Rates::USUAL));
        let mut looks = |at, who| limits.count(at, Principal::User(who), Verb::List).is_ok();
        assert_eq!((0..200).filter(|_| looks(ms(0), 1)).count(), 100);
        assert!(looks(ms(0), 2), "another one's requests are another one's");
        assert!(!looks(ms(19), 1));
        assert!(looks(ms(20), 1) && !looks(ms(20), 1));
        let steady = (21..=2020).filter(|&at| looks(ms(at), 1)).count();
        assert_eq!(steady, 100, "in two seconds");
    }

    #[test]
    fn changes_are_fewer_and_who_is_refused_is_told_when_to_come_again() {
        let mut limits = Limits::new(Some(Rates::USUAL));
        let mut changes = |at| limits.count(at, Principal::User(1), Verb::Change);
        assert_eq!((0..200).filter(|_| changes(ms(0)).is_ok()).count(), 60);
        let Err(Refusal::TooMany { what, most, again }) = changes(ms(0)) else {
            panic!("one more")
        };
        assert_eq!((what, most), ("changes", 30));
        assert!(changes(Time::START.after(again)).is_ok());
        assert!(limits.count(ms(0), Principal::User(1), Verb::List).is_ok());
    }

    #[test]
    fn who_rests_is_forgotten() {
        let mut limits = Limits::new(Some(Rates::USUAL));
        for uid in 0..4096 {
            limits.count(ms(0), Principal::User(uid), Verb::List).unwrap();
        }
        assert!(limits.count(ms(0), Principal::User(5000), Verb::List).is_err());
        assert!(limits.count(ms(0), Principal::User(0), Verb::List).is_ok());
        assert!(limits.count(ms(20), Principal::User(5000), Verb::List).is_ok());
        assert_eq!(limits.asked.len(), 2);
    }
}
