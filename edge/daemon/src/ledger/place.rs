//! Files of a ledger, and the lock on their folder.
//!
//! While SQLite has the ledger open, no other code in this process may open the ledger file.
//! Closing any descriptor of the file would release SQLite's locks. The folder, the name and the
//! inode of the file may be inspected.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::error::LedgerError;

/// Folder of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LedgerFolder {
    folder: PathBuf,
}

/// Lock on a ledger's folder. Dropping the value releases the lock.
#[derive(Debug)]
pub(super) struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing is not enough: a child between fork and exec has a copy of the descriptor.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// A backup of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Path of the backup.
    pub path: PathBuf,
    /// Version of the ledger for a backup that was made before a migration. `None` for the daily
    /// backup.
    pub version: Option<u32>,
    /// Time at which the backup was made.
    pub made: SystemTime,
}

impl LedgerFolder {
    pub(super) fn new(folder: &Path) -> LedgerFolder {
        LedgerFolder { folder: folder.to_path_buf() }
    }

    /// Returns the path of the ledger.
    pub(super) fn ledger(&self) -> PathBuf {
        self.folder.join("ledger.db")
    }

    /// Returns the path of SQLite's write-ahead log.
    pub(super) fn log(&self) -> PathBuf {
        self.folder.join("ledger.db-wal")
    }

    /// Returns the path of SQLite's shared memory file.
    fn shared(&self) -> PathBuf {
        self.folder.join("ledger.db-shm")
    }

    /// Returns the path of a new, complete ledger that will replace the current ledger.
    fn next(&self) -> PathBuf {
        self.folder.join("ledger.db.next")
    }

    /// Returns the path of an incomplete copy of the ledger. The copy gets another name when it is
    /// complete.
    pub(super) fn part(&self) -> PathBuf {
        self.folder.join("ledger.part.db")
    }

    /// Returns the path of the incomplete daily backup. It differs from
    /// [`part`](LedgerFolder::part), since another copy may be made at the same time.
    pub(super) fn daily_part(&self) -> PathBuf {
        self.folder.join("ledger.backup.part.db")
    }

    /// Returns the path of the daily backup.
    pub(super) fn daily(&self) -> PathBuf {
        self.folder.join("ledger.backup.db")
    }

    /// Returns the path of the backup made before the migration from version `version`.
    pub(super) fn of_version(&self, version: u32) -> PathBuf {
        self.folder.join(format!("ledger.version-{version}.db"))
    }

    /// Creates the folder if needed, and locks it for this process.
    pub(super) fn take(&self) -> Result<FolderLock, LedgerError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        made.map_err(|source| LedgerError::files(&self.folder, source))?;
        self.take_existing()
    }

    /// Locks an existing folder for this process.
    pub(super) fn take_existing(&self) -> Result<FolderLock, LedgerError> {
        let path = self.folder.join("ledger.lock");
        let failed = |source| LedgerError::files(&path, source);
        let file = private().create(true).truncate(false).open(&path).map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(FolderLock(file)),
            Err(Errno::AGAIN) => Err(LedgerError::Taken { folder: self.folder.clone() }),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Creates an empty ledger file that only its owner can read, unless the file exists.
    pub(super) fn make(&self) -> Result<(), LedgerError> {
        let (ledger, next) = (self.ledger(), self.next());
        let failed = |source| LedgerError::files(&ledger, source);
        if !is_there(&ledger).map_err(failed)? && is_there(&next).map_err(failed)? {
            // A process died while it replaced the ledger.
            self.put(&next)?;
        }
        match private().create_new(true).open(&ledger) {
            Ok(_) => self.sync(),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Replaces the ledger by a complete ledger at the path `by`. No process may have the old
    /// ledger open.
    pub(super) fn replace(&self, by: &Path) -> Result<(), LedgerError> {
        let next = self.next();
        rename(by, &next)?;
        self.sync()?;
        self.put(&next)
    }

    fn put(&self, next: &Path) -> Result<(), LedgerError> {
        // A log of the old ledger would otherwise be applied to the new one.
        for path in [self.log(), self.shared()] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(LedgerError::files(&path, error));
                }
                _ => {}
            }
        }
        self.sync()?;
        rename(next, &self.ledger())?;
        self.sync()
    }

    /// Writes the folder of the ledger to the disk, so that changes to it survive a loss of power.
    pub(super) fn sync(&self) -> Result<(), LedgerError> {
        let synced = File::open(&self.folder).and_then(|folder| folder.sync_all());
        synced.map_err(|source| LedgerError::files(&self.folder, source))
    }

    /// Returns all backups, newest first.
    pub(super) fn backups(&self) -> Vec<Backup> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let version = name.strip_prefix("ledger.version-");
            let version = version.and_then(|rest| rest.strip_suffix(".db")?.parse().ok());
            if version.is_none() && path != self.daily() {
                continue;
            }
            let made = entry.metadata().and_then(|about| about.modified());
            found.extend(made.map(|made| Backup { path, version, made }));
        }
        found.sort_by(|a, b| (b.made, &b.path).cmp(&(a.made, &a.path)));
        found
    }

    /// Copies the files of the ledger into a new folder beside the ledger. Returns the path of the
    /// new folder.
    pub(super) fn set_aside(&self) -> Result<PathBuf, LedgerError> {
        let mut number = 1_u32;
        let folder = loop {
            let folder = self.folder.join(format!("damaged-{number}"));
            match DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => break folder,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(source) => return Err(LedgerError::files(&folder, source)),
            }
        };
        for path in [self.ledger(), self.log()] {
            let to = folder.join(path.file_name().unwrap_or_default());
            let copied = fs::copy(&path, &to).and_then(|_| File::open(&to)?.sync_all());
            match copied {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                copied => copied.map_err(|source| LedgerError::files(&to, source))?,
            }
        }
        LedgerFolder::new(&folder).sync()?;
        self.sync()?;
        Ok(folder)
    }
}

/// Returns device and inode of a file. If the file is deleted, a later file may get the same device
/// and inode.
pub(super) fn which(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|about| (about.dev(), about.ino()))
}

/// Returns options that open a file without following links. If the file is created, only its owner
/// may read it.
pub(super) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options
}

fn is_there(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<(), LedgerError> {
    fs::rename(from, to).map_err(|source| LedgerError::files(to, source))
}
