//! Threads of a vCPU, and the CPU time that each thread has used.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use slackline_units::{CpuId, Span, Time, VcpuId};

use slackline_fence::{HeldThread, HeldTree, TreeUsage};
use slackline_linux::sys::{ThreadClock, Tid};
use slackline_linux::thread::Stat;

/// Threads of a vCPU that is about to join. Usually the vCPU is a single thread or a process tree.
#[derive(Debug)]
pub(crate) struct VcpuThreads {
    pub(crate) vcpu: VcpuId,
    pub(crate) body: Body,
}

/// Threads that form a vCPU: fixed threads, or a process tree.
#[derive(Debug)]
pub(crate) enum Body {
    /// A fixed set of threads. Threads that they start are not included.
    Threads(Vec<MeteredThread>),
    /// All threads of a process tree. Threads of the tree can start and end at any time.
    Tree(HeldTree),
}

/// Error: the CPU time or the state of a thread can no longer be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the CPU time or the state of thread {tid}")]
pub struct Unreadable {
    /// Id of the thread.
    pub tid: Tid,
    /// Error of the kernel.
    pub source: io::Error,
}

/// One thread of a vCPU.
#[derive(Debug)]
pub(crate) struct MeteredThread {
    pub(crate) held: HeldThread,
    /// Clock of the thread's CPU time, as the kernel counts it: without interrupts, and without
    /// time that a hypervisor below the host has stolen.
    pub(crate) clock: ThreadClock,
    /// Value that the clock showed when it was last read.
    pub(crate) used: Span,
}

/// Source from which a thread's CPU time is read.
#[derive(Debug)]
pub(crate) enum UsedClock {
    /// The kernel's count for one thread.
    Kernel(HeldThread, ThreadClock),
    /// The kernel's count for a whole process tree, divided by the number of CPUs that the tree may
    /// use simultaneously. The scheduler regards these CPUs as a single CPU.
    Tree(TreeUsage, u64),
    /// A count that a test or bench sets, in nanoseconds.
    Fed(Arc<AtomicU64>),
}

/// A thread of a vCPU, whose wake-ups and context switches the kernel reports. The event views of
/// all CPUs share this value.
#[derive(Debug)]
pub(crate) struct WatchedThread {
    pub(crate) tid: Tid,
    pub(crate) vcpu: VcpuId,
    /// True if threads that this thread starts belong to the same vCPU.
    pub(crate) is_of_tree: bool,
    /// Time when the thread joined, on the monotonic clock. Events before this time are ignored.
    pub(crate) joined: Time,
    /// Home CPU of the thread's vCPU.
    pub(crate) home: Arc<Home>,
    /// True if the thread is exiting. The next time that it leaves its CPU and is not runnable, it
    /// has ended.
    is_ending: AtomicBool,
    meter: Arc<Meter>,
}

/// Meter of the CPU time of a thread or of a process tree. All threads of a tree share one meter.
#[derive(Debug)]
pub(crate) struct Meter {
    counted: Mutex<ThreadUsage>,
    /// Number of the latest reading round in which this meter was read.
    round: AtomicU64,
}

impl Meter {
    /// Creates a meter whose clock showed `used` when it was last read.
    pub(crate) fn new(clock: UsedClock, used: Span) -> Arc<Meter> {
        let counted = Mutex::new(ThreadUsage { clock, used, is_new: true });
        Arc::new(Meter { counted, round: AtomicU64::new(0) })
    }
}

/// Clock of a meter, with the last value that was read.
#[derive(Debug)]
struct ThreadUsage {
    clock: UsedClock,
    /// Value that the clock showed when it was last read.
    used: Span,
    /// True until the thread's first context switch after it joined. Until that switch, the
    /// thread's CPU clock may lack some CPU time that the thread used before it joined.
    is_new: bool,
}

/// Home CPU of a vCPU, to which the vCPU is pinned, as an index among the managed CPUs. Before the
/// first assignment there is no home CPU.
#[derive(Debug)]
pub(crate) struct Home(AtomicU32);

impl Home {
    const NOWHERE: u32 = u32::MAX;

    pub(crate) fn none() -> Home {
        Home(AtomicU32::new(Home::NOWHERE))
    }

    pub(crate) fn get(&self) -> Option<CpuId> {
        let home = self.0.load(Ordering::Relaxed);
        (home != Home::NOWHERE).then(|| CpuId::new(home as usize))
    }

    pub(crate) fn clear(&self) {
        self.0.store(Home::NOWHERE, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, cpu: CpuId) {
        self.0.store(u32::try_from(cpu.index()).unwrap_or(Home::NOWHERE), Ordering::Relaxed);
    }
}

impl WatchedThread {
    pub(crate) fn new(
        tid: Tid,
        vcpu: VcpuId,
        joined: Time,
        home: Arc<Home>,
        meter: Arc<Meter>,
    ) -> WatchedThread {
        let is_ending = AtomicBool::new(false);
        WatchedThread { tid, vcpu, is_of_tree: false, joined, home, is_ending, meter }
    }

    /// Marks the thread as a thread of a process tree.
    pub(crate) fn of_tree(self) -> WatchedThread {
        WatchedThread { is_of_tree: true, ..self }
    }

    /// Creates the entry of thread `tid`, which the thread of `self` started. So the new thread
    /// belongs to the same process tree. `joined` is the time at which the new thread joined.
    pub(crate) fn child(&self, tid: Tid, joined: Time) -> WatchedThread {
        let (home, meter) = (Arc::clone(&self.home), Arc::clone(&self.meter));
        WatchedThread::new(tid, self.vcpu, joined, home, meter).of_tree()
    }

    /// Returns true if the thread still runs or waits. Returns false if the thread has exited, even
    /// if a later thread has the same id.
    pub(crate) fn is_alive(&self) -> bool {
        let stat = Stat::of(self.tid, self.tid);
        stat.is_ok_and(|stat| !stat.exited() && stat.started().is_until(self.joined))
    }

    /// Marks the thread as exiting.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Returns true if the thread is exiting.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Returns true if this call is the first for the thread's meter in the reading round `round`.
    /// All threads of a process tree share one meter.
    pub(crate) fn is_first_in(&self, round: u64) -> bool {
        self.meter.round.swap(round, Ordering::Relaxed) != round
    }

    /// Returns the CPU time that the thread, or its whole tree, has used since the last call. `now`
    /// is the monotonic time. Zero if the thread has exited.
    pub(crate) fn more(&self, now: Time) -> Result<Span, Unreadable> {
        let mut counted = self.meter.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(used) = counted.clock.read(self.tid)? else { return Ok(Span::ZERO) };
        let more = used.left_after(std::mem::replace(&mut counted.used, used));
        let is_new = std::mem::take(&mut counted.is_new);
        Ok(if is_new { more.min(now.since(self.joined)) } else { more })
    }

    /// Returns the current reading of the thread's CPU clock. `None` if the thread has exited.
    pub(crate) fn shown(&self) -> Result<Option<Span>, Unreadable> {
        let counted = self.meter.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.clock.read(self.tid)
    }

    /// Excludes the CPU time that the thread has used until now: the next reading returns only
    /// later CPU time.
    pub(crate) fn forget_used(&self) -> Result<(), Unreadable> {
        let mut counted = self.meter.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = counted.clock.read(self.tid)? {
            counted.used = used;
        }
        Ok(())
    }

    /// Returns true if the thread is runnable according to the kernel. Returns false if the thread
    /// has exited. `None` if a test or bench simulates the thread, since only events tell the state
    /// of such a thread.
    pub(crate) fn is_runnable(&self) -> Result<Option<bool>, Unreadable> {
        if self.is_of_tree {
            // The thread may have exited, and its id may belong to another thread by now. Events
            // will soon show that.
            return Ok(Some(Stat::of(self.tid, self.tid).is_ok_and(Stat::runnable)));
        }
        let counted = self.meter.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let UsedClock::Kernel(held, _) = &counted.clock else { return Ok(None) };
        let thread = held.thread();
        match Stat::of(thread.pid(), thread.tid()) {
            Ok(stat) => Ok(Some(stat.runnable())),
            Err(_) if thread.is_gone().unwrap_or(false) => Ok(Some(false)),
            Err(source) => Err(Unreadable { tid: thread.tid(), source }),
        }
    }
}

impl UsedClock {
    /// Returns the CPU time that the thread or tree has used so far. `None` if thread `tid` has
    /// exited.
    fn read(&self, tid: Tid) -> Result<Option<Span>, Unreadable> {
        match self {
            UsedClock::Kernel(held, clock) => match clock.read() {
                Ok(used) => Ok(Some(used)),
                Err(_) if held.thread().is_gone().unwrap_or(false) => Ok(None),
                Err(source) => Err(Unreadable { tid, source }),
            },
            UsedClock::Tree(usage, width) => match usage.read() {
                Ok(used) => Ok(Some(used / *width)),
                // The cgroup was removed, so all its threads have ended.
                Err(error) if is_gone(&error) => Ok(None),
                Err(source) => Err(Unreadable { tid, source }),
            },
            UsedClock::Fed(used) => Ok(Some(Span::from_ns(used.load(Ordering::Relaxed)))),
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    let codes = [libc::ENOENT, libc::ENODEV];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}
