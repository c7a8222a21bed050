//! How orders become true: what is done to threads so that they run, or do not. One file a way:
//!
//! - [`fifo`]: real-time priority for whoever is due, a stop for whoever must not run.
//!
//! A [`Way`] is told what has changed on one CPU, and says what the kernel refused. It is made of
//! the steps in [`step`](slackline_linux::step).

pub(crate) mod fifo;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slackline_units::{CpuId, CpuSet, Span, VcpuId};

use crate::watch::notice::{NoticeOf, UseNotice};
use crate::watch::perf::UseRings;
use slackline_fence::{Held, HeldTree, Leaving, Original, Timeslice};
use slackline_linux::step::priority::Ladder;
use slackline_linux::step::{ActError, FifoPriority};
use slackline_linux::sys::Tid;

/// What carries orders out.
pub(crate) trait Way: Send + Sync {
    /// Carries out what has changed on one CPU: first those who give way, then those who are to
    /// run, the chosen one before those in line behind it. Those of whom the kernel refused
    /// something are added to `failed`; the others are as they were told to be.
    fn carry_out(&self, order: &[Assignment], failed: &mut Vec<Failed>);
}

/// What one vCPU is to be from now on.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub(crate) handle: Arc<VcpuHandle>,
    /// Counts up: of two that overtake each other the later one holds.
    pub(crate) number: u64,
    /// The CPU of this machine that it is kept on, if it is kept on one.
    pub(crate) cpu: Option<CpuId>,
    pub(crate) place: Place,
    /// The threads of a tree that are to run first if it begins a timeslice, in this order.
    pub(crate) front: Vec<Tid>,
    /// How the first of them uses the timeslice.
    pub(crate) timeslice: Timeslice,
}

/// Where a vCPU stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is due: the chosen one, or next in line after the one assigned before it.
    InLine,
    /// Before all ordinary threads: it pays what the kernel keeps of the CPU for others than
    /// real-time threads.
    First,
    /// Where it was before it was ours.
    Original,
    /// Behind all ordinary threads: it waits for its part of spare time, which another one has now.
    Behind,
    /// It does not run at all.
    Held,
}

/// An assignment that the kernel refused.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) handle: Arc<VcpuHandle>,
    pub(crate) error: ActError,
}

/// What a way gets hold of a vCPU by.
#[derive(Debug)]
pub(crate) struct VcpuHandle {
    pub(crate) vcpu: VcpuId,
    pub(crate) threads: HeldThreads,
    state: Mutex<HandleState>,
}

/// What of a vCPU is ordered about.
#[derive(Debug)]
pub(crate) enum HeldThreads {
    /// Each of these threads.
    Each(Vec<Held>),
    /// All of a tree at once.
    Tree(HeldTree),
}

/// Where the threads of a vCPU were kept before.
#[derive(Debug)]
pub(crate) enum KeptOn {
    /// Each of them.
    Threads(Vec<CpuSet>),
    /// All of a tree; none is where each was.
    Tree(Option<CpuSet>),
}

/// What a way remembers of a vCPU.
#[derive(Debug, Default)]
pub(crate) struct HandleState {
    /// The last assignment.
    number: u64,
    /// How urgent it was made, while it is real-time.
    priority: Option<FifoPriority>,
    /// Whether it is kept from running.
    is_held: bool,
    /// Notices of CPU time that it receives while it is taken to be blocked, if it is exact.
    notice: Option<UseNotice>,
}

impl VcpuHandle {
    pub(crate) fn new(vcpu: VcpuId, threads: HeldThreads) -> VcpuHandle {
        VcpuHandle { vcpu, threads, state: Mutex::default() }
    }

    /// Has its dispatcher woken whenever it has received so much CPU time while it is taken to be
    /// blocked, or no longer.
    ///
    /// # Errors
    /// If the kernel cannot do that. Nothing is noticed.
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

    /// Keeps its threads on these CPUs of the machine, whatever orders before `number` said; says
    /// where each of them was kept before. On failure they are there again.
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
                // Nothing can be done to it any more, and nothing need be.
                Err(ActError::Gone { .. }) => before.push(cpus),
                Err(error) => {
                    self.put_back(&KeptOn::Threads(before));
                    return Err(error);
                }
            }
        }
        Ok(KeptOn::Threads(before))
    }

    /// Finds out whether the kernel lets its threads be real-time at all. They are as they were
    /// afterwards.
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

    /// Keeps its threads where they were kept before. They were allowed there then, so that what is
    /// refused now nobody could do anything about.
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

    /// Keeps it from running, whatever orders before `number` said, all its threads at once: each
    /// takes the signal before its next instruction, whichever of them gets to run first.
    pub(crate) fn stop(&self, number: u64) -> Result<(), ActError> {
        let mut state = self.state();
        state.is_news(number);
        self.hold_back(&mut state)
    }

    /// Leaves its threads to whoever has changed them, whatever orders before `number` said.
    /// Returns what threads are given back as that have been changed.
    pub(crate) fn leave(
        &self,
        number: u64,
        how: Leaving,
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

    /// Orders that are under way have been carried out when this returns, and none will be: one
    /// that came in the middle of giving the threads back one by one would stop those that are
    /// left, and with them the process.
    pub(crate) fn take_no_more_orders(&self) {
        self.state().is_news(u64::MAX);
    }

    /// Stops all threads of a process, each by a signal of its own: were it sent to one of them
    /// alone, the others would run on until that one had been scheduled, which where somebody else
    /// has the CPU may take milliseconds. A tree is frozen as a whole.
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
                // The first one stops them all, if later.
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Serialises orders from several CPUs. A panic in the middle of one leaves at worst a call
    /// that is made once too often.
    fn state(&self) -> MutexGuard<'_, HandleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HandleState {
    /// Whether an assignment is later than all before it.
    fn is_news(&mut self, number: u64) -> bool {
        let is_news = number > self.number;
        self.number = self.number.max(number);
        is_news
    }
}
