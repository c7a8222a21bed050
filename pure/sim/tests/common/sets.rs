//! Random sets of vCPUs with a slice in every period, and checks of their runs. Numbers are in
//! nanoseconds, without rounding.

#![allow(dead_code)] // Not every test uses all of it.

use std::fmt::Write as _;

use proptest::prelude::*;
use slackline_scenario::{DeclinedVcpu, Scenario};
use slackline_sim::RunError;
use slackline_trace::Record;
use slackline_units::{GridClock, Periods, Span, Time};

/// Parameters of a vCPU in a random set.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) slice: u64,
    pub(crate) period: u64,
    pub(crate) is_exact: bool,
    /// Pairs of a time to compute and a time to sleep, in nanoseconds. Empty for a vCPU that is
    /// always runnable.
    pub(crate) sleeps: Vec<(u64, u64)>,
    /// Time at which the slice changes, and the new slice, both in nanoseconds. `None` if the slice
    /// never changes.
    pub(crate) change: Option<(u64, u64)>,
}

/// Number of units in the longest period. 55,440 has many divisors, so sets can fill a CPU to the
/// last unit. A unit lasts `UNIT`, an odd number of nanoseconds.
pub(crate) const UNITS: u64 = 55_440;
pub(crate) const UNIT: u64 = 997;

/// Divisors of `UNITS`. The number of units in a period is `UNITS` divided by one of these
/// divisors.
const PARTS: [u64; 12] = [1, 2, 3, 4, 5, 7, 9, 11, 12, 16, 20, 35];

/// Random tasks that together reserve `share` millionths of a CPU. For 1,000,000 they fill the CPU
/// to the last nanosecond.
pub(crate) fn set(most: usize, share: u64) -> impl Strategy<Value = Vec<Task>> {
    let sleep = (1..4_000_000_u64, 1..40_000_000_u64);
    let sleeps = prop_oneof![
        2 => Just(Vec::new()),
        3 => prop::collection::vec(sleep, 1..6),
    ];
    let task = (1..1_000_u64, 0..PARTS.len(), any::<bool>(), sleeps);
    prop::collection::vec(task, 1..=most).prop_map(move |drawn| {
        let total: u64 = drawn.iter().map(|(weight, ..)| weight).sum();
        let mut left = UNITS * share / 1_000_000;
        let mut tasks = Vec::new();
        let last = drawn.len() - 1;
        for (index, (weight, part, is_exact, sleeps)) in drawn.into_iter().enumerate() {
            // The share in units. The last task takes what is left, whatever its period.
            let parts = PARTS[part];
            let wanted = UNITS * share / 1_000_000 * weight / total;
            let units = if index == last { left } else { (wanted / parts * parts).min(left) };
            left -= units;
            // `units / UNITS` of a period of `UNITS / parts`, if that is a whole number.
            let parts = if units % parts == 0 { parts } else { 1 };
            let (slice, period) = (units / parts * UNIT, UNITS / parts * UNIT);
            if slice > 0 {
                tasks.push(Task { slice, period, is_exact, sleeps, change: None });
            }
        }
        tasks
    })
}

/// Two vCPUs that fill a CPU. The first has half of the CPU and wakes when 1/`parts` of its period
/// is left. For the rest of that period, its prorated budget and the slices of the second vCPU fill
/// the CPU to the last nanosecond. So any excess of the first vCPU is a shortfall of the second.
pub(crate) fn a_late_sleeper(parts: u64) -> Vec<Task> {
    const PERIOD: u64 = 20_000_000;
    let rest = PERIOD / parts;
    let half = rest / 2;
    // The second vCPU runs first, since its period ends first.
    let sleeps = vec![(1, PERIOD - rest - half - 1), (PERIOD, 1)];
    let task = |slice, period, sleeps| Task { slice, period, is_exact: true, sleeps, change: None };
    vec![task(PERIOD / 2, PERIOD, sleeps), task(half, rest, Vec::new())]
}

/// Host of a run. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) cpus: usize,
    pub(crate) lateness: u64,
    pub(crate) length: u64,
}

/// A policy as a scenario names it, and the text of a vCPU's share. The arguments of `share` are
/// the index in the set, the task and the slice.
pub(crate) struct Rules {
    pub(crate) name: &'static str,
    pub(crate) parameters: &'static str,
    pub(crate) share: fn(usize, &Task, u64) -> String,
}

fn scenario(host: &Host, rules: &Rules, tasks: &[Task], joins: &[u64]) -> Scenario {
    let Host { cpus, lateness, length } = host;
    let Rules { name, parameters, share } = rules;
    let mut text = format!(
        "title = \"random\"\nlength = \"{length}ns\"\n\
         policy = {{ name = \"{name}\", {parameters} }}\n\
         [host]\ncpus = {cpus}\ntimer_lateness = \"uniform 0ns {lateness}ns\"\n"
    );
    for (index, task) in tasks.iter().enumerate() {
        let work = work(&task.sleeps);
        let _ = write!(
            text,
            "[[domain]]\nname = \"t{index}\"\nwork = {work}\nshare.{name} = {{ {} }}\n",
            share(index, task, task.slice)
        );
        if let Some(joins) = joins.get(index) {
            let _ = writeln!(text, "joins = \"{joins}ns\"");
        }
        if let Some((at, slice)) = task.change {
            let share = share(index, task, slice);
            let _ = write!(
                text,
                "[[change]]\nat = \"{at}ns\"\ndomain = \"t{index}\"\nshare.{name} = {{ {share} }}\n"
            );
        }
    }
    Scenario::read(&text).unwrap_or_else(|error| panic!("{error:?} in\n{text}"))
}

/// Returns the workload of a vCPU that computes and sleeps for these times, in turn. Without times
/// the vCPU is always runnable.
pub(crate) fn work(sleeps: &[(u64, u64)]) -> String {
    if sleeps.is_empty() {
        return "{ kind = \"spin\" }".to_owned();
    }
    let list: Vec<String> =
        sleeps.iter().map(|(run, sleep)| format!("\"{run}ns\", \"{sleep}ns\"")).collect();
    format!("{{ kind = \"replay\", list = [{}] }}", list.join(", "))
}

pub(crate) fn run(host: &Host, rules: &Rules, tasks: &[Task]) -> Vec<Record> {
    let mut trace = Vec::new();
    let outcome = slackline_sim::run(&scenario(host, rules, tasks, &[]), &mut trace);
    let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
    assert!(outcome.declined.is_empty(), "{:?}", outcome.declined);
    trace
}

/// Runs the tasks that are admitted, each from the time at which the task joins. Returns the trace
/// and the admitted tasks.
pub(crate) fn run_admitted(
    host: &Host,
    rules: &Rules,
    (mut tasks, mut joins): (Vec<Task>, Vec<u64>),
) -> (Vec<Record>, Vec<Task>) {
    loop {
        let mut trace = Vec::new();
        match slackline_sim::run(&scenario(host, rules, &tasks, &joins), &mut trace) {
            Ok(_) => return (trace, tasks),
            Err(RunError::Declined(DeclinedVcpu { domain, .. })) => {
                tasks.remove(domain);
                joins.remove(domain);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// CPU time that one vCPU received.
pub(crate) struct Got {
    /// Reservations of the vCPU, each with the time from which it holds.
    pub(crate) promises: Vec<(Time, Periods)>,
    /// Start and end of each run interval.
    pub(crate) runs: Vec<(Time, Time)>,
    /// End of the run.
    pub(crate) end: Time,
}

impl Got {
    pub(crate) fn of(trace: &[Record], slot: usize) -> Got {
        let mut got = Got { promises: Vec::new(), runs: Vec::new(), end: Time::START };
        for record in trace {
            match *record {
                Record::Promised { at, vcpu, reservation, phase, .. } if vcpu.slot() == slot => {
                    let reservation = reservation.expect("the policy records a reservation");
                    got.promises.push((at, Periods { reservation, phase }));
                }
                Record::Ran { vcpu, from, to, used, .. } if vcpu.slot() == slot => {
                    assert_eq!(to - from, used, "the running vCPU has the whole simulated CPU");
                    got.runs.push((from, to));
                }
                Record::Ended { at } => got.end = at,
                _ => {}
            }
        }
        got
    }

    /// Returns the CPU time that the vCPU received between two times.
    pub(crate) fn within(&self, from: Time, to: Time) -> Span {
        let first = self.runs.partition_point(|run| run.1 <= from);
        let inside = self.runs[first..].iter().take_while(|run| run.0 < to);
        inside.map(|&(start, stop)| stop.min(to) - start.max(from)).sum()
    }

    /// Returns start, CPU time received and budget of every whole period.
    pub(crate) fn periods(&self) -> Vec<(Time, Span, Span)> {
        let ends = self.promises.iter().skip(1).map(|&(at, _)| at).chain([self.end]);
        let mut periods = Vec::new();
        let clock = GridClock::default();
        for (&(from, promised), until) in self.promises.iter().zip(ends) {
            let (mut start, mut end) = (from, promised.first_end(from, &clock));
            while end <= until {
                periods.push((start, self.within(start, end), promised.worth(start, end)));
                (start, end) = (end, promised.next_end(end, &clock));
            }
        }
        periods
    }

    /// Returns the excess of the vCPU over the fluid rate at the first change of its reservation.
    /// The excess counts from the start of the period in which the change occurred. Returns zero if
    /// the reservation never changed.
    pub(crate) fn advance(&self) -> Span {
        let [(from, old), (at, _), ..] = self.promises[..] else { return Span::ZERO };
        let clock = GridClock::default();
        let (mut begun, mut end) = (from, old.first_end(from, &clock));
        while end <= at {
            (begun, end) = (end, old.next_end(end, &clock));
        }
        let used = self.within(begun, at);
        let beyond = used.left_after(old.reservation.over(at - begun));
        // A period cut short by a grid has at most a nanosecond less than its rate.
        let left = old.worth(begun, end).left_after(used);
        beyond.max(old.reservation.over_rounded_up(end - at).left_after(left))
    }
}

/// Checks that every always runnable vCPU receives at least its slice in every period, and that no
/// vCPU with a hard limit receives more than its slice. After a change of its reservation, exactly
/// its excess before the change is deducted from the following slices.
pub(crate) fn check_slices(trace: &[Record], tasks: &[Task]) -> Result<(), TestCaseError> {
    check_slices_but(trace, tasks, Got::advance)
}

/// Checks slices as `check_slices` does. `goes_without` returns the amount that is deducted after a
/// change of a reservation.
pub(crate) fn check_slices_but(
    trace: &[Record],
    tasks: &[Task],
    goes_without: impl Fn(&Got) -> Span,
) -> Result<(), TestCaseError> {
    for (slot, task) in tasks.iter().enumerate() {
        let got_in_all = Got::of(trace, slot);
        let mut advance = goes_without(&got_in_all);
        let changed = got_in_all.promises.get(1).map_or(Time::NEVER, |&(at, _)| at);
        for (start, got, slice) in got_in_all.periods() {
            if task.sleeps.is_empty() {
                let slice = if start < changed { slice } else { slice.left_after(advance) };
                prop_assert!(got >= slice, "t{slot} got {got} of {slice} from {start}");
            }
            if start >= changed {
                advance = advance.left_after(slice);
            }
            if task.is_exact {
                prop_assert!(got <= slice, "t{slot} got {got}, not {slice}, from {start}");
            }
        }
    }
    Ok(())
}

/// Checks that the run intervals of each CPU are in order of time and do not overlap. Also checks
/// that the CPU time used and the idle time of all CPUs add up to the length of the run times the
/// number of CPUs.
pub(crate) fn check_time(trace: &[Record], host: &Host) -> Result<(), TestCaseError> {
    let mut until = vec![Time::START; host.cpus];
    let mut used = Span::ZERO;
    let mut idle = Span::ZERO;
    for record in trace {
        if let Record::Ran { cpu, from, to, used: ran, .. } = *record {
            prop_assert!(until[cpu.index()] <= from, "{cpu} runs two vCPUs at {from}");
            idle += from - until[cpu.index()];
            until[cpu.index()] = to;
            used += ran;
        }
    }
    let end = Time::from_ns(host.length);
    idle += until.iter().map(|&until| end - until).sum();
    prop_assert_eq!(used + idle, Span::from_ns(host.length) * host.cpus as u64);
    Ok(())
}

pub(crate) const EXACT: Host = Host { cpus: 1, lateness: 0, length: 400_000_000 };

/// CPU time received and reserved, from the start of a vCPU to the end of one of its periods.
pub(crate) struct Account {
    pub(crate) slot: usize,
    /// Start of the period.
    pub(crate) period: Time,
    /// CPU time that the vCPU received.
    pub(crate) had: Span,
    /// Sum of the slices.
    pub(crate) owed: Span,
}

/// Returns the CPU time received and reserved of `count` vCPUs at the end of each of their periods.
pub(crate) fn accounts(trace: &[Record], count: usize) -> Vec<Account> {
    let mut all = Vec::new();
    for slot in 0..count {
        let (mut had, mut owed) = (Span::ZERO, Span::ZERO);
        for (period, got, slice) in Got::of(trace, slot).periods() {
            (had, owed) = (had + got, owed + slice);
            all.push(Account { slot, period, had, owed });
        }
    }
    all
}
