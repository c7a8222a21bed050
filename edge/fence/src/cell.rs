//! Cells: frozen cgroups in which targets are stopped. A target is stopped in a cell if it has left
//! its cgroup repeatedly, or if another process of its user has moved or thawed it.
//!
//! A cell is directly below the root of the hierarchy, belongs to the user root and is frozen. To
//! move a process out of a cell, a program needs the permission to write to the root cgroup. So
//! other processes of the target's user can neither move nor thaw the target.

use std::path::Path;

use super::entry::Entry;
use super::give_back::ROUNDS;
use super::{Fence, FenceError, HeldThread};
use slackline_linux::cgroup::TreePlace;
use slackline_linux::sys::Tid;

impl Fence {
    /// Stops the processes of a held target by moving them into a new cell: a frozen cgroup
    /// directly below the root cgroup. `origin` is the version 2 cgroup to which they return in the
    /// end. `processes` returns the processes of the target that are not in the cell yet. Returns
    /// the cell. Returns `None` if the thread `tid` is not held, if its process already has a cell,
    /// or if there is no cgroup at or above `origin`.
    ///
    /// # Errors
    /// If the cell cannot be made, or the keeper cannot record it. In that case no process has been
    /// moved.
    pub fn confine(
        &mut self,
        tid: Tid,
        origin: &Path,
        processes: impl Fn(&TreePlace) -> Vec<Tid>,
    ) -> Result<Option<TreePlace>, FenceError> {
        let held = self.held.get(&tid).filter(|(entry, _)| entry.cell.is_none());
        let Some((before, held)) = held else { return Ok(None) };
        let has_cell = |(entry, _): &(Entry, HeldThread)| {
            entry.process.id == before.process.id && entry.cell.is_some()
        };
        if self.held.values().any(has_cell) {
            return Ok(None);
        }
        let Some(cell) = TreePlace::cell(origin, held.thread()) else { return Ok(None) };
        let (before, held) = (before.clone(), held.clone());
        let entry = Entry { cell: Some(cell.clone()), ..before.clone() };
        let kept = self.keeper.tell(&entry.to_line())?;
        self.note(kept);
        if let Err(error) = cell.make().and_then(|()| cell.freeze(true)) {
            let _ = cell.dissolve();
            let kept = self.keeper.tell(&before.to_line())?;
            self.note(kept);
            return Err(error.into());
        }
        self.held.insert(tid, (entry, held));
        // Processes can start while others are moved.
        for _ in 0..ROUNDS {
            let left = processes(&cell);
            if left.is_empty() {
                break;
            }
            // A process that has ended cannot be moved. The next audit finds any other process.
            left.into_iter().for_each(|pid| drop(cell.take_in(pid)));
        }
        Ok(Some(cell))
    }

    /// Moves the processes of a held target from its cell (a frozen cgroup) back into their former
    /// cgroup, and removes the cell. Does nothing if the target has no cell.
    ///
    /// # Errors
    /// If the cell cannot be emptied and removed. The target then keeps its cell, and processes
    /// that cannot leave the cell stay frozen.
    pub fn end_confinement(&mut self, tid: Tid) -> Result<(), FenceError> {
        let Some((entry, held)) = self.held.get(&tid) else { return Ok(()) };
        let Some(cell) = &entry.cell else { return Ok(()) };
        // The processes are moved before the cell is thawed, so that they do not run in between.
        cell.empty()?;
        cell.dissolve()?;
        let (entry, held) = (Entry { cell: None, ..entry.clone() }, held.clone());
        let kept = self.keeper.tell(&entry.to_line());
        self.held.insert(tid, (entry, held));
        self.note(kept?);
        Ok(())
    }
}
