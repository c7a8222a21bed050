//! Deadlines of a reservation, met or missed. A deadline is the end of a period.
//!
//! - A period *counts* if it begins after the warm-up and the vCPU was runnable in it without a
//!   break. The vCPU must be runnable until it has received its budget or until the deadline.
//! - The *budget* is one slice, minus the excess of earlier periods. A reservation with a phase can
//!   have a shorter period, for which the slice is prorated.
//! - *Excess* is CPU time beyond the budget and beyond the shortfall of the period before. Of the
//!   CPU time that a vCPU receives by its reservation, only overrun of a timeslice is excess. Slack
//!   is excess only with a hard limit. If a reservation ends within a period, CPU time beyond the
//!   prorated slice is excess as well. At most one slice of excess is deducted from a period. The
//!   remainder is deducted from later periods, whether they count or not.
//! - The deadline is *missed* if the vCPU has received less than the budget by then, even if only a
//!   nanosecond is missing. Each period is judged by the CPU time received between its start and
//!   its end. CPU time that makes up for a shortfall also counts in the period in which it is
//!   received.
//! - The *miss time* is the tardiness: the time from the deadline until the vCPU has received the
//!   amount of the shortfall. The miss time ends earlier if the vCPU blocks or leaves, if its
//!   reservation changes, or if the run ends.
//!
//! The only tolerance is the resolution of the host. The resolution of a simulated host is zero,
//! because its run intervals end exactly at limits and timers. A live host measures CPU time and
//! switches by two clocks. A shortfall below the difference of these clocks is no shortfall.
//!
//! Each period is judged alone. So one late slice counts as one miss, even under a policy that
//! never makes up for the missing time. The missing time is part of the error of the share too.

use std::collections::VecDeque;

use slackline_units::{Reservation, Span, Time};

use crate::distribution::{Distribution, PartDistribution, Tally};
use crate::split::{Stretch, ppm};

/// Maximum number of shortfalls that wait to be made up. If one more is added, the tardiness of the
/// oldest ends at that moment. Consecutive periods in which a vCPU received nothing share one
/// shortfall.
const WAITING: usize = 64;

/// State by which the deadlines of one vCPU are judged: met or missed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadlines {
    /// Largest shortfall that can be due to measurement alone.
    resolution: Span,
    /// CPU time that the vCPU must receive in the current period: the slice, prorated if the period
    /// is cut short, minus `taken_off`.
    owed: Span,
    /// Part of `owed` that the vCPU has not received yet.
    left: Span,
    /// Shortfall of the previous period that is not made up yet. CPU time beyond this shortfall and
    /// the budget is excess.
    missing: Span,
    /// Excess CPU time that is not deducted from a budget yet.
    ahead: Span,
    /// Excess that was deducted from the budget of the current period.
    taken_off: Span,
    /// CPU time received since the start of the period.
    received: Span,
    /// True if the vCPU was blocked in the current period before it had received its budget. The
    /// period is then not judged.
    is_broken: bool,
    /// CPU time received since the vCPU joined.
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
    /// CPU time since the join (the value of `total`) at which these shortfalls are made up.
    target: Span,
    /// Deadline of the first period in which the vCPU received too little CPU time.
    first: Time,
    count: u64,
    promise: Reservation,
}

/// CPU time that a vCPU received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedTime {
    pub(crate) stretch: Stretch,
    /// Part of the received CPU time that was overrun.
    pub(crate) late: Span,
    /// True if the CPU time was received by reservation, false if it was slack.
    pub(crate) due: bool,
    /// True if the vCPU's reservation is a hard limit.
    pub(crate) exact: bool,
}

/// Results over all deadlines.
#[derive(Debug)]
pub(crate) struct DeadlineResults {
    pub(crate) count: u64,
    pub(crate) misses: u64,
    pub(crate) miss_time: Option<Distribution>,
    pub(crate) late: Span,
    pub(crate) of_slice: Option<PartDistribution>,
}

impl Deadlines {
    /// Creates the state for a host that measures CPU time with the resolution `resolution`.
    pub(crate) fn new(resolution: Span) -> Deadlines {
        Deadlines { resolution, ..Deadlines::default() }
    }

    /// Records that the vCPU joined. `ahead` is the excess that the vCPU still has from the time
    /// before it last left.
    pub(crate) fn joined(&mut self, ahead: Span) {
        (self.ahead, self.taken_off) = (ahead, Span::ZERO);
    }

    /// Ends a reservation before its period ends. `to_come` is the entitlement for the remaining
    /// part of that period.
    pub(crate) fn cut_short(&mut self, to_come: Span) {
        // The period that was cut short is not judged. Only its elapsed part entitles the vCPU to
        // CPU time.
        self.ahead += to_come.left_after(self.left);
        (self.left, self.taken_off) = (Span::ZERO, Span::ZERO);
    }

    /// Begins a reservation and its first period. If the vCPU blocked in the previous period and
    /// has excess, the new period is not judged, because in this case the policy is free to choose
    /// the budget.
    pub(crate) fn begin(&mut self, slice: Span, is_asleep: bool) {
        let was_broken = self.is_broken && !self.ahead.is_zero();
        self.missing = Span::ZERO;
        self.next(slice, is_asleep || was_broken);
    }

    /// Adds CPU time received within the current period.
    pub(crate) fn receive(&mut self, received: ReceivedTime) {
        let ReceivedTime { stretch: Stretch { used, .. }, late, due, exact } = received;
        let within = used.min(self.left);
        self.left -= within;
        let made_up = (used - within).min(self.missing);
        self.missing -= made_up;
        let beyond = used - within - made_up;
        self.ahead += match (self.is_broken, exact, due) {
            // After the vCPU blocked, the policy decides about the budget. The trace shows only the
            // limit of the timeslice.
            (true, _, true) => late,
            (true, true, false) => used,
            (false, true, false) => beyond,
            // CPU time that makes up for older shortfalls may be within a timeslice. The limit of a
            // timeslice may also pass while another thread has the CPU. Neither case is excess.
            (false, _, true) => beyond.min(late),
            (_, false, false) => Span::ZERO,
        };
        self.received += used;
        if !self.waiting.is_empty() {
            self.make_up(received.stretch);
        }
        self.total += used;
    }

    /// Records that the vCPU blocked in the current period, possibly at its very start.
    pub(crate) fn block(&mut self, at: Time) {
        self.is_broken |= self.received < self.owed;
        self.give_up(at);
    }

    /// Records that the vCPU woke at the very start of the period.
    pub(crate) fn woke_at_start(&mut self) {
        self.is_broken = false;
    }

    /// Judges the period that ends at `at`, and begins the next period.
    pub(crate) fn deadline(&mut self, at: Time, promise: Reservation, state: DeadlineState) {
        // A shortfall below the resolution is dropped. The policy may set another budget than this
        // module for a period in which the vCPU blocked, and that difference must not last forever.
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

    /// Skips `count` periods in which the vCPU is blocked, starting with the current period. Then
    /// begins the next period.
    pub(crate) fn slept_through(&mut self, count: u64, slice: Span) {
        self.ahead = self.ahead.left_after(slice * (count - 1));
        self.missing = Span::ZERO;
        self.next(slice, true);
    }

    /// Gives up all shortfalls at the time `at`, when the vCPU no longer waits for the missing CPU
    /// time.
    pub(crate) fn give_up(&mut self, at: Time) {
        while let Some(shortfalls) = self.waiting.pop_front() {
            self.settle(shortfalls, at);
        }
    }

    /// Returns the results over all deadlines.
    pub(crate) fn finish(self) -> DeadlineResults {
        DeadlineResults {
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
        // Older shortfalls are made up first, so the target of a newer shortfall is never below
        // theirs.
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

    /// Ends the shortfalls at the time `at`, and adds the tardiness of their deadlines to the
    /// results.
    fn settle(&mut self, shortfalls: Shortfalls, at: Time) {
        let Shortfalls { first, count, promise, .. } = shortfalls;
        for nth in 0..count {
            let miss_time = at.since(first.after(promise.period() * nth));
            self.miss_time.add(miss_time);
            // The sum grows with the square of the time that the vCPU lacks, so it can overflow.
            self.late = self.late.checked_add(miss_time).unwrap_or(Span::MAX);
            self.of_slice.add_value(ppm(miss_time, promise.slice()));
        }
    }
}

impl Shortfalls {
    /// Returns the deadline that follows the last period of these shortfalls.
    fn next(&self) -> Time {
        self.first.after(self.promise.period() * self.count)
    }
}

/// State of a vCPU at a deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadlineState {
    /// True if the period that ends began after the warm-up.
    pub(crate) counts: bool,
    pub(crate) is_asleep: bool,
    /// Budget of the period that begins at this deadline, before excess is deducted from the
    /// budget.
    pub(crate) next: Span,
}
