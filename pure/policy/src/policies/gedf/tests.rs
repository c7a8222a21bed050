//! Tests of global EDF: drawn timelines, and sequences of calls.

use alloc::string::ToString;

use slackline_units::DomId;

use super::*;
use crate::RawValue;
use crate::picture::picture;

#[test]
fn gedf_runs_vcpus_with_earliest_deadlines_on_any_free_cpus() {
    picture(
        "gedf",
        "
        a budget=4ms period=10ms extra=false   rrrrrrrrrrrrrrrrrrrr
        b budget=3ms period=5ms extra=false    rrrrrrrrrrrrrrrrrrrr
        c budget=2ms period=10ms extra=false   rrrrrrrrrrrrrrrrrrrr
        cpu0                                   bbbccbbb..bbbccbbb..
        cpu1                                   aaaa......aaaa......
    ",
    );
}

/// Three vCPUs reserve two thirds of a CPU each. If each were bound to one of two CPUs, one CPU
/// would have four thirds reserved.
#[test]
fn gedf_admits_three_reservations_of_two_thirds_on_two_cpus() {
    picture(
        "gedf reserve=0cpu",
        "
        a budget=4ms period=6ms extra=false   rrrrrrrrrrrrrrrrrrrrrrrr
        b budget=4ms period=6ms extra=false   rrrrrrrrrrrrrrrrrrrrrrrr
        c budget=4ms period=6ms extra=false   rrrrrrrrrrrrrrrrrrrrrrrr
        cpu0                                  aaaaccccccccccccaaaaaaaa
        cpu1                                  bbbb..aaaabbbbbbbbbbbbcc
    ",
    );
}

#[test]
fn gedf_divides_slack_among_vcpus_in_units_of_their_budgets() {
    picture(
        "gedf",
        "
        a budget=2ms period=20ms               rrrrrrrrrrrrrrrrrrrrrrrrr
        b budget=3ms period=20ms               rrrrrrrrrrrrrrrrrrrrrrrrr
        c budget=1ms period=5ms extra=false    rrrrrrrrrrrrrrrrrrrrrrrrr
        cpu0                                   caabbcbbbbcaaaacbbbbcaabb
    ",
    );
}

#[test]
fn gedf_vcpu_that_blocks_keeps_its_budget_until_the_deadline() {
    picture(
        "gedf",
        "
        a budget=3ms period=10ms extra=false   rzzzzzzzrzzzzzzrrrrr
        b budget=3ms period=10ms extra=false   rzzzzzzzzrrrrrrrrrrr
        cpu0                                   a.......abbbb..aaa..
    ",
    );
}

/// vCPU `a` is blocked for the first 8 ms of its period, and wakes 2 ms before its deadline.
#[test]
fn gedf_vcpu_waking_near_a_deadline_gets_a_trimmed_budget() {
    picture(
        "gedf asleep=trimmed",
        "
        a budget=5ms period=10ms extra=false   zzzzzzzzrrrrrrrrrrrr
        cpu0                                   ........a.aaaaa.....
    ",
    );
}

#[test]
fn gedf_vcpu_waking_after_a_deadline_begins_a_new_period() {
    picture(
        "gedf",
        "
        a budget=2ms period=5ms extra=false    rrzzzzzzzzzzrrrrrrrr
        b budget=9ms period=20ms extra=false   rrrrrrrrrrrrrrrrrrrr
        cpu0                                   aabbbbbbbbb.aa.aa...
    ",
    );
}

/// vCPU `c` wakes with a deadline between the deadlines of the two running vCPUs, `a` and `b`. It
/// takes the CPU of `b`, which has the later deadline, and `a` runs on.
#[test]
fn gedf_waking_vcpu_preempts_running_vcpu_with_latest_deadline() {
    picture(
        "gedf",
        "
        a budget=5ms period=10ms extra=false   rrrrrrrrrrrrrrrrrrrr
        b budget=9ms period=20ms extra=false   rrrrrrrrrrrrrrrrrrrr
        c budget=3ms period=12ms extra=false   zzrrrrrrrrrrrrrrrrrr
        cpu0                                   aaaaabbbbbbbccc.....
        cpu1                                   bbccc.....aaaaa.....
    ",
    );
}

fn share(budget: &str, period: &str) -> Values {
    let given = [
        ("budget", RawValue::Text(budget)),
        ("period", RawValue::Text(period)),
        ("extra", RawValue::Flag(false)),
    ];
    Values::read(SPEC.share_fields, given.into_iter()).unwrap()
}

fn policy(words: &[(&'static str, &'static str)], cpus: usize) -> Box<dyn Policy> {
    let given = words.iter().map(|&(name, text)| (name, RawValue::Text(text)));
    let values = Values::read(SPEC.policy_fields, given).unwrap();
    (SPEC.build)(&values, &Topology::flat(cpus))
}

fn vcpu(slot: u32) -> VcpuId {
    VcpuId::new(slot, DomId::new(slot), 0)
}

/// Returns the budget of the next period after a timeslice that exceeded its 4 ms by 1 ms.
fn left_after_overrun(overrun: &'static str) -> Option<Span> {
    let (mut policy, mut at) = (policy(&[("overrun", overrun)], 1), Moment::at_start(1));
    let cpu = CpuId::new(0);
    at.join(vcpu(0));
    policy.admit(&at, vcpu(0), &share("4ms", "10ms")).unwrap();
    at.set_awake(vcpu(0), true);
    policy.on_wake(&at, vcpu(0));
    at.occupy(cpu, vcpu(0));
    policy.on_start(&at, vcpu(0));
    at.advance(Time::START + Span::from_ms(5));
    policy.charge(&at, vcpu(0), Span::from_ms(5));
    assert_eq!(policy.pick(&at, cpu), Pick::Idle);
    at.advance(Time::START + Span::from_ms(10));
    policy.on_timer(&at, cpu);
    match policy.pick(&at, cpu) {
        Pick::Run { limit, .. } => limit,
        Pick::Idle => None,
    }
}

#[test]
fn gedf_overrun_field_decides_if_overrun_is_carried_or_forgiven() {
    assert_eq!(left_after_overrun("carry"), Some(Span::from_ms(3)));
    assert_eq!(left_after_overrun("forgive"), Some(Span::from_ms(4)));
}

#[test]
fn gedf_admission_limits_load_of_host_and_each_affinity_set() {
    let (mut policy, mut at) = (policy(&[("reserve", "0cpu")], 2), Moment::at_start(2));
    let half = share("5ms", "10ms");
    let mut ask = |slot, cpus: &[usize]| {
        at.join(vcpu(slot));
        at.allow(vcpu(slot), cpus.iter().copied().map(CpuId::new).collect());
        policy.admit(&at, vcpu(slot), &half).map_err(|error| error.to_string())
    };
    assert_eq!(ask(0, &[0, 1]), Ok(()));
    assert_eq!(ask(1, &[1]), Ok(()));
    assert_eq!(ask(2, &[1]), Ok(()));
    let error = ask(3, &[1]).unwrap_err();
    assert!(error.ends_with("of at most 1cpu is already reserved on the CPU"), "{error}");
    assert_eq!(ask(4, &[0]), Ok(()));
    let error = ask(5, &[0, 1]).unwrap_err();
    assert!(error.ends_with("of at most 2cpu is already reserved on 2 CPUs together"), "{error}");
}

#[test]
fn gedf_vcpu_runs_only_on_cpus_that_its_affinity_allows() {
    let (mut policy, mut at) = (policy(&[], 2), Moment::at_start(2));
    for slot in 0..2 {
        at.join(vcpu(slot));
        at.allow(vcpu(slot), CpuSet::one(CpuId::new(1)));
        policy.admit(&at, vcpu(slot), &share("1ms", "10ms")).unwrap();
        at.set_awake(vcpu(slot), true);
        assert_eq!(policy.on_wake(&at, vcpu(slot)), CpuSet::one(CpuId::new(1)));
    }
    assert_eq!(policy.pick(&at, CpuId::new(0)), Pick::Idle);
    assert!(matches!(policy.pick(&at, CpuId::new(1)), Pick::Run { .. }));
}

/// Calls are up to a century apart, and periods have the greatest length possible.
#[test]
fn gedf_does_not_overflow_if_events_are_a_century_apart() {
    let century = Time::from_ns(100 * 365 * 24 * 3_600 * 1_000_000_000);
    let (mut policy, mut at) = (policy(&[], 2), Moment::at_start(2));
    let cpu = CpuId::new(0);
    let shares = [
        share("10us", "20us"),
        share("9000000000s", "18446744073s"),
        Values::defaults(SPEC.share_fields).unwrap(),
    ];
    for (slot, share) in (0..).zip(&shares) {
        at.join(vcpu(slot));
        policy.admit(&at, vcpu(slot), share).unwrap();
    }
    let mut before = Time::START;
    for now in [Time::START, century, Time::from_ns(u64::MAX / 2), Time::from_ns(u64::MAX - 1)] {
        let passed = now - core::mem::replace(&mut before, now);
        at.advance(now);
        policy.on_timer(&at, cpu);
        for slot in 0..3 {
            at.set_awake(vcpu(slot), true);
            policy.on_wake(&at, vcpu(slot));
            policy.charge(&at, vcpu(slot), passed);
            assert!(policy.next_timer(cpu).is_some_and(|alarm| alarm > now));
            at.set_awake(vcpu(slot), false);
            policy.on_block(&at, vcpu(slot));
            policy.prepare_pick(&at, cpu);
            policy.prepare_pick(&at, CpuId::new(1));
        }
    }
}

/// The host bars a vCPU from the CPU that it ran on. The vCPU waits, and another CPU takes it.
#[test]
fn gedf_vcpu_removed_from_one_cpu_is_picked_for_another() {
    let cpus = [0, 1].map(CpuId::new);
    let policy = Values::defaults(SPEC.policy_fields).unwrap();
    let share = Values::defaults(SPEC.share_fields).unwrap();
    let mut policy = (SPEC.build)(&policy, &Topology::flat(2));
    let mut at = Moment::at_start(2);
    let vcpu = VcpuId::new(0, DomId::new(0), 0);
    at.join(vcpu);
    policy.admit(&at, vcpu, &share).unwrap();
    at.set_awake(vcpu, true);
    policy.on_wake(&at, vcpu);
    at.occupy(cpus[0], vcpu);
    policy.on_start(&at, vcpu);
    let picked = |policy: &dyn Policy, at: &Moment, cpu| match policy.pick(at, cpu) {
        Pick::Run { vcpu, .. } => Some(vcpu),
        Pick::Idle => None,
    };
    assert_eq!(picked(&*policy, &at, cpus[1]), None, "the vCPU runs on the other CPU");
    at.vacate(cpus[0]);
    policy.on_timeslice_end(&at, vcpu, TimesliceEnd::Yield);
    policy.prepare_pick(&at, cpus[1]);
    assert_eq!(picked(&*policy, &at, cpus[1]), Some(vcpu));
}

/// A vCPU that is 3 ms ahead of its fluid rate leaves. Its share stays reserved while a blocked
/// vCPU with 4 of 10 ms would still have budget had it stayed runnable. The test checks this to the
/// nanosecond.
#[test]
fn gedf_departed_vcpu_share_stays_reserved_until_other_budgets_expire() {
    let ns = Span::from_ns(1);
    let ms = |ms| Time::START + Span::from_ms(ms);
    let leaves = [(ms(14) - ns, false), (ms(14), true), (ms(20) - ns, true), (ms(20), false)];
    for (now, is_free) in leaves.into_iter().chain([(ms(34) - ns, false), (ms(34), true)]) {
        let (mut policy, mut at) = (policy(&[("asleep", "trimmed")], 1), Moment::at_start(1));
        let cpu = CpuId::new(0);
        let room = |policy: &dyn Policy, at: &Moment| {
            policy.available_slice(at, Span::from_ms(10), CpuSet::one(cpu))
        };
        at.join(vcpu(0));
        policy.admit(&at, vcpu(0), &share("4ms", "10ms")).unwrap();
        let before = room(&*policy, &at);
        at.advance(now - Span::from_ms(3));
        at.join(vcpu(1));
        policy.admit(&at, vcpu(1), &share("3ms", "10ms")).unwrap();
        at.set_awake(vcpu(1), true);
        policy.on_wake(&at, vcpu(1));
        at.occupy(cpu, vcpu(1));
        policy.on_start(&at, vcpu(1));
        at.advance(now);
        policy.charge(&at, vcpu(1), Span::from_ms(3));
        at.vacate(cpu);
        at.leave(vcpu(1));
        policy.on_leave(&at, vcpu(1));
        assert_eq!(room(&*policy, &at) == before, is_free, "left at {now}");
    }
}

fn cpus(numbers: &[usize]) -> CpuSet {
    numbers.iter().copied().map(CpuId::new).collect()
}

/// Two CPUs without a reserve. By 5 ms, vCPU 0 has used its 5 of 10 ms on CPU 0. vCPU 1 waits for
/// its 10 of 20 ms there. vCPU 2 reserves `third` on CPU 1. The affinity of each vCPU allows only
/// its own CPU.
fn one_vcpu_ahead_on_cpu_0(third: &Values) -> (Box<dyn Policy>, Moment) {
    let rules = [("reserve", "0cpu"), ("asleep", "trimmed")];
    let (mut policy, mut at) = (policy(&rules, 2), Moment::at_start(2));
    let (first, second) = (share("5ms", "10ms"), share("10ms", "20ms"));
    for (slot, cpu, share) in [(0, 0, &first), (1, 0, &second), (2, 1, third)] {
        at.join(vcpu(slot));
        at.allow(vcpu(slot), cpus(&[cpu]));
        policy.admit(&at, vcpu(slot), share).unwrap();
        at.set_awake(vcpu(slot), true);
        policy.on_wake(&at, vcpu(slot));
    }
    at.occupy(CpuId::new(0), vcpu(0));
    policy.on_start(&at, vcpu(0));
    at.advance(Time::START + Span::from_ms(5));
    policy.charge(&at, vcpu(0), Span::from_ms(5));
    at.vacate(CpuId::new(0));
    policy.on_timeslice_end(&at, vcpu(0), TimesliceEnd::Limit);
    (policy, at)
}

/// At 5 ms the first vCPU has an excess of 2.5 ms, and at 10 ms it has none. If another vCPU got
/// the first vCPU's capacity on CPU 0 before 10 ms, the second vCPU would be tardy. On both CPUs
/// together, the first vCPU counts once.
#[test]
fn gedf_affinity_change_keeps_old_cpus_reserved_until_zero_lag() {
    for (rejoins, to) in [(true, &[1][..]), (true, &[0, 1]), (false, &[1]), (false, &[0, 1])] {
        let (mut policy, mut at) = one_vcpu_ahead_on_cpu_0(&share("1ms", "10ms"));
        if rejoins {
            at.leave(vcpu(0));
            policy.on_leave(&at, vcpu(0));
            at.join(vcpu(0));
            at.allow(vcpu(0), cpus(to));
            policy.admit(&at, vcpu(0), &share("5ms", "10ms")).unwrap();
        } else {
            at.allow(vcpu(0), cpus(to));
            policy.adjust(&at, vcpu(0), &share("5ms", "10ms")).unwrap();
        }
        let room = |at: &Moment, on: &[usize]| {
            policy.available_slice(at, Span::from_ms(20), cpus(on)).unwrap()
        };
        let both = Span::from_ms(18);
        assert_eq!((room(&at, &[0]), room(&at, &[0, 1])), (Span::ZERO, both), "{rejoins} {to:?}");
        at.advance(Time::START + Span::from_ns(9_999_999));
        assert_eq!((room(&at, &[0]), room(&at, &[0, 1])), (Span::ZERO, both), "{rejoins} {to:?}");
        at.advance(Time::START + Span::from_ms(10));
        let half = Span::from_ms(10);
        assert_eq!((room(&at, &[0]), room(&at, &[0, 1])), (half, both), "{rejoins} {to:?}");
    }
}

/// All capacity is reserved. While the old CPU of a vCPU stays reserved, the other vCPUs may still
/// change their reservations within the shares that they have reserved.
#[test]
fn gedf_admits_reductions_while_moved_vcpu_still_reserves_old_cpu() {
    let (mut policy, mut at) = one_vcpu_ahead_on_cpu_0(&share("10ms", "10ms"));
    at.allow(vcpu(0), cpus(&[0, 1]));
    policy.adjust(&at, vcpu(0), &share("5ms", "10ms")).unwrap();
    for (slot, less) in [(1, share("9ms", "20ms")), (2, share("9ms", "10ms"))] {
        policy.adjust(&at, vcpu(slot), &less).unwrap();
    }
}

/// Each of four vCPUs asks for a whole CPU. vCPUs 0 and 2 may use CPUs 0 and 1, and vCPUs 1 and 3
/// may use CPUs 1 and 2. So the vCPUs can use only three CPUs, although the host has four.
#[test]
fn gedf_admission_limits_load_of_overlapping_affinity_sets_together() {
    let (mut policy, mut at) = (policy(&[("reserve", "0cpu")], 4), Moment::at_start(4));
    let whole = share("10ms", "10ms");
    let mut admit = |slot: u32, on: &[usize]| {
        at.join(vcpu(slot));
        at.allow(vcpu(slot), cpus(on));
        let admitted = policy.admit(&at, vcpu(slot), &whole);
        if admitted.is_err() {
            at.leave(vcpu(slot));
        }
        admitted
    };
    for (slot, on) in [(0, [0, 1]), (1, [1, 2]), (2, [0, 1])] {
        admit(slot, &on).unwrap();
    }
    let refused = admit(3, &[1, 2]);
    assert!(matches!(refused, Err(AdmitError::NoRoomTogether { cpus: 3, .. })), "{refused:?}");
    assert_eq!(admit(3, &[2, 3]), Ok(()), "CPU 3 is free");
    let room = |policy: &dyn Policy, at: &Moment, on: &[usize]| {
        policy.available_slice(at, Span::from_ms(10), cpus(on))
    };
    assert_eq!(room(&*policy, &at, &[0, 1, 2, 3]), Some(Span::ZERO));
    at.leave(vcpu(0));
    policy.on_leave(&at, vcpu(0));
    for on in [&[0][..], &[0, 1], &[1, 2], &[3]] {
        assert_eq!(room(&*policy, &at, on), Some(Span::from_ms(10)), "{on:?}");
    }
}
