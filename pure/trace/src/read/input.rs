//! Buffered input of a trace.

use std::io::{self, ErrorKind, Read};

use super::decode::Decoder;
use super::{Damage, Part, State};
use crate::encode::checksum;

/// Size of the buffer in bytes. The buffer grows if an entry is longer.
const BUFFER: usize = 1 << 16;

/// Input with a buffer, from which whole parts of a trace are decoded.
pub(super) struct Input<R> {
    source: R,
    /// Number of bytes that may still be read from the source.
    unread: u64,
    buffer: Vec<u8>,
    /// Range of the bytes in the buffer that are not decoded yet.
    from: usize,
    to: usize,
}

impl<R: Read> Input<R> {
    pub(super) fn new(source: R) -> Input<R> {
        Input { source, unread: u64::MAX, buffer: vec![0; BUFFER], from: 0, to: 0 }
    }

    /// Discards the buffer. The next `length` bytes of the source are the new input. Returns the
    /// source, which the caller can move to the start of these bytes.
    pub(super) fn restart(&mut self, length: u64) -> &mut R {
        (self.unread, self.from, self.to) = (length, 0, 0);
        &mut self.source
    }

    /// Returns true if all bytes that may be read are decoded.
    pub(super) fn is_over(&self) -> bool {
        self.from == self.to && self.unread == 0
    }

    /// Decodes the next part of the trace, and adds its bytes to the checksum. If the part does not
    /// end in the buffer, reads more bytes and calls `decode` again.
    pub(super) fn decode<T>(
        &mut self,
        state: &mut State,
        mut decode: impl FnMut(&mut Decoder) -> Part<T>,
    ) -> Part<T> {
        loop {
            let bytes = &self.buffer[self.from..self.to];
            let mut decoder = Decoder::new(bytes, state);
            match decode(&mut decoder) {
                Err(Damage::CutOff) => {
                    if self.fill()? == 0 {
                        return Err(Damage::CutOff);
                    }
                }
                Err(damage) => return Err(damage),
                Ok(part) => {
                    let (rest, last) = (decoder.rest().len(), decoder.last);
                    let decoded = &bytes[..bytes.len() - rest];
                    (state.sum, state.last) = (checksum(state.sum, decoded), last);
                    self.from += decoded.len();
                    return Ok(part);
                }
            }
        }
    }

    /// Adds the next `length` bytes to the checksum without decoding them.
    pub(super) fn skip(&mut self, state: &mut State, mut length: u64) -> Part<()> {
        while length > 0 {
            if self.from == self.to && self.fill()? == 0 {
                return Err(Damage::CutOff);
            }
            let most = usize::try_from(length).unwrap_or(usize::MAX);
            let count = most.min(self.to - self.from);
            state.sum = checksum(state.sum, &self.buffer[self.from..self.from + count]);
            self.from += count;
            length -= count as u64;
        }
        Ok(())
    }

    /// Reads more bytes into the buffer. Returns their number, which is zero at the end of the
    /// input.
    fn fill(&mut self) -> io::Result<usize> {
        self.buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        if self.to == self.buffer.len() {
            self.buffer.resize(2 * self.to, 0);
        }
        let free = &mut self.buffer[self.to..];
        let most = free.len().min(usize::try_from(self.unread).unwrap_or(usize::MAX));
        loop {
            match self.source.read(&mut free[..most]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => {
                    let count = read?;
                    self.to += count;
                    self.unread -= count as u64;
                    return Ok(count);
                }
            }
        }
    }
}
