//! Tests that every table of the ledger has a size limit, which holds after each commit.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use slackline_daemon::ledger::{Keep, Ledger, OpenedLedger};
use slackline_service::{Commit, EventKind, KEYS_IN_ALL, KEYS_OF_ONE, KeptAnswer, Principal, Row};

use crate::ledger::{close, open, open_keeping, put};
use crate::rows::{commit, event, kept, row};

fn count(folder: &Path, table: &str, rows: &str) -> usize {
    let ledger = Connection::open(folder.join("ledger.db")).unwrap();
    let sql = format!("SELECT count(*) FROM {table} WHERE {rows}");
    let rows: u32 = ledger.query_row(&sql, [], |row| row.get(0)).unwrap();
    usize::try_from(rows).unwrap()
}

fn answer(uid: u32, number: usize) -> KeptAnswer {
    let principal = Principal::User(uid);
    KeptAnswer { principal, ..kept(&format!("k{number}"), row("web", 1)) }
}

/// Returns a commit with many kept answers and one event.
fn many(seq: u64, answers: impl Iterator<Item = KeptAnswer>) -> Commit {
    Commit { kept: answers.collect(), ..commit(seq, [("web", Some(row("web", 1)))]) }
}

#[test]
fn stored_answers_never_exceed_limits_per_user_and_in_total() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open(folder.path()).ledger;
    put(&mut ledger, many(1, [answer(7, 0)].into_iter())).unwrap();
    // The answers of a principal displace only older answers of the same principal.
    for seq in 2..7 {
        let begin = usize::try_from(seq).unwrap() * 300;
        put(&mut ledger, many(seq, (begin..begin + 300).map(|n| answer(1000, n)))).unwrap();
        assert!(count(folder.path(), "answer", "principal = 'uid 1000'") <= KEYS_OF_ONE);
    }
    assert_eq!(count(folder.path(), "answer", "principal = 'uid 1000'"), KEYS_OF_ONE);
    assert_eq!(count(folder.path(), "answer", "principal = 'uid 7'"), 1);
    for (seq, uid) in (7..).zip(2000..2021) {
        put(&mut ledger, many(seq, (0..KEYS_OF_ONE).map(|n| answer(uid, n)))).unwrap();
        assert!(count(folder.path(), "answer", "1") <= KEYS_IN_ALL);
    }
    assert_eq!(count(folder.path(), "answer", "1"), KEYS_IN_ALL);
    assert_eq!(count(folder.path(), "answer", "principal = 'uid 7'"), 0);
    close(ledger);
    let OpenedLedger { loaded, .. } = open(folder.path());
    assert_eq!(loaded.kept.len(), KEYS_IN_ALL);
    let newest = loaded.kept.last().map(|(kept, _)| kept.clone());
    assert_eq!(newest, Some(answer(2020, KEYS_OF_ONE - 1)));
}

#[test]
fn replacing_a_stored_answer_removes_no_other_stored_answer() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open(folder.path()).ledger;
    for seq in 1..=3 {
        put(&mut ledger, many(seq, (0..KEYS_OF_ONE).map(|n| answer(1, n)))).unwrap();
    }
    assert_eq!(count(folder.path(), "answer", "1"), KEYS_OF_ONE);
}

#[test]
fn ledger_above_its_size_limit_drops_its_oldest_events() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = 1 << 20;
    let keep = Keep { bytes, ..Keep::USUAL };
    let mut ledger = open_keeping(folder.path(), keep).ledger;
    let (mut seq, mut most) = (0, 0);
    for _ in 0..60 {
        let events = (seq + 1..=seq + 100).map(|seq| {
            let mut event = event(seq, EventKind::Granted("\u{e9}".repeat(5_000)));
            event.after = Some(row("web", seq));
            event
        });
        let events = events.collect();
        seq += 100;
        let commit = Commit { events, ..Commit::empty(seq) };
        put(&mut ledger, commit).unwrap();
        most = most.max(count(folder.path(), "event", "1"));
    }
    let left = count(folder.path(), "event", "1");
    assert!(left <= most && (100..2_000).contains(&left), "{left} events are left of {most}");
    let ledger = Connection::open(folder.path().join("ledger.db")).unwrap();
    let pragma = |name| ledger.pragma_query_value(None, name, |row| row.get::<_, u32>(0)).unwrap();
    let used = (pragma("page_count") - pragma("freelist_count")) * pragma("page_size");
    // A commit may exceed the limit by its own hundred events. The next commit deletes the excess.
    assert!(u64::from(used) < bytes + 400_000, "{used}");
    let longest: u32 = ledger
        .query_row("SELECT max(length(CAST(detail AS BLOB))) FROM event", [], |row| row.get(0))
        .unwrap();
    assert_eq!(longest, 1_024);
}

/// Writes a ledger with a million answers to three principals, as an old version without size
/// limits left it after a day.
fn after_a_day_without_bounds(folder: &Path) {
    let OpenedLedger { mut ledger, .. } = open(folder);
    put(&mut ledger, many(1, [answer(7, 0)].into_iter())).unwrap();
    close(ledger);
    let ledger = Connection::open(folder.join("ledger.db")).unwrap();
    ledger
        .execute_batch(
            "UPDATE answer SET at = at - 3600000000000;
             WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1000000)
             INSERT INTO answer SELECT 'uid ' || (1000 + n % 3), 'key-' || n, answer.asked,
                 answer.reply, 1, answer.at + n * 1000000 FROM n, answer WHERE key = 'k0';",
        )
        .unwrap();
}

#[test]
fn ledger_with_million_answers_opens_within_10_seconds_and_shrinks() {
    let folder = tempfile::tempdir().unwrap();
    after_a_day_without_bounds(folder.path());
    let began = Instant::now();
    let OpenedLedger { mut ledger, loaded, .. } = open(folder.path());
    let took = began.elapsed();
    // A release build takes a third of this. Without the limit it takes a minute.
    assert!(took < Duration::from_secs(10), "{took:?}");
    println!("opened in {took:?}");
    assert_eq!(loaded.kept.len(), 3 * KEYS_OF_ONE + 1);
    let ages: Vec<_> = loaded.kept.iter().map(|(_, age)| *age).collect();
    assert!(ages.is_sorted_by(|older, younger| older >= younger));
    // An answer that is an hour old is still known, regardless of other principals' requests.
    assert_eq!(loaded.kept[0].0, answer(7, 0));
    let before = count(folder.path(), "answer", "1");
    for seq in 2..12 {
        put(&mut ledger, many(seq, [answer(8, 0)].into_iter())).unwrap();
    }
    let after = count(folder.path(), "answer", "1");
    assert!(after + 100 <= before, "{after} of {before}");
    assert_eq!(count(folder.path(), "answer", "principal = 'uid 7'"), 1);
    drop(ledger);
    assert_eq!(open(folder.path()).loaded.kept.len(), 3 * KEYS_OF_ONE + 2);
}

#[test]
fn stored_answers_stay_within_their_limit_after_a_failed_commit() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open(folder.path()).ledger;
    put(&mut ledger, many(1, (0..KEYS_OF_ONE).map(|n| answer(1, n)))).unwrap();
    let other = Connection::open(folder.path().join("ledger.db")).unwrap();
    // A revision that does not fit into the table makes the whole commit fail.
    let bad = Row { revision: u64::MAX, ..row("web", 1) };
    let failing = Commit {
        kept: (0..10).map(|n| answer(1, KEYS_OF_ONE + n)).collect(),
        ..commit(3, [("web", Some(bad))])
    };
    put(&mut ledger, failing.clone()).unwrap_err();
    put(&mut ledger, Commit { rows: Vec::new(), ..failing }).unwrap();
    drop(other);
    assert_eq!(count(folder.path(), "answer", "1"), KEYS_OF_ONE);
    drop(ledger);
    let _ = Ledger::open(folder.path(), "boot", Keep::USUAL).unwrap();
}
