//! Server-sent events, as they come.

use std::collections::VecDeque;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::ClientError;

/// The longest event: as long as a page of reservations.
const LONGEST: usize = crate::link::LONGEST_SAID;

/// An event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Its place in the ledger, if it is from there.
    pub id: Option<u64>,
    /// What it is about: `event`, `reservations`.
    pub kind: String,
    /// JSON.
    pub data: String,
}

/// What there is to hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// An event.
    Frame(Frame),
    /// Nothing for so long.
    Quiet,
    /// The daemon has ended it.
    End,
}

/// A stream of events.
#[derive(Debug)]
pub struct Stream {
    runtime: Runtime,
    body: Incoming,
    frames: Frames,
    /// Kept so that the connection stays.
    _connection: Option<SendRequest<Full<Bytes>>>,
}

impl Stream {
    pub(super) fn new(
        runtime: Runtime,
        body: Incoming,
        connection: Option<SendRequest<Full<Bytes>>>,
    ) -> Stream {
        Stream { runtime, body, frames: Frames::default(), _connection: connection }
    }

    /// Waits for what comes next, no longer than said.
    ///
    /// # Errors
    /// When the connection is lost, or what comes is no event.
    pub fn hear(&mut self, within: Duration) -> Result<Heard, ClientError> {
        loop {
            if let Some(frame) = self.frames.ready.pop_front() {
                return Ok(Heard::Frame(frame));
            }
            let part = self.runtime.block_on(async { timeout(within, self.body.frame()).await });
            match part {
                Err(_) => return Ok(Heard::Quiet),
                Ok(None) => return Ok(Heard::End),
                Ok(Some(part)) => {
                    if let Ok(bytes) = part?.into_data() {
                        self.frames.push(&bytes)?;
                    }
                }
            }
        }
    }
}

/// Bytes put together to events.
#[derive(Debug, Default)]
struct Frames {
    read: Vec<u8>,
    ready: VecDeque<Frame>,
}

impl Frames {
    fn push(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        // An end may lie across two parts.
        let mut from = self.read.len().saturating_sub(1);
        self.read.extend_from_slice(bytes);
        while let Some(end) = self.read[from..].windows(2).position(|two| two == b"\n\n") {
            let rest = self.read.split_off(from + end + 2);
            let whole = std::mem::replace(&mut self.read, rest);
            from = 0;
            let text = std::str::from_utf8(&whole);
            let text = text.map_err(|error| ClientError::Garbled(error.to_string()))?;
            self.ready.extend(frame(text));
        }
        if self.read.len() > LONGEST {
            return Err(ClientError::Garbled(format!("an event has more than {LONGEST} bytes")));
        }
        Ok(())
    }
}

/// The event that these lines are; none if they are only a sign of life.
fn frame(text: &str) -> Option<Frame> {
    let mut frame = Frame::default();
    for line in text.lines() {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => frame.id = value.parse().ok(),
            "event" => frame.kind = value.into(),
            "data" => frame.data += value,
            _ => {}
        }
    }
    (!frame.data.is_empty()).then_some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_they_are_cut() {
        let text =
            b"id: 7\nevent: event\ndata: {\"a\":1}\n\n: alive\n\nevent: reservations\ndata: []\n\n";
        let wanted = [
            Frame { id: Some(7), kind: "event".into(), data: "{\"a\":1}".into() },
            Frame { id: None, kind: "reservations".into(), data: "[]".into() },
        ];
        for size in 1..=text.len() {
            let mut frames = Frames::default();
            text.chunks(size).for_each(|part| frames.push(part).unwrap());
            assert_eq!(frames.ready, wanted, "in parts of {size}");
        }
    }
}
