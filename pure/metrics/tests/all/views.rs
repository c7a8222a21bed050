//! Tests of views of meters during a run, and of vCPUs that join and leave.

use crate::script::{Script, header, us, vcpu};
use std::collections::BTreeMap;

use slackline_metrics::{Meter, MovingWindow, OverTime, StrayRecord, Unknown, XenMon};
use slackline_trace::{Header, Record, Sink};
use slackline_units::{CpuId, DomId, Span, Time, VcpuId};

fn at(us: u64) -> Time {
    Time::START + Span::from_us(us)
}

fn meter(header: &Header, script: &Script) -> Meter {
    let mut meter = Meter::new(header);
    script.entries.iter().for_each(|entry| entry.pass_to(&mut meter));
    meter
}

#[test]
fn viewing_metrics_during_run_does_not_change_final_result() {
    let begun = Script::new(&["web"]).exactly(0, 0, 4, 10).woke(0, 0).ran(0, 0, 4).ran(0, 10, 14);
    let mut looked = meter(&header(), &begun);
    let view = looked.view().expect("every record names a known vCPU");
    assert_eq!(
        (view.length, view.vcpus[0].delivered, view.vcpus[0].present),
        (us(14), us(8), us(14))
    );
    assert_eq!(view.vcpus[0].deadlines, Some(1), "the second period is not over");
    let rest = Script::new(&[]).ran(0, 20, 23).with(Record::Ended { at: at(40) });
    rest.entries.iter().for_each(|entry| entry.pass_to(&mut looked));
    let mut whole = begun;
    whole.entries.extend(rest.entries);
    assert_eq!(looked.view(), meter(&header(), &whole).view());
    assert_eq!(looked.view().expect("every record names a known vCPU").vcpus[0].misses, Some(2));
}

/// A simulated host records the CPU time lost because other CPUs slowed a CPU. A live host cannot
/// measure this time, so it is unknown and not zero.
#[test]
fn time_lost_to_slowed_cpus_is_missing_on_live_hosts() {
    for (machine, slowed) in [("sim", Some(us(6))), ("live", None)] {
        let header = Header { machine: machine.into(), ..header() };
        let slower = Record::Slowed { vcpu: vcpu(0), from: at(0), to: at(10), work: us(4) };
        let run = Script::new(&["web"]).woke(0, 0).ran(0, 0, 10).with(slower);
        let view = meter(&header, &run).view().expect("every record names a known vCPU");
        assert_eq!(view.vcpus[0].slowed, slowed, "{machine}");
    }
}

#[test]
fn vcpus_using_one_slot_in_turn_have_separate_metric_rows() {
    let run = Script::new(&["web"])
        .woke(0, 0)
        .ran(0, 0, 10)
        .left(0, 10)
        .named(0, "batch")
        .joined(0, 20)
        .woke(0, 20)
        .ran(0, 20, 50)
        .ended(60);
    let rows: Vec<_> =
        run.vcpus.iter().map(|row| (&*row.name, row.delivered, row.present)).collect();
    assert_eq!(rows, [("web", us(10), us(10)), ("batch", us(30), us(40))]);
}

#[test]
fn job_recorded_after_slot_reuse_counts_for_earlier_vcpu() {
    let other = VcpuId::new(0, DomId::new(7), 0);
    let mut script = Script::new(&["web"]).left(0, 10);
    let named = slackline_trace::VcpuName {
        at: at(20),
        vcpu: other,
        name: "late".into(),
        domain: "late".into(),
    };
    script.entries.push(slackline_trace::Entry::Named(named));
    let script = script.with(Record::Joined { at: at(20), vcpu: other }).job(0, 1, 9, 5);
    let run = script.ended(30);
    let rows: Vec<_> = run.vcpus.iter().map(|row| (&*row.name, row.jobs)).collect();
    assert_eq!(rows, [("web", 1), ("late", 0)]);
}

#[test]
fn vcpu_rejoining_under_the_old_name_keeps_metric_sums() {
    let run = Script::new(&["web"]).woke(0, 0).ran(0, 0, 10).blocked(0, 10).left(0, 10);
    let run = run.named(0, "web").joined(0, 20).woke(0, 20).ran(0, 20, 25).ended(30);
    let rows: Vec<_> = run.vcpus.iter().map(|row| (row.delivered, row.present)).collect();
    assert_eq!(rows, [(us(15), us(20))]);
}

#[test]
fn error_about_unknown_vcpu_or_cpu_contains_the_record_number() {
    let stranger = Script::new(&["web"]).woke(0, 0).woke(3, 5).blocked(4, 6);
    let expected = StrayRecord { record: 2, who: Unknown::Vcpu(vcpu(3)) };
    assert_eq!(meter(&header(), &stranger).view(), Err(expected));
    assert_eq!(expected.to_string(), "trace record 2 is about d3v0, which no earlier record names");
    let mut monitor = XenMon::new(&header());
    stranger.entries.iter().for_each(|entry| entry.pass_to(&mut monitor));
    assert_eq!(monitor.finish(), Err(expected));
    let mut over_time = OverTime::new(us(1));
    let ran = Script::new(&["web"]).ran(3, 0, 1);
    ran.entries.iter().for_each(|entry| entry.pass_to(&mut over_time));
    assert_eq!(over_time.finish(), Err(StrayRecord { record: 1, who: Unknown::Vcpu(vcpu(3)) }));
    let elsewhere = Script::new(&["web"]).used(0, 9, (0, 5, 5), (0, true));
    let expected = StrayRecord { record: 1, who: Unknown::Cpu(CpuId::new(9)) };
    assert_eq!(meter(&header(), &elsewhere).view(), Err(expected));
    assert_eq!(expected.to_string(), "trace record 1 is about cpu9, which the host does not have");
}

/// Records of three vCPUs that wake, run over several periods, change reservations, block and
/// finish jobs. The order is arbitrary and depends on the seed only.
fn busy(seed: u64) -> Script {
    let mut draw = seed;
    let mut below = |limit: u64| {
        // Knuth's linear congruential generator. Any generator is suitable that gives equal numbers
        // in each run.
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (draw >> 33) % limit
    };
    let mut script = Script::new(&["a", "b", "c"]);
    let (mut now, mut awake) = (0, [false; 3]);
    for _ in 0..400 {
        let (who, length) = (below(3), 1 + below(40));
        let slot = u32::try_from(who).expect("a slot is below three");
        let is_awake = &mut awake[usize::try_from(who).expect("a slot is below three")];
        if !*is_awake {
            *is_awake = true;
            script = script.woke(slot, now);
        }
        let late = below(length);
        let spare = below(4) == 0;
        script =
            script.used(slot, 0, (now, now + length, length), (late * u64::from(!spare), !spare));
        now += length;
        match below(8) {
            0 | 1 => {
                *is_awake = false;
                script = script.blocked(slot, now).job(slot, now - length, now - 1, now);
            }
            2 => script = script.exactly(slot, now, 1 + below(9), 10 + below(30)),
            3 => script = script.promised(slot, now, 1 + below(9), 10 + below(30)),
            4 => {
                script = script.with(Record::Changed {
                    due: at(now - 1),
                    at: at(now),
                    vcpu: vcpu(slot),
                });
            }
            5 => now += below(200),
            _ => {}
        }
    }
    script
}

#[test]
fn moving_window_metrics_equal_metrics_measured_from_window_start() {
    for seed in 0..20 {
        let script = busy(seed);
        for span in [1, 50, 300, 2_000] {
            let mut window = MovingWindow::new(&header(), us(span));
            for (done, entry) in script.entries.iter().enumerate() {
                entry.pass_to(&mut window);
                if done % 97 != 0 {
                    continue;
                }
                let warmup = window.start() - Time::START;
                let mut meter = Meter::new(&Header { warmup, ..header() });
                script.entries[..=done].iter().for_each(|entry| entry.pass_to(&mut meter));
                let (found, expected) = (window.view(), meter.view());
                let mut expected = expected.expect("every record names a known vCPU");
                expected.vcpus.retain(|row| !row.present.is_zero());
                assert_eq!(found, Ok(expected), "seed {seed}, the last {span} us after {done}");
            }
        }
    }
}

#[test]
fn metrics_of_changed_domain_start_at_the_time_of_change() {
    let changed = vcpu(1).domain();
    let mut compared = 0;
    for seed in 0..20 {
        let script = busy(seed);
        let mut window = MovingWindow::new(&header(), us(2_000));
        script.entries.iter().for_each(|entry| entry.pass_to(&mut window));
        let start = window.start();
        let change = start.after(window.now().since(start) / 3);
        let rows_since = |from: Time| {
            let header = Header { warmup: from - Time::START, ..header() };
            let mut meter = Meter::new(&header);
            script.entries.iter().for_each(|entry| entry.pass_to(&mut meter));
            meter.view().expect("every record names a known vCPU").vcpus
        };
        let (all, lately) = (rows_since(start), rows_since(change));
        let view = window.view_with_starts(&BTreeMap::from([(changed, change)]));
        for row in view.expect("every record names a known vCPU").vcpus {
            let is_changed = row.id.domain() == changed;
            let expected = if is_changed { &lately } else { &all };
            assert!(expected.contains(&row), "seed {seed}: {row:?}");
            compared += usize::from(is_changed);
        }
    }
    assert!(compared >= 10, "{compared} rows of the changed domain");
}

#[test]
fn moving_window_discards_records_of_run_intervals_before_its_start() {
    let mut window = MovingWindow::new(&header(), us(100));
    let begun = Script::new(&["web"]).promised(0, 0, 1, 2).woke(0, 0);
    begun.entries.iter().for_each(|entry| entry.pass_to(&mut window));
    let mut most = 0;
    for nth in 0..10_000 {
        let ran = Script::new(&[]).ran(0, 10 * nth, 10 * nth + 10);
        ran.entries.iter().for_each(|entry| entry.pass_to(&mut window));
        most = most.max(window.kept());
    }
    assert!(most <= 15, "{most} are kept");
    let view = window.view().expect("every record names a known vCPU");
    assert_eq!((view.length, view.vcpus[0].delivered), (us(100), us(100)));
}

#[test]
fn moving_window_drops_vcpus_that_left_before_the_window_started() {
    let script = Script::new(&["web", "batch"]).woke(0, 0).ran(0, 0, 10).left(0, 10).woke(1, 10);
    let mut window = MovingWindow::new(&header(), us(100));
    script.entries.iter().for_each(|entry| entry.pass_to(&mut window));
    let names = |window: &MovingWindow| {
        let rows = window.view().expect("every record names a known vCPU").vcpus;
        rows.into_iter().map(|row| row.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&window), ["web", "batch"]);
    window.record(&Record::Ran {
        vcpu: vcpu(1),
        cpu: CpuId::new(0),
        from: at(10),
        to: at(500),
        used: us(490),
        granted: None,
        late: Span::ZERO,
        end: slackline_trace::RanEnd::Limit,
        due: true,
    });
    assert_eq!(names(&window), ["batch"]);
}
