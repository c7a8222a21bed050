//! Enforcement with `SCHED_FIFO`. A vCPU to which the policy guarantees CPU time at present, such
//! as a vCPU with budget left, is real-time. The vCPU that the policy picked has the highest
//! priority. The vCPUs that the policy would pick next have lower priorities, in the order in which
//! they would be picked. A vCPU that must not run, such as a vCPU with a hard limit and no budget
//! left, is stopped by a signal or frozen.

use slackline_units::CpuId;

use super::{Assignment, FailedAssignment, HandleState, HeldThreads, Place, VcpuHandle, Way};
use slackline_fence::HeldThread;
use slackline_linux::step::ActError;
use slackline_linux::step::priority::Ladder;

/// Enforcement with real-time priorities, stop signals and freezer cgroups.
#[derive(Debug)]
pub(crate) struct Fifo;

impl Way for Fifo {
    fn enforce_orders(&self, order: &[Assignment], failed: &mut Vec<FailedAssignment>) {
        // Each vCPU in line needs a priority of its own below that of the vCPU before it.
        let count = order.iter().filter(|assignment| assignment.place == Place::InLine).count();
        let mut ladder = Ladder::new(count);
        for assignment in order {
            let handle = &assignment.handle;
            let mut state = handle.state();
            if !state.is_news(assignment.number) {
                continue;
            }
            let result = match assignment.place {
                Place::InLine => put_up(handle, &mut state, assignment, &mut ladder),
                Place::Held | Place::Stopping => hold(handle, &mut state, assignment),
                Place::First | Place::Original | Place::Behind => {
                    put_down(handle, &mut state, assignment)
                }
            };
            if let Err(error) = result {
                failed.push(FailedAssignment { handle: handle.clone(), error });
            }
        }
    }
}

/// Makes the threads of a vCPU real-time.
fn put_up(
    handle: &VcpuHandle,
    state: &mut HandleState,
    assignment: &Assignment,
    ladder: &mut Ladder,
) -> Result<(), ActError> {
    if let Some(notice) = &mut state.notice {
        notice.switch_off();
    }
    let priority = ladder.next(state.priority);
    // Setting another priority queues the threads of a tree anew, in any order.
    let is_same = state.priority.replace(priority) == Some(priority) && !state.is_held;
    let kept = keep_on(handle, assignment.cpu);
    let raised = and_then(kept, || match &handle.threads {
        HeldThreads::Each(members) => each(members, |held| held.raise(priority)),
        HeldThreads::Tree(tree) => tree.raise(priority),
    });
    let front = &assignment.front[..];
    let tree = match &handle.threads {
        HeldThreads::Tree(tree) if !is_same => tree,
        _ => return and_then(raised, || let_go(handle, state)),
    };
    let width = tree.width();
    if width == 1 {
        and_then(raised, || let_go(handle, state))?;
        // In reverse order, since each call puts its thread before the threads of earlier calls.
        return front.iter().rev().try_for_each(|&tid| tree.put_first(tid, assignment.timeslice));
    }
    // One thread for each CPU is put ahead while the tree is still stopped. Otherwise the threads
    // that were ahead in the last timeslice would start to run. The other threads in front must run
    // after these threads, so they are put ahead when the tree has been resumed.
    let ahead = and_then(raised, || tree.put_ahead(&front[..front.len().min(width)]));
    and_then(ahead, || let_go(handle, state))?;
    tree.put_ahead(front)
}

/// Stops a vCPU. Each of its threads stops as soon as the dispatcher sleeps. The threads stay
/// real-time, so the dispatcher only has to resume them for the next slice.
///
/// A thread inside the kernel runs until it leaves the kernel. Such a thread may even spin there
/// and wait for another thread, for example if a process is reaped while another process is removed
/// from `/proc`. A spinning real-time thread would keep the other thread from the CPU until the
/// kernel throttles real-time threads. So threads that still run after the stop lose the real-time
/// class.
fn hold(
    handle: &VcpuHandle,
    state: &mut HandleState,
    assignment: &Assignment,
) -> Result<(), ActError> {
    let held = and_then(keep_on(handle, assignment.cpu), || handle.hold_back(state));
    let is_stopping = assignment.place == Place::Stopping;
    // Notifications are switched on only for trees. For single threads they would cost 30 us in
    // each slice.
    if let (Some(notice), HeldThreads::Tree(_)) = (&mut state.notice, &handle.threads) {
        if is_stopping {
            notice.switch_off();
        } else {
            // An error means that no file descriptors are left. Then a stopped thread that still
            // runs is noticed only in the next dispatcher pass, which may be late.
            let _ = notice.switch_on(assignment.cpu);
        }
    }
    if held.is_err() || is_stopping {
        // An error of `lower` is ignored, since the error of the stop is returned.
        state.priority = None;
        let _ = lower(handle);
    }
    held
}

/// Makes the threads of a vCPU ordinary.
fn put_down(
    handle: &VcpuHandle,
    state: &mut HandleState,
    assignment: &Assignment,
) -> Result<(), ActError> {
    state.priority = None;
    if let Some(notice) = &mut state.notice {
        // An error means that no file descriptors are left. Then CPU time that the vCPU uses is
        // noticed only in the next dispatcher pass, which may be late.
        let _ = notice.switch_on(assignment.cpu);
    }
    let given =
        and_then(keep_on(handle, assignment.cpu), || match (&handle.threads, assignment.place) {
            (HeldThreads::Each(members), Place::First) => each(members, HeldThread::favour),
            (HeldThreads::Tree(tree), Place::First) => tree.favour(),
            // A tree gets the ordinary class in place of the lowest priority. Processes that it
            // starts would inherit the lowest priority and keep it forever.
            (HeldThreads::Each(members), Place::Behind) => each(members, HeldThread::defer),
            _ => lower(handle),
        });
    and_then(given, || let_go(handle, state))
}

/// Combines two steps of an order. Runs the next step if the previous step `before` succeeded, or
/// failed only because a thread has exited. So the remaining threads are still stopped or resumed.
/// Returns the failure of the next step, or else the failure of the previous step.
fn and_then(
    before: Result<(), ActError>,
    next: impl FnOnce() -> Result<(), ActError>,
) -> Result<(), ActError> {
    match before {
        Err(error) if !error.means_gone() => Err(error),
        before => next().and(before),
    }
}

fn keep_on(handle: &VcpuHandle, cpu: Option<CpuId>) -> Result<(), ActError> {
    let Some(cpu) = cpu else { return Ok(()) };
    match &handle.threads {
        HeldThreads::Each(members) => each(members, |held| held.pin(cpu)),
        HeldThreads::Tree(tree) => tree.pin(cpu),
    }
}

fn lower(handle: &VcpuHandle) -> Result<(), ActError> {
    match &handle.threads {
        HeldThreads::Each(members) => each(members, HeldThread::lower),
        HeldThreads::Tree(tree) => tree.lower(),
    }
}

fn let_go(handle: &VcpuHandle, state: &mut HandleState) -> Result<(), ActError> {
    if !state.is_held {
        return Ok(());
    }
    let resumed = match &handle.threads {
        HeldThreads::Each(members) => members.first().map_or(Ok(()), HeldThread::let_go),
        HeldThreads::Tree(tree) => tree.let_go(),
    };
    // A vCPU that could not be resumed is resumed by the next order.
    state.is_held = resumed.as_ref().is_err_and(|error| !error.means_gone());
    resumed
}

/// Applies an order to each thread of a vCPU, even if it fails for some threads. Returns the first
/// failure. A failure because a thread has exited is returned only if there is no other failure.
fn each(
    members: &[HeldThread],
    order: impl Fn(&HeldThread) -> Result<(), ActError>,
) -> Result<(), ActError> {
    let mut result = Ok(());
    for held in members {
        match (order(held), &result) {
            (Err(error), Ok(())) => result = Err(error),
            (Err(error), Err(before)) if before.means_gone() => result = Err(error),
            _ => {}
        }
    }
    result
}
