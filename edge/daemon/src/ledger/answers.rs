//! Table `answer`: which rows are loaded at the start, and which rows are deleted.
//!
//! The table has at most as many rows as the number of answers that the service keeps. A ledger of
//! an older version may have more rows. The extra rows are not loaded, and are deleted a few at a
//! time.

use std::time::SystemTime;

use rusqlite::{Connection, OptionalExtension, params};
use slackline_service::{KeptAnswer, Key, KeyOrder, Principal};
use slackline_units::Span;

use super::stored::{Past, StoredPrincipal, Text, after_1970, since_1970};
use super::words::Keep;

/// Keys of the answers that are kept, and of rows to delete.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Keys of the answers that are kept, from the oldest to the newest. Times are nanoseconds
    /// since 1970, as in the table.
    order: KeyOrder<i64>,
    /// Rows that the next commit deletes. They stay in this list until the commit has succeeded.
    surplus: Vec<(Principal, Key)>,
    /// Position up to which rows of an older version were checked: time, principal and key. `None`
    /// once all rows were checked.
    sweep: Option<(i64, String, String)>,
}

/// Time and key of a row of the table `answer`.
type Answered = (i64, Principal, Key);

/// Answers that were loaded, each with its age, oldest first.
pub(super) type Loaded = Vec<(KeptAnswer, Span)>;

impl Answers {
    /// Reads the newest kept answers from the table, as many as the service keeps.
    pub(super) fn load(
        connection: &Connection,
        keep: Keep,
        now: SystemTime,
    ) -> rusqlite::Result<(Answers, Loaded)> {
        let since = now.checked_sub(keep.answers).and_then(since_1970).unwrap_or(i64::MIN);
        let (newest, is_all) = newest_keys(connection, since)?;
        let sweep = (!is_all).then(|| (i64::MIN, String::new(), String::new()));
        let mut answers = Answers { sweep, ..Answers::default() };
        let mut loaded = Vec::new();
        for (at, principal, key) in newest.into_iter().rev() {
            loaded.extend(answer(connection, (principal, &key), now)?);
            answers.add(at, principal, key);
        }
        Ok((answers, loaded))
    }

    /// Notes the answers that a commit adds. The same commit deletes the older rows that the new
    /// rows displace.
    pub(super) fn note(&mut self, kept: &[KeptAnswer], now: SystemTime) {
        let at = since_1970(now).unwrap_or(0);
        for KeptAnswer { principal, key, .. } in kept {
            self.surplus.retain(|gone| (gone.0, &gone.1) != (*principal, key));
            self.add(at, *principal, key.clone());
        }
    }

    fn add(&mut self, at: i64, principal: Principal, key: Key) {
        self.surplus.extend(self.order.add(at, principal, key));
    }

    /// Deletes rows that new rows have displaced, and up to `most` extra rows of an older version.
    /// Returns true if no such rows are left.
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

    /// Notes that the transaction in which [`Answers::drop_old`] deleted rows has succeeded.
    pub(super) fn committed(&mut self) {
        self.surplus.clear();
    }
}

/// Returns the times and keys of the newest rows, newest first, up to the number that the service
/// keeps. The flag is true if the table has no other rows. Only an index is read, which takes well
/// below a second for a million rows.
fn newest_keys(connection: &Connection, since: i64) -> rusqlite::Result<(Vec<Answered>, bool)> {
    let (mut order, mut newest, mut is_all) = (KeyOrder::default(), Vec::new(), true);
    let mut rows = connection.prepare("SELECT at, principal, key FROM answer ORDER BY at DESC")?;
    let mut rows = rows.query([])?;
    while let Some(row) = rows.next()? {
        let at: i64 = row.get(0)?;
        if at < since || order.is_full() {
            return Ok((newest, false));
        }
        let StoredPrincipal(principal) = row.get(1)?;
        if order.has_most_of(principal) {
            is_all = false;
            continue;
        }
        let Text(key): Text<Key> = row.get(2)?;
        order.add(at, principal, key.clone());
        newest.push((at, principal, key));
    }
    Ok((newest, is_all))
}

/// Reads the answer that a row of the table contains.
fn answer(
    connection: &Connection,
    (principal, key): (Principal, &Key),
    now: SystemTime,
) -> rusqlite::Result<Option<(KeptAnswer, Span)>> {
    let sql = "SELECT principal, key, asked, reply, is_new, at FROM answer
        WHERE principal = ?1 AND key = ?2";
    let mut found = connection.prepare_cached(sql)?;
    found
        .query_row(params![StoredPrincipal(principal), key.as_str()], |row| read(row, now))
        .optional()
}

/// Checks that each row of the table can be parsed.
pub(super) fn read_all(connection: &Connection, now: SystemTime) -> rusqlite::Result<()> {
    let sql = "SELECT principal, key, asked, reply, is_new, at FROM answer";
    let mut found = connection.prepare(sql)?;
    found.query_map([], |row| read(row, now))?.try_for_each(|row| row.map(drop))
}

fn read(row: &rusqlite::Row<'_>, now: SystemTime) -> rusqlite::Result<(KeptAnswer, Span)> {
    let (StoredPrincipal(principal), Text(key)) = (row.get(0)?, row.get(1)?);
    let past: Past = row.get(3)?;
    let (asked, is_new) = (row.get(2)?, row.get(4)?);
    // If the clock was set back since, the age counts as zero.
    let age = now.duration_since(after_1970(row.get(5)?)).unwrap_or_default();
    let age = Span::from_ns(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
    Ok((KeptAnswer { principal, key, asked, row: past.row()?, is_new }, age))
}

/// Returns times and keys of up to `most` rows after `position`, oldest first.
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
