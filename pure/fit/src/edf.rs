//! Test of a task set under EDF: demand bound against supply bound.

use response_time_analysis::fixed_point;
use response_time_analysis::time::{Duration, Service};
use slackline_units::Span;

use crate::{PeriodicSupply, Proof, Refutation, TaskSet};

/// Maximum number of points of a proof, and of deadlines in a search for the first miss.
const MOST_POINTS: usize = 1_000_000;

/// Number of deadlines that are tested in order before a proof is tried. Most reservations that are
/// too small miss one of these.
const FIRST_DEADLINES: usize = 500;

/// A step of a proof. In intervals whose length is at least `from` and at most `until`, the demand
/// is at most `demand`. An interval of length `from` supplies that much already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemandPoint {
    /// Shortest interval that always supplies `demand`.
    pub from: Span,
    /// Interval for which `demand` was computed: the distance of a deadline from a common release.
    pub until: Span,
    /// CPU time of all jobs that are released and due in an interval of length `until`.
    pub demand: Span,
}

/// An interval in which the tasks can demand more CPU time than the VM receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemandShortfall {
    /// Length of the interval, from a common release to a deadline.
    pub within: Span,
    /// CPU time of the jobs that are released and due in the interval.
    pub demand: Span,
    /// CPU time that the VM receives in the interval in the worst phase.
    pub supply: Span,
}

/// Tests a task set whose utilisation is below the share of the supply.
pub(crate) fn prove(tasks: &TaskSet, supply: &PeriodicSupply) -> Result<Proof, Refutation> {
    if let Some(short) = shortfall_among_first(tasks, supply, FIRST_DEADLINES) {
        return Err(Refutation::Shortfall(short));
    }
    let busy = longest_busy(tasks, supply)?;
    let mut points = Vec::new();
    let mut before = busy + Span::from_ns(1);
    while let Some(until) = tasks.last_deadline_before(before) {
        let demand = tasks.demand_in(until);
        let from = supply.time_for(demand);
        if from > until {
            // This deadline is missed, but an earlier one may be missed too.
            let short = DemandShortfall { within: until, demand, supply: supply.least_in(until) };
            let short = first_shortfall(tasks, supply).unwrap_or(short);
            return Err(Refutation::Shortfall(short));
        }
        if points.len() == MOST_POINTS {
            return Err(Refutation::Undecided { limit: busy });
        }
        points.push(DemandPoint { from, until, demand });
        before = from;
    }
    Ok(Proof::Demand { points, busy })
}

/// Returns the longest time for which the VM can be busy with the tasks.
fn longest_busy(tasks: &TaskSet, supply: &PeriodicSupply) -> Result<Span, Refutation> {
    let limit = search_limit(tasks);
    let workload = |time: Duration| {
        let requested = tasks.requested_in(Span::from_ns(u64::from(time)));
        Service::from(requested.ns())
    };
    let found = fixed_point::search(supply.model(), Duration::from(limit.ns()), workload);
    let busy = found.map_err(|_| Refutation::Undecided { limit })?;
    Ok(Span::from_ns(u64::from(busy)))
}

/// Returns the longest busy time for which the search goes on.
fn search_limit(tasks: &TaskSet) -> Span {
    (tasks.longest_period() * 1000).max(Span::from_secs(10))
}

/// Returns the first deadline by which the demand exceeds the supply, after a common release.
pub(crate) fn first_shortfall(tasks: &TaskSet, supply: &PeriodicSupply) -> Option<DemandShortfall> {
    shortfall_among_first(tasks, supply, MOST_POINTS)
}

fn shortfall_among_first(
    tasks: &TaskSet,
    supply: &PeriodicSupply,
    deadlines: usize,
) -> Option<DemandShortfall> {
    // The next deadline of each task, and the CPU time of all jobs due so far.
    let mut next: Vec<Span> = tasks.tasks().iter().map(|task| task.deadline()).collect();
    let mut demand = Span::ZERO;
    for _ in 0..deadlines {
        let within = *next.iter().min().expect("a set has a task");
        for (next, task) in next.iter_mut().zip(tasks.tasks()) {
            if *next == within {
                *next += task.period();
                demand += task.work();
            }
        }
        let supplied = supply.least_in(within);
        if demand > supplied {
            return Some(DemandShortfall { within, demand, supply: supplied });
        }
    }
    None
}

/// Returns true if the points prove that the demand never exceeds the supply. The points must cover
/// every deadline up to `busy`, after which the VM has no work left.
pub(crate) fn is_proof(
    tasks: &TaskSet,
    supply: &PeriodicSupply,
    points: &[DemandPoint],
    busy: Span,
) -> bool {
    let is_idle_at_end = tasks.requested_in(busy) <= supply.least_in(busy);
    let mut before = busy + Span::from_ns(1);
    let holds = |point: &DemandPoint| {
        // No deadline lies between this point and the one before it.
        let is_next = tasks.last_deadline_before(before) == Some(point.until);
        before = point.from;
        is_next
            && tasks.demand_in(point.until) == point.demand
            && point.from <= point.until
            && supply.least_in(point.from) >= point.demand
    };
    let all_hold = points.iter().all(holds);
    is_idle_at_end && all_hold && tasks.last_deadline_before(before).is_none()
}
