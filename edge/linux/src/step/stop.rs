//! Stopping and continuing with `SIGSTOP` and `SIGCONT`. Both signals act on the whole process,
//! even if they are sent to one of its threads.
//!
//! The stop signal is sent to the vCPU's thread and not to the process. The vCPU's thread takes the
//! signal before its next instruction and stops all other threads. If the signal were sent to the
//! process, the first thread of the process would take it. All threads would then run until the
//! first thread has been scheduled. If a real-time vCPU thread runs on the CPU of the first thread,
//! the first thread may never be scheduled.
//!
//! Other processes can see that the process is stopped: the parent is notified by `SIGCHLD` and
//! `wait`, and a shell with job control treats the process as suspended.

use rustix::process::Signal;

use super::{Act, ActError};
use crate::thread::ThreadRef;

/// State of the orders that stop and continue the process of one thread, by signals.
#[derive(Debug)]
pub struct Stop {
    thread: ThreadRef,
    stopped: bool,
}

impl Stop {
    /// Creates the state for the process of `thread`. The process must not be stopped at that time.
    #[must_use]
    pub fn new(thread: ThreadRef) -> Stop {
        Stop { thread, stopped: false }
    }

    /// Stops all threads of the process.
    ///
    /// # Errors
    /// If the thread has exited, or the kernel refuses.
    pub fn stop(&mut self) -> Result<(), ActError> {
        if !self.stopped {
            let sent = self.thread.descriptor().signal(Signal::STOP);
            sent.map_err(|source| ActError::new(self.thread.tid(), Act::Stop, source))?;
            self.stopped = true;
        }
        Ok(())
    }

    /// Sends the stop signal also to another thread of a process that is being stopped.
    ///
    /// # Errors
    /// If that thread has exited, or the kernel refuses.
    pub fn as_well(thread: &ThreadRef) -> Result<(), ActError> {
        let sent = thread.descriptor().signal(Signal::STOP);
        sent.map_err(|source| ActError::new(thread.tid(), Act::Stop, source))
    }

    /// Lets all threads of the process run.
    ///
    /// # Errors
    /// If the process has exited, or the kernel refuses.
    pub fn go(&mut self) -> Result<(), ActError> {
        if self.stopped {
            // Signal the process, because the thread that took the stop signal may have exited.
            let sent = self.thread.process_descriptor().signal_process(Signal::CONT);
            sent.map_err(|source| ActError::new(self.thread.tid(), Act::Continue, source))?;
            self.stopped = false;
        }
        Ok(())
    }
}
