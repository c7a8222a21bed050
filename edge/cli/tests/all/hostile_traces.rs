//! Tests that a small trace with invalid or extreme contents causes little work and needs little
//! memory. Each command ends within seconds, with a result or with an ordinary error.

use std::fs::File;
use std::process::Command;

use slackline_trace::{
    Entry, Exchange, Fact, Header, HostThread, HostThreadId, HostThreadKind, OffCpu, RanEnd,
    Record, VcpuName, WakeMark, Writer,
};
use slackline_units::{CpuId, DomId, Enforcement, Reservation, Span, Time, VcpuId};

use crate::common::{Place, Ran};

/// Longest time of a command, in seconds. The program under test is hardly optimized.
const LONGEST: &str = "30";
/// Most virtual memory of a command, in KiB.
const MOST_MEMORY: u32 = 500_000;

const CPU: CpuId = CpuId::new(0);

fn vcpu(slot: u32) -> VcpuId {
    VcpuId::new(slot, DomId::new(0), 0)
}

fn at(ns: u64) -> Time {
    Time::from_ns(ns)
}

fn named(vcpu: VcpuId, name: &str, domain: &str) -> Entry {
    let (name, domain) = (name.to_owned(), domain.to_owned());
    Entry::Named(VcpuName { at: at(0), vcpu, name, domain })
}

fn promised(at: Time, vcpu: VcpuId) -> Entry {
    let reservation = Reservation::new(Span::from_us(1), Span::from_ms(1)).ok();
    let by = Enforcement::Dispatcher;
    Entry::Record(Record::Promised { at, vcpu, reservation, exact: true, phase: None, by })
}

fn ran(vcpu: VcpuId, from: u64, to: u64) -> Entry {
    let (from, to, used) = (at(from), at(to), Span::from_ns(to - from));
    let (granted, late, end) = (None, Span::ZERO, RanEnd::Limit);
    Entry::Record(Record::Ran { vcpu, cpu: CPU, from, to, used, granted, late, end, due: true })
}

fn on_cpu(thread: u32, from: u64, to: u64, end: OffCpu) -> Entry {
    let thread = HostThreadId::new(thread);
    Entry::Record(Record::OnCpu { thread, cpu: CPU, from: at(from), to: at(to), end })
}

fn woke(thread: u32, ns: u64) -> Entry {
    let (at, thread, mark) = (at(ns), HostThreadId::new(thread), WakeMark::Waking);
    Entry::Record(Record::Awoken { at, thread, cpu: CPU, mark })
}

fn thread(number: u32) -> Entry {
    let (id, kind, vcpu) = (HostThreadId::new(number), HostThreadKind::Vcpu, vcpu(number));
    let text = || format!("vm{number}");
    Entry::HostThread(Box::new(HostThread {
        at: at(0),
        id,
        kind,
        vcpu: Some(vcpu),
        tid: number,
        process: number,
        user: 0,
        name: text(),
        command: text(),
        vm: text(),
        group: String::new(),
    }))
}

fn place(cpus: usize, entries: &[Entry]) -> Place {
    let place = Place::new();
    let file = File::create(place.path("t")).expect("a file");
    let mut writer = Writer::new(file, &Header::of_recording("", "edf", cpus, Vec::new()));
    entries.iter().for_each(|entry| entry.clone().pass_to(&mut writer));
    writer.finish().expect("a written trace");
    place
}

/// Runs the program with limits of time and memory. Fails if a signal or a panic ends the program.
#[track_caller]
fn run(place: &Place, arguments: &[&str]) -> Ran {
    let limits = format!("ulimit -v {MOST_MEMORY} && exec timeout -s KILL {LONGEST} \"$@\"");
    let (mut command, program) = (Command::new("sh"), place.command(arguments));
    command.args(["-c", &limits, "sh"]).arg(program.get_program()).args(program.get_args());
    command.current_dir(place.path(""));
    let ran = Ran::new(&command.output().expect("sh can be started"));
    assert!(matches!(ran.code, Some(0..=5)), "{arguments:?}: {:?} {}", ran.code, ran.err);
    ran
}

const TABLES: [&[&str]; 4] = [
    &["show", "t", "--table"],
    &["show", "t", "--json"],
    &["show", "t", "--xenmon"],
    &["show", "t"],
];

#[test]
fn trace_that_covers_an_impossibly_long_time_is_refused_quickly() {
    let web = named(vcpu(0), "web.0", "web");
    let joined = Entry::Record(Record::Joined { at: at(0), vcpu: vcpu(0) });
    let woke = Entry::Record(Record::Woke { at: at(0), vcpu: vcpu(0) });
    let never = Time::NEVER;
    let late = Span::ZERO;
    let used = Span::MAX;
    let centuries: [Vec<Entry>; 5] = [
        vec![Entry::Record(Record::RangLate { at: never, cpu: CPU, late }), web.clone(), joined],
        vec![Entry::Record(Record::ClockSet { at: never, ahead: late })],
        vec![Entry::Record(Record::Ended { at: at(90 * 31_536_000_000_000_000) })],
        vec![
            web.clone(),
            Entry::Record(Record::Elsewhere { vcpu: vcpu(0), from: at(0), to: at(0), used }),
        ],
        vec![Entry::Named(VcpuName {
            at: never,
            vcpu: vcpu(0),
            name: "a".into(),
            domain: "a".into(),
        })],
    ];
    for mut entries in centuries {
        entries.extend([web.clone(), woke.clone(), promised(at(0), vcpu(0)), ran(vcpu(0), 0, 9)]);
        let place = place(1, &entries);
        for arguments in &TABLES[..3] {
            run(&place, arguments).refused(2).says("cover more time than is possible");
        }
        // A timeline reads only the blocks of the trace in its window. The end of the run may come
        // long after the window.
        let ran = run(&place, TABLES[3]);
        let has_late_end = |it: &Entry| matches!(it, Entry::Record(Record::Ended { .. }));
        if !entries.iter().any(has_late_end) {
            ran.refused(2).says("cover more time than is possible");
        }
    }
}

#[test]
fn xenmon_table_of_small_trace_with_many_domains_is_refused() {
    let web = vcpu(0);
    let mut entries: Vec<Entry> =
        (0..1_000).map(|number| named(web, "web.0", &format!("web{number}"))).collect();
    let end = at(1_000_000_000_000);
    entries.extend([ran(web, 0, 9), Entry::Record(Record::Ended { at: end })]);
    let place = place(1, &entries);
    run(&place, TABLES[2]).refused(2).says("--xenmon");
    run(&place, &["show", "t", "--xenmon", "--json"]).refused(2).says("data points");
    run(&place, TABLES[0]).ended_with(0);
}

/// Each vCPU runs for the whole timeline, and so it has a part of each column.
#[test]
fn timeline_of_10000_vcpus_on_one_cpu_is_drawn_quickly() {
    const VCPUS: u32 = 10_000;
    let named = |slot: u32| named(vcpu(slot), &format!("v{slot}"), "vm");
    let mut entries: Vec<Entry> = (0..VCPUS).map(named).collect();
    entries.extend((0..VCPUS).rev().map(|slot| ran(vcpu(slot), 0, 100_000_000)));
    run(&place(1, &entries), TABLES[3]).ended_with(0).shows("v9999");
}

#[test]
fn traces_with_1000_small_vms_are_compared_quickly() {
    const VMS: u32 = 1_000;
    let mut entries = Vec::new();
    for number in 0..VMS {
        entries.push(named(vcpu(number), &format!("vm{number}.0"), &format!("vm{number}")));
    }
    for round in 0..25_u64 {
        for number in 0..VMS {
            let from = round * 40_000_000_000 + u64::from(number) * 1_000_000;
            let blocked = Record::Blocked { at: at(from + 500_000), vcpu: vcpu(number) };
            let woke = at(from.saturating_sub(20_000_000_000));
            entries.push(Entry::Record(Record::Woke { at: woke, vcpu: vcpu(number) }));
            entries.push(ran(vcpu(number), from, from + 500_000));
            entries.push(Entry::Record(blocked));
        }
    }
    run(&place(1, &entries), &["diff", "t", "t"]).ended_with(0).shows("vm999");
}

#[test]
fn replay_command_refuses_trace_with_events_centuries_apart() {
    let reported = |now| Entry::Exchange(Exchange::Reported { now, fact: Fact::Settled });
    let place = place(1, &[reported(at(0)), reported(Time::NEVER)]);
    run(&place, &["replay", "t"]).refused(2).says("the trace is damaged after 1 entries");
}

#[test]
fn trace_with_highest_possible_vcpu_slot_number_needs_little_memory() {
    let high = VcpuId::new((1 << 24) - 1, DomId::new(0), 0);
    let joined = Entry::Record(Record::Joined { at: at(0), vcpu: high });
    let place = place(1, &[named(high, "web.0", "web"), joined, ran(high, 0, 1_000_000)]);
    for arguments in TABLES {
        run(&place, arguments).ended_with(0).shows("web");
    }
}

#[test]
fn trace_with_300000_pending_reservations_is_read_quickly() {
    let web = vcpu(0);
    let joined = Entry::Record(Record::Joined { at: at(0), vcpu: web });
    let woke = Entry::Record(Record::Woke { at: at(0), vcpu: web });
    let mut entries = vec![named(web, "web.0", "web"), joined, woke];
    entries.extend((0..300_000).map(|ns| promised(at(ns), web)));
    entries.push(ran(web, 0, 1_000_000));
    run(&place(1, &entries), &["show", "t", "--table"]).ended_with(0);
}

#[test]
fn overlong_vcpu_name_is_shortened_in_tables_and_lists() {
    let web = vcpu(0);
    let joined = Entry::Record(Record::Joined { at: at(0), vcpu: web });
    let mut entries = vec![named(web, &"x".repeat(65_536), &"y".repeat(65_536)), joined];
    entries.extend((0..5_000).map(|n| ran(web, n * 1_000, n * 1_000 + 500)));
    let place = place(1, &entries);
    let listed = run(&place, &["show", "t", "--list"]).ended_with(0).out;
    assert!(listed.len() < 2_000_000, "{} bytes", listed.len());
    for arguments in TABLES {
        run(&place, arguments).ended_with(0);
    }
}

/// One vCPU waits for the whole recording, while many others run in turn.
#[test]
fn why_command_is_fast_if_one_of_1000_vcpus_starves() {
    const VCPUS: u32 = 1_000;
    let mut entries = Vec::new();
    for number in 0..VCPUS {
        entries.push(named(vcpu(number), &format!("vm{number}.0"), &format!("vm{number}")));
        entries.push(thread(number));
    }
    entries.push(woke(0, 0));
    for turn in 0..300_000_u32 {
        let (number, from) = (1 + turn % (VCPUS - 1), u64::from(turn) * 10_000);
        entries.push(woke(number, from));
        entries.push(on_cpu(number, from + 1_000, from + 9_000, OffCpu::Blocked));
    }
    let place = place(1, &entries);
    run(&place, &["show", "t", "--perfetto", "out"]).ended_with(0);
    run(&place, &["why", "vm7", "t"]).ended_with(0).shows("vm7.0: waited");
}

#[test]
fn names_in_a_trace_are_shown_without_escape_sequences() {
    let (hostile, web) = ("a\x1b[2J\x1b]0;x\x07\u{61c}\u{202e}", vcpu(0));
    let mut other = thread(1);
    if let Entry::HostThread(thread) = &mut other {
        (thread.vcpu, thread.kind) = (None, HostThreadKind::Process);
        (thread.command, thread.group) = (hostile.into(), hostile.into());
    }
    let joined = Entry::Record(Record::Joined { at: at(0), vcpu: web });
    let entries = [
        named(web, hostile, hostile),
        thread(0),
        other,
        joined,
        woke(0, 1_000),
        on_cpu(1, 0, 5_000_000, OffCpu::Ready),
        on_cpu(0, 5_000_000, 9_000_000, OffCpu::Blocked),
        ran(web, 5_000_000, 9_000_000),
    ];
    let place = place(1, &entries);
    let commands: [&[&str]; 6] = [
        &["show", "t", "--table"],
        &["show", "t", "--xenmon"],
        &["show", "t", "--list"],
        &["show", "t"],
        &["why", hostile, "t"],
        &["diff", "t", "t"],
    ];
    for arguments in commands {
        let ran = run(&place, arguments);
        let text = ran.out + &ran.err;
        assert!(!text.contains(['\x1b', '\x07', '\u{61c}', '\u{202e}']), "{arguments:?}: {text:?}");
        assert!(text.contains('\u{fffd}'), "{arguments:?}: {text:?}");
    }
}
