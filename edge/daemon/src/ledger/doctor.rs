//! Looks at a ledger that nobody may trust, and builds a new one of what is left.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rusqlite::{Connection, OpenFlags};

use super::answers::read_all;
use super::error::LedgerError;
use super::place::{Backup, Place, private};
use super::rows::{granted, logged, reservations};
use super::store::{check as check_table, connect, count, problems, version};
use super::tables::{APPLICATION, MIGRATIONS, NEWEST, all};

/// What was found of a ledger. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// The file.
    pub path: PathBuf,
    /// Whether a process has it.
    pub is_in_use: bool,
    /// What is wrong with it, the first twenty; none is that it is whole.
    pub problems: Vec<String>,
    /// How many rows each table has, as far as they can be counted.
    pub tables: Vec<(&'static str, Option<u64>)>,
    /// The copies of it, newest first.
    pub backups: Vec<Backup>,
}

/// A ledger that was rebuilt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// The folder where the damaged files are now.
    pub set_aside: PathBuf,
    /// The tables of the new one.
    pub tables: Vec<Table>,
}

/// A table of a ledger that was rebuilt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// What it is called.
    pub name: &'static str,
    /// How many rows it has.
    pub rows: u64,
    /// Where all of them are from.
    pub source: Source,
}

/// Where the rows of a table are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// From the damaged ledger: this table was whole.
    Ledger,
    /// From a backup.
    Backup(Backup),
    /// From nowhere: it is empty.
    Nowhere,
}

/// How many problems are told.
const MOST: usize = 20;

/// Looks through all of the ledger in a folder, whether it is in use or not.
///
/// # Errors
/// When there is none, or none that this program knows.
pub fn check(folder: &Path) -> Result<Examined, LedgerError> {
    let place = Place::new(folder);
    let path = place.ledger();
    // Not opened here: closing it would take locks away, if a ledger is open in this process.
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
    Ok(Examined { path, is_in_use, problems, tables, backups: place.backups() })
}

type LookedThrough = (Vec<String>, Vec<(&'static str, Option<u64>)>);

fn look_through(place: &Place) -> Result<LookedThrough, LedgerError> {
    let path = place.ledger();
    let failed = |error| LedgerError::of(&path, error);
    let connection = connect(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
    let of = version(&connection, place, NEWEST)?.unwrap_or(NEWEST);
    let mut problems = problems(&connection, None, MOST).map_err(failed)?;
    let mut tables = Vec::new();
    for name in all(of) {
        let rows = count(&connection, name);
        if let Some(error) = rows.as_ref().err().or(understood(&connection, name).as_ref().err()) {
            problems.push(format!("table `{name}`: {error}"));
        }
        tables.push((name, rows.ok()));
    }
    problems.truncate(MOST);
    Ok((problems, tables))
}

/// Reads every row of a table, and makes sure that it can be what it should be.
fn understood(connection: &Connection, table: &str) -> rusqlite::Result<()> {
    match table {
        "reservation" => reservations(connection, None).map(drop),
        "answer" => read_all(connection, SystemTime::now()),
        "access" => granted(connection).map(drop),
        "event" => {
            let mut events = connection.prepare("SELECT * FROM event")?;
            events.query_map([], logged)?.try_for_each(|event| event.map(drop))
        }
        // The others hold nothing that has to be understood.
        _ => Ok(()),
    }
}

/// Sets the files of a damaged ledger aside, and builds a new one: each table from the damaged one
/// if it is whole there, else from the newest backup in which it is. None where nothing is wrong.
///
/// # Errors
/// When a process has the ledger, there is none, or the disk does not allow it. What there was is
/// still there then: in its place, or set aside.
pub fn rebuild(folder: &Path) -> Result<Option<Rebuilt>, LedgerError> {
    let place = Place::new(folder);
    let _taken = place.take_existing()?;
    let examined = check(folder)?;
    if examined.problems.is_empty() {
        return Ok(None);
    }
    let set_aside = place.set_aside()?;
    let mut sources = vec![(Place::new(&set_aside).ledger(), Source::Ledger)];
    let backups = examined.backups.into_iter();
    sources.extend(backups.map(|backup| (backup.path.clone(), Source::Backup(backup))));
    let whole = place.part();
    let version = sources.iter().find_map(|(path, _)| version_of(path)).unwrap_or(NEWEST);
    let tables = build(&whole, version, &sources)?;
    place.replace(&whole)?;
    Ok(Some(Rebuilt { set_aside, tables }))
}

/// The version of the tables in a file, as far as that can be read.
fn version_of(path: &Path) -> Option<u32> {
    let place = Place::new(path.parent()?);
    let old = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
    version(&old, &place, NEWEST).ok().flatten()
}

/// Of the version that the newest source has; whoever opens it brings it up to date.
fn build(whole: &Path, of: u32, sources: &[(PathBuf, Source)]) -> Result<Vec<Table>, LedgerError> {
    let failed = |error| LedgerError::of(whole, error);
    let files = |source| LedgerError::files(whole, source);
    match std::fs::remove_file(whole) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(files(error)),
        _ => {}
    }
    drop(private().create_new(true).open(whole).map_err(files)?);
    let new = connect(whole, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(failed)?;
    // Rows come before those that they refer to.
    new.pragma_update(None, "foreign_keys", false).map_err(failed)?;
    for migration in MIGRATIONS.iter().take(of as usize) {
        new.execute_batch(migration).map_err(failed)?;
    }
    new.pragma_update(None, "application_id", APPLICATION).map_err(failed)?;
    new.pragma_update(None, "user_version", of).map_err(failed)?;
    let mut tables = Vec::new();
    for name in all(of) {
        let source = sources.iter().find(|(path, _)| take_over(&new, of, name, path).is_ok());
        let source = source.map_or(Source::Nowhere, |(_, source)| source.clone());
        tables.push(Table { name, rows: 0, source });
    }
    // Numbers must not be given twice, whichever table is older than the others.
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

/// Takes a whole table over from another database, if it is whole there.
fn take_over(new: &Connection, of: u32, table: &str, from: &Path) -> Result<(), LedgerError> {
    let failed = |error| LedgerError::of(from, error);
    let folder = from.parent().unwrap_or(Path::new("."));
    {
        let old = connect(from, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
        if version(&old, &Place::new(folder), NEWEST)? != Some(of) {
            return Err(LedgerError::Foreign { path: from.to_path_buf() });
        }
        check_table(&old, from, Some(table))?;
        understood(&old, table).map_err(failed)?;
    }
    let name = from
        .to_str()
        .ok_or_else(|| LedgerError::files(from, std::io::ErrorKind::InvalidFilename.into()))?;
    new.execute("ATTACH ?1 AS old", [name]).map_err(failed)?;
    let sql = format!(
        "BEGIN; DELETE FROM main.{table};
         INSERT INTO main.{table} SELECT * FROM old.{table}; COMMIT;"
    );
    let taken = new.execute_batch(&sql);
    if taken.is_err() {
        let _ = new.execute_batch("ROLLBACK");
    }
    let detached = new.execute("DETACH old", []);
    taken.and(detached.map(drop)).map_err(failed)
}
