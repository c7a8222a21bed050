//! Import of recordings that other programs made. The design is Slackline's own, not from a paper.
//!
//! Two formats are read: `perf.data` of `perf sched record`, and the text of ftrace that tracefs,
//! `trace-cmd report` and `perf script` print. Both contain which thread had which CPU, and when
//! threads woke. They do not say which threads are vCPUs. Either the caller names the VMs, or vCPUs
//! are recognised by the names of threads. If no thread has a known name, the busiest processes
//! count as VMs. Every assumption is a note in the header of the trace.
//!
//! `perf.data` is read here and not by the crate `linux-perf-data`. That crate reserves as much
//! memory as counts in the file state, so a damaged count would end the program.

#![forbid(unsafe_code)]

mod bytes;
mod convert;
mod error;
mod foreign;
mod ftrace;
mod perf;
mod place;
mod targets;
mod tracepoint;

pub use convert::Import;
pub use error::ImportError;
pub use targets::{BadTarget, Target};

/// Number of bytes at the start of a file that are enough to recognise a recording.
pub const BEGINS: usize = 4096;

/// Kind of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `perf.data` of `perf sched record`.
    Perf,
    /// Text that ftrace wrote.
    Ftrace,
}

impl Kind {
    /// Recognises the kind of a recording by its first [`BEGINS`] bytes. `None` if the file is no
    /// recording of these kinds.
    #[must_use]
    pub fn of(begin: &[u8]) -> Option<Kind> {
        if perf::is_perf(begin) {
            return Some(Kind::Perf);
        }
        ftrace::is_ftrace(begin).then_some(Kind::Ftrace)
    }

    /// Returns the name of the kind in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Perf => "perf.data",
            Kind::Ftrace => "ftrace text",
        }
    }
}

/// Reads a recording. If there are no targets, VMs are recognised by the names of their threads.
///
/// # Errors
/// If the recording is damaged, has no switches, or does not contain a target.
pub fn read(kind: Kind, bytes: &[u8], targets: &[Target]) -> Result<Import, ImportError> {
    let foreign = match kind {
        Kind::Perf => perf::read(bytes)?,
        Kind::Ftrace => ftrace::read(bytes)?,
    };
    Import::new(foreign.checked()?, targets)
}
