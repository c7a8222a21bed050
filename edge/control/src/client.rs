//! Blocking client of the daemon, over the daemon's Unix socket or over TLS.

mod flight;
mod remote;
mod stream;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, IF_MATCH};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, timeout_at};

use crate::access::{Access, Grant};
use crate::link::LONGEST_SAID;
use crate::problem::{Kind, Problem};
use crate::replies::{Account, AppliedChange, Event, Host, Machine, Reservation, Room};
use crate::requests::{Apply, Change, GangWord, ReservationParameters};
use crate::timeline::PageCode;
use crate::times::Length;

pub use remote::Remote;
use remote::RemoteCredentials;
pub use stream::{Frame, Stream, WaitOutcome};

/// Time limit of the client for an answer. It is longer than the daemon's own time limit, so that a
/// refusal because of the daemon's limit still reaches the client.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Maximum length of the path of a Unix socket, in bytes.
pub const LONGEST_SOCKET: usize = 107;

/// Reason why a request failed: it got no answer, or the answer is an error.
#[derive(Debug, Error)]
pub enum ClientError {
    /// No daemon listens at the socket.
    #[error("no daemon listens at {}: {source}", path.display())]
    NoDaemon {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The path of the socket is longer than the kernel allows.
    #[error(
        "cannot use the socket {}: its path has {is} bytes; at most {LONGEST_SOCKET} are allowed",
        path.display()
    )]
    LongSocket {
        /// Path of the socket.
        path: PathBuf,
        /// Length of the path in bytes.
        is: usize,
    },
    /// The socket exists, but the user of this process may not use it.
    #[error("this user may not use {}: {source}", path.display())]
    NotForUs {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The address of a remote host is invalid.
    #[error("cannot use the address `{url}`: {says}")]
    BadHost {
        /// Address that was given.
        url: String,
        /// Description of the problem.
        says: String,
    },
    /// A file for the connection to a remote host cannot be used.
    #[error("cannot use {}: {says}", path.display())]
    BadFile {
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem.
        says: String,
    },
    /// The remote host cannot be reached, or no daemon listens there.
    #[error("no daemon answers at {host}: {source}")]
    NoHost {
        /// Name and port of the remote host, in the form `NAME:PORT`.
        host: String,
        /// Error of the kernel, or `TimedOut` after the time limit.
        source: io::Error,
    },
    /// TLS failed, because the client does not trust the daemon or the daemon does not trust the
    /// client.
    #[error("cannot connect to {host}: the TLS handshake failed: {source}")]
    Untrusted {
        /// Name and port of the remote host.
        host: String,
        /// Error of the TLS library.
        source: io::Error,
    },
    /// The daemon refused the request, and gave a reason.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// The daemon closed the connection before the answer was complete.
    #[error("the daemon closed the connection: {0}")]
    Lost(#[from] hyper::Error),
    /// The daemon did not answer within the time limit.
    #[error("the daemon did not answer in time")]
    Silent,
    /// The answer of the daemon cannot be parsed.
    #[error("cannot read the daemon's answer: {0}")]
    Garbled(String),
    /// The client could not create the event loop for the connection.
    #[error("cannot wait for an answer: {0}")]
    NoRuntime(io::Error),
}

/// Answer as the text that the daemon sent, so that it can be printed unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub String);

impl Text {
    /// Parses the answer.
    ///
    /// # Errors
    /// If the answer is not a `T`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_str(&self.0).map_err(|error| ClientError::Garbled(error.to_string()))
    }
}

/// Result of a successful request: the parsed answer, and the text that the daemon sent.
pub type Answered<T> = Result<(T, Text), ClientError>;

/// A request that the client sends a second time if the connection is lost.
struct RepeatableRequest {
    method: Method,
    path: String,
    headers: Vec<(HeaderName, String)>,
    body: Bytes,
}

impl RepeatableRequest {
    fn get(path: impl Into<String>) -> RepeatableRequest {
        let (path, headers) = (path.into(), Vec::new());
        RepeatableRequest { method: Method::GET, path, headers, body: Bytes::new() }
    }

    /// Creates a request that changes something. It contains an idempotency key, so the daemon
    /// carries out the request only once, even if the client sends it twice.
    fn write(method: Method, path: String) -> RepeatableRequest {
        let key = (HeaderName::from_static("idempotency-key"), new_key());
        RepeatableRequest { method, path, headers: vec![key], body: Bytes::new() }
    }

    fn with<B: Serialize>(self, body: &B) -> RepeatableRequest {
        let body = serde_json::to_vec(body).expect("string keys serialize to JSON");
        let mut headers = self.headers;
        headers.push((CONTENT_TYPE, "application/json".into()));
        RepeatableRequest { body: body.into(), headers, ..self }
    }

    fn only_if(mut self, revision: Option<u64>) -> RepeatableRequest {
        self.headers.extend(revision.map(|revision| (IF_MATCH, format!("\"{revision}\""))));
        self
    }

    fn request(&self, place: &Place) -> Result<Request<Full<Bytes>>, ClientError> {
        let mut request = Request::builder().method(&self.method).uri(&self.path);
        match place {
            Place::Socket(_) => {
                request = request.header(HOST, HeaderValue::from_static("slackline"));
            }
            Place::Remote(known) => {
                request = request.header(HOST, &known.authority);
                if let Some(bearer) = &known.bearer {
                    request = request.header(AUTHORIZATION, bearer);
                }
            }
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(self.body.clone()));
        request.map_err(|error| ClientError::Garbled(error.to_string()))
    }
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    place: Place,
    runtime: Runtime,
    connection: Option<SendRequest<Full<Bytes>>>,
    within: Duration,
}

/// Address of a daemon: a local socket or another host.
#[derive(Debug)]
enum Place {
    Socket(PathBuf),
    Remote(Box<RemoteCredentials>),
}

impl Client {
    /// Connects to the daemon that listens at `path`.
    ///
    /// # Errors
    /// If no daemon listens there, or this user may not use the socket.
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        Client::at(Place::Socket(path.into()))
    }

    /// Connects to a daemon on another host.
    ///
    /// # Errors
    /// If a file is invalid, the host cannot be reached, or TLS fails.
    pub fn connect_to(remote: &Remote) -> Result<Client, ClientError> {
        Client::at(Place::Remote(Box::new(remote.read()?)))
    }

    fn at(place: Place) -> Result<Client, ClientError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ClientError::NoRuntime)?;
        let within = ANSWER_WITHIN;
        let mut client = Client { place, runtime, connection: None, within };
        client.connection = Some(client.runtime.block_on(client.place.open())?);
        Ok(client)
    }

    /// Sets the time limit for answers to `within`.
    #[must_use]
    pub fn within(self, within: Duration) -> Client {
        Client { within, ..self }
    }

    /// Returns the VMs whose name or binding contains `text`. If `text` is `None`, returns all VMs.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn find(&mut self, text: Option<&str>) -> Answered<Vec<Machine>> {
        let query = text.map(|text| format!("?text={}", escaped(text)));
        self.ask(&RepeatableRequest::get(format!("/v1/machines{}", query.unwrap_or_default())))
    }

    /// Returns a one-time code with which a browser starts a page session for this caller.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn page_code(&mut self) -> Answered<PageCode> {
        self.ask(&RepeatableRequest::write(Method::POST, "/v1/page".into()))
    }

    /// Makes a reservation. If an equal reservation exists already, nothing changes.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn reserve(&mut self, name: &str, wanted: &ReservationParameters) -> Answered<Reservation> {
        self.ask(&RepeatableRequest::write(Method::PUT, of(name)).with(wanted))
    }

    /// Applies a list of reservations: all of them or none.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn apply(&mut self, list: &Apply) -> Answered<Vec<AppliedChange>> {
        self.ask(&RepeatableRequest::write(Method::POST, "/v1/apply".into()).with(list))
    }

    /// Sends a command for a member of a gang, which is a set of VMs on several hosts.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn gang(&mut self, word: &GangWord) -> Answered<Reservation> {
        self.ask(&RepeatableRequest::write(Method::POST, "/v1/gangs".into()).with(word))
    }

    /// Changes the parameters of a reservation. If `if_revision` is given, the reservation must
    /// have that revision.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn change(
        &mut self,
        name: &str,
        change: &Change,
        if_revision: Option<u64>,
    ) -> Answered<Reservation> {
        self.ask(
            &RepeatableRequest::write(Method::PATCH, of(name)).with(change).only_if(if_revision),
        )
    }

    /// Pauses a reservation: its vCPUs are stopped until the reservation is resumed. If
    /// `if_revision` is given, the reservation must have that revision.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn pause(&mut self, name: &str, if_revision: Option<u64>) -> Answered<Reservation> {
        self.ask(&RepeatableRequest::write(Method::POST, of(name) + "/pause").only_if(if_revision))
    }

    /// Resumes a paused reservation. If `if_revision` is given, the reservation must have that
    /// revision.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn resume(&mut self, name: &str, if_revision: Option<u64>) -> Answered<Reservation> {
        self.ask(&RepeatableRequest::write(Method::POST, of(name) + "/resume").only_if(if_revision))
    }

    /// Ends a reservation. If `if_revision` is given, the reservation must have that revision.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn release(&mut self, name: &str, if_revision: Option<u64>) -> Answered<Reservation> {
        self.ask(&RepeatableRequest::write(Method::DELETE, of(name)).only_if(if_revision))
    }

    /// Returns the reservation called `name`.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn show(&mut self, name: &str) -> Answered<Reservation> {
        self.ask(&RepeatableRequest::get(of(name)))
    }

    /// Returns a page of reservations, sorted by name. The page begins with the first name after
    /// `after`.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn list(&mut self, after: Option<&str>) -> Answered<Vec<Reservation>> {
        let query = after.map(|after| format!("?after={}", escaped(after)));
        self.ask(&RepeatableRequest::get(format!("/v1/reservations{}", query.unwrap_or_default())))
    }

    /// Returns the available capacity of each CPU: the largest slice that one more vCPU with the
    /// period `period` could reserve there now.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn room(&mut self, period: Length) -> Answered<Room> {
        self.ask(&RepeatableRequest::get(format!(
            "/v1/room?period={}",
            escaped(&period.0.to_string())
        )))
    }

    /// Returns the latest events, newest first. With `name`, only events of that reservation are
    /// returned. With `before`, only events with lower numbers are returned.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn log(
        &mut self,
        name: Option<&str>,
        before: Option<u64>,
        limit: usize,
    ) -> Answered<Vec<Event>> {
        let name = name.map(|name| format!("&name={}", escaped(name))).unwrap_or_default();
        let before = before.map(|before| format!("&before={before}")).unwrap_or_default();
        self.ask(&RepeatableRequest::get(format!("/v1/log?limit={limit}{name}{before}")))
    }

    /// Returns the CPU time that a reservation received, by hour or by day, oldest first. The first
    /// entry is the hour or day that contains `since_ns`, in nanoseconds since 1970. At most 1,000
    /// entries are returned.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn history(&mut self, name: &str, since_ns: u64, by_day: bool) -> Answered<Vec<Account>> {
        let by = if by_day { "day" } else { "hour" };
        let name = escaped(name);
        self.ask(&RepeatableRequest::get(format!("/v1/history/{name}?since={since_ns}&by={by}")))
    }

    /// Returns the daemon's description of its host.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn host(&mut self) -> Answered<Host> {
        self.ask(&RepeatableRequest::get("/v1/host"))
    }

    /// Returns the access of every user and remote client that has a grant.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn access(&mut self) -> Answered<Vec<Access>> {
        self.ask(&RepeatableRequest::get("/v1/access"))
    }

    /// Grants access to a user or a remote client.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn grant(&mut self, whom: &str, grant: &Grant) -> Answered<Access> {
        let path = format!("/v1/access/{}", escaped(whom));
        self.ask(&RepeatableRequest::write(Method::PUT, path).with(grant))
    }

    /// Grants the role of a tenant to all members of the group `slackline` that have no grant.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn migrate_access(&mut self) -> Answered<Vec<Access>> {
        self.ask(&RepeatableRequest::write(Method::POST, "/v1/access".into()))
    }

    /// Revokes the grant of a user or a remote client.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn revoke(&mut self, whom: &str) -> Answered<Access> {
        self.ask(&RepeatableRequest::write(Method::DELETE, format!("/v1/access/{}", escaped(whom))))
    }

    /// Returns the body of an HTTP endpoint's answer, as the daemon sends it. `path` is the path of
    /// the endpoint, such as `/metrics`, `/health` or `/v1/openapi.json`.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn page(&mut self, path: &str) -> Result<Text, ClientError> {
        self.send(&RepeatableRequest::get(path))
    }

    /// Returns a stream of all new events. Once a second, the stream also contains the state of all
    /// reservations. The connection then serves only this stream, so `watch` consumes the client.
    ///
    /// # Errors
    /// If the request is refused or not answered.
    pub fn watch(mut self) -> Result<Stream, ClientError> {
        let sent = RepeatableRequest::get("/v1/events?reservations=true");
        let until = Instant::now() + self.within;
        let response = self.response(&sent, until)?;
        if response.status() != StatusCode::OK {
            let (status, text) = self.runtime.block_on(whole(response, until))?;
            return Err(refused(status, &text));
        }
        Ok(Stream::new(self.runtime, response.into_body(), self.connection))
    }

    fn ask<T: DeserializeOwned>(&mut self, sent: &RepeatableRequest) -> Answered<T> {
        let text = self.send(sent)?;
        Ok((text.read()?, text))
    }

    fn send(&mut self, sent: &RepeatableRequest) -> Result<Text, ClientError> {
        let until = Instant::now() + self.within;
        let response = self.response(sent, until)?;
        let (status, text) = self.runtime.block_on(whole(response, until))?;
        if status.is_success() { Ok(Text(text)) } else { Err(refused(status, &text)) }
    }

    /// Sends a request and returns the response. If the connection is lost, sends the request once
    /// more. A request that changes something contains an idempotency key, so the daemon carries it
    /// out only once.
    fn response(
        &mut self,
        sent: &RepeatableRequest,
        until: Instant,
    ) -> Result<Response<Incoming>, ClientError> {
        match self.once(sent, until) {
            Err(ClientError::Lost(_)) => {
                self.connection = None;
                self.once(sent, until)
            }
            other => other,
        }
    }

    fn once(
        &mut self,
        sent: &RepeatableRequest,
        until: Instant,
    ) -> Result<Response<Incoming>, ClientError> {
        let request = sent.request(&self.place)?;
        let connection = self.connection.take();
        let asked = async {
            let mut connection = match connection.filter(|connection| !connection.is_closed()) {
                Some(connection) => connection,
                None => self.place.open().await?,
            };
            connection.ready().await?;
            let response = connection.send_request(request).await;
            Ok::<_, ClientError>((connection, response?))
        };
        let answered = self.runtime.block_on(async { timeout_at(until, asked).await });
        let (connection, response) = answered.map_err(|_| ClientError::Silent)??;
        self.connection = Some(connection);
        Ok(response)
    }
}

impl Place {
    async fn open(&self) -> Result<SendRequest<Full<Bytes>>, ClientError> {
        match self {
            Place::Socket(path) => open(path).await,
            Place::Remote(known) => known.open().await,
        }
    }
}

async fn open(path: &Path) -> Result<SendRequest<Full<Bytes>>, ClientError> {
    let is = path.as_os_str().len();
    if is > LONGEST_SOCKET {
        return Err(ClientError::LongSocket { path: path.to_owned(), is });
    }
    let stream = UnixStream::connect(path).await.map_err(|source| {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::NotForUs { path, source },
            _ => ClientError::NoDaemon { path, source },
        }
    })?;
    let (connection, driver) = handshake(TokioIo::new(stream)).await?;
    // The request that uses the connection reports errors of the connection.
    tokio::spawn(async move { driver.await.unwrap_or_default() });
    Ok(connection)
}

/// Reads the whole body of a response. The body must be complete at the time `until`.
async fn whole(
    response: Response<Incoming>,
    until: Instant,
) -> Result<(StatusCode, String), ClientError> {
    let status = response.status();
    let body = Limited::new(response.into_body(), LONGEST_SAID).collect();
    let body = timeout_at(until, body).await.map_err(|_| ClientError::Silent)?;
    let body = body.map_err(|error| ClientError::Garbled(error.to_string()))?.to_bytes();
    match String::from_utf8(body.into()) {
        Ok(text) => Ok((status, text)),
        Err(error) => Err(ClientError::Garbled(error.to_string())),
    }
}

/// Converts a refusal of the daemon to an error. If the refusal has no reason as JSON, the error is
/// derived from the HTTP status alone.
fn refused(status: StatusCode, text: &str) -> ClientError {
    if let Ok(problem) = serde_json::from_str(text) {
        return ClientError::Refused(Box::new(problem));
    }
    let problem = match status {
        StatusCode::FORBIDDEN => Problem::new(Kind::NotAllowed, "this user may not use the daemon")
            .hinting("run as root, or as a member of the groups slackline or slackline-admin"),
        StatusCode::UNAUTHORIZED => {
            Problem::new(Kind::NotKnown, "the daemon does not know this token or certificate")
                .hinting(
                    "check grants and their expiry with `slackline access list` on the daemon's \
                     host",
                )
        }
        StatusCode::TOO_MANY_REQUESTS => {
            Problem::new(Kind::TooMany, "the daemon receives too many requests")
                .hinting("try again in a second")
        }
        // Another program may listen at this address, or a proxy may be in between.
        _ => {
            return ClientError::Garbled(format!(
                "HTTP status {status} without a reason, probably not from the daemon"
            ));
        }
    };
    ClientError::Refused(Box::new(problem))
}

/// Returns the path of the reservation `name` in URLs of the daemon.
fn of(name: &str) -> String {
    format!("/v1/reservations/{}", escaped(name))
}

/// Escapes a text, so that it can be one segment of a URL's path or query.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => out.push(byte.into()),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

/// Returns a new, unique idempotency key. The key need not be secret.
fn new_key() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn http_error_without_problem_details_is_reported_as_garbled() {
        for (status, text) in [(502, "<html>"), (500, ""), (404, "{}"), (400, "{\"type\":1}")] {
            let error = refused(StatusCode::from_u16(status).unwrap(), text);
            assert!(
                matches!(&error, ClientError::Garbled(says) if says.contains("without a reason"))
            );
        }
        let error = refused(StatusCode::FORBIDDEN, "");
        assert!(matches!(error, ClientError::Refused(problem) if problem.kind == Kind::NotAllowed));
    }

    #[test]
    fn time_limit_of_answer_includes_the_time_for_its_body() {
        let name = format!("slackline-answer-{}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&socket);
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let answered = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut part = [0; 4096];
                assert!(stream.read(&mut part).unwrap() > 0);
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n").unwrap();
                // The body comes only if the client waits much longer than its time limit.
                stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                if stream.read(&mut part).is_err() {
                    let _ = stream.write_all(b"ok");
                }
            });
            let client = Client::connect(&socket).unwrap();
            client.within(Duration::from_millis(100)).page("/health").map(|text| text.0)
        });
        std::fs::remove_file(&socket).unwrap();
        assert!(matches!(answered, Err(ClientError::Silent)), "{answered:?}");
    }

    #[test]
    fn reservation_name_in_url_is_escaped_as_one_path_segment() {
        assert_eq!(of("web-1.a_b"), "/v1/reservations/web-1.a_b");
        assert_eq!(of("../host?x=1&y#ü"), "/v1/reservations/..%2Fhost%3Fx%3D1%26y%23%C3%BC");
    }

    #[test]
    fn error_about_a_missing_daemon_includes_the_socket_path() {
        let folder = std::env::temp_dir().join("nothing-is-here.sock");
        let error = Client::connect(&folder).unwrap_err();
        assert!(matches!(error, ClientError::NoDaemon { .. }), "{error}");
        assert!(error.to_string().contains("nothing-is-here.sock"), "{error}");
    }

    #[test]
    fn idempotency_keys_of_1000_requests_are_all_different() {
        let keys: std::collections::BTreeSet<String> = (0..1000).map(|_| new_key()).collect();
        assert_eq!(keys.len(), 1000);
    }
}
