//! A task of a system with devices. Each task runs on its own thread.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};
use slackline_scenario::io::DeviceStep;
use slackline_scenario::{Step, Stream, Task};
use slackline_units::{Span, Time};

use crate::LoadError;
use crate::clock::{monotonic, thread_time, wake_exactly};
use crate::disk::{Disk, ReaderPosition};
use crate::done::{LoadResults, TransferCounter};
use crate::end::End;
use crate::job::{Job, Note, Reporter};
use crate::net::{self, ExchangeOutcome, PATIENCE};
use crate::work::{Next, Work};

/// State shared by all tasks of a system.
pub(crate) struct TaskContext<'a> {
    pub(crate) end: &'a End,
    pub(crate) notes: &'a Reporter,
    pub(crate) requests: Option<(TcpListener, UdpSocket)>,
    pub(crate) outward: Option<TcpListener>,
    pub(crate) disk: Option<Disk>,
    pub(crate) file_server: Option<SocketAddr>,
    pub(crate) origin: Time,
}

/// State of a running task.
pub(crate) struct Worker<'a> {
    shared: &'a TaskContext<'a>,
    task: &'a Task,
    work: Work<'a>,
    /// CPU time that the task has computed so far.
    computed: Span,
    /// Latest request that the task has accepted. `None` if it is answered, or if there was none.
    request: Option<Request>,
    stream: Option<TcpStream>,
    server: Option<TcpStream>,
    place: Option<ReaderPosition>,
    moved: TransferCounter<'a>,
    done: LoadResults,
}

enum Request {
    Http(TcpStream),
    Ping([u8; net::PING], SocketAddr),
}

impl<'a> Worker<'a> {
    pub(crate) fn new(
        shared: &'a TaskContext<'a>,
        (number, task): (usize, &'a Task),
        draws: Stream,
    ) -> Worker<'a> {
        Worker {
            shared,
            task,
            work: Work::new(draws, shared.origin, shared.end, shared.notes),
            computed: Span::ZERO,
            request: None,
            stream: None,
            server: None,
            place: shared.disk.as_ref().map(|_| ReaderPosition::new(number as u64)),
            moved: TransferCounter::new(shared.notes),
            done: LoadResults::default(),
        }
    }

    /// Runs the task until it completes its last step or the load is over.
    pub(crate) fn through(mut self) -> Result<LoadResults, LoadError> {
        wake_exactly();
        let before = thread_time();
        self.work.forget();
        if !self.shared.end.sleep_until(self.shared.origin)? {
            self.rounds()?;
        }
        self.moved.tell()?;
        self.done.used = thread_time() - before;
        Ok(self.done)
    }

    fn rounds(&mut self) -> Result<(), LoadError> {
        loop {
            for step in &self.task.program.steps {
                let next = match step {
                    Step::Device(step) => {
                        let next = self.with_devices(step)?;
                        // The CPU time of a device step is used by the operating system. So this
                        // CPU time does not count towards the next computing step.
                        self.work.forget();
                        next
                    }
                    step => self.plain(step)?,
                };
                if next == Next::End {
                    return Ok(());
                }
            }
            let program = &self.task.program;
            if let Some(recording) = &program.recording {
                return self.work.replay(recording).map(drop);
            }
            if !program.repeat || program.steps.is_empty() || self.shared.end.is_over()? {
                return Ok(());
            }
        }
    }

    fn plain(&mut self, step: &Step) -> Result<Next, LoadError> {
        let (Step::Compute(draw), Some(total)) = (step, self.task.total) else {
            return self.work.step(step);
        };
        let span = self.work.draws.draw(draw).min(total.left_after(self.computed));
        let next = self.work.compute(span)?;
        self.computed += span;
        if next == Next::Go && self.computed >= total {
            let (released, done) = (self.shared.origin, monotonic());
            self.shared.notes.report(Note::Job(Job { released, deadline: None, done }))?;
            return Ok(Next::End);
        }
        Ok(next)
    }

    fn with_devices(&mut self, step: &DeviceStep) -> Result<Next, LoadError> {
        match *step {
            DeviceStep::Accept => self.accept(),
            DeviceStep::Answer { bytes } => self.answer(bytes),
            DeviceStep::Read { bytes } => {
                if let (Some(disk), Some(place)) = (&self.shared.disk, &mut self.place) {
                    disk.read(place, bytes)?;
                    self.done.read += bytes;
                    self.moved.add(bytes)?;
                }
                Ok(Next::Go)
            }
            DeviceStep::Ask { bytes, wait } => {
                let wait = self.work.draws.draw(&wait);
                self.ask(bytes, wait)
            }
            DeviceStep::Send { bytes } => self.send(bytes),
        }
    }

    /// Waits for a client's request and accepts it. If another task accepts the request first,
    /// waits for the next one.
    fn accept(&mut self) -> Result<Next, LoadError> {
        let Some((tcp, udp)) = &self.shared.requests else { return Ok(Next::End) };
        loop {
            let mut fds =
                [tcp.as_fd(), udp.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            if self.shared.end.wait(&mut fds, Time::NEVER)? {
                return Ok(Next::End);
            }
            let mut ping = [0; net::PING];
            if let Ok((net::PING, from)) = udp.recv_from(&mut ping) {
                self.done.asked += 1;
                self.request = Some(Request::Ping(ping, from));
                return Ok(Next::Go);
            }
            let Ok((stream, _)) = tcp.accept() else { continue };
            if net::patient(&stream).is_err() {
                continue;
            }
            match net::receive_request(&stream, self.shared.end)? {
                ExchangeOutcome::Whole => {
                    self.done.asked += 1;
                    self.request = Some(Request::Http(stream));
                    return Ok(Next::Go);
                }
                ExchangeOutcome::Gone => {}
                ExchangeOutcome::End => return Ok(Next::End),
            }
        }
    }

    fn answer(&mut self, bytes: u64) -> Result<Next, LoadError> {
        match self.request.take() {
            None => {}
            Some(Request::Ping(ping, from)) => {
                let udp = self.shared.requests.as_ref().map(|(_, udp)| udp);
                let sent = udp.is_some_and(|udp| udp.send_to(&ping, from).is_ok());
                self.done.answered += u64::from(sent);
                self.done.lost += u64::from(!sent);
            }
            Some(Request::Http(stream)) => {
                let header = net::answer_header(bytes);
                let mut talk = net::send_header(&stream, header.as_bytes());
                let until = monotonic().after(PATIENCE);
                if talk == ExchangeOutcome::Whole {
                    let end = (until, self.shared.end);
                    talk = net::send_data(&stream, bytes, end, &mut self.done.sent)?;
                }
                self.done.answered += u64::from(talk == ExchangeOutcome::Whole);
                self.done.lost += u64::from(talk == ExchangeOutcome::Gone);
                if talk == ExchangeOutcome::End {
                    return Ok(Next::End);
                }
            }
        }
        Ok(Next::Go)
    }

    /// Requests `bytes` bytes from the file server, which answers after `wait`.
    fn ask(&mut self, bytes: u64, wait: Span) -> Result<Next, LoadError> {
        let Some(to) = self.shared.file_server else { return Ok(Next::Go) };
        let stream = match self.server.take() {
            Some(stream) => stream,
            None => net::connected(to, None)?,
        };
        self.done.asked += 1;
        let mut question = [0; 16];
        question[..8].copy_from_slice(&bytes.to_le_bytes());
        question[8..].copy_from_slice(&wait.ns().to_le_bytes());
        let mut talk = net::send_header(&stream, &question);
        if talk == ExchangeOutcome::Whole {
            let mut left = bytes;
            let until = (Time::NEVER, self.shared.end);
            talk = net::receive(&stream, until, &mut |data| {
                left = left.saturating_sub(data.len() as u64);
                left == 0
            })?;
            self.done.received += bytes - left;
        }
        match talk {
            ExchangeOutcome::Whole => {
                self.done.answered += 1;
                self.server = Some(stream);
                Ok(Next::Go)
            }
            ExchangeOutcome::End => Ok(Next::End),
            ExchangeOutcome::Gone => {
                let source = io::ErrorKind::ConnectionReset.into();
                Err(LoadError::NoServer { to, source })
            }
        }
    }

    /// Sends data in the stream to the client. Waits until a client is connected and the socket has
    /// space.
    fn send(&mut self, bytes: u64) -> Result<Next, LoadError> {
        let Some(listener) = &self.shared.outward else { return Ok(Next::End) };
        loop {
            let stream = match self.stream.take() {
                Some(stream) => stream,
                None => {
                    let mut fds = [PollFd::new(listener, PollFlags::IN)];
                    if self.shared.end.wait(&mut fds, Time::NEVER)? {
                        return Ok(Next::End);
                    }
                    let Ok((stream, _)) = listener.accept() else { continue };
                    if net::patient(&stream).is_err() {
                        continue;
                    }
                    stream
                }
            };
            let until = (Time::NEVER, self.shared.end);
            match net::send_data(&stream, bytes, until, &mut self.done.sent)? {
                ExchangeOutcome::Whole => {
                    self.stream = Some(stream);
                    return Ok(Next::Go);
                }
                // The client has disconnected, so the task waits for another client.
                ExchangeOutcome::Gone => {}
                ExchangeOutcome::End => return Ok(Next::End),
            }
        }
    }
}
