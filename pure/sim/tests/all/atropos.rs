//! What Atropos promises, on the simulated host, over random sets of vCPUs. Numbers are in
//! nanoseconds, and nothing is rounded.

use crate::sets::{
    Account, EXACT, Got, Host, Rules, Task, accounts, check_slices, check_time, set,
};
use proptest::prelude::*;
use slackline_trace::Record;
use slackline_units::{Span, Time};

const MS: u64 = 1_000_000;

/// Two of three have a latency hint; the exact have no extra time.
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

    /// Whatever the others do with their hints, and however they sleep.
    #[test]
    fn a_full_cpu_gives_everybody_a_slice_in_every_period(tasks in set(7, 1_000_000)) {
        let trace = run(&EXACT, &tasks);
        check_slices(&trace, &tasks)?;
        check_time(&trace, &EXACT)?;
    }

    /// Of two that are always awake and take extra time, neither has had more of it than the other
    /// by more than a quantum, however the rest is promised.
    #[test]
    fn slack_is_shared_to_a_quantum(tasks in set(6, 700_000)) {
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

    /// A turn ends at most one lateness late, and that is paid back: however many periods have
    /// passed, a vCPU without extra time has had at most one lateness more than its slices.
    #[test]
    fn late_timers_give_nobody_more_than_one_lateness(tasks in set(6, 500_000)) {
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

    /// On a CPU that is promised to the last, a vCPU that wakes once after a long sleep has its
    /// share of the hint within the hint, wherever in its period it wakes.
    #[test]
    fn a_hint_is_kept_on_a_full_cpu(
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
                // The hint travels as the length of the first computation.
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
        // A natural period ends everything: before its end it is owed only its share until then.
        let left = Span::from_ns(period) - (woke - Time::START) % Span::from_ns(period);
        let hint = Span::from_ns(latency).min(left);
        let due = Span::from_ns(16 * hint.ns() / 40);
        let had = Got::of(&trace, 0).within(woke, woke + hint);
        prop_assert!(had >= due, "{had} of {due} within {hint}");
    }
}

/// Lengths of time as long as a scenario may say, a year, come out to the nanosecond.
#[test]
fn a_year_is_not_too_long() {
    const YEAR: u64 = 365 * 24 * 3_600 * 1_000 * MS;
    let task =
        |slice, period, is_exact, sleeps| Task { slice, period, is_exact, sleeps, change: None };
    let tasks = [
        task(YEAR / 2, YEAR, true, Vec::new()),
        task(YEAR / 20, YEAR / 5, true, Vec::new()),
        task(YEAR / 10, YEAR / 2, false, vec![(YEAR / 30, YEAR / 3)]),
    ];
    let host = Host { length: YEAR, ..EXACT };
    // Slack in turns of a week: there would be a billion turns of 5 ms.
    let rules = Rules { parameters: "reserve = \"0cpu\", quantum = \"168h\"", ..ATROPOS };
    let trace = crate::sets::run(&host, &rules, &tasks);
    check_slices(&trace, &tasks).expect("all slices");
    check_time(&trace, &host).expect("all time");
}
