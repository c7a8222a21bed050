//! What a guest tells about its tasks, and what the domain that does I/O for others tells about
//! what waits for them.
//!
//! Source: Kim, Kim, Jeon, Seo and Lee, 2008, section 3: a guest keeps a few tasks of its run queue
//! and of its wait queue in memory that the host reads, and those that I/O has lately woken.

use crate::{DomId, TaskId, Urgency};

/// How many tasks a guest tells of at most, of each kind.
pub const TASKS: usize = 5;

/// Something that a vCPU tells the host. Nobody vouches for it: a policy that listens decides how
/// far it believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A guest: the tasks of the vCPU that tells it. It replaces what that vCPU told before.
    Tasks(Tasks),
    /// A domain that does I/O for others: what waits for one of them.
    Pending(Pending),
}

/// The most urgent tasks of a guest, as it sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Those that want the CPU, the one that has it among them, most urgent first.
    pub runnable: [Option<Task>; TASKS],
    /// Those that wait for something, most urgent first.
    pub blocked: [Option<Task>; TASKS],
    /// Those that the end of some I/O has woken, the latest first, whether they still run or not.
    pub woken: [Option<TaskId>; TASKS],
}

/// How much I/O has been done for a domain of which the domain has not taken notice yet: packets
/// received, requests answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// For whom.
    pub domain: DomId,
    /// How many items wait.
    pub items: u32,
    /// How much the domain has asked for itself since it is there: packets sent, disks read. Only
    /// that it grows means anything, and it begins anew where it does not fit any more.
    pub asked: u32,
    /// For which of its tasks that is what waits, as far as it is known, no task twice: who waits
    /// for an answer, or for requests where they come.
    pub tasks: [Option<TaskId>; TASKS],
}

impl Pending {
    /// Nothing has ever waited for that domain.
    #[must_use]
    pub const fn nothing(domain: DomId) -> Pending {
        Pending { domain, items: 0, asked: 0, tasks: [None; TASKS] }
    }
}

/// A task of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Which one, by the number that its guest gives it.
    pub id: TaskId,
    /// How urgent the guest calls it.
    pub urgency: Urgency,
}
