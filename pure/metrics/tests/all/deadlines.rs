//! Tests of met and missed deadlines. The expected numbers were computed by hand, and times are in
//! microseconds.

use crate::script::{Script, us, vcpu};
use slackline_metrics::VcpuSummary;
use slackline_trace::Record;
use slackline_units::{Enforcement, Reservation, Time};

/// Returns a script with one vCPU that is runnable from the start and reserves 2 ms in every 10 ms.
fn awake() -> Script {
    Script::new(&["a"]).promised(0, 0, 2_000, 10_000).woke(0, 0)
}

/// Returns the number of deadlines, the number of misses, the median miss time, and the largest
/// miss time.
fn judged(vcpu: &VcpuSummary) -> (u64, u64, u64, u64) {
    // A single value has no median, so the worst value is used instead.
    let time = vcpu.miss_time.map(|time| (time.p50.unwrap_or(time.worst), time.worst));
    let time = time.map_or((0, 0), |(half, worst)| (half.ns() / 1_000, worst.ns() / 1_000));
    (vcpu.deadlines.unwrap(), vcpu.misses.unwrap(), time.0, time.1)
}

#[test]
fn vcpu_receiving_slice_by_period_end_meets_the_deadline() {
    let vcpu = awake().ran(0, 8_000, 10_000).ran(0, 10_000, 12_000).first_ended(20_000);
    assert_eq!(judged(&vcpu), (2, 0, 0, 0));
    assert_eq!(vcpu.miss_time, None);
}

/// A vCPU that reserves with a phase joins between two multiples of its period. The first period
/// ends at 5 ms, with a budget of half a slice. In the next period, half a millisecond is missing
/// at 15 ms and made up at 15.5 ms. Then the clock is set, and a period ends after 8 ms with a
/// budget of 1.6 ms.
#[test]
fn deadlines_of_reservation_with_phase_move_when_clock_is_set() {
    let reservation = Reservation::new(us(2_000), us(10_000)).ok();
    let (at, vcpu, phase) = (Time::START, vcpu(0), Some(us(5_000)));
    let promised = Record::Promised {
        at,
        vcpu,
        reservation,
        exact: false,
        phase,
        by: Enforcement::Dispatcher,
    };
    let clock = Record::ClockSet { at: at + us(14_000), ahead: us(2_000) };
    let ran = |got: u64| {
        let script = Script::new(&["a"]).with(promised).woke(0, 0).ran(0, 0, 1_000);
        let script = script.ran(0, 5_000, 6_500).with(clock).ran(0, 15_000, 15_000 + got);
        script.ran(0, 23_000, 25_000).first_ended(33_000)
    };
    let kept = ran(1_600);
    assert_eq!(judged(&kept), (4, 1, 500, 500));
    assert_eq!(judged(&ran(1_599)).1, 2);
}

/// A vCPU wakes at 50 ms. With `unblocking = "new-period"` a period begins at the wake-up, so the
/// periods are from 50 to 150 ms and from 150 to 250 ms. The vCPU receives its slice in each of
/// these periods. With the default rule the period from 100 to 200 ms is judged, in which the vCPU
/// lacks 4 ms.
#[test]
fn period_beginning_at_wake_is_judged_at_its_own_end() {
    let judge = |parameters: &str| {
        let mut script = Script::new(&["a"]).promised(0, 0, 20_000, 100_000).woke(0, 50_000);
        script.header.parameters = parameters.into();
        let vcpu = script.ran(0, 96_000, 116_000).ran(0, 216_000, 236_000).first_ended(260_000);
        (vcpu.deadlines, vcpu.misses)
    };
    assert_eq!(judge("unblocking = \"new-period\""), (Some(2), Some(0)));
    assert_eq!(judge(""), (Some(1), Some(1)));
}

#[test]
fn slice_short_by_one_microsecond_is_a_deadline_miss() {
    let script = awake().used(0, 0, (0, 2_000, 1_999), (0, true));
    assert_eq!(judged(&script.first_ended(10_000)), (1, 1, 0, 0));
}

#[test]
fn deadline_miss_lasts_until_the_missing_cpu_time_is_received() {
    // The vCPU lacks half a millisecond at its deadline at 10 ms, and has received it at 13.5 ms.
    let script = awake().ran(0, 0, 1_500).ran(0, 13_000, 15_500).ran(0, 20_000, 22_000);
    let vcpu = script.first_ended(30_000);
    assert_eq!(judged(&vcpu), (3, 1, 3_500, 3_500));
    assert_eq!(vcpu.miss_time_of_slice.unwrap().worst_ppm, 1_750_000, "3.5 ms of 2 ms");
}

#[test]
fn tardiness_assumes_cpu_time_is_spread_evenly_over_run_interval() {
    // The vCPU lacks half a millisecond. In the next run interval it gets the CPU half of the time,
    // so it has made up the shortfall after 1 ms.
    let script = awake().ran(0, 0, 1_500).used(0, 0, (11_000, 19_000, 4_000), (0, true));
    assert_eq!(judged(&script.first_ended(20_000)), (2, 1, 2_000, 2_000));
}

#[test]
fn starved_vcpu_misses_every_deadline_until_it_runs() {
    // The vCPU receives nothing until 35 ms. It makes up the misses at 10, 20 and 30 ms at 37 ms.
    let vcpu = awake().ran(0, 35_000, 40_000).first_ended(40_000);
    assert_eq!(judged(&vcpu), (4, 3, 17_000, 27_000));
}

#[test]
fn one_late_slice_before_timely_slices_is_one_deadline_miss() {
    // The first slice is 1 ms late. The later slices are on time, with at most one slice in a
    // period.
    let script = awake().ran(0, 9_000, 11_000).ran(0, 12_000, 13_000).ran(0, 20_000, 22_000);
    let vcpu = script.first_ended(30_000);
    assert_eq!(judged(&vcpu), (3, 1, 1_000, 1_000));
    assert_eq!(vcpu.error_ppm, Some(-166_667), "5 ms of 6 ms");
}

#[test]
fn deadline_miss_ends_if_vcpu_blocks_leaves_or_changes_reservation() {
    assert_eq!(judged(&awake().first_ended(13_000)), (1, 1, 3_000, 3_000));
    assert_eq!(judged(&awake().left(0, 14_000).first_ended(20_000)), (1, 1, 4_000, 4_000));
    assert_eq!(judged(&awake().blocked(0, 15_000).first_ended(20_000)), (1, 1, 5_000, 5_000));
    let changed = awake().promised(0, 16_000, 1_000, 10_000);
    assert_eq!(judged(&changed.first_ended(20_000)), (1, 1, 6_000, 6_000));
}

#[test]
fn deadline_check_deducts_vcpu_overrun_from_the_next_slice() {
    // The vCPU receives 2.5 ms in a timeslice of 2 ms, so its next budget is 1.5 ms.
    let script = || awake().ran_late(0, 0, 2_500, 500);
    assert_eq!(judged(&script().ran(0, 10_000, 11_500).first_ended(20_000)), (2, 0, 0, 0));
    assert_eq!(judged(&script().ran(0, 10_000, 11_499).first_ended(20_000)), (2, 1, 0, 0));
}

#[test]
fn overrun_deduction_is_at_most_one_slice_per_period() {
    // The vCPU receives five slices at once. The excess of four slices is deducted from the next
    // four periods. The period after them has a full budget.
    let vcpu = awake().ran_late(0, 0, 10_000, 8_000).first_ended(60_000);
    assert_eq!(judged(&vcpu), (6, 1, 0, 0));
}

#[test]
fn overrun_past_the_deadline_is_deducted_in_the_next_period() {
    // The timeslice ends at the deadline, but the vCPU stops 300 us later. So its next budget is
    // 1.7 ms.
    let script = awake().ran_late(0, 8_000, 10_300, 300).ran(0, 15_000, 16_700);
    assert_eq!(judged(&script.first_ended(20_000)), (2, 0, 0, 0));
}

#[test]
fn deadline_check_does_not_deduct_slack_of_work_conserving_vcpu() {
    let script = awake().ran(0, 0, 2_000).ran_spare(0, 2_000, 10_000);
    assert_eq!(judged(&script.first_ended(20_000)), (2, 1, 0, 0));
}

#[test]
fn deadline_check_deducts_all_excess_cpu_time_under_hard_limit() {
    let awake = Script::new(&["a"]).exactly(0, 0, 2_000, 10_000).woke(0, 0);
    let script = awake.ran(0, 0, 2_000).ran_spare(0, 3_000, 3_400).ran(0, 10_000, 11_600);
    assert_eq!(judged(&script.first_ended(20_000)), (2, 0, 0, 0));
}

#[test]
fn cpu_time_making_up_deadline_miss_is_not_deducted_later() {
    // The vCPU lacks 1 ms and receives it together with the next slice. The slice after that is not
    // reduced.
    let awake = Script::new(&["a"]).exactly(0, 0, 2_000, 10_000).woke(0, 0);
    let script = awake.ran(0, 0, 1_000).ran(0, 10_000, 13_000).ran(0, 20_000, 21_900);
    assert_eq!(judged(&script.first_ended(30_000)), (3, 2, 0, 1_000));
}

#[test]
fn period_with_block_before_full_slice_has_no_deadline() {
    let script = awake().ran(0, 0, 1_000).blocked(0, 1_000).woke(0, 2_000);
    assert_eq!(judged(&script.first_ended(20_000)), (1, 1, 0, 0), "only the second one");
}

#[test]
fn vcpu_that_blocks_after_its_full_slice_meets_the_deadline() {
    let script = awake().ran(0, 0, 2_000).blocked(0, 2_000).woke(0, 10_000);
    assert_eq!(judged(&script.ran(0, 10_000, 12_000).first_ended(20_000)), (2, 0, 0, 0));
}

#[test]
fn period_beginning_while_vcpu_is_blocked_has_no_deadline() {
    let script = awake().ran(0, 0, 2_000).blocked(0, 2_000).woke(0, 10_001);
    assert_eq!(judged(&script.first_ended(30_000)), (2, 1, 0, 0));
}

#[test]
fn excess_cpu_time_is_deducted_from_periods_of_blocked_vcpu() {
    // The excess is 6 ms. 4 ms are deducted from the periods that begin at 10 and 20 ms, and the
    // remainder from the period that begins at 30 ms.
    let script = awake().ran_late(0, 0, 8_000, 6_000).blocked(0, 8_000).woke(0, 40_000);
    assert_eq!(judged(&script.first_ended(50_000)), (2, 1, 0, 0));
    let script = awake().ran_late(0, 0, 8_000, 6_000).blocked(0, 8_000).woke(0, 30_000);
    assert_eq!(judged(&script.first_ended(50_000)), (3, 1, 0, 0));
}

#[test]
fn deadlines_of_periods_beginning_in_warm_up_are_not_counted() {
    assert_eq!(judged(&awake().warmup(10_000).first_ended(30_000)), (2, 2, 0, 10_000));
    assert_eq!(judged(&awake().warmup(10_001).first_ended(30_000)), (1, 1, 0, 0));
}

#[test]
fn run_interval_is_split_at_a_reservation_change() {
    // The reservation is 2 ms in 10 ms. At 5 ms it changes to 3 ms in 20 ms, and the change is
    // recorded before the run interval. By 5 ms the vCPU has used its whole budget of 2 ms. It was
    // entitled to 1 ms by then (half a period), so 1 ms of excess is deducted from the new slice.
    // From 5 to 10 ms the vCPU runs under the new reservation. It then receives nothing, so it
    // misses the second period.
    let script = awake().promised(0, 5_000, 3_000, 20_000).ran(0, 0, 10_000);
    let vcpu = script.first_ended(45_000);
    assert_eq!(judged(&vcpu), (2, 1, 0, 0));
    assert_eq!(vcpu.error_ppm, Some(0), "5 ms of 6 ms less one");
}

#[test]
fn excess_cpu_time_is_deducted_after_a_reservation_change() {
    // The reservation is 2 ms in 10 ms. By 5 ms the vCPU has received 2 ms, but was entitled to 1
    // ms. So its next budget is 1 ms, and a microsecond less is a miss.
    for (until, misses) in [(6_000, 0), (5_999, 1)] {
        let script = awake().ran(0, 0, 2_000).promised(0, 5_000, 2_000, 10_000);
        let script = script.ran(0, 5_000, until).ran(0, 15_000, 17_000);
        assert_eq!(judged(&script.first_ended(25_000)).1, misses, "until {until} us");
    }
}

#[test]
fn vcpu_that_left_repays_excess_cpu_time_at_reserved_rate() {
    // The vCPU receives all 2 ms of its period by 2 ms and leaves, with an excess of 1.6 ms. It is
    // absent for 4 ms, after which half of the excess remains.
    for (until, misses) in [(7_200, 0), (7_199, 1)] {
        let script = awake().ran(0, 0, 2_000).left(0, 2_000).joined(0, 6_000);
        let script = script.promised(0, 6_000, 2_000, 10_000).woke(0, 6_000);
        let judged = judged(&script.ran(0, 6_000, until).first_ended(16_000));
        assert_eq!((judged.0, judged.1), (1, misses), "until {until} us");
    }
}

#[test]
fn work_conserving_vcpu_overrun_is_deducted_after_reservation_change() {
    // The reservation changes exactly at the end of a period with an excess of 500 us.
    let script = awake().ran_late(0, 0, 2_500, 500).promised(0, 10_000, 1_000, 10_000);
    assert_eq!(judged(&script.ran(0, 10_000, 10_500).first_ended(20_000)), (2, 0, 0, 0));
}

#[test]
fn deadline_metrics_are_absent_without_block_or_run_interval_records() {
    for (sleep, stretches) in [(false, false), (true, false), (false, true)] {
        let vcpu = awake().knows(sleep, stretches).ran(0, 0, 1_000).first_ended(20_000);
        assert_eq!((vcpu.deadlines, vcpu.misses, vcpu.wake_to_run), (None, None, None));
        assert_eq!(vcpu.waiting, sleep.then_some(us(19_000)));
        assert_eq!(vcpu.error_ppm, Some(-750_000), "1 ms of 4 ms");
    }
}

#[test]
fn each_of_200_deadline_misses_is_counted_with_its_tardiness() {
    // The vCPU receives from 1 to 7 us in each period. The amount varies, so each shortfall would
    // be made up at another time.
    let mut script = awake();
    for nth in 0..200 {
        script = script.ran(0, nth * 10_000, nth * 10_000 + 1 + nth % 7);
    }
    let vcpu = script.first_ended(2_000_000);
    assert_eq!((vcpu.deadlines, vcpu.misses), (Some(200), Some(200)));
    assert_eq!(vcpu.miss_time.map(|time| time.count), Some(200));
}

#[test]
fn vcpu_that_rejoins_has_no_deduction_for_its_earlier_overrun() {
    let script = awake().ran_late(0, 0, 9_000, 7_000).left(0, 9_000);
    let joined = Record::Joined { at: Time::START + us(15_000), vcpu: vcpu(0) };
    let script = script.with(joined).promised(0, 15_000, 2_000, 10_000).woke(0, 15_000);
    assert_eq!(judged(&script.first_ended(25_000)), (1, 1, 0, 0));
}

#[test]
fn cpu_time_recorded_in_later_period_counts_in_that_period() {
    // The CPU time from before the block is recorded only when the vCPU has woken again, which is
    // in the third period.
    let script = awake().ran(0, 0, 1_000).blocked(0, 5_000).woke(0, 20_000);
    let script = script.used(0, 1, (3_000, 5_000, 2_000), (0, false)).ran(0, 25_000, 26_000);
    let vcpu = script.first_ended(30_000);
    assert_eq!((vcpu.delivered, vcpu.wake_to_run.unwrap().worst), (us(4_000), us(5_000)));
    assert_eq!(judged(&vcpu), (1, 0, 0, 0), "it counts from the third period on");
}
