//! Activity of threads, as the kernel reports it. One file per source:
//!
//! - [`perf`]: every switch and wake, from the kernel's perf events.
//! - [`host`]: switches and wakes of all threads of a host, without a filter.
//! - [`fed`]: events supplied by a test or a bench.
//! - `notice`: CPU time that a vCPU received while it counted as blocked.
//!
//! A source covers one CPU. It reports the events of all threads on that CPU. The caller selects
//! those of watched threads.

pub mod fed;
pub mod host;
pub(crate) mod notice;
pub mod perf;
pub mod tap;

use slackline_units::{CpuId, Time};

use perf::WatchError;
use slackline_linux::sys::Tid;

/// One event of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time of the event, on `CLOCK_MONOTONIC`.
    pub at: Time,
    /// Thread that the event is about.
    pub tid: Tid,
    /// CPU on which the thread was switched in or out or, after a wake, on which it waits to run.
    pub cpu: CpuId,
    /// Kind of the event.
    pub what: ThreadEventKind,
}

/// Kind of an event of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadEventKind {
    /// The thread starts to run.
    SwitchedIn,
    /// The thread ceases to run.
    SwitchedOut {
        /// True if the thread was preempted and is still runnable.
        ready: bool,
    },
    /// The thread wakes: it becomes runnable and needs a CPU.
    Woke,
    /// The thread started another thread, which may be a new process and has not run yet.
    Forked {
        /// Id of the new thread.
        child: Tid,
    },
    /// The thread is exiting. It has ended when it next leaves its CPU without being runnable.
    Ending,
}

/// Source of the scheduling events of one CPU.
pub trait EventSource: Send {
    /// Delivers the events since the last call, oldest first.
    ///
    /// # Errors
    /// [`WatchError::Garbled`]. Events that could be read are delivered before the error is
    /// returned.
    fn drain(&mut self, each: &mut dyn FnMut(Event)) -> Result<DrainReport, WatchError>;
}

/// Result of one drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// Lower bound of the number of records lost for lack of space. The kernel reports losses with
    /// the next record that fits. Until then, a full ring counts as one lost record. Unless the
    /// number is zero, the state of every thread on the CPU is unknown until its next event.
    pub lost: u64,
}
