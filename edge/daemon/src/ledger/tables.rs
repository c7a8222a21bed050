//! Tables of the ledger, by version. The statements of a released version never change. Each change
//! of the tables makes a new version.

/// Statements of all migrations, in order. The first migration creates the tables of version 1 in
/// an empty file. Each further migration changes them to the next version.
pub(super) const MIGRATIONS: [&str; NEWEST as usize] =
    [FIRST, WHOSE, ACCESS, PHASE, GANG, BY_USE, TENANTS, ENDS, UUIDS, ENFORCE, LIMITS];

/// Version of the tables that this program creates.
pub(super) const NEWEST: u32 = 11;

/// Oldest version whose rows can be copied into the tables of a newer version. The migrations after
/// this version only add columns, and the default of each new column is right for an older row.
pub(super) const OLDEST_COPIED: u32 = 8;

/// Application id that marks a database as a ledger: the bytes `slk` and zero in the file's header.
pub(super) const APPLICATION: u32 = 0x736c_6b00;

/// Tables of version 1. Points in time are in nanoseconds since 1970. Other columns with `_ns` are
/// durations. Principals are stored as users see them, and reservations in events are stored as
/// JSON, so that an administrator can read everything.
const FIRST: &str = "
CREATE TABLE host (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    boot_id TEXT NOT NULL,
    clean INTEGER NOT NULL,
    seq INTEGER NOT NULL
) STRICT;
CREATE TABLE reservation (
    name TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    slice_ns INTEGER NOT NULL,
    period_ns INTEGER NOT NULL,
    exact INTEGER NOT NULL,
    vcpus INTEGER NOT NULL,
    binding TEXT NOT NULL,
    paused INTEGER NOT NULL,
    since INTEGER NOT NULL,
    revision INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE identity (
    name TEXT PRIMARY KEY REFERENCES reservation (name) ON DELETE CASCADE,
    boot_id TEXT NOT NULL,
    pid INTEGER,
    started INTEGER,
    inode INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE event (
    seq INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    principal TEXT NOT NULL,
    verb TEXT NOT NULL,
    detail TEXT,
    name TEXT,
    before TEXT,
    after TEXT,
    late INTEGER NOT NULL
) STRICT;
CREATE INDEX event_by_name ON event (name, seq);
CREATE TABLE answer (
    principal TEXT NOT NULL,
    key TEXT NOT NULL,
    asked TEXT NOT NULL,
    reply TEXT NOT NULL,
    is_new INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (principal, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX answer_by_age ON answer (at);
";

/// Migration that adds the user who owns the VM of a reservation. In rows of older versions, this
/// user is the owner of the reservation.
const WHOSE: &str = "
ALTER TABLE reservation ADD COLUMN user INTEGER NOT NULL DEFAULT 0;
UPDATE reservation SET user = CAST(substr(owner, 5) AS INTEGER) WHERE owner LIKE 'uid %';
";

/// Migration that adds grants of access. Tokens and certificates are stored as SHA-256 in
/// hexadecimal digits. A token itself is never stored: only the answer that creates the token
/// contains it.
const ACCESS: &str = "
CREATE TABLE access (
    principal TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    cpu_ppm INTEGER,
    machines INTEGER,
    users TEXT NOT NULL,
    token TEXT UNIQUE,
    certificate TEXT UNIQUE,
    made INTEGER NOT NULL,
    expires INTEGER
) STRICT, WITHOUT ROWID;
";

/// Migration that adds the phase: the offset of the periods on the wall clock. Rows from earlier
/// versions have no phase.
const PHASE: &str = "
ALTER TABLE reservation ADD COLUMN phase_ns INTEGER;
";

/// Migration that adds the gang of a reservation, and a flag for a strict gang. A gang is a set of
/// VMs on several hosts that start together. If a member of a strict gang is lost, all its members
/// end.
const GANG: &str = "
ALTER TABLE reservation ADD COLUMN gang TEXT;
ALTER TABLE reservation ADD COLUMN strict INTEGER NOT NULL DEFAULT 0;
";

/// Migration that adds a flag: vCPUs of a VM borrow each other's unused budget. In rows from
/// earlier versions, the flag is off.
const BY_USE: &str = "
ALTER TABLE reservation ADD COLUMN by_use INTEGER NOT NULL DEFAULT 0;
";

/// Migration that changes only the version, and no table. In a new ledger of this version, members
/// of the group `slackline` without a grant are tenants. In a ledger of an earlier version they are
/// operators.
const TENANTS: &str = "";

/// Migration that adds the end time of a reservation. Rows from earlier versions have no end time.
///
/// The migration also adds a flag. If it is set, members of the group `slackline` without a grant
/// are tenants. The flag is set in new ledgers and in ledgers of version 7. In other ledgers, only
/// `slackline access migrate` sets it, because tenants have fewer rights than operators.
const ENDS: &str = "
ALTER TABLE reservation ADD COLUMN until INTEGER;
CREATE TABLE rights (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    tenants INTEGER NOT NULL
) STRICT;
INSERT INTO rights SELECT 1, user_version IN (0, 7) FROM pragma_user_version;
";

/// Migration that adds the UUID of the libvirt domain that was last scheduled for a reservation.
/// Rows from earlier versions get the UUID when the daemon finds their VM.
const UUIDS: &str = "
ALTER TABLE reservation ADD COLUMN uuid TEXT;
";

/// Migration that adds the mechanism that enforces a reservation. In rows from earlier versions,
/// the mechanism is the dispatcher.
const ENFORCE: &str = "
ALTER TABLE reservation ADD COLUMN enforce TEXT NOT NULL DEFAULT 'dispatcher';
";

/// Statement that creates the table of CPU time that reservations received. The table can be
/// created in ledgers of any version, since older programs ignore it. `start` is in hours since
/// 1970, `length` in hours. `owner` is the principal that made the reservation.
pub(super) const HISTORY: &str = "
CREATE TABLE IF NOT EXISTS history (
    start INTEGER NOT NULL,
    name TEXT NOT NULL,
    length INTEGER NOT NULL,
    until INTEGER NOT NULL,
    continues INTEGER NOT NULL,
    existed_ns INTEGER NOT NULL,
    known_ns INTEGER NOT NULL,
    contested_ns INTEGER NOT NULL,
    reserved_ns INTEGER NOT NULL,
    due_ns INTEGER NOT NULL,
    delivered_ns INTEGER NOT NULL,
    late_ns INTEGER NOT NULL,
    deadlines INTEGER NOT NULL,
    missed INTEGER NOT NULL,
    owner TEXT NOT NULL DEFAULT 'service',
    PRIMARY KEY (start, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS history_by_name ON history (name, start);
";

/// Statements that add the column `owner` to the table `history` of an older program. If the
/// reservation of a row has ended, its owner is unknown. Such a row gets the owner `service`.
pub(super) const HISTORY_OWNER: &str = "
ALTER TABLE history ADD COLUMN owner TEXT NOT NULL DEFAULT 'service';
UPDATE history SET owner = coalesce(
    (SELECT owner FROM reservation WHERE reservation.name = history.name), 'service');
";

/// Statement that creates the table of plans. A plan is the last list or change of reservations
/// that a principal has applied, as JSON. The table can be created in ledgers of any version, since
/// older programs ignore it.
pub(super) const PLANS: &str = "
CREATE TABLE IF NOT EXISTS plan (
    principal TEXT PRIMARY KEY,
    since INTEGER NOT NULL,
    plan TEXT NOT NULL
) STRICT, WITHOUT ROWID;
";

/// Statement that creates the table of raises: reservations that a principal increased for another
/// owner, with their terms before the increase. Ledgers of versions before 11 can have the table in
/// this form.
macro_rules! raises {
    () => {
        "
CREATE TABLE IF NOT EXISTS raise (
    name TEXT NOT NULL,
    principal TEXT NOT NULL,
    since INTEGER NOT NULL,
    slice_ns INTEGER,
    period_ns INTEGER,
    vcpus INTEGER,
    PRIMARY KEY (name, principal)
) STRICT, WITHOUT ROWID;
"
    };
}

/// Statement that creates the table of raises in ledgers of versions before 11.
pub(super) const RAISES: &str = raises!();

/// Migration that adds two columns to the table of raises: the end time and the hard limit before a
/// raise. Earlier versions stored a later end time in the same form as a move to another VM. So
/// such a raise counts like a move to another VM.
///
/// An older program cannot add rows to the tables `raise` and `history` of this version, because it
/// knows fewer columns. The function `hours::open` adds the column of the table `history`.
const LIMITS: &str = concat!(
    raises!(),
    "
ALTER TABLE raise ADD COLUMN until INTEGER;
ALTER TABLE raise ADD COLUMN exact INTEGER;
"
);

/// Tables that are needed to restore the reservations. The daemon checks these tables fully at each
/// start, since they are small. The table of answers is not among them: the daemon reads only its
/// newest rows.
pub(super) const NEEDED: [&str; 5] = ["host", "reservation", "identity", "access", "rights"];

/// All tables, each with the version that introduced it. The version is 0 if a ledger of any
/// version may have the table.
const SINCE: [(&str, u32); 10] = [
    ("host", 1),
    ("reservation", 1),
    ("identity", 1),
    ("event", 1),
    ("answer", 1),
    ("access", 3),
    ("rights", 8),
    ("history", 0),
    ("plan", 0),
    ("raise", 0),
];

/// Returns the names of all tables that a ledger of this version has.
pub(super) fn all(version: u32) -> impl Iterator<Item = &'static str> {
    SINCE.into_iter().filter(move |(_, since)| *since <= version).map(|(name, _)| name)
}
