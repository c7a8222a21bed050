//! What is scheduled as one vCPU: the threads of it, and what each has used.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use slackline_units::{CpuId, Span, Time, VcpuId};

use slackline_fence::{Held, HeldTree, TreeUsage};
use slackline_linux::sys::{ThreadClock, Tid};
use slackline_linux::thread::Stat;

/// A vCPU as it joins: threads that are one vCPU, one of them mostly, or a process tree.
#[derive(Debug)]
pub(crate) struct VcpuThreads {
    pub(crate) vcpu: VcpuId,
    pub(crate) body: Body,
    /// Whether it gets what it is promised and no more; then it can be kept from running.
    pub(crate) exact: bool,
}

/// What a vCPU is made of, as it joins.
#[derive(Debug)]
pub(crate) enum Body {
    /// These threads, as long as they are there.
    Threads(Vec<Member>),
    /// Whoever is in a tree.
    Tree(HeldTree),
}

/// CPU time or state that can no longer be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the CPU time or the state of thread {tid}")]
pub struct Unreadable {
    /// Whose.
    pub tid: Tid,
    /// What the kernel said.
    pub source: io::Error,
}

/// One thread of a vCPU.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) held: Held,
    /// What it has used, as the kernel counts it: without interrupts, and without what a
    /// hypervisor below took away.
    pub(crate) clock: ThreadClock,
    /// What the clock showed when it was last read.
    pub(crate) used: Span,
}

/// What a thread has used so far, and where to look it up.
#[derive(Debug)]
pub(crate) enum UsedClock {
    /// The kernel counts.
    Kernel(Held, ThreadClock),
    /// The kernel counts all of a tree together, on so many CPUs at once, which are taken for one.
    Tree(TreeUsage, u64),
    /// Whoever feeds the machine counts, in nanoseconds.
    Fed(Arc<AtomicU64>),
}

/// One thread of ours, as whoever reads events meets it. Shared by the tables of all CPUs.
#[derive(Debug)]
pub(crate) struct WatchedThread {
    pub(crate) tid: Tid,
    pub(crate) vcpu: VcpuId,
    /// Whether what it starts is its vCPU's as well.
    pub(crate) is_of_tree: bool,
    /// When it joined, on the monotonic clock: what it did before, nobody has been told.
    pub(crate) joined: Time,
    /// Where its vCPU is kept.
    pub(crate) home: Arc<Home>,
    /// Whether it is ending, and will be gone when it next leaves its CPU for good.
    is_ending: AtomicBool,
    meter: Arc<Meter>,
}

/// What counts the CPU time of a thread, or of a whole tree: then its threads share it.
#[derive(Debug)]
pub(crate) struct Meter {
    counted: Mutex<Counted>,
    /// The last round in which it was read.
    round: AtomicU64,
}

impl Meter {
    /// One that showed `used` when it was last read.
    pub(crate) fn new(clock: UsedClock, used: Span) -> Arc<Meter> {
        let counted = Mutex::new(Counted { clock, used, is_new: true });
        Arc::new(Meter { counted, round: AtomicU64::new(0) })
    }
}

#[derive(Debug)]
struct Counted {
    clock: UsedClock,
    used: Span,
    /// Until its first switch since it joined: its clock may have been behind then, by time that it
    /// used before.
    is_new: bool,
}

/// The CPU that a vCPU is kept on, as far as it is known: the number of it among the managed ones.
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

    /// One that belongs to a tree.
    pub(crate) fn of_tree(self) -> WatchedThread {
        WatchedThread { is_of_tree: true, ..self }
    }

    /// One that this one, which belongs to a tree, started at `joined`.
    pub(crate) fn child(&self, tid: Tid, joined: Time) -> WatchedThread {
        let (home, meter) = (Arc::clone(&self.home), Arc::clone(&self.meter));
        WatchedThread::new(tid, self.vcpu, joined, home, meter).of_tree()
    }

    /// It is about to be gone.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Whether it is about to be gone.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Whether it has not been counted in this round yet, nor another one with it.
    pub(crate) fn is_first_in(&self, round: u64) -> bool {
        self.meter.round.swap(round, Ordering::Relaxed) != round
    }

    /// What it has used since this was last asked; `now` is the monotonic time. A thread that has
    /// ended uses nothing any more.
    pub(crate) fn more(&self, now: Time) -> Result<Span, Unreadable> {
        let mut counted = self.meter.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(used) = counted.clock.read(self.tid)? else { return Ok(Span::ZERO) };
        let more = used.left_after(std::mem::replace(&mut counted.used, used));
        let is_new = std::mem::take(&mut counted.is_new);
        Ok(if is_new { more.min(now.since(self.joined)) } else { more })
    }

    /// What its clock shows; none once it has ended.
    pub(crate) fn shown(&self) -> Result<Option<Span>, Unreadable> {
        let counted = self.meter.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.clock.read(self.tid)
    }

    /// What it used until now is not counted.
    pub(crate) fn forget_used(&self) -> Result<(), Unreadable> {
        let mut counted = self.meter.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = counted.clock.read(self.tid)? {
            counted.used = used;
        }
        Ok(())
    }

    /// Whether it has work now. A thread that has ended has none, and of one that is only fed
    /// nothing is known but its events.
    pub(crate) fn is_runnable(&self) -> Result<Option<bool>, Unreadable> {
        if self.is_of_tree {
            // One that is gone, or whose number means somebody else by now, is soon heard of.
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
    /// None once the thread has ended.
    fn read(&self, tid: Tid) -> Result<Option<Span>, Unreadable> {
        match self {
            UsedClock::Kernel(held, clock) => match clock.read() {
                Ok(used) => Ok(Some(used)),
                Err(_) if held.thread().is_gone().unwrap_or(false) => Ok(None),
                Err(source) => Err(Unreadable { tid, source }),
            },
            UsedClock::Tree(usage, width) => match usage.read() {
                Ok(used) => Ok(Some(used / *width)),
                // The group is gone, and everybody with it.
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
