//! A live host for tests and benches, without a kernel. The caller sets the time, the events and
//! the CPU time. Orders are only recorded. Tests and benches use it to measure the dispatch
//! overhead and to check reactions to events.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slackline_host::Host;
use slackline_host::policy::{Promise, Spec, Topology, Values};
use slackline_trace::{Entry, Record};
use slackline_units::{CpuId, CpuSet, Reservation, ReservationError, Span, Time, VcpuId};

use crate::live_host::{HostClock, LiveHost, LiveHostError, PauseReason, Watching};
use crate::vcpu_threads::UsedClock;
use crate::watch::fed::FedEvents;
use crate::watch::{Event, ThreadEventKind};
use crate::way::{Assignment, FailedAssignment, HeldThreads, Place, VcpuHandle, Way};
use slackline_linux::step::{Act, ActError};
use slackline_linux::sys::Tid;

/// A live host for which the caller acts as the kernel.
pub struct FedHost {
    host: LiveHost,
    events: Vec<FedEvents>,
    now: Arc<AtomicU64>,
    way: Arc<RecordingEnforcement>,
    /// CPU time used by each vCPU, by slot. Each vCPU is one thread or one process tree.
    used: Vec<Arc<AtomicU64>>,
    promise: fn(&Values) -> Result<Option<Promise>, ReservationError>,
}

/// Scheduling class that an order gives to a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderedClass {
    /// Real-time class. In a list of orders, the first vCPU with this class is the chosen vCPU.
    /// Each later vCPU gets a lower priority than the vCPU before it.
    InLine,
    /// Ordinary class with the highest priority.
    First,
    /// Ordinary class with the original parameters of the vCPU's threads.
    Original,
    /// Lowest priority, below all ordinary threads.
    Behind,
    /// Stopped: the vCPU does not run.
    Held,
    /// Stopped, although a thread of the vCPU still ran inside the kernel after the stop. For the
    /// rest of the stop, all threads of the vCPU are in the ordinary class.
    Stopping,
}

/// Enforcement for tests: it records the orders and makes no system call.
#[derive(Debug, Default)]
struct RecordingEnforcement {
    /// Number of all orders so far.
    orders: AtomicU64,
    /// Orders that the test has not taken yet: each vCPU with the class that the order gave it.
    told: std::sync::Mutex<Vec<(VcpuId, OrderedClass)>>,
    /// Threads that the latest real-time order listed to run before the other threads of their
    /// process tree, in this order.
    front: std::sync::Mutex<Vec<Tid>>,
    /// vCPUs for which the enforcement refuses orders to run. A test adds and removes vCPUs by
    /// [`FedHost::refuse`].
    refuses: std::sync::Mutex<Vec<VcpuId>>,
    /// vCPUs whose threads the enforcement refuses to restore. A test adds vCPUs by
    /// [`FedHost::refuse_restoring`].
    keeps: std::sync::Mutex<Vec<VcpuId>>,
    /// Events that will happen while the next orders are carried out. Each has the event queue of
    /// its CPU.
    during: std::sync::Mutex<Vec<(FedEvents, Event)>>,
}

impl Way for Arc<RecordingEnforcement> {
    fn enforce_orders(&self, order: &[Assignment], failed: &mut Vec<FailedAssignment>) {
        self.orders.fetch_add(order.len() as u64, Ordering::Relaxed);
        locked(&self.during).drain(..).for_each(|(events, event)| events.put(event));
        for assignment in order {
            let vcpu = assignment.handle.vcpu;
            let told = match assignment.place {
                Place::InLine => OrderedClass::InLine,
                Place::First => OrderedClass::First,
                Place::Original => OrderedClass::Original,
                Place::Behind => OrderedClass::Behind,
                Place::Held => OrderedClass::Held,
                Place::Stopping => OrderedClass::Stopping,
            };
            locked(&self.told).push((vcpu, told));
            if told == OrderedClass::InLine {
                locked(&self.front).clone_from(&assignment.front);
            }
            let (act, refused) = match told {
                OrderedClass::InLine => (Act::Stop, &self.refuses),
                OrderedClass::Original => (Act::Lower, &self.keeps),
                _ => continue,
            };
            if locked(refused).contains(&vcpu) {
                let tid = tid_of(vcpu);
                let source = io::ErrorKind::PermissionDenied.into();
                let error = ActError::Refused { tid, act, source };
                failed.push(FailedAssignment { handle: assignment.handle.clone(), error });
            }
        }
    }
}

fn locked<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Returns the thread id that represents a vCPU.
fn tid_of(vcpu: VcpuId) -> Tid {
    let number = i32::try_from(vcpu.slot() + 1).unwrap_or(i32::MAX);
    Tid::new(number).expect("slot numbers plus one are positive")
}

impl FedHost {
    /// Creates a host with the CPUs of `topology`, at time zero and without vCPUs. Each CPU has the
    /// same number in the run and in the kernel.
    ///
    /// # Errors
    /// If this process cannot open more descriptors.
    pub fn new(spec: &Spec, values: &Values, topology: &Topology) -> io::Result<FedHost> {
        FedHost::with_unmanaged(spec, values, topology, 0)
    }

    /// Creates a host as [`FedHost::new`] does, with `unmanaged` more CPUs, which the host does not
    /// schedule. Their numbers follow the numbers of the CPUs of `topology`.
    ///
    /// # Errors
    /// If this process cannot open more descriptors.
    pub fn with_unmanaged(
        spec: &Spec,
        values: &Values,
        topology: &Topology,
        unmanaged: usize,
    ) -> io::Result<FedHost> {
        let real: Vec<CpuId> = (0..topology.cpus()).map(CpuId::new).collect();
        let all: Vec<CpuId> = (0..topology.cpus() + unmanaged).map(CpuId::new).collect();
        let events: Vec<FedEvents> = all.iter().map(|_| FedEvents::default()).collect();
        let sources = all.iter().zip(&events).map(|(&cpu, events)| {
            (cpu, Box::new(events.clone()) as Box<dyn crate::watch::EventSource>)
        });
        let (now, way) = (Arc::<AtomicU64>::default(), Arc::<RecordingEnforcement>::default());
        let clock = HostClock::Fed(Arc::clone(&now));
        let parts = (Watching::Events(sources.collect(), None), clock, Box::new(way.clone()) as _);
        let host = LiveHost::with(Host::new(spec, values, topology), &real, parts)?;
        Ok(FedHost { host, events, now, way, used: Vec::new(), promise: spec.promise })
    }

    /// Sets the clock of the host.
    pub fn at(&self, now: Time) {
        self.now.store(now.ns(), Ordering::Relaxed);
    }

    /// Adds a vCPU with one thread, which is blocked. `is_exact` gives the vCPU a hard limit.
    ///
    /// # Errors
    /// If there is not enough capacity available.
    pub fn join(
        &mut self,
        vcpu: VcpuId,
        share: &Values,
        is_exact: bool,
    ) -> Result<(), Box<dyn std::error::Error>> {
        self.used.resize_with(self.used.len().max(vcpu.slot() + 1), Arc::default);
        let clock = UsedClock::Fed(Arc::clone(&self.used[vcpu.slot()]));
        let threads = vec![(tid_of(vcpu), clock, Span::ZERO)];
        let handle = VcpuHandle::new(vcpu, HeldThreads::Each(Vec::new()));
        let hard_limit = self.hard_limit(share).filter(|_| is_exact);
        self.host.join_fed((handle, threads), share, hard_limit)?;
        Ok(())
    }

    /// Adds these threads as one process tree, which is one vCPU. All threads are blocked.
    /// `is_exact` gives the vCPU a hard limit.
    ///
    /// # Errors
    /// If there is not enough capacity available.
    pub fn join_tree(
        &mut self,
        (vcpu, threads): (VcpuId, &[i32]),
        share: &Values,
        is_exact: bool,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let hard_limit = self.hard_limit(share).filter(|_| is_exact);
        self.join_tree_on((vcpu, threads), share, (hard_limit, None))
    }

    /// Adds a process tree as [`FedHost::join_tree`] does, with a hard limit. The tree may use all
    /// CPUs in `cpus` simultaneously.
    ///
    /// # Errors
    /// If there is not enough capacity available.
    pub fn join_wide_tree(
        &mut self,
        (vcpu, threads): (VcpuId, &[i32]),
        share: &Values,
        cpus: CpuSet,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let hard_limit = self.hard_limit(share);
        self.join_tree_on((vcpu, threads), share, (hard_limit, Some(cpus)))
    }

    fn join_tree_on(
        &mut self,
        (vcpu, threads): (VcpuId, &[i32]),
        share: &Values,
        limit_and_cpus: (Option<Reservation>, Option<CpuSet>),
    ) -> Result<(), Box<dyn std::error::Error>> {
        self.used.resize_with(self.used.len().max(vcpu.slot() + 1), Arc::default);
        let clock = UsedClock::Fed(Arc::clone(&self.used[vcpu.slot()]));
        let tids: Vec<Tid> = threads.iter().copied().filter_map(Tid::new).collect();
        let handle = VcpuHandle::new(vcpu, HeldThreads::Each(Vec::new()));
        self.host.join_fed_tree((handle, &tids, clock), share, limit_and_cpus)?;
        Ok(())
    }

    fn hard_limit(&self, share: &Values) -> Option<Reservation> {
        (self.promise)(share).ok().flatten().map(|promise| promise.reservation)
    }

    /// Returns the threads that the latest real-time order listed to run before the other threads
    /// of their process tree, in this order.
    #[must_use]
    pub fn front(&self) -> Vec<i32> {
        locked(&self.way.front).iter().map(|tid| tid.raw()).collect()
    }

    /// Removes a vCPU from the host.
    ///
    /// # Errors
    /// If policy and host violated their contract, which is a bug.
    pub fn leave(&self, vcpu: VcpuId) -> Result<(), LiveHostError> {
        self.host.leave(vcpu)
    }

    /// Stops a vCPU, as the session does with a vCPU that has left its CPUs or its cgroup too
    /// often.
    ///
    /// # Errors
    /// If policy and host violated their contract, which is a bug.
    pub fn stop_escaped(&self, vcpu: VcpuId) -> Result<(), Box<dyn std::error::Error>> {
        Ok(self.host.pause(vcpu, PauseReason::Escaped, self.host.now())?)
    }

    /// Resumes a vCPU after [`stop_escaped`](FedHost::stop_escaped).
    ///
    /// # Errors
    /// If policy and host violated their contract, which is a bug.
    pub fn resume(&self, vcpu: VcpuId) -> Result<(), Box<dyn std::error::Error>> {
        Ok(self.host.resume(vcpu, self.host.now())?)
    }

    /// Adds an event of a vCPU on CPU `on` at time `at`. The CPU need not be the CPU to which the
    /// vCPU is pinned, because wake-ups can happen on any CPU.
    pub fn note(&self, on: CpuId, at: Time, vcpu: VcpuId, what: ThreadEventKind) {
        self.events[on.index()].put(Event { at, tid: tid_of(vcpu), cpu: on, what });
    }

    /// Adds an event of the thread with id `number`. The thread may belong to a process tree, or to
    /// no vCPU at all.
    pub fn note_thread(&self, on: CpuId, at: Time, number: i32, what: ThreadEventKind) {
        let Some(tid) = Tid::new(number) else { return };
        self.events[on.index()].put(Event { at, tid, cpu: on, what });
    }

    /// Adds an event of a vCPU on CPU `on` that happens only while the next orders are carried out.
    /// So the pass that makes these orders decides without knowing the event.
    pub fn note_during_orders(&self, on: CpuId, at: Time, vcpu: VcpuId, what: ThreadEventKind) {
        let event = Event { at, tid: tid_of(vcpu), cpu: on, what };
        locked(&self.way.during).push((self.events[on.index()].clone(), event));
    }

    /// Drops the unread events of a CPU, as the kernel drops events when a ring is full.
    pub fn lose(&self, on: CpuId) {
        self.events[on.index()].lose();
    }

    /// Adds CPU time to the time that a vCPU has used.
    pub fn count(&self, vcpu: VcpuId, ran: Span) {
        self.used[vcpu.slot()].fetch_add(ran.ns(), Ordering::Relaxed);
    }

    /// Sets whether the enforcement refuses orders to run this vCPU from now on.
    pub fn refuse(&self, vcpu: VcpuId, refuses: bool) {
        let mut all = locked(&self.way.refuses);
        all.retain(|&other| other != vcpu);
        if refuses {
            all.push(vcpu);
        }
    }

    /// Makes the enforcement refuse to restore the threads of this vCPU from now on.
    pub fn refuse_restoring(&self, vcpu: VcpuId) {
        locked(&self.way.keeps).push(vcpu);
    }

    /// Sets the CPU time that a dispatcher pass over this CPU takes.
    pub fn costs(&self, cpu: CpuId, look: Span) {
        self.host.costs(cpu, look);
    }

    /// Makes one dispatcher pass over a CPU. Returns the time by which the next pass is needed.
    /// `None` if no further pass is needed.
    ///
    /// # Errors
    /// If policy and host violated their contract, which is a bug.
    pub fn reschedule(&self, cpu: CpuId) -> Result<Option<Time>, LiveHostError> {
        self.host.reschedule(cpu)
    }

    /// Returns the number of orders to vCPUs so far.
    #[must_use]
    pub fn orders(&self) -> u64 {
        self.way.orders.load(Ordering::Relaxed)
    }

    /// Returns the orders since the last call: each vCPU with the class that it was given.
    #[must_use]
    pub fn told(&self) -> Vec<(VcpuId, OrderedClass)> {
        std::mem::take(&mut locked(&self.way.told))
    }

    /// Starts recording each call to and from the [`Host`] that drives the policy, in addition to
    /// the trace. The run can then be replayed.
    pub fn keep_exchanges(&self) {
        self.host.keep_exchanges();
    }

    /// Returns the entries recorded since the last call.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        self.host.take_records(&mut entries);
        entries
    }

    /// Returns the records of the trace that were recorded since the last call, without the other
    /// entries.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let record = |entry| match entry {
            Entry::Record(record) => Some(record),
            _ => None,
        };
        self.entries().into_iter().filter_map(record).collect()
    }
}
