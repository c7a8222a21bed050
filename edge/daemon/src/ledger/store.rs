//! The SQLite database of the ledger. One thread opens, reads and writes it over one connection.
//!
//! Commits go to a write-ahead log and are synced (`synchronous=FULL`), so they survive a loss of
//! power. If the disk fails during a commit, the commit is reported as failed. After a crash, such
//! a commit either exists as a whole or does not exist.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};
use slackline_service::history::Hour;
use slackline_service::{Commit, LedgerContents, Name, Principal, Role};

use super::answers::Answers;
use super::begun::BeginTimes;
use super::error::{LedgerError, PATIENCE};
use super::hours::{self, last_hours};
use super::place::{FolderLock, LedgerFolder, private, rename, which};
use super::rows::{drop_old_events, granted, has_tenants, load, logged, write, write_access};
use super::stored::since_1970;
use super::tables::{APPLICATION, MIGRATIONS, NEEDED, NEWEST};
use super::words::{
    AccessChange, AccessGrant, Before, EventQuery, HoursQuery, Keep, LoggedEvent, MOST_EVENTS,
};
use crate::run_days::RunDays;

/// Maximum number of old rows that a commit deletes in addition to the rows that its own rows
/// displace. The number is large enough to shrink an oversized table over time, and so small that
/// the reply is not delayed.
const DROPPED_AT_ONCE: usize = 16;

/// Size in bytes to which the write-ahead log is cut after its contents were copied to the ledger.
/// The log can be larger before: after a large commit, and after commits during a backup.
const LOG_BYTES: u32 = 16 << 20;

/// An open ledger, as the writer thread uses it.
#[derive(Debug)]
pub(super) struct Store {
    connection: Connection,
    place: LedgerFolder,
    boot_id: String,
    keep: Keep,
    days: RunDays,
    /// Number of rows in the table `event`.
    events: u64,
    answers: Answers,
    /// Administrators other than root and the service.
    administrators: BTreeSet<Principal>,
    /// Device and inode of the ledger file, and of its write-ahead log as last checked. `None` if
    /// the log was not checked since the ledger was opened or written again.
    files: (Which, Option<Which>),
    _taken: FolderLock,
}

/// Contents of a ledger when it was opened.
pub(super) struct OpeningContents {
    pub(super) loaded: LedgerContents,
    pub(super) begun: BeginTimes,
    pub(super) access: Vec<AccessGrant>,
    pub(super) history: Vec<Hour>,
    pub(super) before: Option<Before>,
    pub(super) has_tenants: bool,
}

type Which = (u64, u64);

impl Store {
    /// Opens the ledger in a folder, and creates it if needed.
    pub(super) fn open(
        folder: &Path,
        boot_id: &str,
        keep: Keep,
    ) -> Result<(Store, OpeningContents), LedgerError> {
        Store::open_as((folder, boot_id), keep, &MIGRATIONS)
    }

    fn open_as(
        (folder, boot_id): (&Path, &str),
        keep: Keep,
        migrations: &[&str],
    ) -> Result<(Store, OpeningContents), LedgerError> {
        let place = LedgerFolder::new(folder);
        let taken = place.take()?;
        place.make()?;
        let path = place.ledger();
        let failed = |error| LedgerError::of(&path, error);
        let mut connection = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(failed)?;
        migrate(&mut connection, &place, migrations)?;
        for table in NEEDED {
            check(&connection, &path, Some(table))?;
        }
        let now = SystemTime::now();
        let (loaded, before, answers) = load(&connection, boot_id, keep, now).map_err(failed)?;
        let begun = BeginTimes::load(&connection, &loaded.rows, now);
        let access = granted(&connection).map_err(failed)?;
        let has_tenants = has_tenants(&connection).map_err(failed)?;
        hours::open(&connection).map_err(failed)?;
        let history = last_hours(&connection, loaded.rows.iter().map(|row| &row.name));
        let history = history.map_err(failed)?;
        // The first write comes after everything was read, so a damaged ledger stays as it was.
        write_ahead(&connection, &path)?;
        copy_log_on_close(&connection, true).map_err(failed)?;
        connection.execute(HOST, params![boot_id]).map_err(failed)?;
        super::plans::create(&connection).map_err(failed)?;
        let events = super::shares::open(&connection).map_err(failed)?;
        let administrators = access.iter().filter(|granted| is_administrator(granted));
        let administrators = administrators.map(|granted| granted.principal).collect();
        let files = (which(&path).map_err(|source| LedgerError::files(&path, source))?, None);
        let boot_id = boot_id.to_owned();
        let store = Store {
            connection,
            place,
            boot_id,
            keep,
            days: RunDays::open(folder.join("days")),
            events,
            answers,
            administrators,
            files,
            _taken: taken,
        };
        Ok((store, OpeningContents { loaded, begun, access, history, before, has_tenants }))
    }

    /// Writes a commit: either the whole commit or nothing. `wall` contains the wall-clock time of
    /// each event.
    pub(super) fn commit(
        &mut self,
        commit: &Commit,
        wall: &[SystemTime],
    ) -> Result<(), LedgerError> {
        let path = self.place.ledger();
        let failed = |error| LedgerError::of(&path, error);
        let now = SystemTime::now();
        let oldest = self.oldest(now, self.keep.events);
        // If the file was removed or replaced, no later process would find the commit.
        if !which(&path).is_ok_and(|file| file == self.files.0) {
            self.make_sure()?;
        }
        let behaviour = TransactionBehavior::Immediate;
        let change = self.connection.transaction_with_behavior(behaviour).map_err(failed)?;
        let new = write(&change, commit, wall, (&self.boot_id, now), &path)?;
        let keep = (self.keep, now);
        let most = commit.events.len() + DROPPED_AT_ONCE;
        let events = (self.events + new, &self.administrators);
        let dropped = drop_old_events(&change, (self.keep, oldest), events, most);
        let dropped = dropped.map_err(failed)?;
        self.answers.note(&commit.kept, now);
        self.answers.drop_old(&change, keep, DROPPED_AT_ONCE).map_err(failed)?;
        change.commit().map_err(failed)?;
        self.answers.committed();
        self.events = self.events + new - dropped;
        self.make_sure()
    }

    /// Checks that the commit is in the files that other processes find at the ledger's path. If
    /// another program has removed the open file or its log, writes the whole ledger to that path.
    /// Otherwise later writes would be lost.
    fn make_sure(&mut self) -> Result<(), LedgerError> {
        let (ledger, log) = (self.place.ledger(), self.place.log());
        let is_there = which(&ledger).is_ok_and(|file| file == self.files.0);
        let log = which(&log).ok();
        let had_log = self.files.1;
        if is_there && log.is_some() && (had_log.is_none() || had_log == log) {
            self.files.1 = log;
            return Ok(());
        }
        // Another program's file is at the path, and must not be overwritten.
        if which(&ledger).is_ok_and(|file| file != self.files.0) {
            return Err(LedgerError::TakenAway { path: ledger });
        }
        self.write_out()
    }

    /// Writes the contents of the open ledger to the ledger's path. Needed if another program has
    /// removed the file or its log, or has replaced the log.
    fn write_out(&mut self) -> Result<(), LedgerError> {
        let path = self.place.ledger();
        let failed = |error| LedgerError::of(&path, error);
        let whole = self.place.part();
        copy(&self.connection, &whole)?;
        // Close the old connection first. Closing removes the log by name, and the new log has the
        // same name.
        let nothing = Connection::open_in_memory().map_err(failed)?;
        drop(std::mem::replace(&mut self.connection, nothing));
        self.place.replace(&whole)?;
        self.connection = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(failed)?;
        // A copy has no write-ahead log until it is set.
        write_ahead(&self.connection, &path)?;
        copy_log_on_close(&self.connection, true).map_err(failed)?;
        let file = which(&path).map_err(|source| LedgerError::files(&path, source))?;
        self.files = (file, None);
        Ok(())
    }

    /// Returns the events that a query asks for, newest first.
    pub(super) fn events(&self, asked: &EventQuery) -> Result<Vec<LoggedEvent>, LedgerError> {
        let path = self.place.ledger();
        let failed = |error| LedgerError::of(&path, error);
        // An unknown name must not cause a scan of all events.
        let sql = match asked.name {
            Some(_) => {
                "SELECT * FROM event WHERE name = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3"
            }
            None => "SELECT * FROM event WHERE ?1 IS NULL AND seq < ?2 ORDER BY seq DESC LIMIT ?3",
        };
        let name = asked.name.as_ref().map(Name::as_str);
        let before = asked.before.and_then(|seq| i64::try_from(seq).ok()).unwrap_or(i64::MAX);
        let limit = i64::try_from(asked.limit.min(MOST_EVENTS)).unwrap_or(0);
        let mut found = self.connection.prepare_cached(sql).map_err(failed)?;
        let found = found.query_map(params![name, before, limit], logged).map_err(failed)?;
        found.collect::<Result<_, _>>().map_err(failed)
    }

    /// Writes rows of the history, either all of them or none.
    pub(super) fn keep_history(&mut self, rows: &[Hour]) -> Result<(), LedgerError> {
        let path = self.place.ledger();
        let failed = |error| LedgerError::of(&path, error);
        let keep = (self.keep, self.oldest(SystemTime::now(), self.keep.history));
        let behaviour = TransactionBehavior::Immediate;
        let change = self.connection.transaction_with_behavior(behaviour).map_err(failed)?;
        hours::write(&change, rows, keep, &self.administrators).map_err(failed)?;
        change.commit().map_err(failed)?;
        self.make_sure()
    }

    /// Returns the history of a reservation, oldest first.
    pub(super) fn hours(&self, asked: &HoursQuery) -> Result<Vec<Hour>, LedgerError> {
        let path = self.place.ledger();
        hours::hours(&self.connection, asked).map_err(|error| LedgerError::of(&path, error))
    }

    /// Writes a change to the grants of access.
    pub(super) fn change_access(&mut self, change: &AccessChange) -> Result<(), LedgerError> {
        let path = self.place.ledger();
        write_access(&self.connection, change).map_err(|error| LedgerError::of(&path, error))?;
        match change {
            AccessChange::Add(granted) if is_administrator(granted) => {
                self.note_administrator(granted.principal);
            }
            AccessChange::Add(AccessGrant { principal, .. }) | AccessChange::Revoke(principal) => {
                self.administrators.remove(principal);
            }
        }
        self.make_sure()
    }

    /// Adds a principal to the administrators.
    pub(super) fn note_administrator(&mut self, principal: Principal) {
        self.administrators.insert(principal);
    }

    /// Gives members of the operators' group without a grant the role of a tenant. If the ledger
    /// does not have this state yet, makes a backup of it before.
    pub(super) fn migrate_access(&mut self) -> Result<(), LedgerError> {
        let path = self.place.ledger();
        let failed = |error| LedgerError::of(&path, error);
        if !has_tenants(&self.connection).map_err(failed)? {
            back_up(&self.connection, &self.place, &self.place.of_version(NEWEST))?;
            self.connection.execute("UPDATE rights SET tenants = 1", []).map_err(failed)?;
        }
        self.make_sure()
    }

    /// Deletes some of the rows that exceed a bound. Returns true if no such rows remain.
    pub(super) fn drop_old(&mut self) -> Result<bool, LedgerError> {
        const AT_ONCE: usize = 1_000;
        let path = self.place.ledger();
        let failed = |error| LedgerError::of(&path, error);
        let now = SystemTime::now();
        let oldest = self.oldest(now, self.keep.events);
        let change = self.connection.transaction().map_err(failed)?;
        let keep = (self.keep, now);
        let events = (self.events, &self.administrators);
        let dropped = drop_old_events(&change, (self.keep, oldest), events, AT_ONCE);
        let dropped = dropped.map_err(failed)?;
        let is_all = self.answers.drop_old(&change, keep, AT_ONCE).map_err(failed)?;
        change.commit().map_err(failed)?;
        self.answers.committed();
        self.events -= dropped;
        Ok(is_all && dropped < u64::try_from(AT_ONCE).unwrap_or(u64::MAX))
    }

    /// Returns the wall-clock time, in nanoseconds since 1970, before which rows are more than
    /// `age` days old. Only days on which a daemon has run count.
    fn oldest(&mut self, now: SystemTime, age: usize) -> u64 {
        let now_ns = since_1970(now).and_then(|ns| u64::try_from(ns).ok());
        self.days.oldest(now_ns.unwrap_or(0), age)
    }

    /// Returns the time until the next daily backup is due.
    pub(super) fn backup_due(&self) -> Duration {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        let daily = self.place.backups().into_iter().find(|backup| backup.version.is_none());
        let Some(daily) = daily else { return Duration::ZERO };
        // A backup with a future time was made before the clock was set back, and is due again.
        daily.made.elapsed().map_or(Duration::ZERO, |age| DAY.saturating_sub(age))
    }

    /// Returns the folder of the ledger and its backups.
    pub(super) const fn place(&self) -> &LedgerFolder {
        &self.place
    }

    /// Closes the ledger, and marks it as closed cleanly.
    pub(super) fn close(self) -> Result<(), LedgerError> {
        let path = self.place.ledger();
        let failed = |error| LedgerError::of(&path, error);
        self.connection.execute("UPDATE host SET clean = 1", []).map_err(failed)?;
        self.connection.close().map_err(|(_, error)| failed(error))
    }
}

fn is_administrator(granted: &AccessGrant) -> bool {
    granted.role == Role::Administrator
}

/// Statement that marks the ledger as not closed cleanly. Closing the ledger removes the mark.
const HOST: &str = "INSERT INTO host (only, boot_id, clean, seq) VALUES (1, ?1, 0, 0)
    ON CONFLICT (only) DO UPDATE SET boot_id = ?1, clean = 0";

/// Opens a database. When this connection is closed, the database and its log stay as they are.
pub(super) fn connect(path: &Path, how: OpenFlags) -> rusqlite::Result<Connection> {
    let flags = how | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)?;
    // SQLite would otherwise copy the log of a killed daemon into a database that is then refused.
    copy_log_on_close(&connection, false)?;
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    if how.contains(OpenFlags::SQLITE_OPEN_READ_WRITE) {
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
    }
    Ok(connection)
}

/// Sets the behaviour at the close of the last connection. If `copies` is true, the write-ahead log
/// is then copied into the database and removed.
fn copy_log_on_close(connection: &Connection, copies: bool) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !copies).map(drop)
}

/// Returns the version of the tables. `None` if the file is empty.
pub(super) fn version(
    connection: &Connection,
    place: &LedgerFolder,
    known: u32,
) -> Result<Option<u32>, LedgerError> {
    let path = place.ledger();
    let failed = |error| LedgerError::of(&path, error);
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get(0)).map_err(failed);
    let (application, version): (u32, u32) = (pragma("application_id")?, pragma("user_version")?);
    let tables: u32 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failed)?;
    if (application, version, tables) == (0, 0, 0) {
        return Ok(None);
    }
    if application != APPLICATION {
        return Err(LedgerError::Foreign { path });
    }
    if version > known {
        let mut backups = place.backups();
        backups.retain(|backup| backup.version.is_some_and(|of| of <= known));
        let backup = backups.into_iter().max_by_key(|backup| backup.version);
        let backup = backup.map(|backup| backup.path);
        return Err(LedgerError::Newer { path, version, known, backup });
    }
    Ok(Some(version))
}

/// Turns on the write-ahead log of the database.
fn write_ahead(connection: &Connection, path: &Path) -> Result<(), LedgerError> {
    let mode = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0));
    let mode: String = mode.map_err(|error| LedgerError::of(path, error))?;
    if mode == "wal" {
        return Ok(());
    }
    let says = format!("this file system does not support write-ahead logging (mode `{mode}`)");
    let source = std::io::Error::new(std::io::ErrorKind::Unsupported, says);
    Err(LedgerError::Files { path: path.to_path_buf(), source })
}

/// Makes a backup of the ledger, and then migrates its tables to the newest version.
fn migrate(
    connection: &mut Connection,
    place: &LedgerFolder,
    migrations: &[&str],
) -> Result<(), LedgerError> {
    let path = place.ledger();
    let failed = |error| LedgerError::of(&path, error);
    let newest = u32::try_from(migrations.len()).unwrap_or(u32::MAX);
    let version = version(connection, place, newest)?;
    if version.is_some_and(|version| version >= newest) {
        return Ok(());
    }
    if let Some(version) = version {
        back_up(connection, place, &place.of_version(version))?;
    }
    write_ahead(connection, &path)?;
    let behaviour = TransactionBehavior::Immediate;
    let change = connection.transaction_with_behavior(behaviour).map_err(failed)?;
    for migration in migrations.iter().skip(version.unwrap_or(0) as usize) {
        change.execute_batch(migration).map_err(failed)?;
    }
    change.pragma_update(None, "application_id", APPLICATION).map_err(failed)?;
    change.pragma_update(None, "user_version", newest).map_err(failed)?;
    change.commit().map_err(failed)
}

/// Checks one table, or all tables, for damage. Returns an error if SQLite finds damage.
pub(super) fn check(
    connection: &Connection,
    path: &Path,
    table: Option<&str>,
) -> Result<(), LedgerError> {
    let says = problems(connection, table, 1).map_err(|error| LedgerError::of(path, error))?;
    match says.into_iter().next() {
        None => Ok(()),
        Some(says) => Err(LedgerError::Damaged { path: path.to_path_buf(), says }),
    }
}

/// Returns descriptions of the damage that SQLite finds in one table, or in all tables.
pub(super) fn problems(
    connection: &Connection,
    table: Option<&str>,
    most: usize,
) -> rusqlite::Result<Vec<String>> {
    let mut found = Vec::new();
    let take = |row: &rusqlite::Row<'_>| {
        found.push(row.get::<_, String>(0)?);
        Ok(())
    };
    match table {
        Some(table) => connection.pragma(None, "integrity_check", table, take)?,
        None => connection.pragma_query(None, "integrity_check", take)?,
    }
    found.retain(|says| says != "ok");
    found.truncate(most);
    Ok(found)
}

/// Copies the current ledger to the path `to`. The file at this path is always complete.
fn back_up(connection: &Connection, place: &LedgerFolder, to: &Path) -> Result<(), LedgerError> {
    back_up_by(connection, place, (&place.part(), to))
}

/// Copies the current ledger to the path `part`, and then renames the copy to `to`.
pub(super) fn back_up_by(
    connection: &Connection,
    place: &LedgerFolder,
    (part, to): (&Path, &Path),
) -> Result<(), LedgerError> {
    copy(connection, part)?;
    rename(part, to)?;
    place.sync()
}

/// Copies a ledger into a new file, and syncs the new file.
pub(super) fn copy(connection: &Connection, to: &Path) -> Result<(), LedgerError> {
    let failed = |source| LedgerError::files(to, source);
    match std::fs::remove_file(to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    // Create the file first, so that other users may not read it. SQLite accepts an empty file.
    let file = private().create_new(true).open(to).map_err(failed)?;
    let named = to.to_str().ok_or_else(|| failed(std::io::ErrorKind::InvalidFilename.into()))?;
    let copied = connection.execute("VACUUM INTO ?1", [named]);
    copied.map_err(|error| LedgerError::of(to, error))?;
    file.sync_all().map_err(failed)
}
