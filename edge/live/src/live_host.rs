//! The live host as hardware: facts from the kernel go in, orders to the kernel come out.
//!
//! An event that is learnt late is reported with the time at which it happened. Of the vCPUs that
//! are entitled to a CPU, the chosen one has the highest real-time priority. The next ones in line
//! stand by right below it. When the chosen vCPU blocks, the kernel runs the next one at once. The
//! host learns of both in the next dispatcher pass.
//!
//! A dispatcher pass over a CPU has three parts. Only the second one excludes passes over other
//! CPUs:
//! 1. It reads the events of the CPU and the CPU time of its threads (`view`, one lock per CPU).
//! 2. It reports them to the host, which decides (`decider`). A policy may decide for all CPUs at
//!    once, so there is one lock. The result is the orders to the kernel (`enact`).
//! 3. It carries out the orders ([`way`](crate::way), one lock per vCPU). A refusal by the kernel
//!    is a fact again.
//!
//! Orders that concern another CPU are left to the dispatcher of that CPU, which is woken for them.

mod asking;
mod decider;
mod enact;
mod join;
mod left;
mod pause;
mod recording;
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
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

use crate::topology;
use crate::vcpu_threads::Unreadable;
use crate::watch::EventSource;
use crate::watch::fed::FedEvents;
use crate::watch::perf::{PerfRing, PerfWatch, WatchError};
use crate::watch::tap::{Tap, TappedSource};
use crate::way::fifo::Fifo;
use crate::way::{Assignment, Failed, Way};
use slackline_linux::step::ActError;
use slackline_linux::sys::{Tid, get_scheduling, monotonic};

use decider::Decider;
pub(crate) use join::Joining;
pub(crate) use tell::At;
use view::{CpuView, News};

/// Source of the information about what threads do.
pub(crate) enum Watching {
    /// Events of every switch and wake, by CPU number of the kernel.
    Events(Vec<(CpuId, Box<dyn EventSource>)>, Option<PerfWatch>),
    /// Only the CPU time used, read in each pass; every vCPU counts as runnable. For kernels that
    /// do not allow events of whole CPUs, with the error that says why.
    Polled(WatchError),
}

impl Watching {
    /// Opens the best source that this host offers, and a tap of all its events, which is off.
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

/// Reason why the host cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LiveHostError {
    /// The contract was broken: a bug.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The kernel refused a step that is needed.
    #[error(transparent)]
    Act(#[from] ActError),
    /// Events of the threads can no longer be read.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// CPU time or state can no longer be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

impl LiveHostError {
    /// Returns true if the error is a bug in Slackline, not a fault of the host.
    #[must_use]
    pub const fn is_bug(&self) -> bool {
        matches!(self, LiveHostError::Broken(_))
    }
}

/// Longest sleep of a dispatcher. Some kernels do not report a wake on an idle CPU.
const NAP: Span = Span::from_ms(20);

/// Clock that the live host reads.
#[derive(Clone, Debug)]
pub(crate) enum HostClock {
    /// The kernel's clock `CLOCK_MONOTONIC`.
    Monotonic,
    /// A clock that a test or bench sets, in nanoseconds.
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

/// Threads and trees that are about to join. Their events are requested from the kernel for all of
/// them at once, since each request may take it tens of milliseconds.
#[derive(Debug, Default)]
struct Wanted {
    threads: Vec<Tid>,
    trees: Vec<(VcpuId, Vec<Tid>)>,
}

/// The live host, shared by all threads that report to it.
pub(crate) struct LiveHost {
    /// Views of the managed CPUs in order of their numbers, then those of the other CPUs.
    views: Vec<CpuView>,
    decider: Mutex<Decider>,
    way: Box<dyn Way>,
    perf: Mutex<Option<PerfWatch>>,
    wanted: Mutex<Wanted>,
    /// Descriptors that wake the dispatchers, by managed CPU.
    calls: Vec<OwnedFd>,
    /// Start of the latest pass of each dispatcher, by managed CPU, on the clock of the host.
    looked: Vec<AtomicU64>,
    clock: HostClock,
    /// Start of the run on that clock.
    origin: AtomicU64,
    is_over: AtomicBool,
    /// Dispatch overhead: CPU time of one pass.
    dispatch: Span,
    /// Longest sleep of a dispatcher, in nanoseconds.
    nap: AtomicU64,
    is_polled: bool,
    /// Reason why events of threads cannot be seen. `None` if they can.
    unwatched: Option<WatchError>,
}

impl LiveHost {
    /// Creates a host of the CPUs `real`, numbered as in the kernel, that schedules by
    /// `SCHED_FIFO`. A pass takes `dispatch`.
    ///
    /// # Errors
    /// If there are no descriptors left to wake the dispatchers by.
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

    /// Creates a host like [`LiveHost::new`] from parts that need not be the kernel's.
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
            views.push(CpuView::new(Some(CpuId::new(index)), source));
        }
        views.extend(sources.into_iter().map(|(_, source)| CpuView::new(None, source)));
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

    /// Locks the decider. A panic in another thread has already ended the run, and then only the
    /// restoring of threads is left to do.
    fn decider(&self) -> MutexGuard<'_, Decider> {
        self.decider.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason why events of threads cannot be seen. `None` if they can.
    pub(crate) fn unwatched(&self) -> Option<&WatchError> {
        self.unwatched.as_ref()
    }

    fn perf(&self) -> MutexGuard<'_, Option<PerfWatch>> {
        self.perf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the run at `origin`, a time of the host's clock.
    pub(crate) fn begin(&self, origin: Time) {
        self.origin.store(origin.ns(), Ordering::Relaxed);
        self.decider().begin(origin);
    }

    /// Returns the offset of the host's clock ahead of the time of the run.
    pub(crate) fn origin(&self) -> Span {
        Span::from_ns(self.origin.load(Ordering::Relaxed))
    }

    /// Sets how far the clock to which phases refer is ahead of the host's clock, from now on.
    pub(crate) fn set_wall_clock(&self, ahead: Span) -> Result<(), LiveHostError> {
        let mut decider = self.observe()?;
        decider.wall_clock_set(ahead + self.origin())?;
        self.finish(decider)
    }

    /// Returns the time of the run.
    pub(crate) fn now(&self) -> Time {
        let origin = Time::from_ns(self.origin.load(Ordering::Relaxed));
        Time::START + self.clock.now().since(origin)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Records the exchanges between hardware and host from now on.
    pub(crate) fn keep_exchanges(&self) {
        self.decider().records.keep_exchanges();
    }

    /// Moves the records since the last call to `into`.
    pub(crate) fn take_records(&self, into: &mut Vec<Entry>) {
        self.decider().records.take(into);
    }

    /// Records the name of a vCPU that is about to join.
    pub(crate) fn named(&self, named: &VcpuName) {
        self.decider().records.named(named);
    }

    /// Returns and clears the list of vCPUs whose threads have ended.
    pub(crate) fn take_gone(&self) -> Vec<VcpuId> {
        self.decider().take_gone()
    }

    /// Returns the vCPUs for which the kernel has refused an order since the last call.
    pub(crate) fn take_refused(&self) -> Vec<VcpuId> {
        self.decider().take_refused()
    }

    /// Requests the events of a thread, to be delivered once it has joined.
    pub(crate) fn watch(&self, tid: Tid) -> Result<(), LiveHostError> {
        if get_scheduling(tid).is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH)) {
            return Err(WatchError::NoThread { tid }.into());
        }
        self.wanted().threads.push(tid);
        Ok(())
    }

    /// Requests the events of the threads of a tree, to be delivered once it has joined.
    pub(crate) fn watch_tree(&self, vcpu: VcpuId, tids: Vec<Tid>) {
        self.wanted().trees.push((vcpu, tids));
    }

    /// Ends the events of a tree's threads.
    pub(crate) fn unwatch_tree(&self, vcpu: VcpuId) {
        self.wanted().trees.retain(|(tree, _)| *tree != vcpu);
        if let Some(perf) = &mut *self.perf() {
            perf.remove_tree(vcpu);
        }
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the events of a thread.
    pub(crate) fn unwatch(&self, tid: Tid) {
        if let Some(perf) = &mut *self.perf() {
            perf.remove(tid);
        }
        self.views.iter().for_each(|view| view.remove(tid));
    }

    /// Records the CPU time that scheduling a CPU has taken.
    pub(crate) fn overhead(&self, cpu: CpuId, used: Span) {
        self.decider().records.record(&Record::Overhead { cpu, used });
    }

    /// Ends the run now.
    pub(crate) fn end(&self) -> Result<(), LiveHostError> {
        let mut decider = self.observe()?;
        self.is_over.store(true, Ordering::Relaxed);
        decider.end()
    }

    /// Ends the run without another order, after the contract was broken or the kernel refused.
    pub(crate) fn abandon(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.decider().is_over = true;
    }

    /// Does one dispatcher pass over a CPU. Returns the latest time of the next pass. `None` if
    /// none is needed or the run is over.
    pub(crate) fn look(&self, cpu: CpuId) -> Result<Option<Time>, LiveHostError> {
        let woken = self.clock.now();
        self.looked[cpu.index()].store(woken.ns(), Ordering::Relaxed);
        let news = self.see(&self.views[cpu.index()])?;
        let (mut order, mut due) = {
            let mut decider = self.decider();
            if decider.is_over {
                return Ok(None);
            }
            // Before the run intervals that this time belongs to are reported.
            decider.count_wide(cpu, self.clock.now())?;
            decider.count_elsewhere(cpu, self.clock.now())?;
            self.take_in(&mut decider, &news)?;
            let woken = decider.of_run(woken);
            decider.look(cpu, woken)?;
            let decided = (decider.enact(cpu), decider.set_clock(cpu));
            self.finish(decider)?;
            decided
        };
        loop {
            let failed = self.order(&order);
            if failed.is_empty() {
                return Ok(due);
            }
            let mut decider = self.decider();
            decider.hear(failed)?;
            decider.settle()?;
            order = decider.enact(cpu);
            due = decider.set_clock(cpu);
            self.finish(decider)?;
        }
    }

    /// Reads the events of the CPUs that are not managed. Our threads may run there before they are
    /// chosen for the first time, and may be woken from there at any time.
    pub(crate) fn look_elsewhere(&self) -> Result<(), LiveHostError> {
        for view in self.views.iter().skip(self.calls.len()) {
            let news = self.see(view)?;
            if !news.sightings.is_empty() || !news.used.is_empty() {
                let mut decider = self.decider();
                if decider.is_over {
                    break;
                }
                self.take_in(&mut decider, &news)?;
                self.finish(decider)?;
            }
        }
        Ok(())
    }

    /// Returns the longest time that any dispatcher has gone without a pass. Dispatchers that have
    /// not had their first pass do not count. Zero if none has.
    pub(crate) fn unlooked(&self) -> Span {
        let now = self.clock.now();
        let looked = self.looked.iter().map(|at| Time::from_ns(at.load(Ordering::Relaxed)));
        let looked = looked.filter(|&at| at > Time::START).min();
        looked.map_or(Span::ZERO, |at| now.since(at))
    }

    /// Sets the measured overhead of a pass over a CPU.
    pub(crate) fn costs(&self, cpu: CpuId, look: Span) {
        self.decider().pcpus.all[cpu.index()].clock.costs(look);
    }

    /// Returns the time from now until `at`, a time of the run. Zero if it has passed.
    pub(crate) fn until(&self, at: Time) -> Span {
        at.since(self.now())
    }

    /// Returns the descriptors that a CPU's dispatcher waits for: its eventfd and, if there are
    /// events, the one that polls readable for wakes carried out on the CPU.
    pub(crate) fn fds_of(&self, cpu: CpuId) -> io::Result<Vec<OwnedFd>> {
        let mut fds = vec![self.calls[cpu.index()].try_clone()?];
        let real = self.decider().pcpus.all[cpu.index()].real;
        if let Some(perf) = &*self.perf() {
            let own = perf.wake_fds().find(|&(cpu, _)| cpu == real);
            fds.extend(own.map(|(_, fd)| fd.try_clone_to_owned()).transpose()?);
        }
        Ok(fds)
    }

    /// Returns the CPUs that are not managed, and the descriptors that report wakes there.
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

    /// Wakes the dispatchers of these CPUs.
    pub(crate) fn call(&self, cpus: CpuSet) {
        for cpu in cpus.iter() {
            // The write fails if the counter is full. The dispatcher wakes then as well.
            let _ = rustix::io::write(self.calls[cpu.index()].as_fd(), &1_u64.to_ne_bytes());
        }
    }

    /// Wakes the dispatchers of all managed CPUs.
    pub(crate) fn call_all(&self) {
        self.call(CpuSet::first_n(self.calls.len()));
    }

    /// Reads the events of a CPU and passes on those that concern other CPUs.
    fn see(&self, view: &CpuView) -> Result<News, LiveHostError> {
        let mut news = view.look(self.clock.now())?;
        let mut concerned = CpuSet::NONE;
        for (cpu, sighting) in news.elsewhere.drain(..) {
            self.views[cpu.index()].tell(sighting);
            concerned.insert(cpu);
        }
        self.call(concerned);
        for other in self.views.iter().filter(|other| !std::ptr::eq(*other, view)) {
            news.born.iter().for_each(|thread| other.add(thread));
            news.gone.iter().for_each(|thread| other.remove_this(thread));
        }
        Ok(news)
    }

    fn take_in(&self, decider: &mut Decider, news: &News) -> Result<(), LiveHostError> {
        let now = self.clock.now();
        if let Some(cpu) = news.cpu.filter(|_| self.is_polled) {
            return decider.poll(cpu, now);
        }
        decider.take_in(news, decider.of_run(now))?;
        match news.cpu.filter(|_| news.is_lossy) {
            Some(cpu) => decider.ask_everybody(cpu, now),
            None => Ok(()),
        }
    }

    /// Takes in the events of all CPUs, for an operation on a single vCPU.
    fn observe(&self) -> Result<MutexGuard<'_, Decider>, LiveHostError> {
        let mut news = Vec::with_capacity(self.views.len());
        for view in &self.views {
            news.push(self.see(view)?);
        }
        let mut decider = self.decider();
        for news in news {
            self.take_in(&mut decider, &news)?;
        }
        Ok(decider)
    }

    /// Lets the policy decide on all that was reported, then wakes the dispatchers that have orders
    /// to carry out.
    fn finish(&self, mut decider: MutexGuard<'_, Decider>) -> Result<(), LiveHostError> {
        decider.settle()?;
        let concerned = decider.call_others();
        drop(decider);
        self.call(concerned);
        Ok(())
    }

    /// Carries out the orders. Returns those that the kernel refused.
    fn order(&self, order: &[Assignment]) -> Vec<Failed> {
        let mut failed = Vec::new();
        if !order.is_empty() {
            self.way.carry_out(order, &mut failed);
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
    /// The vCPU has a hard limit, and no event would report in time that it runs again after it
    /// blocked.
    #[error("no kernel event reports in time that the vCPU runs again after it blocked: {why}")]
    Unnoticed { slice: Span, look: Span, why: io::Error },
    /// The kernel refused. Nothing has changed.
    #[error(transparent)]
    Refused(ActError),
    /// The live host cannot go on.
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
