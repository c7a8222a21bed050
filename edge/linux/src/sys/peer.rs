//! Groups of the process at the other end of a Unix socket. The crate rustix has no function that
//! reads these groups.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Maximum number of groups of a process.
const MOST_GROUPS: usize = 65_536;

/// Returns the supplementary groups that the process at the other end of a Unix socket had when it
/// connected (`SO_PEERGROUPS`).
///
/// # Errors
/// If `getsockopt` fails.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut capacity = 64;
    loop {
        let mut groups = vec![0_u32; capacity];
        let bytes = size_of::<u32>() * capacity;
        let mut length = libc::socklen_t::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: the kernel writes at most `length` bytes to `groups`, which is its size, and
        // writes the actual size to `length`. The descriptor is borrowed for the whole call.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
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
        if error.raw_os_error() != Some(libc::ERANGE) || capacity >= MOST_GROUPS {
            return Err(error);
        }
        capacity *= 4;
    }
}
