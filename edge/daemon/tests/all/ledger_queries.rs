//! Tests of queries of the ledger, which must not delay commits.

use slackline_daemon::ledger::{
    EventQuery, HoursQuery, Ledger, MOST_QUERIES, NotHandedOver, QUERIES_OF_ONE, Reply,
};
use slackline_service::Principal;
use slackline_units::Time;

use crate::ledger::{close, open, put, replies};
use crate::rows::{ASKER, commit, name, row};

fn log_query(ledger: &mut Ledger, ticket: u64, by: Principal) -> Result<(), NotHandedOver> {
    ledger.look_up((ticket, by), EventQuery { limit: 1_000, ..EventQuery::default() })
}

#[test]
fn commit_is_accepted_and_written_before_waiting_ledger_queries() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open(folder.path()).ledger;
    for seq in 1..=500 {
        put(&mut ledger, commit(seq, [("web", Some(row("web", seq)))])).unwrap();
    }
    let each = u64::try_from(QUERIES_OF_ONE).unwrap();
    let most = u64::try_from(MOST_QUERIES).unwrap();
    for ticket in 0..most {
        let by = Principal::User(u32::try_from(ticket / each).unwrap());
        log_query(&mut ledger, ticket, by).unwrap();
    }
    let full = log_query(&mut ledger, most, Principal::User(1_000));
    assert!(matches!(full, Err(NotHandedOver::TooManyQueries)), "{full:?}");
    ledger.append(commit(501, [("web", None)]), Time::START).unwrap();
    let order = replies(&mut ledger, MOST_QUERIES + 1);
    let place = order.iter().position(|reply| matches!(reply, Reply::Committed { seq: 501 }));
    assert!(place.is_some_and(|place| place < MOST_QUERIES / 2), "{place:?}");
    close(ledger);
}

#[test]
fn principal_may_have_four_ledger_queries_open_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open(folder.path()).ledger;
    put(&mut ledger, commit(1, [("web", Some(row("web", 1)))])).unwrap();
    for ticket in 1..=3 {
        log_query(&mut ledger, ticket, ASKER).unwrap();
    }
    let asked = HoursQuery { name: name("web"), since_ns: 0, by_day: true };
    ledger.look_up_hours((4, ASKER), asked).unwrap();
    let fifth = log_query(&mut ledger, 5, ASKER);
    assert!(matches!(fifth, Err(NotHandedOver::TooManyOfOne)), "{fifth:?}");
    log_query(&mut ledger, 6, Principal::User(8)).unwrap();
    // A cancelled query counts until its reply, which may be empty.
    ledger.cancel(6);
    assert_eq!(replies(&mut ledger, 5).len(), 5);
    log_query(&mut ledger, 7, ASKER).unwrap();
    replies(&mut ledger, 1);
    close(ledger);
}
