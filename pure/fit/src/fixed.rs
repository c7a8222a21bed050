//! Test of a task set under fixed priorities: response times.

use response_time_analysis::fixed_point;
use response_time_analysis::time::{Duration, Service};
use slackline_units::Span;

use crate::{PeriodicSupply, PeriodicTask, Refutation, TaskSet};

/// Longest response time of a task, after a common release of all tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskResponse {
    /// Longest time from a release until the job is done.
    pub response: Span,
    /// CPU time that the job and all jobs of higher priority need during the response time.
    pub demand: Span,
    /// Time from a release until the job must be done.
    pub deadline: Span,
}

/// A task that cannot always meet its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateResponse {
    /// Index of the late task in its task set.
    pub task: usize,
    /// Time from a release until the job must be done.
    pub deadline: Span,
}

/// Tests a task set under fixed priorities, and returns the response time of each task.
pub(crate) fn prove(
    tasks: &TaskSet,
    supply: &PeriodicSupply,
) -> Result<Vec<TaskResponse>, Refutation> {
    let one = |(task, of): (usize, &PeriodicTask)| {
        let deadline = of.deadline();
        let late = Refutation::Late(LateResponse { task, deadline });
        let workload = |time: Duration| {
            Service::from(requested(tasks, task, Span::from_ns(u64::from(time))).ns())
        };
        let limit = Duration::from(deadline.ns());
        let found = fixed_point::search(supply.model(), limit, workload).map_err(|_| late)?;
        let response = Span::from_ns(u64::from(found));
        // The search accepts a fixed point that is longer than the limit, so compare again here.
        if response > deadline {
            return Err(late);
        }
        Ok(TaskResponse { response, demand: requested(tasks, task, response), deadline })
    };
    tasks.tasks().iter().enumerate().map(one).collect()
}

/// Returns the CPU time of one job of a task and of the jobs of higher priority. Jobs of higher
/// priority count if they are released in an interval of length `length`.
fn requested(tasks: &TaskSet, task: usize, length: Span) -> Span {
    let (higher, from) = tasks.tasks().split_at(task);
    higher.iter().map(|task| task.requested_in(length)).sum::<Span>() + from[0].work()
}

/// Returns true if each response time is within its deadline, and if the reservation always
/// supplies the task's demand within the response time.
pub(crate) fn is_proof(
    tasks: &TaskSet,
    supply: &PeriodicSupply,
    responses: &[TaskResponse],
) -> bool {
    let holds = |(task, of): (usize, &TaskResponse)| {
        let spec = tasks.tasks()[task];
        of.deadline == spec.deadline()
            && of.response <= of.deadline
            && of.demand == requested(tasks, task, of.response)
            && supply.least_in(of.response) >= of.demand
    };
    responses.len() == tasks.tasks().len() && responses.iter().enumerate().all(holds)
}
