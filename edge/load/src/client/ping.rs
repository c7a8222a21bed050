//! Ping clients. A client either sends each packet after the answer to the previous packet, or
//! sends packets at a fixed rate without waiting for answers.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags};
use slackline_scenario::Draw;
use slackline_units::{Span, Time};

use super::Client;
use crate::LoadError;
use crate::clock::monotonic;
use crate::net::{PING, here};

/// Time after which a packet without an answer counts as lost.
const TIMEOUT: Span = Span::from_secs(5);
/// Time from a lost packet to the next packet. If no process listens, the loss is known at once.
/// The delay prevents a busy loop in that case.
const RETRY: Span = Span::from_secs(1);

/// Transport of the packets: UDP datagrams, or a Unix stream socket.
enum PingTransport {
    Packets(UdpSocket),
    Stream {
        stream: UnixStream,
        /// Bytes of a packet that has arrived only in part.
        came: Vec<u8>,
        /// True if the other end has closed the connection for good.
        has_ended: bool,
    },
}

/// Returns the content of packet number `count`: seven digits and a newline, so that a shell can
/// send it back.
fn number(count: u64) -> [u8; PING] {
    let text = format!("{:07}\n", count % 10_000_000);
    text.into_bytes().try_into().unwrap_or([b'\n'; PING])
}

impl PingTransport {
    fn send(&mut self, packet: &[u8; PING]) -> io::Result<()> {
        match self {
            PingTransport::Packets(socket) => socket.send(packet).map(drop),
            PingTransport::Stream { stream, has_ended, .. } => {
                let sent = stream.write_all(packet);
                *has_ended |=
                    sent.as_ref().is_err_and(|error| error.kind() == ErrorKind::BrokenPipe);
                sent
            }
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self, PingTransport::Stream { has_ended: true, .. })
    }

    fn recv(&mut self) -> io::Result<[u8; PING]> {
        let mut packet = [0; PING];
        match self {
            PingTransport::Packets(socket) => socket.recv(&mut packet).map(|_| packet),
            PingTransport::Stream { stream, came, has_ended } => {
                while came.len() < PING {
                    match stream.read(&mut packet[came.len()..])? {
                        0 => {
                            *has_ended = true;
                            return Err(ErrorKind::UnexpectedEof.into());
                        }
                        count => came.extend_from_slice(&packet[came.len()..][..count]),
                    }
                }
                packet.copy_from_slice(came);
                came.clear();
                Ok(packet)
            }
        }
    }
}

impl AsFd for PingTransport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            PingTransport::Packets(socket) => socket.as_fd(),
            PingTransport::Stream { stream, .. } => stream.as_fd(),
        }
    }
}

impl Client<'_> {
    pub(super) fn ping(&mut self, every: Span) -> Result<(), LoadError> {
        let mut way = self.way()?;
        let mut next = self.began;
        while self.may_ask(next.max(monotonic())) {
            if self.end.sleep_until(next)? {
                return Ok(());
            }
            let asked = monotonic();
            let number = number(self.done.asked);
            self.done.asked += 1;
            let gives_up = asked.after(TIMEOUT);
            let is_sent = way.send(&number).is_ok();
            let came = if is_sent { self.pong(&mut way, number, gives_up)? } else { Some(false) };
            match came {
                None => return Ok(()),
                Some(true) => {
                    self.answered(asked)?;
                    next = asked.after(every);
                }
                Some(false) => {
                    self.lost(asked)?;
                    if way.has_ended() {
                        return Ok(());
                    }
                    next = asked.after(every.max(RETRY));
                }
            }
        }
        Ok(())
    }

    /// Sends packets at the intervals `every`, without waiting for answers.
    pub(super) fn pings(&mut self, every: &Draw) -> Result<(), LoadError> {
        let mut way = self.way()?;
        let mut next = self.began.after(self.draws.draw(every));
        // Unanswered packets, oldest first.
        let mut waiting: VecDeque<([u8; PING], Time)> = VecDeque::new();
        while self.may_ask(next) || !waiting.is_empty() {
            let due = if self.may_ask(next) { next } else { Time::NEVER };
            let gives_up = |&(_, asked): &([u8; PING], Time)| asked.after(TIMEOUT);
            let until = waiting.front().map_or(due, |first| due.min(gives_up(first)));
            if self.end.wait(&mut [PollFd::new(&way, PollFlags::IN)], until)? {
                return Ok(());
            }
            // An error means that no process accepted an earlier packet. That packet will be given
            // up.
            while let Ok(pong) = way.recv() {
                let place = waiting.iter().position(|&(number, _)| number == pong);
                if let Some((_, asked)) = place.and_then(|place| waiting.remove(place)) {
                    self.answered(asked)?;
                }
            }
            let now = monotonic();
            let has_ended = way.has_ended();
            let is_lost = |first: &mut ([u8; PING], Time)| has_ended || gives_up(first) <= now;
            while let Some((_, asked)) = waiting.pop_front_if(is_lost) {
                self.lost(asked)?;
            }
            if has_ended {
                return Ok(());
            }
            if due <= now {
                let number = number(self.done.asked);
                self.done.asked += 1;
                waiting.push_back((number, now));
                let _ = way.send(&number); // If this fails, the packet is given up like a lost one.
                next = next.after(self.draws.draw(every));
            }
        }
        Ok(())
    }

    fn way(&self) -> Result<PingTransport, LoadError> {
        if let Some(path) = self.socket {
            let cannot = |source| LoadError::NoOne { at: path.into(), source };
            let stream = UnixStream::connect(path).map_err(cannot)?;
            stream.set_nonblocking(true).map_err(cannot)?;
            return Ok(PingTransport::Stream { stream, came: Vec::new(), has_ended: false });
        }
        let cannot = |source| LoadError::NoServer { to: self.to, source };
        let socket = UdpSocket::bind(here(0)).map_err(cannot)?;
        socket.connect(self.to).map_err(cannot)?;
        socket.set_nonblocking(true).map_err(cannot)?;
        Ok(PingTransport::Packets(socket))
    }

    /// Waits for the answer to the latest packet. Returns true if it arrives, false if the packet
    /// is lost, `None` if the load ends first.
    fn pong(
        &mut self,
        way: &mut PingTransport,
        number: [u8; PING],
        gives_up: Time,
    ) -> Result<Option<bool>, LoadError> {
        loop {
            let mut fds = [PollFd::new(&*way, PollFlags::IN)];
            if self.end.wait(&mut fds, gives_up)? {
                return Ok(None);
            }
            match way.recv() {
                // The answer to a packet that was already given up does not count for this packet.
                Ok(pong) if pong == number => return Ok(Some(true)),
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    return Ok(Some(false));
                }
                _ if monotonic() >= gives_up => return Ok(Some(false)),
                _ => {}
            }
        }
    }
}
