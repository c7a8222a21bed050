//! Identity of the peer of a Unix socket, as the kernel reports it.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::net::sockopt::socket_peercred;
use slackline_linux::sys::peer_groups;

/// Returns the ids of the user and of all groups that the peer had when it connected.
///
/// # Errors
/// If the kernel does not report them.
pub(super) fn of(socket: BorrowedFd<'_>) -> io::Result<(u32, Vec<u32>)> {
    let peer = socket_peercred(socket)?;
    let mut groups = peer_groups(socket)?;
    groups.push(peer.gid.as_raw());
    Ok((peer.uid.as_raw(), groups))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn socket_peer_credentials_are_user_and_groups_of_peer_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (uid, groups) = of(ours.as_fd()).unwrap();
        assert_eq!(uid, rustix::process::getuid().as_raw());
        assert!(groups.contains(&rustix::process::getgid().as_raw()), "{groups:?}");
        for group in rustix::process::getgroups().unwrap() {
            assert!(groups.contains(&group.as_raw()), "{groups:?}");
        }
    }
}
