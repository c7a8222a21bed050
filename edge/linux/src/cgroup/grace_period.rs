//! Shortens a wait of the kernel during which no cgroup can be frozen or thawed.
//!
//! When the kernel moves a thread to another cgroup, it waits for a grace period of RCU: until each
//! CPU has left the read-side critical section that it was in. This wait takes 8 to 40 ms. During
//! the wait the kernel holds a lock that it also needs to freeze or thaw any cgroup of version 2.
//! So a dispatcher would stop and resume VMs late whenever a thread is moved. With the setting
//! `rcu_expedited` the kernel interrupts the other CPUs instead of waiting for them, and the move
//! takes about a millisecond. Kernels with the setting `rcu_normal`, such as real-time kernels,
//! ignore `rcu_expedited`.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;

/// File of the kernel's setting `rcu_expedited`. It contains `1` if all waits for RCU grace periods
/// are expedited.
const SETTING: &str = "/sys/kernel/rcu_expedited";

/// File that Slackline's processes lock while they change the setting `rcu_expedited`. The file
/// contains `changed` as long as the setting must be restored.
const NOTE: &str = "/run/slackline/rcu_expedited";

const CHANGED: &str = "changed";

/// Restores the setting `rcu_expedited` if a Slackline process changed it and was killed before
/// restoring it.
pub fn restore_grace_periods() {
    drop(ShortGracePeriods::left_over_in(Path::new(SETTING), Path::new(NOTE)));
}

/// Guard: RCU grace periods are short while this value exists. Dropping the value restores the
/// kernel's setting `rcu_expedited`.
#[derive(Debug)]
pub(super) struct ShortGracePeriods(LockedSetting);

/// Open files of the setting `rcu_expedited` and of the note that it was changed. The note is
/// locked. While this value exists, no other thread or process of Slackline changes the setting or
/// the note.
#[derive(Debug)]
struct LockedSetting {
    setting: File,
    note: File,
}

impl ShortGracePeriods {
    /// Changes the setting `rcu_expedited`, so that grace periods are short. Returns `None` in
    /// three cases: the setting cannot be written, the administrator has chosen short grace
    /// periods, or another thread or process of Slackline has changed the setting and not yet
    /// restored it.
    pub(super) fn begin() -> Option<ShortGracePeriods> {
        ShortGracePeriods::begin_in(Path::new(SETTING), Path::new(NOTE))
    }

    fn begin_in(setting: &Path, note: &Path) -> Option<ShortGracePeriods> {
        let mut locked = LockedSetting::lock(setting, note)?;
        if text(&mut locked.setting)? != "0" {
            return locked.is_left_over()?.then(|| ShortGracePeriods(locked));
        }
        // The note is written first, so that the setting is restored if this process is killed
        // between the two writes.
        replace(&mut locked.note, CHANGED)?;
        let mut short = ShortGracePeriods(locked);
        replace(&mut short.0.setting, "1")?;
        Some(short)
    }

    fn left_over_in(setting: &Path, note: &Path) -> Option<ShortGracePeriods> {
        let mut locked = LockedSetting::lock(setting, note)?;
        locked.is_left_over()?.then(|| ShortGracePeriods(locked))
    }
}

impl Drop for ShortGracePeriods {
    fn drop(&mut self) {
        if replace(&mut self.0.setting, "0").is_some() {
            let _ = replace(&mut self.0.note, "");
        }
    }
}

impl LockedSetting {
    /// Opens the files of the setting `rcu_expedited` and of its note, and locks the note. Returns
    /// `None` if a file cannot be opened for writing, or if the note is locked already.
    fn lock(setting: &Path, note: &Path) -> Option<LockedSetting> {
        let setting = OpenOptions::new().read(true).write(true).open(setting).ok()?;
        let note = open_note(note)?;
        rustix::fs::flock(&note, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(LockedSetting { setting, note })
    }

    /// Returns true if the setting was changed by a process that was killed before restoring it.
    /// `None` if the note cannot be read.
    fn is_left_over(&mut self) -> Option<bool> {
        Some(text(&mut self.note)? == CHANGED)
    }
}

impl Drop for LockedSetting {
    fn drop(&mut self) {
        // Closing the file is not enough, because a process that is being started may have a copy
        // of the descriptor.
        let _ = rustix::fs::flock(&self.note, FlockOperation::Unlock);
    }
}

fn open_note(path: &Path) -> Option<File> {
    DirBuilder::new().recursive(true).mode(0o755).create(path.parent()?).ok()?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path).ok()
}

fn text(file: &mut File) -> Option<String> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

/// Replaces the content of a file. Works also for a file of the kernel, which has no length and
/// keeps no old content.
fn replace(file: &mut File, content: &str) -> Option<()> {
    let _ = file.set_len(0);
    file.rewind().ok()?;
    file.write_all(content.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    struct Files(tempfile::TempDir);

    impl Files {
        fn with(setting: &str) -> Files {
            let files = Files(tempfile::tempdir().unwrap());
            fs::write(files.setting(), setting).unwrap();
            files
        }

        fn setting(&self) -> PathBuf {
            self.0.path().join("setting")
        }

        fn note(&self) -> PathBuf {
            self.0.path().join("run/note")
        }

        fn begin(&self) -> Option<ShortGracePeriods> {
            ShortGracePeriods::begin_in(&self.setting(), &self.note())
        }

        fn left_over(&self) -> Option<ShortGracePeriods> {
            ShortGracePeriods::left_over_in(&self.setting(), &self.note())
        }

        fn is(&self) -> String {
            fs::read_to_string(self.setting()).unwrap().trim().to_owned()
        }
    }

    #[test]
    fn rcu_grace_periods_are_short_only_while_thread_is_moved() {
        let files = Files::with("0\n");
        let first = files.begin();
        assert_eq!(files.is(), "1");
        assert!(files.begin().is_none(), "the first one has the lock");
        drop(first);
        assert_eq!(files.is(), "0");
        drop(files.begin());
        assert_eq!(files.is(), "0");
    }

    #[test]
    fn rcu_grace_periods_that_the_administrator_has_shortened_stay_short() {
        for setting in ["1", "2"] {
            let files = Files::with(setting);
            assert!(files.begin().is_none() && files.left_over().is_none());
            assert_eq!(files.is(), setting);
        }
    }

    #[test]
    fn normal_rcu_grace_periods_are_restored_after_process_was_killed() {
        for restore in [Files::begin, Files::left_over] {
            let files = Files::with("0\n");
            let killed = files.begin().unwrap();
            let _ = rustix::fs::flock(&killed.0.note, FlockOperation::Unlock);
            std::mem::forget(killed);
            assert_eq!(files.is(), "1");
            drop(restore(&files));
            assert_eq!(files.is(), "0");
            assert!(files.left_over().is_none(), "the note says that there is nothing to restore");
        }
    }
}
