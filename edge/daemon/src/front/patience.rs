//! Time limits of a connection. There is one limit for each of these steps: the first byte arrives,
//! the rest of a request head arrives, the next request begins, and the client reads an answer.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// Time limit for a whole request head. It starts with the connection, or with the first byte of
/// the head on a later request. The HTTP library hyper has such a limit too, but starts it with the
/// last answer, so it would also close idle connections.
const HEAD_WITHIN: Duration = Duration::from_secs(2);

/// Time limit for the next request on an idle connection.
const IDLE: Duration = Duration::from_secs(30);

/// Time for which a client may read nothing of its answer before the connection is closed.
pub(super) const STUCK: Duration = Duration::from_secs(5);

/// State of a connection, with the time limit of that state.
#[derive(Clone, Debug)]
pub(super) struct Patience(Arc<PatienceState>);

#[derive(Debug)]
struct PatienceState {
    phase: Mutex<Phase>,
    until: watch::Sender<Option<Instant>>,
    /// True if a known caller has sent a request on this connection.
    is_known: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No byte of the next request has arrived.
    Idle,
    /// Only a part of a request head has arrived.
    Head,
    /// A request of a browser without a session is being answered. A new connection can replace
    /// this connection.
    Public,
    /// A request is being answered.
    Busy,
}

/// Mark that a request on the connection is being answered. Dropping the value removes the mark.
#[derive(Debug)]
pub(super) struct Busy(Patience);

impl Patience {
    /// Returns the state of a new connection, on which the client must send its first request head.
    pub(super) fn new() -> Patience {
        let until = watch::Sender::new(Some(Instant::now() + HEAD_WITHIN));
        let (phase, is_known) = (Mutex::new(Phase::Head), AtomicBool::new(false));
        Patience(Arc::new(PatienceState { phase, until, is_known }))
    }

    /// Waits until the connection has exceeded its time limit.
    pub(super) async fn end(self) {
        let mut until = self.0.until.subscribe();
        loop {
            let now = *until.borrow_and_update();
            let end = async {
                match now {
                    Some(end) => sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = end => return,
                // The sender cannot be closed, since `self` holds it.
                _ = until.changed() => {}
            }
        }
    }

    /// Returns true if the connection has ended. This is right only if `self` is the only clone
    /// outside of the connection.
    pub(super) fn has_ended(&self) -> bool {
        Arc::strong_count(&self.0) <= 1
    }

    /// Ends the connection now if no known caller has sent a request on it. Returns true if the
    /// connection ends.
    pub(super) fn end_if_unknown(&self) -> bool {
        !self.0.is_known.load(Ordering::Relaxed) && self.end_if_idle()
    }

    /// Ends the connection now, unless a request of a known caller is being answered. Returns true
    /// if the connection ends.
    pub(super) fn end_if_idle(&self) -> bool {
        let mut is_idle = false;
        self.turn(|phase| {
            is_idle = phase != Phase::Busy;
            is_idle.then(|| (phase, Some(Instant::now())))
        });
        is_idle
    }

    /// Marks a request of a browser without a session as being answered, because its head has
    /// arrived.
    pub(super) fn public(&self) -> Busy {
        self.turn(|_| Some((Phase::Public, None)));
        Busy(self.clone())
    }

    /// Marks a request of a known caller as being answered, because its head has arrived.
    pub(super) fn busy(&self) -> Busy {
        self.0.is_known.store(true, Ordering::Relaxed);
        self.turn(|_| Some((Phase::Busy, None)));
        Busy(self.clone())
    }

    /// Starts the time limit for a request head, because the first bytes of a request have arrived.
    fn read(&self) {
        self.turn(|phase| {
            (phase == Phase::Idle).then(|| (Phase::Head, Some(Instant::now() + HEAD_WITHIN)))
        });
    }

    fn turn(&self, to: impl FnOnce(Phase) -> Option<(Phase, Option<Instant>)>) {
        let mut phase = self.0.phase.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((next, until)) = to(*phase) {
            *phase = next;
            self.0.until.send_replace(until);
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.turn(|_| Some((Phase::Idle, Some(Instant::now() + IDLE))));
    }
}

/// Stream of a connection. Each read and write updates the state of the connection.
pub(super) struct WatchedStream<S> {
    io: TokioIo<S>,
    patience: Patience,
    /// Timer that has run since no byte of an answer could be written. `None` if the last write
    /// succeeded.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<S> WatchedStream<S> {
    pub(super) fn new(stream: S, patience: Patience) -> WatchedStream<S> {
        WatchedStream { io: TokioIo::new(stream), patience, stuck: None }
    }

    /// Returns the result of a write, or an error if nothing could be written for [`STUCK`].
    fn written<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stuck = None;
            return outcome;
        }
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(STUCK)));
        ready!(stuck.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> Read for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.io).poll_read(cx, into));
        self.patience.read();
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> Write for WatchedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.written(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_flush(cx);
        self.written(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_shutdown(cx);
        self.written(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write_vectored(cx, parts);
        self.written(cx, outcome)
    }
}
