//! Computation of the period in which a given time falls.

use slackline_units::{GridClock, Span, Time};

use crate::policies::edf::EdfServer;

/// Period of a vCPU in which a given time falls. The vCPU's current period has ended by that time.
pub(in crate::policies::edf) struct NextPeriod {
    /// Total budget of the periods skipped between the vCPU's current period and this period.
    pub(in crate::policies::edf) unused: Span,
    /// Start of this period.
    pub(in crate::policies::edf) begins: Time,
    /// Budget of this period.
    pub(in crate::policies::edf) slice: Span,
    /// End of this period.
    pub(in crate::policies::edf) deadline: Time,
}

impl EdfServer {
    /// Returns the period that contains `now`. `now` must not be before the end of the current
    /// period.
    #[inline(always)]
    pub(in crate::policies::edf) fn coming(&self, now: Time, clock: &GridClock) -> NextPeriod {
        if self.periods.phase.is_some() {
            return self.coming_on_grid(now, clock);
        }
        let (slice, period) = (self.periods.reservation.slice(), self.periods.reservation.period());
        let past = now.since(self.deadline);
        let passed = if past < period { 0 } else { past / period };
        let begins = self.deadline.after(period * passed);
        let unused = Span::from_ns(slice.ns().saturating_mul(passed));
        NextPeriod { unused, begins, slice, deadline: begins.after(period) }
    }

    /// Returns the period that contains `now` for a vCPU with a phase. Only its first period can be
    /// shorter or longer than the later periods.
    #[inline(never)]
    fn coming_on_grid(&self, now: Time, clock: &GridClock) -> NextPeriod {
        let (slice, period) = (self.periods.reservation.slice(), self.periods.reservation.period());
        let first = self.periods.next_end(self.deadline, clock);
        let worth = self.periods.worth(self.deadline, first);
        if now < first {
            let (unused, begins) = (Span::ZERO, self.deadline);
            return NextPeriod { unused, begins, slice: worth, deadline: first };
        }
        let passed = now.since(first) / period;
        let begins = first.after(period * passed);
        let unused = Span::from_ns(slice.ns().saturating_mul(passed)) + worth;
        NextPeriod { unused, begins, slice, deadline: begins.after(period) }
    }
}
