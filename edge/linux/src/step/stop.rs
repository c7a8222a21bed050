//! `SIGSTOP` and `SIGCONT`. Acts on the whole process, whichever of its threads is meant.
//!
//! The stop signal is sent to the one thread, not to the process. Sent to the process, the kernel
//! lets the first thread take it, and the others run on until that one has been scheduled: behind a
//! real-time vCPU thread on its own CPU that may be never. Sent to the vCPU thread, that thread
//! takes it before its next instruction and stops all others.
//!
//! Visible to others: the parent is told by `SIGCHLD` and `wait`, and a shell with job control
//! takes the process for suspended.

use rustix::process::Signal;

use super::{Act, ActError};
use crate::thread::ThreadRef;

/// Stops and continues the process of one thread.
#[derive(Debug)]
pub struct Stop {
    thread: ThreadRef,
    stopped: bool,
}

impl Stop {
    /// For a process that is not stopped now.
    #[must_use]
    pub fn new(thread: ThreadRef) -> Stop {
        Stop { thread, stopped: false }
    }

    /// Stops all threads of the process.
    ///
    /// # Errors
    /// When the thread has exited, or the kernel refuses.
    pub fn stop(&mut self) -> Result<(), ActError> {
        if !self.stopped {
            let sent = self.thread.descriptor().signal(Signal::STOP);
            sent.map_err(|source| ActError::new(self.thread.tid(), Act::Stop, source))?;
            self.stopped = true;
        }
        Ok(())
    }

    /// Sends the stop signal to another thread of the process, which is being stopped.
    ///
    /// # Errors
    /// When that thread has exited, or the kernel refuses.
    pub fn as_well(thread: &ThreadRef) -> Result<(), ActError> {
        let sent = thread.descriptor().signal(Signal::STOP);
        sent.map_err(|source| ActError::new(thread.tid(), Act::Stop, source))
    }

    /// Lets all threads of the process run.
    ///
    /// # Errors
    /// When the process has exited, or the kernel refuses.
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
