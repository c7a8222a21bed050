//! Link of the front process to the core process. The front sends requests, and the core sends
//! their answers. A ticket (id) connects an answer with its request. The core sends events, too.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use slackline_control::link::{
    Answer, Ask, CallerIdentity, CoreMessage, LONGEST_ASKED, LONGEST_SAID, Lines, Request, line,
    message,
};
use slackline_control::{Event, Kind, Problem};
use slackline_linux::sys::monotonic;
use slackline_units::Time;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::caller::CoreRequest;

/// Maximum number of requests that the core process has not read yet. No more are needed, since
/// each connection has at most one request.
const UNREAD: usize = 128;

/// Part of [`UNREAD`] that is kept free for requests of administrators.
const KEPT: usize = 32;

/// Maximum number of unread events that are kept for a stream. A stream that reads too slowly gets
/// the events that it missed from the ledger. The number is large enough for a list of `apply`,
/// which causes up to 1,000 events at the same time.
const EVENTS: usize = 2048;

/// The front process's end of its link to the core process.
pub(super) struct Link {
    asks: mpsc::Sender<UnsentLine>,
    waiting: Arc<Mutex<Waiting>>,
    events: broadcast::Sender<Arc<Event>>,
}

/// A line for the core process.
struct UnsentLine {
    /// Ticket of the request in the line. If the request's caller disconnects before the line is
    /// sent, the line is dropped. `None` for a cancellation, which is always sent.
    ticket: Option<u64>,
    line: Vec<u8>,
}

struct Waiting {
    last: u64,
    of: BTreeMap<u64, oneshot::Sender<Result<Answer, Problem>>>,
}

/// Ticket (id) of a request to the core process. If the core has not answered when this value is
/// dropped, the request is cancelled.
struct Ticket<'a> {
    number: u64,
    who: CallerIdentity,
    link: &'a Link,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut waiting = self.link.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.of.remove(&self.number).is_some() {
            // No answer has arrived, so the caller has disconnected or the time limit has passed.
            // If the link is too full for a cancellation, the core drops the request after its time
            // limit.
            let (ticket, who) = (self.number, self.who.clone());
            let cancel = Ask { ticket, who, key: None, request: Request::Cancel };
            if self.link.asks.capacity() > KEPT {
                let _ = self.link.asks.try_send(UnsentLine { ticket: None, line: line(&cancel) });
            }
        }
    }
}

impl Link {
    /// Returns the front process's end of a link, and the task that sends and receives on it. The
    /// task ends when the core process closes the link or sends an invalid message.
    pub(super) fn open(stream: UnixStream) -> (Link, impl Future<Output = io::Result<()>>) {
        let (from_core, to_core) = stream.into_split();
        let (asks, asked) = mpsc::channel(UNREAD);
        // The core may still answer requests of a former front process, whose tickets were lower.
        let last = monotonic().since(Time::START).ns();
        let waiting = Arc::new(Mutex::new(Waiting { last, of: BTreeMap::new() }));
        let (events, _) = broadcast::channel(EVENTS);
        let link = Link { asks, waiting: Arc::clone(&waiting), events: events.clone() };
        let both = async move {
            tokio::select! {
                ended = hear(from_core, &waiting, &events) => ended,
                ended = say(to_core, asked, &waiting) => ended,
            }
        };
        (link, both)
    }

    /// Returns a receiver of all events from now on.
    pub(super) fn events(&self) -> broadcast::Receiver<Arc<Event>> {
        self.events.subscribe()
    }

    /// Sends a request to the core process, and waits for its answer until the time `until`.
    pub(super) async fn ask(&self, asked: CoreRequest, until: Instant) -> Result<Answer, Problem> {
        let (answer, wait) = oneshot::channel();
        let CoreRequest { who, is_of_administrator, key, request } = asked;
        let ticket = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.last += 1;
            let ticket = waiting.last;
            waiting.of.insert(ticket, answer);
            Ticket { number: ticket, who: who.clone(), link: self }
        };
        let line = line(&Ask { ticket: ticket.number, who, key, request });
        if line.len() > LONGEST_ASKED {
            let detail = format!(
                "the request has {} bytes; at most {LONGEST_ASKED} are allowed",
                line.len()
            );
            return Err(Problem::new(Kind::TooLarge, detail));
        }
        let kept = if is_of_administrator { 0 } else { KEPT };
        let line = UnsentLine { ticket: Some(ticket.number), line };
        if self.asks.capacity() <= kept || self.asks.try_send(line).is_err() {
            let most = UNREAD - kept;
            let detail = format!(
                "the daemon's core process already has {most} unread requests, the maximum"
            );
            return Err(Problem::new(Kind::NotNow, detail).hinting("try again in a second"));
        }
        match timeout_at(until, wait).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => {
                let detail = "the daemon's core process did not answer in time; the request may \
                              have taken effect";
                let hint =
                    "repeat the request with the same Idempotency-Key: it takes effect only once";
                Err(Problem::new(Kind::NotAnswered, detail).hinting(hint))
            }
        }
    }
}

async fn say(
    mut to_core: OwnedWriteHalf,
    mut asked: mpsc::Receiver<UnsentLine>,
    waiting: &Mutex<Waiting>,
) -> io::Result<()> {
    while let Some(UnsentLine { ticket, line }) = asked.recv().await {
        let is_waited_for = |ticket: u64| {
            let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.of.contains_key(&ticket)
        };
        if ticket.is_none_or(is_waited_for) {
            to_core.write_all(&line).await?;
        }
    }
    Ok(())
}

async fn hear(
    mut from_core: OwnedReadHalf,
    waiting: &Mutex<Waiting>,
    events: &broadcast::Sender<Arc<Event>>,
) -> io::Result<()> {
    let mut lines = Lines::new(LONGEST_SAID);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from_core.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        lines.push(&buffer[..read]);
        while let Some(line) = lines.next_line().map_err(io::Error::other)? {
            let (ticket, outcome) = match message(&line).map_err(io::Error::other)? {
                CoreMessage::Answer { ticket, answer } => (ticket, Ok(answer)),
                CoreMessage::Refused { ticket, problem } => (ticket, Err(*problem)),
                CoreMessage::Event(event) => {
                    // There may be no subscriber.
                    let _ = events.send(Arc::new(event));
                    continue;
                }
            };
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(who) = waiting.of.remove(&ticket) {
                // The caller may have stopped waiting just now.
                let _ = who.send(outcome);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(uid: u32) -> CoreRequest {
        let who = CallerIdentity::User { uid, gids: Vec::new() };
        let (is_of_administrator, request) = (uid == 0, Request::Health);
        CoreRequest { who, is_of_administrator, key: None, request }
    }

    #[test]
    fn some_slots_for_queued_requests_are_reserved_for_administrators() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let (front, core) = UnixStream::pair().unwrap();
            let (link, both) = Link::open(front);
            let until = Instant::now() + std::time::Duration::from_millis(200);
            // The task of the link does not run yet, so the core process reads nothing.
            let asks: Vec<_> = (0..110).map(|_| link.ask(asked(1000), until)).collect();
            let mut refused = 0;
            for answer in futures_of(asks).await {
                let problem = answer.expect_err("no core process answers");
                refused += usize::from(problem.kind == Kind::NotNow);
            }
            assert_eq!(refused, 110 - (UNREAD - KEPT));
            // All callers have left, so their requests are not sent.
            let until = Instant::now() + std::time::Duration::from_millis(200);
            let answer = tokio::select! {
                answer = link.ask(asked(0), until) => answer,
                _ = both => panic!("the link has ended"),
            };
            assert_eq!(answer.expect_err("no core process answers").kind, Kind::NotAnswered);
            let mut bytes = vec![0; 1 << 16];
            let read = core.try_read(&mut bytes).unwrap();
            let mut lines = Lines::new(LONGEST_ASKED);
            lines.push(&bytes[..read]);
            let ask: Ask = message(&lines.next_line().unwrap().unwrap()).unwrap();
            assert_eq!(ask.who, CallerIdentity::User { uid: 0, gids: Vec::new() });
        });
    }

    async fn futures_of<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
        let mut running: Vec<_> = futures.into_iter().map(Box::pin).collect();
        let mut done = Vec::new();
        std::future::poll_fn(|context| {
            running.retain_mut(|future| match future.as_mut().poll(context) {
                std::task::Poll::Ready(output) => {
                    done.push(output);
                    false
                }
                std::task::Poll::Pending => true,
            });
            if running.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        done
    }
}
