//! What threads do, learned from the kernel: one file a source.
//!
//! - [`perf`]: every switch and wake, from the kernel's perf events.
//! - [`host`]: the same of all threads of a host, wakes without a filter.
//! - [`fed`]: what a test or a bench says that happens.
//! - `notice`: that a vCPU received CPU time though it was taken to be blocked.
//!
//! A source is of one CPU. It tells of everybody there, ours or not: whoever drains it knows whom
//! to keep.

pub mod fed;
pub mod host;
pub(crate) mod notice;
pub mod perf;
pub mod tap;

use slackline_units::{CpuId, Time};

use perf::WatchError;
use slackline_linux::sys::Tid;

/// Something a thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, on `CLOCK_MONOTONIC`.
    pub at: Time,
    /// Which thread.
    pub tid: Tid,
    /// Where: the CPU it was switched in or out on or, having been woken, waits on.
    pub cpu: CpuId,
    /// What.
    pub what: What,
}

/// What a thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It began to run.
    SwitchedIn,
    /// It ceased to run.
    SwitchedOut {
        /// Whether it was made to, and still wants the CPU.
        ready: bool,
    },
    /// Its sleep ended: it wants a CPU.
    Woke,
    /// It started another thread, perhaps as a process of its own, which has not run yet.
    Forked {
        /// The new one.
        child: Tid,
    },
    /// It is ending: when it next leaves the CPU and is not ready, it is gone.
    Ending,
}

/// The events that are carried out on one CPU.
pub trait EventSource: Send {
    /// Hands out the events since the last time, oldest first.
    ///
    /// # Errors
    /// [`WatchError::Garbled`]; what could be read is handed out all the same.
    fn drain(&mut self, each: &mut dyn FnMut(Event)) -> Result<Drained, WatchError>;
}

/// What one drain amounted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// How many records there was no room for, at least: the kernel tells with the next record that
    /// finds room, and until then a ring found full counts as one. Unless this is zero, what any
    /// thread does there is unknown until its next event.
    pub lost: u64,
}
