//! Connecting to a QEMU monitor, and checking which process listens on its socket.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::{PATIENCE_SECONDS, QmpError};

/// Connects to a socket. Fails if connecting takes longer than the timeout.
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path.as_os_str().as_bytes())?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    let stream = UnixStream::from(socket);
    // The timeout for sending also limits `connect`. Otherwise `connect` would block forever if the
    // monitor's queue of clients is full.
    let patience = Some(Duration::from_secs(PATIENCE_SECONDS.into()));
    sockopt::set_socket_timeout(&stream, sockopt::Timeout::Send, patience)?;
    retry_on_intr(|| rustix::net::connect(&stream, &address))?;
    Ok(stream)
}

/// Converts the error of a failed connection to a monitor.
pub(super) fn failed_to_connect(error: io::Error) -> QmpError {
    match Errno::from_io_error(&error) {
        Some(Errno::AGAIN) => QmpError::Busy,
        _ => QmpError::Connect(error),
    }
}

/// Checks that the VM's process `pid`, or another process of the user `uid`, listens at the other
/// end of the socket.
pub(super) fn check_peer(stream: &UnixStream, pid: i32, uid: u32) -> Result<(), QmpError> {
    let peer = sockopt::socket_peercred(stream);
    let peer = peer.map_err(|errno| QmpError::Connect(errno.into()))?;
    let (its_pid, its_uid) = (peer.pid.as_raw_nonzero().get(), peer.uid.as_raw());
    if its_pid == pid || its_uid == uid {
        return Ok(());
    }
    Err(QmpError::Stranger { pid: its_pid, uid: its_uid })
}

/// Returns a timer that expires at the timeout of a whole conversation with a monitor.
pub(super) fn set_alarm() -> rustix::io::Result<OwnedFd> {
    let alarm = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
    let seconds = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
    let after = Itimerspec { it_interval: seconds(0), it_value: seconds(PATIENCE_SECONDS.into()) };
    timerfd_settime(&alarm, TimerfdTimerFlags::empty(), &after)?;
    Ok(alarm)
}
