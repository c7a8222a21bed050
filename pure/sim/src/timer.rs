//! Timers of a CPU, with the resolution and lateness of real timers.

use slackline_scenario::{Draw, HostSpec, Stream};
use slackline_units::{Span, Time};

/// Event of a CPU. Events of one instant occur in the order of these variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The running vCPU has completed its work.
    Work,
    /// The timer of the policy expires.
    Alarm,
    /// The running vCPU has reached the limit of its timeslice.
    Limit,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ArmedTimer {
    /// Time for which the timer was armed. `NEVER` if it is off.
    pub(crate) due: Time,
    /// Time at which the timer expires: `due` rounded up to the resolution, plus the lateness. A
    /// timer that expires together with another timer can be earlier, by up to [`Timers::slop`].
    pub(crate) rings: Time,
}

pub(crate) const OFF: ArmedTimer = ArmedTimer { due: Time::NEVER, rings: Time::NEVER };

/// Precision of the timers of all CPUs.
pub(crate) struct Timers {
    resolution: Span,
    lateness: Draw,
    /// True if timers expire exactly when they are due.
    are_exact: bool,
    /// Time by which a timer can expire early, together with another timer of its CPU.
    pub(crate) slop: Span,
}

impl Timers {
    pub(crate) fn new(host: &HostSpec) -> Timers {
        let (resolution, lateness) = (host.timer_resolution, host.timer_lateness);
        let are_exact = resolution.is_zero() && lateness == Draw::Fixed(Span::ZERO);
        Timers { resolution, lateness, are_exact, slop: host.timer_slop }
    }

    /// Arms a timer for the time `due`. A timer that is already armed for this time keeps the
    /// lateness that was drawn for it. Arming a timer for `NEVER` turns it off.
    #[inline]
    pub(crate) fn arm(&self, timer: &mut ArmedTimer, due: Time, now: Time, lateness: &mut Stream) {
        self.arm_with(None, timer, (due, now), lateness);
    }

    /// Arms a timer as [`Timers::arm`] does. `own` is the distribution of the timer's lateness, if
    /// it differs from the distribution for all timers.
    #[inline]
    pub(crate) fn arm_with(
        &self,
        own: Option<&Draw>,
        timer: &mut ArmedTimer,
        (due, now): (Time, Time),
        lateness: &mut Stream,
    ) {
        if timer.due == due {
            return;
        }
        let rings = match own {
            None if self.are_exact => due,
            None => self.inexact(due, &self.lateness, lateness),
            Some(own) => self.inexact(due, own, lateness),
        };
        // A timer that became due before now expires at once.
        *timer = ArmedTimer { due, rings: rings.max(now) };
    }

    #[inline(never)]
    fn inexact(&self, due: Time, lateness: &Draw, stream: &mut Stream) -> Time {
        if due == Time::NEVER {
            return due;
        }
        let ticks = if self.resolution.is_zero() {
            due
        } else {
            let past = (due - Time::START) % self.resolution;
            if past.is_zero() { due } else { due.after(self.resolution - past) }
        };
        ticks.after(stream.draw(lateness))
    }
}
