//! Who is on the other end of a connection, as the kernel says.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::net::sockopt::socket_peercred;
use slackline_linux::sys::peer_groups;

/// The user and all groups of whoever connected, as they were then: no name is looked up.
///
/// # Errors
/// The kernel's.
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
    fn we_are_known_to_ourselves() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (uid, groups) = of(ours.as_fd()).unwrap();
        assert_eq!(uid, rustix::process::getuid().as_raw());
        assert!(groups.contains(&rustix::process::getgid().as_raw()), "{groups:?}");
        for group in rustix::process::getgroups().unwrap() {
            assert!(groups.contains(&group.as_raw()), "{groups:?}");
        }
    }
}
