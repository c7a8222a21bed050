//! Reading of a window of a long trace by its index, without the rest of the trace.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

use slackline_units::{Span, Time};

use super::{Damage, Part, ReadError, Reader};
use crate::encode::CHECKSUM_START;
use crate::header::Header;
use crate::record::Record;
use crate::sink::{Entry, Sink, VcpuName};

/// Trace with an index. Only the blocks that touch a window are read and checked.
pub struct IndexedTrace<R: BufRead> {
    reader: Reader<Section<R>>,
    names: Vec<VcpuName>,
    ended: Option<Time>,
    longest_period: Span,
    blocks: Vec<Block>,
    /// Offset in bytes at which the last block ends, and the checksum of all bytes before that
    /// offset.
    end: (u64, u64),
}

/// Consecutive entries of a trace, with the state of the vCPUs before the first of these entries.
struct Block {
    offset: u64,
    /// Checksum of all bytes before the block.
    sum: u64,
    /// Last time that was encoded before the block. The first time of the block is stored as its
    /// difference to this time.
    last: Time,
    entries: u64,
    run_intervals: u64,
    /// Earliest time in the entries of the block.
    from: Time,
    /// Latest time in the entries of the block.
    to: Time,
    /// Encoded entries that reproduce the state of the vCPUs at the start of the block: names,
    /// reservations and wakes.
    state: Vec<u8>,
}

/// Input that yields the entries that restore the state before a block, and then the bytes of the
/// block.
struct Section<R> {
    state: io::Cursor<Vec<u8>>,
    body: R,
    /// Number of bytes of the block that are not read yet.
    left: u64,
}

impl<R> Section<R> {
    fn has_state(&self) -> bool {
        self.state.position() < self.state.get_ref().len() as u64
    }
}

impl<R: BufRead> Read for Section<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl<R: BufRead> BufRead for Section<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.has_state() {
            return self.state.fill_buf();
        }
        if self.left == 0 {
            return Ok(&[]);
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let body = self.body.fill_buf()?;
        Ok(&body[..most.min(body.len())])
    }

    fn consume(&mut self, count: usize) {
        if self.has_state() {
            return self.state.consume(count);
        }
        self.body.consume(count);
        self.left -= count as u64;
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads the index that follows the checksum of the trace, checks it, and discards it.
    pub(super) fn check_index(&mut self) -> Part<()> {
        self.sum = CHECKSUM_START;
        let length = self.number()?;
        let mut left = length;
        let mut buffer = [0; 4096];
        while left > 0 {
            let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            self.bytes(&mut buffer[..most])?;
            left -= most as u64;
        }
        let expected = self.sum;
        let [mut sum, mut whole] = [[0; 8]; 2];
        self.bytes(&mut sum)?;
        self.bytes(&mut whole)?;
        let is_right = u64::from_le_bytes(sum) == expected
            && u64::from_le_bytes(whole) == length + length_of(length) + 16;
        if is_right { Ok(()) } else { Err(Damage::Damaged) }
    }

    fn raw(&mut self, length: u64) -> Part<Vec<u8>> {
        // The length may be damaged, so the buffer grows with the bytes that are there.
        let mut bytes = Vec::new();
        let taken = self.input.by_ref().take(length).read_to_end(&mut bytes)?;
        if taken as u64 == length { Ok(bytes) } else { Err(Damage::Damaged) }
    }

    fn position(&mut self) -> Part<(u64, u64, Time)> {
        let offset = self.number()?;
        let mut sum = [0; 8];
        self.bytes(&mut sum)?;
        Ok((offset, u64::from_le_bytes(sum), Time::from_ns(self.number()?)))
    }
}

/// Returns the number of bytes with which a number is encoded.
fn length_of(number: u64) -> u64 {
    u64::from((64 - number.leading_zeros()).max(1)).div_ceil(7)
}

impl<R: BufRead + Seek> IndexedTrace<R> {
    /// Opens a trace by its index. Returns `None` if the index is
    /// missing or damaged, or if the header does not have the checksum that the index states. The
    /// caller can then read the whole trace, which reports the position of any damage.
    ///
    /// # Errors
    /// If the input is not a trace, if the trace has an unsupported version, or if its header
    /// cannot be read.
    pub fn open(body: R) -> Result<Option<IndexedTrace<R>>, ReadError> {
        let section = Section { state: io::Cursor::default(), body, left: u64::MAX };
        let reader = Reader::new(section)?;
        let header = reader.sum;
        if !reader.has_index {
            return Ok(None);
        }
        let mut trace = IndexedTrace {
            reader,
            names: Vec::new(),
            ended: None,
            longest_period: Span::ZERO,
            blocks: Vec::new(),
            end: (0, 0),
        };
        match trace.read_index() {
            Ok(()) => Ok(Some(trace).filter(|trace| trace.first_sum() == header)),
            Err(Damage::Io(error)) if error.kind() != io::ErrorKind::UnexpectedEof => {
                Err(ReadError::Io(error))
            }
            Err(_) => Ok(None),
        }
    }

    /// Returns the checksum of all bytes before the first block, which are the header.
    fn first_sum(&self) -> u64 {
        self.blocks.first().map_or(self.end.1, |block| block.sum)
    }

    /// Returns the header of the trace.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.reader.header
    }

    /// Returns all vCPU names in the trace, in order of time.
    #[must_use]
    pub fn names(&self) -> &[VcpuName] {
        &self.names
    }

    /// Returns the end of the run. `None` if the trace does not record its end.
    #[must_use]
    pub fn ended(&self) -> Option<Time> {
        self.ended
    }

    /// Returns the longest period of all reservations in the trace.
    #[must_use]
    pub fn longest_period(&self) -> Span {
        self.longest_period
    }

    /// Passes to `sink` all blocks with an entry between `from` and `end`. Entries that restore the
    /// state of the vCPUs at the first of these blocks come first. The end of the run comes last.
    /// The identities of host threads in the other blocks are not passed. Returns the number of run
    /// intervals in the blocks that are left out.
    ///
    /// # Errors
    /// If a block is cut short or damaged, or names an unknown vCPU or CPU.
    pub fn pass_window(
        &mut self,
        from: Time,
        end: Time,
        sink: &mut impl Sink,
    ) -> Result<u64, ReadError> {
        let (mut is_first, mut left_out, mut before) = (true, 0_u64, 0_u64);
        for index in 0..self.blocks.len() {
            let block = &self.blocks[index];
            let entries = block.entries;
            if block.to <= from || block.from >= end {
                left_out = block.run_intervals.saturating_add(left_out);
            } else {
                self.reader.entries = before;
                let passed = self.pass_block(index, is_first, sink);
                passed.map_err(|fault| self.reader.explain(fault))?;
                is_first = false;
            }
            before = before.saturating_add(entries);
        }
        self.ended.iter().for_each(|&at| sink.record(&Record::Ended { at }));
        Ok(left_out)
    }

    fn pass_block(&mut self, index: usize, is_first: bool, sink: &mut impl Sink) -> Part<()> {
        let (end, expected) = self.blocks.get(index + 1).map_or(self.end, |it| (it.offset, it.sum));
        let Block { offset, sum, last, ref state, .. } = self.blocks[index];
        let length = end.checked_sub(offset).ok_or(Damage::Damaged)?;
        let reader = &mut self.reader;
        reader.input.body.seek(SeekFrom::Start(offset))?;
        reader.input.state = io::Cursor::new(state.clone());
        reader.input.left = length;
        reader.vcpus.clear();
        // The identities of host threads may be in blocks that are left out. So only a reader of
        // the whole trace can check the numbers of host threads.
        reader.host_threads = u32::MAX;
        (reader.last, reader.is_over) = (Time::START, false);
        while reader.input.has_state() {
            let tag = reader.byte()?;
            let entry = reader.read_entry(tag)?;
            if is_first {
                entry.pass_to(sink);
            }
        }
        (reader.last, reader.sum) = (last, sum);
        while reader.input.left > 0 {
            let tag = reader.byte()?;
            let entry = reader.read_entry(tag)?;
            reader.entries += 1;
            // The record of the end comes from the index, and must not be passed twice.
            if !matches!(entry, Entry::Record(Record::Ended { .. })) {
                entry.pass_to(sink);
            }
        }
        if reader.sum == expected { Ok(()) } else { Err(Damage::Damaged) }
    }

    fn read_index(&mut self) -> Part<()> {
        let body = &mut self.reader.input.body;
        let size = body.seek(SeekFrom::End(0))?;
        let at = size.checked_sub(8).ok_or(Damage::Damaged)?;
        body.seek(SeekFrom::Start(at))?;
        let mut length = [0; 8];
        body.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        let at = size.checked_sub(length).filter(|_| length > 16).ok_or(Damage::Damaged)?;
        body.seek(SeekFrom::Start(at))?;
        self.reader.check_index()?;
        self.reader.input.body.seek(SeekFrom::Start(at))?;
        let reader = &mut self.reader;
        let content = reader.number()?;
        reader.input.left = content;
        self.ended = reader.number()?.checked_sub(1).map(Time::from_ns);
        self.longest_period = Span::from_ns(reader.number()?);
        self.read_names()?;
        self.read_blocks()?;
        Ok(())
    }

    fn read_names(&mut self) -> Part<()> {
        let reader = &mut self.reader;
        let length = reader.number()?;
        let left = reader.input.left.checked_sub(length).ok_or(Damage::Damaged)?;
        reader.last = Time::START;
        while reader.input.left > left {
            let tag = reader.byte()?;
            match reader.read_entry(tag)? {
                Entry::Named(named) => self.names.push(named),
                _ => return Err(Damage::Damaged),
            }
        }
        Ok(())
    }

    fn read_blocks(&mut self) -> Part<()> {
        let reader = &mut self.reader;
        loop {
            let (offset, sum, last) = reader.position()?;
            // Blocks that overlap would be read several times.
            if self.blocks.last().is_some_and(|before| offset < before.offset) {
                return Err(Damage::Damaged);
            }
            if reader.input.left == 0 {
                self.end = (offset, sum);
                return Ok(());
            }
            let (entries, run_intervals) = (reader.number()?, reader.number()?);
            let [from, to] = [reader.number()?, reader.number()?].map(Time::from_ns);
            let length = reader.number()?;
            let state = reader.raw(length)?;
            self.blocks.push(Block { offset, sum, last, entries, run_intervals, from, to, state });
        }
    }
}
