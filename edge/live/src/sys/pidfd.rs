//! Threads held by descriptor, so that a number reused by somebody else is never hit.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Tid, check, process_of};

/// What a [`Pidfd`] stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidfdHolds {
    /// The one thread. Its own end is seen.
    Thread,
    /// Its whole process: all that kernels before 6.9 can hold. Only the end of the process is
    /// seen, so the thread's number may be reused while this still holds.
    Process,
}

/// A thread held by descriptor. It polls readable once what it holds has exited.
#[derive(Debug)]
pub struct Pidfd {
    fd: OwnedFd,
    holds: PidfdHolds,
}

impl Pidfd {
    /// Holds a thread or, where the kernel cannot do that, the process it belongs to.
    ///
    /// # Errors
    /// `ESRCH` or `NotFound` when there is no such thread.
    pub fn open(tid: Tid) -> io::Result<Pidfd> {
        let one_thread = PidfdFlags::from_bits_retain(libc::PIDFD_THREAD);
        match pidfd_open(tid.pid(), one_thread) {
            Ok(fd) => Ok(Pidfd { fd, holds: PidfdHolds::Thread }),
            Err(rustix::io::Errno::INVAL) => {
                let fd = pidfd_open(process_of(tid)?.pid(), PidfdFlags::empty())?;
                Ok(Pidfd { fd, holds: PidfdHolds::Process })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What this holds.
    #[must_use]
    pub const fn holds(&self) -> PidfdHolds {
        self.holds
    }

    /// Sends a signal to what this holds. Stopping and continuing always concern the whole process,
    /// whichever of its threads the signal is sent to.
    ///
    /// # Errors
    /// `ESRCH` when it has exited, `EPERM` without the privilege.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.fd, signal)?)
    }

    /// Sends a signal to the process, whatever this holds.
    ///
    /// # Errors
    /// `ESRCH` when it has exited, `EPERM` without the privilege.
    pub fn signal_process(&self, signal: Signal) -> io::Result<()> {
        if self.holds == PidfdHolds::Process {
            return self.signal(signal);
        }
        let no_info = std::ptr::null::<libc::siginfo_t>();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&self.fd);
        // SAFETY: the descriptor is open for as long as `self` lives, and a null `siginfo_t` asks
        // the kernel to make one; nothing else is a pointer.
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

    /// Whether what this holds has exited, waited for by its parent or not.
    ///
    /// # Errors
    /// Those of `poll`.
    pub fn has_exited(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            match poll(&mut fds, Some(&at_once)) {
                // Without a wait there is no end to which a signal could put off the answer.
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(!fds[0].revents().is_empty()),
            }
        }
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
