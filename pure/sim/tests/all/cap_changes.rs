//! Changes of a cap under Credit. CPU time that a VM used before a change still counts after the
//! change. Numbers are in nanoseconds.

use std::fmt::Write as _;

use crate::credit::{MS, PERIOD, gangs, simulate, used_by_window};
use crate::sets::work;
use proptest::prelude::*;

/// Length of a timeslice.
const TIMESLICE: u64 = 10 * MS;

/// Domain with a cap that changes. It runs beside domains without a cap.
#[derive(Clone, Debug)]
struct Capped {
    vcpus: usize,
    /// Pairs of a time to compute and a time to sleep, in nanoseconds. Empty for vCPUs that are
    /// always runnable.
    sleeps: Vec<(u64, u64)>,
    /// Caps in percent of a CPU, each with the time from which it holds. The first cap holds from
    /// the start.
    caps: Vec<(u64, u64)>,
}

/// Number of accounting periods in a run.
const PERIODS: u64 = 60;

impl Capped {
    /// Returns the CPU time of the domain in each accounting period.
    fn used(&self, cpus: usize, hogs: usize, policy: &str) -> Vec<u64> {
        let Capped { vcpus, sleeps, caps } = self;
        let work = work(sleeps);
        let mut text = format!(
            "title = \"caps\"\nlength = \"{}ns\"\npolicy = {{ name = \"credit\", {policy} }}\n\
             [host]\ncpus = {cpus}\n\
             [[domain]]\nname = \"capped\"\nvcpus = {vcpus}\nwork = {work}\n\
             share.credit = {{ cap = \"{}%\", gang = true }}\n",
            PERIODS * PERIOD,
            caps[0].1
        );
        for (at, cap) in &caps[1..] {
            let _ = write!(
                text,
                "[[change]]\nat = \"{at}ns\"\ndomain = \"capped\"\n\
                 share.credit = {{ cap = \"{cap}%\", gang = true }}\n"
            );
        }
        if hogs > 0 {
            let _ = write!(
                text,
                "[[domain]]\nname = \"hog\"\nvcpus = {hogs}\nwork = {{ kind = \"spin\" }}\n\
                 share.credit = {{}}\n"
            );
        }
        used_by_window(&simulate(&text), 2, PERIOD, PERIODS).swap_remove(0)
    }

    /// Returns the CPU time that the largest cap in an accounting period allows. A change counts
    /// from the next timeslice on, so the cap at the start of a timeslice counts until the end of
    /// the timeslice.
    fn most(&self, period: u64) -> u64 {
        let (start, end) = ((period * PERIOD).saturating_sub(TIMESLICE), (period + 1) * PERIOD);
        let ends = self.caps.iter().skip(1).map(|&(at, _)| at).chain([u64::MAX]);
        let holds = self.caps.iter().zip(ends).filter(|((at, _), to)| *at < end && *to >= start);
        holds.map(|((_, cap), _)| cap * PERIOD / 100).max().expect("a cap always holds")
    }
}

fn capped() -> impl Strategy<Value = Capped> {
    let sleep = (1..20 * MS, 1..60 * MS);
    let sleeps = prop_oneof![Just(Vec::new()), prop::collection::vec(sleep, 1..6)];
    let changes = prop::collection::btree_map(1..PERIODS * PERIOD, 1..=150_u64, 0..20);
    (1..=3_usize, sleeps, 1..=150_u64, changes).prop_map(|(vcpus, sleeps, cap, changes)| {
        let caps = [(0, cap)].into_iter().chain(changes).collect();
        Capped { vcpus, sleeps, caps }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]

    /// In each accounting period, a domain uses at most the CPU time that the largest of its caps
    /// in that period allows.
    #[test]
    fn credit_domain_stays_within_largest_cap_of_each_period(
        cpus in 1..=3_usize,
        hogs in 0..=2_usize,
        capped in capped(),
        gangs in gangs(),
    ) {
        for (period, used) in (0..).zip(capped.used(cpus, hogs, gangs)) {
            let most = capped.most(period);
            prop_assert!(used <= most, "{used} in period {period}, not {most}");
        }
    }
}

/// A hog has used 14 ms of the 15 ms that its cap allows in a period. A higher cap adds only the
/// difference of the two caps.
#[test]
fn raised_credit_cap_adds_only_the_difference_in_current_period() {
    let capped = Capped { vcpus: 1, sleeps: Vec::new(), caps: vec![(0, 50), (14 * MS, 51)] };
    assert_eq!(capped.used(1, 0, "")[..2], [15_300_000; 2]);
}

/// A hog has used 25 ms of a period when its cap becomes 1 %. The timeslice in progress ends with
/// the period. From the next period on, the hog receives what the new cap allows: it owes nothing
/// for CPU time that the old cap allowed.
#[test]
fn lower_credit_cap_leaves_no_debt_from_the_higher_cap() {
    let capped = Capped { vcpus: 1, sleeps: Vec::new(), caps: vec![(0, 100), (25 * MS, 1)] };
    assert_eq!(capped.used(1, 0, "")[..3], [30 * MS, 300_000, 300_000]);
}

/// The timeslice in progress at the change goes on for 5 ms of the next period. Later periods are
/// not shortened because of these 5 ms.
#[test]
fn timeslice_running_at_cap_reduction_costs_later_periods_no_time() {
    let caps = vec![(0, 100), (29 * MS, 1)];
    let capped = Capped { vcpus: 1, sleeps: vec![(5 * MS, 10 * MS), (3_600_000 * MS, 1)], caps };
    let used = capped.used(1, 0, "");
    assert_eq!(used[2..5], [300_000; 3], "{used:?}");
}
