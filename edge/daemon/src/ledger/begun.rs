//! Times at which the reservations of the ledger were made.

use std::collections::BTreeMap;
use std::time::SystemTime;

use rusqlite::Connection;
use slackline_service::{Commit, Name, Row};

use super::stored::after_1970;

/// For each reservation, by name: the number of the event that made it, and the wall-clock time at
/// which it was made.
#[derive(Debug, Default)]
pub(super) struct BeginTimes(BTreeMap<Name, (u64, SystemTime)>);

impl BeginTimes {
    /// Reads the times from the log. If the event that made a reservation is no longer in the log,
    /// uses the time of the oldest later event of any reservation. If the log has no later event
    /// either, uses `now`, the time at which the ledger is opened.
    pub(super) fn load(connection: &Connection, rows: &[Row], now: SystemTime) -> BeginTimes {
        let sql = "SELECT at FROM event WHERE seq >= ?1 ORDER BY seq LIMIT 1";
        // A ledger with a damaged log can be opened too.
        let mut query = connection.prepare(sql).ok();
        let mut oldest = |since: u64| {
            let since = i64::try_from(since).ok()?;
            query.as_mut()?.query_row([since], |found| found.get::<_, i64>(0)).ok()
        };
        let begun = rows.iter().map(|row| {
            let at = oldest(row.since).map_or(now, after_1970);
            (row.name.clone(), (row.since, at))
        });
        BeginTimes(begun.collect())
    }

    /// Adds the reservations that a commit makes at the wall-clock time `now`, and removes those
    /// that it ends.
    pub(super) fn note(&mut self, commit: &Commit, now: SystemTime) {
        for (name, row) in &commit.rows {
            let known = self.0.get(name).map(|(since, _)| *since);
            match row {
                None => {
                    self.0.remove(name);
                }
                Some(row) if known != Some(row.since) => {
                    self.0.insert(name.clone(), (row.since, now));
                }
                Some(_) => {}
            }
        }
    }

    /// Returns the time at which a reservation was made. `None` if the time is unknown.
    pub(super) fn of(&self, row: &Row) -> Option<SystemTime> {
        let (since, at) = self.0.get(&row.name)?;
        (*since == row.since).then_some(*at)
    }
}
