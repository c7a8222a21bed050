//! Tests of BVT: drawn timelines, and test vectors of our reference on BVT, a set of notes that is
//! not in this repository.

use slackline_units::{CpuId, DomId, Span, VcpuId};

use super::SPEC;
use crate::picture::{PictureTimeslice, picture, turns};
use crate::{Moment, Pick, Topology, Values};

#[test]
fn bvt_vcpu_gains_no_virtual_time_advantage_while_blocked() {
    picture(
        "bvt allowance=5ms",
        "
        a weight=1   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b weight=1   zzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0         aaaaaaaaaaaaaaabbbbbbbbbbaaaaaaaaaabbbbbbbbbb
    ",
    );
}

#[test]
fn bvt_vcpu_with_twice_the_weight_runs_twice_as_long() {
    picture(
        "bvt allowance=4ms",
        "
        a weight=2   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b weight=1   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0         aaaabbbbbbaaaaaaaaaaaabbbbbbaaaaaaaaaaaa
    ",
    );
}

/// A vCPU that wakes precedes vCPUs with equal clocks: c precedes b at 5 ms. A vCPU that has run
/// follows them: at 35 ms a and b have received 10 ms each, and b runs first.
#[test]
fn bvt_vcpus_with_equal_virtual_times_run_in_queue_order() {
    picture(
        "bvt allowance=5ms",
        "
        a     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        c     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0  aaaaacccccbbbbbbbbbbaaaaaccccccccccbbbbb
    ",
    );
}

#[test]
fn bvt_vcpu_waking_with_warp_preempts_the_running_vcpu() {
    picture(
        "bvt allowance=5ms",
        "
        a weight=1             rrrrrrrrrrrrrrrrrrrr
        b weight=1 warp=20ms   zzzzzzzzzzzzrrzzzzzz
        cpu0                   aaaaaaaaaaaabbaaaaaa
    ",
    );
}

#[test]
fn bvt_vcpu_waking_without_warp_waits_for_context_switch_allowance() {
    picture(
        "bvt allowance=3ms",
        "
        a     rrrrrrrrrrrrrrrrrrrr
        b     zzzzrzzzrrrrrrzzzzzz
        cpu0  aaaaaaaaaaabbbaaaaaa
    ",
    );
}

#[test]
fn bvt_warp_ends_after_warpl_and_may_resume_after_warpu() {
    picture(
        "bvt allowance=1ms",
        "
        a                                rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b warp=50ms warpl=4ms warpu=10ms rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0                             bbbbaaaaabbaabbbbaaaabbaabbbbaaaabbaabbb
    ",
    );
}

#[test]
fn bvt_warp_stopped_by_limit_never_resumes_with_zero_warpu() {
    picture(
        "bvt allowance=1ms",
        "
        a                               rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b warp=50ms warpl=4ms warpu=0ms rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0                            bbbbaaaaabbaabbaabbaabbaabbaabbaabbaabba
    ",
    );
}

#[test]
fn bvt_vcpus_wait_in_a_separate_queue_per_cpu() {
    picture(
        "bvt allowance=2ms",
        "
        a     rrrrrrrrrrrrrrrrrrrr
        b     rrrrrrrrrrrrrrrrrrrr
        c     rrrrrrrrrrrrrrrrrrrr
        cpu0  aaccccaaaaccccaaaacc
        cpu1  bbbbbbbbbbbbbbbbbbbb
    ",
    );
}

#[test]
fn xen_bvt_warp_limit_does_not_end_the_current_timeslice() {
    picture(
        "bvt rules=xen-2.0 allowance=10ms warp_underflow=off",
        "
        a                                              rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b warpback warpvalue=9000 warpl=4ms warpu=15ms rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0                                           bbbbbbbbbbaaaaaaaaaaaaaaaaaaabbbbbbbbbba
    ",
    );
}

#[test]
fn bvt_charges_short_run_as_one_unit_with_round_up() {
    picture(
        "bvt allowance=1ms unit=4ms round_up=off",
        "
        a weight=2  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b warp=2ms  rzzzzrzzzzrzzzzrzzzzrzzzzrzzzzrzzzzrzzzz
        cpu0        baaaabaaaabaaaabaaaabaaaabaaaabaaaabaaaa
    ",
    );
    picture(
        "bvt allowance=1ms unit=4ms round_up=on",
        "
        a weight=2  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b warp=2ms  rzzzzrzzzzrzzzzrzzzzrzzzzrzzzzrzzzzrzzzz
        cpu0        baaaaaaaaabaaaaaaaaabaaaaaaaaabaaaaaaaaa
    ",
    );
}

#[test]
fn bvt_warp_underflow_puts_vcpu_last_under_xen_rules() {
    picture(
        "bvt rules=xen-2.0 warp_underflow=off",
        "
        a                         rrrrrrrrrrrrrrrrrrrrrrrr
        b warpback warpvalue=900  zzzzzzrrrrrrrrzzzzzzzzzz
        cpu0                      aaaaaabbbbbbbbaaaaaaaaaa
    ",
    );
    picture(
        "bvt rules=xen-2.0 warp_underflow=on",
        "
        a                         rrrrrrrrrrrrrrrrrrrrrrrr
        b warpback warpvalue=900  zzzzzzrrrrrrrrzzzzzzzzzz
        cpu0                      aaaaaaaaaaaaaaaaaaaaaaaa
    ",
    );
}

/// With the values of `advance` in this test, a clock of 32 bits wraps after less than 15 ms of CPU
/// time. A vCPU whose clock wrapped seems far behind and runs until it has caught up: `c` from 25
/// ms on, `a` from 40 ms on.
#[test]
fn bvt_vcpu_with_wrapped_clock_runs_until_caught_up() {
    picture(
        "bvt rules=xen-2.0 narrow=off",
        "
        a advance=30000000  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b advance=30000000  rrrzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzrrrrrrrrrrrr
        c advance=30000000  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0                cccccaaaaacccccaaaaacccccaaaaacccccaaaaacccccaaabbbbbaaaaacc
    ",
    );
    picture(
        "bvt rules=xen-2.0 narrow=on",
        "
        a advance=30000000  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b advance=30000000  rrrzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzrrrrrrrrrrrr
        c advance=30000000  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0                cccccaaaaacccccaaaaacccccccccccccccaaaaaaaaaaaaabbbbbaaaaacc
    ",
    );
}

const HOGS: &str = "
    A advance=10  r
    B advance=20  r
";

/// Returns the vCPU of each timeslice, its length in nanoseconds, and its clock at the end.
fn first_turns(policy: &str, count: usize) -> Vec<(char, u64, u64)> {
    let turns = turns(policy, HOGS, Span::ZERO, count);
    let actual = |turn: &PictureTimeslice| {
        let (_, text) = turn.account.iter().find(|(name, _)| *name == "actual").unwrap();
        text.parse().unwrap()
    };
    turns.iter().map(|turn| (turn.who, turn.ran.ns(), actual(turn))).collect()
}

/// Returns the vCPU, the length and the charging units of each of the first timeslices. Lengths are
/// in nanoseconds.
fn charges(policy: &str, count: usize) -> Vec<(char, u64, u64)> {
    let mut clocks = [0, 0];
    let charge = |(who, ran, clock): (char, u64, u64)| {
        let (index, advance) = if who == 'A' { (0, 10) } else { (1, 20) };
        let before = std::mem::replace(&mut clocks[index], clock);
        (who, ran, (clock - before) / advance)
    };
    first_turns(policy, count).into_iter().map(charge).collect()
}

/// Test vector 13.4 of our notes on BVT (not in this repository), for Xen 2.0.
#[test]
fn bvt_nonblocking_vcpus_match_xen_2_0_test_vector() {
    let expected = [
        ('B', 5_000_000, 50),
        ('A', 5_000_100, 51),
        ('A', 5_000_049, 51),
        ('B', 5_000_001, 51),
        ('A', 5_000_100, 51),
        ('A', 5_000_049, 51),
        ('B', 5_000_001, 51),
        ('A', 5_000_100, 51),
        ('A', 5_000_049, 51),
        ('B', 5_000_001, 51),
    ];
    assert_eq!(charges("bvt rules=xen-2.0", 10), expected);
}

/// Test vector 13.4 of our notes on BVT (not in this repository), for Xen after 2006-02-25.
#[test]
fn bvt_nonblocking_vcpus_match_xen_3_0_2_test_vector() {
    let expected = [
        ('B', 5_000_000, 50),
        ('A', 5_000_100, 51),
        ('A', 5_000_049, 101),
        ('B', 5_000_026, 51),
        ('A', 5_000_050, 51),
        ('B', 5_000_000, 50),
        ('A', 5_000_099, 51),
        ('A', 5_000_048, 101),
        ('B', 5_000_026, 51),
        ('A', 5_000_049, 51),
    ];
    assert_eq!(charges("bvt rules=xen-3.0.2", 10), expected);
    assert_eq!(charges("bvt rules=xen-2.0 charge_again=on", 10), expected);
}

/// [Xen]: a vCPU that is alone is charged every ten context switch allowances.
#[test]
fn bvt_lone_vcpu_is_charged_every_ten_allowances_under_xen() {
    for allowance in [1, 5, 40] {
        let alone = turns(
            &format!("bvt rules=xen-2.0 allowance={allowance}ms"),
            "A advance=10 r",
            Span::ZERO,
            3,
        );
        assert!(alone.iter().all(|turn| turn.ran == Span::from_ms(10 * allowance)));
    }
}

/// B's clock is ahead of A's clock by 1,000 virtual units. A catches up in 100 charging units,
/// which take 10 ms, and then runs for the allowance of 5 ms. With the fault `unit_slip`, catching
/// up takes only 100 ns.
#[test]
fn bvt_fault_unit_slip_counts_charging_units_as_nanoseconds() {
    let slipped = charges("bvt rules=xen-2.0", 2);
    assert_eq!(slipped, [('B', 5_000_000, 50), ('A', 5_000_100, 51)]);
    let right = charges("bvt rules=xen-2.0 unit_slip=off", 2);
    assert_eq!(right, [('B', 5_000_000, 50), ('A', 15_000_000, 150)]);
}

/// A timeslice of 5.0001 ms is 50.001 charging units. The clock that is shown to users has whole
/// virtual units only.
#[test]
fn bvt_charges_exact_timeslice_length_if_round_up_is_off() {
    assert_eq!(first_turns("bvt rules=xen-2.0", 2)[1], ('A', 5_000_100, 510));
    assert_eq!(first_turns("bvt rules=xen-2.0 round_up=off", 2)[1], ('A', 5_000_100, 500));
}

/// Returns the ratio of A's CPU time to B's CPU time over five minutes, in thousandths. The
/// parameter `advance` is 10 for A and the argument `advance` for B.
fn ratio(policy: &str, advance: u64) -> u64 {
    let hogs = format!("A advance=10  r\nB advance={advance}  r");
    let mut ran = [0, 0];
    for turn in turns(policy, &hogs, Span::ZERO, 60_000) {
        ran[usize::from(turn.who == 'B')] += turn.ran.ns();
    }
    ran[0] * 1_000 / ran[1]
}

/// Ratios of CPU times from section 5.7 of our notes on BVT (not in this repository). A timeslice
/// of 50 units is charged as 50 or 51, depending on the nanosecond at which it begins. So a ratio
/// can differ from the table by one part in 50, plus half of the last digit in the table.
#[test]
fn bvt_weights_lose_effect_if_runs_are_charged_twice() {
    let table: [(u64, [u64; 2], [u64; 2]); 6] = [
        (20, [1_500, 5], [2_000, 5]),
        (40, [2_340, 5], [4_000, 5]),
        (80, [3_520, 5], [8_000, 5]),
        (90, [3_780, 5], [8_990, 5]),
        (160, [5_200, 50], [15_980, 5]),
        (1_000, [13_700, 50], [99_500, 50]),
    ];
    for (advance, again, once) in table {
        let found = [ratio("bvt rules=xen-3.0.2", advance), ratio("bvt rules=xen-2.0", advance)];
        for (found, [expected, half_a_digit]) in found.into_iter().zip([again, once]) {
            let off = found.abs_diff(expected);
            let most = expected / 50 + half_a_digit;
            assert!(off <= most, "advance {advance}: {found}, not {expected}");
        }
    }
}

/// No clock overflows in a century, at the lightest or heaviest weight, and no precision is lost.
/// The two vCPUs alternate afterwards as at the start. A timeslice can be a nanosecond longer,
/// because its end is rounded up to a whole nanosecond.
#[test]
fn bvt_virtual_times_are_still_exact_after_a_century() {
    const CENTURY: Span = Span::from_secs(100 * 365 * 24 * 3_600);
    for weight in [1, 65_535] {
        let hogs = format!("a weight={weight} r\nb weight={weight} r");
        let turns = turns("bvt", &hogs, CENTURY, 5);
        let who: String = turns.iter().map(|turn| turn.who).collect();
        assert_eq!(who, "ababa");
        let (first, next) = (Span::from_ms(5), Span::from_ms(10));
        assert_eq!(turns[0].ran, first);
        let most = next + Span::from_ns(u64::from(weight > 1));
        assert!(turns[1..].iter().all(|turn| next <= turn.ran && turn.ran <= most));
        let actual =
            |turn: &PictureTimeslice| turn.account.iter().find(|row| row.0 == "actual").cloned();
        let clock = (CENTURY + first).ns() / weight;
        assert_eq!(actual(&turns[0]), Some(("actual", clock.to_string())));
    }
}

/// The policy can be asked for a pick after a timeslice has ended and before the end is reported.
/// The limit of the picked vCPU is then zero.
#[test]
fn bvt_vcpu_picked_after_timeslice_end_gets_time_limit_zero() {
    let policy = Values::defaults(SPEC.policy_fields).unwrap();
    let share = Values::defaults(SPEC.share_fields).unwrap();
    let mut policy = (SPEC.build)(&policy, &Topology::flat(1));
    let (mut at, cpu) = (Moment::at_start(1), CpuId::new(0));
    let vcpus = [0, 1].map(|slot| VcpuId::new(slot, DomId::new(slot), 0));
    for vcpu in vcpus {
        at.join(vcpu);
        policy.admit(&at, vcpu, &share).unwrap();
        at.set_awake(vcpu, true);
        policy.on_wake(&at, vcpu);
    }
    policy.prepare_pick(&at, cpu);
    let Pick::Run { vcpu, limit: Some(limit), .. } = policy.pick(&at, cpu) else {
        panic!("one of two runnable vCPUs is picked with a limit");
    };
    at.occupy(cpu, vcpu);
    policy.on_start(&at, vcpu);
    at.advance(at.now().after(limit));
    policy.charge(&at, vcpu, limit);
    let pick = policy.pick(&at, cpu);
    assert!(matches!(pick, Pick::Run { limit: Some(Span::ZERO), .. }), "{pick:?}");
}
