//! User of a VM's process, who wrote the command line of the process. Slackline asks the monitor of
//! the process with the rights of this user.

use std::path::PathBuf;

use slackline_linux::sys::OwnerRights;

use super::{FindError, Process};

/// Key in a process's auxiliary vector. The value of this key is not zero if the process runs a
/// set-user-id program.
const AT_SECURE: usize = 23;

impl Process {
    /// Returns the QMP socket on the command line of this process, and the rights of its user.
    ///
    /// # Errors
    /// If there is no socket, if the process does not run as `user`, or if a user with fewer rights
    /// may have written the command line.
    pub(super) fn monitor(&self, user: Option<u32>) -> Result<(PathBuf, OwnerRights), FindError> {
        let pid = self.pid;
        let before = self.rights();
        let socket = self.qmp_socket()?.ok_or(FindError::NotFound { pid })?;
        let rights = self.rights()?;
        // The process may have executed a set-user-id program while its command line was read.
        let is_same = before.is_ok_and(|before| before == rights);
        if !is_same || user.is_some_and(|user| user != rights.uid) {
            return Err(FindError::Changed { pid });
        }
        if rights.uid == 0 && self.is_elevated()? {
            return Err(FindError::SeveralUsers { pid });
        }
        Ok((socket, rights))
    }

    fn rights(&self) -> Result<OwnerRights, FindError> {
        let status = self.read("status")?;
        OwnerRights::parse(&status).ok_or(FindError::SeveralUsers { pid: self.pid })
    }

    /// Returns true if the program of this process gets rights from its file, as a set-user-id
    /// program does. Any user can start such a program with any command line, so the command line
    /// cannot be trusted.
    fn is_elevated(&self) -> Result<bool, FindError> {
        let vector = self.read("auxv")?;
        let numbers = vector.chunks_exact(size_of::<usize>());
        let mut numbers = numbers.map(|bytes| bytes.try_into().map_or(0, usize::from_ne_bytes));
        while let (Some(kind), Some(value)) = (numbers.next(), numbers.next()) {
            if kind == AT_SECURE {
                return Ok(value != 0);
            }
        }
        Ok(false)
    }
}
