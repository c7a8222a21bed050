//! Tests of the file format: round trips, and damaged files, which are refused with the position of
//! the damage.

use std::io::{self, Read, Write};

use slackline_trace::{
    Checksum, CpuUse, Entry, Exchange, Fact, Header, HostThread, HostThreadId, HostThreadKind,
    KeptFact, Knowledge, Note, OffCpu, Order, Outcome, OverheadKind, RanEnd, ReadError, Reader,
    Record, Service, Sink, VcpuName, WakeMark, Writer, WrittenTerms,
};
use slackline_units::{
    ClientId, CpuId, CpuSet, DomId, Enforcement, Entitlement, Pending, Reservation, Span, Task,
    TaskId, Tasks, Time, Urgency, VcpuHint, VcpuId,
};

fn vcpu() -> VcpuId {
    VcpuId::new(0, DomId::new(3), 1)
}

fn at(ns: u64) -> Time {
    Time::from_ns(ns)
}

fn header() -> Header {
    let set = |cpus: &[usize]| cpus.iter().copied().map(CpuId::new).collect::<CpuSet>();
    Header {
        title: "a title".into(),
        machine: "sim".into(),
        policy: "edf reserve=0cpu".into(),
        parameters: "reserve=0cpu place=spread".into(),
        seed: u64::MAX,
        cpus: 2,
        groups: vec![vec![set(&[0]), set(&[1])], vec![set(&[0, 1])]],
        dispatch: Span::from_us(7),
        warmup: Span::from_ms(5),
        knows: Knowledge {
            sleep: true,
            stretches: false,
            resolution: Span::from_us(2),
            overhead: true,
        },
        scenario: "text\nof it".into(),
    }
}

fn named(slot: u32, at: Time, name: &str) -> VcpuName {
    let vcpu = VcpuId::new(slot, DomId::new(3), 1);
    VcpuName { at, vcpu, name: name.into(), domain: "web".into() }
}

fn promised(time: u64, (exact, phase): (bool, Option<Span>), by: Enforcement) -> Record {
    let reservation = Reservation::new(Span::from_ms(1), Span::from_ms(10)).ok();
    Record::Promised { at: at(time), vcpu: vcpu(), reservation, exact, phase, by }
}

fn records() -> Vec<Record> {
    let (vcpu, cpu) = (vcpu(), CpuId::new(1));
    let kind = OverheadKind::Balancing;
    let (used, late, deadline) = (Span::from_ns(900), Span::from_ns(7), at(8));
    let service = Service { used, received: 1, sent: u32::MAX, requests: 3, events: 4 };
    let ran = |due, end| Record::Ran {
        vcpu,
        cpu,
        from: at(100),
        to: at(1000),
        used,
        granted: Some(used).filter(|_| due),
        late,
        end,
        due,
    };
    vec![
        Record::Joined { at: at(0), vcpu },
        promised(0, (true, None), Enforcement::Deadline),
        promised(0, (false, Some(Span::ZERO)), Enforcement::Weight),
        Record::Promised {
            at: at(1),
            vcpu,
            reservation: None,
            exact: false,
            phase: None,
            by: Enforcement::Dispatcher,
        },
        Record::ClockSet { at: at(1), ahead: Span::MAX },
        Record::Woke { at: at(10), vcpu },
        Record::Refused { at: at(10), vcpu, cpu },
        Record::RangLate { at: at(11), cpu, late },
        ran(true, RanEnd::Limit),
        ran(false, RanEnd::Over),
        Record::Slowed { vcpu, from: at(100), to: at(1000), work: Span::from_ns(585) },
        Record::Boosted { vcpu, from: at(100), to: at(1000), used_up: true },
        Record::Boosted { vcpu, from: at(100), to: at(1000), used_up: false },
        Record::Stopped { vcpu, from: at(100), to: at(1000) },
        Record::Elsewhere { vcpu, from: at(100), to: at(1000), used: Span::from_ns(1700) },
        Record::ClientStarted { at: at(902), client: ClientId::new(1), vcpu },
        Record::Served { at: at(902), by: vcpu, of: vcpu, service },
        Record::Spun { at: at(902), vcpu, used: late },
        Record::Moved { at: at(903), vcpu, bytes: u64::MAX },
        Record::Blocked { at: at(1000), vcpu },
        Record::Paused { at: at(1000), vcpu },
        Record::Declined { at: at(1001), vcpu },
        Record::Changed { due: at(1001), at: at(1003), vcpu },
        Record::Left { at: at(2000), vcpu },
        Record::Accounted {
            cpu,
            from: at(5),
            to: at(2001),
            idle: Span::from_ns(1000),
            stolen: late,
            dispatching: used,
        },
        Record::Unfinished { at: at(9), vcpu, task: None, released: at(5), deadline: at(9) },
        Record::Unfinished {
            at: at(9),
            vcpu,
            task: Some(TaskId::new(7)),
            released: at(0),
            deadline,
        },
        Record::Overhead { cpu, used },
        Record::Spent { cpu, vcpu: None, kind: OverheadKind::Switch, from: at(7), to: at(9) },
        Record::Spent { cpu, vcpu: Some(vcpu), kind, from: at(100), to: at(2001) },
        Record::Ended { at: at(u64::MAX) },
    ]
}

fn jobs() -> Vec<Record> {
    let vcpu = vcpu();
    vec![
        Record::Job {
            vcpu,
            task: None,
            client: None,
            released: at(5),
            deadline: Time::NEVER,
            done: at(900),
        },
        Record::Job {
            vcpu,
            task: Some(TaskId::new(u16::MAX)),
            client: None,
            released: at(5),
            deadline: at(40),
            done: at(901),
        },
        Record::Job {
            vcpu,
            task: Some(TaskId::new(0)),
            client: Some(ClientId::new(u16::MAX)),
            released: at(5),
            deadline: Time::NEVER,
            done: at(901),
        },
        Record::Job {
            vcpu,
            task: None,
            client: Some(ClientId::new(0)),
            released: at(5),
            deadline: at(40),
            done: at(902),
        },
    ]
}

fn records_of_host() -> Vec<Record> {
    let (thread, cpu) = (HostThreadId::new(1), CpuId::new(1));
    let (used, late) = (Span::from_ns(900), Span::from_ns(7));
    vec![
        Record::OnCpu { thread, cpu, from: at(100), to: at(2001), end: OffCpu::Ready },
        Record::OnCpu { thread, cpu, from: at(2001), to: at(2001), end: OffCpu::Blocked },
        Record::OnCpu { thread, cpu, from: at(0), to: at(2001), end: OffCpu::Unknown },
        Record::Awoken { at: at(3), thread, cpu, mark: WakeMark::Waking },
        Record::Awoken { at: at(3), thread, cpu, mark: WakeMark::Wakeup },
        Record::Halted { thread, from: at(1), to: at(9) },
        Record::Lost { cpu, from: at(1), to: at(9), events: u64::MAX },
        Record::Counted { thread, from: at(1), to: at(9), used, ready: late },
    ]
}

fn host_thread(number: u32) -> HostThread {
    HostThread {
        at: at(4),
        id: HostThreadId::new(number),
        kind: HostThreadKind::ALL[number as usize],
        vcpu: Some(vcpu()).filter(|_| number == 0),
        tid: u32::MAX,
        process: 7,
        user: 1000,
        name: "CPU 0/KVM".into(),
        command: "qemu".into(),
        vm: "web".into(),
        group: String::new(),
    }
}

fn facts() -> Vec<KeptFact> {
    let (vcpu, cpu) = (vcpu(), CpuId::new(1));
    let everywhere = WrittenTerms { share: "slice=6ms period=10ms".into(), cpus: None };
    let cpus = Some(CpuSet::one(CpuId::new(200)));
    let mut tasks = Tasks::default();
    tasks.runnable[0] = Some(Task { id: TaskId::new(0), urgency: Urgency(139) });
    tasks.blocked[4] = Some(Task { id: TaskId::new(u16::MAX), urgency: Urgency(0) });
    tasks.woken[1] = Some(TaskId::new(7));
    let mut pending = Pending { items: u32::MAX, asked: 128, ..Pending::nothing(DomId::new(77)) };
    pending.tasks[3] = Some(TaskId::new(u16::MAX));
    let there = WrittenTerms { share: String::new(), cpus };
    vec![
        Fact::Joined(vcpu, Box::new(everywhere)),
        Fact::TermsChanged(vcpu, Box::new(there)),
        Fact::Left(vcpu),
        Fact::Woke(vcpu),
        Fact::Blocked(vcpu),
        Fact::Paused(vcpu),
        Fact::Yielded(cpu),
        Fact::LimitReached(cpu),
        Fact::AlarmRang(cpu),
        Fact::Allowed(vcpu),
        Fact::Told(vcpu, Box::new(VcpuHint::Tasks(tasks))),
        Fact::Told(vcpu, Box::new(VcpuHint::Pending(pending))),
        Fact::ClockSet(Span::from_us(7)),
        Fact::Passed,
        Fact::Settled,
        Fact::Ended,
    ]
}

fn exchanges() -> Vec<Exchange> {
    let (vcpu, cpu) = (vcpu(), CpuId::new(1));
    let used = |from, to, ran| {
        let (from, to, ran) = (at(from), at(to), Span::from_ns(ran));
        CpuUse { vcpu, cpu, from, to, ran }
    };
    let run = |until, entitlement| Order::Run { cpu, vcpu, until, entitlement };
    let ordered = |order, outcome| Exchange::Ordered { order, outcome };
    let mut all: Vec<Exchange> =
        facts().into_iter().map(|fact| Exchange::Reported { now: at(2000), fact }).collect();
    all.extend([
        Exchange::Noticed(used(1000, 2000, 1000)),
        Exchange::Measured(used(1000, 1999, 3)),
        // An invalid measurement, whose end precedes its start, is recorded unchanged.
        Exchange::Measured(used(2000, 1000, u64::MAX)),
        ordered(run(None, Entitlement::Due), Outcome::Done),
        ordered(run(Some(at(2500)), Entitlement::Arrears), Outcome::Refused),
        ordered(run(Some(Time::NEVER), Entitlement::Spare), Outcome::Done),
        ordered(Order::Idle { cpu }, Outcome::Done),
        ordered(Order::Idle { cpu }, Outcome::Refused),
        Exchange::AlarmSet { cpu, alarm: Some(at(1)) },
        Exchange::AlarmSet { cpu, alarm: None },
        Exchange::Declined,
    ]);
    all
}

fn entries() -> Vec<Entry> {
    let mut all = vec![Entry::Named(named(0, at(0), "web.1"))];
    all.extend(exchanges().into_iter().map(Entry::Exchange));
    all.push(Entry::Named(named(70_000, at(4), "late")));
    all.push(Entry::Note(Note { name: "kernel".into(), text: "6.18".into() }));
    all.extend((0..5).map(|number| Entry::HostThread(Box::new(host_thread(number)))));
    all.extend(records_of_host().into_iter().map(Entry::Record));
    all.extend(records().into_iter().chain(jobs()).map(Entry::Record));
    all
}

fn written(entries: &[Entry]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, &header());
    entries.iter().for_each(|entry| entry.pass_to(&mut writer));
    writer.finish().expect("writing to memory cannot fail");
    file
}

/// Returns a recording with a checkpoint after each entry, and the offset of the end of each entry.
fn recorded(entries: &[Entry]) -> (Vec<u8>, Vec<usize>) {
    let recorded = |entries: &[Entry], is_finished: bool| {
        let mut file = Vec::new();
        let mut writer = Writer::recording(&mut file, &header());
        for entry in entries {
            entry.pass_to(&mut writer);
            writer.checkpoint().expect("writing to memory cannot fail");
        }
        if is_finished {
            writer.finish().expect("writing to memory cannot fail");
        }
        file
    };
    // A checkpoint has a tag and eight bytes.
    let ends = (1..=entries.len()).map(|count| recorded(&entries[..count], false).len() - 9);
    (recorded(entries, true), ends.collect())
}

fn read(file: &[u8]) -> Result<(Header, Vec<Entry>), ReadError> {
    read_from(file)
}

fn read_from(input: impl Read + Send) -> Result<(Header, Vec<Entry>), ReadError> {
    let mut reader = Reader::new(input)?;
    let mut entries: Vec<Entry> = Vec::new();
    reader.pass_to(&mut entries)?;
    Ok((reader.header().clone(), entries))
}

#[test]
fn trace_entries_are_unchanged_if_written_and_read() {
    assert_eq!(
        read(&written(&entries())).expect("a complete trace is read"),
        (header(), entries())
    );
}

/// Input that returns one byte at a time and is interrupted after each byte.
struct Interrupted<'a> {
    bytes: &'a [u8],
    is_ready: bool,
}

impl Read for Interrupted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.is_ready = !self.is_ready;
        if self.is_ready {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let length = buffer.len().min(1);
        self.bytes.read(&mut buffer[..length])
    }
}

#[test]
fn trace_read_bytewise_has_the_same_entries_and_errors() {
    let file = written(&entries());
    let is_same = |bytes: &[u8]| {
        let input = Interrupted { bytes, is_ready: false };
        let (whole, parts) = (read(bytes), read_from(input));
        assert_eq!(format!("{parts:?}"), format!("{whole:?}"));
    };
    is_same(&file);
    for at in (0..file.len()).step_by(5) {
        is_same(&file[..at]);
        // Several changed bytes in a row make a number longer than ten bytes.
        let damaged = file.iter().enumerate();
        let damaged = damaged.map(|(n, byte)| byte | if n / 12 == at / 12 { 0x80 } else { 0 });
        is_same(&damaged.collect::<Vec<u8>>());
    }
}

#[test]
fn trace_of_aborted_run_is_readable_up_to_last_entry() {
    let entries = &entries()[..5];
    assert_eq!(read(&written(entries)).expect("a complete trace is read").1, entries);
}

#[test]
fn trace_records_a_timer_only_if_its_time_has_changed() {
    let set = |alarm| Entry::Exchange(Exchange::AlarmSet { cpu: CpuId::new(0), alarm });
    let (off, one, two) = (set(None), set(Some(at(1))), set(Some(at(2))));
    let told = [&off, &one, &one, &two, &two, &off, &off].map(Clone::clone);
    let kept = [one, two, off];
    assert_eq!(read(&written(&told)).expect("a complete trace is read").1, kept);
}

#[test]
fn trace_record_refers_to_vcpu_last_named_for_its_slot() {
    let (first, second) = (vcpu(), VcpuId::new(0, DomId::new(9), 0));
    let next = VcpuName { at: at(7), vcpu: second, name: "next".into(), domain: "next".into() };
    let told = [
        Entry::Named(named(0, at(0), "web.1")),
        Entry::Record(Record::Woke { at: at(1), vcpu: first }),
        Entry::Named(next),
        Entry::Record(Record::Woke { at: at(8), vcpu: second }),
    ];
    assert_eq!(read(&written(&told)).expect("a complete trace is read").1, told);
}

#[test]
fn unknown_vcpu_or_cpu_error_contains_the_trace_entry_number() {
    let stranger = VcpuId::new(5, DomId::new(0), 0);
    let known = Entry::Named(named(0, at(0), "web.1"));
    let told = [known, Entry::Record(Record::Woke { at: at(1), vcpu: stranger })];
    let error = read(&written(&told)).expect_err("no vCPU has that slot");
    assert!(matches!(error, ReadError::UnknownVcpu { entry: 1, slot: 5 }), "{error}");
    let cpu = CpuId::new(2);
    let told = [Entry::Record(Record::RangLate { at: at(1), cpu, late: Span::ZERO })];
    let error = read(&written(&told)).expect_err("there is no such CPU");
    assert!(matches!(error, ReadError::UnknownCpu { entry: 0, cpu: 2, cpus: 2 }), "{error}");
}

/// Returns the FNV-1a checksum of 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Removes the index and the header flag for the index. The caller must correct the checksum.
fn without_index(written: &mut Vec<u8>) {
    let (length, rest) = written.split_last_chunk::<8>().map(|(all, it)| (*it, all.len())).unwrap();
    written.truncate(rest + 8 - usize::try_from(u64::from_le_bytes(length)).unwrap());
    // Flags: blocks are known, dispatch overhead is counted, an index follows. Then 2 us.
    let flags = [1 | 4 | 32, 0xd0, 0x0f];
    let at = written.windows(3).position(|it| it == flags).expect("the header has these flags");
    written[at] &= !32;
}

/// A version 4 trace reads like a version 6 trace that has no overhead and no index.
#[test]
fn version_4_trace_is_read_as_trace_without_overhead() {
    let mut header = header();
    header.knows.overhead = false;
    let mut written = Vec::new();
    let mut writer = Writer::new(&mut written, &header);
    let named = named(0, at(0), "web");
    writer.named(&named);
    writer.record(&Record::Joined { at: at(0), vcpu: named.vcpu });
    writer.record(&Record::Ended { at: at(5) });
    writer.finish().expect("writing to memory cannot fail");
    without_index(&mut written);
    written[b"slackline-trace-".len()] = b'4';
    let end = written.len() - 8;
    let sum = checksum(&written[..end]);
    written[end..].copy_from_slice(&sum.to_le_bytes());
    let (found, entries) = read(&written).expect("a trace of version 4 is read");
    assert_eq!((found, entries.len()), (header, 3));
}

/// Cuts a recording at every byte. All entries that are complete before the cut are read.
#[test]
fn recording_cut_at_any_byte_is_readable_up_to_cut() {
    let all = entries();
    let (file, ends) = recorded(&all);
    let whole = file.len();
    let mut most = 0;
    for end in 0..=whole {
        let Ok(mut reader) = Reader::new(&file[..end]) else {
            assert_eq!(most, 0, "a prefix with a header is read");
            continue;
        };
        let mut entries: Vec<Entry> = Vec::new();
        reader.pass_to(&mut entries).expect("a prefix is read");
        assert_eq!(entries, all[..entries.len()], "cut at {end}");
        let complete = ends.iter().filter(|&&it| it <= end).count();
        assert_eq!((entries.len(), reader.is_cut()), (complete, end < whole), "cut at {end}");
        most = entries.len();
    }
    assert_eq!(most, all.len());
}

#[test]
fn recording_with_any_changed_byte_is_refused_or_ends_early() {
    let (file, _) = recorded(&entries());
    for at in 0..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 0x10;
        let Ok(mut reader) = Reader::new(&*damaged) else { continue };
        let mut found: Vec<Entry> = Vec::new();
        assert!(reader.pass_to(&mut found).is_err() || reader.is_cut(), "changed at {at}");
    }
}

/// The enlarged length of a text covers the rest of the recording, with its checkpoints.
#[test]
fn recording_with_an_enlarged_text_length_is_refused_as_damaged() {
    let text = "x".repeat(20_000);
    let note = Entry::Note(Note { name: "n".into(), text });
    let (mut file, _) = recorded(&[note.clone(), note]);
    let at = file.windows(4).position(|it| it == b"xxxx").expect("the note's text is in the file");
    assert_eq!(file[at - 1], 1, "the last byte of the length");
    file[at - 1] = 0x7f;
    assert!(matches!(read(&file), Err(ReadError::Damaged { entries: 0 })));
}

#[test]
fn long_text_of_an_entry_is_shortened_between_characters() {
    let name = format!("n{}", "é".repeat(40_000));
    let (file, _) = recorded(&[Entry::Note(Note { name, text: String::new() })]);
    let (_, entries) = read(&file).expect("the recording is read");
    let [Entry::Note(note)] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!(note.name, format!("n{}", "é".repeat(32_767)));
}

#[test]
fn recording_with_a_changed_byte_before_a_checkpoint_is_refused() {
    let mut file = Vec::new();
    let mut writer = Writer::recording(&mut file, &header());
    let text = "x".repeat(100);
    writer.note(&Note { name: "n".into(), text });
    writer.checkpoint().expect("writing to memory cannot fail");
    drop(writer);
    let at = file.iter().rposition(|&byte| byte == b'x').expect("the note's text is in the file");
    assert!(read(&file).is_ok());
    file[at] = b'y';
    assert!(matches!(read(&file), Err(ReadError::Damaged { entries: 1 })));
}

/// A policy that replays an event adds its periods to the time of the event.
#[test]
fn event_over_100_years_after_trace_start_is_refused() {
    let reported = |ns| Entry::Exchange(Exchange::Reported { now: at(ns), fact: Fact::Settled });
    let century = 100 * 31_536_000_000_000_000;
    assert!(read(&written(&[reported(century)])).is_ok());
    for ns in [century + 1, u64::MAX] {
        let told = [reported(1), reported(ns)];
        let refused = read(&written(&told));
        assert!(matches!(refused, Err(ReadError::Damaged { entries: 1 })), "{refused:?}");
    }
}

#[test]
fn trace_with_an_unknown_host_thread_number_is_refused() {
    let thread = HostThread { id: HostThreadId::new(1), ..host_thread(1) };
    let told = [Entry::HostThread(Box::new(thread))];
    assert!(matches!(read(&written(&told)), Err(ReadError::Damaged { entries: 0 })));
    let thread = HostThreadId::new(0);
    let told = [Entry::Record(Record::Halted { thread, from: at(0), to: at(1) })];
    assert!(matches!(read(&written(&told)), Err(ReadError::Damaged { entries: 0 })));
}

#[test]
fn unsupported_trace_version_error_contains_that_version() {
    let error = read(b"slackline-trace-2\nwhatever").expect_err("version 2 is not read");
    assert!(matches!(error, ReadError::OtherVersion { version: 2 }), "{error}");
    assert!(matches!(read(b"slackline-tracer"), Err(ReadError::NotATrace)));
    assert!(matches!(read(b"slackline-trace-3"), Err(ReadError::Truncated { entries: 0 })));
    assert!(matches!(read(b"slackline-trace-99999999999\n"), Err(ReadError::Damaged { .. })));
}

#[test]
fn trace_that_is_cut_at_any_byte_is_refused() {
    let file = written(&entries());
    for end in 0..file.len() {
        assert!(read(&file[..end]).is_err(), "cut at {end} of {}", file.len());
    }
}

#[test]
fn trace_with_an_extra_byte_at_its_end_is_refused() {
    let mut file = written(&entries());
    file.push(0);
    assert!(matches!(read(&file), Err(ReadError::Trailing { .. })));
}

#[test]
fn trace_with_any_single_byte_changed_is_refused() {
    let file = written(&entries());
    for at in 0..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 0x10;
        assert!(read(&damaged).is_err(), "changed at {at} of {}", file.len());
    }
}

#[test]
fn trace_write_error_is_returned_when_the_trace_is_finished() {
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
    assert_eq!(writer.finish().expect_err("the output is full").kind(), io::ErrorKind::StorageFull);
}

#[test]
fn trace_checksum_depends_on_records_and_the_order_of_records() {
    let sum = |entries: &[Entry], about: &[u8]| {
        let mut sum = Checksum::new(about);
        entries.iter().for_each(|entry| entry.pass_to(&mut sum));
        sum.sum()
    };
    let records = records_of_host().into_iter().chain(records()).chain(jobs());
    let records: Vec<Entry> = records.map(Entry::Record).collect();
    assert_eq!(sum(&entries(), b"it"), sum(&records, b"it"));
    assert_ne!(sum(&records, b"it"), sum(&records, b"that"));
    let mut turned = records.clone();
    turned.swap(0, 1);
    assert_ne!(sum(&records, b"it"), sum(&turned, b"it"));
}
