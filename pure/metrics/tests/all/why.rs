//! Tests of the causes of waiting, with hand-written recordings and with random recordings.

use proptest::prelude::*;
use slackline_metrics::{Answer, Blame, Check, Culprit, CulpritFinder};
use slackline_trace::{
    Entry, HostThread, HostThreadId, HostThreadKind, Note, OffCpu, RanEnd, Record, VcpuName,
    WakeMark,
};
use slackline_units::{CpuId, DomId, Enforcement, Span, Time, VcpuId};

const WEB: VcpuId = VcpuId::new(0, DomId::new(0), 0);
const DB: VcpuId = VcpuId::new(1, DomId::new(1), 0);

/// Number of the host thread of the VM `web`. The next constants are the numbers of other host
/// threads.
const WEB_THREAD: u32 = 0;
const DB_THREAD: u32 = 1;
const HOG: u32 = 2;
const WORKER: u32 = 3;
const DISPATCHER: u32 = 4;
const MONITOR: u32 = 5;

fn at(us: u64) -> Time {
    Time::from_ns(us * 1_000)
}

fn us(us: u64) -> Span {
    Span::from_us(us)
}

fn thread(number: u32, kind: HostThreadKind, names: [&str; 3], vcpu: Option<VcpuId>) -> Entry {
    let [name, command, vm] = names.map(String::from);
    let group = if vm.is_empty() { "batch.service".into() } else { String::new() };
    let id = HostThreadId::new(number);
    let (tid, process, user) = (number, number, 0);
    Entry::HostThread(Box::new(HostThread {
        at: at(0),
        id,
        kind,
        vcpu,
        tid,
        process,
        user,
        name,
        command,
        vm,
        group,
    }))
}

fn prelude() -> Vec<Entry> {
    use HostThreadKind::{Kernel, Monitor, Process, Slackline, Vcpu};
    let named = |vcpu, name: &str| {
        let (name, domain) = (format!("{name}.0"), name.to_owned());
        Entry::Named(VcpuName { at: at(0), vcpu, name, domain })
    };
    vec![
        named(WEB, "web"),
        named(DB, "db"),
        thread(WEB_THREAD, Vcpu, ["CPU 0/KVM", "qemu", "web"], Some(WEB)),
        thread(DB_THREAD, Vcpu, ["CPU 0/KVM", "qemu", "db"], Some(DB)),
        thread(HOG, Process, ["hog", "hog", ""], None),
        thread(WORKER, Kernel, ["kworker/1:2-events", "", ""], None),
        thread(DISPATCHER, Slackline, ["slackline", "slackline", ""], None),
        thread(MONITOR, Monitor, ["IO iothread1", "qemu", "web"], None),
    ]
}

fn on_cpu(number: u32, span: std::ops::Range<u64>, end: OffCpu) -> Entry {
    let (thread, cpu) = (HostThreadId::new(number), CpuId::new(0));
    Entry::Record(Record::OnCpu { thread, cpu, from: at(span.start), to: at(span.end), end })
}

fn woke(number: u32, us: u64) -> Entry {
    let (thread, cpu) = (HostThreadId::new(number), CpuId::new(0));
    Entry::Record(Record::Awoken { at: at(us), thread, cpu, mark: WakeMark::Waking })
}

fn ran(vcpu: VcpuId, span: std::ops::Range<u64>, late: Span, due: bool) -> Entry {
    let (from, to, cpu) = (at(span.start), at(span.end), CpuId::new(0));
    let (used, granted, end) = (to - from, None, RanEnd::Limit);
    Entry::Record(Record::Ran { vcpu, cpu, from, to, used, granted, late, end, due })
}

fn ended(us: u64) -> Entry {
    Entry::Record(Record::Ended { at: at(us) })
}

fn ask(name: &str, entries: &[Entry]) -> Answer {
    let mut why = CulpritFinder::new(name);
    prelude().iter().chain(entries).for_each(|entry| entry.pass_to(&mut why));
    why.answer()
}

fn blame(entries: &[Entry]) -> Blame {
    let mut answer = ask("web", entries);
    assert_eq!(answer.vcpus.len(), 1);
    let blame = answer.vcpus.remove(0);
    let sum: Span = blame.culprits.iter().map(|(_, span)| *span).sum();
    assert_eq!(sum, blame.waited);
    blame
}

fn db(beyond: bool) -> Culprit {
    Culprit::OtherVm { vm: "db".into(), beyond }
}

fn hog() -> Culprit {
    Culprit::Process { command: "hog".into(), group: "batch.service".into() }
}

#[test]
fn why_command_blames_wait_on_each_thread_occupying_the_cpu() {
    use OffCpu::{Blocked, Ready};
    let blame = blame(&[
        on_cpu(HOG, 0..1_000, Ready),
        woke(WEB_THREAD, 500),
        on_cpu(WORKER, 1_000..1_200, Blocked),
        on_cpu(DISPATCHER, 1_200..1_205, Blocked),
        on_cpu(MONITOR, 1_205..1_300, Blocked),
        on_cpu(WEB_THREAD, 1_301..2_000, Ready),
        on_cpu(HOG, 2_000..2_400, Ready),
        on_cpu(WEB_THREAD, 2_400..3_000, Blocked),
        ended(4_000),
    ]);
    let worker = Culprit::Kernel { name: "kworker".into() };
    let switch = Culprit::Kernel { name: "context switch".into() };
    let expected = [
        (hog(), us(900)),
        (worker, us(200)),
        (Culprit::OwnVm, us(95)),
        (Culprit::Dispatcher, us(5)),
        (switch, us(1)),
    ];
    assert_eq!(blame.culprits, expected);
    assert_eq!((blame.ran, blame.waited), (us(1_299), us(1_201)));
}

/// The CPU was idle when the vCPU woke, and again before `kworker`. So no thread left the CPU in a
/// switch to the first `hog` or to `kworker`.
#[test]
fn context_switch_is_charged_to_the_thread_that_runs_next() {
    use OffCpu::{Blocked, Ready};
    let blame = blame(&[
        woke(WEB_THREAD, 100),
        on_cpu(HOG, 105..200, Ready),
        on_cpu(WEB_THREAD, 200..1_000, Ready),
        on_cpu(HOG, 1_002..1_020, Blocked),
        on_cpu(DISPATCHER, 1_023..1_030, Blocked),
        on_cpu(DB_THREAD, 1_034..1_100, Ready),
        ran(DB, 1_034..1_100, us(0), true),
        on_cpu(WORKER, 1_150..1_210, Blocked),
        on_cpu(WEB_THREAD, 1_216..2_000, Blocked),
        ended(2_000),
    ]);
    let kernel = |name: &str| Culprit::Kernel { name: name.into() };
    let expected = [
        (hog(), us(95 + 2 + 18)),
        (db(false), us(4 + 66)),
        (kernel("kworker"), us(60)),
        (Culprit::Unexplained, us(50)),
        (kernel("context switch"), us(5 + 6)),
        (Culprit::Dispatcher, us(3 + 7)),
    ];
    assert_eq!(blame.culprits, expected);
}

/// The kernel reports no throttling. A thread under `SCHED_DEADLINE` waits only for threads of its
/// class, for the kernel, or because it is throttled.
#[test]
fn why_command_counts_throttling_by_sched_deadline_as_exhausted_budget() {
    use OffCpu::{Blocked, Ready};
    let promised = |vcpu| {
        let (at, reservation, exact) = (at(0), None, true);
        let (phase, by) = (None, Enforcement::Deadline);
        Entry::Record(Record::Promised { at, vcpu, reservation, exact, phase, by })
    };
    let run = [
        woke(WEB_THREAD, 0),
        on_cpu(WEB_THREAD, 10..2_000, Ready),
        on_cpu(HOG, 2_001..5_000, Ready),
        on_cpu(WORKER, 5_000..5_100, Blocked),
        on_cpu(DB_THREAD, 8_000..10_000, Ready),
        on_cpu(WEB_THREAD, 10_000..12_000, Blocked),
        woke(WEB_THREAD, 12_500),
        on_cpu(WEB_THREAD, 12_700..13_000, Blocked),
        ended(14_000),
    ];
    let by = |vcpus: &[VcpuId]| -> Vec<Entry> {
        vcpus.iter().map(|vcpu| promised(*vcpu)).chain(run.iter().cloned()).collect()
    };
    let kernel = |name: &str| Culprit::Kernel { name: name.into() };
    let expected = [
        (Culprit::Exhausted, us(5_899)),
        (db(false), us(2_000)),
        (kernel("CPU leaving idle"), us(200)),
        (kernel("kworker"), us(100)),
        (kernel("context switch"), us(11)),
    ];
    assert_eq!(blame(&by(&[WEB, DB])).culprits, expected);
    // The daemon does not record all CPUs. Its recordings have CPU times from the kernel.
    let (from, used) = (at(0), us(6_000));
    let counted = Entry::Record(Record::Elsewhere { vcpu: WEB, from, to: at(9_000), used });
    let of_daemon = [by(&[WEB, DB]), vec![counted]].concat();
    assert!(ask("web", &of_daemon).vcpus.is_empty(), "the waits are unknown");
    // A thread under another mechanism is not throttled by the kernel. It waits for `hog` from the
    // start of the switch to `hog`.
    let other = blame(&by(&[DB]));
    assert_eq!(other.of(|it| *it == Culprit::Exhausted), Span::ZERO);
    assert_eq!(other.of(|it| *it == hog()), us(3_000));
    assert_eq!(other.of(|it| *it == db(false)), us(2_000));
}

/// The daemon schedules CPU 5 of the host, which is CPU 0 of the trace.
#[test]
fn why_command_reports_lost_events_under_the_host_cpu_number() {
    let (cpu, from, to) = (CpuId::new(0), at(10), at(20));
    let note = Note { name: "cpus".into(), text: "5".into() };
    let lost = Entry::Record(Record::Lost { cpu, from, to, events: 3 });
    let answer = ask("web", &[Entry::Note(note), lost, ended(30)]);
    assert_eq!((answer.gaps[0].cpu, answer.gaps[0].events), (CpuId::new(5), 3));
}

/// The kernel's numbers for an interval are compared with the numbers of the recording for that
/// interval.
#[test]
fn why_command_compares_recorded_and_kernel_times_over_equal_intervals() {
    let counted = |span: std::ops::Range<u64>, used, ready| {
        let (thread, from, to) = (HostThreadId::new(WEB_THREAD), at(span.start), at(span.end));
        Entry::Record(Record::Counted { thread, from, to, used: us(used), ready: us(ready) })
    };
    let blame = blame(&[
        woke(WEB_THREAD, 0),
        on_cpu(HOG, 0..1_000, OffCpu::Ready),
        on_cpu(WEB_THREAD, 1_000..2_000, OffCpu::Ready),
        counted(1_500..2_000, 490, 7),
        on_cpu(HOG, 2_000..2_400, OffCpu::Ready),
        on_cpu(WEB_THREAD, 2_400..3_000, OffCpu::Ready),
        counted(2_000..3_000, 590, 395),
        on_cpu(HOG, 3_000..4_000, OffCpu::Ready),
        ended(4_000),
    ]);
    let expected =
        Check { kernel_used: us(1_080), kernel_ready: us(402), used: us(1_100), ready: us(400) };
    assert_eq!((blame.check, blame.waited), (Some(expected), us(2_400)));
}

#[test]
fn waits_before_vcpu_joins_or_after_vcpu_leaves_are_ignored() {
    let blame = blame(&[
        woke(WEB_THREAD, 0),
        Entry::Record(Record::Joined { at: at(2_000), vcpu: WEB }),
        on_cpu(HOG, 2_000..2_500, OffCpu::Blocked),
        on_cpu(WEB_THREAD, 2_500..4_000, OffCpu::Ready),
        on_cpu(HOG, 4_000..6_000, OffCpu::Ready),
        Entry::Record(Record::Left { at: at(5_000), vcpu: WEB }),
        ended(9_000),
    ]);
    assert_eq!(blame.culprits, [(hog(), us(1_500))]);
    assert_eq!((blame.recorded, blame.ran, blame.waited), (us(3_000), us(1_500), us(1_500)));
}

/// A flight recorder has the records of vCPUs earlier than the run intervals of threads.
#[test]
fn time_after_recording_end_does_not_count_as_waiting() {
    let (from, to) = (at(3_500), at(4_000));
    let blame = blame(&[
        woke(WEB_THREAD, 0),
        on_cpu(WEB_THREAD, 0..3_000, OffCpu::Unknown),
        Entry::Record(Record::Stopped { vcpu: WEB, from, to }),
        Entry::Record(Record::Woke { at: at(5_000), vcpu: DB }),
        ended(3_000),
    ]);
    assert_eq!((blame.culprits, blame.recorded), (Vec::new(), us(3_000)));
}

#[test]
fn stop_recorded_before_host_thread_record_counts_as_exhausted_budget() {
    let all = prelude();
    let (threads, names): (Vec<&Entry>, Vec<&Entry>) =
        all.iter().partition(|entry| matches!(entry, Entry::HostThread(_)));
    let stop = Entry::Record(Record::Stopped { vcpu: WEB, from: at(1_000), to: at(3_000) });
    let run = [
        woke(WEB_THREAD, 0),
        on_cpu(WEB_THREAD, 0..1_010, OffCpu::Blocked),
        woke(WEB_THREAD, 3_000),
        on_cpu(WEB_THREAD, 3_000..4_000, OffCpu::Blocked),
        ended(4_000),
    ];
    let mut why = CulpritFinder::new("web");
    let entries = names.into_iter().chain([&stop]).chain(threads).chain(&run);
    entries.for_each(|entry| entry.pass_to(&mut why));
    assert_eq!(why.answer().vcpus[0].culprits, [(Culprit::Exhausted, us(1_990))]);
}

#[test]
fn why_command_distinguishes_vm_runs_within_and_beyond_reservation() {
    let blame = blame(&[
        woke(WEB_THREAD, 0),
        on_cpu(DB_THREAD, 0..1_000, OffCpu::Ready),
        ran(DB, 0..600, us(100), true),
        ran(DB, 600..1_000, us(0), false),
        on_cpu(WEB_THREAD, 1_000..2_000, OffCpu::Blocked),
        ended(2_000),
    ]);
    assert_eq!(blame.culprits, [(db(false), us(500)), (db(true), us(500))]);
}

#[test]
fn late_timer_is_blamed_only_for_wait_behind_a_vcpu() {
    let late = |us, late| {
        let (cpu, late) = (CpuId::new(0), Span::from_us(late));
        Entry::Record(Record::RangLate { at: at(us), cpu, late })
    };
    let blame = blame(&[
        woke(WEB_THREAD, 0),
        on_cpu(DB_THREAD, 0..1_000, OffCpu::Ready),
        ran(DB, 0..1_000, us(0), true),
        late(1_000, 300),
        on_cpu(HOG, 1_000..2_000, OffCpu::Ready),
        late(2_000, 1_000),
        on_cpu(WEB_THREAD, 2_000..3_000, OffCpu::Blocked),
        ended(3_000),
    ]);
    let expected = [(hog(), us(1_000)), (db(false), us(700)), (Culprit::LateTimer, us(300))];
    assert_eq!(blame.culprits, expected);
}

#[test]
fn why_command_counts_stopped_time_only_while_vcpu_is_descheduled() {
    let thread = HostThreadId::new(WEB_THREAD);
    let (from, to) = (at(1_000), at(3_000));
    let blame = blame(&[
        woke(WEB_THREAD, 0),
        on_cpu(WEB_THREAD, 0..1_010, OffCpu::Blocked),
        // The dispatcher uses a signal too when it stops the vCPU.
        Entry::Record(Record::Halted { thread, from: at(1_010), to }),
        Entry::Record(Record::Stopped { vcpu: WEB, from, to }),
        woke(WEB_THREAD, 3_000),
        on_cpu(WEB_THREAD, 3_000..4_000, OffCpu::Blocked),
        Entry::Record(Record::Halted { thread, from: at(4_000), to: at(4_500) }),
        woke(WEB_THREAD, 4_500),
        on_cpu(WEB_THREAD, 4_500..5_000, OffCpu::Blocked),
        ended(5_000),
    ]);
    let expected = [(Culprit::Exhausted, us(1_990)), (Culprit::Paused, us(500))];
    assert_eq!(blame.culprits, expected);
    assert_eq!(blame.waited, us(2_490));
}

/// A real-time hog keeps the dispatcher from resuming the vCPU in time.
#[test]
fn why_command_blames_running_thread_if_throttled_vcpu_resumes_late() {
    let (from, to, cpu) = (at(1_000), at(3_000), CpuId::new(0));
    let blame = blame(&[
        woke(WEB_THREAD, 0),
        on_cpu(WEB_THREAD, 0..1_000, OffCpu::Blocked),
        on_cpu(DB_THREAD, 1_000..2_000, OffCpu::Ready),
        on_cpu(HOG, 2_000..3_000, OffCpu::Ready),
        Entry::Record(Record::RangLate { at: to, cpu, late: us(800) }),
        Entry::Record(Record::Stopped { vcpu: WEB, from, to }),
        woke(WEB_THREAD, 3_000),
        on_cpu(WEB_THREAD, 3_000..4_000, OffCpu::Blocked),
        ended(4_000),
    ]);
    assert_eq!(blame.culprits, [(Culprit::Exhausted, us(1_200)), (hog(), us(800))]);
}

#[test]
fn why_command_counts_unfinished_pause_until_recording_end() {
    let blame = blame(&[
        woke(WEB_THREAD, 0),
        on_cpu(WEB_THREAD, 0..1_000, OffCpu::Blocked),
        Entry::Record(Record::Paused { at: at(1_000), vcpu: WEB }),
        ended(3_000),
    ]);
    assert_eq!(blame.culprits, [(Culprit::Paused, us(2_000))]);
}

#[test]
fn why_command_reports_lost_events_and_long_idleness_as_unexplained() {
    let cpu = CpuId::new(0);
    let blame = blame(&[
        woke(WEB_THREAD, 0),
        Entry::Record(Record::Lost { cpu, from: at(0), to: at(400), events: 7 }),
        on_cpu(HOG, 0..1_000, OffCpu::Blocked),
        on_cpu(WEB_THREAD, 4_000..5_000, OffCpu::Blocked),
        woke(WEB_THREAD, 6_000),
        on_cpu(WEB_THREAD, 6_900..7_000, OffCpu::Blocked),
        ended(7_000),
    ]);
    let idle = Culprit::Kernel { name: "CPU leaving idle".into() };
    let expected = [(Culprit::Unexplained, us(3_400)), (idle, us(900)), (hog(), us(600))];
    assert_eq!(blame.culprits, expected);
}

#[test]
fn why_command_divides_stolen_time_among_threads_by_cpu_time() {
    let cpu = CpuId::new(0);
    let (idle, dispatching) = (Span::ZERO, Span::ZERO);
    let blame = blame(&[
        woke(WEB_THREAD, 0),
        on_cpu(WEB_THREAD, 0..1_000, OffCpu::Blocked),
        on_cpu(HOG, 1_000..4_000, OffCpu::Blocked),
        Entry::Record(Record::Accounted {
            cpu,
            from: at(0),
            to: at(4_000),
            idle,
            stolen: us(400),
            dispatching,
        }),
        ended(4_000),
    ]);
    assert_eq!(blame.culprits, [(Culprit::Hypervisor, us(100))]);
    assert_eq!((blame.ran, blame.waited), (us(900), us(100)));
}

#[test]
fn why_command_hides_names_of_other_owners_from_a_tenant() {
    let entries = [
        woke(WEB_THREAD, 0),
        on_cpu(DB_THREAD, 0..1_000, OffCpu::Ready),
        on_cpu(HOG, 1_000..2_000, OffCpu::Ready),
        on_cpu(WORKER, 2_000..3_000, OffCpu::Blocked),
        on_cpu(WEB_THREAD, 3_000..4_000, OffCpu::Blocked),
        ended(4_000),
    ];
    let hidden = blame(&entries).for_tenant(|vm| vm == "web");
    let text: Vec<String> = hidden.culprits.iter().map(|(it, _)| it.to_string()).collect();
    assert_eq!(text, ["another VM, beyond its reservation", "the host", "the kernel"]);
    assert_eq!(hidden.waited, us(3_000));
    let own = blame(&entries).for_tenant(|_| true);
    assert_eq!(own.of(|culprit| *culprit == db(true)), us(1_000));
}

#[test]
fn why_command_lists_known_vms_if_requested_vm_is_unknown() {
    let answer = ask("nobody", &[ended(1)]);
    assert_eq!((answer.vcpus.len(), answer.vms), (0, vec!["db".to_owned(), "web".to_owned()]));
    assert_eq!(ask("web.0", &[ended(1)]).vcpus.len(), 1);
}

/// Steps of a random recording of one CPU. A step has the number of the next thread, the idle time
/// before it, its run time, a flag and an event. The flag is true if the thread is still runnable
/// when it leaves the CPU.
fn steps() -> impl Strategy<Value = Vec<(u32, u64, u64, bool, u8)>> {
    proptest::collection::vec((0_u32..6, 0_u64..50, 1_u64..3_000, any::<bool>(), 0_u8..12), 1..80)
}

proptest! {
    /// In each recording, the times in which the vCPU ran, waited and was blocked add up to the
    /// elapsed time.
    #[test]
    fn why_command_run_and_wait_times_match_the_recorded_events(steps in steps()) {
        let (mut entries, mut now) = (Vec::new(), 0);
        // The expected times are computed separately: when the vCPU became ready, and how long it
        // waited.
        let (mut ready_since, mut waited, mut had) = (None, Span::ZERO, Span::ZERO);
        for (number, idle, length, is_ready, event) in steps {
            now += idle;
            if event == 0 && ready_since.is_none() {
                entries.push(woke(WEB_THREAD, now));
                ready_since = Some(now);
            }
            if event == 1 {
                let (cpu, late) = (CpuId::new(0), us(length / 2));
                entries.push(Entry::Record(Record::RangLate { at: at(now + length), cpu, late }));
            }
            if event == 2 {
                let (cpu, from, to) = (CpuId::new(0), at(now), at(now + length / 3));
                entries.push(Entry::Record(Record::Lost { cpu, from, to, events: 1 }));
            }
            if number == DB_THREAD {
                entries.push(ran(DB, now..now + length, us(length / 4), is_ready));
            }
            if number == WEB_THREAD {
                waited += us(now - ready_since.take().unwrap_or(now));
                had += us(length);
                ready_since = is_ready.then_some(now + length);
            }
            let end = if is_ready { OffCpu::Ready } else { OffCpu::Blocked };
            entries.push(on_cpu(number, now..now + length, end));
            now += length;
        }
        entries.push(ended(now + 10));
        waited += us(now + 10 - ready_since.unwrap_or(now + 10));
        let blame = blame(&entries);
        prop_assert_eq!((blame.ran, blame.waited), (had, waited));
        let mut kinds: Vec<_> = blame.culprits.iter().map(|(culprit, _)| culprit).collect();
        kinds.sort();
        kinds.dedup();
        prop_assert_eq!(kinds.len(), blame.culprits.len());
    }
}
