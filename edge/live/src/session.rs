//! A session: live scheduling without a scenario. While a session is open, vCPUs can join, change
//! parameters, be paused and moved, and leave, at any time.
//!
//! On each managed CPU runs a dispatcher, a thread at the highest real-time priority. The
//! dispatcher sleeps until its CPU needs a decision, makes a scheduling pass, and sleeps again. The
//! thread that opened the session has the priority right below. This thread makes requests and
//! calls [`Session::poll`] several times a second. That call collects the records of the
//! dispatchers, finds vCPUs that have ended, and starts a new keeper if the keeper has died. The
//! keeper is a child process that restores all threads if this process dies.
//!
//! A request that fails changes nothing and affects no other vCPU. Every thread is restored however
//! the session ends.

mod change;
mod confine;
mod contest;
mod cpuset;
mod deadline_conflict;
mod due_checks;
mod endings;
mod enforced;
mod error;
mod finding;
mod ids;
mod kernel;
mod leavers;
mod libvirt_group;
mod members;
mod outside_changes;
mod outside_time;
mod pause;
mod replace;
mod request;
mod thread_states;
mod told;
mod tree_groups;
mod unbound;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use slackline_host::policy::{Spec, Values};
use slackline_trace::{Entry, Knowledge, Record};
use slackline_units::{CpuId, CpuSet, Reservation, Span, Time, VcpuId};

pub use deadline_conflict::DeadlineConflict;
pub use due_checks::DueChecks;
pub use enforced::{EnforcedChange, EnforcedWatch};
pub use error::{RequestError, SessionError};
pub use finding::ForeignChange;
pub use ids::JoinId;
pub use request::{GroupError, JoinTarget, PreparedGroup, Request, RequestedId};
pub use slackline_linux::owned_cpus::{NotOwned, OwnedCpus};
pub use told::HearError;

use crate::agents::Agents;
use crate::books::Books;
use crate::dispatch_cost::measure;
use crate::dispatcher::{Dispatcher, stop_dispatchers, wait_for};
use crate::doctor::real_time_limit;
use crate::live_host::{LiveHost, Watching};
use crate::punctual::Punctual;
use crate::relay;
use crate::watch::perf::PerfWatch;
use crate::watch::tap::Tap;
use endings::Endings;
use ids::Table;
use request::Row;
use slackline_fence::{Fence, FenceError, KeeperCommand};
use slackline_linux::cgroup::Hierarchies;
use slackline_linux::sys::{Tid, lock_memory, monotonic};
use slackline_linux::wall_clock::{ClockStep, Offset, WallClock};
use slackline_linux::with_causes;

/// Parameters for opening a session.
#[derive(Clone, Debug)]
pub struct Options {
    /// CPUs to schedule, by the kernel's numbers. Requests and records name a CPU by its index in
    /// this list.
    pub cpus: Vec<CpuId>,
    /// Proof that the caller already owns these CPUs, so that no other Slackline process schedules
    /// them. If `None`, the session takes the ownership.
    pub owned: Option<OwnedCpus>,
    /// Policy that schedules the vCPUs.
    pub policy: &'static Spec,
    /// Parameters of the policy.
    pub values: Values,
    /// Command that starts the keeper, which restores all threads if this process dies.
    pub keeper: KeeperCommand,
    /// CPU time of a dispatcher pass, which admission adds to reservations. If `None`, the session
    /// [measures](crate::dispatch_cost::measure) it.
    pub dispatch: Option<Span>,
    /// Time on the monotonic clock that is time zero of the records. If `None`, time zero is the
    /// time at which the session is opened.
    pub origin: Option<Time>,
    /// Clock to which the phases of periods refer. If `None`, phases refer to the time of the
    /// session.
    pub wall_clock: Option<WallClock>,
}

/// Events of a session since the last call of [`Session::poll`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionEvents {
    /// Current time of the session.
    pub now: Time,
    /// Members (vCPUs of the session) whose threads have ended. Their ids are no longer valid.
    pub ended: Vec<JoinId>,
    /// True if the keeper process had died and the session has replaced it.
    pub keeper_replaced: bool,
    /// Step by which the clock to which phases refer was set. The session has moved the starts of
    /// all periods by the same step. `None` if the clock was not set.
    pub clock_stepped: Option<ClockStep>,
    /// Members whose scheduling another program or the member itself has changed, each with the
    /// change. The session has undone these changes, or enforces the reservation despite them.
    pub meddled: Vec<(JoinId, ForeignChange)>,
    /// Members that became contested, each with the change. Either another program keeps control of
    /// the member's threads, or the kernel has refused to restore or resume these threads.
    pub contested: Vec<(JoinId, ForeignChange)>,
    /// Members in `contested` whose reservation is still enforced for all their threads except
    /// those that another program has stopped or moved.
    pub still_enforced: Vec<JoinId>,
    /// Members that are no longer contested, because the other program's change was undone. The
    /// session schedules them again.
    pub settled: Vec<JoinId>,
}

/// Thread of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionThread {
    /// Id of the vCPU.
    pub vcpu: VcpuId,
    /// Id of the thread.
    pub tid: Tid,
    /// True if all threads and processes that the thread starts belong to the vCPU too.
    pub is_of_tree: bool,
}

/// State of a vCPU in a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Member<'a> {
    /// Id that the member got when it joined.
    pub id: JoinId,
    /// Share of the vCPU under the policy.
    pub share: &'a Values,
    /// CPUs of the session on which the member may run. If `None`, the member may run on all CPUs
    /// of the session.
    pub cpus: Option<CpuSet>,
    /// True while the member is paused at a user's request.
    pub is_paused: bool,
}

/// An open session. Only the thread that opened the session may use it. This thread is real-time
/// until the session is closed.
///
/// Dropping the session restores all threads, as [`Session::close`] does, but reports no errors.
pub struct Session {
    host: Arc<LiveHost>,
    dispatchers: Vec<Dispatcher>,
    fence: Fence,
    policy: &'static Spec,
    cpus: usize,
    members: Table<Row>,
    endings: Endings,
    /// Members that were removed so that a group could replace them, and that could not join again
    /// after the group was refused. The next [`Session::poll`] reports these members as ended.
    lost: Vec<JoinId>,
    books: Books,
    agents: Arc<Agents>,
    relays: Vec<Arc<relay::RelayState>>,
    tap: Arc<Tap>,
    /// Clock to which the phases of periods refer, and the last known offset of this clock from the
    /// monotonic clock.
    wall_clock: Option<(WallClock, Offset)>,
    /// Mounts of the cgroup hierarchies, and the time when they were read. `None` before the first
    /// use.
    hierarchies: Option<(Time, Arc<Hierarchies>)>,
    /// Result of the last call of [`members_with_threads`](Session::members_with_threads), with the
    /// revision of the members at that time. `None` before the first call.
    with_threads: Option<(u64, Arc<[JoinId]>)>,
    /// Time of the next check of members' threads for changes that the session did not make.
    next_audit: Time,
    /// Time of the next reading of the kernel's limit of real-time threads.
    next_limit: Time,
    // Dropped after the fence, so that this thread is still real-time while it restores threads.
    _urgent: Punctual,
    // Dropped last, so that no other session takes these CPUs before all threads are restored.
    _owned: OwnedCpus,
}

/// Largest difference between the CPU time of a run interval and its length: about the time of two
/// context switches. The difference arises because the kernel can charge a switch to one thread and
/// record it as part of the other thread's run interval.
const RESOLUTION: Span = Span::from_us(5);

/// Interval between two readings of the kernel's limit of real-time threads.
const LIMIT_INTERVAL: Span = Span::from_secs(1);

/// Returns the kinds of events about threads that this host reports.
#[must_use]
pub fn knowledge() -> Knowledge {
    let sees = PerfWatch::open().is_ok();
    Knowledge { sleep: sees, stretches: sees, resolution: RESOLUTION, overhead: false }
}

impl Session {
    /// Opens a session without vCPUs.
    ///
    /// # Errors
    /// If another Slackline process schedules one of the CPUs. Also if the kernel refuses real-time
    /// scheduling, locked memory or a descriptor, or if the keeper cannot be started. After an
    /// error nothing has changed.
    pub fn open(options: &Options) -> Result<Session, SessionError> {
        // The CPUs are taken before anything is changed. This thread becomes real-time before it
        // starts dispatchers, because real-time dispatchers could keep an ordinary thread from
        // running.
        let owned = options.owned.clone().map_or_else(|| OwnedCpus::take(&options.cpus), Ok)?;
        let urgent = Punctual::begin().map_err(|source| SessionError::NoRealTime { source })?;
        lock_memory().map_err(|source| SessionError::NoLockedMemory { source })?;
        let endings = Endings::new().map_err(|source| SessionError::NoDispatcher { source })?;
        let fence = Fence::start(options.keeper.clone())?;
        let dispatch = options.dispatch.map_or_else(|| measure(&options.cpus), Ok);
        let dispatch = dispatch.map_err(|source| SessionError::NoRealTime { source })?;
        let policy = options.policy;
        let rules = (policy, &options.values);
        let (watching, tap) = Watching::open();
        let host = LiveHost::new(rules, &options.cpus, dispatch, watching);
        let host = host.map_err(|source| SessionError::NoDispatcher { source })?;
        let host = Arc::new(host);
        host.begin(options.origin.unwrap_or_else(monotonic));
        let wall_clock = options.wall_clock.clone().map(|clock| (clock.clone(), clock.offset()));
        if let Some((_, offset)) = &wall_clock {
            host.set_wall_clock(offset.ahead)?;
        }
        let mut session = Session {
            host,
            dispatchers: Vec::new(),
            fence,
            policy: options.policy,
            cpus: options.cpus.len(),
            members: Table::new(),
            endings,
            lost: Vec::new(),
            books: Books::default(),
            agents: Arc::default(),
            relays: Vec::new(),
            tap,
            wall_clock,
            hierarchies: None,
            with_threads: None,
            next_audit: Time::START,
            next_limit: Time::START,
            _urgent: urgent,
            _owned: owned,
        };
        for (index, &real) in options.cpus.iter().enumerate() {
            let host = Arc::clone(&session.host);
            session.dispatchers.push(Dispatcher::start(CpuId::new(index), real, host)?);
        }
        let dispatchers = session.dispatchers.iter().zip(&options.cpus).enumerate();
        let cpus = dispatchers.filter_map(|(index, (dispatcher, &real))| {
            Some((CpuId::new(index), real, dispatcher.tid()?))
        });
        session.books = Books::new(cpus);
        let elsewhere = Dispatcher::start_elsewhere(Arc::clone(&session.host))?;
        session.dispatchers.extend(elsewhere);
        Ok(session)
    }

    /// Returns the current time of the session.
    #[must_use]
    pub fn now(&self) -> Time {
        self.host.now()
    }

    /// Returns the time on the monotonic clock at which the time of the session was zero.
    #[must_use]
    pub fn origin(&self) -> Time {
        Time::START + self.host.origin()
    }

    /// Turns on and returns the tap: a queue with a copy of each context switch and wake-up that
    /// the session sees. From then on the caller must take the events from the tap several times a
    /// second.
    #[must_use]
    pub fn tap(&self) -> Arc<Tap> {
        self.tap.turn_on();
        Arc::clone(&self.tap)
    }

    /// Returns the threads of the members. For a process tree, these are only the threads with
    /// which the tree joined.
    pub fn threads(&self) -> impl Iterator<Item = SessionThread> {
        let joined = self.members.iter().filter(|(_, row)| row.has_joined);
        joined.flat_map(|(id, row)| {
            let (vcpu, is_of_tree) = (id.vcpu(), row.tree.is_some());
            row.threads.iter().map(move |it| SessionThread { vcpu, tid: it.tid(), is_of_tree })
        })
    }

    /// Returns a number that grows each time the result of [`threads`](Session::threads) changes.
    #[must_use]
    pub fn threads_revision(&self) -> u64 {
        self.members.revision()
    }

    /// Returns the members that have joined and are not [reservations without
    /// threads](Row::is_nobody). The members are searched again only after a change, because there
    /// can be thousands of reservations without threads.
    fn members_with_threads(&mut self) -> Arc<[JoinId]> {
        let revision = self.members.revision();
        if self.with_threads.as_ref().is_none_or(|(of, _)| *of != revision) {
            let there = self.members.iter().filter(|(_, row)| row.has_joined && !row.is_nobody());
            self.with_threads = Some((revision, there.map(|(id, _)| id).collect()));
        }
        self.with_threads.as_ref().map_or_else(|| Arc::from([]), |(_, ids)| Arc::clone(ids))
    }

    /// Returns true if scheduling has ended because of an error.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.host.is_over()
    }

    /// Returns all members in the order of the slots in their ids.
    pub fn members(&self) -> impl Iterator<Item = Member<'_>> {
        let joined = self.members.iter().filter(|(_, row)| row.has_joined);
        joined.map(|(id, row)| Member {
            id,
            share: &row.share,
            cpus: row.cpus,
            is_paused: row.is_paused,
        })
    }

    /// Returns a descriptor that becomes readable when the keeper has died. The caller must then
    /// call [`poll`](Session::poll) immediately.
    #[must_use]
    pub fn urgent_fd(&self) -> BorrowedFd<'_> {
        self.fence.keeper_fd()
    }

    /// Waits until one of `others` is readable, the keeper has died, or `most` has passed. The
    /// result has one item for each descriptor in `others`: true if the descriptor is readable. The
    /// function may also return early, without any of these reasons.
    #[must_use]
    pub fn wait(&self, others: &[BorrowedFd<'_>], most: Span) -> Vec<bool> {
        let fds = std::iter::once(self.urgent_fd()).chain(others.iter().copied());
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        wait_for(&mut fds, most.min(outside_changes::LOOK_INTERVAL));
        fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect()
    }

    /// Starts recording each call to and from the [`Host`](slackline_host::Host) that drives the
    /// policy, in addition to the trace. If a trace contains all calls since the first join, it can
    /// be replayed.
    pub fn keep_exchanges(&mut self) {
        self.host.keep_exchanges();
    }

    /// Does the regular work of the session. Replaces the contents of `records` by the records
    /// since the last call, removes members that have ended, and replaces a keeper that died. The
    /// caller must call this function several times a second. Between calls the dispatchers
    /// continue to schedule.
    ///
    /// # Errors
    /// If the session is over, or the keeper cannot be replaced.
    pub fn poll(&mut self, records: &mut Vec<Entry>) -> Result<SessionEvents, SessionError> {
        let mut keeper = [PollFd::from_borrowed_fd(self.urgent_fd(), PollFlags::IN)];
        wait_for(&mut keeper, Span::ZERO);
        let keeper_replaced = !keeper[0].revents().is_empty();
        if keeper_replaced {
            self.fence.revive()?;
        }
        let ended = self.take_out_ended();
        let clock_stepped = self.follow_clock()?;
        let mut seen =
            SessionEvents { ended, keeper_replaced, clock_stepped, ..SessionEvents::default() };
        if !self.host.is_over() {
            self.look_for_changes(&mut seen)?;
            self.follow_refused(&mut seen);
            self.follow_limit();
        }
        self.host.take_records(records);
        if self.host.is_over() {
            stop_dispatchers(std::mem::take(&mut self.dispatchers), &self.host)?;
        } else {
            self.books.tell(self.host.now(), records);
        }
        seen.now = self.host.now();
        Ok(seen)
    }

    /// Returns the offset from the time of the session to the clock to which the phases of periods
    /// refer. `None` if the session was opened without such a clock.
    #[must_use]
    pub fn wall_ahead(&self) -> Option<Span> {
        let (_, offset) = self.wall_clock.as_ref()?;
        Some(offset.ahead + self.host.origin())
    }

    /// Checks whether the clock to which phases refer was set. If so, moves the starts of all
    /// periods by the same step, and returns the step.
    fn follow_clock(&mut self) -> Result<Option<ClockStep>, SessionError> {
        let Some((clock, known)) = &mut self.wall_clock else { return Ok(None) };
        let offset = clock.offset();
        let step = offset.step_since(*known);
        if step.is_some() && !self.host.is_over() {
            *known = offset;
            self.host.set_wall_clock(offset.ahead)?;
        }
        Ok(step)
    }

    /// Reads the kernel's limit of real-time threads, at most once per second. An administrator may
    /// have changed it.
    fn follow_limit(&mut self) {
        if self.host.now() >= self.next_limit {
            self.next_limit = self.host.now() + LIMIT_INTERVAL;
            self.host.limit_real_time(real_time_limit());
        }
    }

    /// Returns the longest time that any dispatcher has now gone without a pass. Dispatchers that
    /// have not made a pass yet are left out. Zero if no dispatcher has made a pass. A dispatcher
    /// sleeps for at most 20 ms, so up to 20 ms is normal. Somewhat more is normal if the
    /// hypervisor below the host is busy.
    #[must_use]
    pub fn unlooked(&self) -> Span {
        self.host.unlooked()
    }

    /// Grants real-time budget to the current cgroups of members to whose threads the kernel
    /// refused a change, such as a real-time class. The cgroup may be another than at the join:
    /// libvirt moves the threads of a VM that is just starting.
    ///
    /// Reports a member as contested if the kernel refused to restore or resume its threads.
    fn follow_refused(&mut self, seen: &mut SessionEvents) {
        for vcpu in self.host.take_refused() {
            let member = self.members.iter().find(|(id, _)| id.vcpu() == vcpu);
            let Some((id, threads)) = member.map(|(id, row)| (id, row.threads.clone())) else {
                continue;
            };
            // If the cgroup cannot get a budget, the kernel refuses the next change too, and this
            // function tries again.
            let _ = self.fence.grant(&threads, self.most_of(id));
        }
        let now = self.host.now();
        for (vcpu, error) in self.host.take_failures() {
            let member = self.members.iter().find(|(id, _)| id.vcpu() == vcpu);
            let Some(id) = member.map(|(id, _)| id) else { continue };
            let Some(changes) = self.changes_mut(id) else { continue };
            changes.refused = Some(now);
            if changes.found.is_none() {
                let finding = ForeignChange::Refused { order: with_causes(&error) };
                changes.found = Some(finding.clone());
                seen.contested.push((id, finding));
            }
        }
    }

    /// Closes the session and restores all threads. Puts the remaining records into `records`. The
    /// last record is the end of the run.
    ///
    /// # Errors
    /// If the session was over before this call, or some threads could not be restored.
    pub fn close(mut self, records: &mut Vec<Entry>) -> Result<(), SessionError> {
        let ids: Vec<JoinId> = self.members.iter().map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.restore_leavers(id));
        // The accounting is read while the dispatchers still exist, since it includes their CPU
        // time. It is appended after the last records of the host.
        let mut books = Vec::new();
        let ended = if self.host.is_over() {
            Ok(())
        } else {
            self.books.tell_now(self.host.now(), &mut books);
            self.host.end()
        };
        let stopped = stop_dispatchers(std::mem::take(&mut self.dispatchers), &self.host);
        self.host.take_records(records);
        records.append(&mut books);
        // Dispatchers record their overhead after the record of the end, which must be the last
        // record.
        let is_end = |entry: &Entry| matches!(entry, Entry::Record(Record::Ended { .. }));
        let end = records.iter().position(is_end);
        if let Some(place) = end {
            let end = records.remove(place);
            records.push(end);
        }
        let given_back = self.fence.release_all();
        stopped?;
        ended?;
        given_back.map_err(|errors| SessionError::NotGivenBack { errors })
    }

    /// Returns the process id of the keeper.
    #[must_use]
    pub fn keeper_id(&self) -> u32 {
        self.fence.keeper_id()
    }

    /// Returns the largest real-time budget that the cgroup of a member needs. Usually it is the
    /// member's slice in every period. If the vCPUs of the member's VM can borrow budget from each
    /// other, it is `min(slice * vCPUs of the VM, period)`. `None` if the member has no
    /// reservation.
    fn most_of(&self, id: JoinId) -> Option<Reservation> {
        self.most(id, &self.members.get(id)?.share)
    }

    /// Returns the largest real-time budget that a member's cgroup needs if the member has the
    /// share `share`. `None` if the share has no reservation.
    fn most(&self, id: JoinId, share: &Values) -> Option<Reservation> {
        let promise = (self.policy.promise)(share).ok().flatten()?;
        let domain = id.vcpu().domain();
        let of_domain = self.members.of_domain(domain).count();
        let times = if promise.by_use { of_domain.max(1) } else { 1 };
        let (slice, period) = (promise.reservation.slice(), promise.reservation.period());
        let all = slice.ns().saturating_mul(u64::try_from(times).unwrap_or(u64::MAX));
        Reservation::new(Span::from_ns(all).min(period), period).ok()
    }

    /// Raises the real-time budgets of the cgroups of a VM's vCPUs after more vCPUs of the VM have
    /// joined. Without the larger real-time budget the vCPUs could not use all budget that they can
    /// borrow.
    fn grant_loans(&mut self, come: &[JoinId]) -> Result<(), RequestError> {
        let Some(domain) = come.first().map(|id| id.vcpu().domain()) else { return Ok(()) };
        let those = self.members.of_domain(domain);
        let those: Vec<_> = those.map(|(id, row)| (id, row.threads.clone())).collect();
        for (id, threads) in those {
            let most = self.most_of(id);
            self.fence.regrant(&threads, &[most])?;
        }
        Ok(())
    }

    /// Runs an operation of the fence. If the operation fails because the keeper process has just
    /// died, starts a new keeper and repeats the operation.
    fn fenced<T>(
        &mut self,
        mut order: impl FnMut(&mut Fence) -> Result<T, FenceError>,
    ) -> Result<T, FenceError> {
        match order(&mut self.fence) {
            Err(FenceError::Keeper(_)) => {
                self.fence.revive()?;
                order(&mut self.fence)
            }
            result => result,
        }
    }

    /// Wakes all dispatchers for a pass.
    fn poke(&self) {
        self.host.call_all();
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Session").field("members", &self.members).finish_non_exhaustive()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.host.abandon();
        // `drop` cannot report an error with which a dispatcher has ended.
        let _ = stop_dispatchers(std::mem::take(&mut self.dispatchers), &self.host);
    }
}
