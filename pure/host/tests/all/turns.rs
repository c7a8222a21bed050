//! Tests of the run intervals in the trace. Each interval has its vCPU and CPU, begin and end, its
//! CPU time (used, granted and late), the reason of its end, and its entitlement.

use crate::story::{CPU0, CPU1, Story, at, run, vcpu};
use slackline_host::policy::{Entitlement, Pick};
use slackline_host::{CpuUse, Fact, Order};
use slackline_trace::Record;
use slackline_units::{CpuId, Span};

/// Returns the run intervals in the trace, one line each.
fn stretches(story: &Story) -> Vec<String> {
    let line = |record: &Record| {
        let Record::Ran { vcpu, cpu, from, to, used, granted, late, end, due } = *record else {
            return None;
        };
        let granted = granted.map_or_else(|| "any".to_owned(), |span| span.to_string());
        let right = if due { "due" } else { "spare" };
        Some(format!(
            "{vcpu} {cpu} {from} {to}: {used} of {granted}, {late} late, {end:?}, {right}"
        ))
    };
    story.trace.iter().filter_map(line).collect()
}

fn used(slot: u32, cpu: CpuId, from: u64, to: u64, ran: u64) -> CpuUse {
    CpuUse { vcpu: vcpu(slot), cpu, from: at(from), to: at(to), ran: Span::from_ms(ran) }
}

/// Starts a host with one vCPU that runs on CPU 0 until 10 ms.
fn one_runs() -> Story {
    let mut story = Story::scripted(2);
    story.wants(CPU0, run(0, 10));
    story.wake_new(0);
    story
}

#[test]
fn run_interval_records_the_reason_of_its_end() {
    let share = crate::story::no_share();
    for (fact, end) in [
        (Fact::LimitReached(CPU0), "Limit"),
        (Fact::Yielded(CPU0), "Yielded"),
        (Fact::Blocked(vcpu(0)), "Blocked"),
        (Fact::Paused(vcpu(0)), "Blocked"),
        (Fact::Left(vcpu(0)), "Over"),
        (Fact::Ended, "Over"),
        (Fact::AlarmRang(CPU0), "Preempted"),
        (Fact::TermsChanged(vcpu(0), (&share).into()), "Preempted"),
    ] {
        let mut story = one_runs();
        story.wants(CPU0, Pick::Idle);
        story.step_at(at(4), fact);
        let line = format!("d0v0 cpu0 0.000ms 4.000ms: 4ms of 10ms, 0s late, {end}, due");
        assert_eq!(stretches(&story), [line], "{fact:?}");
    }
}

#[test]
fn vcpu_replaced_by_a_waking_vcpu_is_recorded_as_preempted() {
    let mut story = one_runs();
    story.hardware.now = at(3);
    story.wants(CPU0, run(1, 5));
    story.wake_new(1);
    story.step_at(at(5), Fact::Ended);
    assert_eq!(
        stretches(&story),
        [
            "d0v0 cpu0 0.000ms 3.000ms: 3ms of 10ms, 0s late, Preempted, due",
            "d1v0 cpu0 3.000ms 5.000ms: 2ms of 5ms, 0s late, Over, due",
        ]
    );
}

/// A vCPU uses only half of the elapsed time. So its recorded overrun must not exceed the CPU time
/// that it used.
#[test]
fn recorded_overrun_never_exceeds_cpu_time_of_the_run_interval() {
    for (until, line) in [
        (10, "5ms of 10ms, 0s late"),
        (12, "6ms of 10ms, 2ms late"),
        (30, "15ms of 10ms, 15ms late"),
    ] {
        let mut story = one_runs();
        story.hardware.rate = 1;
        story.step_at(at(until), Fact::LimitReached(CPU0));
        let line = format!("d0v0 cpu0 0.000ms {}: {line}, Limit, due", at(until));
        assert_eq!(stretches(&story), [line]);
    }
}

/// A run interval is reported in three pieces: up to the limit of the timeslice, across the limit,
/// and beyond the limit.
#[test]
fn cpu_time_after_timeslice_limit_is_recorded_as_overrun() {
    let mut story = one_runs();
    story.hardware.now = at(15);
    let pieces = [used(0, CPU0, 0, 8, 8), used(0, CPU0, 8, 11, 3), used(0, CPU0, 11, 13, 2)];
    story.report(&pieces, Fact::Passed).expect("the contract is kept");
    assert_eq!(stretches(&story), [""; 0]);
    story.hardware.says = Some(used(0, CPU0, 13, 15, 0));
    story.step(Fact::LimitReached(CPU0));
    let line = "d0v0 cpu0 0.000ms 13.000ms: 13ms of 10ms, 3ms late, Limit, due";
    assert_eq!(stretches(&story), [line]);
}

#[test]
fn new_timeslice_limit_does_not_split_current_run_interval() {
    let mut story = one_runs();
    story.hardware.now = at(4);
    story.wants(CPU0, run(0, 2));
    story.wake_new(1);
    story.step_at(at(7), Fact::LimitReached(CPU0));
    let line = "d0v0 cpu0 0.000ms 7.000ms: 7ms of 10ms, 1ms late, Limit, due";
    assert_eq!(stretches(&story), [line]);
}

#[test]
fn hardware_gets_new_run_command_only_if_timeslice_end_changes() {
    let mut story = one_runs();
    story.hardware.now = at(4);
    story.wants(CPU0, run(0, 6));
    story.wake_new(1);
    let limit = Some(Span::from_ms(10));
    let order = |until: Option<Span>| Order::Run {
        cpu: CPU0,
        vcpu: vcpu(0),
        until: until.map(|until| at(0) + until),
        entitlement: Entitlement::Due,
    };
    assert_eq!(story.hardware.orders, [order(limit)]);
    story.wants(CPU0, run(0, 7));
    story.wake_new(2);
    assert_eq!(story.hardware.orders, [order(limit), order(Some(Span::from_ms(11)))]);
}

/// The timer of the limit expires 6 ms early, and the policy picks the rest of the timeslice. The
/// hardware has no timer for that rest. After a yield the timer is still set.
#[test]
fn hardware_gets_run_command_again_after_limit_timer_expired_early() {
    for (fact, orders) in [(Fact::LimitReached(CPU0), 2), (Fact::Yielded(CPU0), 1)] {
        let mut story = one_runs();
        story.wants(CPU0, run(0, 6));
        story.step_at(at(4), fact);
        let (vcpu, until) = (vcpu(0), Some(at(10)));
        let order = Order::Run { cpu: CPU0, vcpu, until, entitlement: Entitlement::Due };
        assert_eq!(story.hardware.orders, vec![order; orders], "{fact:?}");
        story.wake_new(1);
        assert_eq!(story.hardware.orders.len(), orders, "the order is in force again");
    }
}

/// Live hardware reports an event of CPU 1 before it has measured the vCPU on CPU 0. For CPU 0 the
/// policy then returns the budget that the vCPU had at the last measurement.
#[test]
fn timeslice_end_stays_unchanged_without_new_cpu_time_measurement() {
    for (measured, orders) in [(2, vec![10]), (4, vec![10, 12])] {
        let mut story = one_runs();
        story.join(1, &[]);
        story.hardware.now = at(4);
        story.hardware.is_blind = true;
        story.wants(CPU0, run(0, 8));
        let noticed = used(0, CPU0, 0, measured, measured);
        story.report(&[noticed], Fact::Woke(vcpu(1))).expect("the contract is kept");
        let order = |until| Order::Run {
            cpu: CPU0,
            vcpu: vcpu(0),
            until: Some(at(until)),
            entitlement: Entitlement::Due,
        };
        let orders: Vec<_> = orders.into_iter().map(order).collect();
        assert_eq!(story.hardware.orders, orders, "measured until {measured}");
    }
}

#[test]
fn run_interval_is_split_at_change_from_budget_to_slack() {
    let pick = |entitlement| Pick::Run { vcpu: vcpu(0), limit: None, entitlement };
    let mut story = Story::scripted(1);
    story.wants(CPU0, pick(Entitlement::Due));
    story.wake_new(0);
    story.hardware.now = at(2);
    story.wants(CPU0, pick(Entitlement::Arrears));
    story.wake_new(1);
    story.hardware.now = at(5);
    story.wants(CPU0, pick(Entitlement::Spare));
    story.wake_new(2);
    story.step_at(at(9), Fact::Ended);
    assert_eq!(
        stretches(&story),
        [
            "d0v0 cpu0 0.000ms 2.000ms: 2ms of any, 0s late, Preempted, due",
            "d0v0 cpu0 2.000ms 5.000ms: 3ms of any, 0s late, Preempted, due",
            "d0v0 cpu0 5.000ms 9.000ms: 4ms of any, 0s late, Over, spare",
        ]
    );
}

#[test]
fn run_interval_is_split_at_gap_in_reported_cpu_time() {
    let mut story = one_runs();
    story.hardware.now = at(9);
    let pieces = [used(0, CPU0, 0, 2, 2), used(0, CPU0, 3, 5, 2), used(0, CPU0, 5, 9, 1)];
    story.report(&pieces, Fact::Ended).expect("the contract is kept");
    assert_eq!(
        stretches(&story),
        [
            "d0v0 cpu0 0.000ms 2.000ms: 2ms of 10ms, 0s late, Preempted, due",
            "d0v0 cpu0 3.000ms 9.000ms: 3ms of 10ms, 0s late, Over, due",
        ]
    );
}

/// On a shared host, the kernel's scheduler gives slack to vCPUs outside of timeslices.
#[test]
fn cpu_time_of_vcpu_outside_timeslices_is_recorded_as_slack() {
    let mut story = one_runs();
    story.join(1, &[]);
    story.hardware.now = at(14);
    let pieces = [used(0, CPU0, 0, 11, 11), used(1, CPU0, 11, 12, 1), used(1, CPU1, 2, 14, 9)];
    story.report(&pieces, Fact::Passed).expect("the contract is kept");
    story.answers().picks.clear();
    story.hardware.says = Some(used(0, CPU0, 12, 14, 2));
    story.step(Fact::Ended);
    assert_eq!(
        stretches(&story),
        [
            "d0v0 cpu0 0.000ms 11.000ms: 11ms of 10ms, 1ms late, Preempted, due",
            "d1v0 cpu0 11.000ms 12.000ms: 1ms of any, 0s late, Preempted, spare",
            "d0v0 cpu0 12.000ms 14.000ms: 2ms of 10ms, 2ms late, Over, due",
            "d1v0 cpu1 2.000ms 14.000ms: 9ms of any, 0s late, Over, spare",
        ]
    );
    let ms = |slot, ms| (vcpu(slot), Span::from_ms(ms));
    assert_eq!(story.answers().charged, [ms(0, 11), ms(1, 1), ms(1, 9), ms(0, 2)]);
}

#[test]
fn cpu_time_reported_after_block_counts_as_slack_not_overrun() {
    let mut story = one_runs();
    story.wants(CPU0, Pick::Idle);
    story.step_at(at(4), Fact::Blocked(vcpu(0)));
    story.hardware.now = at(14);
    story.report(&[used(0, CPU0, 8, 12, 3)], Fact::Ended).expect("the contract is kept");
    assert_eq!(
        stretches(&story),
        [
            "d0v0 cpu0 0.000ms 4.000ms: 4ms of 10ms, 0s late, Blocked, due",
            "d0v0 cpu0 8.000ms 12.000ms: 3ms of any, 0s late, Over, spare",
        ]
    );
}

#[test]
fn timeslice_without_cpu_time_is_neither_traced_nor_charged() {
    let mut story = one_runs();
    story.hardware.says = Some(used(0, CPU0, 0, 4, 0));
    story.step_at(at(4), Fact::LimitReached(CPU0));
    assert_eq!(stretches(&story), [""; 0]);
    assert_eq!(story.answers().charged, []);
}
