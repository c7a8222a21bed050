//! Tests of ledgers that are damaged, were made by another program, or have a newer version.

use std::fs;
use std::path::Path;

use slackline_daemon::ledger::{LedgerError, Source, check, rebuild};

use crate::ledger::{close, open, open_error, other, put};
use crate::rows::{commit, row};

#[test]
fn damaged_foreign_or_newer_ledger_is_refused_and_left_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let mut ledger = open(folder.path()).ledger;
    put(&mut ledger, commit(1, [("web", Some(row("web", 1)))])).unwrap();
    drop(ledger);
    let good = fs::read(&path).unwrap();

    fs::write(&path, "not a database at all, but long enough to be looked at").unwrap();
    let error = open_error(folder.path());
    assert!(
        matches!(&error, LedgerError::Damaged { path: named, .. } if *named == path),
        "{error}"
    );
    assert!(fs::read(&path).unwrap().starts_with(b"not a database"));

    // Damage the root page of a table that is needed.
    fs::write(&path, &good).unwrap();
    let root: usize = other(folder.path())
        .query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'reservation'", [], |row| {
            row.get::<_, i64>(0)
        })
        .unwrap()
        .try_into()
        .unwrap();
    let mut bad = good.clone();
    bad[(root - 1) * 4096..(root - 1) * 4096 + 64].fill(0xff);
    fs::write(&path, &bad).unwrap();
    let error = open_error(folder.path());
    assert!(matches!(error, LedgerError::Damaged { .. }), "{error:?}");
    assert!(error.hint().unwrap().contains("slackline doctor --ledger"), "{:?}", error.hint());
    assert_eq!(fs::read(&path).unwrap(), bad);

    // The database is intact, but has a value that the daemon never writes.
    fs::write(&path, &good).unwrap();
    other(folder.path()).execute("UPDATE reservation SET binding = 'nonsense'", []).unwrap();
    assert!(unchanged_open_error(folder.path()).to_string().contains("nonsense"));

    fs::write(&path, &good).unwrap();
    other(folder.path()).pragma_update(None, "user_version", 12).unwrap();
    fs::write(folder.path().join("ledger.version-1.db"), &good).unwrap();
    let error = unchanged_open_error(folder.path());
    let LedgerError::Newer { version: 12, known: 11, backup: Some(backup), .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(backup, folder.path().join("ledger.version-1.db"));

    fs::remove_file(&path).unwrap();
    other(folder.path()).execute_batch("CREATE TABLE songs (name TEXT)").unwrap();
    assert!(matches!(unchanged_open_error(folder.path()), LedgerError::Foreign { .. }));
}

/// Tries to open a ledger and returns the error. Checks that the error names the file, and that the
/// attempt has changed neither the file nor its log.
fn unchanged_open_error(folder: &Path) -> LedgerError {
    let files = || ["ledger.db", "ledger.db-wal"].map(|file| fs::read(folder.join(file)).ok());
    let [database, log] = files();
    let error = open_error(folder);
    // SQLite makes an empty log if there is none.
    let now = files();
    let is_same =
        now[0] == database && now[1].clone().unwrap_or_default() == log.unwrap_or_default();
    assert!(is_same, "the ledger was changed: {error}");
    let path = folder.join("ledger.db");
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    error
}

#[test]
fn damaged_ledger_of_a_killed_daemon_keeps_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = open(folder.path()).ledger;
    put(&mut ledger, commit(1, [("web", Some(row("web", 1)))])).unwrap();
    close(ledger);
    let root: i64 = other(folder.path())
        .query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'access'", [], |row| row.get(0))
        .unwrap();
    // The files are copied as they would be after a kill: the log has a commit.
    let mut ledger = open(folder.path()).ledger;
    put(&mut ledger, commit(2, [("db", Some(row("db", 2)))])).unwrap();
    let copy = tempfile::tempdir().unwrap();
    for file in ["ledger.db", "ledger.db-wal"] {
        fs::copy(folder.path().join(file), copy.path().join(file)).unwrap();
    }
    let path = copy.path().join("ledger.db");
    let mut bytes = fs::read(&path).unwrap();
    let at = (usize::try_from(root).unwrap() - 1) * 4096;
    bytes[at..at + 64].fill(0xff);
    fs::write(&path, &bytes).unwrap();
    let error = unchanged_open_error(copy.path());
    assert!(matches!(error, LedgerError::Damaged { .. }), "{error:?}");
    let log = fs::read(copy.path().join("ledger.db-wal")).unwrap();
    assert!(!log.is_empty(), "the log has a commit");
}

#[test]
fn damaged_ledger_is_rebuilt_from_intact_tables_and_the_backup() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    let mut ledger = open(folder.path()).ledger;
    put(&mut ledger, commit(1, [("web", Some(row("web", 1)))])).unwrap();
    drop(ledger);
    assert!(rebuild(folder.path()).unwrap().is_none(), "an intact ledger is not rebuilt");
    fs::copy(&path, folder.path().join("ledger.backup.db")).unwrap();
    let mut ledger = open(folder.path()).ledger;
    assert!(matches!(rebuild(folder.path()), Err(LedgerError::Taken { .. })));
    put(&mut ledger, commit(2, [("db", Some(row("db", 2)))])).unwrap();
    drop(ledger);

    let page = |table: &str| -> usize {
        let sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
        let page: i64 = other(folder.path()).query_row(sql, [table], |row| row.get(0)).unwrap();
        usize::try_from(page).unwrap()
    };
    let at = (page("event") - 1) * 4096;
    let mut bytes = fs::read(&path).unwrap();
    bytes[at..at + 64].fill(0xff);
    fs::write(&path, &bytes).unwrap();
    let examined = check(folder.path()).unwrap();
    assert!(!examined.problems.is_empty() && examined.backups.len() == 1, "{examined:?}");
    let rebuilt = rebuild(folder.path()).unwrap().expect("the ledger was damaged");
    let source = |name: &str| {
        let table = rebuilt.tables.iter().find(|table| table.name == name).unwrap();
        (table.rows, matches!(table.source, Source::Backup(_)))
    };
    // Reservations come from the damaged ledger, events from the backup.
    assert_eq!((source("reservation"), source("event")), ((2, false), (1, true)));
    assert_eq!(fs::read(rebuilt.set_aside.join("ledger.db")).unwrap(), bytes);
    assert_eq!(check(folder.path()).unwrap().problems, [""; 0]);
    let loaded = open(folder.path()).loaded;
    assert_eq!((loaded.rows.len(), loaded.last_seq), (2, 2));
}
