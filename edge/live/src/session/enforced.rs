//! Watch over threads whose CPU time the kernel enforces. The watch finds changes to such a thread
//! by other programs or by the thread itself. The rules are the same as for members that the
//! session schedules. A change by the target itself is undone, and a change by an administrator is
//! respected.
//!
//! A stopped or frozen thread stays in its class, so its limit remains in force. If another program
//! changes the class of a vCPU of libvirt, the vCPU keeps that class. So the kernel does not
//! enforce the limit until the change is undone.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use slackline_units::{Enforcement, Reservation, Span, Time};

use super::contest::{
    Changes, Confinement, PLACED_WITHIN, STOPPED_FOR, former_groups, is_of_libvirt, processes_in,
};
use super::due_checks::DueChecks;
use super::finding::ForeignChange;
use super::outside_changes::LOOK_INTERVAL;
use super::thread_states::{is_stopped, living_thread};
use crate::mechanism::{Bound, Demand, EnforceTarget, MechanismError, deadline, mechanism};
use slackline_fence::{Fence, HandoverState, HeldThread};
use slackline_linux::cgroup::{
    Credentials, Hierarchies, Membership, Surroundings, TreePlace, Version, descendants, may_move,
};
use slackline_linux::step::Hold;
use slackline_linux::sys::{Scheduling, Tid, get_scheduling, online_cpus, process_of};
use slackline_linux::thread::{ThreadRef, starts_or_ends};

/// Event about a thread whose CPU time the kernel enforces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnforcedChange {
    /// Another program or the thread itself has changed the thread, and Slackline has undone the
    /// change.
    Meddled(ForeignChange),
    /// Another program has changed the thread and keeps control of it.
    Contested(ForeignChange),
    /// The thread is no longer contested: the change was undone, and the kernel enforces its CPU
    /// time again.
    Settled,
}

/// Watch over one thread whose CPU time the kernel enforces. It notices changes by other programs
/// and by the thread itself.
#[derive(Debug)]
pub struct EnforcedWatch {
    thread: ThreadRef,
    /// Means of stopping the target if it leaves its limit repeatedly.
    hold: Hold,
    /// Slice and period of the thread under `SCHED_DEADLINE`. `None` if a cgroup enforces the
    /// limit.
    reserved: Option<Reservation>,
    /// Class of the thread before the enforcement. `None` if the fence has not recorded the thread.
    original: Option<Scheduling>,
    /// Cgroup that enforces the limit, with the text of the limit as the kernel writes it. `None`
    /// under `SCHED_DEADLINE`, where no cgroup enforces it.
    limit: Option<(PathBuf, String)>,
    /// Members of the cgroup in `limit` when they were last read: threads in version 1, processes
    /// in version 2.
    members: BTreeSet<Tid>,
    is_of_libvirt: bool,
    /// True if a request has resumed the thread since the thread was last checked.
    is_resumed: bool,
    changes: Changes,
}

impl EnforcedWatch {
    /// Longest time between two calls of [`look_at_all`](EnforcedWatch::look_at_all).
    pub const INTERVAL: Span = LOOK_INTERVAL;

    /// Starts to watch a thread whose CPU time the kernel enforces since `now`. `reserved` is the
    /// thread's reservation under `SCHED_DEADLINE`, and `group` is the cgroup with the limit under
    /// the other mechanisms. If `hierarchies` is `None`, the first check of the thread's cgroups
    /// accepts whatever cgroups the thread is in.
    #[must_use]
    pub fn new(
        (target, thread): (&EnforceTarget, &ThreadRef),
        (reserved, group): (Option<Reservation>, Option<&Path>),
        (fence, hierarchies, now): (&Fence, Option<&Hierarchies>, Time),
    ) -> EnforcedWatch {
        let (pid, tid) = (thread.pid(), thread.tid());
        let mut changes = Changes::default();
        changes.begin(now, Some(tid));
        let around = hierarchies.and_then(|of| of.around_without_limits(pid, tid));
        changes.before.extend(around.map(|mut around| {
            // The target may have left the cgroup already.
            group.into_iter().for_each(|group| around.set_group(group));
            (tid, around)
        }));
        EnforcedWatch {
            thread: thread.clone(),
            hold: match target {
                EnforceTarget::Vcpus(_) => Hold::Thread,
                _ => Hold::Process,
            },
            reserved: reserved.filter(|_| group.is_none()),
            original: fence.original(tid).map(|original| original.scheduling.class),
            limit: group.and_then(|group| Some((group.to_path_buf(), limit_of(group)?))),
            members: group
                .map(|group| members_of(group).into_iter().chain([pid]).collect())
                .unwrap_or_default(),
            is_of_libvirt: is_of_libvirt(pid),
            is_resumed: false,
            changes,
        }
    }

    /// Returns true if the thread has exited.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.thread.is_gone().unwrap_or(false)
    }

    /// Returns the watches whose cgroups are to be checked now, as indexes. They are the watches
    /// with the longest time since the last check. A check takes about as long as a request to the
    /// daemon, so only a few are returned.
    #[must_use]
    pub fn due<'a>(watches: impl Iterator<Item = &'a EnforcedWatch>, now: Time) -> DueChecks {
        DueChecks::new(watches.map(|watch| watch.changes.looked), now)
    }

    /// Returns true if another program keeps control of the thread. Also returns true if the thread
    /// is stopped because it has escaped its limit too often.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        self.changes.found.is_some() || self.changes.stopped_until.is_some()
    }

    /// Returns the time of the last check of the thread's cgroups. `None` if the cgroups are to be
    /// checked as soon as possible.
    #[must_use]
    pub fn last_cgroup_check(&self) -> Option<Time> {
        self.changes.looked
    }

    /// Returns true if the thread must be checked in each [`INTERVAL`](EnforcedWatch::INTERVAL).
    /// That is so if it has lately left its class or cgroup, is stopped for that, or was resumed by
    /// a request.
    #[must_use]
    pub fn is_suspect(&self, now: Time) -> bool {
        let changes = &self.changes;
        self.is_resumed || changes.stopped_until.is_some() || changes.has_escaped_lately(now)
    }

    /// Changes slice and period of the thread under `SCHED_DEADLINE`. The thread does not leave the
    /// class. The thread must not be [disturbed](EnforcedWatch::is_disturbed).
    ///
    /// # Errors
    /// If the mechanism cannot express the reservation, or the kernel refuses it. The thread keeps
    /// its slice and period.
    pub(super) fn change(
        &mut self,
        fence: &Fence,
        each: Reservation,
    ) -> Result<(), MechanismError> {
        let target = EnforceTarget::Vcpus(vec![self.thread.clone()]);
        let demand = Demand::Time(each, Bound::Exact);
        mechanism(Enforcement::Deadline).check(&target, demand)?;
        let online = online_cpus().map_err(|source| MechanismError::NoCpus { source })?;
        let held = fence.thread(self.thread.tid());
        held.map_or(Ok(()), |held| deadline::reserve(held, each, online))?;
        self.reserved = Some(each);
        Ok(())
    }

    /// Looks for changes of all threads in `watches`, and undoes or respects them. Returns the
    /// changes of each thread. The caller must call this function once in each
    /// [`INTERVAL`](EnforcedWatch::INTERVAL).
    pub fn look_at_all(
        watches: &mut [EnforcedWatch],
        fence: &mut Fence,
        now: Time,
    ) -> Vec<Vec<EnforcedChange>> {
        let due = EnforcedWatch::due(watches.iter(), now);
        let around = if due.is_empty() { None } else { Hierarchies::read().ok() };
        let watches = watches.iter_mut().enumerate();
        let seen = watches.map(|(index, watch)| {
            watch.look_with(fence, now, around.as_ref().filter(|_| due.includes(index, true)))
        });
        seen.collect()
    }

    /// Looks for changes of the thread, and undoes or respects them. If `around` is `Some`, also
    /// checks the thread's cgroups.
    pub(super) fn look_with(
        &mut self,
        fence: &mut Fence,
        now: Time,
        around: Option<&Hierarchies>,
    ) -> Vec<EnforcedChange> {
        let mut seen = Vec::new();
        if std::mem::take(&mut self.is_resumed) {
            seen.push(EnforcedChange::Settled);
        }
        if self.changes.stopped_until.is_some_and(|until| until <= now) {
            self.end_stop(fence);
        }
        // The class of a stopped thread is set only when the stop ends. If it were set again and
        // again while the thread is blocked, the kernel would count the thread's bandwidth again
        // each time, and soon refuse the class.
        let is_stopped = self.changes.stopped_until.is_some();
        if !is_stopped && !matches!(self.changes.found, Some(ForeignChange::Class { .. })) {
            seen.extend(self.look_at_class(fence, now));
        }
        if !is_stopped && seen.is_empty() {
            seen.extend(self.look_at_members(fence, now));
        }
        if let Some(around) = around.filter(|_| seen.is_empty()) {
            self.changes.looked = Some(now);
            seen.extend(self.look_around(fence, now, around));
        }
        seen
    }

    /// Checks whether members have left the cgroup that enforces the limit. Members that have left
    /// by their own action are moved back. If nothing has changed, reads only one file.
    fn look_at_members(&mut self, fence: &mut Fence, now: Time) -> Option<EnforcedChange> {
        let (group, _) = self.limit.as_ref()?;
        let there = members_of(group);
        let left = self.members.difference(&there);
        // The kernel shows a thread that has exited in another cgroup.
        let left = left.filter_map(|&member| Some((member, living_thread(member)?)));
        let left: Vec<(Tid, Tid)> = left.collect();
        self.members = there;
        let (_, before) = self.changes.before.first().filter(|_| !left.is_empty())?;
        let hierarchies = Hierarchies::read().ok()?;
        let (mut own, mut others, mut is_stuck) = (None, None, false);
        for (member, tid) in left {
            let Ok(pid) = process_of(tid) else { continue };
            let Some(around) = hierarchies.around_without_limits(pid, tid) else { continue };
            let moved = around.moves(before).find(|(was, _)| was.group == *group);
            let Some((was, is)) = moved else { continue };
            if !hierarchies.confirm((pid, tid), &is.group) {
                // A new thread can have left too. It stays in `members`, so that the next call
                // checks it again.
                self.members.insert(member);
                continue;
            }
            let finding = ForeignChange::Moved { tid, group: is.group.clone() };
            let credentials = Credentials::of(tid).and(&self.changes.credentials);
            if self.is_of_libvirt || !may_move(&credentials, &was.group, &is.group) {
                others.get_or_insert(finding);
                continue;
            }
            let is_back = match self.hold {
                Hold::Thread => was.take_back(tid).is_ok(),
                // A process that has left may have started others.
                _ => descendants(pid).is_ok_and(|all| {
                    all.into_iter().filter(|pid| was.take_back_process(*pid).is_ok()).count() > 0
                }),
            };
            if !is_back && living_thread(member).is_none() {
                continue;
            }
            is_stuck |= !is_back;
            own.get_or_insert(finding);
            // It stays in `members`, so that the next call notices if it has left once more.
            self.members.insert(member);
        }
        if own.is_some() {
            self.note_escape(fence, now);
        }
        // A target that cannot be moved back is stopped at once.
        if is_stuck && self.changes.stopped_until.is_none() {
            if self.confine(fence) {
                self.changes.stopped_until = Some(now + self.changes.next_stop(now));
            } else {
                others = others.or(own.take());
            }
        }
        if let Some(found) = others.filter(|_| self.changes.found.is_none()) {
            self.changes.found = Some(found.clone());
            return Some(EnforcedChange::Contested(found));
        }
        own.map(EnforcedChange::Meddled)
    }

    /// Stops the target in a cell: a frozen cgroup of root, out of which the target's user cannot
    /// move it. Returns false if the target cannot be stopped there.
    fn confine(&mut self, fence: &mut Fence) -> bool {
        let around = Hierarchies::read().ok().and_then(|hierarchies| self.around(&hierarchies));
        let (Some((group, _)), Some(around)) = (&self.limit, around) else { return false };
        let Some(unified) = around.unified() else { return false };
        let pid = self.thread.pid();
        let all = || {
            let mut all = BTreeSet::from([pid]);
            if !matches!(self.hold, Hold::Thread) {
                // The processes may have left the cgroup again meanwhile.
                all.extend(ids_in(&group.join("cgroup.procs")));
                all.extend(descendants(pid).unwrap_or_default());
            }
            all.retain(|pid| process_of(*pid).is_ok());
            all
        };
        let outside = |cell: &TreePlace| {
            let inside = processes_in(cell);
            all().into_iter().filter(|pid| !inside.contains(pid)).collect()
        };
        // If the cgroup with the limit is of version 2, all processes return to it. If it is of
        // version 1, the processes can have been in several cgroups of version 2.
        let is_taken_back = group.is_dir() && self.is_of_version_2(group);
        let (origin, former) = match is_taken_back {
            true => (group.as_path(), Vec::new()),
            false => (unified, former_groups(all(), unified)),
        };
        let confined = fence.confine(self.thread.tid(), origin, outside);
        let Ok(Some(cell)) = confined else { return false };
        self.changes.cell = Some(Confinement { cell, former });
        true
    }

    /// Returns the processes of the target that are stopped in a cell, a frozen cgroup of root.
    #[must_use]
    pub fn confined_processes(&self) -> Vec<Tid> {
        let cell = self.changes.cell.as_ref();
        cell.and_then(|confined| confined.cell.all_processes().ok()).unwrap_or_default()
    }

    fn is_of_version_2(&self, group: &Path) -> bool {
        let mut before = self.changes.before.iter().flat_map(|(_, before)| &before.groups);
        before.any(|it| it.group == group && it.version == Version::V2)
    }

    /// Makes the kernel enforce the CPU time of a contested thread again. A changed class is undone
    /// for that.
    ///
    /// # Errors
    /// If a change keeps the thread from running, or cannot be undone. The error is that change.
    pub fn resume(&mut self, fence: &mut Fence) -> Result<(), ForeignChange> {
        let around = Hierarchies::read().ok();
        match self.changes.found.clone() {
            Some(found) if self.is_undone(&found, around.as_ref()) || self.is_of_class(&found) => {
                self.is_resumed = self.take_back(fence);
                if self.is_resumed { Ok(()) } else { Err(found) }
            }
            Some(found) => Err(found),
            None => Ok(()),
        }
    }

    /// Checks the class of a deadline thread, and undoes or respects a change.
    fn look_at_class(&mut self, fence: &mut Fence, now: Time) -> Option<EnforcedChange> {
        let tid = self.thread.tid();
        let held = fence.thread(tid).filter(|_| self.reserved.is_some())?;
        // Almost always nothing has changed, so the fast check comes first.
        if held.is_as_ordered() {
            return None;
        }
        let held = held.clone();
        let drift = held.differs().ok()??;
        let Some(class) = drift.class.map(|is| is.class) else {
            // Only the thread's affinity has changed. That is no escape, because the class enforces
            // the limit on every CPU.
            let _ = held.undo();
            return None;
        };
        let finding = ForeignChange::Class { tid, class };
        if self.is_of_libvirt {
            let how = HandoverState { stays_stopped: false, by_cpuset: false };
            let original = held.leave(how).ok()?;
            // If the keeper cannot record the new state, it restores the former one.
            let _ = fence.amend(tid, original);
        } else {
            match held.undo() {
                Ok(()) => {
                    self.note_escape(fence, now);
                    return Some(EnforcedChange::Meddled(finding));
                }
                Err(error) if error.means_gone() => return None,
                // The kernel may have given the bandwidth to another thread. Later calls try again.
                Err(_) => {}
            }
        }
        self.changes.found = Some(finding.clone());
        Some(EnforcedChange::Contested(finding))
    }

    /// Counts an escape of the target from its class or cgroup. If the target has escaped too
    /// often, stops it.
    fn note_escape(&mut self, fence: &mut Fence, now: Time) {
        if !self.changes.note_escape(now) || self.changes.stopped_until.is_some() {
            return;
        }
        let tid = self.thread.tid();
        if self.limit.is_some() {
            // A target that cannot be confined is only moved back each time.
            if self.confine(fence) {
                self.changes.stopped_until = Some(now + self.changes.next_stop(now));
            }
            return;
        }
        // A target that cannot be stopped only gets its class again each time.
        let can_stop = fence.add_stop(tid, self.hold).is_ok();
        let stopped = fence.thread(tid).filter(|_| can_stop).map(|held| held.hold_back());
        if matches!(stopped, Some(Ok(()))) {
            self.changes.stopped_until = Some(now + STOPPED_FOR);
        }
    }

    /// Sets the class of a stopped thread again and resumes the thread. If the kernel refuses the
    /// class, the next check of the class tries again and reports the change.
    fn end_stop(&mut self, fence: &mut Fence) {
        let tid = self.thread.tid();
        if let Some(confined) = &self.changes.cell {
            confined.return_to_former();
            if fence.end_confinement(tid).is_ok() {
                (self.changes.cell, self.changes.stopped_until) = (None, None);
            }
            return;
        }
        let _ = fence.thread(tid).map(HeldThread::undo);
        if fence.drop_stop(tid).is_ok() {
            self.changes.stopped_until = None;
            // The stop may have moved the thread to a cgroup and back.
            self.changes.looked = None;
        }
    }

    /// Checks the cgroups of the thread, and checks whether a signal has stopped the thread's
    /// process.
    fn look_around(
        &mut self,
        fence: &mut Fence,
        now: Time,
        hierarchies: &Hierarchies,
    ) -> Option<EnforcedChange> {
        if self.changes.stopped_until.is_some() {
            return None;
        }
        if let Some(found) = self.changes.found.clone() {
            let is_back = self.is_undone(&found, Some(hierarchies)) && self.take_back(fence);
            return is_back.then_some(EnforcedChange::Settled);
        }
        let around = self.around(hierarchies)?;
        if self.limit.is_none() && now.since(self.changes.joined) < PLACED_WITHIN {
            self.changes.forget_surroundings();
        }
        if self.changes.before.is_empty() {
            self.changes.before.push((self.thread.tid(), around.clone()));
        }
        let change = self.change_around(&around)?;
        match &change {
            EnforcedChange::Contested(found) => self.changes.found = Some(found.clone()),
            _ => self.note_escape(fence, now),
        }
        Some(change)
    }

    fn change_around(&self, now: &Surroundings) -> Option<EnforcedChange> {
        use EnforcedChange::{Contested, Meddled};
        let (pid, tid) = (self.thread.pid(), self.thread.tid());
        let (_, before) = self.changes.before.first()?;
        if let Some((was, is)) = now.moved(before).filter(|_| !starts_or_ends(pid, tid)) {
            let credentials = Credentials::of(tid).and(&self.changes.credentials);
            let is_own = may_move(&credentials, &was.group, &is.group) && !self.is_of_libvirt;
            let finding = ForeignChange::Moved { tid, group: is.group.clone() };
            let is_undone = is_own && was.take_back(tid).is_ok();
            return Some(if is_undone { Meddled(finding) } else { Contested(finding) });
        }
        if let Some(group) = now.frozen(None) {
            return Some(Contested(ForeignChange::Frozen { tid, group }));
        }
        if let Some((group, limit)) = &self.limit
            && let Some(now) = limit_of(group).filter(|now| now != limit)
        {
            let group = group.clone();
            return Some(Contested(ForeignChange::Limited { tid, group, limit: now }));
        }
        is_stopped(pid, tid).then_some(Contested(ForeignChange::Stopped { pid }))
    }

    fn is_undone(&self, found: &ForeignChange, hierarchies: Option<&Hierarchies>) -> bool {
        let tid = self.thread.tid();
        let around = || self.around(hierarchies?);
        match found {
            ForeignChange::Class { class, .. } => {
                let now = get_scheduling(tid).map(|now| now.class).ok();
                // If the other program has set the class that the thread had before the
                // enforcement, every other class counts as undoing the change.
                let is_other = self.original == Some(*class) && now != Some(*class);
                let is_back = self.original != Some(*class) && now == self.original;
                // Except for vCPUs of libvirt, a changed class counts as the thread's own change.
                // So the class is set again as soon as the kernel allows it.
                !self.is_of_libvirt || now.is_none() || is_other || is_back
            }
            ForeignChange::Moved { tid: moved, .. } => {
                let before = self.changes.before.first();
                let group = self.limit.as_ref().map(|(group, _)| group);
                let is_moved = |was: &Membership| {
                    *moved == tid || group.is_some_and(|group| was.group == *group)
                };
                let is_back = |now: Surroundings| {
                    let before = before.map(|(_, before)| before);
                    before.is_none_or(|before| !now.moves(before).any(|(was, _)| is_moved(was)))
                };
                let pid = process_of(*moved).ok();
                let around = pid.and_then(|pid| hierarchies?.around_without_limits(pid, *moved));
                around.is_none_or(is_back)
            }
            ForeignChange::Frozen { .. } => around().is_none_or(|now| now.frozen(None).is_none()),
            ForeignChange::Limited { group, .. } => {
                let limit = self.limit.as_ref().map(|(_, limit)| limit);
                limit_of(group).is_none_or(|now| Some(&now) == limit)
            }
            ForeignChange::Stopped { pid } => !is_stopped(*pid, tid),
            ForeignChange::Cpus { .. }
            | ForeignChange::Thawed { .. }
            | ForeignChange::Refused { .. } => true,
        }
    }

    /// Returns true if `found` is a change of the class of a deadline thread. Slackline can undo
    /// such a change at any time.
    fn is_of_class(&self, found: &ForeignChange) -> bool {
        self.reserved.is_some() && matches!(found, ForeignChange::Class { .. })
    }

    /// Ends the state in which the thread is contested. If its class was changed, reserves CPU time
    /// for the thread again. Returns false if the kernel refuses the reservation.
    fn take_back(&mut self, fence: &mut Fence) -> bool {
        let is_of_class = self.changes.found.as_ref().is_some_and(|it| self.is_of_class(it));
        if is_of_class && !self.reserve_again(fence) {
            return false;
        }
        self.changes.found = None;
        true
    }

    fn reserve_again(&mut self, fence: &mut Fence) -> bool {
        let tid = self.thread.tid();
        let (Some(each), Some(held)) = (self.reserved, fence.thread(tid).cloned()) else {
            return true;
        };
        if !self.is_of_libvirt {
            return held.undo().is_ok();
        }
        let (Ok(original), Ok(online)) = (held.accept(), online_cpus()) else { return false };
        if held.reserve(each.slice(), each.period(), online).is_err() {
            return false;
        }
        self.original = Some(original.scheduling.class);
        let _ = fence.amend(tid, original);
        true
    }

    fn around(&self, hierarchies: &Hierarchies) -> Option<Surroundings> {
        hierarchies.around_without_limits(self.thread.pid(), self.thread.tid())
    }
}

/// Returns the members of a cgroup. In version 1 they are threads, because a single thread can be
/// moved without its process. In version 2 they are processes.
fn members_of(group: &Path) -> BTreeSet<Tid> {
    let tasks = group.join("tasks");
    ids_in(&if tasks.exists() { tasks } else { group.join("cgroup.procs") })
}

fn ids_in(list: &Path) -> BTreeSet<Tid> {
    let text = fs::read_to_string(list).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter_map(Tid::new).collect()
}

/// Returns the limit of a cgroup as the kernel writes it: CPU time and period, in microseconds.
/// `None` if the cgroup has no file for a limit.
fn limit_of(group: &Path) -> Option<String> {
    let line = |name: &str| {
        let text = fs::read_to_string(group.join(name)).ok()?;
        Some(text.trim().to_owned())
    };
    let of_version_1 =
        || Some(format!("{} {}", line("cpu.cfs_quota_us")?, line("cpu.cfs_period_us")?));
    line("cpu.max").or_else(of_version_1)
}
