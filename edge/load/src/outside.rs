//! File server outside of a simulated VM, from which the tasks of the VM request data. Each request
//! states how long the server waits before it answers.

use std::net::{TcpListener, TcpStream};

use rustix::event::{PollFd, PollFlags};
use slackline_units::{Span, Time};

use crate::clock::monotonic;
use crate::end::End;
use crate::job::{Note, Ports, Reporter};
use crate::net::{self, ExchangeOutcome};
use crate::{LoadError, Options};

/// Maximum number of connections that wait to be accepted.
const WAITING: usize = 1_000;

/// Runs the file server until it is requested to end. The server reports its port in the field
/// [`Ports::requests`] of its ready note.
///
/// # Errors
/// If the server cannot listen on a port, if a thread cannot be created, or if a wait fails.
pub fn file_server(options: Options) -> Result<(), LoadError> {
    let at = options.limit.map_or(Time::NEVER, |limit| monotonic().after(limit));
    let end = End::of_many(at, options.stop)?;
    let notes = Reporter::new(options.jobs)?;
    let listener = net::listener(0, WAITING)?;
    let requests = net::port_of(&listener)?;
    notes.report(Note::Ready(Ports { requests, ..Ports::default() }))?;
    serve_files(&listener, &end)
}

/// Accepts connections and serves each on its own thread, because tasks keep their connections
/// open.
pub(crate) fn serve_files(listener: &TcpListener, end: &End) -> Result<(), LoadError> {
    std::thread::scope(|scope| {
        loop {
            let mut fds = [PollFd::new(listener, PollFlags::IN)];
            if end.wait(&mut fds, Time::NEVER)? {
                return Ok(());
            }
            let Ok((stream, _)) = listener.accept() else { continue };
            if net::patient(&stream).is_ok() {
                let body = move || serve_one(&stream, end);
                let thread = std::thread::Builder::new().spawn_scoped(scope, body);
                thread.map_err(|source| LoadError::NoThread { source })?;
            }
        }
    })
}

/// Answers the requests on a connection until the client closes it or the load ends.
fn serve_one(stream: &TcpStream, end: &End) -> Result<(), LoadError> {
    let until = (Time::NEVER, end);
    loop {
        let mut question = Vec::new();
        let talk = net::receive(stream, until, &mut |bytes| {
            question.extend_from_slice(bytes);
            question.len() >= 16
        })?;
        if talk != ExchangeOutcome::Whole {
            return Ok(());
        }
        let numbers = question.as_chunks().0;
        let [bytes, wait] = [0, 1].map(|at: usize| u64::from_le_bytes(numbers[at]));
        if end.sleep_until(monotonic().after(Span::from_ns(wait)))? {
            return Ok(());
        }
        if net::send_data(stream, bytes, until, &mut 0)? != ExchangeOutcome::Whole {
            return Ok(());
        }
    }
}
