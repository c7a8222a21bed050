//! Real-time priority and affinity of one thread.
//!
//! A chosen thread is raised to `SCHED_FIFO` with reset-on-fork, so that threads and processes that
//! it starts are not real-time. They inherit the thread's affinity, however, because the kernel has
//! no flag to prevent that.

use slackline_units::{CpuId, CpuSet, Span};

use super::{Act, ActError, FifoPriority, ORDINARY, outranks_vcpus};
use crate::sys::{
    Scheduling, SchedulingOf, Tid, favour, get_affinity, get_scheduling, nice_of, set_affinity,
    set_scheduling,
};
use crate::thread::ThreadRef;

/// Assigns decreasing real-time priorities to the threads in a queue. So the first thread runs, and
/// another thread runs only while all threads before it are blocked or stopped. Only the order of
/// the priorities matters, so a thread whose current priority fits the order keeps that priority.
/// For example, if the first of three threads is removed, the other two need no system call.
#[derive(Clone, Copy, Debug)]
pub struct Ladder {
    /// Priority of the previous thread. The next thread gets a lower priority.
    above: u8,
    /// Number of threads in the queue that have not been assigned a priority yet.
    left: u8,
}

impl Ladder {
    /// Number of different priorities. It is larger than the usual number of threads, so that a
    /// thread can change its place in the queue while the other threads keep their priorities.
    const ROOM: u8 = 8;

    /// Lowest priority that is assigned. [`FifoPriority::CHOSEN`] is the highest.
    pub const LEAST: FifoPriority = FifoPriority(FifoPriority::CHOSEN.0 + 1 - Ladder::ROOM);

    /// Starts assigning priorities to a queue of `count` threads. `count` must not exceed the
    /// number of priorities.
    #[must_use]
    pub fn new(count: usize) -> Ladder {
        let left = u8::try_from(count).unwrap_or(Ladder::ROOM).min(Ladder::ROOM);
        Ladder { above: FifoPriority::CHOSEN.number() + 1, left }
    }

    /// Assigns a priority to the next thread in the queue, below the priorities of all threads
    /// before it, and returns the priority. `has` is the current priority of the thread. The thread
    /// keeps that priority if it fits the order.
    pub fn next(&mut self, has: Option<FifoPriority>) -> FifoPriority {
        self.left = self.left.saturating_sub(1);
        let lowest = Ladder::LEAST.number() + self.left;
        let is_right = |has: &FifoPriority| (lowest..self.above).contains(&has.number());
        let next = has.filter(is_right).map_or(self.above - 1, FifoPriority::number);
        self.above = next;
        FifoPriority(next)
    }
}

/// State of the orders that change the scheduling class and priority of one thread.
#[derive(Debug)]
pub struct Priority {
    thread: ThreadRef,
    original: SchedulingOf,
    now: SchedulingOf,
    /// True if an order has changed the scheduling of the thread, and no later order has restored
    /// it.
    is_ordered: bool,
    /// Expected nice value of the thread. If the actual value differs, another program has set it.
    /// `None` if orders replace changes by other programs.
    respected_nice: Option<i32>,
}

impl Priority {
    /// Creates the state for a thread whose present scheduling is `original`. No order has been
    /// carried out yet.
    #[must_use]
    pub fn new(thread: ThreadRef, original: SchedulingOf) -> Priority {
        Priority { thread, original, now: original, is_ordered: false, respected_nice: None }
    }

    /// Lets other programs change the scheduling of the thread from now on. After such a change,
    /// orders have no effect until the caller calls [`accept`](Priority::accept).
    ///
    /// # Errors
    /// If the thread has exited.
    pub fn respect_changes(&mut self) -> Result<(), ActError> {
        self.respected_nice = Some(self.nice()?);
        Ok(())
    }

    /// Returns the original scheduling of the thread.
    #[must_use]
    pub const fn original(&self) -> SchedulingOf {
        self.original
    }

    /// Returns true if an order has changed the scheduling of the thread and no later order has
    /// restored it.
    #[must_use]
    pub const fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// Makes the thread real-time at `priority`.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses for lack of privilege or of real-time budget
    /// in the thread's cgroup.
    pub fn raise(&mut self, priority: FifoPriority) -> Result<(), ActError> {
        let class = Scheduling::Fifo { priority: priority.number().into() };
        self.set(SchedulingOf { class, reset_on_fork: true }, Act::Raise(priority))
    }

    /// Makes the kernel give the thread `slice` of CPU time in every `period`, and not more, by the
    /// class `SCHED_DEADLINE`.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses for lack of privilege or bandwidth. The
    /// kernel also refuses a thread whose affinity excludes a CPU, and a slice below 1 us.
    pub fn reserve(&mut self, slice: Span, period: Span) -> Result<(), ActError> {
        let class = Scheduling::Deadline { runtime: slice, deadline: period, period };
        self.set(SchedulingOf { class, reset_on_fork: true }, Act::Reserve)
    }

    /// Gives the thread the highest priority among ordinary threads, by the lowest nice value.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses for lack of privilege.
    pub fn favour(&mut self) -> Result<(), ActError> {
        let class = Scheduling::Other { nice: -20 };
        let to = SchedulingOf { class, reset_on_fork: true };
        self.set_by(to, Act::Favour, favour)
    }

    /// Gives the thread a lower priority than all ordinary threads, so that it receives only CPU
    /// time that no ordinary thread uses. Threads that the thread starts meanwhile inherit the low
    /// priority and the affinity.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses.
    pub fn defer(&mut self) -> Result<(), ActError> {
        let to = SchedulingOf { class: Scheduling::Idle, reset_on_fork: true };
        self.set(to, Act::Defer)
    }

    /// Restores the original scheduling of the thread. If the kernel refuses the original class,
    /// the thread gets the ordinary class, so that it does not stay real-time. For example, a
    /// cgroup without a real-time budget allows no real-time class.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses the ordinary class too.
    pub fn lower(&mut self) -> Result<(), ActError> {
        match self.set(self.original, Act::Lower) {
            Err(ActError::Refused { .. }) => self.set(ORDINARY, Act::Lower)?,
            lowered => lowered?,
        }
        self.is_ordered = false;
        Ok(())
    }

    /// Returns the current scheduling of the thread if it differs from the last order. Otherwise
    /// `None`.
    ///
    /// If no order is in effect, any program may change the scheduling, so the result is `None`.
    /// The one exception is a class above all vCPUs that the thread did not have originally. A
    /// dispatcher cannot preempt a thread of such a class, so its scheduling is returned.
    ///
    /// After [`respect_changes`](Priority::respect_changes), each difference is returned. One such
    /// difference is a nice value that another program has set while the thread was real-time.
    ///
    /// # Errors
    /// If the thread has exited, or its scheduling cannot be read.
    pub fn differs(&self) -> Result<Option<SchedulingOf>, ActError> {
        let found = self.read()?;
        if !self.is_ordered && self.respected_nice.is_none() {
            return Ok(Some(found).filter(|found| self.is_escape(found)));
        }
        if found != self.now {
            return Ok(Some(found));
        }
        let Some(nice) = self.new_nice()? else { return Ok(None) };
        Ok(Some(SchedulingOf { class: Scheduling::Other { nice }, ..self.original }))
    }

    /// Returns true if the scheduling of the thread is as last ordered. This check is faster than
    /// [`differs`](Priority::differs), because it does not check that the thread still exists.
    /// Returns false if only the slower check can decide.
    #[must_use]
    pub fn is_as_ordered(&self) -> bool {
        let is_as_now = || get_scheduling(self.thread.tid()).is_ok_and(|found| found == self.now);
        self.is_ordered && self.respected_nice.is_none() && is_as_now()
    }

    /// Restores the original scheduling of the thread, unless another program has changed the
    /// scheduling since the last order. If another program has set a nice value, the thread gets
    /// that nice value. Accepts the result as the new original scheduling, as
    /// [`accept`](Priority::accept) does, and returns it.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses.
    pub fn leave(&mut self) -> Result<SchedulingOf, ActError> {
        if self.read()? == self.now {
            let mut to = self.original;
            if let Some(nice) = self.new_nice()? {
                to.class = match to.class {
                    Scheduling::Other { .. } => Scheduling::Other { nice },
                    Scheduling::Batch { .. } => Scheduling::Batch { nice },
                    class => class,
                };
            }
            self.apply(to, Act::Lower, |tid| set_scheduling(tid, &to))?;
        }
        self.accept()
    }

    /// Applies the last order to the thread again, after another program has changed its
    /// scheduling.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses.
    pub fn undo(&mut self) -> Result<(), ActError> {
        let found = self.read()?;
        let (to, was_ordered) = (std::mem::replace(&mut self.now, found), self.is_ordered);
        let done = self.set(to, Act::Lower);
        self.is_ordered = was_ordered;
        if done.is_err() {
            // Keep the ordered state as current, so that a later check finds the difference again.
            self.now = to;
        }
        done
    }

    /// Restores the original scheduling of the thread if another program has put the thread under
    /// `SCHED_DEADLINE`. Does nothing if the last order or the original scheduling has this class.
    /// A later check still compares the scheduling with the last order.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses.
    pub fn leave_foreign_deadline(&self) -> Result<(), ActError> {
        let is_deadline = |it: SchedulingOf| matches!(it.class, Scheduling::Deadline { .. });
        if is_deadline(self.now) || is_deadline(self.original) || !is_deadline(self.read()?) {
            return Ok(());
        }
        let set = self.thread.number().and_then(|tid| set_scheduling(tid, &self.original));
        set.map_err(|source| ActError::new(self.thread.tid(), Act::Lower, source))
    }

    /// Restores the original scheduling of the thread, even if another program has changed it since
    /// the last order.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses.
    pub fn lower_again(&mut self) -> Result<(), ActError> {
        self.now = self.read()?;
        self.lower()
    }

    /// Accepts the scheduling that another program has set: it becomes the original scheduling of
    /// the thread. Returns that scheduling.
    ///
    /// # Errors
    /// If the thread has exited, or its scheduling cannot be read.
    pub fn accept(&mut self) -> Result<SchedulingOf, ActError> {
        self.now = self.read()?;
        self.original = self.now;
        self.is_ordered = false;
        if self.respected_nice.is_some() {
            self.respect_changes()?;
        }
        Ok(self.now)
    }

    /// Returns true if the class in `found` is above all vCPUs and is not the original class of the
    /// thread.
    fn is_escape(&self, found: &SchedulingOf) -> bool {
        outranks_vcpus(found.class) && found.class != self.original.class
    }

    fn read(&self) -> Result<SchedulingOf, ActError> {
        let is = self.thread.number().and_then(get_scheduling);
        is.map_err(|source| ActError::new(self.thread.tid(), Act::Lower, source))
    }

    fn nice(&self) -> Result<i32, ActError> {
        let is = self.thread.number().and_then(nice_of);
        is.map_err(|source| ActError::new(self.thread.tid(), Act::Lower, source))
    }

    /// Returns the nice value of the thread if another program has set it. Otherwise, or if orders
    /// replace nice values of other programs, `None`.
    fn new_nice(&self) -> Result<Option<i32>, ActError> {
        let Some(expected) = self.respected_nice else { return Ok(None) };
        Ok(Some(self.nice()?).filter(|nice| *nice != expected))
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
        if self.now == to || self.respected_nice.is_some() && self.differs()?.is_some() {
            return Ok(());
        }
        self.apply(to, act, set)
    }

    fn apply(
        &mut self,
        to: SchedulingOf,
        act: Act,
        set: impl FnOnce(Tid) -> std::io::Result<()>,
    ) -> Result<(), ActError> {
        let tid = self.thread.tid();
        let set = self.thread.number().and_then(set);
        set.map_err(|source| ActError::new(tid, act, source))?;
        self.now = to;
        if let (Some(_), Scheduling::Other { nice } | Scheduling::Batch { nice }) =
            (self.respected_nice, to.class)
        {
            self.respected_nice = Some(nice);
        }
        Ok(())
    }
}

/// State of the orders that change the affinity of one thread.
#[derive(Debug)]
pub struct Pin {
    thread: ThreadRef,
    original: CpuSet,
    now: CpuSet,
    /// True if an order has set the affinity of the thread and no later order has restored it. The
    /// ordered affinity may be the same as the original affinity.
    is_ordered: bool,
}

impl Pin {
    /// Creates a `Pin`, which sets and restores the affinity of `thread`. `original` is the present
    /// affinity. This function changes nothing yet.
    #[must_use]
    pub fn new(thread: ThreadRef, original: CpuSet) -> Pin {
        Pin { thread, original, now: original, is_ordered: false }
    }

    /// Pins the thread to `cpu`. When this function returns, the thread has left all other CPUs.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses. Reasons are lack of privilege, a CPU that
    /// is offline or outside the thread's cpuset, and a thread in `SCHED_DEADLINE`.
    pub fn pin(&mut self, cpu: CpuId) -> Result<(), ActError> {
        self.set(CpuSet::one(cpu), Act::Pin(cpu))
    }

    /// Restricts the thread to the CPUs in `to`. Returns the CPUs that the previous order allowed,
    /// or the original affinity if there was no previous order.
    ///
    /// # Errors
    /// On the same conditions as [`Pin::pin`].
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

    /// Returns the current affinity of the thread if it differs from the last order. Otherwise
    /// `None`. If no order is in effect, any program may change the affinity, so the result is
    /// `None`.
    ///
    /// # Errors
    /// If the thread has exited, or its affinity cannot be read.
    pub fn differs(&self) -> Result<Option<CpuSet>, ActError> {
        if !self.is_ordered {
            return Ok(None);
        }
        Ok(Some(self.read()?).filter(|found| *found != self.now))
    }

    /// Returns true if the affinity of the thread is as last ordered, or if no order is in effect.
    /// This check is faster than [`differs`](Pin::differs), because it does not check that the
    /// thread still exists.
    #[must_use]
    pub fn is_as_ordered(&self) -> bool {
        !self.is_ordered || get_affinity(self.thread.tid()).is_ok_and(|found| found == self.now)
    }

    /// Applies the last order to the thread again, after another program has changed its affinity.
    /// Does nothing if no order is in effect.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses.
    pub fn undo(&mut self) -> Result<(), ActError> {
        if !self.is_ordered {
            return Ok(());
        }
        let found = self.read()?;
        let to = std::mem::replace(&mut self.now, found);
        let done = self.set(to, Act::Confine);
        if done.is_err() {
            // The ordered affinity counts as the current one again, so that a later check finds the
            // difference again.
            self.now = to;
        }
        done
    }

    /// Restores the original affinity as far as the thread's cpuset allows, and forgets all orders.
    /// If the cpuset allows further CPUs of the original affinity later, the kernel adds them by
    /// itself. Returns the original affinity.
    pub fn give_up(&mut self) -> CpuSet {
        // The kernel refuses this if the cpuset allows none of the CPUs. Then the thread stays on
        // CPUs that the cpuset allows.
        let _ = self.unpin();
        (self.now, self.is_ordered) = (self.original, false);
        self.original
    }

    /// Returns the original affinity of the thread.
    #[must_use]
    pub const fn original(&self) -> CpuSet {
        self.original
    }

    /// Returns the CPUs to which the last order restricts the thread. `None` if no order is in
    /// effect.
    #[must_use]
    pub fn ordered(&self) -> Option<CpuSet> {
        self.is_ordered.then_some(self.now)
    }

    /// Accepts the affinity that another program has set: it becomes the original affinity of the
    /// thread. Returns that affinity.
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

    /// Assigns priorities to the threads in `order`, first thread first. `order` has numbers of
    /// some of four threads. Returns the number of threads whose priority changed.
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

    /// The test changes the class of a thread of a child process. It uses only classes that need no
    /// privileges.
    #[test]
    fn scheduling_class_set_by_another_program_is_kept_if_respected() {
        use rustix::process::{Pid, setpriority_process};
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = Tid::new(i32::try_from(child.id()).unwrap()).unwrap();
        let class = || get_scheduling(pid).unwrap().class;
        let original = get_scheduling(pid).unwrap();
        let mut priority = Priority::new(ThreadRef::open(pid, pid).unwrap(), original);
        priority.respect_changes().unwrap();
        priority.defer().unwrap();
        assert_eq!((class(), priority.differs().unwrap()), (Scheduling::Idle, None));
        let foreign = Scheduling::Batch { nice: 3 };
        set_scheduling(pid, &SchedulingOf { class: foreign, reset_on_fork: true }).unwrap();
        priority.lower().unwrap();
        priority.defer().unwrap();
        assert_eq!(class(), foreign);
        assert_eq!(priority.differs().unwrap().unwrap().class, foreign);
        assert_eq!(priority.leave().unwrap().class, foreign);
        assert_eq!(priority.differs().unwrap(), None);
        priority.defer().unwrap();
        assert_eq!(class(), Scheduling::Idle);
        // A nice value takes effect only when the thread leaves the idle class.
        setpriority_process(Pid::from_raw(pid.raw()), 7).unwrap();
        assert_eq!(priority.differs().unwrap().unwrap().class, Scheduling::Other { nice: 7 });
        priority.lower().unwrap();
        assert_eq!((class(), priority.original().class), (Scheduling::Idle, foreign));
        priority.leave().unwrap();
        assert_ne!(class(), Scheduling::Idle);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn fast_check_notices_class_set_by_another_program() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = Tid::new(i32::try_from(child.id()).unwrap()).unwrap();
        let original = get_scheduling(pid).unwrap();
        let mut priority = Priority::new(ThreadRef::open(pid, pid).unwrap(), original);
        // Without an order, any program may set the class, so only the slow check can decide.
        assert!(!priority.is_as_ordered());
        priority.defer().unwrap();
        assert!(priority.is_as_ordered());
        let foreign = Scheduling::Batch { nice: 3 };
        set_scheduling(pid, &SchedulingOf { class: foreign, reset_on_fork: true }).unwrap();
        assert!(!priority.is_as_ordered());
        assert_eq!(priority.differs().unwrap().unwrap().class, foreign);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!priority.is_as_ordered());
    }

    /// The original class in this test has a slice longer than its period, which the kernel
    /// refuses.
    #[test]
    fn thread_gets_ordinary_class_if_kernel_refuses_its_original_class() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = Tid::new(i32::try_from(child.id()).unwrap()).unwrap();
        let (runtime, period) = (Span::from_ms(2), Span::from_ms(1));
        let class = Scheduling::Deadline { runtime, deadline: period, period };
        let original = SchedulingOf { class, reset_on_fork: false };
        let mut priority = Priority::new(ThreadRef::open(pid, pid).unwrap(), original);
        let batch = SchedulingOf { class: Scheduling::Batch { nice: 0 }, reset_on_fork: false };
        set_scheduling(pid, &batch).unwrap();
        let lowered = priority.lower_again();
        let now = get_scheduling(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        lowered.unwrap();
        assert_eq!(now.unwrap(), ORDINARY);
    }

    #[test]
    fn threads_that_are_already_in_dispatch_order_keep_their_priorities() {
        let mut places = [None; 4];
        assert_eq!(climb(&mut places, &[0, 1, 2, 3]), 4);
        assert_eq!(places[0], Some(FifoPriority::CHOSEN));
        // The first thread is stopped, then the second. Then all threads are runnable again.
        assert_eq!(climb(&mut places, &[1, 2, 3]), 0);
        assert_eq!(climb(&mut places, &[2, 3]), 0);
        assert_eq!(climb(&mut places, &[0, 1, 2, 3]), 0);
        assert_eq!(climb(&mut places, &[1, 0, 2, 3]), 3);
    }

    #[test]
    fn available_fifo_priorities_suffice_for_every_change_of_dispatch_order() {
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
