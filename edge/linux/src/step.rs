//! Steps: the system calls that carry out an order to a thread. Each kind of step has one module:
//!
//! - [`priority`]: real-time priority and affinity. Acts on one thread.
//! - [`stop`]: `SIGSTOP` and `SIGCONT`. Acts on the whole process.
//! - [`freezer`]: the cgroup freezer. Acts on one thread.
//!
//! A step remembers the last state that it set, and makes no system call that would change nothing.
//! If the kernel refuses a call, the call is made again at the next order. Dropping a step does not
//! restore the thread. The fence (keeper process and journal) restores the thread, independently of
//! the step.

pub mod freezer;
pub mod priority;
pub mod stop;

use std::fmt;
use std::io;

use slackline_units::CpuId;
use thiserror::Error;

use crate::sys::{Scheduling, SchedulingOf, Tid};
use crate::thread::means_gone;

/// Method by which a thread is stopped between the end of its slice and its next period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// No stop: work-conserving. At the end of its slice the thread returns to its original
    /// scheduling and may use slack.
    Nothing,
    /// A signal stops the whole process. Suitable for a process with a single thread.
    Process,
    /// Only the thread is frozen, and the other threads of its process continue. Suitable for one
    /// vCPU of a VM.
    Thread,
}

/// A real-time priority under `SCHED_FIFO`: 1 to 99, higher is more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FifoPriority(u8);

impl FifoPriority {
    /// Priority of dispatchers, above all threads that they schedule.
    pub const DISPATCHER: FifoPriority = FifoPriority(99);
    /// Priority of the keeper process. It is lower than the priority of the dispatchers, and higher
    /// than those of all threads that the keeper may have to restore.
    pub const KEEPER: FifoPriority = FifoPriority(98);
    /// Highest priority of a vCPU. The vCPU that the policy chose has this priority.
    /// [`Ladder`](priority::Ladder) assigns lower priorities to the other vCPUs.
    pub const CHOSEN: FifoPriority = FifoPriority(97);

    /// Creates a priority from its number. `None` if the kernel has no such priority.
    #[must_use]
    pub const fn new(number: u8) -> Option<FifoPriority> {
        if number >= 1 && number <= 99 { Some(FifoPriority(number)) } else { None }
    }

    /// Returns the number of the priority.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// Ordinary scheduling class with nice value 0. A thread gets this class if the kernel refuses to
/// restore its original class.
pub const ORDINARY: SchedulingOf =
    SchedulingOf { class: Scheduling::Other { nice: 0 }, reset_on_fork: false };

/// Returns true if a thread with this class and priority has precedence over all vCPUs. Such a
/// thread may also have precedence over dispatchers.
#[must_use]
pub fn outranks_vcpus(class: Scheduling) -> bool {
    let most = u32::from(FifoPriority::CHOSEN.number()) + 1;
    match class {
        Scheduling::Fifo { priority } | Scheduling::RoundRobin { priority } => priority > most,
        Scheduling::Deadline { .. } => true,
        _ => false,
    }
}

/// Action on a thread, as named in error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Makes the thread real-time.
    Raise(FifoPriority),
    /// Reserves CPU time for the thread.
    Reserve,
    /// Gives the thread the highest priority among ordinary threads.
    Favour,
    /// Gives the thread a lower priority than all ordinary threads.
    Defer,
    /// Restores the original scheduling of the thread, whether its priority was raised or lowered.
    Lower,
    /// Pins the thread to one CPU.
    Pin(CpuId),
    /// Restricts the thread to some CPUs.
    Confine,
    /// Restores the original affinity of the thread.
    Unpin,
    /// Stops the whole process of the thread.
    Stop,
    /// Continues the whole process of the thread.
    Continue,
    /// Freezes only the thread, not the rest of its process.
    Freeze,
    /// Thaws only the thread, not the rest of its process.
    Thaw,
}

impl fmt::Display for Act {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Raise(priority) => write!(out, "set SCHED_FIFO priority {} of", priority.0),
            Act::Reserve => out.write_str("reserve CPU time for"),
            Act::Favour => out.write_str("raise the nice priority of"),
            Act::Defer => out.write_str("lower the nice priority of"),
            Act::Lower => out.write_str("restore the scheduling class of"),
            Act::Pin(cpu) => write!(out, "set the affinity to {cpu} of"),
            Act::Confine => out.write_str("set the affinity of"),
            Act::Unpin => out.write_str("restore the affinity of"),
            Act::Stop => out.write_str("stop the process of"),
            Act::Continue => out.write_str("continue the process of"),
            Act::Freeze => out.write_str("freeze"),
            Act::Thaw => out.write_str("thaw"),
        }
    }
}

/// Reason why an order to a thread was not carried out. The order has not changed the thread.
#[derive(Debug, Error)]
pub enum ActError {
    /// The thread has exited.
    #[error("thread {tid} has exited")]
    Gone {
        /// Id of the thread.
        tid: Tid,
    },
    /// The kernel refused the action.
    #[error("cannot {act} thread {tid}")]
    Refused {
        /// Id of the thread.
        tid: Tid,
        /// Action that was refused.
        act: Act,
        /// Error of the kernel.
        source: io::Error,
    },
    /// Slackline has restored the thread's original scheduling, so further orders to the thread are
    /// refused.
    #[error("cannot schedule thread {tid}: Slackline has restored its original scheduling")]
    GivenBack {
        /// Id of the thread.
        tid: Tid,
    },
    /// The thread is held with [`Hold::Nothing`], which means that it is never stopped. So an order
    /// to stop it fails.
    #[error("cannot stop thread {tid}: only threads with a hard limit are stopped")]
    NeverHeldBack {
        /// Id of the thread.
        tid: Tid,
    },
}

impl ActError {
    /// Returns true if the error means that the thread has exited, or that Slackline has restored
    /// it.
    #[must_use]
    pub fn means_gone(&self) -> bool {
        matches!(self, ActError::Gone { .. } | ActError::GivenBack { .. })
    }

    /// Returns true if the caller can continue after this error. The caller then treats the vCPU as
    /// blocked and repeats the order later.
    ///
    /// Returns false if the refused order would have lowered the thread's priority, or resumed or
    /// restored the thread. Without such an order, a real-time thread could keep all other threads
    /// from running. Also returns false if the thread has exited or was restored.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            ActError::Refused { act, .. } => {
                matches!(
                    act,
                    Act::Raise(_)
                        | Act::Reserve
                        | Act::Pin(_)
                        | Act::Confine
                        | Act::Stop
                        | Act::Freeze
                )
            }
            ActError::NeverHeldBack { .. } => true,
            ActError::Gone { .. } | ActError::GivenBack { .. } => false,
        }
    }

    /// Creates the error for an action on a thread that the kernel refused with the error `source`.
    #[must_use]
    pub fn new(tid: Tid, act: Act, source: io::Error) -> ActError {
        if means_gone(&source) {
            ActError::Gone { tid }
        } else {
            ActError::Refused { tid, act, source }
        }
    }
}
