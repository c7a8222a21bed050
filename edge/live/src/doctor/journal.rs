//! Probe of the file system in which the journal of changed threads is kept.

use std::path::Path;

use rustix::fs::statfs;
use slackline_fence::KeeperCommand;

use super::probe::{Host, ProbeError, Verdict};

/// Types of file systems in memory: tmpfs and ramfs, as `linux/magic.h` numbers them.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// Finds out whether the journal's file system is in memory, such as the tmpfs that most hosts
/// mount at `/run`.
pub(super) fn file_system(_: &Host) -> Result<Verdict, ProbeError> {
    let folder = Path::new(KeeperCommand::STATE_DIRECTORY);
    // The folder is missing until the first thread is scheduled.
    let is_in_memory = folder.ancestors().find_map(|place| statfs(place).ok()).map(|found| {
        #[allow(clippy::useless_conversion, reason = "the type of the number differs by platform")]
        IN_MEMORY.contains(&i64::from(found.f_type))
    });
    Ok(match is_in_memory {
        Some(true) => Verdict::good(format!("{} is in memory", folder.display())),
        Some(false) => {
            let found = format!("{} is on a disk, and a busy disk can delay it", folder.display());
            Verdict::limited(found).hint("mount a tmpfs at /run, or at /run/slackline")
        }
        None => Verdict::limited(format!("{} cannot be examined", folder.display())),
    })
}
