//! The workload programs of a scenario, as real processes.
//!
//! A load process does on a real CPU what a vCPU's program does in a simulation. A computing step
//! ends when the calling thread has used the CPU time of the step, even if the thread is preempted
//! for a long time. A sleeping step sleeps. The release times are fixed when the program begins. A
//! program that is late does all released jobs one after another and skips none. All times are on
//! `CLOCK_MONOTONIC`.
//!
//! Finished jobs are reported through a pipe. The pipe never delays the work: if its reader is too
//! slow, notes are dropped and counted.

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

/// Start and end of a program, and the pipe for reports of its jobs.
#[derive(Debug, Default)]
pub struct Options {
    /// Start time. If `None`, the program starts at once. If this time has already passed, the
    /// program starts late and also does all jobs released between this time and its actual start.
    pub start: Option<Time>,
    /// Maximum time from the start to the end of the program. If `None`, the time is not limited.
    pub limit: Option<Span>,
    /// Pipe for finished jobs (see [`NoteReader`]), or another file that accepts a note completely
    /// or not at all. The pipe or file becomes non-blocking, also for other processes that share
    /// it. If `None`, jobs are not reported.
    pub jobs: Option<OwnedFd>,
    /// Descriptor that ends a load with devices when it becomes readable. `None` if the load cannot
    /// be ended in this way.
    pub stop: Option<OwnedFd>,
    /// Socket and peers of this node of a parallel program. `None` if the program is not a node.
    pub node: Option<Node>,
}

/// Reason why a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The program completed its last step.
    Finished,
    /// The program reached the limit of its running time.
    Limit,
}

/// Results of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Reason why the program ended.
    pub ending: Ending,
    /// CPU time that the program used.
    pub used: Span,
    /// Time from the actual start of the program to its end.
    pub elapsed: Span,
    /// Number of jobs that the program finished.
    pub jobs: u64,
    /// Number of finished jobs that were not reported, because the pipe was full or had no reader.
    pub dropped: u64,
}

/// Reason why a program cannot be run, or why its jobs cannot be reported.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A program repeats forever, but none of its steps takes any time.
    #[error("the program repeats forever without computing, sleeping or waiting")]
    TakesNoTime,
    /// A recording cannot be read.
    #[error("cannot replay a recording: {reason}")]
    Recording {
        /// Name of the file, with the reason why it cannot be read.
        reason: String,
    },
    /// A program is a node of a parallel program, but was not given the addresses of the other
    /// nodes.
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
    /// A note was written only in part, so the reader cannot parse the notes after it.
    #[error("cannot report a finished job: only {taken} bytes of the record were written")]
    Torn {
        /// Number of bytes written.
        taken: usize,
    },
    /// The process cannot listen on a port.
    #[error("cannot listen on port {port} of 127.0.0.1: {source}")]
    NoPort {
        /// Number of the port. Zero means any free port.
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
    /// The process cannot listen on the Unix socket to which a host connects.
    #[error("cannot listen at {}: {source}", path.display())]
    NoAgent {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// No process listens on the Unix socket of a ping client.
    #[error("cannot connect to {}: {source}", at.display())]
    NoOne {
        /// Path of the socket.
        at: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// No server answers on the other side of a stream or of a file request.
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
    /// A thread cannot wait for the next event or the end of the load.
    #[error("cannot wait for the next event or the end of the load: {source}")]
    Wait {
        /// Error of the kernel.
        source: io::Error,
    },
    /// A thread cannot sleep until a given time.
    #[error("cannot sleep until a given time: {source}")]
    Sleep {
        /// Error of the kernel.
        source: io::Error,
    },
    /// The process that started this process has already ended, so this process cannot end together
    /// with it.
    #[error("process {parent}, which started this process, has ended")]
    Orphaned {
        /// Process id of the parent.
        parent: u32,
    },
    /// The kernel refused the request to kill this process when its parent ends.
    #[error("cannot arrange that this process ends when its parent {parent} ends: {source}")]
    NotTied {
        /// Process id of the parent.
        parent: u32,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl LoadError {
    /// Returns one line of advice for the user. `None` if there is none.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            LoadError::NoPort { port: 1.., .. } => {
                Some("use another --port, or leave out --port for a free port")
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

/// Runs a program on the calling thread. `draws` is the stream of its random draws.
///
/// # Errors
/// If the program repeats without ever taking time, if a sleep fails, or if a report cannot be
/// written. A missing reader of the reports is no error.
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
