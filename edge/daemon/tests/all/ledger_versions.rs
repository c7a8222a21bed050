//! Tests of ledgers of older versions, which must be migrated without loss.

use std::fs;
use std::path::Path;

use rusqlite::Connection;
use slackline_daemon::ledger::{
    AccessGrant, EventQuery, Keep, Ledger, OpenedLedger, Reply, Source, check, rebuild,
};
use slackline_service::{Commit, Identity, Principal, Raise, Role, Row, Terms};
use slackline_units::{Enforcement, Reservation, Span};

use crate::ledger::{close, open, open_keeping, other, put, replies};
use crate::rows::{ASKER, commit, name, row};

/// Creates a ledger of version 1, and returns the bytes of its file.
fn of_first_version(folder: &Path) -> Vec<u8> {
    other(folder).execute_batch(include_str!("../ledger-version-1.sql")).unwrap();
    fs::read(folder.join("ledger.db")).unwrap()
}

/// The ledger of version 6 contains one reservation that was changed once, and a user with a grant
/// to view.
#[test]
fn ledger_of_format_version_6_is_read_without_loss() {
    let folder = tempfile::tempdir().unwrap();
    other(folder.path()).execute_batch(include_str!("../ledger-version-6.sql")).unwrap();
    assert_eq!(check(folder.path()).unwrap().problems, [""; 0]);
    let loaded = open(folder.path()).loaded;
    let shown: Vec<String> = loaded.rows.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["3ms/10ms exact for 1 vCPU, pid:29011"]);
    assert_eq!((loaded.rows[0].revision, loaded.last_seq), (2, 3));
}

#[test]
fn users_without_grant_become_tenants_only_after_migration_of_ledger() {
    let folder = tempfile::tempdir().unwrap();
    other(folder.path()).execute_batch(include_str!("../ledger-version-6.sql")).unwrap();
    let kept = |access: &[(Principal, Role)]| access == [(Principal::User(5001), Role::Viewer)];
    let OpenedLedger { mut ledger, has_tenants, access, .. } = open(folder.path());
    assert!(!has_tenants && kept(&roles(&access)));
    let path = folder.path().join("ledger.db");
    assert_eq!(version(&path), 11);
    ledger.migrate_access(7).unwrap();
    let [Reply::Access { ticket: 7, done: Ok(()) }] = &replies(&mut ledger, 1)[..] else {
        panic!("not migrated")
    };
    close(ledger);
    for kept in [6, 11] {
        assert_eq!(version(&folder.path().join(format!("ledger.version-{kept}.db"))), kept);
    }
    let opened = open(folder.path());
    assert!(opened.has_tenants && opened.loaded.rows.len() == 1 && kept(&roles(&opened.access)));
    // A ledger of version 7 has tenants too. Its version alone says so, and the migration sets the
    // flag.
    let folder = tempfile::tempdir().unwrap();
    other(folder.path()).execute_batch(include_str!("../ledger-version-6.sql")).unwrap();
    other(folder.path()).pragma_update(None, "user_version", 7).unwrap();
    let opened = open(folder.path());
    assert!(opened.has_tenants && opened.loaded.rows.len() == 1 && kept(&roles(&opened.access)));
    // A new ledger has tenants from the start.
    let folder = tempfile::tempdir().unwrap();
    assert!(open(folder.path()).has_tenants);
}

/// Each commit deletes 16 events that exceed the limit, and one more to make room for its own
/// event.
#[test]
fn surplus_events_of_older_version_are_deleted_gradually_by_commits() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open(folder.path()).ledger;
    for seq in 1..=100 {
        put(&mut ledger, commit(seq, [("web", Some(row("web", seq)))])).unwrap();
    }
    drop(ledger);
    let keep = Keep { rows: 20, ..Keep::USUAL };
    let mut ledger = open_keeping(folder.path(), keep).ledger;
    put(&mut ledger, commit(101, [("web", None)])).unwrap();
    ledger.look_up((1, ASKER), EventQuery { limit: 1000, ..EventQuery::default() }).unwrap();
    let Some(Reply::Events { events: Ok(events), .. }) = replies(&mut ledger, 1).pop() else {
        panic!("no events");
    };
    assert!(events.iter().map(|event| event.seq).eq((18..=101).rev()), "{events:?}");
}

/// Returns the principals with a grant, and their roles.
fn roles(access: &[AccessGrant]) -> Vec<(Principal, Role)> {
    access.iter().map(|grant| (grant.principal, grant.role)).collect()
}

/// The mechanism is stored with the reservation, and with the event that set the mechanism.
#[test]
fn reservation_under_sched_deadline_keeps_its_mechanism_in_the_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open(folder.path()).ledger;
    let plain = row("web", 1);
    let exact = Terms::new(plain.terms.each(), true, 1).unwrap();
    let terms = exact.enforced_by(Enforcement::Deadline).unwrap();
    let row = Row { terms, ..plain };
    put(&mut ledger, commit(1, [("web", Some(row.clone()))])).unwrap();
    ledger.look_up((1, ASKER), EventQuery { limit: 10, ..EventQuery::default() }).unwrap();
    let Some(Reply::Events { events: Ok(events), .. }) = replies(&mut ledger, 1).pop() else {
        panic!("no events");
    };
    let after = events[0].after.as_ref().unwrap();
    assert_eq!(after.terms.enforcement(), Enforcement::Deadline);
    close(ledger);
    assert_eq!(open(folder.path()).loaded.rows, [row]);
}

fn version(path: &Path) -> u32 {
    let ledger = Connection::open(path).unwrap();
    ledger.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

#[test]
fn version_1_ledger_is_backed_up_and_migrated_without_loss() {
    let folder = tempfile::tempdir().unwrap();
    let before = of_first_version(folder.path());
    // A check changes nothing, and finds no problem.
    assert_eq!(check(folder.path()).unwrap().problems, [""; 0]);
    assert_eq!(fs::read(folder.path().join("ledger.db")).unwrap(), before);

    let boot = "fba6cf25-acd8-4c47-8270-ba1d733a24c7";
    let opened = Ledger::open(folder.path(), boot, Keep::USUAL).expect("the ledger opens");
    let shown: Vec<String> = opened.loaded.rows.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["3ms/10ms exact for 2 vCPUs, libvirt:web", "1ms/10ms for 1 vCPU, pid:9321"]);
    assert!(opened.loaded.rows.iter().all(|row| row.user == 0), "{:?}", opened.loaded.rows);
    let known = Identity::Process { pid: 9321, started: 5_224_080, inode: 1_339_397 };
    assert_eq!(opened.loaded.rows[1].identity, Some(known));
    assert_eq!(opened.loaded.last_seq, 5);
    let mut ledger = opened.ledger;
    ledger.look_up((1, ASKER), EventQuery { limit: 10, ..EventQuery::default() }).unwrap();
    let Some(Reply::Events { events: Ok(events), .. }) = replies(&mut ledger, 1).pop() else {
        panic!("no events");
    };
    let seqs: Vec<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, [5, 4, 3, 2, 1]);
    // New rows are written as in a new ledger.
    let row = Row { user: 64_055, ..row("new", 6) };
    put(&mut ledger, commit(6, [("new", Some(row.clone()))])).unwrap();
    close(ledger);
    assert_eq!(open(folder.path()).loaded.rows.pop(), Some(row));

    let backup = folder.path().join("ledger.version-1.db");
    assert_eq!((version(&folder.path().join("ledger.db")), version(&backup)), (11, 1));
    // The backup has the data of version 1 unchanged.
    let old = Connection::open(&backup).unwrap();
    let rows: u32 = old.query_row("SELECT count(*) FROM event", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 5);
}

#[test]
fn damaged_version_1_ledger_is_rebuilt_and_then_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = of_first_version(folder.path());
    let sql = "SELECT rootpage FROM sqlite_schema WHERE name = 'event'";
    let page: i64 = other(folder.path()).query_row(sql, [], |row| row.get(0)).unwrap();
    let at = (usize::try_from(page).unwrap() - 1) * 4096;
    bytes[at..at + 64].fill(0xff);
    fs::write(folder.path().join("ledger.db"), &bytes).unwrap();
    let rebuilt = rebuild(folder.path()).unwrap().expect("the ledger was damaged");
    let rows = |name: &str| rebuilt.tables.iter().find(|table| table.name == name).unwrap().rows;
    assert_eq!((rows("reservation"), rows("answer"), rows("event")), (2, 5, 0));
    assert_eq!(open(folder.path()).loaded.rows.len(), 2);
    assert_eq!(version(&folder.path().join("ledger.db")), 11);
}

/// Creates a ledger of version 10. It contains one reservation: the user with uid 5 has raised its
/// share, and the user with uid 6 has set a later end time.
fn of_version_10(folder: &Path) {
    other(folder).execute_batch(include_str!("../ledger-version-10.sql")).unwrap();
}

#[test]
fn version_10_ledger_migration_keeps_backup_and_recorded_reservation_increases() {
    let folder = tempfile::tempdir().unwrap();
    of_version_10(folder.path());
    assert_eq!(check(folder.path()).unwrap().problems, [""; 0]);
    let OpenedLedger { mut ledger, loaded, .. } = open(folder.path());
    let shown: Vec<String> = loaded.rows.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["4ms/10ms exact for 1 vCPU, libvirt:web"]);
    let raise = |uid, from| Raise { by: Principal::User(uid), since: 1, from };
    let each = Reservation::new(Span::from_ms(2), Span::from_ms(10)).unwrap();
    let from = Terms::new(each, false, 1).unwrap();
    let former = [raise(5, Some(from)), raise(6, None)].map(|raise| (name("web"), raise));
    assert_eq!((loaded.last_seq, &loaded.raises[..]), (3, &former[..]));
    // A raise in the new version has the end time and the hard limit from before the raise.
    let end = Some("2026-12-01T18:00".parse().unwrap());
    let longer = Terms::new(each, true, 1).unwrap().with_end(end);
    let new = raise(7, Some(longer));
    let raises = vec![(name("web"), vec![new])];
    put(&mut ledger, Commit { raises, ..Commit::empty(4) }).unwrap();
    close(ledger);
    assert_eq!(open(folder.path()).loaded.raises, [(name("web"), new)]);
    let files = ["ledger.db", "ledger.version-10.db"];
    assert_eq!(files.map(|file| version(&folder.path().join(file))), [11, 10]);
}

#[test]
fn damaged_ledger_takes_tables_from_backup_of_an_older_version() {
    let folder = tempfile::tempdir().unwrap();
    of_version_10(folder.path());
    close(open(folder.path()).ledger);
    let path = folder.path().join("ledger.db");
    let mut bytes = fs::read(&path).unwrap();
    for table in ["event", "raise"] {
        let sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
        let page: i64 = other(folder.path()).query_row(sql, [table], |row| row.get(0)).unwrap();
        let at = (usize::try_from(page).unwrap() - 1) * 4096;
        bytes[at..at + 64].fill(0xff);
    }
    fs::write(&path, &bytes).unwrap();
    let rebuilt = rebuild(folder.path()).unwrap().expect("the ledger was damaged");
    let source = |name: &str| {
        let table = rebuilt.tables.iter().find(|table| table.name == name).unwrap();
        let backup = match &table.source {
            Source::Backup(backup) => backup.version,
            Source::Ledger | Source::Nowhere => None,
        };
        (table.rows, backup)
    };
    assert_eq!(["reservation", "history"].map(source), [(1, None), (2, None)]);
    assert_eq!(["event", "raise"].map(source), [(3, Some(10)), (2, Some(10))]);
    assert_eq!(check(folder.path()).unwrap().problems, [""; 0]);
    assert_eq!(version(&path), 11);
    let loaded = open(folder.path()).loaded;
    assert_eq!((loaded.rows.len(), loaded.raises.len()), (1, 2));
}
