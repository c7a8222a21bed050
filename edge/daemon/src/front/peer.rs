//! Who is on the other end of a connection, as the kernel says.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::net::sockopt::socket_peercred;

/// More groups than this are not looked at: nobody is in so many.
const MOST_GROUPS: usize = 65_536;

/// The user and all groups of whoever connected, as they were then: no name is looked up.
///
/// # Errors
/// The kernel's.
pub(super) fn of(socket: BorrowedFd<'_>) -> io::Result<(u32, Vec<u32>)> {
    let peer = socket_peercred(socket)?;
    let mut groups = groups(socket)?;
    groups.push(peer.gid.as_raw());
    Ok((peer.uid.as_raw(), groups))
}

/// `SO_PEERGROUPS`.
fn groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut room = 64;
    loop {
        let mut groups = vec![0_u32; room];
        let bytes = size_of::<u32>() * room;
        let mut length = libc::socklen_t::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: the kernel writes at most `length` bytes, which is what `groups` has, and says in
        // it how many; it is asked about a descriptor that is borrowed for so long.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if answer == 0 {
            groups.truncate(usize::try_from(length).map_err(io::Error::other)? / size_of::<u32>());
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || room >= MOST_GROUPS {
            return Err(error);
        }
        room *= 4;
    }
}

#[cfg(test)]
mod tests {
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
