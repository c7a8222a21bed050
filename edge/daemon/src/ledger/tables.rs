//! The tables, by version. What a version has made stays as it is: a change is another entry.

/// What makes each version from the one before it; the first from nothing.
pub(super) const MIGRATIONS: [&str; NEWEST as usize] =
    [FIRST, WHOSE, ACCESS, PHASE, GANG, BY_USE, TENANTS];

/// The version that this program makes.
pub(super) const NEWEST: u32 = 7;

/// The version to which a ledger of an older program is brought. It becomes [`NEWEST`] by
/// `slackline access migrate` only: that takes rights from people.
pub(super) const BEFORE_TENANTS: u32 = 6;

/// Says that a database is a ledger: `slk` and a zero, as SQLite keeps it in the file.
pub(super) const APPLICATION: u32 = 0x736c_6b00;

/// Times are nanoseconds since 1970. What is `_ns` otherwise is nanoseconds. Principals are as
/// people see them, rows that were are JSON: an administrator can read all of it.
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

/// Whose machine it is, or is to be: before, nobody asked. Whose the reservation is comes nearest.
const WHOSE: &str = "
ALTER TABLE reservation ADD COLUMN user INTEGER NOT NULL DEFAULT 0;
UPDATE reservation SET user = CAST(substr(owner, 5) AS INTEGER) WHERE owner LIKE 'uid %';
";

/// Who may do what besides what his groups let him. Tokens and certificates are SHA-256, in
/// hexadecimal digits: a token can be had from nowhere but the answer that made it.
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

/// Where periods begin on the wall clock: before, nobody could say.
const PHASE: &str = "
ALTER TABLE reservation ADD COLUMN phase_ns INTEGER;
";

/// The gang that a reservation is of, and whether it ends with any other member.
const GANG: &str = "
ALTER TABLE reservation ADD COLUMN gang TEXT;
ALTER TABLE reservation ADD COLUMN strict INTEGER NOT NULL DEFAULT 0;
";

/// Whether what vCPUs leave may be had by others of their machine: before, nobody could say.
const BY_USE: &str = "
ALTER TABLE reservation ADD COLUMN by_use INTEGER NOT NULL DEFAULT 0;
";

/// Members of the group `slackline` without a grant are tenants: before, they were operators. No
/// table is another.
const TENANTS: &str = "";

/// The tables without which no reservation can be held again. Each start looks through them: they
/// are small. Of answers only the newest are read.
pub(super) const NEEDED: [&str; 4] = ["host", "reservation", "identity", "access"];

/// All tables, each with the first version that has it.
const SINCE: [(&str, u32); 6] =
    [("host", 1), ("reservation", 1), ("identity", 1), ("event", 1), ("answer", 1), ("access", 3)];

/// All tables of a version.
pub(super) fn all(version: u32) -> impl Iterator<Item = &'static str> {
    SINCE.into_iter().filter(move |(_, since)| *since <= version).map(|(name, _)| name)
}
