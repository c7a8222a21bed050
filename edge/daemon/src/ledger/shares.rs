//! Shares of the principals in the tables `event` and `history`. A principal is a user, a remote
//! client or the service itself. Its share is the number and the bytes of its rows in a table.
//!
//! If a table is full, the principal with the most bytes loses its oldest rows. So a principal that
//! fills a table loses its own rows, and not the rows of others. Half of the bytes of a table is
//! kept for administrators and the service. They lose rows only if all other principals together
//! have at most half of the bytes.
//!
//! Triggers of the database keep the counts in the table `share`. So the counts are right after
//! each transaction, whichever program writes rows. A commit to a full table reads the counts of
//! all principals, and finds the oldest rows of a principal by an index.

use std::collections::BTreeSet;

use rusqlite::{Connection, params};
use slackline_service::Principal;

use super::stored::{Natural, count};

/// Maximum number of rows that are deleted before the shares are compared again.
const DELETED_AT_ONCE: u64 = 64;

/// A table whose rows are counted for each principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Event,
    History,
}

impl Part {
    const fn table(self) -> &'static str {
        match self {
            Part::Event => "event",
            Part::History => "history",
        }
    }

    /// Returns the SQL expression for the principal to whom a row belongs. An event of the service
    /// belongs to the owner of its reservation. `row` is the prefix of the columns' names, such as
    /// `new.`.
    fn owner(self, row: &str) -> String {
        match self {
            Part::Event => format!(
                "coalesce(CASE WHEN {row}principal <> 'service' THEN {row}principal
                 WHEN json_valid({row}after) THEN {row}after ->> '$.owner'
                 WHEN json_valid({row}before) THEN {row}before ->> '$.owner' END, 'service')"
            ),
            Part::History => format!("{row}owner"),
        }
    }

    /// Returns the SQL expression for an upper bound of the bytes of a row with its index entries.
    /// Pages of a table are full, since rows are only appended. Pages of an index are at least a
    /// third full, because SQLite merges pages that are emptier.
    fn bytes(self, row: &str) -> String {
        let length = |column| format!("coalesce(length(CAST({row}{column} AS BLOB)), 0)");
        match self {
            Part::Event => {
                let texts = ["detail", "before", "after"].map(length).join(" + ");
                format!("192 + {texts}")
            }
            Part::History => {
                format!("200 + 7 * {} + 4 * {}", length("name"), length("owner"))
            }
        }
    }

    /// Returns the SQL statements that create the triggers of the table.
    fn triggers(self) -> String {
        let table = self.table();
        let (owner, bytes) = (self.owner("new."), self.bytes("new."));
        let (old_owner, old_bytes) = (self.owner("old."), self.bytes("old."));
        format!(
            "CREATE TRIGGER IF NOT EXISTS {table}_added AFTER INSERT ON {table} BEGIN
                 INSERT INTO share VALUES ('{table}', {owner}, 1, {bytes})
                 ON CONFLICT (part, principal) DO UPDATE
                 SET number = number + 1, bytes = bytes + excluded.bytes;
             END;
             CREATE TRIGGER IF NOT EXISTS {table}_deleted AFTER DELETE ON {table} BEGIN
                 UPDATE share SET number = number - 1, bytes = bytes - ({old_bytes})
                 WHERE part = '{table}' AND principal = {old_owner};
                 DELETE FROM share
                 WHERE part = '{table}' AND principal = {old_owner} AND number <= 0;
             END;"
        )
    }

    /// Compares the stored counts with the number of rows. If they differ, counts the rows of all
    /// principals again. Returns the number of rows.
    fn recount(self, change: &Connection) -> rusqlite::Result<u64> {
        let (table, owner, bytes) = (self.table(), self.owner(""), self.bytes(""));
        let rows = count(change, table)?;
        let sql = "SELECT coalesce(sum(number), 0) FROM share WHERE part = ?1";
        let Natural(known) = change.query_row(sql, [table], |row| row.get(0))?;
        if known != rows {
            change.execute("DELETE FROM share WHERE part = ?1", [table])?;
            let sql = format!(
                "INSERT INTO share SELECT ?1, {owner}, count(*), sum({bytes})
                 FROM {table} GROUP BY 2"
            );
            change.execute(&sql, [table])?;
        }
        Ok(rows)
    }
}

const SHARE: &str = "
CREATE TABLE IF NOT EXISTS share (
    part TEXT NOT NULL,
    principal TEXT NOT NULL,
    number INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (part, principal)
) STRICT, WITHOUT ROWID;
";

/// Creates the table of shares, its triggers and its indexes, unless they exist. Returns the number
/// of events.
pub(super) fn open(connection: &Connection) -> rusqlite::Result<u64> {
    let change = connection.unchecked_transaction()?;
    let owner = Part::Event.owner("");
    change.execute_batch(&format!(
        "{SHARE}
         CREATE INDEX IF NOT EXISTS event_by_owner ON event ({owner}, seq);
         CREATE INDEX IF NOT EXISTS history_by_owner ON history (owner, length, start, name);
         {}
         {}",
        Part::Event.triggers(),
        Part::History.triggers(),
    ))?;
    let events = Part::Event.recount(&change)?;
    Part::History.recount(&change)?;
    change.commit()?;
    Ok(events)
}

/// Shares of all principals in one table.
#[derive(Debug)]
pub(super) struct Shares(Vec<Share>);

#[derive(Debug)]
struct Share {
    principal: String,
    number: u64,
    bytes: u64,
}

impl Shares {
    pub(super) fn read(connection: &Connection, part: Part) -> rusqlite::Result<Shares> {
        let sql = "SELECT principal, number, bytes FROM share WHERE part = ?1";
        let mut found = connection.prepare_cached(sql)?;
        let shares = found.query_map([part.table()], |row| {
            let (Natural(number), Natural(bytes)) = (row.get(1)?, row.get(2)?);
            Ok(Share { principal: row.get(0)?, number, bytes })
        })?;
        shares.collect::<Result<_, _>>().map(Shares)
    }

    /// Returns the number of bytes of all rows.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|share| share.bytes).sum()
    }

    /// Returns the principal that loses rows next. Also returns the number of rows that it loses
    /// before the shares must be compared again. `None` if there are no rows.
    pub(super) fn largest(&self, administrators: &BTreeSet<Principal>) -> Option<(&str, u64)> {
        let is_kept = |share: &Share| {
            let principal = share.principal.parse();
            principal.is_ok_and(|who| match who {
                Principal::Service | Principal::User(0) => true,
                who => administrators.contains(&who),
            })
        };
        let (kept, others): (Vec<&Share>, Vec<&Share>) =
            self.0.iter().partition(|share| is_kept(share));
        let sum = |shares: &[&Share]| shares.iter().map(|share| share.bytes).sum::<u64>();
        let mut shares = if sum(&others) > sum(&kept) { others } else { kept };
        shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
        let largest = shares.first()?;
        let next = shares.get(1).map_or(0, |next| next.bytes);
        let each = (largest.bytes / largest.number.max(1)).max(1);
        let number = ((largest.bytes - next) / each).clamp(1, DELETED_AT_ONCE);
        Some((&largest.principal, number))
    }
}

/// Deletes `most` events of the principals with the largest shares. Each of them loses its oldest
/// events first. Returns the number of deleted events.
pub(super) fn drop_events(
    change: &Connection,
    most: usize,
    administrators: &BTreeSet<Principal>,
) -> rusqlite::Result<usize> {
    let sql = format!(
        "DELETE FROM event WHERE seq IN
         (SELECT seq FROM event WHERE {} = ?1 ORDER BY seq LIMIT ?2)",
        Part::Event.owner("")
    );
    let mut gone = change.prepare_cached(&sql)?;
    let mut dropped = 0;
    while dropped < most {
        let shares = Shares::read(change, Part::Event)?;
        let Some((principal, number)) = shares.largest(administrators) else { break };
        let left = most - dropped;
        let number = usize::try_from(number).unwrap_or(usize::MAX).min(left);
        let number = gone.execute(params![principal, i64::try_from(number).unwrap_or(i64::MAX)])?;
        if number == 0 {
            // Another program has changed the principal of an event.
            break;
        }
        dropped += number;
    }
    Ok(dropped)
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::super::tables::{HISTORY, MIGRATIONS};
    use super::*;

    fn tables() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(MIGRATIONS[0]).unwrap();
        connection.execute_batch(HISTORY).unwrap();
        connection
    }

    fn event(connection: &Connection, principal: &str, after: Option<&str>) {
        let sql = "INSERT INTO event (at, principal, verb, after, late) VALUES (1, ?1, 'x', ?2, 0)";
        connection.execute(sql, params![principal, after]).unwrap();
    }

    fn shares(connection: &Connection) -> Vec<(String, u64, u64)> {
        let shares = Shares::read(connection, Part::Event).unwrap().0;
        shares.into_iter().map(|share| (share.principal, share.number, share.bytes)).collect()
    }

    #[test]
    fn service_event_is_counted_for_owner_of_affected_reservation() {
        let connection = tables();
        event(&connection, "uid 7", None);
        assert_eq!(open(&connection).unwrap(), 1);
        event(&connection, "service", Some(r#"{"owner":"uid 8"}"#));
        event(&connection, "service", Some("not JSON"));
        event(&connection, "service", None);
        event(&connection, "uid 7", Some(r#"{"owner":"uid 8"}"#));
        let share = |who: &str, number, bytes| (who.to_owned(), number, bytes);
        let all = [
            share("service", 2, 2 * 192 + 8),
            share("uid 7", 2, 2 * 192 + 17),
            share("uid 8", 1, 192 + 17),
        ];
        assert_eq!(shares(&connection), all);
        // A missing count is noticed at the next start.
        connection.execute("DELETE FROM share WHERE principal = 'uid 7'", []).unwrap();
        assert_eq!(open(&connection).unwrap(), 5);
        assert_eq!(shares(&connection), all);
        connection.execute("DELETE FROM event WHERE principal = 'uid 7'", []).unwrap();
        assert_eq!(shares(&connection), [all[0].clone(), all[2].clone()]);
    }

    #[test]
    fn oldest_events_of_one_principal_are_found_without_table_scan() {
        let connection = tables();
        open(&connection).unwrap();
        for number in 0..1_000 {
            event(&connection, if number % 2 == 0 { "uid 7" } else { "uid 8" }, None);
        }
        let owner = Part::Event.owner("");
        let sql = format!("SELECT seq FROM event WHERE {owner} = ?1 ORDER BY seq LIMIT 3");
        let mut found = connection.prepare(&sql).unwrap();
        let found_rows = found.query_map(["uid 8"], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(found_rows.collect::<Result<Vec<_>, _>>().unwrap(), [2, 4, 6]);
        assert_eq!(found.get_status(StatementStatus::FullscanStep), 0);
        assert_eq!(found.get_status(StatementStatus::Sort), 0);
    }
}
