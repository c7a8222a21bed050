//! Tests with recordings that perf, tracefs and trace-cmd made on one CPU, with two VMs and a
//! process.

use slackline_import::{ImportError, Kind};
use slackline_metrics::Culprit;
use slackline_trace::{Entry, HostThreadKind, Note, Record, WakeMark};
use slackline_units::{CpuId, CpuSet, Span};

use crate::common::{
    PERF, TRACE_CMD, TRACEFS, entries, import, import_for, notes, records, threads, used, why,
};

#[test]
fn kinds_of_recordings_are_recognised_by_their_first_bytes() {
    assert_eq!(Kind::of(PERF), Some(Kind::Perf));
    assert_eq!(Kind::of(TRACEFS), Some(Kind::Ftrace));
    assert_eq!(Kind::of(TRACE_CMD), Some(Kind::Ftrace));
    let line = b"web 17 [001] 29766.164811: sched:sched_switch: prev_comm=web prev_pid=17";
    assert_eq!(Kind::of(line), Some(Kind::Ftrace), "perf script");
    for other in [&b"slackline-trace-6\n"[..], b"", b"title = \"x\"\n", b"a: sched_switch: b\n"] {
        assert_eq!(Kind::of(other), None, "{other:?}");
    }
}

#[test]
fn vms_of_perf_recording_are_named_after_their_processes() {
    let import = import(PERF).expect("a valid recording");
    assert_eq!(import.vms(), ["web", "db"]);
    let how = "a thread with the name of a vCPU thread is a vCPU, and its process is a VM";
    assert_eq!(import.assumptions()[0], how);
    let named = threads(&import);
    let of = |name: &str| named.iter().find(|thread| thread.name == name).expect("a thread");
    assert_eq!(of("backup").kind, HostThreadKind::Process);
    assert_eq!(of("ksoftirqd/1").kind, HostThreadKind::Kernel);
    let vcpu = named.iter().find(|thread| thread.vm == "web").expect("a vCPU");
    assert_eq!((vcpu.kind, vcpu.name.as_str()), (HostThreadKind::Vcpu, "CPU 0/KVM"));
    assert_eq!(vcpu.command, "qemu:web");
}

/// The expected times are the output of `perf sched timehist` for the same file.
#[test]
fn cpu_times_of_imported_perf_recording_equal_perf_output() {
    let import = import(PERF).expect("a valid recording");
    let near = |vm: &str, us: u64| {
        let used = used(&import, vm).ns() / 1_000;
        assert!(used.abs_diff(us) <= 1, "{vm}: {used} us, and not {us} us");
    };
    near("web", 372_895);
    near("db", 419_800);
}

#[test]
fn perf_and_ftrace_recordings_of_one_run_blame_same_process() {
    let share = |bytes: &[u8]| {
        let import = import_for(bytes, &["web=pid:6791"]).expect("a valid recording");
        let answer = why(&import, "web");
        let [blame] = &answer.vcpus[..] else { panic!("one vCPU: {answer:?}") };
        let backup =
            blame.of(|it| matches!(it, Culprit::Process { command, .. } if command == "backup"));
        let sum: Span = blame.culprits.iter().map(|(_, time)| *time).sum();
        assert_eq!(sum, blame.waited, "the culprits add up to the waiting time");
        (backup.ns() * 100 / blame.waited.ns(), blame.ran.ns() * 1_000 / answer.length.ns())
    };
    let shares = [share(PERF), share(TRACEFS), share(TRACE_CMD)];
    for (backup, used) in shares {
        assert!((60..75).contains(&backup), "{shares:?}");
        assert!((198..206).contains(&used), "{shares:?}");
    }
}

#[test]
fn each_vcpu_thread_in_ftrace_text_without_pids_becomes_vm() {
    let import = import(TRACEFS).expect("a valid recording");
    assert_eq!(import.vms(), ["cpu-0-kvm-6791", "cpu-0-kvm-6798"]);
    let import = import_for(TRACEFS, &["web=pid:6791", "pid:6507"]).expect("a valid recording");
    assert_eq!(import.vms(), ["web", "backup"]);
}

#[test]
fn target_process_missing_from_recording_is_refused_with_hint() {
    let error = import_for(PERF, &["web=pid:1"]).expect_err("no such process");
    assert!(matches!(error, ImportError::NoProcess { pid: 1, .. }), "{error}");
    assert_eq!(error.hint(), "the busiest process is backup: write --for backup=pid:6507");
}

#[test]
fn header_of_an_imported_recording_contains_all_assumptions() {
    let of_perf = notes(&import(PERF).expect("a valid recording"));
    let of = |name: &str| -> Vec<&str> {
        of_perf.iter().filter(|it| it.name == name).map(|it| it.text.as_str()).collect()
    };
    assert_eq!(of("origin"), ["perf.data"]);
    assert_eq!(of("recorder"), ["perf 6.1.187"]);
    assert_eq!(of("kernel"), ["6.18.0"]);
    assert_eq!(of("cpus"), ["0,1"]);
    assert_eq!(of("lost"), ["0 events"]);
    let assumed = of("assumed").join("\n");
    for word in ["vCPU thread", "weights", "core of its own", "may run on", "quota"] {
        assert!(assumed.contains(word), "no {word} in {assumed}");
    }
    let of_text = notes(&import(TRACEFS).expect("a valid recording"));
    for text in ["each thread is a process of its own", "the host has the 1 CPU that had events"] {
        let is_it = |note: &Note| note.name == "assumed" && note.text.starts_with(text);
        assert!(of_text.iter().any(is_it), "{text}: {of_text:?}");
    }
}

#[test]
fn imported_vcpu_affinity_is_the_set_of_cpus_used() {
    let import = import(PERF).expect("a valid recording");
    let mut facts = 0;
    for entry in entries(&import) {
        if let Entry::Exchange(slackline_trace::Exchange::Reported { fact, .. }) = entry {
            let slackline_trace::Fact::Joined(_, terms) = fact else { panic!("{fact:?}") };
            assert_eq!(terms.cpus, Some(CpuSet::one(CpuId::new(1))));
            assert_eq!(terms.share, "weight=1024");
            facts += 1;
        }
    }
    assert_eq!(facts, 2);
}

#[test]
fn imported_recording_has_sorted_records_with_wakes_and_end_record() {
    let import = import(PERF).expect("a valid recording");
    let records = records(&import);
    let ends: Vec<_> = records.iter().map(|record| record.when().1).collect();
    assert!(ends.is_sorted());
    let is_waking = |it: &&Record| matches!(it, Record::Awoken { mark: WakeMark::Waking, .. });
    assert!(records.iter().filter(is_waking).count() > 200);
    assert!(matches!(records.last(), Some(Record::Ended { .. })));
}
