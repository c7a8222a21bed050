//! The way by `SCHED_FIFO`: whoever is due is real-time, the chosen one at the highest priority and
//! those in line below it; whoever must not run is stopped or frozen.

use super::{Assignment, Failed, HandleState, Place, VcpuHandle, Way};
use crate::fence::Held;
use crate::step::ActError;
use crate::step::priority::Ladder;

/// Real-time priority, stop and freezer.
#[derive(Debug)]
pub(crate) struct Fifo;

impl Way for Fifo {
    fn carry_out(&self, order: &[Assignment], failed: &mut Vec<Failed>) {
        // How many of the line are still to come: there must be room for them below.
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
                Place::First | Place::Original | Place::Held => {
                    put_down(handle, &mut state, assignment)
                }
            };
            if let Err(error) = result {
                failed.push(Failed { handle: handle.clone(), error });
            }
        }
    }
}

/// Makes a vCPU real-time.
fn put_up(
    handle: &VcpuHandle,
    state: &mut HandleState,
    assignment: &Assignment,
    ladder: &mut Ladder,
) -> Result<(), ActError> {
    let priority = ladder.next(state.priority);
    state.priority = Some(priority);
    each(handle, |held| {
        if let Some(cpu) = assignment.cpu {
            held.pin(cpu)?;
        }
        held.raise(priority)
    })?;
    let_go(handle, state)
}

/// Gives a vCPU back to ordinary scheduling, or keeps it from running. Then a single thread stays
/// real-time: it stops at once, and nothing need be done to it but to let it go. Of several the one
/// that stops them has to get to run first.
fn put_down(
    handle: &VcpuHandle,
    state: &mut HandleState,
    assignment: &Assignment,
) -> Result<(), ActError> {
    let is_held = assignment.place == Place::Held;
    let stays = is_held && handle.members.len() == 1;
    if !stays {
        state.priority = None;
    }
    each(handle, |held| {
        if let Some(cpu) = assignment.cpu {
            held.pin(cpu)?;
        }
        match assignment.place {
            _ if stays => Ok(()),
            Place::First => held.favour(),
            _ => held.lower(),
        }
    })?;
    if is_held {
        state.is_held = true;
        first(handle, Held::hold_back)
    } else {
        let_go(handle, state)
    }
}

fn let_go(handle: &VcpuHandle, state: &mut HandleState) -> Result<(), ActError> {
    if !std::mem::take(&mut state.is_held) {
        return Ok(());
    }
    first(handle, Held::let_go)
}

/// Stopping a process stops all its threads: one order is enough.
fn first(handle: &VcpuHandle, order: fn(&Held) -> Result<(), ActError>) -> Result<(), ActError> {
    handle.members.first().map_or(Ok(()), order)
}

/// Does something to each thread, also if it failed with one before; the first failure is told, but
/// of an ended thread only if nothing worse happened.
fn each(
    handle: &VcpuHandle,
    order: impl Fn(&Held) -> Result<(), ActError>,
) -> Result<(), ActError> {
    let mut result = Ok(());
    for held in &handle.members {
        match (order(held), &result) {
            (Err(error), Ok(())) => result = Err(error),
            (Err(error), Err(before)) if before.means_gone() => result = Err(error),
            _ => {}
        }
    }
    result
}
