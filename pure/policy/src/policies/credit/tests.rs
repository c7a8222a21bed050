//! Pictures of every rule. Where `tick=1ms slice=3ms` a column is ten of Xen's milliseconds.

use slackline_units::{CpuId, DomId, Span, Time, VcpuId};

use crate::picture::{picture, picture_on, turns};
use crate::{Given, Moment, Pick, Policy, Topology, TurnEnd, Values};

use super::{Class, Credit, Rules, SPEC};

/// The reference, section 13.2: the second is still boosted at 30 ms. At 60 ms it is in debt, at 90
/// ms neither is; so they take turns for ever.
#[test]
fn two_hogs_take_turns_of_30_ms() {
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

/// The reference, section 13.3: a hog that has credit is not made to give way for one who has as
/// much, unless waking is worth something by itself.
#[test]
fn who_wakes_with_credit_is_boosted() {
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

/// The reference, section 7.7, item 1: no tick ever meets it, so it is boosted at each wake and
/// takes three quarters of the CPU. Paying for what it uses, it is in debt when it has had its
/// half.
#[test]
fn who_sleeps_through_the_ticks_pays_nothing() {
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

/// Boosted at 12 ms, it may run for a tick; where the boost ends at a tick that meets it, it stays
/// where it is all the same until its turn is over.
#[test]
fn a_boost_lasts_until_a_tick_or_for_a_tick() {
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

/// The reference, section 7.8: 7 % of 30 credits is three of them, and that is 10 %.
#[test]
fn caps_are_rounded_up_to_a_credit() {
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

/// Half a CPU, woken at 5 ms. Parked by the accounting at 30 ms and let go at 60 ms, it is behind
/// idle only from the next pass on, and ahead of it from the next; or both at once; or it stops
/// when its budget is used up.
#[test]
fn parking_waits_for_a_pass_or_does_not() {
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

/// The reference, section 15, item 14: three on two CPUs have 66 % each, and two of them may use 80
/// %. By the first test these are parked for being in debt, and a CPU idles.
#[test]
fn once_who_was_in_debt_was_over_its_cap() {
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

/// Parked with a debt of 25 credits at 90 ms, the hog runs on for two ticks; of the 40 that it owes
/// at 120 ms ten are forgiven, and it is back two periods sooner. A column is five of Xen's
/// milliseconds.
#[test]
fn debt_beyond_a_period_is_forgiven_or_worked_off() {
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

/// The sleeper is given credit until it has more than a period's. It loses all of it, and is in
/// debt after a turn; or it keeps a period's, and is not.
#[test]
fn unused_credit_is_lost_or_kept() {
    picture(
        "credit rules=xen-3.0.4 leaving=forfeit tick=1ms slice=3ms",
        "
        h     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        s     rrrrrzzzzzzzzzzzzzzzzzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0  hhhsshhhhhhhhhhhhhhhhhhhhhhhhhhhhhssshhhssshhhssshhhssshhhss
    ",
    );
    picture(
        "credit rules=xen-3.0.4 leaving=keep tick=1ms slice=3ms",
        "
        h     rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        s     rrrrrzzzzzzzzzzzzzzzzzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0  hhhsshhhhhhhhhhhhhhhhhhhhhhhhhhhhhssshhhssshhhssshhhssshhhss
    ",
    );
}

/// A newcomer that only sleeps is given half of all credit where it is active; then the hog is in
/// debt at 30 ms, and has to give way at 35 ms.
#[test]
fn a_newcomer_is_given_credit_at_once_or_later() {
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

/// No tick meets the heavy one before 40 ms: so the light hog pays nothing for its first turn.
#[test]
fn who_waits_is_given_credit_or_is_not() {
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

/// The reference, section 7.7, item 2: a is interrupted at 15 ms and loses the rest of its turn.
#[test]
fn any_pass_may_end_a_turn() {
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

/// The reference, section 7.3: the parked hog is let go by the accounting at 60 ms; an idle CPU
/// looks for work at 65 ms.
#[test]
fn a_change_of_class_counts_from_a_pass_on_or_at_once() {
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

/// The second CPU ticks at 20 ms, or at 15 ms: then d is no longer boosted when f wakes.
#[test]
fn ticks_of_different_cpus_have_a_phase() {
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

/// A tick moves a running vCPU to a core that is all idle, and so does a wake; without placement it
/// stays on the CPU that it was given.
#[test]
fn two_threads_of_a_core_are_worse_than_two_cores() {
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

/// An account is the same on every CPU: who has credit waits on one for nobody who has none on
/// another.
#[test]
fn three_hogs_share_two_cpus() {
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

/// Twice the weight has two turns for one, once the first boosts are over.
#[test]
fn weights_are_shares() {
    picture(
        "credit tick=1ms slice=3ms",
        "
        a weight=512  rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b             rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0          abaaabbbaaabbbaaaaaabbbaaaaaabbbaaaaaabbbaaaaaabbbaaaaaabbbaaaaaabbbaaaaaab
    ",
    );
}

/// What a cap keeps from one goes to the others, by their weights. Nothing rings in time here: who
/// is held to its cap has a little less than that, and what it leaves so goes by turns.
#[test]
fn what_a_cap_leaves_goes_to_the_others_by_weight() {
    let all = turns("credit", "a weight=4096 cap=20% r\nb weight=512 r\nc r", Span::ZERO, 5_000);
    let had = |who| all.iter().filter(|turn| turn.who == who).map(|turn| turn.ran.ns()).sum();
    let [a, b, c]: [u64; 3] = ['a', 'b', 'c'].map(had);
    assert!(b.abs_diff(2 * c) < c / 5 && a < (a + b + c) / 5, "{a}, {b} and {c} ns");
}

/// A fifth of a CPU is 6 ms of 30 ms, whoever else wants it.
#[test]
fn a_cap_holds_in_every_period() {
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

/// A turn under a cap that ends a century late: what the cap did not allow of it is owed, so the
/// domain is held, and nothing wraps into room. A cap of a CPU or more allows all of it.
#[test]
fn a_century_beyond_a_cap_is_owed() {
    for rules in ["exact", "xen-3.0.3", "xen-2006-10-30", "xen-3.0.4"] {
        for (cap, is_held) in [("0.0001%", true), ("99%", true), ("100%", false), ("900%", false)] {
            let hogs = format!("a cap={cap} r\nb r");
            let turns = turns(&format!("credit rules={rules} park=budget"), &hogs, CENTURY, 40);
            // The one that a century had been may come first.
            let had = turns[1..].iter().filter(|turn| turn.who == 'a').count();
            assert_eq!(had == 0, is_held, "{rules}, cap {cap}: {had} turns of 39");
        }
    }
}

/// A step that spans a century: nothing overflows under any rules, and then the two take turns.
#[test]
fn a_century_is_not_too_long() {
    for rules in ["exact", "xen-3.0.3", "xen-2006-10-30", "xen-3.0.4"] {
        for weight in [1, 65_535] {
            let hogs = format!("a weight={weight} r\nb weight={weight} r");
            let turns = turns(&format!("credit rules={rules}"), &hogs, CENTURY, 40);
            for who in ['a', 'b'] {
                let had = turns[20..].iter().filter(|turn| turn.who == who).count();
                assert!(had >= 5, "{rules}, weight {weight}: {who} had {had} turns of 20");
            }
        }
    }
}

/// Of 17 domains the first accounting visits only some; the last is joined by one more vCPU before
/// its credit has been added to any account.
#[test]
fn a_domain_grows_while_credit_is_still_to_come() {
    let values = Values::defaults(SPEC.policy_fields).unwrap();
    let share = Values::defaults(SPEC.share_fields).unwrap();
    let mut policy = (SPEC.build)(&values, &Topology::flat(1));
    let mut at = Moment::at_start(1);
    let ids = (0..17).map(|slot| VcpuId::new(slot, DomId::new(slot), 0));
    let late = VcpuId::new(17, DomId::new(16), 1);
    for vcpu in ids.chain([late]) {
        if vcpu == late {
            at.advance(Time::START + Span::from_ms(30));
            policy.ring(&at, CpuId::new(0));
        }
        at.join(vcpu);
        policy.admit(&at, vcpu, &share).unwrap();
        at.set_awake(vcpu, true);
        policy.wake(&at, vcpu);
    }
    let active = ("active", "true".to_owned());
    assert!(policy.account(late).contains(&active));
}

const CPU: CpuId = CpuId::new(0);

/// So many that are awake on one CPU of which none has run, by the rules of that version.
fn awake(version: &'static str, vcpus: u32) -> (Credit, Moment, Vec<VcpuId>) {
    let values =
        Values::read(SPEC.policy_fields, [("rules", Given::Text(version))].into_iter()).unwrap();
    let share = Values::defaults(SPEC.share_fields).unwrap();
    let mut policy = Credit::new(Rules::read(&values, version), &Topology::flat(1), None);
    let mut at = Moment::at_start(1);
    let ids: Vec<VcpuId> = (0..vcpus).map(|slot| VcpuId::new(slot, DomId::new(slot), 0)).collect();
    for &vcpu in &ids {
        at.join(vcpu);
        policy.admit(&at, vcpu, &share).unwrap();
        at.set_awake(vcpu, true);
        policy.wake(&at, vcpu);
    }
    policy.pass(&at, CPU);
    (policy, at, ids)
}

/// Who is picked, and for how long.
fn picked(policy: &Credit, at: &Moment) -> Option<(VcpuId, Option<Span>)> {
    match policy.pick(at, CPU) {
        Pick::Run { vcpu, limit, .. } => Some((vcpu, limit)),
        Pick::Idle => None,
    }
}

/// The machine would not run the one that was chosen. Who runs in its stead has a turn of its own:
/// it keeps the CPU when the other one may run again.
#[test]
fn who_runs_in_the_stead_of_who_was_refused_has_a_turn() {
    for (version, turn) in [("exact", 10), ("xen-3.0.4", 30)] {
        let (mut policy, mut at, ids) = awake(version, 2);
        let turn = Span::from_ms(turn);
        assert_eq!(picked(&policy, &at), Some((ids[0], Some(turn))), "{version}");
        at.set_barred(ids[0], true);
        assert_eq!(picked(&policy, &at), Some((ids[1], Some(turn))), "{version}");
        at.occupy(CPU, ids[1]);
        policy.start(&at, ids[1]);
        let half = turn / 2;
        at.advance(at.now().after(half));
        at.set_barred(ids[0], false);
        assert_eq!(picked(&policy, &at), Some((ids[1], Some(half))), "{version}");
    }
}

/// Both are owed more than a period's credit once the first has had its turn. Owed as much as the
/// other it goes behind that one, and owed a nanosecond more it goes on.
#[test]
fn of_two_who_are_owed_as_much_the_one_that_has_had_a_turn_goes_behind() {
    for (more, next) in [(-1, 1), (0, 1), (1, 0)] {
        let (mut policy, mut at, ids) = awake("exact", 2);
        at.occupy(CPU, ids[0]);
        policy.start(&at, ids[0]);
        let turn = policy.rules.slice;
        let owed = 2 * policy.rules.period;
        policy.vcpus[ids[0]].credit = owed + more + super::nanoseconds(turn);
        policy.vcpus[ids[1]].credit = owed;
        at.advance(at.now().after(turn));
        policy.charge(&at, ids[0], turn);
        policy.set_class(ids[1], Class::Under);
        policy.turn_over(&at, ids[0], TurnEnd::Limit);
        policy.pass(&at, CPU);
        assert_eq!(picked(&policy, &at).map(|(vcpu, _)| vcpu), Some(ids[next]), "{more}");
    }
}

/// Credit is given every 30 ms of the clock, however late the timer is: but one that is late by all
/// of that begins anew.
#[test]
fn a_late_timer_makes_the_next_one_no_later() {
    let (mut policy, mut at, _) = awake("exact", 1);
    let ms = |ms| Time::START + Span::from_ms(ms);
    for (rings, next) in [(30, 60), (61, 90), (119, 120), (150, 180), (250, 280)] {
        assert!(policy.alarm(CPU).is_some_and(|alarm| alarm <= ms(rings)));
        at.advance(ms(rings));
        policy.ring(&at, CPU);
        assert_eq!(policy.alarm(CPU), Some(ms(next)), "rung at {rings} ms");
    }
}

/// Two CPUs are idle, and two wake at once whose home is the same: nobody looks for another.
#[test]
fn who_wakes_while_an_idle_cpu_is_to_be_had_by_another_takes_the_next_one() {
    let stays = [("placement", Given::Text("stay"))];
    let values = Values::read(SPEC.policy_fields, stays.into_iter()).unwrap();
    let share = Values::defaults(SPEC.share_fields).unwrap();
    let mut policy = Credit::new(Rules::read(&values, "exact"), &Topology::flat(2), None);
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
        policy.wake(&at, vcpu);
    }
    for cpu in [0, 1].map(CpuId::new) {
        assert!(policy.requested.contains(cpu), "{cpu}");
        policy.pass(&at, cpu);
    }
    let chosen = [0, 1].map(|cpu: usize| policy.cpus[cpu].chosen.map(VcpuId::slot));
    assert!(chosen == [Some(0), Some(2)] || chosen == [Some(2), Some(0)], "{chosen:?}");
}
