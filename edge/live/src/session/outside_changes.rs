//! Changes to the scheduling of members' threads that the session did not order. The session either
//! undoes or respects such a change.
//!
//! A target is the process or thread that a member runs. The kind of a change decides whether it
//! counts as an administrator's change or as the target's own. An administrator's change is a
//! freeze, a limit, a stop, or any change to a vCPU of libvirt. A change of cpuset or cgroup counts
//! as an administrator's change if the target's user has no permission to make it. All other
//! changes count as the target's own, even if root has made them.
//!
//! - The target's own change is undone. A target that leaves its CPUs repeatedly is stopped for
//!   [`STOPPED_FOR`].
//! - An administrator's change is respected: the threads leave the real-time class and stay as they
//!   were found. The member is *contested* until the change is undone or a request resumes the
//!   member.

use std::fs;
use std::path::PathBuf;

use slackline_units::{CpuSet, Span, Time};

use super::contest::Changes;
use super::finding::ForeignChange;
use super::ids::JoinId;
use super::request::Row;
use super::{RequestError, Session, SessionError, SessionEvents};
use crate::live_host::{LiveHostError, NotDone};
use slackline_fence::{Drift, TreeAudit};
use slackline_linux::cgroup::{Cpuset, Hierarchies, Surroundings, may_move, may_write};
use slackline_linux::sys::{Tid, get_affinity, get_scheduling, process_of};
use slackline_linux::thread::{Stat, ThreadRef};

/// Interval between checks of the classes and affinities of members' threads. A change that the
/// session did not order lasts at most twice as long.
pub(super) const LOOK_INTERVAL: Span = Span::from_ms(50);

/// Minimum interval between two checks of a member's cgroups. Each check reads a few files.
pub(super) const AROUND_INTERVAL: Span = Span::from_secs(1);
/// Maximum number of members whose cgroups are checked in one round. Requests to the daemon wait
/// during a round.
const AROUND_AT_ONCE: usize = 16;

/// Time after a member joins in which the program that started its threads may still move them. For
/// example, libvirt puts each vCPU into its own cgroup.
pub(super) const PLACED_WITHIN: Span = Span::from_secs(2);

/// Number of times that a target must leave its CPUs within [`OWN_WITHIN`] to be stopped. A program
/// that sets the affinity of its threads only when it starts leaves its CPUs less often.
pub(super) const OWN_AT_MOST: usize = 4;
/// Time within which a target is stopped if it leaves its CPUs [`OWN_AT_MOST`] times.
pub(super) const OWN_WITHIN: Span = Span::from_secs(10);
/// Time for which a target is stopped after it has left its CPUs too often.
pub(super) const STOPPED_FOR: Span = Span::from_secs(1);

impl Session {
    /// Checks all members for changes that the session did not order.
    pub(super) fn look_for_changes(
        &mut self,
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        let now = self.host.now();
        if now < self.next_audit {
            return Ok(());
        }
        self.next_audit = now + LOOK_INTERVAL;
        let there = self.members.iter().filter(|(_, row)| row.has_joined && !row.is_nobody());
        let ids: Vec<JoinId> = there.map(|(id, _)| id).collect();
        for &id in &ids {
            self.end_stop(id, now)?;
            if self.changes(id).is_some_and(|changes| changes.found.is_some()) {
                self.host.count_left(id.vcpu())?;
            } else {
                self.look_at_threads(id, seen)?;
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
        let Ok(hierarchies) = Hierarchies::read() else { return Ok(()) };
        for id in due {
            self.look_around(id, &hierarchies, seen)?;
            if let Some(changes) = self.changes_mut(id) {
                changes.looked = Some(now);
            }
        }
        Ok(())
    }

    fn changes(&self, id: JoinId) -> Option<&Changes> {
        self.members.get(id).map(|row| &row.changes)
    }

    fn changes_mut(&mut self, id: JoinId) -> Option<&mut Changes> {
        self.members.get_mut(id).map(|row| &mut row.changes)
    }

    /// Checks class, priority and affinity of all threads of a member. For a process tree, also
    /// checks whether threads have left its cgroup.
    fn look_at_threads(
        &mut self,
        id: JoinId,
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        let Some(row) = self.members.get(id) else { return Ok(()) };
        let changed = match &row.tree {
            Some(tree) => match self.host.audit(id.vcpu(), tree) {
                // The kernel also refuses the dispatcher's next order, and the host handles that.
                Err(LiveHostError::Act(error)) if error.is_refusal() => return Ok(()),
                Err(error) => return Err(error.into()),
                Ok(None) => {
                    self.endings.doubt(id);
                    return Ok(());
                }
                Ok(Some(TreeAudit { changed, left, .. })) => {
                    if let Some(finding) = self.look_at_leavers(id, &left) {
                        return self.contest(id, finding, seen);
                    }
                    changed
                }
            },
            None => {
                let drift = |tid: Tid| Some((tid, self.fence.thread(tid)?.differs().ok()??));
                row.threads.iter().filter_map(|thread| drift(thread.tid())).collect()
            }
        };
        match changed.first() {
            Some(&(tid, drift)) => self.answer(id, (tid, drift), &changed, seen),
            None => Ok(()),
        }
    }

    /// Undoes the changes that were found on threads of a member, or respects them.
    fn answer(
        &mut self,
        id: JoinId,
        (tid, drift): (Tid, Drift),
        all: &[(Tid, Drift)],
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        let Some(row) = self.members.get(id) else { return Ok(()) };
        let cpuset = self.hindering_cpuset(row, tid);
        let is_own = |cpuset: &Cpuset| may_write(user_of(tid), &cpuset.file);
        let may_be_undone = cpuset.is_none() && !row.is_of_libvirt;
        let finding = self.finding((tid, drift), cpuset.as_ref());
        if let Some(cpuset) = &cpuset
            && is_own(cpuset)
            && !row.is_of_libvirt
        {
            return self.stop_for_a_while(id);
        }
        if !may_be_undone {
            return self.contest(id, finding, seen);
        }
        let undone = match &row.tree {
            Some(tree) => tree.undo(&all.iter().map(|(tid, _)| *tid).collect::<Vec<_>>()),
            None => all.iter().try_for_each(|(tid, _)| match self.fence.thread(*tid) {
                Some(held) => held.undo(),
                None => Ok(()),
            }),
        };
        match undone {
            Err(error) if error.means_gone() => return Ok(()),
            Err(_) => return self.contest(id, finding, seen),
            Ok(()) => seen.meddled.push((id, finding)),
        }
        let has_escaped = all.iter().any(|(_, drift)| drift.cpus.is_some());
        if has_escaped { self.note_escape(id) } else { Ok(()) }
    }

    /// Notes that a target has left its CPUs by its own action and was moved back. Stops the target
    /// if it has left its CPUs too often.
    fn note_escape(&mut self, id: JoinId) -> Result<(), SessionError> {
        let now = self.host.now();
        let Some(changes) = self.changes_mut(id) else { return Ok(()) };
        changes.own.retain(|&then| now.since(then) < OWN_WITHIN);
        changes.own.push(now);
        if changes.own.len() < OWN_AT_MOST { Ok(()) } else { self.stop_for_a_while(id) }
    }

    /// Stops a member for [`STOPPED_FOR`], unless it is paused or stopped already.
    fn stop_for_a_while(&mut self, id: JoinId) -> Result<(), SessionError> {
        let now = self.host.now();
        let Some(row) = self.members.get(id) else { return Ok(()) };
        if row.is_paused || row.changes.stopped_until.is_some() {
            return Ok(());
        }
        // A target that cannot be stopped is only moved back each time.
        if self.pause_threads(id, now).is_ok()
            && let Some(changes) = self.changes_mut(id)
        {
            changes.stopped_until = Some(now + STOPPED_FOR);
        }
        Ok(())
    }

    /// Resumes a target once it has been stopped for [`STOPPED_FOR`] because it left its CPUs.
    fn end_stop(&mut self, id: JoinId, now: Time) -> Result<(), SessionError> {
        let Some(row) = self.members.get_mut(id) else { return Ok(()) };
        if row.changes.stopped_until.is_none_or(|until| now < until) {
            return Ok(());
        }
        row.changes.stopped_until = None;
        if row.is_paused { Ok(()) } else { self.resume_threads(id, now).or_else(unless_over) }
    }

    /// Handles running threads that have left the cgroup of a process tree. A thread that may have
    /// moved itself is moved back. A thread that another program has moved is restored, and the
    /// first such move is returned.
    fn look_at_leavers(&self, id: JoinId, left: &[Tid]) -> Option<ForeignChange> {
        let row = self.members.get(id)?;
        let tree = row.tree.as_ref()?;
        let group = &tree.place().group;
        let mut found = None;
        for &tid in left {
            let is_first = row.threads.iter().find(|thread| thread.tid() == tid);
            let is_known = is_first.is_some_and(|thread| !thread.is_gone().unwrap_or(true));
            let there = (is_known || tree.is_as_ordered(tid)).then(|| process_of(tid).ok());
            let around = there
                .flatten()
                .and_then(|pid| Some((pid, Hierarchies::read().ok()?.around(pid, tid)?)));
            let Some((pid, around)) = around else {
                tree.let_leave(tid);
                continue;
            };
            let Some(now) = around.unified() else { continue };
            if now.starts_with(group) {
                continue;
            }
            if may_move(user_of(tid), group, now) && tree.place().take_in(pid).is_ok() {
                continue;
            }
            tree.let_leave(tid);
            found.get_or_insert(ForeignChange::Moved { tid, group: now.to_path_buf() });
        }
        found
    }

    /// Returns the cpuset of a thread if it excludes a CPU to which the session has pinned the
    /// thread. `None` if it excludes no such CPU.
    fn hindering_cpuset(&self, row: &Row, tid: Tid) -> Option<Cpuset> {
        let ordered = self.ordered_of(row, tid)?;
        let cpuset = Cpuset::of(process_of(tid).ok()?, tid).ok()??;
        (!ordered.without(&cpuset.cpus).is_empty()).then_some(cpuset)
    }

    /// Returns the CPUs to which the session has pinned a thread of a member. `None` if the thread
    /// is not pinned.
    fn ordered_of(&self, row: &Row, tid: Tid) -> Option<CpuSet> {
        match &row.tree {
            Some(tree) => tree.kept_on(),
            None => self.fence.thread(tid)?.kept_on(),
        }
    }

    fn finding(&self, (tid, drift): (Tid, Drift), cpuset: Option<&Cpuset>) -> ForeignChange {
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
    /// for stops by signals. If the member is contested, only checks whether the change has been
    /// undone.
    fn look_around(
        &mut self,
        id: JoinId,
        hierarchies: &Hierarchies,
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        let now = self.host.now();
        if let Some(row) = self.members.get_mut(id)
            && now.since(row.changes.joined) < PLACED_WITHIN
        {
            row.changes.before.clear();
        }
        let Some(row) = self.members.get(id) else { return Ok(()) };
        if let Some(found) = &row.changes.found {
            if self.is_undone(row, found, hierarchies) {
                self.take_back(id)?;
                seen.settled.push(id);
            }
            return Ok(());
        }
        let mut around = Vec::new();
        for (pid, tid) in self.threads_to_look_at(row) {
            around.extend(hierarchies.around(pid, tid).map(|now| (pid, tid, now)));
        }
        let mut found = None;
        for (pid, tid, now) in &around {
            let before = row.changes.before.iter().find(|(known, _)| known == tid);
            let before = before.map_or(now, |(_, before)| before);
            found = found.or_else(|| self.change_around(row, (*pid, *tid), before, now));
        }
        let Some(row) = self.members.get_mut(id) else { return Ok(()) };
        let is_new = |tid: &Tid| row.changes.before.iter().all(|(known, _)| known != tid);
        let new: Vec<_> = around.into_iter().filter(|(_, tid, _)| is_new(tid)).collect();
        row.changes.before.extend(new.into_iter().map(|(_, tid, now)| (tid, now)));
        match found {
            Some(finding) => self.contest(id, finding, seen),
            None => Ok(()),
        }
    }

    /// Returns the threads for which the cgroups are checked, each as (process, thread). These are
    /// all threads of the member, or one thread if the member is a process tree.
    fn threads_to_look_at(&self, row: &Row) -> Vec<(Tid, Tid)> {
        let is_there = |tid: &Tid| self.fence.thread(*tid).is_some();
        let first = row.threads.iter().filter(|thread| !thread.is_gone().unwrap_or(true));
        let mut there: Vec<(Tid, Tid)> =
            first.map(|thread| (thread.pid(), thread.tid())).filter(|(_, t)| is_there(t)).collect();
        if let Some(tree) = &row.tree {
            there.truncate(1);
            if there.is_empty() {
                let threads = tree.threads().unwrap_or_default();
                there.extend(threads.first().and_then(|&tid| Some((process_of(tid).ok()?, tid))));
            }
        }
        there
    }

    fn change_around(
        &self,
        row: &Row,
        (pid, tid): (Tid, Tid),
        before: &Surroundings,
        now: &Surroundings,
    ) -> Option<ForeignChange> {
        if let Some((was, is)) = now.moved(before) {
            let is_own = may_move(user_of(tid), &was.group, &is.group) && !row.is_of_libvirt;
            if !(is_own && was.take_back(tid).is_ok()) {
                return Some(ForeignChange::Moved { tid, group: is.group.clone() });
            }
        }
        if let Some(group) = self.frozen_by_others(row, tid, now) {
            return Some(ForeignChange::Frozen { tid, group });
        }
        if let Some((group, limit)) =
            now.limited(before).cloned().or_else(|| self.fence.cut_budget(tid))
        {
            return Some(ForeignChange::Limited { tid, group, limit });
        }
        if !row.is_stopped_by_signal() && is_stopped(pid, tid) {
            return Some(ForeignChange::Stopped { pid });
        }
        let cpuset = self.hindering_cpuset(row, tid)?;
        let allowed = get_affinity(tid).ok()?;
        let scheduled = self.host.real_cpus().collect();
        Some(ForeignChange::Cpus { tid, allowed, scheduled, cpuset: Some(cpuset.group) })
    }

    /// Returns a cgroup that contains the thread and that another program has frozen. If there is
    /// none, returns the session's own freezer cgroup of the thread, provided that another program
    /// has frozen or thawed that cgroup. `None` otherwise.
    fn frozen_by_others(&self, row: &Row, tid: Tid, now: &Surroundings) -> Option<PathBuf> {
        let tree = row.tree.as_ref();
        let group = tree.map(|tree| tree.place().group.as_path());
        now.frozen(group).or_else(|| match tree {
            Some(tree) => tree.foreign_freeze(),
            None => self.fence.thread(tid)?.foreign_freeze(),
        })
    }

    /// Returns true if the change for which a member is contested has been undone.
    fn is_undone(&self, row: &Row, found: &ForeignChange, hierarchies: &Hierarchies) -> bool {
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
                get_scheduling(*tid).map_or(true, |now| now.class != *class)
            }
            ForeignChange::Moved { tid, group } => around(*tid).is_none_or(|now| !now.is_in(group)),
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
            ForeignChange::Stopped { pid } => !is_stopped(*pid, *pid),
        }
    }

    /// Respects a change by another program: the member counts as contested from now on.
    fn contest(
        &mut self,
        id: JoinId,
        finding: ForeignChange,
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        let Some(row) = self.members.get_mut(id) else { return Ok(()) };
        let was_stopped = row.changes.stopped_until.take().is_some() && !row.is_paused;
        if was_stopped {
            let now = self.host.now();
            self.resume_threads(id, now).or_else(unless_over)?;
        }
        let Some(row) = self.members.get(id) else { return Ok(()) };
        let first = row.threads.first().map(ThreadRef::tid);
        let ordered = first.and_then(|tid| self.ordered_of(row, tid));
        let by_cpuset = matches!(finding, ForeignChange::Cpus { cpuset: Some(_), .. });
        match self.host.leave_to_others(id.vcpu(), by_cpuset) {
            Ok(changed) => {
                for (tid, original) in changed {
                    // The error is ignored. If the keeper cannot record the new state, it will
                    // later restore the state that the thread had before the change.
                    let _ = self.fenced(|fence| fence.amend(tid, original));
                }
            }
            Err(NotDone::Host(error)) => return Err(error.into()),
            // After a refusal, the threads are in an ordinary class or have exited.
            Err(_) => {}
        }
        if let Some(changes) = self.changes_mut(id) {
            changes.ordered = ordered;
            changes.found = Some(finding.clone());
        }
        seen.contested.push((id, finding));
        self.poke();
        Ok(())
    }

    fn take_back(&mut self, id: JoinId) -> Result<(), LiveHostError> {
        let Some(row) = self.members.get(id) else { return Ok(()) };
        let by_cpuset =
            matches!(row.changes.found, Some(ForeignChange::Cpus { cpuset: Some(_), .. }));
        let tids: Vec<Tid> = row.threads.iter().map(ThreadRef::tid).collect();
        // The present state, which other programs have set, becomes the state to restore later.
        let is_amended = row.tree.is_none() && !by_cpuset;
        for tid in tids.into_iter().filter(|_| is_amended) {
            let found = self.fence.thread(tid).and_then(|held| held.accept().ok());
            if let Some(original) = found {
                let _ = self.fenced(|fence| fence.amend(tid, original));
            }
        }
        if let Some(row) = self.members.get_mut(id) {
            row.changes.found = None;
            row.changes.own.clear();
            row.changes.before.clear();
        }
        self.host.take_back(id.vcpu())?;
        self.poke();
        Ok(())
    }

    /// Schedules a contested member again, unless the other program's change still keeps its
    /// threads away from the scheduled CPUs.
    pub(super) fn take_back_if_possible(&mut self, id: JoinId) -> Result<(), RequestError> {
        let Some(found) = self.changes(id).and_then(|changes| changes.found.clone()) else {
            return Ok(());
        };
        let row = self.row(id)?;
        let hinders = match &found {
            ForeignChange::Cpus { .. }
            | ForeignChange::Frozen { .. }
            | ForeignChange::Stopped { .. } => {
                Hierarchies::read().is_ok_and(|it| !self.is_undone(row, &found, &it))
            }
            ForeignChange::Class { .. } | ForeignChange::Limited { .. } => false,
            ForeignChange::Moved { tid, .. } => {
                let known = row.changes.before.iter().find(|(known, _)| known == tid);
                if let Some((_, before)) = known {
                    before.groups.iter().for_each(|group| drop(group.take_back(*tid)));
                }
                false
            }
        };
        if hinders {
            return Err(RequestError::Contested { finding: Box::new(found) });
        }
        self.take_back(id).map_err(|error| self.not_done(error.into()))
    }
}

pub(super) fn is_stopped(pid: Tid, tid: Tid) -> bool {
    Stat::of(pid, tid).is_ok_and(Stat::stopped)
}

/// Returns the effective user id of a thread. Returns 0, which is root, if it cannot be read.
pub(super) fn user_of(tid: Tid) -> u32 {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let effective = users.and_then(|users| users.split_ascii_whitespace().nth(1));
    effective.and_then(|user| user.parse().ok()).unwrap_or(0)
}

/// Ignores the failure of a request, unless it ended the session.
fn unless_over(error: RequestError) -> Result<(), SessionError> {
    match error {
        RequestError::Host(error) => Err(error.into()),
        _ => Ok(()),
    }
}
