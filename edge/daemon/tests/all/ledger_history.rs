//! Tests of the history in the ledger: its limits on age and bytes, times without data, and the
//! rows that survive a crash.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

use rusqlite::Connection;
use slackline_daemon::ledger::{HoursQuery, Keep, Ledger, OpenedLedger, Reply, check, rebuild};
use slackline_service::Principal;
use slackline_service::history::{DAY, HOUR_NS, Hour, HourSums};
use slackline_units::Span;

use crate::ledger::{close, open, open_keeping, put, replies};
use crate::rows::{ASKER, commit, name, note_run_days, row};

/// Returns the present hour, as a number of hours since 1970.
fn this_hour() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    now.as_secs() / 3_600
}

/// Returns a history row for a whole hour in which all values are known.
fn hour(called: &str, start: u64) -> Hour {
    let sums = HourSums {
        existed: Span::from_ns(HOUR_NS),
        known: Span::from_ns(HOUR_NS),
        reserved: Span::from_secs(720),
        due: Span::from_secs(700),
        delivered: Span::from_ns(699_123_456_789),
        late: Span::from_ns(12_345_678),
        deadlines: 360_000,
        missed: 3,
        contested: Span::ZERO,
    };
    let until_ns = (start + 1) * HOUR_NS;
    let owner = ASKER;
    Hour { name: name(called), owner, start, length: 1, until_ns, continues: true, sums }
}

fn keep(ledger: &mut Ledger, rows: Vec<Hour>) {
    ledger.keep_history(rows).expect("room");
    match replies(ledger, 1).pop() {
        Some(Reply::History { done: Ok(()), .. }) => {}
        other => panic!("{other:?}"),
    }
}

fn ask(ledger: &mut Ledger, called: &str, since: u64, by_day: bool) -> Vec<Hour> {
    let asked = HoursQuery { name: name(called), since_ns: since * HOUR_NS, by_day };
    ledger.look_up_hours((7, ASKER), asked).expect("room");
    match replies(ledger, 1).pop() {
        Some(Reply::Hours { ticket: 7, hours }) => hours.expect("hours"),
        other => panic!("{other:?}"),
    }
}

/// Returns the number of bytes in all pages of the table `history` and its indexes.
fn bytes(folder: &Path) -> u64 {
    let ledger = Connection::open(folder.join("ledger.db")).unwrap();
    let sql = "SELECT sum(pgsize) FROM dbstat
        WHERE name IN ('history', 'history_by_name', 'history_by_owner')";
    ledger.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap().unsigned_abs()
}

#[test]
fn hourly_history_survives_restart_and_is_replaced_by_newer_rows() {
    let folder = tempfile::tempdir().unwrap();
    let OpenedLedger { mut ledger, history, .. } = open(folder.path());
    assert_eq!(history, []);
    put(&mut ledger, commit(1, [("web", Some(row("web", 1)))])).unwrap();
    let now = this_hour();
    keep(&mut ledger, vec![hour("web", now - 1), hour("db", now - 1), hour("web", now)]);
    let newer = Hour { until_ns: 1, ..hour("web", now) };
    keep(&mut ledger, vec![newer.clone()]);
    // The ledger is dropped without a clean end, as if the process had been killed.
    drop(ledger);
    let OpenedLedger { mut ledger, history, .. } = open(folder.path());
    // Only `web` has a reservation.
    assert_eq!(history.as_slice(), std::slice::from_ref(&newer));
    assert_eq!(ask(&mut ledger, "web", now - 5, false), [hour("web", now - 1), newer]);
    assert_eq!(ask(&mut ledger, "db", now - 1, false), [hour("db", now - 1)]);
    assert_eq!(ask(&mut ledger, "other", 0, false), []);
    assert_eq!(ask(&mut ledger, "db", now, false), []);
    close(ledger);
}

#[test]
fn hour_of_reservation_without_history_row_counts_as_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open(folder.path()).ledger;
    let day = this_hour() / 24 * 24 - 48;
    keep(&mut ledger, vec![hour("web", day + 1), hour("web", day + 5), hour("web", day + 30)]);
    let shown = ask(&mut ledger, "web", day + 3, false);
    assert_eq!(shown.first().map(|hour| hour.start), Some(day + 3));
    assert_eq!(shown.last().map(|hour| hour.start), Some(day + 30));
    assert_eq!(shown.len(), 28);
    let unknown = shown.iter().filter(|hour| hour.sums.unknown() == Span::from_ns(HOUR_NS));
    assert_eq!(unknown.count(), 26);
    let days = ask(&mut ledger, "web", day + 3, true);
    let parts = days.iter().map(|day| (day.start, day.length, day.sums.known.ns() / HOUR_NS));
    assert_eq!(parts.collect::<Vec<_>>(), [(day, DAY, 2), (day + 24, DAY, 1)]);
}

#[test]
fn history_stays_within_size_limit_by_merging_old_hours_first() {
    let folder = tempfile::tempdir().unwrap();
    let bound = 1 << 20;
    let mut ledger =
        open_keeping(folder.path(), Keep { history_bytes: bound, ..Keep::USUAL }).ledger;
    let names: Vec<String> = (0..40).map(|n| format!("guest-{n:02}-{}", "x".repeat(n))).collect();
    let days = 20;
    let first = this_hour() / 24 * 24 - days * 24;
    for start in first..first + days * 24 {
        keep(&mut ledger, names.iter().map(|name| hour(name, start)).collect());
        if start % 24 == 0 {
            assert!(bytes(folder.path()) <= bound, "{}", bytes(folder.path()));
        }
    }
    let used = bytes(folder.path());
    println!("{used} bytes of {bound}");
    assert!(used <= bound && used > bound / 2, "{used}");
    // No day is lost. Old days have one row per day, and the last days have one row per hour.
    for name in &names {
        let shown = ask(&mut ledger, name, first, false);
        assert_eq!(shown[0].length, DAY, "{name}");
        let last = shown.last().expect("rows");
        assert_eq!((last.length, last.start), (1, first + days * 24 - 1));
        let sum = shown.iter().fold(HourSums::default(), |mut sum, hour| {
            sum.add(&hour.sums);
            sum
        });
        assert_eq!(sum.known.ns(), days * 24 * HOUR_NS, "{name}");
        assert_eq!(sum.delivered.ns(), days * 24 * 699_123_456_789);
        assert_eq!(sum.missed, days * 24 * 3);
    }
    drop(ledger);
    // The size measured at a start equals the size counted while rows were written.
    let mut ledger =
        open_keeping(folder.path(), Keep { history_bytes: bound / 8, ..Keep::USUAL }).ledger;
    keep(&mut ledger, vec![hour("web", first + days * 24)]);
    assert!(bytes(folder.path()) <= bound / 8, "{}", bytes(folder.path()));
    let left: BTreeSet<u64> =
        ask(&mut ledger, &names[3], first, true).iter().map(|day| day.start).collect();
    assert_eq!(left.last(), Some(&(first + (days - 1) * 24)), "{left:?}");
    assert!(!left.contains(&first), "the oldest day is deleted first: {left:?}");
}

#[test]
fn history_older_than_400_days_is_deleted_by_next_commit() {
    let folder = tempfile::tempdir().unwrap();
    note_run_days(folder.path());
    let OpenedLedger { mut ledger, .. } = open(folder.path());
    assert_eq!(Keep::USUAL.history, 400);
    assert_eq!(Keep::USUAL.history_bytes, 64 << 20);
    let now = this_hour();
    let first = (now / 24 - 400) * 24;
    keep(&mut ledger, vec![hour("web", first - 2), hour("web", first + 2)]);
    keep(&mut ledger, vec![hour("web", now)]);
    let shown = ask(&mut ledger, "web", 0, true);
    let known: u64 = shown.iter().map(|day| day.sums.known.ns() / HOUR_NS).sum();
    assert_eq!(known, 2);
    // All days are in one answer, however old the reservation is.
    assert!((400..=402).contains(&shown.len()), "{}", shown.len());
    let hours = ask(&mut ledger, "web", 0, false);
    assert_eq!(hours.len(), 1_000);
}

/// The rows are 500 days old according to the clock, as if the clock had stepped ahead by 500 days
/// after they were written.
#[test]
fn clock_step_of_500_days_deletes_neither_events_nor_history() {
    let folder = tempfile::tempdir().unwrap();
    let now = this_hour();
    let old = now - 500 * 24;
    let rows = |ledger: &mut Ledger| {
        keep(ledger, vec![hour("web", now)]);
        let seq = 1 + last_seq(folder.path());
        put(ledger, commit(seq, [("web", Some(row("web", seq)))])).unwrap();
        let file = Connection::open(folder.path().join("ledger.db")).unwrap();
        let count = |sql: &str| file.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap();
        let old_events = count("SELECT count(*) FROM event WHERE seq = 1");
        (old_events, count("SELECT count(*) FROM history"))
    };
    let mut ledger = open(folder.path()).ledger;
    put(&mut ledger, commit(1, [("web", Some(row("web", 1)))])).unwrap();
    keep(&mut ledger, vec![hour("web", old)]);
    close(ledger);
    let file = Connection::open(folder.path().join("ledger.db")).unwrap();
    let at = i64::try_from(old * HOUR_NS).unwrap();
    file.execute("UPDATE event SET at = ?1", [at]).unwrap();
    drop(file);
    let mut ledger = open(folder.path()).ledger;
    assert_eq!(rows(&mut ledger), (1, 2));
    close(ledger);
    // If a daemon has run on each of the last 401 days, the rows are too old.
    note_run_days(folder.path());
    assert_eq!(rows(&mut open(folder.path()).ledger), (0, 1));
}

/// Returns the highest number of an event in the ledger.
fn last_seq(folder: &Path) -> u64 {
    let file = Connection::open(folder.join("ledger.db")).unwrap();
    let last = file.query_row("SELECT max(seq) FROM event", [], |row| row.get::<_, u32>(0));
    last.unwrap().into()
}

#[test]
fn check_and_rebuild_of_the_ledger_include_the_history() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open(folder.path()).ledger;
    put(&mut ledger, commit(1, [("web", Some(row("web", 1)))])).unwrap();
    keep(&mut ledger, vec![hour("web", this_hour())]);
    close(ledger);
    let examined = check(folder.path()).unwrap();
    assert_eq!(examined.problems, [""; 0]);
    assert!(examined.tables.contains(&("history", Some(1))), "{:?}", examined.tables);
    let raw = Connection::open(folder.path().join("ledger.db")).unwrap();
    raw.execute("UPDATE history SET length = 5", []).unwrap();
    drop(raw);
    let examined = check(folder.path()).unwrap();
    assert!(examined.problems[0].starts_with("table `history`"), "{:?}", examined.problems);
    let rebuilt = rebuild(folder.path()).unwrap().expect("the ledger was damaged");
    let rows = |name| rebuilt.tables.iter().find(|table| table.name == name).map(|it| it.rows);
    assert_eq!((rows("reservation"), rows("history")), (Some(1), Some(0)));
    let mut ledger = open(folder.path()).ledger;
    keep(&mut ledger, vec![hour("web", this_hour())]);
}

#[test]
fn history_of_one_owner_does_not_displace_history_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let bound = 1 << 20;
    let keeping = Keep { history_bytes: bound, ..Keep::USUAL };
    let mut ledger = open_keeping(folder.path(), keeping).ledger;
    let first = this_hour() / 24 * 24 - 10 * 24;
    for start in first..first + 10 * 24 {
        let mut rows = vec![hour("web", start), hour("db", start)];
        // The other owner has new reservations in each hour.
        rows.extend((0..100).map(|number| Hour {
            owner: Principal::User(8),
            ..hour(&format!("flood-{start}-{number}"), start)
        }));
        keep(&mut ledger, rows);
    }
    assert!(bytes(folder.path()) <= bound, "{}", bytes(folder.path()));
    for name in ["web", "db"] {
        let shown = ask(&mut ledger, name, first, false);
        assert_eq!(shown.len(), 10 * 24, "{name}");
        assert!(shown.iter().all(|hour| hour.length == 1 && hour.owner == ASKER));
    }
    close(ledger);
    let other = Connection::open(folder.path().join("ledger.db")).unwrap();
    let sql = "SELECT count(*) FROM history WHERE owner = 'uid 8'";
    let left: u32 = other.query_row(sql, [], |row| row.get(0)).unwrap();
    assert!(left > 1_000, "{left}");
}

#[test]
fn history_written_by_older_version_gets_owners_of_present_reservations() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open(folder.path()).ledger;
    put(&mut ledger, commit(1, [("web", Some(row("web", 1)))])).unwrap();
    let now = this_hour();
    keep(&mut ledger, vec![hour("web", now), hour("ended", now)]);
    close(ledger);
    let other = Connection::open(folder.path().join("ledger.db")).unwrap();
    other
        .execute_batch(
            "DROP TRIGGER history_added; DROP TRIGGER history_deleted;
             DROP INDEX history_by_owner; ALTER TABLE history DROP COLUMN owner;
             DELETE FROM share; INSERT INTO history SELECT start, 'more', length, until, continues,
                 existed_ns, known_ns, contested_ns, reserved_ns, due_ns, delivered_ns, late_ns,
                 deadlines, missed FROM history WHERE name = 'web';",
        )
        .unwrap();
    drop(other);
    let OpenedLedger { mut ledger, history, .. } = open(folder.path());
    assert_eq!(history[0].owner, Principal::User(1000));
    assert_eq!(ask(&mut ledger, "ended", now, false)[0].owner, Principal::Service);
    assert_eq!(ask(&mut ledger, "more", now, false).len(), 1);
    close(ledger);
    assert_eq!(check(folder.path()).unwrap().problems, [""; 0]);
}
