//! Notification of the end of a VM or another machine, without polling.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fstat, fstatfs};
use rustix::io::{Errno, retry_on_intr};
use slackline_linux::sys::{Tid, pidfd_of_process};

/// A descriptor that becomes ready when a machine (a process or cgroup) ends.
#[derive(Debug)]
pub struct Ending(EndDescriptor);

#[derive(Debug)]
enum EndDescriptor {
    /// A pidfd of the process.
    Process(OwnedFd),
    /// The `cgroup.events` file of the cgroup.
    Group(File),
}

/// Magic number of the file system that contains pidfds since Linux 6.9.
const PIDFS: u64 = 0x5049_4446;

impl Ending {
    /// Opens a descriptor of a process. Also returns the descriptor's inode, which identifies the
    /// process until the host is rebooted. The inode is `None` before Linux 6.9.
    ///
    /// # Errors
    /// `ESRCH` if there is no such process, `EINVAL` if the id is that of a thread, `ENOSYS` before
    /// Linux 5.3.
    pub(super) fn of_process(pid: Tid) -> io::Result<(Ending, Option<u64>)> {
        let fd = pidfd_of_process(pid)?;
        let inode = match u64::try_from(fstatfs(&fd)?.f_type) {
            Ok(PIDFS) => Some(fstat(&fd)?.st_ino),
            _ => None,
        };
        Ok((Ending(EndDescriptor::Process(fd)), inode))
    }

    /// Opens a descriptor that becomes ready when all processes in a cgroup have ended. `group` is
    /// the folder of the cgroup. Also returns the folder's inode, which identifies the cgroup in
    /// its hierarchy until the host is rebooted.
    ///
    /// # Errors
    /// If the cgroup does not exist, or it is the root cgroup.
    pub(super) fn of_group(group: &Path) -> io::Result<(Ending, u64)> {
        const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::DIRECTORY);
        let folder = File::from(rustix::fs::open(group, FOLDER, Mode::empty())?);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let events = rustix::fs::openat(&folder, "cgroup.events", flags, Mode::empty())?;
        let ending = Ending(EndDescriptor::Group(File::from(events)));
        // The kernel reports changes only after the file has been read once.
        ending.has_ended()?;
        Ok((ending, folder.metadata()?.ino()))
    }

    /// Returns the poll events for which a caller must wait on the descriptor. The descriptor of a
    /// cgroup becomes ready also after other changes. So the caller must call [`Ending::has_ended`]
    /// each time.
    #[must_use]
    pub const fn events(&self) -> PollFlags {
        match self.0 {
            EndDescriptor::Process(_) => PollFlags::IN,
            EndDescriptor::Group(_) => PollFlags::PRI,
        }
    }

    /// Returns true if the process has exited, or the cgroup has no processes.
    ///
    /// # Errors
    /// If the state cannot be read from the kernel.
    pub fn has_ended(&self) -> io::Result<bool> {
        match &self.0 {
            EndDescriptor::Process(fd) => {
                let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
                let mut fds = [PollFd::new(fd, PollFlags::IN)];
                retry_on_intr(|| poll(&mut fds, Some(&at_once)))?;
                Ok(!fds[0].revents().is_empty())
            }
            EndDescriptor::Group(events) => {
                // The file has two lines of a word and a digit. Later kernels may add lines.
                let mut text = [0; 512];
                match events.read_at(&mut text, 0) {
                    Ok(length) => Ok(!is_populated(&text[..length])),
                    // The group has been removed.
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
            EndDescriptor::Process(fd) => fd.as_fd(),
            EndDescriptor::Group(events) => events.as_fd(),
        }
    }
}

/// Returns true if a cgroup has processes, according to the text of its `cgroup.events` file.
pub(super) fn is_populated(text: &[u8]) -> bool {
    text.split(|&byte| byte == b'\n').any(|line| line == b"populated 1")
}
