//! Checks of all threads of a process tree. The checks find stops by signals, moves to other
//! cgroups, and quotas, freezes and cpusets of the threads' cgroups. The first thread of the tree
//! is checked separately, and more often.

use super::contest::PLACED_WITHIN;
use super::finding::ForeignChange;
use super::ids::JoinId;
use super::thread_states::is_stopped;
use super::tree_groups::COVERED_WITHIN;
use super::{Session, SessionError, SessionEvents};
use slackline_linux::cgroup::{Hierarchies, Surroundings};
use slackline_linux::sys::{Tid, process_of, read_of_thread};
use slackline_linux::thread::{ThreadRef, starts_or_ends};

/// Maximum number of threads whose cgroups are read completely in one round of checks. For all
/// other threads, only the names of their cgroups are read.
const READ_AT_ONCE: usize = 8;

impl Session {
    /// Checks the threads of a process tree that are due. `there` has all threads of the tree. If a
    /// change by another program is found, the tree becomes contested, but its reservation stays
    /// enforced.
    pub(super) fn look_at_members(
        &mut self,
        id: JoinId,
        mut there: Vec<Tid>,
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        let now = self.host.now();
        let Some(row) = self.members.get_mut(id) else { return Ok(()) };
        let first = row.threads.first().map(ThreadRef::tid);
        there.retain(|&tid| Some(tid) != first);
        // An audit that was skipped, because the tree is idle, has no threads.
        if there.is_empty() {
            return Ok(());
        }
        there.sort_unstable();
        row.changes.groups.keep(&there);
        let (mut hierarchies, mut reads, mut own) = (None, 0, Vec::new());
        for tid in row.changes.groups.rotation.due(now, &there) {
            let Ok(text) = read_of_thread((tid, tid), "cgroup") else { continue };
            let Some(row) = self.members.get_mut(id) else { return Ok(()) };
            let is_fresh = row.changes.groups.is_fresh(tid, &text, now);
            let is_checked = !row.is_stopped_by_signal() && row.changes.found.is_none();
            let found = if is_fresh {
                let is_stopped = is_checked && is_stopped(tid, tid);
                is_stopped.then(|| ForeignChange::Stopped { pid: process_of(tid).unwrap_or(tid) })
            } else if reads < READ_AT_ONCE {
                reads += 1;
                let of = hierarchies.get_or_insert_with(Hierarchies::read);
                let Ok(of) = of else { continue };
                self.look_at_member(id, tid, of, &mut own)
            } else {
                None
            };
            let is_contested = self.changes(id).is_none_or(|changes| changes.found.is_some());
            if let Some(found) = found.filter(|_| !is_contested) {
                self.contest_in_part(id, found, seen)?;
            }
        }
        for finding in own {
            // Other changes by the tree itself, such as a quota, harm only the tree. They would be
            // reported again for each thread.
            if matches!(finding, ForeignChange::Moved { .. }) {
                seen.meddled.push((id, finding));
                self.note_escape(id)?;
            }
        }
        Ok(())
    }

    /// Reads the cgroups of one thread of a process tree. Returns a change by another program, if
    /// there is one. Adds changes that the tree itself has made to `own`.
    fn look_at_member(
        &mut self,
        id: JoinId,
        tid: Tid,
        hierarchies: &Hierarchies,
        own: &mut Vec<ForeignChange>,
    ) -> Option<ForeignChange> {
        let now = self.host.now();
        let pid = process_of(tid).unwrap_or(tid);
        if starts_or_ends(pid, tid) {
            return None;
        }
        let text = read_of_thread((tid, tid), "cgroup").ok()?;
        let (row, around) = (self.members.get(id)?, hierarchies.around(tid, tid)?);
        if starts_or_ends(pid, tid) {
            return None;
        }
        let groups = &row.changes.groups;
        let mut expected = groups.expected(tid, &text).unwrap_or(&around);
        // Threads start in the cgroups of the thread that starts them. So once all threads were
        // checked, a thread in unknown cgroups was moved after its start.
        let is_learning = now.since(row.changes.joined) < PLACED_WITHIN + COVERED_WITHIN;
        let is_in = |known: &Surroundings| around.moves(known).all(|(_, is)| row.is_audited(is));
        if is_learning {
            expected = &around;
        } else if !groups.known().any(is_in) {
            expected = groups.known().next().unwrap_or(expected);
        }
        let expected = expected.clone();
        let mut by_itself = Vec::new();
        let found = self.change_around(row, (pid, tid), (&expected, &around), &mut by_itself);
        let changes = self.changes_mut(id)?;
        let is_move = |change: &ForeignChange| matches!(change, ForeignChange::Moved { .. });
        if found.is_none() && !by_itself.iter().any(is_move) {
            changes.groups.note(tid, text, around, now);
        } else if found.is_some() && changes.before.iter().all(|(known, _)| *known != tid) {
            changes.before.push((tid, expected));
        }
        own.append(&mut by_itself);
        found
    }
}
