//! Debt of a vCPU for CPU time used beyond its slice, and its payment (see the head of `edf`).

use slackline_units::{Span, Time};

use crate::policies::edf::overrun::history::UNTOLD;
use crate::policies::edf::{EdfServer, SpareTime};

/// Maximum debt of a vCPU with a hard limit, in slices. The maximum is `slice × MOST_DEBT` or
/// `slice/period × MOST_DEBT_TIME`, whichever is more. So a single long overrun, for example by a
/// thread that the kernel cannot stop, throttles the vCPU for at most ten periods or one second.
const MOST_DEBT: u64 = 10;
const MOST_DEBT_TIME: Span = Span::from_secs(1);

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
            self.urgent += beyond;
            self.stops.overran += beyond;
            self.debt = (self.debt + beyond).min(self.most_debt().max(self.debt));
        }
    }

    /// Returns the maximum debt. Overrun beyond the maximum is forgotten. The maximum is
    /// [`Span::MAX`] for a work-conserving vCPU, and with `repay`.
    fn most_debt(&self) -> Span {
        if !self.exact || self.repays {
            return Span::MAX;
        }
        let reservation = self.periods.reservation;
        let slices = Span::from_ns(reservation.slice().ns().saturating_mul(MOST_DEBT));
        slices.max(reservation.over(MOST_DEBT_TIME))
    }

    /// Updates the urgent part of the debt, which can still make other vCPUs wait. Deducts from it
    /// the slack that the CPU has had since the last update. The urgent part becomes zero if the
    /// CPU has been quiescent since then.
    fn count_urgent(&mut self, now: Time, spare_time: SpareTime) {
        let (before, rests) = core::mem::replace(&mut self.counted, (now, spare_time.rests));
        if rests != spare_time.rests {
            self.urgent = Span::ZERO;
        } else if !self.urgent.is_zero() {
            self.urgent = self.urgent.left_after(spare_time.of(now.since(before)));
        }
    }

    /// Pays debt and excess over the fluid rate from `slice`, the budget of the period that begins.
    /// Returns the amount by which the caller must reduce the budget.
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
            let forgiven = self.forgive(slice, untold, now);
            self.debt -= forgiven;
        }
        let pays_all = self.repays || self.exact;
        let most = if pays_all { self.debt } else { self.urgent.max(untold) };
        let paid = self.debt.min(slice - in_advance).min(most);
        self.urgent = self.urgent.left_after(paid);
        self.debt -= paid;
        self.stops.is_paid_off = in_advance + paid == slice;
        in_advance + paid
    }

    /// Returns the part of the debt that is forgiven. The urgent part, which can still make other
    /// vCPUs wait, is never forgiven. Debt up to `untold`, the usual lateness of a stop plus
    /// [`UNTOLD`], is not forgiven either, since it is deducted from the next slice. The remaining
    /// debt of a vCPU with a hard limit is forgiven up to its leniency. A work-conserving vCPU
    /// keeps another slice of debt, and is forgiven all debt beyond that.
    fn forgive(&mut self, slice: Span, untold: Span, now: Time) -> Span {
        let kept = if self.exact { untold } else { untold + slice };
        let forgiven = self.debt.left_after(kept.max(self.urgent));
        if self.exact { self.leniency.take(forgiven, now) } else { forgiven }
    }

    /// Returns the excess that a vCPU with a hard limit owes when it rejoins. This excess is the
    /// vCPU's debt, plus the part of its leniency that is used up. So the vCPU gains nothing by
    /// leaving. Zero for other vCPUs.
    pub(in crate::policies::edf) fn owed_on_leave(&self, now: Time) -> Span {
        let spent = if self.repays { Span::ZERO } else { self.leniency.spent(now) };
        if self.exact { self.debt + spent } else { Span::ZERO }
    }
}
