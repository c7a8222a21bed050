//! Functions that read and write rows of the tables, within a transaction of the caller.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

use rusqlite::types::FromSqlError;
use rusqlite::{Connection, OptionalExtension, params};
use slackline_service::gang::Gang;
use slackline_service::{
    Binding, Budget, Commit, Identity, LedgerContents, Name, Principal, Role, Row,
};
use slackline_units::{CpuShare, Enforcement, WallTime};

use super::answers::Answers;
use super::error::LedgerError;
use super::shares::drop_events;
use super::stored::{
    Natural, Past, StoredPrincipal, Text, after_1970, by_uuid, happened, has_column, number, parts,
    since_1970, terms, wrong,
};
use super::words::{AccessChange, AccessGrant, Before, Keep, LoggedEvent, Proof};

/// Maximum length of an event's detail in bytes. A longer detail is cut.
const MOST_DETAIL: usize = 1_024;

/// Loads all rows that the service needs at its start. The second value is the state in which the
/// previous daemon left the ledger, or `None` if no daemon has used the ledger.
pub(super) fn load(
    connection: &Connection,
    boot_id: &str,
    keep: Keep,
    now: SystemTime,
) -> rusqlite::Result<(LedgerContents, Option<Before>, Answers)> {
    let host = connection.query_row("SELECT boot_id, clean, seq FROM host", [], |row| {
        let before = Before { boot_id: row.get(0)?, was_clean: row.get(1)? };
        let Natural(seq) = row.get(2)?;
        Ok((before, seq))
    });
    let (before, seq) = host.optional()?.unzip();
    let highest = connection
        .query_row("SELECT max(seq) FROM event", [], |row| row.get::<_, Option<Natural>>(0));
    let highest = highest?.map(|Natural(seq)| seq);
    let rows = reservations(connection, Some(boot_id))?;
    let (answers, kept) = Answers::load(connection, keep, now)?;
    let last_seq = seq.into_iter().chain(highest).max().unwrap_or(0);
    let plans = super::plans::load(connection)?;
    let raises = super::raises::load(connection)?;
    Ok((LedgerContents { rows, kept, plans, raises, last_seq }, before, answers))
}

/// Returns all reservations, each with the identity that its VM had in the boot `boot_id`. If
/// `boot_id` is `None`, the identities are not read.
pub(super) fn reservations(
    connection: &Connection,
    boot_id: Option<&str>,
) -> rusqlite::Result<Vec<Row>> {
    let (columns, from) = match boot_id {
        Some(_) => ("identity.pid, identity.started, identity.inode", OF_BOOT),
        None => ("NULL, NULL, NULL", "reservation WHERE ?1 IS NULL"),
    };
    // A check of a ledger of an older version must not migrate it.
    let has = |column| has_column(connection, "reservation", column);
    let user = if has("user")? { "user" } else { "CAST(substr(owner, 5) AS INTEGER)" };
    let phase = if has("phase_ns")? { "phase_ns" } else { "NULL" };
    let gang = if has("gang")? { "gang, strict" } else { "NULL, 0" };
    let by_use = if has("by_use")? { "by_use" } else { "0" };
    let until = if has("until")? { "until" } else { "NULL" };
    let uuid = if has("uuid")? { "uuid" } else { "NULL" };
    let enforce = if has("enforce")? { "enforce" } else { "'dispatcher'" };
    let sql = format!(
        "SELECT reservation.name, owner, slice_ns, period_ns, exact, vcpus, binding, paused, since,
         revision, {columns}, {user}, {phase}, {gang}, {by_use}, {until}, {uuid}, {enforce}
         FROM {from}
         ORDER BY since, reservation.name"
    );
    connection.prepare(&sql)?.query_map([boot_id], reservation)?.collect()
}

const OF_BOOT: &str = "reservation LEFT JOIN identity
    ON identity.name = reservation.name AND identity.boot_id = ?1";

fn reservation(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    let (Text(name), StoredPrincipal(owner), Text::<Binding>(binding)) =
        (row.get(0)?, row.get(1)?, row.get(6)?);
    let (pid, started): (Option<u32>, Option<i64>) = (row.get(10)?, row.get(11)?);
    let inode: Option<i64> = row.get(12)?;
    let (Natural(slice), Natural(period)) = (row.get(2)?, row.get(3)?);
    let (Natural(since), Natural(revision)) = (row.get(8)?, row.get(9)?);
    let phase = row.get::<_, Option<Natural>>(14)?.map(|Natural(phase)| phase);
    let until = row.get::<_, Option<Natural>>(18)?.map(|Natural(ns)| WallTime::from_ns(ns));
    let Text::<Enforcement>(enforce) = row.get(20)?;
    let (gang, is_strict) = (row.get::<_, Option<Text<Name>>>(15)?, row.get(16)?);
    let identity = inode.map(|inode| match (pid, started) {
        (Some(pid), Some(started)) => Identity::Process {
            pid,
            started: started.cast_unsigned(),
            inode: inode.cast_unsigned(),
        },
        _ => Identity::Group { inode: inode.cast_unsigned() },
    });
    Ok(Row {
        name,
        owner,
        terms: terms((slice, period, phase), (row.get(4)?, row.get(17)?, enforce), row.get(5)?)?
            .with_end(until),
        binding,
        user: row.get(13)?,
        paused: row.get(7)?,
        gang: gang.map(|Text(name)| Gang { name, is_strict }),
        since,
        revision,
        identity,
        by_uuid: by_uuid(row.get(19)?)?,
    })
}

/// Returns true if members of the operators' group without a grant have the role of a tenant.
pub(super) fn has_tenants(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT tenants FROM rights", [], |row| row.get(0))
}

/// Returns all grants of access.
pub(super) fn granted(connection: &Connection) -> rusqlite::Result<Vec<AccessGrant>> {
    let sql = "SELECT principal, role, cpu_ppm, machines, users, made, expires, token, certificate
        FROM access";
    let mut found = connection.prepare(sql)?;
    let found = found.query_map([], |row| {
        let (StoredPrincipal(principal), word): (StoredPrincipal, String) =
            (row.get(0)?, row.get(1)?);
        let role = Role::ALL.into_iter().find(|role| role.word() == word);
        let role = role.ok_or_else(|| wrong(format!("`{word}` is not a role")))?;
        let users: String = row.get(4)?;
        let users = users.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>();
        let users = users.map_err(|error| FromSqlError::Other(error.into()))?;
        let cpu = row.get::<_, Option<u32>>(2)?.map(CpuShare::from_ppm);
        let budget = Budget { cpu, machines: row.get(3)? };
        let made = after_1970(row.get(5)?);
        let expires = row.get::<_, Option<i64>>(6)?.map(after_1970);
        let token = row.get::<_, Option<String>>(7)?.map(Proof::Token);
        let proof = token.or(row.get::<_, Option<String>>(8)?.map(Proof::Certificate));
        Ok(AccessGrant { principal, role, budget, users, proof, made, expires })
    });
    found?.collect()
}

/// Writes a change to the grants of access.
pub(super) fn write_access(connection: &Connection, change: &AccessChange) -> rusqlite::Result<()> {
    let done = match change {
        AccessChange::Add(granted) => {
            let AccessGrant { principal, role, budget, users, proof, made, expires } = granted;
            let (token, certificate) = match proof {
                Some(Proof::Token(known)) => (Some(known), None),
                Some(Proof::Certificate(known)) => (None, Some(known)),
                None => (None, None),
            };
            let users: Vec<String> = users.iter().map(ToString::to_string).collect();
            connection.execute(
                "INSERT INTO access VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
                ON CONFLICT (principal) DO UPDATE SET role = ?2, cpu_ppm = ?3, machines = ?4,
                users = ?5, token = ?6, certificate = ?7, made = ?8, expires = ?9",
                params![
                    StoredPrincipal(*principal),
                    role.word(),
                    budget.cpu.map(CpuShare::ppm),
                    budget.machines,
                    users.join(" "),
                    token,
                    certificate,
                    since_1970(*made).unwrap_or(0),
                    expires.and_then(since_1970),
                ],
            )
        }
        AccessChange::Revoke(principal) => connection
            .execute("DELETE FROM access WHERE principal = ?1", [StoredPrincipal(*principal)]),
    };
    done.map(drop)
}

/// Parses an event from a row with all columns.
pub(super) fn logged(row: &rusqlite::Row<'_>) -> rusqlite::Result<LoggedEvent> {
    let past = |column: &str| -> rusqlite::Result<Option<Row>> {
        Ok(row.get::<_, Option<Past>>(column)?.map(|past| past.row()).transpose()?)
    };
    let (word, detail): (String, Option<String>) = (row.get("verb")?, row.get("detail")?);
    let name: Option<Text<Name>> = row.get("name")?;
    let (Natural(seq), StoredPrincipal(principal)) = (row.get("seq")?, row.get("principal")?);
    Ok(LoggedEvent {
        seq,
        at: after_1970(row.get("at")?),
        principal,
        what: happened(&word, detail.as_deref())?,
        name: name.map(|Text(name)| name),
        before: past("before")?,
        after: past("after")?,
        was_late: row.get("late")?,
    })
}

/// Writes the contents of a commit, in a transaction that the caller completes. Returns the number
/// of events that the table did not contain before.
pub(super) fn write(
    change: &Connection,
    commit: &Commit,
    wall: &[SystemTime],
    (boot_id, now): (&str, SystemTime),
    path: &Path,
) -> Result<u64, LedgerError> {
    let failed = |error| LedgerError::of(path, error);
    for (name, row) in &commit.rows {
        match row {
            Some(row) => write_row(change, name, row, boot_id, path)?,
            None => {
                let mut gone = change
                    .prepare_cached("DELETE FROM reservation WHERE name = ?1")
                    .map_err(failed)?;
                gone.execute([name.as_str()]).map_err(failed)?;
            }
        }
    }
    let mut new = 0;
    for (event, at) in commit.events.iter().zip(wall) {
        let (verb, detail) = parts(&event.what);
        let detail = detail.map(|text| text[..text.floor_char_boundary(MOST_DETAIL)].to_owned());
        let mut insert = change.prepare_cached(EVENT).map_err(failed)?;
        let inserted = insert.execute(params![
            number("the event number", event.seq)?,
            since_1970(*at).unwrap_or(0),
            StoredPrincipal(event.principal),
            verb,
            detail,
            event.name.as_ref().map(Name::as_str),
            event.before.as_ref().map(Past::of),
            event.after.as_ref().map(Past::of),
            event.was_late,
        ]);
        new += u64::try_from(inserted.map_err(failed)?).unwrap_or(0);
    }
    for kept in &commit.kept {
        let mut insert = change
            .prepare_cached("REPLACE INTO answer VALUES (?1, ?2, ?3, ?4, ?5, ?6)")
            .map_err(failed)?;
        let inserted = insert.execute(params![
            StoredPrincipal(kept.principal),
            kept.key.as_str(),
            kept.asked,
            Past::of(&kept.row),
            kept.is_new,
            since_1970(now).unwrap_or(0),
        ]);
        inserted.map_err(failed)?;
    }
    super::plans::write(change, commit).map_err(failed)?;
    super::raises::write(change, commit).map_err(failed)?;
    let mut highest =
        change.prepare_cached("UPDATE host SET seq = max(seq, ?1)").map_err(failed)?;
    highest.execute([number("the commit number", commit.seq)?]).map_err(failed)?;
    Ok(new)
}

/// Statement that inserts an event. A row with the event's number can exist already, if an earlier
/// attempt of the same commit was written but reported as failed. That row stays unchanged.
const EVENT: &str = "INSERT INTO event VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
    ON CONFLICT (seq) DO NOTHING";

fn write_row(
    change: &Connection,
    name: &Name,
    row: &Row,
    boot_id: &str,
    path: &Path,
) -> Result<(), LedgerError> {
    let failed = |error| LedgerError::of(path, error);
    let each = row.terms.each();
    let phase = row.terms.phase().map(|phase| number("a phase", phase.ns())).transpose()?;
    // `REPLACE` would delete the row first, and with it all rows that refer to it.
    let mut put = change.prepare_cached(PUT).map_err(failed)?;
    let done = put.execute(params![
        name.as_str(),
        StoredPrincipal(row.owner),
        number("a slice", each.slice().ns())?,
        number("a period", each.period().ns())?,
        row.terms.exact(),
        row.terms.vcpus(),
        row.binding.to_string(),
        row.paused,
        number("the event number", row.since)?,
        number("a revision", row.revision)?,
        row.user,
        phase,
        row.gang.as_ref().map(|gang| gang.name.as_str()),
        row.gang.as_ref().is_some_and(|gang| gang.is_strict),
        row.terms.by_use(),
        row.terms.until().map(|until| number("an end", until.ns())).transpose()?,
        row.by_uuid.as_ref().map(Binding::name),
        row.terms.enforcement().name(),
    ]);
    done.map_err(failed)?;
    let done = match row.identity {
        None => change
            .prepare_cached("DELETE FROM identity WHERE name = ?1")
            .and_then(|mut gone| gone.execute([name.as_str()])),
        Some(identity) => {
            let (pid, started, inode) = match identity {
                Identity::Process { pid, started, inode } => (Some(pid), Some(started), inode),
                Identity::Group { inode } => (None, None, inode),
            };
            // These numbers are only compared for equality, so all 64 bits are stored as they are.
            let (started, inode) = (started.map(u64::cast_signed), inode.cast_signed());
            let put = change.prepare_cached("REPLACE INTO identity VALUES (?1, ?2, ?3, ?4, ?5)");
            put.and_then(|mut put| {
                put.execute(params![name.as_str(), boot_id, pid, started, inode])
            })
        }
    };
    done.map(drop).map_err(failed)
}

const PUT: &str = "INSERT INTO reservation VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10,
    ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
    ON CONFLICT (name) DO UPDATE SET owner = ?2, slice_ns = ?3, period_ns = ?4, exact = ?5,
    vcpus = ?6, binding = ?7, paused = ?8, since = ?9, revision = ?10, user = ?11,
    phase_ns = ?12, gang = ?13, strict = ?14, by_use = ?15, until = ?16, uuid = ?17, enforce = ?18";

/// Deletes events beyond the bounds of age, number or size, at most `most` events. Events from
/// before `oldest_ns`, in nanoseconds since 1970, are deleted for all principals alike. The module
/// `shares` chooses the other events. Returns the number of deleted events.
pub(super) fn drop_old_events(
    change: &Connection,
    (keep, oldest_ns): (Keep, u64),
    (events, administrators): (u64, &BTreeSet<Principal>),
    most: usize,
) -> rusqlite::Result<u64> {
    let since = i64::try_from(oldest_ns).unwrap_or(i64::MAX);
    // Except for late events, the order of numbers is the order of age. So only the events with the
    // lowest numbers are checked.
    let mut gone = change.prepare_cached(
        "DELETE FROM event WHERE seq IN
         (SELECT seq FROM (SELECT seq, at FROM event ORDER BY seq LIMIT ?1) WHERE at < ?2)",
    )?;
    let old = gone.execute(params![i64::try_from(most).unwrap_or(i64::MAX), since])?;
    let left = events.saturating_sub(u64::try_from(old).unwrap_or(0));
    let beyond = usize::try_from(left.saturating_sub(keep.rows)).unwrap_or(usize::MAX);
    let is_too_large = bytes_used(change)? > keep.bytes;
    let most = most.saturating_sub(old);
    let beyond = if is_too_large { most } else { beyond.min(most) };
    let dropped = old + drop_events(change, beyond, administrators)?;
    Ok(u64::try_from(dropped).unwrap_or(0))
}

/// Returns the number of bytes of the database that are in use.
fn bytes_used(connection: &Connection) -> rusqlite::Result<u64> {
    let pragma = |name| {
        connection.pragma_query_value(None, name, |row| row.get(0).map(|Natural(number)| number))
    };
    let pages = pragma("page_count")?.saturating_sub(pragma("freelist_count")?);
    Ok(pages.saturating_mul(pragma("page_size")?))
}
