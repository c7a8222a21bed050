//! Table `raise`: reservations that a principal raised for another owner. They count against the
//! budget of that principal.
//!
//! The table has no version: programs that do not know it ignore it.

use rusqlite::{Connection, Row, params};
use slackline_service::{Commit, Name, Raise, Terms};

use super::stored::{Natural, StoredPrincipal, Text, terms};
use super::tables::RAISES;

/// Creates the table of raises, if it is missing.
pub(super) fn create(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(RAISES)
}

/// Returns all raises.
///
/// # Errors
/// If the table is damaged, or a row cannot be parsed.
pub(super) fn load(connection: &Connection) -> rusqlite::Result<Vec<(Name, Raise)>> {
    if !connection.table_exists(None, "raise")? {
        return Ok(Vec::new());
    }
    let mut found = connection.prepare("SELECT * FROM raise")?;
    found.query_map([], raise)?.collect()
}

fn raise(row: &Row<'_>) -> rusqlite::Result<(Name, Raise)> {
    let (Text(name), StoredPrincipal(by)) = (row.get("name")?, row.get("principal")?);
    let Natural(since) = row.get("since")?;
    let from = |Natural(slice): Natural| -> rusqlite::Result<Terms> {
        let Natural(period) = row.get("period_ns")?;
        let by = slackline_units::Enforcement::Dispatcher;
        Ok(terms((slice, period, None), (false, false, by), row.get("vcpus")?)?)
    };
    let from = row.get::<_, Option<Natural>>("slice_ns")?.map(from).transpose()?;
    Ok((name, Raise { by, since, from }))
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
            let mut put =
                change.prepare_cached("INSERT INTO raise VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
            put.execute(params![
                name.as_str(),
                StoredPrincipal(*by),
                natural(*since),
                slice.map(|slice| natural(slice.ns())),
                period.map(|period| natural(period.ns())),
                from.map(Terms::vcpus),
            ])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use slackline_service::Principal;
    use slackline_units::{Reservation, Span};

    use super::*;

    #[test]
    fn recorded_reservation_increases_stay_in_ledger_until_replaced() {
        let connection = Connection::open_in_memory().unwrap();
        assert_eq!(load(&connection).unwrap(), []);
        create(&connection).unwrap();
        let each = Reservation::new(Span::from_ms(2), Span::from_ms(10)).unwrap();
        let from = Some(Terms::new(each, false, 3).unwrap());
        let name: Name = "web".parse().unwrap();
        let raise = |uid, from| Raise { by: Principal::User(uid), since: 5, from };
        let (raised, moved) = (raise(1, from), raise(2, None));
        let put = |raises: &[Raise]| {
            let raises = vec![(name.clone(), raises.to_vec())];
            write(&connection, &Commit { raises, ..Commit::empty(6) }).unwrap();
        };
        put(&[raised, moved]);
        assert_eq!(load(&connection).unwrap(), [(name.clone(), raised), (name.clone(), moved)]);
        put(&[moved]);
        assert_eq!(load(&connection).unwrap(), [(name.clone(), moved)]);
        put(&[]);
        assert_eq!(load(&connection).unwrap(), []);
    }
}
