//! Recordings of runs and blocks, read in pieces.
//!
//! A file may have any size. It is read once to check each line, and again by each program that
//! repeats the recording. A reader keeps only one piece of the file in memory.

use core::fmt;
use std::sync::Arc;

use slackline_units::Span;

use crate::LONGEST;
use crate::error::ErrorKind;
use crate::table::shown;

/// Contents of a file that a scenario names.
pub trait FileBytes: Send + Sync {
    /// Reads bytes from `offset` into the start of `into`. Returns the number of bytes read, which
    /// is zero at the end of the file only.
    ///
    /// # Errors
    /// If the file cannot be read. The error is the reason, without the name of the file.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, String>;

    /// Returns the path by which another process can open the file. `None` if other processes
    /// cannot open it.
    fn path(&self) -> Option<&str> {
        None
    }
}

/// A file, or the reason why it cannot be read.
pub type NamedFile = Result<Arc<dyn FileBytes>, String>;

/// A text in memory can be used in place of a file.
impl FileBytes for String {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, String> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.as_bytes().get(offset..));
        let rest = rest.unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// Longest text that is read as a whole, in bytes.
const LONGEST_TEXT: usize = 1 << 28;
/// Size of a piece of a file, in bytes. No line may be longer.
const PIECE: usize = 1 << 14;
/// Header line that a recording may have.
const HEADING: &str = "run_ns,block_ns";

/// Returns the text of a file.
pub(crate) fn whole_text(file: &dyn FileBytes) -> Result<String, String> {
    let mut bytes = Vec::new();
    loop {
        let read = bytes.len();
        bytes.resize(read + PIECE, 0);
        let count = file.read_at(read as u64, &mut bytes[read..])?;
        bytes.truncate(read + count);
        if count == 0 {
            break;
        }
        if bytes.len() > LONGEST_TEXT {
            return Err(format!("the file has more than the maximum of {LONGEST_TEXT} bytes"));
        }
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count();
        let last = good.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        not_text(line, last)
    })
}

/// Returns the error message for a line that is not UTF-8 text. `good` is the valid start of the
/// line.
fn not_text(line: usize, good: &[u8]) -> String {
    let column = String::from_utf8_lossy(good).chars().count() + 1;
    format!("line {}, column {column}: this is not UTF-8", line + 1)
}

/// Parses a duration in nanoseconds, without a unit.
pub(crate) fn number(text: &str) -> Option<Span> {
    let digits = text.trim();
    let span = digits.bytes().all(|byte| byte.is_ascii_digit()).then_some(digits)?;
    Some(Span::from_ns(span.parse().ok()?)).filter(|&span| span <= LONGEST)
}

/// A recording in a file, which programs read piece by piece.
#[derive(Clone)]
pub struct Recording {
    path: String,
    file: Arc<dyn FileBytes>,
}

impl Recording {
    /// Creates a recording. `path` is the name of the recording in error messages.
    #[must_use]
    pub fn new(path: String, file: Arc<dyn FileBytes>) -> Recording {
        Recording { path, file }
    }

    /// Returns the path by which another process can open the recording's file. `None` if other
    /// processes cannot open it.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.file.path()
    }

    /// Returns a reader that starts at the beginning of the recording.
    #[must_use]
    pub fn reader(&self) -> RecordingReader {
        RecordingReader {
            recording: self.clone(),
            piece: Vec::new(),
            parsed: 0,
            offset: 0,
            line: 0,
            has_title: true,
            block: None,
        }
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Recording({:?})", self.path)
    }
}

impl PartialEq for Recording {
    fn eq(&self, other: &Recording) -> bool {
        self.path == other.path && Arc::ptr_eq(&self.file, &other.file)
    }
}

impl Eq for Recording {}

/// A run or a block in a recording. Its length is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedSpan {
    /// CPU time to use.
    Run(Span),
    /// Time for which the vCPU was blocked.
    Block(Span),
}

/// Reader of a recording, which keeps its position in the file.
#[derive(Debug)]
pub struct RecordingReader {
    recording: Recording,
    /// Piece of the file in memory. Its first `parsed` bytes are already parsed.
    piece: Vec<u8>,
    parsed: usize,
    /// Position in the file directly after the piece.
    offset: u64,
    /// Number of lines that were parsed.
    line: usize,
    /// True if the next line that is not empty may be a header.
    has_title: bool,
    /// Block of the last parsed line. `None` if the reader has already returned it.
    block: Option<Span>,
}

impl RecordingReader {
    /// Returns the next run or block that is not zero. At the end of the file the reader continues
    /// at its start.
    ///
    /// # Errors
    /// If the file cannot be read, or has changed since it was checked.
    pub fn next_repeated(&mut self) -> Result<RecordedSpan, ErrorKind> {
        let mut had_end = false;
        loop {
            if let Some(block) = self.block.take().filter(|block| !block.is_zero()) {
                return Ok(RecordedSpan::Block(block));
            }
            match self.next_line()? {
                Some((run, block)) => {
                    self.block = Some(block);
                    if !run.is_zero() {
                        return Ok(RecordedSpan::Run(run));
                    }
                }
                None if had_end => return Err(ErrorKind::NoTime),
                None => {
                    had_end = true;
                    *self = self.recording.reader();
                }
            }
        }
    }

    /// Returns run and block of the next line. Empty lines and lines that begin with `#` are
    /// skipped. `None` if there is no further line.
    pub(crate) fn next_line(&mut self) -> Result<Option<(Span, Span)>, ErrorKind> {
        while let Some((from, to)) = self.find_line()? {
            self.line += 1;
            let bytes = &self.piece[from..to];
            let line = str::from_utf8(bytes).map_err(|error| {
                self.cannot_read(not_text(self.line - 1, &bytes[..error.valid_up_to()]))
            })?;
            let line = line.trim().trim_start_matches('\u{feff}');
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let may_be_title = core::mem::take(&mut self.has_title);
            if may_be_title && line == HEADING {
                continue;
            }
            let (path, written) = (shown(&self.recording.path), shown(line));
            if may_be_title && line.starts_with(|first: char| first.is_ascii_alphabetic()) {
                return Err(ErrorKind::BadTitle { path, line: self.line, written });
            }
            let pair = line.split_once(',').and_then(|(a, b)| Some((number(a)?, number(b)?)));
            let bad = || ErrorKind::BadRecording { path, line: self.line, written };
            return pair.ok_or_else(bad).map(Some);
        }
        Ok(None)
    }

    /// Returns the start and end of the next line in the piece. Reads more of the file if needed.
    fn find_line(&mut self) -> Result<Option<(usize, usize)>, ErrorKind> {
        loop {
            let (from, rest) = (self.parsed, &self.piece[self.parsed..]);
            if let Some(length) = rest.iter().position(|byte| *byte == b'\n') {
                self.parsed += length + 1;
                return Ok(Some((from, from + length)));
            }
            if rest.len() >= PIECE {
                let reason = format!("line {} is longer than {PIECE} bytes", self.line + 1);
                return Err(self.cannot_read(reason));
            }
            if self.read_more()? == 0 {
                let to = self.piece.len();
                self.parsed = to;
                return Ok((from < to).then_some((from, to)));
            }
        }
    }

    /// Drops the bytes that are parsed, and reads up to one more piece. Returns the number of bytes
    /// read.
    fn read_more(&mut self) -> Result<usize, ErrorKind> {
        self.piece.drain(..self.parsed);
        self.parsed = 0;
        let kept = self.piece.len();
        self.piece.resize(PIECE, 0);
        let file = self.recording.file.as_ref();
        let count = file.read_at(self.offset, &mut self.piece[kept..]);
        let count = count.map_err(|reason| self.cannot_read(reason))?;
        self.piece.truncate(kept + count);
        self.offset += count as u64;
        Ok(count)
    }

    fn cannot_read(&self, reason: String) -> ErrorKind {
        ErrorKind::NoFile { path: shown(&self.recording.path), reason }
    }
}
