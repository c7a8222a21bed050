//! Ping-pong: one packet, its answer, the next.

use std::net::UdpSocket;

use rustix::event::{PollFd, PollFlags};
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
        let cannot = |source| LoadError::NoServer { to: self.to, source };
        let socket = UdpSocket::bind(here(0)).map_err(cannot)?;
        socket.connect(self.to).map_err(cannot)?;
        socket.set_nonblocking(true).map_err(cannot)?;
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
