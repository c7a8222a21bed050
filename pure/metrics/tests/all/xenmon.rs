//! Tests of XenMon's metrics, with hand-written runs.

use crate::script::{header, us, vcpu};
use slackline_metrics::{FieldValue, Point, XenMon, XenMonSummary};
use slackline_trace::{Header, Knowledge, RanEnd, Record, Service, Sink, VcpuName};
use slackline_units::{CpuId, DomId, Span, Time, VcpuId};

const WEB: &[(VcpuId, &str, &str)] = &[(vcpu(0), "web", "web")];

fn at(us: u64) -> Time {
    Time::START + Span::from_us(us)
}

fn woke(slot: u32, us: u64) -> Record {
    Record::Woke { at: at(us), vcpu: vcpu(slot) }
}

fn blocked(slot: u32, us: u64) -> Record {
    Record::Blocked { at: at(us), vcpu: vcpu(slot) }
}

/// Returns a record of a run interval on the first CPU. Its times and its slice are in
/// microseconds.
fn ran(slot: u32, (from, to): (u64, u64), slice: u64, end: RanEnd) -> Record {
    let (cpu, used, granted) = (CpuId::new(0), us(to - from), Some(us(slice)));
    let (from, to, late, due) = (at(from), at(to), Span::ZERO, true);
    Record::Ran { vcpu: vcpu(slot), cpu, from, to, used, granted, late, end, due }
}

/// Creates a monitor that knows the given vCPUs. Each has an id, a name and the name of its domain.
fn monitor(header: &Header, vcpus: &[(VcpuId, &str, &str)]) -> XenMon {
    let mut monitor = XenMon::new(header);
    for &(vcpu, name, domain) in vcpus {
        let (name, domain) = (name.into(), domain.into());
        monitor.named(&VcpuName { at: Time::START, vcpu, name, domain });
    }
    monitor
}

fn shown(mut monitor: XenMon, records: &[Record]) -> XenMonSummary {
    records.iter().for_each(|record| monitor.record(record));
    monitor.finish().expect("every record names a known vCPU")
}

fn two(records: &[Record]) -> XenMonSummary {
    let vcpus = [WEB[0], (vcpu(1), "batch", "batch")];
    shown(monitor(&header(), &vcpus), records)
}

fn point(times: [u64; 4], executions: u64) -> Point {
    let [gotten, allocated, blocked, waited] = times.map(us);
    Point { gotten, allocated, blocked, waited, executions, sliced: executions, io: 0 }
}

#[test]
fn xenmon_metrics_of_two_domains_equal_hand_computed_values() {
    let summary = two(&[
        woke(0, 0),
        woke(1, 0),
        ran(0, (0, 2_000), 5_000, RanEnd::Blocked),
        blocked(0, 2_000),
        ran(1, (2_000, 10_000), 30_000, RanEnd::Preempted),
        woke(0, 9_000),
        ran(0, (10_000, 14_000), 5_000, RanEnd::Limit),
        ran(1, (14_000, 20_000), 30_000, RanEnd::Over),
        Record::Ended { at: at(20_000) },
    ]);
    let [web, batch] = &summary.domains[..] else { panic!("two domains") };
    // The first domain is blocked from 2 to 9 ms, and waits from 9 to 10 ms. Its last wait has not
    // ended, so it does not count.
    assert_eq!(web.total, point([6_000, 10_000, 7_000, 1_000], 2));
    assert_eq!(batch.total, point([14_000, 60_000, 0, 2_000 + 4_000], 2));
    assert_eq!((web.name.as_str(), web.points.len()), ("web", 1));
}

#[test]
fn xenmon_counts_switch_only_if_gap_precedes_run_interval() {
    let summary = two(&[
        woke(0, 0),
        ran(0, (0, 5_000), 5_000, RanEnd::Limit),
        ran(0, (5_000, 10_000), 5_000, RanEnd::Limit),
        // The vCPU is throttled until its next period. It is runnable, so this time counts as
        // waiting.
        ran(0, (30_000, 35_000), 5_000, RanEnd::Over),
        Record::Ended { at: at(40_000) },
    ]);
    assert_eq!(summary.domains[0].total, point([15_000, 10_000, 0, 20_000], 2));
}

#[test]
fn xenmon_counts_paused_vcpu_as_blocked_in_any_record_order() {
    let pause = Record::Paused { at: at(5_000), vcpu: vcpu(0) };
    let run = ran(0, (0, 5_000), 30_000, RanEnd::Preempted);
    let rest = [woke(0, 25_000), ran(0, (25_000, 30_000), 30_000, RanEnd::Over)];
    for middle in [[run, pause], [pause, run]] {
        let records = [&[woke(0, 0)], &middle[..], &rest].concat();
        let summary = two(&records);
        assert_eq!(summary.domains[0].total, point([10_000, 60_000, 20_000, 0], 2));
    }
}

#[test]
fn xenmon_divides_cpu_time_over_samples_and_counts_waits_once() {
    let summary = two(&[
        woke(0, 0),
        woke(1, 0),
        ran(1, (0, 150_000), 30_000, RanEnd::Limit),
        ran(0, (150_000, 210_000), 100_000, RanEnd::Blocked),
        blocked(0, 210_000),
        Record::Ended { at: at(350_000) },
    ]);
    let web: Vec<Point> = summary.domains[0].points.clone();
    assert_eq!(web[0], point([0, 0, 0, 0], 0), "a vCPU that is never switched in has not waited");
    assert_eq!(web[1], point([50_000, 100_000, 0, 150_000], 1));
    assert_eq!(web[2], point([10_000, 0, 90_000, 0], 0));
    assert_eq!(web[3], point([0, 0, 50_000, 0], 0));
    assert_eq!(summary.seconds(&summary.domains[0]).count(), 0, "less than a second");
}

#[test]
fn each_xenmon_second_sums_ten_samples_after_the_warm_up() {
    let header = Header { warmup: us(500_000), ..header() };
    let records = [
        woke(0, 0),
        ran(0, (0, 1_000_000), 30_000, RanEnd::Blocked),
        blocked(0, 1_000_000),
        Record::Ended { at: at(2_600_000) },
    ];
    let summary = shown(monitor(&header, WEB), &records);
    let seconds: Vec<Point> = summary.seconds(&summary.domains[0]).collect();
    // The vCPU was switched in during the warm-up. Half of its run interval is after the warm-up.
    assert_eq!(seconds, [point([500_000, 0, 500_000, 0], 0), point([0, 0, 1_000_000, 0], 0)]);
    assert_eq!(summary.length, us(2_100_000));
}

#[test]
fn xenmon_reports_sum_over_vcpus_under_the_domain_name() {
    let vcpu = |number| VcpuId::new(u32::from(number), DomId::new(0), number);
    let vcpus = [(vcpu(0), "web.0", "web"), (vcpu(1), "web.1", "web")];
    let ran = |number: u16| Record::Ran {
        vcpu: vcpu(number),
        cpu: CpuId::new(usize::from(number)),
        from: at(0),
        to: at(10_000),
        used: us(10_000),
        granted: None,
        late: Span::ZERO,
        end: RanEnd::Over,
        due: true,
    };
    let summary = shown(monitor(&header(), &vcpus), &[ran(0), ran(1)]);
    let [web] = &summary.domains[..] else { panic!("one domain") };
    let total = Point { sliced: 0, ..point([20_000, 0, 0, 0], 2) };
    assert_eq!((web.name.as_str(), web.total), ("web", total));
}

#[test]
fn xenmon_counts_io_for_served_and_serving_domain_if_recorded() {
    let vcpus = [WEB[0], (vcpu(1), "dom0", "dom0")];
    let run = ran(0, (0, 10_000), 30_000, RanEnd::Over);
    let field = |summary: &XenMonSummary, name: &str| {
        let fields = summary.domain_fields(&summary.domains[0]);
        fields
            .into_iter()
            .find(|field| field.0 == name)
            .expect("the domain has a field of this name")
            .1
    };
    let without = shown(monitor(&header(), &vcpus), &[run]);
    assert_eq!(field(&without, "io"), FieldValue::Missing);
    assert_eq!(field(&without, "gotten_ppm"), FieldValue::Count(1_000_000));
    assert_eq!(field(&without, "gotten_ns_per_s"), FieldValue::Count(1_000_000_000));
    assert_eq!(field(&without, "executions_milli_per_s"), FieldValue::Count(100_000));
    assert_eq!(field(&without, "allocated_per_execution_ns"), FieldValue::Count(30_000_000));

    let service = Service { received: 7, sent: 100, requests: 100, ..Service::default() };
    let served = Record::Served { at: at(3_000), by: vcpu(1), of: vcpu(0), service };
    let with = shown(monitor(&header(), &vcpus), &[run, served]);
    assert_eq!(with.domains[1].total.io, 7, "also for the domain that served it");
    assert_eq!(field(&with, "io"), FieldValue::Count(7));
    assert_eq!(field(&with, "io_milli_per_execution"), FieldValue::Count(7_000));
    assert_eq!(field(&with, "blocked_per_io_ns"), FieldValue::Count(0));
}

#[test]
fn xenmon_fields_that_need_unrecorded_events_are_missing() {
    let knows = Knowledge { sleep: false, stretches: false, resolution: us(1), overhead: false };
    let header = Header { knows, ..header() };
    let summary = shown(monitor(&header, WEB), &[ran(0, (0, 10_000), 30_000, RanEnd::Over)]);
    let fields = summary.domain_fields(&summary.domains[0]);
    let missing: Vec<&str> =
        fields.iter().filter(|field| field.1 == FieldValue::Missing).map(|field| field.0).collect();
    for name in ["blocked_ppm", "waited_ppm", "executions", "allocated_ns", "io"] {
        assert!(missing.contains(&name), "{name}");
    }
    assert!(!missing.contains(&"gotten_ns"));
}
