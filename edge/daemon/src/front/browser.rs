//! Checks of requests that come from a browser.
//!
//! A browser sends the requests that any open page makes, with the cookies and certificates of the
//! user. So a request of a browser is accepted only if it comes from our own web page and proves a
//! session. The proof consists of a cookie and a token. Scripts cannot read the cookie. Other
//! sites, and other ports of this host, do not have the token. These checks are made on every
//! socket, since `ssh -L` can forward each socket to a browser.

use std::sync::{Mutex, PoisonError};

use axum::http::header::{COOKIE, HOST, HeaderMap, HeaderName, ORIGIN};
use axum::http::{Method, Request};
use slackline_control::{Kind, Problem};
use tokio::time::Instant;

use super::body::{self, No};
use super::sessions::{Session, Sessions};

/// Header with the token of a session.
pub(super) const TOKEN: HeaderName = HeaderName::from_static("x-slackline-token");

/// Header in which a browser says if the page that sent a request comes from the same site.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Names of the session cookie: without TLS, and over TLS. A browser accepts the second name only
/// over TLS and only from this host.
const COOKIES: [&str; 2] = ["slackline", "__Host-slackline"];

/// Maximum length of an untrusted text that a refusal quotes, in characters.
const SHOWN: usize = 80;

/// Socket on which a request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    Socket,
    Loopback,
    Tls,
}

/// Sender of a request.
pub(super) enum Visitor {
    /// A program. Its socket or its credentials identify the caller.
    Program,
    /// A browser without a session. It requests a path for which no session is needed.
    Public,
    /// A browser with a session.
    Session(Box<Session>),
}

impl Door {
    /// Returns the name of the session cookie on this socket.
    pub(super) fn cookie(self) -> &'static str {
        if self == Door::Tls { COOKIES[1] } else { COOKIES[0] }
    }

    fn scheme(self) -> &'static str {
        if self == Door::Tls { "https" } else { "http" }
    }
}

/// Returns the sender of a request. If a browser must not send it, refuses the request.
pub(super) fn visitor<B>(
    request: &Request<B>,
    door: Door,
    sessions: &Mutex<Sessions>,
) -> Result<Visitor, No> {
    let headers = request.headers();
    let host = body::only(headers, &HOST)?;
    check_host(host, door)?;
    let is_browser = [ORIGIN, FETCH_SITE, COOKIE, TOKEN].iter().any(|it| headers.contains_key(it));
    if !is_browser && door != Door::Loopback {
        return Ok(Visitor::Program);
    }
    let is_write = ![Method::GET, Method::HEAD].contains(request.method());
    let is_public = is_public(request.uri().path());
    if is_write || !is_public {
        check_site(headers, (door, host), is_write)?;
    }
    if is_public {
        return Ok(Visitor::Public);
    }
    let token = body::only(headers, &TOKEN)?;
    let session = cookie(headers, door.cookie()).zip(token).and_then(|(cookie, token)| {
        let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.find(cookie, token, Instant::now().into_std())
    });
    session.map(|session| Visitor::Session(Box::new(session))).ok_or_else(no_session)
}

/// Returns true if a browser needs no session for the path. These paths are the files of the web
/// page, and the login.
fn is_public(path: &str) -> bool {
    path == "/" || path == "/favicon.ico" || path.starts_with("/page/")
}

/// Returns the refusal of a request without a session.
pub(super) fn no_session() -> No {
    let problem =
        Problem::new(Kind::NotKnown, "a browser needs a session, and this request has none");
    No(problem.hinting("run `slackline page`, and open the address that it prints"))
}

/// Refuses a request whose host header names another host. A page of another site causes such
/// requests, even if DNS maps the site's name to this host.
fn check_host(host: Option<&str>, door: Door) -> Result<(), No> {
    let is_ours = match (host.map(name_of), door) {
        // The browser has already checked the name against the certificate.
        (_, Door::Tls) => true,
        (None, Door::Socket) => true,
        (None, Door::Loopback) => false,
        (Some(name), Door::Loopback) => is_loopback(name),
        // Programs may name any host. The name of a site has at least one dot.
        (Some(name), Door::Socket) => !name.contains(['.', ':']) || is_loopback(name),
    };
    if is_ours {
        return Ok(());
    }
    let detail = format!("the request is for the host `{}`, not for this host", shown(host));
    let problem = Problem::new(Kind::NotAllowed, detail);
    Err(No(problem.hinting("open the address that `slackline page` prints")))
}

fn shown(text: Option<&str>) -> String {
    text.unwrap_or_default().chars().take(SHOWN).flat_map(char::escape_debug).collect()
}

/// Returns the name in a host header, without its port.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((name, _)) => name,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

fn is_loopback(name: &str) -> bool {
    matches!(name.to_ascii_lowercase().as_str(), "127.0.0.1" | "localhost" | "::1")
}

/// Refuses a request that was sent by a page of another site, or of another port of this host. A
/// request that changes something must have the headers `Origin` and `Sec-Fetch-Site`.
fn check_site(
    headers: &HeaderMap,
    (door, host): (Door, Option<&str>),
    is_write: bool,
) -> Result<(), No> {
    let origin = body::only(headers, &ORIGIN)?;
    let site = body::only(headers, &FETCH_SITE)?;
    let own = format!("{}://{}", door.scheme(), host.unwrap_or_default());
    let is_own = |origin: &str| origin.eq_ignore_ascii_case(&own);
    let is_known = origin.is_some() && site.is_some();
    let is_ours = origin.is_none_or(is_own) && site.is_none_or(|site| site == "same-origin");
    if is_ours && (is_known || !is_write) {
        return Ok(());
    }
    let from = match (origin, site) {
        (None, None) => "no page".to_owned(),
        (None, Some(site)) => format!("a page that is `{}`", shown(Some(site))),
        (origin, _) => format!("`{}`", shown(origin)),
    };
    let detail = format!("the request comes from {from}, not from the page of this host");
    Err(No(Problem::new(Kind::NotAllowed, detail)))
}

/// Returns the value of the cookie `name`. `None` if the cookie is missing or given twice.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let texts = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = texts.flat_map(|text| text.split(';'));
    let mut values =
        pairs.filter_map(|pair| pair.trim().split_once('=')).filter(|(it, _)| *it == name);
    let value = values.next();
    value.filter(|_| values.next().is_none()).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn loopback_listener_accepts_only_loopback_names_in_the_host_header() {
        let accepts = |host, door| check_host(host, door).is_ok();
        for host in ["127.0.0.1:9392", "localhost:1", "[::1]:80", "LOCALHOST"] {
            assert!(accepts(Some(host), Door::Loopback), "{host}");
            assert!(accepts(Some(host), Door::Socket), "{host}");
        }
        for host in ["evil.example:9392", "127.0.0.1.evil.example", "", "a", "0.0.0.0:9392"] {
            assert!(!accepts(Some(host), Door::Loopback), "{host}");
        }
        assert!(!accepts(None, Door::Loopback));
        assert!(accepts(Some("slackline"), Door::Socket) && accepts(None, Door::Socket));
        assert!(!accepts(Some("evil.example"), Door::Socket));
        assert!(!accepts(Some("[2001:db8::1]:80"), Door::Socket));
    }

    #[test]
    fn session_cookie_sent_twice_in_one_request_is_ignored() {
        let headers = |text: &'static str| {
            [(COOKIE, HeaderValue::from_static(text))].into_iter().collect::<HeaderMap>()
        };
        assert_eq!(cookie(&headers("a=1; slackline=x; b=2"), "slackline"), Some("x"));
        assert_eq!(cookie(&headers("slackline=x; slackline=y"), "slackline"), None);
        assert_eq!(cookie(&headers("xslackline=x"), "slackline"), None);
    }
}
