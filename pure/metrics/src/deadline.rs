//! Deadlines: the ends of the periods of a promise, met or missed.
//!
//! - A period *counts* if it begins after the warm-up and the vCPU was awake in it without a break
//!   until it had received what it was owed, or else until the deadline.
//! - It is *owed* one slice, or its part of one where a grid cuts the period short, less what it
//!   had received ahead of time. Ahead of time is what it got in a period beyond what it was owed
//!   and what the one before had lacked: of that, what lay
//!   beyond the limit of a turn that was its due, and, if it is exact, all that was not its due;
//!   and where a promise ends within a period, what it had received beyond the part of the slice
//!   for the time that had passed. At most one slice is taken off a period, and the rest off later
//!   ones, whether they count or not.
//! - The deadline is *missed* if by then the vCPU has received less than it was owed in the period,
//!   by however little. Each period is judged by what was received between its ends: time that
//!   makes up for a shortfall counts in the period that it is given in as well.
//! - The *miss time* is how long after the deadline the shortfall had been made up: when what the
//!   vCPU received since the deadline came to as much. A shortfall that the vCPU no longer waits
//!   for (it blocks or leaves, its promise changes, the run ends) counts until then.
//!
//! There is no tolerance but the resolution of the machine that made the trace. On a simulated host
//! that is nothing: stretches end at limits and alarms, to the nanosecond. A live one counts CPU
//! time and notes switches by two clocks, and a shortfall that it cannot tell from none is none.
//!
//! Judging each period by itself keeps one late slice from being counted again and again under
//! policies that never make up for it. The missing time is in the error of the share.

use std::collections::VecDeque;

use slackline_units::{Reservation, Span, Time};

use crate::distribution::{Distribution, PartDistribution, Tally};
use crate::split::{Stretch, ppm};

/// So many shortfalls of different ends may wait to be made up. A vCPU that is starved has one,
/// however long; each further one has received a little more. The oldest beyond these is given up.
const WAITING: usize = 64;

/// Judges the deadlines of one vCPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadlines {
    /// A shortfall of no more than this may be one of counting only.
    resolution: Span,
    /// What the current period is owed.
    owed: Span,
    /// What is left of that.
    left: Span,
    /// What the period before lacked and has not been made up: more than both is ahead of time.
    missing: Span,
    /// What was received ahead of time and has not been taken off yet.
    ahead: Span,
    /// What of it was taken off the current period.
    taken_off: Span,
    /// Received since the start of the period.
    received: Span,
    /// Whether it slept in this period before it had received what it was owed.
    is_broken: bool,
    /// Received since the vCPU joined.
    total: Span,
    waiting: VecDeque<Shortfalls>,
    count: u64,
    misses: u64,
    miss_time: Tally,
    late: Span,
    of_slice: Tally,
}

/// Shortfalls of consecutive periods that will be made up at the same moment.
#[derive(Clone, Copy, Debug)]
struct Shortfalls {
    /// What will have been received in total once they are made up.
    target: Span,
    /// The deadline of the first.
    first: Time,
    count: u64,
    promise: Reservation,
}

/// CPU time that a vCPU received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) stretch: Stretch,
    /// How much of it lay beyond the limit it had been given.
    pub(crate) late: Span,
    /// Whether it was owed this time.
    pub(crate) due: bool,
    /// Whether it is to get its slice and no more.
    pub(crate) exact: bool,
}

/// What deadlines amounted to.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) count: u64,
    pub(crate) misses: u64,
    pub(crate) miss_time: Option<Distribution>,
    pub(crate) late: Span,
    pub(crate) of_slice: Option<PartDistribution>,
}

impl Deadlines {
    /// For a machine that counts CPU time with this resolution.
    pub(crate) fn new(resolution: Span) -> Deadlines {
        Deadlines { resolution, ..Deadlines::default() }
    }

    /// It is back: of what it got ahead of time only this is left.
    pub(crate) fn joined(&mut self, ahead: Span) {
        (self.ahead, self.taken_off) = (ahead, Span::ZERO);
    }

    /// A promise ends, in the rest of whose period so much would have been earned.
    pub(crate) fn cut_short(&mut self, to_come: Span) {
        // The period is not judged, and pays only for what has been earned in it.
        self.ahead += to_come.left_after(self.left);
        (self.left, self.taken_off) = (Span::ZERO, Span::ZERO);
    }

    /// A promise begins, and with it a period. What a policy owes in the one after a period with
    /// sleep in it, it sees fit.
    pub(crate) fn begin(&mut self, slice: Span, is_asleep: bool) {
        let was_broken = self.is_broken && !self.ahead.is_zero();
        self.missing = Span::ZERO;
        self.next(slice, is_asleep || was_broken);
    }

    /// Received within the current period.
    pub(crate) fn receive(&mut self, received: Received) {
        let Received { stretch: Stretch { used, .. }, late, due, exact } = received;
        let within = used.min(self.left);
        self.left -= within;
        let made_up = (used - within).min(self.missing);
        self.missing -= made_up;
        let beyond = used - within - made_up;
        self.ahead += match (self.is_broken, exact, due) {
            // In a period that it slept in, a policy owes it what it sees fit, and the limit is all
            // that is known of that.
            (true, _, true) => late,
            (true, true, false) => used,
            (false, true, false) => beyond,
            // What makes up for older shortfalls lies within a limit; and a limit may pass while
            // something else has the CPU. Neither is ahead of time.
            (false, _, true) => beyond.min(late),
            (_, false, false) => Span::ZERO,
        };
        self.received += used;
        if !self.waiting.is_empty() {
            self.make_up(received.stretch);
        }
        self.total += used;
    }

    /// It slept: at the start of the period, or since.
    pub(crate) fn block(&mut self, at: Time) {
        self.is_broken |= self.received < self.owed;
        self.give_up(at);
    }

    /// It woke at the very start of the period.
    pub(crate) fn woke_at_start(&mut self) {
        self.is_broken = false;
    }

    /// The period ends, and the next one begins.
    pub(crate) fn deadline(&mut self, at: Time, promise: Reservation, state: State) {
        // What is too little to tell is forgotten: where a policy and this differ on what a period
        // with sleep in it was owed, they must not differ for ever.
        let shortfall = self.owed.left_after(self.received);
        let is_none = self.is_broken || shortfall <= self.resolution;
        self.missing = if is_none { Span::ZERO } else { shortfall };
        if state.counts && !self.is_broken {
            self.count += 1;
            if shortfall > self.resolution {
                self.misses += 1;
                self.wait(at, shortfall, promise);
            }
        }
        self.next(state.next, state.is_asleep);
    }

    /// It sleeps through `count` periods, the current one first, and one more begins.
    pub(crate) fn slept_through(&mut self, count: u64, slice: Span) {
        self.ahead = self.ahead.left_after(slice * (count - 1));
        self.missing = Span::ZERO;
        self.next(slice, true);
    }

    /// Whatever it lacks, it no longer waits for it.
    pub(crate) fn give_up(&mut self, at: Time) {
        while let Some(shortfalls) = self.waiting.pop_front() {
            self.settle(shortfalls, at);
        }
    }

    /// What it amounted to.
    pub(crate) fn finish(self) -> Judged {
        Judged {
            count: self.count,
            misses: self.misses,
            miss_time: self.miss_time.distribution(),
            late: self.late,
            of_slice: self.of_slice.parts(),
        }
    }

    fn next(&mut self, slice: Span, is_asleep: bool) {
        self.taken_off = self.ahead.min(slice);
        self.ahead -= self.taken_off;
        self.owed = slice - self.taken_off;
        self.left = self.owed;
        self.received = Span::ZERO;
        self.is_broken = is_asleep;
    }

    fn wait(&mut self, deadline: Time, shortfall: Span, promise: Reservation) {
        let last = self.waiting.back_mut();
        // Older shortfalls are made up first, so none can be made up before the one before it.
        let target = self.total + shortfall;
        let target = last.as_ref().map_or(target, |last| last.target.max(target));
        if let Some(last) = last
            && last.target == target
            && last.next() == deadline
        {
            last.count += 1;
            return;
        }
        if self.waiting.len() == WAITING
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.settle(oldest, deadline);
        }
        self.waiting.push_back(Shortfalls { target, first: deadline, count: 1, promise });
    }

    fn make_up(&mut self, stretch: Stretch) {
        while let Some(&first) = self.waiting.front() {
            let lacking = first.target - self.total;
            if lacking > stretch.used {
                break;
            }
            self.waiting.pop_front();
            self.settle(first, stretch.when(lacking));
        }
    }

    /// These shortfalls end at `at`.
    fn settle(&mut self, shortfalls: Shortfalls, at: Time) {
        let Shortfalls { first, count, promise, .. } = shortfalls;
        for nth in 0..count {
            let miss_time = at.since(first.after(promise.period() * nth));
            self.miss_time.add(miss_time);
            self.late += miss_time;
            self.of_slice.add_value(ppm(miss_time, promise.slice()));
        }
    }
}

impl Shortfalls {
    /// The deadline after the last of these.
    fn next(&self) -> Time {
        self.first.after(self.promise.period() * self.count)
    }
}

/// What is known of a vCPU at a deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    /// Whether the period that ends lies behind the warm-up.
    pub(crate) counts: bool,
    pub(crate) is_asleep: bool,
    /// What the period is worth that begins.
    pub(crate) next: Span,
}
