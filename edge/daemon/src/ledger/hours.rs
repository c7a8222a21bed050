//! Table `history`: CPU time that reservations received, by hour, and by day for old rows.
//!
//! The commit that adds rows also keeps the table within its bounds. Rows above the maximum age are
//! always deleted. If the table is still too large, the hours of its oldest day are joined into one
//! row. If it has no more hours to join, its oldest rows are deleted.
//!
//! A ledger of any version can have the table, since programs that do not know the table ignore it.
//! Rows are stored in order of time, so that new rows fill pages and deleted old rows free whole
//! pages.

use std::time::SystemTime;

use rusqlite::types::FromSqlError;
use rusqlite::{Connection, OptionalExtension, Row, params};
use slackline_service::Name;
use slackline_service::history::{DAY, HOUR_NS, Hour, HourSums, by_day, fill};
use slackline_units::Span;

use super::stored::{Natural, Text, since_1970};
use super::words::{HoursQuery, Keep, MOST_HOURS};

/// Number of bytes of a row and its index entry, without the name. Table pages are full, since rows
/// are only appended. Index pages may be only a third full. SQLite merges pages that are emptier.
const ROW_BYTES: u64 = 104 + 3 * 16;

/// Factor for the length of the name in the size of a row and its index entry.
const NAMES_OF_ROW: u64 = 4;

/// Maximum number of rows by hour that one query reads. With the default bounds, no reservation has
/// more rows.
const MOST_READ: usize = 12_000;

/// Number of rows that are deleted in one step while the table is too large.
const DELETED_AT_ONCE: u32 = 64;

/// Size of the table `history`, and the first day whose hours are not joined.
#[derive(Debug, Default)]
pub(super) struct Hours {
    /// Upper bound for the bytes of the table and its index.
    bytes: u64,
    /// Start of the first day that may still have one row per hour, in hours since 1970.
    whole_from: u64,
}

impl Hours {
    /// Creates the table `history` if needed, and measures its size.
    pub(super) fn open(connection: &Connection) -> rusqlite::Result<Hours> {
        connection.execute_batch(super::tables::HISTORY)?;
        let sql = "SELECT count(*), coalesce(sum(length(CAST(name AS BLOB))), 0),
            coalesce(max(CASE WHEN length > 1 THEN start + length END), 0) FROM history";
        connection.query_row(sql, [], |row| {
            let (Natural(rows), Natural(names)) = (row.get(0)?, row.get(1)?);
            let Natural(whole_from) = row.get(2)?;
            Ok(Hours { bytes: rows * ROW_BYTES + names * NAMES_OF_ROW, whole_from })
        })
    }

    /// Writes rows and deletes rows beyond the bounds, in a transaction of the caller. Returns the
    /// new size, which is valid if the transaction succeeds.
    pub(super) fn write(
        &self,
        change: &Connection,
        rows: &[Hour],
        (keep, now): (Keep, SystemTime),
    ) -> rusqlite::Result<Hours> {
        let mut table = Hours { bytes: self.bytes, whole_from: self.whole_from };
        for hour in rows {
            table.put(change, hour)?;
        }
        let newest = rows.iter().map(|hour| hour.start).max().unwrap_or(0);
        table.delete_old(change, (keep, now))?;
        while table.bytes > keep.history_bytes {
            if !table.join_hours(change, newest - newest % u64::from(DAY))?
                && !table.delete_oldest(change)?
            {
                break;
            }
        }
        Ok(table)
    }

    fn put(&mut self, change: &Connection, hour: &Hour) -> rusqlite::Result<()> {
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
        ];
        if change.prepare_cached(UPDATE)?.execute(values)? == 0 {
            change.prepare_cached(INSERT)?.execute(values)?;
            self.bytes += bytes(u32::try_from(hour.name.as_str().len()).unwrap_or(u32::MAX));
        }
        Ok(())
    }

    fn delete_old(
        &mut self,
        change: &Connection,
        (keep, now): (Keep, SystemTime),
    ) -> rusqlite::Result<()> {
        let oldest = now.checked_sub(keep.history).and_then(since_1970).unwrap_or(0);
        let sql = "DELETE FROM history WHERE start < ?1 RETURNING length(CAST(name AS BLOB))";
        let oldest = natural(oldest.unsigned_abs() / HOUR_NS);
        self.delete(change, sql, params![oldest]).map(drop)
    }

    fn delete_oldest(&mut self, change: &Connection) -> rusqlite::Result<bool> {
        let sql = "DELETE FROM history WHERE (start, name) IN
            (SELECT start, name FROM history ORDER BY start, name LIMIT ?1)
            RETURNING length(CAST(name AS BLOB))";
        Ok(self.delete(change, sql, params![DELETED_AT_ONCE])? > 0)
    }

    /// Runs a statement that deletes rows and returns the length of the name in each deleted row.
    /// Subtracts the size of these rows from `bytes`.
    fn delete(
        &mut self,
        change: &Connection,
        sql: &str,
        values: impl rusqlite::Params,
    ) -> rusqlite::Result<usize> {
        let mut statement = change.prepare_cached(sql)?;
        let gone = statement.query_map(values, |row| row.get::<_, u32>(0))?;
        let gone = gone.collect::<rusqlite::Result<Vec<u32>>>()?;
        self.bytes = self.bytes.saturating_sub(gone.iter().map(|&name| bytes(name)).sum());
        Ok(gone.len())
    }

    /// Joins the hours of one reservation on one day into a single row. The day is the oldest one
    /// before `today` that has hours. Returns false if there is no such day.
    fn join_hours(&mut self, change: &Connection, today: u64) -> rusqlite::Result<bool> {
        let sql = "SELECT start, name FROM history WHERE start >= ?1 AND start < ?2 AND length = 1
            ORDER BY start, name LIMIT 1";
        let mut first = change.prepare_cached(sql)?;
        let first = first.query_row(params![natural(self.whole_from), natural(today)], |row| {
            let (Natural(start), Text(name)) = (row.get(0)?, row.get::<_, Text<Name>>(1)?);
            Ok((start, name))
        });
        let Some((start, name)) = first.optional()? else { return Ok(false) };
        let day = start - start % u64::from(DAY);
        self.whole_from = day;
        let end = day + u64::from(DAY);
        // The next row shows if the reservation existed to the end of the day.
        let hours = hours_from(change, &name, day, usize::try_from(DAY).unwrap_or(0) + 1)?;
        let missing =
            hours.first().filter(|hour| hour.continues).map_or(0, |hour| hour.start - day);
        let hours = fill(hours, MOST_READ).into_iter().filter(|hour| hour.start < end);
        let Some(mut whole) = by_day(hours).into_iter().next() else { return Ok(false) };
        whole.sums.existed += Span::from_ns(missing * HOUR_NS);
        let sql = "DELETE FROM history WHERE name = ?1 AND start >= ?2 AND start < ?3
            RETURNING length(CAST(name AS BLOB))";
        self.delete(change, sql, params![name.as_str(), natural(day), natural(end)])?;
        self.put(change, &whole)?;
        Ok(true)
    }
}

const UPDATE: &str = "UPDATE history SET length = ?3, until = ?4, continues = ?5, existed_ns = ?6,
    known_ns = ?7, contested_ns = ?8, reserved_ns = ?9, due_ns = ?10, delivered_ns = ?11,
    late_ns = ?12, deadlines = ?13, missed = ?14 WHERE start = ?1 AND name = ?2";

const INSERT: &str = "INSERT INTO history VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
    ?12, ?13, ?14)";

fn bytes(name: u32) -> u64 {
    ROW_BYTES + NAMES_OF_ROW * u64::from(name)
}

/// Converts a number to the form in which it is stored. No number of the table reaches 2^63, which
/// is 292 years in nanoseconds.
fn natural(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the last row of each reservation that has rows.
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

/// Checks that each row of the table can be parsed.
pub(super) fn read_all(connection: &Connection) -> rusqlite::Result<()> {
    let mut found = connection.prepare("SELECT * FROM history")?;
    found.query_map([], hour)?.try_for_each(|row| row.map(drop))
}

/// Parses a row of the table `history` with all columns.
fn hour(row: &Row<'_>) -> rusqlite::Result<Hour> {
    let number = |column: &str| row.get::<_, Natural>(column).map(|Natural(number)| number);
    let span = |column: &str| number(column).map(Span::from_ns);
    let Text(name) = row.get("name")?;
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
    Ok(Hour { name, start, length, until_ns, continues, sums })
}
