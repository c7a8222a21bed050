//! CPU time received compared with the reservation, per whole second and in the long run.
//!
//! Both comparisons use sums over whole periods, so that no sum ends in the middle of a slice.
//!
//! - A *whole second* is the smallest number of periods that lasts a second or more. For example,
//!   it lasts 1.002 s with periods of 3 ms, and 2 s with periods of 2 s. Whole seconds follow each
//!   other from the start of the reservation. A whole second counts if it begins after the warm-up
//!   and ends before the reservation or the run ends.
//! - The *long run* is all whole periods that begin after the warm-up. Both *delivered* and
//!   *promised*, in parts of a CPU, cover this time. So the error of a vCPU with a hard limit is
//!   (delivered - promised)/promised. A period that the warm-up or the end of the run cuts is left
//!   out. The reason is that the slice can be received in any part of the period.
//! - In two cases *delivered* and *promised* cover all time that the vCPU was joined. Either the
//!   reservation changed after the warm-up, or there is no whole period. Each change cuts a period,
//!   so whole periods alone would not represent the run.
//! - The *error* is (CPU time received - CPU time reserved) / CPU time reserved. With a hard limit,
//!   both too little and too much are errors. For a work-conserving vCPU the reservation is a lower
//!   bound, so too much is no error.
//! - A vCPU that blocks can want less than it reserved. A second in which it blocked and received
//!   less than reserved does not count. A long run in which it blocked and received less than
//!   reserved has no error. More CPU time than a hard limit allows is always an error.

use slackline_units::{Reservation, Span};

use crate::distribution::{ErrorDistribution, Tally};
use crate::split::ppm;

const SECOND: Span = Span::from_secs(1);

/// CPU time that one vCPU received in a period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period {
    pub(crate) received: Span,
    /// Budget of the period: one slice minus the excess that is deducted from the period.
    pub(crate) promised: Span,
    pub(crate) length: Span,
    /// True if the vCPU was blocked for a part of the period.
    pub(crate) slept: bool,
    /// True if the period begins after the warm-up.
    pub(crate) counts: bool,
}

/// Sums over several periods.
#[derive(Clone, Copy, Debug, Default)]
struct PeriodSums {
    received: Span,
    promised: Span,
    slept: bool,
}

/// CPU time that a vCPU received, and CPU time that it had reserved, over the same length of time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    pub(crate) received: Span,
    pub(crate) promised: Span,
    pub(crate) length: Span,
}

/// Share error of one vCPU over the whole run, and in single seconds, with the sums from which the
/// error is computed.
#[derive(Debug, Default)]
pub(crate) struct LongRun {
    /// Error of the long run, in millionths of the reservation. `None` if there was no whole
    /// period, or if the vCPU blocked and received less than reserved.
    pub(crate) error_ppm: Option<i64>,
    pub(crate) second_error: Option<ErrorDistribution>,
    /// CPU time received and reserved over all whole periods. `None` if there was no whole period.
    pub(crate) whole: Option<Account>,
}

/// Compares the CPU time of one vCPU with its reservation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    second: PeriodSums,
    /// Number of periods so far in the current whole second.
    periods: u64,
    /// Number of periods that make a whole second.
    a_second: u64,
    is_measured: bool,
    errors: Tally,
    long_run: PeriodSums,
    /// Total length of the periods in the long run.
    whole: Span,
}

impl Shares {
    /// Begins a reservation. The first whole second begins with the reservation.
    pub(crate) fn begin(&mut self, promise: Reservation) {
        self.a_second = SECOND.ns().div_ceil(promise.period().ns());
        self.begin_second();
    }

    fn begin_second(&mut self) {
        (self.second, self.periods, self.is_measured) = (PeriodSums::default(), 0, true);
    }

    /// Adds a period that has ended.
    pub(crate) fn period_over(&mut self, period: Period, exact: bool) {
        self.second.add(period.received, period.promised, period.slept);
        self.is_measured &= period.counts;
        if period.counts {
            self.long_run.add(period.received, period.promised, period.slept);
            self.whole += period.length;
        }
        self.periods += 1;
        if self.periods == self.a_second {
            self.second_over(exact);
        }
    }

    /// Adds `count` periods in which the vCPU was blocked. Only the last `counting` of them began
    /// after the warm-up.
    pub(crate) fn slept_through(
        &mut self,
        count: u64,
        counting: u64,
        promise: Reservation,
        exact: bool,
    ) {
        if counting > 0 {
            self.long_run.add(Span::ZERO, promise.slice() * counting, true);
            self.whole += promise.period() * counting;
        }
        let to_second = self.a_second - self.periods;
        self.is_measured &= counting == count;
        self.second.add(Span::ZERO, promise.slice() * count.min(to_second), true);
        if count < to_second {
            self.periods += count;
            return;
        }
        self.second_over(exact);
        // Seconds in which the vCPU was always blocked do not count. The vCPU may be runnable in
        // the second that follows.
        self.periods = (count - to_second) % self.a_second;
        self.is_measured = counting >= self.periods;
        self.second.add(Span::ZERO, promise.slice() * self.periods, self.periods > 0);
    }

    fn second_over(&mut self, exact: bool) {
        if self.is_measured
            && let Some(error) = self.second.error_ppm(exact)
        {
            self.errors.add_value(error.unsigned_abs());
        }
        self.begin_second();
    }

    /// Returns the errors and the sums. `exact` must be true if the reservation is a hard limit.
    pub(crate) fn finish(self, exact: bool) -> LongRun {
        let whole = (!self.whole.is_zero()).then_some(Account {
            received: self.long_run.received,
            promised: self.long_run.promised,
            length: self.whole,
        });
        let error_ppm = self.long_run.error_ppm(exact);
        LongRun { error_ppm, second_error: self.errors.errors(), whole }
    }
}

impl PeriodSums {
    fn add(&mut self, received: Span, promised: Span, slept: bool) {
        self.received += received;
        self.promised += promised;
        self.slept |= slept;
    }

    fn error_ppm(self, exact: bool) -> Option<i64> {
        if self.promised.is_zero() {
            return None;
        }
        let missing = ppm(self.promised.left_after(self.received), self.promised);
        let surplus = ppm(self.received.left_after(self.promised), self.promised);
        if self.received < self.promised {
            return (!self.slept).then(|| -signed(missing));
        }
        Some(if exact { signed(surplus) } else { 0 })
    }
}

fn signed(ppm: u64) -> i64 {
    i64::try_from(ppm).unwrap_or(i64::MAX)
}
