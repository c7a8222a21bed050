//! Table `raise`. Each row is a raise: an increase of a reservation by a principal who is not its
//! owner. The increase counts in the budget of that principal.
//!
//! A ledger of a version before 11 lacks the table, or two of its columns: the end time and the
//! hard limit that the reservation had before the raise.

use rusqlite::{Connection, Row, params};
use slackline_service::{Commit, Name, Principal, Raise, Terms};
use slackline_units::{Enforcement, WallTime};

use super::stored::{Natural, StoredPrincipal, Text, has_column, terms};

/// Returns all raises. If the terms before a raise cannot be parsed, the whole reservation counts
/// as raised. If another part of a row cannot be parsed, the row is left out.
///
/// # Errors
/// If the table is damaged.
pub(super) fn load(connection: &Connection) -> rusqlite::Result<Vec<(Name, Raise)>> {
    if !connection.table_exists(None, "raise")? {
        return Ok(Vec::new());
    }
    let mut found = connection.prepare(&selection(connection)?)?;
    let read = |row: &Row<'_>| {
        let (name, by, since) = key(row).ok()?;
        Some((name, Raise { by, since, from: from(row).ok().flatten() }))
    };
    let raises = found.query_map([], |row| Ok(read(row)))?;
    Ok(raises.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Checks that all raises can be parsed.
///
/// # Errors
/// If the table is damaged, or a row cannot be parsed.
pub(super) fn check(connection: &Connection) -> rusqlite::Result<()> {
    if !connection.table_exists(None, "raise")? {
        return Ok(());
    }
    let mut found = connection.prepare(&selection(connection)?)?;
    found.query_map([], |row| key(row).and(from(row)))?.try_for_each(|from| from.map(drop))
}

/// Returns an SQL query for all raises. If the table of an older version lacks columns, the query
/// adds them to the result: a check must not migrate the ledger.
fn selection(connection: &Connection) -> rusqlite::Result<String> {
    let has_limits = has_column(connection, "raise", "until")?;
    let limits = if has_limits { "" } else { ", NULL AS until, NULL AS exact" };
    Ok(format!("SELECT *{limits} FROM raise"))
}

fn key(row: &Row<'_>) -> rusqlite::Result<(Name, Principal, u64)> {
    let (Text(name), StoredPrincipal(by)) = (row.get("name")?, row.get("principal")?);
    let Natural(since) = row.get("since")?;
    Ok((name, by, since))
}

/// Returns the terms of the reservation before the raise. `None` if the whole reservation counts as
/// raised.
fn from(row: &Row<'_>) -> rusqlite::Result<Option<Terms>> {
    let from = |Natural(slice): Natural| -> rusqlite::Result<Terms> {
        let Natural(period) = row.get("period_ns")?;
        let until = row.get::<_, Option<Natural>>("until")?;
        let exact = row.get::<_, Option<bool>>("exact")?.unwrap_or(false);
        let by = Enforcement::Dispatcher;
        let from = terms((slice, period, None), (exact, false, by), row.get("vcpus")?)?;
        Ok(from.with_end(until.map(|Natural(ns)| WallTime::from_ns(ns))))
    };
    row.get::<_, Option<Natural>>("slice_ns")?.map(from).transpose()
}

/// Writes the raises of a commit.
pub(super) fn write(change: &Connection, commit: &Commit) -> rusqlite::Result<()> {
    let natural = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    for (name, raises) in &commit.raises {
        let mut gone = change.prepare_cached("DELETE FROM raise WHERE name = ?1")?;
        gone.execute([name.as_str()])?;
        for Raise { by, since, from } in raises {
            let (slice, period) =
                from.map(|from| (from.each().slice(), from.each().period())).unzip();
            let sql = "INSERT INTO raise VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
            let mut put = change.prepare_cached(sql)?;
            put.execute(params![
                name.as_str(),
                StoredPrincipal(*by),
                natural(*since),
                slice.map(|slice| natural(slice.ns())),
                period.map(|period| natural(period.ns())),
                from.map(Terms::vcpus),
                from.and_then(Terms::until).map(|until| natural(until.ns())),
                from.map(Terms::exact),
            ])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use slackline_units::{Reservation, Span};

    use super::super::tables::MIGRATIONS;
    use super::*;

    #[test]
    fn recorded_reservation_increases_stay_in_ledger_until_replaced() {
        let connection = Connection::open_in_memory().unwrap();
        assert_eq!(load(&connection).unwrap(), []);
        connection.execute_batch(&MIGRATIONS.concat()).unwrap();
        let each = Reservation::new(Span::from_ms(2), Span::from_ms(10)).unwrap();
        let from = Terms::new(each, false, 3).unwrap();
        let end = Some("2026-12-01T18:00".parse().unwrap());
        let longer = Terms::new(each, true, 3).unwrap().with_end(end);
        let name: Name = "web".parse().unwrap();
        let raise = |uid, from| Raise { by: Principal::User(uid), since: 5, from };
        let (raised, moved) = (raise(1, Some(from)), raise(2, None));
        let lengthened = raise(3, Some(longer));
        let put = |raises: &[Raise]| {
            let raises = vec![(name.clone(), raises.to_vec())];
            write(&connection, &Commit { raises, ..Commit::empty(6) }).unwrap();
        };
        put(&[raised, moved, lengthened]);
        let all = [raised, moved, lengthened].map(|raise| (name.clone(), raise));
        assert_eq!(load(&connection).unwrap(), all);
        put(&[moved]);
        assert_eq!(load(&connection).unwrap(), [(name.clone(), moved)]);
        put(&[]);
        assert_eq!(load(&connection).unwrap(), []);
    }

    #[test]
    fn damaged_reservation_increase_record_loses_former_parameters_or_is_dropped() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(&MIGRATIONS.concat()).unwrap();
        let insert = |values: &str| {
            connection
                .execute(&format!("INSERT INTO raise VALUES ({values}, NULL, NULL)"), [])
                .unwrap();
        };
        insert("'web', 'uid 1', 5, 2000000, 10000000, 1");
        assert!(check(&connection).is_ok());
        insert("'db', 'uid 1', 5, 2000000, 1, 1");
        insert("'a b', 'uid 1', 5, NULL, NULL, NULL");
        insert("'mail', 'nobody', 5, NULL, NULL, NULL");
        assert!(check(&connection).is_err());
        let found = load(&connection).unwrap();
        let found = found.iter().map(|(name, raise)| (name.as_str(), raise.from.is_some()));
        assert_eq!(found.collect::<Vec<_>>(), [("db", false), ("web", true)]);
    }
}
