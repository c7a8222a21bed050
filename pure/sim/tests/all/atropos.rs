//! Guarantees of Atropos on the simulated host, for random sets of vCPUs. Numbers are in
//! nanoseconds, without rounding.

use crate::sets::{
    Account, EXACT, Got, Host, Rules, Task, accounts, check_slices, check_time, set,
};
use proptest::prelude::*;
use slackline_trace::Record;
use slackline_units::{Span, Time};

const MS: u64 = 1_000_000;

/// Parameters of Atropos, with a latency hint for two of three vCPUs. vCPUs with a hard limit have
/// no extra time.
const ATROPOS: Rules = Rules {
    name: "atropos",
    parameters: "reserve = \"0cpu\"",
    share: |index, task, slice| {
        let Task { period, is_exact, .. } = task;
        let latency = (period / [1, 3, 10][index % 3]).max(1);
        let extra = !is_exact;
        format!(
            "slice = \"{slice}ns\", period = \"{period}ns\", latency = \"{latency}ns\", \
             extra = {extra}"
        )
    },
};

fn run(host: &Host, tasks: &[Task]) -> Vec<Record> {
    crate::sets::run(host, &ATROPOS, tasks)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Each vCPU of a fully reserved CPU receives its slice, for all latency hints and sleeps of
    /// the other vCPUs.
    #[test]
    fn atropos_delivers_each_slice_in_every_period_on_full_cpu(tasks in set(7, 1_000_000)) {
        let trace = run(&EXACT, &tasks);
        check_slices(&trace, &tasks)?;
        check_time(&trace, &EXACT)?;
    }

    /// The extra time of two always runnable vCPUs differs by at most a quantum.
    #[test]
    fn atropos_divides_slack_equally_among_busy_vcpus_within_one_quantum(tasks in set(6, 700_000)) {
        const QUANTUM: Span = Span::from_ms(5);
        let always = |task: Task| Task { sleeps: Vec::new(), ..task };
        let tasks: Vec<Task> = tasks.into_iter().map(always).collect();
        let trace = run(&EXACT, &tasks);
        check_slices(&trace, &tasks)?;
        let mut extra = vec![Span::ZERO; tasks.len()];
        for record in &trace {
            if let Record::Ran { vcpu, used, due: false, .. } = *record {
                extra[vcpu.slot()] += used;
                prop_assert!(!tasks[vcpu.slot()].is_exact, "t{} has extra time", vcpu.slot());
            }
            let takers = tasks.iter().zip(&extra).filter(|(task, _)| !task.is_exact);
            let (least, most) = takers.fold((Span::MAX, Span::ZERO), |(least, most), (_, had)| {
                (least.min(*had), most.max(*had))
            });
            prop_assert!(most.left_after(least) <= QUANTUM, "{extra:?}");
        }
        if tasks.iter().any(|task| !task.is_exact) {
            let used = |slot| Got::of(&trace, slot).within(Time::START, Time::NEVER);
            let used: Span = (0..tasks.len()).map(used).sum();
            prop_assert_eq!(used, Span::from_ns(EXACT.length), "the CPU is never idle");
        }
    }

    /// A timeslice overruns by at most `LATENESS`, the maximum lateness of a timer. The overrun is
    /// deducted from later slices. So after any number of periods, a vCPU without extra time has
    /// received at most `LATENESS` more than its slices.
    #[test]
    fn total_overrun_under_atropos_never_exceeds_lateness_of_one_timer(tasks in set(6, 500_000)) {
        const LATENESS: u64 = 10_000;
        let host = Host { lateness: LATENESS, length: 2_000 * MS, ..EXACT };
        let always = |task: Task| Task { is_exact: true, sleeps: Vec::new(), ..task };
        let tasks: Vec<Task> = tasks.into_iter().map(always).collect();
        let trace = run(&host, &tasks);
        check_time(&trace, &host)?;
        for Account { slot, period, had, owed } in accounts(&trace, tasks.len()) {
            let most = owed + Span::from_ns(LATENESS);
            prop_assert!(had <= most, "t{slot} had {had} of {owed}, {period}");
        }
    }

    /// A vCPU with a latency hint wakes once after a long sleep, in any phase of its period. Within
    /// the hinted latency the vCPU receives a CPU time of share × latency. If the vCPU's period
    /// ends earlier, the time to the end of the period takes the place of the latency.
    #[test]
    fn atropos_waking_vcpu_meets_the_latency_hint_on_full_cpu(
        others in set(5, 600_000),
        (sleep, parts) in (100 * MS..300 * MS, 2..20_u64),
    ) {
        let period = 40 * MS;
        let latency = period / parts;
        let rules = Rules {
            share: |index, task, slice| {
                if index > 0 {
                    return (ATROPOS.share)(index, task, slice);
                }
                // The hint is passed as the length of the first computation.
                let latency = task.sleeps[0].0;
                format!("slice = \"16ms\", period = \"40ms\", latency = \"{latency}ns\"")
            },
            ..ATROPOS
        };
        let sleeps = vec![(latency, sleep), (400 * MS, 1)];
        let mut tasks =
            vec![Task { slice: 16 * MS, period, is_exact: true, sleeps, change: None }];
        tasks.extend(others);
        let trace = crate::sets::run(&EXACT, &rules, &tasks);
        check_slices(&trace, &tasks)?;
        let wakes: Vec<Time> = trace
            .iter()
            .filter_map(|record| match *record {
                Record::Woke { at, vcpu } if vcpu.slot() == 0 => Some(at),
                _ => None,
            })
            .collect();
        let woke = wakes[1];
        // The hint also ends at the end of the vCPU's period. Until then only the share of the vCPU
        // is due.
        let left = Span::from_ns(period) - (woke - Time::START) % Span::from_ns(period);
        let hint = Span::from_ns(latency).min(left);
        let due = Span::from_ns(16 * hint.ns() / 40);
        let had = Got::of(&trace, 0).within(woke, woke + hint);
        prop_assert!(had >= due, "{had} of {due} within {hint}");
    }
}

/// Slices and periods of up to a year, the longest in a scenario, are exact to the nanosecond.
#[test]
fn atropos_slices_of_one_year_periods_are_exact() {
    const YEAR: u64 = 365 * 24 * 3_600 * 1_000 * MS;
    let task =
        |slice, period, is_exact, sleeps| Task { slice, period, is_exact, sleeps, change: None };
    let tasks = [
        task(YEAR / 2, YEAR, true, Vec::new()),
        task(YEAR / 20, YEAR / 5, true, Vec::new()),
        task(YEAR / 10, YEAR / 2, false, vec![(YEAR / 30, YEAR / 3)]),
    ];
    let host = Host { length: YEAR, ..EXACT };
    // Slack is given for a week at a time. With 5 ms there would be a billion timeslices.
    let rules = Rules { parameters: "reserve = \"0cpu\", quantum = \"168h\"", ..ATROPOS };
    let trace = crate::sets::run(&host, &rules, &tasks);
    check_slices(&trace, &tasks).expect("every slice is received");
    check_time(&trace, &host).expect("CPU time is consistent");
}
