//! Tests of the CPUs that the host reschedules after each event, and of the CPU time that it
//! measures before it reschedules them.

use crate::story::{CPU0, CPU1, CPU2, Story, at, no_share, run, vcpu};
use slackline_host::policy::Pick;
use slackline_host::{Broken, Fact, NextInLine, Report, VcpuTerms};
use slackline_trace::Record;
use slackline_units::{
    CpuId, CpuSet, Enforcement, Reservation, Span, Tasks, Time, VcpuHint, VcpuId,
};

/// Starts a host with three CPUs: vCPU 0 runs on the first CPU, and vCPU 1 waits.
fn one_runs() -> Story {
    let mut story = Story::scripted(3);
    story.wants(CPU0, run(0, 10));
    story.wake_new(0);
    story.wake_new(1);
    story
}

fn ms(slot: u32, ms: u64) -> (VcpuId, Span) {
    (vcpu(slot), Span::from_ms(ms))
}

#[test]
fn host_event_reschedules_its_cpu_and_cpus_named_by_policy() {
    let share = no_share();
    let told = VcpuHint::Tasks(Tasks::default());
    for (fact, cpus) in [
        (Fact::Blocked(vcpu(0)), [CPU0].as_slice()),
        (Fact::Paused(vcpu(0)), &[CPU0]),
        (Fact::Left(vcpu(0)), &[CPU0]),
        (Fact::Yielded(CPU0), &[CPU0]),
        (Fact::LimitReached(CPU0), &[CPU0]),
        (Fact::AlarmRang(CPU0), &[CPU0]),
        (Fact::TermsChanged(vcpu(0), (&share).into()), &[CPU0]),
        (Fact::Told(vcpu(0), &told), &[]),
        (Fact::Blocked(vcpu(1)), &[]),
        (Fact::Left(vcpu(1)), &[]),
        (Fact::Passed, &[]),
        (Fact::Ended, &[]),
    ] {
        let names_another = !matches!(fact, Fact::Passed | Fact::Ended);
        for also in [CpuSet::NONE, CpuSet::one(CPU2)] {
            let mut story = one_runs();
            story.wants(CPU0, Pick::Idle);
            story.answers().ask = also;
            let also = also.iter().filter(|_| names_another);
            let expected: Vec<CpuId> = cpus.iter().copied().chain(also).collect();
            assert_eq!(story.asked_by(fact), expected, "{fact:?}");
        }
    }
}

#[test]
fn cpus_named_by_policy_on_charge_or_start_are_rescheduled() {
    let mut story = one_runs();
    story.hardware.now = at(1);
    story.answers().ask_when_charged = CpuSet::one(CPU1);
    story.wants(CPU1, run(1, 1));
    story.answers().ask = CpuSet::NONE;
    story.answers().ask_when_started = CpuSet::one(CPU2);
    assert_eq!(story.asked_by(Fact::LimitReached(CPU0)), [CPU0, CPU1, CPU2]);
    assert_eq!(story.hardware.on, [Some(vcpu(0)), Some(vcpu(1)), None]);
}

#[test]
fn policy_that_reschedules_forever_at_one_instant_is_an_error() {
    let mut story = one_runs();
    story.hardware.now = at(7);
    story.answers().swaps = Some(run(0, 1));
    story.answers().ask_when_started = CpuSet::one(CPU0);
    story.answers().picks.insert(CPU0, run(1, 1));
    let (broken, text) = story.broken(Fact::LimitReached(CPU0));
    assert_eq!(broken, Broken::Endless { now: at(7) });
    assert!(text.starts_with("policy livelock at 7.000ms: "), "{text}");
}

#[test]
fn waking_vcpu_is_offered_to_only_one_idle_cpu() {
    let wake = Fact::Woke(vcpu(2));
    // At its first wake, the vCPU is offered to the first idle CPU.
    let mut story = one_runs();
    story.join(2, &[]);
    story.answers().ask = CpuSet::NONE;
    assert_eq!(story.asked_by(wake), [CPU1]);
    // At a later wake, the vCPU is offered to the CPU on which it ran last, if that CPU is idle.
    let mut story = one_runs();
    story.wants(CPU2, run(2, 1));
    story.wake_new(2);
    story.wants(CPU2, Pick::Idle);
    story.step(Fact::Blocked(vcpu(2)));
    story.answers().ask = CpuSet::NONE;
    assert_eq!(story.asked_by(wake), [CPU2]);
    // The vCPU is never offered to a CPU that its affinity excludes, nor twice to the same CPU.
    for (ask, asked) in [(CpuSet::NONE, [CPU2].as_slice()), (CpuSet::one(CPU2), &[CPU2])] {
        let mut story = one_runs();
        let (share, cpus) = (no_share(), Some([CPU0, CPU2].into_iter().collect()));
        story.step(Fact::Joined(vcpu(2), VcpuTerms { share: &share, cpus }));
        story.answers().ask = ask;
        assert_eq!(story.asked_by(wake), asked);
    }
}

#[test]
fn woken_vcpu_that_runs_is_not_offered_to_another_cpu() {
    let mut story = one_runs();
    story.join(2, &[]);
    story.wants(CPU1, run(2, 1));
    story.answers().ask = CpuSet::one(CPU1);
    assert_eq!(story.asked_by(Fact::Woke(vcpu(2))), [CPU1]);
    assert_eq!(story.hardware.on, [Some(vcpu(0)), Some(vcpu(2)), None]);
}

#[test]
fn vcpu_allowed_to_run_again_causes_rescheduling_only_if_waiting() {
    let mut story = one_runs();
    story.wants(CPU1, run(1, 1));
    story.answers().ask = CpuSet::NONE;
    assert!(story.asked_by(Fact::Allowed(vcpu(1))).contains(&CPU1));
    assert_eq!(story.hardware.on, [Some(vcpu(0)), Some(vcpu(1)), None]);
    assert_eq!(story.asked_by(Fact::Allowed(vcpu(1))), []);
    story.wants(CPU1, Pick::Idle);
    story.answers().ask = CpuSet::NONE;
    story.step(Fact::Blocked(vcpu(1)));
    assert_eq!(story.asked_by(Fact::Allowed(vcpu(1))), []);
}

#[test]
fn preempted_vcpu_is_offered_to_an_idle_cpu() {
    let mut story = one_runs();
    story.join(2, &[]);
    story.wants(CPU0, run(2, 1));
    story.wants(CPU1, run(0, 1));
    story.step(Fact::Woke(vcpu(2)));
    assert_eq!(story.hardware.on, [Some(vcpu(2)), Some(vcpu(0)), None]);
}

#[test]
fn cpu_time_since_last_event_is_charged_before_policy_decides() {
    let start = || {
        let mut story = one_runs();
        story.wants(CPU1, run(1, 10));
        story.answers().ask = CpuSet::NONE;
        story.step(Fact::Allowed(vcpu(1)));
        story.join(2, &[]);
        story.hardware.now = at(4);
        story
    };
    // A vCPU that wakes for the first time may run on any CPU, so all CPUs are measured.
    let mut story = start();
    story.step(Fact::Woke(vcpu(2)));
    assert_eq!(story.answers().charged, [ms(0, 4), ms(1, 4)]);
    // When a timer expires, its CPU and the CPUs that the policy names are measured.
    let mut story = start();
    story.step(Fact::AlarmRang(CPU0));
    assert_eq!(story.answers().charged, [ms(0, 4)]);
    let mut story = start();
    story.answers().ring_needs = CpuSet::one(CPU1);
    story.step(Fact::AlarmRang(CPU0));
    assert_eq!(story.answers().charged, [ms(0, 4), ms(1, 4)]);
    // A running vCPU is charged before its hint is reported. A waiting vCPU has used no CPU time.
    let told = VcpuHint::Tasks(Tasks::default());
    for (slot, charged) in [(1, [ms(1, 4)].as_slice()), (2, &[])] {
        let mut story = start();
        story.step(Fact::Told(vcpu(slot), &told));
        assert_eq!(story.answers().charged, charged);
    }
    // The end of the run measures all CPUs.
    let mut story = start();
    story.step(Fact::Ended);
    assert_eq!(story.answers().charged, [ms(0, 4), ms(1, 4)]);
    assert_eq!(story.trace.last(), Some(&Record::Ended { at: at(4) }));
}

#[test]
fn running_vcpu_is_charged_when_previous_vcpu_on_cpu_wakes() {
    let mut story = one_runs();
    story.wants(CPU1, run(1, 10));
    story.answers().ask = CpuSet::NONE;
    story.step(Fact::Allowed(vcpu(1)));
    story.wants(CPU1, Pick::Idle);
    story.answers().ask = CpuSet::NONE;
    story.step_at(at(1), Fact::Blocked(vcpu(1)));
    story.wants(CPU1, run(2, 10));
    story.wake_new(2);
    story.answers().charged.clear();
    story.answers().ask = CpuSet::NONE;
    story.step_at(at(3), Fact::Woke(vcpu(1)));
    assert_eq!(story.answers().charged, [ms(2, 2)]);
}

#[test]
fn cpu_time_is_measured_only_once_per_cpu_and_instant() {
    let mut story = one_runs();
    story.hardware.now = at(2);
    story.step(Fact::LimitReached(CPU0));
    let measured = story.hardware.measures;
    story.step(Fact::LimitReached(CPU0));
    story.step(Fact::AlarmRang(CPU0));
    // An idle CPU is not measured.
    story.step(Fact::AlarmRang(CPU2));
    assert_eq!(story.hardware.measures, measured);
}

#[test]
fn join_updates_every_cpu_timer_but_expiry_updates_only_one() {
    let mut story = Story::scripted(2);
    let both = [(CPU0, at(5)), (CPU1, at(6))];
    story.answers().alarms.extend(both);
    story.join(0, &[]);
    assert_eq!(story.hardware.alarms, [Some(at(5)), Some(at(6))]);
    story.answers().alarms.clear();
    story.step_at(at(2), Fact::AlarmRang(CPU1));
    assert_eq!(story.hardware.alarms, [Some(at(5)), None]);
}

#[test]
fn host_lists_the_next_reserved_vcpus_in_dispatch_order() {
    let mut story = Story::new("edf", 1);
    story.join(0, &[("slice", "3ms"), ("period", "30ms")]);
    story.join(1, &[("slice", "1ms"), ("period", "10ms")]);
    story.join(2, &[("slice", "2ms"), ("period", "20ms")]);
    story.join(3, &[("slice", "4ms"), ("period", "40ms")]);
    (0..3).for_each(|slot| story.step(Fact::Woke(vcpu(slot))));
    let next = |slot, ms| NextInLine { vcpu: vcpu(slot), limit: Some(Span::from_ms(ms)) };
    for _ in 0..2 {
        let mut line = vec![next(9, 9)];
        story.host.in_line(CPU0, usize::MAX, &mut line);
        assert_eq!(line, [next(1, 1), next(2, 2), next(0, 3)]);
    }
    story.step(Fact::Blocked(vcpu(1)));
    assert_eq!(story.hardware.on, [Some(vcpu(2))]);
}

/// The hardware refuses vCPU 2, so CPU 2 is idle and can run another vCPU that begins to wait.
/// Under Xen's rules, CPU 1 looks for work only once per slice. So the waiting vCPU is offered to
/// CPU 2.
#[test]
fn idle_cpu_takes_another_vcpu_after_hardware_refused_the_first() {
    let mut story = Story::under("credit", &[("rules", "xen-3.0.3")], 3);
    (0..4).for_each(|slot| story.join(slot, &[]));
    story.hardware.refuses = true;
    story.step(Fact::Woke(vcpu(2)));
    assert_eq!(story.hardware.on, [None, None, None], "the hardware refused vCPU 2 on CPU 2");
    let mut told = |fact| {
        let report = Report { now: story.hardware.now, used: &[], fact };
        story
            .host
            .step(report, &mut story.hardware, &mut story.trace)
            .expect("the contract is kept");
    };
    // CPU 0 is the home CPU of both vCPUs.
    told(Fact::Woke(vcpu(0)));
    told(Fact::Woke(vcpu(3)));
    told(Fact::Settled);
    assert_eq!(story.hardware.on, [Some(vcpu(0)), None, Some(vcpu(3))]);
}

#[test]
fn list_of_next_vcpus_stops_at_first_invalid_policy_pick() {
    let mut story = one_runs();
    let mut line = Vec::new();
    story.host.in_line(CPU0, usize::MAX, &mut line);
    let limit = Some(Span::from_ms(10));
    assert_eq!(line, [NextInLine { vcpu: vcpu(0), limit }]);
    story.step(Fact::LimitReached(CPU0));
}

#[test]
fn trace_records_the_reservation_of_each_joining_vcpu() {
    let promised = |policy: &str, share: &[(&'static str, &'static str)]| {
        let mut story = Story::new(policy, 1);
        story.hardware.now = at(3);
        story.join(0, share);
        let joined = Record::Joined { at: at(3), vcpu: vcpu(0) };
        assert_eq!(story.trace[0], joined);
        story.trace[1]
    };
    let (slice, period) = (Span::from_ms(2), Span::from_ms(10));
    let reservation = Some(Reservation::new(slice, period).expect("the slice fits the period"));
    let (at, vcpu) = (at(3), vcpu(0));
    assert_eq!(
        promised("edf", &[("slice", "2ms"), ("period", "10ms")]),
        Record::Promised {
            at,
            vcpu,
            reservation,
            exact: false,
            phase: None,
            by: Enforcement::Dispatcher
        }
    );
    assert_eq!(
        promised("round-robin", &[]),
        Record::Promised {
            at,
            vcpu,
            reservation: None,
            exact: false,
            phase: None,
            by: Enforcement::Dispatcher
        }
    );
}

#[test]
fn host_reports_policy_state_of_vcpu_and_occupant_of_cpu() {
    let story = one_runs();
    assert_eq!(story.host.account(vcpu(1)), [("who", "d1v0".to_owned())]);
    assert_eq!(story.host.moment().occupant(CPU0), Some(vcpu(0)));
    assert_eq!(story.host.moment().now(), Time::START);
}
