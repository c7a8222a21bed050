//! Tests of every rule of Credit, as drawn timelines. With `tick=1ms slice=3ms` a column is 10 ms
//! of Xen's time.

use slackline_units::{CpuId, DomId, Span, Time, VcpuId};

use crate::picture::{picture, picture_on, turns};
use crate::{Moment, Pick, Policy, RawValue, TimesliceEnd, Topology, Values};

use super::{Class, Credit, CreditRules, SPEC};

/// Credit reference 13.2: two hogs, x and y. At 30 ms y is still boosted. At 60 ms y is in debt,
/// and at 90 ms neither vCPU is. So x and y alternate forever.
#[test]
fn two_vcpus_that_never_block_alternate_every_timeslice_under_credit() {
    picture(
        "credit rules=xen-3.0.4",
        "
        x     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        y     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0  xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyxxxxxxxxxxxxxxxxxxxx
    ",
    );
    picture(
        "credit rules=xen-3.0.4 tick=1ms slice=3ms",
        "
        x     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        y     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0  xxxyyyxxxyyyxxxyyyxxxyyyxxxyyyxxxyyyxxxyyyxxxyyyxxxyyyxxxyyyxxxyyyxxxyyyxxxyyyxx
    ",
    );
}

/// Credit reference 13.3: a waking vCPU preempts another vCPU with credit only if it is boosted.
#[test]
fn credit_boosts_a_vcpu_that_wakes_with_credit() {
    picture(
        "credit rules=xen-3.0.4 boost=off",
        "
        h     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        s     zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzrrzzzzzzzzzzzrrzzzzzzzzzzzzzzzzzzzz
        cpu0  hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh
    ",
    );
    picture(
        "credit rules=xen-3.0.4 boost=tick",
        "
        h     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        s     zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzrrzzzzzzzzzzzrrzzzzzzzzzzzzzzzzzzzz
        cpu0  hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhsshhhhhhhhhhhsshhhhhhhhhhhhhhhhhhhh
    ",
    );
}

/// Credit reference 7.7 item 1: with `sampling=tick`, no tick finds d running, so d takes three
/// quarters of the CPU. With `sampling=exact`, d is in debt after it has received its half.
#[test]
fn credit_tick_sampling_never_charges_a_vcpu_blocked_at_ticks() {
    picture(
        "credit rules=xen-3.0.4 newcomers=active tick=8ms slice=24ms sampling=tick",
        "
        h     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        d     zrrrrrrzzrrrrrrzzrrrrrrzzrrrrrrzzrrrrrrzzrrrrrrzzrrrrrrzzrrrrrrzzrrrrrrz
        cpu0  hhhhhhhhhddddddhhddddddhhddddddhhddddddhhddddddhhddddddhhddddddhhddddddh
    ",
    );
    picture(
        "credit rules=xen-3.0.4 newcomers=active tick=8ms slice=24ms sampling=exact",
        "
        h     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        d     zrrrrrrzzrrrrrrzzrrrrrrzzrrrrrrzzrrrrrrzzrrrrrrzzrrrrrrzzrrrrrrzzrrrrrrz
        cpu0  hhhhhhhhhddddddhhddddddhhddddddhhddddddhhddddddhhhhhhhhhhhhhhhhhhhhhhhhh
    ",
    );
}

/// vCPU s is boosted at 12 ms. With `boost=exact` its boost and its timeslice end after 10 ms. With
/// `boost=tick` s keeps the CPU until its timeslice ends.
#[test]
fn credit_boost_field_decides_if_boost_lasts_a_tick_length() {
    picture(
        "credit rules=xen-3.0.4 boost=tick",
        "
        h     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        s     zzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0  hhhhhhhhhhhhsssssssssssssssssssssssssssssshhhhhhhhhhhhhhhhhhhhhhhh
    ",
    );
    picture(
        "credit rules=xen-3.0.4 boost=exact",
        "
        h     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        s     zzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0  hhhhhhhhhhhhsssssssssshhhhhhhhhhhhhhhhhhhhhhhhhhhhhhssssssssssssss
    ",
    );
}

/// Credit reference 7.8: 7 % of 30 credits is rounded up to three credits, which is 10 %.
#[test]
fn credit_rounds_small_cap_up_if_credits_field_is_ten() {
    picture(
        "credit rules=xen-2006-10-30 credits=ten tick=1ms slice=3ms",
        "
        h cap=7%  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0      hhh...........................hhh...........................hhh.................
    ",
    );
    picture(
        "credit rules=xen-2006-10-30 credits=hundred tick=1ms slice=3ms",
        "
        h cap=7%  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0      hhh..........................................hhh................................
    ",
    );
}

/// vCPU h has a cap of half a CPU and wakes at 5 ms. An accounting parks it at 30 ms, and another
/// accounting unparks it at 60 ms. With `queue` these two changes take effect at the next pass,
/// with `pause` at once. With `budget`, h stops when its budget is exhausted.
#[test]
fn credit_park_field_decides_when_vcpu_at_the_cap_stops() {
    picture(
        "credit rules=xen-3.0.4 over-cap=debt park=queue",
        "
        h cap=50%  zzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0       .....hhhhhhhhhhhhhhhhhhhhhhhhhhhhhh..............................hhhhhhhhhhhhhhh
    ",
    );
    picture(
        "credit rules=xen-3.0.4 over-cap=debt park=pause",
        "
        h cap=50%  zzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0       .....hhhhhhhhhhhhhhhhhhhhhhhhh..............................hhhhhhhhhhhhhhhhhhhh
    ",
    );
    picture(
        "credit rules=xen-3.0.4 over-cap=debt park=budget",
        "
        h cap=50%  zzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0       .....hhhhhhhhhhhhhhh..........hhhhhhhhhhhhhhh...............hhhhhhhhhhhhhhh.....
    ",
    );
}

/// Credit reference 15 item 14: three vCPUs on two CPUs receive 66 % each, and two of them have a
/// cap of 80 %. With `over-cap=debt` these two are parked for being in debt, and a CPU idles.
#[test]
fn credit_parks_vcpus_below_cap_if_over_cap_is_debt() {
    picture(
        "credit rules=xen-3.0.4 over-cap=debt tick=1ms slice=3ms",
        "
        a cap=80%  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b cap=80%  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        c          rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0       aaacccaaaaaacccaaaaaacccaaaaaacccaaaaaacccaaaaaacccaaaaaacccaaaaaacccaaaaaac
        cpu1       bbbbbbcccbbbbbbcccbbbbbbcccbbbbbbcccbbbbbbcccbbbbbbcccbbbbbbcccbbbbbbcccbbbb
    ",
    );
    picture(
        "credit rules=xen-3.0.4 over-cap=cap tick=1ms slice=3ms",
        "
        a cap=80%  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b cap=80%  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        c          rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0       aaacccaaaccccccbbbccccccaaaccccccbbbccccccaaaccccccbbbccccccaaaccccccbbbcccc
        cpu1       bbbbbbbbbaaaaaaaaabbbbbbbbbaaaaaaaaabbbbbbbbbaaaaaaaaabbbbbbbbbaaaaaaaaabbbb
    ",
    );
}

/// vCPU h has a debt of 25 credits at 90 ms, is parked, and still runs for two ticks. With
/// `floor=period`, ten of the 40 credits that it owes at 120 ms are forgiven, and it runs two
/// periods sooner. A column is 5 ms of Xen's time.
#[test]
fn credit_floor_field_decides_if_excess_debt_is_forgiven() {
    picture(
        "credit rules=xen-3.0.3 floor=period tick=2ms slice=6ms",
        "
        h cap=16%  zzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0       ...........hhhhhhhhhhhh..........................................hhhhhh.........
    ",
    );
    picture(
        "credit rules=xen-3.0.3 floor=turns tick=2ms slice=6ms",
        "
        h cap=16%  zzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0       ...........hhhhhhhhhhhh......................................................hhh
    ",
    );
}

/// vCPU s saves up more than a period's credit while it is blocked. With `forfeit` it loses all
/// credit, is in debt two ticks after its wake-up, and gets no boost at the next wake-up. With
/// `keep` it keeps a period's credit, and preempts h.
#[test]
fn credit_leaving_field_decides_if_second_wake_preempts_running_vcpu() {
    picture(
        "credit rules=xen-3.0.4 leaving=forfeit tick=1ms slice=3ms",
        "
        h     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        s     rrrrrzzzzzzzzzzzzzzzzzzzzzzzzzzzzzrrrzrrrrrrrrrrrrrr
        cpu0  hhhsshhhhhhhhhhhhhhhhhhhhhhhhhhhhhssshhhsssssshhhhhh
    ",
    );
    picture(
        "credit rules=xen-3.0.4 leaving=keep tick=1ms slice=3ms",
        "
        h     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        s     rrrrrzzzzzzzzzzzzzzzzzzzzzzzzzzzzzrrrzrrrrrrrrrrrrrr
        cpu0  hhhsshhhhhhhhhhhhhhhhhhhhhhhhhhhhhssshssshhhssshhhss
    ",
    );
}

/// With `newcomers=active`, n gets half of all credit while blocked and preempts h at 35 ms.
#[test]
fn credit_newcomers_field_decides_if_blocked_newcomers_get_credit() {
    picture(
        "credit rules=xen-3.0.4 boost=off newcomers=active",
        "
        h     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        n     zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzrrrrrzzzzzzzzzzzzzzzzzzzz
        cpu0  hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhnnnnnhhhhhhhhhhhhhhhhhhhh
    ",
    );
    picture(
        "credit rules=xen-3.0.4 boost=off newcomers=sampled",
        "
        h     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        n     zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzrrrrrzzzzzzzzzzzzzzzzzzzz
        cpu0  hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh
    ",
    );
}

/// With `newcomers=sampled`, n has no credit until a tick finds it running at 40 ms. With `awake`
/// it has credit from its wake on.
#[test]
fn credit_waiting_vcpu_gets_credit_if_newcomers_field_is_awake() {
    picture(
        "credit rules=xen-3.0.4 boost=off newcomers=sampled tick=1ms slice=3ms",
        "
        h               rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        n weight=65535  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0            hhhnnnhhhnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn
    ",
    );
    picture(
        "credit rules=xen-3.0.4 boost=off newcomers=awake tick=1ms slice=3ms",
        "
        h               rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        n weight=65535  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0            hhhnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn
    ",
    );
}

/// Credit reference 7.7 item 2: with `rotation=pass`, `a` loses its timeslice when `s` preempts it.
#[test]
fn credit_preempted_vcpu_loses_timeslice_if_rotation_field_is_pass() {
    picture(
        "credit rules=xen-3.0.4 rotation=pass",
        "
        a     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        s     zzzzzzzzzzzzzzzrzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
        cpu0  aaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbbbbbbbbbbbbaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
    ",
    );
    picture(
        "credit rules=xen-3.0.4 rotation=turn",
        "
        a     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        s     zzzzzzzzzzzzzzzrzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
        cpu0  aaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbbbbbbbbbbbbaaaaaaaaaaaaaaabbbbbbbbbbbbbbb
    ",
    );
}

/// Credit reference 7.3: `a` is unparked at 60 ms. With `changes=tick` it runs only from 65 ms on.
#[test]
fn credit_unparks_capped_vcpu_immediately_if_changes_field_is_now() {
    picture(
        "credit rules=xen-3.0.3 changes=tick",
        "
        a cap=50%  zzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0       .....aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..............................aaaaaaaaaaaaaaa
    ",
    );
    picture(
        "credit rules=xen-3.0.3 changes=now",
        "
        a cap=50%  zzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0       .....aaaaaaaaaaaaaaaaaaaaaaaaa..............................aaaaaaaaaaaaaaaaaaaa
    ",
    );
}

/// With `phase=5ms` CPU 1 ticks at 15 ms, not 20 ms, so d is no longer boosted when f wakes.
#[test]
fn credit_phase_field_shifts_the_ticks_of_the_second_cpu() {
    picture(
        "credit rules=xen-3.0.4 phase=0ms",
        "
        a     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        c     zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
        d     zzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        e     zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
        f     zzzzzzzzzzzzzzzzzrrzzzzzzzzzzzzzzzzzzzzz
        cpu0  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbbbbbbbbb
        cpu1  bbbbbbbbbbbbdddddddddddddddddddddddddddd
    ",
    );
    picture(
        "credit rules=xen-3.0.4 phase=5ms",
        "
        a     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        c     zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
        d     zzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        e     zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz
        f     zzzzzzzzzzzzzzzzzrrzzzzzzzzzzzzzzzzzzzzz
        cpu0  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbbbbbbbbb
        cpu1  bbbbbbbbbbbbbbbbbddddddddddddddddddddddd
    ",
    );
}

/// The core of CPUs 2 and 3 is idle. `tick` moves `a` there at a tick, `wake` moves `b` at a wake.
#[test]
fn credit_placement_prefers_idle_core_to_thread_of_busy_core() {
    picture_on(
        2,
        "credit rules=xen-3.0.4 placement=stay",
        "
        a     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b     zzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
        cpu1  .....bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
        cpu2  ........................................
        cpu3  ........................................
    ",
    );
    picture_on(
        2,
        "credit rules=xen-3.0.4 placement=tick",
        "
        a     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b     zzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0  aaaaaaaaaaaaaaaaaaaa....................
        cpu1  .....bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
        cpu2  ....................aaaaaaaaaaaaaaaaaaaa
        cpu3  ........................................
    ",
    );
    picture_on(
        2,
        "credit rules=xen-3.0.4 placement=wake",
        "
        a     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b     zzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
        cpu1  ........................................
        cpu2  .....bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
        cpu3  ........................................
    ",
    );
}

/// Credit counts on every CPU: a vCPU with credit does not wait while a vCPU without credit runs on
/// the other CPU.
#[test]
fn credit_vcpu_with_credit_never_waits_for_vcpu_without_credit() {
    picture(
        "credit",
        "
        a     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        c     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0  aaaaaaaaaaccccccccccaaaaaaaaaaccccccccccccccccccccccccccccccccccccccccaaaaaaaaaa
        cpu1  bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbaaaaaaaaaabbbbbbbbbbaaaaaaaaaabbbbbbbbbbbbbbbbbbbb
    ",
    );
    picture(
        "credit rules=xen-3.0.3 tick=1ms slice=3ms",
        "
        a     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        c     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0  aaacccaaaaaacccaaaaaacccaaaaaacccaaaaaacccaaaaaacccaaaaaacccaaaaaacccaaaaaacccaa
        cpu1  bbbbbbcccbbbbbbcccbbbbbbcccbbbbbbcccbbbbbbcccbbbbbbcccbbbbbbcccbbbbbbcccbbbbbbcc
    ",
    );
}

/// After the first boosts, a vCPU with twice the weight gets two of every three timeslices.
#[test]
fn credit_vcpu_with_twice_the_weight_gets_twice_the_timeslices() {
    picture(
        "credit tick=1ms slice=3ms",
        "
        a weight=512  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b             rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0          abaaabbbaaabbbaaaaaabbbaaaaaabbbaaaaaabbbaaaaaabbbaaaaaabbbaaaaaabbbaaaaaab
    ",
    );
}

/// CPU time that a cap keeps from a VM is divided among the other VMs by weight. Timers are late in
/// this test, so a capped VM receives a little less than its cap. The other VMs share this small
/// remainder in alternate timeslices, not by weight.
#[test]
fn credit_divides_time_withheld_by_cap_according_to_weight() {
    let all = turns("credit", "a weight=4096 cap=20% r\nb weight=512 r\nc r", Span::ZERO, 5_000);
    let had = |who| all.iter().filter(|turn| turn.who == who).map(|turn| turn.ran.ns()).sum();
    let [a, b, c]: [u64; 3] = ['a', 'b', 'c'].map(had);
    assert!(b.abs_diff(2 * c) < c / 5 && a < (a + b + c) / 5, "{a}, {b} and {c} ns");
}

/// A cap of a fifth of a CPU is 6 ms of 30 ms, whatever the other VM demands.
#[test]
fn credit_cap_limits_vm_cpu_time_in_every_accounting_period() {
    picture(
        "credit",
        "
        a cap=20%  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b          zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0       aaaaaa........................aaabbbbbbbbbbaaabbbbbbbbbbbbbbbbbbbb
    ",
    );
}

const CENTURY: Span = Span::from_secs(100 * 365 * 24 * 3_600);

/// A timeslice under a cap ends a century late. The VM owes the time beyond its cap, so it is
/// parked, and no amount wraps into a positive budget. A cap of one CPU or more allows the whole
/// timeslice.
#[test]
fn capped_vm_under_credit_is_parked_after_century_of_overrun() {
    for rules in ["exact", "xen-3.0.3", "xen-2006-10-30", "xen-3.0.4"] {
        for (cap, is_held) in [("0.0001%", true), ("99%", true), ("100%", false), ("900%", false)] {
            let hogs = format!("a cap={cap} r\nb r");
            let turns = turns(&format!("credit rules={rules} park=budget"), &hogs, CENTURY, 40);
            // The first timeslice, which lasted a century, is not counted.
            let had = turns[1..].iter().filter(|turn| turn.who == 'a').count();
            assert_eq!(had == 0, is_held, "{rules}, cap {cap}: {had} of 39 timeslices");
        }
    }
}

/// One step spans a century. No amount overflows, and afterwards the two vCPUs alternate.
#[test]
fn credit_accounts_do_not_overflow_when_a_century_passes() {
    for rules in ["exact", "xen-3.0.3", "xen-2006-10-30", "xen-3.0.4"] {
        for weight in [1, 65_535] {
            let hogs = format!("a weight={weight} r\nb weight={weight} r");
            let turns = turns(&format!("credit rules={rules}"), &hogs, CENTURY, 40);
            for who in ['a', 'b'] {
                let had = turns[20..].iter().filter(|turn| turn.who == who).count();
                assert!(had >= 5, "{rules}, weight {weight}: {who} had {had} of 20 timeslices");
            }
        }
    }
}

/// The first accounting gives credit to only some of 17 VMs. The last VM gets another vCPU before
/// its own credit has been added to any account.
#[test]
fn credit_vcpu_is_active_before_its_vm_gets_any_credit() {
    let values = Values::defaults(SPEC.policy_fields).unwrap();
    let share = Values::defaults(SPEC.share_fields).unwrap();
    let mut policy = (SPEC.build)(&values, &Topology::flat(1));
    let mut at = Moment::at_start(1);
    let ids = (0..17).map(|slot| VcpuId::new(slot, DomId::new(slot), 0));
    let late = VcpuId::new(17, DomId::new(16), 1);
    for vcpu in ids.chain([late]) {
        if vcpu == late {
            at.advance(Time::START + Span::from_ms(30));
            policy.on_timer(&at, CpuId::new(0));
        }
        at.join(vcpu);
        policy.admit(&at, vcpu, &share).unwrap();
        at.set_awake(vcpu, true);
        policy.on_wake(&at, vcpu);
    }
    let active = ("active", "true".to_owned());
    assert!(policy.account(late).contains(&active));
}

const CPU: CpuId = CpuId::new(0);

/// Builds a host with one CPU and `vcpus` runnable vCPUs that have not run, by a version's rules.
fn awake(version: &'static str, vcpus: u32) -> (Credit, Moment, Vec<VcpuId>) {
    let values =
        Values::read(SPEC.policy_fields, [("rules", RawValue::Text(version))].into_iter()).unwrap();
    let share = Values::defaults(SPEC.share_fields).unwrap();
    let mut policy = Credit::new(CreditRules::read(&values, version), &Topology::flat(1), None);
    let mut at = Moment::at_start(1);
    let ids: Vec<VcpuId> = (0..vcpus).map(|slot| VcpuId::new(slot, DomId::new(slot), 0)).collect();
    for &vcpu in &ids {
        at.join(vcpu);
        policy.admit(&at, vcpu, &share).unwrap();
        at.set_awake(vcpu, true);
        policy.on_wake(&at, vcpu);
    }
    policy.prepare_pick(&at, CPU);
    (policy, at, ids)
}

/// Returns the picked vCPU and the limit of its timeslice.
fn picked(policy: &Credit, at: &Moment) -> Option<(VcpuId, Option<Span>)> {
    match policy.pick(at, CPU) {
        Pick::Run { vcpu, limit, .. } => Some((vcpu, limit)),
        Pick::Idle => None,
    }
}

/// The host refuses to run the chosen vCPU. The vCPU that replaces it gets a whole timeslice, and
/// keeps the CPU when the refused vCPU may run again.
#[test]
fn credit_vcpu_replacing_one_refused_by_host_gets_whole_timeslice() {
    for (version, turn) in [("exact", 10), ("xen-3.0.4", 30)] {
        let (mut policy, mut at, ids) = awake(version, 2);
        let turn = Span::from_ms(turn);
        assert_eq!(picked(&policy, &at), Some((ids[0], Some(turn))), "{version}");
        at.set_barred(ids[0], true);
        assert_eq!(picked(&policy, &at), Some((ids[1], Some(turn))), "{version}");
        at.occupy(CPU, ids[1]);
        policy.on_start(&at, ids[1]);
        let half = turn / 2;
        at.advance(at.now().after(half));
        at.set_barred(ids[0], false);
        assert_eq!(picked(&policy, &at), Some((ids[1], Some(half))), "{version}");
    }
}

/// After the first timeslice both vCPUs have more than a period's credit. With equal credit the
/// first vCPU goes behind the other vCPU. With a nanosecond more credit, the first vCPU continues.
#[test]
fn credit_vcpu_goes_behind_vcpu_of_equal_credit_after_timeslice() {
    for (more, next) in [(-1, 1), (0, 1), (1, 0)] {
        let (mut policy, mut at, ids) = awake("exact", 2);
        at.occupy(CPU, ids[0]);
        policy.on_start(&at, ids[0]);
        let turn = policy.rules.slice;
        let owed = 2 * policy.rules.period;
        policy.vcpus[ids[0]].credit = owed + more + super::nanoseconds(turn);
        policy.vcpus[ids[1]].credit = owed;
        at.advance(at.now().after(turn));
        policy.charge(&at, ids[0], turn);
        policy.set_class(ids[1], Class::Under);
        policy.on_timeslice_end(&at, ids[0], TimesliceEnd::Limit);
        policy.prepare_pick(&at, CPU);
        assert_eq!(picked(&policy, &at).map(|(vcpu, _)| vcpu), Some(ids[next]), "{more}");
    }
}

/// Credit is given every 30 ms of the clock, even if a timer is late. A timer that is late by 30 ms
/// or more starts a new interval.
#[test]
fn credit_late_accounting_timer_does_not_delay_the_next_timer() {
    let (mut policy, mut at, _) = awake("exact", 1);
    let ms = |ms| Time::START + Span::from_ms(ms);
    for (rings, next) in [(30, 60), (61, 90), (119, 120), (150, 180), (250, 280)] {
        assert!(policy.next_timer(CPU).is_some_and(|alarm| alarm <= ms(rings)));
        at.advance(ms(rings));
        policy.on_timer(&at, CPU);
        assert_eq!(policy.next_timer(CPU), Some(ms(next)), "expired at {rings} ms");
    }
}

/// Two CPUs are idle, and two vCPUs that belong to the list of the same CPU wake at once. Even
/// without placement at wake-ups, each vCPU gets a CPU.
#[test]
fn credit_runs_two_vcpus_waking_together_on_two_idle_cpus() {
    let stays = [("placement", RawValue::Text("stay"))];
    let values = Values::read(SPEC.policy_fields, stays.into_iter()).unwrap();
    let share = Values::defaults(SPEC.share_fields).unwrap();
    let mut policy = Credit::new(CreditRules::read(&values, "exact"), &Topology::flat(2), None);
    let mut at = Moment::at_start(2);
    let ids: Vec<VcpuId> = (0..3).map(|slot| VcpuId::new(slot, DomId::new(slot), 0)).collect();
    for &vcpu in &ids {
        at.join(vcpu);
        policy.admit(&at, vcpu, &share).unwrap();
    }
    let home = policy.vcpus[ids[0]].home;
    assert_eq!(policy.vcpus[ids[2]].home, home);
    for vcpu in [ids[0], ids[2]] {
        at.set_awake(vcpu, true);
        policy.on_wake(&at, vcpu);
    }
    for cpu in [0, 1].map(CpuId::new) {
        assert!(policy.requested.contains(cpu), "{cpu}");
        policy.prepare_pick(&at, cpu);
    }
    let chosen = [0, 1].map(|cpu: usize| policy.cpus[cpu].chosen.map(VcpuId::slot));
    assert!(chosen == [Some(0), Some(2)] || chosen == [Some(2), Some(0)], "{chosen:?}");
}
