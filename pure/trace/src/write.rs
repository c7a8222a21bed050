//! A trace as a file: a small header, what happened as it happened, and a checksum.
//!
//! ```text
//! slackline-trace-5 NEWLINE
//! header    numbers and texts, in the order of `Header`
//! entry*    a tag byte and numbers; a name comes before whoever it is of
//! 0         the end
//! checksum  8 bytes, little endian: FNV-1a of everything before
//! ```
//!
//! A number is a variable-length integer, seven bits a byte, least first. A text is its length and
//! its bytes. Times are differences: to the previous entry's time, or to another time of the same
//! entry, as signed numbers in zigzag form. A vCPU is its slot: whose that is, the last name says
//! that the slot was given. So a record takes about ten bytes, and what passed between machine and
//! host about seven.

use std::io::{self, Write};

use crate::encode::{CHECKSUM_START, END, Encoder, checksum};
use crate::exchange::Exchange;
use crate::header::Header;
use crate::record::Record;
use crate::sink::{Sink, VcpuName};
use slackline_units::{CpuId, Time};

/// First bytes of a trace of any version. The version number follows.
pub(crate) const MAGIC: &[u8] = b"slackline-trace-";
/// Version of the traces that are written.
pub(crate) const VERSION: u32 = 5;
/// Oldest version that can be read. Version 5 added overhead and unfinished work and removed
/// nothing.
pub(crate) const OLDEST_VERSION: u32 = 4;

const FLUSH_AT: usize = 1 << 16;

/// Writes a trace.
///
/// Recording cannot fail. An error of the output is kept until [`Writer::finish`] returns it.
pub struct Writer<W: Write> {
    out: W,
    sum: u64,
    encoder: Encoder,
    /// By CPU: the timer that was recorded last. A host repeats timers that have not changed.
    alarms: Vec<Option<Time>>,
    failed: Option<io::Error>,
}

impl<W: Write> Writer<W> {
    /// Starts a trace with this header.
    #[must_use]
    pub fn new(out: W, header: &Header) -> Writer<W> {
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
        let (knows, counts_looks) = (header.knows, !header.dispatch.is_zero());
        let flags = [knows.sleep, knows.stretches, counts_looks, knows.overhead].map(u64::from);
        encoder.number(flags[0] | flags[1] << 1 | flags[2] << 2 | flags[3] << 3);
        encoder.number(knows.resolution.ns());
        if counts_looks {
            encoder.number(header.dispatch.ns());
        }
        encoder.text(&header.scenario);
        let alarms = vec![None; CpuId::LIMIT];
        Writer { out, sum: CHECKSUM_START, encoder, alarms, failed: None }
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// The first error of the writer.
    pub fn finish(mut self) -> io::Result<()> {
        self.encoder.buffer.push(END);
        self.flush_buffer();
        self.encoder.buffer.extend_from_slice(&self.sum.to_le_bytes());
        self.flush_buffer();
        self.failed.map_or(Ok(()), Err)?;
        self.out.flush()
    }

    fn flush_buffer(&mut self) {
        let buffer = &mut self.encoder.buffer;
        self.sum = checksum(self.sum, buffer);
        if self.failed.is_none() {
            self.failed = self.out.write_all(buffer).err();
        }
        buffer.clear();
    }

    fn flush_if_full(&mut self) {
        if self.encoder.buffer.len() >= FLUSH_AT {
            self.flush_buffer();
        }
    }
}

impl<W: Write> Sink for Writer<W> {
    fn record(&mut self, record: &Record) {
        self.encoder.record(record);
        self.flush_if_full();
    }

    fn named(&mut self, named: &VcpuName) {
        self.encoder.named(named);
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
        self.flush_if_full();
    }
}

/// Checksum of the records of a run and of nothing else in its trace. Runs with the same events
/// have the same checksum.
pub struct Checksum {
    sum: u64,
    encoder: Encoder,
}

impl Checksum {
    /// Starts a checksum with these bytes, which identify the run.
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
