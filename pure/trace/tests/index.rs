//! Tests of reading a window of a trace by its index.

use std::cell::Cell;
use std::io::{self, Cursor, Read, Seek, SeekFrom};

use slackline_trace::{
    Entry, Header, HostThread, HostThreadId, HostThreadKind, IndexedTrace, Knowledge, OffCpu,
    RanEnd, ReadError, Reader, Record, Sink, VcpuName, WakeMark, Writer,
};
use slackline_units::{CpuId, DomId, Enforcement, Reservation, Span, Time, VcpuId};

const INTERVALS: u64 = 400_000;

fn at(us: u64) -> Time {
    Time::from_ns(us * 1_000)
}

fn vcpu(slot: u32) -> VcpuId {
    VcpuId::new(slot, DomId::new(slot), 0)
}

fn header() -> Header {
    Header {
        title: "long".into(),
        machine: "sim".into(),
        policy: "edf".into(),
        parameters: String::new(),
        seed: 1,
        cpus: 2,
        groups: Vec::new(),
        dispatch: Span::ZERO,
        warmup: Span::ZERO,
        knows: Knowledge::ALL,
        scenario: String::new(),
    }
}

/// Returns entries in which CPU 0 has a run interval every 10 us, of two vCPUs in turn. CPU 1 has
/// one interval that lasts from 1 s to 3 s.
fn entries() -> Vec<Entry> {
    let name =
        |slot| VcpuName { at: at(0), vcpu: vcpu(slot), name: slot.to_string(), domain: "d".into() };
    let reservation = Reservation::new(Span::from_ms(1), Span::from_ms(10)).ok();
    let mut all: Vec<Entry> = (0..3).map(|slot| Entry::Named(name(slot))).collect();
    let ran = |slot, cpu, from, to| {
        let (cpu, used, late) = (CpuId::new(cpu), Span::from_us(to - from), Span::ZERO);
        let (from, to, end) = (at(from), at(to), RanEnd::Preempted);
        let due = slot == 1;
        Entry::Record(Record::Ran {
            vcpu: vcpu(slot),
            cpu,
            from,
            to,
            used,
            granted: None,
            late,
            end,
            due,
        })
    };
    for slot in 0..3 {
        let (at, vcpu, phase, by) = (at(0), vcpu(slot), None, Enforcement::Dispatcher);
        all.push(Entry::Record(Record::Promised {
            at,
            vcpu,
            reservation,
            exact: false,
            phase,
            by,
        }));
        all.push(Entry::Record(Record::Woke { at, vcpu }));
    }
    for count in 0..INTERVALS {
        let slot = u32::try_from(count % 2).expect("the remainder is zero or one");
        all.push(ran(slot, 0, count * 10, count * 10 + 9));
        if count == 300_000 {
            all.push(ran(2, 1, 1_000_000, 3_000_009));
        }
    }
    all.push(Entry::Record(Record::Ended { at: at(INTERVALS * 10) }));
    all
}

fn written(entries: &[Entry]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, &header());
    entries.iter().for_each(|entry| entry.pass_to(&mut writer));
    writer.finish().expect("writing to memory cannot fail");
    file
}

/// Sink that collects the run intervals that touch a window, in their order, and counts all other
/// run intervals.
struct Window {
    from: Time,
    end: Time,
    inside: Vec<Record>,
    outside: u64,
    /// vCPUs that are runnable when the first interval of the window is read.
    runnable: Vec<VcpuId>,
    ended: usize,
}

impl Window {
    fn new(from: Time, end: Time) -> Window {
        Window { from, end, inside: Vec::new(), outside: 0, runnable: Vec::new(), ended: 0 }
    }
}

impl Sink for Window {
    fn record(&mut self, record: &Record) {
        match *record {
            Record::Ran { from, to, .. } if to > self.from && from < self.end => {
                self.inside.push(*record);
            }
            Record::Ran { .. } => self.outside += 1,
            Record::Woke { vcpu, .. } => self.runnable.push(vcpu),
            Record::Ended { .. } => self.ended += 1,
            _ => {}
        }
    }
}

/// Input that counts the bytes that are read from it.
struct Counted<'a> {
    file: Cursor<&'a [u8]>,
    read: &'a Cell<u64>,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.read.set(self.read.get() + read as u64);
        Ok(read)
    }
}

impl Seek for Counted<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

#[test]
fn trace_window_read_by_index_equals_window_of_whole_trace() {
    let file = written(&entries());
    let blocks = file.len() >> 20;
    assert!(blocks >= 3, "{} bytes", file.len());
    let ms = 1_000;
    for (from, end) in [(0, 10), (1_500, 1_510), (2_999, 3_001), (0, 4_000), (3_999, 5_000)] {
        let (from, end) = (at(from * ms), at(end * ms));
        let mut expected = Window::new(from, end);
        Reader::new(&*file)
            .expect("the file is a trace")
            .pass_to(&mut expected)
            .expect("the trace is complete");
        let read = Cell::new(0);
        let counted = Counted { file: Cursor::new(&file), read: &read };
        let mut trace = IndexedTrace::open(counted)
            .expect("the file is a trace")
            .expect("the trace has an index");
        assert_eq!((trace.names().len(), trace.ended()), (3, Some(at(INTERVALS * 10))));
        let mut found = Window::new(from, end);
        let skipped = trace.pass_window(from, end, &mut found).expect("the blocks are undamaged");
        assert_eq!(found.inside, expected.inside, "{from} to {end}");
        assert_eq!(found.outside + skipped, expected.outside, "{from} to {end}");
        assert_eq!((found.runnable, found.ended), (expected.runnable, 1));
        let whole = end - from > Span::from_secs(2);
        assert_eq!(read.get() < file.len() as u64 * 3 / 4, !whole, "{} bytes read", read.get());
    }
}

#[test]
fn damaged_trace_block_or_index_is_detected_when_read() {
    let file = written(&entries());
    let window = (at(10_000), at(20_000));
    let read = |file: &[u8]| -> Result<(), ReadError> {
        let damaged = ReadError::Damaged { entries: 0 };
        let mut trace = IndexedTrace::open(Cursor::new(file))?.ok_or(damaged)?;
        trace.pass_window(window.0, window.1, &mut Window::new(window.0, window.1)).map(drop)
    };
    read(&file).expect("the trace is undamaged");
    let length = file.len();
    let of_index =
        u64::from_le_bytes(file[length - 8..].try_into().expect("the slice has eight bytes"));
    let index = length - usize::try_from(of_index).expect("the length fits in memory");
    for at in (0..200).chain((200..100_000).step_by(997)).chain(index..length) {
        let mut damaged = file.clone();
        damaged[at] ^= 0x10;
        assert!(read(&damaged).is_err(), "changed at {at} of {length}");
    }
}

#[test]
fn trace_window_after_slot_reuse_has_name_of_new_vcpu() {
    let mut all = entries();
    let next = VcpuId::new(0, DomId::new(9), 0);
    let named = VcpuName { at: at(4_000_000), vcpu: next, name: "next".into(), domain: "e".into() };
    all.pop();
    all.push(Entry::Record(Record::Left { at: at(4_000_000), vcpu: vcpu(0) }));
    all.push(Entry::Named(named));
    let end = RanEnd::Preempted;
    for count in INTERVALS..INTERVALS + 200_000 {
        let (from, to, used) = (at(count * 10), at(count * 10 + 9), Span::from_us(9));
        let (cpu, granted, late, due) = (CpuId::new(0), None, Span::ZERO, true);
        all.push(Entry::Record(Record::Ran {
            vcpu: next,
            cpu,
            from,
            to,
            used,
            granted,
            late,
            end,
            due,
        }));
    }
    let file = written(&all);
    let mut trace = IndexedTrace::open(Cursor::new(&*file))
        .expect("the file is a trace")
        .expect("the trace has an index");
    let window = (at(5_900_000), at(5_900_100));
    let mut found = Window::new(window.0, window.1);
    trace.pass_window(window.0, window.1, &mut found).expect("the blocks are undamaged");
    assert_eq!(found.inside.len(), 10);
    assert!(found.inside.iter().all(|it| matches!(it, Record::Ran { vcpu, .. } if *vcpu == next)));
    assert_eq!(found.runnable, [vcpu(1), vcpu(2)], "vCPU 0 has left");
}

fn host_thread(number: u32, at: Time) -> Entry {
    Entry::HostThread(Box::new(HostThread {
        at,
        id: HostThreadId::new(number),
        kind: HostThreadKind::Kernel,
        vcpu: None,
        tid: 1,
        process: 1,
        user: 0,
        name: "kworker".into(),
        command: String::new(),
        vm: String::new(),
        group: String::new(),
    }))
}

#[test]
fn trace_window_is_readable_if_earlier_block_declares_host_threads() {
    let mut all = entries();
    let last = all.pop().expect("the trace has an end");
    all.insert(3, host_thread(0, at(0)));
    let (thread, cpu) = (HostThreadId::new(0), CpuId::new(0));
    let (from, to, end) = (at(3_999_991), at(3_999_999), OffCpu::Blocked);
    all.push(Entry::Record(Record::Awoken { at: from, thread, cpu, mark: WakeMark::Wakeup }));
    all.push(Entry::Record(Record::OnCpu { thread, cpu, from, to, end }));
    all.push(host_thread(1, to));
    all.push(last);
    let file = written(&all);
    let mut trace = IndexedTrace::open(Cursor::new(&*file))
        .expect("the file is a trace")
        .expect("the trace has an index");
    let mut found: Vec<Entry> = Vec::new();
    let passed = trace.pass_window(at(3_999_990), at(4_000_000), &mut found);
    passed.expect("the blocks are undamaged");
    assert_eq!(found[found.len() - 4..], all[all.len() - 4..]);
    assert!(found.len() < all.len() / 2, "blocks are left out");
}

/// The offset of one block in the index is smaller than the offset of the block that the index
/// lists before it. With such an index, a reader could be made to read the same part of a trace any
/// number of times.
#[test]
fn trace_index_with_overlapping_blocks_is_not_used() {
    let file = written(&[]);
    let (body, length) = file.split_at(file.len() - 8);
    let of_index = u64::from_le_bytes(length.try_into().expect("the slice has eight bytes"));
    // Before the index are the header, the mark of the end and a checksum.
    let of_body = file.len() - usize::try_from(of_index).expect("the length fits in memory");
    let header = &body[..of_body - 9];
    let fnv = |bytes: &[u8]| {
        let step = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
    };
    let number = |mut value: u64| {
        let mut bytes = Vec::new();
        while value > 0x7f {
            bytes.push(value.to_le_bytes()[0] & 0x7f | 0x80);
            value >>= 7;
        }
        bytes.push(value.to_le_bytes()[0]);
        bytes
    };
    let opens = |second: u64| {
        let first = header.len() as u64;
        // No end, no period, no names, and then the blocks.
        let mut content = vec![0; 3];
        for offset in [first, first + second, first, first + 1] {
            content.extend(number(offset));
            content.extend(fnv(header).to_le_bytes());
            // Zeros for last time, entries, run intervals, first and last time of the block, and
            // the length of its state.
            content.extend([0; 6]);
        }
        // The end of the last block has only an offset, a checksum and the last time.
        content.truncate(content.len() - 5);
        let mut index = number(content.len() as u64);
        index.extend(content);
        let sum = fnv(&index);
        index.extend(sum.to_le_bytes());
        index.extend((index.len() as u64 + 8).to_le_bytes());
        let forged = [&file[..of_body], &index].concat();
        IndexedTrace::open(Cursor::new(forged)).expect("the header is valid").is_some()
    };
    assert!(opens(0), "blocks without contents");
    assert!(!opens(1));
}
