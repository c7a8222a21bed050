//! The threads that carry a VM's vCPUs: which they are, and which vCPU each one is.
//!
//! To the kernel a vCPU is one thread of the process that is the VM. Its other threads emulate
//! devices and answer monitors; they are not vCPUs, must not be scheduled as such, and cannot be
//! told from them by anything that the kernel keeps. There are two ways to know:
//!
//! - **By name.** Most hypervisors name their vCPU threads. QEMU does so with
//!   `-name NAME,debug-threads=on`, which libvirt always gives. This is looked at first, because
//!   it disturbs nobody. A guest has no say in the names.
//! - **By asking.** QEMU tells over its machine protocol (QMP). A socket serves one client at a
//!   time, so it is asked only if names tell nothing; if another client, such as libvirt, holds it,
//!   no answer comes, which is an error after two seconds. The command line that names the socket
//!   is the word of the VM's user. So we connect with that user's rights, speak only to that user,
//!   and no error shows what was received: it may be somebody else's secret.
//!
//! Answers are sorted by index. Every thread that [`find`] returns belonged to the process when it
//! was found, whatever a monitor said. A VM that is just starting may not have all its threads yet.
//!
//! Without multi-threaded emulation (`-accel tcg,thread=single`) QEMU runs all vCPUs in turn on one
//! thread. That thread is the only thing there is to schedule, so it is given once, as index 0.

mod connecting;
pub mod qemu_options;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use serde_json::Value;

use slackline_linux::sys::OwnerRights;

use connecting::{check_peer, connect, failed_to_connect};
use qemu_options::qmp_socket_among;

/// How long a whole conversation with a monitor may take, in seconds. QEMU answers within
/// milliseconds even under emulation; only a stopped process or a monitor in use takes longer.
const PATIENCE_SECONDS: u32 = 2;

/// The longest message read, in bytes: 4096 vCPUs, QEMU's most, at about 200 each in their list.
const LONGEST_MESSAGE: usize = 1 << 20;

/// How much of a message an error shows, in characters: about two lines.
const EXCERPT: usize = 160;

const FILE: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);
const FOLDER: OFlags = FILE.union(OFlags::DIRECTORY);

/// A thread that carries a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuThread {
    /// The thread, as the kernel numbers it.
    pub tid: i32,
    /// Which vCPU of the VM it carries, from 0. Hypervisors may leave gaps.
    pub index: u32,
    /// How it was recognised.
    pub how: How,
}

/// How a thread was recognised as a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Named by QEMU: `CPU 0/KVM`, `CPU 0/MSHV`, or `CPU 0/TCG` when emulating with a thread for
    /// each vCPU.
    Qemu,
    /// Named by QEMU: `ALL CPUs/TCG`. All vCPUs of the VM take turns on this one thread.
    QemuSingleThread,
    /// Named by Firecracker: `fc_vcpu 0`.
    Firecracker,
    /// Named by Cloud Hypervisor: `vcpu0`.
    CloudHypervisor,
    /// Named by crosvm: `crosvm_vcpu0`.
    Crosvm,
    /// Named by kvmtool: `kvm-vcpu-0`.
    Kvmtool,
    /// Told by QEMU over its machine protocol.
    Qmp,
}

/// What stands before and after the number in a vCPU thread's name.
const NAMINGS: [(&str, &str, How); 7] = [
    ("CPU ", "/KVM", How::Qemu),
    ("CPU ", "/TCG", How::Qemu),
    ("CPU ", "/MSHV", How::Qemu),
    ("fc_vcpu ", "", How::Firecracker),
    ("vcpu", "", How::CloudHypervisor),
    ("crosvm_vcpu", "", How::Crosvm),
    ("kvm-vcpu-", "", How::Kvmtool),
];

/// The one name without a number.
const ALL_ON_ONE: &str = "ALL CPUs/TCG";

/// Why a VM's vCPU threads could not be told.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The process is not there, or ended meanwhile.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The process asked about.
        pid: i32,
    },
    /// Something about the process cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// What was to be read.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Neither names nor a monitor tell.
    #[error(
        "cannot find the vCPU threads of process {pid}: none has the name of one (`CPU 0/KVM`, \
         `CPU 0/MSHV`, `CPU 0/TCG`, `{ALL_ON_ONE}`, `fc_vcpu 0`, `vcpu0`, `crosvm_vcpu0`, \
         `kvm-vcpu-0`), and its command line opens no QMP socket (`-qmp unix:PATH`, or \
         `-chardev socket` and `-mon`)"
    )]
    NotFound {
        /// The process asked about.
        pid: i32,
    },
    /// Two threads are named as the same vCPU.
    #[error("threads {first} and {second} of process {pid} both have the name of vCPU {index}")]
    SameIndex {
        /// The process asked about.
        pid: i32,
        /// The vCPU.
        index: u32,
        /// One thread.
        first: i32,
        /// The other.
        second: i32,
    },
    /// The process acts as several users at once, as a set-user-id program does: nothing that its
    /// command line names is opened.
    #[error("process {pid} acts as several users at once, so its monitor is not asked")]
    SeveralUsers {
        /// The process asked about.
        pid: i32,
    },
    /// A monitor named a thread that the process does not have. It may number its threads in
    /// another PID namespace (a container), or not tell the truth.
    #[error("{} reports thread {tid} as vCPU {index}, but process {pid} has no such thread",
        socket.display())]
    NotItsThread {
        /// The process asked about.
        pid: i32,
        /// The thread named.
        tid: i32,
        /// The vCPU that it is said to be.
        index: u32,
        /// The monitor.
        socket: PathBuf,
    },
    /// The monitor was no help.
    #[error("cannot read the vCPUs over QMP from {}", socket.display())]
    Qmp {
        /// The monitor.
        socket: PathBuf,
        /// What went wrong.
        source: QmpError,
    },
}

impl FindError {
    /// What a person may do about it.
    #[must_use]
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotFound { .. } => Some(
                "start QEMU with `-name NAME,debug-threads=on`, or with \
                 `-qmp unix:PATH,server=on,wait=off`",
            ),
            Self::NotItsThread { .. } | Self::SeveralUsers { .. } | Self::Qmp { .. } => {
                Some("start QEMU with `-name NAME,debug-threads=on`, which needs no monitor")
            }
            Self::Unreadable { .. } => Some("run as root, or as the user that runs the VM"),
            Self::NoProcess { .. } | Self::SameIndex { .. } => None,
        }
    }
}

/// What went wrong between us and a monitor. No message shows what was received. Excerpts in the
/// fields are cut short and have no control characters; they are for whoever named the socket.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// Nobody is listening there, or not to us.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// So many clients wait for this monitor already that not even the connection came about.
    #[error("no connection within {PATIENCE_SECONDS} s: another client may use this monitor")]
    Busy,
    /// What listens there is neither the VM's process nor another one of its user.
    #[error("what listens there is process {pid} of uid {uid}, which is not the VM's user")]
    Stranger {
        /// The process that listens.
        pid: i32,
        /// Its user.
        uid: u32,
    },
    /// The connection failed in the middle.
    #[error("connection lost while waiting for {awaited}")]
    Lost {
        /// What should have come.
        awaited: &'static str,
        /// Why it did not.
        source: io::Error,
    },
    /// The other side hung up.
    #[error("disconnected instead of sending {awaited}")]
    Closed {
        /// What should have come.
        awaited: &'static str,
        /// The unfinished message, if one had begun.
        received: String,
    },
    /// Too slow, silent, or talking about other things all the time.
    #[error("{awaited} did not arrive within {PATIENCE_SECONDS} s ({events} events did)")]
    TooLate {
        /// What should have come.
        awaited: &'static str,
        /// How many asynchronous events came instead.
        events: u32,
        /// The unfinished message, if one had begun.
        received: String,
    },
    /// No monitor talks that long.
    #[error("a message of more than {LONGEST_MESSAGE} bytes arrived as {awaited}")]
    TooLong {
        /// What should have come.
        awaited: &'static str,
        /// How it begins.
        received: String,
    },
    /// Not JSON.
    #[error("{awaited} is not JSON")]
    NotJson {
        /// What should have come.
        awaited: &'static str,
        /// What came.
        received: String,
        /// Where it stops being JSON.
        why: serde_json::Error,
    },
    /// JSON, but not what QMP prescribes.
    #[error("{awaited} does not follow QMP")]
    Unexpected {
        /// What should have come.
        awaited: &'static str,
        /// What came.
        received: String,
    },
    /// The monitor understood, and declined.
    #[error("refused {awaited}")]
    Declined {
        /// What should have come.
        awaited: &'static str,
        /// Its reason.
        received: String,
    },
}

/// The vCPU threads of the VM that process `pid` is, in order of index. Never an empty list.
///
/// # Errors
///
/// When the process cannot be looked at, or nothing tells which threads are vCPUs.
pub fn find(pid: i32) -> Result<Vec<VcpuThread>, FindError> {
    let process = Process::open(pid)?;
    let named = process.named_vcpus()?;
    if !named.is_empty() {
        return Ok(named);
    }
    let socket = process.qmp_socket()?.ok_or(FindError::NotFound { pid })?;
    let rights = process.rights()?;
    let told = ask_for_vcpus(&socket, Some((pid, &rights)))
        .map_err(|source| FindError::Qmp { socket: socket.clone(), source })?;
    // Whoever starts a VM chooses what answers on that socket. It must not be able to have us stop
    // or favour a thread of somebody else's.
    for &VcpuThread { tid, index, .. } in &told {
        if !process.has_thread(tid) {
            return Err(FindError::NotItsThread { pid, tid, index, socket });
        }
    }
    Ok(told)
}

/// The vCPU threads of the VM that process `pid` is as far as names tell, in order of index: none
/// where they tell nothing. No monitor is asked, so this costs little and disturbs nobody.
///
/// # Errors
///
/// When the process cannot be looked at, or two threads are named as one vCPU.
pub fn find_named(pid: i32) -> Result<Vec<VcpuThread>, FindError> {
    Process::open(pid)?.named_vcpus()
}

/// The vCPU threads that the monitor on a UNIX socket tells of, in order of index. Which process
/// they belong to is not checked, and the socket is opened with our own rights; [`find`] does both.
///
/// # Errors
///
/// When there is no monitor, or it does not answer as QMP prescribes within two seconds.
pub fn find_by_qmp(socket: &Path) -> Result<Vec<VcpuThread>, FindError> {
    ask_for_vcpus(socket, None)
        .map_err(|source| FindError::Qmp { socket: socket.to_path_buf(), source })
}

/// The UNIX socket on which process `pid`, a QEMU, listens for QMP, going by its command line.
/// In a container the path may mean another file than it does here.
///
/// # Errors
///
/// When the process cannot be looked at.
pub fn find_qmp_socket(pid: i32) -> Result<Option<PathBuf>, FindError> {
    Process::open(pid)?.qmp_socket()
}

/// A process, held by its directory in `/proc`: should it end and its number be used again, reading
/// fails, rather than telling about a stranger.
struct Process {
    pid: i32,
    directory: OwnedFd,
}

impl Process {
    fn open(pid: i32) -> Result<Self, FindError> {
        let path = format!("/proc/{pid}");
        match rustix::fs::open(&path, FOLDER, Mode::empty()) {
            Ok(directory) => Ok(Self { pid, directory }),
            Err(Errno::NOENT) => Err(FindError::NoProcess { pid }),
            Err(errno) => Err(FindError::Unreadable { path: path.into(), source: errno.into() }),
        }
    }

    fn named_vcpus(&self) -> Result<Vec<VcpuThread>, FindError> {
        let mut found = Vec::new();
        for tid in self.threads()? {
            let name = match self.read(&format!("task/{tid}/comm")) {
                Ok(name) => name,
                // A thread that ended since it was listed is nobody's vCPU.
                Err(FindError::NoProcess { .. }) => continue,
                Err(error) => return Err(error),
            };
            if let Some((index, how)) = recognise(name.trim_ascii_end()) {
                found.push(VcpuThread { tid, index, how });
            }
        }
        found.sort_by_key(|thread| (thread.index, thread.tid));
        for pair in found.windows(2) {
            let (index, first, second) = (pair[0].index, pair[0].tid, pair[1].tid);
            if index == pair[1].index {
                return Err(FindError::SameIndex { pid: self.pid, index, first, second });
            }
        }
        Ok(found)
    }

    fn threads(&self) -> Result<Vec<i32>, FindError> {
        let list = || -> rustix::io::Result<Vec<i32>> {
            let mut threads = Vec::new();
            let tasks = rustix::fs::openat(&self.directory, "task", FOLDER, Mode::empty())?;
            for entry in Dir::new(tasks)? {
                threads.extend(entry?.file_name().to_string_lossy().parse::<i32>()); // Not `.`.
            }
            Ok(threads)
        };
        list().map_err(|errno| self.unreadable("task", errno.into()))
    }

    fn rights(&self) -> Result<OwnerRights, FindError> {
        let status = self.read("status")?;
        OwnerRights::parse(&status).ok_or(FindError::SeveralUsers { pid: self.pid })
    }

    fn has_thread(&self, tid: i32) -> bool {
        let path = format!("task/{tid}");
        rustix::fs::statat(&self.directory, path, AtFlags::empty()).is_ok()
    }

    fn qmp_socket(&self) -> Result<Option<PathBuf>, FindError> {
        let line = self.read("cmdline")?;
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        let Some(path) = qmp_socket_among(&words) else { return Ok(None) };
        if path.is_absolute() {
            return Ok(Some(path));
        }
        let start = rustix::fs::readlinkat(&self.directory, "cwd", Vec::new())
            .map_err(|errno| self.unreadable("cwd", errno.into()))?;
        Ok(Some(Path::new(OsStr::from_bytes(start.as_bytes())).join(path)))
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, FindError> {
        let read = || -> io::Result<Vec<u8>> {
            let file = rustix::fs::openat(&self.directory, path, FILE, Mode::empty())?;
            let mut content = Vec::new();
            File::from(file).read_to_end(&mut content)?;
            Ok(content)
        };
        read().map_err(|source| self.unreadable(path, source))
    }

    fn unreadable(&self, path: &str, source: io::Error) -> FindError {
        match Errno::from_io_error(&source) {
            Some(Errno::NOENT | Errno::SRCH) => FindError::NoProcess { pid: self.pid },
            _ => {
                let path = PathBuf::from(format!("/proc/{}/{path}", self.pid));
                FindError::Unreadable { path, source }
            }
        }
    }
}

/// Which vCPU a thread of this name carries, if it carries one.
pub(crate) fn recognise(name: &[u8]) -> Option<(u32, How)> {
    if name == ALL_ON_ONE.as_bytes() {
        return Some((0, How::QemuSingleThread));
    }
    NAMINGS.iter().find_map(|&(before, after, how)| {
        let rest = name.strip_prefix(before.as_bytes())?;
        let digits = rest.strip_suffix(after.as_bytes())?;
        // Parsing alone would let a sign through.
        let plain = digits.iter().all(u8::is_ascii_digit);
        let index = str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()?;
        Some((index, how))
    })
}

/// Asks a monitor. With a process and its rights, the monitor must be that process or another one
/// of its user.
fn ask_for_vcpus(
    socket: &Path,
    of: Option<(i32, &OwnerRights)>,
) -> Result<Vec<VcpuThread>, QmpError> {
    let stream = match of {
        None => connect(socket).map_err(failed_to_connect)?,
        Some((pid, rights)) => {
            let stream = rights.act(|| connect(socket)).map_err(failed_to_connect)?;
            check_peer(&stream, pid, rights.uid)?;
            stream
        }
    };
    let mut monitor = Monitor::new(stream)?;
    let greeting = monitor.message("the greeting")?;
    if greeting.get("QMP").is_none() {
        return Err(unexpected("the greeting", &greeting));
    }
    monitor.ask("qmp_capabilities", "an answer to qmp_capabilities")?;
    let awaited = "an answer to query-cpus-fast";
    let answer = monitor.ask("query-cpus-fast", awaited)?;
    let read = |cpu: &Value| -> Option<VcpuThread> {
        let index = cpu.get("cpu-index")?.as_u64()?.try_into().ok()?;
        let tid = cpu.get("thread-id")?.as_i64()?.try_into().ok()?;
        Some(VcpuThread { tid, index, how: How::Qmp })
    };
    let cpus = answer.as_array().filter(|cpus| !cpus.is_empty());
    let threads = cpus.and_then(|cpus| cpus.iter().map(read).collect::<Option<Vec<_>>>());
    let mut threads = threads.ok_or_else(|| unexpected(awaited, &answer))?;
    threads.sort_by_key(|thread| (thread.tid, thread.index));
    threads.dedup_by_key(|thread| thread.tid); // All vCPUs on one thread: it is their lowest.
    threads.sort_by_key(|thread| (thread.index, thread.tid));
    Ok(threads)
}

fn unexpected(awaited: &'static str, message: &Value) -> QmpError {
    QmpError::Unexpected { awaited, received: excerpt(message.to_string().as_bytes()) }
}

/// The beginning of a message, fit for a terminal.
fn excerpt(message: &[u8]) -> String {
    let message = message.trim_ascii();
    if message.is_empty() {
        return "nothing".to_owned();
    }
    // A character takes four bytes at most, so no more of a long message is looked at.
    let start = String::from_utf8_lossy(&message[..message.len().min(4 * (EXCERPT + 1))]);
    let visible = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let shown: String = start.chars().take(EXCERPT).map(visible).collect();
    let cut = if start.chars().nth(EXCERPT).is_some() { "…" } else { "" };
    format!("`{shown}{cut}`")
}

/// A conversation with a monitor: a message a line in both directions.
struct Monitor {
    stream: UnixStream,
    /// Goes off when patience ends. An alarm rather than a clock: there is no time to be read.
    alarm: OwnedFd,
    received: Vec<u8>,
    events: u32,
}

impl Monitor {
    fn new(stream: UnixStream) -> Result<Self, QmpError> {
        let alarm = set_alarm().map_err(|errno| QmpError::Connect(errno.into()))?;
        Ok(Self { stream, alarm, received: Vec::new(), events: 0 })
    }

    fn ask(&mut self, command: &str, awaited: &'static str) -> Result<Value, QmpError> {
        let request = format!("{{\"execute\":\"{command}\"}}\n");
        let lost = |source| QmpError::Lost { awaited, source };
        self.stream.write_all(request.as_bytes()).map_err(lost)?;
        let mut message = self.message(awaited)?;
        if let Some(answer) = message.get_mut("return") {
            return Ok(answer.take());
        }
        let Some(error) = message.get("error") else { return Err(unexpected(awaited, &message)) };
        Err(QmpError::Declined { awaited, received: excerpt(error.to_string().as_bytes()) })
    }

    /// The next message that is not an asynchronous event.
    fn message(&mut self, awaited: &'static str) -> Result<Value, QmpError> {
        loop {
            let line = self.line(awaited)?;
            let message: Value = serde_json::from_slice(&line)
                .map_err(|why| QmpError::NotJson { awaited, received: excerpt(&line), why })?;
            if message.get("event").is_none() {
                return Ok(message);
            }
            self.events += 1;
        }
    }

    fn line(&mut self, awaited: &'static str) -> Result<Vec<u8>, QmpError> {
        let mut searched = 0;
        let mut chunk = vec![0; 1 << 16];
        loop {
            let found = self.received[searched..].iter().position(|&byte| byte == b'\n');
            let length = found.map_or(self.received.len(), |at| searched + at + 1);
            if length > LONGEST_MESSAGE {
                return Err(QmpError::TooLong { awaited, received: excerpt(&self.received) });
            }
            if found.is_some() {
                let rest = self.received.split_off(length);
                return Ok(std::mem::replace(&mut self.received, rest));
            }
            searched = length;
            self.wait(awaited)?;
            let count = match self.stream.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                got => got.map_err(|source| QmpError::Lost { awaited, source })?,
            };
            if count == 0 {
                return Err(QmpError::Closed { awaited, received: excerpt(&self.received) });
            }
            self.received.extend_from_slice(&chunk[..count]);
        }
    }

    /// Until there is something to read, but not past the alarm, however much there is.
    fn wait(&self, awaited: &'static str) -> Result<(), QmpError> {
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut both = [readable(self.alarm.as_fd()), readable(self.stream.as_fd())];
        retry_on_intr(|| poll(&mut both, None))
            .map_err(|errno| QmpError::Lost { awaited, source: errno.into() })?;
        if both[0].revents().is_empty() {
            return Ok(());
        }
        Err(QmpError::TooLate { awaited, events: self.events, received: excerpt(&self.received) })
    }
}

fn set_alarm() -> rustix::io::Result<OwnedFd> {
    let alarm = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
    let seconds = |tv_sec| Timespec { tv_sec, tv_nsec: 0 };
    let after = Itimerspec { it_interval: seconds(0), it_value: seconds(PATIENCE_SECONDS.into()) };
    timerfd_settime(&alarm, TimerfdTimerFlags::empty(), &after)?;
    Ok(alarm)
}
