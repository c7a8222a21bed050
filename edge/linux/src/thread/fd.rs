//! Descriptors of threads, so that an action never affects a later thread with the same id.
//!
//! From Linux 6.9 on a thread has a descriptor of its own, a pidfd. On older kernels an open `stat`
//! file in procfs is used instead. After the thread has ended, reading this file fails with
//! `ESRCH`, even if another thread has the same id. From Linux 5.3 on, a pidfd of the process is
//! used in addition.
//!
//! Some actions are not possible by descriptor and use the thread's id. On all kernels these are
//! changes of scheduling and affinity. Before Linux 6.9 they include signals to a thread, and
//! before 5.3 also signals to a process. Before each such action, the descriptor and the start time
//! are checked. An action could affect another thread only if the id were reused in the few
//! microseconds between this check and the action. The kernel assigns ids in turn, so in that time
//! it would have to assign all other ids (at least 32,767).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use super::{StartTime, Stat, means_gone};
use crate::sys::{
    Tid, pidfd_of_process, pidfd_of_thread, process_of, signal_by, signal_process,
    signal_process_by, signal_thread,
};

/// A descriptor of one thread, or its substitute on older kernels.
#[derive(Debug)]
pub struct TaskFd(Descriptor);

#[derive(Debug)]
enum Descriptor {
    /// Pidfd of this one thread.
    Thread(OwnedFd),
    Procfs(Procfs),
}

/// Substitute for a pidfd of a thread: its open `stat` file in procfs.
#[derive(Debug)]
struct Procfs {
    process: Tid,
    tid: Tid,
    started: StartTime,
    stat: File,
    /// Pidfd of the process. `None` before Linux 5.3.
    pidfd: Option<OwnedFd>,
}

impl TaskFd {
    /// Opens a descriptor of a thread.
    ///
    /// # Errors
    /// `ESRCH` or `NotFound` if there is no such thread.
    pub fn open(tid: Tid) -> io::Result<TaskFd> {
        match pidfd_of_thread(tid) {
            Ok(fd) => Ok(TaskFd(Descriptor::Thread(fd))),
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                let pidfd = pidfd_of_process(process_of(tid)?)?;
                Procfs::open(tid, Some(pidfd)).map(|held| TaskFd(Descriptor::Procfs(held)))
            }
            Err(error) if is_missing(&error) => TaskFd::open_in_procfs(tid),
            Err(error) => Err(error),
        }
    }

    /// Opens the descriptor that is used on kernels before 5.3: a `stat` file in procfs in place of
    /// a pidfd. The descriptor works on any kernel.
    ///
    /// # Errors
    /// `ESRCH` or `NotFound` if there is no such thread.
    pub fn open_in_procfs(tid: Tid) -> io::Result<TaskFd> {
        Procfs::open(tid, None).map(|held| TaskFd(Descriptor::Procfs(held)))
    }

    /// Sends a signal to the thread. Signals that stop or continue affect the whole process of the
    /// thread.
    ///
    /// # Errors
    /// `ESRCH` if the thread has exited, `EPERM` without the privilege.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match &self.0 {
            Descriptor::Thread(fd) => signal_by(fd.as_fd(), signal),
            Descriptor::Procfs(held) => {
                held.look()?;
                signal_thread(held.process, held.tid, signal)
            }
        }
    }

    /// Sends a signal to the process of the thread.
    ///
    /// # Errors
    /// `ESRCH` if the process has exited, `EPERM` without the privilege.
    pub fn signal_process(&self, signal: Signal) -> io::Result<()> {
        match &self.0 {
            Descriptor::Thread(fd) => signal_process_by(fd.as_fd(), signal),
            Descriptor::Procfs(Procfs { pidfd: Some(pidfd), .. }) => {
                signal_by(pidfd.as_fd(), signal)
            }
            Descriptor::Procfs(held) => {
                held.look()?;
                signal_process(held.process, signal)
            }
        }
    }

    /// Returns true if the thread has exited, even if its parent has not reaped it yet.
    ///
    /// # Errors
    /// If `poll` fails or procfs cannot be read.
    pub fn has_exited(&self) -> io::Result<bool> {
        match &self.0 {
            Descriptor::Thread(fd) => is_ready(fd),
            Descriptor::Procfs(held) => match held.look() {
                Ok(stat) => Ok(stat.exited()),
                Err(error) if means_gone(&error) => Ok(true),
                Err(error) => Err(error),
            },
        }
    }

    /// Returns a descriptor that becomes readable when the thread has exited, even if other threads
    /// of its process continue. Before Linux 6.9, `None`: the caller must check the thread's state
    /// at intervals.
    #[must_use]
    pub fn pollable_by_itself(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            Descriptor::Thread(fd) => Some(fd.as_fd()),
            Descriptor::Procfs(_) => None,
        }
    }

    /// Returns a descriptor that becomes readable when the thread has exited. Before Linux 6.9 it
    /// becomes readable only when the whole process has exited. Before Linux 5.3, `None`: the
    /// caller must check the thread's state at intervals.
    #[must_use]
    pub fn pollable(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            Descriptor::Thread(fd) => Some(fd.as_fd()),
            Descriptor::Procfs(held) => held.pidfd.as_ref().map(AsFd::as_fd),
        }
    }
}

impl Procfs {
    fn open(tid: Tid, pidfd: Option<OwnedFd>) -> io::Result<Procfs> {
        let process = process_of(tid)?;
        let stat = File::open(format!("/proc/{process}/task/{tid}/stat"))?;
        // The start time is read from the open file, so it belongs to the thread of that file.
        let started = read(&stat)?.started();
        Ok(Procfs { process, tid, started, stat, pidfd })
    }

    /// Reads the present state of the thread. The error is `ESRCH` if the thread has ended, even if
    /// a later thread has the same id.
    fn look(&self) -> io::Result<Stat> {
        let stat = read(&self.stat)?;
        if stat.started() == self.started { Ok(stat) } else { Err(Errno::SRCH.into()) }
    }
}

fn read(stat: &File) -> io::Result<Stat> {
    // 51 numbers of at most 20 digits, and a name of at most 64 bytes.
    let mut text = [0; 2048];
    let length = stat.read_at(&mut text, 0)?;
    Stat::parse(&text[..length]).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns true if an error of opening a pidfd means that the kernel has no pidfds, or that a
/// sandbox hides them. Some sandboxes return `EPERM` for system calls that they do not know. The
/// kernel itself never returns `EPERM` when a pidfd is opened.
#[must_use]
pub fn is_missing(error: &io::Error) -> bool {
    let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    is(Errno::NOSYS) || is(Errno::PERM)
}

fn is_ready(fd: &OwnedFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        match poll(&mut fds, Some(&at_once)) {
            // The call does not wait, so signals cannot interrupt it again and again.
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(!fds[0].revents().is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> (Child, Tid) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let tid = Tid::new(i32::try_from(child.id()).unwrap()).unwrap();
        (child, tid)
    }

    #[test]
    fn thread_descriptor_can_signal_its_thread_until_the_thread_exits() {
        for open in [TaskFd::open, TaskFd::open_in_procfs] {
            let (mut child, tid) = sleeper();
            let held = open(tid).unwrap();
            assert!(!held.has_exited().unwrap());
            held.signal(Signal::STOP).unwrap();
            held.signal_process(Signal::CONT).unwrap();
            held.signal(Signal::TERM).unwrap();
            assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
            assert!(held.has_exited().unwrap());
            for sent in [held.signal(Signal::CONT), held.signal_process(Signal::CONT)] {
                assert!(means_gone(&sent.unwrap_err()));
            }
            assert!(means_gone(&open(tid).unwrap_err()));
        }
    }

    #[test]
    fn thread_that_is_a_zombie_counts_as_exited() {
        let (mut child, tid) = sleeper();
        let held = TaskFd::open_in_procfs(tid).unwrap();
        child.kill().unwrap();
        // Wait until the killed process has become a zombie. Only this thread could reap it.
        while !held.has_exited().unwrap() {
            std::thread::yield_now();
        }
        held.signal_process(Signal::CONT).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn thread_descriptor_never_signals_thread_with_reused_id() {
        let (mut child, tid) = sleeper();
        let mut held = Procfs::open(tid, None).unwrap();
        held.started = StartTime::from_ticks(held.started.ticks() + 1);
        let held = TaskFd(Descriptor::Procfs(held));
        assert!(held.has_exited().unwrap());
        assert!(means_gone(&held.signal(Signal::KILL).unwrap_err()));
        assert!(means_gone(&held.signal_process(Signal::KILL).unwrap_err()));
        assert_eq!(child.try_wait().unwrap(), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
