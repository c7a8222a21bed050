//! Unbound threads: threads of a process tree to which the kernel refuses either the CPUs of the
//! tree or a real-time class. They run in their original class. They are frozen with the tree, and
//! their CPU time is counted for the tree. So the hard limit of the tree also limits these threads.

use std::collections::BTreeSet;

use slackline_units::CpuSet;

use super::finding::ForeignChange;
use super::ids::JoinId;
use super::outside_changes::is_own;
use super::request::Row;
use super::{Session, SessionError, SessionEvents};
use slackline_fence::Drift;
use slackline_linux::cgroup::{Cpuset, Hierarchies};
use slackline_linux::sys::{Tid, get_affinity, process_of, read_of_thread};

/// Maximum number of threads whose cpusets are read in one round of checks.
const READ_AT_ONCE: usize = 8;

impl Session {
    /// Checks the cpusets of unbound threads, once for each thread. If such a thread has moved
    /// itself to another cpuset, it is moved back. If another program has moved it, the tree is
    /// contested, but its reservation stays enforced. `there` has all threads of the tree, and
    /// `unbound` the threads to which the kernel refuses the tree's CPUs or a real-time class.
    pub(super) fn look_at_unbound(
        &mut self,
        id: JoinId,
        (there, unbound): (&[Tid], &[Tid]),
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        let Some(changes) = self.changes_mut(id) else { return Ok(()) };
        let new = changes.unchecked(there, unbound);
        if changes.found.is_some() {
            return Ok(());
        }
        for tid in new.into_iter().take(READ_AT_ONCE) {
            if let Some(changes) = self.changes_mut(id) {
                changes.unbound.insert(tid);
            }
            let Some(row) = self.members.get(id).filter(|row| !row.is_of_libvirt) else { break };
            // Without such a cpuset, the refusal has another reason. For example, the kernel never
            // changes the affinity of a worker of `io_uring`.
            let Some(cpuset) = self.hindering_cpuset(row, tid) else { continue };
            let Ok(allowed) = get_affinity(tid) else { continue };
            let drift = Drift { class: None, cpus: Some(allowed) };
            let finding = self.finding((tid, drift), Some(&cpuset));
            if self.return_to_cgroups(row, &[tid]) {
                let _ = row.tree.as_ref().map(|tree| tree.undo(&[tid]));
                seen.meddled.push((id, finding));
                return self.note_escape(id);
            }
            if is_own(row, tid, &cpuset.file) {
                seen.meddled.push((id, finding));
                return self.stop_for_a_while(id);
            }
            return self.contest_in_part(id, finding, seen);
        }
        Ok(())
    }

    /// Returns the first thread whose cpuset excludes a CPU of the member, and this cpuset. `None`
    /// if there is no such thread. `all` has the changed threads with their changes. Of several
    /// threads with the same affinity, only one is checked.
    pub(super) fn hindered(
        &self,
        row: &Row,
        all: &[(Tid, Drift)],
    ) -> Option<((Tid, Drift), Cpuset)> {
        let mut known: Vec<CpuSet> = Vec::new();
        let distinct = all.iter().filter(|(_, drift)| {
            let is_new = drift.cpus.is_some_and(|cpus| !known.contains(&cpus));
            known.extend(drift.cpus.filter(|_| is_new));
            is_new
        });
        let mut checked = distinct.take(READ_AT_ONCE).copied();
        checked.find_map(|it| Some((it, self.hindering_cpuset(row, it.0)?)))
    }

    /// Returns true if the cpuset of each thread of a member excludes a CPU of the member.
    pub(super) fn is_hindered_as_a_whole(&self, row: &Row) -> bool {
        let Some(tree) = &row.tree else { return true };
        let mut known = BTreeSet::new();
        // Threads in the same cgroups have the same cpuset.
        let mut is_new = |tid: &Tid| {
            read_of_thread((*tid, *tid), "cgroup").is_ok_and(|groups| known.insert(groups))
        };
        let threads = tree.threads().unwrap_or_default();
        let mut distinct = threads.into_iter().filter(|tid| is_new(tid));
        distinct.all(|tid| self.hindering_cpuset(row, tid).is_some())
    }

    /// Exempts those of these threads to which the kernel refuses the tree's CPUs or a real-time
    /// class. An exempt thread has its original class. Returns false, and exempts none, if the
    /// kernel refuses the CPUs or the class to all threads of the member.
    pub(super) fn exempt_refused(&self, row: &Row, tids: &[Tid]) -> bool {
        let tree = row.tree.as_ref().filter(|_| !row.is_of_libvirt);
        tree.is_some_and(|tree| tree.exempt_refused(tids).unwrap_or(false))
    }

    /// Returns true if one of the changes in `all` is an escape by the target itself. A changed
    /// affinity is no escape if a cpuset enforces it. Of several threads with the same affinity,
    /// only one is checked.
    pub(super) fn has_escaped(&self, id: JoinId, all: &[(Tid, Drift)]) -> bool {
        let Some(row) = self.members.get(id) else { return false };
        let is_unbound = |tid| row.tree.as_ref().is_some_and(|tree| tree.is_unbound(tid));
        let mut hindered: Vec<CpuSet> = Vec::new();
        all.iter().filter(|(tid, drift)| drift.is_escape() && !is_unbound(*tid)).any(|it| {
            let &(tid, Drift { class, cpus }) = it;
            let cpus = cpus.filter(|_| !Drift { class, cpus: None }.is_escape());
            // The thread has taken a priority above all vCPUs.
            let Some(cpus) = cpus else { return true };
            if hindered.contains(&cpus) {
                return false;
            }
            let is_hindered =
                hindered.len() < READ_AT_ONCE && self.hindering_cpuset(row, tid).is_some();
            hindered.extend(is_hindered.then_some(cpus));
            !is_hindered
        })
    }

    /// Returns the change if another program has moved one of these threads to another cgroup of
    /// version 1. In that case the session waits until the thread is moved back. `None` if no
    /// thread was moved.
    pub(super) fn foreign_move(&mut self, id: JoinId, tids: &[Tid]) -> Option<ForeignChange> {
        let hierarchies = Hierarchies::read().ok()?;
        let row = self.members.get(id)?;
        let (tid, group, before) = tids.iter().find_map(|&tid| {
            let (before, pid) = (row.changes.expected(tid)?, process_of(tid).ok()?);
            let around = hierarchies.around(pid, tid)?;
            let (_, is) = around.moves(before).find(|(_, is)| !row.is_audited(is))?;
            let is = Some(is).filter(|is| hierarchies.confirm((pid, tid), &is.group))?;
            Some((tid, is.group.clone(), before.clone()))
        })?;
        let changes = self.changes_mut(id)?;
        if changes.before.iter().all(|(known, _)| *known != tid) {
            changes.before.push((tid, before));
        }
        Some(ForeignChange::Moved { tid, group })
    }
}
