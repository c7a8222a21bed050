//! One vCPU: where it stands in its period, and what becomes of that when it wakes.

use slackline_units::{GridClock, Span, Time, VcpuId};

use crate::admission::bookings::Tenant;
use crate::policies::edf::period::next::Coming;
use crate::policies::edf::{Server, SpareTime};

impl Server {
    /// It is bound to a CPU, and has had something in advance if it has used more of its slice than
    /// of its period: what its share of the rest comes to is more than what it is still owed.
    pub(in crate::policies::edf) fn tenant(&self, vcpu: VcpuId, now: Time) -> Tenant {
        let share = self.periods.reservation;
        // A period that is longer than the others is worth no more than they.
        let rest = self.deadline.since(now).min(share.period());
        // Nor is one that has been cut worth more than it was, rounded up as the rest of it is.
        let to_come = share.over_rounded_up(rest).min(self.worth);
        let advance = to_come.left_after(self.own()) + self.advance;
        Tenant { vcpu, cpu: self.cpu, share, advance }
    }

    /// Whether it sleeps, and would run now if it did not and had not slept in this period.
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
        let Coming { begins, slice, .. } = self.coming(now, clock);
        now.since(begins) < slice
    }

    /// Moves on to the period that contains `now`.
    #[inline(always)]
    pub(in crate::policies::edf) fn begin_period(
        &mut self,
        now: Time,
        spare_time: SpareTime,
        clock: &GridClock,
    ) {
        let Coming { unused, begins, slice, deadline } = self.coming(now, clock);
        self.leave_rest(begins);
        if self.slept {
            // Whole periods that went by asleep pay debt off: their slices were not used.
            self.debt = self.debt.left_after(unused);
            self.advance = self.advance.left_after(unused);
        } else {
            self.backlog += self.own() + unused;
        }
        self.begin((slice, deadline), now, spare_time);
    }

    /// A period that is worth so much begins.
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

    /// Awake again: keeps the larger of the two amounts that cannot hurt others (see the top), or
    /// the one that cannot hurt who is split either.
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

    /// Wakes with the budget of its period if that is within its share of the rest of the period,
    /// and else begins a period with a whole slice.
    ///
    /// This is the wake-up rule of the constant bandwidth server [Abeni and Buttazzo 1998]. The
    /// vCPU used less than `slice × elapsed / period` of the period that it gives up, so in no
    /// interval does it have more than its share, and no other vCPU misses a deadline by it.
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
            // Whole periods without a use pay debt off, as with periods that stay where they are.
            let Coming { unused, .. } = self.coming(now, clock);
            self.debt = self.debt.left_after(unused);
            self.advance = self.advance.left_after(unused);
        }
        let reservation = self.periods.reservation;
        self.begin((reservation.slice(), now.after(reservation.period())), now, spare_time);
    }

    /// Returns true if the rest of its budget is within its share of the rest of its period.
    fn keeps_period(&self, now: Time) -> bool {
        self.remaining <= self.periods.reservation.over(self.deadline.since(now))
    }
}
