//! Demand of recordings: jobs, changes and demand per period.

use slackline_demand::{ChangeKind, Collector, DemandCounts, Job, demand_per_period};
use slackline_sim::trace_header;
use slackline_trace::{
    Entry, Exchange, Fact, HostThread, HostThreadId, HostThreadKind, OffCpu, RanEnd, Record, Sink,
};
use slackline_units::{CpuId, CpuSet, DomId, Enforcement, Reservation, Span, Time, VcpuId};

use crate::record::{entries, recorded, recording, scenario};

fn at(ms: u64) -> Time {
    Time::START + Span::from_ms(ms)
}

const ALONE: &str = r#"
title = "alone"
length = "100ms"
policy = { name = "edf" }
[[domain]]
name = "web"
share.edf = { slice = "2ms", period = "10ms", exact = true }
work = { kind = "jobs", ready = ["5ms", "30ms", "60ms"], work = ["4500us", "1ms", "9s"] }
"#;

#[test]
fn recorded_job_throttled_over_several_periods_counts_as_one_job() {
    let recording = recorded(ALONE);
    let [web] = &recording.demand.vcpus[..] else { panic!("one vCPU") };
    let ms = Span::from_ms;
    assert_eq!(web.jobs[0].work, Span::from_us(4_500), "in three periods");
    assert_eq!(web.jobs[0].blocked, at(20).after(Span::from_us(1_500)), "throttled twice");
    assert_eq!((web.jobs[1].ready, web.jobs[1].work), (at(30), ms(1)));
    let last = Job { ready: at(60), work: ms(8), blocked: Time::NEVER };
    assert_eq!(web.jobs[2], last, "it received four slices by the end");
    assert!(web.is_endless(), "it received more than any job that ended");
    let thinking: Vec<(Span, Span)> = web.thinking().collect();
    assert_eq!(thinking[0], (ms(5), Span::from_us(4_500)));
    assert_eq!(thinking[1].0, at(30) - web.jobs[0].blocked);
}

/// A scenario with a change that the policy accepts and a change that it declines.
const CHANGED: &str = r#"
[[change]]
at = "50ms"
domain = "web"
share.edf = { slice = "3ms", period = "10ms", exact = true }
[[change]]
at = "70ms"
domain = "web"
share.edf = { slice = "10ms", period = "10ms", exact = true }
[[domain]]
name = "db"
share.edf = { slice = "4ms", period = "20ms" }
work = { kind = "periodic", period = "20ms", work = "1ms" }
"#;

#[test]
fn demand_is_unchanged_if_trace_omits_irrelevant_policy_exchanges() {
    let scenario = scenario(&format!("{ALONE}{CHANGED}"));
    let header = trace_header(&scenario);
    let mut entries = entries(&scenario);
    let whole = recording(&header, &entries, scenario.length);
    let has_declined = |entry: &Entry| matches!(entry, Entry::Exchange(Exchange::Declined));
    assert!(entries.iter().any(has_declined));
    assert!(whole.demand.timers > 0 && !whole.demand.vcpus[0].changes.is_empty());
    let count = entries.len();
    entries.retain(|entry| match entry {
        Entry::Exchange(exchange) => exchange.affects_demand(),
        _ => true,
    });
    assert!(entries.len() < count * 4 / 5, "{} of {count}", entries.len());
    assert_eq!(recording(&header, &entries, scenario.length).demand, whole.demand);
}

#[test]
fn long_job_is_ended_by_blocks_longer_than_50_us() {
    let vcpu = VcpuId::new(0, DomId::new(0), 0);
    for (block_us, jobs) in [(50, 1), (51, 2)] {
        let mut collector = Collector::new(at(1_000));
        collector.record(&Record::Joined { at: at(0), vcpu });
        collector.record(&Record::Woke { at: at(1), vcpu });
        collector.record(&Record::Blocked { at: at(101), vcpu });
        let again = at(101).after(Span::from_us(block_us));
        collector.record(&Record::Woke { at: again, vcpu });
        let demand = collector.finish();
        assert_eq!(demand.vcpus[0].jobs.len(), jobs, "a block of {block_us} us");
        assert!(
            demand.vcpus[0]
                .jobs
                .iter()
                .all(|job| job.has_ended() == (job.ready == at(1) && jobs == 2))
        );
    }
    // A job that blocks less than 100 ms after its wake ends.
    let mut collector = Collector::new(at(1_000));
    let blocked = Time::from_ns(at(101).ns() - 1);
    collector.record(&Record::Joined { at: at(0), vcpu });
    collector.record(&Record::Woke { at: at(1), vcpu });
    collector.record(&Record::Blocked { at: blocked, vcpu });
    collector.record(&Record::Woke { at: blocked.after(Span::from_us(50)), vcpu });
    assert_eq!(collector.finish().vcpus[0].jobs.len(), 2);
}

#[test]
fn demand_per_period_assumes_a_cpu_without_other_vcpus() {
    let recording = recorded(ALONE);
    let web = &recording.demand.vcpus[0];
    let counts = demand_per_period(web, Span::from_ms(10), at(100));
    // The demand is 4.5 ms in the first period, 1 ms in the fourth, and the whole period in the
    // last four.
    let expected = [(0, 4), (1_000, 1), (4_500, 1), (10_000, 4)];
    let expected: DemandCounts =
        expected.into_iter().map(|(us, count)| (Span::from_us(us), count)).collect();
    assert_eq!(counts, expected);
    assert!(demand_per_period(web, Span::ZERO, at(100)).is_empty());
}

#[test]
fn demand_from_a_recording_includes_changes_pauses_and_affinities() {
    let recording = recorded(
        r#"
title = "changes"
length = "1s"
policy = { name = "edf" }
host.cpus = 2
[[domain]]
name = "web"
starts_on = 1
joins = "100ms"
leaves = "900ms"
share.edf = { slice = "2ms", period = "10ms" }
work = { kind = "spin" }
[[domain]]
name = "full"
share.edf = { slice = "8ms", period = "10ms" }
work = { kind = "spin" }
[[change]]
at = "200ms"
domain = "web"
share.edf = { slice = "4ms", period = "10ms" }
[[change]]
at = "300ms"
domain = "web"
paused = true
[[change]]
at = "400ms"
domain = "web"
paused = false
[[change]]
at = "500ms"
domain = "web"
cpus = [0]
share.edf = { slice = "9ms", period = "10ms" }
[[change]]
at = "600ms"
domain = "full"
share.edf = { slice = "10ms", period = "10ms" }
"#,
    );
    let web = recording.demand.vcpus.iter().find(|it| it.name == "web").expect("web joined");
    assert_eq!((web.joined, web.left), (at(100), Some(at(900))));
    assert_eq!(web.starts_on, Some(CpuId::new(1)));
    let terms = web.terms.as_ref().expect("a trace has parameters");
    assert_eq!(terms.cpus, Some(CpuSet::first_n(2)));
    assert!(terms.share.contains("slice=2ms"), "{}", terms.share);
    let kinds = web.changes.iter().map(|it| (it.at, kind(&it.what)));
    let kinds: Vec<(Time, &str)> = kinds.filter(|(_, kind)| *kind != "reserved").collect();
    let expected = vec![(at(200), "slice=4ms"), (at(300), "paused"), (at(400), "resumed")];
    assert_eq!(kinds, expected, "the change at 500 ms was declined: full has all but 2 ms of cpu0");
    assert_eq!(web.jobs.len(), 1, "a pause does not end a job");
}

fn kind(kind: &ChangeKind) -> &str {
    match kind {
        ChangeKind::Terms(terms) => terms.share.split_whitespace().next().unwrap_or(""),
        ChangeKind::Reserved(_) => "reserved",
        ChangeKind::Paused => "paused",
        ChangeKind::Resumed => "resumed",
    }
}

#[test]
fn work_from_a_recording_excludes_overhead_of_switches_and_ticks() {
    let text = |switch: &str| {
        format!(
            "title = \"costs\"\nlength = \"1s\"\npolicy = {{ name = \"round-robin\" }}\n\
             host.switch = \"{switch}\"\nhost.tick_cost = \"{switch}\"\n\
             [[domain]]\nname = \"web\"\ncopies = 2\n\
             work = {{ kind = \"jobs\", ready = [\"1ms\", \"500ms\"], \
             work = [\"90ms\", \"70ms\"] }}\n"
        )
    };
    for switch in ["0s", "300us"] {
        let recording = recorded(&text(switch));
        for vcpu in &recording.demand.vcpus {
            let works: Vec<Span> = vcpu.jobs.iter().map(|job| job.work).collect();
            assert_eq!(works, [Span::from_ms(90), Span::from_ms(70)], "{switch}: {}", vcpu.name);
        }
        let costs = &recording.demand.costs;
        let cost: Span = switch.parse().expect("a duration");
        assert_eq!(costs.switch.mean(), cost);
        assert_eq!(costs.tick.mean(), cost);
    }
}

/// Returns the record of a run interval in reserved time on CPU 0, from and to a time in
/// microseconds.
fn ran(vcpu: VcpuId, (from, to): (u64, u64), end: RanEnd) -> Record {
    let at = |us| Time::START + Span::from_us(us);
    let (cpu, used, late) = (CpuId::new(0), Span::from_us(to - from), Span::ZERO);
    let granted = Some(Span::from_ms(1));
    Record::Ran { vcpu, cpu, from: at(from), to: at(to), used, granted, late, end, due: true }
}

#[test]
fn wake_latency_excludes_wait_for_end_of_another_vcpu_timeslice() {
    let [web, db] = [0, 1].map(|number| VcpuId::new(number, DomId::new(number), 0));
    let us = |us| Time::START + Span::from_us(us);
    let mut collector = Collector::new(at(10));
    collector.host_thread(&HostThread {
        at: Time::START,
        id: HostThreadId::new(0),
        kind: HostThreadKind::Slackline,
        vcpu: None,
        tid: 1,
        process: 1,
        user: 0,
        name: "dispatcher 0".into(),
        command: "slackline".into(),
        vm: String::new(),
        group: String::new(),
    });
    let (thread, cpu, end) = (HostThreadId::new(0), CpuId::new(0), OffCpu::Blocked);
    for record in [
        Record::OnCpu { thread, cpu, from: us(0), to: us(10), end },
        // web waits until the timeslice of db ends.
        Record::Woke { at: us(1_000), vcpu: web },
        ran(db, (500, 1_200), RanEnd::Limit),
        ran(web, (1_250, 1_400), RanEnd::Blocked),
        // web preempts db at once.
        Record::Woke { at: us(5_000), vcpu: web },
        ran(db, (4_500, 5_020), RanEnd::Preempted),
        ran(web, (5_050, 5_200), RanEnd::Blocked),
    ] {
        collector.record(&record);
    }
    let latencies = collector.finish().others.wake_latency;
    let latency = &latencies[&web];
    assert!(!latencies.contains_key(&db), "db did not wake");
    assert_eq!((latency.count(), latency.sum()), (1, Span::from_us(50)));
}

#[test]
fn early_timer_expiries_within_a_slice_add_no_overrun_sample() {
    let vcpu = VcpuId::new(0, DomId::new(0), 0);
    let us = |us| Time::START + Span::from_us(us);
    let reservation = Reservation::new(Span::from_ms(2), Span::from_ms(10)).ok();
    let (exact, phase, by) = (true, None, Enforcement::Dispatcher);
    let mut collector = Collector::new(us(100_000));
    collector.record(&Record::Joined { at: us(0), vcpu });
    collector.record(&Record::Promised { at: us(0), vcpu, reservation, exact, phase, by });
    let mut ran = |from: u64, used: u64, granted: Option<u64>| {
        let (cpu, end) = (CpuId::new(0), RanEnd::Limit);
        let (from, to, used) = (us(from), us(from + used), Span::from_us(used));
        let (granted, late, due) = (granted.map(Span::from_us), Span::ZERO, granted.is_some());
        collector.record(&Record::Ran { vcpu, cpu, from, to, used, granted, late, end, due });
        if due {
            let fact = Fact::LimitReached(cpu);
            collector.exchange(&Exchange::Reported { now: to, fact });
        }
    };
    // The timer of the slice expires early twice. The third time the vCPU is stopped 20 us late.
    ran(0, 1_500, Some(2_000));
    ran(1_510, 480, Some(500));
    ran(2_010, 30, Some(20));
    ran(2_050, 10, None);
    // A later run interval outside the slice belongs to no stop.
    ran(2_100, 700, None);
    ran(10_000, 2_007, Some(2_000));
    ran(20_000, 2_000, Some(2_000));
    ran(22_000, 3, None);
    let demand = collector.finish();
    let overruns = &demand.vcpus[0].overruns;
    assert_eq!((overruns.count(), overruns.sum()), (3, Span::from_us(20 + 7 + 3)));
    assert_eq!(demand.timers, 3, "early timers do not count");
}
