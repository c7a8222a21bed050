//! Tests of Atropos: drawn timelines, and sequences of calls.

use alloc::string::ToString;

use slackline_units::DomId;

use super::*;
use crate::RawValue;
use crate::picture::picture;

#[test]
fn atropos_runs_the_vcpu_with_the_earliest_deadline_first() {
    picture(
        "atropos",
        "
        a slice=2ms period=10ms   rrrrrrrrrrrrrrrrrrrr
        b slice=2ms period=5ms    rrrrrrrrrrrrrrrrrrrr
        cpu0                      bbaa.bb...bbaa.bb...
    ",
    );
}

/// Figure 3.13 of [Diestelhorst §3.2.3]. A vCPU reserves 8 ms of 20 ms, with a latency hint of 5
/// ms. After a long block it gets 2 ms within 5 ms, then 4 ms within 10 ms. The last 2 ms follow in
/// the rest of the natural period.
#[test]
fn atropos_latency_hint_shortens_the_first_period_after_a_wake() {
    picture(
        "atropos reserve=0cpu",
        "
        a slice=8ms period=20ms latency=5ms   zzzzzzzzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrr
        b slice=6ms period=10ms               rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0                                  bbbbbb....bbbbbb....aabbbbbbaaaaaabbbbbb
    ",
    );
}

#[test]
fn atropos_vcpu_waking_without_latency_hint_waits_for_earlier_deadlines() {
    picture(
        "atropos reserve=0cpu",
        "
        a slice=8ms period=20ms               zzzzzzzzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrr
        b slice=6ms period=10ms               rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0                                  bbbbbb....bbbbbb....bbbbbbaaaaaaaabbbbbb
    ",
    );
}

/// vCPU `a` wakes 5 ms before the end of its natural period and gets a quarter of its slice.
#[test]
fn atropos_vcpu_waking_late_in_period_gets_prorated_budget() {
    picture(
        "atropos reserve=0cpu",
        "
        a slice=8ms period=20ms   zzzzzzzzzzzzzzzrrrrrrrrrrrrrrrrrrrrrrrrr
        b slice=6ms period=10ms   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0                      bbbbbb....bbbbbaab..bbbbbbaaaaaaaabbbbbb
    ",
    );
}

/// vCPU `a` blocks for 1 ms and has 4 ms of budget left. It gets these only when no other vCPU has
/// budget left, but before slack is used.
#[test]
fn atropos_budget_left_after_block_is_used_just_before_slack() {
    picture(
        "atropos reserve=0cpu",
        "
        a slice=5ms period=20ms         rzrrrrrrrrrrrrrrrrrr
        b slice=9ms period=20ms extra   rrrrrrrrrrrrrrrrrrrr
        cpu0                            abbbbbbbbbaaaabbbbbb
    ",
    );
}

/// vCPU `b` blocks while no other vCPU needs the CPU. It gets only 2 of the 4 ms that it had left.
#[test]
fn atropos_budget_left_after_block_is_lost_at_the_deadline() {
    picture(
        "atropos reserve=0cpu",
        "
        a slice=5ms period=10ms   rrrrrrrrrrrrrrrrrrrr
        b slice=5ms period=10ms   rrrrrrzzrrrrrrrrrrrr
        cpu0                      aaaaab..bbaaaaabbbbb
    ",
    );
}

#[test]
fn atropos_divides_slack_in_quanta_of_5_ms() {
    picture(
        "atropos",
        "
        a slice=2ms period=20ms extra   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        b slice=1ms period=20ms extra   rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        c slice=3ms period=20ms         rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0                            aabcccaaaaabbbbbaaaaaabcccabbbbbaaaaabbb
    ",
    );
}

/// The vCPU with the earliest deadline runs. Of equal deadlines the lower id runs. There is no
/// slack.
#[test]
fn atropos_without_admission_starves_the_vcpu_with_the_later_deadline() {
    picture(
        "atropos admission=off",
        "
        a slice=4ms period=5ms         rrrrrrrrrrrrrrrrrrrr
        b slice=5ms period=10ms extra  rrrrrrrrrrrrrrrrrrrr
        cpu0                           aaaabaaaabaaaabaaaab
    ",
    );
}

#[test]
fn atropos_admission_places_vcpus_on_the_least_reserved_cpus() {
    picture(
        "atropos",
        "
        a slice=6ms period=10ms   rrrrrrrrrrrrrrrrrrrr
        b slice=5ms period=10ms   rrrrrrrrrrrrrrrrrrrr
        c slice=4ms period=10ms   rrrrrrrrrrrrrrrrrrrr
        cpu0                      aaaaaa....aaaaaa....
        cpu1                      bbbbbcccc.bbbbbcccc.
    ",
    );
}

fn share(given: &[(&str, &str)]) -> Values {
    let given = given.iter().map(|&(name, text)| (name, RawValue::Text(text)));
    Values::read(SPEC.share_fields, given).unwrap()
}

#[test]
fn atropos_latency_hint_longer_than_the_period_is_refused() {
    let share = share(&[("slice", "1ms"), ("period", "10ms"), ("latency", "11ms")]);
    let error = (SPEC.promise)(&share).unwrap_err();
    assert_eq!(error.to_string(), "a latency hint of 11ms is longer than the period of 10ms");
}

#[test]
fn atropos_refuses_reservations_beyond_capacity_only_with_admission() {
    let half = share(&[("slice", "5ms"), ("period", "10ms")]);
    let vcpu = |slot| VcpuId::new(slot, DomId::new(slot), 0);
    for (admission, admitted) in [("exact", 1), ("off", 3)] {
        let given = [("admission", RawValue::Text(admission))];
        let values = Values::read(SPEC.policy_fields, given.into_iter()).unwrap();
        let mut policy = (SPEC.build)(&values, &Topology::flat(1));
        let mut at = Moment::at_start(1);
        let mut count = 0;
        for slot in 0..3 {
            at.join(vcpu(slot));
            count += usize::from(policy.admit(&at, vcpu(slot), &half).is_ok());
        }
        assert_eq!(count, admitted, "admission {admission}");
    }
}

#[test]
fn atropos_places_vcpu_on_a_cpu_allowed_by_affinity() {
    let values = Values::defaults(SPEC.policy_fields).unwrap();
    let mut policy = (SPEC.build)(&values, &Topology::flat(2));
    let mut at = Moment::at_start(2);
    let who = VcpuId::new(0, DomId::new(0), 0);
    let terms = share(&[("slice", "5ms"), ("period", "10ms")]);
    at.join(who);
    at.allow(who, CpuSet::one(CpuId::new(1)));
    policy.admit(&at, who, &terms).unwrap();
    at.set_awake(who, true);
    assert_eq!(policy.on_wake(&at, who), CpuSet::one(CpuId::new(1)));
    at.allow(who, CpuSet::one(CpuId::new(0)));
    policy.adjust(&at, who, &terms).unwrap();
    let (run, idle) = (policy.pick(&at, CpuId::new(0)), policy.pick(&at, CpuId::new(1)));
    assert!(matches!(run, Pick::Run { .. }) && idle == Pick::Idle, "{run:?}, {idle:?}");
}

/// Calls are up to a century apart, and periods have the greatest length possible.
#[test]
fn atropos_does_not_overflow_if_events_are_a_century_apart() {
    let century = Time::from_ns(100 * 365 * 24 * 3_600 * 1_000_000_000);
    let values = Values::defaults(SPEC.policy_fields).unwrap();
    let mut policy = (SPEC.build)(&values, &Topology::flat(1));
    let mut at = Moment::at_start(1);
    let shares = [
        share(&[("slice", "1ns"), ("period", "10ns"), ("latency", "1ns")]),
        share(&[("slice", "1844674407s"), ("period", "18446744073s"), ("latency", "1ns")]),
        share(&[("slice", "1ms"), ("period", "10ms"), ("latency", "1ms")]),
    ];
    let vcpus: Vec<_> = (0..3).map(|slot| VcpuId::new(slot, DomId::new(slot), 0)).collect();
    for (who, share) in vcpus.iter().zip(&shares) {
        at.join(*who);
        policy.admit(&at, *who, share).unwrap();
    }
    let cpu = CpuId::new(0);
    let mut before = Time::START;
    for now in [Time::START, century, Time::from_ns(u64::MAX / 2), Time::from_ns(u64::MAX - 1)] {
        let passed = now - core::mem::replace(&mut before, now);
        at.advance(now);
        policy.on_timer(&at, cpu);
        for &who in &vcpus {
            at.set_awake(who, true);
            policy.on_wake(&at, who);
            policy.charge(&at, who, passed);
            assert!(policy.next_timer(cpu).is_some_and(|alarm| alarm > now));
            at.set_awake(who, false);
            policy.on_block(&at, who);
        }
    }
}

#[test]
fn atropos_vcpu_account_shows_remaining_budget_period_and_cpu() {
    let spec = crate::find("atropos").unwrap();
    let values = Values::defaults(spec.policy_fields).unwrap();
    let mut policy = (spec.build)(&values, &crate::Topology::flat(1));
    let given = [("slice", RawValue::Text("2ms")), ("period", RawValue::Text("10ms"))];
    let share = Values::read(spec.share_fields, given.into_iter()).unwrap();
    let (mut at, who) = (Moment::at_start(1), VcpuId::new(0, DomId::new(0), 0));
    at.join(who);
    policy.admit(&at, who, &share).unwrap();
    at.set_awake(who, true);
    policy.on_wake(&at, who);
    let account = policy.account(who);
    let of = |name| account.iter().find(|row| row.0 == name).map(|row| row.1.as_str());
    assert_eq!(
        (of("cpu"), of("remaining"), of("period")),
        (Some("cpu0"), Some("2ms"), Some("10ms"))
    );
}

/// Two vCPUs have exhausted their budgets and share slack. A vCPU that yields slack gets slack
/// again only after the other vCPU. A yield with budget left costs no budget.
#[test]
fn atropos_yield_costs_the_slack_quantum_but_no_budget() {
    let cpu = CpuId::new(0);
    let values = Values::defaults(SPEC.policy_fields).unwrap();
    let mut policy = (SPEC.build)(&values, &Topology::flat(1));
    let mut at = Moment::at_start(1);
    let ids = [0, 1].map(|slot| VcpuId::new(slot, DomId::new(slot), 0));
    let (slice, period) = (RawValue::Text("2ms"), RawValue::Text("100ms"));
    let given = [("slice", slice), ("period", period), ("extra", RawValue::Flag(true))];
    let terms = Values::read(SPEC.share_fields, given.into_iter()).unwrap();
    for vcpu in ids {
        at.join(vcpu);
        policy.admit(&at, vcpu, &terms).unwrap();
        at.set_awake(vcpu, true);
        policy.on_wake(&at, vcpu);
    }
    let picked = |policy: &dyn Policy, at: &Moment| match policy.pick(at, cpu) {
        Pick::Run { vcpu, limit, .. } => (vcpu, limit.expect("every pick has a limit")),
        Pick::Idle => panic!("a runnable vCPU is picked"),
    };
    let ends = |policy: &mut dyn Policy, at: &mut Moment, (vcpu, ran), why| {
        at.occupy(cpu, vcpu);
        policy.on_start(at, vcpu);
        at.advance(at.now().after(ran));
        policy.charge(at, vcpu, ran);
        policy.on_timeslice_end(at, vcpu, why);
        at.vacate(cpu);
    };
    let (owed, slice) = picked(&*policy, &at);
    ends(&mut *policy, &mut at, (owed, slice / 2), TimesliceEnd::Yield);
    assert_eq!(picked(&*policy, &at), (owed, slice / 2), "half of its slice is left");
    for _ in ids {
        let turn = picked(&*policy, &at);
        ends(&mut *policy, &mut at, turn, TimesliceEnd::Limit);
    }
    for _ in 0..4 {
        let (first, _) = picked(&*policy, &at);
        ends(&mut *policy, &mut at, (first, Span::from_us(10)), TimesliceEnd::Yield);
        assert_ne!(picked(&*policy, &at).0, first);
    }
}

/// A vCPU that reserves 50 of 100 ms uses its slice in the first 50 ms and leaves. Its share stays
/// reserved while another vCPU waits for its own slice. If the other vCPU is blocked instead, the
/// share is free at once.
#[test]
fn atropos_departed_vcpu_share_stays_reserved_while_another_vcpu_waits() {
    let (cpu, period) = (CpuId::new(0), Span::from_ms(100));
    for other_waits in [true, false] {
        let values = Values::defaults(SPEC.policy_fields).unwrap();
        let mut policy = (SPEC.build)(&values, &Topology::flat(1));
        let mut at = Moment::at_start(1);
        let ids = [0, 1].map(|slot| VcpuId::new(slot, DomId::new(slot), 0));
        let room =
            |policy: &dyn Policy, at: &Moment| policy.available_slice(at, period, CpuSet::one(cpu));
        let mut before = None;
        for (vcpu, slice) in ids.into_iter().zip(["20ms", "50ms"]) {
            before = room(&*policy, &at);
            at.join(vcpu);
            let terms = share(&[("slice", slice), ("period", "100ms")]);
            policy.admit(&at, vcpu, &terms).unwrap();
        }
        for vcpu in if other_waits { &ids[..] } else { &ids[1..] } {
            at.set_awake(*vcpu, true);
            policy.on_wake(&at, *vcpu);
        }
        at.occupy(cpu, ids[1]);
        policy.on_start(&at, ids[1]);
        at.advance(Time::START + Span::from_ms(50));
        policy.charge(&at, ids[1], Span::from_ms(50));
        at.vacate(cpu);
        at.leave(ids[1]);
        policy.on_leave(&at, ids[1]);
        assert_eq!(room(&*policy, &at) != before, other_waits);
    }
}
