//! References to threads of other processes. A reference never refers to a later thread with the
//! same id.
//!
//! The kernel reuses thread ids. So a [`ThreadRef`] also has the thread's start time and
//! descriptors of the thread and its process. The descriptors become invalid when the thread or
//! process ends. A later thread with the same id has a different start time. So a program without
//! these descriptors, such as one that was started after a crash, can still tell the threads apart.

mod ends;
mod fd;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::{fs, process};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use thiserror::Error;

use crate::sys::{Tid, boot_time, clock_tick, monotonic, process_of, read_of_thread};
use slackline_units::Time;

pub use ends::{ReportedEnd, ThreadEnds};
pub use fd::TaskFd;
pub use fd::is_missing;

/// Start time of a thread, in clock ticks (1/100 s) since the host booted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StartTime(u64);

impl StartTime {
    /// Creates a start time from the clock ticks since boot, as procfs shows them.
    #[must_use]
    pub const fn from_ticks(ticks: u64) -> StartTime {
        StartTime(ticks)
    }

    /// Returns the clock ticks since the host booted.
    #[must_use]
    pub const fn ticks(self) -> u64 {
        self.0
    }

    /// Returns true if the thread was started at or before `at`, a time on the monotonic clock.
    #[must_use]
    pub fn is_until(self, at: Time) -> bool {
        let suspended = boot_time().since(monotonic());
        clock_tick() * self.0 <= at.since(Time::START) + suspended
    }
}

impl fmt::Display for StartTime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// Reason why Slackline cannot schedule a thread.
#[derive(Debug, Error)]
pub enum ThreadError {
    /// The thread does not exist, or has exited.
    #[error("process {pid} has no thread {tid}")]
    Gone {
        /// Id of the process.
        pid: Tid,
        /// Id of the thread.
        tid: Tid,
    },
    /// The thread is a kernel thread. Kernel threads keep the host running, and stopping one can
    /// stop the whole host.
    #[error("cannot schedule thread {tid}: it is a kernel thread")]
    Kernel {
        /// Id of the thread.
        tid: Tid,
    },
    /// The process is process 1. The host does not run without process 1.
    #[error("cannot schedule process 1: the host depends on it")]
    Init,
    /// The first thread of the process has exited, but other threads of the process continue. The
    /// kernel does not move such a process to another cgroup.
    #[error(
        "the first thread of process {pid} has ended, so the process cannot be moved to a cgroup"
    )]
    FirstEnded {
        /// Id of the process.
        pid: Tid,
    },
    /// The thread belongs to the calling process. A scheduler must not be able to stop itself.
    #[error("cannot schedule thread {tid}: it belongs to Slackline")]
    Ourselves {
        /// Id of the thread.
        tid: Tid,
    },
    /// The thread belongs to another user, and this process does not run as root.
    #[error("no permission for thread {tid} of process {pid}")]
    NotPermitted {
        /// Id of the process.
        pid: Tid,
        /// Id of the thread.
        tid: Tid,
    },
    /// The kernel's `stat` file of the thread could not be read.
    #[error("cannot read the state of thread {tid}")]
    Unreadable {
        /// Id of the thread.
        tid: Tid,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// A thread of another process. Cloning is cheap, since all clones share the descriptors.
#[derive(Clone, Debug)]
pub struct ThreadRef(Arc<Reference>);

#[derive(Debug)]
struct Reference {
    pid: Tid,
    tid: Tid,
    process_started: StartTime,
    started: StartTime,
    thread: TaskFd,
    /// Descriptor of the process. A process can outlive the thread that took the stop signal, and
    /// the process may then have to be continued.
    process: TaskFd,
}

impl ThreadRef {
    /// Opens a reference to thread `tid` of process `pid`.
    ///
    /// # Errors
    /// If there is no such thread, or if Slackline must not schedule it. Slackline schedules no
    /// kernel threads, and no threads of process 1 or of its own process. Unless it runs as root,
    /// it schedules no threads of other users.
    pub fn open(pid: Tid, tid: Tid) -> Result<ThreadRef, ThreadError> {
        if pid.raw() == 1 {
            return Err(ThreadError::Init);
        }
        if u32::try_from(pid.raw()) == Ok(process::id()) {
            return Err(ThreadError::Ourselves { tid });
        }
        let gone = |source| ThreadError::of(pid, tid, source);
        // The descriptors are opened before the start times are read. As long as a descriptor is
        // valid, its id is not reused, so the start time belongs to the same thread.
        let (process, thread) =
            (TaskFd::open(pid).map_err(gone)?, TaskFd::open(tid).map_err(gone)?);
        let leader = Stat::of(pid, pid).map_err(gone)?;
        let stat = Stat::of(pid, tid).map_err(gone)?;
        if stat.kernel {
            return Err(ThreadError::Kernel { tid });
        }
        let number = Pid::from_raw(pid.raw()).ok_or(ThreadError::Gone { pid, tid })?;
        match test_kill_process(number) {
            Err(Errno::PERM) => return Err(ThreadError::NotPermitted { pid, tid }),
            Err(Errno::SRCH) => return Err(ThreadError::Gone { pid, tid }),
            // This process may signal the other process, so it runs as the same user or as root.
            Ok(()) | Err(_) => {}
        }
        let (process_started, started) = (leader.started, stat.started);
        let found = Reference { pid, tid, process_started, started, thread, process };
        let found = ThreadRef(Arc::new(found));
        if found.is_gone().map_err(gone)? { Err(ThreadError::Gone { pid, tid }) } else { Ok(found) }
    }

    /// Returns the id of the process, which is the id of its first thread.
    #[must_use]
    pub fn pid(&self) -> Tid {
        self.0.pid
    }

    /// Returns the id of the thread.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.0.tid
    }

    /// Returns the start time of the thread.
    #[must_use]
    pub fn started(&self) -> StartTime {
        self.0.started
    }

    /// Returns the start time of the thread's process.
    #[must_use]
    pub fn process_started(&self) -> StartTime {
        self.0.process_started
    }

    /// Returns the descriptor of the thread.
    #[must_use]
    pub fn descriptor(&self) -> &TaskFd {
        &self.0.thread
    }

    /// Returns the descriptor of the first thread of the thread's process.
    #[must_use]
    pub fn process_descriptor(&self) -> &TaskFd {
        &self.0.process
    }

    /// Returns true if the thread has exited.
    ///
    /// # Errors
    /// If the state of the thread cannot be read.
    pub fn is_gone(&self) -> io::Result<bool> {
        self.0.thread.has_exited()
    }

    /// Returns the thread's id after checking that the thread still exists. The caller must pass
    /// the id to a system call immediately, before the thread can exit.
    ///
    /// # Errors
    /// `ESRCH` if the thread has exited. Another thread may then have its id.
    pub fn number(&self) -> io::Result<Tid> {
        if self.is_gone()? { Err(Errno::SRCH.into()) } else { Ok(self.0.tid) }
    }

    /// Returns true if the thread's id still refers to this thread. This function compares the
    /// start time and does not use the descriptor.
    ///
    /// # Errors
    /// If procfs cannot be read.
    pub fn is_same(&self) -> io::Result<bool> {
        is_running(self.0.pid, self.0.tid, self.0.started)
    }
}

impl ThreadError {
    /// Returns advice for the user on a thread that Slackline cannot schedule.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            ThreadError::Gone { .. } => "check with `ps -p PID` whether the process still runs",
            ThreadError::Kernel { .. } | ThreadError::Init => {
                "name a process that the host does not depend on"
            }
            ThreadError::Ourselves { .. } => "name a process that is not part of Slackline",
            ThreadError::FirstEnded { .. } => "schedule the cgroup or unit of the process instead",
            ThreadError::NotPermitted { .. } | ThreadError::Unreadable { .. } => "run as root",
        }
    }

    fn of(pid: Tid, tid: Tid, source: io::Error) -> ThreadError {
        if means_gone(&source) {
            ThreadError::Gone { pid, tid }
        } else {
            ThreadError::Unreadable { tid, source }
        }
    }
}

/// Returns true if an error means that the thread does not exist.
#[must_use]
pub fn means_gone(error: &io::Error) -> bool {
    // Files in procfs and process descriptors return ENOENT, calls on thread ids return ESRCH.
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// Returns true if thread `tid` of process `pid` exists, was started at `started`, and has not
/// exited.
///
/// # Errors
/// If procfs cannot be read.
pub fn is_running(pid: Tid, tid: Tid, started: StartTime) -> io::Result<bool> {
    match Stat::of(pid, tid) {
        Ok(stat) => Ok(stat.started == started && !stat.exited()),
        Err(error) if means_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the threads of a process, in order of their ids.
///
/// # Errors
/// If there is no such process, or procfs cannot be read.
pub fn threads_of(pid: Tid) -> Result<Vec<Tid>, ThreadError> {
    let failed = |source| ThreadError::of(pid, pid, source);
    // Every thread id has a folder in procfs, so check that the id is that of a process.
    if process_of(pid).map_err(failed)? != pid {
        return Err(ThreadError::Gone { pid, tid: pid });
    }
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        threads.extend(name.to_str().and_then(|name| name.parse().ok()).and_then(Tid::new));
    }
    threads.sort_unstable();
    Ok(threads)
}

/// State of a thread, as its `stat` file in procfs shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    state: u8,
    kernel: bool,
    /// True if the thread is ending or has ended.
    ends: bool,
    started: StartTime,
}

impl Stat {
    /// Reads the state of a thread.
    ///
    /// # Errors
    /// If there is no such thread, or its `stat` file cannot be parsed.
    pub fn of(pid: Tid, tid: Tid) -> io::Result<Stat> {
        // The text is read as bytes, because the thread's name need not be valid UTF-8.
        let text = read_of_thread((pid, tid), "stat")?;
        Stat::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses the text of a `stat` file. `None` if the text is not valid.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Stat> {
        /// Flag `PF_KTHREAD` among a task's flags in its `stat` file, which marks a kernel thread.
        const KERNEL_THREAD: u64 = 0x0020_0000;
        /// Flag `PF_EXITING`, which marks a thread that is ending.
        const ENDS: u64 = 0x0000_0004;
        // The name is in parentheses and may contain parentheses and spaces itself.
        let name_end = text.iter().rposition(|&byte| byte == b')')?;
        let rest = std::str::from_utf8(&text[name_end + 1..]).ok()?;
        // proc(5) counts fields from 1, so the state, which follows the name, has number 3.
        let field = |number: usize| rest.split_ascii_whitespace().nth(number - 3);
        let flags: u64 = field(9)?.parse().ok()?;
        Some(Stat {
            state: *field(3)?.as_bytes().first()?,
            kernel: flags & KERNEL_THREAD != 0,
            ends: flags & ENDS != 0,
            started: StartTime(field(22)?.parse().ok()?),
        })
    }

    /// Returns true if a signal has stopped the thread.
    #[must_use]
    pub fn stopped(self) -> bool {
        self.state == b'T'
    }

    /// Returns true if the thread runs or waits for a CPU.
    #[must_use]
    pub fn runnable(self) -> bool {
        self.state == b'R'
    }

    /// Returns true if the thread is a kernel thread.
    #[must_use]
    pub fn is_of_kernel(self) -> bool {
        self.kernel
    }

    /// Returns the start time of the thread.
    #[must_use]
    pub fn started(self) -> StartTime {
        self.started
    }

    /// Returns true if the thread has exited and waits to be reaped.
    #[must_use]
    pub fn exited(self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Returns true if a thread has not run since its creation, is ending, or has ended.
///
/// procfs does not show the actual cgroups of such a thread. For a new thread, it shows the root
/// cgroups until the kernel has put the thread into the cgroups of its creator. For an ending
/// thread, it shows the root cgroups of version 1.
///
/// If the kernel does not count run intervals, no thread counts as new. Otherwise every thread
/// would count as new, and no move of a thread would be noticed.
#[must_use]
pub fn starts_or_ends(pid: Tid, tid: Tid) -> bool {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let schedstat = read(format!("/proc/{pid}/task/{tid}/schedstat"));
    is_new(&schedstat, || read("/proc/thread-self/schedstat".to_owned()))
        || Stat::of(pid, tid).map_or(true, |stat| stat.ends)
}

/// Returns true if a thread with this `schedstat` has not run yet. `own` returns the `schedstat` of
/// the calling thread, which has run. If that text shows no run either, the kernel does not count
/// run intervals, and the result is false.
fn is_new(schedstat: &str, own: impl FnOnce() -> String) -> bool {
    !has_run(schedstat) && has_run(&own())
}

/// Returns true if a thread with this `schedstat` has run. The third number counts its run
/// intervals.
fn has_run(schedstat: &str) -> bool {
    schedstat.split_ascii_whitespace().nth(2).is_some_and(|intervals| intervals != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_name_with_parentheses_does_not_break_stat_parsing() {
        let text = b"42 (a) R 1 (b) S 7 42 42 0 -1 2097216 0 0 0 0 5 6 0 0 20 0 1 0 86743 0 0";
        let stat = Stat::parse(text).unwrap();
        let started = StartTime(86743);
        assert_eq!(stat, Stat { state: b'S', kernel: true, ends: false, started });
        assert_eq!(Stat::parse(b"42 (cut off) S 7 42"), None);
    }

    #[test]
    fn threads_that_have_not_run_or_have_ended_are_recognised() {
        assert!(has_run("183040 5210 1\n") && !has_run("0 0 0\n") && !has_run(""));
        let own = Tid::new(i32::try_from(process::id()).unwrap()).unwrap();
        assert!(!starts_or_ends(own, own));
        let mut child = process::Command::new("true").spawn().unwrap();
        let pid = Tid::new(i32::try_from(child.id()).unwrap()).unwrap();
        while !Stat::of(pid, pid).unwrap().exited() {
            std::thread::yield_now();
        }
        assert!(starts_or_ends(pid, pid));
        child.wait().unwrap();
        assert!(starts_or_ends(pid, pid));
    }

    #[test]
    fn thread_never_counts_as_new_without_schedstat_counts() {
        let (counted, zeros) = ("183040 5210 1\n", "0 0 0\n");
        let is_new = |schedstat, own: &str| is_new(schedstat, || own.to_owned());
        assert!(is_new(zeros, counted) && !is_new(counted, counted));
        assert!(!is_new(zeros, zeros) && !is_new("", ""));
    }

    #[test]
    fn process_start_time_can_be_compared_with_the_monotonic_clock() {
        let own = Tid::new(i32::try_from(process::id()).unwrap()).unwrap();
        let started = Stat::of(own, own).unwrap().started();
        assert!(started.is_until(monotonic()));
        let later = started.ticks() + 1_000_000;
        assert!(!StartTime::from_ticks(later).is_until(monotonic()));
    }

    #[test]
    fn thread_reference_to_init_or_the_own_process_is_refused() {
        let tid = |number| Tid::new(number).unwrap();
        assert!(matches!(ThreadRef::open(tid(1), tid(1)), Err(ThreadError::Init)));
        let own = tid(i32::try_from(process::id()).unwrap());
        assert!(matches!(ThreadRef::open(own, own), Err(ThreadError::Ourselves { .. })));
        let never = tid(i32::MAX);
        assert!(matches!(ThreadRef::open(never, never), Err(ThreadError::Gone { .. })));
    }

    #[test]
    fn thread_reference_is_valid_until_its_process_exits() {
        let mut child = process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = Tid::new(i32::try_from(child.id()).unwrap()).unwrap();
        let thread = ThreadRef::open(pid, pid).unwrap();
        assert_eq!(threads_of(pid).unwrap(), [pid]);
        assert!(thread.is_same().unwrap() && !thread.is_gone().unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!thread.is_same().unwrap() && thread.is_gone().unwrap());
        assert!(matches!(threads_of(pid), Err(ThreadError::Gone { .. })));
    }
}
