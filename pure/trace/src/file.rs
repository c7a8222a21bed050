//! A trace as a file: a header, the records as they came, and a checksum.
//!
//! ```text
//! slackline-trace-2 NEWLINE
//! header    numbers and texts, in the order of `Header`
//! record*   a tag byte and numbers; the last record is `Ended`
//! checksum  8 bytes, little endian: FNV-1a of everything before
//! ```
//!
//! A number is a variable-length integer, seven bits a byte, least first. A text is its length and
//! its bytes. Times are differences: to the previous record's time, or to another time of the same
//! record, as signed numbers in zigzag form. So a record takes about ten bytes.

use std::io::{self, Read, Write};

use slackline_units::{CpuId, DomId, Reservation, Span, TaskId, Time, VcpuId};
use thiserror::Error;

use crate::record::{Knowledge, RanEnd, Record, Service, Sink};

const MAGIC: &[u8] = b"slackline-trace-2\n";
const NOTHING: u64 = u64::MAX;

/// What a trace is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The title of the scenario.
    pub title: String,
    /// The machine: `sim` or `live`.
    pub machine: String,
    /// The policy, as one would write it in a scenario.
    pub policy: String,
    /// The seed of the run.
    pub seed: u64,
    /// How many CPUs were scheduled.
    pub cpus: usize,
    /// From when on the numbers count.
    pub warmup: Span,
    /// What the machine could see.
    pub knows: Knowledge,
    /// The text of the scenario file, so that a trace explains itself.
    pub scenario: String,
    /// Everybody who may appear.
    pub vcpus: Vec<VcpuName>,
}

/// A vCPU and what people call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuName {
    /// The id in the records.
    pub id: VcpuId,
    /// The name: that of its domain, and its number where the domain has several.
    pub name: String,
}

impl Header {
    /// What people call a vCPU.
    #[must_use]
    pub fn name(&self, vcpu: VcpuId) -> &str {
        let named = self.vcpus.iter().find(|named| named.id == vcpu);
        named.map_or("?", |named| &named.name)
    }
}

/// Why a file cannot be read as a trace.
#[derive(Debug, Error)]
pub enum ReadError {
    /// Reading failed.
    #[error("cannot read the trace")]
    Io(#[source] io::Error),
    /// It does not begin as a trace does.
    #[error("this is not a Slackline trace, or one of another version")]
    NotATrace,
    /// It ends before the end.
    #[error("the trace ends in the middle, after {records} records")]
    Truncated {
        /// How many records could be read.
        records: u64,
    },
    /// Something stands behind its checksum.
    #[error("there is something behind the end of the trace, after {records} records")]
    Trailing {
        /// How many records could be read.
        records: u64,
    },
    /// It holds something that no trace holds.
    #[error("the trace is damaged after {records} records")]
    Damaged {
        /// How many records could be read.
        records: u64,
    },
}

/// Writes a trace, or only works out its checksum when it writes to a sink.
///
/// Recording cannot fail; an error of the writer is kept and comes out of [`Writer::finish`].
pub struct Writer<W: Write> {
    out: W,
    hash: u64,
    last: Time,
    buffer: Vec<u8>,
    failed: Option<io::Error>,
}

const FLUSH_AT: usize = 1 << 16;

impl<W: Write> Writer<W> {
    /// Starts a trace.
    #[must_use]
    pub fn new(out: W, header: &Header) -> Writer<W> {
        let buffer = Vec::with_capacity(FLUSH_AT + 256);
        let mut writer = Writer { out, hash: FNV_START, last: Time::START, buffer, failed: None };
        writer.buffer.extend_from_slice(MAGIC);
        writer.text(&header.title);
        writer.text(&header.machine);
        writer.text(&header.policy);
        writer.number(header.seed);
        writer.number(header.cpus as u64);
        writer.number(header.warmup.ns());
        writer.number(u64::from(header.knows.sleep) | u64::from(header.knows.stretches) << 1);
        writer.number(header.knows.resolution.ns());
        writer.text(&header.scenario);
        writer.number(header.vcpus.len() as u64);
        for vcpu in &header.vcpus {
            writer.vcpu(vcpu.id);
            writer.number(u64::from(vcpu.id.domain().number()));
            writer.number(u64::from(vcpu.id.number()));
            writer.text(&vcpu.name);
        }
        writer
    }

    /// Ends the trace; returns its checksum, which is the same for the same run.
    ///
    /// # Errors
    /// The first error of the writer.
    pub fn finish(mut self) -> io::Result<u64> {
        self.flush_buffer();
        let hash = self.hash;
        self.buffer.extend_from_slice(&hash.to_le_bytes());
        self.flush_buffer();
        match self.failed {
            Some(error) => Err(error),
            None => self.out.flush().map(|()| hash),
        }
    }

    fn flush_buffer(&mut self) {
        self.hash = fnv(self.hash, &self.buffer);
        if self.failed.is_none() {
            self.failed = self.out.write_all(&self.buffer).err();
        }
        self.buffer.clear();
    }

    fn number(&mut self, mut value: u64) {
        loop {
            let byte = value.to_le_bytes()[0] & 0x7f;
            value >>= 7;
            if value == 0 {
                self.buffer.push(byte);
                return;
            }
            self.buffer.push(byte | 0x80);
        }
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.buffer.extend_from_slice(text.as_bytes());
    }

    fn vcpu(&mut self, vcpu: VcpuId) {
        self.number(vcpu.slot() as u64);
    }

    fn cpu(&mut self, cpu: CpuId) {
        self.number(cpu.index() as u64);
    }

    fn time(&mut self, at: Time) {
        self.difference(at, self.last);
        self.last = at;
    }

    fn promise(&mut self, reservation: Option<Reservation>, exact: bool) {
        self.number(reservation.map_or(NOTHING, |reservation| reservation.slice().ns()));
        self.number(reservation.map_or(NOTHING, |reservation| reservation.period().ns()));
        self.number(u64::from(exact));
    }

    fn service(&mut self, service: &Service) {
        let Service { used, received, sent, requests, events } = *service;
        self.number(used.ns());
        for count in [received, sent, requests, events] {
            self.number(count.into());
        }
    }

    fn difference(&mut self, at: Time, from: Time) {
        let difference = at.ns().wrapping_sub(from.ns()).cast_signed();
        self.number(((difference << 1) ^ (difference >> 63)).cast_unsigned());
    }
}

impl<W: Write> Sink for Writer<W> {
    fn record(&mut self, record: &Record) {
        self.buffer.push(tag(record));
        match *record {
            Record::Joined { at, vcpu }
            | Record::Left { at, vcpu }
            | Record::Woke { at, vcpu }
            | Record::Blocked { at, vcpu }
            | Record::Paused { at, vcpu }
            | Record::Declined { at, vcpu } => {
                self.time(at);
                self.vcpu(vcpu);
            }
            Record::Promised { at, vcpu, reservation, exact } => {
                self.time(at);
                self.vcpu(vcpu);
                self.promise(reservation, exact);
            }
            Record::Ran { vcpu, cpu, from, to, used, granted, late, end, due } => {
                self.time(to);
                self.vcpu(vcpu);
                self.cpu(cpu);
                self.difference(to, from);
                self.difference(to, from + used);
                // A turn is never empty, so zero can say that there was no limit.
                self.number(granted.map_or(0, Span::ns));
                self.number(late.ns());
                self.number(end as u64 | u64::from(due) << 3);
            }
            Record::RangLate { at, cpu, late } => {
                self.time(at);
                self.cpu(cpu);
                self.number(late.ns());
            }
            Record::Refused { at, vcpu, cpu } => {
                self.time(at);
                self.vcpu(vcpu);
                self.cpu(cpu);
            }
            Record::Changed { due, at, vcpu } => {
                self.time(at);
                self.difference(at, due);
                self.vcpu(vcpu);
            }
            Record::Job { vcpu, task, released, deadline, done } => {
                self.time(done);
                self.vcpu(vcpu);
                self.difference(done, released);
                self.difference(deadline, done);
                if let Some(task) = task {
                    self.number(u64::from(task.number()));
                }
            }
            Record::Served { at, by, of, service } => {
                self.time(at);
                self.vcpu(by);
                self.vcpu(of);
                self.service(&service);
            }
            Record::Moved { at, vcpu, bytes } => {
                self.time(at);
                self.vcpu(vcpu);
                self.number(bytes);
            }
            Record::Overhead { cpu, used } => {
                self.cpu(cpu);
                self.number(used.ns());
            }
            Record::Ended { at } => self.time(at),
        }
        if self.buffer.len() >= FLUSH_AT {
            self.flush_buffer();
        }
    }
}

fn tag(record: &Record) -> u8 {
    match record {
        Record::Joined { .. } => 1,
        Record::Promised { .. } => 2,
        Record::Left { .. } => 3,
        Record::Woke { .. } => 4,
        Record::Blocked { .. } => 5,
        Record::Ran { .. } => 6,
        Record::RangLate { .. } => 7,
        Record::Refused { .. } => 8,
        Record::Declined { .. } => 9,
        Record::Changed { .. } => 10,
        Record::Job { task: None, .. } => 11,
        Record::Overhead { .. } => 12,
        Record::Ended { .. } => 13,
        Record::Paused { .. } => 14,
        Record::Served { .. } => 15,
        Record::Moved { .. } => 16,
        Record::Job { task: Some(_), .. } => 17,
    }
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a, 64 bits.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Reads a trace back: the header first, then a record at a time.
pub struct Reader<R: Read> {
    input: R,
    hash: u64,
    last: Time,
    records: u64,
    header: Header,
    is_over: bool,
}

/// What can go wrong inside a record, before it is known where.
enum Damage {
    Io(io::Error),
    Damaged,
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Damage {
        Damage::Io(error)
    }
}

type Part<T> = Result<T, Damage>;

impl<R: Read> Reader<R> {
    /// Reads the header. Give it something buffered.
    ///
    /// # Errors
    /// When the input is no trace.
    pub fn new(input: R) -> Result<Reader<R>, ReadError> {
        let header = Header {
            title: String::new(),
            machine: String::new(),
            policy: String::new(),
            seed: 0,
            cpus: 0,
            warmup: Span::ZERO,
            knows: Knowledge { sleep: false, stretches: false, resolution: Span::ZERO },
            scenario: String::new(),
            vcpus: Vec::new(),
        };
        let (hash, last) = (FNV_START, Time::START);
        let mut reader = Reader { input, hash, last, records: 0, header, is_over: false };
        let mut magic = [0; MAGIC.len()];
        let is_trace = reader.bytes(&mut magic).is_ok() && magic == MAGIC;
        if !is_trace {
            return Err(ReadError::NotATrace);
        }
        reader.read_header().map_err(|fault| reader.explain(fault))?;
        Ok(reader)
    }

    /// What the trace is of.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next record, or none after the last.
    ///
    /// # Errors
    /// When the trace is cut short or damaged.
    pub fn next_record(&mut self) -> Result<Option<Record>, ReadError> {
        if self.is_over {
            return Ok(None);
        }
        let record = self.read_record().map_err(|fault| self.explain(fault))?;
        self.records += 1;
        if matches!(record, Record::Ended { .. }) {
            self.is_over = true;
            let expected = self.hash;
            let mut checksum = [0; 8];
            self.bytes(&mut checksum).map_err(|fault| self.explain(fault))?;
            if u64::from_le_bytes(checksum) != expected {
                return Err(ReadError::Damaged { records: self.records });
            }
            if self.bytes(&mut [0]).is_ok() {
                return Err(ReadError::Trailing { records: self.records });
            }
        }
        Ok(Some(record))
    }

    /// Hands everything that is left to a sink.
    ///
    /// # Errors
    /// When the trace is cut short or damaged.
    pub fn replay(&mut self, sink: &mut impl Sink) -> Result<(), ReadError> {
        while let Some(record) = self.next_record()? {
            sink.record(&record);
        }
        Ok(())
    }

    fn explain(&self, fault: Damage) -> ReadError {
        match fault {
            Damage::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                ReadError::Truncated { records: self.records }
            }
            Damage::Io(error) => ReadError::Io(error),
            Damage::Damaged => ReadError::Damaged { records: self.records },
        }
    }

    fn read_header(&mut self) -> Part<()> {
        self.header.title = self.text()?;
        self.header.machine = self.text()?;
        self.header.policy = self.text()?;
        self.header.seed = self.number()?;
        self.header.cpus = self.index(CpuId::LIMIT)?;
        self.header.warmup = Span::from_ns(self.number()?);
        let knows = self.number()?;
        let resolution = Span::from_ns(self.number()?);
        let (sleep, stretches) = (knows & 1 != 0, knows & 2 != 0);
        self.header.knows = Knowledge { sleep, stretches, resolution };
        self.header.scenario = self.text()?;
        let count = self.number()?;
        for _ in 0..count {
            let slot = u32::try_from(self.number()?).map_err(|_| Damage::Damaged)?;
            let domain = u32::try_from(self.number()?).map_err(|_| Damage::Damaged)?;
            let number = u16::try_from(self.number()?).map_err(|_| Damage::Damaged)?;
            let id = VcpuId::checked(slot, DomId::new(domain), number).ok_or(Damage::Damaged)?;
            let name = self.text()?;
            self.header.vcpus.push(VcpuName { id, name });
        }
        Ok(())
    }

    fn read_record(&mut self) -> Part<Record> {
        let mut tag = [0];
        self.bytes(&mut tag)?;
        Ok(match tag[0] {
            1 => Record::Joined { at: self.time()?, vcpu: self.vcpu()? },
            2 => {
                let (at, vcpu) = (self.time()?, self.vcpu()?);
                let (slice, period) = (self.number()?, self.number()?);
                let (slice_span, period) = (Span::from_ns(slice), Span::from_ns(period));
                let reservation = if slice == NOTHING {
                    None
                } else {
                    Some(Reservation::new(slice_span, period).map_err(|_| Damage::Damaged)?)
                };
                Record::Promised { at, vcpu, reservation, exact: self.number()? != 0 }
            }
            3 => Record::Left { at: self.time()?, vcpu: self.vcpu()? },
            4 => Record::Woke { at: self.time()?, vcpu: self.vcpu()? },
            5 => Record::Blocked { at: self.time()?, vcpu: self.vcpu()? },
            6 => self.read_ran()?,
            7 => {
                let (at, cpu) = (self.time()?, self.cpu()?);
                Record::RangLate { at, cpu, late: Span::from_ns(self.number()?) }
            }
            8 => Record::Refused { at: self.time()?, vcpu: self.vcpu()?, cpu: self.cpu()? },
            9 => Record::Declined { at: self.time()?, vcpu: self.vcpu()? },
            10 => {
                let at = self.time()?;
                Record::Changed { due: self.before(at)?, at, vcpu: self.vcpu()? }
            }
            11 | 17 => {
                let (done, vcpu) = (self.time()?, self.vcpu()?);
                let released = self.before(done)?;
                let after = self.signed()?.cast_unsigned();
                let deadline = Time::from_ns(done.ns().wrapping_add(after));
                let task = if tag[0] == 17 { Some(self.task()?) } else { None };
                Record::Job { vcpu, task, released, deadline, done }
            }
            12 => Record::Overhead { cpu: self.cpu()?, used: Span::from_ns(self.number()?) },
            13 => Record::Ended { at: self.time()? },
            14 => Record::Paused { at: self.time()?, vcpu: self.vcpu()? },
            15 => {
                let (at, by, of) = (self.time()?, self.vcpu()?, self.vcpu()?);
                let used = Span::from_ns(self.number()?);
                let mut count = || u32::try_from(self.number()?).map_err(|_| Damage::Damaged);
                let (received, sent) = (count()?, count()?);
                let (requests, events) = (count()?, count()?);
                let service = Service { used, received, sent, requests, events };
                Record::Served { at, by, of, service }
            }
            16 => Record::Moved { at: self.time()?, vcpu: self.vcpu()?, bytes: self.number()? },
            _ => return Err(Damage::Damaged),
        })
    }

    fn read_ran(&mut self) -> Part<Record> {
        let (to, vcpu, cpu) = (self.time()?, self.vcpu()?, self.cpu()?);
        let from = self.before(to)?;
        let used_to = self.before(to)?;
        if from > used_to || used_to > to {
            return Err(Damage::Damaged);
        }
        let granted = Some(Span::from_ns(self.number()?)).filter(|granted| !granted.is_zero());
        let late = Span::from_ns(self.number()?);
        let flags = self.number()?;
        let end = match flags & 7 {
            0 => RanEnd::Blocked,
            1 => RanEnd::Limit,
            2 => RanEnd::Preempted,
            3 => RanEnd::Yielded,
            4 => RanEnd::Over,
            _ => return Err(Damage::Damaged),
        };
        let due = flags & 8 != 0;
        Ok(Record::Ran { vcpu, cpu, from, to, used: used_to - from, granted, late, end, due })
    }

    fn bytes(&mut self, into: &mut [u8]) -> Part<()> {
        self.input.read_exact(into)?;
        self.hash = fnv(self.hash, into);
        Ok(())
    }

    fn number(&mut self) -> Part<u64> {
        let mut value = 0;
        for place in 0..10 {
            let mut byte = [0];
            self.bytes(&mut byte)?;
            value |= u64::from(byte[0] & 0x7f) << (7 * place);
            if byte[0] & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Damage::Damaged)
    }

    fn index(&mut self, limit: usize) -> Part<usize> {
        let value = usize::try_from(self.number()?).map_err(|_| Damage::Damaged)?;
        (value <= limit).then_some(value).ok_or(Damage::Damaged)
    }

    fn text(&mut self) -> Part<String> {
        let length = self.number()?;
        // A damaged length must not ask for all the memory there is: take bytes as they come.
        let mut bytes = Vec::new();
        let taken = self.input.by_ref().take(length).read_to_end(&mut bytes)?;
        if taken as u64 != length {
            return Err(Damage::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        self.hash = fnv(self.hash, &bytes);
        String::from_utf8(bytes).map_err(|_| Damage::Damaged)
    }

    fn task(&mut self) -> Part<TaskId> {
        u16::try_from(self.number()?).map(TaskId::new).map_err(|_| Damage::Damaged)
    }

    fn vcpu(&mut self) -> Part<VcpuId> {
        let slot = self.number()?;
        let known = self.header.vcpus.iter();
        let at = usize::try_from(slot).map_err(|_| Damage::Damaged)?;
        // Slots are dense, so the row is nearly always where the slot says.
        let named = self.header.vcpus.get(at).filter(|named| named.id.slot() == at);
        let named = named.or_else(|| known.into_iter().find(|named| named.id.slot() == at));
        named.map(|named| named.id).ok_or(Damage::Damaged)
    }

    fn cpu(&mut self) -> Part<CpuId> {
        Ok(CpuId::new(self.index(CpuId::LIMIT - 1)?))
    }

    fn signed(&mut self) -> Part<i64> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    fn time(&mut self) -> Part<Time> {
        let difference = self.signed()?.cast_unsigned();
        self.last = Time::from_ns(self.last.ns().wrapping_add(difference));
        Ok(self.last)
    }

    fn before(&mut self, at: Time) -> Part<Time> {
        let difference = self.signed()?.cast_unsigned();
        Ok(Time::from_ns(at.ns().wrapping_sub(difference)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vcpu() -> VcpuId {
        VcpuId::new(0, DomId::new(3), 1)
    }

    fn header() -> Header {
        Header {
            title: "a title".into(),
            machine: "sim".into(),
            policy: "edf reserve=0cpu".into(),
            seed: u64::MAX,
            cpus: 2,
            warmup: Span::from_ms(5),
            knows: Knowledge { sleep: true, stretches: false, resolution: Span::from_us(2) },
            scenario: "text\nof it".into(),
            vcpus: vec![VcpuName { id: vcpu(), name: "web.1".into() }],
        }
    }

    fn records() -> Vec<Record> {
        let at = |ns| Time::from_ns(ns);
        let (vcpu, cpu) = (vcpu(), CpuId::new(1));
        let reservation = Reservation::new(Span::from_ms(1), Span::from_ms(10)).ok();
        let (used, late) = (Span::from_ns(900), Span::from_ns(7));
        let service = Service { used, received: 1, sent: u32::MAX, requests: 3, events: 4 };
        vec![
            Record::Joined { at: at(0), vcpu },
            Record::Promised { at: at(0), vcpu, reservation, exact: true },
            Record::Promised { at: at(1), vcpu, reservation: None, exact: false },
            Record::Woke { at: at(10), vcpu },
            Record::Refused { at: at(10), vcpu, cpu },
            Record::RangLate { at: at(11), cpu, late },
            Record::Ran {
                vcpu,
                cpu,
                from: at(100),
                to: at(1000),
                used,
                granted: Some(used),
                late,
                end: RanEnd::Limit,
                due: true,
            },
            Record::Job { vcpu, task: None, released: at(5), deadline: Time::NEVER, done: at(900) },
            Record::Job {
                vcpu,
                task: Some(TaskId::new(u16::MAX)),
                released: at(5),
                deadline: at(40),
                done: at(901),
            },
            Record::Served { at: at(902), by: vcpu, of: vcpu, service },
            Record::Moved { at: at(903), vcpu, bytes: u64::MAX },
            Record::Blocked { at: at(1000), vcpu },
            Record::Paused { at: at(1000), vcpu },
            Record::Declined { at: at(1001), vcpu },
            Record::Changed { due: at(1001), at: at(1003), vcpu },
            Record::Left { at: at(2000), vcpu },
            Record::Overhead { cpu, used },
            Record::Ended { at: at(u64::MAX) },
        ]
    }

    fn written() -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, &header());
        records().iter().for_each(|record| writer.record(record));
        writer.finish().unwrap();
        file
    }

    fn read(file: &[u8]) -> Result<(Header, Vec<Record>), ReadError> {
        let mut reader = Reader::new(file)?;
        let mut records = Vec::new();
        reader.replay(&mut records)?;
        Ok((reader.header().clone(), records))
    }

    #[test]
    fn what_was_written_is_read_back() {
        assert_eq!(read(&written()).unwrap(), (header(), records()));
    }

    #[test]
    fn a_trace_cut_anywhere_is_noticed() {
        let file = written();
        for end in 0..file.len() {
            assert!(read(&file[..end]).is_err(), "cut at {end} of {}", file.len());
        }
    }

    #[test]
    fn what_stands_behind_a_trace_is_noticed() {
        let mut file = written();
        file.push(0);
        assert!(matches!(read(&file), Err(ReadError::Trailing { .. })));
    }

    #[test]
    fn a_trace_changed_anywhere_is_noticed() {
        let file = written();
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 0x10;
            assert!(read(&damaged).is_err(), "changed at {at} of {}", file.len());
        }
    }

    #[test]
    fn a_writer_that_fails_says_so_at_the_end() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut writer = Writer::new(Full, &header());
        records().iter().for_each(|record| writer.record(record));
        assert_eq!(writer.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
