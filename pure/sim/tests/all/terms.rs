//! Tests of affinity, pauses, cold caches, coarse timers, and the order of events at one instant.

use slackline_scenario::Scenario;
use slackline_sim::SimResults;
use slackline_trace::{RanEnd, Record};
use slackline_units::{Span, Time};

const fn ms(ms: u64) -> Time {
    Time::from_ns(ms * 1_000_000)
}

fn run(policy: &str, rest: &str) -> (Vec<Record>, SimResults) {
    let text = format!("title = 't'\nlength = '100ms'\npolicy = {{ {policy} }}\n{rest}");
    let scenario = Scenario::read(&text).unwrap_or_else(|error| panic!("{}: {error}", error.line));
    let mut records: Vec<Record> = Vec::new();
    let outcome = slackline_sim::run(&scenario, &mut records).expect("the run completes");
    (records, outcome)
}

fn records(policy: &str, rest: &str) -> Vec<Record> {
    run(policy, rest).0
}

const ROUND_ROBIN: &str = "name = 'round-robin', quantum = '10ms'";

/// Returns CPU, start and end of each run interval of a slot.
fn stretches(records: &[Record], slot: usize) -> Vec<(usize, Time, Time)> {
    let stretch = |record: &Record| match *record {
        Record::Ran { vcpu, cpu, from, to, .. } if vcpu.slot() == slot => {
            Some((cpu.index(), from, to))
        }
        _ => None,
    };
    records.iter().filter_map(stretch).collect()
}

/// Returns the times at which a vCPU woke, by slot.
fn wakes(records: &[Record], slot: usize) -> Vec<Time> {
    let wake = |record: &Record| match *record {
        Record::Woke { at, vcpu } if vcpu.slot() == slot => Some(at),
        _ => None,
    };
    records.iter().filter_map(wake).collect()
}

#[test]
fn vcpu_runs_only_on_cpus_that_its_affinity_allows() {
    let records = records(
        ROUND_ROBIN,
        "[host]\ncpus = 2\n\
         [[domain]]\nname = 'a'\nvcpus = 2\nwork = { kind = 'spin' }\ncpus = [1]\n\
         vcpu = [{ number = 1, cpus = [0] }]\n\
         [[domain]]\nname = 'b'\nwork = { kind = 'spin' }\n\
         [[change]]\nat = '45ms'\ndomain = 'a.0'\ncpus = [0]\n",
    );
    let cpus = |slot, from: Time, to: Time| {
        let all = stretches(&records, slot);
        let inside = all.iter().filter(|(_, begin, end)| *begin < to && *end > from);
        let mut cpus: Vec<usize> = inside.map(|(cpu, ..)| *cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    };
    assert_eq!(cpus(0, ms(0), ms(45)), [1]);
    assert_eq!(cpus(0, ms(45), ms(100)), [0]);
    assert_eq!(cpus(1, ms(0), ms(100)), [0]);
    assert_eq!(cpus(2, ms(0), ms(100)), [0, 1]);
}

/// A vCPU with affinity to both CPUs is preempted by a waking vCPU with affinity to one CPU only.
/// The preempted vCPU continues on the idle CPU at that very instant, in either order of the CPUs.
#[test]
fn gedf_preempted_vcpu_continues_immediately_on_an_idle_cpu() {
    for cpu in [0, 1] {
        let records = records(
            "name = 'gedf', reserve = '0cpu'",
            &format!(
                "[host]\ncpus = 2\n\
                 [[domain]]\nname = 'a'\nwork = {{ kind = 'spin' }}\ncpus = [{cpu}]\n\
                 share.gedf = {{ budget = '8ms', period = '20ms' }}\n\
                 [[change]]\nat = '2ms'\ndomain = 'a'\ncpus = [0, 1]\n\
                 [[domain]]\nname = 'b'\njoins = '5ms'\nwork = {{ kind = 'spin' }}\n\
                 cpus = [{cpu}]\nshare.gedf = {{ budget = '1ms', period = '5ms' }}\n"
            ),
        );
        let used = |slot| -> Span {
            let all = stretches(&records, slot).into_iter();
            all.map(|(_, from, to)| to - from).fold(Span::ZERO, |sum, ran| sum + ran)
        };
        assert_eq!((used(0), used(1)), (Span::from_ms(100), Span::from_ms(95)), "on {cpu}");
    }
}

/// A vCPU moves to an idle CPU at the instant at which its affinity changes.
#[test]
fn affinity_change_to_an_idle_cpu_moves_vcpu_immediately() {
    let xens = "name = 'round-robin', rules = 'xen-2.0'";
    for policy in [ROUND_ROBIN, xens, "name = 'bvt'", "name = 'credit'", "name = 'sedf'"] {
        let records = records(
            policy,
            "[host]\ncpus = 2\n\
             [[domain]]\nname = 'a'\nwork = { kind = 'spin' }\ncpus = [0]\n\
             [[change]]\nat = '12ms'\ndomain = 'a'\ncpus = [1]\n",
        );
        let moved = stretches(&records, 0).into_iter().find(|&(cpu, ..)| cpu == 1);
        assert_eq!(moved.map(|(_, from, _)| from), Some(ms(12)), "{policy}");
    }
}

#[test]
fn paused_vcpu_continues_its_remaining_work_when_resumed() {
    let records = records(
        ROUND_ROBIN,
        "[[domain]]\nname = 'a'\nwork = { kind = 'batch', total = '30ms' }\n\
         [[change]]\nat = '20ms'\ndomain = 'a'\npaused = true\n\
         [[change]]\nat = '25ms'\ndomain = 'a'\npaused = true\n\
         [[change]]\nat = '50ms'\ndomain = 'a'\npaused = false\n",
    );
    let ran = stretches(&records, 0);
    assert_eq!(ran.last(), Some(&(0, ms(50), ms(60))));
    assert!(ran.iter().all(|&(_, from, to)| to <= ms(20) || from >= ms(50)), "{ran:?}");
    let paused = records.iter().filter(|record| matches!(record, Record::Paused { .. }));
    assert_eq!(paused.count(), 1);
    assert_eq!(wakes(&records, 0), [ms(0), ms(50)]);
}

#[test]
fn vcpu_with_sleep_that_ends_during_pause_wakes_when_resumed() {
    let sleeper = "[[domain]]\nname = 'a'\nwork = { kind = 'replay', list = ['1ms', '9ms'] }\n";
    let paused = |from, to| {
        format!(
            "{sleeper}[[change]]\nat = '{from}'\ndomain = 'a'\npaused = true\n\
             [[change]]\nat = '{to}'\ndomain = 'a'\npaused = false\n"
        )
    };
    // The vCPU sleeps from 1 ms until 10 ms, computes until 11 ms, and so on.
    let wakes_with = |from, to| wakes(&records(ROUND_ROBIN, &paused(from, to)), 0)[..4].to_vec();
    assert_eq!(wakes_with("5ms", "8ms"), [0, 10, 20, 30].map(ms));
    assert_eq!(wakes_with("5ms", "25ms"), [0, 25, 35, 45].map(ms));
    assert_eq!(wakes_with("5ms", "10ms"), [0, 10, 20, 30].map(ms));
    assert_eq!(wakes_with("10ms", "12ms"), [0, 12, 22, 32].map(ms));
    // The vCPU completed its work when the pause began, so the sleep begins when the pause ends.
    assert_eq!(wakes_with("11ms", "12ms"), [0, 10, 21, 31].map(ms));
}

/// Filling the cache takes 2 ms. The cache is empty at first, so the first timeslice does 8 ms of
/// work. Before later timeslices, other vCPUs have run for a long time, for 1 ms, or not at all. On
/// another CPU none of the cache content is present.
#[test]
fn vcpu_refills_only_the_cache_part_evicted_by_other_vcpus() {
    let ends = |host: &str, a: &str, others: &str| {
        let records = records(
            ROUND_ROBIN,
            &format!(
                "[host]\n{host}\n\
                 [[domain]]\nname = 'a'\ncache = '2ms'\nwork = {{ {a} }}\n{others}"
            ),
        );
        stretches(&records, 0).last().expect("a ran").2
    };
    let long = "kind = 'batch', total = '20ms'";
    let spin = "[[domain]]\nname = 'b'\nwork = { kind = 'spin' }\n";
    let short = "[[domain]]\nname = 'b'\nwork = { kind = 'batch', total = '1ms' }\njoins = '5ms'\n";
    let one = "cpus = 1";
    // `a` does 8 + 8 + 4 ms of work in timeslices of 10 + 10 + 6 ms, and `b` runs for 20 ms.
    assert_eq!(ends(one, long, spin), ms(46));
    // `a` does 8 + 12 ms of work in 10 + 13 ms, and `b` runs for 1 ms in between.
    assert_eq!(ends(one, long, short), ms(24));
    assert_eq!(ends(one, long, ""), ms(22));
    let moves = "[[change]]\nat = '12ms'\ndomain = 'a'\ncpus = [1]\n";
    assert_eq!(ends("cpus = 2", long, moves), ms(24));
}

#[test]
fn timer_slop_makes_timers_expire_early_without_changing_the_trace() {
    let with_slop = |slop: &str| {
        run(
            "name = 'edf', reserve = '0cpu'",
            &format!(
                "[host]\ntimer_slop = '{slop}'\n\
                 [[domain]]\nname = 'a'\nwork = {{ kind = 'spin' }}\n\
                 share.edf = {{ slice = '4ms', period = '10ms', exact = true }}\n\
                 [[domain]]\nname = 'b'\nwork = {{ kind = 'spin' }}\n\
                 share.edf = {{ slice = '5980us', period = '10ms', exact = true }}\n"
            ),
        )
    };
    let ((exact, as_due), (coarse, early)) = (with_slop("0us"), with_slop("50us"));
    assert_eq!(exact, coarse);
    // The timer expires early once in each of ten periods, 20 us before the end of the period.
    let more = early.events - as_due.events;
    assert!((9..=10).contains(&more), "{more} timers expired early");
}

/// Each period of `other` begins 20 us before the slice of `vm` ends. The timer of the limit
/// expires early then, and `vm` is picked for the last 20 us of its slice.
#[test]
fn timer_slop_lets_no_vcpu_exceed_its_hard_limit() {
    for slop in ["0us", "10us", "20us", "50us", "1ms"] {
        let records = records(
            "name = 'edf', reserve = '0cpu'",
            &format!(
                "[host]\ntimer_slop = '{slop}'\n\
                 [[domain]]\nname = 'other'\n\
                 work = {{ kind = 'periodic', period = '7ms', work = '150us' }}\n\
                 share.edf = {{ slice = '600us', period = '10ms', exact = true }}\n\
                 [[domain]]\nname = 'vm'\njoins = '8970us'\nwork = {{ kind = 'spin' }}\n\
                 share.edf = {{ slice = '1050us', period = '10ms', exact = true }}\n"
            ),
        );
        let all: Span = stretches(&records, 1).iter().map(|&(_, from, to)| to - from).sum();
        // Nine periods, and the part of the tenth period before the end of the run at 100 ms.
        assert_eq!(all, Span::from_us(9 * 1_050 + 1_030), "timer_slop = {slop}");
    }
}

#[test]
fn edf_declines_affinity_change_if_the_new_cpu_lacks_capacity() {
    let text = |change: &str| {
        format!(
            "[host]\ncpus = 2\n\
             [[domain]]\nname = 'a'\nwork = {{ kind = 'spin' }}\ncpus = [0]\n\
             share.edf = {{ slice = '6ms', period = '10ms' }}\n\
             [[domain]]\nname = 'b'\nwork = {{ kind = 'spin' }}\ncpus = [1]\n\
             share.edf = {{ slice = '3ms', period = '10ms' }}\n\
             [[change]]\nat = '50ms'\ndomain = 'b'\n{change}"
        )
    };
    let (records, outcome) = run("name = 'edf', reserve = '0cpu'", &text("cpus = [0]\n"));
    assert!(outcome.declined.is_empty());
    let ran = stretches(&records, 1);
    let before = ran.iter().filter(|(_, from, _)| *from < ms(50));
    assert!(before.clone().count() > 0 && before.clone().all(|(cpu, ..)| *cpu == 1));
    assert!(ran.len() > before.count() && ran.last().is_some_and(|(cpu, ..)| *cpu == 0));
    let more = "cpus = [0]\nshare.edf = { slice = '5ms', period = '10ms' }\n";
    let (records, outcome) = run("name = 'edf', reserve = '0cpu'", &text(more));
    assert_eq!(outcome.declined.len(), 1);
    assert!(stretches(&records, 1).iter().all(|(cpu, ..)| *cpu == 1));
}

/// At 10 ms a timeslice ends, a vCPU wakes, and work ends on another CPU. The work ends first, then
/// the vCPU wakes, then the timeslice ends. So the woken vCPU is in the queue before the preempted
/// vCPU.
#[test]
fn simultaneous_work_end_precedes_wake_and_wake_precedes_timeslice_end() {
    let records = records(
        ROUND_ROBIN,
        "[host]\ncpus = 2\n\
         [[domain]]\nname = 'hog'\nvcpus = 2\nwork = { kind = 'spin' }\ncpus = [0]\n\
         [[domain]]\nname = 'waker'\ncpus = [0]\n\
         work = { kind = 'periodic', period = '90ms', work = '1ms', offset = '10ms' }\n\
         [[domain]]\nname = 'worker'\nwork = { kind = 'batch', total = '10ms' }\ncpus = [1]\n",
    );
    let at_ten = records.iter().filter_map(|record| match *record {
        Record::Blocked { at, vcpu } if at == ms(10) => Some((vcpu.slot(), "blocks")),
        Record::Woke { at, vcpu } if at == ms(10) => Some((vcpu.slot(), "wakes")),
        Record::Ran { vcpu, to, end: RanEnd::Limit, .. } if to == ms(10) => {
            Some((vcpu.slot(), "ends its timeslice"))
        }
        _ => None,
    });
    let expected = [(3, "blocks"), (2, "wakes"), (0, "ends its timeslice")];
    assert_eq!(at_ten.collect::<Vec<_>>(), expected);
    assert_eq!(stretches(&records, 2)[0].1, ms(20));
}
