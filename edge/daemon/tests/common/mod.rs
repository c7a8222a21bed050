//! Test helper: a real front server (the part of the daemon that serves clients) with a simulated
//! daemon core (the part that decides). The test chooses the answers of the core.

#![allow(dead_code, unreachable_pub)] // Each topic uses its own part.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use slackline_control::link::{
    Answer, Ask, CoreMessage, LONGEST_ASKED, Lines, Request, line, message,
};
use slackline_control::{Event, Host, Length, Problem, Reservation, Role, State};
use slackline_daemon::front;
use slackline_daemon::people::People;
use slackline_units::Span;
use tempfile::TempDir;

/// Id of the group whose members are operators for the front server under test.
pub const OPERATORS: u32 = 65_534;

/// Function that simulates the daemon core: it answers the requests of the front server. If the
/// function returns `None`, the front server gets no answer.
pub type Says = fn(&Ask) -> Option<Result<Answer, Problem>>;

pub struct Front {
    pub socket: PathBuf,
    /// Requests that the simulated daemon core received and that the test has not read yet.
    asked: Mutex<Receiver<Ask>>,
    /// The simulated core's end of the link to the front server. The test sends events on it. The
    /// lock prevents events and the answers of the simulated core from mixing.
    core: Arc<Mutex<UnixStream>>,
    _folder: TempDir,
}

impl Front {
    /// Starts a front server that treats members of the test's own group as administrators.
    pub fn new(says: Says) -> Front {
        Front::with(says, None)
    }

    /// Starts a front server that serves local clients and clients on other hosts.
    pub fn with(says: Says, remote: Option<front::Remote>) -> Front {
        Front::with_metrics(says, remote, None)
    }

    /// Starts a front server that serves local clients, and metrics on a loopback socket.
    pub fn with_metrics(
        says: Says,
        remote: Option<front::Remote>,
        metrics: Option<TcpListener>,
    ) -> Front {
        Front::with_all(says, remote, (metrics, None))
    }

    /// Starts a front server that serves local clients, and metrics and the web page on loopback
    /// sockets.
    pub fn with_all(
        says: Says,
        remote: Option<front::Remote>,
        (metrics, page): (Option<TcpListener>, Option<front::PageSite>),
    ) -> Front {
        let gid = rustix::process::getgid().as_raw();
        let people = People { operators: Some(OPERATORS), administrators: Some(gid) };
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let peers = front::LoopbackPeers::open();
        let sockets = front::FrontSockets { listener, remote, metrics, page, peers };
        thread::spawn(move || front::serve(theirs, sockets, people).unwrap());
        let (tell, asked) = channel();
        let core = Arc::new(Mutex::new(ours.try_clone().unwrap()));
        let writes = Arc::clone(&core);
        thread::spawn(move || be_core((ours, &writes), says, &tell));
        Front { socket, asked: Mutex::new(asked), core, _folder: folder }
    }

    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        // No test may wait forever.
        stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
        stream
    }

    /// Returns the next request that the simulated daemon core receives. Waits up to ten seconds
    /// for it.
    pub fn heard(&self) -> Ask {
        self.asked.lock().unwrap().recv_timeout(Duration::from_secs(10)).unwrap()
    }

    /// Takes the next request that the simulated daemon core has received. Returns true if there
    /// was a request.
    pub fn has_asked(&self) -> bool {
        self.asked.lock().unwrap().try_recv().is_ok()
    }

    /// Returns the next request that the simulated daemon core has received. `None` if there is no
    /// request.
    pub fn next_heard(&self) -> Option<Ask> {
        self.asked.lock().unwrap().try_recv().ok()
    }

    /// Sends a request whose host header is `host` to the local socket. Returns the status and the
    /// body of the answer.
    pub fn until_host(&self, host: &str) -> (u16, String) {
        let request = format!("GET /v1/host HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let (text, _) = self.until_closed(request.as_bytes());
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        (status(head), body.to_owned())
    }

    /// Sends an event to the front server, as the daemon core would.
    pub fn happens(&self, event: Event) {
        self.all_happen([event]);
    }

    /// Sends several events to the front server in one write, as the daemon core does after a
    /// commit of many changes.
    pub fn all_happen(&self, events: impl IntoIterator<Item = Event>) {
        let lines = events.into_iter().flat_map(|event| line(&CoreMessage::Event(event)));
        self.core.lock().unwrap().write_all(&lines.collect::<Vec<u8>>()).unwrap();
    }

    /// Sends bytes, and reads until the front server closes the connection. Returns the received
    /// text, and the time for which the connection was open.
    pub fn until_closed(&self, bytes: &[u8]) -> (String, Duration) {
        let (mut stream, begun) = (self.connect(), Instant::now());
        stream.write_all(bytes).unwrap();
        let text = read_all(&mut stream);
        (text, begun.elapsed())
    }

    /// Sends one request on a new connection, with `more` as extra headers. Returns the status and
    /// the body of the answer.
    pub fn ask(&self, method: &str, path: &str, more: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n{more}content-length: \
             {length}\r\n\r\n{body}"
        );
        let (text, _) = self.until_closed(request.as_bytes());
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        (status(head), body.to_owned())
    }
}

/// A stream of server-sent events, with the text that has been received on it.
pub struct EventStream<S> {
    stream: S,
    pub text: String,
}

impl<S: Read + Write> EventStream<S> {
    /// Requests a stream on a new connection, with `headers` as header lines. Waits for the head of
    /// the answer.
    pub fn begin(mut stream: S, path: &str, headers: &str) -> EventStream<S> {
        let head = format!("GET {path} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut stream = EventStream { stream, text: String::new() };
        stream.read_until("\r\n\r\n");
        assert_eq!(status(&stream.text), 200, "{}", stream.text);
        stream
    }

    /// Reads from the stream until the received text contains `what`.
    pub fn read_until(&mut self, what: &str) {
        let mut part = vec![0; 65_536];
        while !self.text.contains(what) {
            let read = self.stream.read(&mut part).unwrap();
            assert!(read > 0, "the stream has ended before {what}: {}", self.text);
            self.text += &String::from_utf8_lossy(&part[..read]);
        }
    }

    /// Reads until the front server closes the stream, for at most a minute.
    pub fn read_to_end(mut self) {
        let begun = Instant::now();
        let mut part = vec![0; 65_536];
        // A stream that goes on sends something at least every ten seconds.
        while self.stream.read(&mut part).unwrap() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the stream does not end");
        }
    }

    /// Returns the ids of all received messages of the kind `kind`, in the order of their arrival.
    pub fn ids_of(&self, kind: &str) -> Vec<u64> {
        let marker = format!("\nevent: {kind}\n");
        let before = self.text.split(&marker).filter_map(|part| part.rsplit("id: ").next());
        before.filter_map(|id| id.parse().ok()).collect()
    }
}

pub fn status(text: &str) -> u16 {
    text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

/// Reads until the connection ends. A reset connection counts as ended.
pub fn read_all(stream: &mut UnixStream) -> String {
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(read) => all.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(error) => panic!("after {} bytes: {error}", all.len()),
        }
    }
    String::from_utf8(all).unwrap()
}

fn be_core((mut stream, core): (UnixStream, &Mutex<UnixStream>), says: Says, tell: &Sender<Ask>) {
    let (mut lines, mut part) = (Lines::new(LONGEST_ASKED), [0; 4096]);
    while let Ok(read @ 1..) = stream.read(&mut part) {
        lines.push(&part[..read]);
        while let Some(text) = lines.next_line().unwrap() {
            let ask: Ask = message(&text).unwrap();
            let said = says(&ask).map(|outcome| match outcome {
                Ok(answer) => CoreMessage::Answer { ticket: ask.ticket, answer },
                Err(problem) => {
                    CoreMessage::Refused { ticket: ask.ticket, problem: Box::new(problem) }
                }
            });
            // The test may have ended and no longer read requests.
            let _ = tell.send(ask);
            let write = |said| core.lock().unwrap().write_all(&line(&said));
            if said.is_some_and(|said| write(said).is_err()) {
                return;
            }
        }
    }
}

/// Answers a request like a daemon core that accepts every request.
pub fn fine(ask: &Ask) -> Option<Result<Answer, Problem>> {
    let done = |name: &str, is_new| {
        let reservation = Box::new(reservation(name));
        Answer::Done { reservation, is_new }
    };
    Some(Ok(match &ask.request {
        Request::Reserve { name, .. } => done(name, true),
        Request::Change { name, .. }
        | Request::Pause { name, .. }
        | Request::Resume { name, .. }
        | Request::Release { name, .. } => done(name, false),
        Request::List { name, .. } => {
            Answer::Reservations(vec![reservation(name.as_deref().unwrap_or("web"))])
        }
        Request::Log { before, .. } => {
            let last = before.unwrap_or(10);
            Answer::Events((1..last).rev().map(event).collect())
        }
        Request::Numbers => Answer::Numbers(Box::default()),
        Request::Whoami => Answer::You(Role::Administrator),
        Request::Timeline { .. } => Answer::Timeline(Box::default()),
        Request::Health => Answer::Health(slackline_control::Health {
            good: false,
            troubles: vec!["the disk is full".into()],
        }),
        Request::Find { .. } => Answer::Machines(Vec::new()),
        _ => Answer::Host(host()),
    }))
}

/// Returns no answer, like a daemon core that hangs.
pub fn silent(_: &Ask) -> Option<Result<Answer, Problem>> {
    None
}

pub fn host() -> Host {
    Host {
        name: "here".into(),
        version: "1".into(),
        policy: "edf".into(),
        cpus: Vec::new(),
        revision: 0,
        reserve_ppm: 100_000,
        reservations: 0,
        waiting: 0,
        clock: slackline_control::Clock { id: "here".into(), shows_ns: 0, error_ns: None },
    }
}

pub fn event(seq: u64) -> Event {
    Event {
        seq,
        at_ns: 1,
        principal: "uid 0".into(),
        verb: "reserve".into(),
        name: "web".into(),
        before: None,
        after: None,
        outcome: "reserve".into(),
        was_late: false,
    }
}

pub fn reservation(name: &str) -> Reservation {
    Reservation {
        name: name.into(),
        owner: "uid 0".into(),
        binding: format!("libvirt:{name}"),
        user: 0,
        slice: Length(Span::from_ms(2)),
        slice_ns: 2_000_000,
        period: Length(Span::from_ms(10)),
        period_ns: 10_000_000,
        exact: false,
        by_use: false,
        phase: None,
        phase_ns: None,
        enforce: slackline_control::Mechanism::Dispatcher,
        chosen: None,
        until: None,
        until_ns: None,
        gang: None,
        vcpus: 2,
        served: 2,
        state: State::Active,
        why: None,
        warning: None,
        revision: 7,
        recent: None,
        total: None,
        cost: None,
    }
}
