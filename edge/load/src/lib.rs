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

mod clock;
mod job;
mod parent;
mod spin;

use std::io;
use std::os::fd::OwnedFd;

use slackline_scenario::{Program, Step, Stream};
use slackline_units::{Span, Time};
use thiserror::Error;

pub use clock::monotonic;
pub use job::{JOBS_FD, Job, JobReader, jobs_from_environment, jobs_on};
pub use parent::end_with;

use job::Reporter;
use spin::{Spinner, Until};

/// When a program begins and ends, and who hears of its jobs.
#[derive(Debug, Default)]
pub struct Options {
    /// When it begins; none for at once. If this has passed, it begins late, and the releases since
    /// are late with it.
    pub start: Option<Time>,
    /// How long after its start it is ended, if it is still at it; none for never.
    pub limit: Option<Span>,
    /// Where finished jobs are reported, made non-blocking for everybody who shares it; see
    /// [`JobReader`]. A pipe, or anything else that takes a record whole or not at all.
    pub jobs: Option<OwnedFd>,
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
    #[error("the program repeats for ever without computing, sleeping or waiting")]
    TakesNoTime,
    /// The environment says where to report jobs, in no way that is understood.
    #[error("{JOBS_FD} is `{text}`, which is no file descriptor")]
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
    #[error("only {taken} bytes of a finished job's record were taken")]
    Torn {
        /// How many.
        taken: usize,
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
    #[error("cannot arrange to end with process {parent}: {source}")]
    NotTied {
        /// Its id.
        parent: u32,
        /// What the kernel said.
        source: io::Error,
    },
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
    clock::wake_exactly();
    let jobs = Reporter::new(options.jobs)?;
    if let Some(start) = options.start {
        clock::sleep_until(start)?;
    }
    let origin = options.start.unwrap_or_else(monotonic);
    let (began, used_before) = (monotonic(), clock::thread_time());
    let end = options.limit.map_or(Time::NEVER, |limit| origin.after(limit));
    let spinner = Spinner::new();
    let work = Work { draws, origin, end, due: used_before, spinner, current: None, jobs };
    let (ending, jobs) = work.through(program)?;
    Ok(Report {
        ending,
        used: clock::thread_time() - used_before,
        elapsed: monotonic().since(began),
        jobs: jobs.done,
        dropped: jobs.dropped,
    })
}

fn takes_time(step: &Step) -> bool {
    match step {
        Step::Compute(draw) | Step::Sleep(draw) => !draw.scale().is_zero(),
        Step::Release { period, .. } => !period.is_zero(),
        Step::ComputeForever => true,
        Step::Done => false,
    }
}

/// A program at work.
struct Work {
    draws: Stream,
    /// What releases are counted from.
    origin: Time,
    end: Time,
    /// How much CPU time the thread will have used when all computing so far is done.
    due: Span,
    spinner: Spinner,
    current: Option<Current>,
    jobs: Reporter,
}

/// The piece of work that was released last.
#[derive(Clone, Copy)]
struct Current {
    released: Time,
    deadline: Option<Time>,
}

/// CPU time used beyond what was due that counts towards the next computing: the overshoot of the
/// computing before, and what sleeping and reporting took in between, so that a program uses what
/// it says. More than this is no rounding but cost, and to shorten the work by it would falsify it.
const CARRIED: Span = Span::from_us(50);

/// Whether to go on.
enum Next {
    Go,
    End,
}

impl Work {
    fn through(mut self, program: &Program) -> Result<(Ending, Reporter), LoadError> {
        let mut releases = 0;
        loop {
            for step in &program.steps {
                if matches!(self.step(step, &mut releases)?, Next::End) {
                    return Ok((Ending::Limit, self.jobs));
                }
            }
            if !program.repeat {
                return Ok((Ending::Finished, self.jobs));
            }
        }
    }

    fn step(&mut self, step: &Step, releases: &mut u64) -> Result<Next, LoadError> {
        match step {
            Step::Compute(draw) => Ok(self.compute(draw)),
            Step::ComputeForever => Ok(self.spin(Span::MAX)),
            Step::Sleep(draw) => {
                let span = self.draws.draw(draw);
                if span.is_zero() {
                    Ok(Next::Go)
                } else {
                    self.sleep_until(monotonic().after(span))
                }
            }
            Step::Release { period, deadline, offset } => {
                let released = self.origin.after(*offset).after(*period * *releases);
                *releases += 1;
                let deadline = deadline.map(|span| released.after(span));
                self.current = Some(Current { released, deadline });
                self.sleep_until(released)
            }
            Step::Done => self.done(),
        }
    }

    fn compute(&mut self, draw: &slackline_scenario::Draw) -> Next {
        let span = self.draws.draw(draw);
        if span.is_zero() {
            return Next::Go;
        }
        let carried = clock::thread_time().left_after(CARRIED);
        self.due = self.due.max(carried) + span;
        self.spin(self.due)
    }

    fn spin(&mut self, due: Span) -> Next {
        match self.spinner.spin(due, self.end) {
            Until::Due => Next::Go,
            Until::End => Next::End,
        }
    }

    fn sleep_until(&mut self, wake: Time) -> Result<Next, LoadError> {
        clock::sleep_until(wake.min(self.end))?;
        Ok(if wake >= self.end { Next::End } else { self.unless_over() })
    }

    fn unless_over(&self) -> Next {
        if monotonic() >= self.end { Next::End } else { Next::Go }
    }

    /// A piece of work that nobody released was there from the start.
    fn done(&mut self) -> Result<Next, LoadError> {
        let Current { released, deadline } =
            self.current.unwrap_or(Current { released: self.origin, deadline: None });
        self.jobs.report(&Job { released, deadline, done: monotonic() })?;
        Ok(self.unless_over())
    }
}
