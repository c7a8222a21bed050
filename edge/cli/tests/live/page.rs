//! Tests of `slackline serve --page`, `slackline page` and `slackline demo`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::live::{self, Victim, wait_until};
use crate::common::service::Daemon;

/// Sends a request to the page's address. Returns the answer with its header.
fn ask(address: &str, request: &str, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let head = format!(
        "{request} HTTP/1.1\r\nhost: {address}\r\norigin: http://{address}\r\n\
         sec-fetch-site: same-origin\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Splits the URL that `slackline page` has printed. Returns the address and the code.
fn split(url: &str) -> (String, String) {
    let rest = url.trim().strip_prefix("http://").unwrap();
    let (address, code) = rest.split_once("/#").unwrap();
    (address.to_owned(), code.to_owned())
}

#[test]
fn web_page_of_daemon_accepts_login_and_changes_a_reservation() {
    let Some(live) = live::begin() else { return };
    let options =
        ["serve", "--state", "state", "--socket", "socket", "--page", "127.0.0.1:0", "--cpus"];
    let mut command = live.command(&options);
    command.arg(live.cpu());
    let daemon = Daemon::start_by(&live, command).expect("the daemon starts");
    let victim = Victim::start();
    assert_eq!(daemon.reserve("web", &victim, "2ms").0, 201);
    let (address, code) = split(&daemon.run("page").ended_with(0).out);
    assert!(ask(&address, "GET /", "", "").contains("<title>Slackline</title>"));
    assert!(ask(&address, "GET /v1/reservations", "", "").starts_with("HTTP/1.1 401"));
    let login = ask(&address, "POST /page/login", "", &format!("{{\"code\":\"{code}\"}}"));
    let (head, body) = login.split_once("\r\n\r\n").unwrap();
    let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    let cookie = cookie.split(';').next().unwrap();
    let token: Value = serde_json::from_str(body).unwrap();
    let session =
        format!("cookie: {cookie}\r\nx-slackline-token: {}\r\n", token["token"].as_str().unwrap());
    let list = ask(&address, "GET /v1/reservations", &session, "");
    assert!(list.starts_with("HTTP/1.1 200") && list.contains("\"web\""), "{list}");
    let change = ask(&address, "PATCH /v1/reservations/web", &session, r#"{"slice":"3ms"}"#);
    assert!(change.starts_with("HTTP/1.1 200"), "{change}");
    assert_eq!(daemon.one("web")["slice_ns"], 3_000_000);
    let log = daemon.run("log web").ended_with(0);
    assert!(log.out.contains("change"), "{}", log.out);
    // The columns of the timeline come from the flight recorder.
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let head = format!("GET /v1/timeline HTTP/1.1\r\nhost: {address}\r\n{session}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let lines = BufReader::new(stream).lines().map(Result::unwrap);
    let mut names = Value::Null;
    let drawn = lines.take(400).any(|line| {
        let Some(data) = line.strip_prefix("data: {\"columns\":") else { return false };
        let part: Value = serde_json::from_str(&format!("{{\"columns\":{data}")).unwrap();
        if !part["vcpus"].is_null() {
            names = part["vcpus"].clone();
        }
        let number = |name: &Value| name.as_str().is_some_and(|name| name.starts_with("web"));
        let Some(web) = names.as_array().and_then(|all| all.iter().position(number)) else {
            return false;
        };
        // CPU, vCPU and part of each run interval in a column.
        let mut columns = part["columns"].as_array().unwrap().iter().flat_map(Value::as_array);
        columns.any(|column| column.chunks(3).any(|run| run[1] == web))
    });
    assert!(drawn, "a column of the timeline shows `web`: {names}");
    // `access revoke` ends the sessions of a user, even of root, who has no grant.
    let revoked = daemon.run("access revoke 0");
    assert_eq!(revoked.code, Some(2), "{}", revoked.err);
    assert!(ask(&address, "GET /v1/host", &session, "").starts_with("HTTP/1.1 401"));
}

#[test]
fn killed_demo_command_leaves_no_process_and_no_folder() {
    let Some(live) = live::begin() else { return };
    let mut command = live.command(&["demo", "--cpu"]);
    let mut demo = command.arg(live.cpu()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let mut line = || lines.next().expect("the demo prints more").unwrap();
    let (address, _) = split(line().strip_prefix("page:  ").unwrap());
    line();
    let socket = line();
    let socket = Path::new(socket.rsplit(' ').next().unwrap()).to_owned();
    assert!(ask(&address, "GET /", "", "").contains("<title>Slackline</title>"));
    let list = live.run(&["list", "--json", "--socket", socket.to_str().unwrap()]).ended_with(0);
    for guest in ["game", "shop", "mail", "backup"] {
        assert!(list.out.contains(guest), "{}", list.out);
    }
    let pid = i32::try_from(demo.id()).unwrap();
    live::kill(pid, Signal::KILL);
    demo.wait().unwrap();
    let begun = Instant::now();
    wait_until("the folder to be removed", || !socket.parent().unwrap().exists());
    assert!(begun.elapsed() < Duration::from_secs(20));
    live.nothing_is_left();
}
