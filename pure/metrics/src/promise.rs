//! Reservations of one vCPU, period by period.
//!
//! The first period of a reservation begins when the reservation is made. If the reservation has a
//! phase, its later periods begin at points of a grid. A run interval is recorded when it ends, so
//! the state of a vCPU is not known between records. A period is closed when the first record of
//! the vCPU after the period is read. A record exactly at the end of the period counts as a record
//! after the period. If a reservation changes while the vCPU runs, the change is recorded before
//! the run interval. The change is pending until the run interval is recorded, and divides that
//! interval.

use std::collections::VecDeque;

use slackline_trace::Knowledge;
use slackline_units::{GridClock, Periods, Reservation, Span, Time};

use crate::deadline::{DeadlineResults, DeadlineState, Deadlines, ReceivedTime};
use crate::share::{LongRun, Period, Shares};
use crate::split::Stretch;

/// A reservation, with the time at which it takes effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedReservation {
    pub(crate) at: Time,
    pub(crate) reservation: Option<Reservation>,
    pub(crate) exact: bool,
    pub(crate) phase: Option<Span>,
}

/// Run interval of a vCPU that has a reservation, as it was recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReservedRun {
    pub(crate) stretch: Stretch,
    pub(crate) late: Span,
    pub(crate) due: bool,
}

impl ReservedRun {
    /// Splits the run interval at the time `at`. Any overrun is at the end of the CPU time used.
    fn split(self, at: Time) -> (ReservedRun, ReservedRun) {
        let (before, after) = self.stretch.split(at);
        let late = self.late.left_after(after.used).min(before.used);
        let before = ReservedRun { stretch: before, late, due: self.due };
        let late = self.late.min(after.used);
        (before, ReservedRun { stretch: after, late, due: self.due })
    }
}

/// Reservations of one vCPU, compared with the CPU time that the vCPU received.
#[derive(Clone, Debug)]
pub(crate) struct Deliveries {
    /// End of the warm-up. Periods that begin earlier do not count.
    warmup: Time,
    is_asleep: bool,
    /// Clock that defines the grid on which periods with a phase begin.
    clock: GridClock,
    current: Option<Current>,
    /// Reservations made within a run interval that has not been recorded yet, in order of time.
    pending: VecDeque<TimedReservation>,
    /// Excess of ended reservations that is not deducted from a period yet. Excess is CPU time that
    /// the vCPU received beyond the prorated slice.
    advance: Span,
    /// Reservation that the vCPU had when it left, with the time of leaving.
    left: Option<(Reservation, Time)>,
    shares: Shares,
    /// Deadlines of the reservations. `None` if the host does not observe enough to judge them.
    deadlines: Option<Deadlines>,
    /// True if a wake begins a period, by the rule of `unblocking = "new-period"`.
    begins_at_wake: bool,
    /// The same reservations with periods that begin at wakes. `None` if the policy has no such
    /// periods.
    at_wakes: Option<Box<Deliveries>>,
}

/// The reservation in force, with its current period.
#[derive(Clone, Copy, Debug)]
struct Current {
    periods: Periods,
    exact: bool,
    start: Time,
    end: Time,
    /// Budget of the current period, before any excess is deducted.
    slice: Span,
    received: Span,
    /// Part of the current period's budget that was deducted for excess.
    taken_off: Span,
    slept: bool,
}

/// Results over all periods.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    pub(crate) long_run: LongRun,
    pub(crate) judged: Option<DeadlineResults>,
}

impl Deliveries {
    /// Creates the record of a vCPU's reservations. Periods that begin before `warmup` do not
    /// count.
    pub(crate) fn new(
        warmup: Time,
        is_asleep: bool,
        knows: Knowledge,
        clock: GridClock,
    ) -> Deliveries {
        let judges_deadlines = knows.sleep && knows.stretches;
        Deliveries {
            warmup,
            is_asleep,
            clock,
            current: None,
            pending: VecDeque::new(),
            advance: Span::ZERO,
            left: None,
            shares: Shares::default(),
            deadlines: judges_deadlines.then(|| Deadlines::new(knows.resolution)),
            begins_at_wake: false,
            at_wakes: None,
        }
    }

    /// Returns the record for a policy whose periods can begin at wakes. A trace does not show
    /// which vCPUs of such a policy keep their periods. So the deadlines are judged both with and
    /// without such periods, and the judgement with fewer misses counts.
    pub(crate) fn with_periods_at_wakes(self) -> Deliveries {
        let at_wakes = Deliveries { begins_at_wake: true, ..self.clone() };
        Deliveries { at_wakes: Some(Box::new(at_wakes)), ..self }
    }

    /// Sets the time from which periods count. Must be called before a period is counted.
    pub(crate) fn count_from(&mut self, warmup: Time) {
        if let Some(at_wakes) = &mut self.at_wakes {
            at_wakes.count_from(warmup);
        }
        self.warmup = warmup;
    }

    /// Records that the clock was set, which moves the grid of periods with a phase.
    pub(crate) fn clock_set(&mut self, at: Time, ahead: Span) {
        if let Some(at_wakes) = &mut self.at_wakes {
            at_wakes.clock_set(at, ahead);
        }
        self.clock.set(at, ahead);
    }

    /// Records that the vCPU joined. If it was absent, its excess is reduced by
    /// `slice × absence / period` of the reservation with which it left.
    pub(crate) fn joined(&mut self, at: Time, is_asleep: bool) {
        if let Some(at_wakes) = &mut self.at_wakes {
            at_wakes.joined(at, is_asleep);
        }
        self.is_asleep = is_asleep;
        let earned = self.left.take().map(|(reservation, left)| reservation.over(at.since(left)));
        let earned = earned.unwrap_or(Span::ZERO);
        self.advance = self.advance.left_after(earned);
        if let Some(deadlines) = &mut self.deadlines {
            deadlines.joined(self.advance);
        }
    }

    /// Adds a reservation, with the time at which it takes effect.
    pub(crate) fn promise(&mut self, promised: TimedReservation) {
        if let Some(at_wakes) = &mut self.at_wakes {
            at_wakes.promise(promised);
        }
        self.pending.push_back(promised);
        // A blocked vCPU is not in a run interval, so the reservation can take effect at once.
        if self.is_asleep {
            self.catch_up(promised.at);
        }
    }

    /// Adds a run interval of the vCPU.
    #[inline]
    pub(crate) fn ran(&mut self, ran: ReservedRun) {
        if let Some(at_wakes) = &mut self.at_wakes {
            at_wakes.ran(ran);
        }
        let Stretch { from, to, used } = ran.stretch;
        match &mut self.current {
            Some(current)
                if self.pending.is_empty() && from >= current.start && to <= current.end =>
            {
                current.received += used;
                if let Some(deadlines) = &mut self.deadlines {
                    let ReservedRun { stretch, late, due } = ran;
                    deadlines.receive(ReceivedTime { stretch, late, due, exact: current.exact });
                }
            }
            None if self.pending.is_empty() => {}
            _ => self.ran_across(ran),
        }
    }

    /// Records that the vCPU woke.
    pub(crate) fn woke(&mut self, at: Time) {
        if let Some(at_wakes) = &mut self.at_wakes {
            at_wakes.woke(at);
        }
        self.catch_up(at);
        self.is_asleep = false;
        self.begin_at_wake(at);
        if let Some(current) = self.current.as_mut().filter(|current| current.start == at) {
            current.slept = false;
            if let Some(deadlines) = &mut self.deadlines {
                deadlines.woke_at_start();
            }
        }
    }

    /// Records that the vCPU blocked.
    pub(crate) fn blocked(&mut self, at: Time) {
        if let Some(at_wakes) = &mut self.at_wakes {
            at_wakes.blocked(at);
        }
        self.catch_up(at);
        self.is_asleep = true;
        if let Some(current) = &mut self.current {
            current.slept = true;
            if let Some(deadlines) = &mut self.deadlines {
                deadlines.block(at);
            }
        }
    }

    /// Ends the reservation, because the vCPU left or the run ended.
    pub(crate) fn over(&mut self, at: Time) {
        if let Some(at_wakes) = &mut self.at_wakes {
            at_wakes.over(at);
        }
        self.catch_up(at);
        self.apply(TimedReservation { at, reservation: None, exact: false, phase: None });
    }

    /// Returns the results over all periods. `exact` must be true if the last reservation is a hard
    /// limit.
    pub(crate) fn finish(self, exact: bool) -> Balance {
        let at_wakes = self.at_wakes.and_then(|at_wakes| at_wakes.deadlines);
        let judged = self.deadlines.into_iter().chain(at_wakes).map(Deadlines::finish);
        let judged = judged.min_by_key(|judged| judged.misses);
        Balance { long_run: self.shares.finish(exact), judged }
    }

    /// Begins a period at a wake if the vCPU has more budget left than its share of the rest of its
    /// period.
    fn begin_at_wake(&mut self, at: Time) {
        let has_phase = |current: &Current| current.periods.phase.is_some();
        let current = self.current.filter(|current| !has_phase(current) && current.start < at);
        let Some(current) = current.filter(|_| self.begins_at_wake) else { return };
        let reservation = current.periods.reservation;
        let left = (current.slice - current.taken_off).left_after(current.received);
        if left <= reservation.over(current.end.since(at)) {
            return;
        }
        let next = self.begin(current.periods, current.exact, (at, at.after(reservation.period())));
        if let Some(deadlines) = &mut self.deadlines {
            deadlines.begin(next.slice, false);
        }
        self.current = Some(next);
    }

    /// Adds a run interval that extends over several periods or reservations.
    #[inline(never)]
    fn ran_across(&mut self, ran: ReservedRun) {
        let mut rest = ran;
        while let Some(next) = self.pending.pop_front_if(|next| next.at < rest.stretch.to) {
            let (before, after) = rest.split(next.at);
            if before.stretch.from < before.stretch.to {
                self.receive(before);
            }
            rest = after;
            self.close_until(next.at);
            self.apply(next);
        }
        self.receive(rest);
    }

    /// Adds a run interval within one reservation.
    fn receive(&mut self, ran: ReservedRun) {
        self.close_until(ran.stretch.from);
        let mut rest = ran;
        while let Some(current) = &mut self.current {
            // CPU time that is reported after its period was closed counts in the period that
            // follows.
            let (end, exact) = (current.end, current.exact);
            let crosses = rest.stretch.to > end;
            let (part, after) = if crosses { rest.split(end) } else { (rest, rest) };
            let ReservedRun { stretch, late, due } = part;
            current.received += stretch.used;
            if let Some(deadlines) = &mut self.deadlines {
                deadlines.receive(ReceivedTime { stretch, late, due, exact });
            }
            if !crosses {
                break;
            }
            rest = after;
            self.close_until(end);
        }
    }

    /// Applies the pending reservations and closes the periods up to `at`. All events before `at`
    /// must have been added already.
    fn catch_up(&mut self, at: Time) {
        while let Some(next) = self.pending.pop_front_if(|next| next.at <= at) {
            self.close_until(next.at);
            self.apply(next);
        }
        self.close_until(at);
    }

    /// Replaces the reservation in force.
    fn apply(&mut self, promised: TimedReservation) {
        let TimedReservation { at, reservation, exact, phase } = promised;
        if let Some(deadlines) = &mut self.deadlines {
            deadlines.give_up(at);
        }
        if let Some(before) = self.current {
            self.cut_short(before, at);
            self.left = reservation.is_none().then_some((before.periods.reservation, at));
        }
        self.current = None;
        let Some(reservation) = reservation else { return };
        let periods = Periods { reservation, phase };
        let end = periods.first_end(at, &self.clock);
        let current = self.begin(periods, exact, (at, end));
        self.shares.begin(reservation);
        if let Some(deadlines) = &mut self.deadlines {
            deadlines.begin(current.slice, self.is_asleep);
        }
        self.current = Some(current);
    }

    /// Begins a period of the reservation and deducts excess from its budget.
    fn begin(&mut self, periods: Periods, exact: bool, (start, end): (Time, Time)) -> Current {
        let slice = periods.worth(start, end);
        let taken_off = take_off(&mut self.advance, slice);
        let (received, slept) = (Span::ZERO, self.is_asleep);
        Current { periods, exact, start, end, slice, received, taken_off, slept }
    }

    /// Ends a reservation before its period ends, and adds the excess of that period.
    fn cut_short(&mut self, current: Current, at: Time) {
        let reservation = current.periods.reservation;
        // The budget of a period that is longer than usual is still one slice.
        let rest = current.end.since(at).min(reservation.period());
        let to_come = reservation.over_rounded_up(rest).min(current.slice);
        let slice = current.slice.left_after(current.taken_off);
        self.advance += to_come.left_after(slice.left_after(current.received));
        if let Some(deadlines) = &mut self.deadlines {
            deadlines.cut_short(to_come);
        }
    }

    /// Closes the periods that end at or before `at`.
    fn close_until(&mut self, at: Time) {
        while let Some(current) = &self.current
            && current.end <= at
        {
            self.close(*current);
            if self.is_asleep {
                self.skip(at);
            }
        }
    }

    fn close(&mut self, current: Current) {
        let Current { periods, exact, start, end, slice, received, taken_off, slept } = current;
        let counts = start >= self.warmup;
        let (promised, length) = (slice - taken_off, end - start);
        let period = Period { received, promised, length, slept, counts };
        self.shares.period_over(period, exact);
        let next = self.begin(periods, exact, (end, periods.next_end(end, &self.clock)));
        if let Some(deadlines) = &mut self.deadlines {
            let state = DeadlineState { counts, is_asleep: self.is_asleep, next: next.slice };
            deadlines.deadline(end, periods.reservation, state);
        }
        self.current = Some(next);
    }

    /// Closes all whole periods before `at` in one step. The vCPU is blocked in all of them.
    fn skip(&mut self, at: Time) {
        let Some(current) = &mut self.current else { return };
        let Current { periods: Periods { reservation, .. }, exact, start, end, .. } = *current;
        let period = reservation.period();
        let count = at.since(start) / period;
        // A period of unusual length, after which the periods follow a moved grid, is closed alone.
        if count == 0 || end - start != period {
            return;
        }
        let warming = self.warmup.since(start).ns().div_ceil(period.ns());
        let counting = count.saturating_sub(warming);
        self.shares.slept_through(count, counting, reservation, exact);
        let unused = Span::from_ns(reservation.slice().ns().saturating_mul(count));
        self.advance = self.advance.left_after(unused);
        if let Some(deadlines) = &mut self.deadlines {
            deadlines.slept_through(count, reservation.slice());
        }
        current.start = start + period * count;
        current.end = current.start.after(period);
    }
}

/// Deducts excess from the budget of a period, and returns the amount deducted.
fn take_off(advance: &mut Span, slice: Span) -> Span {
    let taken_off = slice.min(*advance);
    *advance -= taken_off;
    taken_off
}
