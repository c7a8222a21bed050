//! Where people connect.

use std::fs::{DirBuilder, Permissions, set_permissions, symlink_metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::process::{geteuid, umask};

use super::systemd;

/// Why nobody can connect.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody listens there.
    #[error("cannot listen on {}: another daemon does already", path.display())]
    Taken {
        /// Where.
        path: PathBuf,
    },
    /// Something is there that is none of ours.
    #[error("cannot listen on {}: it exists and is not a socket of this user", path.display())]
    Foreign {
        /// Where.
        path: PathBuf,
    },
    /// It cannot be made.
    #[error("cannot listen on {}: {source}", path.display())]
    Refused {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What systemd passed is no socket.
    #[error("cannot use the socket that systemd passed: {source}")]
    Passed {
        /// Why not.
        source: io::Error,
    },
}

impl SocketError {
    /// What to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            SocketError::Taken { .. } => "stop that daemon, or use another `--socket`",
            SocketError::Foreign { .. } => "move it away, or use another `--socket`",
            SocketError::Refused { .. } => "run as root, or use another `--socket`",
            SocketError::Passed { .. } => "write one `ListenStream=/PATH` in the socket unit",
        }
    }
}

/// The socket that was passed to us, or a new one at `path`: for its owner and for `group`.
pub(super) fn listen(path: &Path, group: Option<u32>) -> Result<UnixListener, SocketError> {
    if let Some(passed) = systemd::listener().map_err(|source| SocketError::Passed { source })? {
        return Ok(passed);
    }
    let refused = |source| SocketError::Refused { path: path.to_path_buf(), source };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
        made.map_err(refused)?;
    }
    clear(path)?;
    // Nobody else is to connect before it is known who may.
    let before = umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    umask(before);
    let listener = bound.map_err(refused)?;
    chown(path, None, group).map_err(refused)?;
    set_permissions(path, Permissions::from_mode(0o660)).map_err(refused)?;
    Ok(listener)
}

/// Takes away what a daemon that was killed left there, and nothing else.
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
    fn a_socket_that_nobody_listens_on_is_taken_over_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep").join("service.sock");
        let first = listen(&path, None).unwrap();
        assert!(matches!(listen(&path, None), Err(SocketError::Taken { .. })));
        drop(first);
        let second = listen(&path, None).unwrap();
        assert_eq!(symlink_metadata(&path).unwrap().mode() & 0o777, 0o660);
        drop(second);
        let file = folder.path().join("a-file");
        std::fs::write(&file, "somebody's").unwrap();
        assert!(matches!(listen(&file, None), Err(SocketError::Foreign { .. })));
        assert_eq!(std::fs::read(&file).unwrap(), b"somebody's");
        let link = folder.path().join("a-link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(listen(&link, None), Err(SocketError::Foreign { .. })));
        assert!(path.exists() && link.exists());
    }
}
