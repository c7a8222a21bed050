//! Tests of violations of the contract, each as the shortest sequence of events that the host
//! refuses. Also regression tests of past faults.

use crate::story::{CPU0, CPU1, CPU2, Story, at, no_share, run, vcpu};
use slackline_host::policy::{Entitlement, Pick};
use slackline_host::{Broken, CpuUse, Fact, Fault, NotEligible, VcpuTerms};
use slackline_units::{CpuId, CpuSet, Span, Time};

/// Returns a report that a vCPU used CPU time on a CPU.
fn used(slot: u32, cpu: CpuId, from: Time, to: Time, ran: Span) -> CpuUse {
    CpuUse { vcpu: vcpu(slot), cpu, from, to, ran }
}

/// Starts a host with two CPUs: one vCPU runs on the first CPU until 10 ms.
fn one_runs() -> Story {
    let mut story = Story::scripted(2);
    story.wants(CPU0, run(0, 10));
    story.wake_new(0);
    assert_eq!(story.hardware.on, [Some(vcpu(0)), None]);
    story
}

#[test]
fn event_that_is_earlier_than_the_preceding_event_is_refused() {
    let mut story = Story::scripted(1);
    story.step_at(at(5), Fact::Passed);
    story.step_at(at(5), Fact::Passed);
    let now = Time::from_ns(4_999_999);
    story.hardware.now = now;
    let (broken, text) = story.broken(Fact::Passed);
    assert_eq!(broken, Broken::TimeWentBack { before: at(5), now });
    assert_eq!(text, "the hardware reported time 4.999ms after the later time 5.000ms");
}

#[test]
fn report_of_more_cpu_time_than_has_elapsed_is_refused() {
    let mut story = one_runs();
    let all = used(0, CPU0, at(0), at(2), Span::from_ms(2));
    let more = used(0, CPU0, at(2), at(4), Span::from_ns(2_000_001));
    story.hardware.says = Some(all);
    story.step_at(at(2), Fact::LimitReached(CPU0));
    story.hardware.says = Some(more);
    story.hardware.now = at(4);
    let (broken, text) = story.broken(Fact::LimitReached(CPU0));
    assert_eq!(broken, Broken::UsedTooMuch { used: more });
    assert_eq!(
        text,
        "the hardware reported that d0v0 used 2.000001ms of CPU time between 2.000ms and 4.000ms, \
         which is longer than that interval or in the future"
    );
    assert_eq!(story.answers().charged, [(vcpu(0), Span::from_ms(2))]);
}

#[test]
fn report_of_cpu_time_used_in_the_future_is_refused() {
    let mut story = one_runs();
    story.hardware.now = at(2);
    let all = used(0, CPU1, at(0), at(2), Span::from_ms(1));
    let early = used(0, CPU1, at(2), at(2) + Span::from_ns(1), Span::ZERO);
    story.report(&[all], Fact::Passed).expect("time up to now is legal");
    let (broken, _) = story.broken_by(&[early], Fact::Passed);
    assert_eq!(broken, Broken::UsedTooMuch { used: early });
}

#[test]
fn reports_of_overlapping_run_intervals_on_one_cpu_are_refused() {
    let mut story = one_runs();
    story.hardware.now = at(4);
    let first = used(0, CPU0, at(0), at(2), Span::from_ms(1));
    let next = used(0, CPU0, at(2), at(3), Span::from_ms(1));
    let other = used(0, CPU1, at(0), at(3), Span::from_ms(1));
    let twice = used(0, CPU0, Time::from_ns(2_999_999), at(4), Span::ZERO);
    story.report(&[first, next, other], Fact::Passed).expect("the intervals do not overlap");
    let (broken, text) = story.broken_by(&[twice], Fact::Passed);
    assert_eq!(broken, Broken::UsedTwice { used: twice, reported: at(3) });
    assert_eq!(
        text,
        "the hardware reported CPU time of d0v0 on cpu0 from 2.999ms on, but it had already \
         reported CPU time until 3.000ms"
    );
}

#[test]
fn event_of_a_vcpu_that_has_not_joined_is_refused() {
    let share = no_share();
    let facts: [Fact<'_>; 6] = [
        Fact::Woke(vcpu(3)),
        Fact::Blocked(vcpu(3)),
        Fact::Paused(vcpu(3)),
        Fact::Left(vcpu(3)),
        Fact::Allowed(vcpu(3)),
        Fact::TermsChanged(vcpu(3), (&share).into()),
    ];
    for fact in facts {
        for was_here in [[].as_slice(), &[3]] {
            let mut story = one_runs();
            for &slot in was_here {
                story.join(slot, &[]);
                story.step(Fact::Left(vcpu(slot)));
            }
            let (broken, text) = story.broken(fact);
            assert_eq!(broken, Broken::Unknown { vcpu: vcpu(3) }, "{fact:?}");
            assert_eq!(text, "the hardware named d3v0, which has not joined");
        }
    }
}

#[test]
fn cpu_time_report_of_unknown_vcpu_is_refused() {
    let mut story = one_runs();
    story.hardware.now = at(2);
    let some = used(3, CPU1, at(0), at(1), Span::from_ms(1));
    let (broken, _) = story.broken_by(&[some], Fact::Passed);
    assert_eq!(broken, Broken::Unknown { vcpu: vcpu(3) });
}

#[test]
fn second_join_of_the_same_vcpu_is_refused() {
    let mut story = one_runs();
    let share = no_share();
    let (broken, text) = story.broken(Fact::Joined(vcpu(0), (&share).into()));
    assert_eq!(broken, Broken::JoinedTwice { vcpu: vcpu(0) });
    assert_eq!(text, "the hardware let d0v0 join twice");
}

#[test]
fn empty_affinity_or_affinity_with_unknown_cpu_is_refused() {
    let both = CpuSet::first_n(2);
    let share = no_share();
    for (cpus, is_fine) in [
        (CpuSet::one(CPU1), true),
        (both, true),
        (CpuSet::NONE, false),
        (CpuSet::one(CpuId::new(2)), false),
        (CpuSet::first_n(3), false),
    ] {
        let terms = VcpuTerms { share: &share, cpus: Some(cpus) };
        for fact in [Fact::Joined(vcpu(1), terms), Fact::TermsChanged(vcpu(0), terms)] {
            let mut story = one_runs();
            if is_fine {
                story.answers().picks.clear();
                story.step(fact);
                continue;
            }
            let (broken, text) = story.broken(fact);
            let (Fact::Joined(vcpu, _) | Fact::TermsChanged(vcpu, _)) = fact else {
                unreachable!()
            };
            assert_eq!(broken, Broken::Nowhere { vcpu }, "{cpus:?}");
            let says =
                format!("the affinity of {vcpu} is empty or contains a CPU that is not scheduled");
            assert_eq!(text, says);
        }
    }
}

#[test]
fn wake_of_a_vcpu_that_is_already_runnable_is_refused() {
    let mut story = one_runs();
    let (broken, text) = story.broken(Fact::Woke(vcpu(0)));
    assert_eq!(broken, Broken::WokeAwake { vcpu: vcpu(0) });
    assert_eq!(text, "the hardware woke d0v0, which was runnable already");
}

#[test]
fn block_of_a_vcpu_that_is_already_blocked_is_refused() {
    for fact in [Fact::Blocked(vcpu(1)), Fact::Paused(vcpu(1))] {
        let mut story = one_runs();
        story.join(1, &[]);
        let (broken, text) = story.broken(fact);
        assert_eq!(broken, Broken::BlockedAsleep { vcpu: vcpu(1) });
        assert_eq!(text, "the hardware blocked d1v0, which was blocked already");
    }
}

#[test]
fn end_of_timeslice_event_on_an_idle_cpu_is_refused() {
    for fact in [Fact::Yielded(CPU1), Fact::LimitReached(CPU1)] {
        let (broken, text) = one_runs().broken(fact);
        assert_eq!(broken, Broken::NobodyThere { cpu: CPU1 });
        assert_eq!(text, "the hardware ended a timeslice on cpu1, which runs no vCPU");
    }
}

#[test]
fn event_of_an_unknown_cpu_is_refused() {
    let unknown = |broken: Broken, text: String| {
        assert_eq!(broken, Broken::UnknownCpu { cpu: CPU2, cpus: 2 });
        assert_eq!(text, "the hardware named cpu2, but only 2 CPUs are scheduled, numbered from 0");
    };
    for fact in [Fact::Yielded(CPU2), Fact::LimitReached(CPU2), Fact::AlarmRang(CPU2)] {
        let (broken, text) = one_runs().broken(fact);
        unknown(broken, text);
    }
    let mut story = one_runs();
    story.hardware.now = at(2);
    let some = used(0, CPU2, at(0), at(1), Span::from_ms(1));
    let (broken, text) = story.broken_by(&[some], Fact::Passed);
    unknown(broken, text);
}

#[test]
fn policy_that_names_an_unknown_cpu_is_an_error() {
    let asks = |story: &mut Story| story.answers().ask = CpuSet::one(CPU2);
    let asks_when_charged = |story: &mut Story| {
        story.answers().ask_when_charged = CpuSet::one(CPU2);
        story.hardware.now = at(1);
    };
    let needs = |story: &mut Story| story.answers().ring_needs = CpuSet::one(CPU2);
    let breaks: [fn(&mut Story); 3] = [asks, asks_when_charged, needs];
    for wants in breaks {
        let mut story = one_runs();
        wants(&mut story);
        let (broken, text) = story.broken(Fact::AlarmRang(CPU0));
        assert_eq!(broken, Broken::NoSuchCpu { cpu: CPU2, cpus: 2 });
        assert_eq!(text, "the policy named cpu2, but only 2 CPUs are scheduled, numbered from 0");
    }
}

/// Asserts that the host refuses a pick of vCPU `slot` for CPU 1 at 2 ms, with the reason `why` and
/// the message `says`. Before the pick, `before` changes the state of the host.
#[track_caller]
fn picked(before: impl FnOnce(&mut Story), slot: u32, why: NotEligible, says: &str) {
    let mut story = one_runs();
    before(&mut story);
    story.wants(CPU1, run(slot, 1));
    story.hardware.now = at(2);
    story.join(9, &[]);
    let (broken, text) = story.broken(Fact::Woke(vcpu(9)));
    let (vcpu, cpu, now) = (vcpu(slot), CPU1, at(2));
    assert_eq!(broken, Broken::NotEligible { vcpu, cpu, now, why });
    assert_eq!(text, format!("the policy picked {vcpu} for cpu1 at 2.000ms, but {says}"));
}

#[test]
fn policy_pick_of_an_unknown_vcpu_is_refused() {
    picked(|_| {}, 3, NotEligible::Unknown, "the vCPU has not joined");
    let leaves = |story: &mut Story| {
        story.wake_new(3);
        story.step(Fact::Left(vcpu(3)));
    };
    picked(leaves, 3, NotEligible::Unknown, "the vCPU has not joined");
}

#[test]
fn policy_pick_of_a_blocked_vcpu_is_refused() {
    picked(|story| story.join(3, &[]), 3, NotEligible::Asleep, "the vCPU is blocked or paused");
    let pauses = |story: &mut Story| {
        story.wake_new(3);
        story.step(Fact::Paused(vcpu(3)));
    };
    picked(pauses, 3, NotEligible::Asleep, "the vCPU is blocked or paused");
}

#[test]
fn policy_pick_of_vcpu_running_on_another_cpu_is_refused() {
    picked(|_| {}, 0, NotEligible::Elsewhere(CPU0), "the vCPU runs on cpu0");
}

#[test]
fn policy_pick_violating_the_vcpu_affinity_is_refused() {
    let confined = |story: &mut Story| {
        let share = no_share();
        let terms = VcpuTerms { share: &share, cpus: Some(CpuSet::one(CPU0)) };
        story.step(Fact::Joined(vcpu(3), terms));
        story.step(Fact::Woke(vcpu(3)));
    };
    picked(confined, 3, NotEligible::Confined, "the affinity of the vCPU excludes that CPU");
}

#[test]
fn policy_pick_of_vcpu_refused_by_hardware_is_an_error() {
    let mut story = Story::scripted(2);
    story.wants(CPU1, run(3, 1));
    story.hardware.refuses = true;
    story.hardware.now = at(2);
    story.join(3, &[]);
    let (broken, text) = story.broken(Fact::Woke(vcpu(3)));
    let (vcpu, cpu, now, why) = (vcpu(3), CPU1, at(2), NotEligible::Barred);
    assert_eq!(broken, Broken::NotEligible { vcpu, cpu, now, why });
    let says =
        "the policy picked d3v0 for cpu1 at 2.000ms, but the hardware refused to run the vCPU";
    assert_eq!(text, says);
}

#[test]
fn policy_with_endless_zero_length_timeslices_is_an_error() {
    let turn = |ns| {
        let limit = Some(Span::from_ns(ns));
        Pick::Run { vcpu: vcpu(0), limit, entitlement: Entitlement::Spare }
    };
    let mut story = Story::scripted(1);
    story.wants(CPU0, turn(1));
    story.wake_new(0);
    story.wants(CPU0, turn(0));
    // 2,000 empty timeslices are legal at one instant. Those of all three instants together exceed
    // the limit of 4,096, but the count starts at zero again when time advances.
    for instant in 0..3 {
        (0..2_000).for_each(|_| story.step_at(at(instant), Fact::LimitReached(CPU0)));
    }
    let next = |_| story.report(&[], Fact::LimitReached(CPU0)).err();
    let fault = (0..10_000).find_map(next).expect("the contract is broken");
    let says =
        "policy livelock at 2.000ms: it keeps rescheduling CPUs or picking zero-length timeslices";
    assert_eq!(fault.to_string(), says);
    assert!(matches!(*fault, Fault::Broken(Broken::Endless { now }) if now == at(2)));
}

#[test]
fn policy_that_requests_scheduling_passes_endlessly_is_an_error() {
    let mut story = Story::scripted(2);
    story.answers().ask_on_pass = CpuSet::first_n(2);
    let (broken, _) = story.broken(Fact::AlarmRang(CPU0));
    assert_eq!(broken, Broken::Endless { now: at(0) });
}

#[test]
fn policy_timer_that_is_not_in_future_is_an_error() {
    let mut story = Story::scripted(2);
    story.step_at(at(3), Fact::AlarmRang(CPU1));
    story.answers().alarms.insert(CPU1, at(3) + Span::from_ns(1));
    story.step(Fact::AlarmRang(CPU1));
    assert_eq!(story.hardware.alarms, [None, Some(at(3) + Span::from_ns(1))]);
    for (alarm, says) in [(at(3), "3.000ms"), (at(2), "2.000ms")] {
        story.answers().alarms.insert(CPU1, alarm);
        let (broken, text) = story.broken(Fact::AlarmRang(CPU1));
        assert_eq!(broken, Broken::AlarmPassed { cpu: CPU1, alarm, now: at(3) });
        let says =
            format!("the policy set the timer of cpu1 to {says}, which is not after 3.000ms");
        assert_eq!(text, says);
    }
}

#[test]
fn policy_rejecting_a_share_does_not_violate_host_contract() {
    let mut story = one_runs();
    story.answers().declines = true;
    let share = no_share();
    for fact in
        [Fact::Joined(vcpu(1), (&share).into()), Fact::TermsChanged(vcpu(0), (&share).into())]
    {
        let fault = story.report(&[], fact).expect_err("the share is rejected");
        let (Fact::Joined(who, _) | Fact::TermsChanged(who, _)) = fact else { unreachable!() };
        assert!(matches!(*fault, Fault::Declined { vcpu, .. } if vcpu == who), "{fault}");
        assert!(fault.to_string().starts_with(&format!("cannot admit {who}: ")), "{fault}");
    }
    story.answers().declines = false;
    story.join(1, &[]);
}

/// The vCPU used less CPU time than has elapsed, so its timeslice is ordered again. The hardware
/// refuses that order.
#[test]
fn vcpu_refused_by_hardware_mid_timeslice_runs_when_allowed_again() {
    let mut story = Story::new("round-robin", 1);
    story.wake_new(0);
    story.hardware.now = at(1);
    story.hardware.refuses = true;
    story.change(0, &[]);
    assert_eq!(story.hardware.on[0], None);
    story.step(Fact::Allowed(vcpu(0)));
    assert_eq!(story.hardware.on[0], Some(vcpu(0)));
}

#[test]
fn vcpu_refused_by_hardware_runs_on_idle_cpu_when_allowed() {
    let mut story = Story::new("round-robin", 2);
    story.join(0, &[]);
    story.join(1, &[]);
    story.hardware.refuses = true;
    story.step(Fact::Woke(vcpu(0)));
    story.step(Fact::Woke(vcpu(1)));
    assert_eq!(story.hardware.on, [Some(vcpu(1)), None]);
    story.step(Fact::Allowed(vcpu(0)));
    assert_eq!(story.hardware.on, [Some(vcpu(1)), Some(vcpu(0))]);
}

/// CPU 0 is rescheduled while vCPU 1 still runs on CPU 1. After vCPU 1 has left CPU 1, CPU 0 must
/// be rescheduled again.
#[test]
fn vcpu_moved_by_share_change_runs_on_new_cpu_immediately() {
    let mut story = Story::new("edf", 2);
    story.join(0, &[("slice", "6ms"), ("period", "10ms")]);
    story.join(1, &[("slice", "5ms"), ("period", "10ms")]);
    story.join(2, &[("slice", "4ms"), ("period", "10ms")]);
    story.change(0, &[("slice", "1ms"), ("period", "10ms")]);
    story.step(Fact::Woke(vcpu(1)));
    story.step(Fact::Woke(vcpu(2)));
    assert_eq!(story.hardware.on, [None, Some(vcpu(1))]);
    story.change(1, &[("slice", "8ms"), ("period", "10ms")]);
    assert_eq!(story.hardware.on, [Some(vcpu(1)), Some(vcpu(2))]);
}
