//! A thread of another process, referred to so that nobody else is ever hit in its place.
//!
//! The kernel uses thread ids again. A [`ThreadRef`] therefore keeps, beside the number, when the
//! thread was started and descriptors of the thread and of its process. The descriptors end with
//! what they stand for; the start time tells a later thread of the same number apart, also for
//! somebody who has no descriptor, such as a program started after a crash.

mod fd;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::{fs, process};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use thiserror::Error;

use crate::sys::{Tid, process_of};

pub use fd::TaskFd;
pub use fd::is_missing;

/// When a thread was started, in clock ticks (1/100 s) since the host started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StartTime(u64);

impl StartTime {
    /// `ticks` clock ticks after the host started, as procfs writes it.
    #[must_use]
    pub const fn from_ticks(ticks: u64) -> StartTime {
        StartTime(ticks)
    }

    /// Clock ticks since the host started.
    #[must_use]
    pub const fn ticks(self) -> u64 {
        self.0
    }
}

impl fmt::Display for StartTime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// Why a thread cannot be referred to.
#[derive(Debug, Error)]
pub enum ThreadError {
    /// There is no such thread, or no longer.
    #[error("process {pid} has no thread {tid}")]
    Gone {
        /// The process asked for.
        pid: Tid,
        /// The thread asked for.
        tid: Tid,
    },
    /// The kernel's own threads keep the host going; holding one back can stop all of it.
    #[error("cannot schedule {tid}: it is a thread of the kernel")]
    Kernel {
        /// The thread asked for.
        tid: Tid,
    },
    /// Without process 1 the host does not run.
    #[error("cannot schedule process 1: the host depends on it")]
    Init,
    /// The first thread has ended, and others run on: the kernel moves such a process nowhere.
    #[error("the first thread of process {pid} has ended, so that it cannot be moved to a group")]
    FirstEnded {
        /// The process asked for.
        pid: Tid,
    },
    /// Whoever schedules must not be able to hold itself back.
    #[error("cannot schedule thread {tid}: it belongs to Slackline")]
    Ourselves {
        /// The thread asked for.
        tid: Tid,
    },
    /// The thread belongs to somebody else, and we are not root.
    #[error("no permission for thread {tid} of process {pid}")]
    NotPermitted {
        /// The process asked for.
        pid: Tid,
        /// The thread asked for.
        tid: Tid,
    },
    /// The kernel's description of the thread could not be read.
    #[error("cannot read the state of thread {tid}")]
    Unreadable {
        /// The thread asked for.
        tid: Tid,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A thread of another process. Cheap to clone; all clones share the descriptors.
#[derive(Clone, Debug)]
pub struct ThreadRef(Arc<Reference>);

#[derive(Debug)]
struct Reference {
    pid: Tid,
    tid: Tid,
    process_started: StartTime,
    started: StartTime,
    thread: TaskFd,
    /// Held apart from the thread's: a process outlives its threads and may have to be continued
    /// when the thread that stopped it is gone.
    process: TaskFd,
}

impl ThreadRef {
    /// Refers to thread `tid` of process `pid`.
    ///
    /// # Errors
    /// When there is no such thread, or it is none that may be scheduled by us: the kernel's,
    /// process 1's, our own, or somebody else's.
    pub fn open(pid: Tid, tid: Tid) -> Result<ThreadRef, ThreadError> {
        if pid.raw() == 1 {
            return Err(ThreadError::Init);
        }
        if u32::try_from(pid.raw()) == Ok(process::id()) {
            return Err(ThreadError::Ourselves { tid });
        }
        let gone = |source| ThreadError::of(pid, tid, source);
        // Descriptors first, start times after: whatever is read once the descriptors exist, and
        // while they have not ended, is about the threads they stand for.
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
            // A process that may be signalled belongs to us, or we are root.
            Ok(()) | Err(_) => {}
        }
        let (process_started, started) = (leader.started, stat.started);
        let found = Reference { pid, tid, process_started, started, thread, process };
        let found = ThreadRef(Arc::new(found));
        if found.is_gone().map_err(gone)? { Err(ThreadError::Gone { pid, tid }) } else { Ok(found) }
    }

    /// The process, which is the id of its first thread.
    #[must_use]
    pub fn pid(&self) -> Tid {
        self.0.pid
    }

    /// The thread.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.0.tid
    }

    /// When the thread was started.
    #[must_use]
    pub fn started(&self) -> StartTime {
        self.0.started
    }

    /// When its process was started.
    #[must_use]
    pub fn process_started(&self) -> StartTime {
        self.0.process_started
    }

    /// The descriptor of the thread.
    #[must_use]
    pub fn descriptor(&self) -> &TaskFd {
        &self.0.thread
    }

    /// The descriptor of the first thread of its process.
    #[must_use]
    pub fn process_descriptor(&self) -> &TaskFd {
        &self.0.process
    }

    /// Whether the thread has exited.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn is_gone(&self) -> io::Result<bool> {
        self.0.thread.has_exited()
    }

    /// The number, for a call that goes by number and is made at once.
    ///
    /// # Errors
    /// `ESRCH` when the thread has exited, so that the number may be somebody else's.
    pub fn number(&self) -> io::Result<Tid> {
        if self.is_gone()? { Err(Errno::SRCH.into()) } else { Ok(self.0.tid) }
    }

    /// Whether the number still means this thread, told by its start time alone.
    ///
    /// # Errors
    /// When procfs does not say.
    pub fn is_same(&self) -> io::Result<bool> {
        is_running(self.0.pid, self.0.tid, self.0.started)
    }
}

impl ThreadError {
    /// What to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            ThreadError::Gone { .. } => "check with `ps -p` whether it still runs",
            ThreadError::Kernel { .. } | ThreadError::Init | ThreadError::Ourselves { .. } => {
                "name a process that the host does not depend on"
            }
            ThreadError::FirstEnded { .. } => "hold its cgroup or unit",
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

/// Whether an error says that the thread it was about does not exist.
#[must_use]
pub fn means_gone(error: &io::Error) -> bool {
    // Files in procfs and process descriptors say ENOENT, calls on thread ids say ESRCH.
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// Whether thread `tid` of process `pid` exists, was started at `started`, and has not exited.
///
/// # Errors
/// When procfs does not say.
pub fn is_running(pid: Tid, tid: Tid, started: StartTime) -> io::Result<bool> {
    match Stat::of(pid, tid) {
        Ok(stat) => Ok(stat.started == started && !stat.exited()),
        Err(error) if means_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The threads of a process, in order of their ids.
///
/// # Errors
/// When there is no such process, or procfs does not say.
pub fn threads_of(pid: Tid) -> Result<Vec<Tid>, ThreadError> {
    let failed = |source| ThreadError::of(pid, pid, source);
    // A thread's number also has a folder in procfs, though it is not listed and is no process.
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

/// What procfs says about a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    state: u8,
    kernel: bool,
    started: StartTime,
}

impl Stat {
    /// Asks about a thread of a process.
    ///
    /// # Errors
    /// When there is no such thread, or what procfs says cannot be understood.
    pub fn of(pid: Tid, tid: Tid) -> io::Result<Stat> {
        // Bytes, because a thread may call itself anything.
        let text = fs::read(format!("/proc/{pid}/task/{tid}/stat"))?;
        Stat::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Understands the text of a `stat` file; none where it is not one.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Stat> {
        /// `PF_KTHREAD` in the kernel's flags of a task.
        const KERNEL_THREAD: u64 = 0x0020_0000;
        // The name stands in brackets and may contain brackets and spaces itself.
        let name_end = text.iter().rposition(|&byte| byte == b')')?;
        let rest = std::str::from_utf8(&text[name_end + 1..]).ok()?;
        // Counted from 1, as in proc(5), the state is the third field.
        let field = |number: usize| rest.split_ascii_whitespace().nth(number - 3);
        let flags: u64 = field(9)?.parse().ok()?;
        Some(Stat {
            state: *field(3)?.as_bytes().first()?,
            kernel: flags & KERNEL_THREAD != 0,
            started: StartTime(field(22)?.parse().ok()?),
        })
    }

    /// Whether a signal has stopped it.
    #[must_use]
    pub fn stopped(self) -> bool {
        self.state == b'T'
    }

    /// Whether it has work: it runs, or waits for a CPU.
    #[must_use]
    pub fn runnable(self) -> bool {
        self.state == b'R'
    }

    /// Whether it is one of the kernel's own.
    #[must_use]
    pub fn is_of_kernel(self) -> bool {
        self.kernel
    }

    /// When it was started.
    #[must_use]
    pub fn started(self) -> StartTime {
        self.started
    }

    /// Whether it has exited and only waits to be reaped.
    #[must_use]
    pub fn exited(self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let text = b"42 (a) R 1 (b) S 7 42 42 0 -1 2097216 0 0 0 0 5 6 0 0 20 0 1 0 86743 0 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!(stat, Stat { state: b'S', kernel: true, started: StartTime(86743) });
        assert_eq!(Stat::parse(b"42 (cut off) S 7 42"), None);
    }

    #[test]
    fn what_must_not_be_touched_is_refused() {
        let tid = |number| Tid::new(number).unwrap();
        assert!(matches!(ThreadRef::open(tid(1), tid(1)), Err(ThreadError::Init)));
        let own = tid(i32::try_from(process::id()).unwrap());
        assert!(matches!(ThreadRef::open(own, own), Err(ThreadError::Ourselves { .. })));
        let never = tid(i32::MAX);
        assert!(matches!(ThreadRef::open(never, never), Err(ThreadError::Gone { .. })));
    }

    #[test]
    fn a_child_is_referred_to_until_it_is_gone() {
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
