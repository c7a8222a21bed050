//! Processes and threads by descriptor, and signals to them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::process::{
    PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
};

use super::{Tid, check};

/// A descriptor of one thread. It polls readable once that has exited.
///
/// # Errors
/// `ESRCH` when there is no such thread, `EINVAL` before Linux 6.9, `ENOSYS` before 5.3.
pub fn pidfd_of_thread(tid: Tid) -> io::Result<OwnedFd> {
    Ok(pidfd_open(tid.pid(), PidfdFlags::from_bits_retain(libc::PIDFD_THREAD))?)
}

/// A descriptor of a process. It polls readable once all of it has exited.
///
/// # Errors
/// `ESRCH` when there is no such process, `EINVAL` when this is not its first thread, `ENOSYS`
/// before Linux 5.3.
pub fn pidfd_of_process(process: Tid) -> io::Result<OwnedFd> {
    Ok(pidfd_open(process.pid(), PidfdFlags::empty())?)
}

/// Sends a signal to what the descriptor stands for: a thread or a process.
///
/// # Errors
/// `ESRCH` when it has exited, `EPERM` without the privilege.
pub fn signal_by(pidfd: BorrowedFd<'_>, signal: Signal) -> io::Result<()> {
    Ok(pidfd_send_signal(pidfd, signal)?)
}

/// Sends a signal to the whole process of the thread that the descriptor stands for.
///
/// # Errors
/// `ESRCH` when it has exited, `EPERM` without the privilege, `EINVAL` before Linux 6.9.
pub fn signal_process_by(pidfd: BorrowedFd<'_>, signal: Signal) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    let fd = pidfd.as_raw_fd();
    // SAFETY: the descriptor is open for as long as it is borrowed, and a null `siginfo_t` asks the
    // kernel to make one; nothing else is a pointer.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            fd,
            signal.as_raw(),
            no_info,
            libc::PIDFD_SIGNAL_THREAD_GROUP,
        )
    };
    check(result)?;
    Ok(())
}

/// Sends a signal to a thread of a process, by number.
///
/// # Errors
/// `ESRCH` when that process has no such thread, `EPERM` without the privilege.
pub fn signal_thread(process: Tid, tid: Tid, signal: Signal) -> io::Result<()> {
    // SAFETY: three numbers; no memory of ours is touched.
    let result =
        unsafe { libc::syscall(libc::SYS_tgkill, process.raw(), tid.raw(), signal.as_raw()) };
    check(result)?;
    Ok(())
}

/// Sends a signal to all processes of a group, by the number of the one that began it.
///
/// # Errors
/// `ESRCH` when there are none, `EPERM` without the privilege.
pub fn signal_group(first: Tid, signal: Signal) -> io::Result<()> {
    Ok(kill_process_group(first.pid(), signal)?)
}

/// Sends a signal to a process, by number.
///
/// # Errors
/// `ESRCH` when there is no such process, `EPERM` without the privilege.
pub fn signal_process(process: Tid, signal: Signal) -> io::Result<()> {
    Ok(kill_process(process.pid(), signal)?)
}
