//! The interpreter of workload steps. There is one, whoever's program it is: that of a vCPU, or
//! that of a task of a system.

use slackline_scenario::io::DeviceStep;
use slackline_scenario::{Program, Releases, Step, Stream, next_instant};
use slackline_units::{Span, Time};

/// What a program needs to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// CPU time: see [`Progress::left`].
    Cpu,
    /// That others may run before it.
    Yield,
    /// That it becomes this late.
    Sleep(Time),
    /// That all nodes of its parallel program have come as far, and so much longer.
    Others(Span),
    /// That it has the lock of its domain.
    Lock,
    /// That it does not have it any more.
    Unlock,
    /// That this is done with a device.
    Device(DeviceStep),
    /// Nothing any more: the program is over.
    Nothing,
}

/// A piece of work that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) released: Time,
    /// `NEVER` if it has none.
    pub(crate) deadline: Time,
}

/// A program, and what its steps draw from.
pub(crate) struct Work<'a> {
    pub(crate) program: &'a Program,
    pub(crate) draws: Stream,
    /// Releases since the program began. Here, so that a guest stays within a cache line.
    releases: Releases,
}

impl<'a> Work<'a> {
    pub(crate) fn new(program: &'a Program, draws: Stream) -> Work<'a> {
        Work { program, draws, releases: Releases::of_program_from(Time::START) }
    }
}

/// How far somebody has come in a program.
pub(crate) struct Progress {
    /// The next step.
    step: u32,
    /// CPU time still wanted before that; `Span::MAX` is for ever.
    left: Span,
    /// When the program began; releases are counted from there.
    began: Time,
    released: Time,
    deadline: Time,
}

/// How many more steps may be taken at this instant: a program that neither computes nor sleeps
/// would otherwise hold time up for ever.
pub(crate) struct AtOnce(u32);

impl AtOnce {
    pub(crate) fn new() -> AtOnce {
        AtOnce(10_000)
    }
}

impl Progress {
    /// A program that has not begun.
    pub(crate) fn new() -> Progress {
        Progress {
            step: 0,
            left: Span::ZERO,
            began: Time::START,
            released: Time::START,
            deadline: Time::NEVER,
        }
    }

    /// The program begins now.
    pub(crate) fn begin(&mut self, work: &mut Work<'_>, now: Time) {
        self.began = now;
        work.releases = Releases::of_program_from(now);
        self.released = now;
    }

    pub(crate) fn began(&self) -> Time {
        self.began
    }

    /// CPU time wanted before the next step.
    #[inline]
    pub(crate) fn left(&self) -> Span {
        self.left
    }

    #[inline]
    pub(crate) fn set_left(&mut self, left: Span) {
        self.left = left;
    }

    /// This much has been computed; what was not wanted is not counted.
    #[inline]
    pub(crate) fn compute(&mut self, work: Span) {
        if self.left != Span::MAX {
            self.left = self.left.left_after(work);
        }
    }

    /// Jobs whose deadline has passed and that are not done: the one it is at, and those that would
    /// have been released behind it.
    pub(crate) fn overdue(&self, work: &Work<'_>, now: Time) -> Vec<Job> {
        let Work { program, draws, releases } = work;
        let have_begun = releases.have_begun();
        let open = Job { released: self.released, deadline: self.deadline };
        if open.deadline > now && have_begun {
            return Vec::new(); // It is in time up to now.
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
        // What it wanted may have been computed at this very instant, its deadline.
        let is_in_time = open.deadline == now && self.left.is_zero();
        let open = Some(open).filter(|_| have_begun && !is_in_time);
        open.into_iter().chain(next).take_while(|job| job.deadline <= now).collect()
    }

    /// The step that was taken last is to be taken once more.
    pub(crate) fn again(&mut self) {
        self.step -= 1;
    }

    /// Takes the steps that take no time, up to one that does or that needs a device, and says what
    /// jobs that finishes.
    #[inline(always)]
    pub(crate) fn advance(
        &mut self,
        Work { program, draws, releases }: &mut Work<'_>,
        now: Time,
        at_once: &mut AtOnce,
        mut done: impl FnMut(Job),
    ) -> Need {
        while at_once.0 > 0 {
            at_once.0 -= 1;
            let Some(step) = program.steps.get(self.step as usize) else {
                if !program.repeat || program.steps.is_empty() {
                    return Need::Nothing;
                }
                self.step = 0;
                continue;
            };
            self.step += 1;
            match step {
                Step::Compute(draw) => {
                    self.left = draws.draw(draw);
                    if !self.left.is_zero() {
                        return Need::Cpu;
                    }
                }
                Step::ComputeForever => {
                    self.left = Span::MAX;
                    return Need::Cpu;
                }
                Step::Sleep(draw) => {
                    let span = draws.draw(draw);
                    if !span.is_zero() {
                        return Need::Sleep(now.after(span));
                    }
                }
                Step::Release { deadline, .. } => {
                    let released = releases.next(step, draws).unwrap_or(now);
                    self.released = released;
                    self.deadline = deadline.map_or(Time::NEVER, |span| released.after(span));
                    if released > now {
                        return Need::Sleep(released);
                    }
                }
                Step::Instant { period, offset } => {
                    return Need::Sleep(next_instant(now, *period, *offset));
                }
                Step::Yield => return Need::Yield,
                Step::Done => {
                    done(Job { released: self.released, deadline: self.deadline });
                    (self.released, self.deadline) = (now, Time::NEVER);
                }
                Step::Barrier { latency } => return Need::Others(*latency),
                Step::Lock => return Need::Lock,
                Step::Unlock => return Need::Unlock,
                Step::Device(step) => return Need::Device(*step),
            }
        }
        // A program that does nothing is asleep for all anybody can see.
        Need::Sleep(now.after(Span::from_ns(1)))
    }
}
