//! Tests of the size limits of the ledger's tables. Each table is within its limit after each
//! commit.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use slackline_daemon::ledger::{AccessChange, Keep, Ledger, OpenedLedger};
use slackline_service::{
    Commit, Event, EventKind, KEY_BYTES_OF_ONE, KEYS_IN_ALL, KEYS_OF_ONE, KeptAnswer, PLAN_BYTES,
    PLANS_BYTES, Plan, PlanStage, PlanStep, Principal, Raise, Role, Row, Verb,
};

use crate::ledger::{close, open, open_keeping, put, replies};
use crate::rows::{commit, event, kept, note_run_days, row};

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

/// Writes a ledger with a million answers to three principals. An old version without size limits
/// left such a ledger after a day.
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
fn ledger_with_million_answers_opens_within_3_seconds_and_shrinks() {
    let folder = tempfile::tempdir().unwrap();
    after_a_day_without_bounds(folder.path());
    let began = Instant::now();
    let OpenedLedger { mut ledger, loaded, .. } = open(folder.path());
    let took = began.elapsed();
    // A debug build takes 0.1 s. Without the limit it takes a minute.
    assert!(took < Duration::from_secs(3), "{took:?}");
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

#[test]
fn stored_answers_of_one_user_have_limited_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open(folder.path()).ledger;
    put(&mut ledger, many(1, [answer(7, 0)].into_iter())).unwrap();
    let long = |number| KeptAnswer { asked: "x".repeat(8_000), ..answer(1, number) };
    for seq in 2..7_u64 {
        let begin = usize::try_from(seq).unwrap() * 100;
        put(&mut ledger, many(seq, (begin..begin + 100).map(long))).unwrap();
        let sql = "SELECT sum(length(key) + length(asked) + length(reply)) FROM answer
            WHERE principal = 'uid 1'";
        let raw = Connection::open(folder.path().join("ledger.db")).unwrap();
        let bytes: u32 = raw.query_row(sql, [], |row| row.get(0)).unwrap();
        assert!(bytes as usize <= KEY_BYTES_OF_ONE, "{bytes}");
    }
    let kept = count(folder.path(), "answer", "principal = 'uid 1'");
    assert!(kept > 100, "{kept}");
    assert_eq!(count(folder.path(), "answer", "principal = 'uid 7'"), 1);
    close(ledger);
    let loaded = open(folder.path()).loaded;
    assert_eq!(loaded.kept.len(), kept + 1);
    assert_eq!(loaded.kept.last().map(|(kept, _)| kept.clone()), Some(long(699)));
}

/// Writes `number` events of a user, ten in each commit, beginning with the event number `first`.
/// Returns the next free event number.
fn events_of(ledger: &mut Ledger, user: u32, number: u64, first: u64) -> u64 {
    for seq in (first..first + number).step_by(10) {
        let one = |seq| Event {
            principal: Principal::User(user),
            ..event(seq, EventKind::Asked(Verb::Reserve))
        };
        let commit =
            Commit { events: (seq..seq + 10).map(one).collect(), ..Commit::empty(seq + 9) };
        put(ledger, commit).unwrap();
    }
    first + number
}

#[test]
fn user_with_many_events_displaces_no_events_of_other_users() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open_keeping(folder.path(), Keep { rows: 100, ..Keep::USUAL }).ledger;
    let of = |user| count(folder.path(), "event", &format!("principal = 'uid {user}'"));
    ledger.note_administrator(Principal::User(9));
    let mut next = 1;
    for user in [0, 9, 7] {
        next = events_of(&mut ledger, user, 10, next);
    }
    next = events_of(&mut ledger, 8, 1_000, next);
    assert_eq!([0, 9, 7, 8].map(of), [10, 10, 10, 70]);
    // Many users displace no events of administrators.
    for user in 1_000..1_020 {
        next = events_of(&mut ledger, user, 100, next);
    }
    assert_eq!([0, 9].map(of), [10, 10]);
    assert_eq!(count(folder.path(), "event", "1"), 100);
    // Administrators leave half of the table to others.
    events_of(&mut ledger, 0, 1_000, next);
    let others = 100 - of(0) - of(9);
    assert!((45..=50).contains(&others), "{others}");
    let newest = count(folder.path(), "event", "seq > (SELECT max(seq) - 20 FROM event)");
    assert_eq!((newest, of(9)), (20, 10));
}

/// The principal is an administrator as a member of a group. A grant that gave the principal a
/// lower role is revoked.
#[test]
fn events_of_group_administrator_survive_revocation_of_lower_grant() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open_keeping(folder.path(), Keep { rows: 100, ..Keep::USUAL }).ledger;
    ledger.note_administrator(Principal::User(9));
    ledger.change_access(1, AccessChange::Revoke(Principal::User(9))).unwrap();
    replies(&mut ledger, 1);
    ledger.note_administrator(Principal::User(9));
    let mut next = events_of(&mut ledger, 9, 10, 1);
    for user in 1_000..1_020 {
        next = events_of(&mut ledger, user, 30, next);
    }
    assert_eq!(count(folder.path(), "event", "principal = 'uid 9'"), 10);
    assert_eq!(count(folder.path(), "event", "1"), 100);
}

/// The ledger gets 105 events. Three of them are too old. Two of the other 102 events exceed the
/// limit of 100 rows.
#[test]
fn one_commit_deletes_old_events_and_excess_events() {
    let folder = tempfile::tempdir().unwrap();
    note_run_days(folder.path());
    let mut ledger = open_keeping(folder.path(), Keep { rows: 100, ..Keep::USUAL }).ledger;
    let next = events_of(&mut ledger, 8, 100, 1);
    let raw = Connection::open(folder.path().join("ledger.db")).unwrap();
    raw.execute("UPDATE event SET at = 0 WHERE seq <= 3", []).unwrap();
    drop(raw);
    let events = (next..next + 5).map(|seq| event(seq, EventKind::Asked(Verb::Reserve)));
    let commit = Commit { events: events.collect(), ..Commit::empty(next + 4) };
    put(&mut ledger, commit).unwrap();
    assert_eq!(count(folder.path(), "event", "1"), 100);
    assert_eq!(count(folder.path(), "event", "seq <= 5"), 0);
}

/// Returns a plan of about 4 MB for a user, with the principal of the user.
fn large_plan(user: u32) -> (Principal, Option<Plan>) {
    let (principal, role) = (Principal::User(user), Role::Tenant);
    let web = row("web", 1);
    let step = PlanStep { before: Some(web.clone()), after: Some(web), is_done: true };
    let number = PLAN_BYTES / 1_300;
    let (steps, stage) = (vec![step; number], PlanStage::Done);
    (principal, Some(Plan { principal, role, users: Vec::new(), since: 1, steps, stage }))
}

/// Fills the tables of a ledger. It gets all reservations, answers, plans and raises that are
/// allowed, and some events and hours.
fn fill(folder: &Path) {
    let mut ledger = open(folder).ledger;
    let mut seq = 0;
    for first in (0..10_000).step_by(1_000) {
        let rows = (first..first + 1_000).map(|number| {
            let one = row(&format!("r{number}"), number + 1);
            (one.name.clone(), Some(one))
        });
        let rows: Vec<_> = rows.collect();
        let raise = || Raise { by: Principal::User(5), since: 1, from: None };
        let raises = rows.iter().map(|(name, _)| (name.clone(), vec![raise()])).collect();
        seq += 1;
        put(&mut ledger, Commit { rows, raises, ..Commit::empty(seq) }).unwrap();
    }
    for uid in 2_000..2_020 {
        seq += 1;
        put(&mut ledger, many(seq, (0..KEYS_OF_ONE).map(|number| answer(uid, number)))).unwrap();
    }
    for user in 0..4 {
        seq += 1;
        put(&mut ledger, Commit { plans: vec![large_plan(user)], ..Commit::empty(seq) }).unwrap();
    }
    close(ledger);
    let raw = Connection::open(folder.join("ledger.db")).unwrap();
    raw.execute_batch(
        "WITH RECURSIVE n(n) AS (SELECT 1000 UNION ALL SELECT n + 1 FROM n WHERE n < 50000)
         INSERT INTO event SELECT n, at, 'uid ' || (n % 50), verb, detail, 'r' || (n % 10000),
             before, after, late FROM n, event WHERE seq = 15;
         WITH RECURSIVE n(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 49999)
         INSERT INTO history SELECT 480000 + n / 1000, 'r' || (n % 1000), 1, 0, 1, 1, 1, 0, 1, 1,
             1, 0, 1, 0, 'uid ' || (n % 20) FROM n;",
    )
    .unwrap();
}

#[test]
fn ledger_with_tables_at_their_limits_is_read_completely() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let began = Instant::now();
    let OpenedLedger { ledger, loaded, history, .. } = open(folder.path());
    println!("opened in {:?}", began.elapsed());
    let (rows, raises) = (loaded.rows.len(), loaded.raises.len());
    assert_eq!((rows, raises, loaded.plans.len(), history.len()), (10_001, 10_000, 4, 1_000));
    assert_eq!(loaded.kept.len(), KEYS_IN_ALL);
    let bytes: usize = loaded.plans.iter().map(Plan::stored_bytes).sum();
    assert!((PLANS_BYTES / 10 * 9..=PLANS_BYTES).contains(&bytes), "{bytes}");
    close(ledger);
}
