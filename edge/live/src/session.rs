//! A live host without a scenario: opened once, and then whoever is there joins, gets other terms,
//! is paused, moved, and leaves, at any time and for as long as one likes.
//!
//! On each managed CPU a dispatcher, a thread at the highest real-time priority, sleeps until its
//! CPU needs it, looks, and sleeps again. The thread that opened the session sits right below: it
//! makes requests, and now and then [`Session::poll`]s, which takes the records away, notices who
//! has ended, and replaces a keeper that died.
//!
//! A request that fails leaves everything as it was before it, and everybody else alone. Whatever
//! ends the session, the fence gives every thread back.

mod change;
mod contest;
mod cpuset;
mod endings;
mod error;
mod finding;
mod ids;
mod outside_changes;
mod pause;
mod replace;
mod request;
mod told;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use slackline_host::policy::{Spec, Values};
use slackline_trace::{Entry, Knowledge, Record};
use slackline_units::{CpuId, CpuSet, Reservation, Span, Time, VcpuId};

pub use error::{RequestError, SessionError};
pub use finding::Finding;
pub use ids::JoinId;
pub use request::{Called, GroupError, Prepared, Request, Who};
pub use slackline_linux::owned_cpus::{NotOwned, OwnedCpus};
pub use told::HearError;

use crate::agents::Agents;
use crate::books::Books;
use crate::dispatch_cost::measure;
use crate::dispatcher::{Dispatcher, stop_dispatchers, wait_for};
use crate::live_host::{LiveHost, Watching};
use crate::punctual::Punctual;
use crate::relay;
use crate::watch::perf::PerfWatch;
use crate::watch::tap::Tap;
use endings::Endings;
use ids::Table;
use request::Row;
use slackline_fence::{Fence, FenceError, KeeperCommand};
use slackline_linux::sys::{Tid, lock_memory, monotonic};
use slackline_linux::wall_clock::{ClockStep, Offset, WallClock};

/// What a session is opened with.
#[derive(Clone, Debug)]
pub struct Options {
    /// The CPUs of this machine that are scheduled. Requests and records call them 0, 1 and so on,
    /// in this order.
    pub cpus: Vec<CpuId>,
    /// The right to schedule them, if it was taken before; none is to take it.
    pub owned: Option<OwnedCpus>,
    /// Who decides.
    pub policy: &'static Spec,
    /// Its parameters.
    pub values: Values,
    /// How to start the keeper.
    pub keeper: KeeperCommand,
    /// What a look at a CPU takes, for admission to count; none is to be
    /// [measured](crate::dispatch_cost::measure).
    pub dispatch: Option<Span>,
    /// What is time zero of the records, on the monotonic clock; none is now.
    pub origin: Option<Time>,
    /// By what clock phases are told; none is by the time of the session.
    pub wall_clock: Option<WallClock>,
}

/// What happened since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The time of the session.
    pub now: Time,
    /// Who ended by itself. Nobody has these ids any more.
    pub ended: Vec<JoinId>,
    /// Whether the keeper had died and was replaced.
    pub keeper_replaced: bool,
    /// Whether the clock was set by which phases are told. Their grid has been moved.
    pub clock_stepped: Option<ClockStep>,
    /// Members that have changed how they are scheduled, or were changed, and what was undone.
    pub meddled: Vec<(JoinId, Finding)>,
    /// Members that are left to whoever has changed them from now on, and what was found.
    pub contested: Vec<(JoinId, Finding)>,
    /// Members that were contested: the change was undone, and they are scheduled again.
    pub settled: Vec<JoinId>,
}

/// Somebody who is in a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Member<'a> {
    /// Who.
    pub id: JoinId,
    /// Its share.
    pub share: &'a Values,
    /// Where it may run; none is everywhere.
    pub cpus: Option<CpuSet>,
    /// Whether it is paused.
    pub is_paused: bool,
}

/// An open live host. It belongs to the thread that opened it, which is real-time until the session
/// is closed.
///
/// Dropping it gives everything back, as [`Session::close`] does, and says nothing.
pub struct Session {
    host: Arc<LiveHost>,
    dispatchers: Vec<Dispatcher>,
    fence: Fence,
    policy: &'static Spec,
    cpus: usize,
    members: Table<Row>,
    endings: Endings,
    /// Who could not be put back, until that is told.
    lost: Vec<JoinId>,
    books: Books,
    agents: Arc<Agents>,
    relays: Vec<Arc<relay::Shared>>,
    tap: Arc<Tap>,
    /// By what phases are told, and what was between it and the monotonic clock.
    wall_clock: Option<(WallClock, Offset)>,
    /// When members are next looked at for changes.
    next_audit: Time,
    // Last: giving back should not have to wait.
    _urgent: Punctual,
    // And nobody else begins here before it is done.
    _owned: OwnedCpus,
}

/// About what a switch there and back takes: the kernel counts it to one side of a switch and may
/// stamp it to the other.
const RESOLUTION: Span = Span::from_us(5);

/// What can be known of the threads of this machine.
#[must_use]
pub fn knowledge() -> Knowledge {
    let sees = PerfWatch::open().is_ok();
    Knowledge { sleep: sees, stretches: sees, resolution: RESOLUTION, overhead: false }
}

impl Session {
    /// Opens this machine: nobody is scheduled yet.
    ///
    /// # Errors
    /// When one of the CPUs is scheduled by another slackline, when real-time scheduling, memory,
    /// or a descriptor is refused, or there can be no keeper. Everything is as it was.
    pub fn open(options: &Options) -> Result<Session, SessionError> {
        // Before anything is touched; and before anybody else is made real-time, because whoever
        // comes later might never get to run.
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
            next_audit: Time::START,
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

    /// The time of the session.
    #[must_use]
    pub fn now(&self) -> Time {
        self.host.now()
    }

    /// Time zero of the session, on the monotonic clock.
    #[must_use]
    pub fn origin(&self) -> Time {
        Time::START + self.host.origin()
    }

    /// Tap of all switches and wakes that the session sees. It is turned on by this call, and has
    /// to be emptied a few times a second from then on.
    #[must_use]
    pub fn tap(&self) -> Arc<Tap> {
        self.tap.turn_on();
        Arc::clone(&self.tap)
    }

    /// Threads of the members, each with its vCPU; of a tree its first.
    pub fn threads(&self) -> impl Iterator<Item = (VcpuId, Tid)> {
        let joined = self.members.iter().filter(|(_, row)| row.has_joined);
        joined.flat_map(|(id, row)| row.threads.iter().map(move |it| (id.vcpu(), it.tid())))
    }

    /// Whether nothing is scheduled any more, because something went wrong.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.host.is_over()
    }

    /// Everybody who is there, in order of slot.
    pub fn members(&self) -> impl Iterator<Item = Member<'_>> {
        let joined = self.members.iter().filter(|(_, row)| row.has_joined);
        joined.map(|(id, row)| Member {
            id,
            share: &row.share,
            cpus: row.cpus,
            is_paused: row.is_paused,
        })
    }

    /// A descriptor that polls readable when it is time to [`poll`](Session::poll) at once: the
    /// keeper has died.
    #[must_use]
    pub fn urgent_fd(&self) -> BorrowedFd<'_> {
        self.fence.keeper_fd()
    }

    /// Waits until one of `others` is readable, the keeper has died, or so much time has passed.
    /// Says which of the others are readable.
    #[must_use]
    pub fn wait(&self, others: &[BorrowedFd<'_>], most: Span) -> Vec<bool> {
        let fds = std::iter::once(self.urgent_fd()).chain(others.iter().copied());
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        wait_for(&mut fds, most.min(outside_changes::LOOK_INTERVAL));
        fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect()
    }

    /// What passes between hardware and host comes with the records from now on: with all of it
    /// from the first join on, a trace can be replayed.
    pub fn keep_exchanges(&mut self) {
        self.host.keep_exchanges();
    }

    /// Looks after everything: the records that have come since the last time take the place of
    /// `records`, whoever has ended is taken out, and a keeper that died is replaced. To be called
    /// a few times a second; nobody else's scheduling waits for it.
    ///
    /// # Errors
    /// Why the session is over, or that there can be no other keeper.
    pub fn poll(&mut self, records: &mut Vec<Entry>) -> Result<Seen, SessionError> {
        let mut keeper = [PollFd::from_borrowed_fd(self.urgent_fd(), PollFlags::IN)];
        wait_for(&mut keeper, Span::ZERO);
        let keeper_replaced = !keeper[0].revents().is_empty();
        if keeper_replaced {
            self.fence.revive()?;
        }
        let ended = self.take_out_ended();
        let clock_stepped = self.follow_clock()?;
        let mut seen = Seen { ended, keeper_replaced, clock_stepped, ..Seen::default() };
        if !self.host.is_over() {
            self.look_for_changes(&mut seen)?;
            self.follow_refused();
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

    /// How far the clock by which phases are told is ahead of the time of the session; none if
    /// there is none.
    #[must_use]
    pub fn wall_ahead(&self) -> Option<Span> {
        let (_, offset) = self.wall_clock.as_ref()?;
        Some(offset.ahead + self.host.origin())
    }

    /// Whether the wall clock was set: then the grid of phases is where it is now.
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

    /// How long ago the dispatcher looked last that has not looked for longest. All is well up to
    /// 20 ms, and a little more on a machine that is busy below us.
    #[must_use]
    pub fn unlooked(&self) -> Span {
        self.host.unlooked()
    }

    /// Whoever the kernel refuses something may have been moved to another group since it was held,
    /// as libvirt does with a machine that is just starting: it needs a budget there.
    fn follow_refused(&mut self) {
        for vcpu in self.host.take_refused() {
            let member = self.members.iter().find(|(id, _)| id.vcpu() == vcpu);
            let Some((id, threads)) = member.map(|(id, row)| (id, row.threads.clone())) else {
                continue;
            };
            // Where there is none to be had it is refused again, and tried again.
            let _ = self.fence.grant(&threads, self.most_of(id));
        }
    }

    /// Gives everything back; the last records are put into `records`, the end as the very last.
    ///
    /// # Errors
    /// Why the session was over before, or what could not be given back.
    pub fn close(mut self, records: &mut Vec<Entry>) -> Result<(), SessionError> {
        // As long as there are dispatchers; it is told after what was still running at the end.
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
        // What a dispatcher says on leaving comes after the end, and yet belongs before it.
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

    /// The keeper's process id.
    #[must_use]
    pub fn keeper_id(&self) -> u32 {
        self.fence.keeper_id()
    }

    /// The most that somebody may have as a real-time thread: what it is promised, and where the
    /// vCPUs of its domain lend to each other what all that are known of are promised.
    fn most_of(&self, id: JoinId) -> Option<Reservation> {
        self.most(id, &self.members.get(id)?.share)
    }

    /// The same with this share.
    fn most(&self, id: JoinId, share: &Values) -> Option<Reservation> {
        let promise = (self.policy.promise)(share).ok().flatten()?;
        let domain = id.vcpu().domain();
        let of_domain = self.members.iter().filter(|(id, _)| id.vcpu().domain() == domain).count();
        let times = if promise.by_use { of_domain.max(1) } else { 1 };
        let (slice, period) = (promise.reservation.slice(), promise.reservation.period());
        let all = slice.ns().saturating_mul(u64::try_from(times).unwrap_or(u64::MAX));
        Reservation::new(Span::from_ns(all).min(period), period).ok()
    }

    /// Sees to it that the kernel lets those of a domain who lend to each other be real-time for
    /// that, as more of them have come.
    fn grant_loans(&mut self, come: &[JoinId]) -> Result<(), RequestError> {
        let Some(domain) = come.first().map(|id| id.vcpu().domain()) else { return Ok(()) };
        let those = self.members.iter().filter(|(id, _)| id.vcpu().domain() == domain);
        let those: Vec<_> = those.map(|(id, row)| (id, row.threads.clone())).collect();
        for (id, threads) in those {
            let most = self.most_of(id);
            self.fence.regrant(&threads, &[most])?;
        }
        Ok(())
    }

    /// Does something with the fence; if that fails because the keeper has just died, once more
    /// with another one.
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
        // Nobody hears why they had ended before.
        let _ = stop_dispatchers(std::mem::take(&mut self.dispatchers), &self.host);
    }
}
