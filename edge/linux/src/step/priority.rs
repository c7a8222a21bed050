//! Real-time priority and affinity. Acts on one thread.
//!
//! A chosen thread is raised to `SCHED_FIFO` with reset-on-fork, so that threads and processes that
//! it starts meanwhile do not become real-time with it. They *do* inherit its affinity: the kernel
//! has no such flag for that.

use slackline_units::{CpuId, CpuSet, Span};

use super::{Act, ActError, FifoPriority};
use crate::sys::{
    Scheduling, SchedulingOf, Tid, favour, get_affinity, get_scheduling, set_affinity,
    set_scheduling,
};
use crate::thread::ThreadRef;

/// Priorities for threads of which the first is to run, and the next one when that blocks or is
/// stopped. Only their order matters to the kernel, so a thread that is in order keeps its
/// priority. When the first of three is done, the other two need no system call.
#[derive(Clone, Copy, Debug)]
pub struct Ladder {
    above: u8,
    /// Number of threads that may still come.
    left: u8,
}

impl Ladder {
    /// Number of priorities. Threads can change places within them before all have to be moved.
    const ROOM: u8 = 8;

    /// Lowest priority that is given out. [`FifoPriority::CHOSEN`] is the highest.
    pub const LEAST: FifoPriority = FifoPriority(FifoPriority::CHOSEN.0 + 1 - Ladder::ROOM);

    /// Creates a ladder for this many threads, at most as many as there are priorities.
    #[must_use]
    pub fn new(count: usize) -> Ladder {
        let left = u8::try_from(count).unwrap_or(Ladder::ROOM).min(Ladder::ROOM);
        Ladder { above: FifoPriority::CHOSEN.number() + 1, left }
    }

    /// Returns the priority of the next thread, below all before it. `has` is kept if it is in
    /// order.
    pub fn next(&mut self, has: Option<FifoPriority>) -> FifoPriority {
        self.left = self.left.saturating_sub(1);
        let lowest = Ladder::LEAST.number() + self.left;
        let is_right = |has: &FifoPriority| (lowest..self.above).contains(&has.number());
        let next = has.filter(is_right).map_or(self.above - 1, FifoPriority::number);
        self.above = next;
        FifoPriority(next)
    }
}

/// Scheduling orders for one thread.
#[derive(Debug)]
pub struct Priority {
    thread: ThreadRef,
    original: SchedulingOf,
    now: SchedulingOf,
    /// True if anything but the original scheduling is ordered.
    is_ordered: bool,
}

impl Priority {
    /// Creates the orders for a thread that is scheduled as in `original` now.
    #[must_use]
    pub fn new(thread: ThreadRef, original: SchedulingOf) -> Priority {
        Priority { thread, original, now: original, is_ordered: false }
    }

    /// Makes the thread real-time at `priority`.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses (privilege, or no real-time budget in the
    /// thread's cgroup).
    pub fn raise(&mut self, priority: FifoPriority) -> Result<(), ActError> {
        let class = Scheduling::Fifo { priority: priority.number().into() };
        self.set(SchedulingOf { class, reset_on_fork: true }, Act::Raise(priority))
    }

    /// Gives the thread `slice` of CPU time in every `period` by `SCHED_DEADLINE`, and no more.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses (privilege, no bandwidth left, a thread that
    /// may not run on every CPU, a slice below 1 us).
    pub fn reserve(&mut self, slice: Span, period: Span) -> Result<(), ActError> {
        let class = Scheduling::Deadline { runtime: slice, deadline: period, period };
        self.set(SchedulingOf { class, reset_on_fork: true }, Act::Reserve)
    }

    /// Makes the thread the first of the ordinary ones, by the lowest nice value.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses (privilege).
    pub fn favour(&mut self) -> Result<(), ActError> {
        let class = Scheduling::Other { nice: -20 };
        let to = SchedulingOf { class, reset_on_fork: true };
        self.set_by(to, Act::Favour, favour)
    }

    /// Puts the thread behind all ordinary ones: it receives the time that they leave. Threads that
    /// it starts meanwhile are behind as well, since they are pinned to its CPU.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses.
    pub fn defer(&mut self) -> Result<(), ActError> {
        let to = SchedulingOf { class: Scheduling::Idle, reset_on_fork: true };
        self.set(to, Act::Defer)
    }

    /// Restores the original scheduling of the thread.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses.
    pub fn lower(&mut self) -> Result<(), ActError> {
        self.set(self.original, Act::Lower)?;
        self.is_ordered = false;
        Ok(())
    }

    /// Returns the present scheduling of the thread if it differs from the orders. Always `None`
    /// while nothing is ordered, since then the thread's owner may change it.
    ///
    /// # Errors
    /// If the thread has exited, or its scheduling cannot be read.
    pub fn differs(&self) -> Result<Option<SchedulingOf>, ActError> {
        if !self.is_ordered {
            return Ok(None);
        }
        Ok(Some(self.read()?).filter(|found| *found != self.now))
    }

    /// Schedules the thread as ordered again, after another program has changed that.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses.
    pub fn undo(&mut self) -> Result<(), ActError> {
        let found = self.read()?;
        let to = std::mem::replace(&mut self.now, found);
        self.set(to, Act::Lower)
    }

    /// Restores the original scheduling of the thread, whatever another program has made of it.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses.
    pub fn lower_again(&mut self) -> Result<(), ActError> {
        self.now = self.read()?;
        self.lower()
    }

    /// Takes the present scheduling of the thread, set by another program, as its original one from
    /// now on. Returns it.
    ///
    /// # Errors
    /// If the thread has exited, or its scheduling cannot be read.
    pub fn accept(&mut self) -> Result<SchedulingOf, ActError> {
        self.now = self.read()?;
        self.original = self.now;
        self.is_ordered = false;
        Ok(self.now)
    }

    fn read(&self) -> Result<SchedulingOf, ActError> {
        let is = self.thread.number().and_then(get_scheduling);
        is.map_err(|source| ActError::new(self.thread.tid(), Act::Lower, source))
    }

    fn set(&mut self, to: SchedulingOf, act: Act) -> Result<(), ActError> {
        self.set_by(to, act, |tid| set_scheduling(tid, &to))
    }

    fn set_by(
        &mut self,
        to: SchedulingOf,
        act: Act,
        set: impl FnOnce(Tid) -> std::io::Result<()>,
    ) -> Result<(), ActError> {
        self.is_ordered = true;
        if self.now == to {
            return Ok(());
        }
        let tid = self.thread.tid();
        let set = self.thread.number().and_then(set);
        set.map_err(|source| ActError::new(tid, act, source))?;
        self.now = to;
        Ok(())
    }
}

/// Affinity orders for one thread.
#[derive(Debug)]
pub struct Pin {
    thread: ThreadRef,
    original: CpuSet,
    now: CpuSet,
    /// True if an affinity is ordered, even one equal to the original.
    is_ordered: bool,
}

impl Pin {
    /// Creates the orders for a thread that may run on the CPUs in `original` now.
    #[must_use]
    pub fn new(thread: ThreadRef, original: CpuSet) -> Pin {
        Pin { thread, original, now: original, is_ordered: false }
    }

    /// Pins the thread to `cpu`. It has left all others when this returns.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses (privilege, CPU offline or outside the
    /// thread's cpuset, thread in `SCHED_DEADLINE`).
    pub fn pin(&mut self, cpu: CpuId) -> Result<(), ActError> {
        self.set(CpuSet::one(cpu), Act::Pin(cpu))
    }

    /// Limits the thread to these CPUs. Returns the affinity ordered before.
    ///
    /// # Errors
    /// As for [`Pin::pin`].
    pub fn confine(&mut self, to: CpuSet) -> Result<CpuSet, ActError> {
        let before = self.now;
        self.set(to, Act::Confine)?;
        Ok(before)
    }

    /// Lets the thread run on all of these CPUs.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses.
    pub fn spread(&mut self, over: CpuSet) -> Result<(), ActError> {
        self.set(over, Act::Unpin)
    }

    /// Restores the original affinity of the thread.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses.
    pub fn unpin(&mut self) -> Result<(), ActError> {
        self.set(self.original, Act::Unpin)?;
        self.is_ordered = false;
        Ok(())
    }

    /// Returns the present affinity of the thread if it differs from the orders. Always `None`
    /// while nothing is ordered, since then the thread's owner may change it.
    ///
    /// # Errors
    /// If the thread has exited, or its affinity cannot be read.
    pub fn differs(&self) -> Result<Option<CpuSet>, ActError> {
        if !self.is_ordered {
            return Ok(None);
        }
        Ok(Some(self.read()?).filter(|found| *found != self.now))
    }

    /// Sets the affinity as ordered again, after another program has changed it.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses.
    pub fn undo(&mut self) -> Result<(), ActError> {
        let found = self.read()?;
        let to = std::mem::replace(&mut self.now, found);
        let done = self.set(to, Act::Confine);
        if done.is_err() {
            // Kept as ordered, so that the difference is noticed and tried again.
            self.now = to;
        }
        done
    }

    /// Restores the original affinity as far as the thread's cpuset allows. The kernel adds the
    /// other CPUs when the cpuset allows them. Returns the original affinity.
    pub fn give_up(&mut self) -> CpuSet {
        // Refused if the cpuset allows none of them. Then the kernel keeps the thread where it may
        // run.
        let _ = self.unpin();
        (self.now, self.is_ordered) = (self.original, false);
        self.original
    }

    /// Returns the CPUs that the thread is limited to by order. `None` if there is no order.
    #[must_use]
    pub fn ordered(&self) -> Option<CpuSet> {
        self.is_ordered.then_some(self.now)
    }

    /// Takes the present affinity of the thread, set by another program, as its original one from
    /// now on. Returns it.
    ///
    /// # Errors
    /// If the thread has exited, or its affinity cannot be read.
    pub fn accept(&mut self) -> Result<CpuSet, ActError> {
        self.now = self.read()?;
        self.original = self.now;
        self.is_ordered = false;
        Ok(self.now)
    }

    fn read(&self) -> Result<CpuSet, ActError> {
        let is = self.thread.number().and_then(get_affinity);
        is.map_err(|source| ActError::new(self.thread.tid(), Act::Confine, source))
    }

    fn set(&mut self, to: CpuSet, act: Act) -> Result<(), ActError> {
        self.is_ordered = true;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives out the priorities for an order of four threads. Returns the number of threads that
    /// had to move.
    fn climb(places: &mut [Option<FifoPriority>; 4], order: &[usize]) -> usize {
        let (mut ladder, mut moved) = (Ladder::new(4), 0);
        let mut before = FifoPriority::KEEPER;
        for &who in order {
            let next = ladder.next(places[who]);
            assert!(next < before, "{next:?} below {before:?}");
            moved += usize::from(places[who].replace(next) != Some(next));
            before = next;
        }
        moved
    }

    #[test]
    fn threads_already_in_dispatch_order_keep_their_priorities() {
        let mut places = [None; 4];
        assert_eq!(climb(&mut places, &[0, 1, 2, 3]), 4);
        assert_eq!(places[0], Some(FifoPriority::CHOSEN));
        // The first is stopped, then the second. Then all come back.
        assert_eq!(climb(&mut places, &[1, 2, 3]), 0);
        assert_eq!(climb(&mut places, &[2, 3]), 0);
        assert_eq!(climb(&mut places, &[0, 1, 2, 3]), 0);
        assert_eq!(climb(&mut places, &[1, 0, 2, 3]), 3);
    }

    #[test]
    fn fifo_priorities_suffice_for_every_sequence_of_thread_orders() {
        let orders: Vec<[usize; 4]> = (0..256)
            .map(|code| [code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6])
            .filter(|order| (0..4).all(|who| order.contains(&who)))
            .collect();
        assert_eq!(orders.len(), 24);
        let mut places = [None; 4];
        for step in 0..10_000 {
            let order = &orders[step * 7919 % 24];
            climb(&mut places, &order[..1 + step % 4]);
        }
    }
}
