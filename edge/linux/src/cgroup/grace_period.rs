//! Shortens a wait of the kernel during which no cgroup can be frozen or thawed.
//!
//! When the kernel moves a thread to another cgroup, it waits for a grace period of RCU: until each
//! CPU has left the read-side critical section that it was in. That takes 8 to 40 ms. The kernel
//! holds a lock meanwhile, and needs this lock to freeze or thaw any cgroup of version 2. So a
//! dispatcher would stop and resume VMs late whenever a thread is moved. With `rcu_expedited` the
//! kernel interrupts the other CPUs instead of waiting for them, and the move takes about a
//! millisecond. Kernels with `rcu_normal`, such as real-time kernels, ignore the setting.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;

/// Setting of the kernel: `1` if all waits for grace periods are expedited.
const SETTING: &str = "/sys/kernel/rcu_expedited";

/// File that programs lock while they change the setting. It contains `changed` while the setting
/// must be restored.
const NOTE: &str = "/run/slackline/rcu_expedited";

const CHANGED: &str = "changed";

/// Restores the setting if a Slackline process was killed while it had changed the setting.
pub fn restore_grace_periods() {
    drop(ShortGracePeriods::left_over_in(Path::new(SETTING), Path::new(NOTE)));
}

/// Grace periods are short while this value exists. Dropping it restores the setting.
#[derive(Debug)]
pub(super) struct ShortGracePeriods(LockedSetting);

/// The setting and the note. While this value exists, no other thread or process of Slackline
/// changes them.
#[derive(Debug)]
struct LockedSetting {
    setting: File,
    note: File,
}

impl ShortGracePeriods {
    /// Changes the setting. Returns `None` if it cannot be written, if the administrator has chosen
    /// short grace periods, or while another thread or process of Slackline has changed the
    /// setting.
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
    /// Opens the setting and the note, and locks them. Returns `None` if the setting cannot be
    /// written or is locked already.
    fn lock(setting: &Path, note: &Path) -> Option<LockedSetting> {
        let setting = OpenOptions::new().read(true).write(true).open(setting).ok()?;
        let note = open_note(note)?;
        rustix::fs::flock(&note, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(LockedSetting { setting, note })
    }

    /// Returns true if a process that was killed has changed the setting.
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

/// Replaces the content of a file. A file of the kernel has no length and keeps no old content.
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
    fn grace_periods_are_short_only_while_a_thread_is_moved() {
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
    fn grace_periods_that_the_administrator_has_shortened_stay_short() {
        for setting in ["1", "2"] {
            let files = Files::with(setting);
            assert!(files.begin().is_none() && files.left_over().is_none());
            assert_eq!(files.is(), setting);
        }
    }

    #[test]
    fn short_grace_periods_left_by_a_killed_process_are_restored() {
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
