//! `gedf` by the rules of RTDS, compared with a second implementation of RTDS. That implementation
//! goes through a run in steps of 100 us and shares no code with the crate. RTDS is described in
//! section 10.2 of our reference on Xen's schedulers, which is not in this repository.

use proptest::prelude::*;
use slackline_metrics::Meter;
use slackline_scenario::Scenario;

/// Parameters of a task, in steps of 100 us. The task does `work` in each `repeat`. If it has no
/// `repeat`, it always computes.
#[derive(Clone, Copy, Debug)]
struct Task {
    budget: u64,
    period: u64,
    work: Option<(u64, u64)>,
}

impl Task {
    const fn hog(budget: u64, period: u64) -> Task {
        Task { budget, period, work: None }
    }
}

/// Returns the number of steps that each task runs under RTDS without extra time.
fn rtds(cpus: usize, tasks: &[Task], length: u64) -> Vec<u64> {
    let mut ran = vec![0; tasks.len()];
    let mut left: Vec<u64> = vec![0; tasks.len()];
    let mut budget: Vec<u64> = vec![0; tasks.len()];
    let mut runs: Vec<usize> = Vec::new();
    for now in 0..length {
        for (number, task) in tasks.iter().enumerate() {
            if now.is_multiple_of(task.period) {
                budget[number] = task.budget;
            }
            match task.work {
                Some((work, repeat)) if now.is_multiple_of(repeat) => left[number] += work,
                Some(_) => {}
                None => left[number] = 1,
            }
        }
        let deadline = |number: usize| (now / tasks[number].period + 1) * tasks[number].period;
        let wants = |number: &usize| left[*number] > 0 && budget[*number] > 0;
        let mut queue: Vec<usize> = (0..tasks.len()).filter(wants).collect();
        queue.sort_by_key(|&number| (deadline(number), !runs.contains(&number), number));
        queue.truncate(cpus);
        for &number in &queue {
            ran[number] += 1;
            left[number] -= 1;
            budget[number] -= 1;
        }
        runs = queue;
    }
    ran
}

/// Returns the CPU time of each task under `gedf`, in nanoseconds.
fn gedf(cpus: usize, tasks: &[Task], length: u64, misses: &str) -> Vec<u64> {
    let mut text = format!(
        "title = 't'\nlength = '{}us'\npolicy = {{ name = 'gedf', reserve = '0cpu', \
         overrun = 'forgive', misses = '{misses}' }}\n[host]\ncpus = {cpus}\n",
        length * 100
    );
    for (number, task) in tasks.iter().enumerate() {
        let work = match task.work {
            Some((work, repeat)) => {
                format!(
                    "kind = 'periodic', work = '{}us', period = '{}us'",
                    work * 100,
                    repeat * 100
                )
            }
            None => "kind = 'spin'".to_owned(),
        };
        text += &format!(
            "[[domain]]\nname = 'd{number}'\nwork = {{ {work} }}\n\
             share.gedf = {{ budget = '{}us', period = '{}us', extra = false }}\n",
            task.budget * 100,
            task.period * 100
        );
    }
    let scenario = Scenario::read(&text).unwrap_or_else(|error| panic!("{error:?} in\n{text}"));
    let mut meter = Meter::new(&slackline_sim::trace_header(&scenario));
    slackline_sim::run(&scenario, &mut meter).expect("the set fits");
    let summary = meter.view().expect("every vCPU has a name");
    summary.vcpus.iter().map(|vcpu| vcpu.delivered.ns()).collect()
}

/// In each period two vCPUs run for 6 ms, and the third vCPU receives the remaining 4 ms on one
/// CPU. The third vCPU still runs as the next period begins, and is not preempted. So it receives
/// its full budget in that period. The vCPU with the lowest number receives its full budget as
/// well.
#[test]
fn gedf_with_forgotten_misses_loses_the_same_budgets_as_rtds() {
    let tasks = [Task::hog(60, 100); 3];
    let by_hand = [6_000, 5_000, 5_000];
    assert_eq!(rtds(2, &tasks, 10_000), by_hand);
    assert_eq!(gedf(2, &tasks, 10_000, "forgotten"), by_hand.map(|steps| steps * 100_000));
    // One budget is late as the run ends, with 2 ms missing.
    assert_eq!(gedf(2, &tasks, 10_000, "carried"), [600_000_000, 598_000_000, 600_000_000]);
}

/// Two hogs that reserve 5 of 10 ms and a hog that reserves 8 of 20 ms miss no deadline on two
/// CPUs.
#[test]
fn gedf_delivers_feasible_budgets_with_misses_forgotten_or_carried() {
    let tasks = [Task::hog(50, 100), Task::hog(50, 100), Task::hog(80, 200)];
    let by_hand = [5_000, 5_000, 4_000];
    assert_eq!(rtds(2, &tasks, 10_000), by_hand);
    for misses in ["forgotten", "carried"] {
        assert_eq!(gedf(2, &tasks, 10_000, misses), by_hand.map(|steps| steps * 100_000));
    }
}

/// Periods of which no two have a common deadline within a run, because RTDS and `gedf` order equal
/// deadlines differently. The first common deadline is at 97 × 101, after the end of the run.
const PERIODS: [u64; 9] = [97, 101, 103, 107, 109, 113, 127, 131, 137];
const LENGTH: u64 = 96 * 101;

fn tasks() -> impl Strategy<Value = Vec<Task>> {
    let work = prop::option::of((1..120_u64, prop::sample::select(vec![30_u64, 90, 110, 250])));
    let terms = prop::collection::vec((1..100_u64, work), PERIODS.len());
    (prop::sample::subsequence(&PERIODS, 1..=PERIODS.len()), terms).prop_map(|(periods, terms)| {
        let task = |(period, (percent, work)): (u64, (u64, Option<(u64, u64)>))| Task {
            budget: (period * percent / 100).max(1),
            period,
            work: work.map(|(work, repeat)| (work.min(repeat), repeat)),
        };
        periods.into_iter().zip(terms).map(task).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn gedf_under_rtds_rules_delivers_budgets_of_the_rtds_model(
        cpus in 1..5_usize,
        tasks in tasks(),
    ) {
        // Drops the tasks that admission would refuse.
        let mut share = 0;
        let fits = |task: &Task| {
            share += task.budget * 1_000_000 / task.period + 1;
            share <= cpus as u64 * 1_000_000
        };
        let tasks: Vec<Task> = tasks.into_iter().take_while(fits).collect();
        let expected: Vec<u64> = rtds(cpus, &tasks, LENGTH).iter().map(|n| n * 100_000).collect();
        prop_assert_eq!(gedf(cpus, &tasks, LENGTH, "forgotten"), expected);
    }
}
