//! Shortens a wait of the kernel during which no cgroup can be frozen or thawed.
//!
//! When the kernel moves a thread to another cgroup, it waits for a grace period of RCU (until all
//! CPUs have left the read sides that are running). That takes 8 to 40 ms. Meanwhile it holds a
//! lock that freezing and thawing any cgroup of version 2 needs too. So a dispatcher would stop and
//! resume VMs late whenever a thread is moved. With `rcu_expedited` the kernel interrupts the other
//! CPUs instead of waiting for them, and the move takes about a millisecond.

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

/// Grace periods are short while this value exists. Dropping it restores the setting.
#[derive(Debug)]
pub(super) struct ShortGracePeriods {
    setting: File,
    note: File,
}

/// Restores the setting if a Slackline process was killed while it had changed the setting.
pub fn restore_grace_periods() {
    drop(ShortGracePeriods::begin());
}

impl ShortGracePeriods {
    /// Changes the setting. Returns `None` if it cannot be written, if the administrator has chosen
    /// short grace periods, or while another Slackline process has changed the setting.
    pub(super) fn begin() -> Option<ShortGracePeriods> {
        ShortGracePeriods::begin_in(Path::new(SETTING), Path::new(NOTE))
    }

    fn begin_in(setting: &Path, note: &Path) -> Option<ShortGracePeriods> {
        let mut setting = OpenOptions::new().read(true).write(true).open(setting).ok()?;
        let mut note = open_note(note)?;
        rustix::fs::flock(&note, FlockOperation::NonBlockingLockExclusive).ok()?;
        if text(&mut setting)? == "1" && text(&mut note)? != CHANGED {
            return None;
        }
        // The note comes first, so that the setting is restored if this process is killed between
        // the two.
        replace(&mut note, CHANGED)?;
        let mut changed = ShortGracePeriods { setting, note };
        replace(&mut changed.setting, "1")?;
        Some(changed)
    }
}

impl Drop for ShortGracePeriods {
    fn drop(&mut self) {
        if replace(&mut self.setting, "0").is_some() {
            let _ = replace(&mut self.note, "");
        }
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
        let files = Files::with("1\n");
        assert!(files.begin().is_none());
        assert_eq!(files.is(), "1");
    }

    #[test]
    fn short_grace_periods_left_by_a_killed_process_are_restored() {
        let files = Files::with("0\n");
        let killed = files.begin().unwrap();
        let _ = rustix::fs::flock(&killed.note, FlockOperation::Unlock);
        std::mem::forget(killed);
        assert_eq!(files.is(), "1");
        drop(files.begin());
        assert_eq!(files.is(), "0");
        assert!(files.begin().is_some(), "the note is gone");
    }
}
