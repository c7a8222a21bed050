//! Leavers: threads that have left the cgroup of their process tree, or their freezer cgroup.

use std::collections::BTreeSet;

use slackline_linux::cgroup::{Hierarchies, may_move};
use slackline_linux::sys::{Tid, process_of};
use slackline_linux::thread::{Stat, ThreadRef, starts_or_ends};
use slackline_units::Span;

use super::contest::{MOST_MOVED, MovedThread};
use super::finding::ForeignChange;
use super::ids::JoinId;
use super::outside_changes::credentials;
use super::request::Row;
use super::{Session, SessionError, SessionEvents};
use slackline_fence::{HeldThread, HeldTree};

impl Session {
    /// Handles running threads that have left the cgroup of a process tree.
    ///
    /// A thread that has the permission to move itself is moved back. If it cannot be moved back,
    /// the tree is stopped in a cell, a frozen cgroup of root. Any other thread must have been
    /// moved by another program: the thread is restored, and the member is contested.
    pub(super) fn look_at_leavers(
        &mut self,
        id: JoinId,
        left: &[Tid],
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        let cell = self.changes(id).and_then(|changes| changes.cell.as_ref());
        let cell = cell.map(|confined| confined.cell.clone());
        let confined = cell.as_ref().and_then(|cell| cell.all_threads().ok()).unwrap_or_default();
        let confined: BTreeSet<Tid> = confined.into_iter().collect();
        let mut left = left.iter().filter(|tid| !confined.contains(tid)).peekable();
        if left.peek().is_none() {
            return Ok(());
        }
        let Ok(hierarchies) = Hierarchies::read() else { return Ok(()) };
        let (mut found, mut own, mut stuck) = (None, None, Vec::new());
        for &tid in left {
            let Some(row) = self.members.get(id) else { return Ok(()) };
            let Some(tree) = row.tree.clone() else { return Ok(()) };
            let group = &tree.place().group;
            let there = process_of(tid).ok();
            let around = there.and_then(|pid| Some((pid, hierarchies.around(pid, tid)?)));
            let Some((pid, around)) = around else {
                tree.let_leave(tid);
                self.host.forget(id.vcpu(), tid)?;
                continue;
            };
            // A thread that is about to end is still in the cgroup, although it is not listed.
            let outside = around.unified().filter(|now| !now.starts_with(group));
            let Some(now) = outside.filter(|now| hierarchies.confirm((pid, tid), now)) else {
                continue;
            };
            let finding = ForeignChange::Moved { tid, group: now.to_path_buf() };
            let is_own = !row.is_of_libvirt && may_move(&credentials(row, tid), group, now);
            if is_own {
                if cell.as_ref().unwrap_or(tree.place()).take_in(pid).is_ok() {
                    // The class and affinity that the thread should have may have changed
                    // meanwhile. If they cannot be set, the next audit finds the thread.
                    let _ = tree.undo(&[tid]);
                } else if Stat::of(tid, tid).is_ok_and(|stat| !stat.exited()) {
                    stuck.push((pid, tid, finding.clone()));
                } else {
                    continue;
                }
                own.get_or_insert(finding);
                continue;
            }
            self.let_leave(id, (pid, tid))?;
            found.get_or_insert(finding);
        }
        if let Some(finding) = own {
            seen.meddled.push((id, finding));
            self.note_move(id)?;
        }
        if !stuck.is_empty() {
            let confined = self.stop_in_cell(id)?;
            for (pid, tid, finding) in stuck.into_iter().filter(|it| !confined.contains(&it.1)) {
                self.let_leave(id, (pid, tid))?;
                found.get_or_insert(finding);
            }
        }
        found.map_or(Ok(()), |finding| self.contest_in_part(id, finding, seen))
    }

    /// Restores a thread that has left the cgroup of a process tree. From now on, the session
    /// counts the thread's CPU time separately.
    fn let_leave(&mut self, id: JoinId, (pid, tid): (Tid, Tid)) -> Result<(), SessionError> {
        let Some(row) = self.members.get_mut(id) else { return Ok(()) };
        row.tree.iter().for_each(|tree| tree.let_leave(tid));
        if row.changes.moved.len() < MOST_MOVED {
            row.changes.moved.extend(MovedThread::open(pid, tid));
        }
        Ok(self.host.forget(id.vcpu(), tid)?)
    }

    /// Moves threads of a member back into the version 1 cgroups in which they are expected. A
    /// thread is moved only if it has the permission to leave these cgroups by itself. Returns true
    /// if at least one thread was moved.
    pub(super) fn return_to_cgroups(&self, row: &Row, tids: &[Tid]) -> bool {
        if row.is_of_libvirt {
            return false;
        }
        let Ok(hierarchies) = Hierarchies::read() else { return false };
        let returned = tids.iter().filter(|&&tid| {
            let Some(before) = row.changes.expected(tid) else { return false };
            let around = process_of(tid).ok().and_then(|pid| hierarchies.around(pid, tid));
            around.is_some_and(|now| now.return_to(before, tid, &credentials(row, tid)))
        });
        returned.count() > 0
    }

    /// Restores threads that have left the cgroup of a process tree since the last audit, before
    /// the tree itself is restored. Ignores errors.
    pub(super) fn restore_leavers(&self, id: JoinId) {
        let row = self.members.get(id).filter(|row| row.has_joined && !row.changes.is_left);
        let Some((row, tree)) = row.and_then(|row| Some((row, row.tree.as_ref()?))) else { return };
        let audit = self.host.audit(id.vcpu(), (tree, &row.threads)).ok().flatten();
        audit.into_iter().flat_map(|check| check.audit.left).for_each(|tid| tree.let_leave(tid));
    }

    /// Handles a change by another program to some threads of a member. The member counts as
    /// contested, but its reservation stays enforced for the member's other threads.
    pub(super) fn contest_in_part(
        &mut self,
        id: JoinId,
        finding: ForeignChange,
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        // CPU time of moved threads is recorded from now on.
        self.host.count_left(id.vcpu(), Span::ZERO)?;
        let tree = self.members.get(id).and_then(|row| row.tree.as_ref());
        let ordered = tree.and_then(HeldTree::kept_on);
        let Some(changes) = self.changes_mut(id) else { return Ok(()) };
        let is_news = match (&changes.found, &finding) {
            (Some(ForeignChange::Moved { .. }), ForeignChange::Stopped { .. }) => false,
            (found, finding) => found.as_ref() != Some(finding),
        };
        if is_news && !changes.is_left {
            changes.ordered = ordered;
            changes.found = Some(finding.clone());
            seen.contested.push((id, finding));
            seen.still_enforced.push(id);
        }
        Ok(())
    }

    /// Records the CPU time that a contested member has used outside of dispatcher control, which
    /// no dispatcher counts.
    pub(super) fn count_left(&mut self, id: JoinId) -> Result<(), SessionError> {
        let Some(row) = self.members.get_mut(id) else { return Ok(()) };
        if !row.changes.is_left && row.changes.moved.is_empty() {
            return Ok(());
        }
        let there = match &row.tree {
            Some(tree) if !row.changes.moved.is_empty() => tree.threads().unwrap_or_default(),
            _ => Vec::new(),
        };
        let width = row.tree.as_ref().map_or(1, |tree| tree.width() as u64);
        let moved = row.changes.count_moved(&there) / width;
        Ok(self.host.count_left(id.vcpu(), moved)?)
    }

    /// Returns true if the thread of a member is no longer in its freezer cgroup. Returns false if
    /// the thread is ending: the kernel then no longer lists it there.
    pub(super) fn has_left_freezer(&self, row: &Row) -> bool {
        self.leaver_of_freezer(row).is_some()
    }

    fn leaver_of_freezer(&self, row: &Row) -> Option<Tid> {
        let first = row.threads.first().map(ThreadRef::tid);
        let first = first.filter(|_| row.has_stop && row.tree.is_none())?;
        let has_left = self.fence.thread(first).is_some_and(HeldThread::has_left_freezer);
        let pid = || process_of(first).unwrap_or(first);
        (has_left && !starts_or_ends(pid(), first)).then_some(first)
    }

    /// Makes a new freezer cgroup for a member that was moved out of its freezer cgroup. If that
    /// fails, the member stays without a freezer cgroup. The next check of the member's cgroups
    /// detects that.
    pub(super) fn renew_freezer(&mut self, id: JoinId) {
        let row = self.members.get(id);
        let Some(tid) = row.and_then(|row| self.leaver_of_freezer(row)) else { return };
        let renewed = self.fenced(|fence| fence.renew_stop(tid));
        if let Some(changes) = self.changes_mut(id).filter(|_| renewed.is_ok()) {
            changes.forget_surroundings();
        }
    }
}
