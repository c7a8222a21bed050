//! Tests of the forms of text in which different programs write the same events.

use slackline_import::Kind;
use slackline_import::{ImportError, read};
use slackline_trace::{Entry, Exchange, Fact, HostThreadKind, OffCpu, Record};
use slackline_units::{CpuId, Span};

use crate::common::{entries, import, import_for, notes, records, threads, used, why};

const TRACEFS: &str = include_str!("../fixtures/small-tracefs.txt");

const TRACE_CMD: &str = include_str!("../fixtures/small-trace-cmd.txt");

const RAW: &str = include_str!("../fixtures/small-raw.txt");

const SCRIPT: &str = include_str!("../fixtures/small-perf-script.txt");

/// Formats a switch as tracefs does.
fn switch(us: u64, cpu: usize, from: (i32, i32, &str), to: (i32, i32)) -> String {
    let (from, priority, state) = from;
    let name = |tid: i32| if tid == 0 { format!("swapper/{cpu}") } else { format!("t{tid}") };
    format!(
        "{}-{from} [{cpu:03}] d..2. {}.{:06}: sched_switch: prev_comm={} prev_pid={from} \
         prev_prio={priority} prev_state={state} ==> next_comm={} next_pid={} next_prio={}\n",
        name(from),
        us / 1_000_000,
        us % 1_000_000,
        name(from),
        name(to.0),
        to.0,
        to.1
    )
}

#[test]
fn all_ftrace_text_formats_give_equal_cpu_and_waiting_times() {
    for text in [TRACEFS, TRACE_CMD, RAW, SCRIPT] {
        let import = import_for(text.as_bytes(), &["pid:7"]).expect("a valid text");
        assert_eq!(used(&import, "a-b--c"), Span::from_us(700), "{text}");
        let answer = why(&import, "a-b--c");
        assert_eq!(answer.vcpus[0].waited, Span::from_us(100), "{text}");
        assert_eq!(threads(&import)[0].name, "a b [c]", "{text}");
    }
}

#[test]
fn number_of_lost_events_in_ftrace_text_is_recorded() {
    for line in ["CPU:0 [LOST 42 EVENTS]\n", "CPU:0 [42 EVENTS DROPPED]\n"] {
        let lines: Vec<&str> = TRACEFS.lines().collect();
        let text = format!("{}\n{line}{}\n", lines[..3].join("\n"), lines[3..].join("\n"));
        let import = import_for(text.as_bytes(), &["pid:7"]).expect("a valid text");
        assert_eq!(import.lost(), 42);
        let gaps: Vec<Record> =
            records(&import).into_iter().filter(|it| matches!(it, Record::Lost { .. })).collect();
        assert!(matches!(gaps[..], [Record::Lost { events: 42, .. }]), "{gaps:?}");
        let lost = notes(&import).into_iter().find(|note| note.name == "lost");
        assert_eq!(lost.expect("a note").text, "42 events");
    }
}

#[test]
fn threads_in_ftrace_text_are_grouped_into_vms_by_process() {
    let text = include_str!("../fixtures/small-tgid.txt");
    let import = import(text.as_bytes()).expect("a valid text");
    assert_eq!(import.vms(), ["web"]);
    let kinds: Vec<_> = threads(&import).iter().map(|it| (it.tid, it.kind)).collect();
    let (vcpu, monitor) = (HostThreadKind::Vcpu, HostThreadKind::Monitor);
    assert_eq!(kinds, [(8, vcpu), (9, vcpu), (7, monitor)]);
}

#[test]
fn preempted_imported_vcpus_are_runnable_and_weighted_by_nice_value() {
    let mut text = "# tracer: nop\n".to_owned();
    text += &switch(1_000, 0, (0, 120, "R"), (5, 100));
    text += &switch(2_000, 0, (5, 100, "R+"), (6, 139));
    text += &switch(3_000, 0, (6, 139, "D"), (0, 120));
    let import = import_for(text.as_bytes(), &["pid:5", "pid:6"]).expect("a valid text");
    let of = |entry: Entry| match entry {
        Entry::Exchange(Exchange::Reported { fact: Fact::Joined(_, terms), .. }) => {
            Some(terms.share)
        }
        _ => None,
    };
    let shares: Vec<String> = entries(&import).into_iter().filter_map(of).collect();
    assert_eq!(shares, ["weight=65535", "weight=15"]);
    let ends: Vec<OffCpu> = records(&import)
        .into_iter()
        .filter_map(|it| match it {
            Record::OnCpu { end, .. } => Some(end),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [OffCpu::Ready, OffCpu::Blocked]);
}

#[test]
fn busiest_processes_become_vms_if_no_thread_has_vcpu_name() {
    let mut text = "# tracer: nop\n".to_owned();
    text += &switch(1_000, 2, (0, 120, "R"), (5, 120));
    text += &switch(81_000, 2, (5, 120, "R"), (6, 120));
    text += &switch(101_000, 2, (6, 120, "R"), (7, 120));
    text += &switch(101_010, 2, (7, 120, "S"), (0, 120));
    let import = import(text.as_bytes()).expect("a valid text");
    assert_eq!(import.vms(), ["t5", "t6"], "thread 7 used less than 1 %");
    assert_eq!(import.header().cpus, 1, "CPU 2 only");
}

#[test]
fn errors_in_ftrace_text_name_the_line_and_invalid_value() {
    let good = switch(2_000_000, 0, (0, 120, "R"), (5, 120));
    let error = |text: &str| {
        let text = format!("# tracer: nop\n{good}{text}");
        read(Kind::Ftrace, text.as_bytes(), &[]).expect_err("an invalid text").to_string()
    };
    let back = switch(1_000_000, 0, (5, 120, "R"), (6, 120));
    let says =
        "line 3: time 1.000000000 of CPU 0 is before 2.000000000, the time of an earlier event";
    assert_eq!(error(&back), says);
    let jump = switch(900_000_000, 0, (5, 120, "R"), (6, 120));
    let says = "line 3: time jumps from 2.000000000 to 900.000000000, more than 600 s";
    assert_eq!(error(&jump), says);
    let far = switch(3_000_000, 256, (5, 120, "R"), (6, 120));
    assert_eq!(error(&far), "line 3: CPU 256 is beyond the largest number, 255");
    let cut = &good[..good.len() - 30];
    assert!(error(cut).starts_with("line 3: the last line ends early"), "{}", error(cut));
    let bad = good.replace("2.000000", "2.x");
    assert_eq!(error(&bad), "line 3: cannot read the time `2.x`");
    let bad = good.replace("next_pid=5", "next_pid=-5");
    assert_eq!(error(&bad), "line 3: -5 is no thread id; thread ids go from 0 to 2147483647");
}

#[test]
fn ftrace_text_without_context_switches_is_refused() {
    let text =
        "# tracer: nop\n t-1 [000] d..2. 5.0: sched_waking: comm=a pid=7 prio=120 target_cpu=000\n";
    let error = read(Kind::Ftrace, text.as_bytes(), &[]).expect_err("no switches");
    assert_eq!(error, ImportError::NoSwitches { events: 1 });
    assert!(error.hint().contains("perf sched record"));
}

#[test]
fn imported_wake_has_the_cpu_where_the_thread_last_ran() {
    let import = import_for(TRACEFS.as_bytes(), &["pid:7"]).expect("a valid text");
    let is_wake = |it: &Record| matches!(it, Record::Awoken { cpu, .. } if *cpu == CpuId::new(0));
    assert!(records(&import).iter().any(is_wake));
}
