//! What a vCPU used beyond its slice, and how it pays for that (see the top of `edf`).

use slackline_units::{Span, Time};

use super::stops::{UNTOLD, unsteady};
use super::{Server, SpareTime};

impl Server {
    /// It used more than it was owed.
    #[inline]
    pub(super) fn overrun(&mut self, beyond: Span, now: Time, spare_time: SpareTime) {
        if !beyond.is_zero() {
            self.count_urgent(now, spare_time);
            self.debt += beyond;
            self.urgent += beyond;
            self.stops.overran += beyond;
        }
    }

    /// Spare time pays those who had to wait.
    fn count_urgent(&mut self, now: Time, spare_time: SpareTime) {
        let (before, rests) = core::mem::replace(&mut self.counted, (now, spare_time.rests));
        if rests != spare_time.rests {
            self.urgent = Span::ZERO;
        } else if !self.urgent.is_zero() {
            self.urgent = self.urgent.left_after(spare_time.of(now.since(before)));
        }
    }

    /// Takes debt from the slice that begins; says how much.
    pub(super) fn pay(&mut self, slice: Span, now: Time, spare_time: SpareTime) -> Span {
        if self.remaining.is_zero() && !self.slept && !self.stops.is_paid_off {
            self.stops.learn();
        }
        self.stops.overran = Span::ZERO;
        self.stops.is_paid_off = slice.is_zero();
        if self.debt.is_zero() && self.advance.is_zero() {
            return Span::ZERO;
        }
        let in_advance = self.advance.min(slice);
        self.advance -= in_advance;
        self.count_urgent(now, spare_time);
        let untold = self.stops.habit() + UNTOLD;
        if !self.repays {
            self.debt -= self.forgiven(slice, untold);
        }
        let is_far_ahead = self.debt.left_after(untold) > slice;
        let most = match (self.repays, is_far_ahead) {
            (true, _) => self.debt,
            (false, true) => self.urgent.max(untold + slice / 2),
            (false, false) => self.urgent.max(untold),
        };
        let paid = self.debt.min(slice - in_advance).min(most);
        self.urgent = self.urgent.left_after(paid);
        self.debt -= paid;
        self.stops.is_paid_off = in_advance + paid == slice;
        in_advance + paid
    }

    /// What of its debt, which nobody waits for, is never paid: beyond a slice all; of an exact
    /// vCPU what stops vary by, once it is known how they are, and beyond a slice and a half all: a
    /// single stop that was very late, as of a machine that was halted, makes two slices short at
    /// most. A quarter of a slice is kept, as it may be paid where nobody can tell.
    fn forgiven(&self, slice: Span, untold: Span) -> Span {
        let beyond = |kept: Span| self.debt.left_after(kept.max(self.urgent));
        match (self.exact, self.stops.are_known()) {
            (false, _) => beyond(untold + slice),
            (true, false) => beyond(untold + slice / 4),
            (true, true) => {
                let far = beyond(untold + slice + slice / 2);
                beyond(untold + slice / 4).min(unsteady(slice)).max(far)
            }
        }
    }
}
