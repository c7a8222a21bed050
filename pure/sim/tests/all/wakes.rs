//! Periods that begin at a wake. The vCPU that wakes does not wait, and no other vCPU misses a
//! deadline.

use proptest::prelude::*;
use slackline_trace::Record;
use slackline_units::{Reservation, Span, Time};

use crate::sets::{EXACT, Got, Host, Rules, Task, run, set};

const EDF: Rules = Rules {
    name: "edf",
    parameters: "reserve = \"0cpu\", unblocking = \"new-period\"",
    share: |_, task, slice| {
        let Task { period, is_exact, .. } = task;
        format!("slice = \"{slice}ns\", period = \"{period}ns\", exact = {is_exact}")
    },
};

const ATROPOS: Rules = Rules {
    name: "atropos",
    parameters: "reserve = \"0cpu\", unblocking = \"new-period\"",
    share: |_, task, slice| {
        let Task { period, is_exact, .. } = task;
        format!("slice = \"{slice}ns\", period = \"{period}ns\", extra = {}", !is_exact)
    },
};

/// Returns the run intervals of a vCPU, with adjacent run intervals joined.
fn bursts(trace: &[Record], slot: usize) -> Vec<(Time, Time)> {
    let mut joined: Vec<(Time, Time)> = Vec::new();
    for (from, to) in Got::of(trace, slot).runs {
        match joined.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => joined.push((from, to)),
        }
    }
    joined
}

/// Returns a vCPU that reserves 20 ms in 100 ms. It computes for 5 ms and then sleeps for a second,
/// so it uses 0.5 % of a CPU.
fn mostly_asleep() -> Task {
    Task {
        slice: 20_000_000,
        period: 100_000_000,
        is_exact: true,
        sleeps: vec![(5_000_000, 1_000_000_000)],
        change: None,
    }
}

/// With `unblocking = "new-period"`, each wake of the vCPU begins a period with a whole slice. So
/// the vCPU, which is alone on its CPU, runs each burst of 5 ms in one interval. Without this
/// parameter, it is throttled in some bursts.
#[test]
fn mostly_blocked_vcpu_is_not_throttled_with_unblocking_new_period() {
    let host = Host { length: 60_000_000_000, ..EXACT };
    let whole = Span::from_ms(5);
    for rules in [EDF, ATROPOS] {
        let interrupted = |rules: &Rules| {
            let trace = run(&host, rules, &[mostly_asleep()]);
            let bursts = bursts(&trace, 0);
            assert!(bursts.len() > 50, "{} bursts", bursts.len());
            bursts.into_iter().filter(|(from, to)| *to - *from != whole).count()
        };
        assert_eq!(interrupted(&rules), 0, "{}", rules.name);
        let usual = Rules { parameters: "reserve = \"0cpu\"", ..rules };
        assert!(interrupted(&usual) > 0, "{} without `new-period`", rules.name);
    }
}

/// A vCPU blocks for a microsecond just before its slice is used up. The vCPU wakes with less
/// budget than its share of the rest of the period. If a new period began instead, the vCPU would
/// receive two slices before the first deadline of another vCPU, which has no slack for that.
#[test]
fn vcpu_that_blocks_for_a_microsecond_causes_no_deadline_miss() {
    let task = |slice, period, sleeps| {
        let (is_exact, change) = (true, None);
        Task { slice, period, is_exact, sleeps, change }
    };
    let naps = vec![(1_900_000, 1_000)];
    let tasks = [task(2_000_000, 10_000_000, naps), task(9_528_000, 11_910_000, Vec::new())];
    for rules in [EDF, ATROPOS] {
        let trace = run(&EXACT, &rules, &tasks);
        let all = Got::of(&trace, 1).periods();
        assert!(all.len() > 10 && all.iter().all(|(_, got, owed)| got == owed), "{}", rules.name);
    }
}

/// Returns the most CPU time that a vCPU with a hard limit is allowed to receive in a time that
/// begins at a wake: its share of the time plus 2 × slice × (1 - share).
fn bound(task: &Task, time: Span) -> Span {
    let [slice, period] = [task.slice, task.period].map(Span::from_ns);
    let share = Reservation::new(slice, period).expect("a slice is within its period");
    // Budgets are rounded to a nanosecond.
    let rounding = Span::from_ns(time / period + 3);
    share.over_rounded_up(time) + (slice - share.over(slice)) * 2 + rounding
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// A CPU is fully reserved, and some of its vCPUs sleep and wake at random.
    #[test]
    fn always_runnable_vcpu_receives_each_slice_beside_vcpus_that_wake(tasks in set(5, 1_000_000)) {
        for rules in [EDF, ATROPOS] {
            let trace = run(&EXACT, &rules, &tasks);
            let awake = tasks.iter().enumerate().filter(|(_, task)| task.sleeps.is_empty());
            for (slot, _) in awake {
                for (start, got, owed) in Got::of(&trace, slot).periods() {
                    let name = rules.name;
                    prop_assert!(got >= owed, "{name}: t{slot} got {got} of {owed} at {start}");
                }
            }
        }
    }

    /// From any wake on, a vCPU with a hard limit receives at most its share of the time plus 2 ×
    /// slice × (1 - share). This is the bound of a constant bandwidth server. The worst case has
    /// three parts: a slice at the end of a period, then a part of the next slice and a block, and
    /// then the whole slice of the period that begins when the vCPU wakes.
    #[test]
    fn hard_limited_vcpu_gains_less_than_two_slices_by_waking(tasks in set(4, 800_000)) {
        for rules in [EDF, ATROPOS] {
            let trace = run(&EXACT, &rules, &tasks);
            for (slot, task) in tasks.iter().enumerate().filter(|(_, task)| task.is_exact) {
                let (got, bursts) = (Got::of(&trace, slot), bursts(&trace, slot));
                for (index, &(from, _)) in bursts.iter().enumerate() {
                    // The excess is largest at the end of a burst.
                    let mut ends = bursts[index..].iter().map(|&(_, to)| to);
                    for until in ends.clone().take(20).chain(ends.next_back()) {
                        let (had, most) = (got.within(from, until), bound(task, until - from));
                        prop_assert!(had <= most, "{}: t{slot} had {had} of {most}", rules.name);
                    }
                }
            }
        }
    }
}
