//! The front process, which serves clients. The core (the daemon's main thread) starts the front
//! process with the listening socket and a link to the core. When the front process ends, the core
//! starts a new one.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use slackline_linux::sys::{Scheduling, SchedulingOf, Tid, set_scheduling};

use slackline_control::link::{
    Ask, CoreMessage, LONGEST_ASKED, LONGEST_SAID, Lines, Request, line, message,
};
use slackline_control::{Kind, Problem};

use slackline_units::Span;

use super::{BEHIND, ROUND};
use crate::front::handed::hand_over;

/// Maximum number of bytes that may wait until the front process reads them. The number allows for
/// eight of the longest answers, because answers of several threads can arrive together. A front
/// process with more unread bytes is replaced.
const MOST_UNREAD: usize = 32 * 1024 * 1024;

/// Number of unread bytes above which the core begins no further requests of the front process.
const UNREAD: usize = 2 * 1024 * 1024;

/// Maximum number of requests of the front process that the daemon's main thread reads in one
/// batch, before it returns to its other work.
const MOST_AT_ONCE: usize = 64;

/// Length of time for which the daemon's main thread handles requests of the front process in one
/// batch. After this time it begins no further request, and returns to its other work.
const HEARING: Duration = Duration::from_millis(20);

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
    /// Listening sockets for remote clients, metrics and the web page. The daemon keeps them open
    /// while it replaces the front process, so that no client is refused.
    others: [Option<TcpListener>; 3],
    running: Option<Running>,
    /// Earliest time at which the daemon may start the next front process.
    next: Instant,
    /// Number of times that the front process was replaced.
    pub(super) restarts: u64,
}

struct Running {
    child: Child,
    link: UnixStream,
    lines: Lines,
    /// Requests that were read from the link, and that the daemon's main thread has not begun yet.
    asked: VecDeque<Ask>,
    /// True if `lines` may still contain a complete line.
    has_lines: bool,
    /// Time after which the daemon's main thread begins no further request, and returns to its
    /// other work.
    until: Instant,
    /// Bytes for the front process that the link has not accepted yet.
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

    /// Returns the descriptor of the link to the front process. The core waits on it for messages
    /// of that process. `None` if the process is not running, or has left so many answers unread
    /// that its requests must wait.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        let running = self.running.as_ref().filter(|running| running.unread.len() <= UNREAD);
        running.map(|running| running.link.as_fd())
    }

    /// Returns the longest time for which the daemon's main thread may sleep. Zero if a request of
    /// the front process can be handled without waiting for the link.
    pub(super) fn longest_sleep(front: Option<&FrontProcess>) -> Span {
        match front {
            Some(front) if front.has_more() => Span::ZERO,
            Some(front) if front.is_behind() || front.fd().is_none() => BEHIND,
            _ => ROUND,
        }
    }

    fn has_more(&self) -> bool {
        self.running.as_ref().is_some_and(Running::has_more)
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

    /// Kills the front process, so that the next front process reads the TLS files again.
    /// Unanswered requests are lost, and clients send them again.
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

    /// Sends the bytes that the link did not accept earlier, and reads the requests of the front
    /// process. If the process sends an invalid message, it is broken or compromised, and the
    /// daemon replaces it.
    pub(super) fn hear(&mut self) {
        self.flush();
        if self.running.as_mut().is_some_and(|running| running.read().is_err()) {
            self.drop_it();
        }
    }

    /// Returns the next request that was read from the front process. `None` in three cases: no
    /// request was read, handling requests has taken [`HEARING`] since the call of
    /// [`hear`](FrontProcess::hear), or the front process has left too many answers unread.
    pub(super) fn next_ask(&mut self) -> Option<Ask> {
        let running = self.running.as_mut()?;
        let may_begin = running.unread.len() <= UNREAD && Instant::now() < running.until;
        may_begin.then(|| running.asked.pop_front())?
    }

    /// Sends a message to the front process without blocking. Bytes that the link does not accept
    /// yet are sent later. If an answer is too long for the link, a refusal is sent in its place.
    pub(super) fn say(&mut self, said: &CoreMessage) {
        let Some(running) = &mut self.running else { return };
        let Some(line) = line_within(said, LONGEST_SAID) else { return };
        running.unread.extend_from_slice(&line);
        if running.flush().is_err() || running.unread.len() > MOST_UNREAD {
            self.drop_it();
        }
    }

    /// Sends the bytes that the link did not accept earlier.
    fn flush(&mut self) {
        if self.running.as_mut().is_some_and(|running| running.flush().is_err()) {
            self.drop_it();
        }
    }

    /// Returns true if bytes for the front process are still waiting to be sent.
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
        Ok(Running {
            child,
            link,
            lines: Lines::new(LONGEST_ASKED),
            asked: VecDeque::new(),
            has_lines: false,
            until: Instant::now(),
            unread: Vec::new(),
        })
    }

    fn has_more(&self) -> bool {
        self.unread.len() <= UNREAD && (self.has_lines || !self.asked.is_empty())
    }

    /// Reads requests from the link, until [`MOST_AT_ONCE`] requests wait. Drops requests whose
    /// callers have disconnected.
    fn read(&mut self) -> io::Result<()> {
        self.until = Instant::now() + HEARING;
        if self.unread.len() > UNREAD {
            return Ok(());
        }
        if !self.has_lines {
            let mut bytes = [0; 64 * 1024];
            match self.link.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.lines.push(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            self.has_lines = true;
        }
        while self.asked.len() < MOST_AT_ONCE {
            let Some(line) = self.lines.next_line().map_err(io::Error::other)? else {
                self.has_lines = false;
                break;
            };
            self.asked.push_back(message(&line).map_err(io::Error::other)?);
        }
        let cancels = self.asked.iter().filter(|ask| matches!(ask.request, Request::Cancel));
        let cancelled: BTreeSet<u64> = cancels.map(|ask| ask.ticket).collect();
        let is_cancel = |ask: &Ask| matches!(ask.request, Request::Cancel);
        self.asked.retain(|ask| is_cancel(ask) || !cancelled.contains(&ask.ticket));
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        // The bytes are removed once, since each removal moves all that follow.
        let mut sent = 0;
        while sent < self.unread.len() {
            match self.link.write(&self.unread[sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        drop(self.unread.drain(..sent));
        Ok(())
    }
}

/// Returns a message as a line of at most `longest` bytes. If an answer is longer, the line is a
/// refusal instead. If an event is longer, returns `None`, because clients can read the event from
/// the ledger.
fn line_within(said: &CoreMessage, longest: usize) -> Option<Vec<u8>> {
    let whole = line(said);
    // The line break does not count.
    let length = whole.len() - 1;
    if length <= longest {
        return Some(whole);
    }
    let (CoreMessage::Answer { ticket, .. } | CoreMessage::Refused { ticket, .. }) = *said else {
        return None;
    };
    let detail = format!("the answer has {length} bytes; at most {longest} are allowed");
    let problem = Problem::new(Kind::TooLarge, detail);
    let problem = Box::new(problem.hinting("ask for less, such as a single VM or reservation"));
    Some(line(&CoreMessage::Refused { ticket, problem }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use slackline_control::link::{Answer, CallerIdentity};
    use slackline_control::{Machine, Role};

    use super::*;

    /// Starts a shell with `script` in place of the front process. Also returns the folder for its
    /// socket and files.
    fn front(script: &str) -> (FrontProcess, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let script = script.replace("FILE", &folder.path().join("heard").display().to_string());
        let command =
            FrontCommand { program: "/bin/sh".into(), arguments: vec!["-c".into(), script.into()] };
        (FrontProcess::start(command, listener, [None, None, None]).unwrap(), folder)
    }

    fn ask(ticket: u64, request: Request) -> Ask {
        let who = CallerIdentity::User { uid: 0, gids: Vec::new() };
        Ask { ticket, who, key: None, request }
    }

    #[test]
    fn overlong_answer_is_replaced_by_refusal_and_front_process_survives() {
        let (mut front, folder) = front("exec cat > FILE");
        let before = front.pid();
        let machine = Machine {
            kind: "qemu".into(),
            binding: "qemu:a".into(),
            name: "\u{1}".repeat(1 << 20),
            uid: 0,
            pid: 1,
            cpu_ppm: None,
            vcpus: Vec::new(),
            reserved: None,
            why: None,
        };
        front.say(&CoreMessage::Answer { ticket: 7, answer: Answer::Machines(vec![machine]) });
        let you = Answer::You(Role::Operator);
        front.say(&CoreMessage::Answer { ticket: 8, answer: you.clone() });
        let deadline = Instant::now() + Duration::from_secs(20);
        let heard = loop {
            front.flush();
            let text = fs::read(folder.path().join("heard")).unwrap_or_default();
            if text.iter().filter(|byte| **byte == b'\n').count() == 2 {
                break text;
            }
            assert!(Instant::now() < deadline, "{} bytes arrived", text.len());
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut lines = Lines::new(LONGEST_SAID);
        lines.push(&heard);
        let mut next = || message(&lines.next_line().unwrap().unwrap()).unwrap();
        let CoreMessage::Refused { ticket: 7, problem } = next() else { panic!("no refusal") };
        assert_eq!(problem.kind, Kind::TooLarge);
        assert!(problem.detail.ends_with("bytes; at most 4194304 are allowed"), "{problem:?}");
        assert_eq!(next(), CoreMessage::Answer { ticket: 8, answer: you });
        assert!(!front.look_after() && front.pid() == before && front.restarts == 0);
    }

    #[test]
    fn requests_beyond_one_batch_are_read_without_delay() {
        let (mut front, _folder) = front("exec sleep 60");
        let running = front.running.as_mut().unwrap();
        let asks: Vec<u8> = (0..100).flat_map(|ticket| line(&ask(ticket, Request::Host))).collect();
        running.lines.push(&asks);
        running.lines.push(&line(&ask(99, Request::Cancel)));
        let mut heard = Vec::new();
        front.hear();
        while FrontProcess::longest_sleep(Some(&front)) == Span::ZERO {
            while let Some(ask) = front.next_ask() {
                heard.push(ask);
            }
            front.hear();
        }
        let tickets: Vec<u64> = heard.iter().map(|ask| ask.ticket).collect();
        assert_eq!(tickets, (0..100).collect::<Vec<_>>());
        assert_eq!(heard[99].request, Request::Cancel, "the caller of request 99 has left");
    }

    #[test]
    fn requests_wait_while_front_process_leaves_too_many_answers_unread() {
        let (mut front, _folder) = front("exec sleep 60");
        let running = front.running.as_mut().unwrap();
        running.lines.push(&line(&ask(1, Request::Host)));
        running.unread = vec![b'\n'; UNREAD + (1 << 20)];
        front.hear();
        assert!(front.fd().is_none() && FrontProcess::longest_sleep(Some(&front)) == BEHIND);
        assert_eq!(front.next_ask(), None);
        front.running.as_mut().unwrap().unread.clear();
        front.hear();
        assert_eq!(front.next_ask().map(|ask| ask.ticket), Some(1));
    }
}
