//! Release times of a program's pieces of work. They are equal in simulated and live runs.

use slackline_units::{Span, Time};

use crate::{Draw, Step, Stream};

/// Generator of the release times of a program, from its [`Step::Release`].
#[derive(Clone, Debug)]
pub struct Releases {
    /// Time at which the program began, from which releases are counted.
    began: Time,
    /// Time of the last release without its jitter. `None` if there was no release yet.
    nominal: Option<Time>,
    /// Time of the last release. The next release is never earlier.
    latest: Time,
    /// Random draws for release times. They are separate from the draws for computing, so that the
    /// progress of the program does not change its releases. `None` until the first draw.
    draws: Option<Stream>,
}

impl Releases {
    /// Creates the release times of a program that begins at `began`.
    #[must_use]
    pub fn of_program_from(began: Time) -> Releases {
        Releases { began, nominal: None, latest: began, draws: None }
    }

    /// Returns true if the program has had at least one release.
    #[must_use]
    pub fn have_begun(&self) -> bool {
        self.nominal.is_some()
    }

    /// Returns the time of the next release. `work` is the stream of the program's own draws. The
    /// stream for release times is created from `work` at the first draw. `None` if the step is not
    /// a [`Step::Release`].
    #[inline]
    pub fn next(&mut self, step: &Step, work: &Stream) -> Option<Time> {
        let Step::Release { period, offset, gap, jitter, .. } = step else { return None };
        let nominal = match self.nominal {
            None => self.began.after(*offset),
            Some(last) => last.after(*period).after(self.draw(gap, work)),
        };
        self.nominal = Some(nominal);
        self.latest = nominal.after(self.draw(jitter, work)).max(self.latest);
        Some(self.latest)
    }

    #[inline]
    fn draw(&mut self, draw: &Draw, work: &Stream) -> Span {
        match *draw {
            Draw::Fixed(span) => span,
            _ => self.draws.get_or_insert_with(|| work.of_arrivals()).draw(draw),
        }
    }
}
