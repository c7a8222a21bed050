//! What a vCPU does, as a small program: compute, sleep, wait for the next release.

use slackline_units::{Span, Time};

use crate::Draw;
use crate::io::DeviceStep;

/// What a vCPU does from the moment its domain joins. A program that does not repeat sleeps for
/// ever after its last step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Done one after the other.
    pub steps: Vec<Step>,
    /// Whether the first step follows the last. What repeats takes time, or a release, each round.
    pub repeat: bool,
}

/// One step of a program. All computing is counted in CPU time: it takes longer on the clock when
/// the vCPU is not always running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Use this much CPU time.
    Compute(Draw),
    /// Use all the CPU time there is; the steps after it are never reached.
    ComputeForever,
    /// Sleep this long.
    Sleep(Draw),
    /// Sleep until the next release, or go on at once if it has passed. Releases come at
    /// `offset + n * period` after the domain joined, whether the piece of work before is done or
    /// not: none is left out, each waits for its turn. A gap moves all later releases, a jitter
    /// only one, and never before the release that precedes it.
    Release {
        /// From one release to the next; not zero.
        period: Span,
        /// How long after its release the piece of work must be done; none for no deadline.
        deadline: Option<Span>,
        /// From joining to the first release.
        offset: Span,
        /// Time between two releases in addition to the period: a sporadic task.
        gap: Draw,
        /// Delay of each release.
        jitter: Draw,
    },
    /// Sleep until the next instant `offset + n * period` of the host's clock. It is always later
    /// than now: those that have passed are left out.
    Instant {
        /// From one instant to the next; not zero.
        period: Span,
        /// How long after the multiples of the period they are.
        offset: Span,
    },
    /// Give the rest of the turn away. Who has a vCPU to itself gives away its CPU; a task of a
    /// system goes behind the others of its priority.
    Yield,
    /// The piece of work that was released last is done; where none is ever released, the one that
    /// began when the last was done.
    Done,
    /// Sleep until every node of the parallel program has come here as often, and so much longer:
    /// until the message of the last one is here. Only vCPUs of a domain that belongs to one do it.
    Barrier {
        /// How long a message takes; not zero.
        latency: Span,
    },
    /// Take the spin lock that all vCPUs of the domain share: who finds it taken uses CPU time till
    /// it is its turn. Turns come in the order in which vCPUs came, whether they run or not.
    Lock,
    /// Give it back: the next one has it at once.
    Unlock,
    /// What needs a device: only tasks of a domain with a system do it.
    Device(DeviceStep),
}

impl Program {
    /// Uses all the CPU time there is.
    #[must_use]
    pub fn spin() -> Program {
        Program { steps: vec![Step::ComputeForever], repeat: false }
    }

    /// Computes `total` and then sleeps for ever.
    #[must_use]
    pub fn batch(total: Span) -> Program {
        Program { steps: vec![Step::Compute(Draw::Fixed(total))], repeat: false }
    }

    /// Computes and sleeps in turn.
    #[must_use]
    pub fn interactive(compute: Draw, sleep: Draw) -> Program {
        Program { steps: vec![Step::Compute(compute), Step::Sleep(sleep)], repeat: true }
    }

    /// Computes and yields in turn.
    #[must_use]
    pub fn yielding(compute: Draw) -> Program {
        Program { steps: vec![Step::Compute(compute), Step::Yield], repeat: true }
    }

    /// Computes after each of these instants that finds it asleep; `instant` is a
    /// [`Step::Instant`].
    #[must_use]
    pub fn by_the_clock(instant: Step, compute: Draw) -> Program {
        Program { steps: vec![instant, Step::Compute(compute)], repeat: true }
    }

    /// Computes, does its part in exchanging with the other nodes, and waits for all of them; each
    /// round is a piece of work.
    #[must_use]
    pub fn superstep(compute: Draw, exchange: Draw, latency: Span) -> Program {
        let computes = [compute, exchange].map(Step::Compute);
        let steps = [&computes[..], &[Step::Barrier { latency }, Step::Done]].concat();
        Program { steps, repeat: true }
    }

    /// Computes, and then holding the lock of the domain; each round is a piece of work.
    #[must_use]
    pub fn locking(compute: Draw, hold: Draw) -> Program {
        let (compute, hold) = (Step::Compute(compute), Step::Compute(hold));
        Program { steps: vec![compute, Step::Lock, hold, Step::Unlock, Step::Done], repeat: true }
    }

    /// Whether it takes the lock of the domain.
    #[must_use]
    pub fn locks(&self) -> bool {
        self.steps.contains(&Step::Lock)
    }

    /// Does a piece of work after each release; `release` is a [`Step::Release`].
    #[must_use]
    pub fn periodic(release: Step, work: Draw) -> Program {
        Program { steps: vec![release, Step::Compute(work), Step::Done], repeat: true }
    }
}

/// The first instant `offset + n * period` after `now`, counted from the start of the clock.
#[must_use]
pub fn next_instant(now: Time, period: Span, offset: Span) -> Time {
    let (past, offset) = ((now - Time::START) % period, offset % period);
    now.after(if past < offset { offset - past } else { period - past + offset })
}
