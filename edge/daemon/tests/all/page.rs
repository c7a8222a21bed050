//! Tests of the web page. They use hostile pages of other sites, another user of the host, and a
//! browser that has access.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use slackline_control::link::{Answer, Ask, CallerIdentity, Request};
use slackline_control::{Kind, Problem, Role};
use slackline_daemon::front::{PageSite, SessionTimes};

use crate::common::{EventStream, Front, Says, event, fine, status};

/// Answers a request like a daemon core for which each caller is an administrator without a grant.
fn administrators(ask: &Ask) -> Option<Result<Answer, Problem>> {
    match ask.request {
        Request::Revoke { .. } => Some(Err(Problem::new(Kind::NoSuchReservation, "no grant"))),
        _ => fine(ask),
    }
}

/// Answers a request like a daemon core for which each caller is a viewer.
fn viewers(ask: &Ask) -> Option<Result<Answer, Problem>> {
    match ask.request {
        Request::Whoami => Some(Ok(Answer::You(Role::Viewer))),
        _ => fine(ask),
    }
}

/// Answers a request like a daemon core that revokes the access of all callers. It does so after
/// the first request for the list of reservations.
fn forgetful(ask: &Ask) -> Option<Result<Answer, Problem>> {
    static IS_REVOKED: AtomicBool = AtomicBool::new(false);
    match ask.request {
        Request::Whoami if IS_REVOKED.load(SeqCst) => {
            Some(Err(Problem::new(Kind::NotAllowed, "the caller may not use the daemon")))
        }
        Request::List { .. } => {
            IS_REVOKED.store(true, SeqCst);
            fine(ask)
        }
        _ => administrators(ask),
    }
}

/// A front server with a web page, and the address of the page.
struct Site {
    front: Front,
    address: SocketAddr,
}

/// An HTTP answer: its status, head and body.
struct Answered {
    status: u16,
    head: String,
    body: String,
}

/// Cookie and token of a browser's session.
#[derive(Clone)]
struct Login {
    cookie: String,
    token: String,
}

impl Site {
    fn new(says: Says) -> Site {
        Site::with(says, SessionTimes::USUAL)
    }

    fn with(says: Says, times: SessionTimes) -> Site {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let page = PageSite { listener, address, times };
        Site { front: Front::with_all(says, None, (None, Some(page))), address }
    }

    fn own(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends a request to the address of the page, with the header lines in `headers`.
    fn send(&self, request: &str, headers: &str, body: &str) -> Answered {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
        let text = format!(
            "{request} HTTP/1.1\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        (&stream).write_all(text.as_bytes()).unwrap();
        let mut text = String::new();
        (&stream).read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        Answered { status: status(head), head: head.to_ascii_lowercase(), body: body.into() }
    }

    /// Sends a request as the page itself does.
    fn ask(&self, request: &str, login: &Login, body: &str) -> Answered {
        self.send(request, &(self.ours() + &login.headers()), body)
    }

    /// Returns the header lines that a browser adds to a request of our page.
    fn ours(&self) -> String {
        let (address, own) = (self.address, self.own());
        format!("host: {address}\r\norigin: {own}\r\nsec-fetch-site: same-origin\r\n")
    }

    /// Returns a new one-time code, which the user of the test has requested over the local socket.
    fn code(&self) -> String {
        let (status, body) = self.front.ask("POST", "/v1/page", "", "");
        assert_eq!(status, 200, "{body}");
        let code: slackline_control::PageCode = serde_json::from_str(&body).unwrap();
        assert_eq!(code.address, Some(format!("{}/", self.own())));
        code.code
    }

    /// Opens a stream as the page itself does.
    fn stream(&self, path: &str, login: &Login) -> EventStream<TcpStream> {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
        EventStream::begin(stream, path, &(self.ours() + &login.headers()))
    }

    fn use_code(&self, code: &str) -> Answered {
        self.send("POST /page/login", &self.ours(), &format!("{{\"code\":\"{code}\"}}"))
    }

    fn log_in(&self) -> Login {
        let Answered { status, head, body } = self.use_code(&self.code());
        assert_eq!(status, 200, "{body}");
        let line = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
        let (cookie, rest) = line.split_once(';').unwrap();
        assert_eq!(rest, " path=/; httponly; samesite=strict; max-age=28800");
        let session: slackline_control::PageSession = serde_json::from_str(&body).unwrap();
        Login { cookie: cookie.into(), token: session.token.unwrap() }
    }

    /// Drops the requests that the simulated daemon core has received so far.
    fn forget_asked(&self) {
        while self.front.has_asked() {}
    }

    /// Asserts that a request was refused with the status `code`, and that the answer contains no
    /// data.
    #[track_caller]
    fn refused(&self, code: u16, answered: &Answered) {
        assert_eq!(answered.status, code, "{}\n{}", answered.head, answered.body);
        assert!(!answered.body.contains("\"web\""), "{}", answered.body);
        assert!(!answered.head.contains("access-control-"), "{}", answered.head);
    }
}

impl Login {
    fn headers(&self) -> String {
        format!("cookie: {}\r\nx-slackline-token: {}\r\n", self.cookie, self.token)
    }
}

const CHANGE: &str = r#"{"slice":"3ms"}"#;
const WEB: &str = "/v1/reservations/web";

#[test]
fn browser_session_has_rights_of_user_that_created_login_code() {
    let site = Site::new(administrators);
    let login = site.log_in();
    site.forget_asked();
    assert_eq!(site.ask("GET /v1/reservations", &login, "").status, 200);
    assert!(matches!(site.front.heard().request, Request::Whoami));
    let uid = rustix::process::getuid().as_raw();
    let CallerIdentity::User { uid: heard, .. } = site.front.heard().who else { panic!() };
    assert_eq!(heard, uid);
    assert_eq!(site.ask(&format!("PATCH {WEB}"), &login, CHANGE).status, 200);
    let session = site.ask("GET /v1/session", &login, "");
    assert!(session.body.contains("administrator") && !session.body.contains("token"));
    assert_eq!(site.ask("DELETE /v1/session", &login, "").status, 204);
    site.refused(401, &site.ask("GET /v1/reservations", &login, ""));
}

#[test]
fn page_of_another_site_cannot_write_with_session_cookie() {
    let site = Site::new(administrators);
    let login = site.log_in();
    site.forget_asked();
    let host = format!("host: {}\r\n", site.address);
    let own = site.own();
    let patch = format!("PATCH {WEB}");
    // The browser adds the cookie, and the page knows the token too.
    for from in [
        "origin: http://evil.example\r\nsec-fetch-site: cross-site\r\n".to_owned(),
        // Another port of this host is the same site, but another origin.
        "origin: http://127.0.0.1:1\r\nsec-fetch-site: same-site\r\n".to_owned(),
        format!("origin: {own}\r\nsec-fetch-site: cross-site\r\n"),
        format!("origin: {own}\r\n"),
        "origin: null\r\nsec-fetch-site: same-origin\r\n".to_owned(),
        "sec-fetch-site: same-origin\r\n".to_owned(),
        String::new(),
    ] {
        let headers = format!("{host}{from}{}", login.headers());
        site.refused(403, &site.send(&patch, &headers, CHANGE));
        let post = format!("POST {WEB}/pause");
        site.refused(403, &site.send(&post, &headers, "{}"));
    }
    assert!(!site.front.has_asked(), "a refused request reached the core");
}

#[test]
fn cross_site_form_and_preflight_get_403_without_cors_headers() {
    let site = Site::new(administrators);
    let login = site.log_in();
    site.forget_asked();
    let host = format!("host: {}\r\n", site.address);
    let evil = "origin: http://evil.example\r\nsec-fetch-site: cross-site\r\n";
    // A form needs no preflight, and cannot send the token.
    let form = format!("{host}{evil}cookie: {}\r\ncontent-type: text/plain\r\n", login.cookie);
    site.refused(403, &site.send(&format!("POST {WEB}/pause"), &form, "{}"));
    let preflight = format!(
        "{host}{evil}access-control-request-method: PATCH\r\n\
         access-control-request-headers: x-slackline-token\r\n"
    );
    site.refused(403, &site.send(&format!("OPTIONS {WEB}"), &preflight, ""));
    assert!(!site.front.has_asked(), "a refused request reached the core");
}

#[test]
fn request_with_foreign_name_in_the_host_header_is_refused() {
    let site = Site::new(administrators);
    let login = site.log_in();
    site.forget_asked();
    let port = site.address.port();
    for host in [format!("evil.example:{port}"), format!("127.0.0.1.evil.example:{port}")] {
        let own = format!(
            "host: {host}\r\norigin: http://{host}\r\nsec-fetch-site: same-origin\r\n{}",
            login.headers()
        );
        site.refused(403, &site.send("GET /v1/reservations", &own, ""));
        site.refused(403, &site.send(&format!("PATCH {WEB}"), &own, CHANGE));
        // The files of the page are refused too, because their scripts would run under that name.
        site.refused(403, &site.send("GET /", &format!("host: {host}\r\n"), ""));
        // The socket, as `ssh -L` forwards it, identifies the user without a session.
        let (status, body) = site.front.until_host(&host);
        assert_eq!(status, 403, "{body}");
    }
    assert!(!site.front.has_asked(), "a refused request reached the core");
}

#[test]
fn browser_without_a_session_is_refused_on_every_socket() {
    let site = Site::new(administrators);
    let host = format!("host: {}\r\n", site.address);
    for path in ["/v1/reservations", "/v1/host", "/metrics", "/health", "/v1/events", "/v1/page"] {
        site.refused(401, &site.send(&format!("GET {path}"), &host, ""));
    }
    // Requests of another site's page, in the browser of a user who forwards the socket.
    for headers in [
        "origin: http://evil.example\r\n",
        "sec-fetch-site: cross-site\r\n",
        "cookie: slackline=1\r\n",
    ] {
        let (status, body) = site.front.ask("POST", "/v1/reservations/web/pause", headers, "{}");
        assert_eq!(status, 403, "{body}");
    }
    let (status, _) = site.front.ask("GET", "/v1/host", "sec-fetch-site: none\r\n", "");
    assert_eq!(status, 403);
    assert!(!site.front.has_asked(), "a refused request reached the core");
    // A program on the socket needs no session.
    assert_eq!(site.front.ask("GET", "/v1/host", "", "").0, 200);
}

#[test]
fn web_page_cannot_be_framed_and_loads_only_own_files() {
    let site = Site::new(administrators);
    let host = format!("host: {}\r\n", site.address);
    for path in ["/", "/page/main.js", "/page/style.css", "/favicon.ico", "/v1/host", "/page/x"] {
        let head = site.send(&format!("GET {path}"), &host, "").head;
        for line in [
            "frame-ancestors 'none'",
            "default-src 'none'; script-src 'self'; style-src 'self'",
            "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'",
            "require-trusted-types-for 'script'; trusted-types 'none'",
            "x-frame-options: deny",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(head.contains(line), "{path}: {line}: {head}");
        }
        assert!(!head.contains("unsafe"), "{head}");
    }
    let html = site.send("GET /", &host, "").body;
    assert!(!html.contains("<script>") && !html.contains(" style=") && !html.contains(" onclick="));
}

#[test]
fn reused_unknown_or_expired_login_code_starts_no_session() {
    let second = Duration::from_secs(1);
    let times = SessionTimes { code: second, session: 2 * second };
    let site = Site::with(administrators, times);
    let code = site.code();
    assert_eq!(site.use_code(&code).status, 200);
    site.refused(401, &site.use_code(&code));
    site.refused(401, &site.use_code(&"0".repeat(64)));
    site.refused(401, &site.use_code(""));
    let late = site.code();
    std::thread::sleep(second);
    site.refused(401, &site.use_code(&late));
}

#[test]
fn browser_session_ends_after_its_configured_lifetime() {
    let second = Duration::from_secs(1);
    let site = Site::with(administrators, SessionTimes { code: 10 * second, session: second });
    let Answered { head, body, .. } = site.use_code(&site.code());
    let cookie = head.split("set-cookie: ").nth(1).unwrap().split(';').next().unwrap().to_owned();
    let session: slackline_control::PageSession = serde_json::from_str(&body).unwrap();
    let login = Login { cookie, token: session.token.unwrap() };
    std::thread::sleep(second);
    site.refused(401, &site.ask("GET /v1/reservations", &login, ""));
}

#[test]
fn login_from_another_site_is_refused_despite_valid_login_code() {
    // Otherwise an attacker could log a victim in with the attacker's code, and see what the victim
    // does in that session.
    let site = Site::new(administrators);
    let body = format!("{{\"code\":\"{}\"}}", site.code());
    let evil = format!(
        "host: {}\r\norigin: http://evil.example\r\nsec-fetch-site: cross-site\r\n",
        site.address
    );
    site.refused(403, &site.send("POST /page/login", &evil, &body));
    site.refused(
        403,
        &site.send("POST /page/login", &format!("host: {}\r\n", site.address), &body),
    );
}

#[test]
fn browser_request_with_only_cookie_or_only_token_is_refused() {
    let site = Site::new(administrators);
    let (login, other) = (site.log_in(), site.log_in());
    site.forget_asked();
    let ours = site.ours();
    let tries = [
        // A page of another port gets the cookie, since cookies are shared by ports.
        format!("{ours}cookie: {}\r\n", login.cookie),
        format!("{ours}x-slackline-token: {}\r\n", login.token),
        format!("{ours}cookie: {}\r\nx-slackline-token: {}\r\n", login.cookie, other.token),
        format!("{ours}cookie: {}\r\nx-slackline-token: \r\n", login.cookie),
        format!("{ours}{}cookie: {}\r\n", login.headers(), other.cookie),
    ];
    for headers in tries {
        site.refused(401, &site.send("GET /v1/reservations", &headers, ""));
        site.refused(401, &site.send(&format!("PATCH {WEB}"), &headers, CHANGE));
    }
    let twice = format!("{ours}{}x-slackline-token: {}\r\n", login.headers(), other.token);
    site.refused(400, &site.send("GET /v1/reservations", &twice, ""));
    assert!(!site.front.has_asked(), "a refused request reached the core");
}

#[test]
fn viewer_session_cannot_write_and_administrator_session_cannot_grant_access() {
    let site = Site::new(viewers);
    let login = site.log_in();
    for (request, body) in [
        (format!("PATCH {WEB}"), CHANGE),
        (format!("PUT {WEB}"), r#"{"slice":"2ms"}"#),
        (format!("DELETE {WEB}"), ""),
        (format!("POST {WEB}/pause"), "{}"),
        (format!("POST {WEB}/resume"), "{}"),
        ("POST /v1/apply".to_owned(), r#"{"reservations":{}}"#),
    ] {
        site.refused(403, &site.ask(&request, &login, body));
    }
    let administrator = Site::new(administrators);
    let login = administrator.log_in();
    for (request, body) in [
        ("PUT /v1/access/1000", r#"{"role":"administrator"}"#),
        ("DELETE /v1/access/1000", ""),
        ("GET /v1/access", ""),
        ("POST /v1/page", ""),
    ] {
        administrator.refused(403, &administrator.ask(request, &login, body));
    }
    for front in [&site.front, &administrator.front] {
        while let Some(ask) = front.next_heard() {
            assert!(matches!(ask.request, Request::Whoami), "{ask:?}");
        }
    }
}

#[test]
fn vm_names_reach_web_page_as_json_not_as_html() {
    fn hostile(ask: &Ask) -> Option<Result<Answer, Problem>> {
        let name = "</script><img src=x onerror=alert(1)>";
        match ask.request {
            Request::Find { .. } => Some(Ok(Answer::Machines(vec![slackline_control::Machine {
                name: name.into(),
                kind: "qemu".into(),
                binding: format!("qemu:{name}"),
                uid: 0,
                pid: 1,
                cpu_ppm: None,
                vcpus: Vec::new(),
                reserved: None,
                why: None,
            }]))),
            _ => administrators(ask),
        }
    }
    let site = Site::new(hostile);
    let answered = site.ask("GET /v1/machines", &site.log_in(), "");
    assert!(answered.head.contains("content-type: application/json"), "{}", answered.head);
    assert!(answered.head.contains("nosniff"), "{}", answered.head);
    assert!(answered.body.contains("<img src=x"), "{}", answered.body);
    // A refusal shows parts of the request, and is JSON too.
    let shown = site.ask("GET /v1/reservations/%3Cimg%3E", &site.log_in(), "");
    assert!(shown.status == 400 && shown.head.contains("application/problem+json"));
}

#[test]
fn revoking_access_of_user_ends_browser_sessions_of_that_user() {
    let site = Site::new(forgetful);
    let login = site.log_in();
    assert_eq!(site.ask("GET /v1/host", &login, "").status, 200);
    assert_eq!(site.ask("GET /v1/reservations", &login, "").status, 200);
    site.refused(401, &site.ask("GET /v1/host", &login, ""));
    let site = Site::new(administrators);
    let login = site.log_in();
    let uid = rustix::process::getuid().as_raw();
    let other = format!("/v1/access/{}", uid + 1);
    assert_eq!(site.front.ask("DELETE", &other, "", "").0, 404);
    assert_eq!(
        site.ask("GET /v1/host", &login, "").status,
        200,
        "revoking another user ended the session"
    );
    // A user without a grant has access by groups. The session ends even so.
    assert_eq!(site.front.ask("DELETE", &format!("/v1/access/{uid}"), "", "").0, 404);
    site.refused(401, &site.ask("GET /v1/host", &login, ""));
}

#[test]
fn silent_web_page_connections_do_not_block_socket_users() {
    let site = Site::new(administrators);
    let silent: Vec<TcpStream> =
        (0..60).map(|_| TcpStream::connect(site.address).unwrap()).collect();
    assert_eq!(site.front.ask("GET", "/v1/host", "", "").0, 200);
    let mut text = String::new();
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
        // A connection that is reset is closed, too.
        let _ = stream.read_to_string(&mut text);
    }
    assert_eq!(text, "");
    assert_eq!(site.send("GET /", &format!("host: {}\r\n", site.address), "").status, 200);
}

#[test]
fn unfinished_logins_do_not_prevent_logins_of_other_browsers() {
    let site = Site::new(administrators);
    let head = format!("POST /page/login HTTP/1.1\r\n{}content-length: 100\r\n\r\n", site.ours());
    let unfinished = |_| {
        let mut stream = TcpStream::connect(site.address).unwrap();
        let _ = stream.write_all(head.as_bytes());
        stream
    };
    let unfinished: Vec<TcpStream> = (0..24).map(unfinished).collect();
    std::thread::sleep(Duration::from_millis(300));
    let login = site.log_in();
    assert_eq!(site.ask("GET /v1/host", &login, "").status, 200);
    drop(unfinished);
}

#[test]
fn browser_session_requests_count_against_limits_of_user() {
    let site = Site::new(administrators);
    let login = site.log_in();
    let (is_refused, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    if site.ask("GET /v1/host", &login, "").status == 429 {
                        is_refused.store(true, SeqCst);
                    }
                }
            });
        }
        // While the session uses up the limit of the user, the user's requests on the socket are
        // refused too. With a limit of its own, the socket would accept ten requests a second.
        let begun = Instant::now();
        let mut is_refused_on_socket = false;
        while !is_refused_on_socket && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(100));
            is_refused_on_socket = site.front.ask("GET", "/v1/host", "", "").0 == 429;
        }
        is_over.store(true, SeqCst);
        assert!(is_refused_on_socket, "the socket has a separate limit");
    });
    assert!(is_refused.load(SeqCst), "the session has no limit");
}

#[test]
fn daemon_without_web_page_refuses_login_codes_and_page_files() {
    let front = Front::new(administrators);
    let (status, body) = front.ask("POST", "/v1/page", "", "");
    assert!(status == 503 && body.contains("serve --page"), "{body}");
    assert_eq!(front.ask("GET", "/", "", "").0, 404);
    assert_eq!(front.ask("GET", "/page/main.js", "", "").0, 404);
}

#[test]
fn timeline_stream_of_web_page_sends_vms_host_and_columns() {
    let site = Site::new(administrators);
    let login = site.log_in();
    let mut stream = site.stream("/v1/timeline", &login);
    for kind in ["event: vms\n", "event: host\n", "event: columns\n"] {
        stream.read_until(kind);
    }
    let text = &stream.text;
    assert!(
        text.contains("[[\"web\",\"active\",2000000,10000000,2,2,false,false,7,null"),
        "{text}"
    );
}

#[test]
fn event_streams_of_browser_session_end_with_the_session() {
    let site = Site::new(administrators);
    let login = site.log_in();
    let streams = ["/v1/events", "/v1/timeline"].map(|path| site.stream(path, &login));
    assert_eq!(site.ask("DELETE /v1/session", &login, "").status, 204);
    for stream in streams {
        stream.read_to_end();
    }
    // A user without a grant has access by groups. Revoking the access ends the session even so.
    let login = site.log_in();
    let stream = site.stream("/v1/events", &login);
    let uid = rustix::process::getuid().as_raw();
    assert_eq!(site.front.ask("DELETE", &format!("/v1/access/{uid}"), "", "").0, 404);
    stream.read_to_end();
}

#[test]
fn timeline_stream_of_web_page_sends_all_events_of_burst() {
    let site = Site::new(administrators);
    let mut stream = site.stream("/v1/timeline", &site.log_in());
    site.front.all_happen((1..=1_000).map(event));
    stream.read_until("id: 1000\nevent: event\n");
    let ids: Vec<u64> = stream.ids_of("event");
    assert!(ids.iter().copied().eq(1..=1_000), "{ids:?}");
}
