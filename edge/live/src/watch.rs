//! Scheduling events of threads, as the kernel reports them. The sources are:
//!
//! - [`perf`]: every context switch, and the wake-ups of watched threads, from perf events.
//! - [`host`]: context switches and wake-ups of all threads of a host, without a filter.
//! - [`fed`]: events supplied by a test or a bench.
//! - `notice`: CPU time that a vCPU received while it counted as blocked.
//!
//! An [`EventSource`] covers one CPU. It delivers the events of all threads on that CPU, and the
//! caller selects the events of the threads that it schedules.

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
    /// Thread that the event concerns.
    pub tid: Tid,
    /// CPU on which the thread was switched in or out. For a wake-up, the CPU on which the thread
    /// will run.
    pub cpu: CpuId,
    /// Kind of the event.
    pub what: ThreadEventKind,
}

/// Kind of an event of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadEventKind {
    /// The thread starts to run.
    SwitchedIn,
    /// The thread stops running on its CPU.
    SwitchedOut {
        /// True if the thread was preempted and is still runnable.
        ready: bool,
    },
    /// The thread wakes: it becomes runnable and needs a CPU.
    Woke,
    /// The thread started another thread, possibly of a new process. The new thread has not run
    /// yet.
    Forked {
        /// Id of the new thread.
        child: Tid,
    },
    /// The thread is exiting. The next time that it leaves its CPU and is not runnable, it has
    /// ended.
    Ending,
}

/// Source of the scheduling events of one CPU.
pub trait EventSource: Send {
    /// Delivers the events since the last call, oldest first.
    ///
    /// # Errors
    /// [`WatchError::Garbled`] if a record cannot be parsed. Events that were read before the error
    /// are delivered.
    fn drain(&mut self, each: &mut dyn FnMut(Event)) -> Result<DrainReport, WatchError>;

    /// Returns true if the source has events that were not delivered yet.
    fn has_unread(&self) -> bool;
}

/// Result of reading the events of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// Minimum number of records that were lost for lack of space. The kernel reports the number of
    /// lost records only with the next record that fits into the ring. Before that report, a full
    /// ring is taken as one lost record. If records were lost, the state of each thread on the CPU
    /// is unknown until the thread's next event.
    pub lost: u64,
}
