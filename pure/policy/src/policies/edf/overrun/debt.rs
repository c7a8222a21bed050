//! Debt of a vCPU for CPU time used beyond its slice, and its payment (see the head of `edf`).

use slackline_units::{Span, Time};

use crate::policies::edf::overrun::history::UNTOLD;
use crate::policies::edf::{EdfServer, SpareTime};

impl EdfServer {
    /// Adds CPU time beyond the budget to the debt.
    #[inline]
    pub(in crate::policies::edf) fn overrun(
        &mut self,
        beyond: Span,
        now: Time,
        spare_time: SpareTime,
    ) {
        if !beyond.is_zero() {
            self.count_urgent(now, spare_time);
            self.debt += beyond;
            self.urgent += beyond;
            self.stops.overran += beyond;
        }
    }

    /// Deducts slack from the urgent part of the debt, for which other vCPUs can still have to
    /// wait. That slack is the slack of the CPU since the last such deduction. The urgent part
    /// becomes zero if the CPU was quiescent since.
    fn count_urgent(&mut self, now: Time, spare_time: SpareTime) {
        let (before, rests) = core::mem::replace(&mut self.counted, (now, spare_time.rests));
        if rests != spare_time.rests {
            self.urgent = Span::ZERO;
        } else if !self.urgent.is_zero() {
            self.urgent = self.urgent.left_after(spare_time.of(now.since(before)));
        }
    }

    /// Deducts debt and excess over the fluid rate from the slice that begins. Returns the amount
    /// deducted.
    pub(in crate::policies::edf) fn pay(
        &mut self,
        slice: Span,
        now: Time,
        spare_time: SpareTime,
    ) -> Span {
        if self.stops.is_stopped && !self.stops.is_paid_off {
            self.stops.learn();
        }
        (self.stops.overran, self.stops.is_stopped) = (Span::ZERO, false);
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
        let most = if self.repays { self.debt } else { self.urgent.max(untold) };
        let paid = self.debt.min(slice - in_advance).min(most);
        self.urgent = self.urgent.left_after(paid);
        self.debt -= paid;
        self.stops.is_paid_off = in_advance + paid == slice;
        in_advance + paid
    }

    /// Returns the part of the debt that is forgiven. The urgent part, for which other vCPUs can
    /// still have to wait, is never forgiven. For a vCPU with a hard limit it is all debt beyond
    /// the usual lateness of its stops. For a work-conserving vCPU a slice's worth more is kept.
    fn forgiven(&self, slice: Span, untold: Span) -> Span {
        let kept = if self.exact { untold } else { untold + slice };
        self.debt.left_after(kept.max(self.urgent))
    }
}
