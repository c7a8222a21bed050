//! Tests of the search for vCPU threads: by thread names, over QMP, and in a real QEMU process.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use slackline_live::vcpus::{
    FindError, QmpError, RecognitionSource, VcpuThread, find, find_by_qmp, find_qmp_socket,
};
use tempfile::TempDir;

use crate::common::begin;

const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#;
const DONE: &str = r#"{"return": {}}"#;
const EVENT: &str = r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "RESUME"}"#;

/// A step in the script of a simulated monitor.
enum Step {
    /// Sends a line of text.
    Say(String),
    /// Reads one line from the client. If the line does not contain this text, the test fails.
    Hear(&'static str),
    /// Sends bytes without a line break.
    Begin(Vec<u8>),
    /// Sends this line repeatedly until the client has closed the connection.
    Repeat(&'static str),
    /// Sends nothing until the client closes the connection.
    Silence,
}

fn say(line: &str) -> Step {
    Step::Say(line.to_owned())
}

/// A simulated monitor. It follows a script for one client and then closes the connection.
struct Monitor {
    folder: TempDir,
    thread: JoinHandle<()>,
}

impl Monitor {
    fn with(script: Vec<Step>) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the socket");
        let listener = UnixListener::bind(folder.path().join("qmp")).expect("a socket");
        let thread = thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            follow(&script, stream);
        });
        Self { folder, thread }
    }

    /// Queries this monitor for its vCPU threads.
    fn ask(self) -> Result<Vec<VcpuThread>, QmpError> {
        // Other tests run real-time threads that never block. While they run, an answer may come
        // too late, so this test waits for them to end.
        let _alone = begin();
        let socket = self.folder.path().join("qmp");
        let answer = find_by_qmp(&socket);
        self.thread.join().expect("the client followed the script");
        answer.map_err(|error| match error {
            FindError::Qmp { socket: asked, source } => {
                assert_eq!(asked, socket);
                source
            }
            other => panic!("the error is not about QMP: {other}"),
        })
    }
}

/// Performs the steps of a script on a connection.
fn follow(script: &[Step], mut stream: UnixStream) {
    let mut lines = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut line = String::new();
    for step in script {
        match step {
            Step::Say(text) => write!(stream, "{text}\r\n").expect("the client reads"),
            Step::Begin(bytes) => drop(stream.write_all(bytes)),
            Step::Repeat(text) => while writeln!(stream, "{text}").is_ok() {},
            Step::Silence => while lines.read_line(&mut line).is_ok_and(|read| read > 0) {},
            Step::Hear(wanted) => {
                line.clear();
                lines.read_line(&mut line).expect("a line");
                assert!(line.contains(wanted), "the client sent {line:?}, not {wanted:?}");
            }
        }
    }
}

/// Returns a monitor that sends a greeting, and answers the query for vCPUs with `answer`.
fn answering(answer: &str) -> Monitor {
    let ask = Step::Hear(r#"{"execute":"query-cpus-fast"}"#);
    Monitor::with(vec![say(GREETING), Step::Hear("qmp_capabilities"), say(DONE), ask, say(answer)])
}

fn told(index: u32, tid: i32) -> VcpuThread {
    VcpuThread { tid, index, how: RecognitionSource::Qmp }
}

#[test]
fn qmp_events_before_an_answer_are_skipped() {
    let cpus = r#"{"return": [{"cpu-index": 1, "thread-id": 7, "target": "x86_64"},
        {"thread-id": 9, "cpu-index": 0}]}"#
        .replace('\n', " ");
    let answer = Monitor::with(vec![
        say(GREETING),
        say(EVENT),
        Step::Hear("qmp_capabilities"),
        say(EVENT),
        say(DONE),
        say(EVENT),
        Step::Hear("query-cpus-fast"),
        say(EVENT),
        say(EVENT),
        say(&cpus),
    ])
    .ask();
    assert_eq!(answer.expect("an answer"), [told(0, 9), told(1, 7)]);
}

#[test]
fn qmp_vcpus_sharing_a_thread_are_returned_as_one_vcpu() {
    let cpus =
        r#"{"return": [{"cpu-index": 0, "thread-id": 7}, {"cpu-index": 1, "thread-id": 7}]}"#;
    assert_eq!(answering(cpus).ask().expect("an answer"), [told(0, 7)]);
}

#[test]
fn returned_error_stores_the_text_of_a_qmp_refusal() {
    let refusal = r#"{"error": {"class": "CommandNotFound", "desc": "no query-cpus-fast"}}"#;
    let error = answering(refusal).ask().expect_err("the monitor refuses the query");
    let QmpError::Declined { awaited, received } = error else { panic!("{error}") };
    assert_eq!(awaited, "an answer to query-cpus-fast");
    assert_eq!(received, r#"`{"class":"CommandNotFound","desc":"no query-cpus-fast"}`"#);
}

#[test]
fn returned_error_stores_the_text_of_a_malformed_qmp_answer() {
    for answer in [
        r#"{"return":[]}"#,
        r#"{"return":[{"cpu-index":0}]}"#,
        r#"{"return":[{"cpu-index":-1,"thread-id":7}]}"#,
        r#"{"return":[{"cpu-index":0,"thread-id":4294967296}]}"#,
        r#"{"something":"else"}"#,
    ] {
        let error = answering(answer).ask().expect_err("the answer is malformed");
        let QmpError::Unexpected { received, .. } = &error else { panic!("{error}") };
        assert!(answer.contains(received.trim_matches('`')), "{received} is not from {answer}");
    }
}

#[test]
fn invalid_greeting_of_a_qmp_monitor_is_an_error() {
    let error = Monitor::with(vec![say("220 mail \u{1b}[2J")]).ask().expect_err("no JSON");
    let QmpError::NotJson { awaited: "the greeting", received, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(received, "`220 mail \u{fffd}[2J`");

    let error = Monitor::with(vec![say(r#"{"hello":1}"#)]).ask().expect_err("no greeting");
    assert!(matches!(error, QmpError::Unexpected { awaited: "the greeting", .. }), "{error}");
}

#[test]
fn endless_qmp_line_is_an_error_at_the_size_limit() {
    let endless = Monitor::with(vec![Step::Begin(vec![b'x'; 2 << 20]), Step::Silence]);
    let error = endless.ask().expect_err("the line is too long");
    let QmpError::TooLong { awaited: "the greeting", received } = error else { panic!("{error}") };
    assert_eq!(received, format!("`{}…`", "x".repeat(160)));
}

#[test]
fn qmp_request_times_out_if_the_monitor_stops_answering() {
    let half = Step::Begin(br#"{"return": "#.to_vec());
    let script = vec![say(GREETING), say(EVENT), Step::Hear("qmp_cap"), half, Step::Silence];
    let error = Monitor::with(script).ask().expect_err("the monitor sends no answer");
    let QmpError::TooLate { awaited, events, received } = error else { panic!("{error}") };
    assert_eq!(awaited, "an answer to qmp_capabilities");
    assert_eq!((events, received.as_str()), (1, r#"`{"return":`"#));
}

#[test]
fn qmp_request_times_out_if_the_monitor_sends_only_events() {
    let error = Monitor::with(vec![say(GREETING), Step::Repeat(EVENT)]).ask();
    let error = error.expect_err("the monitor sends only events");
    assert!(matches!(error, QmpError::TooLate { events: 2.., .. }), "{error}");
}

#[test]
fn qmp_connection_closed_by_the_monitor_is_reported_as_closed() {
    let error = Monitor::with(vec![say(GREETING), Step::Hear("qmp_capabilities")]).ask();
    let error = error.expect_err("the monitor closes the connection");
    assert!(
        matches!(&error, QmpError::Closed { received, .. } if received == "nothing"),
        "{error}"
    );
}

#[test]
fn qmp_monitor_with_full_connection_queue_is_reported_as_busy() {
    let folder = tempfile::tempdir().expect("a folder for the socket");
    let socket = folder.path().join("qmp");
    let listener = UnixListener::bind(&socket).expect("a socket");
    // The queue has space for one client, and another client takes it.
    rustix::net::listen(&listener, 0).expect("a shorter queue");
    let _other = UnixStream::connect(&socket).expect("the other client");
    let error = find_by_qmp(&socket).expect_err("the queue is full");
    assert!(matches!(error, FindError::Qmp { source: QmpError::Busy, .. }), "{error:?}");
}

#[test]
fn qmp_error_messages_never_quote_data_from_the_socket() {
    for answer in ["220 ROOT-ONLY-SECRET", r#"{"ROOT-ONLY-SECRET":1}"#] {
        let error = Monitor::with(vec![say(answer)]).ask().expect_err("the socket is no monitor");
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text += &error.to_string();
            cause = error.source();
        }
        assert!(!text.contains("SECRET"), "{text}");
    }
    let declined = r#"{"error":{"class":"A","desc":"ROOT-ONLY-SECRET"}}"#;
    let error = answering(declined).ask().expect_err("the monitor refuses the query");
    assert!(!error.to_string().contains("SECRET"), "{error}");
}

#[test]
fn error_about_a_missing_qmp_socket_states_its_path() {
    let error = find_by_qmp(Path::new("no/such/socket")).expect_err("no socket");
    assert!(error.to_string().contains("no/such/socket"), "{error}");
    assert!(matches!(error, FindError::Qmp { source: QmpError::Connect(_), .. }), "{error:?}");
}

/// Threads of this process that only wait until the test ends them.
struct Threads {
    threads: Vec<(i32, JoinHandle<()>)>,
    /// One sender for each thread. The thread ends when its sender is dropped.
    end: Vec<Sender<()>>,
}

impl Threads {
    fn named<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        let (mut threads, mut end) = (Vec::new(), Vec::new());
        for name in names {
            let (up, is_up) = channel();
            let (sender, wait): (Sender<()>, Receiver<()>) = channel();
            let body = move || {
                up.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("a listener");
                let _ = wait.recv(); // Returns an error when the sender is dropped.
            };
            let thread = thread::Builder::new().name(name.into()).spawn(body).expect("a thread");
            threads.push((is_up.recv().expect("the thread sends its id"), thread));
            end.push(sender);
        }
        Self { threads, end }
    }

    fn tids(&self) -> Vec<i32> {
        self.threads.iter().map(|(tid, _)| *tid).collect()
    }

    fn end(self) {
        drop(self.end);
        for (_, thread) in self.threads {
            thread.join().expect("the thread only waited");
        }
    }
}

fn this_process() -> i32 {
    i32::try_from(std::process::id()).expect("a process id")
}

/// All names are tested in a single test. The reason is that all tests in this file share one
/// process, and the search examines the threads of that process.
#[test]
fn vcpu_threads_are_found_by_thread_names_of_each_hypervisor() {
    // The threads are created in reverse order, so that vCPU 10 follows vCPU 9 neither by age nor
    // in the alphabet.
    let threads = Threads::named((0..11).rev().map(|index| format!("CPU {index}/KVM")));
    let found = find(this_process()).expect("the threads have names of vCPUs");
    let expected = threads.tids().into_iter().rev().zip(0..);
    let expected =
        expected.map(|(tid, index)| VcpuThread { tid, index, how: RecognitionSource::Qemu });
    assert_eq!(found, expected.collect::<Vec<_>>());
    threads.end();

    for (name, index, how) in [
        ("CPU 3/TCG", 3, RecognitionSource::Qemu),
        ("ALL CPUs/TCG", 0, RecognitionSource::QemuSingleThread),
        ("fc_vcpu 12", 12, RecognitionSource::Firecracker),
        ("vcpu7", 7, RecognitionSource::CloudHypervisor),
        ("crosvm_vcpu1023", 1023, RecognitionSource::Crosvm),
        ("kvm-vcpu-1", 1, RecognitionSource::Kvmtool),
    ] {
        let threads = Threads::named([name]);
        let found = find(this_process()).expect(name);
        assert_eq!(found, [VcpuThread { tid: threads.tids()[0], index, how }], "{name}");
        threads.end();
    }

    for name in ["CPU /KVM", "CPU +1/KVM", "CPU 1/KVMs", "vcpu", "vcpu1x", "vcpu99999999999"] {
        let threads = Threads::named([name]);
        let error = find(this_process()).expect_err(name);
        assert!(matches!(error, FindError::NotFound { .. }), "{name}: {error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("debug-threads=on")));
        threads.end();
    }

    let threads = Threads::named(["vcpu0", "CPU 0/KVM"]);
    let error = find(this_process()).expect_err("two threads have the name of vCPU 0");
    assert!(matches!(error, FindError::SameIndex { index: 0, .. }), "{error}");
    threads.end();
}

#[test]
fn vcpu_search_in_a_nonexistent_process_is_an_error() {
    let mut child = Command::new("true").spawn().expect("a process");
    let pid = i32::try_from(child.id()).expect("a process id");
    child.wait().expect("the process can be reaped");
    assert!(matches!(find(pid), Err(FindError::NoProcess { pid: gone }) if gone == pid));
}

/// A user who starts a VM must not be able to present another user's thread as a vCPU.
#[test]
fn thread_of_another_process_reported_by_qmp_is_refused() {
    let cpus = r#"{"return": [{"cpu-index": 0, "thread-id": TID}]}"#;
    let monitor = answering(&cpus.replace("TID", &this_process().to_string()));
    let socket = monitor.folder.path().join("qmp");
    let option = format!("unix:{},server=on,wait=off", socket.display());
    // A shell that has QEMU's arguments. While the kernel loads a program it shows no arguments, so
    // the shell prints a line when it runs. Then it waits for a line of input.
    let mut process = Command::new("sh");
    process.args(["-c", "echo up; read line", "qemu", "-qmp", &option]);
    process.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = process.spawn().expect("a process");
    let output = process.stdout.as_mut().expect("a pipe");
    BufReader::new(output).read_line(&mut String::new()).expect("the process runs");
    let error =
        find(i32::try_from(process.id()).expect("a process id")).expect_err("a foreign thread");
    process.kill().and_then(|()| process.wait()).expect("the process can be reaped");
    let FindError::NotItsThread { tid, index: 0, .. } = error else { panic!("{error}") };
    monitor.thread.join().expect("the monitor was asked");
    assert_eq!(tid, this_process());
}

/// A QEMU process whose vCPU threads exist but do not run. The process is killed when this value is
/// dropped.
struct Qemu {
    process: Child,
    folder: TempDir,
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Qemu {
    /// Starts QEMU with these arguments. The text `SOCKET` in an argument is replaced by the path
    /// of a new socket. `None` if QEMU is not installed.
    fn with(arguments: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder for the socket");
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-S", "-nodefaults", "-no-user-config", "-display", "none", "-m", "16"]);
        // The test uses this monitor, which has no socket, to find out when QEMU is ready.
        qemu.args(["-machine", "pc", "-qmp", "stdio"]);
        for argument in arguments {
            qemu.arg(argument.replace("SOCKET", "a,,b"));
        }
        // QEMU uses the first accelerator that works, so one in `arguments` has precedence.
        qemu.args(["-accel", "tcg"]);
        qemu.current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let process = match qemu.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                println!("skipped: needs qemu-system-x86");
                return None;
            }
            started => started.expect("QEMU starts"),
        };
        let mut qemu = Self { process, folder };
        qemu.wait_until_ready();
        Some(qemu)
    }

    /// Waits until QEMU answers a command. QEMU does so only after it has created the whole VM.
    fn wait_until_ready(&mut self) {
        let input = self.process.stdin.as_mut().expect("a pipe");
        input.write_all(b"{\"execute\":\"qmp_capabilities\"}\n").expect("QEMU listens");
        let output = self.process.stdout.as_mut().expect("a pipe");
        let mut lines = BufReader::new(output).lines();
        let is_answer = |line: &String| line.contains("\"return\"");
        assert!(lines.by_ref().map_while(Result::ok).any(|line| is_answer(&line)), "no answer");
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.process.id()).expect("a process id")
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("a,b")
    }
}

/// Returns the vCPU index and the thread id of each thread.
fn pairs(threads: &[VcpuThread]) -> Vec<(u32, i32)> {
    threads.iter().map(|thread| (thread.index, thread.tid)).collect()
}

#[test]
fn thread_names_and_qmp_give_equal_vcpus_for_real_qemu() {
    let options = ["-smp", "2", "-name", "web,debug-threads=on"];
    let monitor = ["-qmp", "unix:SOCKET,server=on,wait=off"];
    let Some(qemu) = Qemu::with(&[options.as_slice(), &monitor].concat()) else { return };
    let named = find(qemu.pid()).expect("named threads");
    assert!(named.iter().all(|thread| thread.how == RecognitionSource::Qemu), "{named:?}");
    assert_eq!(named.iter().map(|thread| thread.index).collect::<Vec<_>>(), [0, 1]);

    let socket = find_qmp_socket(qemu.pid()).expect("a command line").expect("a socket");
    assert_eq!(socket, qemu.socket());
    let told = find_by_qmp(&socket).expect("an answer");
    assert_eq!(pairs(&told), pairs(&named));
}

#[test]
fn real_qemu_process_without_thread_names_is_queried_over_qmp() {
    let device = "socket,id=c,path=SOCKET,server=on,wait=off";
    for monitor in [
        ["-qmp", "unix:SOCKET,server,nowait"].as_slice(),
        &["-chardev", device, "-mon", "chardev=c,mode=control"],
        &["-mon", "c,mode=control", "--chardev", device],
        &["-chardev", device, "-qmp", "chardev:c"],
    ] {
        let Some(qemu) = Qemu::with(&[&["-smp", "2"], monitor].concat()) else { return };
        let found = find(qemu.pid()).expect("an answer");
        let seen: Vec<_> = found.iter().map(|thread| (thread.index, thread.how)).collect();
        assert_eq!(seen, [(0, RecognitionSource::Qmp), (1, RecognitionSource::Qmp)], "{monitor:?}");
    }
}

#[test]
fn real_qemu_with_single_threaded_emulation_has_one_vcpu_thread() {
    let options = ["-smp", "2", "-accel", "tcg,thread=single", "-name", "web,debug-threads=on"];
    let monitor = ["-qmp", "unix:SOCKET,server=on,wait=off"];
    let Some(qemu) = Qemu::with(&[options.as_slice(), &monitor].concat()) else { return };
    let named = find(qemu.pid()).expect("a named thread");
    assert_eq!(named.len(), 1);
    assert_eq!((named[0].index, named[0].how), (0, RecognitionSource::QemuSingleThread));
    let told = find_by_qmp(&qemu.socket()).expect("an answer");
    assert_eq!(pairs(&told), pairs(&named));
}

#[test]
fn real_qemu_without_thread_names_or_qmp_is_an_error() {
    for options in [
        [].as_slice(),
        // A monitor for people, and a QMP monitor that spreads each message over several lines.
        &["-monitor", "unix:SOCKET,server=on,wait=off"],
        &["-qmp-pretty", "unix:SOCKET,server=on,wait=off"],
    ] {
        let Some(qemu) = Qemu::with(options) else { return };
        let error = find(qemu.pid()).expect_err("no source names the vCPU threads");
        assert!(matches!(error, FindError::NotFound { .. }), "{options:?}: {error}");
    }
}
