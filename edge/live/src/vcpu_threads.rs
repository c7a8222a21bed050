//! What is scheduled as one vCPU: the threads of it, and what each has used.

use std::io;

use slackline_units::{CpuSet, Span, Time, VcpuId};

use crate::fence::Held;
use crate::sys::{ThreadClock, Tid};
use crate::thread::Stat;
use crate::way::{ActError, FifoPriority};

/// A vCPU as the live host sees it: one thread, or a process whose threads are one subject.
#[derive(Debug)]
pub(crate) struct VcpuThreads {
    pub(crate) vcpu: VcpuId,
    pub(crate) members: Vec<Member>,
    /// Whether it can be kept from running.
    pub(crate) exact: bool,
    /// How urgent it was made, while it is real-time.
    pub(crate) priority: Option<FifoPriority>,
}

impl VcpuThreads {
    /// Keeps its threads on these CPUs of the machine; says where each of them was kept before. On
    /// failure they are there again.
    pub(crate) fn confine(&self, cpus: CpuSet) -> Result<Vec<CpuSet>, ActError> {
        let mut before = Vec::with_capacity(self.members.len());
        for member in &self.members {
            match member.held.confine(cpus) {
                Ok(from) => before.push(from),
                // Nothing can be done to it any more, and nothing need be.
                Err(ActError::Gone { .. }) => before.push(cpus),
                Err(error) => {
                    self.put_back(&before);
                    return Err(error);
                }
            }
        }
        Ok(before)
    }

    /// Keeps its threads where they were kept before. They were allowed there then, so that what is
    /// refused now nobody could do anything about.
    pub(crate) fn put_back(&self, before: &[CpuSet]) {
        for (member, &cpus) in self.members.iter().zip(before) {
            let _ = member.held.confine(cpus);
        }
    }

    /// Keeps it from running, all its threads at once: each takes the signal before its next
    /// instruction, whichever of them gets to run first.
    pub(crate) fn stop(&self) -> Result<(), ActError> {
        let Some((first, others)) = self.members.split_first() else { return Ok(()) };
        first.held.hold_back()?;
        for member in others {
            match member.held.stop_as_well() {
                Ok(()) | Err(ActError::Gone { .. }) => {}
                // The first one stops them all, if later.
                Err(_) => break,
            }
        }
        Ok(())
    }
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

/// One thread of a subject.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) held: Held,
    pub(crate) is_awake: bool,
    /// What it has used, as the kernel counts it: without interrupts, and without what a
    /// hypervisor below took away.
    pub(crate) clock: ThreadClock,
    /// What the clock showed when it was last read.
    pub(crate) used: Span,
    /// When it joined, until its first switch since: its clock may have been behind then, by time
    /// that it used before.
    pub(crate) joined: Option<Time>,
}

impl Member {
    /// What it has used since this was last asked. A thread that has ended uses nothing any more.
    pub(crate) fn more(&mut self) -> Result<Span, Unreadable> {
        let tid = self.held.thread().tid();
        match self.clock.read() {
            Ok(now) => Ok(now.left_after(std::mem::replace(&mut self.used, now))),
            Err(_) if self.held.thread().is_gone().unwrap_or(false) => Ok(Span::ZERO),
            Err(source) => Err(Unreadable { tid, source }),
        }
    }

    /// Whether it has work now. A thread that has ended has none.
    pub(crate) fn is_runnable(&self) -> Result<bool, Unreadable> {
        let thread = self.held.thread();
        match Stat::of(thread.pid(), thread.tid()) {
            Ok(stat) => Ok(stat.runnable()),
            Err(_) if thread.is_gone().unwrap_or(false) => Ok(false),
            Err(source) => Err(Unreadable { tid: thread.tid(), source }),
        }
    }
}
