//! HTTP clients. A client either sends requests at a fixed rate without waiting for answers (open),
//! or keeps a fixed number of requests under way (closed).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt::socket_error;
use rustix::process::{Resource, getrlimit, setrlimit};
use slackline_scenario::Draw;
use slackline_units::{Span, Time};

use super::{Client, PATIENCE};
use crate::LoadError;
use crate::clock::monotonic;
use crate::net::{self, Head, REQUEST};

/// Time after which a closed client repeats a lost request. The delay prevents a busy loop if no
/// server listens.
const RETRY: Span = Span::from_secs(1);

/// A request that has no answer yet.
struct Pending {
    stream: TcpStream,
    asked: Time,
    gives_up: Time,
    state: State,
}

enum State {
    Connecting,
    /// The connection is made. The header of the answer is not complete yet.
    Heading(Head),
    /// The header has arrived. The value is the number of bytes of the body that are still missing.
    Reading(u64),
}

/// State of a request after a step.
enum RequestState {
    Waits,
    Answered,
    Lost,
}

/// Rule that decides the time of the next request.
enum Pace<'a> {
    /// Requests are sent at these intervals, even if earlier requests are still unanswered.
    Open(&'a Draw),
    /// The next request is sent after an answer, when this think time has passed.
    Closed(&'a Draw),
}

impl Client<'_> {
    pub(super) fn open(&mut self, every: &Draw, timeout: Span) -> Result<(), LoadError> {
        let first = self.began.after(self.draws.draw(every));
        self.requests(&Pace::Open(every), BinaryHeap::from([Reverse(first)]), timeout)
    }

    pub(super) fn closed(&mut self, at_once: u32, think: &Draw) -> Result<(), LoadError> {
        let due = (0..at_once).map(|_| Reverse(self.began)).collect();
        self.requests(&Pace::Closed(think), due, Span::MAX)
    }

    /// Sends requests at the times in `due`. Returns when the client has sent its last request, and
    /// all requests are answered or lost.
    fn requests(
        &mut self,
        pace: &Pace<'_>,
        mut due: BinaryHeap<Reverse<Time>>,
        timeout: Span,
    ) -> Result<(), LoadError> {
        allow_many_files();
        let mut pending: Vec<Pending> = Vec::new();
        loop {
            while let Some(&Reverse(at)) = due.peek()
                && self.may_ask(at)
                && at <= monotonic()
            {
                due.pop();
                if let Pace::Open(every) = pace {
                    due.push(Reverse(at.after(self.draws.draw(every))));
                }
                match self.request(timeout)? {
                    Some(request) => pending.push(request),
                    None => again(pace, &mut due, monotonic().after(RETRY)),
                }
            }
            let next = due.peek().map(|&Reverse(at)| at).filter(|&at| self.may_ask(at));
            if next.is_none() && pending.is_empty() {
                return Ok(());
            }
            if next.is_none() {
                let last = monotonic().after(PATIENCE);
                pending.iter_mut().for_each(|it| it.gives_up = it.gives_up.min(last));
            }
            let until = pending.iter().map(|it| it.gives_up).chain(next).min();
            let mut fds: Vec<PollFd<'_>> = pending.iter().map(Pending::poll).collect();
            if self.end.wait(&mut fds, until.unwrap_or(Time::NEVER))? {
                return Ok(());
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            let mut ready = ready.into_iter();
            let mut fates = Vec::new();
            let (now, received) = (monotonic(), &mut self.done.received);
            pending.retain_mut(|request| {
                let is_ready = ready.next().unwrap_or(false);
                let then = if is_ready { request.go_on(received) } else { RequestState::Waits };
                let gives_up = matches!(then, RequestState::Waits) && request.gives_up <= now;
                let then = if gives_up { RequestState::Lost } else { then };
                let waits = matches!(then, RequestState::Waits);
                if !waits {
                    fates.push((request.asked, matches!(then, RequestState::Answered)));
                }
                waits
            });
            for (asked, is_answered) in fates {
                if is_answered {
                    self.answered(asked)?;
                    let think = match pace {
                        Pace::Closed(think) => self.draws.draw(think),
                        Pace::Open(_) => Span::ZERO,
                    };
                    again(pace, &mut due, monotonic().after(think));
                } else {
                    self.lost(asked)?;
                    again(pace, &mut due, monotonic().after(RETRY));
                }
            }
        }
    }

    /// Starts a request. Returns `None` if the request is lost at once, for example because no
    /// process listens.
    fn request(&mut self, timeout: Span) -> Result<Option<Pending>, LoadError> {
        let asked = monotonic();
        self.done.asked += 1;
        match net::connecting(self.to) {
            Ok(stream) => {
                let gives_up = asked.after(timeout);
                Ok(Some(Pending { stream, asked, gives_up, state: State::Connecting }))
            }
            Err(_) => self.lost(asked).map(|()| None),
        }
    }
}

/// Schedules the next request of a closed client at `at`. Does nothing for an open client, because
/// its requests come at a fixed rate.
fn again(pace: &Pace<'_>, due: &mut BinaryHeap<Reverse<Time>>, at: Time) {
    if matches!(pace, Pace::Closed(_)) {
        due.push(Reverse(at));
    }
}

/// Raises the limit of open files, because each connection needs a file descriptor. If the kernel
/// refuses, requests beyond the limit are lost.
fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

impl Pending {
    fn poll(&self) -> PollFd<'_> {
        let wanted = match self.state {
            State::Connecting => PollFlags::OUT,
            _ => PollFlags::IN,
        };
        PollFd::from_borrowed_fd(self.stream.as_fd(), wanted)
    }

    /// Advances a request until its socket would block. Adds the number of bytes that arrived to
    /// `received`.
    fn go_on(&mut self, received: &mut u64) -> RequestState {
        if matches!(self.state, State::Connecting) {
            let is_there = matches!(socket_error(&self.stream), Ok(Ok(())));
            if !is_there || self.stream.write_all(REQUEST).is_err() {
                return RequestState::Lost;
            }
            self.state = State::Heading(Head::default());
            return RequestState::Waits;
        }
        let mut bytes = [0; 1 << 14];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return RequestState::Lost,
                Ok(count) => match self.take(&bytes[..count], received) {
                    RequestState::Waits => {}
                    then => return then,
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => return RequestState::Waits,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return RequestState::Lost,
            }
        }
    }

    fn take(&mut self, bytes: &[u8], received: &mut u64) -> RequestState {
        let (left, came) = match &mut self.state {
            State::Connecting => return RequestState::Lost,
            State::Heading(head) => {
                head.take(bytes);
                let Some(came) = head.body else {
                    return if head.is_bad() { RequestState::Lost } else { RequestState::Waits };
                };
                let Some(length) = head.length() else { return RequestState::Lost };
                (length, came)
            }
            State::Reading(left) => (*left, bytes.len() as u64),
        };
        *received += came.min(left);
        let left = left.saturating_sub(came);
        self.state = State::Reading(left);
        if left == 0 { RequestState::Answered } else { RequestState::Waits }
    }
}
