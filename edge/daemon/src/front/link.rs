//! Link of the front process to the core process. Requests and their answers carry a ticket (id),
//! and the core process also sends events.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use slackline_control::link::{
    Answer, Ask, CallerIdentity, CoreMessage, LONGEST_ASKED, LONGEST_SAID, Lines, Request, line,
    message,
};
use slackline_control::{Event, Kind, Problem};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::caller::CoreRequest;

/// Maximum number of requests that the core process has not read yet. The number suffices, since
/// each connection has at most one request.
const UNREAD: usize = 128;

/// Maximum number of events that are kept for a stream until it reads them. A stream that is too
/// slow reads missed events from the ledger. The number is large enough for a list of `apply`,
/// which causes up to 1,000 events at once.
const EVENTS: usize = 2048;

/// The front process's end of its link to the core process.
pub(super) struct Link {
    asks: mpsc::Sender<Vec<u8>>,
    waiting: Arc<Mutex<Waiting>>,
    events: broadcast::Sender<Arc<Event>>,
}

#[derive(Default)]
struct Waiting {
    last: u64,
    of: BTreeMap<u64, oneshot::Sender<Result<Answer, Problem>>>,
}

/// Ticket (id) of a request to the core process. Dropping it cancels the request if the core
/// process has not answered.
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
            let _ = self.link.asks.try_send(line(&cancel));
        }
    }
}

impl Link {
    /// Returns the front process's end of a link, and the task that sends and receives on it. The
    /// task ends when the core process closes the link or sends an invalid message.
    pub(super) fn open(stream: UnixStream) -> (Link, impl Future<Output = io::Result<()>>) {
        let (from_core, to_core) = stream.into_split();
        let (asks, asked) = mpsc::channel(UNREAD);
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let (events, _) = broadcast::channel(EVENTS);
        let link = Link { asks, waiting: Arc::clone(&waiting), events: events.clone() };
        let both = async move {
            tokio::select! {
                ended = hear(from_core, &waiting, &events) => ended,
                ended = say(to_core, asked) => ended,
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
        let CoreRequest { who, key, request } = asked;
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
        if self.asks.try_send(line).is_err() {
            let detail = format!(
                "the daemon's core process already has {UNREAD} unread requests, the maximum"
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

async fn say(mut to_core: OwnedWriteHalf, mut asked: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    while let Some(line) = asked.recv().await {
        to_core.write_all(&line).await?;
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
