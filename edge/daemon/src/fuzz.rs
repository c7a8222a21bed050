//! Fuzz tests of the parsers for input from clients, VMs and procfs. Valid samples are cut, joined,
//! repeated and changed, and then passed to the parsers. No parser may panic or run for a long
//! time.
//!
//! Code coverage is not measured, since that needs an unstable compiler. Most changes reach deep
//! into a parser nevertheless, because the text before a change is valid. `./test` tries a few
//! thousand samples of each target. `cargo xtask fuzz` tries one target for minutes or hours.

mod mutate;

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use slackline_control::link::{Ask, CoreMessage, LONGEST_ASKED, Lines, message};
use slackline_control::{Change, GangWord, ReservationParameters};
use slackline_live::vcpus::find_by_qmp;

use crate::people::People;
use crate::{find, front, hook};
use mutate::Mutator;

/// Environment variable for a longer run. It contains the target, the number of seconds and the
/// first seed, such as `http 300 7`.
const FUZZ: &str = "SLACKLINE_FUZZ";

/// Number of samples of each target that are tried if the variable [`FUZZ`] is not set. The seed is
/// then zero.
const FEW: u64 = 2_000;

/// Time limit for one sample. The limit is long because the host may be busy.
const PATIENCE: Duration = Duration::from_secs(20);

const LINES: [&[u8]; 11] = [
    include_bytes!("find/lines/qemu-7.2.txt"),
    include_bytes!("find/lines/libvirt-9.txt"),
    include_bytes!("find/lines/libvirt-odd-name.txt"),
    include_bytes!("find/lines/libvirt-asks.txt"),
    include_bytes!("find/lines/qemu.txt"),
    include_bytes!("find/lines/proxmox.txt"),
    include_bytes!("find/lines/firecracker.txt"),
    include_bytes!("find/lines/firecracker-jailed.txt"),
    include_bytes!("find/lines/cloud-hypervisor.txt"),
    include_bytes!("find/lines/crosvm.txt"),
    include_bytes!("find/lines/kvmtool.txt"),
];

/// Samples of the procfs files `cgroup`, `status` and `stat`.
const PROC: [&[u8]; 5] = [
    b"0::/machine.slice/machine-qemu\\x2d2\\x2dubuntu22.04.scope/libvirt/emulator\n",
    b"3:cpuset:/machine/qemu-1-web.libvirt-qemu/emulator\n1:cpu:/docker/abc\n0::/firecracker/a\n",
    b"0::/system.slice/docker-\
      0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope\n",
    b"Name:\tqemu\nUid:\t64055\t64055\t64055\t64055\nGid:\t0\t0\t0\t0\n",
    b"4711 (CPU 0/TCG) R 1 4711 4711 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 3 0 88 99 1 2 3 4 5 6 7 8 9 \
      0 0 0 0 0 0 17 1 0 0 0 0 0\n",
];

const DOMAIN: &[u8] = include_bytes!("hook/domain.xml");

const OURS: &[u8] = b"<domain><name>web</name><vcpu current='2'>4</vcpu><metadata>\
    <s:reservation xmlns:s='urn:slackline:1' slice='2ms' period='10ms' exact='yes' vcpus='2' \
    name='a' require='no'/></metadata></domain>";

const BODIES: [&[u8]; 7] = [
    br#"{"slice":"2ms","period":"10ms","exact":true,"vcpus":2,"for":"libvirt:ubuntu22.04"}"#,
    br#"{"cpu":"150%","for":"cgroup:/machine.slice/a"}"#,
    br#"{"cpu":"1.5cpu","vcpus":65535,"for":"pid:4294967295"}"#,
    br#"{"exact":false,"period":"7d","slice":"250us","phase":"none"}"#,
    br#"{"hold":{"gang":"g","name":"g-1","wanted":{"slice":"4ms","phase":"0ms","for":"pid:7"}}}"#,
    br#"{"begin":{"gang":"g","name":"g-1","at_ns":1795452231839982000,"strict":true}}"#,
    br#"{"for":"uuid:0f9c27aa-0000-4000-8000-00000000beef","slice":"18446744073709551615ns"}"#,
];

const LINK: [&[u8]; 4] = [
    b"{\"ticket\":1,\"who\":{\"user\":{\"uid\":0,\"gids\":[0,27]}},\"request\":\"host\"}\n",
    b"{\"ticket\":18446744073709551615,\"who\":{\"user\":{\"uid\":1000,\"gids\":[]}},\
      \"key\":\"k\",\"request\":\
      {\"reserve\":{\"name\":\"web\",\"wanted\":{\"slice\":\"2ms\"}}}}\n",
    b"{\"ticket\":3,\"who\":{\"user\":{\"uid\":1,\"gids\":[1]}},\
      \"request\":{\"room\":{\"period\":\"10ms\"}}}\n",
    b"{\"answer\":{\"ticket\":1,\"answer\":{\"events\":[]}}}\n{\"refused\":{\"ticket\":2}}\n",
];

const QMP: [&[u8]; 3] = [
    b"{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 22, \"minor\": 2, \"major\": 7}}, \
      \"capabilities\": [\"oob\"]}}\r\n{\"return\": {}}\r\n{\"return\": [{\"thread-id\": 4711, \
      \"props\": {\"core-id\": 0}, \"cpu-index\": 0, \"target\": \"x86_64\"}, \
      {\"thread-id\": 4712, \"cpu-index\": 1}]}\r\n",
    b"{\"QMP\": {}}\r\n{\"timestamp\": {\"seconds\": 1}, \"event\": \"RESUME\"}\r\n\
      {\"return\": {}}\r\n{\"event\": \"STOP\"}\r\n{\"return\": []}\r\n",
    b"{\"QMP\": {}}\r\n{\"error\": {\"class\": \"CommandNotFound\", \"desc\": \"no\"}}\r\n",
];

const HTTP: [&[u8]; 6] = [
    b"GET /v1/reservations HTTP/1.1\r\nHost: h\r\nAccept: */*\r\n\r\n",
    b"PUT /v1/reservations/web HTTP/1.1\r\nHost: h\r\nIdempotency-Key: abc\r\nContent-Type: \
      application/json\r\nContent-Length: 39\r\n\r\n\
      {\"slice\":\"2ms\",\"for\":\"libvirt:ubuntu\"}\n",
    b"PATCH /v1/reservations/a.b HTTP/1.1\r\nHost: h\r\nIf-Match: \"7\"\r\nTransfer-Encoding: \
      chunked\r\n\r\n11\r\n{\"slice\":\"2.5ms\"}\r\n0\r\n\r\n",
    b"DELETE /v1/reservations/web HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"GET /v1/events HTTP/1.1\r\nHost: h\r\nLast-Event-ID: 12\r\nAccept: text/event-stream\r\n\r\n",
    b"GET /v1/room?period=10ms HTTP/1.1\r\nHost: h\r\n\r\nPOST /v1/reservations/web/pause \
      HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}",
];

/// Passes damaged samples of a target to a parser. If the variable [`FUZZ`] is set, does so for the
/// time in that variable. Otherwise passes [`FEW`] samples.
fn each(target: &str, samples: &[&[u8]], mut tries: impl FnMut(&[u8])) {
    let asked = std::env::var(FUZZ).unwrap_or_default();
    let mut words = asked.split(' ');
    let number = |word: Option<&str>| word.and_then(|word| word.parse::<u64>().ok());
    let (length, seed) = match words.next() {
        Some(wanted) if wanted == target => (number(words.next()), number(words.next())),
        Some("") | None => (None, None),
        Some(_) => return,
    };
    let seed = seed.unwrap_or(0);
    let (mut mutator, begun) = (Mutator::new(seed, samples), Instant::now());
    let mut count = 0;
    while length.map_or(count < FEW, |length| begun.elapsed().as_secs() < length) {
        let sample = mutator.next();
        let since = Instant::now();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tries(&sample)));
        let took = since.elapsed();
        let shown = || format!("{target}, seed {seed}, sample {count}: {}", sample.escape_ascii());
        assert!(outcome.is_ok(), "the parser panics: {}", shown());
        assert!(took < PATIENCE, "the parser takes {took:?}: {}", shown());
        count += 1;
    }
    println!("{target}: {count} samples in {:.0} s", begun.elapsed().as_secs_f64());
}

#[test]
fn procfs_files_with_random_changes_are_parsed_or_refused() {
    // Files have one word per line. In procfs a word ends with a zero byte.
    let lines = LINES.map(|text| text.iter().map(|&byte| if byte == b'\n' { 0 } else { byte }));
    let mut samples: Vec<Vec<u8>> = lines.into_iter().map(Iterator::collect).collect();
    samples.extend(PROC.map(<[u8]>::to_vec));
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    each("proc", &samples, find::read_anything);
}

#[test]
fn domain_xml_with_random_changes_is_parsed_or_refused() {
    each("hook", &[DOMAIN, OURS], |xml| {
        if let Ok(Some(found)) = hook::read(xml) {
            assert!(found.wanted.binding.is_some());
        }
    });
}

#[test]
fn request_bodies_with_random_changes_are_parsed_or_refused() {
    each("body", &BODIES, |json| {
        // A value that is parsed, written and parsed again stays the same.
        if let Ok(wanted) = serde_json::from_slice::<ReservationParameters>(json) {
            let text = serde_json::to_string(&wanted).unwrap();
            assert_eq!(serde_json::from_str::<ReservationParameters>(&text).unwrap(), wanted);
        }
        if let Ok(word) = serde_json::from_slice::<GangWord>(json) {
            let text = serde_json::to_string(&word).unwrap();
            assert_eq!(serde_json::from_str::<GangWord>(&text).unwrap(), word);
        }
        if let Ok(change) = serde_json::from_slice::<Change>(json) {
            let text = serde_json::to_string(&change).unwrap();
            assert_eq!(serde_json::from_str::<Change>(&text).unwrap(), change);
        }
    });
}

#[test]
fn randomly_changed_messages_between_daemon_processes_cause_no_panic() {
    each("link", &LINK, |bytes| {
        let mut lines = Lines::new(LONGEST_ASKED);
        // Lines do not depend on how their bytes are split.
        let (half, rest) = bytes.split_at(bytes.len() / 2);
        lines.push(half);
        lines.push(rest);
        while let Ok(Some(line)) = lines.next_line() {
            let _ = message::<Ask>(&line);
            let _ = message::<CoreMessage>(&line);
        }
    });
}

#[test]
fn qemu_monitor_answers_with_random_changes_are_parsed_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("qmp");
    let listener = UnixListener::bind(&path).unwrap();
    each("qmp", &QMP, |said| {
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.write_all(said);
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            });
            let _ = find_by_qmp(&path);
        });
    });
}

/// The test runs the real front server. Its daemon core is a thread that reads requests and never
/// answers.
#[test]
fn randomly_changed_http_requests_do_not_stop_the_front_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let (mut core, theirs) = UnixStream::pair().unwrap();
    let gid = rustix::process::getgid().as_raw();
    let people = People { operators: None, administrators: Some(gid) };
    let served = thread::spawn(move || {
        let (peers, none) = (front::LoopbackPeers::open(), None);
        let sockets =
            front::FrontSockets { listener, remote: None, metrics: none, page: None, peers };
        front::serve(theirs, sockets, people)
    });
    let heard = thread::spawn(move || {
        let mut lines = Lines::new(LONGEST_ASKED);
        let mut part = [0; 4096];
        while let Ok(count @ 1..) = core.read(&mut part) {
            lines.push(&part[..count]);
            while let Some(line) = lines.next_line().expect("no line is too long") {
                message::<Ask>(&line).expect("the front sends valid messages");
            }
        }
    });
    each("http", &HTTP, |sent| {
        talk(&path, sent, Duration::from_millis(20));
        assert!(!served.is_finished() && !heard.is_finished(), "the front has ended");
    });
    let answer =
        talk(&path, b"GET /nowhere HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", PATIENCE);
    assert!(answer.starts_with(b"HTTP/1.1 4"), "{}", answer.escape_ascii());
}

/// Sends the bytes `sent` and returns the first bytes of the answer. Returns no bytes if no answer
/// arrives within `patience`.
fn talk(path: &Path, sent: &[u8], patience: Duration) -> Vec<u8> {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(patience)).unwrap();
    let _ = stream.write_all(sent);
    let _ = stream.shutdown(Shutdown::Write);
    // The core answers nothing, so only answers of the front itself are awaited.
    let mut answer = vec![0; 1 << 12];
    let count = stream.read(&mut answer).unwrap_or(0);
    answer.truncate(count);
    answer
}

#[test]
fn fuzz_test_samples_are_valid_before_mutation() {
    // Otherwise the changes would apply to meaningless input.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/find/lines");
    assert_eq!(fs::read_dir(folder).unwrap().count(), LINES.len());
    assert!(
        BODIES.iter().any(|body| serde_json::from_slice::<ReservationParameters>(body).is_ok())
    );
    assert!(hook::read(OURS).unwrap().is_some());
    assert!(message::<Ask>(LINK[0].trim_ascii_end()).is_ok());
}
