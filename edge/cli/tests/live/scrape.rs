//! Tests of `slackline serve --metrics`. The test of a refusal needs no root.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::common::live;
use crate::common::service::Daemon;

/// Sends a GET request for the path `page` to a port of this host, and returns the answer. Empty if
/// no process listens.
fn get(port: u16, page: &str) -> String {
    let mut text = String::new();
    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
        let request = format!("GET {page} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_string(&mut text);
    }
    text
}

#[test]
fn metrics_without_tls_are_served_only_on_a_loopback_address() {
    let Some(live) = live::begin() else { return };
    let ran = live.run(&["serve", "--metrics", "0.0.0.0:9391", "--state", "state"]).ended_with(2);
    ran.says("cannot serve metrics without TLS on 0.0.0.0:9391: it is not a loopback address")
        .says("hint:  use `--metrics 127.0.0.1:9391`");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let options = ["serve", "--state", "state", "--socket", "socket", "--metrics", &address];
    let mut command = live.command(&options);
    command.args(["--cpus", &live.cpu()]);
    let daemon = Daemon::start_by(&live, command).expect("the daemon starts");
    let page = get(port, "/metrics");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("slackline_build_info"), "{page}");
    assert!(get(port, "/v1/reservations").starts_with("HTTP/1.1 404"));
    // After the front was killed, the next front serves the page.
    let front = daemon.process_of("serve-front").expect("a front");
    let front = rustix::process::Pid::from_raw(front).expect("a process");
    rustix::process::kill_process(front, rustix::process::Signal::KILL).unwrap();
    live::wait_until("the next front", || get(port, "/metrics").starts_with("HTTP/1.1 200"));
}
