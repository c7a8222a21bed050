//! Learning that a machine has ended, without asking again and again.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fstat, fstatfs};
use rustix::io::{Errno, retry_on_intr};
use slackline_linux::sys::{Tid, pidfd_of_process};

/// A descriptor by which a machine's end is heard of.
#[derive(Debug)]
pub struct Ending(Of);

#[derive(Debug)]
enum Of {
    /// A pidfd.
    Process(OwnedFd),
    /// The `cgroup.events` of a group.
    Group(File),
}

/// What the file system of process descriptors calls itself, from Linux 6.9 on.
const PIDFS: u64 = 0x5049_4446;

impl Ending {
    /// Of a process, and the inode of its descriptor: no other process has the same as long as the
    /// host is up. None before Linux 6.9.
    ///
    /// # Errors
    /// `ESRCH` when there is no such process, `EINVAL` when this is a thread of one, `ENOSYS`
    /// before Linux 5.3.
    pub(super) fn of_process(pid: Tid) -> io::Result<(Ending, Option<u64>)> {
        let fd = pidfd_of_process(pid)?;
        let inode = match u64::try_from(fstatfs(&fd)?.f_type) {
            Ok(PIDFS) => Some(fstat(&fd)?.st_ino),
            _ => None,
        };
        Ok((Ending(Of::Process(fd)), inode))
    }

    /// Of all that runs in a group, by its folder, and the inode of that: no other group of the
    /// hierarchy has the same as long as the host is up.
    ///
    /// # Errors
    /// When there is no such group, or it is the root of all.
    pub(super) fn of_group(group: &Path) -> io::Result<(Ending, u64)> {
        const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::DIRECTORY);
        let folder = File::from(rustix::fs::open(group, FOLDER, Mode::empty())?);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let events = rustix::fs::openat(&folder, "cgroup.events", flags, Mode::empty())?;
        let ending = Ending(Of::Group(File::from(events)));
        // Only from the first look on does it poll.
        ending.has_ended()?;
        Ok((ending, folder.metadata()?.ino()))
    }

    /// What to poll the descriptor for. It comes for a group's other news too: then ask again.
    #[must_use]
    pub const fn events(&self) -> PollFlags {
        match self.0 {
            Of::Process(_) => PollFlags::IN,
            Of::Group(_) => PollFlags::PRI,
        }
    }

    /// Whether the machine has ended: the process has exited, or nobody is left in the group.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn has_ended(&self) -> io::Result<bool> {
        match &self.0 {
            Of::Process(fd) => {
                let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
                let mut fds = [PollFd::new(fd, PollFlags::IN)];
                retry_on_intr(|| poll(&mut fds, Some(&at_once)))?;
                Ok(!fds[0].revents().is_empty())
            }
            Of::Group(events) => {
                // Two lines of a word and a digit each, and whatever a later kernel adds.
                let mut text = [0; 512];
                match events.read_at(&mut text, 0) {
                    Ok(length) => Ok(!is_populated(&text[..length])),
                    // The group was removed.
                    Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
                        Ok(true)
                    }
                    Err(error) => Err(error),
                }
            }
        }
    }
}

impl AsFd for Ending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Of::Process(fd) => fd.as_fd(),
            Of::Group(events) => events.as_fd(),
        }
    }
}

/// Whether anybody is in a group, by the text of its `cgroup.events`.
pub(super) fn is_populated(text: &[u8]) -> bool {
    text.split(|&byte| byte == b'\n').any(|line| line == b"populated 1")
}
