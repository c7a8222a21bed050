//! Notes that a load process writes to the process that started it, and their encoding. Most notes
//! report finished jobs.
//!
//! A note has four numbers of eight bytes each, little-endian. The first number is its kind (0 to
//! 3, in the order of [`Note`]). The meaning of the other three depends on the kind, and unused
//! numbers are zero. Times are in nanoseconds of `CLOCK_MONOTONIC`. A number with all bits set
//! means never. A note is smaller than `PIPE_BUF`, so a pipe accepts a note completely or not at
//! all.

use std::env;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::io::Errno;
use slackline_units::Time;

use crate::LoadError;

/// Environment variable with the number of the file descriptor on which finished jobs are reported.
pub const JOBS_FD: &str = "SLACKLINE_JOBS_FD";

const NOTE: usize = 32;

/// A finished job: its release, deadline and completion on `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Time at which the job was ready to be worked on.
    pub released: Time,
    /// Deadline of the job. `None` if the job has no deadline.
    pub deadline: Option<Time>,
    /// Time when the job was finished.
    pub done: Time,
}

/// Ports of 127.0.0.1 on which a load process listens. A port on which it does not listen is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Port for HTTP requests over TCP, and for pings over UDP.
    pub requests: u16,
    /// Port for streams from clients to the process.
    pub inward: u16,
    /// Port for streams from the process to clients.
    pub outward: u16,
}

/// A note that a load process writes to the process that started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A job was finished, or a request was answered.
    Job(Job),
    /// Data of a stream has reached its receiver.
    Moved {
        /// Time at which the bytes were reported.
        at: Time,
        /// Number of bytes since the last report.
        bytes: u64,
    },
    /// A client gave up a request, because of a timeout or a failed connection.
    Lost {
        /// Time when the request was sent.
        asked: Time,
        /// Time when the request was given up.
        at: Time,
    },
    /// The process is ready: all its threads are running, and it listens.
    Ready(Ports),
}

impl Note {
    fn to_bytes(self) -> [u8; NOTE] {
        let words = match self {
            Note::Job(Job { released, deadline, done }) => {
                [0, released.ns(), deadline.unwrap_or(Time::NEVER).ns(), done.ns()]
            }
            Note::Moved { at, bytes } => [1, at.ns(), bytes, 0],
            Note::Lost { asked, at } => [2, asked.ns(), at.ns(), 0],
            Note::Ready(Ports { requests, inward, outward }) => {
                [3, requests.into(), inward.into(), outward.into()]
            }
        };
        let mut bytes = [0; NOTE];
        for (field, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *field = word.to_le_bytes();
        }
        bytes
    }

    /// Parses a note. `None` if the bytes are not a valid note.
    fn from_bytes(bytes: &[u8; NOTE]) -> Option<Note> {
        let fields = bytes.as_chunks().0;
        let [kind, a, b, c] = [0, 1, 2, 3].map(|at: usize| u64::from_le_bytes(fields[at]));
        let port = |number: u64| u16::try_from(number).ok();
        Some(match kind {
            0 => {
                let deadline = Some(Time::from_ns(b)).filter(|&deadline| deadline != Time::NEVER);
                Note::Job(Job { released: Time::from_ns(a), deadline, done: Time::from_ns(c) })
            }
            1 => Note::Moved { at: Time::from_ns(a), bytes: b },
            2 => Note::Lost { asked: Time::from_ns(a), at: Time::from_ns(b) },
            3 => Note::Ready(Ports { requests: port(a)?, inward: port(b)?, outward: port(c)? }),
            _ => return None,
        })
    }
}

/// Parser of the notes of a load process. The bytes may arrive in pieces of any size.
#[derive(Clone, Debug, Default)]
pub struct NoteReader {
    /// Bytes of a note that has arrived only in part.
    begun: Vec<u8>,
}

impl NoteReader {
    /// Adds bytes, and returns the notes that are now complete, in the order in which they were
    /// written. Bytes that are not a valid note are skipped.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Note> {
        self.begun.extend_from_slice(bytes);
        let (whole, rest) = self.begun.as_chunks();
        let (notes, rest) = (whole.iter().filter_map(Note::from_bytes).collect(), rest.to_vec());
        self.begun = rest;
        notes
    }

    /// Returns true if the bytes so far end in the middle of a note. If no more bytes come, that
    /// note is lost.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        !self.begun.is_empty()
    }
}

/// Opens the file of the descriptor `fd` again, to report jobs on the new descriptor. The flags of
/// the new descriptor, such as non-blocking, do not affect users of the old one.
///
/// # Errors
/// If `fd` is not open, or if its file cannot be opened for writing, as with a socket.
pub fn jobs_on(fd: u32) -> Result<OwnedFd, LoadError> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(format!("/proc/self/fd/{fd}"), flags, Mode::empty())
        .map_err(|error| LoadError::NotWritable { fd, source: error.into() })
}

/// Opens, for reporting jobs, the file whose descriptor number is in the environment variable
/// [`JOBS_FD`]. `None` if the variable is not set.
///
/// # Errors
/// If the variable is not a number, or [`jobs_on`] fails.
pub fn jobs_from_environment() -> Result<Option<OwnedFd>, LoadError> {
    let Some(text) = env::var_os(JOBS_FD) else { return Ok(None) };
    let fd = text.to_str().and_then(|text| text.parse().ok());
    let none = || LoadError::NoDescriptor { text: text.to_string_lossy().into_owned() };
    fd.ok_or_else(none).and_then(jobs_on).map(Some)
}

/// Writes notes to the pipe and counts finished jobs. Any thread may use it.
#[derive(Debug)]
pub(crate) struct Reporter {
    to: Option<OwnedFd>,
    done: AtomicU64,
    dropped: AtomicU64,
}

impl Reporter {
    pub(crate) fn new(to: Option<OwnedFd>) -> Result<Reporter, LoadError> {
        if let Some(to) = &to {
            fcntl_getfl(to)
                .and_then(|flags| fcntl_setfl(to, flags | OFlags::NONBLOCK))
                .map_err(|error| LoadError::Report { source: error.into() })?;
        }
        Ok(Reporter { to, done: AtomicU64::new(0), dropped: AtomicU64::new(0) })
    }

    /// Returns the number of finished jobs.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Returns the number of notes that could not be written.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Writes a note without ever blocking. If the pipe is full or has no reader, the note is
    /// dropped and counted.
    pub(crate) fn report(&self, note: Note) -> Result<(), LoadError> {
        if matches!(note, Note::Job(_)) {
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        let Some(to) = &self.to else { return Ok(()) };
        loop {
            match rustix::io::write(to, &note.to_bytes()) {
                Ok(NOTE) => return Ok(()),
                Ok(taken) => return Err(LoadError::Torn { taken }),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::PIPE) => {
                    self.dropped.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                Err(error) => return Err(LoadError::Report { source: error.into() }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(number: u64) -> Note {
        let at = |ns| Time::from_ns(number * 1_000_000_007 + ns);
        let job = |deadline| Note::Job(Job { released: at(1), deadline, done: at(3) });
        match number % 5 {
            0 => job(Some(at(2))),
            1 => job(None),
            2 => Note::Moved { at: at(1), bytes: number * 1448 },
            3 => Note::Lost { asked: at(1), at: at(2) },
            _ => Note::Ready(Ports { requests: 40_000, inward: 0, outward: 65_535 }),
        }
    }

    #[test]
    fn job_records_are_parsed_for_any_chunk_size() {
        let notes: Vec<Note> = (0..5).map(note).collect();
        let bytes: Vec<u8> = notes.iter().flat_map(|note| note.to_bytes()).collect();
        for length in [1, 7, 31, 32, 33, 160] {
            let mut reader = NoteReader::default();
            let read: Vec<Note> = bytes.chunks(length).flat_map(|cut| reader.take(cut)).collect();
            assert_eq!(read, notes, "cut every {length} bytes");
            assert!(!reader.is_torn());
        }
    }

    #[test]
    fn little_endian_job_record_has_all_ones_for_missing_deadline() {
        let job = Job { released: Time::from_ns(0x0102), deadline: None, done: Time::from_ns(3) };
        let mut expected = [0; 32];
        expected[8..10].copy_from_slice(&[2, 1]);
        expected[16..24].fill(0xff);
        expected[24] = 3;
        assert_eq!(Note::Job(job).to_bytes(), expected);
    }

    #[test]
    fn job_records_that_are_invalid_are_skipped() {
        let mut bytes = [0xff; 96];
        bytes[32..64].copy_from_slice(&note(2).to_bytes());
        // The port in this note is not a valid port number.
        bytes[64..72].copy_from_slice(&3u64.to_le_bytes());
        assert_eq!(NoteReader::default().take(&bytes), [note(2)]);
    }

    #[test]
    fn job_record_that_is_cut_off_is_detected() {
        let mut reader = NoteReader::default();
        assert_eq!(reader.take(&note(1).to_bytes()[..20]), []);
        assert!(reader.is_torn());
    }
}
