//! A client of the daemon, for whoever wants to wait for his answer: over its Unix socket.

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
use tokio::time::timeout;

use crate::access::{Access, Grant};
use crate::link::LONGEST_SAID;
use crate::problem::{Kind, Problem};
use crate::replies::{AppliedChange, Event, Host, Machine, Reservation, Room};
use crate::requests::{Apply, Change, GangWord, Wanted};
use crate::times::Length;

use remote::Known;
pub use remote::Remote;
pub use stream::{Frame, Heard, Stream};

/// How long an answer may take. The daemon itself gives up after five seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Why there is no answer, or not the one that was wanted.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nobody listens there.
    #[error("no daemon listens at {}: {source}", path.display())]
    NoDaemon {
        /// Where.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// The socket is there, and is not for this user.
    #[error("this user may not use {}: {source}", path.display())]
    NotForUs {
        /// Where.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// What was said of a host makes no sense.
    #[error("cannot use the address `{url}`: {says}")]
    BadHost {
        /// What was said.
        url: String,
        /// What is wrong.
        says: String,
    },
    /// A file that is needed to ask another machine is not what it should be.
    #[error("cannot use {}: {says}", path.display())]
    BadFile {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        says: String,
    },
    /// Another machine is not there, or nobody listens.
    #[error("no daemon answers at {host}: {source}")]
    NoHost {
        /// Where.
        host: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// It is not who it should be, or does not take us for who we are.
    #[error("cannot connect to {host}: TLS failed on one side: {source}")]
    Untrusted {
        /// Where.
        host: String,
        /// What is wrong.
        source: io::Error,
    },
    /// It said no.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// It was there, and broke off.
    #[error("the daemon closed the connection: {0}")]
    Lost(#[from] hyper::Error),
    /// It did not answer.
    #[error("the daemon did not answer in time")]
    Silent,
    /// It answered what nobody can read.
    #[error("cannot read the daemon's answer: {0}")]
    Garbled(String),
    /// This process cannot wait for anything.
    #[error("cannot wait for an answer: {0}")]
    NoRuntime(io::Error),
}

/// An answer as it came, so that it can be shown as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub String);

impl Text {
    /// What it says.
    ///
    /// # Errors
    /// When it is something else.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_str(&self.0).map_err(|error| ClientError::Garbled(error.to_string()))
    }
}

/// An answer, read, and as it came.
pub type Answered<T> = Result<(T, Text), ClientError>;

/// What is sent.
struct Sent {
    method: Method,
    path: String,
    headers: Vec<(HeaderName, String)>,
    body: Bytes,
}

impl Sent {
    fn get(path: impl Into<String>) -> Sent {
        let (path, headers) = (path.into(), Vec::new());
        Sent { method: Method::GET, path, headers, body: Bytes::new() }
    }

    /// Something that changes things. Sent twice it is done once: it carries a key.
    fn write(method: Method, path: String) -> Sent {
        let key = (HeaderName::from_static("idempotency-key"), new_key());
        Sent { method, path, headers: vec![key], body: Bytes::new() }
    }

    fn with<B: Serialize>(self, body: &B) -> Sent {
        let body = serde_json::to_vec(body).expect("keys are texts, and memory takes it");
        let mut headers = self.headers;
        headers.push((CONTENT_TYPE, "application/json".into()));
        Sent { body: body.into(), headers, ..self }
    }

    fn only_if(mut self, revision: Option<u64>) -> Sent {
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

/// Where a daemon is.
#[derive(Debug)]
enum Place {
    Socket(PathBuf),
    Remote(Box<Known>),
}

impl Client {
    /// Connects to the daemon that listens at `path`.
    ///
    /// # Errors
    /// When nobody does, or not to this user.
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        Client::at(Place::Socket(path.into()))
    }

    /// Connects to a daemon on another machine.
    ///
    /// # Errors
    /// When a file is not what it should be, nobody is there, or it is not who it should be.
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

    /// One whose answers may take so long.
    #[must_use]
    pub fn within(self, within: Duration) -> Client {
        Client { within, ..self }
    }

    /// The machines whose name or binding has `text` in it; all without.
    ///
    /// # Errors
    /// As [`ClientError`] says; so for all that follow.
    pub fn find(&mut self, text: Option<&str>) -> Answered<Vec<Machine>> {
        let query = text.map(|text| format!("?text={}", escaped(text)));
        self.ask(&Sent::get(format!("/v1/machines{}", query.unwrap_or_default())))
    }

    /// Reserves.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn reserve(&mut self, name: &str, wanted: &Wanted) -> Answered<Reservation> {
        self.ask(&Sent::write(Method::PUT, of(name)).with(wanted))
    }

    /// Applies a list of reservations: all of them or none.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn apply(&mut self, list: &Apply) -> Answered<Vec<AppliedChange>> {
        self.ask(&Sent::write(Method::POST, "/v1/apply".into()).with(list))
    }

    /// Says a word about a member of a gang.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn gang(&mut self, word: &GangWord) -> Answered<Reservation> {
        self.ask(&Sent::write(Method::POST, "/v1/gangs".into()).with(word))
    }

    /// Gives other terms; only to that revision, if one is said.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn change(
        &mut self,
        name: &str,
        change: &Change,
        if_revision: Option<u64>,
    ) -> Answered<Reservation> {
        self.ask(&Sent::write(Method::PATCH, of(name)).with(change).only_if(if_revision))
    }

    /// Stops its vCPUs; only at that revision, if one is said.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn pause(&mut self, name: &str, if_revision: Option<u64>) -> Answered<Reservation> {
        self.ask(&Sent::write(Method::POST, of(name) + "/pause").only_if(if_revision))
    }

    /// Lets them run again; only at that revision, if one is said.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn resume(&mut self, name: &str, if_revision: Option<u64>) -> Answered<Reservation> {
        self.ask(&Sent::write(Method::POST, of(name) + "/resume").only_if(if_revision))
    }

    /// Ends a reservation; only at that revision, if one is said.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn release(&mut self, name: &str, if_revision: Option<u64>) -> Answered<Reservation> {
        self.ask(&Sent::write(Method::DELETE, of(name)).only_if(if_revision))
    }

    /// One reservation.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn show(&mut self, name: &str) -> Answered<Reservation> {
        self.ask(&Sent::get(of(name)))
    }

    /// A page of reservations: those whose names come after `after`.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn list(&mut self, after: Option<&str>) -> Answered<Vec<Reservation>> {
        let query = after.map(|after| format!("?after={}", escaped(after)));
        self.ask(&Sent::get(format!("/v1/reservations{}", query.unwrap_or_default())))
    }

    /// What would be admitted now.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn room(&mut self, period: Length) -> Answered<Room> {
        self.ask(&Sent::get(format!("/v1/room?period={}", escaped(&period.0.to_string()))))
    }

    /// Returns the latest events, newest first: of one reservation if it is named, and with lower
    /// numbers than `before`.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn log(
        &mut self,
        name: Option<&str>,
        before: Option<u64>,
        limit: usize,
    ) -> Answered<Vec<Event>> {
        let name = name.map(|name| format!("&name={}", escaped(name))).unwrap_or_default();
        let before = before.map(|before| format!("&before={before}")).unwrap_or_default();
        self.ask(&Sent::get(format!("/v1/log?limit={limit}{name}{before}")))
    }

    /// The host.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn host(&mut self) -> Answered<Host> {
        self.ask(&Sent::get("/v1/host"))
    }

    /// Who may do what.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn access(&mut self) -> Answered<Vec<Access>> {
        self.ask(&Sent::get("/v1/access"))
    }

    /// Lets somebody do something.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn grant(&mut self, whom: &str, grant: &Grant) -> Answered<Access> {
        let path = format!("/v1/access/{}", escaped(whom));
        self.ask(&Sent::write(Method::PUT, path).with(grant))
    }

    /// Makes tenants of members of the group slackline without a grant.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn migrate_access(&mut self) -> Answered<Vec<Access>> {
        self.ask(&Sent::write(Method::POST, "/v1/access".into()))
    }

    /// Says nothing of somebody any more.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn revoke(&mut self, whom: &str) -> Answered<Access> {
        self.ask(&Sent::write(Method::DELETE, format!("/v1/access/{}", escaped(whom))))
    }

    /// Any page as it is: `/metrics`, `/health`, `/v1/openapi.json`.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn page(&mut self, path: &str) -> Result<Text, ClientError> {
        self.send(&Sent::get(path))
    }

    /// What happens from now on, and every second how all reservations stand. The connection is
    /// used up by it.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn watch(mut self) -> Result<Stream, ClientError> {
        let sent = Sent::get("/v1/events?reservations=true");
        let response = self.response(&sent)?;
        if response.status() != StatusCode::OK {
            let (status, text) = self.runtime.block_on(whole(response))?;
            return Err(refused(status, &text));
        }
        Ok(Stream::new(self.runtime, response.into_body(), self.connection))
    }

    fn ask<T: DeserializeOwned>(&mut self, sent: &Sent) -> Answered<T> {
        let text = self.send(sent)?;
        Ok((text.read()?, text))
    }

    fn send(&mut self, sent: &Sent) -> Result<Text, ClientError> {
        let response = self.response(sent)?;
        let (status, text) = self.runtime.block_on(whole(response))?;
        if status.is_success() { Ok(Text(text)) } else { Err(refused(status, &text)) }
    }

    /// What was answered. If the connection is lost meanwhile, it is asked once more: what changes
    /// things carries a key and is not done twice.
    fn response(&mut self, sent: &Sent) -> Result<Response<Incoming>, ClientError> {
        match self.once(sent) {
            Err(ClientError::Lost(_)) => {
                self.connection = None;
                self.once(sent)
            }
            other => other,
        }
    }

    fn once(&mut self, sent: &Sent) -> Result<Response<Incoming>, ClientError> {
        let request = sent.request(&self.place)?;
        let (connection, within) = (self.connection.take(), self.within);
        let asked = async {
            let mut connection = match connection.filter(|connection| !connection.is_closed()) {
                Some(connection) => connection,
                None => self.place.open().await?,
            };
            connection.ready().await?;
            let response = connection.send_request(request).await;
            Ok::<_, ClientError>((connection, response?))
        };
        let answered = self.runtime.block_on(async { timeout(within, asked).await });
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
    let stream = UnixStream::connect(path).await.map_err(|source| {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::NotForUs { path, source },
            _ => ClientError::NoDaemon { path, source },
        }
    })?;
    let (connection, driver) = handshake(TokioIo::new(stream)).await?;
    // What becomes of it is said by the request that it carries.
    tokio::spawn(async move { driver.await.unwrap_or_default() });
    Ok(connection)
}

/// All of an answer.
async fn whole(response: Response<Incoming>) -> Result<(StatusCode, String), ClientError> {
    let status = response.status();
    let body = Limited::new(response.into_body(), LONGEST_SAID).collect();
    let body = timeout(ANSWER_WITHIN, body).await.map_err(|_| ClientError::Silent)?;
    let body = body.map_err(|error| ClientError::Garbled(error.to_string()))?.to_bytes();
    match String::from_utf8(body.into()) {
        Ok(text) => Ok((status, text)),
        Err(error) => Err(ClientError::Garbled(error.to_string())),
    }
}

/// Why it was refused. Strangers are told nothing but the status.
fn refused(status: StatusCode, text: &str) -> ClientError {
    if let Ok(problem) = serde_json::from_str(text) {
        return ClientError::Refused(Box::new(problem));
    }
    let problem = match status {
        StatusCode::FORBIDDEN => Problem::new(Kind::NotAllowed, "this user may not use the daemon")
            .hinting("run as root, or as a member of the groups slackline or slackline-admin"),
        StatusCode::UNAUTHORIZED => {
            Problem::new(Kind::NotKnown, "the daemon does not know this token or certificate")
                .hinting("check grants and their expiry with `slackline access list` on its host")
        }
        StatusCode::TOO_MANY_REQUESTS => {
            Problem::new(Kind::TooMany, "the daemon has too many requests")
        }
        // Another program may listen there, or one stands between.
        _ => {
            return ClientError::Garbled(format!("status {status} without a reason of the daemon"));
        }
    };
    ClientError::Refused(Box::new(problem))
}

/// The path of a reservation.
fn of(name: &str) -> String {
    format!("/v1/reservations/{}", escaped(name))
}

/// A text as a part of an address.
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

/// A key that nobody has used: it need not be secret.
fn new_key() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_that_is_not_ours_is_no_bug_of_ours() {
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
    fn what_people_type_stays_one_part_of_the_address() {
        assert_eq!(of("web-1.a_b"), "/v1/reservations/web-1.a_b");
        assert_eq!(of("../host?x=1&y#ü"), "/v1/reservations/..%2Fhost%3Fx%3D1%26y%23%C3%BC");
    }

    #[test]
    fn nobody_there_is_said_with_the_path() {
        let folder = std::env::temp_dir().join("nothing-is-here.sock");
        let error = Client::connect(&folder).unwrap_err();
        assert!(matches!(error, ClientError::NoDaemon { .. }), "{error}");
        assert!(error.to_string().contains("nothing-is-here.sock"), "{error}");
    }

    #[test]
    fn no_two_keys_are_the_same() {
        let keys: std::collections::BTreeSet<String> = (0..1000).map(|_| new_key()).collect();
        assert_eq!(keys.len(), 1000);
    }
}
