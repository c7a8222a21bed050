//! Whether the keeper of an owner who has died is still giving back: until it is done, whoever
//! takes the same threads would have them taken away again.
//!
//! A keeper has a lock on a file of its owner's, which the kernel takes from it however it ends.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::entry::Who;
use super::give_back::exists;
use super::journal::owner_of;

const SUFFIX: &str = "keeper";

/// How often is looked whether it is done.
const LOOK: Duration = Duration::from_millis(2);

/// Tells others that a keeper is there, for as long as this is.
#[derive(Debug)]
pub(super) struct AtWork {
    path: PathBuf,
    _locked: File,
}

impl AtWork {
    /// None where that cannot be told: then nobody waits for it.
    pub(super) fn begin(directory: &Path, owner: Who) -> Option<AtWork> {
        let path = directory.join(format!("{}-{}.{SUFFIX}", owner.id, owner.started));
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path).ok()?;
        // An owner has two keepers for the moment in which one replaces the other.
        flock(&file, FlockOperation::NonBlockingLockShared).ok()?;
        Some(AtWork { path, _locked: file })
    }

    /// Nothing is left to be given back.
    pub(super) fn end(self) {
        // What stays is removed by whoever comes next.
        let _ = fs::remove_file(&self.path);
    }
}

/// Waits until all keepers have ended whose owners are dead, but no longer than that. Says whether
/// they have.
#[must_use]
pub fn keepers_have_ended(directory: &Path, most: Duration) -> bool {
    let deadline = Instant::now() + most;
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    for path in files.map(|file| file.path()) {
        let Some(owner) = owner_of(&path, SUFFIX) else { continue };
        // What cannot be found out is taken to be alive.
        if !matches!(exists(owner.id, owner), Ok(false)) {
            continue;
        }
        // One that is gone by now is done.
        let Ok(file) = File::open(&path) else { continue };
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK);
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
    fn a_keeper_is_waited_for_once_its_owner_is_dead_and_no_longer_than_it_lives() {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let id = Tid::new(i32::try_from(child.id()).unwrap()).unwrap();
        let owner = Who { id, started: Stat::of(id, id).unwrap().started() };
        let keepers = [(); 2].map(|()| AtWork::begin(directory.path(), owner).unwrap());
        let have_ended = || keepers_have_ended(directory.path(), Duration::from_millis(20));
        assert!(have_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!have_ended());
        let [first, second] = keepers;
        drop(first);
        assert!(!have_ended());
        // Killed as well, it removes nothing.
        drop(second);
        assert!(have_ended());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
