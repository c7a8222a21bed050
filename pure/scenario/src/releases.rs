//! Instants at which a program's pieces of work are released, the same simulated and live.

use slackline_units::{Span, Time};

use crate::{Draw, Step, Stream};

/// Releases of a program so far, and all that follow from its [`Step::Release`].
#[derive(Clone, Debug)]
pub struct Releases {
    /// Start of the program, from which releases are counted.
    began: Time,
    /// Last release without its jitter. `None` before the first.
    nominal: Option<Time>,
    /// Last release. The next is never earlier.
    latest: Time,
    /// Draws of arrivals. They are apart from those of computing, so that what is released does not
    /// depend on how far the program has come. `None` until something is drawn.
    draws: Option<Stream>,
}

impl Releases {
    /// Releases of a program that begins now.
    #[must_use]
    pub fn of_program_from(began: Time) -> Releases {
        Releases { began, nominal: None, latest: began, draws: None }
    }

    /// Returns true after the first release.
    #[must_use]
    pub fn have_begun(&self) -> bool {
        self.nominal.is_some()
    }

    /// Returns the next release. `work` is the stream of the program's own draws, from which the
    /// stream of arrivals is created at its first draw. `None` if the step is no [`Step::Release`].
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
