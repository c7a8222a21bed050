//! Detects whether a keeper is still restoring the threads of a dead owner. The owner is the
//! Slackline process that scheduled the threads. Another program must not schedule the same threads
//! before the keeper has ended, because the keeper would undo that program's changes.
//!
//! Each keeper holds a lock on a file named after its owner. The kernel releases the lock when the
//! keeper ends, for whatever reason.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::entry::TaskIdentity;
use super::give_back::exists;
use super::journal::owner_of;

const SUFFIX: &str = "keeper";

/// Interval at which the lock of a keeper is checked until it is free.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Lock that shows other programs that a keeper is running. Dropping the value releases the lock.
#[derive(Debug)]
pub(super) struct KeeperLock {
    path: PathBuf,
    _locked: File,
}

impl KeeperLock {
    /// Takes the lock of a keeper. `None` if the lock's file cannot be made or locked. In that case
    /// no program waits for this keeper.
    pub(super) fn begin(directory: &Path, owner: TaskIdentity) -> Option<KeeperLock> {
        let path = directory.join(format!("{}-{}.{SUFFIX}", owner.id, owner.started));
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).ok()?;
        // The lock is shared, since an owner has two keepers while one replaces the other.
        flock(&file, FlockOperation::NonBlockingLockShared).ok()?;
        Some(KeeperLock { path, _locked: file })
    }

    /// Removes the lock file. The keeper must call this when it has no more threads to restore.
    pub(super) fn end(self) {
        // If the removal fails, the next program that waits for this keeper removes the file.
        let _ = fs::remove_file(&self.path);
    }
}

/// Waits until the keepers of all dead Slackline processes have ended, but at most for the time
/// `most`. A keeper is the child process that restores threads. Returns true if all these keepers
/// have ended.
#[must_use]
pub fn keepers_have_ended(directory: &Path, most: Duration) -> bool {
    let deadline = Instant::now() + most;
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    for path in files.map(|file| file.path()) {
        let Some(owner) = owner_of(&path, SUFFIX) else { continue };
        // An owner whose state cannot be read counts as alive.
        if !matches!(exists(owner.id, owner), Ok(false)) {
            continue;
        }
        // A keeper that removed its file is done.
        let Ok(file) = File::open(&path) else { continue };
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
        let _ = fs::remove_file(&path);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use slackline_linux::sys::Tid;
    use slackline_linux::thread::Stat;

    #[test]
    fn keeper_of_living_scheduler_does_not_count_as_ending() {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let id = Tid::new(i32::try_from(child.id()).unwrap()).unwrap();
        let owner = TaskIdentity { id, started: Stat::of(id, id).unwrap().started() };
        let keepers = [(); 2].map(|()| KeeperLock::begin(directory.path(), owner).unwrap());
        let have_ended = || keepers_have_ended(directory.path(), Duration::from_millis(20));
        assert!(have_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!have_ended());
        let [first, second] = keepers;
        drop(first);
        assert!(!have_ended());
        // A killed keeper does not remove its file. The program that waits for it removes the file.
        drop(second);
        assert!(have_ended());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
