//! Requests to a session to let vCPUs join and leave.

use slackline_host::policy::Values;
use slackline_trace::VcpuName;
use slackline_units::{CpuSet, DomId, Reservation, VcpuId};
use thiserror::Error;

use super::contest::{Changes, MovedThread, is_of_libvirt};
use super::ids::JoinId;
use super::{RequestError, Session, SessionError};
use crate::live_host::{Joining, NotDone};
use crate::vcpu_threads::{self, Body, VcpuThreads};
use slackline_fence::{FenceError, HeldThread, HeldTree};
use slackline_linux::cgroup::{Membership, TreePlace, Version};
use slackline_linux::step::Hold;
use slackline_linux::sys::{ThreadClock, Tid};
use slackline_linux::thread::{ThreadError, ThreadRef, threads_of};
use slackline_linux::with_causes;

/// Target of a request: process, thread, process tree or cgroup to schedule as one vCPU.
#[derive(Clone, Debug)]
pub enum JoinTarget {
    /// All threads of a process that starts no other processes. To stop the process, the session
    /// sends a signal, which stops all threads together.
    Process(Tid),
    /// A process, its descendants, and all processes that they start. To stop them, the session
    /// freezes a cgroup that contains all of them.
    Tree(Tid),
    /// A process tree, as for `Tree`, that may use all CPUs in the set simultaneously (kernel
    /// numbers). The session schedules the tree on one of these CPUs, as if they were a single CPU.
    /// So the CPU time of the tree is divided by the number of these CPUs before it is charged. No
    /// vCPU should have a reservation on the other CPUs of the set.
    Wide(Tid, CpuSet),
    /// All threads in a version 2 cgroup, and all threads that they start.
    Group(TreePlace),
    /// One thread, such as that of a vCPU of a VM. To stop the thread, the session freezes a cgroup
    /// that contains only this thread.
    Thread(ThreadRef),
    /// No threads yet. The vCPU reserves capacity for a target that will exist later. Such a vCPU
    /// is never runnable and never ends.
    Nobody,
}

/// Request for the id that a joining vCPU gets in records and in the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestedId {
    /// Any free id. All vCPUs of one group get the same new domain number.
    #[default]
    Anything,
    /// This domain number and this vCPU number, in any slot. If a VM joins again with its old
    /// numbers, the policy continues its old account of used CPU time.
    As(DomId, u16),
    /// Exactly this id, including its slot.
    Exactly(VcpuId),
}

/// A request to join a session.
#[derive(Clone, Debug)]
pub struct Request {
    /// Process, thread, tree or cgroup to schedule as a vCPU.
    pub who: JoinTarget,
    /// Name of the vCPU that users see.
    pub name: String,
    /// Name of the vCPU's VM (domain) that users see.
    pub domain: String,
    /// Id that the vCPU gets in records and in the policy.
    pub called: RequestedId,
    /// Share of the vCPU under the policy.
    pub share: Values,
    /// CPUs of the session on which the vCPU may run. If `None`, all CPUs of the session.
    pub cpus: Option<CpuSet>,
}

/// Error of a group of requests to join. No vCPU of the group has joined.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct GroupError {
    /// Index of the request that failed.
    pub index: usize,
    /// Reason why that request failed.
    pub error: RequestError,
}

/// A group of vCPUs that is prepared to join: the fence has recorded the original state of its
/// threads. The threads have not been changed yet.
#[derive(Debug)]
#[must_use]
pub struct PreparedGroup {
    pub(super) ids: Vec<JoinId>,
    /// Name of each vCPU, and name of the vCPU's VM.
    pub(super) names: Vec<(String, String)>,
    pub(super) joining: Vec<Joining>,
}

/// State of one member in the session.
#[derive(Debug)]
pub(super) struct Row {
    /// Threads with which the member joined. A process tree can have more threads by now.
    pub(super) threads: Vec<ThreadRef>,
    /// Process tree of the member. `None` if the member is not a process tree.
    pub(super) tree: Option<HeldTree>,
    /// Means by which the member's threads can be stopped.
    hold: Hold,
    /// True if the member has a hard limit.
    pub(super) is_exact: bool,
    /// True if the means of stopping the member, such as its freezer cgroup, has been prepared.
    pub(super) has_stop: bool,
    pub(super) share: Values,
    pub(super) cpus: Option<CpuSet>,
    pub(super) is_paused: bool,
    pub(super) has_joined: bool,
    /// True if the member is a libvirt VM or one of its vCPUs. Libvirt moves the threads of its VMs
    /// between cgroups.
    pub(super) is_of_libvirt: bool,
    pub(super) changes: Changes,
}

impl Row {
    /// Returns true if the member is a reservation without threads.
    pub(super) fn is_nobody(&self) -> bool {
        self.threads.is_empty() && self.tree.is_none()
    }

    /// Returns true if all threads with which the member joined have ended. Threads that another
    /// program has moved out of the member's process tree must have ended too.
    fn has_ended(&self) -> bool {
        let is_gone = |thread: &ThreadRef| thread.is_gone().unwrap_or(false);
        self.threads.iter().all(is_gone) && self.changes.moved.iter().all(MovedThread::is_gone)
    }

    /// Returns true if the member is a cgroup of another program and was removed.
    fn is_removed(&self) -> bool {
        let place = self.tree.as_ref().map(HeldTree::place);
        place.is_some_and(|place| place.origin.is_none() && !place.is_made())
    }

    /// Returns true if the audits of the process tree notice when a thread leaves `group`.
    pub(super) fn is_audited(&self, group: &Membership) -> bool {
        self.tree.is_some() && group.version == Version::V2
    }

    /// Returns true if the member is stopped by a signal to its process. Returns false if it is
    /// stopped by a freezer cgroup.
    pub(super) fn is_stopped_by_signal(&self) -> bool {
        self.hold == Hold::Process
    }
}

/// Requests that the owner of the session makes.
impl Session {
    /// Adds a group, such as the vCPUs of a VM. If one vCPU cannot join, no vCPU joins.
    ///
    /// # Errors
    /// If a vCPU cannot join. The error has the request that failed and the reason.
    pub fn join(&mut self, group: Vec<Request>) -> Result<Vec<JoinId>, GroupError> {
        let first = |error| GroupError { index: 0, error };
        let prepared = self.prepare(group)?;
        let joined = self.join_prepared(vec![prepared]);
        let joined = joined.map_err(|error| first(RequestError::of_session(error)))?;
        joined.into_iter().next().expect("one group gets one answer")
    }

    /// Records the state of a group's threads with the fence, before the group joins.
    ///
    /// # Errors
    /// If a request fails. The error has the request and the reason. The fence has dropped all
    /// records of the group.
    pub fn prepare(&mut self, group: Vec<Request>) -> Result<PreparedGroup, GroupError> {
        self.prepare_after(group, &[])
    }

    /// Records the state of a group's threads with the fence. The group will join after the members
    /// `leaving` have left.
    pub(super) fn prepare_after(
        &mut self,
        group: Vec<Request>,
        leaving: &[JoinId],
    ) -> Result<PreparedGroup, GroupError> {
        let domain = self.members.new_domain();
        let mut prepared =
            PreparedGroup { ids: Vec::new(), names: Vec::new(), joining: Vec::new() };
        for (index, request) in group.into_iter().enumerate() {
            let number = u16::try_from(index).unwrap_or(u16::MAX);
            let result = self.check(&request).and_then(|()| {
                let (share, cpus) = (request.share.clone(), request.cpus);
                let row = self.row_for(&request);
                let id = match request.called {
                    RequestedId::Anything => self.members.add(domain, number, row),
                    RequestedId::As(domain, number) => {
                        self.check_free((domain, number), leaving)?;
                        self.members.add(domain, number, row)
                    }
                    RequestedId::Exactly(vcpu) => {
                        let added = self.members.add_as(vcpu, row);
                        added.ok_or(RequestError::Taken { vcpu })?
                    }
                };
                prepared.ids.push(id);
                let threads = self.hold(id, &request.who)?;
                let hard_limit = self.hard_limit(&share);
                prepared.joining.push(Joining { threads, share, cpus, hard_limit });
                prepared.names.push((request.name, request.domain));
                Ok(())
            });
            if let Err(error) = result {
                self.discard(prepared);
                return Err(GroupError { index, error });
            }
        }
        if let Err(error) = self.grant_loans(&prepared.ids) {
            self.discard(prepared);
            return Err(GroupError { index: 0, error });
        }
        Ok(prepared)
    }

    /// Adds prepared groups in one scheduling decision, so that their periods start together. The
    /// groups join in the given order. If there is not enough capacity for all vCPUs of a group, no
    /// vCPU of that group joins. Returns the result of each group: the ids of its members, or the
    /// request that failed and the reason.
    ///
    /// # Errors
    /// If the session is over. The error has the reason.
    #[allow(clippy::type_complexity)] // One result for each group inside one result for the call.
    pub fn join_prepared(
        &mut self,
        groups: Vec<PreparedGroup>,
    ) -> Result<Vec<Result<Vec<JoinId>, GroupError>>, SessionError> {
        let (mut ids, mut joining) = (Vec::new(), Vec::new());
        for group in groups {
            self.name(&group.ids, group.names);
            ids.push(group.ids);
            joining.push(group.joining);
        }
        let results = self.host.join(joining).inspect_err(|_| self.host.abandon())?;
        let mut answers = Vec::with_capacity(ids.len());
        for (ids, result) in ids.into_iter().zip(results) {
            answers.push(match result {
                Ok(()) => {
                    self.have_joined(&ids);
                    Ok(ids)
                }
                Err((vcpu, error)) => {
                    let index = ids.iter().position(|id| id.vcpu() == vcpu).unwrap_or(0);
                    self.discard(PreparedGroup { ids, names: Vec::new(), joining: Vec::new() });
                    Err(GroupError { index, error: self.not_done(error) })
                }
            });
        }
        self.poke();
        Ok(answers)
    }

    pub(super) fn name(&self, ids: &[JoinId], names: Vec<(String, String)>) {
        let at = self.host.now();
        for (id, (name, domain)) in ids.iter().zip(names) {
            self.host.named(&VcpuName { at, vcpu: id.vcpu(), name, domain });
        }
    }

    pub(super) fn have_joined(&mut self, ids: &[JoinId]) {
        let now = self.host.now();
        for &id in ids {
            let row = self.members.get_mut(id).expect("a joining member was prepared");
            row.has_joined = true;
            let first = row.threads.first().map(ThreadRef::tid);
            row.changes.begin(now, first);
            self.endings.add(id, row);
        }
        self.members.note_change();
    }

    /// Restores the threads of a prepared group that will not join.
    pub fn discard(&mut self, group: PreparedGroup) {
        for id in group.ids {
            // Threads that cannot be restored now are restored when the session is closed.
            let _ = self.release(id);
        }
    }

    /// Removes a member and restores its threads. The id of the member is no longer valid.
    ///
    /// # Errors
    /// If the member is not present, or if some of its threads could not be restored. In the second
    /// case the member has been removed nevertheless.
    pub fn leave(&mut self, id: JoinId) -> Result<(), RequestError> {
        self.row(id)?;
        self.restore_leavers(id);
        let left = self.host.leave(id.vcpu());
        let released = self.release(id);
        self.poke();
        left.map_err(|error| self.not_done(error.into()))?;
        released
    }

    /// Returns the present processes of a process tree, including processes that are stopped in a
    /// cell (a frozen cgroup of root). The list is empty if the member is not a process tree.
    #[must_use]
    pub fn processes_of(&self, id: JoinId) -> Vec<Tid> {
        let Some(row) = self.members.get(id) else { return Vec::new() };
        let tree = row.tree.as_ref().map(HeldTree::place);
        let places = tree.into_iter().chain(row.changes.cell.as_ref().map(|it| &it.cell));
        places.flat_map(|place| place.all_processes().unwrap_or_default()).collect()
    }

    /// Removes the members whose threads have all ended.
    pub(super) fn take_out_ended(&mut self) -> Vec<JoinId> {
        // The host's list is cleared but not used, since `endings` finds all members that ended.
        drop(self.host.take_gone());
        let mut ended: Vec<JoinId> = self.endings.news().into_iter().collect();
        ended.retain(|id| {
            let row = self.members.get(*id).filter(|row| row.has_joined && !row.is_nobody());
            let Some(row) = row else { return false };
            if row.tree.as_ref().is_some_and(|tree| !tree.is_gone()) {
                return false;
            }
            let is_tree = row.tree.is_some();
            let has_ended = row.is_removed()
                || row.has_ended() && !(is_tree && self.host.has_living_thread(id.vcpu()));
            if is_tree && !has_ended {
                // All processes were moved to another cgroup. The kernel does not report their end.
                self.endings.doubt(*id);
            }
            has_ended
        });
        for &id in &ended {
            // Errors are ignored, because the threads have ended and need not be restored.
            let _ = self.leave(id);
        }
        ended.append(&mut self.lost);
        ended
    }

    /// Checks that no member has this domain number and vCPU number already. Members in `leaving`
    /// are ignored. Otherwise the policy would count the CPU time of two members in one account.
    fn check_free(
        &self,
        (domain, number): (DomId, u16),
        leaving: &[JoinId],
    ) -> Result<(), RequestError> {
        let mut there = self.members.of_vcpu(domain, number).map(|(id, _)| id);
        match there.find(|id| !leaving.contains(id)) {
            Some(id) => Err(RequestError::Taken { vcpu: id.vcpu() }),
            None => Ok(()),
        }
    }

    /// Converts a failure of the live host to the error of a request. If the host cannot continue,
    /// the session is over.
    pub(super) fn not_done(&self, error: NotDone) -> RequestError {
        if matches!(error, NotDone::Host(_)) {
            self.host.abandon();
        }
        error.into()
    }

    pub(super) fn row(&self, id: JoinId) -> Result<&Row, RequestError> {
        if self.host.is_over() {
            return Err(RequestError::Over);
        }
        let row = self.members.get(id).filter(|row| row.has_joined);
        row.ok_or(RequestError::Unknown { id })
    }

    pub(super) fn row_mut(&mut self, id: JoinId) -> Result<&mut Row, RequestError> {
        self.members.get_mut(id).ok_or(RequestError::Unknown { id })
    }

    pub(super) fn is_exact(&self, share: &Values) -> bool {
        self.hard_limit(share).is_some()
    }

    /// Returns the reservation of a share if it is a hard limit. `None` if the share has no hard
    /// limit.
    pub(super) fn hard_limit(&self, share: &Values) -> Option<Reservation> {
        let promise = (self.policy.promise)(share).ok().flatten();
        promise.filter(|promise| promise.bounded).map(|promise| promise.reservation)
    }

    fn check(&self, request: &Request) -> Result<(), RequestError> {
        if self.host.is_over() {
            return Err(RequestError::Over);
        }
        self.check_watched(&request.share)?;
        self.check_cpus(request.cpus)?;
        self.check_cpuset(request)
    }

    /// Checks that context switches can be observed, if `share` has a reservation. Without that,
    /// the reservation could not be enforced.
    pub(super) fn check_watched(&self, share: &Values) -> Result<(), RequestError> {
        let promise = (self.policy.promise)(share).ok().flatten();
        let (Some(promise), Some(why)) = (promise, self.host.unwatched()) else { return Ok(()) };
        let (slice, period) = (promise.reservation.slice(), promise.reservation.period());
        Err(RequestError::Unwatched { slice, period, why: with_causes(why) })
    }

    pub(super) fn check_cpus(&self, cpus: Option<CpuSet>) -> Result<(), RequestError> {
        let there = CpuSet::first_n(self.cpus);
        match cpus {
            Some(cpus) if cpus.is_empty() || !cpus.without(&there).is_empty() => {
                Err(RequestError::NoSuchCpus { cpus, count: self.cpus })
            }
            _ => Ok(()),
        }
    }

    fn row_for(&self, request: &Request) -> Row {
        let is_exact = self.is_exact(&request.share);
        Row {
            threads: Vec::new(),
            tree: None,
            hold: match request.who {
                JoinTarget::Process(_) => Hold::Process,
                // A tree needs no separate freezer cgroup: it gets a cgroup as soon as the fence
                // has recorded it.
                JoinTarget::Thread(_)
                | JoinTarget::Tree(_)
                | JoinTarget::Wide(..)
                | JoinTarget::Group(_)
                | JoinTarget::Nobody => Hold::Thread,
            },
            is_exact,
            has_stop: is_exact,
            share: request.share.clone(),
            cpus: request.cpus,
            is_paused: false,
            has_joined: false,
            is_of_libvirt: match &request.who {
                JoinTarget::Thread(thread) => is_of_libvirt(thread.pid()),
                JoinTarget::Process(pid) | JoinTarget::Tree(pid) | JoinTarget::Wide(pid, _) => {
                    is_of_libvirt(*pid)
                }
                JoinTarget::Group(place) => {
                    place.threads().is_ok_and(|all| all.first().copied().is_some_and(is_of_libvirt))
                }
                JoinTarget::Nobody => false,
            },
            changes: Changes::default(),
        }
    }

    /// Records the state of a member's threads with the fence. The member already has a row.
    fn hold(&mut self, id: JoinId, who: &JoinTarget) -> Result<VcpuThreads, RequestError> {
        let threads = match who {
            JoinTarget::Thread(thread) => vec![thread.clone()],
            JoinTarget::Process(pid) => open_all(*pid)?,
            JoinTarget::Nobody => Vec::new(),
            JoinTarget::Tree(pid) => {
                let tree = self.fenced(|fence| fence.hold_tree(*pid))?;
                return self.hold_tree(id, tree);
            }
            JoinTarget::Wide(pid, cpus) => {
                let tree = self.fenced(|fence| fence.hold_tree(*pid))?;
                tree.widen(*cpus);
                return self.hold_tree(id, tree);
            }
            JoinTarget::Group(place) => {
                let tree = self.fenced(|fence| fence.hold_group(place))?;
                return self.hold_tree(id, tree);
            }
        };
        let most = self.most_of(id);
        self.fence.grant(&threads, most)?;
        let tids: Vec<Tid> = threads.iter().map(ThreadRef::tid).collect();
        let held = self.hold_each(id, threads);
        if held.is_err() {
            tids.into_iter().for_each(|tid| self.fence.revoke(tid));
        }
        held
    }

    fn hold_each(
        &mut self,
        id: JoinId,
        threads: Vec<ThreadRef>,
    ) -> Result<VcpuThreads, RequestError> {
        let row = self.row_mut(id)?;
        let (is_exact, hold) = (row.is_exact, row.hold);
        let mut members = Vec::new();
        for thread in threads {
            // A signal stops the whole process, so only the first thread needs a means of stopping.
            let hold = if is_exact && members.is_empty() { hold } else { Hold::Nothing };
            let held = self.fenced(|fence| fence.hold(&thread, hold))?;
            let tid = thread.tid();
            if self.members.get(id).is_some_and(|row| row.is_of_libvirt) {
                held.respect_changes().map_err(FenceError::from)?;
            } else {
                self.keep_within(tid, None)?;
            }
            self.row_mut(id)?.threads.push(thread);
            members.push(member(held)?);
            let watched = self.host.watch(tid);
            watched.map_err(RequestError::Host)?;
        }
        Ok(VcpuThreads { vcpu: id.vcpu(), body: Body::Threads(members) })
    }

    fn hold_tree(&mut self, id: JoinId, tree: HeldTree) -> Result<VcpuThreads, RequestError> {
        let row = self.row_mut(id)?;
        row.threads = tree.first().to_vec();
        row.tree = Some(tree.clone());
        let is_of_libvirt = row.is_of_libvirt;
        // If another program made the cgroup, the cgroup gets no cpuset: that program may set its
        // CPUs.
        if tree.place().origin.is_some() && !is_of_libvirt {
            self.keep_within(tree.first()[0].tid(), tree.wide())?;
        }
        let most = self.most_of(id);
        self.fence.grant(tree.first(), most)?;
        let tids: Vec<Tid> = tree.first().iter().map(ThreadRef::tid).collect();
        self.host.watch_tree(id.vcpu(), tids);
        Ok(VcpuThreads { vcpu: id.vcpu(), body: Body::Tree(tree) })
    }

    /// Prepares the means of stopping a member, such as its freezer cgroup.
    pub(super) fn add_stop(&mut self, id: JoinId) -> Result<(), RequestError> {
        let row = self.row(id)?;
        let (Some(first), false) = (row.threads.first(), row.has_stop) else { return Ok(()) };
        let (tid, hold) = (first.tid(), row.hold);
        self.fenced(|fence| fence.add_stop(tid, hold))?;
        let row = self.row_mut(id)?;
        row.has_stop = true;
        row.changes.forget_surroundings();
        Ok(())
    }

    /// Resumes a member's threads and removes the means of stopping them. If the means cannot be
    /// removed, they stay, but have no effect on the member.
    pub(super) fn drop_stop(&mut self, id: JoinId) {
        let first = self.members.get(id).and_then(|row| row.threads.first());
        let Some(tid) = first.map(ThreadRef::tid) else { return };
        if self.host.let_run(id.vcpu()).is_ok()
            && self.fenced(|fence| fence.drop_stop(tid)).is_ok()
            && let Some(row) = self.members.get_mut(id)
        {
            row.has_stop = false;
            row.changes.forget_surroundings();
        }
    }

    /// Restores the threads of a member that is no longer scheduled, and frees its id.
    fn release(&mut self, id: JoinId) -> Result<(), RequestError> {
        self.agents.remove(id.vcpu());
        let relays = self.relays.iter().filter(|relay| relay.vcpu == id.vcpu());
        relays.for_each(|relay| relay.end());
        let Some(row) = self.members.remove(id) else { return Ok(()) };
        self.endings.remove(id);
        if row.tree.is_some() {
            self.host.unwatch_tree(id.vcpu());
        }
        let mut errors = Vec::new();
        for thread in row.threads {
            self.host.unwatch(thread.tid());
            errors.extend(self.fence.release(thread.tid()).err());
            self.fence.revoke(thread.tid());
        }
        if errors.is_empty() { Ok(()) } else { Err(RequestError::NotGivenBack { errors }) }
    }
}

impl RequestError {
    /// Converts an error that ended the session to the error of a request.
    fn of_session(error: SessionError) -> RequestError {
        match error {
            SessionError::Host(error) => RequestError::Host(error),
            _ => RequestError::Over,
        }
    }
}

/// Opens the threads of a process. Threads that exit meanwhile are left out.
fn open_all(pid: Tid) -> Result<Vec<ThreadRef>, RequestError> {
    let mut threads = Vec::new();
    let mut gone = None;
    for tid in threads_of(pid)? {
        match ThreadRef::open(pid, tid) {
            Ok(thread) => threads.push(thread),
            Err(error @ ThreadError::Gone { .. }) => gone = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    match gone {
        Some(error) if threads.is_empty() => Err(error.into()),
        _ => Ok(threads),
    }
}

fn member(held: HeldThread) -> Result<vcpu_threads::MeteredThread, RequestError> {
    let (pid, tid) = (held.thread().pid(), held.thread().tid());
    let unreadable = |source| match held.thread().is_gone() {
        Ok(true) => RequestError::Thread(ThreadError::Gone { pid, tid }),
        _ => RequestError::Unreadable { tid, source },
    };
    let clock = ThreadClock::open(tid).map_err(unreadable)?;
    let used = clock.read().map_err(unreadable)?;
    Ok(vcpu_threads::MeteredThread { held, clock, used })
}
