//! Enforcement of orders: the system calls by which threads are made to run or kept from running.
//! Each mechanism has one file:
//!
//! - [`fifo`]: real-time priority for entitled vCPUs, a stop for those that must not run.
//!
//! A [`Way`] receives the changes on one CPU and returns the orders that the kernel refused. It
//! uses the steps in [`step`](slackline_linux::step).

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

/// Mechanism that enforces the host's orders on threads.
pub(crate) trait Way: Send + Sync {
    /// Carries out the changes on one CPU in the given order. vCPUs that lose the CPU come first,
    /// then the chosen vCPU, then those in line behind it. Appends to `failed` the vCPUs for which
    /// the kernel refused something. All other vCPUs are then in the state that was ordered.
    fn enforce_orders(&self, order: &[Assignment], failed: &mut Vec<FailedAssignment>);
}

/// Order that puts one vCPU in a state from now on.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub(crate) handle: Arc<VcpuHandle>,
    /// Sequence number of the assignment. Of two assignments to a vCPU the one with the higher
    /// number is valid, in whichever order they arrive.
    pub(crate) number: u64,
    /// CPU that the vCPU is pinned to, as numbered by the kernel. `None` if it is not pinned.
    pub(crate) cpu: Option<CpuId>,
    pub(crate) place: Place,
    /// Threads of a tree that are to run first, in this order, if this assignment begins a
    /// timeslice.
    pub(crate) front: Vec<Tid>,
    /// Mode of the timeslice: the first of these threads runs for all of it, or the threads share
    /// it.
    pub(crate) timeslice: Timeslice,
}

/// Class in which a vCPU is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Real-time: the chosen vCPU, or the next in line after the one assigned before it.
    InLine,
    /// Highest priority among ordinary threads. Used while a vCPU pays the CPU time that the kernel
    /// reserves for threads that are not real-time.
    First,
    /// Original scheduling of the threads.
    Original,
    /// Lowest priority, behind all ordinary threads. Used while another vCPU has the CPU and this
    /// one waits for its part of the slack.
    Behind,
    /// Stopped: the vCPU does not run at all.
    Held,
}

/// Assignment that the kernel refused.
#[derive(Debug)]
pub(crate) struct FailedAssignment {
    pub(crate) handle: Arc<VcpuHandle>,
    pub(crate) error: ActError,
}

/// Threads of a vCPU, and the state that orders have put them in.
#[derive(Debug)]
pub(crate) struct VcpuHandle {
    pub(crate) vcpu: VcpuId,
    pub(crate) threads: HeldThreads,
    state: Mutex<HandleState>,
}

/// Threads that one order for a vCPU applies to.
#[derive(Debug)]
pub(crate) enum HeldThreads {
    /// Each of these threads.
    Each(Vec<HeldThread>),
    /// All threads of a tree at once.
    Tree(HeldTree),
}

/// Affinity that the threads of a vCPU had before it was changed.
#[derive(Debug)]
pub(crate) enum KeptOn {
    /// Affinity of each thread, in order.
    Threads(Vec<CpuSet>),
    /// Affinity of a whole tree. `None` stands for the original affinity of each thread.
    Tree(Option<CpuSet>),
}

/// State of a vCPU as last ordered.
#[derive(Debug, Default)]
pub(crate) struct HandleState {
    /// Number of the latest assignment.
    number: u64,
    /// Real-time priority. `None` while the vCPU is not real-time.
    priority: Option<FifoPriority>,
    /// True while the vCPU is stopped.
    is_held: bool,
    /// Notices of CPU time received while the vCPU counts as blocked. `None` without a hard limit.
    notice: Option<UseNotice>,
}

impl VcpuHandle {
    pub(crate) fn new(vcpu: VcpuId, threads: HeldThreads) -> VcpuHandle {
        VcpuHandle { vcpu, threads, state: Mutex::default() }
    }

    /// Sets up notices: the kernel wakes the vCPU's dispatcher each time the vCPU has received this
    /// much CPU time while it counts as blocked. `None` ends them.
    ///
    /// # Errors
    /// If the kernel does not support such notices. There are none then.
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

    /// Limits the vCPU's threads to these CPUs, as numbered by the kernel, and voids all orders up
    /// to `number`. Returns the affinity that the threads had before. If the call fails, that
    /// affinity is restored.
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
                // The thread has exited: nothing can be done to it, and nothing need be.
                Err(ActError::Gone { .. }) => before.push(cpus),
                Err(error) => {
                    self.put_back(&KeptOn::Threads(before));
                    return Err(error);
                }
            }
        }
        Ok(KeptOn::Threads(before))
    }

    /// Tests whether the kernel allows the vCPU's threads to be real-time at all. Restores the
    /// threads afterwards.
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

    /// Restores the affinity that the vCPU's threads had before. Errors are ignored: the kernel
    /// allowed that affinity then, and if it refuses it now, there is no remedy.
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
            _ => unreachable!("a vCPU does not change what it is made of"),
        }
    }

    /// Stops the vCPU and voids all orders up to `number`. All threads get the stop at once: each
    /// takes the signal before its next instruction, whichever of them runs first.
    pub(crate) fn stop(&self, number: u64) -> Result<(), ActError> {
        let mut state = self.state();
        state.is_news(number);
        self.hold_back(&mut state)
    }

    /// Leaves the vCPU's threads to the program that has changed them and voids all orders up to
    /// `number`. Returns the new state to which each changed thread will be restored in the end.
    pub(crate) fn leave(
        &self,
        number: u64,
        how: HandoverState,
    ) -> Result<Vec<(Tid, Original)>, ActError> {
        let mut state = self.state();
        state.is_news(number);
        state.priority = None;
        state.is_held &= how.stays_stopped;
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

    /// Waits until orders under way have been carried out, and voids all later ones. An order that
    /// is carried out while threads are restored one by one would stop those not restored yet, and
    /// with them the whole process.
    pub(crate) fn take_no_more_orders(&self) {
        self.state().is_news(u64::MAX);
    }

    /// Stops all threads of a process, each by a signal of its own. If only one thread got a
    /// signal, the others would run until that thread is scheduled. That may take milliseconds if
    /// another thread has the CPU. A process tree is frozen as a whole instead.
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
                // The signal to the first thread stops them all, if later.
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Locks the state, so that orders from several CPUs are carried out one after another. A panic
    /// in the middle of an order causes at worst one superfluous system call.
    fn state(&self) -> MutexGuard<'_, HandleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HandleState {
    /// Returns true if an assignment has a higher number than all assignments to this vCPU before
    /// it.
    fn is_news(&mut self, number: u64) -> bool {
        let is_news = number > self.number;
        self.number = self.number.max(number);
        is_news
    }
}
