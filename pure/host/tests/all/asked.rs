//! Whom the host asks about what, and what it has measured before: each fact as a story.

use crate::story::{CPU0, CPU1, CPU2, Story, at, no_share, run, vcpu};
use slackline_host::policy::Pick;
use slackline_host::{Broken, Fact, NextInLine, Report, VcpuTerms};
use slackline_trace::Record;
use slackline_units::{CpuId, CpuSet, Reservation, Span, Tasks, Time, Told, VcpuId};

/// Three CPUs; vCPU 0 runs on the first, and vCPU 1 waits.
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
fn the_cpus_that_the_policy_names_are_asked_and_that_where_it_happened() {
    let share = no_share();
    let told = Told::Tasks(Tasks::default());
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
fn the_cpus_that_a_charge_or_a_start_names_are_asked() {
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
fn a_policy_that_is_never_done_with_an_instant_is_stopped() {
    let mut story = one_runs();
    story.hardware.now = at(7);
    story.answers().swaps = Some(run(0, 1));
    story.answers().ask_when_started = CpuSet::one(CPU0);
    story.answers().picks.insert(CPU0, run(1, 1));
    let (broken, text) = story.broken(Fact::LimitReached(CPU0));
    assert_eq!(broken, Broken::Endless { now: at(7) });
    assert!(text.starts_with("at 7.000ms "), "{text}");
}

#[test]
fn who_wakes_is_offered_to_one_idle_cpu_that_was_not_asked() {
    let wake = Fact::Woke(vcpu(2));
    // Somewhere for the first time: the first that idles.
    let mut story = one_runs();
    story.join(2, &[]);
    story.answers().ask = CpuSet::NONE;
    assert_eq!(story.asked_by(wake), [CPU1]);
    // The one where it was last, if that idles.
    let mut story = one_runs();
    story.wants(CPU2, run(2, 1));
    story.wake_new(2);
    story.wants(CPU2, Pick::Idle);
    story.step(Fact::Blocked(vcpu(2)));
    story.answers().ask = CpuSet::NONE;
    assert_eq!(story.asked_by(wake), [CPU2]);
    // None where it may not run, and none twice.
    for (ask, asked) in [(CpuSet::NONE, [CPU2].as_slice()), (CpuSet::one(CPU2), &[CPU2])] {
        let mut story = one_runs();
        let (share, cpus) = (no_share(), Some([CPU0, CPU2].into_iter().collect()));
        story.step(Fact::Joined(vcpu(2), VcpuTerms { share: &share, cpus }));
        story.answers().ask = ask;
        assert_eq!(story.asked_by(wake), asked);
    }
}

#[test]
fn who_has_a_cpu_is_offered_no_other() {
    let mut story = one_runs();
    story.join(2, &[]);
    story.wants(CPU1, run(2, 1));
    story.answers().ask = CpuSet::one(CPU1);
    assert_eq!(story.asked_by(Fact::Woke(vcpu(2))), [CPU1]);
    assert_eq!(story.hardware.on, [Some(vcpu(0)), Some(vcpu(2)), None]);
}

#[test]
fn who_may_be_run_again_is_run_and_nobody_is_asked_about_who_runs_or_sleeps() {
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
fn who_is_pushed_off_a_cpu_may_be_taken_by_an_idle_one() {
    let mut story = one_runs();
    story.join(2, &[]);
    story.wants(CPU0, run(2, 1));
    story.wants(CPU1, run(0, 1));
    story.step(Fact::Woke(vcpu(2)));
    assert_eq!(story.hardware.on, [Some(vcpu(2)), Some(vcpu(0)), None]);
}

#[test]
fn accounts_are_up_to_date_where_the_policy_needs_them() {
    let start = || {
        let mut story = one_runs();
        story.wants(CPU1, run(1, 10));
        story.answers().ask = CpuSet::NONE;
        story.step(Fact::Allowed(vcpu(1)));
        story.join(2, &[]);
        story.hardware.now = at(4);
        story
    };
    // A first wake may go anywhere.
    let mut story = start();
    story.step(Fact::Woke(vcpu(2)));
    assert_eq!(story.answers().charged, [ms(0, 4), ms(1, 4)]);
    // A ring needs its CPU, and what the policy says.
    let mut story = start();
    story.step(Fact::AlarmRang(CPU0));
    assert_eq!(story.answers().charged, [ms(0, 4)]);
    let mut story = start();
    story.answers().ring_needs = CpuSet::one(CPU1);
    story.step(Fact::AlarmRang(CPU0));
    assert_eq!(story.answers().charged, [ms(0, 4), ms(1, 4)]);
    // Who tells something is charged before; who waits has nothing to be charged with.
    let told = Told::Tasks(Tasks::default());
    for (slot, charged) in [(1, [ms(1, 4)].as_slice()), (2, &[])] {
        let mut story = start();
        story.step(Fact::Told(vcpu(slot), &told));
        assert_eq!(story.answers().charged, charged);
    }
    // The end is everybody's.
    let mut story = start();
    story.step(Fact::Ended);
    assert_eq!(story.answers().charged, [ms(0, 4), ms(1, 4)]);
    assert_eq!(story.trace.last(), Some(&Record::Ended { at: at(4) }));
}

#[test]
fn a_later_wake_needs_the_accounts_of_the_cpu_where_it_was() {
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
fn nobody_is_measured_twice_at_an_instant() {
    let mut story = one_runs();
    story.hardware.now = at(2);
    story.step(Fact::LimitReached(CPU0));
    let measured = story.hardware.measures;
    story.step(Fact::LimitReached(CPU0));
    story.step(Fact::AlarmRang(CPU0));
    // Nor where nobody runs.
    story.step(Fact::AlarmRang(CPU2));
    assert_eq!(story.hardware.measures, measured);
}

#[test]
fn an_alarm_is_set_for_each_cpu_that_was_asked_and_for_all_when_somebody_joins() {
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
fn who_comes_next_on_a_cpu_is_known_in_order_and_by_right_only() {
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

/// A CPU whose vCPU was refused is idle, and who comes to wait is to have it as any other. By Xen's
/// rules CPU 1 looks for work only after a slice, and is the one to which who waits is offered.
#[test]
fn a_cpu_whose_chosen_one_was_refused_is_asked_when_somebody_else_comes_to_wait() {
    let mut story = Story::under("credit", &[("rules", "xen-3.0.3")], 3);
    (0..4).for_each(|slot| story.join(slot, &[]));
    story.hardware.refuses = true;
    story.step(Fact::Woke(vcpu(2)));
    assert_eq!(story.hardware.on, [None, None, None], "the hardware refused vCPU 2 on CPU 2");
    let mut told = |fact| {
        let report = Report { now: story.hardware.now, used: &[], fact };
        story.host.step(report, &mut story.hardware, &mut story.trace).expect("no contract broken");
    };
    // Both are at home on CPU 0.
    told(Fact::Woke(vcpu(0)));
    told(Fact::Woke(vcpu(3)));
    told(Fact::Settled);
    assert_eq!(story.hardware.on, [Some(vcpu(0)), None, Some(vcpu(3))]);
}

#[test]
fn looking_who_comes_next_ends_at_an_answer_that_is_wrong() {
    let mut story = one_runs();
    let mut line = Vec::new();
    story.host.in_line(CPU0, usize::MAX, &mut line);
    let limit = Some(Span::from_ms(10));
    assert_eq!(line, [NextInLine { vcpu: vcpu(0), limit }]);
    story.step(Fact::LimitReached(CPU0));
}

#[test]
fn what_is_promised_is_in_the_trace() {
    let promised = |policy: &str, share: &[(&'static str, &'static str)]| {
        let mut story = Story::new(policy, 1);
        story.hardware.now = at(3);
        story.join(0, share);
        let joined = Record::Joined { at: at(3), vcpu: vcpu(0) };
        assert_eq!(story.trace[0], joined);
        story.trace[1]
    };
    let (slice, period) = (Span::from_ms(2), Span::from_ms(10));
    let reservation = Some(Reservation::new(slice, period).expect("it fits"));
    let (at, vcpu) = (at(3), vcpu(0));
    assert_eq!(
        promised("edf", &[("slice", "2ms"), ("period", "10ms")]),
        Record::Promised { at, vcpu, reservation, exact: false, phase: None }
    );
    assert_eq!(
        promised("round-robin", &[]),
        Record::Promised { at, vcpu, reservation: None, exact: false, phase: None }
    );
}

#[test]
fn what_the_policy_shows_and_the_host_knows_can_be_looked_at() {
    let story = one_runs();
    assert_eq!(story.host.account(vcpu(1)), [("who", "d1v0".to_owned())]);
    assert_eq!(story.host.moment().occupant(CPU0), Some(vcpu(0)));
    assert_eq!(story.host.moment().now(), Time::START);
}
