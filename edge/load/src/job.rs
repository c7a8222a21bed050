//! What a load process tells whoever started it, and how that travels: finished jobs above all.
//!
//! A note is four numbers of eight bytes each, little-endian: which kind it is (0 to 3, in the
//! order of [`Note`]) and three of its own; those it does not need are zero. Times are in
//! nanoseconds of `CLOCK_MONOTONIC`, all ones for never. A pipe takes a note whole or not at all,
//! because it is smaller than `PIPE_BUF`.

use std::env;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::io::Errno;
use slackline_units::Time;

use crate::LoadError;

/// The environment variable that says on which file descriptor finished jobs are reported.
pub const JOBS_FD: &str = "SLACKLINE_JOBS_FD";

const NOTE: usize = 32;

/// A finished job. Times are on `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// When it could first be worked on.
    pub released: Time,
    /// When it was due; none without a deadline.
    pub deadline: Option<Time>,
    /// When it was done.
    pub done: Time,
}

/// The ports of 127.0.0.1 on which a load process listens; zero for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// For requests, by TCP, and pings, by UDP.
    pub requests: u16,
    /// For streams that come in.
    pub inward: u16,
    /// For streams that go out.
    pub outward: u16,
}

/// Something that a load process tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A finished job, or a request that has been answered.
    Job(Job),
    /// Data has reached its end.
    Moved {
        /// When.
        at: Time,
        /// How many bytes.
        bytes: u64,
    },
    /// A request was given up.
    Lost {
        /// When it was asked.
        asked: Time,
        /// When it was given up.
        at: Time,
    },
    /// It is ready: all its threads are there, and it listens.
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

    /// None where the bytes are no note.
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

/// Makes notes of the bytes that come out of a load process, however they are cut up.
#[derive(Clone, Debug, Default)]
pub struct NoteReader {
    /// The beginning of a note whose end has not come yet.
    begun: Vec<u8>,
}

impl NoteReader {
    /// The notes whose last bytes these are, in the order in which they were written. What is no
    /// note is left out.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Note> {
        self.begun.extend_from_slice(bytes);
        let (whole, rest) = self.begun.as_chunks();
        let (notes, rest) = (whole.iter().filter_map(Note::from_bytes).collect(), rest.to_vec());
        self.begun = rest;
        notes
    }

    /// Whether the bytes so far end in the middle of a note. Where nothing more comes, that one
    /// is lost.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        !self.begun.is_empty()
    }
}

/// An open file descriptor of this process, opened once more for reporting jobs: what is done to
/// this one, such as not waiting, is not done to whoever shares the other.
///
/// # Errors
/// When there is no such descriptor, or it cannot be opened for writing: sockets cannot.
pub fn jobs_on(fd: u32) -> Result<OwnedFd, LoadError> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(format!("/proc/self/fd/{fd}"), flags, Mode::empty())
        .map_err(|error| LoadError::NotWritable { fd, source: error.into() })
}

/// Where the environment says that jobs are to be reported, opened; none where it says nothing.
///
/// # Errors
/// When it says something that is not understood, and those of [`jobs_on`].
pub fn jobs_from_environment() -> Result<Option<OwnedFd>, LoadError> {
    let Some(text) = env::var_os(JOBS_FD) else { return Ok(None) };
    let fd = text.to_str().and_then(|text| text.parse().ok());
    let none = || LoadError::NoDescriptor { text: text.to_string_lossy().into_owned() };
    fd.ok_or_else(none).and_then(jobs_on).map(Some)
}

/// Writes notes, and counts the jobs; any thread may.
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

    /// How many jobs were finished.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// How many notes could not be written.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Never waits. A full pipe, or one that nobody reads any more, costs the note only.
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
    fn notes_may_be_cut_anywhere() {
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
    fn a_note_is_little_endian_and_no_deadline_is_all_ones() {
        let job = Job { released: Time::from_ns(0x0102), deadline: None, done: Time::from_ns(3) };
        let mut expected = [0; 32];
        expected[8..10].copy_from_slice(&[2, 1]);
        expected[16..24].fill(0xff);
        expected[24] = 3;
        assert_eq!(Note::Job(job).to_bytes(), expected);
    }

    #[test]
    fn what_is_no_note_is_left_out() {
        let mut bytes = [0xff; 96];
        bytes[32..64].copy_from_slice(&note(2).to_bytes());
        // A port that is none.
        bytes[64..72].copy_from_slice(&3u64.to_le_bytes());
        assert_eq!(NoteReader::default().take(&bytes), [note(2)]);
    }

    #[test]
    fn the_end_of_a_note_that_never_comes_is_noticed() {
        let mut reader = NoteReader::default();
        assert_eq!(reader.take(&note(1).to_bytes()[..20]), []);
        assert!(reader.is_torn());
    }
}
