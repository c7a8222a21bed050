//! Deadlines, met and missed, against numbers worked out by hand. Times are microseconds.

use crate::script::{Script, us, vcpu};
use slackline_metrics::VcpuSummary;
use slackline_trace::Record;
use slackline_units::{Reservation, Time};

/// A vCPU that is awake from the start and owed 2 ms of every 10 ms.
fn awake() -> Script {
    Script::new(&["a"]).promised(0, 0, 2_000, 10_000).woke(0, 0)
}

/// Deadlines, misses, and the shortest and the longest time by which one was missed.
fn judged(vcpu: &VcpuSummary) -> (u64, u64, u64, u64) {
    // Of a single one the worst is all there is.
    let time = vcpu.miss_time.map(|time| (time.p50.unwrap_or(time.worst), time.worst));
    let time = time.map_or((0, 0), |(half, worst)| (half.ns() / 1_000, worst.ns() / 1_000));
    (vcpu.deadlines.unwrap(), vcpu.misses.unwrap(), time.0, time.1)
}

#[test]
fn a_slice_by_the_end_of_the_period_is_a_deadline_met() {
    let vcpu = awake().ran(0, 8_000, 10_000).ran(0, 10_000, 12_000).first_ended(20_000);
    assert_eq!(judged(&vcpu), (2, 0, 0, 0));
    assert_eq!(vcpu.miss_time, None);
}

/// The first period ends at 5 ms and is worth half a slice; in the next half a millisecond lacks at
/// 15 ms, made up at 15.5 ms. Then the clock was set, and one ends after 8 ms, worth 1.6.
#[test]
fn with_a_phase_deadlines_are_those_of_the_grid() {
    let reservation = Reservation::new(us(2_000), us(10_000)).ok();
    let (at, vcpu, phase) = (Time::START, vcpu(0), Some(us(5_000)));
    let promised = Record::Promised { at, vcpu, reservation, exact: false, phase };
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

#[test]
fn a_nanosecond_too_little_is_a_miss() {
    let script = awake().used(0, 0, (0, 2_000, 1_999), (0, true));
    assert_eq!(judged(&script.first_ended(10_000)), (1, 1, 0, 0));
}

#[test]
fn a_miss_lasts_until_the_shortfall_has_been_made_up() {
    // Half a millisecond is lacking at 10 ms, and made up at 13.5 ms.
    let script = awake().ran(0, 0, 1_500).ran(0, 13_000, 15_500).ran(0, 20_000, 22_000);
    let vcpu = script.first_ended(30_000);
    assert_eq!(judged(&vcpu), (3, 1, 3_500, 3_500));
    assert_eq!(vcpu.miss_time_of_slice.unwrap().worst_ppm, 1_750_000, "3.5 ms of 2 ms");
}

#[test]
fn a_shortfall_is_made_up_inside_a_stretch_in_proportion() {
    // Lacking 500 us; the next stretch gets half of its time, so 1 ms of it must pass.
    let script = awake().ran(0, 0, 1_500).used(0, 0, (11_000, 19_000, 4_000), (0, true));
    assert_eq!(judged(&script.first_ended(20_000)), (2, 1, 2_000, 2_000));
}

#[test]
fn who_is_starved_misses_every_deadline_until_it_runs() {
    // Nothing until 35 ms: the deadlines at 10, 20 and 30 ms are made up at 37 ms.
    let vcpu = awake().ran(0, 35_000, 40_000).first_ended(40_000);
    assert_eq!(judged(&vcpu), (4, 3, 17_000, 27_000));
}

#[test]
fn one_late_slice_is_one_miss_though_nothing_makes_up_for_it() {
    // Late by 1 ms once, then on time, but never more than a slice in a period.
    let script = awake().ran(0, 9_000, 11_000).ran(0, 12_000, 13_000).ran(0, 20_000, 22_000);
    let vcpu = script.first_ended(30_000);
    assert_eq!(judged(&vcpu), (3, 1, 1_000, 1_000));
    assert_eq!(vcpu.error_ppm, Some(-166_667), "5 ms of 6 ms");
}

#[test]
fn what_is_still_lacking_counts_until_the_end() {
    assert_eq!(judged(&awake().first_ended(13_000)), (1, 1, 3_000, 3_000));
    assert_eq!(judged(&awake().left(0, 14_000).first_ended(20_000)), (1, 1, 4_000, 4_000));
    assert_eq!(judged(&awake().blocked(0, 15_000).first_ended(20_000)), (1, 1, 5_000, 5_000));
    let changed = awake().promised(0, 16_000, 1_000, 10_000);
    assert_eq!(judged(&changed.first_ended(20_000)), (1, 1, 6_000, 6_000));
}

#[test]
fn what_it_overran_is_taken_off_the_next_slice() {
    // 2.5 ms in its turn, so 1.5 ms are owed next: a nanosecond less is a miss.
    let script = || awake().ran_late(0, 0, 2_500, 500);
    assert_eq!(judged(&script().ran(0, 10_000, 11_500).first_ended(20_000)), (2, 0, 0, 0));
    assert_eq!(judged(&script().ran(0, 10_000, 11_499).first_ended(20_000)), (2, 1, 0, 0));
}

#[test]
fn at_most_a_slice_is_taken_off_a_period() {
    // Five slices at once pay for the next four periods, and the one after those is owed in full.
    let vcpu = awake().ran_late(0, 0, 10_000, 8_000).first_ended(60_000);
    assert_eq!(judged(&vcpu), (6, 1, 0, 0));
}

#[test]
fn overrunning_into_the_next_period_counts_there() {
    // Its limit is the deadline, it stops 300 us later, and 1.7 ms are left to give.
    let script = awake().ran_late(0, 8_000, 10_300, 300).ran(0, 15_000, 16_700);
    assert_eq!(judged(&script.first_ended(20_000)), (2, 0, 0, 0));
}

#[test]
fn time_that_nobody_was_owed_is_not_taken_off() {
    let script = awake().ran(0, 0, 2_000).ran_spare(0, 2_000, 10_000);
    assert_eq!(judged(&script.first_ended(20_000)), (2, 1, 0, 0));
}

#[test]
fn whatever_an_exact_vcpu_got_beyond_its_slice_is_taken_off() {
    let awake = Script::new(&["a"]).exactly(0, 0, 2_000, 10_000).woke(0, 0);
    let script = awake.ran(0, 0, 2_000).ran_spare(0, 3_000, 3_400).ran(0, 10_000, 11_600);
    assert_eq!(judged(&script.first_ended(20_000)), (2, 0, 0, 0));
}

#[test]
fn making_up_for_a_shortfall_is_not_ahead_of_time() {
    // 1 ms is lacking and added to the next slice: the slice after that is owed in full.
    let awake = Script::new(&["a"]).exactly(0, 0, 2_000, 10_000).woke(0, 0);
    let script = awake.ran(0, 0, 1_000).ran(0, 10_000, 13_000).ran(0, 20_000, 21_900);
    assert_eq!(judged(&script.first_ended(30_000)), (3, 2, 0, 1_000));
}

#[test]
fn a_period_in_which_it_slept_before_it_had_its_slice_does_not_count() {
    let script = awake().ran(0, 0, 1_000).blocked(0, 1_000).woke(0, 2_000);
    assert_eq!(judged(&script.first_ended(20_000)), (1, 1, 0, 0), "only the second one");
}

#[test]
fn sleeping_after_the_slice_does_not_matter() {
    let script = awake().ran(0, 0, 2_000).blocked(0, 2_000).woke(0, 10_000);
    assert_eq!(judged(&script.ran(0, 10_000, 12_000).first_ended(20_000)), (2, 0, 0, 0));
}

#[test]
fn a_period_begun_asleep_does_not_count() {
    let script = awake().ran(0, 0, 2_000).blocked(0, 2_000).woke(0, 10_001);
    assert_eq!(judged(&script.first_ended(30_000)), (2, 1, 0, 0));
}

#[test]
fn periods_slept_through_take_off_what_was_ahead() {
    // 6 ms ahead; of those the periods from 10 and 20 ms take 4 ms off, that from 30 ms the rest.
    let script = awake().ran_late(0, 0, 8_000, 6_000).blocked(0, 8_000).woke(0, 40_000);
    assert_eq!(judged(&script.first_ended(50_000)), (2, 1, 0, 0));
    let script = awake().ran_late(0, 0, 8_000, 6_000).blocked(0, 8_000).woke(0, 30_000);
    assert_eq!(judged(&script.first_ended(50_000)), (3, 1, 0, 0));
}

#[test]
fn periods_that_begin_in_the_warm_up_do_not_count() {
    assert_eq!(judged(&awake().warmup(10_000).first_ended(30_000)), (2, 2, 0, 10_000));
    assert_eq!(judged(&awake().warmup(10_001).first_ended(30_000)), (1, 1, 0, 0));
}

#[test]
fn a_promise_changed_in_a_stretch_splits_it() {
    // The new promise is recorded first: 3 ms every 20 ms from 5 ms on. By then all 2 ms of 10 ms
    // had been received, one of them in advance, which is taken off. Of the stretch, 5 ms were
    // received under it; then nothing, and the slice of the second period is missed.
    let script = awake().promised(0, 5_000, 3_000, 20_000).ran(0, 0, 10_000);
    let vcpu = script.first_ended(45_000);
    assert_eq!(judged(&vcpu), (2, 1, 0, 0));
    assert_eq!(vcpu.error_ppm, Some(0), "5 ms of 6 ms less one");
}

#[test]
fn what_was_had_in_advance_of_a_promise_is_taken_off_the_next() {
    // Of 2 ms in 10 ms all were had by 5 ms: the next slice of 2 ms is a millisecond, and a
    // microsecond less is too little.
    for (until, misses) in [(6_000, 0), (5_999, 1)] {
        let script = awake().ran(0, 0, 2_000).promised(0, 5_000, 2_000, 10_000);
        let script = script.ran(0, 5_000, until).ran(0, 15_000, 17_000);
        assert_eq!(judged(&script.first_ended(25_000)).1, misses, "until {until} us");
    }
}

#[test]
fn who_comes_back_has_earned_its_advance_as_if_it_had_stayed() {
    // All 2 ms of 10 ms at 2 ms: 1.6 ms in advance, of which half are earned in 4 ms.
    for (until, misses) in [(7_200, 0), (7_199, 1)] {
        let script = awake().ran(0, 0, 2_000).left(0, 2_000).joined(0, 6_000);
        let script = script.promised(0, 6_000, 2_000, 10_000).woke(0, 6_000);
        let judged = judged(&script.ran(0, 6_000, until).first_ended(16_000));
        assert_eq!((judged.0, judged.1), (1, misses), "until {until} us");
    }
}

#[test]
fn what_it_overran_under_one_promise_is_taken_off_the_next() {
    // The promise changes at the very end of the period in which 500 us were ahead of time.
    let script = awake().ran_late(0, 0, 2_500, 500).promised(0, 10_000, 1_000, 10_000);
    assert_eq!(judged(&script.ran(0, 10_000, 10_500).first_ended(20_000)), (2, 0, 0, 0));
}

#[test]
fn what_cannot_be_seen_is_not_judged() {
    for (sleep, stretches) in [(false, false), (true, false), (false, true)] {
        let vcpu = awake().knows(sleep, stretches).ran(0, 0, 1_000).first_ended(20_000);
        assert_eq!((vcpu.deadlines, vcpu.misses, vcpu.wake_to_run), (None, None, None));
        assert_eq!(vcpu.waiting, sleep.then_some(us(19_000)));
        assert_eq!(vcpu.error_ppm, Some(-750_000), "1 ms of 4 ms");
    }
}

#[test]
fn many_small_shortfalls_are_all_counted() {
    // A few microseconds of each slice: what each period lacks is made up at another moment.
    let mut script = awake();
    for nth in 0..200 {
        script = script.ran(0, nth * 10_000, nth * 10_000 + 1 + nth % 7);
    }
    let vcpu = script.first_ended(2_000_000);
    assert_eq!((vcpu.deadlines, vcpu.misses), (Some(200), Some(200)));
    assert_eq!(vcpu.miss_time.map(|time| time.count), Some(200));
}

#[test]
fn who_joins_again_begins_anew() {
    let script = awake().ran_late(0, 0, 9_000, 7_000).left(0, 9_000);
    let joined = Record::Joined { at: Time::START + us(15_000), vcpu: vcpu(0) };
    let script = script.with(joined).promised(0, 15_000, 2_000, 10_000).woke(0, 15_000);
    assert_eq!(judged(&script.first_ended(25_000)), (1, 1, 0, 0));
}

#[test]
fn what_is_reported_late_is_not_lost() {
    // Used before it blocked, but known only after it woke again, in the third period.
    let script = awake().ran(0, 0, 1_000).blocked(0, 5_000).woke(0, 20_000);
    let script = script.used(0, 1, (3_000, 5_000, 2_000), (0, false)).ran(0, 25_000, 26_000);
    let vcpu = script.first_ended(30_000);
    assert_eq!((vcpu.delivered, vcpu.wake_to_run.unwrap().worst), (us(4_000), us(5_000)));
    assert_eq!(judged(&vcpu), (1, 0, 0, 0), "it counts from the third period on");
}
