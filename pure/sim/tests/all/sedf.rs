//! Guarantees of simple earliest deadline first on the simulated host, for random sets of vCPUs.
//! Numbers are in nanoseconds, without rounding.

use crate::sets::{
    Account, EXACT, Got, Host, Rules, Task, a_late_sleeper, accounts, check_slices, check_time, set,
};
use proptest::prelude::*;
use slackline_scenario::Scenario;
use slackline_trace::Record;
use slackline_units::{Span, Time};

const MS: u64 = 1_000_000;

/// Weights of vCPUs that share slack, by index in the set.
const WEIGHTS: [u64; 4] = [1, 5, 64, 700];

fn share(index: usize, task: &Task, slice: u64) -> String {
    let Task { period, is_exact, .. } = task;
    let (extra, weight) = (!is_exact, WEIGHTS[index % WEIGHTS.len()]);
    format!(
        "slice = \"{slice}ns\", period = \"{period}ns\", extra = {extra}, extra-weight = {weight}"
    )
}

const BEST: Rules = Rules { name: "sedf", parameters: "reserve = \"0cpu\"", share };
const WEIGHTED: Rules = Rules { parameters: "reserve = \"0cpu\", slack = \"weighted\"", ..BEST };
const XEN: Rules = Rules { name: "sedf", parameters: "rules = \"xen-3.0.3\"", share };

/// Drops vCPUs with slices below 5 us, which `sedf` refuses.
fn long_enough(tasks: Vec<Task>) -> Vec<Task> {
    tasks.into_iter().filter(|task| task.slice >= 5_000).collect()
}

fn always(task: &Task) -> Task {
    Task { sleeps: Vec::new(), ..task.clone() }
}

/// Returns the slack that each vCPU has received so far, after each run interval.
fn slack(trace: &[Record], count: usize) -> Vec<Vec<Span>> {
    let mut had = vec![Span::ZERO; count];
    let mut steps = Vec::new();
    for record in trace {
        if let Record::Ran { vcpu, used, due: false, .. } = *record {
            had[vcpu.slot()] += used;
            steps.push(had.clone());
        }
    }
    steps
}

/// Checks that always runnable vCPUs receive slack by their weights, to within a quantum, and that
/// vCPUs with a hard limit receive none.
fn check_slack(trace: &[Record], tasks: &[Task]) -> Result<(), TestCaseError> {
    const QUANTUM: u128 = 500_000;
    let weight = |slot: usize| u128::from(WEIGHTS[slot % WEIGHTS.len()]);
    for had in slack(trace, tasks.len()) {
        let takers = (0..tasks.len()).filter(|&slot| !tasks[slot].is_exact);
        let takers: Vec<usize> = takers.collect();
        for (&a, &b) in takers.iter().flat_map(|a| takers.iter().map(move |b| (a, b))) {
            // had[a] / weight(a) - had[b] / weight(b) <= quantum / weight(a), multiplied by both
            // weights. A charge is rounded down by less than a nanosecond.
            let (of_a, of_b) = (u128::from(had[a].ns()), u128::from(had[b].ns()));
            let ahead = (of_a * weight(b)).saturating_sub(of_b * weight(a));
            let rounding = had.len() as u128 * weight(a) * weight(b);
            prop_assert!(ahead <= QUANTUM * weight(b) + rounding, "t{a} and t{b}: {had:?}");
        }
    }
    let exact = (0..tasks.len()).filter(|&slot| tasks[slot].is_exact);
    let last = slack(trace, tasks.len()).pop().unwrap_or_default();
    for slot in exact {
        prop_assert!(last.get(slot).is_none_or(|had| had.is_zero()), "t{slot} had slack");
    }
    if tasks.iter().any(|task| !task.is_exact) {
        let used = |slot| Got::of(trace, slot).within(Time::START, Time::NEVER);
        let used: Span = (0..tasks.len()).map(used).sum();
        prop_assert_eq!(used, Span::from_ns(EXACT.length), "the CPU is never idle");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Each vCPU of a fully reserved CPU receives its slice, for all sleeps of the other vCPUs.
    #[test]
    fn sedf_delivers_each_slice_in_every_period_on_full_cpu(tasks in set(7, 1_000_000)) {
        let tasks = long_enough(tasks);
        let trace = crate::sets::run(&EXACT, &BEST, &tasks);
        check_slices(&trace, &tasks)?;
        check_time(&trace, &EXACT)?;
    }

    /// `sedf` binds each vCPU to one CPU. On three CPUs, each half reserved, every vCPU receives
    /// all its slices.
    #[test]
    fn sedf_delivers_every_slice_on_three_half_reserved_cpus(
        sets in prop::collection::vec(set(3, 500_000), 3),
    ) {
        let host = Host { cpus: 3, length: 200_000_000, ..EXACT };
        let tasks = long_enough(sets.concat());
        let trace = crate::sets::run(&host, &BEST, &tasks);
        check_slices(&trace, &tasks)?;
        check_time(&trace, &host)?;
    }

    /// Always runnable vCPUs receive slack by their weights, to within a quantum. vCPUs are picked
    /// in order of slack received per weight, and each timeslice adds at most a quantum.
    #[test]
    fn sedf_slack_of_two_vcpus_follows_weights_within_a_quantum(tasks in set(6, 700_000)) {
        let tasks: Vec<Task> = long_enough(tasks).iter().map(always).collect();
        for rules in [&BEST, &WEIGHTED] {
            let trace = crate::sets::run(&EXACT, rules, &tasks);
            check_slices(&trace, &tasks)?;
            check_slack(&trace, &tasks)?;
        }
    }

    /// A timeslice overruns by at most `LATENESS`, the maximum lateness of a timer. The overrun is
    /// deducted from later slices. So after any number of periods, a vCPU without extra time has
    /// received at most `LATENESS` more than its slices.
    #[test]
    fn total_overrun_under_sedf_never_exceeds_lateness_of_one_timer(tasks in set(6, 500_000)) {
        const LATENESS: u64 = 10_000;
        let host = Host { lateness: LATENESS, length: 2_000 * MS, ..EXACT };
        let exact = |task: &Task| Task { is_exact: true, ..always(task) };
        let tasks: Vec<Task> = long_enough(tasks).iter().map(exact).collect();
        let trace = crate::sets::run(&host, &BEST, &tasks);
        check_time(&trace, &host)?;
        for Account { slot, period, had, owed } in accounts(&trace, tasks.len()) {
            let most = owed + Span::from_ns(LATENESS);
            prop_assert!(had <= most, "t{slot} had {had} of {owed}, {period}");
        }
    }

    /// Under Xen's rules an always runnable vCPU receives a slice in each of its periods. The first
    /// of these periods begins one slice length after the vCPU woke. That holds for any load up to
    /// a whole CPU.
    #[test]
    fn sedf_under_xen_rules_delivers_slice_per_period_after_wake(tasks in set(7, 1_000_000)) {
        let tasks: Vec<Task> = long_enough(tasks).iter().map(always).collect();
        let trace = crate::sets::run(&EXACT, &XEN, &tasks);
        check_time(&trace, &EXACT)?;
        for (slot, task) in tasks.iter().enumerate() {
            let got = Got::of(&trace, slot);
            let (slice, period) = (Span::from_ns(task.slice), Span::from_ns(task.period));
            let mut begin = Time::START + slice;
            while begin + period <= got.end {
                let had = got.within(begin, begin + period);
                prop_assert!(had >= slice, "t{slot} got {had} of {slice} from {begin}");
                begin += period;
            }
        }
    }

    /// While a timer is late, a timer that is already due can replace it. Simulated time still
    /// advances.
    #[test]
    fn simulated_time_under_sedf_never_goes_back_with_late_timers(tasks in set(7, 1_000_000)) {
        let host = Host { lateness: 3_000_000, ..EXACT };
        let tasks = long_enough(tasks);
        for rules in [&BEST, &XEN] {
            check_time(&crate::sets::run(&host, rules, &tasks), &host)?;
        }
    }
}

/// A vCPU that wakes late receives `share × rest of its period` as budget, exact to the nanosecond.
#[test]
fn sedf_vcpu_that_wakes_late_receives_an_exactly_prorated_budget() {
    for parts in [2, 4, 5, 10] {
        let tasks = a_late_sleeper(parts);
        let host = Host { length: 20_000_000, ..EXACT };
        let trace = crate::sets::run(&host, &BEST, &tasks);
        check_slices(&trace, &tasks).expect("the other vCPU receives its slices");
        let slept_until = Time::from_ns(20_000_000 - 20_000_000 / parts);
        let had = Got::of(&trace, 0).within(slept_until, Time::NEVER);
        assert_eq!(had, Span::from_ns(10_000_000 / parts), "in {parts} parts");
    }
}

/// Under burst unblocking, time used in the old period, including sleeps, counts as used in the
/// short period that follows. The vCPU has used its slice of 8.0 ms when it wakes at 16.0 ms. The
/// next period begins at 24.0 ms and lasts 1.6 ms, with a slice of 0.8 ms. This slice counts as
/// used already, so the vCPU runs again at 25.6 ms. (Sections 6.4, step 4, and 6.7 of our reference
/// on SEDF, which is not in this repository.)
#[test]
fn sedf_burst_unblocking_skips_short_period_with_used_budget() {
    let text = "title = 'burst'\nlength = '27ms'\n\
        policy = { name = 'sedf', rules = 'thesis', unblocking = 'burst', slack = 'none' }\n\
        [[domain]]\nname = 'a'\n\
        work = { kind = 'replay', list = ['400us', '1200us'] }\n\
        share.sedf = { slice = '8ms', period = '16ms', extra = false }\n";
    let scenario = Scenario::read(text).expect("the scenario is valid");
    let mut records: Vec<Record> = Vec::new();
    slackline_sim::run(&scenario, &mut records).expect("the run completes");
    let began = |record: &Record| match *record {
        Record::Ran { from, .. } => Some(from.ns() / 100_000),
        _ => None,
    };
    let began: Vec<u64> = records.iter().filter_map(began).collect();
    assert_eq!(began, [80, 96, 112, 128, 144, 256], "tenths of a millisecond");
}
