//! Reading of a window of a long trace by its index, without the rest of the trace.

use std::io::{Read, Seek, SeekFrom};

use slackline_units::{Span, Time};

use super::decode::Decoder;
use super::input::Input;
use super::{Damage, Part, ReadError, State};
use crate::encode::{CHECKSUM_START, checksum};
use crate::header::Header;
use crate::record::Record;
use crate::sink::{Entry, Sink, VcpuName};

/// Trace with an index. Only the blocks that touch a window are read and checked.
pub struct IndexedTrace<R> {
    input: Input<R>,
    state: State,
    header: Header,
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

/// Returns the length of an index whose content has this length. The index also has the length of
/// the content, a checksum, and its own length.
pub(super) fn length_with(content: u64) -> u64 {
    content.saturating_add(length_of(content) + 16)
}

/// Returns the number of bytes with which a number is encoded.
fn length_of(number: u64) -> u64 {
    u64::from((64 - number.leading_zeros()).max(1)).div_ceil(7)
}

impl<R: Read + Seek> IndexedTrace<R> {
    /// Opens a trace by its index. Returns `None` if the index is
    /// missing or damaged, or if the header does not have the checksum that the index states. The
    /// caller can then read the whole trace, which reports the position of any damage.
    ///
    /// # Errors
    /// If the input is not a trace, if the trace has an unsupported version, or if its header
    /// cannot be read.
    pub fn open(source: R) -> Result<Option<IndexedTrace<R>>, ReadError> {
        let (mut input, mut state) = (Input::new(source), State::new());
        let (header, flags) = input.header(&mut state).map_err(|damage| state.explain(damage))?;
        if !flags.has_index {
            return Ok(None);
        }
        let mut trace = IndexedTrace {
            input,
            state,
            header,
            names: Vec::new(),
            ended: None,
            longest_period: Span::ZERO,
            blocks: Vec::new(),
            end: (0, 0),
        };
        let of_header = trace.state.sum;
        match trace.read_index() {
            Ok(()) => Ok(Some(trace).filter(|trace| trace.first_sum() == of_header)),
            Err(Damage::Io(error)) => Err(ReadError::Io(error)),
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
        &self.header
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
        sink: &mut dyn Sink,
    ) -> Result<u64, ReadError> {
        let (mut is_first, mut left_out, mut before) = (true, 0_u64, 0_u64);
        for index in 0..self.blocks.len() {
            let block = &self.blocks[index];
            let entries = block.entries;
            if block.to <= from || block.from >= end {
                left_out = block.run_intervals.saturating_add(left_out);
            } else {
                self.state.entries = before;
                let passed = self.pass_block(index, is_first, sink);
                passed.map_err(|damage| self.state.explain(damage))?;
                is_first = false;
            }
            before = before.saturating_add(entries);
        }
        self.ended.iter().for_each(|&at| sink.record(&Record::Ended { at }));
        Ok(left_out)
    }

    fn pass_block(&mut self, index: usize, is_first: bool, sink: &mut dyn Sink) -> Part<()> {
        let (end, expected) = self.blocks.get(index + 1).map_or(self.end, |it| (it.offset, it.sum));
        let IndexedTrace { input, state, blocks, .. } = self;
        let block = &blocks[index];
        let length = end.checked_sub(block.offset).ok_or(Damage::Damaged)?;
        state.vcpus.clear();
        // The identities of host threads may be in blocks that are left out. So only a reader of
        // the whole trace can check the numbers of host threads.
        state.host_threads = u32::MAX;
        state.last = Time::START;
        let mut decoder = Decoder::new(&block.state, state);
        while !decoder.rest().is_empty() {
            let entry = decoder.read_tagged()?;
            if is_first {
                entry.pass_to(sink);
            }
        }
        (state.last, state.sum) = (block.last, block.sum);
        input.restart(length).seek(SeekFrom::Start(block.offset))?;
        while !input.is_over() {
            let entry = input.decode(state, |decoder| decoder.read_tagged())?;
            state.entries += 1;
            // The record of the end comes from the index, and must not be passed twice.
            if !matches!(entry, Entry::Record(Record::Ended { .. })) {
                entry.pass_to(sink);
            }
        }
        if state.sum == expected { Ok(()) } else { Err(Damage::Damaged) }
    }

    fn read_index(&mut self) -> Part<()> {
        let index = self.index_bytes()?;
        let mut state = State::new();
        let mut content = Decoder::new(summed_part(&index)?, &mut state);
        if index.len() as u64 != length_with(content.number()?) {
            return Err(Damage::Damaged);
        }
        self.ended = content.number()?.checked_sub(1).map(Time::from_ns);
        self.longest_period = Span::from_ns(content.number()?);
        let length = content.number()?;
        self.read_names(content.take(length)?)?;
        self.read_blocks(&mut content)
    }

    /// Returns the index. Its last eight bytes, which are the last bytes of the file, contain its
    /// length.
    fn index_bytes(&mut self) -> Part<Vec<u8>> {
        let source = self.input.restart(0);
        let size = source.seek(SeekFrom::End(0))?;
        let at = size.checked_sub(8).ok_or(Damage::Damaged)?;
        source.seek(SeekFrom::Start(at))?;
        let mut length = [0; 8];
        source.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        let at = size.checked_sub(length).filter(|_| length > 16).ok_or(Damage::Damaged)?;
        source.seek(SeekFrom::Start(at))?;
        let mut index = Vec::new();
        source.take(length).read_to_end(&mut index)?;
        Ok(index)
    }

    fn read_names(&mut self, names: &[u8]) -> Part<()> {
        let mut state = State::new();
        let mut decoder = Decoder::new(names, &mut state);
        while !decoder.rest().is_empty() {
            match decoder.read_tagged()? {
                Entry::Named(named) => self.names.push(named),
                _ => return Err(Damage::Damaged),
            }
        }
        Ok(())
    }

    fn read_blocks(&mut self, index: &mut Decoder) -> Part<()> {
        loop {
            let (offset, sum) = (index.number()?, index.word()?);
            let last = Time::from_ns(index.number()?);
            // Blocks that overlap would be read several times.
            if self.blocks.last().is_some_and(|before| offset < before.offset) {
                return Err(Damage::Damaged);
            }
            if index.rest().is_empty() {
                self.end = (offset, sum);
                return Ok(());
            }
            let (entries, run_intervals) = (index.number()?, index.number()?);
            let [from, to] = [index.number()?, index.number()?].map(Time::from_ns);
            let length = index.number()?;
            let state = index.take(length)?.to_vec();
            self.blocks.push(Block { offset, sum, last, entries, run_intervals, from, to, state });
        }
    }
}

/// Returns the part of an index that precedes its checksum: the length of the content, and the
/// content.
fn summed_part(index: &[u8]) -> Part<&[u8]> {
    let (before_length, _) = index.split_last_chunk::<8>().ok_or(Damage::Damaged)?;
    let (summed, sum) = before_length.split_last_chunk().ok_or(Damage::Damaged)?;
    let is_right = u64::from_le_bytes(*sum) == checksum(CHECKSUM_START, summed);
    if is_right { Ok(summed) } else { Err(Damage::Damaged) }
}
