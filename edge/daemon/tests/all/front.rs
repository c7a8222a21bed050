//! Tests of misbehaving clients of the front server. Each such client gets an answer or is
//! disconnected in time, and other clients are served meanwhile. The time limits are long, since
//! the host may be busy.

use std::io::{Read, Write};
use std::ops::RangeInclusive;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::common::{EventStream, Front, event, fine, read_all, silent, status};
use slackline_control::link::{Answer, Ask, Request};
use slackline_control::{Kind, Problem};

const GET: &str = "GET /v1/host HTTP/1.1\r\nhost: h\r\n\r\n";

/// Asserts that a duration is within a range of seconds. The end of the range allows for a busy
/// host.
#[track_caller]
fn took(time: Duration, seconds: RangeInclusive<u64>) {
    let (least, most) = (Duration::from_secs(*seconds.start()), *seconds.end());
    let least = least.saturating_sub(Duration::from_millis(50));
    assert!(time >= least && time <= Duration::from_secs(most), "{time:?}, not {seconds:?} s");
}

#[test]
fn connection_with_incomplete_request_is_closed_and_delays_no_client() {
    let front = Front::new(fine);
    let front = &front;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (text, time) = front.until_closed(b"GET /v1/host HTTP/1.1\r\nhost:");
            took(time, 2..=8);
            assert_eq!(text, "");
        });
        scope.spawn(|| {
            let (text, time) = front.until_closed(b"");
            took(time, 2..=8);
            assert_eq!(text, "");
        });
        scope.spawn(|| {
            let head = "PUT /v1/reservations/web HTTP/1.1\r\nhost: h\r\ncontent-length: 40\r\n\r\n";
            let (text, time) = front.until_closed(format!("{head}{{\"slice\":").as_bytes());
            took(time, 5..=15);
            assert_eq!(status(&text), 408, "{text}");
            assert!(text.contains("9 bytes of the request body arrived"), "{text}");
        });
        scope.spawn(|| {
            // Slow single bytes do not extend the time limit.
            let (mut stream, begun) = (front.connect(), Instant::now());
            while stream.write_all(b"G").is_ok() && begun.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(300));
            }
            took(begun.elapsed(), 2..=10);
        });
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            assert_eq!(front.ask("GET", "/v1/host", "", "").0, 200);
            std::thread::sleep(Duration::from_millis(100));
        }
    });
}

#[test]
fn request_is_answered_with_504_if_core_process_is_silent() {
    let front = Front::new(silent);
    let begun = Instant::now();
    let (status, body) = front.ask("GET", "/v1/host", "", "");
    took(begun.elapsed(), 5..=15);
    assert_eq!(status, 504, "{body}");
    let problem: Problem = serde_json::from_str(&body).unwrap();
    assert_eq!(problem.kind, Kind::NotAnswered);
    assert!(problem.hint.unwrap().contains("Idempotency-Key"));
}

#[test]
fn request_is_cancelled_if_its_caller_closes_the_connection() {
    let front = Front::new(silent);
    let mut stream = front.connect();
    stream.write_all(b"GET /v1/machines HTTP/1.1\r\nhost: h\r\n\r\n").unwrap();
    let asked = front.heard();
    assert!(matches!(asked.request, Request::Find { .. }), "{asked:?}");
    drop(stream);
    let cancel = front.heard();
    assert_eq!((cancel.ticket, cancel.request), (asked.ticket, Request::Cancel));
}

#[test]
fn front_process_refuses_invalid_request_without_asking_core_process() {
    let front = Front::new(fine);
    let put = |body: &str| front.ask("PUT", "/v1/reservations/web", "", body);
    let long = format!("{{\"slice\":\"{}\"}}", "9".repeat(20_000));
    assert_eq!(put(&long).0, 413);
    // Refused at the first byte or level beyond the limit. Within the limits, the text is invalid
    // JSON.
    let padded = |size: usize| format!("{{\"slice\":2{}", " ".repeat(size - 10));
    assert_eq!((put(&padded(16 * 1024)).0, put(&padded(16 * 1024 + 1)).0), (400, 413));
    assert!(put(&"[".repeat(17)).1.contains("17 levels deep; at most 16 are allowed"));
    assert!(!put(&"[".repeat(16)).1.contains("levels deep"));
    let chunked = format!(
        "PUT /v1/reservations/web HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n{}",
        format!("1000\r\n{}\r\n", " ".repeat(4096)).repeat(5)
    );
    assert_eq!(status(&front.until_closed(chunked.as_bytes()).0), 413);
    for (body, says) in [
        ("[".repeat(15_000).as_str(), "15000 levels deep; at most 16 are allowed"),
        ("", "EOF while parsing"),
        ("nonsense", "line 1 column 2"),
        ("{\"slice\":\"2ms\"", "EOF while parsing an object"),
        ("{\"slice\":2}", "expected a time such as"),
        ("{\"slice\":\"2ms\",\"root\":true}", "unknown field `root`"),
        ("{\"slice\":\"2ms\",\"slice\":\"3ms\"}", "duplicate field"),
        ("{\"slice\":\"2ms\"} {}", "trailing characters"),
        ("{\"slice\":\"2ms\",\"enforce\":\"quota\"}", "`quota` guarantees no share of its own"),
        ("{\"slice\":\"2ms\",\"enforce\":\"magic\"}", "use auto, dispatcher or deadline"),
        ("\u{0}", "expected value"),
        ("{\"slice\":\"2ms\",\"vcpus\":99999999999}", "expected u16"),
    ] {
        let (status, text) = put(body);
        let problem: Problem = serde_json::from_str(&text).unwrap();
        assert_eq!((status, problem.kind), (400, Kind::Bad), "{text}");
        assert!(
            problem.detail.contains(says),
            "the refusal does not contain `{says}`: {}",
            problem.detail
        );
        assert!(problem.hint.is_some(), "{text}");
    }
    for (method, path, more, status) in [
        ("GET", "/v1/nothing", "", 404),
        ("GET", "/v1/../../etc/passwd", "", 404),
        ("POST", "/v1/host", "", 405),
        ("DELETE", "/v1/reservations", "", 405),
        ("BREW", "/v1/host", "", 405),
        ("PUT", "/v1/reservations/..%2F..%2Fetc", "", 400),
        ("PUT", "/v1/reservations/%ff", "", 400),
        ("GET", "/v1/room", "", 400),
        ("GET", "/v1/room?period=10", "", 400),
        ("GET", "/v1/room?period=10ms&more=1", "", 400),
        ("GET", "/v1/log?limit=501", "", 400),
        ("GET", "/v1/events", "last-event-id: x\r\n", 400),
        ("PATCH", "/v1/reservations/web", "if-match: 7\r\n", 400),
        ("DELETE", "/v1/reservations/web", "if-match: 7\r\n", 400),
        ("DELETE", "/v1/reservations/web", "if-none-match: *\r\n", 400),
        ("POST", "/v1/reservations/web/pause", "idempotency-key: a b\r\n", 400),
    ] {
        let (is, text) = front.ask(method, path, more, "");
        assert_eq!(is, status, "{method} {path}: {text}");
        let problem: Problem = serde_json::from_str(&text).unwrap();
        assert_eq!(problem.status, status);
    }
    let headers: String = (0..40).map(|nth| format!("x-{nth}: 1\r\n")).collect();
    assert_eq!(front.ask("GET", "/v1/host", &headers, "").0, 431);
    let long = format!("x: {}\r\n", "y".repeat(20_000));
    assert_eq!(front.ask("GET", "/v1/host", &long, "").0, 431);
    assert_eq!(status(&front.until_closed(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n").0), 400);
    assert!(!front.has_asked(), "an invalid request reached the core");
}

#[test]
fn front_process_passes_valid_request_to_core_process_unchanged() {
    let front = Front::new(fine);
    let (status, text) = front.ask(
        "PUT",
        "/v1/reservations/web",
        "idempotency-key: k1\r\nif-none-match: *\r\n",
        r#"{"slice":"2ms","period":"10ms","exact":true,"vcpus":2,"for":"libvirt:web"}"#,
    );
    assert_eq!(status, 201, "{text}");
    let ask = front.heard();
    let uid = rustix::process::getuid().as_raw();
    let gids = vec![rustix::process::getgid().as_raw()];
    assert_eq!(ask.who, slackline_control::link::CallerIdentity::User { uid, gids });
    assert_eq!(ask.key.as_deref(), Some("k1"));
    let Request::Reserve { name, wanted } = ask.request else { panic!("{:?}", ask.request) };
    assert_eq!((name.as_str(), wanted.exact, wanted.vcpus), ("web", true, Some(2)));
    let patch =
        front.ask("PATCH", "/v1/reservations/web", "if-match: \"7\"\r\n", r#"{"slice":"3ms"}"#);
    assert_eq!(patch.0, 200, "{}", patch.1);
    let ask = front.heard();
    assert!(matches!(ask.request, Request::Change { if_revision: Some(7), .. }), "{ask:?}");
    let (status, text) = front.ask("GET", "/health", "", "");
    assert_eq!(status, 503, "{text}");
    let accept = "accept: application/openmetrics-text\r\n";
    let (status, text) = front.ask("GET", "/metrics", accept, "");
    assert_eq!(status, 200, "{text}");
    assert!(
        text.contains("slackline_requests_total{route=\"/v1/reservations/{name}\",code=\"201\"} 1")
    );
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn user_with_too_many_connections_or_streams_gets_429() {
    let front = Front::new(fine);
    let get = |stream: &mut UnixStream, path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut part = [0; 4096];
        let read = stream.read(&mut part).unwrap();
        String::from_utf8_lossy(&part[..read]).into_owned()
    };
    let mut all: Vec<UnixStream> = (0..8).map(|_| front.connect()).collect();
    for stream in &mut all {
        assert_eq!(status(&get(stream, "/v1/host")), 200);
    }
    let (text, _) = front.until_closed(b"");
    assert_eq!(status(&text), 429, "{text}");
    assert!(text.contains("this user already has 8 connections"), "{text}");
    let events: Vec<u16> =
        all[..3].iter_mut().map(|stream| status(&get(stream, "/v1/events"))).collect();
    assert_eq!(events, [200, 200, 429]);
    // A user who closes a connection may open another.
    all.truncate(7);
    let begun = Instant::now();
    while front.ask("GET", "/v1/host", "", "").0 != 200 {
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn user_flooding_daemon_with_requests_is_delayed_and_gets_429() {
    let front = Front::new(fine);
    let mut stream = front.connect();
    let (mut served, mut refused, begun) = (0, 0, Instant::now());
    let mut part = [0; 4096];
    while begun.elapsed() < Duration::from_secs(4) {
        stream.write_all(GET.as_bytes()).unwrap();
        let read = stream.read(&mut part).unwrap();
        match status(&String::from_utf8_lossy(&part[..read])) {
            200 => served += 1,
            429 => refused += 1,
            other => panic!("{other}"),
        }
    }
    let most = 100 + 50 * (begun.elapsed().as_secs() + 1);
    assert!(served <= most, "{served} requests were served, and {most} are allowed");
    assert!(refused >= 1, "no request was refused");
    // Each refusal was delayed by a tenth of a second.
    assert!(refused <= 10 * (begun.elapsed().as_secs() + 1), "{refused} requests were refused");
}

#[test]
fn resumed_event_stream_reports_each_missed_or_new_event_once() {
    let front = Front::new(fine);
    let mut stream = front.connect();
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: h\r\nlast-event-id: 6\r\n\r\n").unwrap();
    let mut text = String::new();
    let mut until = |what: &str| {
        let mut part = [0; 4096];
        while !text.contains(what) {
            let read = stream.read(&mut part).unwrap();
            assert!(read > 0, "the stream has ended: {text}");
            text += &String::from_utf8_lossy(&part[..read]);
        }
        text.clone()
    };
    let missed = until("id: 9\n");
    let places: Vec<_> = (5..11).map(|seq| missed.find(&format!("id: {seq}\n"))).collect();
    assert!(
        places[0].is_none() && places[1].is_none(),
        "an event that the client has was sent again: {missed}"
    );
    assert!(
        places[2..5].is_sorted() && places[2].is_some(),
        "missed events are not in order: {missed}"
    );
    // Events already sent from the ledger are not sent again, and new ones are sent once.
    front.happens(event(9));
    front.happens(event(10));
    front.happens(event(11));
    let all = until("id: 11\n");
    assert_eq!((all.matches("id: 9\n").count(), all.matches("id: 10\n").count()), (1, 1), "{all}");
}

/// Answers a request like a daemon core that has 5,000 events in its log.
fn with_long_log(ask: &Ask) -> Option<Result<Answer, Problem>> {
    match ask.request {
        Request::Log { before, limit, .. } => {
            let page = (1..before.unwrap_or(5_001)).rev().take(limit).map(event);
            Some(Ok(Answer::Events(page.collect())))
        }
        _ => fine(ask),
    }
}

#[test]
fn event_stream_sends_each_event_of_a_long_burst_once() {
    let front = Front::new(with_long_log);
    let mut stream = EventStream::begin(front.connect(), "/v1/events", "host: h\r\n");
    // These 4,000 events are more than the front process keeps for a stream, which then reads them
    // from the log. One commit of `apply` can have a thousand events.
    front.all_happen((1_001..=5_000).map(event));
    stream.read_until("id: 5000\nevent: event\n");
    let ids = stream.ids_of("event");
    assert!(ids.iter().copied().eq(1_001..=5_000), "{} events: {ids:?}", ids.len());
}

#[test]
fn unread_event_stream_is_closed_while_other_clients_are_served() {
    let front = Front::new(fine);
    let mut deaf = front.connect();
    deaf.write_all(b"GET /v1/events HTTP/1.1\r\nhost: h\r\n\r\n").unwrap();
    let mut part = [0; 1024];
    let read = deaf.read(&mut part).unwrap();
    assert_eq!(status(&String::from_utf8_lossy(&part[..read])), 200);
    let mut reader = EventStream::begin(front.connect(), "/v1/events", "host: h\r\n");
    let long = "x".repeat(50_000);
    let begun = Instant::now();
    for seq in 100..400 {
        front.happens(slackline_control::Event { outcome: long.clone(), ..event(seq) });
        // Each event reaches the client that reads, in order.
        reader.read_until(&format!("id: {seq}\n"));
        assert_eq!(reader.text.matches("id: ").count(), 1, "{seq}");
        reader.text.clear();
        if seq % 50 == 0 {
            assert_eq!(front.ask("GET", "/v1/host", "", "").0, 200);
        }
    }
    // The stream is cut after the time for which a reader may be stuck. The client gets only what
    // was sent before.
    std::thread::sleep(Duration::from_secs(7).saturating_sub(begun.elapsed()));
    let text = read_all(&mut deaf);
    assert!(!text.contains("id: 399\n"), "the stream was not cut off");
    assert_eq!(front.ask("GET", "/v1/host", "", "").0, 200);
}
