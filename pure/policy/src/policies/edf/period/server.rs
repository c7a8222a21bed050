//! Periods of one vCPU: replenishment of the budget, and the budget after a wake.

use slackline_units::{GridClock, Span, Time, VcpuId};

use crate::admission::bookings::Tenant;
use crate::policies::edf::period::next::NextPeriod;
use crate::policies::edf::{EdfServer, SpareTime};

impl EdfServer {
    /// Returns the reservation of the vCPU and its excess over the fluid rate. There is excess if
    /// the vCPU has less budget left than the fluid rate gives it for the rest of the period.
    pub(in crate::policies::edf) fn tenant(&self, vcpu: VcpuId, now: Time) -> Tenant {
        let share = self.periods.reservation;
        // A period that is longer than the others has the same budget.
        let rest = self.deadline.since(now).min(share.period());
        // The result is rounded up, so it is limited to the budget of the period, which is small if
        // the period was cut short.
        let to_come = share.over_rounded_up(rest).min(self.worth);
        let advance = to_come.left_after(self.own()) + self.advance;
        Tenant { vcpu, cpu: self.cpu, share, advance }
    }

    /// Returns true if this vCPU is blocked but would still have budget had it stayed runnable. It
    /// may wake and claim that budget, so its CPU is not quiescent.
    pub(in crate::policies::edf) fn claims_to_run(&self, now: Time, clock: &GridClock) -> bool {
        if self.asleep_since == Time::NEVER {
            return false;
        }
        if self.begins_at_wake {
            return now < self.deadline && !self.remaining.is_zero() && self.keeps_period(now);
        }
        if now < self.deadline {
            return now.since(self.asleep_since) < self.remaining;
        }
        let NextPeriod { begins, slice, .. } = self.coming(now, clock);
        now.since(begins) < slice
    }

    /// Begins the period that contains `now`.
    #[inline(always)]
    pub(in crate::policies::edf) fn begin_period(
        &mut self,
        now: Time,
        spare_time: SpareTime,
        clock: &GridClock,
    ) {
        let NextPeriod { unused, begins, slice, deadline } = self.coming(now, clock);
        self.leave_rest(begins);
        if self.slept {
            // Unused budgets of skipped periods pay off debt and excess.
            self.debt = self.debt.left_after(unused);
            self.advance = self.advance.left_after(unused);
        } else {
            self.backlog += self.own() + unused;
        }
        self.begin((slice, deadline), now, spare_time);
    }

    /// Begins a period with a budget of `slice`, minus deductions, that ends at `deadline`.
    #[inline(always)]
    pub(in crate::policies::edf) fn begin(
        &mut self,
        (slice, deadline): (Span, Time),
        now: Time,
        spare_time: SpareTime,
    ) {
        self.deadline = deadline;
        self.worth = slice;
        self.remaining = slice - self.pay(slice, now, spare_time);
        self.repay_loan();
        self.restart_parts();
        self.slept = self.asleep_since != Time::NEVER;
    }

    /// Handles a wake. The vCPU keeps the larger of two amounts of budget that cannot cause
    /// deadline misses of other vCPUs (see the head of `edf`). If `is_strict` is true, the vCPU
    /// keeps only the budget that it would have left had it run while it was blocked. Then split
    /// vCPUs of the CPU are not delayed either.
    pub(in crate::policies::edf) fn wake(
        &mut self,
        now: Time,
        spare_time: SpareTime,
        clock: &GridClock,
        is_strict: bool,
    ) {
        let mut since = core::mem::replace(&mut self.asleep_since, Time::NEVER).min(now);
        if now >= self.deadline {
            since = since.max(self.coming(now, clock).begins);
            self.begin_period(now, spare_time, clock);
        }
        if is_strict {
            since = since.max(self.begin_of_period());
            self.catch_up(now);
        }
        if now == since {
            return;
        }
        self.slept = true;
        let own = self.own();
        let as_if_it_ran = self.remaining.left_after(now.since(since));
        if is_strict {
            self.go_on(self.remaining - as_if_it_ran);
            self.remaining = as_if_it_ran;
            self.catch_up(now);
            self.forgo(own);
            return;
        }
        let in_proportion = self.periods.reservation.over(self.deadline.since(now));
        self.remaining = as_if_it_ran.max(self.remaining.min(in_proportion));
        self.forgo(own);
    }

    /// Handles a wake if periods begin at wakes. The vCPU keeps its period if its budget is at most
    /// its share of the rest of the period. Otherwise it begins a period with a whole slice.
    ///
    /// This is the wake-up rule of the constant bandwidth server [Abeni and Buttazzo 1998]. The
    /// vCPU used less than `slice × elapsed / period` of the period that it gives up. So it has at
    /// most its share in any interval, and no other vCPU misses a deadline.
    pub(in crate::policies::edf) fn wake_anew(
        &mut self,
        now: Time,
        spare_time: SpareTime,
        clock: &GridClock,
    ) {
        self.asleep_since = Time::NEVER;
        if now < self.deadline && self.keeps_period(now) {
            self.slept = true;
            return;
        }
        if now >= self.deadline {
            // Unused budgets of skipped periods pay off debt and excess, as with fixed periods.
            let NextPeriod { unused, .. } = self.coming(now, clock);
            self.debt = self.debt.left_after(unused);
            self.advance = self.advance.left_after(unused);
        }
        let reservation = self.periods.reservation;
        self.begin((reservation.slice(), now.after(reservation.period())), now, spare_time);
    }

    /// Returns true if the vCPU's budget is at most its share of the rest of its period.
    fn keeps_period(&self, now: Time) -> bool {
        self.remaining <= self.periods.reservation.over(self.deadline.since(now))
    }
}
