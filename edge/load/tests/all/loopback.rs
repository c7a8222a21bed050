//! Tests of tasks that need devices, and of their clients, over the real loopback and with a real
//! disk.
//!
//! The assertions hold on any test machine, even if it is busy: every request is answered or lost,
//! and client and server count equal numbers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use slackline_load::client::{ClientTask, ask, port_for};
use slackline_load::system::{SystemClients, SystemParameters, serve};
use slackline_load::{LoadError, LoadResults, Note, NoteReader, Options, Ports};
use slackline_scenario::io::{ClientKind, Direction, PingEnds};
use slackline_scenario::{Draw, Purpose, Scenario, Stream};
use slackline_units::{DomId, Span};

/// Time limit that no test here reaches.
const LONG: Span = Span::from_secs(60);

/// Returns the parameters of a system. `work` is the TOML text of the system's tasks, as in a
/// scenario.
fn serving(work: &str, from: SystemClients) -> SystemParameters {
    let text = format!(
        "title = \"it\"\nlength = \"1s\"\npolicy = {{ name = \"round-robin\" }}\n\
         [driver]\ndomain = \"it\"\n[[domain]]\nname = \"it\"\n{work}\n"
    );
    let system = Scenario::read(&text).unwrap().domains.remove(0).system.unwrap();
    SystemParameters {
        tasks: system.tasks,
        seed: 1,
        domain: DomId::new(0),
        connections: system.connections,
        from,
        port: 0,
        file_server: None,
        folder: std::env::temp_dir(),
    }
}

/// A server that runs on a thread of the test until it is requested to end.
struct Server {
    ports: Ports,
    stop: OwnedFd,
    notes: OwnedFd,
    thread: JoinHandle<Result<LoadResults, LoadError>>,
}

impl Server {
    fn start(serving: SystemParameters) -> Server {
        let (tell, told) = mpsc::channel();
        let (stopped, stop) = rustix::pipe::pipe().unwrap();
        let (notes, jobs) = rustix::pipe::pipe().unwrap();
        let options = Options { jobs: Some(jobs), stop: Some(stopped), ..Options::default() };
        let body = move || serve(&serving, options, &mut |ports| tell.send(ports).unwrap());
        let thread = thread::spawn(body);
        Server { ports: told.recv().unwrap(), stop, notes, thread }
    }

    fn end(self) -> (LoadResults, Vec<Note>) {
        drop(self.stop);
        let done = self.thread.join().unwrap().unwrap();
        (done, all_notes(self.notes))
    }
}

fn all_notes(pipe: OwnedFd) -> Vec<Note> {
    let mut bytes = Vec::new();
    std::fs::File::from(pipe).read_to_end(&mut bytes).unwrap();
    let mut reader = NoteReader::default();
    let notes = reader.take(&bytes);
    assert!(!reader.is_torn());
    notes
}

fn client(
    kind: ClientKind,
    ports: Ports,
    count: Option<u64>,
    until: Span,
) -> (LoadResults, Vec<Note>) {
    let (notes, jobs) = rustix::pipe::pipe().unwrap();
    let draws = Stream::new(1, 0, Purpose::Client);
    let port = port_for(&kind, ports);
    let asking = ClientTask { kind, port, socket: None, draws, until: Some(until), count };
    let options = Options { jobs: Some(jobs), ..Options::default() };
    let done = ask(&asking, options).unwrap();
    (done, all_notes(notes))
}

fn httperf(a_second: u64, timeout: Span) -> ClientKind {
    let every = Draw::Exponential { mean: Span::from_secs(1) / a_second };
    ClientKind::Open { every, timeout, retry: LONG }
}

fn moved(notes: &[Note]) -> u64 {
    let bytes = |note: &Note| if let Note::Moved { bytes, .. } = note { *bytes } else { 0 };
    notes.iter().map(bytes).sum()
}

fn count(notes: &[Note], wanted: fn(&Note) -> bool) -> u64 {
    notes.iter().filter(|note| wanted(note)).count() as u64
}

/// Returns a closed client with `at_once` connections. The client sends the next request when the
/// time `think` has passed after an answer.
fn closed(at_once: u32, think: Span) -> ClientKind {
    ClientKind::Closed { at_once, think: Draw::Fixed(think) }
}

fn is_job(note: &Note) -> bool {
    matches!(note, Note::Job(job) if job.released <= job.done && job.deadline.is_none())
}

fn is_loss(note: &Note) -> bool {
    matches!(note, Note::Lost { .. })
}

const WEB: &str = "work = { kind = \"web-server\", each = \"uniform 20us 60us\", \
                   response = \"100KiB\", processes = 2 }";

#[test]
fn web_load_answers_every_client_request_completely() {
    let server = Server::start(serving(WEB, SystemClients::default()));
    let clients = [(httperf(2000, LONG), 60), (closed(4, Span::ZERO), 80)];
    for (kind, number) in clients {
        let (done, notes) = client(kind, server.ports, Some(number), LONG);
        assert_eq!((done.asked, done.answered, done.lost), (number, number, 0), "{kind:?}");
        assert_eq!(done.received, number * 102_400);
        assert_eq!((count(&notes, is_job), notes.len() as u64), (number, number));
        let responses = done.responses.unwrap();
        assert!(responses.p50 <= responses.p99 && responses.p99 <= Some(responses.worst));
        // The server computes for at least 20 us per request.
        assert!(responses.worst >= Span::from_us(20) && responses.worst < LONG);
    }
    let every = Span::ZERO;
    let (done, notes) = client(ClientKind::Ping { every }, server.ports, Some(20), LONG);
    assert_eq!((done.asked, done.answered, count(&notes, is_job)), (20, 20, 20));
    let (done, _) = server.end();
    assert_eq!((done.asked, done.answered, done.lost), (160, 160, 0));
    assert_eq!(done.sent, 140 * 102_400);
    assert!(done.used >= Span::from_us(20) * 160, "{}", done.used);
}

/// A client with two connections waits 20 ms after each of its first nine answers.
#[test]
fn load_client_waits_the_think_time_after_each_answer() {
    let server = Server::start(serving(WEB, SystemClients::default()));
    let think = Span::from_ms(20);
    let (done, _) = client(closed(2, think), server.ports, Some(20), LONG);
    assert_eq!((done.asked, done.answered, done.lost), (20, 20, 0));
    assert!(done.elapsed >= think * 9, "no faster than it should: {}", done.elapsed);
}

/// 200 pings at 2,000 per second take at least 100 ms, and all of them are answered.
#[test]
fn ping_load_receives_answers_no_faster_than_the_configured_rate() {
    let server =
        Server::start(serving("", SystemClients { requests: true, ..SystemClients::default() }));
    let every = Draw::Fixed(Span::from_us(500));
    let pings = ClientKind::Pings { every, ends: PingEnds::Answered };
    let (done, notes) = client(pings, server.ports, Some(200), LONG);
    assert_eq!((done.asked, done.answered, done.lost), (200, 200, 0));
    assert_eq!(count(&notes, is_job), 200);
    assert!(done.elapsed >= Span::from_us(500) * 200, "no faster than it should: {}", done.elapsed);
    let (done, _) = server.end();
    assert_eq!((done.asked, done.answered), (200, 200));
}

#[test]
fn pings_are_answered_by_a_load_without_server_tasks() {
    let from = SystemClients { requests: true, ..SystemClients::default() };
    let server = Server::start(serving("", from));
    let every = Span::from_us(100);
    let (done, _) = client(ClientKind::Ping { every }, server.ports, Some(50), LONG);
    assert_eq!((done.asked, done.answered, done.lost), (50, 50, 0));
    assert!(done.elapsed >= every * 49, "no faster than it should: {}", done.elapsed);
    let (done, _) = server.end();
    assert_eq!((done.asked, done.answered), (50, 50));
}

#[test]
fn load_request_counts_as_lost_if_no_server_listens() {
    // The socket is bound, so that no other process gets the port, but nothing listens on it.
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    );
    let socket = socket.unwrap();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    rustix::net::bind(&socket, &any).unwrap();
    let address = rustix::net::getsockname(&socket).unwrap();
    let address = SocketAddr::try_from(address).unwrap();
    let ports = Ports { requests: address.port(), inward: address.port(), outward: 0 };
    let (done, notes) = client(httperf(5000, LONG), ports, Some(30), LONG);
    assert_eq!((done.asked, done.answered, done.lost), (30, 0, 30));
    assert_eq!((count(&notes, is_loss), done.responses), (30, None));
    let closed = closed(3, Span::ZERO);
    let (done, _) = client(closed, ports, Some(3), LONG);
    assert_eq!((done.asked, done.lost), (3, 3));
    let (done, _) = client(ClientKind::Ping { every: Span::ZERO }, ports, Some(1), LONG);
    assert_eq!((done.asked, done.lost), (1, 1));
    // A stream without a server is an error.
    let kind = ClientKind::Stream { way: Direction::In, window: 65_536, gap: Span::ZERO };
    let draws = Stream::new(1, 0, Purpose::Client);
    let asking =
        ClientTask { kind, port: address.port(), socket: None, draws, until: None, count: None };
    let error = ask(&asking, Options::default()).unwrap_err();
    assert!(matches!(error, LoadError::NoServer { to, .. } if to == address), "{error}");
}

#[test]
fn request_of_a_load_counts_as_lost_after_its_timeout() {
    // Connections are made, but no task accepts them.
    let from = SystemClients { requests: true, ..SystemClients::default() };
    let server = Server::start(serving("", from));
    let (done, notes) = client(httperf(2000, Span::from_ms(30)), server.ports, Some(20), LONG);
    assert_eq!((done.asked, done.answered, done.lost), (20, 0, 20));
    for note in &notes {
        let Note::Lost { asked, at } = note else { panic!("{note:?}") };
        assert!(at.since(*asked) >= Span::from_ms(30));
    }
    server.end();
}

/// Starts a bare test server, which answers `times` requests with `bytes` and closes each
/// connection.
fn answers(bytes: &'static [u8], times: usize) -> (Ports, JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let requests = listener.local_addr().unwrap().port();
    let thread = thread::spawn(move || {
        for _ in 0..times {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            assert!(request.starts_with(b"GET / HTTP/1.0\r\n"));
            stream.write_all(bytes).unwrap();
        }
    });
    (Ports { requests, ..Ports::default() }, thread)
}

#[test]
fn http_answer_that_is_incomplete_or_unsuccessful_counts_as_lost() {
    for bytes in [
        &b""[..],
        b"HTTP/1.0 200 OK\r\nContent-Le",
        b"HTTP/1.0 200 OK\r\nContent-Length: 10\r\n\r\nfour",
        b"HTTP/1.0 500 Oh\r\nContent-Length: 4\r\n\r\nfour",
        b"HTTP/1.0 200 OK\r\n\r\nfour",
    ] {
        let (ports, thread) = answers(bytes, 2);
        let (done, _) = client(httperf(1000, LONG), ports, Some(2), LONG);
        assert_eq!((done.answered, done.lost), (0, 2), "{}", String::from_utf8_lossy(bytes));
        thread.join().unwrap();
    }
    let whole = b"HTTP/1.1 200 Fine\r\ncontent-length: 4\r\n\r\nfour";
    let (ports, thread) = answers(whole, 2);
    let (done, _) = client(httperf(1000, LONG), ports, Some(2), LONG);
    assert_eq!((done.answered, done.lost, done.received), (2, 0, 8));
    thread.join().unwrap();
}

#[test]
fn stream_sent_by_a_load_arrives_completely() {
    let from = SystemClients { inward: true, ..SystemClients::default() };
    let server = Server::start(serving("work = { kind = \"sink\" }", from));
    let mut sent = 0;
    for gap in [Span::ZERO, Span::from_us(200)] {
        let kind = ClientKind::Stream { way: Direction::In, window: 65_536, gap };
        let (done, _) = client(kind, server.ports, None, Span::from_ms(100));
        assert!(done.sent > 0 && done.received == 0);
        sent += done.sent;
    }
    let (done, notes) = server.end();
    assert_eq!((done.received, moved(&notes)), (sent, sent));
}

#[test]
fn send_task_of_load_delivers_data_to_two_successive_clients() {
    let work = "work = { kind = \"send\", each = \"20us\", block = \"8KiB\" }";
    let server = Server::start(serving(work, SystemClients::default()));
    let kind = ClientKind::Stream { way: Direction::Out, window: 65_536, gap: Span::ZERO };
    // Two clients connect one after another. The task waits for the next client.
    let mut received = 0;
    for _ in 0..2 {
        let (done, notes) = client(kind, server.ports, None, Span::from_ms(100));
        assert!(done.received > 0 && done.sent == 0);
        assert_eq!(moved(&notes), done.received);
        received += done.received;
    }
    let (done, notes) = server.end();
    // Data that was in flight when the client closed the connection is lost.
    assert!(done.sent >= received, "{} of {received}", done.sent);
    assert_eq!(moved(&notes), 0, "the receiver reports the data");
}

#[test]
fn disk_load_reads_whole_blocks_and_leaves_no_file_behind() {
    let folder = tempfile::tempdir().unwrap();
    let work = "work = { kind = \"disk-read\", each = \"10us\", block = \"6KiB\", readers = 3 }";
    let here = SystemParameters {
        folder: folder.path().into(),
        ..serving(work, SystemClients::default())
    };
    let limit = Some(Span::from_ms(50));
    let (notes, jobs) = rustix::pipe::pipe().unwrap();
    let options = Options { limit, jobs: Some(jobs), ..Options::default() };
    let done = serve(&here, options, &mut |_| {
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it has no name");
    });
    let done = done.unwrap();
    assert!(done.is_direct.is_some() && done.read.is_multiple_of(6 << 10), "{done:?}");
    assert_eq!(moved(&all_notes(notes)), done.read);
    let nowhere = SystemParameters { folder: PathBuf::from("/no such folder"), ..here };
    let error = serve(&nowhere, Options::default(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, LoadError::NoFile { .. }), "{error}");
}

#[test]
fn compile_load_requests_files_until_total_cpu_time_is_used() {
    let work = "work = { kind = \"compile\", jobs = 3, each = \"1ms\", read = \"8KiB\", \
                wait = \"uniform 10us 50us\", total = \"30ms\" }";
    let (notes, jobs) = rustix::pipe::pipe().unwrap();
    let options = Options { jobs: Some(jobs), ..Options::default() };
    let done = serve(&serving(work, SystemClients::default()), options, &mut |ports| {
        assert_eq!(ports, Ports::default(), "no client connects to the load");
    });
    let done = done.unwrap();
    // Each of the three jobs has ten bursts, with a request to the file server between two bursts.
    assert_eq!((done.asked, done.answered), (27, 27));
    assert_eq!(done.received, 27 * (8 << 10));
    assert!(done.used >= Span::from_ms(30), "{}", done.used);
    assert_eq!(count(&all_notes(notes), is_job), 3);
}

#[test]
fn several_tasks_of_one_load_process_run_concurrently() {
    let task = |work: &str| format!("[[domain.task]]\nwork = {work}\n");
    let work = task("{ kind = \"web-server\", each = \"10us\", response = \"1KiB\" }")
        + &task("{ kind = \"spin\" }")
        + &task("{ kind = \"periodic\", period = \"2ms\", work = \"10us\" }");
    let server = Server::start(serving(&work, SystemClients::default()));
    let (done, _) = client(closed(1, Span::ZERO), server.ports, Some(20), LONG);
    assert_eq!(done.answered, 20);
    let (done, notes) = server.end();
    assert_eq!(done.answered, 20);
    let periods = count(&notes, |note| matches!(note, Note::Job(job) if job.deadline.is_some()));
    assert!(periods > 0, "{notes:?}");
}

/// Starts a test server on a Unix socket that answers `answers` pings and then closes the
/// connection.
fn answers_and_goes(listener: UnixListener, answers: usize) -> JoinHandle<()> {
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        for _ in 0..answers {
            let mut packet = [0; 8];
            stream.read_exact(&mut packet).unwrap();
            stream.write_all(&packet).unwrap();
        }
    })
}

#[test]
fn ping_client_of_load_ends_when_its_socket_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("it");
    let every = Span::from_ms(2);
    let paced = ClientKind::Pings { every: Draw::Fixed(every), ends: PingEnds::Answered };
    for kind in [ClientKind::Ping { every }, paced] {
        let listener = UnixListener::bind(&socket).unwrap();
        let other = answers_and_goes(listener, 3);
        let draws = Stream::new(1, 0, Purpose::Client);
        let socket = Some(socket.clone());
        let asking = ClientTask { kind, port: 0, socket, draws, until: Some(LONG), count: None };
        let done = ask(&asking, Options::default()).unwrap();
        other.join().unwrap();
        assert_eq!(done.answered, 3);
        assert_eq!(done.asked, done.answered + done.lost, "{done:?}");
        // The client continued until it noticed the end of the connection, and not for a minute.
        assert!(done.asked < 1_000, "{done:?}");
        std::fs::remove_file(folder.path().join("it")).unwrap();
    }
}
