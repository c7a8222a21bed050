//! Random sets of vCPUs with a slice in every period, and what is checked of a run of them.
//! Numbers are in nanoseconds, and nothing is rounded.

#![allow(dead_code)] // Each test uses what it needs.

use std::fmt::Write as _;

use proptest::prelude::*;
use slackline_scenario::{Declined, Scenario};
use slackline_sim::RunError;
use slackline_trace::Record;
use slackline_units::{GridClock, Periods, Span, Time};

/// A vCPU in a random set.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) slice: u64,
    pub(crate) period: u64,
    pub(crate) is_exact: bool,
    /// Computing and sleeping in turn; nothing for always awake.
    pub(crate) sleeps: Vec<(u64, u64)>,
    /// When its slice becomes another one, and which.
    pub(crate) change: Option<(u64, u64)>,
}

/// A period and its parts: 55,440 units have many divisors, so that sets fill a CPU to the last of
/// them, and a unit is an odd number of nanoseconds.
pub(crate) const UNITS: u64 = 55_440;
pub(crate) const UNIT: u64 = 997;

/// From how many parts of `UNITS` a period is made.
const PARTS: [u64; 12] = [1, 2, 3, 4, 5, 7, 9, 11, 12, 16, 20, 35];

/// Tasks that fill a CPU: to the last nanosecond if `share` is all of it, in parts of a million.
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
            // The share in parts of UNITS; the last takes what is left, whatever its period.
            let parts = PARTS[part];
            let wanted = UNITS * share / 1_000_000 * weight / total;
            let units = if index == last { left } else { (wanted / parts * parts).min(left) };
            left -= units;
            // units / UNITS of a period of UNITS / parts, where that is a whole number.
            let parts = if units % parts == 0 { parts } else { 1 };
            let (slice, period) = (units / parts * UNIT, UNITS / parts * UNIT);
            if slice > 0 {
                tasks.push(Task { slice, period, is_exact, sleeps, change: None });
            }
        }
        tasks
    })
}

/// Two vCPUs that fill a CPU, of which the first has half and wakes when so much of its period is
/// left that its share of that, and the other's slice until then, fill it to the last nanosecond:
/// whatever it is given above that the other lacks.
pub(crate) fn a_late_sleeper(parts: u64) -> Vec<Task> {
    const PERIOD: u64 = 20_000_000;
    let rest = PERIOD / parts;
    let half = rest / 2;
    // The other one runs first, since its period ends first.
    let sleeps = vec![(1, PERIOD - rest - half - 1), (PERIOD, 1)];
    let task = |slice, period, sleeps| Task { slice, period, is_exact: true, sleeps, change: None };
    vec![task(PERIOD / 2, PERIOD, sleeps), task(half, rest, Vec::new())]
}

/// A host and what is on it.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) cpus: usize,
    pub(crate) lateness: u64,
    pub(crate) length: u64,
}

/// A policy as a scenario names it, and how it puts the share of a vCPU, by its place in the set,
/// with this slice.
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
        let list: Vec<String> =
            task.sleeps.iter().map(|(run, sleep)| format!("\"{run}ns\", \"{sleep}ns\"")).collect();
        let work = if list.is_empty() {
            "{ kind = \"spin\" }".to_owned()
        } else {
            format!("{{ kind = \"replay\", list = [{}] }}", list.join(", "))
        };
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

pub(crate) fn run(host: &Host, rules: &Rules, tasks: &[Task]) -> Vec<Record> {
    let mut trace = Vec::new();
    let outcome = slackline_sim::run(&scenario(host, rules, tasks, &[]), &mut trace);
    let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
    assert!(outcome.declined.is_empty(), "{:?}", outcome.declined);
    trace
}

/// A run of those who are admitted, of whom each comes when it is said; and who they are.
pub(crate) fn run_admitted(
    host: &Host,
    rules: &Rules,
    (mut tasks, mut joins): (Vec<Task>, Vec<u64>),
) -> (Vec<Record>, Vec<Task>) {
    loop {
        let mut trace = Vec::new();
        match slackline_sim::run(&scenario(host, rules, &tasks, &joins), &mut trace) {
            Ok(_) => return (trace, tasks),
            Err(RunError::Declined(Declined { domain, .. })) => {
                tasks.remove(domain);
                joins.remove(domain);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// What one vCPU got.
pub(crate) struct Got {
    pub(crate) promises: Vec<(Time, Periods)>,
    pub(crate) runs: Vec<(Time, Time)>,
    pub(crate) end: Time,
}

impl Got {
    pub(crate) fn of(trace: &[Record], slot: usize) -> Got {
        let mut got = Got { promises: Vec::new(), runs: Vec::new(), end: Time::START };
        for record in trace {
            match *record {
                Record::Promised { at, vcpu, reservation, phase, .. } if vcpu.slot() == slot => {
                    let reservation = reservation.expect("a reservation");
                    got.promises.push((at, Periods { reservation, phase }));
                }
                Record::Ran { vcpu, from, to, used, .. } if vcpu.slot() == slot => {
                    assert_eq!(to - from, used, "a simulated CPU is all its occupant's");
                    got.runs.push((from, to));
                }
                Record::Ended { at } => got.end = at,
                _ => {}
            }
        }
        got
    }

    pub(crate) fn within(&self, from: Time, to: Time) -> Span {
        let first = self.runs.partition_point(|run| run.1 <= from);
        let inside = self.runs[first..].iter().take_while(|run| run.0 < to);
        inside.map(|&(start, stop)| stop.min(to) - start.max(from)).sum()
    }

    /// What it got in every whole period: when that began, how much, and how much was owed.
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

    /// What it had used of the period in which a promise ended beyond its share of the time.
    pub(crate) fn advance(&self) -> Span {
        let [(from, old), (at, _), ..] = self.promises[..] else { return Span::ZERO };
        let clock = GridClock::default();
        let (mut begun, mut end) = (from, old.first_end(from, &clock));
        while end <= at {
            (begun, end) = (end, old.next_end(end, &clock));
        }
        let used = self.within(begun, at);
        let beyond = used.left_after(old.reservation.over(at - begun));
        // What a grid cuts short is worth a nanosecond less than its rate comes to, at most.
        let left = old.worth(begun, end).left_after(used);
        beyond.max(old.reservation.over_rounded_up(end - at).left_after(left))
    }
}

/// Every always awake vCPU has at least its slice in every period, and an exact one no more. One
/// whose terms change once does first without what it has had in advance, and no more.
pub(crate) fn check_slices(trace: &[Record], tasks: &[Task]) -> Result<(), TestCaseError> {
    check_slices_but(trace, tasks, Got::advance)
}

/// The same where one whose terms change first does without so much.
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

/// A CPU runs one vCPU at a time, in order, and within the run.
pub(crate) fn check_time(trace: &[Record], host: &Host) -> Result<(), TestCaseError> {
    let mut until = vec![Time::START; host.cpus];
    let mut used = Span::ZERO;
    let mut idle = Span::ZERO;
    for record in trace {
        if let Record::Ran { cpu, from, to, used: ran, .. } = *record {
            prop_assert!(until[cpu.index()] <= from, "{cpu} runs two at {from}");
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

/// What a vCPU has had and has been owed, from its start to the end of one of its periods.
pub(crate) struct Account {
    pub(crate) slot: usize,
    /// When the period began.
    pub(crate) period: Time,
    pub(crate) had: Span,
    pub(crate) owed: Span,
}

/// The accounts of so many vCPUs at the end of each of their periods.
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
