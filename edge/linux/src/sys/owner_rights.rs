//! Access to files and sockets that a user has named, with the rights of that user.

use std::io;
use std::thread::{Builder, scope};

use rustix::fs::{Gid, Uid};
use rustix::process::geteuid;
use rustix::thread::set_thread_groups;

/// Stack size in bytes of the thread that [`OwnerRights::act`] starts. The thread only opens a file
/// or connects to a socket.
const STACK: usize = 1 << 17;

/// Identity of a process that determines its rights to files and sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRights {
    /// Id of the user.
    pub uid: u32,
    /// Id of the primary group.
    pub gid: u32,
    /// Ids of all supplementary groups.
    pub groups: Vec<u32>,
}

impl OwnerRights {
    /// Parses the text of a process's `status` file.
    ///
    /// The result is `None` if the text is malformed. It is also `None` if the process has several
    /// different user ids or several different group ids. Such a process may have rights that the
    /// user who wrote its command line does not have.
    #[must_use]
    pub fn parse(status: &[u8]) -> Option<OwnerRights> {
        let of = |field: &str| -> Option<Vec<u32>> {
            let text = std::str::from_utf8(status).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix(field))?;
            line.split_ascii_whitespace().map(|id| id.parse().ok()).collect()
        };
        let single = |ids: Vec<u32>| {
            let first = *ids.first()?;
            ids.iter().all(|id| *id == first).then_some(first)
        };
        let (uid, gid) = (single(of("Uid:")?)?, single(of("Gid:")?)?);
        Some(OwnerRights { uid, gid, groups: of("Groups:")? })
    }

    /// Calls `act` with these rights in place of the caller's rights.
    ///
    /// `act` runs on a new thread, and only the file system ids of that thread are changed. If all
    /// ids of the thread were changed, the user could send signals to it.
    ///
    /// # Errors
    /// If this process is not permitted to take these rights, or `act` fails.
    pub fn act<T: Send>(&self, act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        if self.uid == geteuid().as_raw() {
            return act();
        }
        scope(|scope| {
            let body = || {
                self.take()?;
                act()
            };
            let thread = Builder::new().name("slackline-as".into()).stack_size(STACK);
            let thread = thread.spawn_scoped(scope, body)?;
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
        })
    }

    /// Gives these rights to the calling thread until the thread ends.
    fn take(&self) -> io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
        set_thread_groups(&groups)?;
        let is_group = set_file_gid(Gid::from_raw(self.gid));
        let is_user = set_file_uid(Uid::from_raw(self.uid));
        if is_group && is_user { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

/// Sets the user id that the calling thread uses for files. Returns true if the kernel set it.
fn set_file_uid(uid: Uid) -> bool {
    // SAFETY: both calls take a number and change or read an id of this thread only. The second
    // call passes an invalid id, so it changes nothing and returns the current id.
    let is = unsafe {
        libc::setfsuid(uid.as_raw());
        libc::setfsuid(u32::MAX)
    };
    u32::try_from(is) == Ok(uid.as_raw())
}

/// Sets the group id that the calling thread uses for files. Returns true if the kernel set it.
fn set_file_gid(gid: Gid) -> bool {
    // SAFETY: as in `set_file_uid`.
    let is = unsafe {
        libc::setfsgid(gid.as_raw());
        libc::setfsgid(u32::MAX)
    };
    u32::try_from(is) == Ok(gid.as_raw())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn status(uid: &str, gid: &str) -> String {
        format!("Name:\ta\nUid:\t{uid}\nGid:\t{gid}\nGroups:\t7 8 \nNSpid:\t1\n")
    }

    #[test]
    fn process_with_differing_real_and_effective_ids_lacks_owner_rights() {
        let known = OwnerRights { uid: 5, gid: 6, groups: vec![7, 8] };
        let read = |uid, gid| OwnerRights::parse(status(uid, gid).as_bytes());
        assert_eq!(read("5\t5\t5\t5", "6\t6\t6\t6"), Some(known));
        assert_eq!(read("5\t0\t0\t0", "6\t6\t6\t6"), None);
        assert_eq!(read("5\t5\t5\t5", "6\t6\t0\t6"), None);
        assert_eq!(OwnerRights::parse(b""), None);
    }

    #[test]
    fn root_file_cannot_be_opened_with_rights_of_another_user() {
        if !geteuid().is_root() {
            return println!("skipped: needs root");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let nobody = OwnerRights { uid: 65_534, gid: 65_534, groups: Vec::new() };
        let read = || nobody.act(|| fs::read(&path));
        assert_eq!(read().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read().unwrap(), b"x");
        // The calling thread still has its own rights.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"x");
    }
}
