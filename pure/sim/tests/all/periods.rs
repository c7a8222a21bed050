//! Exactness of the shortest and the longest period, a millisecond and seven days, to the
//! nanosecond.

use crate::sets::{EXACT, Host, Rules, Task, check_slices, check_time};

const MS: u64 = 1_000_000;
const MINUTE: u64 = 60_000 * MS;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Policies that let reservations fill a whole CPU and give vCPUs no slack.
const POLICIES: [Rules; 3] = [
    Rules {
        name: "edf",
        parameters: "reserve = \"0cpu\"",
        share: |_, task, slice| share("slice", slice, task.period, "exact = true"),
    },
    Rules {
        name: "gedf",
        parameters: "reserve = \"0cpu\"",
        share: |_, task, slice| share("budget", slice, task.period, "extra = false"),
    },
    Rules {
        name: "atropos",
        parameters: "reserve = \"0cpu\"",
        share: |_, task, slice| share("slice", slice, task.period, "extra = false"),
    },
];

fn share(name: &str, slice: u64, period: u64, exact: &str) -> String {
    format!("{name} = \"{slice}ns\", period = \"{period}ns\", {exact}")
}

fn task(slice: u64, period: u64, change: Option<(u64, u64)>) -> Task {
    Task { slice, period, is_exact: true, sleeps: Vec::new(), change }
}

fn check(tasks: &[Task], length: u64) {
    let host = Host { length, ..EXACT };
    for rules in &POLICIES {
        let trace = crate::sets::run(&host, rules, tasks);
        check_slices(&trace, tasks).unwrap_or_else(|error| panic!("{}: {error}", rules.name));
        check_time(&trace, &host).unwrap_or_else(|error| panic!("{}: {error}", rules.name));
    }
}

/// Three vCPUs fill a CPU. The first reserves a day in every seven days, and the second a quarter
/// of each day. The third vCPU reserves the remaining CPU time, in periods of ten minutes.
#[test]
fn edf_delivers_seven_day_period_slices_exactly_over_four_weeks() {
    let rest = 10 * MINUTE * 17 / 28;
    let quarter = DAY / 4;
    let tasks = [task(DAY, 7 * DAY, None), task(quarter, DAY, None), task(rest, 10 * MINUTE, None)];
    check(&tasks, 28 * DAY);
}

/// Over two seconds, a vCPU with a period of seven days shares a CPU with two vCPUs that have a
/// period of a millisecond.
#[test]
fn slices_with_1_ms_and_seven_day_periods_are_exact() {
    let tasks = [task(MS / 2, MS, None), task(DAY, 7 * DAY, None), task(MS / 4, MS, None)];
    check(&tasks, 2_000 * MS);
}

/// A reservation changes three days into its period of seven days. The excess of its vCPU is
/// deducted from that vCPU only, and the other vCPU receives every slice.
#[test]
fn reservation_change_within_seven_day_period_costs_no_slice() {
    let change = Some((3 * DAY + 7, DAY / 3));
    let tasks = [task(2 * DAY, 7 * DAY, change), task(5 * HOUR, 10 * HOUR, None)];
    check(&tasks, 28 * DAY);
}
