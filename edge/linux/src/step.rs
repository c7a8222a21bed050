//! What is done to one thread, one file a step:
//!
//! - [`priority`]: real-time priority and affinity. Acts on one thread.
//! - [`stop`]: `SIGSTOP` and `SIGCONT`. Acts on the whole process.
//! - [`freezer`]: the cgroup freezer. Acts on one thread.
//!
//! Each remembers what it last set and makes no call that would change nothing. A call that the
//! kernel refused changes nothing, and is made again when asked for again. None of them gives a
//! thread back by being dropped: that is the fence's work, which does not rely on memory.

pub mod freezer;
pub mod priority;
pub mod stop;

use std::fmt;
use std::io;

use slackline_units::CpuId;
use thiserror::Error;

use crate::sys::Tid;
use crate::thread::means_gone;

/// How a thread that has used its slice is kept from running until it is let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Not at all: it goes back to its original scheduling and uses what others leave
    /// (work-conserving).
    Nothing,
    /// Its whole process is stopped by signal. Right for a process of one thread.
    Process,
    /// It alone is frozen; the other threads of its process run on. Right for one vCPU of a VM.
    Thread,
}

/// A real-time priority under `SCHED_FIFO`: 1 to 99, more is more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FifoPriority(u8);

impl FifoPriority {
    /// The dispatchers: above everything they schedule.
    pub const DISPATCHER: FifoPriority = FifoPriority(99);
    /// The keeper: below the dispatchers, above what it may have to give back.
    pub const KEEPER: FifoPriority = FifoPriority(98);
    /// The most urgent that a vCPU is made; [`Ladder`](priority::Ladder) has those below it.
    pub const CHOSEN: FifoPriority = FifoPriority(97);

    /// The priority with this number, or none if the kernel has none such.
    #[must_use]
    pub const fn new(number: u8) -> Option<FifoPriority> {
        if number >= 1 && number <= 99 { Some(FifoPriority(number)) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// Something done to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Make it real-time.
    Raise(FifoPriority),
    /// Reserve CPU time for it.
    Reserve,
    /// Make it the first of the ordinary ones.
    Favour,
    /// Put it behind all ordinary ones.
    Defer,
    /// Give it its original scheduling again.
    Lower,
    /// Keep it on one CPU.
    Pin(CpuId),
    /// Keep it on some CPUs.
    Confine,
    /// Let it run on its original CPUs again.
    Unpin,
    /// Stop its process.
    Stop,
    /// Continue its process.
    Continue,
    /// Freeze it.
    Freeze,
    /// Thaw it.
    Thaw,
}

impl fmt::Display for Act {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Raise(priority) => write!(out, "raise to FIFO {}", priority.0),
            Act::Reserve => out.write_str("reserve CPU time for"),
            Act::Favour => out.write_str("favour"),
            Act::Defer => out.write_str("defer"),
            Act::Lower => out.write_str("restore the scheduling of"),
            Act::Pin(cpu) => write!(out, "pin to {cpu}"),
            Act::Confine => out.write_str("confine to some CPUs"),
            Act::Unpin => out.write_str("restore the affinity of"),
            Act::Stop => out.write_str("stop the process of"),
            Act::Continue => out.write_str("continue the process of"),
            Act::Freeze => out.write_str("freeze"),
            Act::Thaw => out.write_str("thaw"),
        }
    }
}

/// Why an order was not carried out. The thread is as it was before.
#[derive(Debug, Error)]
pub enum ActError {
    /// The thread has exited.
    #[error("thread {tid} has exited")]
    Gone {
        /// The thread.
        tid: Tid,
    },
    /// The kernel refused.
    #[error("cannot {act} thread {tid}")]
    Refused {
        /// The thread.
        tid: Tid,
        /// What was asked.
        act: Act,
        /// What the kernel said.
        source: io::Error,
    },
    /// The thread was given back, and is no longer ours to touch.
    #[error("thread {tid} is restored and no longer held")]
    GivenBack {
        /// The thread.
        tid: Tid,
    },
    /// It is held so that it always may use what others leave.
    #[error("cannot stop thread {tid}: it is held in a way that never stops it")]
    NeverHeldBack {
        /// The thread.
        tid: Tid,
    },
}

impl ActError {
    /// Whether there is no thread any more that could be ordered about.
    #[must_use]
    pub fn means_gone(&self) -> bool {
        matches!(self, ActError::Gone { .. } | ActError::GivenBack { .. })
    }

    /// Whether the vCPU can do without: it is not run until this is tried again. Whoever cannot be
    /// made ordinary again would keep everybody else from running.
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

    /// The kernel's answer to `act`.
    #[must_use]
    pub fn new(tid: Tid, act: Act, source: io::Error) -> ActError {
        if means_gone(&source) {
            ActError::Gone { tid }
        } else {
            ActError::Refused { tid, act, source }
        }
    }
}
