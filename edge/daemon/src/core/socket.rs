//! Listening socket for local clients.

use std::fs::{DirBuilder, Permissions, set_permissions, symlink_metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, XattrFlags, setxattr};
use rustix::process::{geteuid, umask};

use super::systemd;
use crate::people::People;

/// Reason why the socket for local clients cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another daemon listens on the socket.
    #[error("cannot listen on {}: another daemon already listens there", path.display())]
    Taken {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The path exists, but the file is not a socket, or it is a socket of another user.
    #[error("cannot listen on {}: it exists and is not a socket of this user", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
    },
    /// The socket cannot be created.
    #[error("cannot listen on {}: {source}", path.display())]
    Refused {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The descriptor that systemd passed is not a listening Unix socket.
    #[error("cannot use the socket that systemd passed: {source}")]
    Passed {
        /// Error that says how the descriptor differs from a listening Unix socket.
        source: io::Error,
    },
}

impl SocketError {
    /// Returns advice on how to fix the error.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            SocketError::Taken { .. } => "stop that daemon, or use another `--socket`",
            SocketError::Foreign { .. } => "move that file away, or use another `--socket`",
            SocketError::Refused { source, .. } if source.kind() == io::ErrorKind::InvalidInput => {
                "name a path of at most 107 bytes with `--socket`"
            }
            SocketError::Refused { .. } => "run as root, or use another `--socket`",
            SocketError::Passed { .. } => "write one `ListenStream=/PATH` in the socket unit",
        }
    }
}

/// Returns the socket that systemd passed. If systemd passed no socket, creates a socket at `path`.
/// Its owner and members of the groups that give permissions may connect. If the group of
/// administrators could not be given access, also returns a warning as text.
pub(super) fn listen(
    path: &Path,
    people: People,
) -> Result<(UnixListener, Option<String>), SocketError> {
    let passed = systemd::listener().map_err(|source| SocketError::Passed { source })?;
    let listener = match passed {
        Some(passed) => passed,
        None => bind(path, people.operators)?,
    };
    let warning = let_administrators_in(&listener, people).err().map(|error| {
        format!("users who are only in group slackline-admin cannot connect to the socket: {error}")
    });
    Ok((listener, warning))
}

/// Allows the group of administrators to connect to the socket, in addition to the owning group. A
/// file has only one owning group, so the second group needs an entry in the access control list.
fn let_administrators_in(listener: &UnixListener, people: People) -> io::Result<()> {
    match (people.administrators, path_of(listener)) {
        (Some(administrators), Some(path)) => let_group_in(&path, administrators),
        _ => Ok(()),
    }
}

/// Returns the path of a listening socket. `None` if the socket has no path in the file system.
pub(super) fn path_of(listener: &UnixListener) -> Option<PathBuf> {
    let address = listener.local_addr().ok()?;
    address.as_pathname().map(Path::to_path_buf)
}

/// Allows the group `group` to connect to the socket at `path`, in addition to the owning group.
/// Replaces the group that was allowed in this way before.
pub(super) fn let_group_in(path: &Path, group: u32) -> io::Result<()> {
    let list = access_list(group);
    Ok(setxattr(path, "system.posix_acl_access", &list, XattrFlags::empty())?)
}

/// Returns an access control list in the kernel's format. The owner, the owning group and the group
/// `group` may read and write. Other users may do neither.
fn access_list(group: u32) -> Vec<u8> {
    const VERSION: u32 = 2;
    const NO_ID: u32 = u32::MAX;
    let (owner, own_group, named_group, mask, others) = (0x01, 0x04, 0x08, 0x10, 0x20);
    let entries: [(u16, u16, u32); 5] = [
        (owner, 6, NO_ID),
        (own_group, 6, NO_ID),
        (named_group, 6, group),
        (mask, 6, NO_ID),
        (others, 0, NO_ID),
    ];
    let mut list = VERSION.to_le_bytes().to_vec();
    for (tag, may, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(may.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

/// Creates a socket at `path` to which its owner and members of `group` may connect.
fn bind(path: &Path, group: Option<u32>) -> Result<UnixListener, SocketError> {
    let refused = |source| SocketError::Refused { path: path.to_path_buf(), source };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
        made.map_err(refused)?;
    }
    clear(path)?;
    // No other user may connect before the group and the mode are set.
    let before = umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    umask(before);
    let listener = bound.map_err(refused)?;
    chown(path, None, group).map_err(refused)?;
    set_permissions(path, Permissions::from_mode(0o660)).map_err(refused)?;
    Ok(listener)
}

/// Removes the socket file that a killed daemon has left at `path`. Files of other kinds are not
/// removed.
fn clear(path: &Path) -> Result<(), SocketError> {
    let refused = |source| SocketError::Refused { path: path.to_path_buf(), source };
    let there = match symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        there => there.map_err(refused)?,
    };
    if !there.file_type().is_socket() || there.uid() != geteuid().as_raw() {
        return Err(SocketError::Foreign { path: path.to_path_buf() });
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(SocketError::Taken { path: path.to_path_buf() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(refused)
        }
        Err(source) => Err(refused(source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_replaces_abandoned_socket_but_not_socket_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep").join("service.sock");
        let listen = |path: &Path| super::listen(path, People::default()).map(|(socket, _)| socket);
        let first = listen(&path).unwrap();
        assert!(matches!(listen(&path), Err(SocketError::Taken { .. })));
        drop(first);
        let second = listen(&path).unwrap();
        assert_eq!(symlink_metadata(&path).unwrap().mode() & 0o777, 0o660);
        drop(second);
        let file = folder.path().join("a-file");
        std::fs::write(&file, "somebody's").unwrap();
        assert!(matches!(listen(&file), Err(SocketError::Foreign { .. })));
        assert_eq!(std::fs::read(&file).unwrap(), b"somebody's");
        let link = folder.path().join("a-link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(listen(&link), Err(SocketError::Foreign { .. })));
        assert!(path.exists() && link.exists());
    }

    #[test]
    fn administrator_outside_the_operators_group_can_connect_to_daemon_socket() {
        if !geteuid().is_root() {
            return println!("skipped: needs root");
        }
        // Not every file system supports access control lists. The file system of `/run`, where the
        // daemon's sockets are, supports them.
        let folder = tempfile::tempdir_in("/run").or_else(|_| tempfile::tempdir()).unwrap();
        set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join("service.sock");
        let people = People { operators: Some(60_001), administrators: Some(60_002) };
        let (listener, warning) = listen(&path, people).unwrap();
        if let Some(warning) = warning {
            return println!("skipped: {warning}");
        }
        let connects = |group: u32| {
            let path = path.clone();
            let body = move || {
                use rustix::fs::{Gid, Uid};
                use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
                let (uid, gid) = (Uid::from_raw(60_000), Gid::from_raw(group));
                set_thread_groups(&[]).unwrap();
                set_thread_res_gid(gid, gid, gid).unwrap();
                set_thread_res_uid(uid, uid, uid).unwrap();
                UnixStream::connect(&path).is_ok()
            };
            std::thread::spawn(body).join().unwrap()
        };
        assert_eq!([60_001, 60_002, 60_003].map(connects), [true, true, false]);
        // A reload after the group has changed.
        let_group_in(&path_of(&listener).unwrap(), 60_003).unwrap();
        assert_eq!([60_001, 60_002, 60_003].map(connects), [true, false, true]);
    }
}
