//! Rows of the table `answer`, which stores the answers to requests with idempotency keys. This
//! module chooses the rows that are loaded at the start, and the rows that are deleted.
//!
//! The table has at most as many rows and bytes as the answers that the service keeps. A ledger of
//! an older version may have more rows. The extra rows are not loaded, and are deleted a few at a
//! time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use rusqlite::types::FromSqlError;
use rusqlite::{Connection, OptionalExtension, params};
use slackline_service::{KEYS_IN_ALL, KEYS_OF_ONE, KeptAnswer, Key, KeyOrder, Principal};
use slackline_units::Span;

use super::stored::{Past, StoredPrincipal, after_1970, since_1970, wrong};
use super::words::Keep;

/// Maximum number of rows and index entries that are read when the ledger is opened.
const MOST_READ: usize = 5 * KEYS_IN_ALL;

/// Keys of the answers that the table must keep, and keys of the rows to delete.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Keys of the answers that are kept, oldest first, with their times. The times are nanoseconds
    /// since 1970, as in the table.
    order: KeyOrder<i64>,
    /// Rows that the next commit deletes. They remain in this list until the commit has succeeded.
    surplus: Vec<(Principal, Key)>,
    /// Position up to which the table was checked for extra rows of an older version: time,
    /// principal and key. `None` if the whole table was checked.
    sweep: Option<(i64, String, String)>,
}

/// A row of the table `answer`, whose texts are not parsed yet.
#[derive(Debug)]
struct StoredAnswer {
    at: i64,
    principal: String,
    key: String,
    asked: String,
    reply: String,
    is_new: bool,
}

/// Answers that were loaded from the table, oldest first, each with its age.
pub(super) type Loaded = Vec<(KeptAnswer, Span)>;

impl Answers {
    /// Reads the newest answers from the table, up to the number and size that the service keeps.
    pub(super) fn load(
        connection: &Connection,
        keep: Keep,
        now: SystemTime,
    ) -> rusqlite::Result<(Answers, Loaded)> {
        let mut most = MOST_READ;
        Answers::load_reading(connection, (keep, now), &mut most)
    }

    /// Reads answers as [`Answers::load`] does, but reads at most `most` rows and index entries.
    /// Reduces `most` by the number of rows and entries that were read.
    fn load_reading(
        connection: &Connection,
        (keep, now): (Keep, SystemTime),
        most: &mut usize,
    ) -> rusqlite::Result<(Answers, Loaded)> {
        let since = now.checked_sub(keep.answers).and_then(since_1970).unwrap_or(i64::MIN);
        let (mut rows, mut is_all) = newest_rows(connection, most)?;
        rows.sort_by(|a, b| (b.at, &b.principal, &b.key).cmp(&(a.at, &a.principal, &a.key)));
        let (mut order, mut newest) = (KeyOrder::default(), Vec::new());
        for row in rows {
            let principal = row.principal.parse().map_err(|_| wrong("not a principal"))?;
            // Most rows beyond the limits need not be parsed.
            if row.at < since || !order.has_room(principal, 0) {
                is_all = false;
                continue;
            }
            let (at, answer) = (row.at, row.answer()?);
            let bytes = answer.stored_bytes();
            if order.has_room(principal, bytes) {
                order.add(at, principal, answer.key.clone(), bytes);
                newest.push((at, answer));
            } else {
                is_all = false;
            }
        }
        let sweep = (!is_all).then(|| (i64::MIN, String::new(), String::new()));
        let mut answers = Answers { sweep, ..Answers::default() };
        let mut loaded = Vec::with_capacity(newest.len());
        for (at, answer) in newest.into_iter().rev() {
            answers.add(at, &answer);
            loaded.push((answer, age(at, now)));
        }
        Ok((answers, loaded))
    }

    /// Adds the answers of a commit to the keys that are kept. If they displace older answers, this
    /// commit also deletes the rows of the older answers.
    pub(super) fn note(&mut self, kept: &[KeptAnswer], now: SystemTime) {
        let at = since_1970(now).unwrap_or(0);
        for answer in kept {
            let (principal, key) = (answer.principal, &answer.key);
            self.surplus.retain(|gone| (gone.0, &gone.1) != (principal, key));
            self.add(at, answer);
        }
    }

    fn add(&mut self, at: i64, answer: &KeptAnswer) {
        let (principal, key) = (answer.principal, answer.key.clone());
        self.surplus.extend(self.order.add(at, principal, key, answer.stored_bytes()));
    }

    /// Deletes rows of displaced or expired answers. Also checks up to `most` rows of an older
    /// version, and deletes the extra rows among them. Returns true if nothing remains to be
    /// deleted or checked.
    pub(super) fn drop_old(
        &mut self,
        change: &Connection,
        (keep, now): (Keep, SystemTime),
        most: usize,
    ) -> rusqlite::Result<bool> {
        let since = now.checked_sub(keep.answers).and_then(since_1970).unwrap_or(0);
        while self.surplus.len() < most
            && let Some(gone) = self.order.take_older(&since)
        {
            self.surplus.push(gone);
        }
        let mut delete =
            change.prepare_cached("DELETE FROM answer WHERE principal = ?1 AND key = ?2")?;
        for (principal, key) in &self.surplus {
            delete.execute(params![StoredPrincipal(*principal), key.as_str()])?;
        }
        let is_all = self.surplus.len() < most;
        let Some(from) = self.sweep.clone() else { return Ok(is_all) };
        let found = rows_after(change, &from, most)?;
        for (_, principal, key) in &found {
            if !self.is_kept(principal, key) {
                delete.execute(params![principal, key])?;
            }
        }
        let has_ended = found.len() < most;
        self.sweep = found.into_iter().next_back().filter(|_| !has_ended);
        Ok(has_ended && is_all)
    }

    fn is_kept(&self, principal: &str, key: &str) -> bool {
        let (principal, key) = (principal.parse(), key.parse());
        matches!((principal, key), (Ok(who), Ok(key)) if self.order.contains(who, &key))
    }

    /// Forgets the rows that [`Answers::drop_old`] has deleted, after the transaction that deletes
    /// them has succeeded.
    pub(super) fn committed(&mut self) {
        self.surplus.clear();
    }
}

/// Returns all rows of each principal that has at most [`KEYS_OF_ONE`] rows, and the newest rows of
/// each principal that has more. Only a ledger of an older version has principals with more rows.
/// The second value is true if these are all rows of the table.
fn newest_rows(
    connection: &Connection,
    most: &mut usize,
) -> rusqlite::Result<(Vec<StoredAnswer>, bool)> {
    let (mut rows, mut is_all) = (Vec::new(), true);
    let mut crowded = BTreeSet::new();
    let mut next = connection.prepare("SELECT min(principal) FROM answer WHERE principal > ?1")?;
    let mut own = connection.prepare(
        "SELECT at, principal, key, asked, reply, is_new FROM answer WHERE principal = ?1 LIMIT ?2",
    )?;
    let mut last = String::new();
    while let Some(principal) = next.query_row([&last], |row| row.get::<_, Option<String>>(0))? {
        let limit = i64::try_from(KEYS_OF_ONE + 1).unwrap_or(i64::MAX);
        let of_one = own.query_map(params![principal, limit], stored)?;
        let of_one = of_one.collect::<rusqlite::Result<Vec<_>>>()?;
        *most = most.saturating_sub(of_one.len() + 1);
        if *most == 0 {
            return Ok((rows, false));
        }
        if of_one.len() > KEYS_OF_ONE {
            is_all = false;
            crowded.insert(principal.clone());
        } else {
            rows.extend(of_one);
        }
        last = principal;
    }
    if !crowded.is_empty() {
        rows.extend(newest_of(connection, crowded, most)?);
    }
    Ok((rows, is_all))
}

/// Returns the newest rows of each principal in `crowded`, at most [`KEYS_OF_ONE`] per principal.
/// Stops after reading `most` rows and index entries, beginning with the newest of the table.
fn newest_of(
    connection: &Connection,
    mut crowded: BTreeSet<String>,
    most: &mut usize,
) -> rusqlite::Result<Vec<StoredAnswer>> {
    let mut newest = connection.prepare("SELECT principal, key FROM answer ORDER BY at DESC")?;
    let mut one = connection.prepare(
        "SELECT at, principal, key, asked, reply, is_new FROM answer
         WHERE principal = ?1 AND key = ?2",
    )?;
    let mut newest = newest.query([])?;
    let (mut rows, mut found): (Vec<_>, BTreeMap<String, usize>) = Default::default();
    while *most > 0
        && !crowded.is_empty()
        && let Some(row) = newest.next()?
    {
        *most = most.saturating_sub(1);
        let principal = row.get_ref(0)?.as_str()?;
        if !crowded.contains(principal) {
            continue;
        }
        let (principal, key): (String, String) = (row.get(0)?, row.get(1)?);
        rows.extend(one.query_row([&principal, &key], stored).optional()?);
        *most = most.saturating_sub(1);
        let number = found.entry(principal.clone()).or_default();
        *number += 1;
        if *number == KEYS_OF_ONE {
            crowded.remove(&principal);
        }
    }
    Ok(rows)
}

fn stored(row: &rusqlite::Row<'_>) -> rusqlite::Result<StoredAnswer> {
    Ok(StoredAnswer {
        at: row.get(0)?,
        principal: row.get(1)?,
        key: row.get(2)?,
        asked: row.get(3)?,
        reply: row.get(4)?,
        is_new: row.get(5)?,
    })
}

impl StoredAnswer {
    fn answer(self) -> rusqlite::Result<KeptAnswer> {
        let StoredAnswer { principal, key, asked, reply, is_new, .. } = self;
        let principal = principal.parse().map_err(|_| wrong("not a principal"))?;
        let key = key.parse().map_err(|_| wrong("not an idempotency key"))?;
        let past: Past =
            serde_json::from_str(&reply).map_err(|error| FromSqlError::Other(error.into()))?;
        Ok(KeptAnswer { principal, key, asked, row: past.row()?, is_new })
    }
}

/// Returns the age of an answer that was stored at the time `at`. The age is zero if the clock was
/// set back to before that time.
fn age(at: i64, now: SystemTime) -> Span {
    let age = now.duration_since(after_1970(at)).unwrap_or_default();
    Span::from_ns(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX))
}

/// Checks that each row of the table can be parsed.
pub(super) fn read_all(connection: &Connection) -> rusqlite::Result<()> {
    let sql = "SELECT at, principal, key, asked, reply, is_new FROM answer";
    let mut found = connection.prepare(sql)?;
    found.query_map([], stored)?.try_for_each(|row| row?.answer().map(drop))
}

/// Returns time, principal and key of the next rows after `position`, oldest first, at most `most`
/// rows.
fn rows_after(
    change: &Connection,
    (at, principal, key): &(i64, String, String),
    most: usize,
) -> rusqlite::Result<Vec<(i64, String, String)>> {
    let mut rows = change.prepare_cached(
        "SELECT at, principal, key FROM answer WHERE (at, principal, key) > (?1, ?2, ?3)
         ORDER BY at, principal, key LIMIT ?4",
    )?;
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let rows = rows.query_map(params![at, principal, key, most], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    });
    rows?.collect()
}

#[cfg(test)]
mod tests {
    use super::super::tables::MIGRATIONS;
    use super::*;

    const REPLY: &str = r#"{"name":"web","owner":"uid 7","slice_ns":2000000,
        "period_ns":10000000,"exact":true,"vcpus":2,"binding":"qemu:web","paused":false,
        "since":1,"revision":1,"identity":null}"#;

    /// Returns a table with `number` answers to each of three principals. The table also contains
    /// an older answer to a fourth principal.
    fn table(number: u32) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(MIGRATIONS[0]).unwrap();
        let sql = "WITH RECURSIVE n(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < ?1)
            INSERT INTO answer SELECT 'uid ' || CASE n WHEN 0 THEN 7 ELSE 1000 + n % 3 END,
            'key-' || n, 'reserve web', ?2, 1, 1000 + n FROM n";
        connection.execute(sql, params![3 * number, REPLY]).unwrap();
        connection
    }

    fn load(connection: &Connection) -> (usize, Answers, Loaded) {
        let mut left = MOST_READ;
        let now = after_1970(1_000_000);
        let loaded = Answers::load_reading(connection, (Keep::USUAL, now), &mut left).unwrap();
        (MOST_READ - left, loaded.0, loaded.1)
    }

    #[test]
    fn opening_ledger_reads_only_stored_answers_within_the_limits() {
        // Rows of a table within the limits are read once.
        let (read, answers, loaded) = load(&table(900));
        assert_eq!((read, loaded.len()), (2_701 + 4, 2_701));
        assert!(answers.sweep.is_none());
        // In a table of an older version, most rows are not read.
        let (read, answers, loaded) = load(&table(50_000));
        assert_eq!(loaded.len(), 3 * KEYS_OF_ONE + 1);
        assert_eq!(loaded[0].0.principal, Principal::User(7));
        assert!(read < 10 * KEYS_OF_ONE, "{read} of 150,001 rows");
        assert!(answers.sweep.is_some());
        assert!(loaded.is_sorted_by(|(_, older), (_, newer)| older >= newer));
    }
}
