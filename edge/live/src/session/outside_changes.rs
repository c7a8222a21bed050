//! Changes to the scheduling of members' threads that the session did not make. The session either
//! undoes or respects such a change.
//!
//! A target is the process or thread that a member runs. A change counts either as an
//! administrator's change or as the target's own change. Any change to a VM of libvirt is an
//! administrator's change. A change of a cpuset, cgroup, freeze or quota is an administrator's
//! change if the target's user has no permission to make it. All other changes count as the
//! target's own, even if root has made them.
//!
//! - The target's own change is undone. A target that escapes repeatedly is stopped for
//!   [`STOPPED_FOR`]. A target that left its cgroup is stopped in a cell, and longer each time. The
//!   exceptions are stop signals, freezes and quotas by the target itself. They harm only the
//!   target, so they are not undone, and the reservation stays enforced.
//! - An administrator's change is respected: the threads leave the real-time class and stay as they
//!   were found. The member is *contested* until the change is undone or a request resumes the
//!   member. If only some threads of a process tree were moved to another cgroup, the reservation
//!   stays enforced for the others.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use slackline_units::{CpuSet, Span, Time};

use super::contest::{Changes, STOPPED_FOR, unless_over};
use super::finding::ForeignChange;
use super::ids::JoinId;
use super::request::Row;
use super::thread_states::{is_process_stopped, is_stopped, surroundings};
use super::{Session, SessionError, SessionEvents};
use crate::live_host::{LiveHostError, PauseReason, TreeCheck};
use slackline_fence::{Drift, TreeAudit};
use slackline_linux::cgroup::{
    Cpuset, Credentials, Hierarchies, Surroundings, may_move, may_write,
};
use slackline_linux::sys::{Tid, get_affinity, get_scheduling, process_of};
use slackline_linux::thread::{ThreadRef, starts_or_ends};

/// Interval between checks of the classes and affinities of members' threads. A change that the
/// session did not make lasts at most twice this interval.
pub(super) const LOOK_INTERVAL: Span = Span::from_ms(50);

/// Minimum interval between two checks of a member's cgroups. Each check reads a few files.
pub(super) const AROUND_INTERVAL: Span = Span::from_secs(1);
/// Maximum number of members in one round of cgroup checks. Requests to the daemon wait during a
/// round.
pub(super) const AROUND_AT_ONCE: usize = 16;

impl Session {
    /// Checks all members for changes that the session did not make.
    pub(super) fn look_for_changes(
        &mut self,
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        let now = self.host.now();
        if now < self.next_audit {
            return Ok(());
        }
        self.next_audit = now + LOOK_INTERVAL;
        let ids = self.members_with_threads();
        for &id in &*ids {
            // If a tree is moved from its cell to another cgroup than its own, the audit stops the
            // tree again.
            self.end_stop(id, now)?;
            self.count_left(id)?;
            if self.changes(id).is_some_and(|changes| changes.is_left) {
                continue;
            }
            self.look_at_thaw(id, seen)?;
            self.look_at_threads(id, seen)?;
            let is_starting = self.changes(id).is_some_and(|changes| changes.is_starting(now));
            // Each of these checks reads a file.
            let is_checked = is_starting || ids.len() <= AROUND_AT_ONCE;
            if is_checked && self.members.get(id).is_some_and(|row| self.has_left_freezer(row)) {
                let Some(hierarchies) = self.hierarchies() else { continue };
                self.look_around(id, &hierarchies, seen)?;
            }
        }
        let is_due = |id: &&JoinId| {
            let looked = self.changes(**id).and_then(|changes| changes.looked);
            looked.is_none_or(|looked| now.since(looked) >= AROUND_INTERVAL)
        };
        let mut due: Vec<JoinId> = ids.iter().filter(is_due).copied().collect();
        due.sort_by_key(|&id| self.changes(id).and_then(|changes| changes.looked));
        due.truncate(AROUND_AT_ONCE);
        if due.is_empty() {
            return Ok(());
        }
        // If the hierarchies cannot be read, no change is found.
        let Some(hierarchies) = self.hierarchies() else { return Ok(()) };
        for id in due {
            self.look_around(id, &hierarchies, seen)?;
            if let Some(changes) = self.changes_mut(id) {
                changes.looked = Some(now);
            }
        }
        Ok(())
    }

    /// Returns the mounts of the cgroup hierarchies. Mounts change rarely, so they are read again
    /// only after one second. `None` if the mounts cannot be read.
    pub fn hierarchies(&mut self) -> Option<Arc<Hierarchies>> {
        let now = self.host.now();
        let is_recent = |(read, _): &(Time, Arc<Hierarchies>)| now.since(*read) < AROUND_INTERVAL;
        if !self.hierarchies.as_ref().is_some_and(is_recent) {
            self.hierarchies = Hierarchies::read().ok().map(|of| (now, Arc::new(of)));
        }
        self.hierarchies.as_ref().map(|(_, of)| Arc::clone(of))
    }

    pub(super) fn changes(&self, id: JoinId) -> Option<&Changes> {
        self.members.get(id).map(|row| &row.changes)
    }

    pub(super) fn changes_mut(&mut self, id: JoinId) -> Option<&mut Changes> {
        self.members.get_mut(id).map(|row| &mut row.changes)
    }

    /// Checks class, priority and affinity of all threads of a member. If the member is a process
    /// tree, also checks whether threads have left the tree's cgroup.
    fn look_at_threads(
        &mut self,
        id: JoinId,
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        self.accept_first_classes(id);
        let Some(row) = self.members.get(id) else { return Ok(()) };
        let changed = match &row.tree {
            Some(tree) => match self.host.audit(id.vcpu(), (tree, &row.threads)) {
                // The kernel will refuse the dispatcher's next change of this thread too, and the
                // host handles that.
                Err(LiveHostError::Act(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
                Ok(None) => {
                    self.endings.doubt(id);
                    return Ok(());
                }
                Ok(Some(TreeCheck { audit, used })) => {
                    let TreeAudit { there, changed, left, unbound } = audit;
                    self.count_outside(id, used, (&there, &left))?;
                    self.look_at_leavers(id, &left, seen)?;
                    self.look_at_unbound(id, (&there, &unbound), seen)?;
                    self.look_at_members(id, there, seen)?;
                    changed
                }
            },
            None => {
                let drift = |tid: Tid| Some((tid, self.fence.thread(tid)?.differs().ok()??));
                row.threads.iter().filter_map(|thread| drift(thread.tid())).collect()
            }
        };
        self.answer(id, &changed, seen)
    }

    /// Accepts classes that libvirt gives to the threads of a VM that has just joined.
    fn accept_first_classes(&mut self, id: JoinId) {
        let now = self.host.now();
        let is_it = |row: &&Row| row.is_of_libvirt && row.changes.is_starting(now);
        let Some(row) = self.members.get(id).filter(is_it) else { return };
        let tids: Vec<Tid> = row.threads.iter().map(ThreadRef::tid).collect();
        for tid in tids {
            let held = self.fence.thread(tid);
            let accepted = held.and_then(|held| held.accept_unordered_class().ok().flatten());
            if let Some(original) = accepted {
                // The error is ignored. The keeper would then restore the earlier class.
                let _ = self.fenced(|fence| fence.amend(tid, original));
            }
        }
    }

    /// Undoes or respects the changes that were found on threads of a member.
    fn answer(
        &mut self,
        id: JoinId,
        all: &[(Tid, Drift)],
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        let (Some(row), Some(&first)) = (self.members.get(id), all.first()) else { return Ok(()) };
        let tids: Vec<Tid> = all.iter().map(|(tid, _)| *tid).collect();
        let ((tid, drift), cpuset) = match self.hindered(row, all) {
            Some((hindered, cpuset)) => (hindered, Some(cpuset)),
            None => (first, None),
        };
        let finding = self.finding((tid, drift), cpuset.as_ref());
        if cpuset.is_some() && self.return_to_cgroups(row, &tids) {
            // Other changes in `all` are undone by the next check.
            seen.meddled.push((id, finding));
            return self.note_escape(id);
        }
        if let Some(cpuset) = &cpuset
            && is_own(row, tid, &cpuset.file)
        {
            // The check of the cgroups reports this change.
            return self.stop_for_a_while(id);
        }
        if row.is_of_libvirt || cpuset.is_some() && self.is_hindered_as_a_whole(row) {
            return self.contest(id, finding, seen);
        }
        let undone = match &row.tree {
            Some(tree) => tree.undo(&tids),
            None => all.iter().try_for_each(|(tid, _)| match self.fence.thread(*tid) {
                Some(held) => held.undo(),
                None => Ok(()),
            }),
        };
        match undone {
            Err(error) if error.means_gone() => return Ok(()),
            // A cgroup of version 1 can refuse the real-time class.
            Err(_) if self.return_to_cgroups(row, &tids) => {
                seen.meddled.push((id, finding));
                return self.note_escape(id);
            }
            Err(_) if self.exempt_refused(row, &tids) => {
                let moved = self.foreign_move(id, &tids);
                match moved {
                    Some(moved) => self.contest_in_part(id, moved, seen)?,
                    None => seen.meddled.push((id, finding)),
                }
            }
            Err(_) => return self.contest(id, finding, seen),
            // All threads have their class and affinity again, except threads whose cpuset excludes
            // the CPUs.
            Ok(()) if cpuset.is_some() => self.contest_in_part(id, finding, seen)?,
            Ok(()) => seen.meddled.push((id, finding)),
        }
        if self.has_escaped(id, all) { self.note_escape(id) } else { Ok(()) }
    }

    /// Counts an escape of a target by its own action. The session has undone the escape. Stops the
    /// target if it has escaped too often.
    pub(super) fn note_escape(&mut self, id: JoinId) -> Result<(), SessionError> {
        let now = self.host.now();
        let is_too_often = self.changes_mut(id).is_some_and(|changes| changes.note_escape(now));
        if is_too_often { self.stop_for_a_while(id) } else { Ok(()) }
    }

    /// Counts a move or thaw of a process tree, by the tree itself or by another process of its
    /// user, after the session has undone it. From now on, this tree is stopped in a cell, a frozen
    /// cgroup of root.
    pub(super) fn note_move(&mut self, id: JoinId) -> Result<(), SessionError> {
        if let Some(changes) = self.changes_mut(id) {
            changes.needs_cell = true;
        }
        self.note_escape(id)
    }

    /// Stops a member for [`STOPPED_FOR`], unless it is paused or stopped already.
    pub(super) fn stop_for_a_while(&mut self, id: JoinId) -> Result<(), SessionError> {
        let now = self.host.now();
        let Some(row) = self.members.get(id) else { return Ok(()) };
        if row.is_paused || row.changes.stopped_until.is_some() {
            return Ok(());
        }
        // A target that cannot be stopped is only moved back each time.
        if self.pause_threads(id, PauseReason::Escaped, now).is_ok()
            && let Some(changes) = self.changes_mut(id)
        {
            let needs_cell = changes.needs_cell;
            let length = if needs_cell { changes.next_stop(now) } else { STOPPED_FOR };
            changes.stopped_until = Some(now + length);
            if needs_cell {
                self.confine(id);
            }
        }
        Ok(())
    }

    /// Resumes a target that was stopped because it escaped, when the time of the stop has passed.
    fn end_stop(&mut self, id: JoinId, now: Time) -> Result<(), SessionError> {
        let Some(row) = self.members.get(id) else { return Ok(()) };
        let until = row.changes.stopped_until;
        let until = until.or(row.changes.cell.is_some().then_some(now));
        if until.is_none_or(|until| now < until) {
            return Ok(());
        }
        let is_out = self.end_confinement(id);
        let Some(row) = self.members.get_mut(id) else { return Ok(()) };
        row.changes.stopped_until = (!is_out).then_some(now + STOPPED_FOR);
        if !is_out {
            return Ok(());
        }
        if row.is_paused { Ok(()) } else { self.resume_threads(id, now).or_else(unless_over) }
    }

    /// Returns the cpuset of a thread if this cpuset excludes a CPU to which the session has pinned
    /// the thread. Otherwise `None`.
    pub(super) fn hindering_cpuset(&self, row: &Row, tid: Tid) -> Option<Cpuset> {
        let ordered = self.ordered_of(row, tid)?;
        let cpuset = Cpuset::of(process_of(tid).ok()?, tid).ok()??;
        (!ordered.without(&cpuset.cpus).is_empty()).then_some(cpuset)
    }

    /// Returns the CPUs to which the session has pinned a thread of a member. `None` if the thread
    /// is not pinned.
    pub(super) fn ordered_of(&self, row: &Row, tid: Tid) -> Option<CpuSet> {
        match &row.tree {
            Some(tree) => tree.kept_on(),
            None => self.fence.thread(tid)?.kept_on(),
        }
    }

    pub(super) fn finding(
        &self,
        (tid, drift): (Tid, Drift),
        cpuset: Option<&Cpuset>,
    ) -> ForeignChange {
        match drift {
            Drift { cpus: Some(allowed), .. } => ForeignChange::Cpus {
                tid,
                allowed,
                scheduled: self.host.real_cpus().collect(),
                cpuset: cpuset.map(|cpuset| cpuset.group.clone()),
            },
            Drift { class, .. } => {
                let is = class.or_else(|| get_scheduling(tid).ok());
                let class = is.map_or(slackline_linux::sys::Scheduling::Idle, |is| is.class);
                ForeignChange::Class { tid, class }
            }
        }
    }

    /// Checks the cgroups of a member's threads for moves, freezes and limits, and the processes
    /// for stops by signals. If the member is contested, checks only whether the change that made
    /// it contested has been undone.
    fn look_around(
        &mut self,
        id: JoinId,
        hierarchies: &Hierarchies,
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        let now = self.host.now();
        if let Some(row) = self.members.get_mut(id) {
            if row.changes.is_starting(now) {
                row.changes.before.clear();
            }
            if row.changes.found.is_none() {
                // The kernel may allow now what it refused before.
                row.tree.iter().for_each(|tree| drop(tree.bind_again()));
            }
            if row.changes.before.is_empty() && !row.changes.is_left {
                self.renew_freezer(id);
            }
        }
        if self.look_at_finding(id, hierarchies, seen)? {
            return Ok(());
        }
        let Some(row) = self.members.get(id) else { return Ok(()) };
        let around = surroundings(row, self.threads_to_look_at(row), hierarchies);
        let (mut found, mut own) = (None, Vec::new());
        for (pid, tid, now) in &around {
            let before = row.changes.before.iter().find(|(known, _)| known == tid);
            let before = before.map_or(now, |(_, before)| before);
            let change = self.change_around(row, (*pid, *tid), (before, now), &mut own);
            found = found.or(change);
        }
        let Some(row) = self.members.get_mut(id) else { return Ok(()) };
        let is_new = |tid: &Tid| row.changes.before.iter().all(|(known, _)| known != tid);
        let new: Vec<_> = around.into_iter().filter(|(_, tid, _)| is_new(tid)).collect();
        row.changes.before.extend(new.into_iter().map(|(_, tid, now)| (tid, now)));
        if let Some(finding) = found {
            self.contest(id, finding, seen)?;
        }
        if self.changes(id).is_some_and(|changes| changes.is_left) {
            return Ok(());
        }
        self.answer_own(id, own, seen)
    }

    /// Checks whether the change for which a member is contested has been undone. Returns true if
    /// the session did not schedule the member when this check began. Also returns true if there is
    /// no such member.
    fn look_at_finding(
        &mut self,
        id: JoinId,
        hierarchies: &Hierarchies,
        seen: &mut SessionEvents,
    ) -> Result<bool, SessionError> {
        let Some(row) = self.members.get(id) else { return Ok(true) };
        let Some(found) = row.changes.found.clone() else {
            let moved = row.changes.moved.first().map(|moved| moved.thread().tid());
            let around = moved.and_then(|tid| hierarchies.around(process_of(tid).ok()?, tid));
            let group = around.and_then(|now| now.unified().map(Path::to_path_buf));
            let finding = moved.zip(group).map(|(tid, group)| ForeignChange::Moved { tid, group });
            return match finding {
                Some(finding) => self.contest_in_part(id, finding, seen).map(|()| false),
                None => Ok(false),
            };
        };
        let is_left = row.changes.is_left;
        if self.is_undone(row, &found, hierarchies) {
            self.take_back(id)?;
            seen.settled.push(id);
            return Ok(is_left);
        }
        // Another program may have changed the class once more.
        if let ForeignChange::Class { tid, class } = found
            && let Ok(now) = get_scheduling(tid)
            && now.class != class
            && let Some(changes) = self.changes_mut(id)
        {
            let finding = ForeignChange::Class { tid, class: now.class };
            changes.found = Some(finding.clone());
            seen.contested.push((id, finding));
        }
        Ok(is_left)
    }

    /// Returns the threads whose cgroups are checked, each as (process, thread). For a process
    /// tree, this is one thread. For any other member, these are all its threads.
    fn threads_to_look_at(&self, row: &Row) -> Vec<(Tid, Tid)> {
        let is_there = |tid: &Tid| self.fence.thread(*tid).is_some();
        let first = row.threads.iter().filter(|thread| !thread.is_gone().unwrap_or(true));
        let mut there: Vec<(Tid, Tid)> =
            first.map(|thread| (thread.pid(), thread.tid())).filter(|(_, t)| is_there(t)).collect();
        if let Some(tree) = &row.tree {
            let moved = &row.changes.moved;
            there.retain(|(_, tid)| moved.iter().all(|moved| moved.thread().tid() != *tid));
            there.truncate(1);
            if there.is_empty() {
                let threads = tree.threads().unwrap_or_default();
                there.extend(threads.first().and_then(|&tid| Some((process_of(tid).ok()?, tid))));
            }
        }
        there
    }

    /// Returns the first change by another program to the cgroups of a thread, or to its process.
    /// Adds changes by the target itself to `own`.
    pub(super) fn change_around(
        &self,
        row: &Row,
        (pid, tid): (Tid, Tid),
        (before, now): (&Surroundings, &Surroundings),
        own: &mut Vec<ForeignChange>,
    ) -> Option<ForeignChange> {
        if let Some((was, is)) = now.moves(before).find(|(_, is)| !row.is_audited(is)) {
            let finding = ForeignChange::Moved { tid, group: is.group.clone() };
            let is_own = may_move(&credentials(row, tid), &was.group, &is.group);
            let is_own = is_own && !row.is_of_libvirt;
            // A removed freezer cgroup is replaced by a new one.
            let is_renewable = || !was.group.exists() && self.has_left_freezer(row);
            if !(is_own && (was.take_back(tid).is_ok() || is_renewable())) {
                return Some(finding);
            }
            own.push(finding);
        } else if self.has_left_freezer(row) {
            // The thread was moved before its cgroups were known, so it cannot be moved back.
            let group = now.groups.first().map(|it| it.group.clone()).unwrap_or_default();
            return Some(ForeignChange::Moved { tid, group });
        }
        let mut sort = |finding, file: PathBuf| {
            if is_own(row, tid, &file) {
                own.push(finding);
            } else {
                return Some(finding);
            }
            None
        };
        if let Some(group) = self.frozen_by_others(row, tid, now) {
            let file = Surroundings::freeze_file(&group);
            let found = sort(ForeignChange::Frozen { tid, group }, file);
            if found.is_some() {
                return found;
            }
        }
        for (group, limit) in now.new_limits(before).cloned() {
            let file = Surroundings::quota_file(&group);
            let found = sort(ForeignChange::Limited { tid, group, limit }, file);
            if found.is_some() {
                return found;
            }
        }
        if let Some((group, limit)) = self.fence.cut_budget(tid) {
            let file = group.join("cpu.rt_runtime_us");
            let found = sort(ForeignChange::Limited { tid, group, limit }, file);
            if found.is_some() {
                return found;
            }
        }
        if let Some(cpuset) = self.hindering_cpuset(row, tid)
            && let Ok(allowed) = get_affinity(tid)
        {
            let (scheduled, group) = (self.host.real_cpus().collect(), Some(cpuset.group));
            let finding = ForeignChange::Cpus { tid, allowed, scheduled, cpuset: group };
            let found = sort(finding, cpuset.file);
            if found.is_some() {
                return found;
            }
        }
        let is_stopped = !row.is_stopped_by_signal() && is_stopped(pid, tid);
        is_stopped.then_some(ForeignChange::Stopped { pid })
    }

    /// Handles changes to cgroups that a target itself has made. Undoes those changes with which
    /// the target would exceed its reservation.
    pub(super) fn answer_own(
        &mut self,
        id: JoinId,
        own: Vec<ForeignChange>,
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        let Some(changes) = self.changes_mut(id) else { return Ok(()) };
        let known = std::mem::replace(&mut changes.own_around, own.clone());
        if own.iter().any(|finding| matches!(finding, ForeignChange::Moved { .. })) {
            self.renew_freezer(id);
        }
        for finding in own {
            let is_known = known.contains(&finding);
            match &finding {
                ForeignChange::Moved { .. } => self.note_move(id)?,
                ForeignChange::Cpus { .. } => self.stop_for_a_while(id)?,
                ForeignChange::Frozen { group, .. } => {
                    let tree = self.members.get(id).and_then(|row| row.tree.as_ref());
                    let of_tree = tree.filter(|tree| tree.place().group == *group);
                    // After an error, the tree has ended or the next check tries again.
                    of_tree.map(|tree| tree.freeze_again().ok());
                }
                _ => {}
            }
            if !is_known {
                seen.meddled.push((id, finding));
            }
        }
        Ok(())
    }

    /// Returns a cgroup that contains the thread and that another program has frozen. Otherwise
    /// returns the cgroup with which the session freezes the thread, if another program has frozen
    /// or thawed it. `None` if neither is so. The thawed cgroup of a process tree is not returned,
    /// because the session freezes it again.
    fn frozen_by_others(&self, row: &Row, tid: Tid, now: &Surroundings) -> Option<PathBuf> {
        let tree = row.tree.as_ref();
        let group = tree.map(|tree| tree.place().group.as_path());
        now.frozen(group).or_else(|| match tree {
            Some(tree) => tree.foreign_freeze().filter(|_| tree.foreign_thaw().is_none()),
            None => self.fence.thread(tid)?.foreign_freeze(),
        })
    }

    /// Returns true if the change for which a member is contested has been undone.
    pub(super) fn is_undone(
        &self,
        row: &Row,
        found: &ForeignChange,
        hierarchies: &Hierarchies,
    ) -> bool {
        let around = |tid: Tid| hierarchies.around(process_of(tid).ok()?, tid);
        let before = |tid: Tid| {
            let known = row.changes.before.iter().find(|(known, _)| *known == tid);
            known.map(|(_, before)| before)
        };
        match found {
            ForeignChange::Cpus { tid, .. } => {
                let ordered = row.changes.ordered.unwrap_or_default();
                get_affinity(*tid).map_or(true, |now| ordered.without(&now).is_empty())
            }
            ForeignChange::Class { tid, class } => {
                get_scheduling(*tid).map_or(true, |now| match row.changes.original {
                    Some(original) => now.class == original,
                    None => now.class != *class,
                })
            }
            ForeignChange::Moved { tid, group } => match (around(*tid), before(*tid)) {
                _ if !row.changes.moved.is_empty() => false,
                _ if row.tree.is_none() && self.has_left_freezer(row) => false,
                // The kernel shows an ended thread in other cgroups.
                _ if process_of(*tid).is_ok_and(|pid| starts_or_ends(pid, *tid)) => true,
                (Some(now), Some(before)) => now.moves(before).all(|(_, is)| row.is_audited(is)),
                (Some(now), None) => row.tree.is_some() || !now.is_in(group),
                (None, _) => true,
            },
            ForeignChange::Frozen { tid, .. } => {
                let frozen = around(*tid).map(|now| self.frozen_by_others(row, *tid, &now));
                frozen.flatten().is_none()
            }
            ForeignChange::Limited { tid, .. } => match (around(*tid), before(*tid)) {
                (Some(now), Some(before)) => {
                    now.limited(before).is_none() && self.fence.cut_budget(*tid).is_none()
                }
                _ => true,
            },
            ForeignChange::Thawed { .. } => true,
            ForeignChange::Stopped { pid } => !is_process_stopped(*pid),
            ForeignChange::Refused { .. } => {
                let refused = row.changes.refused;
                refused.is_none_or(|refused| self.host.now().since(refused) >= AROUND_INTERVAL)
            }
        }
    }
}

/// Returns the users and groups of a thread, and those of the member's first thread at its join.
pub(super) fn credentials(row: &Row, tid: Tid) -> Credentials {
    Credentials::of(tid).and(&row.changes.credentials)
}

/// Returns true if a change of the cgroup file `file` counts as made by the target itself.
pub(super) fn is_own(row: &Row, tid: Tid, file: &Path) -> bool {
    !row.is_of_libvirt && may_write(&credentials(row, tid), file)
}
