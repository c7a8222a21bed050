//! Tests of shares, sums and delays. The expected numbers were computed by hand, and times are in
//! microseconds.

use crate::script::{Script, us, vcpu};
use slackline_metrics::{Distribution, Measure};
use slackline_trace::{OverheadKind, Record};
use slackline_units::{CpuId, Span, Time, VcpuId};

const S: u64 = 1_000_000;

fn awake(slice: u64, period: u64) -> Script {
    Script::new(&["a"]).promised(0, 0, slice, period).woke(0, 0)
}

fn awake_exact(slice: u64, period: u64) -> Script {
    Script::new(&["a"]).exactly(0, 0, slice, period).woke(0, 0)
}

#[test]
fn run_interval_cpu_time_is_divided_proportionally_over_seconds() {
    // The vCPU uses half of the time from 0.5 to 2.5 s: 250, 500 and 250 ms in the three seconds.
    // It reserves 300 ms per second.
    let script = awake_exact(3_000, 10_000).used(0, 0, (S / 2, S * 5 / 2, S), (0, true));
    let vcpu = script.first_ended(3 * S);
    let error = vcpu.second_error.unwrap();
    assert_eq!((error.seconds, error.worst_ppm), (3, 666_667));
    assert_eq!(vcpu.error_ppm, Some(111_111), "1 s of 0.9 s");
    assert_eq!((vcpu.delivered, vcpu.delivered_ppm), (us(S), 333_333));
}

#[test]
fn share_error_per_second_is_measured_over_whole_periods() {
    // A whole second is 334 periods of 3 ms, which is 1.002 s. In each of two whole seconds, the
    // vCPU lacks 1 ms of its 334 ms.
    let mut script = awake(1_000, 3_000);
    for nth in 0..668_u64 {
        let slice = if nth % 334 == 7 { 0 } else { 1_000 };
        script = script.ran(0, nth * 3_000, nth * 3_000 + slice);
    }
    let vcpu = script.first_ended(2 * S + 5_000);
    let error = vcpu.second_error.unwrap();
    assert_eq!((error.seconds, error.p99_ppm, error.worst_ppm), (2, Some(2_994), 2_994));
}

#[test]
fn share_error_is_per_period_if_periods_exceed_a_second() {
    let script = awake(S, 2 * S).ran(0, 0, S).ran(0, 3 * S, 3 * S + S / 2);
    let error = script.first_ended(5 * S).second_error.unwrap();
    assert_eq!((error.seconds, error.worst_ppm), (2, 500_000));
}

#[test]
fn excess_cpu_time_is_share_error_only_under_hard_limit() {
    let vcpu = awake(3_000, 10_000).ran(0, 0, 2 * S).first_ended(2 * S);
    assert_eq!((vcpu.error_ppm, vcpu.second_error.unwrap().worst_ppm), (Some(0), 0));
    let vcpu = awake_exact(3_000, 10_000).ran(0, 0, S).first_ended(S);
    assert_eq!(vcpu.error_ppm, Some(2_333_333));
    assert_eq!(vcpu.second_error.unwrap().worst_ppm, 2_333_333);
}

#[test]
fn share_error_excludes_shortfall_in_seconds_in_which_vcpu_blocks() {
    // In the first second the vCPU blocks and receives less than it reserved. In the second one it
    // receives exactly its reservation.
    let sleeps = |script: Script| {
        let script = script.ran(0, 0, 1_000).blocked(0, 1_000).woke(0, S);
        script.ran(0, S, S + 300_000)
    };
    let vcpu = sleeps(awake(3_000, 10_000)).first_ended(2 * S);
    let error = vcpu.second_error.unwrap();
    assert_eq!((error.seconds, error.worst_ppm, vcpu.error_ppm), (1, 0, None));
    // With a hard limit, the vCPU reserves 300 ms in the third second and receives 600 ms, although
    // it blocks.
    let script = sleeps(awake_exact(3_000, 10_000)).ran(0, 2 * S, 2 * S + 600_000);
    let vcpu = script.blocked(0, 2 * S + 600_000).first_ended(3 * S);
    let error = vcpu.second_error.unwrap();
    assert_eq!((error.seconds, error.worst_ppm), (2, 1_000_000));
    assert_eq!(vcpu.error_ppm, Some(1_111), "901 ms of 900 ms, although the vCPU blocked");
}

#[test]
fn share_error_ignores_seconds_in_which_vcpu_is_always_blocked() {
    // The vCPU is blocked from 0.2 s to 5.5 s, through many periods at once. Then it is runnable
    // but never runs.
    let script = awake(3_000, 10_000).ran(0, 0, 200_000).blocked(0, 200_000);
    let vcpu = script.woke(0, 11 * S / 2).first_ended(8 * S);
    let error = vcpu.second_error.unwrap();
    assert_eq!((error.seconds, error.worst_ppm), (2, 1_000_000), "from 6 and from 7 s");
    assert_eq!(vcpu.deadlines, Some(20 + 250), "20 slices on 200 ms, 250 periods from 5.5 s on");
}

#[test]
fn vcpu_counts_as_always_runnable_if_blocks_are_unobservable() {
    let script = awake_exact(3_000, 10_000).knows(false, false).ran(0, 0, 150_000);
    let vcpu = script.blocked(0, 150_000).first_ended(S);
    assert_eq!(vcpu.error_ppm, Some(-500_000));
    assert_eq!(vcpu.second_error.unwrap().worst_ppm, 500_000);
    assert_eq!((vcpu.waiting, vcpu.asleep), (None, None));
}

#[test]
fn share_error_omits_seconds_cut_by_reservation_change_or_warmup() {
    let vcpu = awake(3_000, 10_000).warmup(10_000).first_ended(3 * S);
    assert_eq!(vcpu.second_error.unwrap().seconds, 2, "the first one began in the warm-up");
    let script = awake(3_000, 10_000).promised(0, S * 3 / 2, 1_000, 10_000);
    let vcpu = script.first_ended(3 * S);
    assert_eq!(vcpu.second_error.unwrap().seconds, 2, "0 to 1 s, 1.5 to 2.5 s");
}

#[test]
fn reserved_share_is_averaged_over_joined_time_of_vcpu() {
    // The vCPU reserves 30 % until 1 s, and then 10 % until 4 s. The first half second is warm-up.
    let script = awake(3_000, 10_000).warmup(S / 2).promised(0, S, 1_000, 10_000);
    let vcpu = script.left(0, 4 * S).first_ended(10 * S);
    assert_eq!((vcpu.promised_share_ppm, vcpu.present), (Some(128_571), us(3_500_000)));
    assert_eq!(vcpu.promised.unwrap().to_string(), "1ms/10ms");
    let nothing = Script::new(&["a"]).promise(0, 0, None, false).first_ended(S);
    assert_eq!((nothing.promised_share_ppm, nothing.error_ppm), (None, None));
}

/// The vCPU joins late, and receives its slice at the start of each period.
#[test]
fn delivered_share_reserved_share_and_error_cover_the_same_time() {
    let joined = |at| Script::new(&[]).named(0, "a").joined(0, at);
    // The vCPU reserves 6 ms in 10 ms from 5 ms on. There are 99 whole periods, and half of another
    // period in which it runs all the time.
    let mut script = joined(5_000).exactly(0, 5_000, 6_000, 10_000).woke(0, 5_000);
    for start in (5_000..S).step_by(10_000) {
        script = script.ran(0, start, (start + 6_000).min(S));
    }
    let vcpu = script.first_ended(S);
    assert_eq!((vcpu.delivered, vcpu.present), (us(599_000), us(995_000)), "all of it");
    let shares = (vcpu.delivered_ppm, vcpu.promised_share_ppm, vcpu.error_ppm);
    assert_eq!(shares, (600_000, Some(600_000), Some(0)), "not 602 010");
    // The reservation changes within the warm-up, which ends in the middle of a period.
    let script = awake_exact(1_000, 10_000).warmup(12_000).ran(0, 0, 1_000);
    let script = script.exactly(0, 5_000, 3_000, 10_000).ran(0, 5_000, 8_000);
    let vcpu = script.ran(0, 15_000, 18_000).first_ended(28_000);
    let shares = (vcpu.delivered_ppm, vcpu.promised_share_ppm, vcpu.error_ppm);
    assert_eq!(shares, (300_000, Some(300_000), Some(0)), "3 of 10 ms, not of 16");
    // Without a whole period, the shares cover all the time for which the vCPU was joined.
    let vcpu = awake_exact(3_000, 10_000).ran(0, 0, 3_000).first_ended(6_000);
    let shares = (vcpu.delivered_ppm, vcpu.promised_share_ppm, vcpu.error_ppm);
    assert_eq!(shares, (500_000, Some(300_000), None));
}

#[test]
fn delivered_and_reserved_share_cover_all_time_despite_reservation_change() {
    // The vCPU reserves 40 % in periods of 2 s. The second period is cut after 5 ms, when the
    // reservation changes to 20 %.
    let script = awake_exact(800_000, 2 * S).ran(0, 0, 800_000).ran(0, 2 * S, 2 * S + 2_000);
    let script =
        script.exactly(0, 2 * S + 5_000, 200_000, S).ran(0, 2 * S + 5_000, 2 * S + 205_000);
    let vcpu = script.left(0, 3 * S + 5_000).first_ended(9 * S);
    let shares = (vcpu.delivered_ppm, vcpu.promised_share_ppm, vcpu.error_ppm);
    assert_eq!(shares, (333_444, Some(333_444), Some(0)), "1.002 s of 3.005 s");
    // The vCPU first has no reservation, and then reserves 30 %.
    let script = Script::new(&["a"]).promise(0, 0, None, false).woke(0, 0).ran_spare(0, 0, 100_000);
    let script = script.exactly(0, S, 3_000, 10_000).ran(0, S, S + 300_000);
    let vcpu = script.first_ended(2 * S);
    assert_eq!((vcpu.delivered_ppm, vcpu.promised_share_ppm), (200_000, Some(150_000)));
}

#[test]
fn time_in_the_warm_up_is_counted_in_no_metric() {
    let script = Script::new(&["a"]).warmup(1_000).woke(0, 100).ran(0, 400, 2_400);
    let run = script.blocked(0, 2_400).ended(5_000);
    let vcpu = &run.vcpus[0];
    assert_eq!((vcpu.delivered, vcpu.present), (us(1_400), us(4_000)));
    assert_eq!((vcpu.waiting, vcpu.asleep), (Some(us(0)), Some(us(2_600))));
    assert_eq!((vcpu.switches, vcpu.wake_to_run), (0, None));
    assert_eq!((run.length, run.cpus[0].busy, run.cpus[0].idle), (us(4_000), us(1_400), us(2_600)));
}

#[test]
fn vcpu_waiting_time_is_time_runnable_but_not_running() {
    // The vCPU is runnable for 10 ms. In a run interval of 4 ms it receives 3 ms of CPU time.
    let script = Script::new(&["a"]).woke(0, 1_000).used(0, 0, (2_000, 6_000, 3_000), (0, false));
    let vcpu = script.blocked(0, 11_000).first_ended(20_000);
    assert_eq!((vcpu.waiting, vcpu.asleep), (Some(us(7_000)), Some(us(10_000))));
}

#[test]
fn vcpu_stopped_time_is_neither_waiting_nor_blocked_time() {
    let of = |machine: &str| {
        let script = Script::new(&["a"]).machine(machine).warmup(1_000).woke(0, 500);
        let [from, to] = [500, 3_000].map(|at| Time::START + us(at));
        let script = script.with(Record::Stopped { vcpu: vcpu(0), from, to });
        script.ran(0, 4_000, 6_000).blocked(0, 6_000).first_ended(11_000)
    };
    let live = of("live");
    let [stopped, waiting, asleep] = [live.stopped, live.waiting, live.asleep];
    assert_eq!((stopped, waiting, asleep), (Some(us(2_000)), Some(us(1_000)), Some(us(5_000))));
    assert_eq!(of("sim").stopped, None);
}

/// A live host pauses a vCPU that has escaped its limit. At the end of the pause, the host records
/// the same time as a stop.
#[test]
fn pause_after_escape_from_limit_is_neither_waiting_nor_blocked() {
    let [from, to] = [1_000, 4_000].map(|at| Time::START + us(at));
    let script = Script::new(&["a"]).machine("live").woke(0, 0).ran(0, 0, 1_000);
    let script = script.with(Record::Paused { at: from, vcpu: vcpu(0) });
    let script = script.with(Record::Stopped { vcpu: vcpu(0), from, to }).woke(0, 4_000);
    let live = script.ran(0, 5_000, 6_000).blocked(0, 6_000).first_ended(11_000);
    let [stopped, waiting, asleep] = [live.stopped, live.waiting, live.asleep];
    assert_eq!((stopped, waiting, asleep), (Some(us(3_000)), Some(us(1_000)), Some(us(5_000))));
    assert_eq!(live.escaped, us(3_000));
}

/// A wait lasts from a wake or a preemption of a vCPU until it runs, or until the end of the run.
/// Time in the warm-up and blocked time do not count.
#[test]
fn longest_wait_ends_when_the_vcpu_runs_or_blocks() {
    let longest = |script: Script| script.first_ended(20_000).wait_worst;
    let woke = || Script::new(&["a"]).warmup(1_000).woke(0, 500).ran(0, 2_000, 3_000);
    assert_eq!(longest(woke().blocked(0, 3_000)), Some(us(1_000)));
    assert_eq!(longest(woke().ran(0, 7_000, 8_000).blocked(0, 8_000)), Some(us(4_000)));
    assert_eq!(longest(woke().ran(0, 7_000, 8_000)), Some(us(12_000)), "for good");
    assert_eq!(longest(woke().blocked(0, 3_000).woke(0, 9_000).ran(0, 9_500, 20_000)), {
        Some(us(1_000))
    });
}

#[test]
fn wake_to_run_latency_ends_at_the_first_run_interval() {
    let script = Script::new(&["a"]).woke(0, 100).ran(0, 150, 200).ran(0, 300, 400);
    let script = script.blocked(0, 400).woke(0, 500).blocked(0, 600);
    let vcpu = script.woke(0, 700).ran(0, 710, 720).first_ended(1_000);
    let [p50, p90, p99] = [10, 50, 50].map(|at| Some(us(at)));
    let (worst, mean, worst_tenth) = (us(50), us(30), None);
    let distribution = Distribution { count: 2, p50, p90, p99, worst, mean, worst_tenth };
    assert_eq!(vcpu.wake_to_run, Some(distribution), "the second wake led to nothing");
    let vcpu = Script::new(&["a"]).woke(0, 100).first_ended(1_000);
    let still_waits = vcpu.wake_to_run.unwrap();
    assert_eq!((still_waits.count, still_waits.p99, still_waits.worst), (1, None, us(900)));
}

#[test]
fn wakes_and_switches_in_the_warm_up_are_not_counted() {
    // The first wake and its run are in the warm-up. The second wake is in the warm-up, but its run
    // is after the warm-up. The third wake is after the warm-up.
    let script = Script::new(&["a"]).warmup(100).woke(0, 10).ran(0, 20, 30).blocked(0, 30);
    let script = script.woke(0, 90).ran(0, 110, 120).blocked(0, 120);
    let script = script.woke(0, 150).blocked(0, 155).woke(0, 160).ran(0, 161, 170);
    let script = script.ran(0, 170, 180).blocked(0, 180).woke(0, 200).ran(0, 203, 210);
    let vcpu = script.first_ended(1_000);
    let wakes = vcpu.wake_to_run.unwrap();
    assert_eq!((wakes.count, wakes.worst), (2, us(3)));
    // The run intervals that begin at 110, 161 and 203 count as switches. The run interval at 170
    // continues another one.
    assert_eq!(vcpu.switches, 3);
}

#[test]
fn vcpu_that_joins_runnable_has_no_wake_to_run_latency() {
    // The vCPU joins runnable: at the start of the run, later, and again after it has left.
    for joined in [0, 700] {
        let script = Script::new(&[]).named(0, "a").joined(0, joined).woke(0, joined);
        let script = script.ran(0, joined + 50, joined + 100);
        assert_eq!(script.first_ended(1_000).wake_to_run, None, "joined at {joined}");
    }
    let script = Script::new(&["a"]).woke(0, 0).ran(0, 50, 90).left(0, 90).joined(0, 200);
    let vcpu = script.woke(0, 200).ran(0, 220, 230).blocked(0, 230).woke(0, 300).ran(0, 307, 400);
    let wakes = vcpu.first_ended(1_000).wake_to_run.unwrap();
    assert_eq!((wakes.count, wakes.worst), (1, us(7)), "a nap ends with a wake");
}

#[test]
fn context_switch_is_counted_only_after_gap_or_another_vcpu() {
    let script = Script::new(&["a", "b"]).ran(0, 0, 10).ran_spare(0, 10, 20).ran(1, 20, 30);
    let script = script.ran(0, 30, 40).ran(0, 41, 50).used(0, 1, (60, 70, 10), (0, true));
    let run = script.ended(100);
    let counts = run.vcpus.iter().map(|vcpu| (vcpu.switches, vcpu.migrations));
    assert_eq!(counts.collect::<Vec<_>>(), [(4, 1), (1, 0)]);
    assert_eq!((run.cpus[0].switches, run.cpus[1].switches), (4, 1));
    assert_eq!((run.cpus[0].due, run.cpus[0].spare), (us(39), us(10)));
}

#[test]
fn job_that_is_done_after_its_deadline_counts_as_late() {
    let script = Script::new(&["a"]).warmup(100).job(0, 99, 200, 300).job(0, 100, 200, 200);
    let vcpu = script.job(0, 200, 300, 450).first_ended(1_000);
    assert_eq!((vcpu.jobs, vcpu.jobs_late, vcpu.jobs_due), (2, 1, 2));
    assert_eq!(vcpu.jobs_done, 3); // One of them was released in the warm-up.
    assert_eq!(vcpu.job_lateness.unwrap().worst, us(150));
    assert_eq!(vcpu.response.unwrap().p50, Some(us(100)));
}

#[test]
fn job_without_a_deadline_is_never_counted_as_late() {
    let (released, done) = (Time::START + us(100), Time::START + us(900));
    let endless = Record::Job {
        vcpu: vcpu(0),
        task: None,
        client: None,
        released,
        deadline: Time::NEVER,
        done,
    };
    let vcpu = Script::new(&["a"]).with(endless).job(0, 200, 300, 250).first_ended(1_000);
    assert_eq!((vcpu.jobs, vcpu.jobs_due, vcpu.jobs_late), (2, 1, 0));
}

#[test]
fn bytes_moved_by_vcpu_are_counted_only_after_warm_up() {
    let moved =
        |us_at: u64, bytes| Record::Moved { at: Time::START + us(us_at), vcpu: vcpu(0), bytes };
    let script = Script::new(&["a"]).warmup(100).with(moved(99, 1)).with(moved(100, 20));
    let run = script.with(moved(200, 300)).ended(1_000);
    assert_eq!(run.vcpus[0].moved, 320);
    assert_eq!(run.lookup("moved", Some("a")), Ok(Measure::Count(320)));
}

#[test]
fn host_events_are_counted_only_after_the_warm_up() {
    let (time, cpu) = (|at| Time::START + us(at), CpuId::new(1));
    let mut script = Script::new(&["a"]).warmup(50);
    for (at, late, delay) in [(49, us(9), us(8)), (50, us(7), us(3))] {
        let (at, vcpu) = (time(at), crate::script::vcpu(0));
        script = script.with(Record::RangLate { at, cpu, late });
        script = script.with(Record::Refused { at, vcpu, cpu });
        script = script.with(Record::Declined { at, vcpu });
        script = script.with(Record::Changed { due: at, at: at + delay, vcpu });
    }
    let script = script.knows_overhead_in_all();
    let run = script.with(Record::Overhead { cpu, used: us(5) }).ended(100);
    assert_eq!((run.refused, run.declined), (1, 1));
    assert_eq!(run.timer_lateness.map(|late| (late.count, late.worst)), Some((1, us(7))));
    assert_eq!(run.changes.map(|delay| (delay.count, delay.worst)), Some((1, us(3))));
    assert_eq!(run.cpus.iter().map(|cpu| cpu.overhead).collect::<Vec<_>>(), [None, Some(us(5))]);
}

/// Returns a record of overhead on the first CPU between two times in microseconds.
fn spent(vcpu: Option<VcpuId>, kind: OverheadKind, from: u64, to: u64) -> Record {
    let at = |us| Time::START + Span::from_us(us);
    Record::Spent { cpu: CpuId::new(0), vcpu, kind, from: at(from), to: at(to) }
}

/// The run lasts 100 us, with 10 us of warm-up. A tick lasts beyond the end of the warm-up. Then
/// come a switch and a tick on an idle CPU.
#[test]
fn program_time_plus_overhead_plus_idle_time_equals_measured_time() {
    let of = |slot| Some(vcpu(slot));
    let slowed = Record::Slowed {
        vcpu: of(0).expect("slot 0 has a vCPU"),
        from: Time::START + us(20),
        to: Time::START + us(30),
        work: us(6),
    };
    let script = Script::new(&["a"]).warmup(10).woke(0, 0).ran(0, 0, 40).blocked(0, 40);
    let script = script.with(spent(of(0), OverheadKind::Tick, 8, 13)).with(slowed);
    let script = script.with(spent(of(0), OverheadKind::Switch, 14, 15));
    let run = script.with(spent(None, OverheadKind::Tick, 50, 57)).ended(100);
    let (vcpu, cpu) = (&run.vcpus[0], &run.cpus[0]);
    let overhead = vcpu.overhead.expect("the trace records overhead");
    assert_eq!((overhead.total(), overhead.of(OverheadKind::Tick)), (us(4), us(3)));
    assert_eq!((vcpu.delivered, vcpu.program(), vcpu.work()), (us(30), Some(us(26)), Some(us(22))));
    assert_eq!(vcpu.work_ppm(), Some(244_444), "22 of 90 us");
    let overheads = cpu.overheads.expect("the trace records overhead");
    let kinds = [OverheadKind::Tick, OverheadKind::Switch].map(|kind| overheads.of(kind));
    assert_eq!((kinds, cpu.overhead), ([us(10), us(1)], Some(us(11))));
    assert_eq!((cpu.busy, cpu.program, cpu.idle), (us(30), Some(us(26)), us(53)));
    assert_eq!(run.lookup("overhead", None), Ok(Measure::Span(us(11))), "idle CPUs have some");
    assert_eq!(run.lookup("tick overhead", Some("a")), Ok(Measure::Span(us(3))));
}

#[test]
fn vcpu_work_metric_is_missing_without_overhead_records_per_vcpu() {
    let script = Script::new(&["a"]).woke(0, 0).ran(0, 0, 40).knows_overhead_in_all();
    let run = script.ended(100);
    assert_eq!(
        (run.vcpus[0].work(), run.cpus[0].overhead, run.cpus[0].program),
        (None, None, None)
    );
}

fn books(from: u64, to: u64, idle: u64, stolen: u64, dispatching: u64) -> Record {
    let (from, to) = (Time::START + us(from), Time::START + us(to));
    let [idle, stolen, dispatching] = [idle, stolen, dispatching].map(us);
    Record::Accounted { cpu: CpuId::new(0), from, to, idle, stolen, dispatching }
}

#[test]
fn cpu_time_outside_vcpus_counts_as_foreign_stolen_or_unused() {
    // 10 ms are not accounted. The 100 ms after them have 30 ms of vCPUs, 25 ms idle, 5 ms stolen
    // and 2 ms of dispatching.
    let script = Script::new(&["a"]).ran(0, 0, 10_000).with(books(10_000, 10_000, 0, 0, 0));
    let script = script.ran(0, 20_000, 40_000).with(books(10_000, 60_000, 10_000, 5_000, 1_000));
    let script = script.ran_spare(0, 70_000, 80_000);
    let script = script.with(books(60_000, 110_000, 15_000, 0, 1_000)).ran(0, 110_000, 120_000);
    let run = script.ended(120_000);
    let of = |metric: &str| run.lookup(metric, Some("cpu0"));
    assert_eq!(of("others"), Ok(Measure::Ppm(380_000)));
    assert_eq!((of("stolen"), of("unused")), (Ok(Measure::Ppm(50_000)), Ok(Measure::Ppm(250_000))));
    // The other CPU has no kernel accounting, so the sum over both CPUs is unknown.
    assert_eq!(run.cpus[1].shared, None);
    assert_eq!(run.lookup("others", None), Ok(Measure::Unknown));
}

#[test]
fn kernel_accounting_interval_across_warm_up_end_counts_proportionally() {
    // Half of the first 100 ms is after the warm-up. So half of the idle time in these 100 ms
    // counts.
    let script = Script::new(&["a"]).warmup(50_000).with(books(0, 0, 0, 0, 0));
    let script = script.ran(0, 0, 60_000).with(books(0, 100_000, 40_000, 0, 0));
    let run = script.with(books(100_000, 150_000, 50_000, 0, 0)).ended(150_000);
    let shared = run.cpus[0].shared.unwrap();
    assert_eq!((shared.others_ppm, shared.unused_ppm), (200_000, 700_000), "20 and 70 of 100 ms");
    // If the known uses exceed the elapsed time, the use by other programs is zero.
    let script = Script::new(&["a"]).with(books(0, 0, 0, 0, 0)).ran(0, 0, 100_000);
    let run = script.with(books(0, 100_000, 20_000, 0, 0)).ended(100_000);
    assert_eq!(run.cpus[0].shared.unwrap().others_ppm, 0);
}

#[test]
fn vcpu_that_never_joined_has_no_row_in_the_summary() {
    let run = Script::new(&[]).named(0, "a").named(1, "b").joined(1, 0).ended(10);
    assert_eq!(run.vcpus.iter().map(|vcpu| vcpu.name.as_str()).collect::<Vec<_>>(), ["b"]);
}

/// Random numbers that are equal in each run, from a linear congruential generator with Knuth's
/// constants.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn promise(&mut self, script: Script, slot: u32, at: u64) -> Script {
        let period = 1 + self.below(2 * S);
        let of = (self.below(5) > 0).then(|| (1 + self.below(period), period));
        script.promise(slot, at, of, self.below(2) == 1)
    }
}

/// The run intervals are placed at random relative to periods, seconds, reservations, blocks and
/// the warm-up.
#[test]
fn sums_of_metrics_are_consistent_for_random_run_intervals() {
    for seed in 0..500_u64 {
        let mut draw = Draw(seed);
        let mut script = Script::new(&["a", "b"]).warmup(draw.below(3 * S));
        for slot in [0, 1] {
            script = draw.promise(script, slot, 0).woke(slot, 0);
        }
        let (mut now, mut sum) = (0, 0);
        for _ in 0..50 {
            let slot = u32::from(draw.below(2) == 1);
            let (from, length) = (now + draw.below(1_000), 1 + draw.below(S));
            let used = draw.below(length + 1);
            let (late, due) = (draw.below(used + 1), draw.below(2) == 1);
            if draw.below(4) == 0 {
                let at = from + draw.below(length);
                script = draw.promise(script, slot, at);
            }
            now = from + length;
            sum += used;
            script = script.used(slot, 0, (from, now, used), (late, due));
            if draw.below(4) == 0 {
                let woken = now + draw.below(5 * S);
                script = script.blocked(slot, now).woke(slot, woken);
                now = woken;
            }
        }
        let run = script.ended(now);
        let delivered: Span = run.vcpus.iter().map(|vcpu| vcpu.delivered).sum();
        assert_eq!(delivered, run.cpus[0].busy, "seed {seed}");
        assert_eq!(run.cpus[0].due + run.cpus[0].spare, run.cpus[0].busy, "seed {seed}");
        assert_eq!(run.cpus[0].busy + run.cpus[0].idle, run.length, "seed {seed}");
        assert!(delivered <= us(sum), "seed {seed}");
        for vcpu in &run.vcpus {
            let missed = vcpu.miss_time.map_or(0, |time| time.count);
            assert_eq!(vcpu.misses, Some(missed), "seed {seed}");
            let times = vcpu.waiting.unwrap() + vcpu.asleep.unwrap() + vcpu.delivered;
            assert_eq!(times, vcpu.present, "seed {seed}");
        }
    }
}

/// The times of the join, of the end of the warm-up and of the end of the run vary, as does the CPU
/// time received.
#[test]
fn share_error_equals_delivered_minus_reserved_share_for_random_runs() {
    let mut judged = 0;
    for seed in 0..500_u64 {
        let mut draw = Draw(seed);
        let period = 1 + draw.below(S / 10);
        let slice = 1 + period / 10 + draw.below(period * 9 / 10);
        let mut now = draw.below(S);
        let script = Script::new(&[]).warmup(draw.below(S)).named(0, "a").joined(0, now);
        let mut script = script.exactly(0, now, slice.min(period), period).woke(0, now);
        for _ in 0..50 {
            let (from, length) = (now + draw.below(50_000), 1 + draw.below(50_000));
            now = from + length;
            script = script.used(0, 0, (from, now, draw.below(length + 1)), (0, true));
        }
        let vcpu = script.first_ended(now + draw.below(S));
        let Some(error) = vcpu.error_ppm else { continue };
        judged += 1;
        let (delivered, promised) = (vcpu.delivered_ppm, vcpu.promised_share_ppm.unwrap());
        let said =
            (i128::from(delivered) - i128::from(promised)) * 1_000_000 / i128::from(promised);
        // Each share is rounded by at most half a millionth, and the reserved share is above a
        // tenth.
        assert!((said - i128::from(error)).abs() <= 20, "seed {seed}: {said} for {error}");
    }
    assert!(judged > 400, "{judged}");
}
