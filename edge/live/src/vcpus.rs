//! Search for the threads that run a VM's vCPUs, and for the index of the vCPU of each thread.
//!
//! To the kernel a vCPU is one thread of the VM's process. The other threads of that process
//! emulate devices and answer monitors, and must not be scheduled as vCPUs. The kernel does not
//! distinguish the two kinds of threads. Two sources show which threads are vCPUs:
//!
//! - **Names.** Most hypervisors name their vCPU threads. QEMU does so with
//!   `-name NAME,debug-threads=on`, which libvirt always gives. Names are read first, because
//!   reading them does not disturb the VM. A guest cannot influence the names.
//! - **The monitor.** QEMU reports vCPUs over its machine protocol (QMP). A socket serves one
//!   client at a time, so the monitor is asked only if no thread has a known name. If another
//!   client, such as libvirt, uses the socket, no answer arrives, and the search fails after two
//!   seconds. The socket's path is on the VM's command line, which the VM's user wrote. So
//!   Slackline connects with that user's rights, and only to a process of that user. Error messages
//!   do not show received data, which may be another user's secret.
//!
//! Results are sorted by index. [`find`] checks that every thread that it returns belongs to the
//! process, even if a monitor has reported the thread. If a VM is just starting, some of its
//! threads may be missing in the result.
//!
//! Without multi-threaded emulation (`-accel tcg,thread=single`) QEMU runs all vCPUs in turn on one
//! thread. Only this one thread can be scheduled, so the result has one entry, with index 0.

mod command_line;
mod connecting;
mod owner;
pub mod qemu_options;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use serde_json::Value;

use slackline_linux::sys::OwnerRights;
use slackline_units::is_unseen;

pub use command_line::{LONGEST_LINE, find_qmp_socket};
use connecting::{check_peer, connect, failed_to_connect, set_alarm};

/// Timeout of a whole conversation with a monitor, in seconds. QEMU answers within milliseconds,
/// even when it emulates the CPU. A longer time means that the process is stopped, or that another
/// client uses the monitor.
const PATIENCE_SECONDS: u32 = 2;

/// Maximum size of a message, in bytes. The longest message is a list of 4096 vCPUs, QEMU's
/// maximum, with about 200 bytes for each.
const LONGEST_MESSAGE: usize = 1 << 20;

/// Maximum length of the part of a message that an error quotes, in characters: about two lines.
const EXCERPT: usize = 160;

const FILE: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);
const FOLDER: OFlags = FILE.union(OFlags::DIRECTORY);

/// A thread that runs a vCPU of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuThread {
    /// Kernel's id of the thread.
    pub tid: i32,
    /// Index of the vCPU in the VM, from 0. The indexes may have gaps.
    pub index: u32,
    /// Source that shows that the thread runs a vCPU.
    pub how: RecognitionSource,
}

/// Source that shows that a thread runs a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecognitionSource {
    /// Thread name given by QEMU: `CPU 0/KVM`, `CPU 0/MSHV`, or `CPU 0/TCG` when emulating with a
    /// thread for each vCPU.
    Qemu,
    /// Thread name given by QEMU: `ALL CPUs/TCG`. All vCPUs of the VM take turns on this one
    /// thread.
    QemuSingleThread,
    /// Thread name given by Firecracker: `fc_vcpu 0`.
    Firecracker,
    /// Thread name given by Cloud Hypervisor: `vcpu0`.
    CloudHypervisor,
    /// Thread name given by crosvm: `crosvm_vcpu0`.
    Crosvm,
    /// Thread name given by kvmtool: `kvm-vcpu-0`.
    Kvmtool,
    /// Report of QEMU over its machine protocol (QMP).
    Qmp,
}

/// Thread names of each hypervisor: text before the vCPU's index, text after the index, source.
const NAMINGS: [(&str, &str, RecognitionSource); 7] = [
    ("CPU ", "/KVM", RecognitionSource::Qemu),
    ("CPU ", "/TCG", RecognitionSource::Qemu),
    ("CPU ", "/MSHV", RecognitionSource::Qemu),
    ("fc_vcpu ", "", RecognitionSource::Firecracker),
    ("vcpu", "", RecognitionSource::CloudHypervisor),
    ("crosvm_vcpu", "", RecognitionSource::Crosvm),
    ("kvm-vcpu-", "", RecognitionSource::Kvmtool),
];

/// Name of QEMU's thread that runs all vCPUs. This is the only known name without an index.
const ALL_ON_ONE: &str = "ALL CPUs/TCG";

/// Reason why the vCPU threads of a VM could not be found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The process does not exist, or exited during the search.
    #[error("there is no process {pid}")]
    NoProcess {
        /// Id of the process.
        pid: i32,
    },
    /// A file about the process in `/proc` cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of reading the file.
        source: io::Error,
    },
    /// Neither thread names nor a monitor show which threads run vCPUs.
    #[error(
        "cannot find the vCPU threads of process {pid}: no thread has the name of a vCPU \
         (`CPU 0/KVM`, `CPU 0/MSHV`, `CPU 0/TCG`, `{ALL_ON_ONE}`, `fc_vcpu 0`, `vcpu0`, \
         `crosvm_vcpu0`, `kvm-vcpu-0`), and its command line opens no QMP socket \
         (`-qmp unix:PATH`, or `-chardev socket` and `-mon`)"
    )]
    NotFound {
        /// Id of the process.
        pid: i32,
    },
    /// The command line is longer than the part of it that is read, and no QMP socket is in that
    /// part.
    #[error(
        "cannot find the vCPU threads of process {pid}: no thread has the name of a vCPU, and the \
         first {LONGEST_LINE} bytes of its command line open no QMP socket; the rest is not read"
    )]
    LongLine {
        /// Id of the process.
        pid: i32,
    },
    /// Two threads have names with the same vCPU index.
    #[error("threads {first} and {second} of process {pid} both have the name of vCPU {index}")]
    SameIndex {
        /// Id of the process.
        pid: i32,
        /// Index of the vCPU.
        index: u32,
        /// Id of the first of the two threads.
        first: i32,
        /// Id of the second of the two threads.
        second: i32,
    },
    /// The process acts as several users at once, or it runs a set-user-id program of root.
    /// Slackline opens no file that such a process names on its command line.
    #[error(
        "cannot ask the monitor of process {pid}: real, effective and saved user ids of the \
         process differ, or its program is set-user-id"
    )]
    SeveralUsers {
        /// Id of the process.
        pid: i32,
    },
    /// The user of the process changed during the search, so its monitor was not asked.
    #[error("cannot ask the monitor of process {pid}: the user of the process changed")]
    Changed {
        /// Id of the process.
        pid: i32,
    },
    /// A monitor reported a thread that the process does not have. Either the monitor's thread ids
    /// belong to another PID namespace, such as a container's, or the report is false.
    #[error("{} reports thread {tid} as vCPU {index}, but process {pid} has no such thread",
        socket.display())]
    NotItsThread {
        /// Id of the process.
        pid: i32,
        /// Thread id that the monitor reported.
        tid: i32,
        /// Index of the vCPU that the monitor reported for the thread.
        index: u32,
        /// Path of the monitor's socket.
        socket: PathBuf,
    },
    /// The conversation with the monitor did not yield the list of vCPUs.
    #[error("cannot read the vCPUs over QMP from {}", socket.display())]
    Qmp {
        /// Path of the monitor's socket.
        socket: PathBuf,
        /// Error of the conversation.
        source: QmpError,
    },
}

impl FindError {
    /// Returns one line of advice for the user. `None` if there is no advice for this error.
    #[must_use]
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotFound { .. } => Some(
                "start QEMU with `-name NAME,debug-threads=on`, or with \
                 `-qmp unix:PATH,server=on,wait=off`",
            ),
            Self::NotItsThread { .. }
            | Self::SeveralUsers { .. }
            | Self::Changed { .. }
            | Self::Qmp { .. }
            | Self::LongLine { .. } => {
                Some("start QEMU with `-name NAME,debug-threads=on`, which needs no monitor")
            }
            Self::Unreadable { .. } => Some("run as root, or as the user that runs the VM"),
            Self::NoProcess { .. } | Self::SameIndex { .. } => None,
        }
    }
}

/// Error of a conversation with a monitor. The `Display` text never quotes received data. The
/// fields have excerpts of the data without control characters, for the user who named the socket.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// No process listens on the socket, or the socket refuses the connection.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// So many clients wait for this monitor that the connection was not accepted.
    #[error("no connection within {PATIENCE_SECONDS} s: the monitor may be serving another client")]
    Busy,
    /// The listening process is neither the VM's process nor another process of the same user.
    #[error("process {pid} of uid {uid} listens on the socket, and uid {uid} is not the VM's user")]
    Stranger {
        /// Id of the listening process.
        pid: i32,
        /// User id of the listening process.
        uid: u32,
    },
    /// The connection failed during the conversation.
    #[error("connection lost while waiting for {awaited}")]
    Lost {
        /// Message that was expected when the connection failed.
        awaited: &'static str,
        /// Error of the connection.
        source: io::Error,
    },
    /// The monitor closed the connection.
    #[error("the monitor disconnected instead of sending {awaited}")]
    Closed {
        /// Message that was expected when the monitor closed the connection.
        awaited: &'static str,
        /// Start of an incomplete message, or `nothing` if no byte arrived.
        received: String,
    },
    /// The message did not arrive in time: the monitor was slow, silent, or sent only events.
    #[error("{awaited} did not arrive within {PATIENCE_SECONDS} s; {events} events arrived")]
    TooLate {
        /// Kind of message that the monitor was expected to send.
        awaited: &'static str,
        /// Number of asynchronous events that arrived while the message was awaited.
        events: u32,
        /// Start of an incomplete message, or `nothing` if no byte arrived.
        received: String,
    },
    /// A message is longer than any message that a monitor sends.
    #[error("{awaited} has more than {LONGEST_MESSAGE} bytes, the maximum")]
    TooLong {
        /// Kind of message that the monitor was expected to send.
        awaited: &'static str,
        /// Start of the message that was received.
        received: String,
    },
    /// A message is not valid JSON.
    #[error("{awaited} is not JSON")]
    NotJson {
        /// Kind of message that the monitor was expected to send.
        awaited: &'static str,
        /// Start of the message that was received.
        received: String,
        /// Error of the JSON parser, with its position.
        why: serde_json::Error,
    },
    /// A message is valid JSON but not a valid message of QMP.
    #[error("{awaited} is not a valid QMP message")]
    Unexpected {
        /// Kind of message that the monitor was expected to send.
        awaited: &'static str,
        /// Start of the message that was received.
        received: String,
    },
    /// The monitor understood the command and refused it.
    #[error("the monitor sent an error instead of {awaited}")]
    Declined {
        /// Kind of message that the monitor was expected to send.
        awaited: &'static str,
        /// Reason given by the monitor.
        received: String,
    },
}

/// Finds the vCPU threads of the VM with process id `pid`, in order of index. If there is none, an
/// error.
///
/// # Errors
/// If the process cannot be examined, or neither names nor a monitor identify its vCPU threads.
pub fn find(pid: i32) -> Result<Vec<VcpuThread>, FindError> {
    find_of_user(pid, None)
}

/// Finds the vCPU threads as [`find`] does. If `user` is given, the monitor is asked only if the
/// process runs as that user.
///
/// # Errors
/// On the same conditions as [`find`]. [`FindError::Changed`] if the process runs as another user.
pub fn find_of_user(pid: i32, user: Option<u32>) -> Result<Vec<VcpuThread>, FindError> {
    let process = Process::open(pid)?;
    let named = process.named_vcpus()?;
    if !named.is_empty() {
        return Ok(named);
    }
    let (socket, rights) = process.monitor(user)?;
    let told = ask_for_vcpus(&socket, Some((pid, &rights)))
        .map_err(|source| FindError::Qmp { socket: socket.clone(), source })?;
    // The user who starts a VM chooses which program answers on that socket. The program must not
    // be able to make Slackline stop or favour another user's thread.
    for &VcpuThread { tid, index, .. } in &told {
        if !process.has_thread(tid) {
            return Err(FindError::NotItsThread { pid, tid, index, socket });
        }
    }
    Ok(told)
}

/// Finds the vCPU threads of the VM with process id `pid` by their names, in order of index. If no
/// thread has the name of a vCPU thread, the list is empty. The search asks no monitor, so it is
/// cheap and does not disturb the VM.
///
/// # Errors
/// If the process cannot be examined, or two threads have the name of the same vCPU.
pub fn find_named(pid: i32) -> Result<Vec<VcpuThread>, FindError> {
    Process::open(pid)?.named_vcpus()
}

/// Finds all threads of process `pid` that have names of vCPU threads, in order of index. Several
/// threads may have the name of the same vCPU, unlike in the result of [`find_named`].
///
/// # Errors
/// If the process cannot be examined.
pub fn find_all_named(pid: i32) -> Result<Vec<VcpuThread>, FindError> {
    Process::open(pid)?.named_threads()
}

/// Returns the vCPU threads that the monitor on a UNIX socket reports, in order of index. This
/// function opens the socket with the caller's rights and does not check to which process the
/// threads belong. [`find`] checks this, and uses the rights of the VM's user.
///
/// # Errors
/// If there is no monitor, or the monitor does not answer as QMP prescribes within two seconds.
pub fn find_by_qmp(socket: &Path) -> Result<Vec<VcpuThread>, FindError> {
    ask_for_vcpus(socket, None)
        .map_err(|source| FindError::Qmp { socket: socket.to_path_buf(), source })
}

/// A process, referred to by its open directory in `/proc`. If the process exits and its id is
/// reused, reading fails instead of returning data of another process.
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

    /// Returns all threads with names of vCPU threads, in order of index. Several threads may have
    /// the name of the same vCPU.
    fn named_threads(&self) -> Result<Vec<VcpuThread>, FindError> {
        let mut found = Vec::new();
        for tid in self.threads()? {
            let name = match self.read(&format!("task/{tid}/comm")) {
                Ok(name) => name,
                // A thread that has exited since it was listed runs no vCPU.
                Err(FindError::NoProcess { .. }) => continue,
                Err(error) => return Err(error),
            };
            if let Some((index, how)) = recognise(name.trim_ascii_end()) {
                found.push(VcpuThread { tid, index, how });
            }
        }
        found.sort_by_key(|thread| (thread.index, thread.tid));
        Ok(found)
    }

    fn named_vcpus(&self) -> Result<Vec<VcpuThread>, FindError> {
        let found = self.named_threads()?;
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

    fn has_thread(&self, tid: i32) -> bool {
        let path = format!("task/{tid}");
        rustix::fs::statat(&self.directory, path, AtFlags::empty()).is_ok()
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

/// Returns the index of the vCPU that a thread with this name runs, and the source of the name.
/// `None` if the name is not the name of a vCPU thread.
pub(crate) fn recognise(name: &[u8]) -> Option<(u32, RecognitionSource)> {
    if name == ALL_ON_ONE.as_bytes() {
        return Some((0, RecognitionSource::QemuSingleThread));
    }
    NAMINGS.iter().find_map(|&(before, after, how)| {
        let rest = name.strip_prefix(before.as_bytes())?;
        let digits = rest.strip_suffix(after.as_bytes())?;
        // Parsing alone would accept a sign.
        let plain = digits.iter().all(u8::is_ascii_digit);
        let index = str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()?;
        Some((index, how))
    })
}

/// Asks a monitor for its vCPUs. If a process is given, the monitor must be that process or another
/// process of the same user.
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
        Some(VcpuThread { tid, index, how: RecognitionSource::Qmp })
    };
    let cpus = answer.as_array().filter(|cpus| !cpus.is_empty());
    let threads = cpus.and_then(|cpus| cpus.iter().map(read).collect::<Option<Vec<_>>>());
    let mut threads = threads.ok_or_else(|| unexpected(awaited, &answer))?;
    threads.sort_by_key(|thread| (thread.tid, thread.index));
    threads.dedup_by_key(|thread| thread.tid); // Keeps the lowest of several vCPUs on one thread.
    threads.sort_by_key(|thread| (thread.index, thread.tid));
    Ok(threads)
}

fn unexpected(awaited: &'static str, message: &Value) -> QmpError {
    QmpError::Unexpected { awaited, received: excerpt(message.to_string().as_bytes()) }
}

/// Returns the start of a message, for use in the text of an error. Control characters are
/// replaced, so that a terminal can show the text.
fn excerpt(message: &[u8]) -> String {
    let message = message.trim_ascii();
    if message.is_empty() {
        return "nothing".to_owned();
    }
    // A character takes at most four bytes, so these bytes have more than `EXCERPT` characters.
    let start = String::from_utf8_lossy(&message[..message.len().min(4 * (EXCERPT + 1))]);
    let hides = |c: char| c.is_control() || is_unseen(c);
    let visible = |c: char| if hides(c) { char::REPLACEMENT_CHARACTER } else { c };
    let shown: String = start.chars().take(EXCERPT).map(visible).collect();
    let cut = if start.chars().nth(EXCERPT).is_some() { "…" } else { "" };
    format!("`{shown}{cut}`")
}

/// A conversation with a monitor: one message per line in both directions.
struct Monitor {
    stream: UnixStream,
    /// Timer that expires at the end of the timeout of the whole conversation.
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

    /// Reads the next message that is not an asynchronous event.
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

    /// Waits until there is data to read. Fails at the timeout of the conversation, even if data
    /// keeps arriving.
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
