//! Processor-demand test: decides exactly whether EDF meets all deadlines on one CPU, starting from
//! the CPU's current state. Deadlines can be earlier than the ends of their periods. Sources:
//! Baruah, Mok and Rosier, RTSS 1990, for the test. Zhang and Burns, IEEE Transactions on Computers
//! 2009, for the times to examine (quick processor-demand analysis, cited as [QPA]).
//!
//! All deadlines are met if both hold:
//! - From the current state, the work that is due by any later time fits before that time.
//! - From any other state that can follow, the work that is released and due within an interval
//!   fits into the interval.
//!
//! A vCPU that blocks demands less CPU time, or the same amount later. So both conditions still
//! hold.

use alloc::vec::Vec;

use slackline_units::{CpuShare, Reservation, Span};

use crate::admission::load::ReservedLoad;

/// Recurring demand for CPU time of one reservation or subtask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// CPU time per period.
    pub(crate) time: Span,
    /// Relative deadline, at most the period.
    pub(crate) within: Span,
    /// Time from one release to the next.
    pub(crate) period: Span,
}

/// Demand for CPU time of one reservation or subtask on a CPU from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskDemand {
    /// Budget left now, and the time until its deadline. `None` if no budget is left.
    pub(crate) owed: Option<(Span, Span)>,
    /// Time until the next release.
    pub(crate) next: Span,
    /// CPU time, deadline and period of each release.
    pub(crate) job: Job,
}

/// Demand for CPU time of all reservations and subtasks on one CPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Demand {
    all: Vec<TaskDemand>,
    /// Sum of the utilizations of all these reservations and subtasks.
    load: ReservedLoad,
}

/// Limit of iterations of one demand test. A request that is still undecided after that many
/// iterations is refused.
const LOOKS: u32 = 20_000;

/// Limit of the deadlines that a demand test examines, in nanoseconds from now: about two years.
/// Sums of demand up to this time cannot overflow.
const FAR: u64 = 1 << 56;

impl Demand {
    pub(crate) fn add(&mut self, one: TaskDemand) {
        if let Ok(rate) = Reservation::new(one.job.time, one.job.period) {
            self.load.add(rate);
            self.all.push(one);
        }
    }

    /// Returns a lower bound of the total utilization in 2^-64ths of a CPU, for comparing CPUs.
    pub(crate) fn bound(&self) -> u128 {
        self.load.bound()
    }

    /// Returns true if all deadlines are met with `more` added and the total utilization stays
    /// within `capacity`.
    pub(crate) fn takes(&self, more: TaskDemand, capacity: CpuShare) -> bool {
        let Ok(rate) = Reservation::new(more.job.time, more.job.period) else { return false };
        let later = |one: TaskDemand| TaskDemand { owed: None, next: Span::ZERO, ..one };
        self.load.has_room(rate, capacity)
            && self.meets_deadlines(later(more), later)
            && self.meets_deadlines(more, |one| one)
    }

    /// Returns true if all deadlines are met with `more` added. Examines times from the [`horizon`]
    /// backwards. If the demand due by a time t is d < t, no deadline between d and t can be
    /// missed, so the next time to examine is d. [QPA, theorem 5] `seen` maps each demand on the
    /// CPU to the demand that is examined in its place.
    fn meets_deadlines(&self, more: TaskDemand, seen: impl Fn(TaskDemand) -> TaskDemand) -> bool {
        let all = || self.all.iter().copied().map(&seen).chain([more]);
        let Some(mut until) = horizon(all()) else { return false };
        for _ in 0..LOOKS {
            let demanded: u64 = all().map(|one| one.by(until)).sum();
            if demanded > until {
                return false;
            }
            if demanded < until {
                until = demanded;
            } else if let Some(before) = all().filter_map(|one| one.due_before(until)).max() {
                until = before;
            } else {
                return true;
            }
            if until == 0 {
                return all().all(|one| one.by(0) == 0);
            }
        }
        false
    }
}

/// Returns a time in nanoseconds from now. If all deadlines up to that time are met, all later
/// deadlines are met too. `None` if there is no such time or if it exceeds `FAR`.
fn horizon(all: impl Iterator<Item = TaskDemand>) -> Option<u64> {
    // Demand by time x is at most rates × x + above, with rates in 2^-64ths.
    let (mut rates, mut above, mut least) = (0_u128, 0_u128, 0_u64);
    for one in all {
        let Job { time, within, period } = one.job;
        let (time, period) = (u128::from(time.ns()), u128::from(period.ns()));
        rates += (time << 64).div_ceil(period);
        let earned = |span: u64| time * u128::from(span) / period;
        let (owed, due) = one.owed.unwrap_or_default();
        let first = u128::from(owed.ns()).saturating_sub(earned(due.ns()));
        let first_due = one.next.ns().checked_add(within.ns())?;
        let second = (u128::from(owed.ns()) + time).saturating_sub(earned(first_due));
        above += first.max(second);
        least = least.max(first_due);
    }
    let left = (1_u128 << 64).checked_sub(rates).filter(|left| *left > 0)?;
    let above = u64::try_from(above).ok()?;
    let until = u64::try_from((u128::from(above) << 64) / left).ok()?.checked_add(1)?;
    (until < FAR && least < FAR).then_some(until)
}

impl TaskDemand {
    /// Returns the CPU time due within `until` nanoseconds from now.
    fn by(&self, until: u64) -> u64 {
        let owed = self.owed.filter(|(_, due)| due.ns() <= until).map_or(0, |(owed, _)| owed.ns());
        let first_due = self.next.ns() + self.job.within.ns();
        let jobs = until.checked_sub(first_due).map_or(0, |more| more / self.job.period.ns() + 1);
        owed + jobs * self.job.time.ns()
    }

    /// Returns the last deadline that is less than `until` nanoseconds from now. `None` if there is
    /// no such deadline.
    fn due_before(&self, until: u64) -> Option<u64> {
        let first_due = self.next.ns() + self.job.within.ns();
        let last = until.checked_sub(first_due + 1);
        let last = last.map(|more| until - 1 - more % self.job.period.ns());
        let owed = self.owed.map(|(_, due)| due.ns()).filter(|due| *due < until);
        last.max(owed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ns(ns: u64) -> Span {
        Span::from_ns(ns)
    }

    /// Random input in ns: (budget left, its deadline), (CPU time, relative deadline, period), and
    /// the time until the next release.
    type Drawn = ((u64, u64), (u64, u64, u64), u64);

    fn one(((owed, due), (time, within, period), next): Drawn) -> TaskDemand {
        let period = period.max(1);
        let within = within.clamp(1, period);
        let job = Job { time: ns(time.clamp(1, within)), within: ns(within), period: ns(period) };
        let owed = (owed > 0).then(|| (ns(owed), ns(due)));
        TaskDemand { owed, next: ns(next), job }
    }

    #[test]
    fn demand_bound_equals_utilization_if_deadlines_are_at_period_ends() {
        let mut demand = Demand::default();
        assert_eq!(demand.bound(), 0);
        demand.add(one(((0, 0), (1, 4, 4), 0)));
        assert_eq!(demand.bound(), 1 << 62, "a quarter");
    }

    /// A deadline more than two years away is not examined.
    #[test]
    fn demand_test_is_not_possible_for_deadlines_beyond_two_years() {
        let due = |far| horizon([one(((0, 0), (1, far, far), 0))].into_iter());
        assert_eq!([FAR - 1, FAR].map(|far| due(far).is_some()), [true, false]);
    }

    /// Returns true if no deadline is missed in the first 6,000 ns. This time covers many periods
    /// of each vCPU, because all drawn periods are below 24 ns.
    fn is_in_time(all: &[TaskDemand]) -> bool {
        (0..6_000).all(|until| all.iter().map(|one| one.by(until)).sum::<u64>() <= until)
    }

    proptest! {
        #[test]
        fn demand_bound_test_agrees_with_a_check_of_every_nanosecond(
            drawn in prop::collection::vec(
                ((0u64..6, 0u64..20), (1u64..6, 1u64..24, 4u64..24), 0u64..24), 1..5),
        ) {
            let all: Vec<TaskDemand> = drawn.into_iter().map(one).collect();
            let (&more, others) = all.split_last().unwrap();
            let mut demand = Demand::default();
            others.iter().for_each(|one| demand.add(*one));
            let later = |one: &TaskDemand| TaskDemand { owed: None, next: Span::ZERO, ..*one };
            let synchronous: Vec<TaskDemand> = all.iter().map(later).collect();
            // Utilization stays below 1, so that the 6,000 ns above suffice.
            let capacity = CpuShare::from_ppm(990_000);
            let rate = Reservation::new(more.job.time, more.job.period).unwrap();
            let expected = demand.load.has_room(rate, capacity)
                && is_in_time(&all)
                && is_in_time(&synchronous);
            prop_assert_eq!(demand.takes(more, capacity), expected);
        }
    }
}
