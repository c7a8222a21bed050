//! Tests of the conversion of context switches and wake-ups to trace records. The tests supply the
//! events.

use std::collections::{BTreeMap, BTreeSet};

use slackline_linux::sys::{Tid, own_tid};
use slackline_live::recorder::assembler::{Assembler, RecordedVcpu};
use slackline_live::recorder::growing::GrowingVm;
use slackline_live::recorder::host::follow;
use slackline_live::recorder::identity::{Identify, Identity, Procfs};
use slackline_live::recorder::offline::OfflineCpus;
use slackline_live::session::SessionThread;
use slackline_live::watch::{Event, ThreadEventKind};
use slackline_trace::{Entry, HostThread, HostThreadKind, OffCpu, RanEnd, Record, WakeMark};
use slackline_units::{CpuId, CpuSet, DomId, Enforcement, Span, Time, VcpuId};

const WEB: VcpuId = VcpuId::new(0, DomId::new(0), 0);
const DB: VcpuId = VcpuId::new(1, DomId::new(0), 1);
const ORIGIN: Time = Time::from_ns(1_000_000_000);

/// Source of invented thread identities. Each thread is its own process.
struct Numbered;

impl Identify for Numbered {
    fn identify(&mut self, tid: Tid) -> Identity {
        Identity {
            kind: HostThreadKind::Process,
            process: Some(tid),
            user: 0,
            name: format!("thread {tid}"),
            command: format!("process {tid}"),
            vm: String::new(),
            group: String::new(),
        }
    }
}

/// Source of thread identities that gives a thread another name at each reading.
struct Renamed(u32);

impl Identify for Renamed {
    fn identify(&mut self, tid: Tid) -> Identity {
        self.0 += 1;
        Identity { name: format!("reading {}", self.0), ..Numbered.identify(tid) }
    }
}

/// Returns a thread id that no thread of the test machine has.
fn tid(number: i32) -> Tid {
    Tid::new(i32::MAX - number).expect("above zero")
}

fn at(us: u64) -> Time {
    ORIGIN + Span::from_us(us)
}

fn of_trace(us: u64) -> Time {
    Time::START + Span::from_us(us)
}

fn event(us: u64, number: i32, cpu: usize, what: ThreadEventKind) -> Event {
    Event { at: at(us), tid: tid(number), cpu: CpuId::new(cpu), what }
}

const IN: ThreadEventKind = ThreadEventKind::SwitchedIn;
const BLOCKS: ThreadEventKind = ThreadEventKind::SwitchedOut { ready: false };
const LOSES: ThreadEventKind = ThreadEventKind::SwitchedOut { ready: true };

/// Returns the records made from these events of the host's CPU 3, which is CPU 0 of the trace.
fn records(events: &[Event], end: u64) -> Vec<Entry> {
    let cpus = [(CpuId::new(3), CpuId::new(0))];
    let mut assembler = Assembler::new(ORIGIN, cpus, (WakeMark::Waking, Numbered));
    let mut entries: Vec<Entry> = Vec::new();
    let (name, domain, by) = ("web.0".into(), "web".into(), Enforcement::Deadline);
    let web = RecordedVcpu { tid: tid(0), vcpu: WEB, name, domain, by, is_of_tree: false };
    assembler.begin(vec![web], &mut entries);
    assembler.take(events, &mut entries);
    assembler.finish(at(end), &mut entries);
    entries
}

fn on_cpu(entries: &[Entry]) -> Vec<(u32, u64, u64, OffCpu)> {
    let of = |entry: &Entry| match *entry {
        Entry::Record(Record::OnCpu { thread, from, to, end, .. }) => {
            let us = |at: Time| at.since(Time::START).ns() / 1_000;
            Some((thread.number(), us(from), us(to), end))
        }
        _ => None,
    };
    entries.iter().filter_map(of).collect()
}

fn has(entries: &[Entry], record: Record) -> bool {
    entries.contains(&Entry::Record(record))
}

#[test]
fn recorder_converts_switch_and_wake_events_into_run_intervals() {
    let entries = records(
        &[
            event(10, 1, 3, IN),
            event(20, 0, 1, ThreadEventKind::Woke),
            event(30, 1, 3, LOSES),
            event(31, 0, 3, IN),
            event(90, 0, 3, BLOCKS),
            event(91, 1, 3, IN),
        ],
        200,
    );
    let expected =
        [(1, 10, 30, OffCpu::Ready), (0, 31, 90, OffCpu::Blocked), (1, 91, 200, OffCpu::Unknown)];
    assert_eq!(on_cpu(&entries), expected);
    assert!(has(&entries, Record::Woke { at: of_trace(20), vcpu: WEB }));
    assert!(has(&entries, Record::Blocked { at: of_trace(90), vcpu: WEB }));
    let (from, to, cpu) = (of_trace(31), of_trace(90), CpuId::new(0));
    let (used, granted, late, due) = (to - from, None, Span::ZERO, false);
    let end = RanEnd::Blocked;
    assert!(has(&entries, Record::Ran { vcpu: WEB, cpu, from, to, used, granted, late, end, due }));
    assert_eq!(entries.last(), Some(&Entry::Record(Record::Ended { at: of_trace(200) })));
}

#[test]
fn thread_first_seen_switching_out_ran_since_trace_start() {
    let entries = records(&[event(40, 7, 3, LOSES), event(41, 0, 3, IN)], 100);
    assert_eq!(on_cpu(&entries)[0], (1, 0, 40, OffCpu::Ready));
}

#[test]
fn recorder_adds_missing_wake_when_thread_starts_to_run() {
    let entries = records(&[event(50, 0, 3, IN), event(60, 0, 3, BLOCKS)], 100);
    assert!(has(&entries, Record::Woke { at: of_trace(50), vcpu: WEB }));
}

#[test]
fn wake_event_just_before_block_event_still_ends_the_block() {
    let during = [
        event(10, 0, 3, IN),
        event(58, 0, 1, ThreadEventKind::Woke),
        event(60, 0, 3, BLOCKS),
        event(80, 0, 3, IN),
    ];
    assert!(has(&records(&during, 100), Record::Woke { at: of_trace(60), vcpu: WEB }));
    // A wake-up long before the block does not end the block.
    let before = [
        event(100, 0, 3, IN),
        event(200, 0, 1, ThreadEventKind::Woke),
        event(600, 0, 3, BLOCKS),
        event(800, 0, 3, IN),
    ];
    assert!(has(&records(&before, 900), Record::Woke { at: of_trace(800), vcpu: WEB }));
}

#[test]
fn run_interval_with_lost_end_ends_at_next_thread_switch() {
    let entries = records(&[event(10, 5, 3, IN), event(40, 6, 3, IN), event(50, 6, 3, BLOCKS)], 60);
    let expected = [(1, 10, 40, OffCpu::Unknown), (2, 40, 50, OffCpu::Blocked)];
    assert_eq!(on_cpu(&entries), expected);
}

#[test]
fn recorder_distinguishes_ended_thread_from_new_thread_with_same_id() {
    let events = [
        event(10, 5, 3, IN),
        event(20, 5, 3, ThreadEventKind::Ending),
        event(21, 5, 3, BLOCKS),
        event(30, 5, 3, IN),
    ];
    let entries = records(&events, 60);
    let threads: Vec<&HostThread> = entries
        .iter()
        .filter_map(|entry| if let Entry::HostThread(it) = entry { Some(&**it) } else { None })
        .collect();
    assert_eq!(threads.len(), 3);
    assert_eq!((threads[0].kind, threads[0].vcpu), (HostThreadKind::Vcpu, Some(WEB)));
    assert_eq!(on_cpu(&entries).iter().map(|it| it.0).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn recorder_rereads_thread_names_while_the_threads_run() {
    let cpus = [(CpuId::new(3), CpuId::new(0))];
    let mut assembler = Assembler::new(ORIGIN, cpus, (WakeMark::Waking, Renamed(0)));
    let mut entries: Vec<Entry> = Vec::new();
    assembler.begin(Vec::new(), &mut entries);
    let second = |nth: u64| {
        let us = nth * 1_000_000;
        [event(us + 10, 1, 3, IN), event(us + 500, 1, 3, BLOCKS)]
    };
    let events: Vec<Event> = (0..=191).flat_map(second).collect();
    assembler.take(&events, &mut entries);
    // The readings are at 0, 1, 3, 7, 15, 31, 63, 127 and 191 s.
    let names = entries.iter().filter(|entry| matches!(entry, Entry::HostThread(_)));
    assert_eq!(names.count(), 9);
}

#[test]
fn recorder_omits_run_intervals_but_keeps_wakes_of_unmanaged_cpus() {
    let entries = records(&[event(10, 5, 1, IN), event(20, 0, 1, ThreadEventKind::Woke)], 60);
    assert_eq!(on_cpu(&entries), []);
    assert!(has(&entries, Record::Woke { at: of_trace(20), vcpu: WEB }));
}

/// A session does not see that the vCPU runs on CPU 1, to which it was woken.
#[test]
fn wake_to_unmanaged_cpu_starts_no_wait_of_session_vcpu() {
    let cpus = [(CpuId::new(3), CpuId::new(0))];
    let mut assembler = Assembler::new(ORIGIN, cpus, (WakeMark::Wakeup, Numbered));
    let (name, domain, by) = ("web.0".into(), "web".into(), Enforcement::Dispatcher);
    let is_of_tree = false;
    assembler.know(RecordedVcpu { tid: tid(0), vcpu: WEB, name, domain, by, is_of_tree });
    let mut entries: Vec<Entry> = Vec::new();
    let events = [
        event(20, 0, 1, ThreadEventKind::Woke),
        event(500, 0, 3, IN),
        event(600, 0, 3, BLOCKS),
        event(700, 0, 3, ThreadEventKind::Woke),
        event(710, 0, 3, IN),
    ];
    assembler.take(&events, &mut entries);
    let awoken = entries.iter().filter_map(|entry| match entry {
        Entry::Record(Record::Awoken { at, .. }) => Some(*at),
        _ => None,
    });
    assert_eq!(awoken.collect::<Vec<_>>(), [of_trace(500), of_trace(700)]);
}

#[test]
fn open_run_interval_is_divided_when_recording_is_split() {
    let cpus = [(CpuId::new(3), CpuId::new(0))];
    let mut assembler = Assembler::new(ORIGIN, cpus, (WakeMark::Wakeup, Numbered));
    let mut entries: Vec<Entry> = Vec::new();
    assembler.take(&[event(10, 1, 3, IN)], &mut entries);
    assembler.split(at(60), Span::from_us(51), &mut entries);
    assert_eq!(on_cpu(&entries), [], "the interval is shorter than 51 us");
    assembler.split(at(60), Span::ZERO, &mut entries);
    assembler.split(at(60), Span::ZERO, &mut entries);
    assembler.take(&[event(90, 1, 3, BLOCKS)], &mut entries);
    let expected = [(0, 10, 60, OffCpu::Unknown), (0, 60, 90, OffCpu::Blocked)];
    assert_eq!(on_cpu(&entries), expected);
}

/// Returns the number, the kind and the vCPU of each thread, in the order in which the entries
/// identify them.
fn identified(entries: &[Entry]) -> Vec<(i32, HostThreadKind, Option<VcpuId>)> {
    let of = |entry: &Entry| match entry {
        Entry::HostThread(it) => Some((i32::MAX - it.tid.cast_signed(), it.kind, it.vcpu)),
        _ => None,
    };
    entries.iter().filter_map(of).collect()
}

#[test]
fn threads_that_a_process_tree_starts_belong_to_its_vcpu() {
    let other = |number| (number, HostThreadKind::Process, None);
    let of_web = |number| (number, HostThreadKind::Vcpu, Some(WEB));
    let forked = |number| ThreadEventKind::Forked { child: tid(number) };
    let cpus = [(CpuId::new(3), CpuId::new(0))];
    let mut assembler = Assembler::new(ORIGIN, cpus, (WakeMark::Waking, Numbered));
    let (name, domain, by) = ("web.0".into(), "web".into(), Enforcement::Dispatcher);
    let is_of_tree = true;
    assembler.know(RecordedVcpu { tid: tid(0), vcpu: WEB, name, domain, by, is_of_tree });
    let mut entries: Vec<Entry> = Vec::new();
    let events = [
        event(10, 0, 3, IN),
        event(11, 0, 3, forked(1)),
        event(12, 1, 3, IN),
        event(13, 1, 3, forked(2)),
        event(14, 7, 3, IN),
        event(15, 7, 3, forked(8)),
    ];
    assembler.take(&events, &mut entries);
    let expected = [of_web(0), of_web(1), of_web(2), other(7), other(8)];
    assert_eq!(identified(&entries), expected);
    // An unrelated thread gets the id of a thread that has ended without a record of its end.
    entries.clear();
    assembler.take(&[event(20, 7, 3, forked(2))], &mut entries);
    assert_eq!(identified(&entries), [other(2)]);
    // After the release of the reservation, all of its threads are threads of the host.
    entries.clear();
    assembler.forget(WEB, tid(0));
    let events = [event(30, 1, 3, IN), event(31, 1, 3, forked(3)), event(32, 0, 3, IN)];
    assembler.take(&events, &mut entries);
    assert_eq!(identified(&entries), [other(1), other(3), other(0)]);
}

/// CPU 3 of the host goes offline while thread 1 runs on it, and comes online again later.
#[test]
fn events_of_cpu_count_as_lost_after_cpu_goes_offline() {
    let (real, index) = (CpuId::new(3), CpuId::new(0));
    let mut assembler = Assembler::new(ORIGIN, [(real, index)], (WakeMark::Waking, Numbered));
    let (mut offline, mut entries) = (OfflineCpus::new(ORIGIN), Vec::<Entry>::new());
    assembler.take(&[event(10, 1, 3, IN)], &mut entries);
    let second = 1_000_000;
    for (seconds, is_online) in [(1, true), (2, false), (3, true), (4, true)] {
        let online = if is_online { CpuSet::one(real) } else { CpuSet::default() };
        let now = at(seconds * second);
        assembler.tick(now, &mut entries);
        offline.look((&mut assembler, &[real]), now, || Some(online), &mut entries);
        // A second look within the same second does nothing.
        offline.look((&mut assembler, &[real]), now, || None, &mut entries);
    }
    let last = on_cpu(&entries).into_iter().map(|(_, _, to, _)| to).max();
    assert_eq!(last, Some(2 * second), "the run interval ends when the CPU goes offline");
    let lost = entries.iter().filter_map(|entry| match entry {
        Entry::Record(Record::Lost { cpu, from, to, events }) => Some((*cpu, *from, *to, *events)),
        _ => None,
    });
    let expected =
        [1, 2, 3].map(|from| (index, of_trace(from * second), of_trace((from + 1) * second), 1));
    assert_eq!(lost.collect::<Vec<_>>(), expected);
}

/// Thread 1 ends, but the kernel reports no exit. Thread 7 is not in the cgroup. It later starts
/// another process, which gets the id 1 too.
#[test]
fn processes_started_in_recorded_cgroup_become_its_vcpus() {
    let forked = |number| ThreadEventKind::Forked { child: tid(number) };
    let names = |has_children, next| {
        let cpus = [(CpuId::new(3), CpuId::new(0))];
        let mut assembler = Assembler::new(ORIGIN, cpus, (WakeMark::Waking, Numbered));
        let (domain, name, processes) = (DomId::new(0), "web".into(), vec![tid(0)]);
        assembler.grow(GrowingVm { domain, name, next, processes, has_children });
        let (name, domain, by) = ("web.0".into(), "web".into(), Enforcement::Dispatcher);
        let web = RecordedVcpu { tid: tid(0), vcpu: WEB, name, domain, by, is_of_tree: false };
        let mut entries: Vec<Entry> = Vec::new();
        assembler.begin(vec![web], &mut entries);
        let events = [
            event(10, 0, 3, IN),
            event(11, 0, 3, forked(1)),
            event(12, 1, 3, forked(2)),
            event(13, 7, 3, forked(8)),
            event(14, 7, 3, forked(1)),
        ];
        assembler.take(&events, &mut entries);
        let named = entries.into_iter().filter_map(|entry| match entry {
            Entry::Named(named) => Some(named.name),
            _ => None,
        });
        named.collect::<Vec<String>>()
    };
    assert_eq!(names(true, 1), ["web.0", "web.1", "web.2"]);
    assert_eq!(names(false, 1), ["web.0"]);
    // There is no vCPU number left for the new processes.
    assert_eq!(names(true, u16::MAX), ["web.0"]);
}

#[test]
fn process_of_released_vm_is_recorded_as_host_process() {
    let process = own_tid();
    let mut assembler = Assembler::new(ORIGIN, [], (WakeMark::Waking, Procfs::default()));
    let names = BTreeMap::from([(WEB, ("web.0".to_owned(), "web".to_owned()))]);
    let thread = SessionThread { vcpu: WEB, tid: process, is_of_tree: false };
    let (before, now) = (BTreeSet::new(), BTreeSet::from([thread]));
    follow(&mut assembler, (&before, &now), &names);
    let found = assembler.identities().identify(process);
    assert_eq!((found.kind, found.vm.as_str()), (HostThreadKind::Monitor, "web"));
    // One of two vCPUs leaves, and the process is still the VM.
    let other = SessionThread { vcpu: DB, ..thread };
    let names = BTreeMap::from([
        (WEB, ("web.0".to_owned(), "web".to_owned())),
        (DB, ("web.1".to_owned(), "web".to_owned())),
    ]);
    follow(&mut assembler, (&BTreeSet::from([thread, other]), &now), &names);
    assert_eq!(assembler.identities().identify(process).vm, "web");
    follow(&mut assembler, (&now, &before), &names);
    let found = assembler.identities().identify(process);
    assert_eq!((found.kind, found.vm.as_str()), (HostThreadKind::Process, ""));
}
