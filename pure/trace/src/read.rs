//! Reading of a trace: the header first, then one entry at a time.

mod decode;
mod entry;
mod header;
mod index;
mod input;
mod of_host;
mod seldom;

use std::collections::BTreeMap;
use std::io::{self, Read};

use slackline_units::{Time, VcpuId};
use thiserror::Error;

use crate::encode::{CHECKSUM_START, END, tag};
use crate::header::Header;
use crate::sink::{Entry, Sink};
use crate::write::{OLDEST_VERSION, VERSION};
use input::Input;

pub use index::IndexedTrace;

/// Reason why a file cannot be read as a trace.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The input could not be read.
    #[error("cannot read the trace")]
    Io(#[source] io::Error),
    /// The file does not begin with the first bytes of a trace.
    #[error("this is not a Slackline trace")]
    NotATrace,
    /// The version of the trace is not supported.
    #[error(
        "this is a trace of version {version}; \
         this program reads versions {OLDEST_VERSION} to {VERSION}"
    )]
    OtherVersion {
        /// Version of the trace.
        version: u32,
    },
    /// The file ends before the trace does.
    #[error("the trace is cut off after {entries} entries")]
    Truncated {
        /// Number of entries before the end of the file.
        entries: u64,
    },
    /// The file has more bytes after the end of the trace, which is its index, or its checksum if
    /// there is no index.
    #[error("the file has more data after the end of the trace, which has {entries} entries")]
    Trailing {
        /// Number of entries in the trace.
        entries: u64,
    },
    /// An entry refers to a vCPU by a slot that no earlier entry has given to a vCPU.
    #[error("entry {entry} of the trace names vCPU slot {slot}, but no vCPU has that slot")]
    UnknownVcpu {
        /// Number of the entry, counted from zero.
        entry: u64,
        /// Slot of the vCPU.
        slot: u64,
    },
    /// An entry names a CPU that the header does not have.
    #[error("entry {entry} of the trace names CPU {cpu}, but its {cpus} CPUs are numbered from 0")]
    UnknownCpu {
        /// Number of the entry, counted from zero.
        entry: u64,
        /// Number of the CPU.
        cpu: u64,
        /// Number of CPUs in the header.
        cpus: usize,
    },
    /// An entry is malformed.
    #[error("the trace is damaged after {entries} entries")]
    Damaged {
        /// Number of entries before the damage.
        entries: u64,
    },
}

/// Reads a trace: the header first, then one entry at a time.
pub struct Reader<'a> {
    input: Input<Box<dyn Read + Send + 'a>>,
    state: State,
    header: Header,
    is_over: bool,
    /// True if the trace is a recording, which is valid without its end.
    is_recording: bool,
    /// True if the trace is a recording and its end is missing.
    is_cut: bool,
    /// True if an index follows the checksum.
    has_index: bool,
}

/// State of a reader between two entries, which is needed to decode the next entry.
struct State {
    /// Checksum of all bytes so far.
    sum: u64,
    /// Time to which the next encoded time is relative.
    last: Time,
    /// Number of entries so far.
    entries: u64,
    /// Number of CPUs in the header.
    cpus: usize,
    /// vCPU that has each slot at present. A slot is the number by which entries refer to a vCPU.
    /// An entry with a name gives a slot to a vCPU.
    vcpus: BTreeMap<u64, VcpuId>,
    /// Number of host threads read so far. Host threads are numbered in order of appearance.
    host_threads: u32,
}

/// Mark that stands between two entries.
enum Mark {
    Checkpoint,
    End,
}

/// Error within an entry, without the position of the entry.
enum Damage {
    Io(io::Error),
    /// The input ends within the entry.
    CutOff,
    Trailing,
    NotATrace,
    Version(u32),
    UnknownVcpu(u64),
    UnknownCpu(u64),
    Damaged,
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Damage {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Damage::CutOff,
            _ => Damage::Io(error),
        }
    }
}

type Part<T> = Result<T, Damage>;

impl State {
    /// Returns the state before the header.
    fn new() -> State {
        State {
            sum: CHECKSUM_START,
            last: Time::START,
            entries: 0,
            cpus: 0,
            vcpus: BTreeMap::new(),
            host_threads: 0,
        }
    }

    fn explain(&self, damage: Damage) -> ReadError {
        let State { entries, cpus, .. } = *self;
        match damage {
            Damage::Io(error) => ReadError::Io(error),
            Damage::CutOff => ReadError::Truncated { entries },
            Damage::Trailing => ReadError::Trailing { entries },
            Damage::NotATrace => ReadError::NotATrace,
            Damage::Version(version) => ReadError::OtherVersion { version },
            Damage::UnknownVcpu(slot) => ReadError::UnknownVcpu { entry: entries, slot },
            Damage::UnknownCpu(cpu) => ReadError::UnknownCpu { entry: entries, cpu, cpus },
            Damage::Damaged => ReadError::Damaged { entries },
        }
    }
}

impl<'a> Reader<'a> {
    /// Creates a reader and reads the header. The reader has a buffer of its own.
    ///
    /// # Errors
    /// If the input is not a trace, or if the trace has an unsupported version.
    pub fn new(source: impl Read + Send + 'a) -> Result<Reader<'a>, ReadError> {
        Reader::of(Box::new(source))
    }

    fn of(source: Box<dyn Read + Send + 'a>) -> Result<Reader<'a>, ReadError> {
        let (mut input, mut state) = (Input::new(source), State::new());
        let (header, flags) = input.header(&mut state).map_err(|damage| state.explain(damage))?;
        let (is_recording, has_index) = (flags.is_recording, flags.has_index);
        Ok(Reader { input, state, header, is_over: false, is_recording, is_cut: false, has_index })
    }

    /// Returns the header of the trace.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the next entry. `None` after the last entry.
    ///
    /// # Errors
    /// If the trace is cut short or damaged, or refers to an unknown vCPU or CPU.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, ReadError> {
        let mut next = None;
        self.decode_next(|entry| next = Some(entry))?;
        Ok(next)
    }

    /// Passes all remaining entries to a sink.
    ///
    /// # Errors
    /// If the trace is cut short or damaged, or refers to an unknown vCPU or CPU.
    pub fn pass_to(&mut self, sink: &mut dyn Sink) -> Result<(), ReadError> {
        while self.decode_next(|entry| entry.pass_to(sink))? {}
        Ok(())
    }

    /// Returns true if this is a recording whose end is missing: its recorder was killed, or the
    /// disk was full.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Decodes the next entry and calls `take` with it. Returns false after the last entry.
    fn decode_next(&mut self, take: impl FnMut(Entry)) -> Result<bool, ReadError> {
        if self.is_over {
            return Ok(false);
        }
        match self.decode_next_or_end(take) {
            Err(Damage::CutOff) if self.is_recording => {
                (self.is_over, self.is_cut) = (true, true);
                Ok(false)
            }
            result => result.map_err(|damage| self.state.explain(damage)),
        }
    }

    fn decode_next_or_end(&mut self, mut take: impl FnMut(Entry)) -> Part<bool> {
        loop {
            let mark = self.input.decode(&mut self.state, |decoder| match decoder.byte()? {
                END => Ok(Some(Mark::End)),
                tag::CHECK => Ok(Some(Mark::Checkpoint)),
                tag => {
                    // The entry is complete here, so this closure is not called for it again.
                    take(decoder.read_entry(tag)?);
                    Ok(None)
                }
            });
            match mark? {
                None => {
                    self.state.entries += 1;
                    return Ok(true);
                }
                Some(Mark::Checkpoint) => self.check()?,
                Some(Mark::End) => return self.end().map(|()| false),
            }
        }
    }

    /// Compares the checksum of all bytes so far with the checksum that follows.
    fn check(&mut self) -> Part<()> {
        let expected = self.state.sum;
        let sum = self.input.decode(&mut self.state, |decoder| decoder.word())?;
        if sum == expected { Ok(()) } else { Err(Damage::Damaged) }
    }

    fn end(&mut self) -> Part<()> {
        self.is_over = true;
        self.check()?;
        if self.has_index {
            self.check_index()?;
        }
        let more = self.input.decode(&mut self.state, |decoder| decoder.byte());
        if more.is_ok() { Err(Damage::Trailing) } else { Ok(()) }
    }

    /// Reads the index that follows the checksum of the trace, checks it, and discards it.
    fn check_index(&mut self) -> Part<()> {
        let Reader { input, state, .. } = self;
        state.sum = CHECKSUM_START;
        let length = input.decode(state, |decoder| decoder.number())?;
        input.skip(state, length)?;
        let expected = state.sum;
        let sum = input.decode(state, |decoder| decoder.word())?;
        let whole = input.decode(state, |decoder| decoder.word())?;
        let is_right = sum == expected && whole == index::length_with(length);
        if is_right { Ok(()) } else { Err(Damage::Damaged) }
    }
}
