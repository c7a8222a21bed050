//! File format of a trace: a small header, the entries in the order in which they were produced,
//! and a checksum.
//!
//! ```text
//! slackline-trace-6 NEWLINE
//! header    numbers and texts, in the order of `Header`
//! entry*    a tag byte and numbers; a name comes before the entries of its vCPU
//! 0         the end
//! checksum  8 bytes, little endian: FNV-1a of everything before
//! index     where blocks of entries begin: see `index`
//! ```
//!
//! A recording has checkpoints: a tag byte and the checksum of everything before. The end of a
//! recording is missing if its recorder was killed. A reader then returns the entries that are
//! there.
//!
//! A number is a variable-length integer with seven bits per byte, least significant bits first. A
//! text is its length and its bytes. A text in an entry has at most 65,536 bytes. Times are
//! differences to the time of the previous entry, or to another time of the same entry, as signed
//! numbers in zigzag form. A vCPU is written as its slot: the number of its row in the tables of
//! vCPUs. An entry with a name gives a slot to a vCPU, until a later name gives the slot to another
//! vCPU. So a record takes about ten bytes, and an exchange between hardware and host about seven
//! bytes.

mod index;

use std::io::{self, Write};

use crate::encode::{CHECKSUM_START, END, Encoder, checksum, tag};
use crate::exchange::Exchange;
use crate::header::Header;
use crate::host_thread::{HostThread, Note};
use crate::record::Record;
use crate::sink::{Sink, VcpuName};
use index::{IndexBuilder, Position};
use slackline_units::{CpuId, Time};

/// First bytes of a trace of any version. The version number follows.
pub(crate) const MAGIC: &[u8] = b"slackline-trace-";
/// Version of the traces that are written.
pub(crate) const VERSION: u32 = 6;
/// Oldest version that can be read. Version 5 added overhead and unfinished work. Version 6 added
/// the index, host threads, notes, checkpoints, clients and boosts. Neither version removed
/// anything.
pub(crate) const OLDEST_VERSION: u32 = 4;

/// Flag in the header: an index follows the checksum.
pub(crate) const HAS_INDEX: u64 = 32;

/// Number of encoded bytes at which the buffer is passed to the output.
const FLUSH_AT: usize = 1 << 16;

/// Writer of a trace.
///
/// Recording cannot fail. An error of the output is stored until [`Writer::finish`] returns it.
pub struct Writer<W: Write> {
    out: W,
    sum: u64,
    encoder: Encoder,
    /// Timer setting that was recorded last for each CPU. The host also reports settings that have
    /// not changed, which are not recorded again.
    alarms: Vec<Option<Time>>,
    failed: Option<io::Error>,
    /// True if the trace is a recording, which stays readable if its end is missing.
    is_recording: bool,
    /// Builder of the index. `None` for a recording.
    index: Option<IndexBuilder>,
    /// Number of bytes handed to the output.
    written: u64,
}

impl<W: Write> Writer<W> {
    /// Starts a trace with this header.
    #[must_use]
    pub fn new(out: W, header: &Header) -> Writer<W> {
        Writer::begin(out, header, false)
    }

    /// Starts a recording with this header. Unlike other traces, a recording can be read even if
    /// its end is missing.
    #[must_use]
    pub fn recording(out: W, header: &Header) -> Writer<W> {
        Writer::begin(out, header, true)
    }

    fn begin(out: W, header: &Header, is_recording: bool) -> Writer<W> {
        let mut encoder = Encoder::new(FLUSH_AT + 256);
        encoder.buffer.extend_from_slice(MAGIC);
        encoder.buffer.extend_from_slice(format!("{VERSION}\n").as_bytes());
        encoder.text(&header.title);
        encoder.text(&header.machine);
        encoder.text(&header.policy);
        encoder.text(&header.parameters);
        encoder.number(header.seed);
        encoder.number(header.cpus as u64);
        encoder.number(header.groups.len() as u64);
        for level in &header.groups {
            encoder.number(level.len() as u64);
            level.iter().for_each(|cpus| encoder.set(cpus));
        }
        encoder.number(header.warmup.ns());
        let (knows, has_dispatch) = (header.knows, !header.dispatch.is_zero());
        let flags = [knows.sleep, knows.stretches, has_dispatch, knows.overhead].map(u64::from);
        let flags = flags[0] | flags[1] << 1 | flags[2] << 2 | flags[3] << 3;
        encoder.number(flags | if is_recording { 16 } else { HAS_INDEX });
        encoder.number(knows.resolution.ns());
        if has_dispatch {
            encoder.number(header.dispatch.ns());
        }
        encoder.text(&header.scenario);
        let alarms = vec![None; CpuId::LIMIT];
        let mut writer = Writer {
            out,
            sum: CHECKSUM_START,
            encoder,
            alarms,
            failed: None,
            is_recording,
            index: (!is_recording).then(IndexBuilder::new),
            written: 0,
        };
        writer.flush_buffer();
        writer.note_flushed();
        writer
    }

    /// Passes all entries so far to the output. In a recording, writes a checkpoint after them.
    ///
    /// # Errors
    /// If the output fails now, or has failed before. Nothing is written after the first error.
    pub fn checkpoint(&mut self) -> io::Result<()> {
        self.flush_buffer();
        if self.is_recording {
            self.encoder.buffer.push(tag::CHECK);
            self.flush_buffer();
            self.encoder.buffer.extend_from_slice(&self.sum.to_le_bytes());
            self.flush_buffer();
        }
        match self.failed.take() {
            // `finish` returns the error as well.
            Some(error) => {
                self.failed = Some(io::Error::from(error.kind()));
                Err(error)
            }
            None => self.out.flush(),
        }
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// If the output fails now, or has failed before.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush_buffer();
        let end = self.position();
        self.encoder.buffer.push(END);
        self.flush_buffer();
        self.encoder.buffer.extend_from_slice(&self.sum.to_le_bytes());
        self.flush_buffer();
        if let Some(index) = self.index.take() {
            self.encoder.buffer.extend_from_slice(&index.finish(end));
            self.flush_buffer();
        }
        self.failed.map_or(Ok(()), Err)?;
        self.out.flush()
    }

    fn flush_buffer(&mut self) {
        let buffer = &mut self.encoder.buffer;
        self.sum = checksum(self.sum, buffer);
        self.written += buffer.len() as u64;
        if self.failed.is_none() {
            self.failed = self.out.write_all(buffer).err();
        }
        buffer.clear();
    }

    fn count_entry(&mut self) {
        if let Some(index) = &mut self.index {
            index.count_entry();
        }
    }

    fn position(&self) -> Position {
        Position { offset: self.written, sum: self.sum, last: self.encoder.last() }
    }

    fn flush_if_full(&mut self) {
        if self.encoder.buffer.len() >= FLUSH_AT {
            self.flush_buffer();
            self.note_flushed();
        }
    }

    /// Reports to the index builder that all entries so far are in the output.
    fn note_flushed(&mut self) {
        let position = self.position();
        if let Some(index) = &mut self.index {
            index.flushed(position);
        }
    }
}

impl<W: Write> Sink for Writer<W> {
    fn record(&mut self, record: &Record) {
        self.encoder.record(record);
        self.index.record(record);
        self.flush_if_full();
    }

    fn named(&mut self, named: &VcpuName) {
        self.encoder.named(named);
        self.index.named(named);
        self.flush_if_full();
    }

    fn host_thread(&mut self, thread: &HostThread) {
        self.encoder.host_thread_named(thread);
        self.count_entry();
        self.flush_if_full();
    }

    fn note(&mut self, note: &Note) {
        self.encoder.note(note);
        self.count_entry();
        self.flush_if_full();
    }

    fn wants_exchanges(&self) -> bool {
        true
    }

    fn exchange(&mut self, exchange: &Exchange) {
        if let Exchange::AlarmSet { cpu, alarm } = *exchange
            && std::mem::replace(&mut self.alarms[cpu.index()], alarm) == alarm
        {
            return;
        }
        self.encoder.exchange(exchange);
        self.count_entry();
        self.flush_if_full();
    }
}

/// Checksum of the records of a run. Names, exchanges and the header do not count, so runs with the
/// same records have the same checksum.
pub struct Checksum {
    sum: u64,
    encoder: Encoder,
}

impl Checksum {
    /// Starts a checksum with the bytes `about`, which identify the run.
    #[must_use]
    pub fn new(about: &[u8]) -> Checksum {
        Checksum { sum: checksum(CHECKSUM_START, about), encoder: Encoder::new(64) }
    }

    /// Returns the checksum of all records so far.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

impl Sink for Checksum {
    fn record(&mut self, record: &Record) {
        self.encoder.record(record);
        self.sum = checksum(self.sum, &self.encoder.buffer);
        self.encoder.buffer.clear();
    }
}
