//! A single TCP stream in one direction.

use std::net::{Shutdown, TcpStream};

use slackline_scenario::io::{Direction, SEGMENT};
use slackline_units::{Span, Time};

use super::{Client, PATIENCE};
use crate::LoadError;
use crate::clock::monotonic;
use crate::done::TransferCounter;
use crate::net::{self, DATA, ExchangeOutcome};

impl Client<'_> {
    pub(super) fn stream(
        &mut self,
        way: Direction,
        window: u64,
        gap: Span,
    ) -> Result<(), LoadError> {
        let stream = net::connected(self.to, Some(window))?;
        match way {
            Direction::In => self.send(&stream, gap),
            Direction::Out => self.take(&stream),
        }
    }

    fn send(&mut self, stream: &TcpStream, gap: Span) -> Result<(), LoadError> {
        let at_once = if gap.is_zero() { DATA.len() as u64 } else { SEGMENT };
        let mut next = self.began;
        while monotonic() < self.until {
            if !gap.is_zero() && self.end.sleep_until(next)? {
                return Ok(());
            }
            next = monotonic().after(gap);
            let until = (self.until, self.end);
            match net::send_data(stream, at_once, until, &mut self.done.sent)? {
                ExchangeOutcome::Whole => {}
                ExchangeOutcome::End => return Ok(()),
                ExchangeOutcome::Gone => break,
            }
        }
        // The server closes the connection when it has received everything.
        let _ = stream.shutdown(Shutdown::Write);
        net::receive(stream, (monotonic().after(PATIENCE), self.end), &mut |_| false)?;
        Ok(())
    }

    fn take(&mut self, stream: &TcpStream) -> Result<(), LoadError> {
        let mut moved = TransferCounter::new(self.notes);
        let mut result = Ok(());
        let (received, until) = (&mut self.done.received, self.until);
        net::receive(stream, (until, self.end), &mut |bytes| {
            *received += bytes.len() as u64;
            result = moved.add(bytes.len() as u64);
            let is_over = until != Time::NEVER && monotonic() >= until;
            result.is_err() || is_over
        })?;
        result?;
        moved.tell()
    }
}
