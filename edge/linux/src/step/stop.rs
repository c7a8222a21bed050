//! `SIGSTOP` and `SIGCONT`. Acts on the whole process, whichever of its threads is named.
//!
//! The stop signal is sent to one thread and not to the process as a whole. If it were sent to the
//! process, the kernel would let the first thread take it. The other threads would run until that
//! thread has been scheduled, which may never happen behind a real-time vCPU thread on its CPU. The
//! vCPU thread takes the signal before its next instruction and stops all others.
//!
//! Other processes can see this: the parent is notified by `SIGCHLD` and `wait`, and a shell with
//! job control treats the process as suspended.

use rustix::process::Signal;

use super::{Act, ActError};
use crate::thread::ThreadRef;

/// Stop of the process of one thread, by signals.
#[derive(Debug)]
pub struct Stop {
    thread: ThreadRef,
    stopped: bool,
}

impl Stop {
    /// Creates the orders for the process of `thread`, which is not stopped now.
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

    /// Sends the stop signal to another thread of a process, in addition to a stop that is under
    /// way.
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
            // Through the process: the thread that took the stop may have exited since.
            let sent = self.thread.process_descriptor().signal_process(Signal::CONT);
            sent.map_err(|source| ActError::new(self.thread.tid(), Act::Continue, source))?;
            self.stopped = false;
        }
        Ok(())
    }
}
