//! The way by `SCHED_FIFO`: whoever is due is real-time, the chosen one at the highest priority and
//! those in line below it; whoever must not run is stopped or frozen.

use super::{Assignment, Failed, Grip, HandleState, Place, VcpuHandle, Way};
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
    let was_up = state.priority.replace(priority).is_some() && !state.is_held;
    match &handle.grip {
        Grip::Threads(members) => each(members, |held| {
            if let Some(cpu) = assignment.cpu {
                held.pin(cpu)?;
            }
            held.raise(priority)
        })?,
        Grip::Tree(tree) => {
            if let Some(cpu) = assignment.cpu {
                tree.pin(cpu)?;
            }
            tree.raise(priority)?;
        }
    }
    let_go(handle, state)?;
    match (&handle.grip, assignment.first) {
        // Where it begins a turn: the one that had the last one would have this one as well.
        (Grip::Tree(tree), Some(first)) if !was_up => tree.put_first(first),
        _ => Ok(()),
    }
}

/// Gives a vCPU back to ordinary scheduling, or keeps it from running. Then a single thread stays
/// real-time: it stops at once, and nothing need be done to it but to let it go. So does a tree,
/// which is frozen as a whole. Of several threads the one that stops them has to get to run first.
fn put_down(
    handle: &VcpuHandle,
    state: &mut HandleState,
    assignment: &Assignment,
) -> Result<(), ActError> {
    let is_held = assignment.place == Place::Held;
    let is_one = match &handle.grip {
        Grip::Threads(members) => members.len() == 1,
        Grip::Tree(_) => true,
    };
    let stays = is_held && is_one;
    if !stays {
        state.priority = None;
    }
    match &handle.grip {
        Grip::Threads(members) => each(members, |held| {
            if let Some(cpu) = assignment.cpu {
                held.pin(cpu)?;
            }
            match assignment.place {
                _ if stays => Ok(()),
                Place::First => held.favour(),
                _ => held.lower(),
            }
        })?,
        Grip::Tree(tree) => {
            if let Some(cpu) = assignment.cpu {
                tree.pin(cpu)?;
            }
            match assignment.place {
                _ if stays => {}
                Place::First => tree.favour()?,
                _ => tree.lower()?,
            }
        }
    }
    if is_held {
        state.is_held = true;
        hold_back(handle)
    } else {
        let_go(handle, state)
    }
}

/// Stopping a process stops all its threads: one order is enough.
fn hold_back(handle: &VcpuHandle) -> Result<(), ActError> {
    match &handle.grip {
        Grip::Threads(members) => members.first().map_or(Ok(()), Held::hold_back),
        Grip::Tree(tree) => tree.hold_back(),
    }
}

fn let_go(handle: &VcpuHandle, state: &mut HandleState) -> Result<(), ActError> {
    if !std::mem::take(&mut state.is_held) {
        return Ok(());
    }
    match &handle.grip {
        Grip::Threads(members) => members.first().map_or(Ok(()), Held::let_go),
        Grip::Tree(tree) => tree.let_go(),
    }
}

/// Does something to each thread, also if it failed with one before; the first failure is told, but
/// of an ended thread only if nothing worse happened.
fn each(members: &[Held], order: impl Fn(&Held) -> Result<(), ActError>) -> Result<(), ActError> {
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
