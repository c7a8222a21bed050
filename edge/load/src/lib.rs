//! The workload programs of a scenario, as a real process.
//!
//! What the simulator does with a vCPU's program on its own time, this does on a real CPU:
//! computing is CPU time that the calling thread uses, however long that takes; sleeping is
//! sleeping; releases come on a grid that was fixed when the program began, and late work is done
//! back to back, none left out. All points in time are on `CLOCK_MONOTONIC`.
//!
//! Finished jobs are reported through a pipe, which never holds the work up: what its reader is too
//! slow for is dropped and counted.

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
pub use done::{Done, Responses};
pub use exchange::Node;
pub use job::{JOBS_FD, Job, Note, NoteReader, Ports, jobs_from_environment, jobs_on};
pub use parent::end_with;

use end::End;
use exchange::Exchange;
use job::Reporter;
use work::{Work, takes_time};

/// When a program begins and ends, and who hears of its jobs.
#[derive(Debug, Default)]
pub struct Options {
    /// When it begins; none for at once. If this has passed, it begins late, and the releases since
    /// are late with it.
    pub start: Option<Time>,
    /// How long after its start it is ended, if it is still at it; none for never.
    pub limit: Option<Span>,
    /// Where finished jobs are reported, made non-blocking for everybody who shares it; see
    /// [`NoteReader`]. A pipe, or anything else that takes a record whole or not at all.
    pub jobs: Option<OwnedFd>,
    /// What has devices ends when this becomes readable.
    pub stop: Option<OwnedFd>,
    /// The other nodes of a parallel program, for who is one of them.
    pub node: Option<Node>,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It did its last step.
    Finished,
    /// It was still at it at its limit.
    Limit,
}

/// What a program came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// How it ended.
    pub ending: Ending,
    /// CPU time that it used.
    pub used: Span,
    /// Time from its start, or the late beginning, to its end.
    pub elapsed: Span,
    /// Jobs that it finished.
    pub jobs: u64,
    /// Those of them that could not be reported.
    pub dropped: u64,
}

/// Why a program cannot be run, or be reported on.
#[derive(Debug, Error)]
pub enum LoadError {
    /// No step of a program that repeats can take time.
    #[error("the program repeats forever without computing, sleeping or waiting")]
    TakesNoTime,
    /// A node of a parallel program does not know the others.
    #[error("a node of a parallel program needs other nodes; none is given")]
    NoNodes,
    /// The environment says where to report jobs, in no way that is understood.
    #[error("cannot use {JOBS_FD}: `{text}` is not a file descriptor")]
    NoDescriptor {
        /// What it says.
        text: String,
    },
    /// Jobs cannot be reported there.
    #[error("cannot report jobs on file descriptor {fd}: {source}")]
    NotWritable {
        /// The descriptor asked for.
        fd: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// A finished job could not be reported, for another reason than that nobody reads.
    #[error("cannot report a finished job: {source}")]
    Report {
        /// What the kernel said.
        source: io::Error,
    },
    /// A record was taken in part, after which no reader can make sense of the rest.
    #[error("cannot report a finished job: only {taken} bytes of its record were written")]
    Torn {
        /// How many.
        taken: usize,
    },
    /// A port cannot be had.
    #[error("cannot listen on port {port} of 127.0.0.1: {source}")]
    NoPort {
        /// The port; zero for any.
        port: u16,
        /// What the kernel said.
        source: io::Error,
    },
    /// A socket for messages cannot be had.
    #[error("cannot listen at {at}: {source}")]
    NoSocket {
        /// Where.
        at: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// Nobody can be told anything there.
    #[error("cannot listen at {}: {source}", path.display())]
    NoAgent {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Nobody listens at a Unix socket.
    #[error("cannot connect to {}: {source}", at.display())]
    NoOne {
        /// Where.
        at: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A stream, or a question to a file server, has no other end.
    #[error("cannot connect to {to}: {source}")]
    NoServer {
        /// Where.
        to: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// A socket that was there is not what it should be.
    #[error("cannot use the socket: {source}")]
    Network {
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no file to read from.
    #[error("cannot create a file of {size} bytes in {}: {source}", folder.display())]
    NoFile {
        /// The folder.
        folder: PathBuf,
        /// How large it is to be.
        size: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("cannot read the temporary file: {source}")]
    Disk {
        /// What the kernel said.
        source: io::Error,
    },
    /// A thread for a task cannot be had.
    #[error("cannot start a thread: {source}")]
    NoThread {
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused to wait.
    #[error("cannot wait: {source}")]
    Wait {
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused to sleep.
    #[error("cannot sleep: {source}")]
    Sleep {
        /// What the kernel said.
        source: io::Error,
    },
    /// The process that this was to end with has ended already.
    #[error("process {parent}, which started this one, has ended")]
    Orphaned {
        /// Its id.
        parent: u32,
    },
    /// The kernel refused to end this process with the one that started it.
    #[error("cannot bind this process to the end of process {parent}: {source}")]
    NotTied {
        /// Its id.
        parent: u32,
        /// What the kernel said.
        source: io::Error,
    },
}

impl LoadError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            LoadError::NoPort { port: 1.., .. } => {
                Some("use another --port, or none for a free one")
            }
            LoadError::NoServer { .. } => {
                Some("start the server first, and give its port with --to")
            }
            LoadError::NoNodes => Some("give each of them with --peer"),
            LoadError::NoFile { .. } => Some("use a writable folder with --folder"),
            _ => None,
        }
    }
}

/// Carries out a program on the calling thread, with draws from this stream.
///
/// # Errors
/// When the program repeats without ever taking time, or the kernel refuses to sleep or to take a
/// report. Nobody reading reports is no error.
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
