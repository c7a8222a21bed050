//! What is scheduled as one vCPU: the threads of it, and what each has used.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use slackline_units::{CpuId, Span, Time, VcpuId};

use crate::fence::Held;
use crate::sys::{ThreadClock, Tid};
use crate::thread::Stat;

/// A vCPU as it joins: one thread, or a process whose threads are one vCPU.
#[derive(Debug)]
pub(crate) struct VcpuThreads {
    pub(crate) vcpu: VcpuId,
    pub(crate) members: Vec<Member>,
    /// Whether it gets what it is promised and no more; then it can be kept from running.
    pub(crate) exact: bool,
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
    /// Whoever feeds the machine counts, in nanoseconds.
    Fed(Arc<AtomicU64>),
}

/// One thread of ours, as whoever reads events meets it. Shared by the tables of all CPUs.
#[derive(Debug)]
pub(crate) struct WatchedThread {
    pub(crate) tid: Tid,
    pub(crate) vcpu: VcpuId,
    /// Which one of its vCPU's.
    pub(crate) member: usize,
    /// When it joined, on the monotonic clock: what it did before, nobody has been told.
    pub(crate) joined: Time,
    /// Where its vCPU is kept.
    pub(crate) home: Arc<Home>,
    counted: Mutex<Counted>,
    /// The last round in which it was counted.
    round: AtomicU64,
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
        (vcpu, member): (VcpuId, usize),
        joined: Time,
        home: Arc<Home>,
        (clock, used): (UsedClock, Span),
    ) -> WatchedThread {
        let counted = Mutex::new(Counted { clock, used, is_new: true });
        WatchedThread { tid, vcpu, member, joined, home, counted, round: AtomicU64::new(0) }
    }

    /// Whether it has not been counted in this round yet.
    pub(crate) fn is_first_in(&self, round: u64) -> bool {
        self.round.swap(round, Ordering::Relaxed) != round
    }

    /// What it has used since this was last asked; `now` is the monotonic time. A thread that has
    /// ended uses nothing any more.
    pub(crate) fn more(&self, now: Time) -> Result<Span, Unreadable> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(used) = counted.clock.read(self.tid)? else { return Ok(Span::ZERO) };
        let more = used.left_after(std::mem::replace(&mut counted.used, used));
        let is_new = std::mem::take(&mut counted.is_new);
        Ok(if is_new { more.min(now.since(self.joined)) } else { more })
    }

    /// What it used until now is not counted.
    pub(crate) fn forget_used(&self) -> Result<(), Unreadable> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = counted.clock.read(self.tid)? {
            counted.used = used;
        }
        Ok(())
    }

    /// Whether it has work now. A thread that has ended has none, and of one that is only fed
    /// nothing is known but its events.
    pub(crate) fn is_runnable(&self) -> Result<Option<bool>, Unreadable> {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
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
            UsedClock::Fed(used) => Ok(Some(Span::from_ns(used.load(Ordering::Relaxed)))),
        }
    }
}
