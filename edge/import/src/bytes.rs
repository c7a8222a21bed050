//! Reading of numbers from a file that is held in memory.

use slackline_units::is_unseen;

use crate::error::ImportError;
use crate::place::Place;

/// Part of a file, with its position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    bytes: &'a [u8],
    begin: u64,
    what: &'static str,
}

impl<'a> Part<'a> {
    /// Returns the whole file as one part. `what` is the name of the part in errors.
    pub(crate) fn all(bytes: &'a [u8], what: &'static str) -> Part<'a> {
        Part { bytes, begin: 0, what }
    }

    /// Returns `size` bytes from `offset` of a file.
    pub(crate) fn of_file(
        file: &'a [u8],
        (offset, size): (u64, u64),
        what: &'static str,
    ) -> Result<Part<'a>, ImportError> {
        let (length, end) = (file.len() as u64, offset.saturating_add(size));
        let cut = || ImportError::Cut { what, end, length };
        let from = usize::try_from(offset).map_err(|_| cut())?;
        let to = usize::try_from(end).map_err(|_| cut())?;
        let bytes = file.get(from..to).ok_or_else(cut)?;
        Ok(Part { bytes, begin: offset, what })
    }

    /// Returns `size` bytes from the offset `from` of this part.
    pub(crate) fn part(
        &self,
        from: usize,
        size: usize,
        what: &'static str,
    ) -> Result<Part<'a>, ImportError> {
        let bytes = from.checked_add(size).and_then(|to| self.bytes.get(from..to));
        let bytes = bytes.ok_or_else(|| self.short(from.saturating_add(size)))?;
        Ok(Part { bytes, begin: self.begin + from as u64, what })
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn place(&self) -> Place {
        Place::Byte(self.begin)
    }

    pub(crate) fn u16(&self, at: usize) -> Result<u16, ImportError> {
        self.array(at).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&self, at: usize) -> Result<u32, ImportError> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&self, at: usize) -> Result<u64, ImportError> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// Returns the text from `at` up to a zero byte, or up to the end of the part.
    pub(crate) fn text(&self, at: usize) -> String {
        let bytes = self.bytes.get(at..).unwrap_or_default();
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        printable(&bytes[..end])
    }

    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], ImportError> {
        let end = at.saturating_add(N);
        let bytes = self.bytes.get(at..end).ok_or_else(|| self.short(end))?;
        Ok(bytes.try_into().expect("the slice has N bytes"))
    }

    fn short(&self, least: usize) -> ImportError {
        let (found, least) = (self.bytes.len() as u64, least as u64);
        ImportError::Short { place: self.place(), what: self.what, found, least }
    }
}

/// Returns a name that users can choose freely, such as the name of a thread. Control characters
/// and invisible characters are replaced by `?`.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|c| if c.is_control() || is_unseen(c) { '?' } else { c }).collect()
}
