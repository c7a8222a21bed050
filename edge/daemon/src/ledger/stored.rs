//! Conversion between types of the service and values in the ledger. Values from the ledger are
//! checked like untrusted input, since an administrator may have edited them.

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use rusqlite::Connection;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use serde::{Deserialize, Serialize};
use slackline_control::Mechanism;
use slackline_service::gang::Gang;
use slackline_service::{
    Binding, BindingKind, EventKind, Identity, Name, NameError, NoPrincipal, Principal, Row, Terms,
    Verb,
};
use slackline_units::{Enforcement, Reservation, Span, WallTime};

use super::error::LedgerError;

/// A value that is stored as the text that users see.
pub(super) struct Text<T>(pub(super) T);

impl<T: FromStr> FromSql for Text<T>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_str()?.parse().map(Text).map_err(|error| FromSqlError::Other(Box::new(error)))
    }
}

/// A stored number that must not be negative.
pub(super) struct Natural(pub(super) u64);

impl FromSql for Natural {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let number = value.as_i64()?;
        u64::try_from(number).map(Natural).map_err(|_| FromSqlError::OutOfRange(number))
    }
}

/// A principal that is stored as text.
pub(super) struct StoredPrincipal(pub(super) Principal);

impl FromSql for StoredPrincipal {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let text = value.as_str()?;
        text.parse()
            .map(StoredPrincipal)
            .map_err(|error: NoPrincipal| FromSqlError::Other(error.into()))
    }
}

impl ToSql for StoredPrincipal {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.0.to_string().into())
    }
}

/// Returns an SQLite error for an invalid stored value.
pub(super) fn wrong(says: impl Into<String>) -> FromSqlError {
    FromSqlError::Other(says.into().into())
}

/// Converts a number to its stored form. Only numbers below 2^63 can be stored. So SQL statements
/// can compare stored numbers.
///
/// # Errors
/// If the number is 2^63 or larger. `what` names the value in the error.
pub(super) fn number(what: &'static str, number: u64) -> Result<i64, LedgerError> {
    i64::try_from(number).map_err(|_| LedgerError::TooLarge { what, number })
}

/// Returns a time in nanoseconds since 1970. `None` if the time is before 1970 or too late for an
/// `i64`.
pub(super) fn since_1970(at: SystemTime) -> Option<i64> {
    i64::try_from(at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_nanos()).ok()
}

/// Converts nanoseconds since 1970 to a time.
pub(super) fn after_1970(ns: i64) -> SystemTime {
    let span = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { SystemTime::UNIX_EPOCH - span } else { SystemTime::UNIX_EPOCH + span }
}

/// Returns the parameters of a reservation with the values that are stored in the ledger.
pub(super) fn terms(
    (slice_ns, period_ns, phase_ns): (u64, u64, Option<u64>),
    (exact, by_use, enforce): (bool, bool, Enforcement),
    vcpus: u16,
) -> Result<Terms, FromSqlError> {
    let each = Reservation::new(Span::from_ns(slice_ns), Span::from_ns(period_ns));
    let each = each.map_err(|error| FromSqlError::Other(error.into()))?;
    let terms = Terms::new(each, exact, vcpus);
    let terms = terms.and_then(|terms| terms.with_phase(phase_ns.map(Span::from_ns)));
    let terms = terms.map(|terms| terms.spread_by_use(by_use));
    let terms = terms.and_then(|terms| terms.enforced_by(enforce));
    terms.map_err(|error| FromSqlError::Other(error.into()))
}

/// Converts a stored UUID of a libvirt domain to a binding. `None` stays `None`.
pub(super) fn by_uuid(uuid: Option<String>) -> Result<Option<Binding>, FromSqlError> {
    let read = |uuid: String| Binding::new(BindingKind::Uuid, &uuid);
    uuid.map(read).transpose().map_err(|error| FromSqlError::Other(error.into()))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// State of a reservation before or after an event, as stored in JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Past {
    name: String,
    owner: String,
    slice_ns: u64,
    period_ns: u64,
    exact: bool,
    /// Phase of the periods. `None` also in rows written before version 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    phase_ns: Option<u64>,
    /// True if the vCPUs of the VM borrow each other's unused budget. False in rows written before
    /// version 6.
    #[serde(default, skip_serializing_if = "is_false")]
    by_use: bool,
    /// End time of the reservation, in nanoseconds since 1970. `None` also in rows written before
    /// version 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    /// Mechanism that enforces the reservation. The dispatcher is not written to the row, so a row
    /// without the field has the dispatcher.
    #[serde(default, skip_serializing_if = "Mechanism::is_dispatcher")]
    enforce: Mechanism,
    vcpus: u16,
    binding: String,
    /// Id of the user who owns the VM. `None` in rows of version 1.
    #[serde(default)]
    user: Option<u32>,
    paused: bool,
    /// Gang of the reservation. `None` also in rows written before version 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gang: Option<PastGang>,
    since: u64,
    revision: u64,
    identity: Option<PastIdentity>,
    /// UUID of the libvirt domain. `None` also in rows written before version 9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PastGang {
    name: String,
    strict: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PastIdentity {
    pid: Option<u32>,
    started: Option<u64>,
    inode: u64,
}

impl Past {
    pub(super) fn of(row: &Row) -> Past {
        let each = row.terms.each();
        let identity = row.identity.map(|identity| match identity {
            Identity::Process { pid, started, inode } => {
                PastIdentity { pid: Some(pid), started: Some(started), inode }
            }
            Identity::Group { inode } => PastIdentity { pid: None, started: None, inode },
        });
        Past {
            name: row.name.to_string(),
            owner: row.owner.to_string(),
            slice_ns: each.slice().ns(),
            period_ns: each.period().ns(),
            exact: row.terms.exact(),
            phase_ns: row.terms.phase().map(Span::ns),
            by_use: row.terms.by_use(),
            until: row.terms.until().map(WallTime::ns),
            enforce: row.terms.enforcement().into(),
            vcpus: row.terms.vcpus(),
            binding: row.binding.to_string(),
            user: Some(row.user),
            paused: row.paused,
            gang: row
                .gang
                .as_ref()
                .map(|gang| PastGang { name: gang.name.to_string(), strict: gang.is_strict }),
            since: row.since,
            revision: row.revision,
            identity,
            uuid: row.by_uuid.as_ref().map(|by_uuid| by_uuid.name().to_owned()),
        }
    }

    pub(super) fn row(&self) -> Result<Row, FromSqlError> {
        let other = |error: Box<dyn std::error::Error + Send + Sync>| FromSqlError::Other(error);
        let owner = self.owner.parse::<Principal>().map_err(|error| other(error.into()))?;
        let identity = self.identity.as_ref().map(|is| match (is.pid, is.started) {
            (Some(pid), Some(started)) => Identity::Process { pid, started, inode: is.inode },
            _ => Identity::Group { inode: is.inode },
        });
        let gang = self.gang.as_ref().map(|gang| {
            let name = gang.name.parse().map_err(|error: NameError| other(error.into()))?;
            Ok::<_, FromSqlError>(Gang { name, is_strict: gang.strict })
        });
        let gang = gang.transpose()?;
        Ok(Row {
            name: self.name.parse::<Name>().map_err(|error| other(error.into()))?,
            owner,
            terms: terms(
                (self.slice_ns, self.period_ns, self.phase_ns),
                (self.exact, self.by_use, self.enforce.into()),
                self.vcpus,
            )?
            .with_end(self.until.map(WallTime::from_ns)),
            binding: self
                .binding
                .parse()
                .map_err(|error: slackline_service::BindingError| other(error.into()))?,
            user: self.user.unwrap_or(owner.user()),
            paused: self.paused,
            gang,
            since: self.since,
            revision: self.revision,
            identity,
            by_uuid: by_uuid(self.uuid.clone())?,
        })
    }
}

impl ToSql for Past {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let text = serde_json::to_string(self);
        text.map(Into::into).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
    }
}

impl FromSql for Past {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let past = serde_json::from_str(value.as_str()?);
        past.map_err(|error| FromSqlError::Other(error.into()))
    }
}

/// Returns the two texts that are stored for an event: its kind as a word, and an optional detail.
pub(super) fn parts(what: &EventKind) -> (&'static str, Option<String>) {
    let detail = match what {
        EventKind::Vcpus { there } => Some(there.to_string()),
        EventKind::Meddled(how) | EventKind::Contested(how) => Some(how.clone()),
        EventKind::Explained(why)
        | EventKind::NotAdopted(why)
        | EventKind::Renamed(why)
        | EventKind::Incident(why)
        | EventKind::LedgerFailing(why)
        | EventKind::ClockStepped(why)
        | EventKind::Canary(why)
        | EventKind::Chosen(why)
        | EventKind::Overloaded(why)
        | EventKind::OverloadEnded(why)
        | EventKind::GangBroken(why)
        | EventKind::Granted(why)
        | EventKind::Revoked(why) => Some(why.clone()),
        EventKind::LedgerWhole { lost } => Some(lost.to_string()),
        EventKind::Asked(_)
        | EventKind::Appeared
        | EventKind::Vanished
        | EventKind::Settled
        | EventKind::Adopted
        | EventKind::Fits
        | EventKind::Expired
        | EventKind::KeeperReplaced => None,
    };
    (what.word(), detail)
}

/// Parses an event from its two stored texts: its kind as a word, and an optional detail.
pub(super) fn happened(word: &str, detail: Option<&str>) -> Result<EventKind, FromSqlError> {
    const VERBS: [Verb; 10] = [
        Verb::Reserve,
        Verb::Change,
        Verb::Pause,
        Verb::Resume,
        Verb::Release,
        Verb::Gang,
        Verb::List,
        Verb::Room,
        Verb::Log,
        Verb::Find,
    ];
    const PLAIN: [EventKind; 7] = [
        EventKind::Appeared,
        EventKind::Vanished,
        EventKind::Settled,
        EventKind::Adopted,
        EventKind::Fits,
        EventKind::Expired,
        EventKind::KeeperReplaced,
    ];
    let unknown = || wrong(format!("`{word}` with {detail:?} is not a known event"));
    let number = || detail.ok_or_else(unknown);
    let with_detail = match word {
        "vcpus" => number()?.parse().ok().map(|there| EventKind::Vcpus { there }),
        "ledger-whole" => number()?.parse().ok().map(|lost| EventKind::LedgerWhole { lost }),
        // Older versions did not store the detail.
        "meddled" => Some(EventKind::Meddled(detail.unwrap_or_default().to_owned())),
        "contested" => Some(EventKind::Contested(detail.unwrap_or_default().to_owned())),
        "change" if detail.is_some() => detail.map(str::to_owned).map(EventKind::Explained),
        "not-adopted" => detail.map(str::to_owned).map(EventKind::NotAdopted),
        "renamed" => detail.map(str::to_owned).map(EventKind::Renamed),
        "incident" => detail.map(str::to_owned).map(EventKind::Incident),
        "gang-broken" => detail.map(str::to_owned).map(EventKind::GangBroken),
        "clock-stepped" => detail.map(str::to_owned).map(EventKind::ClockStepped),
        "canary" => detail.map(str::to_owned).map(EventKind::Canary),
        "chosen" => detail.map(str::to_owned).map(EventKind::Chosen),
        "overloaded" => detail.map(str::to_owned).map(EventKind::Overloaded),
        "overload-ended" => detail.map(str::to_owned).map(EventKind::OverloadEnded),
        "granted" => detail.map(str::to_owned).map(EventKind::Granted),
        "revoked" => detail.map(str::to_owned).map(EventKind::Revoked),
        "ledger-failing" => detail.map(str::to_owned).map(EventKind::LedgerFailing),
        _ => {
            let asked = VERBS.into_iter().find(|verb| verb.word() == word).map(EventKind::Asked);
            asked.or_else(|| PLAIN.into_iter().find(|what| what.word() == word))
        }
    };
    with_detail.ok_or_else(unknown)
}

/// Returns true if a table has a column.
pub(super) fn has_column(
    connection: &Connection,
    table: &str,
    column: &str,
) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM pragma_table_info(?1) WHERE name = ?2";
    connection.query_row(sql, [table, column], |row| row.get(0))
}

/// Returns the number of rows of a table.
pub(super) fn count(connection: &Connection, table: &str) -> rusqlite::Result<u64> {
    let sql = format!("SELECT count(*) FROM {table}");
    connection.query_row(&sql, [], |row| row.get(0).map(|Natural(rows)| rows))
}
