//! Accepts connections from clients, and serves them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::MatchedPath;
use axum::response::{IntoResponse, Response};
use axum::{Router, http};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use rustix::net::{SocketFlags, accept_with};
use slackline_control::link::{Answer, CallerIdentity, Request};
use slackline_control::{Kind, Problem};
use slackline_service::Role;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use super::body::{BusyBody, No};
use super::browser::{self, Door, Visitor};
use super::caller::Caller;
use super::limits::{Full, HeldSlot, Limits, Owner, counted_address};
use super::page::{self, PageSite};
use super::patience::{Patience, WatchedStream};
use super::sessions::Session;
use super::tls::{certificate_of, token_in};
use super::{Front, Remote, pages, peer};

/// Time limit from the start of a request to the end of its answer. Event streams have no time
/// limit.
const REQUEST_WITHIN: Duration = Duration::from_secs(5);

/// Maximum number of headers of a request.
const HEADERS: usize = 32;

/// Maximum size of the head of a request, in bytes.
const HEAD: usize = 16 * 1024;

/// Number of connections that are accepted one after another before the runtime serves requests.
const AT_ONCE: u64 = 64;

/// Pause after an `accept` that failed for a reason that no client causes, such as a lack of
/// descriptors or memory.
const AFTER_FAILURE: Duration = Duration::from_millis(10);

/// Delay before a caller that exceeds its rate limit gets an answer.
const AFTER_FLOOD: Duration = Duration::from_millis(100);

/// Maximum number of refused connections that stay open to receive their request.
const REFUSALS: usize = 32;

/// Longest time that a refused connection stays open to receive its request before the refusal is
/// sent.
const REFUSAL_WITHIN: Duration = Duration::from_secs(2);

/// Maximum number of open connections to the loopback address for metrics.
const SCRAPERS: usize = 8;

/// Maximum number of open connections of browsers to the loopback address of the web page.
const BROWSERS: usize = 24;

/// Time limit for a TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(2);

/// Delay before an address that has sent too many unknown credentials gets an answer.
const AFTER_FAILURES: Duration = Duration::from_secs(1);

/// Raw HTTP answer to a local caller without access.
const STRANGER: &[u8] = b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Accepts and serves local connections, forever.
///
/// A refused connection does not delay the loop, since administrators may wait in the queue behind
/// it. A connection is registered with the runtime only if it is served or answered, because a
/// registration takes longer than all other steps. After every [`AT_ONCE`] connections, the runtime
/// serves requests before the loop goes on.
///
/// # Errors
/// If waiting for connections on the socket fails.
pub(super) async fn accept(listener: UnixListener, front: &Arc<Front>) -> io::Result<()> {
    // A listener of the runtime would register each connection. A stream of the runtime can wait
    // for the listening socket too.
    let listener = UnixStream::from_std(OwnedFd::from(listener).into())?;
    let router = pages::router(front);
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    for number in 1_u64.. {
        if number.is_multiple_of(AT_ONCE) {
            yield_now().await;
        }
        let socket = next(|| accept_local(&listener)).await;
        let (admitted, words) = match admit(&socket, front) {
            Ok(admitted) => (Some(admitted), Vec::new()),
            Err(words) if words.is_empty() => continue,
            Err(words) => (None, words),
        };
        let Ok(stream) = UnixStream::from_std(socket.into()) else { continue };
        match admitted {
            Some((caller, held)) => {
                let (from, held) = (Origin::Here(caller), Arc::new(held));
                let held = (held, Patience::new());
                tokio::spawn(serve(stream, from, held, Arc::clone(front), router.clone()));
            }
            None => turn_away(stream, words, &refusals),
        }
    }
    Ok(())
}

/// Accepts a local connection without registering it with the runtime, which takes long.
async fn accept_local(listener: &UnixStream) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        listener.readable().await?;
        let accept = || Ok(accept_with(listener, flags)?);
        match listener.try_io(Interest::READABLE, accept) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            accepted => return accepted,
        }
    }
}

/// Accepts and serves connections from other hosts, forever. If `remote` is `None`, waits forever.
///
/// # Errors
/// If waiting for connections on the socket fails.
pub(super) async fn accept_remote(remote: Option<Remote>, front: &Arc<Front>) -> io::Result<()> {
    let Some(Remote { listener, tls }) = remote else { return std::future::pending().await };
    let listener = asynchronous(listener)?;
    let (acceptor, router) = (TlsAcceptor::from(tls), pages::router(front));
    loop {
        let (stream, address) = next(|| listener.accept()).await;
        // If no slot is free, the connection is closed without an answer, since its caller is not
        // identified yet.
        let address = address.ip();
        if let Ok((held, end)) = Limits::connect_remote(&front.limits, address) {
            let place = ConnectionSlot { address, held, end };
            let (acceptor, front) = (acceptor.clone(), Arc::clone(front));
            tokio::spawn(greet(stream, place, acceptor, front, router.clone()));
        }
    }
}

/// Serves only metrics, to local processes, forever. If `listener` is `None`, waits forever.
///
/// # Errors
/// If waiting for connections on the socket fails.
pub(super) async fn accept_scrapers(
    listener: Option<std::net::TcpListener>,
    front: &Arc<Front>,
) -> io::Result<()> {
    let Some(listener) = listener else { return std::future::pending().await };
    let listener = asynchronous(listener)?;
    let own = listener.local_addr()?;
    let router = pages::metrics_router(front);
    let mut places = LoopbackSlots::new(SCRAPERS);
    loop {
        let (stream, peer) = next(|| listener.accept()).await;
        let user = front.peers.user_of(own, peer);
        // If no slot is free, the connection is closed without an answer.
        if let Some(patience) = places.take(user) {
            let owner = Owner::Loopback(user);
            let (who, role) = (CallerIdentity::Loopback, Role::Viewer);
            let until = Instant::now();
            let from = Origin::Here(Caller { who, owner, role, until, session: None });
            let place = ((), patience);
            tokio::spawn(serve(stream, from, place, Arc::clone(front), router.clone()));
        }
    }
}

/// Slots for connections to a loopback address. Any process of the host can open any number of
/// connections, so each user can have at most half of the slots. If all slots are taken, a new
/// connection replaces an old one. It replaces the oldest connection on which no known caller has
/// sent a request. If there is no such connection, it replaces the oldest one that waits for a
/// request.
struct LoopbackSlots {
    most: usize,
    /// Connections in the order in which they were accepted, each with its user. The user is `None`
    /// if unknown.
    open: VecDeque<(Option<u32>, Patience)>,
}

impl LoopbackSlots {
    fn new(most: usize) -> LoopbackSlots {
        LoopbackSlots { most, open: VecDeque::new() }
    }

    /// Returns the time limits of a new connection of a user. `None` if no slot is free for the
    /// user, and no connection can be replaced because a request is being answered on each. A user
    /// who already has half of the slots can replace only their own connections.
    fn take(&mut self, user: Option<u32>) -> Option<Patience> {
        self.open.retain(|(_, connection)| !connection.has_ended());
        let own = self.open.iter().filter(|(of, _)| of.is_some() && *of == user).count();
        let has_half = own >= self.most.div_ceil(2);
        if has_half || self.open.len() >= self.most {
            let may_replace = |of: &Option<u32>| !has_half || *of == user;
            let find = |end: fn(&Patience) -> bool| {
                self.open.iter().position(|(of, it)| may_replace(of) && end(it))
            };
            let idle = find(Patience::end_if_unknown).or_else(|| find(Patience::end_if_idle))?;
            self.open.remove(idle);
        }
        let patience = Patience::new();
        self.open.push_back((user, patience.clone()));
        Some(patience)
    }
}

/// Serves the web page to browsers of this host, forever. If `site` is `None`, waits forever.
///
/// # Errors
/// If waiting for connections on the socket fails.
pub(super) async fn accept_browsers(site: Option<PageSite>, front: &Arc<Front>) -> io::Result<()> {
    let Some(PageSite { listener, .. }) = site else { return std::future::pending().await };
    let listener = asynchronous(listener)?;
    let own = listener.local_addr()?;
    let router = pages::router(front);
    let mut places = LoopbackSlots::new(BROWSERS);
    loop {
        let (stream, peer) = next(|| listener.accept()).await;
        let user = front.peers.user_of(own, peer);
        // If no slot is free, the connection is closed without an answer, since its caller is not
        // identified yet.
        if let Some(patience) = places.take(user) {
            let (_, place) = (stream.set_nodelay(true), ((), patience));
            let from = Origin::Page { user };
            tokio::spawn(serve(stream, from, place, Arc::clone(front), router.clone()));
        }
    }
}

fn asynchronous(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Returns the next connection. If `accept` fails, tries again: at once if the failure concerns
/// only one connection, and otherwise after a short wait.
async fn next<T>(accept: impl AsyncFn() -> io::Result<T>) -> T {
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(error) => match error.kind() {
                io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                _ => sleep(AFTER_FAILURE).await,
            },
        }
    }
}

/// Slot that a connection from another host occupies.
struct ConnectionSlot {
    address: IpAddr,
    held: HeldSlot,
    /// Notified when another connection takes over the slot.
    end: Arc<Notify>,
}

/// Does the TLS handshake within its time limit. After that, serves the connection.
async fn greet(
    stream: TcpStream,
    ConnectionSlot { address, held, end }: ConnectionSlot,
    acceptor: TlsAcceptor,
    front: Arc<Front>,
    router: Router,
) {
    let served = async {
        let _ = stream.set_nodelay(true);
        let accepted = timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await;
        let stream = accepted.ok()?.ok()?;
        let certificate = certificate_of(stream.get_ref().1);
        let held = Arc::new(held);
        let from = Origin::Elsewhere { address, certificate, held: Arc::clone(&held) };
        serve(stream, from, (held, Patience::new()), front, router).await;
        Some(())
    };
    tokio::select! {
        _ = served => {}
        () = end.notified() => {}
    }
}

/// Origin of a connection, which determines how its caller is identified.
#[derive(Clone)]
enum Origin {
    /// A client on this host. The kernel identifies the caller.
    Here(Caller),
    /// A client on another host. The caller is identified by its credentials.
    Elsewhere { address: IpAddr, certificate: Option<String>, held: Arc<HeldSlot> },
    /// A browser on this host. Its session identifies the caller. `user` is the user who opened the
    /// connection, or `None` if that user is unknown.
    Page { user: Option<u32> },
}

impl Origin {
    fn door(&self) -> Door {
        match self {
            Origin::Here(_) => Door::Socket,
            Origin::Elsewhere { .. } => Door::Tls,
            Origin::Page { .. } => Door::Loopback,
        }
    }

    /// Returns the principal whose limits apply to requests of a browser without a session.
    fn visitor(&self) -> Owner {
        match self {
            Origin::Here(caller) => caller.owner.clone(),
            Origin::Elsewhere { address, .. } => Owner::RemoteVisitor(counted_address(*address)),
            Origin::Page { user } => Owner::Visitor(*user),
        }
    }

    /// Returns the caller of a session, with the present role that the core process reports.
    async fn caller_of(
        &self,
        session: &Session,
        front: &Front,
        until: Instant,
    ) -> Result<Caller, Response> {
        let role = page::role_of(front, session, until).await;
        let role = role.map_err(IntoResponse::into_response)?;
        let (who, owner) = (session.who.clone(), session.owner.clone());
        if let Origin::Elsewhere { held, .. } = self {
            held.let_in(&owner).map_err(too_many_connections)?;
        }
        Ok(Caller { who, owner, role: role.into(), until, session: Some(session.key.clone()) })
    }

    /// Returns the caller of a request. The error is the response to send instead: 401 for missing
    /// or unknown credentials, or the error that the core process reports.
    async fn caller(
        &self,
        request: &http::Request<Incoming>,
        front: &Front,
        until: Instant,
    ) -> Result<Caller, Response> {
        let (address, certificate, held) = match self {
            Origin::Here(caller) => return Ok(Caller { until, ..caller.clone() }),
            Origin::Elsewhere { address, certificate, held } => (*address, certificate, held),
            Origin::Page { .. } => return Err(browser::no_session().into_response()),
        };
        let mut headers = request.headers().get_all(http::header::AUTHORIZATION).iter();
        let who = match (headers.next(), headers.next(), certificate) {
            (None, _, Some(known)) => Some(CallerIdentity::Certificate(known.clone())),
            (Some(header), None, _) => {
                header.to_str().ok().and_then(token_in).map(CallerIdentity::Token)
            }
            _ => None,
        };
        let Some(who) = who else { return Err(stranger(front, address).await) };
        let known = match &who {
            CallerIdentity::Token(known) | CallerIdentity::Certificate(known) => known.clone(),
            CallerIdentity::User { .. } | CallerIdentity::Loopback => String::new(),
        };
        // Rights are not decided here, since the core checks each request.
        let (owner, role, session) = (Owner::Proof(known), Role::Viewer, None);
        if is_over_rate(front, &owner) {
            return Err(too_many_requests().await);
        }
        let mut caller = Caller { who, owner, role, until, session };
        match front.link.ask(caller.asks(None, Request::Whoami), until).await {
            Ok(Answer::You(role)) => {
                caller.role = role.into();
                held.let_in(&caller.owner).map_err(too_many_connections)?;
                Ok(caller)
            }
            Ok(_) => Err(No::bug().into_response()),
            Err(problem) if problem.kind == Kind::NotKnown => Err(stranger(front, address).await),
            Err(problem) => Err(No(problem).into_response()),
        }
    }
}

/// Returns the answer to a caller on another host that already has `most` connections, the maximum.
/// After the answer the connection is closed.
fn too_many_connections(most: usize) -> Response {
    let mut response = No(too_many_of_user(most)).into_response();
    let close = http::HeaderValue::from_static("close");
    response.headers_mut().insert(http::header::CONNECTION, close);
    response
}

fn too_many_of_user(most: usize) -> Problem {
    let detail = format!("this user already has {most} connections open, the maximum");
    Problem::new(Kind::TooMany, detail).hinting("close a connection, or try again later")
}

/// Returns the answer to a caller with unknown credentials. The answer does not say what is wrong
/// with the credentials.
async fn stranger(front: &Front, address: IpAddr) -> Response {
    let is_too_often = {
        let mut limits = front.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.fails(address, Instant::now().into_std())
    };
    if is_too_often {
        sleep(AFTER_FAILURES).await;
    }
    let mut response = http::StatusCode::UNAUTHORIZED.into_response();
    let headers = response.headers_mut();
    headers.insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    headers.insert(http::header::WWW_AUTHENTICATE, http::HeaderValue::from_static("Bearer"));
    response
}

/// Returns the identity of a local caller and its connection slot. The error is a refusal as raw
/// HTTP bytes.
fn admit(stream: &OwnedFd, front: &Front) -> Result<(Caller, HeldSlot), Vec<u8>> {
    let stranger = || STRANGER.to_vec();
    let (uid, gids) = peer::of(stream.as_fd()).map_err(|_| stranger())?;
    let role = front.people.role(uid, &gids).ok_or_else(stranger)?;
    let held = Limits::connect(&front.limits, Owner::User(uid), role).map_err(|full| {
        match full {
            Full::Own(most) => No(too_many_of_user(most)).raw(),
            Full::All(most) => {
                let detail = format!("the daemon already has {most} connections open, the maximum");
                let problem = Problem::new(Kind::TooMany, detail);
                No(problem.hinting("close a connection, or try again later")).raw()
            }
            // A user who connects in a loop reads no answer.
            Full::TooOften => Vec::new(),
        }
    })?;
    let gids = front.people.that_matter(&gids);
    let (who, owner) = (CallerIdentity::User { uid, gids }, Owner::User(uid));
    Ok((Caller { who, owner, role, until: Instant::now(), session: None }, held))
}

/// Writes a refusal to a connection and closes the connection.
///
/// A client that receives an answer before it has sent its request reports a broken connection. So
/// this function waits a short time for the request, outside the accept loop, and then writes the
/// refusal. If too many refusals are waiting already, this refusal is written without a wait.
fn turn_away(stream: UnixStream, reason: Vec<u8>, refusals: &Arc<Semaphore>) {
    match Arc::clone(refusals).try_acquire_owned() {
        Ok(place) => {
            tokio::spawn(async move {
                // If the connection is closed before the client has sent its request, the client
                // reads no answer. If its request is not read, closing resets the connection.
                let _ = timeout(REFUSAL_WITHIN, discard_request(&stream)).await;
                let _ = stream.try_write(&reason);
                drop(place);
            });
        }
        Err(_) => {
            let _ = stream.try_write(&reason);
        }
    }
}

/// Reads a request, up to the maximum size of a head, and ignores its content.
///
/// The runtime can wrongly report that the stream is readable, so the read is repeated until data
/// arrives.
async fn discard_request(stream: &UnixStream) {
    loop {
        let _ = stream.readable().await;
        match stream.try_read(&mut vec![0; HEAD]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}

/// Serves the requests of a connection. Frees its slot when the connection ends.
async fn serve<S: AsyncRead + AsyncWrite + Unpin, P>(
    stream: S,
    from: Origin,
    (place, patience): (P, Patience),
    front: Arc<Front>,
    router: Router,
) {
    let service = service_fn(|request| {
        let until = Instant::now() + REQUEST_WITHIN;
        answer(request, (&from, until), &front, router.clone(), &patience)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_headers(HEADERS)
        .max_buf_size(HEAD)
        .serve_connection(WatchedStream::new(stream, patience.clone()), service);
    tokio::select! {
        // Errors of a connection concern only its client.
        _ = connection => {}
        () = patience.clone().end() => {}
    }
    drop(place);
}

/// Returns the caller of a request, with the session if a browser sent the request.
async fn identify(
    request: &http::Request<Incoming>,
    visitor: Result<Visitor, No>,
    (from, until): (&Origin, Instant),
    front: &Front,
) -> (Result<Caller, Response>, Option<Box<Session>>) {
    match visitor {
        Err(refusal) => (Err(refusal.into_response()), None),
        Ok(Visitor::Program) => (from.caller(request, front, until).await, None),
        Ok(Visitor::Public) => {
            // From this caller, the core accepts only requests for metrics. No path that is open
            // without a session makes such a request.
            let (who, owner, role) = (CallerIdentity::Loopback, from.visitor(), Role::Viewer);
            (Ok(Caller { who, owner, role, until, session: None }), None)
        }
        Ok(Visitor::Session(session)) => match page::check_path(request.uri().path()) {
            Err(refusal) => (Err(refusal.into_response()), None),
            Ok(()) => (from.caller_of(&session, front, until).await, Some(session)),
        },
    }
}

/// Returns true if a client on another host has exceeded its rate limit. Such a client is refused
/// before the front asks the core process for the client's role.
fn is_over_rate(front: &Front, owner: &Owner) -> bool {
    let limits = front.limits.lock().unwrap_or_else(PoisonError::into_inner);
    limits.is_over_rate(owner, Instant::now().into_std())
}

async fn too_many_requests() -> Response {
    sleep(AFTER_FLOOD).await;
    let problem = Problem::new(Kind::TooMany, "the limit is 50 requests per second")
        .hinting("send fewer requests");
    No(problem).into_response()
}

async fn answer(
    request: http::Request<Incoming>,
    (from, until): (&Origin, Instant),
    front: &Front,
    mut router: Router,
    patience: &Patience,
) -> Result<Response<BusyBody>, Infallible> {
    let begun = Instant::now();
    let may_ask = |owner: &Owner| {
        let mut limits = front.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.may_ask(owner, begun.into_std())
    };
    let visitor = browser::visitor(&request, from.door(), &front.sessions);
    let is_program = matches!(visitor, Ok(Visitor::Program));
    let busy = match &visitor {
        Ok(Visitor::Program | Visitor::Session(_)) => patience.busy(),
        Ok(Visitor::Public) | Err(_) => patience.public(),
    };
    let (caller, session) = identify(&request, visitor, (from, until), front).await;
    let mut response = match caller {
        Err(response) => response,
        Ok(caller) if may_ask(&caller.owner) => {
            let mut request = request.map(Body::new);
            let extensions = request.extensions_mut();
            extensions.insert(caller);
            extensions.insert(from.door());
            session.map(|session| extensions.insert(*session));
            let Ok(response) = router.call(request).await;
            response
        }
        Ok(_) => too_many_requests().await,
    };
    if !is_program {
        page::protect(&mut response);
    }
    let route = response.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let mut served = front.served.lock().unwrap_or_else(PoisonError::into_inner);
    served.count(route.unwrap_or("other"), response.status().as_u16(), begun.elapsed());
    Ok(response.map(|body| BusyBody { body, _busy: busy }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_loopback_connection_replaces_the_oldest_idle_connection() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let mut slots = LoopbackSlots::new(2);
            let (first, second) = (slots.take(None).unwrap(), slots.take(None).unwrap());
            let busy = first.busy();
            let third = slots.take(None).unwrap();
            timeout(Duration::from_secs(5), second.end()).await.expect("the idle connection ends");
            let both = (busy, third.busy());
            assert!(slots.take(None).is_none(), "both connections are being answered");
            drop(third);
            assert!(slots.take(None).is_none(), "its request is still being answered");
            drop((both, first));
            assert!(slots.take(None).is_some() && slots.open.len() == 1);
        });
    }
    #[test]
    fn loopback_user_with_half_the_slots_replaces_only_own_connections() {
        let mut slots = LoopbackSlots::new(4);
        let other = slots.take(Some(2)).unwrap();
        let own: Vec<Patience> = (0..2).map(|_| slots.take(Some(1)).unwrap()).collect();
        let busy: Vec<_> = own.iter().map(Patience::busy).collect();
        assert!(slots.take(Some(1)).is_none(), "the user has half of the slots");
        assert!(slots.take(Some(3)).is_some(), "another user has a slot");
        drop(busy);
        let next = slots.take(Some(1)).unwrap();
        assert!(slots.open.iter().any(|(of, _)| *of == Some(2)), "the other user keeps its slot");
        drop((other, next));
    }
}
