//! Errors of the ledger.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::ErrorCode;
use rusqlite::ffi;
use thiserror::Error;

/// Longest time for which the daemon waits for another program that has locked the ledger.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Reason why a ledger cannot be opened, written or read.
#[derive(Debug, Error)]
pub enum LedgerError {
    /// A folder or file cannot be created, opened or moved.
    #[error("cannot use {}: {source}", path.display())]
    Files {
        /// Path of the folder or file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// Another process has the ledger open.
    #[error("cannot use the ledger in {}: another process uses it", folder.display())]
    Taken {
        /// Folder of the ledger.
        folder: PathBuf,
    },
    /// The contents of the file are damaged. The daemon has changed and moved nothing.
    #[error("the ledger {} is damaged: {says}", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Description of the damage.
        says: String,
    },
    /// The file is a database that another program created.
    #[error("cannot use {}: it is a database, but not a ledger", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
    },
    /// A later version of Slackline has written the file.
    #[error(
        "cannot use the ledger {}: it has version {version}, and this program reads up to {known}",
        path.display()
    )]
    Newer {
        /// Path of the ledger file.
        path: PathBuf,
        /// Version of the tables in the file.
        version: u32,
        /// Newest version that this program reads.
        known: u32,
        /// Backup from the time before the later version changed the file. `None` if that backup no
        /// longer exists.
        backup: Option<PathBuf>,
    },
    /// Another program, such as `sqlite3`, keeps the file locked.
    #[error(
        "cannot write {}: another program has locked it for {} s",
        path.display(),
        PATIENCE.as_secs()
    )]
    Locked {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file system has no space left.
    #[error("cannot write {}: the disk is full", path.display())]
    Full {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is not writable.
    #[error("cannot write {}: it is read-only", path.display())]
    ReadOnly {
        /// Path of the file.
        path: PathBuf,
    },
    /// The ledger file was removed or replaced by another program while it was open.
    #[error("cannot write {}: it was moved or replaced while open", path.display())]
    TakenAway {
        /// Path of the file.
        path: PathBuf,
    },
    /// A number is too large to be stored.
    #[error("cannot write {what} {number} to the ledger: the maximum is {}", i64::MAX)]
    TooLarge {
        /// Name of the value.
        what: &'static str,
        /// Value that was to be stored.
        number: u64,
    },
    /// Any other failure, mostly of the disk.
    #[error("cannot use {}: {source}", path.display())]
    Failed {
        /// Path of the file.
        path: PathBuf,
        /// Error reported by SQLite.
        source: rusqlite::Error,
    },
    /// The writer thread cannot be started, or has ended.
    #[error("cannot start the thread that writes the ledger: {0}")]
    NoWriter(io::Error),
}

/// Returns true if the error means that a file is in the place where a folder is needed.
fn is_not_a_folder(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory)
}

impl LedgerError {
    /// Returns advice for an administrator. `None` if there is no advice.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            LedgerError::Files { source, .. } if is_not_a_folder(source) => {
                Some("name a folder with `--state`: this is a file".to_owned())
            }
            LedgerError::Files { .. } | LedgerError::ReadOnly { .. } => {
                Some("run as root, and check that the disk is mounted writable".to_owned())
            }
            LedgerError::Taken { .. } => {
                Some("stop that process, or use another folder with `--state`".to_owned())
            }
            LedgerError::Damaged { path, .. } => {
                let folder = path.parent().unwrap_or(Path::new("."));
                let folder = folder.display();
                Some(format!("check the ledger with `slackline doctor --ledger {folder}`"))
            }
            LedgerError::Foreign { .. } => Some("use another folder with `--state`".to_owned()),
            LedgerError::Newer { backup: Some(backup), .. } => Some(format!(
                "run the later version of slackline, or replace the ledger by its last backup {}",
                backup.display()
            )),
            LedgerError::Newer { backup: None, .. } => {
                Some("run the later version of slackline".to_owned())
            }
            LedgerError::Locked { path } => Some(format!(
                "find the program that locks the ledger with `fuser {}`",
                path.display()
            )),
            LedgerError::Full { .. } => {
                Some("free disk space; the daemon then writes again".to_owned())
            }
            LedgerError::TakenAway { .. } => {
                Some("move the ledger back, and restart the daemon".to_owned())
            }
            LedgerError::TooLarge { .. }
            | LedgerError::Failed { .. }
            | LedgerError::NoWriter(_) => None,
        }
    }

    /// Converts an error that SQLite reported for the file `path`.
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
