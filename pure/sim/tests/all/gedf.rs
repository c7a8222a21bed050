//! Guarantees of global earliest deadline first on the simulated host, for random sets of vCPUs.
//! Numbers are in nanoseconds, without rounding.

use crate::sets::{EXACT, Host, Rules, Task, check_slices, check_time, set};
use proptest::prelude::*;
use slackline_trace::Record;
use slackline_units::{Span, Time};

const MS: u64 = 1_000_000;

const GEDF: Rules = Rules {
    name: "gedf",
    parameters: "reserve = \"0cpu\"",
    share: |_, task, slice| {
        let Task { period, is_exact, .. } = task;
        format!("budget = \"{slice}ns\", period = \"{period}ns\", extra = {}", !is_exact)
    },
};

/// Drops vCPUs below the minimum budget, and makes all others always runnable.
fn always_awake(tasks: Vec<Task>) -> Vec<Task> {
    let awake = tasks.into_iter().map(|task| Task { sleeps: Vec::new(), ..task });
    awake.filter(|task| task.slice >= 10_000).collect()
}

/// Returns start and end of each run interval in which the vCPU used its budget (not slack).
fn due_runs(trace: &[Record], slot: usize) -> Vec<(Time, Time)> {
    let runs = trace.iter().filter_map(|record| match *record {
        Record::Ran { vcpu, from, to, due: true, .. } if vcpu.slot() == slot => Some((from, to)),
        _ => None,
    });
    runs.collect()
}

/// Bound of Devi and Anderson (2008) on the tardiness of a job under global EDF on m CPUs, rounded
/// up. E is the sum of the m - 1 largest budgets, U the sum of the m - 2 largest shares. The bound
/// is (E - smallest budget) / (m - U) plus `own`, the budget of the job itself.
fn bound(tasks: &[Task], cpus: usize, own: u64) -> u64 {
    let largest = |mut numbers: Vec<u128>, count: usize| -> u128 {
        numbers.sort_unstable();
        numbers.iter().rev().take(count).sum()
    };
    let budgets: Vec<u128> = tasks.iter().map(|task| u128::from(task.slice)).collect();
    let least = budgets.iter().copied().min().unwrap_or(0);
    // Shares are in billionths of a CPU, rounded up.
    let shares = tasks
        .iter()
        .map(|task| (u128::from(task.slice) * 1_000_000_000).div_ceil(u128::from(task.period)));
    let above = largest(budgets, cpus - 1).saturating_sub(least) * 1_000_000_000;
    let below = cpus as u128 * 1_000_000_000 - largest(shares.collect(), cpus.saturating_sub(2));
    u64::try_from(above.div_ceil(below)).expect("the bound is a short time") + own
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn gedf_delivers_each_budget_in_every_period_on_full_cpu(tasks in set(7, 1_000_000)) {
        let tasks = always_awake(tasks);
        let trace = crate::sets::run(&EXACT, &GEDF, &tasks);
        check_slices(&trace, &tasks)?;
        check_time(&trace, &EXACT)?;
    }

    /// With `asleep = "trimmed"`, every vCPU that stays runnable receives its budget in every
    /// period, even if other vCPUs block and wake.
    #[test]
    fn gedf_with_trimmed_budgets_gives_runnable_vcpus_each_slice(tasks in set(7, 1_000_000)) {
        let tasks: Vec<Task> = tasks.into_iter().filter(|task| task.slice >= 10_000).collect();
        let parameters = "reserve = \"0cpu\", asleep = \"trimmed\"";
        let trace = crate::sets::run(&EXACT, &Rules { parameters, ..GEDF }, &tasks);
        check_slices(&trace, &tasks)?;
        check_time(&trace, &EXACT)?;
    }

    /// Several CPUs are reserved to the last nanosecond. The tardiness of every budget is within
    /// the bound of Devi and Anderson, which is at most the bound that the manual page states.
    #[test]
    fn gedf_tardiness_stays_within_the_documented_bound_on_full_cpus(
        parts in prop::collection::vec(set(4, 1_000_000), 2..=4),
    ) {
        let host = Host { cpus: parts.len(), length: 200 * MS, ..EXACT };
        let tasks = always_awake(parts.concat());
        let trace = crate::sets::run(&host, &GEDF, &tasks);
        check_time(&trace, &host)?;
        let largest = tasks.iter().map(|task| task.slice).max().unwrap_or(0);
        let in_the_page = largest * (host.cpus as u64 + 1) / 2;
        for (slot, task) in tasks.iter().enumerate() {
            let bound = bound(&tasks, host.cpus, task.slice);
            prop_assert!(bound <= in_the_page + 1, "{bound} ns, {in_the_page} ns");
            let (mut had, mut jobs) = (0, 0);
            for (from, to) in due_runs(&trace, slot) {
                had += (to - from).ns();
                // This interval completes these jobs, the last one by its end.
                while (jobs + 1) * task.slice <= had {
                    jobs += 1;
                    let end = to.ns() - (had - jobs * task.slice);
                    let deadline = jobs * task.period;
                    prop_assert!(end <= deadline + bound, "t{slot}: job {jobs} at {end}");
                }
            }
            let passed = host.length.saturating_sub(bound) / task.period;
            prop_assert!(jobs >= passed, "t{slot} has had {jobs} budgets, not {passed}");
        }
    }

    /// No CPU is ever idle if at least as many vCPUs may use slack (extra time) as there are CPUs.
    #[test]
    fn gedf_leaves_no_cpu_idle_if_enough_vcpus_use_slack(
        parts in prop::collection::vec(set(4, 500_000), 2..=3),
    ) {
        let host = Host { cpus: parts.len(), length: 100 * MS, ..EXACT };
        let tasks = always_awake(parts.concat());
        prop_assume!(tasks.iter().filter(|task| !task.is_exact).count() >= host.cpus);
        let trace = crate::sets::run(&host, &GEDF, &tasks);
        let used = trace.iter().map(|record| match record {
            Record::Ran { used, .. } => *used,
            _ => Span::ZERO,
        });
        let used: Span = used.sum();
        prop_assert_eq!(used, Span::from_ns(host.length) * host.cpus as u64);
    }

    /// A timeslice overruns by at most `LATENESS`, the maximum lateness of a timer. The overrun is
    /// deducted from the next budget. So in the whole run, a vCPU receives at most `LATENESS` more
    /// than its budgets. It lacks at most two budgets plus `LATENESS`, because a budget can be
    /// tardy.
    #[test]
    fn total_overrun_under_gedf_never_exceeds_lateness_of_one_timer(
        parts in prop::collection::vec(set(3, 500_000), 1..=3),
    ) {
        const LATENESS: u64 = 10_000;
        let host =
            Host { cpus: parts.len(), lateness: LATENESS, length: 1_000 * MS };
        let exact = |task: Task| Task { is_exact: true, ..task };
        let tasks: Vec<Task> = always_awake(parts.concat()).into_iter().map(exact).collect();
        let trace = crate::sets::run(&host, &GEDF, &tasks);
        check_time(&trace, &host)?;
        for (slot, task) in tasks.iter().enumerate() {
            let had: u64 =
                due_runs(&trace, slot).iter().map(|&(from, to)| (to - from).ns()).sum();
            let (whole, begun) = (host.length / task.period, host.length.div_ceil(task.period));
            prop_assert!(had <= begun * task.slice + LATENESS, "t{slot} had {had}");
            let least = (whole * task.slice).saturating_sub(2 * task.slice + LATENESS);
            prop_assert!(had >= least, "t{slot} had {had}, not {least}");
        }
    }
}

/// Budgets and periods of up to a year, the longest in a scenario, are exact to the nanosecond.
#[test]
fn gedf_budgets_of_one_year_periods_are_exact() {
    const YEAR: u64 = 365 * 24 * 3_600 * 1_000 * MS;
    let task =
        |slice, period| Task { slice, period, is_exact: true, sleeps: Vec::new(), change: None };
    let tasks = [task(YEAR / 2, YEAR), task(YEAR / 20, YEAR / 5), task(YEAR / 8, YEAR / 2)];
    let host = Host { length: YEAR, ..EXACT };
    let trace = crate::sets::run(&host, &GEDF, &tasks);
    check_slices(&trace, &tasks).expect("every budget is received");
    check_time(&trace, &host).expect("CPU time is consistent");
}
