//! Tests of the loopback address for metrics, and of the example configuration for Prometheus.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use slackline_control::link::{CallerIdentity, Request};

use crate::common::{Front, fine, status};

/// Starts a front server with a loopback address for metrics.
fn front() -> (Front, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (Front::with_metrics(fine, None, Some(listener)), address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
    stream
}

/// Sends a request and returns the whole answer.
fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = connect(address);
    stream
        .write_all(format!("{request}\r\nhost: h\r\nconnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn metrics_address_serves_only_metrics_and_needs_no_credentials() {
    let (front, address) = front();
    let page = ask(address, "GET /metrics HTTP/1.1");
    assert!(status(&page) == 200 && page.contains("\nslackline_build_info"), "{page}");
    let heard = front.heard();
    assert_eq!((heard.who, heard.request), (CallerIdentity::Loopback, Request::Numbers));
    for (request, code) in [
        ("GET /v1/reservations HTTP/1.1", 404),
        ("GET /v1/openapi.json HTTP/1.1", 404),
        ("GET /health HTTP/1.1", 404),
        ("DELETE /v1/reservations/web HTTP/1.1", 404),
        ("POST /metrics HTTP/1.1", 405),
    ] {
        let answer = ask(address, request);
        assert_eq!(status(&answer), code, "{request}: {answer}");
    }
    assert!(!front.has_asked(), "another request reached the core");
    // Local clients are still served.
    assert_eq!(front.ask("GET", "/v1/host", "", "").0, 200);
}

#[test]
fn silent_metrics_connections_are_closed_and_block_no_user() {
    let (front, address) = front();
    let silent: Vec<TcpStream> = (0..20).map(|_| connect(address)).collect();
    assert_eq!(front.ask("GET", "/v1/host", "", "").0, 200);
    for mut stream in silent {
        let mut text = String::new();
        // A connection that is reset is closed, too.
        let _ = stream.read_to_string(&mut text);
        assert_eq!(text, "");
    }
    assert_eq!(status(&ask(address, "GET /metrics HTTP/1.1")), 200);
}

/// Returns the value of a key in the example configuration. Each key occurs there once.
fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let found = text.lines().find_map(|line| {
        let line = line.trim_start().trim_start_matches("- ");
        line.strip_prefix(key)?.strip_prefix(": ")
    });
    found.unwrap_or_else(|| panic!("no {key}")).split(" #").next().unwrap_or_default().trim()
}

#[test]
fn prometheus_example_scrapes_same_address_that_its_serve_command_opens() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let text = fs::read_to_string(examples.join("prometheus.yml")).unwrap();
    assert!(text.lines().count() <= 10, "{text}");
    let target = value(&text, "targets").trim_matches(['[', ']', '"']);
    assert!(target.parse::<SocketAddr>().unwrap().ip().is_loopback(), "{target}");
    assert!(text.contains(&format!("serve --metrics {target}`")), "{text}");
    // The address serves the path that Prometheus requests by default.
    assert!(!text.contains("metrics_path") && !text.contains("scheme"));
    let (_front, address) = front();
    assert_eq!(status(&ask(address, "GET /metrics HTTP/1.1")), 200);
    // The alert rules expect the name of the job.
    let rules = text.lines().last().unwrap().trim_start_matches([' ', '-']);
    let rules = fs::read_to_string(examples.join(rules.split(' ').next().unwrap())).unwrap();
    let job = format!("job=\"{}\"", value(&text, "job_name"));
    assert!(rules.contains(&job), "{job}");
}
