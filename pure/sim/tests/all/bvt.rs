//! Guarantees of borrowed virtual time on the simulated host, for random sets of vCPUs. Numbers are
//! in nanoseconds, without rounding.

use std::fmt::Write as _;

use crate::sets::work;
use proptest::prelude::*;
use slackline_scenario::Scenario;
use slackline_trace::Record;

/// Parameters of a vCPU in a random set.
#[derive(Clone, Debug)]
struct Task {
    weight: u64,
    /// Pairs of a time to compute and a time to sleep, in nanoseconds. Empty for a vCPU that is
    /// always runnable.
    sleeps: Vec<(u64, u64)>,
}

const LENGTH: u64 = 500_000_000;

/// Usual weights, and other weights between them.
fn weight() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), Just(2), Just(3), Just(7), Just(256), 1..=40_u64]
}

fn allowance() -> impl Strategy<Value = u64> {
    prop_oneof![Just(5_000_000), 100_003..10_000_000_u64]
}

fn hogs(most: usize) -> impl Strategy<Value = Vec<Task>> {
    let hog = weight().prop_map(|weight| Task { weight, sleeps: Vec::new() });
    prop::collection::vec(hog, 2..=most)
}

fn tasks(most: usize) -> impl Strategy<Value = Vec<Task>> {
    let sleeps = prop::collection::vec((1..9_000_000_u64, 1..30_000_000_u64), 0..5);
    let task = (weight(), sleeps).prop_map(|(weight, sleeps)| Task { weight, sleeps });
    prop::collection::vec(task, 2..=most)
}

/// Runs vCPUs on one CPU without costs, by the rules of the BVT papers and with these further
/// parameters.
fn run(parameters: &str, tasks: &[Task]) -> Vec<Record> {
    let mut text = format!(
        "title = \"random\"\nlength = \"{LENGTH}ns\"\n\
         policy = {{ name = \"bvt\", {parameters} }}\n[host]\ncpus = 1\n"
    );
    for (index, Task { weight, sleeps }) in tasks.iter().enumerate() {
        let work = work(sleeps);
        let _ = write!(
            text,
            "[[domain]]\nname = \"t{index}\"\nwork = {work}\n\
             share.bvt = {{ weight = {weight} }}\n"
        );
    }
    let scenario = Scenario::read(&text).unwrap_or_else(|error| panic!("{error:?} in\n{text}"));
    let mut trace = Vec::new();
    slackline_sim::run(&scenario, &mut trace).unwrap_or_else(|error| panic!("{error}"));
    trace
}

/// Returns slot, start and end of each run interval, in order.
fn runs(trace: &[Record]) -> Vec<(usize, u64, u64)> {
    let run = |record: &Record| match *record {
        Record::Ran { vcpu, from, to, .. } => Some((vcpu.slot(), from.ns(), to.ns())),
        _ => None,
    };
    trace.iter().filter_map(run).collect()
}

/// Checks BVT's bound on unfairness. At the end of a timeslice, the virtual time of a vCPU is at
/// most the allowance C ahead of the virtual time of any other vCPU. The vCPU then waits until its
/// virtual time is the earliest. So for two always runnable vCPUs, `W_i/w_i - W_j/w_j` is at most
/// `C/w_i`, where W is the CPU time charged and w the weight. If charges are rounded up to a unit,
/// C becomes C plus one unit. The check multiplies both sides by both weights.
fn check_fairness(
    tasks: &[Task],
    runs: &[(usize, u64, u64)],
    (allowance, unit): (u64, u64),
) -> Result<(), TestCaseError> {
    let mut had = vec![0_u64; tasks.len()];
    for (index, &(who, from, to)) in runs.iter().enumerate() {
        had[who] += (to - from).next_multiple_of(unit);
        let roundings = index as u64 + 1;
        for (i, one) in tasks.iter().enumerate().filter(|(_, task)| task.sleeps.is_empty()) {
            for (j, other) in tasks.iter().enumerate().filter(|(_, task)| task.sleeps.is_empty()) {
                let ahead = u128::from(had[i]) * u128::from(other.weight);
                let behind = u128::from(had[j]) * u128::from(one.weight);
                // Clocks are exact to 2^-32 ns per charge. Timeslices are exact to a nanosecond,
                // which is the unit without rounding.
                let most = u128::from(allowance + unit) * u128::from(other.weight)
                    + (u128::from(roundings * one.weight * other.weight) >> 32);
                prop_assert!(
                    ahead <= behind + most,
                    "at {to} t{i} of weight {} had {}, t{j} of weight {} had {}",
                    one.weight,
                    had[i],
                    other.weight,
                    had[j]
                );
            }
        }
    }
    Ok(())
}

/// Checks BVT's bound for vCPUs that block. At a wake, the virtual time of vCPU i is behind the
/// virtual time of a runnable vCPU j by at most the lead of j, `C/w_j`. The virtual time of i then
/// gets ahead by at most `C/w_i`. However long vCPU i was blocked, it then gains at most the sum of
/// these two amounts over an always runnable vCPU.
fn check_awake_stretches(
    tasks: &[Task],
    trace: &[Record],
    allowance: u64,
) -> Result<(), TestCaseError> {
    let mut had = vec![0_u64; tasks.len()];
    let mut before = vec![Vec::new(); tasks.len()];
    for record in trace {
        match *record {
            Record::Woke { vcpu, .. } => before[vcpu.slot()] = had.clone(),
            Record::Ran { vcpu, used, .. } => {
                let who = vcpu.slot();
                had[who] += used.ns();
                let own = tasks[who].weight;
                for (j, other) in
                    tasks.iter().enumerate().filter(|(_, task)| task.sleeps.is_empty())
                {
                    let mine = u128::from(had[who] - before[who][who]) * u128::from(other.weight);
                    let theirs = u128::from(had[j] - before[who][j]) * u128::from(own);
                    let most = u128::from((allowance + 2) * (own + other.weight));
                    prop_assert!(mine <= theirs + most, "t{who} is ahead of t{j} since it woke");
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks that the CPU runs one vCPU at a time, and idles only while no vCPU is runnable.
fn check_time(trace: &[Record]) -> Result<(), TestCaseError> {
    let (mut until, mut awake) = (0, 0_usize);
    for record in trace {
        match *record {
            Record::Woke { at, .. } => {
                if awake == 0 {
                    until = at.ns();
                }
                awake += 1;
            }
            Record::Blocked { .. } => awake -= 1,
            Record::Ran { from, to, used, .. } => {
                prop_assert_eq!(from.ns(), until, "a CPU with runnable vCPUs always runs one");
                prop_assert_eq!(to - from, used);
                until = to.ns();
            }
            Record::Ended { at } => prop_assert!(awake == 0 || until == at.ns()),
            _ => {}
        }
    }
    Ok(())
}

/// Checks the longest wait under BVT. While vCPU `j` waits, every other vCPU `i` runs until its
/// virtual time is `C` ahead of the virtual time of `j`. The virtual time of `j` may have been
/// `C/w_j` ahead of the other vCPUs when `j` stopped. So each vCPU `i` runs for at most
/// `C(1+w_i/w_j)`, plus a nanosecond per timeslice.
fn check_waits(tasks: &[Task], trace: &[Record], allowance: u64) -> Result<(), TestCaseError> {
    let mut since: Vec<Option<u64>> = vec![None; tasks.len()];
    let mut waits = Vec::new();
    for record in trace {
        match *record {
            Record::Woke { at, vcpu } => since[vcpu.slot()] = Some(at.ns()),
            Record::Blocked { vcpu, .. } => since[vcpu.slot()] = None,
            Record::Ran { vcpu, from, to, .. } => {
                if let Some(since) = since[vcpu.slot()].replace(to.ns()) {
                    waits.push((vcpu.slot(), from.ns() - since));
                }
            }
            Record::Ended { at } => {
                let open = since.iter().enumerate();
                waits.extend(open.filter_map(|(who, since)| Some((who, at.ns() - (*since)?))));
            }
            _ => {}
        }
    }
    for (who, waited) in waits {
        let own = tasks[who].weight;
        let others = tasks.iter().enumerate().filter(|&(index, _)| index != who);
        let turns = others.map(|(_, other)| {
            allowance + (allowance * other.weight).div_ceil(own) + 2 * (1 + other.weight)
        });
        let most: u64 = turns.sum();
        prop_assert!(waited <= most, "t{who} waited {waited}, more than {most}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// In this test BVT's virtual times are not rounded. So CPU times are proportional to the
    /// weights, to within the context switch allowance.
    #[test]
    fn bvt_cpu_time_deviates_from_weights_by_at_most_allowance(
        tasks in hogs(6), allowance in allowance(),
    ) {
        let trace = run(&format!("allowance = \"{allowance}ns\""), &tasks);
        check_fairness(&tasks, &runs(&trace), (allowance, 1))?;
        check_time(&trace)?;
    }

    /// Bound of the BVT papers: the CPU times charged are proportional to the weights, to within
    /// the context switch allowance plus one minimum charging unit.
    #[test]
    fn bvt_round_up_error_never_exceeds_allowance_plus_charging_unit(
        tasks in hogs(6), allowance in allowance(), unit in 1_000..2_000_000_u64,
    ) {
        let parameters =
            format!("round_up = \"on\", unit = \"{unit}ns\", allowance = \"{allowance}ns\"");
        let trace = run(&parameters, &tasks);
        check_fairness(&tasks, &runs(&trace), (allowance, unit))?;
        check_time(&trace)?;
    }

    /// vCPUs that sleep do not change the shares of always runnable vCPUs. No vCPU waits longer
    /// than the timeslices of the other vCPUs, and no CPU time is lost.
    #[test]
    fn bvt_sleeping_vcpu_gains_no_time_and_starves_no_vcpu(
        tasks in tasks(6), allowance in allowance(),
    ) {
        let trace = run(&format!("allowance = \"{allowance}ns\""), &tasks);
        check_fairness(&tasks, &runs(&trace), (allowance, 1))?;
        check_awake_stretches(&tasks, &trace, allowance)?;
        check_waits(&tasks, &trace, allowance)?;
        check_time(&trace)?;
    }
}
