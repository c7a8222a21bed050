//! Descriptors of processes and threads, and signals to them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::process::{
    PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
};

use super::{Tid, check};

/// Opens a pidfd of one thread. The descriptor becomes readable when the thread has exited.
///
/// # Errors
/// `ESRCH` if there is no such thread, `EINVAL` before Linux 6.9, `ENOSYS` before 5.3.
pub fn pidfd_of_thread(tid: Tid) -> io::Result<OwnedFd> {
    Ok(pidfd_open(tid.pid(), PidfdFlags::from_bits_retain(libc::PIDFD_THREAD))?)
}

/// Opens a pidfd of a process. The descriptor becomes readable when the whole process has exited.
///
/// # Errors
/// `ESRCH` if there is no such process. `EINVAL` if the id belongs to a thread that is not the
/// first thread of its process. `ENOSYS` before Linux 5.3.
pub fn pidfd_of_process(process: Tid) -> io::Result<OwnedFd> {
    Ok(pidfd_open(process.pid(), PidfdFlags::empty())?)
}

/// Sends a signal to the thread or process to which the descriptor refers.
///
/// # Errors
/// `ESRCH` if the thread or process has exited, `EPERM` without the privilege.
pub fn signal_by(pidfd: BorrowedFd<'_>, signal: Signal) -> io::Result<()> {
    Ok(pidfd_send_signal(pidfd, signal)?)
}

/// Sends a signal to the whole process of the thread to which the descriptor refers.
///
/// # Errors
/// `ESRCH` if the thread has exited, `EPERM` without the privilege, `EINVAL` before Linux 6.9.
pub fn signal_process_by(pidfd: BorrowedFd<'_>, signal: Signal) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    let fd = pidfd.as_raw_fd();
    // SAFETY: the descriptor is open as long as it is borrowed. A null `siginfo_t` makes the kernel
    // fill in its own, and no other argument is a pointer.
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

/// Sends a signal to a thread of a process. Both are given by id.
///
/// # Errors
/// `ESRCH` if that process has no such thread, `EPERM` without the privilege.
pub fn signal_thread(process: Tid, tid: Tid, signal: Signal) -> io::Result<()> {
    // SAFETY: the arguments are three numbers, and the call touches no memory of this process.
    let result =
        unsafe { libc::syscall(libc::SYS_tgkill, process.raw(), tid.raw(), signal.as_raw()) };
    check(result)?;
    Ok(())
}

/// Sends a signal to all processes of a process group, by the id of its first process.
///
/// # Errors
/// `ESRCH` if there is no such process group, `EPERM` without the privilege.
pub fn signal_group(first: Tid, signal: Signal) -> io::Result<()> {
    Ok(kill_process_group(first.pid(), signal)?)
}

/// Sends a signal to a process that is given by its id.
///
/// # Errors
/// `ESRCH` if there is no such process, `EPERM` without the privilege.
pub fn signal_process(process: Tid, signal: Signal) -> io::Result<()> {
    Ok(kill_process(process.pid(), signal)?)
}
