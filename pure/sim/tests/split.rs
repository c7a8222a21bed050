//! What is promised to those who are split over several CPUs, and to those beside them, on the
//! simulated host, over random sets of vCPUs. Numbers are in nanoseconds, and nothing is rounded.

#[path = "common/sets.rs"]
mod sets;

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use sets::{
    EXACT, Host, Rules, Task, check_slices, check_slices_but, check_time, run_admitted, set,
};
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

/// As many sets as CPUs, each of most of a CPU, and when everybody comes.
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

/// Those who run on several CPUs.
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
    fn nobody_who_is_admitted_misses_a_deadline((cpus, tasks, come) in sets()) {
        let host = Host { cpus, ..EXACT };
        let (trace, tasks) = run_admitted(&host, &EDF, (tasks, come));
        check_slices(&trace, &tasks)?;
        check_time(&trace, &host)?;
    }

    /// Whoever changes, grows, shrinks, becomes whole or is split, in the middle of anything. It
    /// may itself have to wait for its second period.
    #[test]
    fn nor_does_anybody_for_a_change(
        (cpus, tasks, come) in sets(),
        changes in prop::collection::vec((60_000_000..300_000_000_u64, 1..=1_500_u64), 16),
    ) {
        let mut tasks = tasks;
        for (task, (at, part)) in tasks.iter_mut().zip(changes) {
            let slice = (task.slice * part / 1_000).clamp(1, task.period);
            task.change = Some((at, slice));
        }
        let host = Host { cpus, ..EXACT };
        let (trace, tasks) = run_admitted(&host, &EDF, (tasks, come));
        check_slices_but(&trace, &tasks, |got| {
            let new = got.promises.get(1).map(|(_, new)| new.reservation.slice());
            got.advance().max(new.unwrap_or(Span::ZERO))
        })?;
        check_time(&trace, &host)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// On one CPU nobody can be split, and nothing is another way than without.
    #[test]
    fn on_one_cpu_all_is_as_it_was(
        tasks in set(5, 900_000),
        changes in prop::collection::vec((1..300_000_000_u64, 1..=1_500_u64), 5),
    ) {
        let mut tasks = tasks;
        for (task, (at, part)) in tasks.iter_mut().zip(changes) {
            task.change = Some((at, (task.slice * part / 1_000).clamp(1, task.period)));
        }
        let parameters = "reserve = \"0cpu\"";
        let spread = Rules { parameters, ..EDF };
        let come = vec![0; tasks.len()];
        let spread = run_admitted(&EXACT, &spread, (tasks.clone(), come.clone()));
        let split = run_admitted(&EXACT, &EDF, (tasks, come));
        prop_assert_eq!(spread.0, split.0);
    }
}

#[test]
fn many_are_split() {
    let mut runner = TestRunner::deterministic();
    let mut count = 0;
    for _ in 0..50 {
        let (cpus, tasks, come) = sets().new_tree(&mut runner).expect("a set").current();
        let (trace, tasks) = run_admitted(&Host { cpus, ..EXACT }, &EDF, (tasks, come));
        count += split(&trace, &tasks);
    }
    assert!(count > 25, "{count} in 50 sets");
}
