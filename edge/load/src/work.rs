//! Execution of those steps of a program that need no device.

use slackline_scenario::{
    Draw, Program, RecordedSpan, Recording, Releases, Step, Stream, next_instant,
};
use slackline_units::{Span, Time};

use crate::clock::{monotonic, thread_time};
use crate::end::End;
use crate::exchange::Exchange;
use crate::job::{Job, Note, Reporter};
use crate::spin::{SpinEnd, Spinner};
use crate::{Ending, LoadError};

pub(crate) fn takes_time(step: &Step) -> bool {
    match step {
        Step::Compute(draw) | Step::Sleep(draw) => !draw.scale().is_zero(),
        Step::Release { period, .. } => !period.is_zero(),
        Step::Instant { period, .. } => !period.is_zero(),
        Step::ComputeUntil { .. } | Step::ComputeForever | Step::Barrier { .. } => true,
        Step::Yield | Step::Done | Step::Lock | Step::Unlock | Step::Device(_) => false,
    }
}

/// State of a running program.
pub(crate) struct Work<'a> {
    pub(crate) draws: Stream,
    /// Time at which the program started.
    origin: Time,
    end: &'a End,
    /// Value of the thread's CPU clock at which all computing steps so far are complete.
    due: Span,
    spinner: Spinner,
    current: Current,
    releases: Releases,
    notes: &'a Reporter,
    exchange: Option<Exchange>,
}

/// The current job: the job that was released last. If no job was released since the last job was
/// done, the current job was released at that time.
#[derive(Clone, Copy)]
struct Current {
    released: Time,
    deadline: Option<Time>,
}

/// Maximum overshoot that is deducted from the next computing step. The overshoot is CPU time that
/// was used beyond a step, or for sleeping and reporting between steps. The deduction keeps the
/// total of the program exact. CPU time beyond this maximum is a real cost of the system, and is
/// not deducted.
const CARRIED: Span = Span::from_us(50);

/// Next action after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Go,
    End,
}

/// Maximum time of computing between two checks whether the load must end.
const STRETCH: Span = Span::from_ms(10);

impl<'a> Work<'a> {
    pub(crate) fn new(draws: Stream, origin: Time, end: &'a End, notes: &'a Reporter) -> Work<'a> {
        let (due, spinner) = (thread_time(), Spinner::new());
        let current = Current { released: origin, deadline: None };
        let releases = Releases::of_program_from(origin);
        Work { draws, origin, end, due, spinner, current, releases, notes, exchange: None }
    }

    /// Sets the exchange with the other nodes of a parallel program. `None` if the program is not a
    /// node.
    pub(crate) fn among(self, exchange: Option<Exchange>) -> Work<'a> {
        Work { exchange, ..self }
    }

    pub(crate) fn through(mut self, program: &Program) -> Result<Ending, LoadError> {
        loop {
            for step in &program.steps {
                if self.step(step)? == Next::End {
                    return Ok(Ending::Limit);
                }
            }
            if let Some(recording) = &program.recording {
                return self.replay(recording);
            }
            if !program.repeat {
                return Ok(Ending::Finished);
            }
        }
    }

    /// Runs and blocks as the vCPU in a recording did. The recording repeats until the load ends.
    pub(crate) fn replay(&mut self, recording: &Recording) -> Result<Ending, LoadError> {
        let mut reader = recording.reader();
        loop {
            let step = match reader.next_repeated() {
                Ok(RecordedSpan::Run(span)) => Step::Compute(Draw::Fixed(span)),
                Ok(RecordedSpan::Block(span)) => Step::Sleep(Draw::Fixed(span)),
                Err(error) => return Err(LoadError::Recording { reason: error.to_string() }),
            };
            if self.step(&step)? == Next::End {
                return Ok(Ending::Limit);
            }
        }
    }

    pub(crate) fn step(&mut self, step: &Step) -> Result<Next, LoadError> {
        match step {
            Step::Compute(draw) => {
                let span = self.draws.draw(draw);
                self.compute(span)
            }
            Step::ComputeForever => self.spin(Span::MAX),
            Step::ComputeUntil { period, offset } => {
                let passed = self.origin.after(*offset);
                self.spin_until(
                    period.map_or(passed, |period| next_instant(monotonic(), period, *offset)),
                )
            }
            Step::Sleep(draw) => {
                let span = self.draws.draw(draw);
                if span.is_zero() {
                    Ok(Next::Go)
                } else {
                    self.sleep_until(monotonic().after(span))
                }
            }
            Step::Release { deadline, .. } => {
                let released = self.releases.next(step, &self.draws).unwrap_or_else(monotonic);
                let deadline = deadline.map(|span| released.after(span));
                self.current = Current { released, deadline };
                self.sleep_until(released)
            }
            Step::Instant { period, offset } => {
                self.sleep_until(next_instant(monotonic(), *period, *offset))
            }
            Step::Yield => {
                std::thread::yield_now();
                Ok(if monotonic() >= self.end.at { Next::End } else { Next::Go })
            }
            Step::Done => self.done(),
            // The latency of the step is not used, because the real network has its own.
            Step::Barrier { .. } => {
                let over = self.exchange.as_mut().map_or(Ok(true), |it| it.meet(self.end))?;
                Ok(if over { Next::End } else { Next::Go })
            }
            // Tasks of a system handle device steps themselves. Locks exist only in simulations.
            Step::Device(_) | Step::Lock | Step::Unlock => Ok(Next::Go),
        }
    }

    /// Uses `span` of CPU time.
    pub(crate) fn compute(&mut self, span: Span) -> Result<Next, LoadError> {
        if span.is_zero() {
            return Ok(Next::Go);
        }
        let carried = thread_time().left_after(CARRIED);
        self.due = self.due.max(carried) + span;
        self.spin(self.due)
    }

    /// Excludes the CPU time used since the last step: it does not count towards any computing
    /// step.
    pub(crate) fn forget(&mut self) {
        self.due = thread_time();
    }

    fn spin(&mut self, due: Span) -> Result<Next, LoadError> {
        loop {
            let until = due.min(thread_time() + STRETCH);
            if self.spinner.spin(until, self.end.at) == SpinEnd::End {
                return Ok(Next::End);
            }
            if until == due {
                return Ok(Next::Go);
            }
            if self.end.is_over()? {
                return Ok(Next::End);
            }
        }
    }

    /// Uses CPU time until an instant of the clock. This CPU time is not deducted from later
    /// computing steps.
    fn spin_until(&mut self, instant: Time) -> Result<Next, LoadError> {
        while monotonic() < instant {
            if self.end.is_over()? {
                return Ok(Next::End);
            }
            self.spinner.spin(thread_time() + STRETCH, instant.min(self.end.at));
        }
        self.forget();
        Ok(Next::Go)
    }

    fn sleep_until(&mut self, wake: Time) -> Result<Next, LoadError> {
        Ok(if self.end.sleep_until(wake)? { Next::End } else { Next::Go })
    }

    fn done(&mut self) -> Result<Next, LoadError> {
        let (Current { released, deadline }, done) = (self.current, monotonic());
        self.current = Current { released: done, deadline: None };
        self.notes.report(Note::Job(Job { released, deadline, done }))?;
        Ok(if done >= self.end.at { Next::End } else { Next::Go })
    }
}
