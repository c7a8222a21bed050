//! Index of a trace, written after its checksum. Each block of the trace has an entry in the index.
//! The entry has the position of the block, the time that the block covers, and the state of the
//! vCPUs at the start of the block. A reader of a short window reads only the blocks that touch the
//! window.

use slackline_units::{Span, Time, VcpuId};

use crate::encode::{CHECKSUM_START, Encoder, checksum};
use crate::record::Record;
use crate::sink::{Sink, VcpuName};

/// Minimum length of an indexed block in bytes.
const BLOCK: u64 = 1 << 20;

/// Minimum length of a block, as a multiple of the length of the state that is stored for it. So
/// the index takes only a small part of the trace.
const BLOCK_PER_STATE: u64 = 16;

/// State of a slot's vCPU, which a reader must know to understand later records.
struct SlotState {
    named: VcpuName,
    promised: Option<Record>,
    woke: Option<Time>,
}

/// Position in a trace.
#[derive(Clone, Copy)]
pub(super) struct Position {
    /// Number of bytes before the position.
    pub(super) offset: u64,
    /// Checksum of all bytes before the position.
    pub(super) sum: u64,
    /// Last time that was encoded before the position.
    pub(super) last: Time,
}

/// Number of entries in the current block, and the time that they cover.
#[derive(Clone, Copy)]
struct Contents {
    entries: u64,
    run_intervals: u64,
    from: Time,
    to: Time,
}

const EMPTY: Contents =
    Contents { entries: 0, run_intervals: 0, from: Time::NEVER, to: Time::START };

/// Builds the index of a trace while the trace is written.
pub(super) struct IndexBuilder {
    slots: Vec<Option<SlotState>>,
    clock: Option<Record>,
    ended: Option<Time>,
    longest_period: Span,
    /// All vCPU names in the trace, encoded as entries.
    names: Encoder,
    /// Finished blocks, encoded as parts of the index.
    blocks: Encoder,
    /// Start of the current block, and the entries that reproduce the state of the vCPUs at that
    /// point. `None` before the first block.
    start: Option<(Position, Vec<u8>)>,
    contents: Contents,
}

impl IndexBuilder {
    pub(super) fn new() -> IndexBuilder {
        IndexBuilder {
            slots: Vec::new(),
            clock: None,
            ended: None,
            longest_period: Span::ZERO,
            names: Encoder::new(0),
            blocks: Encoder::new(0),
            start: None,
            contents: EMPTY,
        }
    }

    /// Counts an exchange, whose time does not matter for the index.
    pub(super) fn count_entry(&mut self) {
        self.contents.entries += 1;
    }

    /// Records that all entries so far are in the output, up to position `at`. Begins a new block
    /// if the current block is long enough.
    pub(super) fn flushed(&mut self, at: Position) {
        if let Some((start, state)) = &self.start {
            let least = BLOCK.max(state.len() as u64 * BLOCK_PER_STATE);
            if at.offset - start.offset < least {
                return;
            }
            self.end_block();
        }
        self.start = Some((at, self.state()));
    }

    fn change(&mut self, vcpu: VcpuId, change: impl FnOnce(&mut SlotState)) {
        if let Some(Some(state)) = self.slots.get_mut(vcpu.slot()) {
            change(state);
        }
    }

    fn end_block(&mut self) {
        let Some((start, state)) = self.start.take() else { return };
        let Contents { entries, run_intervals, from, to } =
            std::mem::replace(&mut self.contents, EMPTY);
        self.position(start);
        for number in [entries, run_intervals, from.ns(), to.ns(), state.len() as u64] {
            self.blocks.number(number);
        }
        self.blocks.buffer.extend_from_slice(&state);
    }

    fn position(&mut self, at: Position) {
        self.blocks.number(at.offset);
        self.blocks.buffer.extend_from_slice(&at.sum.to_le_bytes());
        self.blocks.number(at.last.ns());
    }

    /// Returns encoded entries that reproduce the current state of all vCPUs.
    fn state(&self) -> Vec<u8> {
        let mut state = Encoder::new(0);
        self.clock.iter().for_each(|record| state.record(record));
        for SlotState { named, promised, woke } in self.slots.iter().flatten() {
            state.named(named);
            promised.iter().for_each(|record| state.record(record));
            let vcpu = named.vcpu;
            woke.iter().for_each(|&at| state.record(&Record::Woke { at, vcpu }));
        }
        state.buffer
    }

    /// Returns the index as bytes. The entries of the trace end at `end`.
    pub(super) fn finish(mut self, end: Position) -> Vec<u8> {
        self.end_block();
        self.position(end);
        let mut body = Encoder::new(0);
        body.number(self.ended.map_or(0, |at| at.ns().saturating_add(1)));
        body.number(self.longest_period.ns());
        body.number(self.names.buffer.len() as u64);
        body.buffer.append(&mut self.names.buffer);
        body.buffer.append(&mut self.blocks.buffer);
        let mut whole = Encoder::new(0);
        whole.number(body.buffer.len() as u64);
        whole.buffer.append(&mut body.buffer);
        let sum = checksum(CHECKSUM_START, &whole.buffer);
        whole.buffer.extend_from_slice(&sum.to_le_bytes());
        let length = whole.buffer.len() as u64 + 8;
        whole.buffer.extend_from_slice(&length.to_le_bytes());
        whole.buffer
    }
}

impl Sink for IndexBuilder {
    fn record(&mut self, record: &Record) {
        let contents = &mut self.contents;
        contents.entries += 1;
        // Overhead of a whole run has no time of its own.
        if !matches!(record, Record::Overhead { .. }) {
            let (from, to) = record.when();
            contents.from = contents.from.min(from);
            contents.to = contents.to.max(to);
        }
        match *record {
            Record::Ran { .. } => contents.run_intervals += 1,
            Record::Woke { at, vcpu } => {
                self.change(vcpu, |state| state.woke = state.woke.or(Some(at)));
            }
            Record::Blocked { vcpu, .. } | Record::Paused { vcpu, .. } => {
                self.change(vcpu, |state| state.woke = None);
            }
            Record::Left { vcpu, .. } => {
                self.change(vcpu, |state| (state.woke, state.promised) = (None, None));
            }
            Record::Promised { vcpu, reservation, .. } => {
                let period = reservation.map_or(Span::ZERO, |it| it.period());
                self.longest_period = self.longest_period.max(period);
                self.change(vcpu, |state| state.promised = Some(*record));
            }
            Record::ClockSet { .. } => self.clock = Some(*record),
            Record::Ended { at } => self.ended = Some(at),
            _ => {}
        }
    }

    fn named(&mut self, named: &VcpuName) {
        self.contents.entries += 1;
        self.names.named(named);
        let slot = named.vcpu.slot();
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        let state = &mut self.slots[slot];
        match state {
            Some(state) if state.named.vcpu == named.vcpu => state.named = named.clone(),
            _ => *state = Some(SlotState { named: named.clone(), promised: None, woke: None }),
        }
    }
}
