//! What was received against what was promised: in each whole second, and in the long run.
//!
//! Both are added up from whole periods, so that a window never ends in the middle of a slice.
//!
//! - A *whole second* is the smallest number of periods that lasts a second or more: 1 s for 10 ms,
//!   1.002 s for 3 ms, 2 s for 2 s. They follow each other from the start of the promise. One
//!   counts if it begins after the warm-up and ends before the promise or the run does.
//! - The *long run* is all whole periods that begin after the warm-up. What was *delivered* and
//!   *promised* in parts of a CPU are both of this time, so that for an exact vCPU the error is
//!   (delivered - promised)/promised. Periods that the warm-up or the end cuts are in none of them:
//!   a slice may be had at their start.
//! - Of a promise that changed behind the warm-up, and without a whole period, delivered and
//!   promised are of all the time that the vCPU was there: each change cuts a period, so that what
//!   is whole need not be like the rest, and not in the same parts.
//! - The *error* is what was received less what was promised, as a part of what was promised. For
//!   an exact vCPU both too little and too much are errors. For a work-conserving one the promise
//!   is a lower bound, and more is no error.
//! - Who sleeps wants less than it was promised. A second in which the vCPU slept and received less
//!   does not count; nor is there an error in the long run then. More than an exact promise is an
//!   error all the same.

use slackline_units::{Reservation, Span};

use crate::distribution::{ErrorDistribution, Tally};
use crate::split::ppm;

const SECOND: Span = Span::from_secs(1);

/// What one vCPU received in a period of its promise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period {
    pub(crate) received: Span,
    /// What it was promised in it: less than a slice where it had had some in advance.
    pub(crate) promised: Span,
    pub(crate) length: Span,
    /// Whether it slept in it.
    pub(crate) slept: bool,
    /// Whether it lies behind the warm-up.
    pub(crate) counts: bool,
}

/// Received and promised over some periods.
#[derive(Clone, Copy, Debug, Default)]
struct Books {
    received: Span,
    promised: Span,
    slept: bool,
}

/// What was received and promised over one and the same time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    pub(crate) received: Span,
    pub(crate) promised: Span,
    pub(crate) length: Span,
}

/// What the shares of one vCPU amount to.
#[derive(Debug, Default)]
pub(crate) struct LongRun {
    /// In millionths of the promise.
    pub(crate) error_ppm: Option<i64>,
    pub(crate) second_error: Option<ErrorDistribution>,
    /// Of whole periods; none if there was none.
    pub(crate) whole: Option<Account>,
}

/// Compares what one vCPU receives with its promise.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    second: Books,
    /// Periods so far in this second, and whether all of them count.
    periods: u64,
    /// Periods that make a second.
    a_second: u64,
    is_measured: bool,
    errors: Tally,
    long_run: Books,
    /// How long the periods of the long run were.
    whole: Span,
}

impl Shares {
    /// A promise begins, and with it a second.
    pub(crate) fn begin(&mut self, promise: Reservation) {
        self.a_second = SECOND.ns().div_ceil(promise.period().ns());
        self.begin_second();
    }

    fn begin_second(&mut self) {
        (self.second, self.periods, self.is_measured) = (Books::default(), 0, true);
    }

    /// A period is over.
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

    /// `count` periods that the vCPU slept through; the last `counting` of them count.
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
        // Seconds with nothing but sleep in them do not count. It may be awake in the next one.
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

    /// What it amounts to.
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

impl Books {
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
