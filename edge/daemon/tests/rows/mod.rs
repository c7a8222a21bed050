//! Reservations and commits for tests.

#![allow(dead_code, unreachable_pub)] // Each topic uses its own part.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use slackline_service::{
    Commit, Event, EventKind, Identity, KeptAnswer, Name, Principal, Row, Terms, Verb,
};
use slackline_units::{Reservation, Span, Time};

/// Principal that queries the ledger in tests.
pub const ASKER: Principal = Principal::User(7);

/// Writes to a ledger's folder that a daemon has run on each of the last 401 days.
pub fn note_run_days(folder: &Path) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    let today = now.as_secs() / (24 * 3600);
    let days: String = (today - 400..=today).map(|day| format!("{day}\n")).collect();
    std::fs::write(folder.join("days"), days).expect("a file in the ledger's folder");
}

pub fn name(text: &str) -> Name {
    text.parse().expect("the name is valid")
}

pub fn identity(started: u64) -> Identity {
    Identity::Process { pid: 4711, started, inode: 1 << 40 }
}

/// Returns a reservation that the event with the number `seq` created and last changed.
pub fn row(called: &str, seq: u64) -> Row {
    let each =
        Reservation::new(Span::from_ms(2), Span::from_ms(10)).expect("the reservation is valid");
    let terms = Terms::new(each, true, 2).expect("the terms are valid").spread_by_use(true);
    let binding = format!("libvirt:{called}").parse().expect("the binding is valid");
    let row = Row::new(name(called), (Principal::User(1000), 1000), terms, binding);
    Row { since: seq, revision: seq, ..row }
}

pub fn event(seq: u64, what: EventKind) -> Event {
    Event {
        seq,
        at: Time::START,
        principal: Principal::User(0),
        what,
        name: None,
        before: None,
        after: None,
        was_late: false,
    }
}

/// Returns a commit that contains one event for each row.
pub fn commit<const N: usize>(seq: u64, rows: [(&str, Option<Row>); N]) -> Commit {
    let first = seq + 1 - u64::try_from(N).expect("there are few rows");
    let events = (first..).zip(&rows).map(|(seq, (called, row))| Event {
        name: Some(name(called)),
        after: row.clone(),
        ..event(seq, EventKind::Asked(Verb::Reserve))
    });
    let events = events.collect();
    let rows = rows.map(|(called, row)| (name(called), row)).into();
    Commit { rows, events, ..Commit::empty(seq) }
}

pub fn kept(key: &str, row: Row) -> KeptAnswer {
    let (principal, key) = (Principal::User(1000), key.parse().expect("the key is valid"));
    KeptAnswer { principal, key, asked: "reserve web".to_owned(), row, is_new: true }
}
