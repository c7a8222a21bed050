//! Enforcement of orders: the system calls that let threads run or keep them from running.
//!
//! There is one way of enforcement at present:
//!
//! - [`fifo`]: real-time priority for entitled vCPUs, and a stop for vCPUs that must not run.
//!
//! A [`Way`] receives the new orders for one CPU and returns the orders that the kernel refused. It
//! makes its system calls through [`step`](slackline_linux::step).

pub(crate) mod fifo;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackline_units::{CpuId, CpuSet, Span, VcpuId};

use crate::watch::notice::{NoticeOf, UseNotice};
use crate::watch::perf::UseRings;
use slackline_fence::{HandoverState, HeldThread, HeldTree, Original, Timeslice};
use slackline_linux::step::priority::Ladder;
use slackline_linux::step::{ActError, FifoPriority};
use slackline_linux::sys::Tid;

/// Way of enforcement: carries out the live host's orders on threads.
pub(crate) trait Way: Send + Sync {
    /// Carries out orders for one CPU, in the sequence of the list: first the vCPUs that lose the
    /// CPU, then the chosen vCPU, then the vCPUs in line after it. Appends the orders that the
    /// kernel refused to `failed`. All other vCPUs are in the ordered state afterwards.
    fn enforce_orders(&self, order: &[Assignment], failed: &mut Vec<FailedAssignment>);
}

/// Order for one vCPU: the class in which it is scheduled from now on.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub(crate) handle: Arc<VcpuHandle>,
    /// Sequence number of the order. If a vCPU gets two orders, the order with the higher number is
    /// valid, even if that order arrives first.
    pub(crate) number: u64,
    /// CPU to which the vCPU is pinned, by the kernel's number. `None` if it is not pinned.
    pub(crate) cpu: Option<CpuId>,
    pub(crate) place: Place,
    /// Threads of the vCPU's process tree that run first, in this order, before the other threads
    /// of the tree. The list has an effect only if the order begins a timeslice or changes the
    /// tree's priority.
    pub(crate) front: Vec<Tid>,
    /// Use of the timeslice by the threads of a process tree. Either the first thread runs for all
    /// of it, or the threads divide it.
    pub(crate) timeslice: Timeslice,
}

/// Class in which an order puts a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Real-time class. In a list of orders, the first vCPU with this class is the chosen vCPU.
    /// Each later vCPU gets a lower priority than the vCPU before it.
    InLine,
    /// Ordinary class with the highest priority. So the vCPU runs in the CPU time that the kernel
    /// reserves for ordinary threads.
    First,
    /// Ordinary class with the original parameters of the threads.
    Original,
    /// Lowest priority, below all ordinary threads. It is used while another vCPU runs and this
    /// vCPU waits for its share of the slack.
    Behind,
    /// Stopped: the vCPU does not run.
    Held,
    /// Stopped, although a thread of the vCPU still ran inside the kernel, where a stop takes no
    /// effect. For the rest of the stop, all threads of the vCPU have the ordinary class with their
    /// original parameters.
    Stopping,
}

impl Place {
    /// Returns true if the vCPU must not run.
    pub(crate) const fn is_stop(self) -> bool {
        matches!(self, Place::Held | Place::Stopping)
    }

    /// Returns true if the vCPU may run, but not in the real-time class.
    pub(crate) const fn is_ordinary(self) -> bool {
        matches!(self, Place::First | Place::Original | Place::Behind)
    }
}

/// Order that the kernel refused, with the error.
#[derive(Debug)]
pub(crate) struct FailedAssignment {
    pub(crate) handle: Arc<VcpuHandle>,
    pub(crate) error: ActError,
}

/// Threads of a vCPU, and the state into which orders have put them.
#[derive(Debug)]
pub(crate) struct VcpuHandle {
    pub(crate) vcpu: VcpuId,
    pub(crate) threads: HeldThreads,
    state: Mutex<HandleState>,
}

/// Threads to which an order for a vCPU applies.
#[derive(Debug)]
pub(crate) enum HeldThreads {
    /// Several threads. The order is applied to each of them.
    Each(Vec<HeldThread>),
    /// All threads of a process tree. The order is applied to the tree as a whole.
    Tree(HeldTree),
}

/// Affinity of a vCPU's threads before it was changed.
#[derive(Debug)]
pub(crate) enum KeptOn {
    /// Affinity of each thread, in order.
    Threads(Vec<CpuSet>),
    /// Affinity of a whole process tree. If `None`, each thread had its original affinity.
    Tree(Option<CpuSet>),
}

/// State into which the latest orders have put a vCPU.
#[derive(Debug, Default)]
pub(crate) struct HandleState {
    /// Sequence number of the latest order.
    number: u64,
    /// Real-time priority. `None` while the vCPU is not real-time.
    priority: Option<FifoPriority>,
    /// True while the vCPU is stopped.
    is_held: bool,
    /// Notifications of CPU time that the vCPU receives while it counts as blocked. `None` if the
    /// vCPU has no hard limit, or the kernel cannot notify.
    notice: Option<UseNotice>,
}

impl VcpuHandle {
    pub(crate) fn new(vcpu: VcpuId, threads: HeldThreads) -> VcpuHandle {
        VcpuHandle { vcpu, threads, state: Mutex::default() }
    }

    /// Requests notifications: the kernel wakes the vCPU's dispatcher each time the vCPU has
    /// received this amount of CPU time while it counts as blocked. If `every` is `None`, ends the
    /// notifications.
    ///
    /// # Errors
    /// If the kernel does not support such notifications. After an error there are no
    /// notifications.
    pub(crate) fn notice_use(&self, every: Option<(Span, UseRings)>) -> io::Result<()> {
        let mut state = self.state();
        state.notice = None;
        let Some((every, rings)) = every else { return Ok(()) };
        let of = match &self.threads {
            HeldThreads::Each(members) => {
                NoticeOf::Threads(members.iter().map(|held| held.thread().tid()).collect())
            }
            HeldThreads::Tree(tree) => NoticeOf::Group(tree.place().group.clone(), tree.wide()),
        };
        let mut notice = UseNotice::new(of, every, rings);
        notice.switch_on(None)?;
        state.notice = Some(notice);
        Ok(())
    }

    /// Restricts the vCPU's threads to these CPUs, by the kernel's numbers, and cancels all orders
    /// up to `number`. Returns the affinity that the threads had before. If the kernel refuses, the
    /// former affinity is restored.
    pub(crate) fn confine(&self, number: u64, cpus: CpuSet) -> Result<KeptOn, ActError> {
        let mut state = self.state();
        state.is_news(number);
        let members = match &self.threads {
            HeldThreads::Tree(tree) => return tree.keep_on(Some(cpus)).map(KeptOn::Tree),
            HeldThreads::Each(members) => members,
        };
        let mut before = Vec::with_capacity(members.len());
        for held in members {
            match held.confine(cpus) {
                Ok(from) => before.push(from),
                // A thread that has exited need not be restricted.
                Err(ActError::Gone { .. }) => before.push(cpus),
                Err(error) => {
                    self.put_back(&KeptOn::Threads(before));
                    return Err(error);
                }
            }
        }
        Ok(KeptOn::Threads(before))
    }

    /// Makes the vCPU's threads real-time for a moment, to check that the kernel allows this, and
    /// restores the threads.
    pub(crate) fn try_real_time(&self) -> Result<(), ActError> {
        let members = match &self.threads {
            HeldThreads::Tree(tree) => {
                return tree.raise(Ladder::LEAST).and_then(|()| tree.lower());
            }
            HeldThreads::Each(members) => members,
        };
        for held in members {
            match held.raise(Ladder::LEAST).and_then(|()| held.lower()) {
                Err(error) if !error.means_gone() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Restores the affinity `before` of the vCPU's threads. Errors are ignored, since the kernel
    /// has allowed this affinity before.
    pub(crate) fn put_back(&self, before: &KeptOn) {
        match (&self.threads, before) {
            (HeldThreads::Tree(tree), KeptOn::Tree(cpus)) => {
                let _ = tree.keep_on(*cpus);
            }
            (HeldThreads::Each(members), KeptOn::Threads(before)) => {
                for (held, &cpus) in members.iter().zip(before) {
                    let _ = held.confine(cpus);
                }
            }
            _ => unreachable!("a process tree stays a process tree"),
        }
    }

    /// Stops the vCPU and cancels all orders up to `number`. If the vCPU is a process, each of its
    /// threads gets its own stop signal, so that each thread stops before its next instruction. A
    /// process tree is frozen as a whole.
    pub(crate) fn stop(&self, number: u64) -> Result<(), ActError> {
        let mut state = self.state();
        state.is_news(number);
        self.hold_back(&mut state)
    }

    /// Takes the vCPU's threads out of the real-time class, after the kernel has refused to restore
    /// or resume a thread. If the kernel refuses to change the class too, stops the threads.
    /// Returns false if a thread can still prevent all other threads from running.
    pub(crate) fn disarm(&self) -> bool {
        let mut state = self.state();
        state.priority = None;
        let is_done = |lowered: Result<(), ActError>| {
            lowered.map_or_else(|error| error.means_gone(), |()| true)
        };
        let is_lowered = match &self.threads {
            HeldThreads::Each(members) => members.iter().all(|held| is_done(held.lower())),
            HeldThreads::Tree(tree) => is_done(tree.lower()),
        };
        is_lowered || self.hold_back(&mut state).is_ok()
    }

    /// Hands the vCPU's threads over to the program that has changed them, and cancels all orders
    /// up to `number`. Returns the changed threads. Each has the new state to which it will be
    /// restored in the end.
    pub(crate) fn leave(
        &self,
        number: u64,
        how: HandoverState,
    ) -> Result<Vec<(Tid, Original)>, ActError> {
        let mut state = self.state();
        state.is_news(number);
        state.priority = None;
        // After an error, the threads may still be stopped, so the next order resumes them.
        let changed = self.leave_threads(how)?;
        state.is_held &= how.stays_stopped;
        Ok(changed)
    }

    /// Hands each thread over to the program that has changed it. Returns the changed threads, each
    /// with its new original state.
    fn leave_threads(&self, how: HandoverState) -> Result<Vec<(Tid, Original)>, ActError> {
        let members = match &self.threads {
            HeldThreads::Tree(tree) => return tree.leave(how),
            HeldThreads::Each(members) => members,
        };
        let mut changed = Vec::new();
        for held in members {
            match held.leave(how) {
                Err(error) if !error.means_gone() => return Err(error),
                original => changed.extend(original.ok().map(|it| (held.thread().tid(), it))),
            }
        }
        Ok(changed)
    }

    /// Waits until orders that are being carried out are complete, and cancels all later orders.
    /// Called before the threads are restored one by one. Otherwise a late order could stop one
    /// thread, and with it the whole process.
    pub(crate) fn take_no_more_orders(&self) {
        self.state().is_news(u64::MAX);
    }

    /// Stops all threads of a process, each by a signal of its own. If only one thread got a
    /// signal, the others would continue until that thread runs, which can take milliseconds if
    /// another thread has the CPU. If the vCPU is a process tree, freezes the tree as a whole
    /// instead.
    fn hold_back(&self, state: &mut HandleState) -> Result<(), ActError> {
        let members = match &self.threads {
            HeldThreads::Tree(tree) => {
                tree.hold_back()?;
                state.is_held = true;
                return Ok(());
            }
            HeldThreads::Each(members) => members,
        };
        let Some((first, others)) = members.split_first() else { return Ok(()) };
        first.hold_back()?;
        if std::mem::replace(&mut state.is_held, true) {
            return Ok(());
        }
        for held in others {
            match held.stop_as_well() {
                Ok(()) | Err(ActError::Gone { .. }) => {}
                // The signal to the first thread also stops all others, only later.
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Locks the state, so that orders from several CPUs are carried out one after another. The
    /// lock can be taken even after a thread panicked in the middle of an order. At worst, one
    /// superfluous system call is made.
    fn state(&self) -> MutexGuard<'_, HandleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HandleState {
    /// Returns true if an order has a higher number than all earlier orders for this vCPU, so that
    /// it must be carried out.
    fn is_news(&mut self, number: u64) -> bool {
        let is_news = number > self.number;
        self.number = self.number.max(number);
        is_news
    }
}
