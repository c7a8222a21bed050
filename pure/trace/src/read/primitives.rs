//! Decoding of bytes, numbers and texts, from which all entries are made.

use std::io::{self, BufRead, Read};

use super::{Damage, Part, Reader};
use crate::encode::{LONGEST_TEXT, checksum};

/// Maximum number of bytes of an encoded number.
const LONGEST_NUMBER: usize = 10;

impl<R: BufRead> Reader<R> {
    pub(super) fn bytes(&mut self, into: &mut [u8]) -> Part<()> {
        self.input.read_exact(into)?;
        self.sum = checksum(self.sum, into);
        Ok(())
    }

    pub(super) fn byte(&mut self) -> Part<u8> {
        // Most bytes are in the buffer. `read_exact` would copy each of them by a call.
        if let Ok(&[byte, ..]) = self.input.fill_buf() {
            self.input.consume(1);
            self.sum = checksum(self.sum, &[byte]);
            return Ok(byte);
        }
        let mut byte = [0];
        self.bytes(&mut byte)?;
        Ok(byte[0])
    }

    pub(super) fn number(&mut self) -> Part<u64> {
        // Most numbers are complete in the buffer. To read them byte by byte takes twice as long.
        let buffer = self.input.fill_buf().unwrap_or_default();
        if let Some((value, length)) = decoded(buffer) {
            self.sum = checksum(self.sum, &buffer[..length]);
            self.input.consume(length);
            return Ok(value);
        }
        let mut bytes = [0; LONGEST_NUMBER];
        for length in 1..=LONGEST_NUMBER {
            bytes[length - 1] = self.byte()?;
            if let Some((value, _)) = decoded(&bytes[..length]) {
                return Ok(value);
            }
        }
        Err(Damage::Damaged)
    }

    pub(super) fn index(&mut self, limit: usize) -> Part<usize> {
        let value = usize::try_from(self.number()?).map_err(|_| Damage::Damaged)?;
        (value <= limit).then_some(value).ok_or(Damage::Damaged)
    }

    pub(super) fn text(&mut self) -> Part<String> {
        let length = self.number()?;
        self.text_of(length)
    }

    pub(super) fn entry_text(&mut self) -> Part<String> {
        let length = self.index(LONGEST_TEXT)?;
        self.text_of(length as u64)
    }

    pub(super) fn text_of(&mut self, length: u64) -> Part<String> {
        // The length may be damaged, so the buffer grows with the bytes that are there.
        let mut bytes = Vec::new();
        let taken = self.input.by_ref().take(length).read_to_end(&mut bytes)?;
        if taken as u64 != length {
            return Err(Damage::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        self.sum = checksum(self.sum, &bytes);
        String::from_utf8(bytes).map_err(|_| Damage::Damaged)
    }
}

/// Decodes the number at the start of `bytes`. Returns the number, and the count of its bytes.
/// `None` if the number does not end in these bytes, or is too long.
fn decoded(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (place, &byte) in bytes.iter().take(LONGEST_NUMBER).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some((value, place + 1));
        }
    }
    None
}
