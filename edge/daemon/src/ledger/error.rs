//! What can be wrong with a ledger.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::ErrorCode;
use rusqlite::ffi;
use thiserror::Error;

/// How long is waited for another program that has the ledger locked.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Why a ledger cannot be opened, written or read.
#[derive(Debug, Error)]
pub enum LedgerError {
    /// A folder or file cannot be made, opened or moved.
    #[error("cannot use {}: {source}", path.display())]
    Files {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another process has this ledger.
    #[error("cannot use the ledger in {}: another process uses it", folder.display())]
    Taken {
        /// The folder of the ledger.
        folder: PathBuf,
    },
    /// What is in the file is not what was written. Nothing has been moved or changed.
    #[error("the ledger {} is damaged: {says}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        says: String,
    },
    /// The file is a database of something else.
    #[error("cannot use {}: it is a database, but not a ledger", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A later version has written it.
    #[error(
        "cannot use the ledger {}: it has version {version}, and this program reads up to {known}",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
        /// The newest this program knows.
        known: u32,
        /// How it was when a later version changed it, if that is still there.
        backup: Option<PathBuf>,
    },
    /// Another program, such as `sqlite3`, has kept it locked.
    #[error(
        "cannot write {}: another program has locked it for {} s",
        path.display(),
        PATIENCE.as_secs()
    )]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// There is no space left for it.
    #[error("cannot write {}: the disk is full", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be written.
    #[error("cannot write {}: it is read-only", path.display())]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// Somebody has taken the file away while it was open.
    #[error("cannot write {}: it was moved or replaced while open", path.display())]
    TakenAway {
        /// The file.
        path: PathBuf,
    },
    /// A number is too large to be kept.
    #[error("cannot write {what} {number} to the ledger: the largest is {}", i64::MAX)]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// The number.
        number: u64,
    },
    /// Anything else: a disk that does not do what it is told, mostly.
    #[error("cannot use {}: {source}", path.display())]
    Failed {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// The thread that writes cannot be started, or is not there any more.
    #[error("cannot start the thread that writes the ledger: {0}")]
    NoWriter(io::Error),
}

impl LedgerError {
    /// What a person may do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            LedgerError::Files { .. } | LedgerError::ReadOnly { .. } => {
                Some("run as root, and check that the disk is mounted writable".to_owned())
            }
            LedgerError::Taken { .. } => {
                Some("stop that process, or use another folder with `--state`".to_owned())
            }
            LedgerError::Damaged { path, .. } => {
                let folder = path.parent().unwrap_or(Path::new("."));
                let folder = folder.display();
                Some(format!("check it with `slackline doctor --ledger {folder}`"))
            }
            LedgerError::Foreign { .. } => Some("use another folder with `--state`".to_owned()),
            LedgerError::Newer { backup: Some(backup), .. } => Some(format!(
                "run the later version, or replace the ledger by its last backup {}",
                backup.display()
            )),
            LedgerError::Newer { backup: None, .. } => Some("run the later version".to_owned()),
            LedgerError::Locked { path } => {
                Some(format!("find that program with `fuser {}`", path.display()))
            }
            LedgerError::Full { .. } => {
                Some("free disk space; the daemon then writes by itself".to_owned())
            }
            LedgerError::TakenAway { .. } => {
                Some("move it back, and restart the daemon".to_owned())
            }
            LedgerError::TooLarge { .. }
            | LedgerError::Failed { .. }
            | LedgerError::NoWriter(_) => None,
        }
    }

    /// What SQLite's error means for a file.
    pub(super) fn of(path: &Path, source: rusqlite::Error) -> LedgerError {
        let path = path.to_path_buf();
        let Some(error) = source.sqlite_error() else {
            return LedgerError::Failed { path, source };
        };
        match (error.code, error.extended_code) {
            (ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase, _) => {
                LedgerError::Damaged { path, says: source.to_string() }
            }
            (ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked, _) => {
                LedgerError::Locked { path }
            }
            (ErrorCode::DiskFull, _) | (_, ffi::SQLITE_IOERR_SHMSIZE) => LedgerError::Full { path },
            (_, ffi::SQLITE_READONLY_DBMOVED) => LedgerError::TakenAway { path },
            (ErrorCode::ReadOnly, _) => LedgerError::ReadOnly { path },
            _ => LedgerError::Failed { path, source },
        }
    }

    pub(super) fn files(path: &Path, source: io::Error) -> LedgerError {
        let path = path.to_path_buf();
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => LedgerError::Full { path },
            Some(libc::EROFS) => LedgerError::ReadOnly { path },
            _ => LedgerError::Files { path, source },
        }
    }
}
