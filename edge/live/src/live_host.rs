//! The live host as hardware: facts from the kernel go in, orders to the kernel come out.
//!
//! What is learnt late is told with the time at which it happened. Of the vCPUs that are due on a
//! CPU the chosen one has the highest priority, and those that would come after it stand ready
//! right below: when the chosen one goes to sleep, the kernel runs the next at once, and the host
//! hears of both when its dispatcher next looks.
//!
//! A look at a CPU is in three parts, and only the middle one keeps other CPUs from looking:
//! 1. what has happened there is read, and the CPU time that it took (`view`, a lock a CPU);
//! 2. the host is told, and decides (`decider`, one lock, since a policy may decide for all CPUs at
//!    once); what is to be said to the kernel comes out (`enact`);
//! 3. it is said to the kernel ([`way`](crate::way), a lock a vCPU). What the kernel refuses is a
//!    fact again.
//!
//! What concerns another CPU is left to the dispatcher of that one, which is called for it.

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
use slackline_trace::{Entry, Named, Record, Sink};
use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

use crate::topology;
use crate::vcpu_threads::Unreadable;
use crate::watch::EventSource;
use crate::watch::fed::FedEvents;
use crate::watch::perf::{PerfRing, PerfWatch, WatchError};
use crate::watch::tap::{Tap, Tapped};
use crate::way::fifo::Fifo;
use crate::way::{Assignment, Failed, Way};
use slackline_linux::step::ActError;
use slackline_linux::sys::{Tid, get_scheduling, monotonic};

use decider::Decider;
pub(crate) use join::Joining;
pub(crate) use tell::At;
use view::{CpuView, News};

/// How it is learnt what threads do.
pub(crate) enum Watching {
    /// Every switch and wake, by CPU of this machine.
    Events(Vec<(CpuId, Box<dyn EventSource>)>, Option<PerfWatch>),
    /// Only what each has used, whenever we look; everybody counts as awake. For kernels that let
    /// nobody see what happens on whole CPUs, for this reason.
    Polled(WatchError),
}

impl Watching {
    /// The best that this machine offers.
    /// With it comes a tap of all that is seen, which is off.
    pub(crate) fn open() -> (Watching, Arc<Tap>) {
        let (watch, rings) = match PerfWatch::open() {
            Ok(opened) => opened,
            Err(error) => return (Watching::Polled(error), Arc::default()),
        };
        let tap = Arc::new(Tap::new(rings.iter().map(PerfRing::cpu)));
        let source = |(place, ring): (usize, PerfRing)| {
            let (cpu, tapped) = (ring.cpu(), Tapped::new(ring, &tap, place));
            (cpu, Box::new(tapped) as Box<dyn EventSource>)
        };
        let sources = rings.into_iter().enumerate().map(source).collect();
        (Watching::Events(sources, Some(watch)), tap)
    }
}

/// Why the host cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LiveHostError {
    /// The contract was broken: a bug.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The kernel refused something that is needed.
    #[error(transparent)]
    Act(#[from] ActError),
    /// What the threads do can no longer be seen.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// CPU time or state can no longer be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

impl LiveHostError {
    /// Whether this is a fault of ours, not of the machine.
    #[must_use]
    pub const fn is_bug(&self) -> bool {
        matches!(self, LiveHostError::Broken(_))
    }
}

/// How long a dispatcher sleeps at most: on an idle CPU some kernels do not tell of a wake.
const NAP: Span = Span::from_ms(20);

/// What the host tells the time by.
#[derive(Clone, Debug)]
pub(crate) enum HostClock {
    /// `CLOCK_MONOTONIC`.
    Monotonic,
    /// Whoever feeds the host says, in nanoseconds.
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

/// Who is about to join: what they do is asked of the kernel for all of them at once, since telling
/// it of one may take it tens of milliseconds.
#[derive(Debug, Default)]
struct Wanted {
    threads: Vec<Tid>,
    trees: Vec<(VcpuId, Vec<Tid>)>,
}

/// The live host: shared by all who have something to report.
pub(crate) struct LiveHost {
    /// The managed CPUs first, in the order of their numbers.
    views: Vec<CpuView>,
    decider: Mutex<Decider>,
    way: Box<dyn Way>,
    perf: Mutex<Option<PerfWatch>>,
    wanted: Mutex<Wanted>,
    /// By managed CPU: wakes its dispatcher.
    calls: Vec<OwnedFd>,
    /// By managed CPU: when its dispatcher looked last, on the clock of the host.
    looked: Vec<AtomicU64>,
    clock: HostClock,
    /// When the run began, on that clock.
    origin: AtomicU64,
    is_over: AtomicBool,
    /// What a look takes.
    dispatch: Span,
    /// How long a dispatcher may sleep at most, in nanoseconds.
    nap: AtomicU64,
    is_polled: bool,
    /// Why it cannot be seen what threads do.
    unwatched: Option<WatchError>,
}

impl LiveHost {
    /// A host of these CPUs of this machine, a look at which takes `dispatch`, scheduled by
    /// `SCHED_FIFO`.
    ///
    /// # Errors
    /// When there is no descriptor left for a dispatcher to be called by.
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

    /// As [`LiveHost::new`], of parts that need not be the kernel.
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

    /// A panic elsewhere has already ended the run; what is left is to give everything back.
    fn decider(&self) -> MutexGuard<'_, Decider> {
        self.decider.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it cannot be seen what threads do, where it cannot.
    pub(crate) fn unwatched(&self) -> Option<&WatchError> {
        self.unwatched.as_ref()
    }

    fn perf(&self) -> MutexGuard<'_, Option<PerfWatch>> {
        self.perf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run begins.
    pub(crate) fn begin(&self, origin: Time) {
        self.origin.store(origin.ns(), Ordering::Relaxed);
        self.decider().begin(origin);
    }

    /// How far the clock of the host is ahead of the time of the run.
    pub(crate) fn origin(&self) -> Span {
        Span::from_ns(self.origin.load(Ordering::Relaxed))
    }

    /// The clock by which phases are told is so far ahead of the clock of the host from now on.
    pub(crate) fn set_wall_clock(&self, ahead: Span) -> Result<(), LiveHostError> {
        let mut decider = self.observe()?;
        decider.wall_clock_set(ahead + self.origin())?;
        self.finish(decider)
    }

    /// The time of the run.
    pub(crate) fn now(&self) -> Time {
        let origin = Time::from_ns(self.origin.load(Ordering::Relaxed));
        Time::START + self.clock.now().since(origin)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// What passes between the hardware and the host is kept from now on.
    pub(crate) fn keep_exchanges(&self) {
        self.decider().records.keep_exchanges();
    }

    /// Takes the records out that have come since the last time.
    pub(crate) fn take_records(&self, into: &mut Vec<Entry>) {
        self.decider().records.take(into);
    }

    /// What people call a vCPU that is about to join.
    pub(crate) fn named(&self, named: &Named) {
        self.decider().records.named(named);
    }

    /// Takes those out whose threads have ended.
    pub(crate) fn take_gone(&self) -> Vec<VcpuId> {
        self.decider().take_gone()
    }

    /// Of whom the kernel refused something since this was last asked.
    pub(crate) fn take_refused(&self) -> Vec<VcpuId> {
        self.decider().take_refused()
    }

    /// What a thread does is heard of once it has joined.
    pub(crate) fn watch(&self, tid: Tid) -> Result<(), LiveHostError> {
        if get_scheduling(tid).is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH)) {
            return Err(WatchError::NoThread { tid }.into());
        }
        self.wanted().threads.push(tid);
        Ok(())
    }

    /// What the threads of a tree do is heard of once it has joined.
    pub(crate) fn watch_tree(&self, vcpu: VcpuId, tids: Vec<Tid>) {
        self.wanted().trees.push((vcpu, tids));
    }

    /// What a tree does is of no more interest.
    pub(crate) fn unwatch_tree(&self, vcpu: VcpuId) {
        self.wanted().trees.retain(|(tree, _)| *tree != vcpu);
        if let Some(perf) = &mut *self.perf() {
            perf.remove_tree(vcpu);
        }
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does is of no more interest.
    pub(crate) fn unwatch(&self, tid: Tid) {
        if let Some(perf) = &mut *self.perf() {
            perf.remove(tid);
        }
        self.views.iter().for_each(|view| view.remove(tid));
    }

    /// What scheduling a CPU has cost.
    pub(crate) fn overhead(&self, cpu: CpuId, used: Span) {
        self.decider().records.record(&Record::Overhead { cpu, used });
    }

    /// The run ends now.
    pub(crate) fn end(&self) -> Result<(), LiveHostError> {
        let mut decider = self.observe()?;
        self.is_over.store(true, Ordering::Relaxed);
        decider.end()
    }

    /// The contract was broken or the kernel refused: nothing more is done.
    pub(crate) fn abandon(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.decider().is_over = true;
    }

    /// A dispatcher looks after its CPU. Returns when it must look again at the latest.
    pub(crate) fn look(&self, cpu: CpuId) -> Result<Option<Time>, LiveHostError> {
        let woken = self.clock.now();
        self.looked[cpu.index()].store(woken.ns(), Ordering::Relaxed);
        let news = self.see(&self.views[cpu.index()])?;
        let (mut order, mut due) = {
            let mut decider = self.decider();
            if decider.is_over {
                return Ok(None);
            }
            // Before the stretches that it is part of are told.
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

    /// Looks after the CPUs that are not managed: threads of ours may be there before they are
    /// chosen for the first time, and what wakes them may be there at any time.
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

    /// How long ago a dispatcher looked last that has not looked for longest; none has not yet.
    pub(crate) fn unlooked(&self) -> Span {
        let now = self.clock.now();
        let looked = self.looked.iter().map(|at| Time::from_ns(at.load(Ordering::Relaxed)));
        let looked = looked.filter(|&at| at > Time::START).min();
        looked.map_or(Span::ZERO, |at| now.since(at))
    }

    /// What a look has been found to cost.
    pub(crate) fn costs(&self, cpu: CpuId, look: Span) {
        self.decider().pcpus.all[cpu.index()].clock.costs(look);
    }

    /// How far away a time of the run is.
    pub(crate) fn until(&self, at: Time) -> Span {
        at.since(self.now())
    }

    /// What the dispatcher of a CPU waits for: a call, and where there are events, a wake that the
    /// kernel carries out there.
    pub(crate) fn fds_of(&self, cpu: CpuId) -> io::Result<Vec<OwnedFd>> {
        let mut fds = vec![self.calls[cpu.index()].try_clone()?];
        let real = self.decider().pcpus.all[cpu.index()].real;
        if let Some(perf) = &*self.perf() {
            let own = perf.wake_fds().find(|&(cpu, _)| cpu == real);
            fds.extend(own.map(|(_, fd)| fd.try_clone_to_owned()).transpose()?);
        }
        Ok(fds)
    }

    /// What tells of wakes on the CPUs that are not managed, and which those are.
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

    /// The CPUs of this machine that are managed.
    pub(crate) fn real_cpus(&self) -> impl Iterator<Item = CpuId> {
        let real: Vec<CpuId> = self.decider().pcpus.all.iter().map(|pcpu| pcpu.real).collect();
        real.into_iter()
    }

    /// How long a dispatcher may sleep at most.
    pub(crate) fn nap(&self) -> Span {
        Span::from_ns(self.nap.load(Ordering::Relaxed))
    }

    /// Calls the dispatchers of these CPUs.
    pub(crate) fn call(&self, cpus: CpuSet) {
        for cpu in cpus.iter() {
            // A counter that is full wakes it as well.
            let _ = rustix::io::write(self.calls[cpu.index()].as_fd(), &1_u64.to_ne_bytes());
        }
    }

    /// Calls all dispatchers.
    pub(crate) fn call_all(&self) {
        self.call(CpuSet::first_n(self.calls.len()));
    }

    /// Takes in what has happened on a CPU, and hands on what concerns others.
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

    /// Takes in what has happened on all CPUs: for what is done to one vCPU at a time.
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

    /// All has been told: it is decided, and whoever is concerned by that is called.
    fn finish(&self, mut decider: MutexGuard<'_, Decider>) -> Result<(), LiveHostError> {
        decider.settle()?;
        let concerned = decider.call_others();
        drop(decider);
        self.call(concerned);
        Ok(())
    }

    /// Tells the kernel; returns what it refused.
    fn order(&self, order: &[Assignment]) -> Vec<Failed> {
        let mut failed = Vec::new();
        if !order.is_empty() {
            self.way.carry_out(order, &mut failed);
        }
        failed
    }
}

/// Why something that was asked for was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotDone {
    /// There is no room for it.
    #[error("{0}")]
    Declined(AdmitError),
    /// It is exact, and nothing would tell in time that it runs again after it blocked.
    #[error("nothing tells in time that it runs again after it blocked: {why}")]
    Unnoticed { slice: Span, look: Span, why: io::Error },
    /// The kernel refused. Everything is as it was.
    #[error(transparent)]
    Refused(ActError),
    /// The host cannot go on.
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
