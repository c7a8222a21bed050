//! Who may connect, and serving a connection.

use std::convert::Infallible;
use std::io::Write;
use std::os::fd::AsFd;
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
use slackline_control::{Kind, Problem};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep};
use tower_service::Service;

use super::body::{Kept, No};
use super::caller::Caller;
use super::limits::{Full, Held, Limits};
use super::patience::{Patience, Watched};
use super::{Front, pages, peer};

/// For a whole request and its answer, streams excepted.
const REQUEST_WITHIN: Duration = Duration::from_secs(5);

/// The most headers of a request.
const HEADERS: usize = 32;

/// The longest head of a request, in bytes.
const HEAD: usize = 16 * 1024;

/// How long nobody is accepted after somebody was turned away: connecting in a loop is then no way
/// to keep us busy.
const AFTER_REFUSAL: Duration = Duration::from_millis(1);

/// How long who asks too often waits to hear it.
const AFTER_FLOOD: Duration = Duration::from_millis(100);

/// What strangers are told.
const STRANGER: &[u8] = b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Serves whoever connects, for ever.
pub(super) async fn accept(listener: UnixListener, front: &Arc<Front>) {
    let router = pages::router(front);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor, or no memory: others give theirs back.
            sleep(AFTER_FLOOD).await;
            continue;
        };
        match admit(&stream, front) {
            Ok((caller, held)) => {
                tokio::spawn(serve(stream, caller, held, Arc::clone(front), router.clone()));
            }
            Err(words) => {
                turn_away(stream, &words);
                sleep(AFTER_REFUSAL).await;
            }
        }
    }
}

/// Who it is and his connection, or what he is told instead.
fn admit(stream: &UnixStream, front: &Front) -> Result<(Caller, Held), Vec<u8>> {
    let stranger = || STRANGER.to_vec();
    let (uid, gids) = peer::of(stream.as_fd()).map_err(|_| stranger())?;
    let role = front.people.role(uid, &gids).ok_or_else(stranger)?;
    let held = Limits::connect(&front.limits, uid, role).map_err(|full| {
        let detail = match full {
            Full::Own(most) => format!("this user has {most} connections, the most there may be"),
            Full::All(most) => format!("all {most} connections are taken"),
        };
        let problem = Problem::new(Kind::TooMany, detail).hinting("end one, or ask again later");
        No(problem).raw()
    })?;
    let gids = front.people.that_matter(&gids);
    Ok((Caller { uid, gids, role, until: Instant::now() }, held))
}

/// Says so if that can be said at once, and closes.
fn turn_away(stream: UnixStream, words: &[u8]) {
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write(words);
    }
}

async fn serve(stream: UnixStream, caller: Caller, held: Held, front: Arc<Front>, router: Router) {
    let patience = Patience::new();
    let service = service_fn(|request| {
        let until = Instant::now() + REQUEST_WITHIN;
        let caller = Caller { until, ..caller.clone() };
        answer(request, caller, &front, router.clone(), &patience)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_headers(HEADERS)
        .max_buf_size(HEAD)
        .serve_connection(Watched::new(stream, patience.clone()), service);
    tokio::select! {
        // What a stranger did wrong is his own concern.
        _ = connection => {}
        () = patience.clone().end() => {}
    }
    drop(held);
}

async fn answer(
    request: http::Request<Incoming>,
    caller: Caller,
    front: &Front,
    mut router: Router,
    patience: &Patience,
) -> Result<Response<Kept>, Infallible> {
    let busy = patience.busy();
    let begun = Instant::now();
    let may = {
        let mut limits = front.limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.may_ask(caller.uid, begun.into_std())
    };
    let response = if may {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(caller);
        let Ok(response) = router.call(request).await;
        response
    } else {
        sleep(AFTER_FLOOD).await;
        let problem = Problem::new(Kind::TooMany, "50 requests a second are the most")
            .hinting("ask less often");
        No(problem).into_response()
    };
    let route = response.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let mut served = front.served.lock().unwrap_or_else(PoisonError::into_inner);
    served.count(route.unwrap_or("other"), response.status().as_u16(), begun.elapsed());
    Ok(response.map(|body| Kept { body, _busy: busy }))
}
