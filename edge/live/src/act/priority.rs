//! Real-time priority and affinity. Acts on one thread.
//!
//! A chosen thread is raised to `SCHED_FIFO`, with reset-on-fork so that threads and processes that
//! it starts meanwhile do not become real-time with it. Its affinity *is* inherited by them: the
//! kernel has no such flag for affinity.

use slackline_units::{CpuId, CpuSet, Span};

use super::{Act, ActError, FifoPriority};
use crate::sys::{Scheduling, SchedulingOf, set_affinity, set_scheduling};
use crate::thread::ThreadRef;

/// The scheduling of one thread.
#[derive(Debug)]
pub struct Priority {
    thread: ThreadRef,
    original: SchedulingOf,
    now: SchedulingOf,
}

impl Priority {
    /// For a thread that is scheduled as in `original` now.
    #[must_use]
    pub fn new(thread: ThreadRef, original: SchedulingOf) -> Priority {
        Priority { thread, original, now: original }
    }

    /// Makes the thread real-time at `priority`.
    ///
    /// # Errors
    /// When the thread has exited, or the kernel refuses (privilege, or no real-time budget in the
    /// thread's cgroup).
    pub fn raise(&mut self, priority: FifoPriority) -> Result<(), ActError> {
        let class = Scheduling::Fifo { priority: priority.number().into() };
        self.set(SchedulingOf { class, reset_on_fork: true }, Act::Raise(priority))
    }

    /// Gives the thread `slice` of CPU time in every `period` by `SCHED_DEADLINE`, and no more.
    ///
    /// # Errors
    /// When the thread has exited, or the kernel refuses (privilege, no bandwidth left, a thread
    /// that may not run on every CPU, a slice below 1 us).
    pub fn reserve(&mut self, slice: Span, period: Span) -> Result<(), ActError> {
        let class = Scheduling::Deadline { runtime: slice, deadline: period, period };
        self.set(SchedulingOf { class, reset_on_fork: true }, Act::Reserve)
    }

    /// Schedules the thread as it was originally.
    ///
    /// # Errors
    /// When the thread has exited, or the kernel refuses.
    pub fn lower(&mut self) -> Result<(), ActError> {
        self.set(self.original, Act::Lower)
    }

    fn set(&mut self, to: SchedulingOf, act: Act) -> Result<(), ActError> {
        if self.now == to {
            return Ok(());
        }
        let tid = self.thread.tid();
        let set = self.thread.number().and_then(|tid| set_scheduling(tid, &to));
        set.map_err(|source| ActError::new(tid, act, source))?;
        self.now = to;
        Ok(())
    }
}

/// The CPUs of one thread.
#[derive(Debug)]
pub struct Pin {
    thread: ThreadRef,
    original: CpuSet,
    now: CpuSet,
}

impl Pin {
    /// For a thread that may run on the CPUs in `original` now.
    #[must_use]
    pub fn new(thread: ThreadRef, original: CpuSet) -> Pin {
        Pin { thread, original, now: original }
    }

    /// Keeps the thread on `cpu`. It has left all others when this returns.
    ///
    /// # Errors
    /// When the thread has exited, or the kernel refuses (privilege, CPU offline or outside the
    /// thread's cpuset, thread in `SCHED_DEADLINE`).
    pub fn pin(&mut self, cpu: CpuId) -> Result<(), ActError> {
        self.set(CpuSet::one(cpu), Act::Pin(cpu))
    }

    /// Lets the thread run on all of these.
    ///
    /// # Errors
    /// When the thread has exited, or the kernel refuses.
    pub fn spread(&mut self, over: CpuSet) -> Result<(), ActError> {
        self.set(over, Act::Unpin)
    }

    /// Lets the thread run on its original CPUs.
    ///
    /// # Errors
    /// When the thread has exited, or the kernel refuses.
    pub fn unpin(&mut self) -> Result<(), ActError> {
        self.set(self.original, Act::Unpin)
    }

    fn set(&mut self, to: CpuSet, act: Act) -> Result<(), ActError> {
        if self.now == to {
            return Ok(());
        }
        let tid = self.thread.tid();
        let set = self.thread.number().and_then(|tid| set_affinity(tid, &to));
        set.map_err(|source| ActError::new(tid, act, source))?;
        self.now = to;
        Ok(())
    }
}
