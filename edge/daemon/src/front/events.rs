//! HTTP streams of the daemon's events, as server-sent events.

use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use hyper::body::Frame;
use serde::{Deserialize, Serialize};
use slackline_control::link::{Answer, CallerIdentity, Request};
use slackline_control::{Event, Kind, PAGE, Problem, Reservation};
use slackline_service::Verb;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::Front;
use super::body::{self, No, Reply, query};
use super::caller::Caller;
use super::limits::{HeldSlot, Limits};
use super::patience::STUCK;

/// Maximum number of parts of a stream that wait to be written. If this number is reached and the
/// client reads nothing for the time [`STUCK`], the front disconnects the client. The client can
/// reconnect with `Last-Event-ID`.
pub(super) const UNWRITTEN: usize = 64;

/// Interval at which a stream sends all reservations and checks the rights of its caller. The core
/// process must answer within five such intervals.
const EVERY: Duration = Duration::from_secs(1);

/// Number of [`EVERY`] intervals between two comments that keep the connection of a stream open.
/// Only streams without reservations need comments.
const ALIVE: u32 = 10;

/// Maximum number of pages of past events that a stream sends when it begins.
const LOOKED_BACK: usize = 10;

/// Message to a client that has missed more events than a stream can repeat. The stream repeats
/// only the latest of the missed events.
#[derive(Debug, Serialize)]
struct MissedEvents {
    /// Number of the oldest event that the stream repeats. The stream leaves out the missed events
    /// before this event.
    before: u64,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct Following {
    /// True if all reservations are also sent every second.
    reservations: Option<bool>,
}

/// Streams all events from now on. With the header `Last-Event-ID`, the stream begins with the
/// events after that number.
#[cfg_attr(feature = "openapi", utoipa::path(
    get, path = "/v1/events", params(Following,
    ("Last-Event-ID" = Option<u64>, Header)), responses(
    (status = 200, content_type = "text/event-stream"), (status = "default", body = Problem))))]
pub(super) async fn events(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    following: Result<Query<Following>, QueryRejection>,
) -> Reply {
    caller.may(Verb::Log)?;
    let with_reservations = query(following)?.reservations.unwrap_or(false);
    let id = body::only(&headers, &HeaderName::from_static("last-event-id"))?;
    let after = id.map(str::parse::<u64>).transpose().map_err(|_| {
        No::bad("Last-Event-ID is not a number", "write the number of an event, such as 17")
    })?;
    let held = slot(&front, &caller)?;
    let (to, parts) = mpsc::channel(UNWRITTEN);
    // Subscribe before reading past events, so that no event in between is missed.
    let live = front.link.events();
    let teller = Teller { front, caller, to, last: after.unwrap_or(0) };
    tokio::spawn(async move {
        // An error only means that the stream has ended. No client is left to report it to.
        let _ = teller.tell(live, after.is_some(), with_reservations).await;
    });
    Ok(streamed(parts, held))
}

/// Takes a slot for a stream of this caller.
pub(super) fn slot(front: &Front, caller: &Caller) -> Result<HeldSlot, No> {
    Limits::stream(&front.limits, caller.owner.clone()).map_err(|most| {
        let detail = format!("this user already has {most} event streams open, the maximum");
        No(Problem::new(Kind::TooMany, detail).hinting("close one of the event streams"))
    })
}

/// Returns a response that consists of the parts of a stream.
pub(super) fn streamed(parts: mpsc::Receiver<Bytes>, held: HeldSlot) -> Response {
    let mut response = Response::new(Body::new(Parts { parts, _held: held }));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Sender of one event stream to one client.
struct Teller {
    front: Arc<Front>,
    caller: Caller,
    to: mpsc::Sender<Bytes>,
    /// Number of the last event that was sent on the stream, or that the client already has. Zero
    /// if there is no such event.
    last: u64,
}

/// Returns all reservations that the caller may see, page by page. `within` is the time limit of
/// each page.
pub(super) async fn all_reservations(
    front: &Front,
    caller: &Caller,
    within: Duration,
) -> Result<Vec<Reservation>, End> {
    let mut all: Vec<Reservation> = Vec::new();
    loop {
        let after = all.last().map(|last| last.name.clone());
        let request = Request::List { name: None, after };
        let asked = caller.asks(None, request);
        let answer = front.link.ask(asked, Instant::now() + within).await.map_err(|_| End)?;
        let Answer::Reservations(page) = answer else { return Err(End) };
        let is_last = page.len() < PAGE;
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}

/// Signal that a stream must end. Its client has disconnected, reads too slowly or has lost access,
/// or the core process did not answer.
pub(super) struct End;

impl Teller {
    async fn tell(
        mut self,
        mut live: broadcast::Receiver<Arc<Event>>,
        looks_back: bool,
        with_reservations: bool,
    ) -> Result<(), End> {
        self.is_still_known().await?;
        if looks_back {
            self.look_back().await?;
        }
        let mut seconds = interval(EVERY);
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ticks = 0_u32;
        loop {
            tokio::select! {
                event = live.recv() => {
                    match event {
                        Ok(event) => self.send_event(&event).await?,
                        Err(RecvError::Lagged(count)) => self.fill_gap(count, &mut live).await?,
                        Err(RecvError::Closed) => return Err(End),
                    }
                }
                _ = seconds.tick() => {
                    self.is_still_known().await?;
                    if with_reservations {
                        let all = self.reservations().await?;
                        self.send(part(None, "reservations", &all)).await?;
                    } else if ticks.is_multiple_of(ALIVE) {
                        self.send(Bytes::from_static(b": alive\n\n")).await?;
                    }
                    ticks = ticks.wrapping_add(1);
                }
                () = self.to.closed() => return Err(End),
            }
        }
    }

    /// Sends the events with a number above `last`, but at most the latest [`LOOKED_BACK`] pages of
    /// them.
    async fn look_back(&mut self) -> Result<(), End> {
        let (mut missed, mut before) = (Vec::new(), None);
        for _ in 0..LOOKED_BACK {
            let request = Request::Log { name: None, before, limit: PAGE };
            let Answer::Events(page) = self.ask(request).await? else { return Err(End) };
            let is_last = page.len() < PAGE || page.iter().any(|event| event.seq <= self.last);
            before = page.last().map(|event| event.seq);
            missed.extend(page.into_iter().filter(|event| event.seq > self.last));
            if is_last {
                before = None;
                break;
            }
        }
        if let Some(before) = before {
            self.send(part(None, "missed", &MissedEvents { before })).await?;
        }
        for event in missed.iter().rev() {
            self.send_event(event).await?;
        }
        Ok(())
    }

    /// Sends an event, unless the stream has sent it before.
    async fn send_event(&mut self, event: &Event) -> Result<(), End> {
        if event.seq <= self.last {
            return Ok(());
        }
        self.last = event.seq;
        self.send(part(Some(event.seq), "event", event)).await
    }

    /// Sends the `count` events that this stream has missed because its client read too slowly, and
    /// the event after them.
    async fn fill_gap(
        &mut self,
        mut count: u64,
        live: &mut broadcast::Receiver<Arc<Event>>,
    ) -> Result<(), End> {
        let next = loop {
            match live.try_recv() {
                Ok(next) => break next,
                Err(TryRecvError::Lagged(more)) => count += more,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return Err(End),
            }
        };
        if self.last == 0 {
            self.last = self.number_before(next.seq, count).await?;
        }
        self.look_back().await?;
        self.send_event(&next).await
    }

    /// Returns a number such that `count` events have a number above it and below `before`. Numbers
    /// of events have gaps, so the function counts the events of the log, in at most
    /// [`LOOKED_BACK`] pages. The function serves a stream whose client did not ask for past
    /// events.
    async fn number_before(&self, mut before: u64, count: u64) -> Result<u64, End> {
        let mut left = usize::try_from(count).unwrap_or(usize::MAX);
        for _ in 0..LOOKED_BACK {
            let limit = PAGE.min(left);
            let request = Request::Log { name: None, before: Some(before), limit };
            let Answer::Events(page) = self.ask(request).await? else { return Err(End) };
            let Some(oldest) = page.last() else { break };
            before = oldest.seq;
            left = left.saturating_sub(page.len());
            if left == 0 || page.len() < limit {
                break;
            }
        }
        Ok(before.saturating_sub(1))
    }

    /// Checks that the caller may still see the events. Only the core process knows the current
    /// grants, including the grants of local users.
    async fn is_still_known(&self) -> Result<(), End> {
        check_session(&self.front, &self.caller)?;
        // Root always has all permissions, so its stream goes on while the core process is silent.
        if matches!(self.caller.who, CallerIdentity::User { uid: 0, .. }) {
            return Ok(());
        }
        match self.ask(Request::Whoami).await? {
            Answer::You(role) if slackline_service::Role::from(role).may(Verb::Log) => Ok(()),
            _ => Err(End),
        }
    }

    /// Queues a part of the stream. If the client has not read earlier parts, waits for it, and
    /// checks each second that the caller may still see the events.
    async fn send(&self, bytes: Bytes) -> Result<(), End> {
        let until = Instant::now() + STUCK;
        loop {
            match timeout(EVERY, self.to.reserve()).await {
                Ok(place) => {
                    place.map_err(|_| End)?.send(bytes);
                    return Ok(());
                }
                Err(_) if Instant::now() >= until => return Err(End),
                Err(_) => self.is_still_known().await?,
            }
        }
    }

    async fn reservations(&self) -> Result<Vec<Reservation>, End> {
        all_reservations(&self.front, &self.caller, EVERY * 5).await
    }

    async fn ask(&self, request: Request) -> Result<Answer, End> {
        let until = Instant::now() + EVERY * 5;
        self.front.link.ask(self.caller.asks(None, request), until).await.map_err(|_| End)
    }
}

/// Queues a part of a stream. If too many parts already wait to be written, waits until the client
/// has read one of them. Fails if the client reads nothing for [`STUCK`].
pub(super) async fn send(to: &mpsc::Sender<Bytes>, bytes: Bytes) -> Result<(), End> {
    timeout(STUCK, to.send(bytes)).await.map_err(|_| End)?.map_err(|_| End)
}

/// Checks that the browser session of a caller has not ended. Succeeds for a caller without a
/// session.
pub(super) fn check_session(front: &Front, caller: &Caller) -> Result<(), End> {
    let Some(key) = &caller.session else { return Ok(()) };
    let mut sessions = front.sessions.lock().unwrap_or_else(PoisonError::into_inner);
    if sessions.is_open(key, Instant::now().into_std()) { Ok(()) } else { Err(End) }
}

pub(super) fn part<T: Serialize>(id: Option<u64>, kind: &str, data: &T) -> Bytes {
    let data = serde_json::to_string(data).expect("string keys serialize to JSON");
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("{id}event: {kind}\ndata: {data}\n\n").into()
}

/// Response body that consists of the parts of a stream.
struct Parts {
    parts: mpsc::Receiver<Bytes>,
    _held: HeldSlot,
}

impl hyper::body::Body for Parts {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.parts.poll_recv(cx).map(|part| part.map(|bytes| Ok(Frame::data(bytes))))
    }
}
