//! The workload programs of a scenario, as a real process.
//!
//! It does on a real CPU what the simulator does with a vCPU's program in simulated time. Computing
//! is CPU time that the calling thread uses, however long that takes. Sleeping is sleeping.
//! Releases come on a grid that was fixed when the program began, and late work is done back to
//! back, with none left out. All times are on `CLOCK_MONOTONIC`.
//!
//! Finished jobs are reported through a pipe, which never delays the work: notes that its reader is
//! too slow for are dropped and counted.

#![forbid(unsafe_code)]
#![deny(clippy::float_arithmetic)]

pub mod client;
mod clock;
mod disk;
mod done;
mod end;
mod exchange;
pub mod guest;
mod job;
mod net;
pub mod outside;
mod parent;
mod spin;
pub mod system;
mod task;
mod work;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use slackline_scenario::{Program, Step, Stream};
use slackline_units::{Span, Time};
use thiserror::Error;

pub use clock::monotonic;
pub use done::{LoadResults, Responses};
pub use exchange::Node;
pub use job::{JOBS_FD, Job, Note, NoteReader, Ports, jobs_from_environment, jobs_on};
pub use parent::end_with;

use end::End;
use exchange::Exchange;
use job::Reporter;
use work::{Work, takes_time};

/// Start and end of a program, and the reporting of its jobs.
#[derive(Debug, Default)]
pub struct Options {
    /// Start time. `None` starts at once. If it has passed, the program starts late, and the
    /// releases since then are late with it.
    pub start: Option<Time>,
    /// Maximum running time after its start. `None` for no limit.
    pub limit: Option<Span>,
    /// Pipe for finished jobs (see [`NoteReader`]), or anything else that accepts a record whole or
    /// not at all. It is made non-blocking for all processes that share it.
    pub jobs: Option<OwnedFd>,
    /// A load with devices ends when this becomes readable.
    pub stop: Option<OwnedFd>,
    /// Other nodes of the parallel program, for a node of one.
    pub node: Option<Node>,
}

/// Reason why a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The program did its last step.
    Finished,
    /// The program was ended at its limit.
    Limit,
}

/// Results of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Reason why it ended.
    pub ending: Ending,
    /// CPU time that it used.
    pub used: Span,
    /// Time from its start, or its late beginning, to its end.
    pub elapsed: Span,
    /// Number of jobs that it finished.
    pub jobs: u64,
    /// Number of those jobs that could not be reported.
    pub dropped: u64,
}

/// Reason why a program cannot be run, or its jobs cannot be reported.
#[derive(Debug, Error)]
pub enum LoadError {
    /// No step of a program that repeats can take time.
    #[error("the program repeats forever without computing, sleeping or waiting")]
    TakesNoTime,
    /// A recording cannot be read.
    #[error("cannot replay a recording: {reason}")]
    Recording {
        /// Name of the file, and the reason.
        reason: String,
    },
    /// A node of a parallel program does not know the others.
    #[error("a node of a parallel program needs other nodes; none is given")]
    NoNodes,
    /// The environment variable for reporting jobs is malformed.
    #[error("cannot use {JOBS_FD}: `{text}` is not a file descriptor")]
    NoDescriptor {
        /// Value of the variable.
        text: String,
    },
    /// Jobs cannot be reported on the descriptor.
    #[error("cannot report jobs on file descriptor {fd}: {source}")]
    NotWritable {
        /// Number of the descriptor.
        fd: u32,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A finished job could not be reported, although the pipe has a reader.
    #[error("cannot report a finished job: {source}")]
    Report {
        /// Error of the kernel.
        source: io::Error,
    },
    /// A record was written in part, so no reader can parse the rest.
    #[error("cannot report a finished job: only {taken} bytes of the record were written")]
    Torn {
        /// Number of bytes written.
        taken: usize,
    },
    /// The process cannot listen on a port.
    #[error("cannot listen on port {port} of 127.0.0.1: {source}")]
    NoPort {
        /// Number of the port; zero for any.
        port: u16,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The process cannot open a socket for messages.
    #[error("cannot listen at {at}: {source}")]
    NoSocket {
        /// Address of the socket.
        at: SocketAddr,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The process cannot listen for a host.
    #[error("cannot listen at {}: {source}", path.display())]
    NoAgent {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// No process listens at a Unix socket.
    #[error("cannot connect to {}: {source}", at.display())]
    NoOne {
        /// Path of the socket.
        at: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// No server answers for a stream, or for a question to a file server.
    #[error("cannot connect to {to}: {source}")]
    NoServer {
        /// Address of the server.
        to: SocketAddr,
        /// Error of the kernel.
        source: io::Error,
    },
    /// An operation on an open socket failed.
    #[error("cannot use the socket: {source}")]
    Network {
        /// Error of the kernel.
        source: io::Error,
    },
    /// The file to read from cannot be created.
    #[error("cannot create a file of {size} bytes in {}: {source}", folder.display())]
    NoFile {
        /// Folder of the file.
        folder: PathBuf,
        /// Size of the file in bytes.
        size: u64,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("cannot read the temporary file: {source}")]
    Disk {
        /// Error of the kernel.
        source: io::Error,
    },
    /// A thread for a task cannot be started.
    #[error("cannot start a thread: {source}")]
    NoThread {
        /// Error of the kernel.
        source: io::Error,
    },
    /// The kernel refused to wait.
    #[error("cannot wait: {source}")]
    Wait {
        /// Error of the kernel.
        source: io::Error,
    },
    /// The kernel refused to sleep.
    #[error("cannot sleep: {source}")]
    Sleep {
        /// Error of the kernel.
        source: io::Error,
    },
    /// The process that started this one has ended already. This process cannot end with it.
    #[error("process {parent}, which started this one, has ended")]
    Orphaned {
        /// Process id of the parent.
        parent: u32,
    },
    /// The kernel refused to bind this process to its parent's end.
    #[error("cannot make this process end with process {parent}: {source}")]
    NotTied {
        /// Process id of the parent.
        parent: u32,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl LoadError {
    /// Returns advice for the user. `None` if there is none.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            LoadError::NoPort { port: 1.., .. } => {
                Some("use another --port, or none for a free one")
            }
            LoadError::NoServer { .. } => {
                Some("start the server first, and give its port with --to")
            }
            LoadError::NoNodes => Some("give each other node with --peer"),
            LoadError::NoFile { .. } => Some("use a writable folder with --folder"),
            _ => None,
        }
    }
}

/// Runs a program on the calling thread, with random draws from this stream.
///
/// # Errors
/// If the program repeats without ever taking time, or the kernel refuses to sleep or to accept a
/// report. A report without a reader is no error.
pub fn run(program: &Program, draws: Stream, options: Options) -> Result<Report, LoadError> {
    if program.repeat && !program.steps.iter().any(takes_time) {
        return Err(LoadError::TakesNoTime);
    }
    let waits = |step: &Step| matches!(step, Step::Barrier { .. });
    if options.node.is_none() && program.steps.iter().any(waits) {
        return Err(LoadError::NoNodes);
    }
    let exchange = options.node.map(Exchange::new).transpose()?;
    clock::wake_exactly();
    let notes = Reporter::new(options.jobs)?;
    if let Some(start) = options.start {
        clock::sleep_until(start)?;
    }
    let origin = options.start.unwrap_or_else(monotonic);
    let (began, used_before) = (monotonic(), clock::thread_time());
    let end = End::at(options.limit.map_or(Time::NEVER, |limit| origin.after(limit)));
    let ending = Work::new(draws, origin, &end, &notes).among(exchange).through(program)?;
    Ok(Report {
        ending,
        used: clock::thread_time() - used_before,
        elapsed: monotonic().since(began),
        jobs: notes.done(),
        dropped: notes.dropped(),
    })
}
