//! Stops of process trees in a cell: a frozen cgroup of root, out of which users cannot move
//! processes. Such a stop is needed after the tree, or another process of its user, has repeatedly
//! moved or thawed the tree. A freeze of the tree's own cgroup would not last.

use std::collections::BTreeSet;

use super::Session;
use super::contest::{Confinement, former_groups, processes_in};
use super::ids::JoinId;
use super::outside_changes::is_own;
use super::{ForeignChange, SessionError, SessionEvents};
use slackline_fence::HeldTree;
use slackline_linux::cgroup::{Surroundings, TreePlace};
use slackline_linux::sys::{Tid, process_of};
use slackline_linux::thread::ThreadRef;

impl Session {
    /// Freezes a process tree again after another program has thawed the tree's cgroup. A thaw by
    /// root is undone too, because the dispatcher would overwrite it anyway when it next freezes or
    /// thaws the tree. A thaw by the tree's user counts as an escape. Users can thaw only cgroups
    /// that Slackline did not make.
    pub(super) fn look_at_thaw(
        &mut self,
        id: JoinId,
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        let Some(row) = self.members.get(id) else { return Ok(()) };
        let Some((tree, first)) = row.tree.as_ref().zip(row.threads.first()) else { return Ok(()) };
        let Some(group) = tree.foreign_thaw() else { return Ok(()) };
        let tid = first.tid();
        let is_own =
            tree.place().origin.is_none() && is_own(row, tid, &Surroundings::freeze_file(&group));
        if tree.freeze_again().is_err() || row.changes.cell.is_some() {
            return Ok(());
        }
        seen.meddled.push((id, ForeignChange::Thawed { tid, group }));
        if is_own { self.note_move(id) } else { Ok(()) }
    }

    /// Stops a process tree immediately in a cell (a frozen cgroup of root). The caller does this
    /// if a thread that has left the tree's cgroup cannot be moved back. Returns the threads in the
    /// cell. The set is empty if no cell could be made.
    pub(super) fn stop_in_cell(&mut self, id: JoinId) -> Result<BTreeSet<Tid>, SessionError> {
        self.stop_for_a_while(id)?;
        if self.changes(id).is_some_and(|changes| changes.cell.is_none()) {
            self.confine(id);
        }
        let now = self.host.now();
        let confined = self.changes_mut(id).filter(|changes| changes.cell.is_some());
        let Some(changes) = confined else { return Ok(BTreeSet::new()) };
        if changes.stopped_until.is_none() {
            changes.stopped_until = Some(now + changes.next_stop(now));
        }
        let threads = changes.cell.as_ref().and_then(|confined| confined.cell.all_threads().ok());
        Ok(threads.into_iter().flatten().collect())
    }

    /// Moves all processes of a stopped process tree into a new cell, a frozen cgroup of root. If
    /// that fails, the tree stays frozen in its own cgroup, and is moved back each time that it
    /// leaves this cgroup.
    pub(super) fn confine(&mut self, id: JoinId) {
        let Some((tree, first)) = self.tree_of(id) else { return };
        let group = tree.place().group.clone();
        let list = || tree.place().all_processes().unwrap_or_default();
        // Another process may just have moved some of the processes again.
        let threads = self.host.living_threads(id.vcpu()).into_iter();
        let known: BTreeSet<Tid> = threads.filter_map(|tid| process_of(tid).ok()).collect();
        let outside = |cell: &TreePlace| -> Vec<Tid> {
            let inside = processes_in(cell);
            let all: BTreeSet<Tid> = list().into_iter().chain(known.iter().copied()).collect();
            all.into_iter().filter(|pid| !inside.contains(pid)).collect()
        };
        let is_of_others = tree.place().origin.is_none();
        let former = if is_of_others { former_groups(list(), &group) } else { Vec::new() };
        let confined = self.fenced(|fence| fence.confine(first, &group, outside));
        if let (Ok(Some(cell)), Some(changes)) = (confined, self.changes_mut(id)) {
            changes.cell = Some(Confinement { cell, former });
        }
    }

    /// Moves a process tree from its cell (frozen cgroup of root) back into its own cgroup, where
    /// it stays frozen. Returns false if that fails, so that the caller must try again. Returns
    /// true if there is no cell.
    pub(super) fn end_confinement(&mut self, id: JoinId) -> bool {
        let Some(confined) = self.changes_mut(id).and_then(|changes| changes.cell.take()) else {
            return true;
        };
        let Some((tree, first)) = self.tree_of(id) else { return true };
        if tree.foreign_thaw().is_some() {
            // If the cgroup no longer exists, the processes return to a cgroup above it.
            let _ = tree.freeze_again();
        }
        confined.return_to_former();
        let is_out = self.fenced(|fence| fence.end_confinement(first)).is_ok();
        if is_out {
            // Class and affinity that the dispatcher set meanwhile did not reach the threads in the
            // cell. The next audit finds any thread that still lacks them.
            let _ = tree.threads().map(|threads| tree.undo(&threads));
        } else if let Some(changes) = self.changes_mut(id) {
            changes.cell = Some(confined);
        }
        is_out
    }

    fn tree_of(&self, id: JoinId) -> Option<(HeldTree, Tid)> {
        let tree = self.members.get(id)?.tree.clone()?;
        let first = tree.first().first().map(ThreadRef::tid)?;
        Some((tree, first))
    }
}
