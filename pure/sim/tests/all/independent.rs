//! Ten cases of overhead, slow CPUs and idle time, computed by hand, by a second simulator and by
//! the crate's simulator.
//!
//! The second simulator is the module `steps`. This module shares no code or ideas with the crate.
//! It has no events or timers, and steps through a run microsecond by microsecond.

use slackline_metrics::Meter;
use slackline_scenario::Scenario;
use slackline_trace::OverheadKind;
use slackline_units::{Span, Time};
use steps::{Host, Sums, Task};

/// Round robin in steps of 1 us. Numbers are in microseconds.
mod steps {
    /// A program on one CPU that has `work` to do in every period. Without a period it does `work`
    /// once and ends.
    #[derive(Clone, Copy)]
    pub(crate) struct Task {
        pub(crate) cpu: usize,
        pub(crate) work: u64,
        pub(crate) period: Option<u64>,
        pub(crate) dispatch: u64,
        pub(crate) cache: u64,
        /// Time at which the task migrates, and the CPU to which it migrates.
        pub(crate) moves: Option<(u64, usize)>,
    }

    impl Task {
        pub(crate) const NOTHING: Task =
            Task { cpu: 0, work: 0, period: None, dispatch: 0, cache: 0, moves: None };
    }

    /// Costs of the host. `slow` returns the work that a CPU does in 1,000 steps while a given
    /// number of CPUs is busy.
    pub(crate) struct Host {
        pub(crate) length: u64,
        pub(crate) cpus: usize,
        pub(crate) quantum: u64,
        pub(crate) switch: u64,
        pub(crate) tick: u64,
        pub(crate) staggered: bool,
        pub(crate) migrate: u64,
        pub(crate) slow: fn(busy: usize) -> u64,
    }

    /// A host with one CPU and no costs, for one second, with timeslices of 10 ms.
    pub(crate) const PLAIN: Host = Host {
        length: 1_000_000,
        cpus: 1,
        quantum: 10_000,
        switch: 0,
        tick: 0,
        staggered: false,
        migrate: 0,
        slow: |_| 1_000,
    };

    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Sums {
        /// For each task: steps in its program, its work in thousandths of a step at full speed,
        /// and the end of its first job (`None` if no job has ended).
        pub(crate) tasks: Vec<(u64, u64, Option<u64>)>,
        /// Overhead of switches, migrations, refills and ticks on each CPU. `idle` is the idle
        /// time.
        pub(crate) overhead: Vec<[u64; 4]>,
        pub(crate) idle: Vec<u64>,
    }

    #[derive(Clone, Default)]
    struct Cpu {
        queue: Vec<usize>,
        runs: Option<usize>,
        last: Option<usize>,
        was_idle: bool,
        turn: u64,
        /// Unpaid overhead by kind, one step per entry, in the order in which it is paid.
        debt: std::collections::VecDeque<usize>,
        /// Steps in which tasks have run on this CPU. `used_as_left` has the value of `used` at the
        /// time at which each task last stopped on this CPU.
        used: u64,
        used_as_left: Vec<u64>,
    }

    pub(crate) fn run(host: &Host, tasks: &[Task]) -> Sums {
        let mut sums = Sums {
            tasks: vec![(0, 0, None); tasks.len()],
            overhead: vec![[0; 4]; host.cpus],
            idle: vec![0; host.cpus],
        };
        let empty = Cpu { was_idle: true, used_as_left: vec![0; tasks.len()], ..Cpu::default() };
        let mut cpus = vec![empty; host.cpus];
        let mut left: Vec<u64> = vec![0; tasks.len()];
        let mut on: Vec<usize> = tasks.iter().map(|task| task.cpu).collect();
        let mut came_from: Vec<Option<usize>> = vec![None; tasks.len()];
        for now in 0..host.length {
            for (number, task) in tasks.iter().enumerate() {
                if task.period.map_or(now == 0, |period| now.is_multiple_of(period)) {
                    left[number] += task.work * 1_000;
                    let cpu = &mut cpus[on[number]];
                    if cpu.runs != Some(number) && !cpu.queue.contains(&number) {
                        cpu.queue.push(number);
                    }
                }
                if let Some((at, to)) = task.moves.filter(|&(at, _)| at == now) {
                    let from = std::mem::replace(&mut on[number], to);
                    let there = &mut cpus[from];
                    there.queue.retain(|&other| other != number);
                    if there.runs == Some(number) {
                        there.runs = None;
                        there.debt.clear();
                    }
                    came_from[number] = Some(from).filter(|_| at > 0);
                    cpus[to].queue.push(number);
                }
            }
            for (index, cpu) in cpus.iter_mut().enumerate() {
                let phase = if host.staggered { 10_000 * index / host.cpus } else { 0 } as u64;
                if host.tick > 0 && now > phase && (now - phase).is_multiple_of(10_000) {
                    cpu.debt.extend((0..host.tick).map(|_| 3));
                }
                choose(host, cpu, tasks, &left, &mut came_from);
            }
            let busy = cpus.iter().filter(|cpu| cpu.runs.is_some()).count();
            for (index, cpu) in cpus.iter_mut().enumerate() {
                let kind = cpu.debt.pop_front();
                if let Some(kind) = kind {
                    sums.overhead[index][kind] += 1;
                }
                let Some(runs) = cpu.runs else {
                    sums.idle[index] += u64::from(kind.is_none());
                    continue;
                };
                cpu.turn += 1;
                cpu.used += 1;
                if kind.is_none() {
                    let work = (host.slow)(busy).min(left[runs]);
                    left[runs] -= work;
                    sums.tasks[runs].0 += 1;
                    sums.tasks[runs].1 += work;
                }
                if left[runs] == 0 && cpu.debt.is_empty() {
                    cpu.used_as_left[runs] = cpu.used;
                    sums.tasks[runs].2.get_or_insert(now + 1);
                    cpu.runs = None;
                }
            }
        }
        sums
    }

    /// Ends the timeslice that has expired and begins the next timeslice.
    fn choose(
        host: &Host,
        cpu: &mut Cpu,
        tasks: &[Task],
        left: &[u64],
        came_from: &mut [Option<usize>],
    ) {
        if let Some(runs) = cpu.runs.filter(|_| cpu.turn == host.quantum) {
            cpu.turn = 0;
            if cpu.queue.is_empty() {
                return;
            }
            cpu.used_as_left[runs] = cpu.used;
            cpu.queue.push(runs);
            cpu.runs = None;
        }
        if cpu.runs.is_some() {
            return;
        }
        if cpu.queue.is_empty() {
            cpu.was_idle = true;
            return;
        }
        let next = cpu.queue.remove(0);
        let task = &tasks[next];
        if cpu.last != Some(next) {
            cpu.debt.extend((0..host.switch).map(|_| 0));
        }
        if cpu.last != Some(next) || cpu.was_idle {
            cpu.debt.extend((0..task.dispatch).map(|_| 2));
        }
        let has_moved = came_from[next].take().is_some();
        if has_moved {
            cpu.debt.extend((0..host.migrate).map(|_| 1));
        }
        let is_first = cpu.used_as_left[next] == 0 && left[next] == task.work * 1_000;
        let displaced = cpu.used - cpu.used_as_left[next];
        let refill = if has_moved || is_first { task.cache } else { displaced.min(task.cache) };
        cpu.debt.extend((0..refill).map(|_| 2));
        (cpu.runs, cpu.last, cpu.was_idle, cpu.turn) = (Some(next), Some(next), false, 0);
    }
}

/// Runs a case in the crate's simulator.
fn ours(host: &Host, more: &str, tasks: &[Task]) -> Sums {
    let ticks = if host.staggered { "staggered" } else { "aligned" };
    let mut text = format!(
        "title = 't'\nlength = '{}us'\npolicy = {{ name = 'round-robin', quantum = '{}us' }}\n\
         [host]\ncpus = {}\nswitch = '{}us'\ntick_cost = '{}us'\nticks = '{ticks}'\n\
         migrate = '{}us'\n{more}\n",
        host.length, host.quantum, host.cpus, host.switch, host.tick, host.migrate
    );
    for (number, task) in tasks.iter().enumerate() {
        let Task { cpu, work, dispatch, cache, .. } = task;
        let work = match task.period {
            Some(period) => format!("kind = 'periodic', period = '{period}us', work = '{work}us'"),
            None => format!("kind = 'batch', total = '{work}us'"),
        };
        text += &format!(
            "[[domain]]\nname = 'd{number}'\ncpus = [{cpu}]\nwork = {{ {work} }}\n\
             dispatch = '{dispatch}us'\ncache = '{cache}us'\n"
        );
        if let Some((at, to)) = task.moves {
            text += &format!("[[change]]\nat = '{at}us'\ndomain = 'd{number}'\ncpus = [{to}]\n");
        }
    }
    let scenario = Scenario::read(&text).unwrap_or_else(|error| panic!("{error:?} in\n{text}"));
    let mut meter = Meter::new(&slackline_sim::trace_header(&scenario));
    let finished = slackline_sim::run(&scenario, &mut meter).expect("the run completes");
    let summary = meter.view().expect("every vCPU has a name");
    let us = |span: Span| {
        assert_eq!(span.ns() % 1_000, 0, "{span}");
        span.ns() / 1_000
    };
    let kinds =
        [OverheadKind::Switch, OverheadKind::Migration, OverheadKind::Refill, OverheadKind::Tick];
    let overhead = summary.cpus.iter().map(|cpu| {
        let overheads = cpu.overheads.expect("a simulation records overhead");
        kinds.map(|kind| us(overheads.of(kind)))
    });
    let tasks = summary.vcpus.iter().map(|vcpu| {
        let done = finished.done.iter().find(|(_, done)| *done == vcpu.id);
        let done = done.map(|(at, _)| us(at.since(Time::START)));
        let program = vcpu.program().expect("a simulation records time in programs");
        let work = vcpu.work().expect("a simulation records work");
        (us(program), work.ns(), done)
    });
    let idle = summary.cpus.iter().map(|cpu| us(cpu.idle));
    Sums { tasks: tasks.collect(), overhead: overhead.collect(), idle: idle.collect() }
}

/// Checks that both simulators give the numbers that were computed by hand.
fn agree(host: &Host, more: &str, tasks: &[Task], by_hand: &Sums) {
    // A periodic task never ends, so the second simulator's end of a job does not count.
    let mut by_steps = steps::run(host, tasks);
    let periodic = |(sums, task): (&mut (u64, u64, Option<u64>), &Task)| {
        sums.2 = sums.2.filter(|_| task.period.is_none());
    };
    by_steps.tasks.iter_mut().zip(tasks).for_each(periodic);
    assert_eq!(&by_steps, by_hand, "the second simulator gives the numbers computed by hand");
    let ours = ours(host, more, tasks);
    assert_eq!(&ours, by_hand, "the crate's simulator gives the numbers computed by hand");
}

/// A program that never ends.
const HOG: Task = Task { work: 1_000_000_000, ..Task::NOTHING };

fn sums(tasks: &[(u64, u64, Option<u64>)], overhead: &[[u64; 4]], idle: &[u64]) -> Sums {
    Sums { tasks: tasks.to_vec(), overhead: overhead.to_vec(), idle: idle.to_vec() }
}

/// 980 ms of work end with the 99th tick of 200 us. The 100th tick meets an idle CPU.
#[test]
fn tick_at_the_end_of_a_timeslice_costs_cpu_time() {
    let host = Host { length: 1_005_000, tick: 200, ..steps::PLAIN };
    let batch = Task { work: 490_000, ..Task::NOTHING };
    let (a, b) = ((490_000, 490_000_000, Some(989_800)), (490_000, 490_000_000, Some(999_800)));
    agree(&host, "", &[batch; 2], &sums(&[a, b], &[[0, 0, 0, 20_000]], &[5_000]));
}

/// Each of 1,000 timeslices begins with a switch that costs 100 us.
#[test]
fn cost_of_a_context_switch_is_charged_in_every_timeslice() {
    let host = Host { quantum: 1_000, switch: 100, ..steps::PLAIN };
    let each = (450_000, 450_000_000, None);
    agree(&host, "", &[HOG; 2], &sums(&[each; 2], &[[100_000, 0, 0, 0]], &[0]));
}

/// Work on two CPUs and a third program. Each CPU has 90 % of its speed while both are busy, but a
/// switch takes its full cost.
#[test]
fn bus_contention_slows_work_but_not_context_switches() {
    let slow = |busy| if busy > 1 { 900 } else { 1_000 };
    let host = Host { cpus: 2, quantum: 1_000, switch: 100, slow, ..steps::PLAIN };
    let (each, third) = ((450_000, 405_000_000, None), (999_900, 899_910_000, None));
    let tasks = [HOG, HOG, Task { cpu: 1, ..HOG }];
    let overhead = [[100_000, 0, 0, 0], [100, 0, 0, 0]];
    agree(&host, "bus = '90%'", &tasks, &sums(&[each, each, third], &overhead, &[0, 0]));
}

/// 200 ms of work take 222 ms with 22 ticks of 1 ms. 77 more ticks meet an idle CPU.
#[test]
fn idle_cpu_tick_time_is_not_counted_as_idle_time() {
    let host = Host { tick: 1_000, ..steps::PLAIN };
    let batch = Task { work: 200_000, ..Task::NOTHING };
    let done = (200_000, 200_000_000, Some(222_000));
    agree(&host, "", &[batch], &sums(&[done], &[[0, 0, 0, 99_000]], &[701_000]));
}

/// Each CPU has 99 ticks. On CPU 0 every second tick falls on the start of a job of 5 ms, which is
/// released every 20 ms.
#[test]
fn staggered_ticks_cost_busy_and_idle_cpus_equal_time() {
    let host = Host { cpus: 2, tick: 500, staggered: true, ..steps::PLAIN };
    let task = Task { work: 5_000, period: Some(20_000), ..Task::NOTHING };
    let overhead = [[0, 0, 0, 49_500]; 2];
    let idle = [1_000_000 - 250_000 - 49_500, 1_000_000 - 49_500];
    agree(&host, "", &[task], &sums(&[(250_000, 250_000_000, None)], &overhead, &idle));
}

/// 100 jobs of 1 ms begin after idle time, each with a dispatch cost of 35 us.
#[test]
fn dispatch_cost_is_charged_for_each_job_after_idle_time() {
    let task = Task { work: 1_000, period: Some(10_000), dispatch: 35, ..Task::NOTHING };
    let by_hand = sums(&[(100_000, 100_000_000, None)], &[[0, 0, 3_500, 0]], &[896_500]);
    agree(&steps::PLAIN, "", &[task], &by_hand);
}

/// Each of 200 timeslices of 5 ms begins with a cache refill that costs 300 us.
#[test]
fn cost_of_a_cache_refill_is_charged_in_every_timeslice() {
    let host = Host { quantum: 5_000, ..steps::PLAIN };
    let hog = Task { cache: 300, ..HOG };
    let each = (470_000, 470_000_000, None);
    agree(&host, "", &[hog; 2], &sums(&[each; 2], &[[0, 0, 60_000, 0]], &[0]));
}

/// Filling the cache takes 300 us, and happens once. Then each of 50 jobs of 100 us evicts a third
/// of the cache, which takes 100 us to refill.
#[test]
fn cache_refill_cost_is_limited_to_the_evicted_part() {
    let job = Task { work: 100, period: Some(20_000), ..Task::NOTHING };
    let hog = (1_000_000 - 5_000 - 5_300, 1_000 * (1_000_000 - 5_000 - 5_300), None);
    let by_hand = sums(&[hog, (5_000, 5_000_000, None)], &[[0, 0, 5_300, 0]], &[0]);
    agree(&steps::PLAIN, "", &[Task { cache: 300, ..HOG }, job], &by_hand);
}

/// The task migrates from CPU 0 to CPU 1 after half a second: a switch on each CPU, and 500 us for
/// the migration.
#[test]
fn cost_of_a_migration_is_charged_on_the_new_cpu() {
    let host = Host { cpus: 2, switch: 100, migrate: 500, ..steps::PLAIN };
    let task = Task { moves: Some((500_000, 1)), ..HOG };
    let overhead = [[100, 0, 0, 0], [100, 500, 0, 0]];
    let by_hand = sums(&[(999_300, 999_300_000, None)], &overhead, &[500_000; 2]);
    agree(&host, "", &[task], &by_hand);
}

/// The switch and the ticks leave 900 ms to each of the two threads of a core. In that time each
/// thread works at 65 % of full speed.
#[test]
fn busy_sibling_thread_slows_work_but_not_switches_or_ticks() {
    let slow = |busy| if busy > 1 { 650 } else { 1_000 };
    let host = Host { cpus: 2, switch: 1_000, tick: 1_000, slow, ..steps::PLAIN };
    let each = (900_000, 585_000_000, None);
    let tasks = [HOG, Task { cpu: 1, ..HOG }];
    let more = "threads_per_core = 2\nsmt = '65%'";
    agree(&host, more, &tasks, &sums(&[each; 2], &[[1_000, 0, 0, 99_000]; 2], &[0, 0]));
}
