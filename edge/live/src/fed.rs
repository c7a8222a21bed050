//! The live host without a kernel: events are fed out of memory, CPU time is what is fed, and
//! orders are counted. For tests and benches of what a look costs and of what is made of events.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slackline_host::Host;
use slackline_host::policy::{Spec, Topology, Values};
use slackline_trace::{Entry, Record};
use slackline_units::{CpuId, Span, Time, VcpuId};

use crate::live_host::{HostClock, LiveHost, LiveHostError, Watching};
use crate::vcpu_threads::UsedClock;
use crate::watch::fed::FedEvents;
use crate::watch::{Event, What};
use crate::way::{Assignment, Failed, HeldThreads, Place, VcpuHandle, Way};
use slackline_linux::step::{Act, ActError};
use slackline_linux::sys::Tid;

/// A machine of so many CPUs whose kernel is whoever calls it.
pub struct FedHost {
    host: LiveHost,
    events: Vec<FedEvents>,
    now: Arc<AtomicU64>,
    way: Arc<Counted>,
    /// By slot: what each vCPU, which is one thread, has used.
    used: Vec<Arc<AtomicU64>>,
}

/// What an order said about one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is chosen, or in line behind the one told before it.
    InLine,
    /// It comes before all ordinary threads.
    First,
    /// It is ordinary.
    Original,
    /// It comes behind all ordinary threads.
    Behind,
    /// It does not run.
    Held,
}

/// The way that carries nothing out.
#[derive(Debug, Default)]
struct Counted {
    orders: AtomicU64,
    told: std::sync::Mutex<Vec<(VcpuId, Told)>>,
    /// The threads that a tree was to run first when it was last told to run.
    front: std::sync::Mutex<Vec<Tid>>,
    /// Of whom everything is refused that may be, by slot.
    refuses: std::sync::Mutex<Vec<VcpuId>>,
}

impl Way for Arc<Counted> {
    fn carry_out(&self, order: &[Assignment], failed: &mut Vec<Failed>) {
        self.orders.fetch_add(order.len() as u64, Ordering::Relaxed);
        for assignment in order {
            let vcpu = assignment.handle.vcpu;
            let told = match assignment.place {
                Place::InLine => Told::InLine,
                Place::First => Told::First,
                Place::Original => Told::Original,
                Place::Behind => Told::Behind,
                Place::Held => Told::Held,
            };
            locked(&self.told).push((vcpu, told));
            if told == Told::InLine {
                locked(&self.front).clone_from(&assignment.front);
            }
            if told == Told::InLine && locked(&self.refuses).contains(&vcpu) {
                let tid = tid_of(vcpu);
                let source = io::ErrorKind::PermissionDenied.into();
                let error = ActError::Refused { tid, act: Act::Stop, source };
                failed.push(Failed { handle: assignment.handle.clone(), error });
            }
        }
    }
}

fn locked<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// vCPUs are their threads.
fn tid_of(vcpu: VcpuId) -> Tid {
    let number = i32::try_from(vcpu.slot() + 1).unwrap_or(i32::MAX);
    Tid::new(number).expect("it is above zero")
}

impl FedHost {
    /// A machine of these CPUs, which are numbered as its own are, at time zero, with nobody on it.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn new(spec: &Spec, values: &Values, topology: &Topology) -> io::Result<FedHost> {
        let real: Vec<CpuId> = (0..topology.cpus()).map(CpuId::new).collect();
        let events: Vec<FedEvents> = real.iter().map(|_| FedEvents::default()).collect();
        let sources = real.iter().zip(&events).map(|(&cpu, events)| {
            (cpu, Box::new(events.clone()) as Box<dyn crate::watch::EventSource>)
        });
        let (now, way) = (Arc::<AtomicU64>::default(), Arc::<Counted>::default());
        let clock = HostClock::Fed(Arc::clone(&now));
        let parts = (Watching::Events(sources.collect(), None), clock, Box::new(way.clone()) as _);
        let host = LiveHost::with(Host::new(spec, values, topology), &real, parts)?;
        Ok(FedHost { host, events, now, way, used: Vec::new() })
    }

    /// Time passes until this instant.
    pub fn at(&self, now: Time) {
        self.now.store(now.ns(), Ordering::Relaxed);
    }

    /// A vCPU of one thread joins, asleep; `is_exact` if it gets no more than it is promised.
    ///
    /// # Errors
    /// When there is no room for it.
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
        self.host.join_fed((handle, threads), share, is_exact)?;
        Ok(())
    }

    /// A tree of these threads joins, all of them asleep.
    ///
    /// # Errors
    /// When there is no room for it.
    pub fn join_tree(
        &mut self,
        (vcpu, threads): (VcpuId, &[i32]),
        share: &Values,
        is_exact: bool,
    ) -> Result<(), Box<dyn std::error::Error>> {
        self.used.resize_with(self.used.len().max(vcpu.slot() + 1), Arc::default);
        let clock = UsedClock::Fed(Arc::clone(&self.used[vcpu.slot()]));
        let tids: Vec<Tid> = threads.iter().copied().filter_map(Tid::new).collect();
        let handle = VcpuHandle::new(vcpu, HeldThreads::Each(Vec::new()));
        self.host.join_fed_tree((handle, &tids, clock), share, is_exact)?;
        Ok(())
    }

    /// The threads that the tree told last to run is to run first, in this order.
    #[must_use]
    pub fn front(&self) -> Vec<i32> {
        locked(&self.way.front).iter().map(|tid| tid.raw()).collect()
    }

    /// A vCPU leaves.
    ///
    /// # Errors
    /// When the contract is broken.
    pub fn leave(&self, vcpu: VcpuId) -> Result<(), LiveHostError> {
        self.host.leave(vcpu)
    }

    /// The kernel notes on CPU `on` that a vCPU did something; a wake may be of one that waits on
    /// another CPU.
    pub fn note(&self, on: CpuId, at: Time, vcpu: VcpuId, what: What) {
        self.events[on.index()].put(Event { at, tid: tid_of(vcpu), cpu: on, what });
    }

    /// A thread does something: one of a tree, or one that is none of ours.
    pub fn note_thread(&self, on: CpuId, at: Time, number: i32, what: What) {
        let Some(tid) = Tid::new(number) else { return };
        self.events[on.index()].put(Event { at, tid, cpu: on, what });
    }

    /// What has been noted on a CPU and not been read is lost.
    pub fn lose(&self, on: CpuId) {
        self.events[on.index()].lose();
    }

    /// The kernel counts CPU time to a vCPU.
    pub fn count(&self, vcpu: VcpuId, ran: Span) {
        self.used[vcpu.slot()].fetch_add(ran.ns(), Ordering::Relaxed);
    }

    /// From now on the kernel refuses to run this vCPU, or no longer does.
    pub fn refuse(&self, vcpu: VcpuId, refuses: bool) {
        let mut all = locked(&self.way.refuses);
        all.retain(|&other| other != vcpu);
        if refuses {
            all.push(vcpu);
        }
    }

    /// What the looks of a CPU's dispatcher have been found to cost.
    pub fn costs(&self, cpu: CpuId, look: Span) {
        self.host.costs(cpu, look);
    }

    /// The dispatcher of a CPU looks; returns when it must again at the latest.
    ///
    /// # Errors
    /// When the contract is broken.
    pub fn look(&self, cpu: CpuId) -> Result<Option<Time>, LiveHostError> {
        self.host.look(cpu)
    }

    /// How many places have been told to the kernel so far.
    #[must_use]
    pub fn orders(&self) -> u64 {
        self.way.orders.load(Ordering::Relaxed)
    }

    /// Who was told what since this was last asked.
    #[must_use]
    pub fn told(&self) -> Vec<(VcpuId, Told)> {
        std::mem::take(&mut locked(&self.way.told))
    }

    /// What passes between the hardware and the host comes with the entries from now on.
    pub fn keep_exchanges(&self) {
        self.host.keep_exchanges();
    }

    /// What is to be recorded since this was last asked.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        self.host.take_records(&mut entries);
        entries
    }

    /// The records among it.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let record = |entry| match entry {
            Entry::Record(record) => Some(record),
            _ => None,
        };
        self.entries().into_iter().filter_map(record).collect()
    }
}
