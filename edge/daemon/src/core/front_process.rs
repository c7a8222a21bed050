//! The front as a process: started with the listening socket and a link, and again when it ends.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use slackline_linux::sys::{Scheduling, SchedulingOf, Tid, set_scheduling};

use slackline_control::link::{Ask, LONGEST_ASKED, Lines, Said, line, message};

use crate::front::handed::hand_over;

/// So much may wait to be read by the front; then it is taken for dead. Twice the longest answer.
const MOST_UNREAD: usize = 8 * 1024 * 1024;

/// So many requests are read at once: what else is to be done is done before the next.
const MOST_AT_ONCE: usize = 64;

/// How long it takes until a front that ended is replaced, so that one that cannot start does not
/// keep the machine busy.
const PAUSE: Duration = Duration::from_millis(100);

/// Nice value of the front. Administrators wait for it while local users keep the CPUs busy.
const NICE: i32 = -10;

/// How a front is started.
#[derive(Clone, Debug)]
pub struct FrontCommand {
    /// The program.
    pub program: std::path::PathBuf,
    /// Its arguments. Its standard input is the link, its standard output the listening socket.
    pub arguments: Vec<std::ffi::OsString>,
}

/// The front, as far as there is one.
pub(super) struct FrontProcess {
    command: FrontCommand,
    listener: UnixListener,
    /// For other machines: kept over all fronts, so that nobody is refused meanwhile.
    remote: Option<TcpListener>,
    running: Option<Running>,
    /// When the next may be started.
    next: Instant,
    /// How many had to be replaced.
    pub(super) restarts: u64,
}

struct Running {
    child: Child,
    link: UnixStream,
    lines: Lines,
    /// What it has not read yet.
    unread: Vec<u8>,
}

impl FrontProcess {
    /// Starts the first one.
    pub(super) fn start(
        command: FrontCommand,
        listener: UnixListener,
        remote: Option<TcpListener>,
    ) -> io::Result<FrontProcess> {
        let running = Some(Running::start(&command, &listener, remote.as_ref())?);
        let (next, restarts) = (Instant::now(), 0);
        Ok(FrontProcess { command, listener, remote, running, next, restarts })
    }

    /// Its process.
    pub(super) fn pid(&self) -> Option<Tid> {
        let id = self.running.as_ref()?.child.id();
        i32::try_from(id).ok().and_then(Tid::new)
    }

    /// What to wait for: its link.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|running| running.link.as_fd())
    }

    /// Whether it is there; if not, another one is started once it is time. Says whether one was.
    pub(super) fn look_after(&mut self) -> bool {
        let has_ended = |running: &mut Running| !matches!(running.child.try_wait(), Ok(None));
        if self.running.as_mut().is_some_and(has_ended) {
            self.drop_it();
        }
        if self.running.is_some() || Instant::now() < self.next {
            return false;
        }
        self.next = Instant::now() + PAUSE;
        let remote = self.remote.as_ref();
        self.running = Running::start(&self.command, &self.listener, remote).ok();
        self.restarts += u64::from(self.running.is_some());
        self.running.is_some()
    }

    /// Another one is to be started, which reads its files anew. What this one was asked and has
    /// not answered is asked again by who wants to know.
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

    /// What it asks. One that says what makes no sense is replaced: it is broken, or somebody
    /// else's by now.
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

    /// Says something to it. It never waits: what it does not read is kept for a while.
    pub(super) fn say(&mut self, said: &Said) {
        let Some(running) = &mut self.running else { return };
        running.unread.extend_from_slice(&line(said));
        if running.flush().is_err() || running.unread.len() > MOST_UNREAD {
            self.drop_it();
        }
    }

    /// Says what could not be said before.
    pub(super) fn flush(&mut self) {
        if self.running.as_mut().is_some_and(|running| running.flush().is_err()) {
            self.drop_it();
        }
    }

    /// Whether something is still to be said.
    pub(super) fn is_behind(&self) -> bool {
        self.running.as_ref().is_some_and(|running| !running.unread.is_empty())
    }
}

impl Drop for FrontProcess {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            // It ends when the link does; what is under way there is answered first.
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
        remote: Option<&TcpListener>,
    ) -> io::Result<Running> {
        let (link, theirs) = UnixStream::pair()?;
        link.set_nonblocking(true)?;
        if let Some(remote) = remote {
            hand_over(&link, remote)?;
        }
        let listening: OwnedFd = listener.as_fd().try_clone_to_owned()?;
        let mut child = Command::new(&command.program);
        child.args(&command.arguments).stdin(Stdio::from(OwnedFd::from(theirs)));
        let child = child.stdout(Stdio::from(listening)).spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Tid::new);
        let to = SchedulingOf { class: Scheduling::Other { nice: NICE }, reset_on_fork: false };
        // Where the kernel refuses, it is as urgent as other processes.
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
