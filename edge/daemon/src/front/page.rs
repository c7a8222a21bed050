//! The web page: its files, its login, and the sessions of browsers.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::extract::{Path, Request as Sent, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, SET_COOKIE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::Deserialize;
use slackline_control::link::{Answer, Request};
use slackline_control::{Kind, PageCode, PageSession, Problem};
use tokio::time::Instant;

use super::Front;
use super::body::{self, No, Reply};
use super::browser::{Door, no_session};
use super::caller::Caller;
use super::sessions::{Login, NoRandom, Session, SessionTimes};

/// Listening socket for browsers of this host, with its address.
#[derive(Debug)]
pub struct PageSite {
    /// Listening socket on a loopback address.
    pub listener: TcpListener,
    /// Address of the socket.
    pub address: SocketAddr,
    /// Time limits of one-time codes and sessions.
    pub times: SessionTimes,
}

/// A file of the web page.
struct PageFile {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! file {
    ($name:literal, $kind:expr) => {
        PageFile { name: $name, kind: $kind, bytes: include_bytes!(concat!("../../page/", $name)) }
    };
}

/// Script that draws the timeline on the web page and in reports.
pub const TIMELINE_SCRIPT: &str = include_str!("../../page/timeline.js");

const INDEX: PageFile = file!("index.html", HTML);

const FILES: &[PageFile] = &[
    file!("style.css", "text/css; charset=utf-8"),
    file!("icon.svg", "image/svg+xml"),
    file!("main.js", SCRIPT),
    file!("api.js", SCRIPT),
    file!("table.js", SCRIPT),
    file!("timeline.js", SCRIPT),
    file!("steer.js", SCRIPT),
    file!("lists.js", SCRIPT),
    file!("words.js", SCRIPT),
];

/// Headers of each answer to a browser. They have these effects: scripts, styles and requests come
/// from this host only, no site may frame the page, and no text becomes HTML.
const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// HTTP endpoints that a browser's session may not use. With them, a session could give itself or
/// others more access.
const NOT_FOR_SESSIONS: [&str; 2] = ["/v1/access", "/v1/page"];

/// Returns the routes of the web page, which need no session.
pub(super) fn routes() -> Router<Arc<Front>> {
    Router::new()
        .route("/", get(index))
        .route("/favicon.ico", get(icon))
        .route("/page/login", post(log_in))
        .route("/page/{file}", get(file))
}

/// Adds the security headers that each answer to a browser must have.
pub(super) fn protect(response: &mut Response) {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// Refuses a request of a browser's session if sessions may not use the endpoint.
pub(super) fn check_path(path: &str) -> Result<(), No> {
    let is_of = |page: &str| {
        path.strip_prefix(page).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    match NOT_FOR_SESSIONS.into_iter().find(|page| is_of(page)) {
        None => Ok(()),
        Some(page) => {
            let detail = format!("{page} is not permitted in a browser's session");
            let problem = Problem::new(Kind::NotAllowed, detail);
            Err(No(problem.hinting("use `slackline access` or `slackline page`")))
        }
    }
}

fn answer(file: &PageFile) -> Response {
    let mut response = file.bytes.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(file.kind));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    protect(&mut response);
    response
}

async fn index() -> Response {
    answer(&INDEX)
}

async fn icon() -> Response {
    FILES.iter().find(|file| file.name == "icon.svg").map_or_else(no_file, answer)
}

fn no_file() -> Response {
    No(Problem::new(Kind::NoSuchPage, "the page has no such file")).into_response()
}

async fn file(Path(name): Path<String>) -> Response {
    FILES.iter().find(|file| file.name == name).map_or_else(no_file, answer)
}

/// Body of a login request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Code {
    code: String,
}

fn no_random(_: NoRandom) -> No {
    No(Problem::new(Kind::NotNow, "cannot read random numbers from the kernel"))
}

/// Starts a session with a one-time code. The answer has the session's cookie in a header, and its
/// token in the body.
async fn log_in(
    State(front): State<Arc<Front>>,
    Extension(door): Extension<Door>,
    Extension(caller): Extension<Caller>,
    sent: Sent,
) -> Reply {
    let Code { code } = body::read(sent, caller.until, r#"{"code":"..."}"#).await?;
    let login = {
        let mut sessions = front.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.log_in(&code, Instant::now().into_std()).map_err(no_random)?
    };
    let wrong = || {
        let problem = Problem::new(Kind::NotKnown, "the code is unknown, used or expired");
        No(problem.hinting("run `slackline page` again: a code lasts one minute"))
    };
    let Login { cookie, token, session } = login.ok_or_else(wrong)?;
    let role = role_of(&front, &session, caller.until).await?;
    let lasts = left(session.until);
    let page = PageSession { role, lasts_ns: nanoseconds(lasts), token: Some(token) };
    let mut response = body::json(&page);
    set_cookie(&mut response, (door, &cookie), lasts)?;
    Ok(response)
}

fn set_cookie(
    response: &mut Response,
    (door, value): (Door, &str),
    lasts: Duration,
) -> Result<(), No> {
    let secure = if door == Door::Tls { "; Secure" } else { "" };
    let text = format!(
        "{}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}",
        door.cookie(),
        lasts.as_millis().div_ceil(1_000)
    );
    let value = HeaderValue::try_from(text).map_err(|_| No::bug())?;
    response.headers_mut().insert(SET_COOKIE, value);
    Ok(())
}

fn left(until: std::time::Instant) -> Duration {
    until.saturating_duration_since(Instant::now().into_std())
}

fn nanoseconds(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the present role of a session's caller. If the caller has no access any more, ends the
/// session.
pub(super) async fn role_of(
    front: &Front,
    session: &Session,
    until: Instant,
) -> Result<slackline_control::Role, No> {
    let (who, owner) = (session.who.clone(), session.owner.clone());
    let role = slackline_service::Role::Viewer;
    let caller = Caller { who, owner, role, until, session: None };
    match front.link.ask(caller.asks(None, Request::Whoami), until).await {
        Ok(Answer::You(role)) => Ok(role),
        Ok(_) => Err(No::bug()),
        Err(problem) if matches!(problem.kind, Kind::NotKnown | Kind::NotAllowed) => {
            front.sessions.lock().unwrap_or_else(PoisonError::into_inner).end(&session.key);
            Err(no_session())
        }
        Err(problem) => Err(No(problem)),
    }
}

/// Makes a one-time code with which a browser starts a session for the caller. A session of a
/// browser cannot make a code.
#[cfg_attr(feature = "openapi", utoipa::path(
    post, path = "/v1/page", responses(
    (status = 200, body = PageCode), (status = "default", body = Problem))))]
pub(super) async fn make_code(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    sent: Sent,
) -> Reply {
    body::read_nothing(sent, caller.until).await?;
    if !front.has_page {
        let problem = Problem::new(Kind::NotNow, "this daemon serves no page");
        return Err(No(problem.hinting("start the daemon with `slackline serve --page`")));
    }
    // The core knows whether the caller has access.
    front.ask(&caller, None, Request::Whoami).await?;
    let (code, lasts) = {
        let mut sessions = front.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let of = (caller.who.clone(), caller.owner.clone());
        sessions.make_code(of, Instant::now().into_std()).map_err(no_random)?
    };
    let address = front.page.map(|address| format!("http://{address}/"));
    Ok(body::json(&PageCode { code, lasts_ns: nanoseconds(lasts), address }))
}

/// Shows the session to which the browser's request belongs.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/session", responses(
    (status = 200, body = PageSession), (status = "default", body = Problem))))]
pub(super) async fn session(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    session: Option<Extension<Session>>,
) -> Reply {
    let Some(Extension(session)) = session else { return Err(no_session()) };
    let role = role_of(&front, &session, caller.until).await?;
    let lasts_ns = nanoseconds(left(session.until));
    Ok(body::json(&PageSession { role, lasts_ns, token: None }))
}

/// Ends the session to which the browser's request belongs.
#[cfg_attr(feature = "openapi", utoipa::path(
    delete, path = "/v1/session", responses(
    (status = 204), (status = "default", body = Problem))))]
pub(super) async fn log_out(
    State(front): State<Arc<Front>>,
    Extension(door): Extension<Door>,
    session: Option<Extension<Session>>,
) -> Reply {
    let Some(Extension(session)) = session else { return Err(no_session()) };
    front.sessions.lock().unwrap_or_else(PoisonError::into_inner).end(&session.key);
    let mut response = StatusCode::NO_CONTENT.into_response();
    set_cookie(&mut response, (door, ""), Duration::ZERO)?;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn web_page_files_are_below_300_kib_without_foreign_urls() {
        let files = || FILES.iter().chain([&INDEX]);
        let size: usize = files().map(|file| file.bytes.len()).sum();
        assert!(size < 300 * 1024, "{size} bytes");
        let text = |file: &PageFile| String::from_utf8(file.bytes.to_vec()).unwrap();
        let scripts = files().filter(|file| file.kind == SCRIPT);
        let lines: usize = scripts.map(|file| text(file).lines().count()).sum();
        assert!(lines <= 3_000, "{lines} lines");
        for file in files() {
            let text = text(file).replace("http://www.w3.org/2000/svg", "");
            for word in ["http://", "https://", "innerHTML", "insertAdjacentHTML", "eval(", "//cdn"]
            {
                assert!(!text.contains(word), "{}: {word}", file.name);
            }
        }
    }

    #[test]
    fn browser_session_cannot_grant_access_or_create_login_codes() {
        for path in ["/v1/access", "/v1/access/1000", "/v1/page"] {
            assert!(check_path(path).is_err(), "{path}");
        }
        for path in ["/v1/accesses", "/v1/host", "/v1/reservations/access"] {
            assert!(check_path(path).is_ok(), "{path}");
        }
    }
}
