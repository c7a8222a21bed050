//! Contested members: members (vCPUs that the session schedules) whose threads another program
//! controls. This module keeps the state of such members, stops scheduling them, and schedules them
//! again when the other program's change has been undone.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use slackline_units::{CpuSet, Span, Time};

use super::finding::ForeignChange;
use super::ids::JoinId;
use super::libvirt_group::has_libvirt_group;
use super::outside_time::AuditTimes;
use super::tree_groups::TreeGroups;
use super::{RequestError, Session, SessionError, SessionEvents};
use crate::live_host::{LiveHostError, NotDone};
use slackline_fence::HeldThread;
use slackline_linux::cgroup::{Credentials, Hierarchies, Step, Surroundings, TreePlace, write};
use slackline_linux::sys::{Scheduling, ThreadClock, Tid};
use slackline_linux::thread::ThreadRef;

/// Time after a member joins in which the program that started its threads may still move them. For
/// example, libvirt puts each vCPU into its own cgroup.
pub(super) const PLACED_WITHIN: Span = Span::from_secs(2);

/// Number of escapes within [`OWN_WITHIN`] (10 s) at which a target is stopped. A target escapes if
/// it leaves its CPUs or its cgroup, or takes a priority above all vCPUs. A program that sets the
/// affinity of its threads only when the program starts escapes less often.
const OWN_AT_MOST: usize = 4;
/// Time span in which escapes are counted. A target that escapes [`OWN_AT_MOST`] times within it is
/// stopped.
const OWN_WITHIN: Span = Span::from_secs(10);

/// Time for which a target is stopped after it has escaped too often.
pub(super) const STOPPED_FOR: Span = Span::from_secs(1);
/// Maximum number of times that the length of a stop in a cell (frozen cgroup of root) is doubled.
/// So the longest stop is 16 times [`STOPPED_FOR`].
const LONGEST_STOP: u32 = 4;
/// Time without a stop in a cell (frozen cgroup of root) after which the next stop has the initial
/// length again.
const CALM: Span = Span::from_secs(60);

/// Record of changes to a member's threads that the session did not make.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Change by another program that makes the member contested. `None` if the member is not
    /// contested.
    pub(super) found: Option<ForeignChange>,
    /// True if the session does not schedule the contested member, because another program controls
    /// its threads. False if the reservation stays enforced.
    pub(super) is_left: bool,
    /// Threads that another program has moved out of the member's process tree.
    pub(super) moved: Vec<MovedThread>,
    /// Threads of the member's process tree for which the kernel refuses the session's class or
    /// affinity. The cpusets of these threads were already checked.
    pub(super) unbound: BTreeSet<Tid>,
    /// Class of the thread in `found` before the session scheduled it, if `found` is a change of
    /// class. `None` if the other program has set just this class.
    pub(super) original: Option<Scheduling>,
    /// Changes by the member itself that the last check of its cgroups has found.
    pub(super) own_around: Vec<ForeignChange>,
    /// Users and groups of the member's first thread when the member joined.
    pub(super) credentials: Credentials,
    /// CPUs to which the session had pinned the member when the session noticed the change in
    /// `found`.
    pub(super) ordered: Option<CpuSet>,
    /// CPU times at the last audit of the member's process tree. `None` before the first audit.
    pub(super) audit: Option<AuditTimes>,
    /// Cgroups of the threads of the member's process tree.
    pub(super) groups: TreeGroups,
    /// True if the member, or another process of its user, has moved or thawed the member's process
    /// tree. From then on, each stop of the tree is in a cell, a frozen cgroup of root.
    pub(super) needs_cell: bool,
    /// Number of stops in a cell (frozen cgroup of root) so far, and the planned end of the latest
    /// such stop.
    confined: (u32, Time),
    /// Cell (frozen cgroup of root) in which the member's process tree is stopped. `None` if the
    /// tree is not in a cell.
    pub(super) cell: Option<Confinement>,
    /// Times at which the member itself recently escaped, such as by a change of its affinity.
    own: Vec<Time>,
    /// Time until which the member is stopped because it has escaped too often. `None` if it is not
    /// stopped for that reason.
    pub(super) stopped_until: Option<Time>,
    /// Cgroups that the session expects for each thread of the member, with their CPU limits and
    /// freeze states.
    pub(super) before: Vec<(Tid, Surroundings)>,
    /// Time at which the kernel last refused to restore or resume a thread. `None` if the kernel
    /// has never refused that.
    pub(super) refused: Option<Time>,
    /// Time of the last check of the threads' cgroups. `None` before the first check.
    pub(super) looked: Option<Time>,
    /// Time at which the member joined the session.
    pub(super) joined: Time,
}

impl Changes {
    /// Returns the change by another program that makes the member contested. `None` if it is not
    /// contested.
    pub(super) fn contested(&self) -> Option<&ForeignChange> {
        self.found.as_ref()
    }

    /// Records the time at which the member joined, and the credentials of its first thread.
    pub(super) fn begin(&mut self, now: Time, first: Option<Tid>) {
        self.joined = now;
        self.credentials = first.map(Credentials::of).unwrap_or_default();
    }

    /// Counts an escape of the member by its own action. Returns true if it has escaped too often
    /// lately.
    pub(super) fn note_escape(&mut self, now: Time) -> bool {
        self.own.retain(|&then| now.since(then) < OWN_WITHIN);
        self.own.push(now);
        self.own.len() >= OWN_AT_MOST
    }

    /// Returns true if the member has escaped by its own action in the last 10 s ([`OWN_WITHIN`]).
    pub(super) fn has_escaped_lately(&self, now: Time) -> bool {
        self.own.last().is_some_and(|&then| now.since(then) < OWN_WITHIN)
    }

    /// Returns the length of a stop in a cell (frozen cgroup of root) that begins now. Each such
    /// stop is twice as long as the one before, up to 16 times [`STOPPED_FOR`]. If there was no
    /// such stop for the time [`CALM`], the length is [`STOPPED_FOR`] again.
    pub(super) fn next_stop(&mut self, now: Time) -> Span {
        let (count, ended) = self.confined;
        let count = if now.since(ended) < CALM { count } else { 0 };
        let length = STOPPED_FOR * (1_u64 << count.min(LONGEST_STOP));
        self.confined = (count + 1, now + length);
        length
    }

    /// Returns the cgroups in which a thread of the member is expected. If the thread's own cgroups
    /// are not known, returns the cgroups of the member's first thread. `None` before the first
    /// check of the cgroups.
    pub(super) fn expected(&self, tid: Tid) -> Option<&Surroundings> {
        let own = self.before.iter().find(|(known, _)| *known == tid);
        own.or(self.before.first()).map(|(_, before)| before)
    }

    /// Returns the threads of `unbound` whose cpusets were not checked yet, and marks them as
    /// checked. `unbound` has the threads for which the kernel refuses the session's class or
    /// affinity. `there` has all threads of the member's process tree. The marks of threads that
    /// are not in `unbound` are dropped.
    pub(super) fn unchecked(&mut self, there: &[Tid], unbound: &[Tid]) -> Vec<Tid> {
        // An audit that was skipped, because the tree is idle, has no threads.
        if there.is_empty() {
            return Vec::new();
        }
        let all: BTreeSet<Tid> = unbound.iter().copied().collect();
        self.unbound.retain(|tid| all.contains(tid));
        all.difference(&self.unbound).copied().collect()
    }

    /// Returns true if the member has joined so recently that the program that started its threads
    /// may still move them.
    pub(super) fn is_starting(&self, now: Time) -> bool {
        now.since(self.joined) < PLACED_WITHIN
    }

    /// Returns the CPU time that moved threads have used since the last call. Forgets threads that
    /// have ended, and threads in `there`, which are in the process tree again.
    pub(super) fn count_moved(&mut self, there: &[Tid]) -> Span {
        let mut sum = Span::ZERO;
        let there: BTreeSet<Tid> = there.iter().copied().collect();
        self.moved.retain_mut(|moved| {
            let is_back = there.contains(&moved.thread.tid());
            sum += moved.more();
            !is_back && !moved.is_gone()
        });
        sum
    }

    /// Drops the cgroups in which the threads are expected, because the session is about to change
    /// the cgroups itself.
    pub(super) fn forget_surroundings(&mut self) {
        self.before.clear();
    }
}

impl Session {
    /// Respects a change by another program: from now on the member is contested, and usually not
    /// scheduled. If a signal has stopped a member other than a VM of libvirt, its reservation
    /// stays enforced.
    pub(super) fn contest(
        &mut self,
        id: JoinId,
        finding: ForeignChange,
        seen: &mut SessionEvents,
    ) -> Result<(), SessionError> {
        let Some(row) = self.members.get_mut(id) else { return Ok(()) };
        // Members other than VMs of libvirt stay scheduled while a signal stops them.
        if matches!(finding, ForeignChange::Stopped { .. }) && !row.is_of_libvirt {
            return self.contest_in_part(id, finding, seen);
        }
        let was_stopped = row.changes.stopped_until.take().is_some() && !row.is_paused;
        // If the cell cannot be emptied now, each later round of checks tries again.
        self.end_confinement(id);
        if was_stopped {
            let now = self.host.now();
            self.resume_threads(id, now).or_else(unless_over)?;
        }
        let Some(row) = self.members.get(id) else { return Ok(()) };
        let first = row.threads.first().map(ThreadRef::tid);
        let ordered = first.and_then(|tid| self.ordered_of(row, tid));
        let original = match (&finding, &row.tree) {
            (ForeignChange::Class { tid, .. }, Some(tree)) => Some(tree.original_class(*tid)),
            (ForeignChange::Class { tid, .. }, None) => {
                self.fence.thread(*tid).map(HeldThread::original_class)
            }
            _ => None,
        };
        // If the other program has set the class that the thread had before the session scheduled
        // it, every other class counts as undoing the change.
        let is_found =
            |it: &Scheduling| matches!(&finding, ForeignChange::Class { class, .. } if class == it);
        let original = original.map(|original| original.class).filter(|it| !is_found(it));
        let by_cpuset = matches!(finding, ForeignChange::Cpus { cpuset: Some(_), .. });
        let is_left = match self.host.leave_to_others(id.vcpu(), by_cpuset) {
            Ok(changed) => {
                for (tid, original) in changed {
                    // The error is ignored. If the keeper cannot record the new state, it will
                    // later restore the state that the thread had before the change.
                    let _ = self.fenced(|fence| fence.amend(tid, original));
                }
                true
            }
            Err(NotDone::Host(error)) => return Err(error.into()),
            // If the kernel has refused to restore the threads, the host still schedules them.
            Err(_) => false,
        };
        let Some(changes) = self.changes_mut(id) else { return Ok(()) };
        changes.ordered = ordered;
        changes.original = original;
        changes.is_left = is_left;
        let before = changes.found.replace(finding.clone());
        if is_left || before.as_ref() != Some(&finding) {
            seen.contested.push((id, finding));
        }
        self.poke();
        Ok(())
    }

    pub(super) fn take_back(&mut self, id: JoinId) -> Result<(), LiveHostError> {
        let Some(row) = self.members.get_mut(id) else { return Ok(()) };
        if !std::mem::take(&mut row.changes.is_left) {
            row.changes.found = None;
            row.changes.unbound.clear();
            // After an error, the tree has just been restored.
            row.tree.iter().for_each(|tree| drop(tree.bind_again()));
            return Ok(());
        }
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
        self.renew_freezer(id);
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
            ForeignChange::Class { .. }
            | ForeignChange::Limited { .. }
            | ForeignChange::Thawed { .. }
            | ForeignChange::Refused { .. } => false,
            ForeignChange::Moved { tid, .. } => {
                let known = row.changes.before.iter().find(|(known, _)| known == tid);
                if let Some((_, before)) = known {
                    before.groups.iter().for_each(|group| drop(group.take_back(*tid)));
                }
                if let Some(tree) = &row.tree {
                    let moved = row.changes.moved.iter().map(MovedThread::thread);
                    moved.for_each(|thread| drop(tree.place().take_in(thread.pid())));
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

/// A process tree that is stopped in a cell, a frozen cgroup of root.
#[derive(Debug)]
pub(super) struct Confinement {
    pub(super) cell: TreePlace,
    /// Processes that do not return to the cgroup `cell.origin`, each with its former cgroup. For
    /// example, processes of a scheduled cgroup may have been in cgroups below that cgroup.
    pub(super) former: Vec<(Tid, PathBuf)>,
}

impl Confinement {
    /// Moves the processes in `former` from the cell back into their former cgroups. A process
    /// whose former cgroup no longer exists stays in the cell.
    pub(super) fn return_to_former(&self) {
        let inside = processes_in(&self.cell);
        for (pid, group) in self.former.iter().filter(|(pid, _)| inside.contains(pid)) {
            let _ = write(&group.join("cgroup.procs"), &pid.to_string(), Step::Move);
        }
    }
}

/// Returns the processes in `processes` that are not in `group`, each with its version 2 cgroup.
pub(super) fn former_groups(
    processes: impl IntoIterator<Item = Tid>,
    group: &Path,
) -> Vec<(Tid, PathBuf)> {
    let Ok(hierarchies) = Hierarchies::read() else { return Vec::new() };
    let former = processes.into_iter().filter_map(|pid| {
        let around = hierarchies.around(pid, pid)?;
        Some((pid, around.unified().filter(|now| *now != group)?.to_path_buf()))
    });
    former.collect()
}

/// Returns all processes in a cell, a frozen cgroup of root. The set is empty if they cannot be
/// listed.
pub(super) fn processes_in(cell: &TreePlace) -> BTreeSet<Tid> {
    cell.all_processes().into_iter().flatten().collect()
}

/// Maximum number of moved threads of a member whose CPU time is recorded. Measuring a moved thread
/// takes two file descriptors.
pub(super) const MOST_MOVED: usize = 100;

/// A thread that another program has moved out of the cgroup of its process tree.
#[derive(Debug)]
pub(super) struct MovedThread {
    thread: ThreadRef,
    clock: ThreadClock,
    /// CPU time of the thread when its clock was last read.
    used: Span,
}

impl MovedThread {
    /// Starts counting the CPU time of a moved thread. `None` if the thread has ended.
    pub(super) fn open(pid: Tid, tid: Tid) -> Option<MovedThread> {
        let (thread, clock) = (ThreadRef::open(pid, tid).ok()?, ThreadClock::open(tid).ok()?);
        let used = clock.read().ok()?;
        Some(MovedThread { thread, clock, used })
    }

    pub(super) fn thread(&self) -> &ThreadRef {
        &self.thread
    }

    pub(super) fn is_gone(&self) -> bool {
        self.thread.is_gone().unwrap_or(false)
    }

    fn more(&mut self) -> Span {
        let used = self.clock.read().unwrap_or(self.used);
        used.left_after(std::mem::replace(&mut self.used, used))
    }
}

/// Returns true if the name of a process's cgroup shows that the process is a VM of libvirt. Only
/// root can create a cgroup of that name in the folder where libvirt has its VMs.
pub(super) fn is_of_libvirt(pid: Tid) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    has_libvirt_group(&groups)
}

/// Returns an error only if it has ended the session. Ignores all other errors of requests.
pub(super) fn unless_over(error: RequestError) -> Result<(), SessionError> {
    match error {
        RequestError::Host(error) => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpuset_of_exempt_thread_is_checked_only_once() {
        let [first, exempt] = [1, 2].map(|number| Tid::new(number).unwrap());
        let (mut changes, there) = (Changes::default(), [first, exempt]);
        assert_eq!(changes.unchecked(&there, &[exempt]), [exempt]);
        changes.unbound.insert(exempt);
        assert!(changes.unchecked(&[], &[]).is_empty(), "the tree rests");
        assert!(changes.unchecked(&there, &[exempt]).is_empty());
        assert!(changes.unchecked(&there, &[]).is_empty(), "the thread is not exempt any more");
        assert_eq!(changes.unchecked(&there, &[exempt]), [exempt]);
    }

    #[test]
    fn stop_duration_of_escaping_target_doubles_up_to_16_seconds() {
        let (mut changes, mut now) = (Changes::default(), Time::START + Span::from_secs(120));
        for factor in [1, 2, 4, 8, 16, 16] {
            let length = changes.next_stop(now);
            assert_eq!(length, STOPPED_FOR * factor);
            now += length + Span::from_secs(1);
        }
        assert_eq!(changes.next_stop(now + CALM), STOPPED_FOR);
    }
}
