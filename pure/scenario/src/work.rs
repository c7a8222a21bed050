//! Work of a vCPU as a small program. Each step computes, blocks or waits for the next release.

use slackline_units::{Span, Time};

use crate::Draw;
use crate::io::DeviceStep;
use crate::recording::Recording;

/// Program of a vCPU, which starts when its domain joins. If the program does not repeat, the vCPU
/// blocks forever after the last step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Steps, in the order in which they run.
    pub steps: Vec<Step>,
    /// True if the program starts again after its last step. Each round of a repeated program takes
    /// time or waits for a release.
    pub repeat: bool,
    /// Recording of runs and blocks that the program repeats after its own steps. `None` if the
    /// program repeats no recording.
    pub recording: Option<Recording>,
}

/// A step of a program. The length of a computing step is CPU time, so the step takes longer if the
/// vCPU is preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Uses an amount of CPU time.
    Compute(Draw),
    /// Uses all CPU time forever. No later step is reached.
    ComputeForever,
    /// Computes until an instant of the clock. Uses no CPU time if that instant has passed.
    ComputeUntil {
        /// If set, the step computes until the next instant `offset + n * period` of the host's
        /// clock. Not zero. `None` if the instant is `offset` after the start of the run.
        period: Option<Span>,
        /// Delay of the instant after a multiple of the period, or after the start of the run.
        offset: Span,
    },
    /// Blocks for a duration.
    Sleep(Draw),
    /// Blocks until the next release, or continues at once if that release has already occurred.
    /// Releases occur at `offset + n * period` after the domain joined, even if the previous piece
    /// of work is not done. No release is left out. A gap delays all later releases, and a jitter
    /// delays one release only. Releases never change their order.
    Release {
        /// Time from one release to the next. Not zero.
        period: Span,
        /// Time from a release until its piece of work must be done. `None` if the work has no
        /// deadline.
        deadline: Option<Span>,
        /// Time from joining of the domain to the first release.
        offset: Span,
        /// Time that is added to the period before the next release, for sporadic tasks.
        gap: Draw,
        /// Delay of a single release. It does not delay later releases.
        jitter: Draw,
    },
    /// Blocks until the next instant `offset + n * period` of the host's clock. Instants that have
    /// already passed are skipped.
    Instant {
        /// Time between two instants. Not zero.
        period: Span,
        /// Delay of each instant after a multiple of the period.
        offset: Span,
    },
    /// Yields what remains of the timeslice. A vCPU with one program yields its CPU. A task of an
    /// operating system moves behind the other tasks of its priority.
    Yield,
    /// Completes the piece of work that was released last. In a program without releases, the next
    /// piece of work begins when this step is done.
    Done,
    /// Blocks until every node of the parallel program has reached the same barrier, and the
    /// message of the last node has arrived. Only vCPUs of a domain that belongs to a parallel
    /// program have this step.
    Barrier {
        /// Time that the message takes. Not zero.
        latency: Span,
    },
    /// Takes the spin lock that all vCPUs of the domain share. If the lock is taken, the vCPU uses
    /// CPU time until it gets the lock. vCPUs get the lock in the order of their requests, even if
    /// they are not running.
    Lock,
    /// Releases the spin lock. The next vCPU that waits for the lock gets it at once.
    Unlock,
    /// Step that needs a device. Only tasks of a domain with an operating system have such steps.
    Device(DeviceStep),
}

impl Program {
    /// Creates a program that takes these steps and then blocks forever.
    #[must_use]
    pub fn once(steps: Vec<Step>) -> Program {
        Program { steps, ..Program::default() }
    }

    /// Creates a program that repeats these steps.
    #[must_use]
    pub fn repeated(steps: Vec<Step>) -> Program {
        Program { steps, repeat: true, ..Program::default() }
    }

    /// Creates a program that repeats a recording of runs and blocks.
    #[must_use]
    pub fn recorded(recording: Recording) -> Program {
        Program { recording: Some(recording), ..Program::default() }
    }

    /// Creates a program that uses all CPU time.
    #[must_use]
    pub fn spin() -> Program {
        Program::once(vec![Step::ComputeForever])
    }

    /// Creates a program that computes `total` and then blocks forever.
    #[must_use]
    pub fn batch(total: Span) -> Program {
        Program::once(vec![Step::Compute(Draw::Fixed(total))])
    }

    /// Creates a program that computes and blocks alternately.
    #[must_use]
    pub fn interactive(compute: Draw, sleep: Draw) -> Program {
        Program::repeated(vec![Step::Compute(compute), Step::Sleep(sleep)])
    }

    /// Creates a program that computes and yields alternately.
    #[must_use]
    pub fn yielding(compute: Draw) -> Program {
        Program::repeated(vec![Step::Compute(compute), Step::Yield])
    }

    /// Creates a program that computes after each instant of the clock. Instants that pass while it
    /// computes are skipped. `instant` is a [`Step::Instant`], and `compute` is the step that uses
    /// CPU time.
    #[must_use]
    pub fn by_the_clock(instant: Step, compute: Step) -> Program {
        Program::repeated(vec![instant, compute])
    }

    /// Creates a program that uses all CPU time until an instant of the run, and then blocks
    /// forever.
    #[must_use]
    pub fn until(instant: Span) -> Program {
        let step = Step::ComputeUntil { period: None, offset: instant };
        Program::once(vec![step])
    }

    /// Returns true if the program computes until an instant of the clock.
    #[must_use]
    pub fn has_instants(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::ComputeUntil { .. }))
    }

    /// Creates a program that computes, exchanges messages with the other nodes, and waits until
    /// all nodes have done so. Each round counts as a piece of work.
    #[must_use]
    pub fn superstep(compute: Draw, exchange: Draw, latency: Span) -> Program {
        let computes = [compute, exchange].map(Step::Compute);
        let steps = [&computes[..], &[Step::Barrier { latency }, Step::Done]].concat();
        Program::repeated(steps)
    }

    /// Creates a program that repeatedly computes without the domain's spin lock, and then while it
    /// holds the lock. Each round counts as a piece of work.
    #[must_use]
    pub fn locking(compute: Draw, hold: Draw) -> Program {
        let (compute, hold) = (Step::Compute(compute), Step::Compute(hold));
        Program::repeated(vec![compute, Step::Lock, hold, Step::Unlock, Step::Done])
    }

    /// Returns true if the program takes the domain's spin lock.
    #[must_use]
    pub fn locks(&self) -> bool {
        self.steps.contains(&Step::Lock)
    }

    /// Creates a program that does a piece of work after each release. `release` is a
    /// [`Step::Release`].
    #[must_use]
    pub fn periodic(release: Step, work: Draw) -> Program {
        Program::repeated(vec![release, Step::Compute(work), Step::Done])
    }
}

/// Returns the first instant `offset + n * period` of the clock after `now`.
#[must_use]
pub fn next_instant(now: Time, period: Span, offset: Span) -> Time {
    let (past, offset) = ((now - Time::START) % period, offset % period);
    now.after(if past < offset { offset - past } else { period - past + offset })
}
