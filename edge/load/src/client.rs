//! Who is outside, as a real process: the clients of a scenario.
//!
//! What is asked is asked on the loopback; pings may be at a Unix socket. A request is lost when
//! nobody listens, when the other side hangs up before its answer is whole, or when the
//! client's patience ends.

mod ping;
mod requests;
mod stream;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use slackline_scenario::Stream;
use slackline_scenario::io::ClientKind;
use slackline_units::{Span, Time};

use crate::clock::{monotonic, sleep_until, thread_time, wake_exactly};
use crate::done::{Done, Tally};
use crate::end::End;
use crate::job::{Job, Note, Reporter};
use crate::{LoadError, Options, Ports, net};

/// What a client is to do.
#[derive(Clone, Debug)]
pub struct Asking {
    /// As the scenario says it.
    pub kind: ClientKind,
    /// Where, on 127.0.0.1.
    pub port: u16,
    /// Pings: where, in place of that.
    pub socket: Option<PathBuf>,
    /// Its draws.
    pub draws: Stream,
    /// How long after its start it asks for nothing more; none for as long as it goes on. It still
    /// waits for what it has asked.
    pub until: Option<Span>,
    /// After how many questions it asks for nothing more; none for no such number.
    pub count: Option<u64>,
}

/// How long a client that never gives up waits once it asks for nothing more.
const PATIENCE: Span = Span::from_secs(5);

/// The port that a client of this kind talks to.
#[must_use]
pub fn port_for(kind: &ClientKind, ports: Ports) -> u16 {
    use slackline_scenario::io::Way;
    match kind {
        ClientKind::Open { .. }
        | ClientKind::Closed { .. }
        | ClientKind::Ping { .. }
        | ClientKind::Pings { .. } => ports.requests,
        ClientKind::Stream { way: Way::In, .. } => ports.inward,
        ClientKind::Stream { way: Way::Out, .. } => ports.outward,
    }
}

/// Is the client: until it has asked all and been answered, or to its end.
///
/// # Errors
/// When a stream has no other end, or the kernel refuses to wait.
pub fn ask(asking: &Asking, options: Options) -> Result<Done, LoadError> {
    wake_exactly();
    let notes = Reporter::new(options.jobs)?;
    if let Some(start) = options.start {
        sleep_until(start)?;
    }
    let began = options.start.unwrap_or_else(monotonic);
    let at = options.limit.map_or(Time::NEVER, |limit| began.after(limit));
    let end = End::of_many(at, options.stop)?;
    let before = thread_time();
    let until = asking.until.map_or(Time::NEVER, |until| began.after(until));
    let mut this = Client {
        to: net::here(asking.port),
        socket: asking.socket.as_deref(),
        draws: asking.draws.clone(),
        began,
        until,
        count: asking.count.unwrap_or(u64::MAX),
        end: &end,
        notes: &notes,
        done: Done::default(),
        responses: Tally::new(),
    };
    match asking.kind {
        ClientKind::Open { every, timeout, .. } => this.open(&every, timeout)?,
        ClientKind::Closed { at_once, think } => this.closed(at_once, &think)?,
        ClientKind::Ping { every } => this.ping(every)?,
        ClientKind::Pings { every, .. } => this.pings(&every)?,
        ClientKind::Stream { way, window, gap } => this.stream(way, window, gap)?,
    }
    let mut done = this.done;
    done.responses = this.responses.responses();
    done.used = thread_time() - before;
    done.elapsed = monotonic().since(began);
    done.dropped = notes.dropped();
    Ok(done)
}

struct Client<'a> {
    to: SocketAddr,
    socket: Option<&'a Path>,
    draws: Stream,
    began: Time,
    /// From when on it asks for nothing.
    until: Time,
    /// How many questions it may ask.
    count: u64,
    end: &'a End,
    notes: &'a Reporter,
    done: Done,
    responses: Tally,
}

impl Client<'_> {
    /// Whether it may ask once more at this time.
    fn may_ask(&self, at: Time) -> bool {
        at < self.until && self.done.asked < self.count
    }

    fn answered(&mut self, asked: Time) -> Result<(), LoadError> {
        let done = monotonic();
        self.done.answered += 1;
        self.responses.add(done.since(asked));
        self.notes.report(Note::Job(Job { released: asked, deadline: None, done }))
    }

    fn lost(&mut self, asked: Time) -> Result<(), LoadError> {
        self.done.lost += 1;
        self.notes.report(Note::Lost { asked, at: monotonic() })
    }
}
