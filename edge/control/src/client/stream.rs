//! Client side of the stream of server-sent events.

use std::collections::VecDeque;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::ClientError;

/// Maximum size in bytes of an event that the client accepts. The largest events contain a page of
/// reservations.
const LONGEST: usize = crate::link::LONGEST_SAID;

/// One server-sent event from the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Number of the event in the ledger. `None` if the frame is not an event of the ledger.
    pub id: Option<u64>,
    /// Type of the event: `event` or `reservations`.
    pub kind: String,
    /// Data of the event as JSON.
    pub data: String,
}

/// Result of waiting for the next event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// An event has arrived.
    Frame(Frame),
    /// The time limit has passed without an event from the daemon.
    Quiet,
    /// The daemon has ended the stream.
    End,
}

/// A stream of server-sent events.
#[derive(Debug)]
pub struct Stream {
    runtime: Runtime,
    body: Incoming,
    frames: Frames,
    /// Connection of the stream. No code reads this field. It keeps the connection open.
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

    /// Waits for the next event, at most for the time `within`.
    ///
    /// # Errors
    /// If the connection is lost, or the data is not an event.
    pub fn hear(&mut self, within: Duration) -> Result<WaitOutcome, ClientError> {
        loop {
            if let Some(frame) = self.frames.ready.pop_front() {
                return Ok(WaitOutcome::Frame(frame));
            }
            let part = self.runtime.block_on(async { timeout(within, self.body.frame()).await });
            match part {
                Err(_) => return Ok(WaitOutcome::Quiet),
                Ok(None) => return Ok(WaitOutcome::End),
                Ok(Some(part)) => {
                    if let Ok(bytes) = part?.into_data() {
                        self.frames.push(&bytes)?;
                    }
                }
            }
        }
    }
}

/// Buffer that assembles server-sent events from pieces of any size.
#[derive(Debug, Default)]
struct Frames {
    read: Vec<u8>,
    ready: VecDeque<Frame>,
}

impl Frames {
    fn push(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        // The blank line at the end of an event may be split across two pieces.
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

/// Parses the lines of one event. Returns `None` if the lines are a comment, which the daemon sends
/// to keep the stream open.
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
    fn event_stream_is_parsed_alike_for_any_chunk_size() {
        let text =
            b"id: 7\nevent: event\ndata: {\"a\":1}\n\n: alive\n\nevent: reservations\ndata: []\n\n";
        let wanted = [
            Frame { id: Some(7), kind: "event".into(), data: "{\"a\":1}".into() },
            Frame { id: None, kind: "reservations".into(), data: "[]".into() },
        ];
        for size in 1..=text.len() {
            let mut frames = Frames::default();
            text.chunks(size).for_each(|part| frames.push(part).unwrap());
            assert_eq!(frames.ready, wanted, "in chunks of {size} bytes");
        }
    }
}
