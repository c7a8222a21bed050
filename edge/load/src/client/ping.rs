//! Ping-pong: one packet, its answer, the next; or packets at a pace of their own.

use std::collections::VecDeque;
use std::net::UdpSocket;

use rustix::event::{PollFd, PollFlags};
use slackline_scenario::Draw;
use slackline_units::{Span, Time};

use super::Client;
use crate::LoadError;
use crate::clock::monotonic;
use crate::net::{PING, here};

/// When a packet that has not come back is lost.
const TIMEOUT: Span = Span::from_secs(5);
/// When the next is sent after that: where nobody listens that is known at once, and is not asked
/// without end.
const RETRY: Span = Span::from_secs(1);

impl Client<'_> {
    pub(super) fn ping(&mut self, every: Span) -> Result<(), LoadError> {
        let socket = self.socket()?;
        let mut next = self.began;
        while self.may_ask(next.max(monotonic())) {
            if self.end.sleep_until(next)? {
                return Ok(());
            }
            let asked = monotonic();
            let number = self.done.asked.to_le_bytes();
            self.done.asked += 1;
            let gives_up = asked.after(TIMEOUT);
            let is_sent = socket.send(&number).is_ok();
            let came = if is_sent { self.pong(&socket, number, gives_up)? } else { Some(false) };
            match came {
                None => return Ok(()),
                Some(true) => {
                    self.answered(asked)?;
                    next = asked.after(every);
                }
                Some(false) => {
                    self.lost(asked)?;
                    next = asked.after(every.max(RETRY));
                }
            }
        }
        Ok(())
    }

    /// One packet after the other, whatever becomes of those before.
    pub(super) fn pings(&mut self, every: &Draw) -> Result<(), LoadError> {
        let socket = self.socket()?;
        let mut next = self.began.after(self.draws.draw(every));
        // First first.
        let mut waiting: VecDeque<([u8; PING], Time)> = VecDeque::new();
        while self.may_ask(next) || !waiting.is_empty() {
            let due = if self.may_ask(next) { next } else { Time::NEVER };
            let gives_up = |&(_, asked): &([u8; PING], Time)| asked.after(TIMEOUT);
            let until = waiting.front().map_or(due, |first| due.min(gives_up(first)));
            if self.end.wait(&mut [PollFd::new(&socket, PollFlags::IN)], until)? {
                return Ok(());
            }
            let mut pong = [0; PING];
            // An error is that of a packet that nobody took, which will be given up.
            while socket.recv(&mut pong).is_ok() {
                let place = waiting.iter().position(|&(number, _)| number == pong);
                if let Some((_, asked)) = place.and_then(|place| waiting.remove(place)) {
                    self.answered(asked)?;
                }
            }
            let now = monotonic();
            while let Some((_, asked)) = waiting.pop_front_if(|first| gives_up(first) <= now) {
                self.lost(asked)?;
            }
            if due <= now {
                let number = self.done.asked.to_le_bytes();
                self.done.asked += 1;
                waiting.push_back((number, now));
                let _ = socket.send(&number); // It is given up like one that is lost on its way.
                next = next.after(self.draws.draw(every));
            }
        }
        Ok(())
    }

    fn socket(&self) -> Result<UdpSocket, LoadError> {
        let cannot = |source| LoadError::NoServer { to: self.to, source };
        let socket = UdpSocket::bind(here(0)).map_err(cannot)?;
        socket.connect(self.to).map_err(cannot)?;
        socket.set_nonblocking(true).map_err(cannot)?;
        Ok(socket)
    }

    /// Whether the answer comes; none at the end.
    fn pong(
        &mut self,
        socket: &UdpSocket,
        number: [u8; PING],
        gives_up: Time,
    ) -> Result<Option<bool>, LoadError> {
        loop {
            let mut fds = [PollFd::new(socket, PollFlags::IN)];
            if self.end.wait(&mut fds, gives_up)? {
                return Ok(None);
            }
            let mut pong = [0; PING];
            match socket.recv(&mut pong) {
                // One that comes after it was given up is no answer to the next.
                Ok(_) if pong == number => return Ok(Some(true)),
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                    return Ok(Some(false));
                }
                _ if monotonic() >= gives_up => return Ok(Some(false)),
                _ => {}
            }
        }
    }
}
