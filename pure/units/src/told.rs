//! Hints that a guest gives about its tasks, and hints that a driver domain gives about I/O pending
//! for other domains.
//!
//! Source: Kim, Kim, Jeon, Seo and Lee, 2008, section 3. In their design, a guest lists some of its
//! tasks in memory that the host reads. These are a few tasks of its run queue, a few of its wait
//! queue, and the tasks that I/O woke recently.

use crate::{DomId, TaskId, Urgency};

/// Maximum number of tasks of each kind in a hint.
pub const TASKS: usize = 5;

/// Hint from a vCPU to the host. Hints are not verified: each policy decides how far it trusts a
/// hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VcpuHint {
    /// Tasks of the guest. Replaces the hint that the same vCPU sent before.
    Tasks(Tasks),
    /// I/O that is pending in a driver domain for one other domain.
    Pending(Pending),
}

/// Most urgent tasks of a guest, as the guest reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Runnable tasks, including the running task, most urgent first.
    pub runnable: [Option<Task>; TASKS],
    /// Blocked tasks, most urgent first.
    pub blocked: [Option<Task>; TASKS],
    /// Tasks that an I/O completion woke, the latest first. Some of these tasks may have blocked
    /// again since.
    pub woken: [Option<TaskId>; TASKS],
}

/// Completed I/O that a domain has not yet noticed: packets received, requests answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Domain (VM) for which the I/O is pending.
    pub domain: DomId,
    /// Number of pending I/O items.
    pub items: u32,
    /// Number of the domain's own requests since it started, such as packets sent and disk reads.
    /// The number wraps, so only its growth has a meaning.
    pub asked: u32,
    /// Tasks for which the pending items are meant, if these tasks are known, without duplicates.
    /// Such tasks wait for an answer, or for requests to arrive.
    pub tasks: [Option<TaskId>; TASKS],
}

impl Pending {
    /// Returns the report about a domain that never had I/O pending.
    #[must_use]
    pub const fn nothing(domain: DomId) -> Pending {
        Pending { domain, items: 0, asked: 0, tasks: [None; TASKS] }
    }
}

/// Task of a guest, as reported in a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Number that identifies the task within the guest.
    pub id: TaskId,
    /// Urgency of the task as claimed by the guest.
    pub urgency: Urgency,
}
