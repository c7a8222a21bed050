//! How much one principal may have of the front, and all together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slackline_service::Role;

/// Connections in all.
const CONNECTIONS: usize = 64;

/// Those of them that only administrators can have.
const KEPT: usize = 8;

/// Connections of one principal.
const CONNECTIONS_EACH: usize = 4;

/// Streams of one principal.
const STREAMS_EACH: usize = 2;

/// Requests at once of who has asked for nothing lately.
const BURST: u32 = 100;

/// How long it takes until one more is allowed: fifty a second.
const A_REQUEST: Duration = Duration::from_millis(20);

/// Who has what.
#[derive(Debug, Default)]
pub(super) struct Limits {
    connections: usize,
    of: BTreeMap<u32, Had>,
}

/// What a principal has, and has had.
#[derive(Debug, Default)]
struct Had {
    connections: usize,
    streams: usize,
    /// When all that it asked for will have been paid off; none if it never asked.
    paid: Option<Instant>,
}

/// What a principal has for as long as this lives.
#[derive(Debug)]
pub(super) struct Held {
    limits: Arc<Mutex<Limits>>,
    uid: u32,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Connection,
    Stream,
}

/// Why there is no connection for it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// It has so many.
    Own(usize),
    /// All are taken.
    All(usize),
}

impl Limits {
    /// A connection more, if there is one for such a principal. Administrators may have as many
    /// as are kept for them: whoever watches, scrapes and mends at once is one.
    pub(super) fn connect(limits: &Arc<Mutex<Limits>>, uid: u32, role: Role) -> Result<Held, Full> {
        let (all, each) = match role {
            Role::Administrator => (CONNECTIONS, KEPT),
            Role::Operator | Role::Viewer => (CONNECTIONS - KEPT, CONNECTIONS_EACH),
        };
        let mut now = locked(limits);
        if now.connections >= all {
            return Err(Full::All(all));
        }
        let had = now.of.entry(uid).or_default();
        if had.connections >= each {
            return Err(Full::Own(each));
        }
        had.connections += 1;
        now.connections += 1;
        Ok(Held { limits: Arc::clone(limits), uid, what: What::Connection })
    }

    /// A stream more.
    pub(super) fn stream(limits: &Arc<Mutex<Limits>>, uid: u32) -> Result<Held, usize> {
        let mut now = locked(limits);
        let had = now.of.entry(uid).or_default();
        if had.streams >= STREAMS_EACH {
            return Err(STREAMS_EACH);
        }
        had.streams += 1;
        Ok(Held { limits: Arc::clone(limits), uid, what: What::Stream })
    }

    /// Whether it may ask for one thing more now.
    pub(super) fn may_ask(&mut self, uid: u32, now: Instant) -> bool {
        let had = self.of.entry(uid).or_default();
        let paid = had.paid.map_or(now, |paid| paid.max(now)) + A_REQUEST;
        if paid > now + A_REQUEST * BURST {
            return false;
        }
        had.paid = Some(paid);
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut now = locked(&self.limits);
        if self.what == What::Connection {
            now.connections -= 1;
        }
        if let Some(had) = now.of.get_mut(&self.uid) {
            match self.what {
                What::Connection => had.connections -= 1,
                What::Stream => had.streams -= 1,
            }
        }
    }
}

/// Whoever panicked with the lock left counts that are right: each change is a single step.
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
    fn some_connections_are_kept_for_administrators() {
        let limits = empty();
        let connect = |uid, role| Limits::connect(&limits, uid, role);
        let others: Vec<Held> =
            (0..56).map(|nth| connect(1000 + nth / 4, Role::Operator).unwrap()).collect();
        assert_eq!(connect(2000, Role::Operator).unwrap_err(), Full::All(56));
        let ours: Vec<Held> = (0..8).map(|_| connect(0, Role::Administrator).unwrap()).collect();
        assert_eq!(connect(1, Role::Administrator).unwrap_err(), Full::All(64));
        drop(others);
        assert_eq!(connect(0, Role::Administrator).unwrap_err(), Full::Own(8));
        drop(ours);
        let mine: Vec<Held> = (0..4).map(|_| connect(5, Role::Operator).unwrap()).collect();
        assert_eq!(connect(5, Role::Operator).unwrap_err(), Full::Own(4));
        drop(mine);
        assert!(connect(5, Role::Operator).is_ok());
        assert_eq!(locked(&limits).connections, 0);
    }

    #[test]
    fn a_principal_has_two_streams() {
        let limits = empty();
        let first = Limits::stream(&limits, 7).unwrap();
        let _second = Limits::stream(&limits, 7).unwrap();
        assert_eq!(Limits::stream(&limits, 7).unwrap_err(), 2);
        assert!(Limits::stream(&limits, 8).is_ok());
        drop(first);
        assert!(Limits::stream(&limits, 7).is_ok());
    }

    #[test]
    fn a_hundred_at_once_and_then_fifty_a_second() {
        let mut limits = Limits::default();
        let begin = Instant::now();
        let count = |limits: &mut Limits, at| (0..1000).filter(|_| limits.may_ask(1, at)).count();
        assert_eq!(count(&mut limits, begin), 100);
        assert!(limits.may_ask(2, begin), "another is not made to pay");
        assert_eq!(count(&mut limits, begin + Duration::from_millis(19)), 0);
        assert_eq!(count(&mut limits, begin + Duration::from_secs(1)), 50);
        assert_eq!(count(&mut limits, begin + Duration::from_secs(60)), 100);
    }
}
