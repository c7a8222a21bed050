//! The interpreter of workload steps, for programs of vCPUs and for programs of tasks.

use slackline_scenario::io::DeviceStep;
use slackline_scenario::{ErrorKind, Program, RecordedSpan, RecordingReader, Releases, Step};
use slackline_scenario::{Stream, next_instant};
use slackline_units::{Span, Time};

use super::locks::SPIN;

/// Resource or condition that a program needs before it can continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramNeed {
    /// CPU time; [`Progress::left`] returns how much.
    Cpu,
    /// CPU time until this time is reached.
    Until(Time),
    /// To yield the CPU once.
    Yield,
    /// To sleep until this time.
    Sleep(Time),
    /// To wait until all nodes reach the barrier of the parallel program, and then for this
    /// latency.
    Others(Span),
    /// To acquire the spin lock of its domain.
    Lock,
    /// To release the spin lock of its domain.
    Unlock,
    /// To complete this step with a device.
    Device(DeviceStep),
    /// The program has ended and needs nothing more.
    Nothing,
}

/// A completed piece of work of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) released: Time,
    /// Deadline of the job. `NEVER` if the job has no deadline.
    pub(crate) deadline: Time,
}

/// Program of a guest or of a task, with the source of its random numbers.
pub(crate) struct Work<'a> {
    pub(crate) program: &'a Program,
    pub(crate) draws: Stream,
    /// Job releases since the program began. The releases are kept in this struct so that a guest
    /// fits in one cache line.
    releases: Releases,
    /// Position in the recording of the program, if the program has a recording.
    recorded: Option<Box<RecordingPosition>>,
}

/// Position in a recording.
struct RecordingPosition {
    reader: RecordingReader,
    /// Reason why the recording cannot be read. The program is then over.
    failed: Option<ErrorKind>,
}

impl<'a> Work<'a> {
    pub(crate) fn new(program: &'a Program, draws: Stream) -> Work<'a> {
        let releases = Releases::of_program_from(Time::START);
        let recorded = program.recording.as_ref().map(|recording| {
            Box::new(RecordingPosition { reader: recording.reader(), failed: None })
        });
        Work { program, draws, releases, recorded }
    }

    /// Returns the next need of the program's recording. `None` if the program has no recording.
    #[inline(never)]
    fn recorded(&mut self, left: &mut Span, now: Time) -> Option<ProgramNeed> {
        let recorded = self.recorded.as_mut().filter(|recorded| recorded.failed.is_none())?;
        match recorded.reader.next_repeated() {
            Ok(RecordedSpan::Run(span)) => {
                *left = span;
                Some(ProgramNeed::Cpu)
            }
            Ok(RecordedSpan::Block(span)) => Some(ProgramNeed::Sleep(now.after(span))),
            Err(error) => {
                recorded.failed = Some(error);
                None
            }
        }
    }

    /// Removes and returns the reason why the program's recording could not be read to the end.
    /// `None` if there is no such reason.
    pub(crate) fn take_failure(&mut self) -> Option<ErrorKind> {
        self.recorded.as_mut()?.failed.take()
    }
}

/// Position in a program.
pub(crate) struct Progress {
    /// Index of the next step.
    step: u32,
    /// CPU time that the program still needs before its next step. `Span::MAX` means forever.
    left: Span,
    /// Time at which the program began. Release times are relative to this time.
    began: Time,
    released: Time,
    deadline: Time,
}

/// Number of further steps that a program is still allowed to take at the current instant. Without
/// a limit, a program that neither computes nor sleeps would stop simulated time.
pub(crate) struct StepLimit(u32);

impl StepLimit {
    pub(crate) fn new() -> StepLimit {
        StepLimit(10_000)
    }
}

impl Progress {
    /// Creates the position in a program that has not begun.
    pub(crate) fn new() -> Progress {
        Progress {
            step: 0,
            left: Span::ZERO,
            began: Time::START,
            released: Time::START,
            deadline: Time::NEVER,
        }
    }

    /// Starts the program at this time.
    pub(crate) fn begin(&mut self, work: &mut Work<'_>, now: Time) {
        self.began = now;
        work.releases = Releases::of_program_from(now);
        self.released = now;
    }

    pub(crate) fn began(&self) -> Time {
        self.began
    }

    /// Returns the deadline of the current job. `NEVER` if the job has none.
    pub(crate) fn deadline(&self) -> Time {
        self.deadline
    }

    /// Returns the CPU time that the program still needs before its next step.
    #[inline]
    pub(crate) fn left(&self) -> Span {
        self.left
    }

    #[inline]
    pub(crate) fn set_left(&mut self, left: Span) {
        self.left = left;
    }

    /// Subtracts work done from the CPU time that the program still needs. Work beyond that is
    /// ignored.
    #[inline]
    pub(crate) fn compute(&mut self, work: Span) {
        if self.left != Span::MAX {
            self.left = self.left.left_after(work);
        }
    }

    /// Returns the jobs that are not complete although their deadline has passed. The current job
    /// comes first, then the later jobs that would have been released if the current job were
    /// complete.
    pub(crate) fn overdue(&self, work: &Work<'_>, now: Time) -> Vec<Job> {
        let Work { program, draws, releases, .. } = work;
        let have_begun = releases.have_begun();
        let open = Job { released: self.released, deadline: self.deadline };
        if open.deadline > now && have_begun {
            return Vec::new(); // No deadline has passed.
        }
        let release = program.steps.iter().find_map(|step| match step {
            Step::Release { deadline: Some(deadline), .. } => Some((step, *deadline)),
            _ => None,
        });
        let next = |(step, deadline): (&'_ Step, Span)| {
            let (step, mut releases) = (*step, releases.clone());
            std::iter::from_fn(move || {
                let released = releases.next(&step, draws)?;
                Some(Job { released, deadline: released.after(deadline) })
            })
        };
        let next = release.filter(|_| program.repeat).into_iter().flat_map(next);
        // A job that is completed exactly at its deadline is not overdue.
        let is_in_time = open.deadline == now && self.left.is_zero();
        let open = Some(open).filter(|_| have_begun && !is_in_time);
        open.into_iter().chain(next).take_while(|job| job.deadline <= now).collect()
    }

    /// Makes the program repeat the step that it took last.
    pub(crate) fn again(&mut self) {
        self.step -= 1;
    }

    /// Takes all steps that need no time, up to the first step that needs time or a device. Calls
    /// `done` for each job that these steps complete.
    #[inline(always)]
    pub(crate) fn advance(
        &mut self,
        work: &mut Work<'_>,
        now: Time,
        at_once: &mut StepLimit,
        mut done: impl FnMut(Job),
    ) -> ProgramNeed {
        while at_once.0 > 0 {
            at_once.0 -= 1;
            let Work { program, draws, releases, .. } = &mut *work;
            let Some(step) = program.steps.get(self.step as usize) else {
                if !program.repeat || program.steps.is_empty() {
                    return work.recorded(&mut self.left, now).unwrap_or(ProgramNeed::Nothing);
                }
                self.step = 0;
                continue;
            };
            self.step += 1;
            match step {
                Step::Compute(draw) => {
                    self.left = draws.draw(draw);
                    if !self.left.is_zero() {
                        return ProgramNeed::Cpu;
                    }
                }
                Step::ComputeForever => {
                    self.left = Span::MAX;
                    return ProgramNeed::Cpu;
                }
                Step::ComputeUntil { period, offset } => {
                    let passed = Time::START.after(*offset);
                    let until = period.map_or(passed, |period| next_instant(now, period, *offset));
                    if until > now {
                        self.left = SPIN;
                        return ProgramNeed::Until(until);
                    }
                }
                Step::Sleep(draw) => {
                    let span = draws.draw(draw);
                    if !span.is_zero() {
                        return ProgramNeed::Sleep(now.after(span));
                    }
                }
                Step::Release { deadline, .. } => {
                    let released = releases.next(step, draws).unwrap_or(now);
                    self.released = released;
                    self.deadline = deadline.map_or(Time::NEVER, |span| released.after(span));
                    if released > now {
                        return ProgramNeed::Sleep(released);
                    }
                }
                Step::Instant { period, offset } => {
                    return ProgramNeed::Sleep(next_instant(now, *period, *offset));
                }
                Step::Yield => return ProgramNeed::Yield,
                Step::Done => {
                    done(Job { released: self.released, deadline: self.deadline });
                    (self.released, self.deadline) = (now, Time::NEVER);
                }
                Step::Barrier { latency } => return ProgramNeed::Others(*latency),
                Step::Lock => return ProgramNeed::Lock,
                Step::Unlock => return ProgramNeed::Unlock,
                Step::Device(step) => return ProgramNeed::Device(*step),
            }
        }
        // A program that only takes steps without duration sleeps, so that time can pass.
        ProgramNeed::Sleep(now.after(Span::from_ns(1)))
    }
}
