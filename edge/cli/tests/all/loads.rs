//! Tests of workloads with devices and their clients, as real processes over the loopback
//! interface.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::process::{Child, ChildStderr, ChildStdout, Stdio};

use crate::common::live::{kill, wait_until};
use crate::common::{Place, Ran};
use rustix::process::Signal;
use serde_json::Value;

/// A server process, with the port on which it listens.
struct Server {
    child: Child,
    out: ChildStdout,
    err: BufReader<ChildStderr>,
    port: String,
}

impl Server {
    fn start(place: &Place, kind: &[&str]) -> Server {
        Server::try_start(place, kind).expect("the server prints its port")
    }

    /// Starts a server. `None` if another program has taken its port.
    fn try_start(place: &Place, kind: &[&str]) -> Option<Server> {
        let mut command = place.command(&[&["load"], kind, &["--json"]].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        err.read_line(&mut line).unwrap();
        let Some(port) = line.trim().strip_prefix("listening on 127.0.0.1:") else {
            child.wait().unwrap();
            return None;
        };
        let (out, port) = (child.stdout.take().unwrap(), port.to_owned());
        Some(Server { child, out, err, port })
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Interrupts the server as Ctrl-C does, and returns its report.
    fn interrupt(mut self) -> Value {
        kill(self.pid(), Signal::INT);
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.err.read_to_string(&mut err).unwrap();
        assert_eq!((self.child.wait().unwrap().code(), err.as_str()), (Some(130), ""), "{out}");
        serde_json::from_str(&out).expect("JSON")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server still runs only if the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn json(ran: Ran) -> Value {
    serde_json::from_str(&ran.good()).expect("JSON")
}

fn client(place: &Place, kind: &[&str], server: &Server) -> Value {
    json(place.run(&[&["load"], kind, &["--to", &server.port, "--json"]].concat()))
}

const WEB: [&str; 5] = ["web-server", "--each", "100us", "--response", "10KiB"];

#[test]
fn web_server_and_clients_of_load_command_count_equal_requests() {
    let place = Place::new();
    let server = Server::start(&place, &WEB);
    let httperf = client(&place, &["httperf", "--rate", "500", "--count", "40"], &server);
    let ab = client(&place, &["ab", "--at-once", "3", "--count", "50"], &server);
    let ping = client(&place, &["ping", "--count", "10"], &server);
    let served = server.interrupt();
    for (client, number) in [(&httperf, 40), (&ab, 50), (&ping, 10)] {
        assert_eq!(client["format"], "slackline-load-1");
        assert_eq!((&client["requests"], &client["lost"]), (&number.into(), &0.into()), "{client}");
        assert_eq!(client["answered"], number);
        assert!(client["response_p99_ns"].as_u64() >= client["response_p50_ns"].as_u64());
        assert!(client["response_p50_ns"].as_u64() > Some(0), "{client}");
    }
    assert_eq!((&served["requests"], &served["answered"]), (&100.into(), &100.into()), "{served}");
    assert_eq!(served["sent_bytes"], 90 * 10_240);
    assert_eq!(httperf["received_bytes"], 40 * 10_240);
    assert_eq!(ab["received_bytes"], 50 * 10_240);
    assert!(served["used_ns"].as_u64() >= Some(100 * 100_000), "{served}");
}

#[test]
fn stream_sender_and_receiver_of_load_command_count_equal_bytes() {
    let place = Place::new();
    let server = Server::start(&place, &["sink"]);
    let stream = ["iperf", "--window", "64KiB", "--length", "100ms"];
    let sent = client(&place, &stream, &server)["sent_bytes"].as_u64().unwrap();
    let slow = ["ttcp", "--window", "64KiB", "--gap", "1ms", "--length", "100ms"];
    let slow = client(&place, &slow, &server)["sent_bytes"].as_u64().unwrap();
    // The client sends at most one packet per millisecond.
    assert!(sent > 0 && slow > 0 && slow <= 101 * 1448, "{slow}");
    assert_eq!(server.interrupt()["received_bytes"], sent + slow);
    let server = Server::start(&place, &["send", "--each", "10us", "--block", "8KiB"]);
    let stream = [&stream[..], &["--way", "out"]].concat();
    let received = client(&place, &stream, &server)["received_bytes"].as_u64().unwrap();
    assert!(received > 0 && server.interrupt()["sent_bytes"].as_u64() >= Some(received));
}

#[test]
fn server_of_load_command_continues_after_client_is_killed() {
    let place = Place::new();
    let server = Server::start(&place, &WEB);
    let unconnected = sockets(server.pid());
    for _ in 0..3 {
        // The client ends by itself if this test fails before it is killed.
        let arguments = ["load", "ab", "--at-once", "20", "--length", "90s", "--to", &server.port];
        let mut killed = place.command(&arguments).spawn().unwrap();
        wait_until("a connection", || sockets(server.pid()) > unconnected);
        killed.kill().unwrap();
        killed.wait().unwrap();
        let done = client(&place, &["ab", "--at-once", "2", "--count", "10"], &server);
        assert_eq!(done["answered"], 10);
    }
    assert!(server.interrupt()["answered"].as_u64() >= Some(30));
}

/// Returns the number of sockets of a process.
fn sockets(pid: i32) -> usize {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

#[test]
fn load_client_counts_requests_to_killed_server_as_lost() {
    let place = Place::new();
    let kind = [&WEB[..], &["--read", "4KiB", "--folder", "."]].concat();
    let mut server = Server::start(&place, &kind);
    assert_eq!(place.files(), Vec::<String>::new(), "the temporary file of the server has no name");
    let done = client(&place, &["ab", "--at-once", "1", "--count", "3"], &server);
    assert_eq!(done["answered"], 3);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let port: u16 = server.port.parse().unwrap();
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
    assert_eq!(place.files(), Vec::<String>::new());
    let done = client(&place, &["httperf", "--rate", "1000", "--count", "10"], &server);
    assert_eq!((&done["requests"], &done["lost"]), (&10.into(), &10.into()), "{done}");
    assert_eq!((&done["answered"], &done["response_p50_ns"]), (&0.into(), &Value::Null));
}

#[test]
fn load_server_port_is_reusable_as_soon_as_server_ends() {
    let place = Place::new();
    let echo = ["echo", "--each", "10us"];
    // Another process may take the port before it is requested again.
    let again = || {
        let first = Server::start(&place, &echo);
        let port = first.port.clone();
        first.interrupt();
        Server::try_start(&place, &[&echo[..], &["--port", &port]].concat())
            .inspect(|server| assert_eq!(server.port, port))
    };
    let server = (0..20).find_map(|_| again()).expect("a port that is free again");
    assert_eq!(client(&place, &["ping", "--count", "5"], &server)["answered"], 5);
    // A second server cannot listen on the same port.
    let taken = [&["load"], &echo[..], &["--port", &server.port]].concat();
    let says = format!("cannot listen on port {} of 127.0.0.1", server.port);
    place.run(&taken).refused(2).says(&says);
    server.interrupt();
}

#[test]
fn disk_and_compile_loads_report_work_and_leave_no_files() {
    let place = Place::new();
    let read = ["load", "disk-read", "--each", "10us", "--block", "8KiB", "--folder", "."];
    let done = json(place.run(&[&read[..], &["--length", "50ms", "--json"]].concat()));
    assert!(done["read_bytes"].as_u64().unwrap().is_multiple_of(8192), "{done}");
    assert!(done["read_past_the_cache"].is_boolean());
    place.run(&[&read[..], &["--length", "50ms"]].concat()).ended_with(0).shows("of CPU time");
    let compile = ["load", "compile", "--jobs", "2", "--each", "1ms", "--read", "4KiB"];
    let done = json(place.run(&[&compile[..], &["--total", "8ms", "--json"]].concat()));
    assert_eq!((&done["answered"], &done["received_bytes"]), (&6.into(), &(6 * 4096).into()));
    let line = place.run(&[&compile[..], &["--total", "8ms"]].concat()).good();
    assert!(line.starts_with("6 requests, 6 answered ("), "{line}");
    assert_eq!(place.files(), Vec::<String>::new());
    let spin = json(place.run(&["load", "batch", "--total", "2ms", "--json"]));
    assert!(spin["used_ns"].as_u64() >= Some(2_000_000), "{spin}");
}

#[test]
fn load_command_help_names_the_keys_used_by_scenarios() {
    let place = Place::new();
    for (kind, keys) in [
        ("web-server", &["each", "response", "connections", "processes", "read"][..]),
        ("echo", &["each"]),
        ("disk-read", &["each", "block", "readers"]),
        ("send", &["each", "block"]),
        ("sink", &["port"]),
        ("compile", &["jobs", "each", "read", "wait", "total"]),
        ("httperf", &["rate", "timeout", "to"]),
        ("ab", &["at-once", "to"]),
        ("ping", &["every", "to"]),
        ("ttcp", &["way", "window", "gap", "to"]),
        ("iperf", &["way", "window", "gap", "to"]),
    ] {
        let help = place.run(&["load", kind, "--help"]).good();
        for key in keys {
            assert!(help.contains(&format!("--{key} ")), "{kind}: {key}\n{help}");
        }
    }
    let all = place.run(&["load", "--help"]).good();
    for hidden in ["  steps ", "  tasks ", "  caller ", "  files "] {
        assert!(!all.contains(hidden), "{all}");
    }
}

/// Returns two UDP addresses that were free a moment ago, though another program may have taken
/// them.
fn two_ports() -> [String; 2] {
    let sockets = [0; 2].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    sockets.map(|socket| socket.local_addr().unwrap().to_string())
}

#[test]
fn bsp_nodes_started_by_separate_commands_wait_for_each_other() {
    let place = Place::new();
    let [one, other] = two_ports();
    let node = |own: &str, peer: &str, length: &str| {
        let words = ["load", "bsp", "--compute", "1ms", "--listen", own, "--peer", peer];
        place.command(&[&words[..], &["--length", length, "--json"]].concat())
    };
    let rounds = |out: &[u8]| {
        let done: Value = serde_json::from_slice(out).expect("JSON");
        done["jobs"].as_u64().unwrap()
    };
    assert_eq!(
        rounds(&node(&other, &one, "100ms").output().unwrap().stdout),
        0,
        "a node without a peer"
    );
    let mut first = node(&one, &other, "60s").stdout(Stdio::null()).spawn().unwrap();
    let together = rounds(&node(&other, &one, "2s").output().unwrap().stdout);
    first.kill().unwrap();
    first.wait().unwrap();
    assert!((1..=2_000).contains(&together), "{together} rounds of 1 ms in 2 s");
}

#[test]
fn bsp_node_refuses_own_address_and_repeated_addresses_as_peers() {
    let place = Place::new();
    let [own, peer] = two_ports();
    let load = |peers: &[&str]| {
        let mut words = vec!["load", "bsp", "--compute", "1ms", "--listen", &own];
        peers.iter().for_each(|peer| words.extend(["--peer", peer]));
        place.run(&words).ended_with(2)
    };
    load(&[&own]).says("is the address of this node").says("name every other node once");
    load(&[&peer, &peer]).says("is given twice");
    load(&[]).says("--peer");
    load(&["nowhere"]).says("nowhere");
}
