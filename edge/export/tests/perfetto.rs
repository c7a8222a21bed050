//! Tests that a Perfetto file agrees with the records of the trace. Files are decoded by a reader
//! in this test and by Perfetto's own package.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Command;

use prost::Message as _;
use slackline_export::Perfetto;
use slackline_export::proto::{FtraceEvent, TYPE_INSTANT, TYPE_SLICE_BEGIN, TYPE_SLICE_END, Trace};
use slackline_trace::{Header, Knowledge, RanEnd, Record, Sink, VcpuName};
use slackline_units::{CpuId, DomId, Enforcement, Reservation, Span, Time, VcpuId};

const WEB_0: VcpuId = VcpuId::new(0, DomId::new(1), 0);
const WEB_1: VcpuId = VcpuId::new(1, DomId::new(1), 1);
const BATCH: VcpuId = VcpuId::new(2, DomId::new(2), 0);

fn header() -> Header {
    Header {
        title: "two CPUs, three vCPUs".into(),
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

/// Starts a file in which every vCPU has a name already.
fn begun<W: std::io::Write>(out: W) -> Perfetto<W> {
    let mut perfetto = Perfetto::new(out, &header());
    let names = [(WEB_0, "web.0", "web"), (WEB_1, "web.1", "web"), (BATCH, "batch", "batch")];
    for (vcpu, name, domain) in names {
        perfetto.named(&VcpuName { at: at(0), vcpu, name: name.into(), domain: domain.into() });
    }
    perfetto
}

fn at(us: u64) -> Time {
    Time::from_ns(us * 1000)
}

fn ran(vcpu: VcpuId, cpu: usize, us: std::ops::Range<u64>, end: RanEnd) -> Record {
    let (from, to) = (at(us.start), at(us.end));
    let cpu = CpuId::new(cpu);
    let due = vcpu != BATCH;
    Record::Ran { vcpu, cpu, from, to, used: to - from, granted: None, late: Span::ZERO, end, due }
}

/// Returns the record of a run interval, changed from reserved time to slack.
fn spare(record: Record) -> Record {
    let Record::Ran { vcpu, cpu, from, to, used, late, end, .. } = record else {
        panic!("{record:?} is not a stretch")
    };
    Record::Ran { vcpu, cpu, from, to, used, granted: None, late, end, due: false }
}

/// Returns records in the order in which a host writes them. A run interval is recorded when it
/// ends.
fn records() -> Vec<Record> {
    use RanEnd::{Blocked, Limit, Over, Preempted};
    let reservation = Reservation::new(Span::from_ms(4), Span::from_ms(10)).ok();
    let woke = |us, vcpu| Record::Woke { at: at(us), vcpu };
    let blocked = |us, vcpu| Record::Blocked { at: at(us), vcpu };
    vec![
        Record::Promised {
            at: at(0),
            vcpu: WEB_0,
            reservation,
            exact: false,
            phase: None,
            by: Enforcement::Dispatcher,
        },
        woke(1000, WEB_0),
        woke(2000, BATCH),
        woke(3000, WEB_1),
        // The wake-up that causes a preemption is written before the run interval that the
        // preemption ends.
        ran(BATCH, 1, 2000..3000, Preempted),
        Record::RangLate { at: at(4003), cpu: CpuId::new(0), late: Span::from_us(3) },
        ran(WEB_0, 0, 1000..4000, Limit),
        spare(ran(WEB_0, 0, 4000..5000, Preempted)),
        ran(WEB_1, 1, 3000..6000, Blocked),
        blocked(6000, WEB_1),
        woke(7000, WEB_1),
        ran(WEB_0, 1, 6000..7500, Limit),
        ran(WEB_0, 1, 7500..8000, Limit),
        // Two vCPUs swap their CPUs at one time.
        ran(BATCH, 0, 5000..9000, Preempted),
        ran(WEB_1, 1, 8000..9000, Preempted),
        ran(WEB_1, 0, 9000..10_000, Blocked),
        Record::Job {
            vcpu: WEB_1,
            task: None,
            client: None,
            released: at(7000),
            deadline: at(9500),
            done: at(10_000),
        },
        Record::Job {
            vcpu: WEB_1,
            task: None,
            client: None,
            released: at(7000),
            deadline: at(10_500),
            done: at(10_000),
        },
        blocked(10_000, WEB_1),
        // The vCPU blocks and wakes at the same time.
        woke(10_000, WEB_1),
        Record::Refused { at: at(10_000), vcpu: WEB_1, cpu: CpuId::new(0) },
        ran(BATCH, 1, 9000..11_000, Over),
        Record::Left { at: at(11_000), vcpu: BATCH },
        ran(WEB_1, 0, 10_500..12_000, Over),
        Record::Ended { at: at(12_000) },
    ]
}

/// Expected contents of the file. If a vCPU migrates without a gap, its start is shown a nanosecond
/// later.
const EXPECTED: &str = "\
process 1000 web
thread 1000 1000 web.0
thread 1000 1001 web.1
process 1002 batch
thread 1002 1002 batch
slice 0 web.0 1000000 4000000 R 2
slice 0 web.0 4000000 5000000 R 120
slice 0 batch 5000000 9000000 R 120
slice 0 web.1 9000001 10000000 S 2
slice 0 web.1 10500000 12000000 R 2
slice 1 batch 2000001 3000000 R 120
slice 1 web.1 3000001 6000000 S 2
slice 1 web.0 6000000 8000000 R 2
slice 1 web.1 8000000 9000000 R 2
slice 1 batch 9000001 11000000 S 120
waking 0 web.0 1000000
waking 0 batch 2000000
waking 0 web.1 3000000
waking 0 web.1 10000000
waking 1 web.1 7000000
event web.0 0 promised
count timer lateness cpu0 4000000 3000
count timer lateness cpu0 4003000 0
event web.1 10000000 deadline missed
event web.1 10000000 refused
event batch 11000000 left
";

fn encode(records: &[Record]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut perfetto = begun(&mut file);
    for record in records {
        perfetto.record(record);
    }
    perfetto.finish().expect("writing to a vector succeeds");
    file
}

#[test]
fn perfetto_file_contains_the_events_of_the_trace_records() {
    assert_eq!(decode(&encode(&records())), EXPECTED);
}

#[test]
fn perfetto_file_can_be_decoded_by_the_official_python_package() {
    let Ok(python) = std::env::var("SLACKLINE_PYTHON") else {
        eprintln!("skipped: needs PyPI perfetto; set SLACKLINE_PYTHON, ./test does");
        return;
    };
    let mut file = tempfile::NamedTempFile::new().expect("a file can be made");
    file.write_all(&encode(&records())).expect("a file can be written");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/decode.py");
    let output = Command::new(python).arg(script).arg(file.path()).output().expect("Python runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "decode.py: {complaint}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), EXPECTED);
}

#[test]
fn perfetto_file_shows_successive_vcpus_of_one_slot_separately() {
    let late = VcpuId::new(0, DomId::new(9), 0);
    let mut file = Vec::new();
    let mut perfetto = begun(&mut file);
    perfetto.record(&Record::Left { at: at(1), vcpu: WEB_0 });
    let (name, domain) = ("late".to_string(), "late".to_string());
    perfetto.named(&VcpuName { at: at(2), vcpu: late, name, domain });
    perfetto.record(&Record::Left { at: at(3), vcpu: late });
    perfetto.finish().expect("writing to a vector succeeds");
    let text = decode(&file);
    for line in ["process 1003 late", "event web.0 1000 left", "event late 3000 left"] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn perfetto_file_places_zero_length_block_before_wake_event() {
    let trace = Trace::decode(&encode(&records())[..]).expect("a trace");
    let bundles = trace.packet.iter().filter_map(|packet| packet.ftrace_events.as_ref());
    let events = bundles.filter(|bundle| bundle.cpu == 0).flat_map(|bundle| &bundle.event);
    let told: Vec<_> = events
        .filter(|event| event.timestamp == 10_000_000)
        .map(|event| if event.sched_switch.is_some() { "switch" } else { "waking" })
        .collect();
    assert_eq!(told, ["switch", "waking"]);
}

/// The histories are random and have many events at equal times. `decode` fails if events are out
/// of order.
#[test]
fn perfetto_events_are_in_time_order_for_random_histories() {
    for seed in 0..50 {
        let mut story = Story::new(seed);
        for _ in 0..1000 {
            story.go_on();
        }
        let stretches = story.records.iter().filter_map(|record| match *record {
            Record::Ran { used, .. } => Some(used.ns()),
            _ => None,
        });
        let (count, told) = stretches.fold((0, 0), |(count, sum), ns| (count + 1, sum + ns));
        let text = decode(&encode(&story.records));
        let shown = text.lines().filter(|line| line.starts_with("slice")).map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            words[4].parse::<u64>().unwrap() - words[3].parse::<u64>().unwrap()
        });
        // In the file, a run interval is shorter by at most a nanosecond.
        let shown: u64 = shown.sum();
        assert!(shown <= told && told <= shown + count, "seed {seed}: {told} told, {shown} shown");
    }
}

/// State of a simulated host with random events.
struct Story {
    chance: u64,
    now: u64,
    on: [Option<(VcpuId, u64)>; 2],
    ready: Vec<VcpuId>,
    asleep: Vec<VcpuId>,
    records: Vec<Record>,
}

impl Story {
    fn new(seed: u64) -> Story {
        let asleep = vec![WEB_0, WEB_1, BATCH];
        let (ready, records) = (Vec::new(), Vec::new());
        Story { chance: seed, now: 0, on: [None; 2], ready, asleep, records }
    }

    /// Returns a pseudo-random number below `limit`, from Knuth's linear congruential generator.
    fn draw(&mut self, limit: usize) -> usize {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005);
        self.chance = self.chance.wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.chance >> 33).unwrap() % limit
    }

    fn go_on(&mut self) {
        self.now += self.draw(2) as u64;
        let cpu = self.draw(2);
        match (self.draw(3), self.on[cpu]) {
            (0, _) if !self.asleep.is_empty() => {
                let index = self.draw(self.asleep.len());
                let vcpu = self.asleep.swap_remove(index);
                self.records.push(Record::Woke { at: at(self.now), vcpu });
                self.ready.push(vcpu);
            }
            (1, Some((vcpu, from))) => {
                self.stop(vcpu, cpu, from, RanEnd::Blocked);
                self.records.push(Record::Blocked { at: at(self.now), vcpu });
                self.asleep.push(vcpu);
            }
            (_, Some((vcpu, from))) => {
                self.stop(vcpu, cpu, from, RanEnd::Preempted);
                self.ready.push(vcpu);
            }
            (_, None) if !self.ready.is_empty() => {
                let index = self.draw(self.ready.len());
                self.on[cpu] = Some((self.ready.swap_remove(index), self.now));
            }
            _ => {}
        }
    }

    /// Ends a run interval and records it, unless its length is zero.
    fn stop(&mut self, vcpu: VcpuId, cpu: usize, from: u64, end: RanEnd) {
        self.on[cpu] = None;
        if from < self.now {
            self.records.push(ran(vcpu, cpu, from..self.now, end));
        }
    }
}

/// The exporter writes while records arrive, so its memory does not grow with the length of the
/// run.
#[test]
fn perfetto_export_memory_does_not_grow_with_trace_length() {
    let written = std::cell::Cell::new(0);
    let mut perfetto = begun(Counted(&written));
    let mut most_held = 0;
    for turn in 0..100_000 {
        let us = turn * 10;
        perfetto.record(&Record::Woke { at: at(us), vcpu: WEB_0 });
        perfetto.record(&ran(WEB_0, 0, us..us + 5, RanEnd::Blocked));
        perfetto.record(&Record::Blocked { at: at(us + 5), vcpu: WEB_0 });
        // Each run interval has three events of at least 30 bytes.
        most_held = most_held.max((turn * 90).saturating_sub(written.get()));
    }
    perfetto.finish().expect("counting cannot fail");
    assert!(most_held < 100_000, "{most_held} bytes held back");
}

struct Counted<'a>(&'a std::cell::Cell<u64>);

impl std::io::Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.set(self.0.get() + bytes.len() as u64);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Decodes a file into the lines that `decode.py` prints.
fn decode(file: &[u8]) -> String {
    let trace = Trace::decode(file).expect("a trace");
    let mut text = String::new();
    for tree in trace.packet.iter().filter_map(|packet| packet.process_tree.as_ref()) {
        for process in &tree.processes {
            writeln!(text, "process {} {}", process.pid, process.cmdline[0]).unwrap();
        }
        for thread in &tree.threads {
            writeln!(text, "thread {} {} {}", thread.tgid, thread.tid, thread.name).unwrap();
        }
    }
    let mut cpus: BTreeMap<u32, Vec<&FtraceEvent>> = BTreeMap::new();
    for bundle in trace.packet.iter().filter_map(|packet| packet.ftrace_events.as_ref()) {
        assert!(bundle.event.is_sorted_by_key(|event| event.timestamp), "cpu{}", bundle.cpu);
        cpus.entry(bundle.cpu).or_default().extend(&bundle.event);
    }
    for (cpu, events) in &mut cpus {
        events.sort_by_key(|event| event.timestamp);
        slices(*cpu, events, &mut text);
    }
    for (cpu, events) in &cpus {
        for event in events {
            if let Some(waking) = &event.sched_waking {
                writeln!(text, "waking {cpu} {} {}", waking.comm, event.timestamp).unwrap();
            }
        }
    }
    tracks(&trace, &mut text);
    text
}

fn slices(cpu: u32, events: &[&FtraceEvent], text: &mut String) {
    let switches = events
        .iter()
        .filter_map(|event| event.sched_switch.as_ref().map(|switch| (event.timestamp, switch)));
    let switches: Vec<_> = switches.collect();
    for pair in switches.windows(2) {
        let [(start, on), (end, off)] = pair else { unreachable!("windows of two") };
        assert_eq!(on.next_pid, off.prev_pid, "cpu{cpu} at {end}");
        if on.next_pid != 0 {
            let state = if off.prev_state == 0 { "R" } else { "S" };
            let (name, prio) = (&on.next_comm, on.next_prio);
            writeln!(text, "slice {cpu} {name} {start} {end} {state} {prio}").unwrap();
        }
    }
    let last = switches.last().map(|(_, switch)| switch.next_pid);
    assert_eq!(last, Some(0), "cpu{cpu} is idle in the end");
}

fn tracks(trace: &Trace, text: &mut String) {
    let mut names = BTreeMap::new();
    for packet in &trace.packet {
        if let Some(track) = &packet.track_descriptor {
            let thread = track.thread.as_ref().map(|thread| thread.thread_name.clone());
            names.insert(track.uuid, thread.or(track.name.clone()).expect("a track has a name"));
        }
        if let Some(event) = &packet.track_event {
            let name = &names[&event.track_uuid];
            let at = packet.timestamp.expect("an event has a time");
            if event.r#type == TYPE_INSTANT {
                let what = event.name.as_ref().expect("an event has a name");
                writeln!(text, "event {name} {at} {what}").unwrap();
            } else {
                let value = event.counter_value.expect("a counter has a value");
                writeln!(text, "count {name} {at} {value}").unwrap();
            }
        }
    }
}

#[test]
fn perfetto_file_shows_each_wait_with_its_cause() {
    let mut bytes = Vec::new();
    let mut perfetto = begun(&mut bytes);
    let part = |us: std::ops::Range<u64>, cause: &str| (at(us.start), at(us.end), cause.into());
    // The parts are not in order of time. Adjacent parts with the same cause become one event.
    let parts = vec![
        part(5..9, "batch"),
        part(1..2, "process hog"),
        part(2..4, "process hog"),
        part(8..9, "late timer"),
        part(9..10, "late timer"),
    ];
    perfetto.waits(WEB_1, "web.1", parts);
    perfetto.finish().expect("a vector has room");
    let trace = Trace::decode(bytes.as_slice()).expect("a valid file");
    let track = trace.packet.iter().find_map(|packet| {
        let track = packet.track_descriptor.as_ref()?;
        (track.name.as_deref() == Some("web.1 waits for")).then_some(track.uuid)
    });
    let track = track.expect("a track of waits");
    let events = trace.packet.iter().filter_map(|packet| {
        let event = packet.track_event.as_ref().filter(|event| event.track_uuid == track)?;
        Some((packet.timestamp? / 1_000, event.r#type, event.name.clone().unwrap_or_default()))
    });
    let expected = [
        (1, TYPE_SLICE_BEGIN, "process hog"),
        (4, TYPE_SLICE_END, ""),
        (5, TYPE_SLICE_BEGIN, "batch"),
        (9, TYPE_SLICE_END, ""),
        (9, TYPE_SLICE_BEGIN, "late timer"),
        (10, TYPE_SLICE_END, ""),
    ];
    let expected = expected.map(|(us, kind, name)| (us, kind, name.to_owned()));
    assert_eq!(events.collect::<Vec<_>>(), expected);
}
