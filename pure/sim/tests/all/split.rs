//! Guarantees for vCPUs that are split over several CPUs and for the vCPUs beside them, on the
//! simulated host for random sets of vCPUs. Numbers are in nanoseconds, without rounding.

use std::collections::BTreeSet;

use crate::sets::{
    Account, EXACT, Host, Rules, Task, accounts, check_slices, check_slices_but, check_time,
    run_admitted, set,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use slackline_trace::Record;
use slackline_units::Span;

const EDF: Rules = Rules {
    name: "edf",
    parameters: "reserve = \"0cpu\", place = \"split\"",
    share: |_, task, slice| {
        let Task { period, is_exact, .. } = task;
        format!("slice = \"{slice}ns\", period = \"{period}ns\", exact = {is_exact}")
    },
};

const SEDF: Rules = Rules {
    name: "sedf",
    parameters: "reserve = \"0cpu\", place = \"split\"",
    share: |_, task, slice| {
        let Task { period, is_exact, .. } = task;
        format!("slice = \"{slice}ns\", period = \"{period}ns\", extra = {}", !is_exact)
    },
};

/// Drops vCPUs with slices below 5 us, which `sedf` refuses.
fn long_enough(mut tasks: Vec<Task>) -> Vec<Task> {
    let is_long = |slice: u64| slice >= 5_000;
    tasks.retain(|task| is_long(task.slice) && task.change.is_none_or(|(_, slice)| is_long(slice)));
    tasks
}

/// Random sets of vCPUs, one set for each CPU. Each set reserves most of a CPU. Also draws the time
/// at which each vCPU joins.
fn sets() -> impl Strategy<Value = (usize, Vec<Task>, Vec<u64>)> {
    let each = (1..=3_u64).prop_flat_map(|free| set(4, 1_000_000 - 20_000 * free));
    let sets = prop::collection::vec(each, 2..=4);
    let come = prop_oneof![
        1 => Just(vec![0; 16]),
        2 => prop::collection::vec(0..60_000_000_u64, 16),
    ];
    (sets, come).prop_flat_map(|(sets, come)| {
        (Just(sets.len()), Just(sets.concat()).prop_shuffle(), Just(come))
    })
}

/// Returns the number of vCPUs that ran on several CPUs.
fn split(trace: &[Record], tasks: &[Task]) -> usize {
    let ran = trace.iter().filter_map(|record| match record {
        Record::Ran { vcpu, cpu, .. } => Some((vcpu.slot(), *cpu)),
        _ => None,
    });
    let ran: BTreeSet<_> = ran.collect();
    (0..tasks.len()).filter(|slot| ran.iter().filter(|(who, _)| who == slot).count() > 1).count()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn admitted_vcpus_miss_no_deadline_under_split_placement((cpus, tasks, come) in sets()) {
        let host = Host { cpus, ..EXACT };
        let all = [(EDF, tasks.clone()), (SEDF, long_enough(tasks))];
        for (rules, tasks) in all {
            let (trace, tasks) = run_admitted(&host, &rules, (tasks, come.clone()));
            check_slices(&trace, &tasks)?;
            check_time(&trace, &host)?;
        }
    }

    /// About half of the reservations change, each at a random time. They grow or shrink, and their
    /// vCPUs can become split or unsplit. A vCPU whose reservation changes must receive its new
    /// slice from its second new period on. All other vCPUs receive every slice.
    #[test]
    fn reservation_change_under_split_placement_causes_no_deadline_miss(
        (cpus, tasks, come) in sets(),
        changes in prop::collection::vec(
            prop::option::of((60_000_000..300_000_000_u64, 1..=1_500_u64)),
            16,
        ),
    ) {
        let mut tasks = tasks;
        for (task, change) in tasks.iter_mut().zip(changes) {
            let slice = |part: u64| (task.slice * part / 1_000).clamp(1, task.period);
            task.change = change.map(|(at, part)| (at, slice(part)));
        }
        let host = Host { cpus, ..EXACT };
        let all = [(EDF, tasks.clone()), (SEDF, long_enough(tasks))];
        for (rules, tasks) in all {
            let (trace, tasks) = run_admitted(&host, &rules, (tasks, come.clone()));
            check_slices_but(&trace, &tasks, |got| {
                let new = got.promises.get(1).map(|(_, new)| new.reservation.slice());
                got.advance().max(new.unwrap_or(Span::ZERO))
            })?;
            check_time(&trace, &host)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// On one CPU no vCPU can be split, and the trace is the same as without splitting.
    #[test]
    fn split_placement_leaves_the_trace_on_one_cpu_unchanged(
        tasks in set(5, 900_000),
        changes in prop::collection::vec((1..300_000_000_u64, 1..=1_500_u64), 5),
    ) {
        let mut tasks = tasks;
        for (task, (at, part)) in tasks.iter_mut().zip(changes) {
            task.change = Some((at, (task.slice * part / 1_000).clamp(1, task.period)));
        }
        let parameters = "reserve = \"0cpu\"";
        for (rules, tasks) in [(EDF, tasks.clone()), (SEDF, long_enough(tasks))] {
            let come = vec![0; tasks.len()];
            let spread = Rules { parameters, ..rules };
            let spread = run_admitted(&EXACT, &spread, (tasks.clone(), come.clone()));
            let split = run_admitted(&EXACT, &rules, (tasks, come));
            prop_assert_eq!(spread.0, split.0);
        }
    }
}

/// Rules of `sedf` with a balancer. A vCPU with a slice of a nanosecond effectively receives slack
/// only.
const fn balanced(parameters: &'static str) -> Rules {
    let share = |place, task: &Task, slice| match slice {
        1 => format!("extra-weight = {}", 1 + place),
        _ => (SEDF.share)(place, task, slice),
    };
    Rules { name: "sedf", parameters, share }
}

const BALANCED: [Rules; 3] = [
    balanced("reserve = \"0cpu\", place = \"split\", balancer = \"thesis\""),
    balanced(
        "reserve = \"0cpu\", place = \"split\", balancer = \"repaired\", slack = \"weighted\"",
    ),
    balanced("reserve = \"0cpu\", place = \"split\", balancer = \"planned\", quantum = \"3ms\""),
];

/// Length of a run with two calls of the balancer, in nanoseconds.
const TWO_BALANCER_CALLS: u64 = 1_300_000_000;

/// Returns at most `most` tasks. The last three are vCPUs that receive slack only.
fn with_best_effort(tasks: Vec<Task>, most: usize) -> Vec<Task> {
    let mut tasks = long_enough(tasks);
    let best_effort =
        Task { slice: 1, period: 1, is_exact: false, sleeps: Vec::new(), change: None };
    tasks.truncate(most - 3);
    tasks.extend([&best_effort; 3].map(Task::clone));
    tasks
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Three vCPUs receive slack only, and a balancer migrates them between CPUs.
    #[test]
    fn balancer_migrating_best_effort_vcpus_causes_no_deadline_miss(
        (cpus, tasks, come) in sets(),
        rules in 0..BALANCED.len(),
    ) {
        let host = Host { cpus, length: TWO_BALANCER_CALLS, ..EXACT };
        let tasks = with_best_effort(tasks, come.len());
        let (trace, tasks) = run_admitted(&host, &BALANCED[rules], (tasks, come));
        check_slices(&trace, &tasks[..tasks.len() - 3])?;
        check_time(&trace, &host)?;
    }

    /// The host has one vCPU more than CPUs. The vCPUs differ only in their periods and together
    /// reserve 0.9 of all CPUs, so no two fit on one CPU. Timeslices overrun, and the next subtask
    /// or slice is shortened by the overrun. So under `sedf` without slack, each vCPU has received
    /// at most its slices and `LATENESS`, the maximum lateness of a timer.
    #[test]
    fn total_split_vcpu_overrun_never_exceeds_lateness_of_one_timer(
        periods in prop::collection::vec(5_000_000..50_000_000_u64, 3..=5),
    ) {
        const LATENESS: u64 = 10_000;
        let cpus = periods.len() - 1;
        let host = Host { cpus, lateness: LATENESS, length: 1_000_000_000 };
        let task = |period: u64| {
            let slice = period / 1_000 * (900 * cpus as u64 / (cpus as u64 + 1));
            Task { slice, period, is_exact: true, sleeps: Vec::new(), change: None }
        };
        let tasks: Vec<Task> = periods.iter().copied().map(task).collect();
        let come = vec![0; tasks.len()];
        let parameters = "reserve = \"0cpu\", place = \"split\", slack = \"weighted\"";
        let rules = Rules { parameters, ..SEDF };
        let (trace, tasks) = run_admitted(&host, &rules, (tasks, come));
        check_time(&trace, &host)?;
        // If admission refuses a vCPU, none has to be split.
        prop_assume!(tasks.len() == periods.len());
        prop_assert!(split(&trace, &tasks) > 0);
        for Account { slot, period, had, owed } in accounts(&trace, tasks.len()) {
            let most = owed + Span::from_ns(LATENESS);
            prop_assert!(had <= most, "t{slot} had {had} of {owed}, {period}");
        }
    }
}

#[test]
fn random_task_sets_of_split_placement_tests_contain_split_vcpus() {
    for rules in [EDF, SEDF] {
        let mut runner = TestRunner::deterministic();
        let mut count = 0;
        for _ in 0..50 {
            let (cpus, tasks, come) =
                sets().new_tree(&mut runner).expect("the strategy yields a set").current();
            let tasks = long_enough(tasks);
            let (trace, tasks) = run_admitted(&Host { cpus, ..EXACT }, &rules, (tasks, come));
            count += split(&trace, &tasks);
        }
        assert!(count > 25, "{}: {count} in 50 sets", rules.name);
    }
}

/// In the runs with balancers, vCPUs with a reservation are split, and balancers migrate vCPUs that
/// receive slack only.
#[test]
fn task_sets_of_balancer_tests_contain_split_and_migrating_vcpus() {
    for rules in BALANCED {
        let mut runner = TestRunner::deterministic();
        let (mut reserved, mut best_effort) = (0, 0);
        for _ in 0..20 {
            let (cpus, tasks, come) =
                sets().new_tree(&mut runner).expect("the strategy yields a set").current();
            let host = Host { cpus, length: TWO_BALANCER_CALLS, ..EXACT };
            let tasks = with_best_effort(tasks, come.len());
            let (trace, tasks) = run_admitted(&host, &rules, (tasks, come));
            let of_reserved = split(&trace, &tasks[..tasks.len() - 3]);
            reserved += of_reserved;
            best_effort += split(&trace, &tasks) - of_reserved;
        }
        let both = (reserved, best_effort);
        assert!(reserved > 10 && best_effort > 10, "{}: {both:?} in 20 sets", rules.parameters);
    }
}
