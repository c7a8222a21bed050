//! The live host: the hardware that a policy schedules, made of a real Linux kernel. The live host
//! receives events from the kernel and gives orders to the kernel.
//!
//! An event that is read late is reported with the time at which it happened. Of the vCPUs that are
//! entitled to a CPU, the chosen vCPU has the highest real-time priority. The next vCPUs in line
//! have the priorities right below it. So when the chosen vCPU blocks, the kernel runs the next
//! vCPU immediately. The live host learns of the block and of the switch in the next dispatcher
//! pass.
//!
//! A dispatcher pass over a CPU has three steps. Passes over different CPUs may run at the same
//! time, except in the second step:
//! 1. The pass reads the events of the CPU and the CPU time of its threads (`view`, one lock per
//!    CPU).
//! 2. The pass reports events and CPU time to [`Host`], which asks the policy for a decision
//!    (`decider`). A policy may decide for all CPUs at once, so there is one lock. The result is
//!    the orders to the kernel (`enact`).
//! 3. The pass carries out the orders ([`way`](crate::way), one lock per vCPU). A refusal by the
//!    kernel is reported to [`Host`] as an event.
//!
//! An order that concerns another CPU is carried out by that CPU's dispatcher, which is woken.

mod asking;
mod decider;
mod draining;
mod enact;
mod front;
mod join;
mod left;
mod pause;
mod recording;
mod refusals;
mod run_intervals;
mod stopping;
mod tell;
mod tree;
mod view;

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use slackline_host::policy::{AdmitError, Spec, Values};
use slackline_host::{Broken, Fault, Host};
use slackline_trace::{Entry, Record, Sink, VcpuName};
use slackline_units::{CpuId, CpuSet, CpuShare, Span, Time, VcpuId};

use crate::topology;
use crate::vcpu_threads::Unreadable;
use crate::watch::EventSource;
use crate::watch::fed::FedEvents;
use crate::watch::perf::{PerfRing, PerfWatch, WatchError};
use crate::watch::tap::{Tap, TappedSource};
use crate::way::fifo::Fifo;
use crate::way::{Assignment, FailedAssignment, Way};
use slackline_linux::step::ActError;
use slackline_linux::sys::{Tid, get_scheduling, monotonic};

use decider::Decider;
pub(crate) use join::Joining;
pub(crate) use pause::PauseReason;
pub(crate) use tell::VcpuActivity;
pub(crate) use tree::TreeCheck;
use view::{CpuView, PassEvents};

/// Source from which the live host learns which threads run, block and wake.
pub(crate) enum Watching {
    /// Events of every context switch and wake-up. Each source of events has the kernel's number of
    /// its CPU.
    Events(Vec<(CpuId, Box<dyn EventSource>)>, Option<PerfWatch>),
    /// No events: each pass reads only the CPU time used, and every vCPU counts as runnable. Used
    /// on hosts that do not allow events of whole CPUs. The error says why the host does not allow
    /// them.
    Polled(WatchError),
}

impl Watching {
    /// Opens the best source of events that this host offers. Also returns a [`Tap`], which can
    /// copy all events to a recorder. The tap is turned off at first.
    pub(crate) fn open() -> (Watching, Arc<Tap>) {
        let (watch, rings) = match PerfWatch::open() {
            Ok(opened) => opened,
            Err(error) => return (Watching::Polled(error), Arc::default()),
        };
        let tap = Arc::new(Tap::new(rings.iter().map(PerfRing::cpu)));
        let source = |(place, ring): (usize, PerfRing)| {
            let (cpu, tapped) = (ring.cpu(), TappedSource::new(ring, &tap, place));
            (cpu, Box::new(tapped) as Box<dyn EventSource>)
        };
        let sources = rings.into_iter().enumerate().map(source).collect();
        (Watching::Events(sources, Some(watch)), tap)
    }
}

/// Reason why the live host cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum LiveHostError {
    /// Policy and host violated their contract, which is a bug.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The kernel refused an action on a thread, and the live host cannot continue without that
    /// action.
    #[error(transparent)]
    Act(#[from] ActError),
    /// Events of the threads can no longer be read.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The CPU time or the state of a thread can no longer be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

impl LiveHostError {
    /// Returns true if the error is a bug in Slackline. Returns false if the kernel caused the
    /// error.
    #[must_use]
    pub const fn is_bug(&self) -> bool {
        matches!(self, LiveHostError::Broken(_))
    }
}

/// Default for the longest sleep of a dispatcher. It is short because some kernels do not report
/// wake-ups on an idle CPU.
const NAP: Span = Span::from_ms(20);

/// Clock that the live host reads.
#[derive(Clone, Debug)]
pub(crate) enum HostClock {
    /// The kernel's clock `CLOCK_MONOTONIC`.
    Monotonic,
    /// A clock that a test or bench sets. The value is in nanoseconds.
    Fed(Arc<AtomicU64>),
}

impl HostClock {
    fn now(&self) -> Time {
        match self {
            HostClock::Monotonic => monotonic(),
            HostClock::Fed(ns) => Time::from_ns(ns.load(Ordering::Relaxed)),
        }
    }
}

/// Threads and process trees that are about to join. The events of all of them are requested from
/// the kernel in a single call, since each call can take tens of milliseconds.
#[derive(Debug, Default)]
struct NewcomerThreads {
    threads: Vec<Tid>,
    trees: Vec<(VcpuId, Vec<Tid>)>,
}

/// The live host, which all dispatchers and the session share.
pub(crate) struct LiveHost {
    /// Views of the managed CPUs in order of their numbers, then the views of the other CPUs.
    views: Vec<CpuView>,
    decider: Mutex<Decider>,
    way: Box<dyn Way>,
    perf: Mutex<Option<PerfWatch>>,
    wanted: Mutex<NewcomerThreads>,
    /// Descriptors (eventfds) with which dispatchers are woken. The index is the CPU's number in
    /// the run.
    calls: Vec<OwnedFd>,
    /// Start of the latest pass of each dispatcher, on the host's clock. The index is the CPU's
    /// number in the run.
    looked: Vec<AtomicU64>,
    clock: HostClock,
    /// Start of the run, on the host's clock.
    origin: AtomicU64,
    is_over: AtomicBool,
    /// CPU time of one dispatcher pass, which admission adds to reservations.
    dispatch: Span,
    /// Longest sleep of a dispatcher, in nanoseconds.
    nap: AtomicU64,
    is_polled: bool,
    /// Reason why scheduling events of threads cannot be observed. `None` if they can be observed.
    unwatched: Option<WatchError>,
}

impl LiveHost {
    /// Creates a host that enforces orders with `SCHED_FIFO`. `real` has the kernel's numbers of
    /// the managed CPUs. `dispatch` is the CPU time of one dispatcher pass, which admission adds to
    /// reservations.
    ///
    /// # Errors
    /// If the descriptors with which dispatchers are woken cannot be created.
    pub(crate) fn new(
        (spec, values): (&Spec, &Values),
        real: &[CpuId],
        dispatch: Span,
        watching: Watching,
    ) -> io::Result<LiveHost> {
        let parts = (watching, HostClock::Monotonic, Box::new(Fifo) as Box<dyn Way>);
        let topology = topology::of(real).with_dispatch(dispatch);
        let host = LiveHost::with(Host::new(spec, values, &topology), real, parts)?;
        Ok(LiveHost { dispatch, ..host })
    }

    /// Creates a host as [`LiveHost::new`] does, but with the given source of events, clock and
    /// enforcement. So a test or bench can replace them.
    pub(crate) fn with(
        host: Host,
        real: &[CpuId],
        (watching, clock, way): (Watching, HostClock, Box<dyn Way>),
    ) -> io::Result<LiveHost> {
        let (mut sources, perf, unwatched) = match watching {
            Watching::Events(sources, perf) => (sources, perf, None),
            Watching::Polled(error) => (Vec::new(), None, Some(error)),
        };
        let is_polled = unwatched.is_some();
        let mut views = Vec::with_capacity(sources.len());
        for (index, real) in real.iter().enumerate() {
            let place = sources.iter().position(|(cpu, _)| cpu == real);
            let source = place.map(|place| sources.swap_remove(place).1);
            let source = source.unwrap_or_else(|| Box::new(FedEvents::default()));
            views.push(CpuView::new(Some(CpuId::new(index)), *real, source));
        }
        views.extend(sources.into_iter().map(|(real, source)| CpuView::new(None, real, source)));
        let call = |_: &CpuId| Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let calls = real.iter().map(call).collect::<io::Result<_>>()?;
        let decider = Mutex::new(Decider::new(host, real, is_polled));
        Ok(LiveHost {
            views,
            decider,
            way,
            perf: Mutex::new(perf),
            wanted: Mutex::default(),
            calls,
            looked: real.iter().map(|_| AtomicU64::new(0)).collect(),
            clock,
            origin: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            dispatch: Span::ZERO,
            nap: AtomicU64::new(NAP.ns()),
            is_polled,
            unwatched,
        })
    }

    /// Locks the decider. Locking succeeds even if another thread has panicked while it held the
    /// lock. The run is over in that case, and only threads have to be restored.
    fn decider(&self) -> MutexGuard<'_, Decider> {
        self.decider.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason why scheduling events of threads cannot be observed. `None` if they can
    /// be observed.
    pub(crate) fn unwatched(&self) -> Option<&WatchError> {
        self.unwatched.as_ref()
    }

    fn perf(&self) -> MutexGuard<'_, Option<PerfWatch>> {
        self.perf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the run. `origin` is the start of the run on the host's clock.
    pub(crate) fn begin(&self, origin: Time) {
        self.origin.store(origin.ns(), Ordering::Relaxed);
        self.decider().begin(origin);
    }

    /// Returns the start of the run, as time since the zero of the host's clock.
    pub(crate) fn origin(&self) -> Span {
        Span::from_ns(self.origin.load(Ordering::Relaxed))
    }

    /// Sets the offset from the host's clock to the wall clock, to which phases of periods refer.
    /// The offset takes effect immediately.
    pub(crate) fn set_wall_clock(&self, ahead: Span) -> Result<(), LiveHostError> {
        let mut decider = self.observe()?;
        decider.wall_clock_set(ahead + self.origin())?;
        self.finish(decider)
    }

    /// Returns the current time of the run, which counts from the start of the run.
    pub(crate) fn now(&self) -> Time {
        let origin = Time::from_ns(self.origin.load(Ordering::Relaxed));
        Time::START + self.clock.now().since(origin)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Starts recording each call to and from the [`Host`](slackline_host::Host) that drives the
    /// policy, in addition to the trace. The run can then be replayed.
    pub(crate) fn keep_exchanges(&self) {
        self.decider().records.keep_exchanges();
    }

    /// Moves the records made since the last call into `into`.
    pub(crate) fn take_records(&self, into: &mut Vec<Entry>) {
        self.decider().records.take(into);
    }

    /// Records the name of a vCPU that is about to join.
    pub(crate) fn named(&self, named: &VcpuName) {
        self.decider().records.named(named);
    }

    /// Returns the list of vCPUs whose threads have all ended, and clears the list.
    pub(crate) fn take_gone(&self) -> Vec<VcpuId> {
        self.decider().take_gone()
    }

    /// Returns the vCPUs for which the kernel has refused an order since the last call.
    pub(crate) fn take_refused(&self) -> Vec<VcpuId> {
        self.decider().take_refused()
    }

    /// Requests the events of a thread. The events are delivered after the thread's vCPU has
    /// joined.
    pub(crate) fn watch(&self, tid: Tid) -> Result<(), LiveHostError> {
        if get_scheduling(tid).is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH)) {
            return Err(WatchError::NoThread { tid }.into());
        }
        self.wanted().threads.push(tid);
        Ok(())
    }

    /// Requests the events of the threads of a process tree. The events are delivered after the
    /// tree has joined.
    pub(crate) fn watch_tree(&self, vcpu: VcpuId, tids: Vec<Tid>) {
        self.wanted().trees.push((vcpu, tids));
    }

    /// Ends the delivery of events of a process tree's threads.
    pub(crate) fn unwatch_tree(&self, vcpu: VcpuId) {
        self.wanted().trees.retain(|(tree, _)| *tree != vcpu);
        if let Some(perf) = &mut *self.perf() {
            perf.remove_tree(vcpu);
        }
    }

    fn wanted(&self) -> MutexGuard<'_, NewcomerThreads> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the delivery of events of a thread.
    pub(crate) fn unwatch(&self, tid: Tid) {
        if let Some(perf) = &mut *self.perf() {
            perf.remove(tid);
        }
        self.views.iter().for_each(|view| view.remove(tid));
    }

    /// Records CPU time that the dispatcher of a CPU has used since the last call.
    pub(crate) fn overhead(&self, cpu: CpuId, used: Span) {
        self.decider().records.record(&Record::Overhead { cpu, used });
    }

    /// Ends the run immediately, and reports the end to the policy.
    pub(crate) fn end(&self) -> Result<(), LiveHostError> {
        let mut decider = self.observe()?;
        self.is_over.store(true, Ordering::Relaxed);
        decider.end()
    }

    /// Ends the run without further orders, because the contract was violated or the kernel refused
    /// an order.
    pub(crate) fn abandon(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.decider().is_over = true;
    }

    /// Makes one dispatcher pass over a CPU. Returns the time by which the next pass is needed.
    /// `None` if no further pass is needed or the run is over.
    ///
    /// The kernel does not notify the dispatcher when a real-time thread wakes. If a blocked vCPU
    /// wakes during the pass that demotes it, only an unread event shows the wake-up. So if the
    /// pass has demoted a vCPU and events are unread, the next pass follows immediately.
    pub(crate) fn reschedule(&self, cpu: CpuId) -> Result<Option<Time>, LiveHostError> {
        let woken = self.clock.now();
        self.looked[cpu.index()].store(woken.ns(), Ordering::Relaxed);
        let mut news = self.drain_view(&self.views[cpu.index()])?;
        let (mut order, mut due) = {
            let mut decider = self.decider();
            if decider.is_over {
                return Ok(None);
            }
            self.drain_beside(&decider, &mut news)?;
            // This CPU time is counted before the events, since the events report the run intervals
            // to which this time belongs.
            decider.count_wide(cpu, self.clock.now())?;
            decider.count_elsewhere(cpu, self.clock.now())?;
            self.apply_events(&mut decider, &news)?;
            let woken = decider.of_run(woken);
            decider.expire_timers(cpu, woken)?;
            let decided = (decider.enact(cpu), decider.set_clock(cpu));
            self.finish(decider)?;
            decided
        };
        loop {
            let failed = self.enforce(&order);
            if failed.is_empty() {
                let demotes = order.iter().any(|assignment| assignment.place.is_ordinary());
                let is_overlooked = demotes && self.views[cpu.index()].has_unread();
                return Ok(if is_overlooked { Some(self.now()) } else { due });
            }
            let mut decider = self.decider();
            decider.apply_refusals(failed)?;
            decider.choose()?;
            order = decider.enact(cpu);
            due = decider.set_clock(cpu);
            self.finish(decider)?;
        }
    }

    /// Reads the events of the CPUs that are not managed. Threads of a vCPU may run on unmanaged
    /// CPUs before the vCPU is chosen for the first time. Programs on unmanaged CPUs may wake vCPUs
    /// at any time.
    pub(crate) fn apply_unmanaged_events(&self) -> Result<(), LiveHostError> {
        for view in self.views.iter().skip(self.calls.len()) {
            let news = self.drain_view(view)?;
            if !news.sightings.is_empty() || !news.used.is_empty() {
                let mut decider = self.decider();
                if decider.is_over {
                    break;
                }
                self.apply_events(&mut decider, &news)?;
                self.finish(decider)?;
            }
        }
        Ok(())
    }

    /// Returns the longest time that any dispatcher has now gone without a pass. Dispatchers that
    /// have not made a pass yet are left out. Zero if no dispatcher has made a pass.
    pub(crate) fn unlooked(&self) -> Span {
        let now = self.clock.now();
        let looked = self.looked.iter().map(|at| Time::from_ns(at.load(Ordering::Relaxed)));
        let looked = looked.filter(|&at| at > Time::START).min();
        looked.map_or(Span::ZERO, |at| now.since(at))
    }

    /// Sets the CPU time of a dispatcher pass over a CPU, as measured.
    pub(crate) fn costs(&self, cpu: CpuId, look: Span) {
        self.decider().pcpus.all[cpu.index()].clock.costs(look);
    }

    /// Sets the maximum share of each CPU that the kernel gives to real-time threads.
    pub(crate) fn limit_real_time(&self, limit: CpuShare) {
        let mut decider = self.decider();
        decider.pcpus.all.iter_mut().for_each(|pcpu| pcpu.fair_server.limit(limit));
    }

    /// Returns the time from now until `at`, a time of the run. Zero if `at` has passed.
    pub(crate) fn until(&self, at: Time) -> Span {
        at.since(self.now())
    }

    /// Returns the descriptors that a CPU's dispatcher waits for. The first is the dispatcher's
    /// eventfd. If the kernel reports events, there is a second, which becomes readable when a
    /// wake-up happens on the CPU.
    pub(crate) fn fds_of(&self, cpu: CpuId) -> io::Result<Vec<OwnedFd>> {
        let mut fds = vec![self.calls[cpu.index()].try_clone()?];
        let real = self.decider().pcpus.all[cpu.index()].real;
        if let Some(perf) = &*self.perf() {
            let own = perf.wake_fds().find(|&(cpu, _)| cpu == real);
            fds.extend(own.map(|(_, fd)| fd.try_clone_to_owned()).transpose()?);
        }
        Ok(fds)
    }

    /// Returns the CPUs that are not managed, and the descriptors that report wake-ups on them.
    pub(crate) fn fds_elsewhere(&self) -> io::Result<(CpuSet, Vec<OwnedFd>)> {
        let managed: HashSet<CpuId> = self.real_cpus().collect();
        let (mut cpus, mut fds) = (CpuSet::NONE, Vec::new());
        if let Some(perf) = &*self.perf() {
            for (cpu, fd) in perf.wake_fds().filter(|(cpu, _)| !managed.contains(cpu)) {
                cpus.insert(cpu);
                fds.push(fd.try_clone_to_owned()?);
            }
        }
        Ok((cpus, fds))
    }

    /// Returns the kernel's numbers of the managed CPUs.
    pub(crate) fn real_cpus(&self) -> impl Iterator<Item = CpuId> {
        let real: Vec<CpuId> = self.decider().pcpus.all.iter().map(|pcpu| pcpu.real).collect();
        real.into_iter()
    }

    /// Returns the longest sleep of a dispatcher.
    pub(crate) fn nap(&self) -> Span {
        Span::from_ns(self.nap.load(Ordering::Relaxed))
    }

    /// Wakes the dispatchers of these CPUs for a pass.
    pub(crate) fn call(&self, cpus: CpuSet) {
        for cpu in cpus.iter() {
            // The write fails only if the counter is full, and then the dispatcher wakes too.
            let _ = rustix::io::write(self.calls[cpu.index()].as_fd(), &1_u64.to_ne_bytes());
        }
    }

    /// Wakes the dispatchers of all managed CPUs.
    pub(crate) fn call_all(&self) {
        self.call(CpuSet::first_n(self.calls.len()));
    }

    fn apply_events(&self, decider: &mut Decider, news: &PassEvents) -> Result<(), LiveHostError> {
        let now = self.clock.now();
        if let Some(cpu) = news.cpu.filter(|_| self.is_polled) {
            return decider.poll(cpu, now);
        }
        decider.apply_drained(news, decider.of_run(now))?;
        match news.cpu.filter(|_| news.is_lossy) {
            Some(cpu) => decider.ask_everybody(cpu, now),
            None => Ok(()),
        }
    }

    /// Processes the events of all CPUs, so that a request about a single vCPU finds its current
    /// state. Returns the locked decider.
    fn observe(&self) -> Result<MutexGuard<'_, Decider>, LiveHostError> {
        let mut news = Vec::with_capacity(self.views.len());
        for view in &self.views {
            news.push(self.drain_view(view)?);
        }
        let mut decider = self.decider();
        for news in news {
            self.apply_events(&mut decider, &news)?;
        }
        Ok(decider)
    }

    /// Lets the policy decide, after all events were reported to it. Then wakes the dispatchers
    /// that have orders to carry out.
    fn finish(&self, mut decider: MutexGuard<'_, Decider>) -> Result<(), LiveHostError> {
        decider.choose()?;
        let concerned = decider.call_others();
        drop(decider);
        self.call(concerned);
        Ok(())
    }

    /// Carries out orders with system calls. Returns the orders that the kernel refused.
    fn enforce(&self, order: &[Assignment]) -> Vec<FailedAssignment> {
        let mut failed = Vec::new();
        if !order.is_empty() {
            self.way.enforce_orders(order, &mut failed);
        }
        failed
    }
}

/// Reason why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotDone {
    /// There is not enough capacity available.
    #[error("{0}")]
    Declined(AdmitError),
    /// The hard limit cannot be enforced: no event would report in time that the vCPU runs although
    /// it counts as blocked. `slice` is the slice of the vCPU, and `look` the CPU time of a
    /// dispatcher pass.
    #[error("no kernel event would report in time that a blocked vCPU runs again: {why}")]
    Unnoticed { slice: Span, look: Span, why: io::Error },
    /// The kernel refused an action of the request. Nothing has changed.
    #[error(transparent)]
    Refused(ActError),
    /// The live host cannot continue.
    #[error(transparent)]
    Host(#[from] LiveHostError),
}

impl From<Unreadable> for NotDone {
    fn from(error: Unreadable) -> NotDone {
        NotDone::Host(error.into())
    }
}

impl From<Box<Fault>> for NotDone {
    fn from(fault: Box<Fault>) -> NotDone {
        match *fault {
            Fault::Declined { error, .. } => NotDone::Declined(error),
            Fault::Broken(broken) => NotDone::Host(broken.into()),
        }
    }
}
