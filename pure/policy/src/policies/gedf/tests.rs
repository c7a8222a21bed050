//! Global EDF in pictures and scripts.

use alloc::string::ToString;

use slackline_units::DomId;

use super::*;
use crate::Given;
use crate::picture::picture;

#[test]
fn the_nearest_deadlines_run_wherever_there_is_a_cpu() {
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

/// However they were bound to two CPUs, one CPU would be promised four thirds.
#[test]
fn three_vcpus_of_two_thirds_fit_on_two_cpus() {
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
fn extra_time_goes_round_in_budgets() {
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
fn the_budget_is_kept_asleep_and_lost_at_the_deadline() {
    picture(
        "gedf",
        "
        a budget=3ms period=10ms extra=false   rzzzzzzzrzzzzzzrrrrr
        b budget=3ms period=10ms extra=false   rzzzzzzzzrrrrrrrrrrr
        cpu0                                   a.......abbbb..aaa..
    ",
    );
}

/// It wakes 2 ms before its deadline, having slept all along.
#[test]
fn trimmed_it_is_what_cannot_delay_others() {
    picture(
        "gedf asleep=trimmed",
        "
        a budget=5ms period=10ms extra=false   zzzzzzzzrrrrrrrrrrrr
        cpu0                                   ........a.aaaaa.....
    ",
    );
}

#[test]
fn who_wakes_after_its_deadline_has_a_new_one() {
    picture(
        "gedf",
        "
        a budget=2ms period=5ms extra=false    rrzzzzzzzzzzrrrrrrrr
        b budget=9ms period=20ms extra=false   rrrrrrrrrrrrrrrrrrrr
        cpu0                                   aabbbbbbbbb.aa.aa...
    ",
    );
}

/// c wakes between the two: it takes the CPU of the later deadline, and a runs on.
#[test]
fn who_wakes_takes_the_cpu_of_the_latest_deadline() {
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
        ("budget", Given::Text(budget)),
        ("period", Given::Text(period)),
        ("extra", Given::Flag(false)),
    ];
    Values::read(SPEC.share_fields, given.into_iter()).unwrap()
}

fn policy(words: &[(&'static str, &'static str)], cpus: usize) -> Box<dyn Policy> {
    let given = words.iter().map(|&(name, text)| (name, Given::Text(text)));
    let values = Values::read(SPEC.policy_fields, given).unwrap();
    (SPEC.build)(&values, &Topology::flat(cpus))
}

fn vcpu(slot: u32) -> VcpuId {
    VcpuId::new(slot, DomId::new(slot), 0)
}

/// How much it may have at once after a turn that went 1 ms over its 4 ms, in the next period.
fn left_after_overrun(overrun: &'static str) -> Option<Span> {
    let (mut policy, mut at) = (policy(&[("overrun", overrun)], 1), Moment::at_start(1));
    let cpu = CpuId::new(0);
    at.join(vcpu(0));
    policy.admit(&at, vcpu(0), &share("4ms", "10ms")).unwrap();
    at.set_awake(vcpu(0), true);
    policy.wake(&at, vcpu(0));
    at.occupy(cpu, vcpu(0));
    policy.start(&at, vcpu(0));
    at.advance(Time::START + Span::from_ms(5));
    policy.charge(&at, vcpu(0), Span::from_ms(5));
    assert_eq!(policy.pick(&at, cpu), Pick::Idle);
    at.advance(Time::START + Span::from_ms(10));
    policy.ring(&at, cpu);
    match policy.pick(&at, cpu) {
        Pick::Run { limit, .. } => limit,
        Pick::Idle => None,
    }
}

#[test]
fn overrun_is_debt_or_forgiven() {
    assert_eq!(left_after_overrun("carry"), Some(Span::from_ms(3)));
    assert_eq!(left_after_overrun("forgive"), Some(Span::from_ms(4)));
}

#[test]
fn the_cpus_are_promised_as_a_whole_and_so_are_those_one_is_confined_to() {
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
fn who_is_confined_runs_only_there() {
    let (mut policy, mut at) = (policy(&[], 2), Moment::at_start(2));
    for slot in 0..2 {
        at.join(vcpu(slot));
        at.allow(vcpu(slot), CpuSet::one(CpuId::new(1)));
        policy.admit(&at, vcpu(slot), &share("1ms", "10ms")).unwrap();
        at.set_awake(vcpu(slot), true);
        assert_eq!(policy.wake(&at, vcpu(slot)), CpuSet::one(CpuId::new(1)));
    }
    assert_eq!(policy.pick(&at, CpuId::new(0)), Pick::Idle);
    assert!(matches!(policy.pick(&at, CpuId::new(1)), Pick::Run { .. }));
}

/// Far-apart calls, and the longest periods there are.
#[test]
fn a_century_does_not_overflow() {
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
        policy.ring(&at, cpu);
        for slot in 0..3 {
            at.set_awake(vcpu(slot), true);
            policy.wake(&at, vcpu(slot));
            policy.charge(&at, vcpu(slot), passed);
            assert!(policy.alarm(cpu).is_some_and(|alarm| alarm > now));
            at.set_awake(vcpu(slot), false);
            policy.block(&at, vcpu(slot));
            policy.pass(&at, cpu);
            policy.pass(&at, CpuId::new(1));
        }
    }
}

/// A machine would not let it go on where it was: it waits from then on, and another CPU takes it.
#[test]
fn who_lost_its_cpu_waits_for_another() {
    let cpus = [0, 1].map(CpuId::new);
    let policy = Values::defaults(SPEC.policy_fields).unwrap();
    let share = Values::defaults(SPEC.share_fields).unwrap();
    let mut policy = (SPEC.build)(&policy, &Topology::flat(2));
    let mut at = Moment::at_start(2);
    let vcpu = VcpuId::new(0, DomId::new(0), 0);
    at.join(vcpu);
    policy.admit(&at, vcpu, &share).unwrap();
    at.set_awake(vcpu, true);
    policy.wake(&at, vcpu);
    at.occupy(cpus[0], vcpu);
    policy.start(&at, vcpu);
    let picked = |policy: &dyn Policy, at: &Moment, cpu| match policy.pick(at, cpu) {
        Pick::Run { vcpu, .. } => Some(vcpu),
        Pick::Idle => None,
    };
    assert_eq!(picked(&*policy, &at, cpus[1]), None, "it runs elsewhere");
    at.vacate(cpus[0]);
    policy.turn_over(&at, vcpu, TurnEnd::Yield);
    policy.pass(&at, cpus[1]);
    assert_eq!(picked(&*policy, &at, cpus[1]), Some(vcpu));
}

/// Somebody else has had 3 ms in advance and leaves. What it gives up stays promised while a
/// sleeper with 4 of 10 ms would have them still to come had it not slept; to the nanosecond.
#[test]
fn a_sleeper_claims_its_budget_for_as_long_as_it_would_have_taken() {
    let ns = Span::from_ns(1);
    let ms = |ms| Time::START + Span::from_ms(ms);
    let leaves = [(ms(14) - ns, false), (ms(14), true), (ms(20) - ns, true), (ms(20), false)];
    for (now, is_free) in leaves.into_iter().chain([(ms(34) - ns, false), (ms(34), true)]) {
        let (mut policy, mut at) = (policy(&[("asleep", "trimmed")], 1), Moment::at_start(1));
        let cpu = CpuId::new(0);
        let room =
            |policy: &dyn Policy, at: &Moment| policy.room(at, Span::from_ms(10), CpuSet::one(cpu));
        at.join(vcpu(0));
        policy.admit(&at, vcpu(0), &share("4ms", "10ms")).unwrap();
        let before = room(&*policy, &at);
        at.advance(now - Span::from_ms(3));
        at.join(vcpu(1));
        policy.admit(&at, vcpu(1), &share("3ms", "10ms")).unwrap();
        at.set_awake(vcpu(1), true);
        policy.wake(&at, vcpu(1));
        at.occupy(cpu, vcpu(1));
        policy.start(&at, vcpu(1));
        at.advance(now);
        policy.charge(&at, vcpu(1), Span::from_ms(3));
        at.vacate(cpu);
        at.leave(vcpu(1));
        policy.leave(&at, vcpu(1));
        assert_eq!(room(&*policy, &at) == before, is_free, "left at {now}");
    }
}
