//! Check of a ledger that may be damaged. If the ledger is damaged, this module can build a new
//! ledger from its intact parts and from backups.

use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use super::answers::read_all;
use super::error::LedgerError;
use super::hours;
use super::place::{Backup, LedgerFolder, private};
use super::rows::{granted, logged, reservations};
use super::store::{check as check_table, connect, problems, version};
use super::stored::count;
use super::tables::{APPLICATION, HISTORY, MIGRATIONS, NEWEST, OLDEST_COPIED, PLANS, RAISES, all};

/// Result of a check of a ledger. The check leaves the ledger unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerCheck {
    /// Path of the ledger file.
    pub path: PathBuf,
    /// True if a process has the ledger open.
    pub is_in_use: bool,
    /// Problems that were found, at most twenty. Empty if the ledger is intact.
    pub problems: Vec<String>,
    /// Tables of the ledger, each with its number of rows. The number is `None` if the rows cannot
    /// be counted.
    pub tables: Vec<(&'static str, Option<u64>)>,
    /// Backups of the ledger, newest first.
    pub backups: Vec<Backup>,
}

/// A ledger that was rebuilt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// Folder with copies of the damaged files.
    pub set_aside: PathBuf,
    /// Tables of the rebuilt ledger.
    pub tables: Vec<Table>,
}

/// A table of a rebuilt ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Name of the table.
    pub name: &'static str,
    /// Number of rows in the table.
    pub rows: u64,
    /// Source from which all rows of the table come.
    pub source: Source,
}

/// Source of the rows of a table in a rebuilt ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The damaged ledger, in which this table was intact.
    Ledger,
    /// A backup of the ledger.
    Backup(Backup),
    /// No source had an intact table, so the rebuilt table is empty.
    Nowhere,
}

/// Maximum number of problems that a check reports.
const MOST: usize = 20;

/// Checks the whole ledger in a folder. The ledger may be in use at the same time.
///
/// # Errors
/// If there is no ledger, or its version is not known.
pub fn check(folder: &Path) -> Result<LedgerCheck, LedgerError> {
    let place = LedgerFolder::new(folder);
    let path = place.ledger();
    // Opened by SQLite only: closing another descriptor would release locks of this process.
    std::fs::metadata(&path).map_err(|source| LedgerError::files(&path, source))?;
    let is_in_use = matches!(place.take_existing(), Err(LedgerError::Taken { .. }));
    let looked = look_through(&place);
    let (problems, tables) = match looked {
        Ok(looked) => looked,
        Err(LedgerError::Damaged { says, .. }) => {
            (vec![says], all(NEWEST).map(|name| (name, None)).collect())
        }
        Err(error) => return Err(error),
    };
    Ok(LedgerCheck { path, is_in_use, problems, tables, backups: place.backups() })
}

type LookedThrough = (Vec<String>, Vec<(&'static str, Option<u64>)>);

fn look_through(place: &LedgerFolder) -> Result<LookedThrough, LedgerError> {
    let path = place.ledger();
    let failed = |error| LedgerError::of(&path, error);
    let connection = connect(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
    let of = version(&connection, place, NEWEST)?.unwrap_or(NEWEST);
    let mut problems = problems(&connection, None, MOST).map_err(failed)?;
    let mut tables = Vec::new();
    for name in all(of) {
        // These tables exist only after a program that knows them has opened the ledger.
        let is_optional = ["history", "plan", "raise"].contains(&name);
        if is_optional && !connection.table_exists(None, name).map_err(failed)? {
            continue;
        }
        let rows = count(&connection, name);
        if let Some(error) = rows.as_ref().err().or(understood(&connection, name).as_ref().err()) {
            problems.push(format!("table `{name}`: {error}"));
        }
        tables.push((name, rows.ok()));
    }
    problems.truncate(MOST);
    Ok((problems, tables))
}

/// Reads all rows of a table, and checks that each row can be parsed.
fn understood(connection: &Connection, table: &str) -> rusqlite::Result<()> {
    match table {
        "reservation" => reservations(connection, None).map(drop),
        "answer" => read_all(connection),
        "access" => granted(connection).map(drop),
        "history" => hours::read_all(connection),
        "raise" => super::raises::check(connection),
        "event" => {
            let mut events = connection.prepare("SELECT * FROM event")?;
            events.query_map([], logged)?.try_for_each(|event| event.map(drop))
        }
        // Other tables have no values to parse.
        _ => Ok(()),
    }
}

/// Copies the files of a damaged ledger to another folder, and builds a new ledger. If a table is
/// intact in the damaged ledger, the table comes from there. Otherwise it comes from the newest
/// backup in which it is intact. Returns `None` if the ledger is not damaged.
///
/// # Errors
/// If a process has the ledger open, if there is no ledger, or if the disk fails. After an error
/// the old files still exist, either where they were or in the other folder.
pub fn rebuild(folder: &Path) -> Result<Option<Rebuilt>, LedgerError> {
    let place = LedgerFolder::new(folder);
    let _taken = place.take_existing()?;
    let examined = check(folder)?;
    if examined.problems.is_empty() {
        return Ok(None);
    }
    let set_aside = place.set_aside()?;
    let mut sources = vec![(LedgerFolder::new(&set_aside).ledger(), Source::Ledger)];
    let backups = examined.backups.into_iter();
    sources.extend(backups.map(|backup| (backup.path.clone(), Source::Backup(backup))));
    let whole = place.part();
    let version = sources.iter().find_map(|(path, _)| version_of(path)).unwrap_or(NEWEST);
    let tables = build(&whole, version, &sources)?;
    place.replace(&whole)?;
    Ok(Some(Rebuilt { set_aside, tables }))
}

/// Returns the version of the tables in a file. `None` if the version cannot be read.
fn version_of(path: &Path) -> Option<u32> {
    let place = LedgerFolder::new(path.parent()?);
    let old = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
    version(&old, &place, NEWEST).ok().flatten()
}

/// Builds a new ledger at the path `whole` from the tables in `sources`. `of` is the version of the
/// new ledger. It must be the version of the first source whose version can be read. When the
/// ledger is opened later, it is migrated to the newest version.
fn build(whole: &Path, of: u32, sources: &[(PathBuf, Source)]) -> Result<Vec<Table>, LedgerError> {
    let failed = |error| LedgerError::of(whole, error);
    let files = |source| LedgerError::files(whole, source);
    match std::fs::remove_file(whole) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(files(error)),
        _ => {}
    }
    drop(private().create_new(true).open(whole).map_err(files)?);
    let new = connect(whole, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(failed)?;
    // Rows are inserted before the rows that they refer to.
    new.pragma_update(None, "foreign_keys", false).map_err(failed)?;
    for migration in MIGRATIONS.iter().take(of as usize) {
        new.execute_batch(migration).map_err(failed)?;
    }
    new.execute_batch(HISTORY).map_err(failed)?;
    new.execute_batch(PLANS).map_err(failed)?;
    new.execute_batch(RAISES).map_err(failed)?;
    new.pragma_update(None, "application_id", APPLICATION).map_err(failed)?;
    new.pragma_update(None, "user_version", of).map_err(failed)?;
    let mut tables = Vec::new();
    for name in all(of) {
        let source = sources.iter().find(|(path, _)| take_over(&new, of, name, path).is_ok());
        let source = source.map_or(Source::Nowhere, |(_, source)| source.clone());
        tables.push(Table { name, rows: 0, source });
    }
    // The tables may come from sources of different age, but no event or commit number may be
    // assigned twice.
    new.execute_batch(
        "DELETE FROM identity WHERE name NOT IN (SELECT name FROM reservation);
         INSERT OR IGNORE INTO host (only, boot_id, clean, seq) VALUES (1, '', 0, 0);
         UPDATE host SET clean = 0, seq = max(seq,
             (SELECT coalesce(max(seq), 0) FROM event),
             (SELECT coalesce(max(max(since, revision)), 0) FROM reservation));",
    )
    .map_err(failed)?;
    for table in &mut tables {
        table.rows = count(&new, table.name).map_err(failed)?;
    }
    new.close().map_err(|(_, error)| failed(error))?;
    File::open(whole).and_then(|file| file.sync_all()).map_err(files)?;
    Ok(tables)
}

/// Copies a whole table from another database, if the table is intact there. The other database
/// must have the version `of`, or an older version whose rows can be copied.
fn take_over(new: &Connection, of: u32, table: &str, from: &Path) -> Result<(), LedgerError> {
    let failed = |error| LedgerError::of(from, error);
    let folder = from.parent().unwrap_or(Path::new("."));
    {
        let old = connect(from, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
        let known = version(&old, &LedgerFolder::new(folder), NEWEST)?;
        let is_suited = |known: u32| known == of || (OLDEST_COPIED..of).contains(&known);
        if !known.is_some_and(is_suited) {
            return Err(LedgerError::Foreign { path: from.to_path_buf() });
        }
        check_table(&old, from, Some(table))?;
        understood(&old, table).map_err(failed)?;
    }
    let name = from
        .to_str()
        .ok_or_else(|| LedgerError::files(from, std::io::ErrorKind::InvalidFilename.into()))?;
    new.execute("ATTACH ?1 AS old", [name]).map_err(failed)?;
    // A table of an older program can have fewer columns.
    let columns = r#"SELECT group_concat('"' || name || '"') FROM pragma_table_info(?1, 'old')"#;
    let columns = new.query_row(columns, [table], |row| row.get::<_, String>(0));
    let taken = columns.and_then(|columns| {
        new.execute_batch(&format!(
            "BEGIN; DELETE FROM main.{table};
             INSERT INTO main.{table} ({columns}) SELECT {columns} FROM old.{table}; COMMIT;"
        ))
    });
    if taken.is_err() {
        let _ = new.execute_batch("ROLLBACK");
    }
    let detached = new.execute("DETACH old", []);
    taken.and(detached.map(drop)).map_err(failed)
}
