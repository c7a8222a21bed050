//! The front process, which serves clients. It is started with the listening socket and a link to
//! the core (the daemon's main thread), and restarted when it ends.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use slackline_linux::sys::{Scheduling, SchedulingOf, Tid, set_scheduling};

use slackline_control::link::{Ask, CoreMessage, LONGEST_ASKED, Lines, line, message};

use crate::front::handed::hand_over;

/// Maximum number of bytes that may wait for the front process to read them: twice the longest
/// answer. A front process with more unread bytes is replaced.
const MOST_UNREAD: usize = 8 * 1024 * 1024;

/// Maximum number of requests that the daemon's main thread reads from the front process at once,
/// before it returns to its other work.
const MOST_AT_ONCE: usize = 64;

/// Delay before a front process that ended is replaced. Without the delay, a front process that
/// cannot start would keep the host busy.
const PAUSE: Duration = Duration::from_millis(100);

/// Nice value of the front process. A negative value lets it answer administrators even while
/// processes of local users keep the CPUs busy.
const NICE: i32 = -20;

/// Command that starts a helper process: the front process, which serves clients, or a worker.
#[derive(Clone, Debug)]
pub struct FrontCommand {
    /// Path of the executable file.
    pub program: std::path::PathBuf,
    /// Arguments of the program. The front process receives its link to the daemon as standard
    /// input, and the listening socket as standard output.
    pub arguments: Vec<std::ffi::OsString>,
}

/// The front process, if it is running, and the command and sockets for starting it again.
pub(super) struct FrontProcess {
    command: FrontCommand,
    listener: UnixListener,
    /// Listening sockets for remote clients, metrics and the web page. They stay open while the
    /// front process is replaced, so that no client is refused.
    others: [Option<TcpListener>; 3],
    running: Option<Running>,
    /// Earliest time at which the front process is started again.
    next: Instant,
    /// Number of times that the front process was replaced.
    pub(super) restarts: u64,
}

struct Running {
    child: Child,
    link: UnixStream,
    lines: Lines,
    /// Bytes that are to be sent to the front process, and that the link has not accepted yet.
    unread: Vec<u8>,
}

impl FrontProcess {
    /// Starts the first front process.
    pub(super) fn start(
        command: FrontCommand,
        listener: UnixListener,
        others: [Option<TcpListener>; 3],
    ) -> io::Result<FrontProcess> {
        let running = Some(Running::start(&command, &listener, &others)?);
        let (next, restarts) = (Instant::now(), 0);
        Ok(FrontProcess { command, listener, others, running, next, restarts })
    }

    /// Returns the id of the front process, if it is running.
    pub(super) fn pid(&self) -> Option<Tid> {
        let id = self.running.as_ref()?.child.id();
        i32::try_from(id).ok().and_then(Tid::new)
    }

    /// Returns the descriptor of the link to the front process, to wait for its messages. `None` if
    /// the process is not running.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|running| running.link.as_fd())
    }

    /// Starts a new front process if none is running, and the last one ended at least [`PAUSE`]
    /// ago. Returns true if a new process was started.
    pub(super) fn look_after(&mut self) -> bool {
        let has_ended = |running: &mut Running| !matches!(running.child.try_wait(), Ok(None));
        if self.running.as_mut().is_some_and(has_ended) {
            self.drop_it();
        }
        if self.running.is_some() || Instant::now() < self.next {
            return false;
        }
        self.next = Instant::now() + PAUSE;
        self.running = Running::start(&self.command, &self.listener, &self.others).ok();
        self.restarts += u64::from(self.running.is_some());
        self.running.is_some()
    }

    /// Ends the front process, so that the next front process reads the TLS files again. Requests
    /// that were not answered are lost, and clients repeat them.
    pub(super) fn renew(&mut self) {
        self.drop_it();
        self.next = Instant::now();
    }

    fn drop_it(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
        self.next = Instant::now() + PAUSE;
    }

    /// Returns the requests that the front process has sent. If the process sends an invalid
    /// message, it is broken or compromised, and is replaced.
    pub(super) fn heard(&mut self) -> Vec<Ask> {
        let Some(running) = &mut self.running else { return Vec::new() };
        match running.read() {
            Ok(asked) => asked,
            Err(_) => {
                self.drop_it();
                Vec::new()
            }
        }
    }

    /// Sends a message to the front process without blocking. Bytes that the process does not
    /// accept yet are kept for later.
    pub(super) fn say(&mut self, said: &CoreMessage) {
        let Some(running) = &mut self.running else { return };
        running.unread.extend_from_slice(&line(said));
        if running.flush().is_err() || running.unread.len() > MOST_UNREAD {
            self.drop_it();
        }
    }

    /// Sends the bytes that the front process did not accept earlier.
    pub(super) fn flush(&mut self) {
        if self.running.as_mut().is_some_and(|running| running.flush().is_err()) {
            self.drop_it();
        }
    }

    /// Returns true if bytes for the front process still wait to be sent.
    pub(super) fn is_behind(&self) -> bool {
        self.running.as_ref().is_some_and(|running| !running.unread.is_empty())
    }
}

impl Drop for FrontProcess {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            // The front ends when the link closes. It answers pending requests first.
            drop(running.link);
            let deadline = Instant::now() + PAUSE;
            while matches!(running.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

impl Running {
    fn start(
        command: &FrontCommand,
        listener: &UnixListener,
        others: &[Option<TcpListener>],
    ) -> io::Result<Running> {
        let (link, theirs) = UnixStream::pair()?;
        link.set_nonblocking(true)?;
        for other in others.iter().flatten() {
            hand_over(&link, other)?;
        }
        let listening: OwnedFd = listener.as_fd().try_clone_to_owned()?;
        let mut child = Command::new(&command.program);
        child.args(&command.arguments).stdin(Stdio::from(OwnedFd::from(theirs)));
        let child = child.stdout(Stdio::from(listening)).spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Tid::new);
        let to = SchedulingOf { class: Scheduling::Other { nice: NICE }, reset_on_fork: false };
        // If the kernel refuses, the front keeps the nice value of the daemon.
        let _ = pid.map(|pid| set_scheduling(pid, &to));
        Ok(Running { child, link, lines: Lines::new(LONGEST_ASKED), unread: Vec::new() })
    }

    fn read(&mut self) -> io::Result<Vec<Ask>> {
        let mut asked = Vec::new();
        let mut bytes = [0; 64 * 1024];
        match self.link.read(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.lines.push(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        while asked.len() < MOST_AT_ONCE
            && let Some(line) = self.lines.next_line().map_err(io::Error::other)?
        {
            asked.push(message(&line).map_err(io::Error::other)?);
        }
        Ok(asked)
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.unread.is_empty() {
            match self.link.write(&self.unread) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => drop(self.unread.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
