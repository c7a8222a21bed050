//! The QMP socket on the command line of a process. The bytes of a command line cannot be trusted,
//! since any user can choose them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;

use super::qemu_options::qmp_socket_among;
use super::{FILE, FindError, Process};

/// Maximum number of bytes of a command line that are read. A command line of QEMU has about 10,000
/// bytes, plus a few hundred bytes for each device. The limit is needed because a process can make
/// its command line gigabytes long.
pub const LONGEST_LINE: u64 = 1 << 17;

/// Returns the UNIX socket on which the QEMU with process id `pid` listens for QMP, according to
/// its command line. `None` if the command line names no such socket. If QEMU runs in a container,
/// the same path on the host may be a different file.
///
/// # Errors
/// If the process cannot be examined.
pub fn find_qmp_socket(pid: i32) -> Result<Option<PathBuf>, FindError> {
    Process::open(pid)?.qmp_socket()
}

impl Process {
    /// Returns the QMP socket on the command line of this process. `None` if there is no such
    /// socket.
    pub(super) fn qmp_socket(&self) -> Result<Option<PathBuf>, FindError> {
        let line = self.command_line().map_err(|source| self.unreadable("cmdline", source))?;
        let mut words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        let is_cut = line.len() as u64 == LONGEST_LINE;
        if is_cut {
            // The last word may be incomplete.
            words.pop();
        }
        let Some(path) = qmp_socket_among(&words) else {
            return if is_cut { Err(FindError::LongLine { pid: self.pid }) } else { Ok(None) };
        };
        if path.is_absolute() {
            return Ok(Some(path));
        }
        let start = rustix::fs::readlinkat(&self.directory, "cwd", Vec::new())
            .map_err(|errno| self.unreadable("cwd", errno.into()))?;
        Ok(Some(Path::new(OsStr::from_bytes(start.as_bytes())).join(path)))
    }

    fn command_line(&self) -> io::Result<Vec<u8>> {
        let file = rustix::fs::openat(&self.directory, "cmdline", FILE, Mode::empty())?;
        let mut line = Vec::new();
        File::from(file).take(LONGEST_LINE).read_to_end(&mut line)?;
        Ok(line)
    }
}
