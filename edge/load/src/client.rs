//! A client of a scenario as a real process. Clients run outside of VMs.
//!
//! Requests are sent over the loopback. Pings can be sent over a Unix socket instead. A request is
//! lost if no process listens, if the server closes the connection before its answer is complete,
//! or if the client's timeout expires.

mod ping;
mod requests;
mod stream;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use slackline_scenario::Stream;
use slackline_scenario::io::ClientKind;
use slackline_units::{Span, Time};

use crate::clock::{monotonic, sleep_until, thread_time, wake_exactly};
use crate::done::{LoadResults, Tally};
use crate::end::End;
use crate::job::{Job, Note, Reporter};
use crate::{LoadError, Options, Ports, net};

/// Parameters of a client process.
#[derive(Clone, Debug)]
pub struct ClientTask {
    /// Kind of the client in the scenario.
    pub kind: ClientKind,
    /// Port on 127.0.0.1 to which the client connects or sends.
    pub port: u16,
    /// Unix socket for pings, used in place of the port. `None` if the client uses the port.
    pub socket: Option<PathBuf>,
    /// Source of the client's random draws, such as intervals and think times.
    pub draws: Stream,
    /// Time from the client's start until it sends no more requests. It still waits for missing
    /// answers afterwards. `None` if this time is not limited.
    pub until: Option<Span>,
    /// Maximum number of requests that the client sends. If `None`, the number is not limited.
    pub count: Option<u64>,
}

/// Time for which a client without a timeout waits for missing answers after its last request.
const PATIENCE: Span = Span::from_secs(5);

/// Returns the port to which a client of this kind connects or sends.
#[must_use]
pub fn port_for(kind: &ClientKind, ports: Ports) -> u16 {
    use slackline_scenario::io::Direction;
    match kind {
        ClientKind::Open { .. }
        | ClientKind::Closed { .. }
        | ClientKind::Ping { .. }
        | ClientKind::Pings { .. } => ports.requests,
        ClientKind::Stream { way: Direction::In, .. } => ports.inward,
        ClientKind::Stream { way: Direction::Out, .. } => ports.outward,
    }
}

/// Runs the client until all its requests are answered or lost, or until it is requested to end.
///
/// # Errors
/// If a ping client or a stream cannot connect to its server, if a wait fails, or if jobs cannot be
/// reported.
pub fn ask(asking: &ClientTask, options: Options) -> Result<LoadResults, LoadError> {
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
        done: LoadResults::default(),
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
    /// Time from which the client sends no more requests.
    until: Time,
    /// Maximum number of requests that the client sends.
    count: u64,
    end: &'a End,
    notes: &'a Reporter,
    done: LoadResults,
    responses: Tally,
}

impl Client<'_> {
    /// Returns true if the client may send another request at time `at`.
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
