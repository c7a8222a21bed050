//! Table `history`: the CPU time that reservations received. New rows cover an hour, and old rows
//! may cover a day.
//!
//! The commit that adds rows also keeps the table within its bounds. First, rows above the maximum
//! age are deleted. If the table is still too large, rows of the owner with the most bytes are
//! merged: the hours of the oldest day of one reservation become one row. If this owner has no more
//! hours to merge, the owner's oldest rows are deleted. The module `shares` chooses the owner.
//!
//! A ledger of any version can have the table, since programs that do not know the table ignore it.
//! Rows are stored in order of time. So new rows fill pages, and deleted old rows free whole pages.

use std::collections::BTreeSet;

use rusqlite::types::FromSqlError;
use rusqlite::{Connection, OptionalExtension, Row, params};
use slackline_service::history::{DAY, HOUR_NS, Hour, HourSums, by_day, fill};
use slackline_service::{Name, Principal};
use slackline_units::Span;

use super::shares::{Part, Shares};
use super::stored::{Natural, StoredPrincipal, Text};
use super::tables::{HISTORY, HISTORY_OWNER};
use super::words::{HoursQuery, Keep, MOST_HOURS};

/// Maximum number of hourly rows that one query reads. With the default bounds, no reservation has
/// more rows.
const MOST_READ: usize = 12_000;

/// Number of rows that are deleted in one step while the table is too large.
const DELETED_AT_ONCE: u32 = 64;

/// Creates the table `history` if needed.
pub(super) fn open(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(HISTORY)?;
    if has_owner(connection)? {
        return Ok(());
    }
    connection.execute_batch(&format!("BEGIN; {HISTORY_OWNER} COMMIT;"))
}

/// Returns true if the table has the column `owner`, which tables of older programs lack.
fn has_owner(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM pragma_table_info('history') WHERE name = 'owner'";
    connection.query_row(sql, [], |row| row.get(0))
}

/// Writes rows, and keeps the table within its bounds. Rows that begin before `oldest_ns`, in
/// nanoseconds since 1970, are deleted because they are too old. The caller must have started a
/// transaction.
pub(super) fn write(
    change: &Connection,
    rows: &[Hour],
    (keep, oldest_ns): (Keep, u64),
    administrators: &BTreeSet<Principal>,
) -> rusqlite::Result<()> {
    rows.iter().try_for_each(|hour| put(change, hour))?;
    let newest = rows.iter().map(|hour| hour.start).max().unwrap_or(0);
    let today = newest - newest % u64::from(DAY);
    let mut gone = change.prepare_cached("DELETE FROM history WHERE start < ?1")?;
    gone.execute([natural(oldest_ns / HOUR_NS)])?;
    loop {
        let shares = Shares::read(change, Part::History)?;
        if shares.bytes() <= keep.history_bytes {
            return Ok(());
        }
        let Some((owner, _)) = shares.largest(administrators) else { return Ok(()) };
        if !join_hours(change, owner, today)? && !delete_oldest(change, owner)? {
            return Ok(());
        }
    }
}

fn put(change: &Connection, hour: &Hour) -> rusqlite::Result<()> {
    let HourSums { existed, known, contested, reserved, due, .. } = hour.sums;
    let HourSums { delivered, late, deadlines, missed, .. } = hour.sums;
    let values = params![
        natural(hour.start),
        hour.name.as_str(),
        hour.length,
        natural(hour.until_ns),
        hour.continues,
        natural(existed.ns()),
        natural(known.ns()),
        natural(contested.ns()),
        natural(reserved.ns()),
        natural(due.ns()),
        natural(delivered.ns()),
        natural(late.ns()),
        natural(deadlines),
        natural(missed),
        StoredPrincipal(hour.owner),
    ];
    if change.prepare_cached(UPDATE)?.execute(&values[..14])? == 0 {
        change.prepare_cached(INSERT)?.execute(values)?;
    }
    Ok(())
}

/// Deletes the oldest daily rows of an owner. If the owner has no daily rows, deletes the oldest
/// hourly rows. Returns false if the owner has no rows at all.
fn delete_oldest(change: &Connection, owner: &str) -> rusqlite::Result<bool> {
    let mut gone = change.prepare_cached(
        "DELETE FROM history WHERE (start, name) IN
         (SELECT start, name FROM history WHERE owner = ?1 AND length = ?2
          ORDER BY start, name LIMIT ?3)",
    )?;
    let mut delete = |length: u32| gone.execute(params![owner, length, DELETED_AT_ONCE]);
    Ok(delete(DAY)? > 0 || delete(1)? > 0)
}

/// Joins the hourly rows of one reservation and one day into a daily row. The day is the oldest day
/// before `today` for which the owner has hourly rows. Returns false if there is no such day.
fn join_hours(change: &Connection, owner: &str, today: u64) -> rusqlite::Result<bool> {
    let sql = "SELECT start, name FROM history WHERE owner = ?1 AND length = 1 AND start < ?2
        ORDER BY start, name LIMIT 1";
    let mut first = change.prepare_cached(sql)?;
    let first = first.query_row(params![owner, natural(today)], |row| {
        let (Natural(start), Text(name)) = (row.get(0)?, row.get::<_, Text<Name>>(1)?);
        Ok((start, name))
    });
    let Some((start, name)) = first.optional()? else { return Ok(false) };
    let day = start - start % u64::from(DAY);
    let end = day + u64::from(DAY);
    // The next row shows if the reservation existed to the end of the day.
    let hours = hours_from(change, &name, day, usize::try_from(DAY).unwrap_or(0) + 1)?;
    let missing = hours.first().filter(|hour| hour.continues).map_or(0, |hour| hour.start - day);
    let hours = fill(hours, MOST_READ).into_iter().filter(|hour| hour.start < end);
    let Some(mut whole) = by_day(hours).into_iter().next() else { return Ok(false) };
    whole.sums.existed += Span::from_ns(missing * HOUR_NS);
    let sql = "DELETE FROM history WHERE name = ?1 AND start >= ?2 AND start < ?3";
    let mut gone = change.prepare_cached(sql)?;
    gone.execute(params![name.as_str(), natural(day), natural(end)])?;
    put(change, &whole)?;
    Ok(true)
}

const UPDATE: &str = "UPDATE history SET length = ?3, until = ?4, continues = ?5, existed_ns = ?6,
    known_ns = ?7, contested_ns = ?8, reserved_ns = ?9, due_ns = ?10, delivered_ns = ?11,
    late_ns = ?12, deadlines = ?13, missed = ?14 WHERE start = ?1 AND name = ?2";

const INSERT: &str = "INSERT INTO history VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
    ?12, ?13, ?14, ?15)";

/// Converts a number to the signed form in which SQLite stores it. No number of the table reaches
/// 2^63, which is 292 years in nanoseconds.
fn natural(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the latest row of each reservation in `names` that has rows.
pub(super) fn last_hours<'a>(
    connection: &Connection,
    names: impl Iterator<Item = &'a Name>,
) -> rusqlite::Result<Vec<Hour>> {
    let sql = "SELECT * FROM history WHERE name = ?1 ORDER BY start DESC LIMIT 1";
    let mut last = connection.prepare(sql)?;
    let last = names.map(|name| last.query_row([name.as_str()], hour).optional());
    last.filter_map(Result::transpose).collect()
}

/// Returns the history rows that match a query, oldest first, at most [`MOST_HOURS`].
pub(super) fn hours(connection: &Connection, asked: &HoursQuery) -> rusqlite::Result<Vec<Hour>> {
    let HoursQuery { name, since_ns, by_day: is_by_day } = asked;
    let since = since_ns / HOUR_NS;
    let since = if *is_by_day { since - since % u64::from(DAY) } else { since };
    // The row before shows if the first hours are unknown.
    let sql = "SELECT max(start) FROM history WHERE name = ?1 AND start <= ?2";
    let mut before = connection.prepare_cached(sql)?;
    let before = before.query_row(params![name.as_str(), natural(since)], |row| {
        row.get::<_, Option<Natural>>(0)
    })?;
    let first = before.map_or(since, |Natural(start)| start);
    let mut hours = fill(hours_from(connection, name, first, MOST_READ)?, MOST_READ);
    hours.retain(|hour| hour.end() > since);
    let mut hours = if *is_by_day { by_day(hours) } else { hours };
    hours.truncate(MOST_HOURS);
    Ok(hours)
}

fn hours_from(
    connection: &Connection,
    name: &Name,
    start: u64,
    most: usize,
) -> rusqlite::Result<Vec<Hour>> {
    let sql = "SELECT * FROM history WHERE name = ?1 AND start >= ?2 ORDER BY start LIMIT ?3";
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let mut found = connection.prepare_cached(sql)?;
    found.query_map(params![name.as_str(), natural(start), most], hour)?.collect()
}

/// Checks that each row of the table can be parsed. A table of an older program, which lacks the
/// column `owner`, is valid too.
pub(super) fn read_all(connection: &Connection) -> rusqlite::Result<()> {
    let owner = if has_owner(connection)? { "" } else { ", 'service' AS owner" };
    let mut found = connection.prepare(&format!("SELECT *{owner} FROM history"))?;
    found.query_map([], hour)?.try_for_each(|row| row.map(drop))
}

/// Parses a row of the table `history` that was selected with all its columns.
fn hour(row: &Row<'_>) -> rusqlite::Result<Hour> {
    let number = |column: &str| row.get::<_, Natural>(column).map(|Natural(number)| number);
    let span = |column: &str| number(column).map(Span::from_ns);
    let (Text(name), StoredPrincipal(owner)) = (row.get("name")?, row.get("owner")?);
    let length: u32 = row.get("length")?;
    if length != 1 && length != DAY {
        return Err(FromSqlError::OutOfRange(length.into()).into());
    }
    let sums = HourSums {
        existed: span("existed_ns")?,
        known: span("known_ns")?,
        contested: span("contested_ns")?,
        reserved: span("reserved_ns")?,
        due: span("due_ns")?,
        delivered: span("delivered_ns")?,
        late: span("late_ns")?,
        deadlines: number("deadlines")?,
        missed: number("missed")?,
    };
    let (start, until_ns, continues) = (number("start")?, number("until")?, row.get("continues")?);
    Ok(Hour { name, owner, start, length, until_ns, continues, sums })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_written_by_older_version_is_kept_and_gets_owners() {
        let ledger = Connection::open_in_memory().unwrap();
        let old = HISTORY.replace("    owner TEXT NOT NULL DEFAULT 'service',\n", "");
        assert_ne!(old, HISTORY);
        ledger.execute_batch("CREATE TABLE reservation (name TEXT, owner TEXT)").unwrap();
        ledger.execute_batch("INSERT INTO reservation VALUES ('web', 'uid 0')").unwrap();
        ledger.execute_batch(&old).unwrap();
        let row = "INSERT INTO history VALUES (1, 'web', 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)";
        ledger.execute_batch(row).unwrap();
        read_all(&ledger).expect("the row can be parsed");
        open(&ledger).expect("the column is added");
        read_all(&ledger).expect("the row can be parsed");
        let sql = "SELECT owner FROM history";
        let owner: String = ledger.query_row(sql, [], |row| row.get(0)).unwrap();
        assert_eq!(owner, "uid 0");
    }
}
