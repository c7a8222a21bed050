//! Tests of the used slice and the deadline of a single vCPU, in milliseconds.

use super::*;
use crate::policies::sedf::SPEC;
use crate::{RawValue, Values};

const CPU: CpuId = CpuId::new(0);

fn rules(words: &str) -> SedfRules {
    let given = words.split_whitespace().map(|word| {
        let (name, value) = word.split_once('=').expect("each word is name=value");
        (name, RawValue::Text(value))
    });
    SedfRules::read(
        &Values::read(SPEC.policy_fields, given).expect("the fields belong to the policy"),
    )
}

fn ms(ms: u64) -> Span {
    Span::from_ms(ms)
}

fn at(ms: u64) -> Time {
    Time::START + Span::from_ms(ms)
}

/// Returns a vCPU with a slice of 20 ms in 100 ms, whose period ends at 100 ms.
fn server() -> SedfServer {
    let terms = SedfParameters::of(
        Reservation::new(ms(20), ms(100)).expect("20 ms of 100 ms is a valid reservation"),
    );
    SedfServer { deadline: at(100), slept: false, ..SedfServer::new(CPU, terms, at(0)) }
}

/// Returns the vCPU of `server()` with weight 1 in place of a fixed slice. `slice` is the slice
/// that the vCPU receives for its weight.
fn by_weight(slice: Span) -> SedfServer {
    let before = server();
    let terms = SedfParameters { slice: Span::ZERO, weight: 1, ..before.terms };
    SedfServer { terms, by_weight: slice, ..before }
}

/// Returns the used part of the vCPU's slice and its deadline.
fn state(server: &SedfServer) -> (Span, Time) {
    (server.used, server.deadline)
}

#[test]
fn sedf_period_begins_at_its_deadline_minus_its_length() {
    assert_eq!(server().begin(), at(0));
    assert_eq!(SedfServer { deadline: at(130), ..server() }.begin(), at(30));
    assert_eq!(SedfServer { period: ms(40), ..server() }.begin(), at(60));
}

#[test]
fn sedf_slice_shrinks_with_period_proportionally_but_not_to_zero() {
    for (period, full, slice) in [
        (ms(100), ms(20), ms(20)),
        (ms(50), ms(20), ms(10)),
        (ms(50), Span::ZERO, Span::ZERO),
        (Span::from_ns(2), ms(20), Span::from_ns(1)),
    ] {
        assert_eq!(SedfServer { period, ..server() }.slice(full), slice, "{full} in {period}");
    }
}

/// The vCPU has used 15 of 20 ms when its slice, which its weight determines, shrinks to 8 ms. The
/// slice is then exactly exhausted. If the vCPU has overrun its slice by 2 ms before, these 2 ms
/// stay an overrun. If the slice grows, usage stays.
#[test]
fn sedf_weighted_vcpu_slice_shrinking_below_usage_causes_no_overrun() {
    for (used, full, then) in [(15, 8, 8), (22, 8, 10), (5, 8, 5), (15, 30, 15), (22, 20, 22)] {
        let mut server = server();
        server.see(ms(20));
        server.used = ms(used);
        server.see(ms(full));
        assert_eq!(server.used, ms(then), "{used} of 20 ms, then of {full} ms");
    }
}

/// A slice of 20 ms accrues in 100 ms, so 10 ms of it have accrued by 50 ms.
#[test]
fn sedf_excess_is_usage_above_the_slice_accrued_so_far() {
    let best = rules("");
    let advance = |used, now, more| {
        SedfServer { used: ms(used), ..server() }.advance(at(now), ms(more), &best)
    };
    assert_eq!(advance(20, 0, 0), ms(20));
    assert_eq!(advance(20, 50, 0), ms(10));
    assert_eq!(advance(15, 50, 3), ms(8));
    assert_eq!(advance(10, 50, 0), Span::ZERO);
    assert_eq!(advance(20, 100, 0), Span::ZERO);
    let never = SedfServer { deadline: Time::NEVER, used: ms(20), ..server() };
    assert_eq!(never.advance(at(0), ms(5), &best), Span::ZERO, "no period has begun");
    let moving = SedfServer { used: ms(20), ..server() };
    assert_eq!(moving.advance(at(0), ms(0), &rules("unblocking=conservative")), Span::ZERO);
    let weighted = SedfServer { used: ms(10), ..by_weight(ms(10)) };
    assert_eq!(weighted.advance(at(50), Span::ZERO, &best), ms(5));
}

/// The vCPU blocks at 30 ms with 15 ms left. Had it stayed runnable, it would have run until 45 ms,
/// and in each later period for the first 20 ms.
#[test]
fn sedf_blocked_vcpu_may_claim_same_budget_as_if_runnable() {
    let server = SedfServer { used: ms(5), blocked: Some(at(30)), ..server() };
    let claims: Vec<u64> = (30..340).filter(|&now| server.claims_to_run(at(now))).collect();
    let expected: Vec<u64> = (30..45).chain(100..120).chain(200..220).chain(300..320).collect();
    assert_eq!(claims, expected);
    let before = SedfServer { blocked: None, ..server };
    assert!(before.claims_to_run(at(14)) && !before.claims_to_run(at(15)));
    assert!(SedfServer { deadline: Time::NEVER, ..before }.claims_to_run(at(15)));
}

#[test]
fn sedf_share_change_starts_new_period_and_clears_lost_budget() {
    let mut server = SedfServer { period: ms(40), loss: ms(1), missed: ms(2), ..server() };
    server.restart(at(30), ms(3));
    assert_eq!((server.period, state(&server)), (ms(100), (ms(3), at(130))));
    assert_eq!(server.due_from_slack(), Span::ZERO);
}

/// A usage of 47 ms is two slices and 7 ms. If overruns are carried, one period is skipped. If they
/// are forgiven, or if a weight determines the slice, the next period follows. If a weight
/// determines the slice, at most one slice is deducted.
#[test]
fn sedf_overrun_is_deducted_from_later_slices() {
    let carried = rules("overrun=carried");
    for (used, rules, then) in [
        (20, carried, (ms(0), at(200))),
        (27, carried, (ms(7), at(200))),
        (39, carried, (ms(19), at(200))),
        (40, carried, (ms(0), at(300))),
        (47, carried, (ms(7), at(300))),
        (47, rules("overrun=forgiven"), (ms(27), at(200))),
    ] {
        let mut server = SedfServer { used: ms(used), ..server() };
        server.end_period(ms(20), &rules);
        assert_eq!(state(&server), then, "{used} ms");
    }
    let mut weighted = SedfServer { used: ms(47), ..by_weight(ms(20)) };
    weighted.end_period(ms(20), &carried);
    assert_eq!(state(&weighted), (ms(20), at(200)));
}

/// A period that was shortened to 30 ms doubles until it has its full length. Its slice grows in
/// proportion.
#[test]
fn sedf_shortened_period_doubles_until_full_length() {
    let mut server = SedfServer { period: ms(30), deadline: at(30), used: ms(6), ..server() };
    for (period, deadline, slice) in [(60, 90, 12), (100, 190, 20), (100, 290, 20)] {
        server.end_period(ms(20), &rules(""));
        assert_eq!((server.period, server.deadline), (ms(period), at(deadline)));
        assert_eq!(server.slice(ms(20)), ms(slice));
        server.used = server.slice(ms(20));
    }
}

/// The period of a best-effort vCPU ends at 100 ms, and the end is handled at `now`. With `whole`,
/// the next deadline is the end of the first period that begins after `now`. With `one-period`, the
/// deadline moves by one period, or by two periods if `now` is the end of the old period.
#[test]
fn sedf_catch_up_field_decides_how_far_deadline_moves() {
    for (now, whole, one) in [(100, 300, 300), (150, 300, 200), (350, 500, 200), (200, 400, 200)] {
        for (word, deadline) in [("whole", whole), ("one-period", one)] {
            let mut server = server();
            server.skip_period(at(now), &rules(&format!("catch-up={word}")));
            assert_eq!(server.deadline, at(deadline), "{word} at {now} ms");
        }
    }
}

/// By its deadline at 100 ms the vCPU missed 15 of 20 ms, and by 350 ms two more slices. A vCPU
/// that blocked is not compensated.
#[test]
fn sedf_vcpu_is_repaid_missed_budget_unless_misses_are_forgotten() {
    for (now, deadline, missed) in [(100, 200, 15), (199, 200, 15), (200, 300, 35), (350, 400, 55)]
    {
        for (word, missed) in [("repaid", missed), ("forgotten", 0)] {
            let mut server = SedfServer { used: ms(5), ..server() };
            server.miss(at(now), ms(20), &rules(&format!("misses={word}")));
            let forgotten = if word == "forgotten" && now == 200 { 200 } else { deadline };
            assert_eq!(state(&server), (Span::ZERO, at(forgotten)), "{word} at {now} ms");
            assert_eq!(server.missed, ms(missed), "{word} at {now} ms");
        }
        let mut slept = SedfServer { used: ms(5), slept: true, ..server() };
        slept.miss(at(now), ms(20), &rules("misses=repaid"));
        assert_eq!((slept.missed, slept.slept), (Span::ZERO, false));
    }
}

/// Slack first compensates budget that the vCPU missed at deadlines. Then it compensates budget
/// that the vCPU lost because it blocked.
#[test]
fn sedf_slack_compensates_deadline_misses_before_losses_by_blocking() {
    for (ran, word, then) in [
        (2, "in-period", (4, 5)),
        (8, "in-period", (0, 3)),
        (20, "in-period", (0, 0)),
        (8, "whole-loss", (0, 3)),
        (2, "one-quantum", (4, 0)),
    ] {
        let mut server = SedfServer { missed: ms(6), loss: ms(5), ..server() };
        server.make_up(ms(ran), &rules(&format!("compensation={word}")));
        assert_eq!((server.missed, server.loss), (ms(then.0), ms(then.1)), "{ran} ms, {word}");
    }
}

/// The vCPU blocks at 10 ms with all 20 ms of its budget left. At 25 ms it keeps the larger of two
/// amounts: the budget that it would have left had it run, and a fifth of the remaining 75 ms. The
/// loss is compensated until the period ends.
#[test]
fn sedf_proportional_unblocking_keeps_larger_of_remaining_and_prorated_budget() {
    let best = rules("");
    for (now, used, deadline, loss) in [
        (10, 0, 100, 0),
        (12, 2, 100, 2),
        (25, 5, 100, 5),
        (60, 12, 100, 12),
        (95, 19, 100, 19),
        (100, 0, 200, 0),
        (110, 2, 200, 2),
        (350, 10, 400, 10),
    ] {
        let mut server = SedfServer { blocked: Some(at(10)), ..server() };
        server.wake(WakeContext { now: at(now), full: ms(20), is_strict: false }, &best);
        assert_eq!(state(&server), (ms(used), at(deadline)), "at {now} ms");
        assert_eq!(
            (server.loss, server.loss_ends),
            match loss {
                0 => (Span::ZERO, at(0)),
                _ => (ms(loss), at(deadline)),
            }
        );
        server.begin_period(at(deadline), &best);
        assert_eq!(server.loss, Span::ZERO);
    }
    // Periods in which it was blocked pay off an overrun.
    let mut late = SedfServer { blocked: Some(at(10)), ..server() };
    late.see(ms(20));
    late.used = ms(50);
    late.wake(WakeContext { now: at(200), full: ms(20), is_strict: false }, &best);
    assert_eq!(state(&late), (ms(10), at(300)));
}

/// Depending on the rules, the first period begins at the first wake-up or one slice later.
#[test]
fn sedf_first_period_field_delays_first_deadline_by_a_slice() {
    for (word, deadline) in [("at-once", at(130)), ("after-a-slice", at(150))] {
        let mut server = SedfServer { deadline: Time::NEVER, ..server() };
        let rules = rules(&format!("unblocking=conservative first-period={word}"));
        server.wake(WakeContext { now: at(30), full: ms(20), is_strict: false }, &rules);
        assert_eq!(state(&server), (Span::ZERO, deadline), "{word}");
    }
}

/// The vCPU last woke at 5 ms and blocked at 10 ms with 3 ms used. It wakes at 15 ms, at 40 ms, or
/// after its deadline at 250 ms. [Xen 3.0, §6.7]
#[test]
fn sedf_xen_unblocking_rules_give_hand_computed_usage_and_deadline() {
    let xen = "rules=xen-3.0.3 unblocking";
    for (word, shortly, late, long_after) in [
        ("isochronous", (0, 200), (0, 200), (0, 400)),
        ("conservative", (0, 200), (0, 200), (0, 350)),
        ("short-resume", (8, 100), (0, 200), (0, 350)),
        ("latency-hint", (0, 200), (0, 200), (0, 290)),
        ("burst", (8, 100), (33, 135), (0, 290)),
        ("extra-support", (0, 200), (0, 200), (0, 350)),
    ] {
        let rules = rules(&format!("{xen}={word}"));
        for (now, (used, deadline)) in [(15, shortly), (40, late), (250, long_after)] {
            let mut server = SedfServer { blocked: Some(at(10)), woke: Some(at(5)), ..server() };
            server.used = ms(3);
            server.terms.latency = ms(40);
            server.wake(WakeContext { now: at(now), full: ms(20), is_strict: false }, &rules);
            assert_eq!(state(&server), (ms(used), at(deadline)), "{word} at {now} ms");
            assert_eq!(server.woke, Some(at(now)));
            let is_owed = word == "extra-support" && now < 100;
            assert_eq!(server.loss, if is_owed { ms(17) } else { Span::ZERO }, "{word}");
        }
    }
}
