//! Test of a task set under EDF: demand bound against supply bound.

use response_time_analysis::fixed_point;
use response_time_analysis::time::{Duration, Service};
use slackline_units::Span;

use crate::{PeriodicSupply, Proof, Refutation, TaskSet};

/// Maximum number of points of a proof, and maximum number of deadlines that the search for the
/// first miss tests.
const MOST_POINTS: usize = 1_000_000;

/// Number of earliest deadlines that are tested before the search for a proof begins. Most
/// reservations that are too small already miss one of these deadlines.
const FIRST_DEADLINES: usize = 500;

/// A step of a proof under EDF. In every interval whose length is between `from` and `until`, the
/// demand of the tasks is at most `demand`. An interval of length `from` already supplies that CPU
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemandPoint {
    /// Length of the shortest interval that always supplies the CPU time `demand`.
    pub from: Span,
    /// Length of the interval for which `demand` was computed. The interval starts at a common
    /// release of all tasks and ends at a deadline.
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
    /// CPU time that the VM receives in the interval in the worst phase of its reservation.
    pub supply: Span,
}

/// Tests a task set under EDF. The utilisation of the set must be below the share of the
/// reservation. An earlier deadline than the one in the error may be missed too.
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
            let supply = supply.least_in(until);
            return Err(Refutation::Shortfall(DemandShortfall { within: until, demand, supply }));
        }
        if points.len() == MOST_POINTS {
            return Err(Refutation::Undecided { limit: busy });
        }
        points.push(DemandPoint { from, until, demand });
        before = from;
    }
    Ok(Proof::Demand { points, busy })
}

/// Returns the longest time for which the VM can be busy with the tasks without a pause.
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

/// Returns the busy time beyond which the search for the longest busy time gives up.
fn search_limit(tasks: &TaskSet) -> Span {
    (tasks.longest_period() * 1000).max(Span::from_secs(10))
}

/// Returns the first deadline, after a common release of all tasks, by which the demand exceeds the
/// supply.
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
