//! One vCPU: where it stands in its period, and what becomes of that when it wakes.

#[cfg(test)]
mod tests;

use alloc::boxed::Box;

use slackline_units::{CpuId, Reservation, Span, Time};

use super::rules::{Compensation, Rules, Unblocking};
use super::score::Score;
use super::terms::{Share, part};
use crate::admission::subtasks::InParts;

/// What one vCPU is owed and has had.
#[derive(Debug)]
pub(super) struct Server {
    /// Where it is bound, or where it is split: where it is to run next.
    pub(super) cpu: CpuId,
    /// None where it is bound as a whole.
    pub(super) in_parts: Option<Box<InParts>>,
    pub(super) terms: Share,
    /// What is taken of 100 ms for its slice, as counted on its CPU.
    pub(super) taken: Span,
    /// The slice of the current period where that goes by weight and is kept (`weights`).
    pub(super) by_weight: Span,
    /// The current period: that of the share, or shorter for a while.
    pub(super) period: Span,
    /// The end of the current period; `NEVER` before the first one.
    pub(super) deadline: Time,
    /// What it has used of the current slice.
    pub(super) used: Span,
    /// The slice of a whole period when that was last compared with one.
    seen: Span,
    /// When it last went to sleep.
    pub(super) blocked: Option<Time>,
    /// When it last woke.
    woke: Option<Time>,
    /// Whether it slept in the current period: what it then misses is not owed to it.
    pub(super) slept: bool,
    /// Lost by blocking, and not made up for yet.
    pub(super) loss: Span,
    /// When a loss is no longer made up for, where that ends with the period.
    loss_ends: Time,
    /// Not given to it by past deadlines although it was awake.
    pub(super) missed: Span,
    /// Among those who share slack: from zero while it stands in the queue, and else from where
    /// the queue stands.
    pub(super) score: Score,
    /// All slack it has had.
    pub(super) extra_time: Span,
}

/// What a vCPU wakes under.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wake {
    pub(super) now: Time,
    /// Its slice in a period of the share's length.
    pub(super) full: Span,
    /// Whether more than would be left had it run while it slept might make who is split late.
    pub(super) is_strict: bool,
}

impl Server {
    pub(super) fn new(cpu: CpuId, terms: Share, now: Time) -> Server {
        Server {
            cpu,
            in_parts: None,
            terms,
            taken: terms.taken(),
            by_weight: Span::ZERO,
            period: terms.period,
            deadline: Time::NEVER,
            used: Span::ZERO,
            seen: Span::MAX,
            blocked: None,
            woke: None,
            slept: true,
            loss: Span::ZERO,
            loss_ends: now,
            missed: Span::ZERO,
            score: Score::ZERO,
            extra_time: Span::ZERO,
        }
    }

    /// When the current period began, or the coming one begins.
    pub(super) fn begin(&self) -> Time {
        Time::START.after(self.deadline.since(Time::START).left_after(self.period))
    }

    /// The slice of the current period, if that of a period of the share's length is `full`.
    pub(super) fn slice(&self, full: Span) -> Span {
        if self.period == self.terms.period || full.is_zero() {
            return full;
        }
        part(full, self.period, self.terms.period).max(Span::from_ns(1))
    }

    /// A slice by weight shrinks when others come: what was used of it before is no overrun.
    pub(super) fn see(&mut self, full: Span) {
        if full < self.seen {
            let (before, slice) = (self.slice(self.seen), self.slice(full));
            self.used = self.used.min(slice) + self.used.left_after(before);
        }
        self.seen = full;
    }

    /// What slack is to make up for.
    pub(super) fn due_from_slack(&self) -> Span {
        self.loss + self.missed
    }

    /// What it has had in advance, having used so much more than has been counted: beyond the part
    /// of its slice that has been earned in this period, and of coming slices. Where periods move
    /// when it wakes nothing is counted so.
    pub(super) fn advance(&self, now: Time, more: Span, rules: &Rules) -> Span {
        if !rules.keeps_accounts() || self.deadline == Time::NEVER {
            return Span::ZERO;
        }
        let Ok(slice) = Reservation::new(self.promised_slice(), self.terms.period) else {
            return Span::ZERO; // Best effort.
        };
        let to_come = slice.over_rounded_up(self.deadline.since(now));
        (to_come + self.used + more).left_after(slice.slice())
    }

    /// The slice of a whole period that it has, whoever comes.
    fn promised_slice(&self) -> Span {
        if self.terms.weight > 0 { self.by_weight } else { self.terms.slice }
    }

    /// Whether it would run now if it did not sleep, and had not slept in this period.
    pub(super) fn claims_to_run(&self, now: Time) -> bool {
        if self.deadline == Time::NEVER {
            return true;
        }
        if now >= self.deadline {
            return now.since(self.deadline) % self.period < self.promised_slice();
        }
        let since = self.blocked.map_or(self.begin(), |blocked| blocked.max(self.begin()));
        now.since(since) < self.promised_slice().left_after(self.used)
    }

    /// A new share, of which so much has been had: a new period begins now.
    pub(super) fn restart(&mut self, now: Time, advance: Span) {
        self.period = self.terms.period;
        self.deadline = now.after(self.period);
        self.used = advance;
        if self.terms.weight == 0 {
            // All of that is owed, however short the new slice is.
            self.seen = self.terms.slice;
        }
        self.restart_parts();
        self.loss = Span::ZERO;
        self.missed = Span::ZERO;
    }

    /// Its slice is used up: on to the next period. What it had beyond is taken from coming slices,
    /// or from the next one only.
    pub(super) fn end_period(&mut self, full: Span, rules: &Rules) {
        let slice = self.slice(full);
        let periods = match self.used.left_after(slice) {
            over if over < slice => 1, // The common case, and division is slow.
            _ if slice.is_zero() => 0,
            _ => self.used / slice,
        };
        let is_fixed = self.terms.weight == 0;
        let periods = if rules.carries_overrun && is_fixed { periods } else { periods.min(1) };
        self.used -= slice * periods;
        if !is_fixed {
            // A slice by weight may be as short as a timer is late: it is owed one at most.
            self.used = self.used.min(slice);
        }
        // Back-off: a period that had been shortened doubles until it is what it was.
        if self.period < self.terms.period {
            let double = self.period.checked_add(self.period).unwrap_or(Span::MAX);
            self.period = double.min(self.terms.period);
        }
        self.deadline = self.deadline.after(times(self.period, periods.max(1)));
        self.restart_parts();
    }

    /// A period without a slice is over as it begins: it only marks time. [Xen 3.0, §6.4]
    pub(super) fn skip_period(&mut self, now: Time, rules: &Rules) {
        let begin = self.deadline;
        self.deadline = self.deadline.after(self.period);
        let late = now.since(begin);
        let behind = if rules.catches_up { periods_up(late, self.period) } else { 0 };
        self.deadline = self.deadline.after(times(self.period, behind));
        if self.begin() == now {
            // It would begin at this very instant, and be over again.
            self.deadline = self.deadline.after(self.period);
        }
    }

    /// The deadline has passed, and the slice was not used up. [Xen 3.0, §6.4]
    pub(super) fn miss(&mut self, now: Time, full: Span, rules: &Rules) {
        let slice = self.slice(full);
        if rules.repays_misses {
            let passed = now.since(self.deadline) / self.period;
            if !self.slept {
                self.missed += slice.left_after(self.used) + times(slice, passed);
            }
            self.deadline = self.deadline.after(times(self.period, passed)).after(self.period);
        } else {
            self.deadline = self.deadline.after(self.period);
            let behind = periods_up(now.since(self.deadline), self.period);
            self.deadline = self.deadline.after(times(self.period, behind));
        }
        self.used = Span::ZERO;
        self.restart_parts();
        self.begin_period(now, rules);
    }

    /// A period begins while it is awake.
    pub(super) fn begin_period(&mut self, now: Time, rules: &Rules) {
        self.slept = false;
        self.forget_loss(now, rules);
    }

    fn forget_loss(&mut self, now: Time, rules: &Rules) {
        if rules.compensation == Compensation::InPeriod && self.loss_ends <= now {
            self.loss = Span::ZERO;
        }
    }

    /// It had extra time in order to make up for something.
    pub(super) fn make_up(&mut self, ran: Span, rules: &Rules) {
        let missed = ran.min(self.missed);
        self.missed -= missed;
        self.loss = match rules.compensation {
            Compensation::OneQuantum => Span::ZERO,
            _ => self.loss.left_after(ran - missed),
        };
    }

    /// Awake again: what is left of its slice, and when its period ends.
    pub(super) fn wake(&mut self, wake: Wake, rules: &Rules) {
        let Wake { now, full, .. } = wake;
        self.see(full);
        self.forget_loss(now, rules);
        if self.deadline == Time::NEVER {
            if rules.begins_at_once {
                self.deadline = now.after(self.period);
                self.woke = Some(now);
                return;
            }
            self.deadline = now.after(self.slice(full));
        }
        if rules.unblocking == Unblocking::Proportional {
            self.wake_in_proportion(wake, rules);
        } else if self.begin() <= now && now < self.deadline {
            self.wake_shortly(wake, rules);
        } else if self.deadline <= now {
            self.wake_long_after(wake, rules);
        }
        self.woke = Some(now);
    }

    /// Keeps the larger of two amounts that cannot make anybody else miss a deadline: what would
    /// be left had it run while it slept, and slice/period of what is left of the period. Only the
    /// first of them cannot make who is split miss one.
    fn wake_in_proportion(&mut self, wake: Wake, rules: &Rules) {
        let Wake { now, full, is_strict } = wake;
        let slice = self.slice(full);
        if now >= self.deadline {
            // Periods that went by asleep pay overrun off: their slices were not used.
            let passed = now.since(self.deadline) / self.period + 1;
            self.used = self.used.left_after(times(slice, passed));
            self.deadline = self.deadline.after(times(self.period, passed));
            self.restart_parts();
            self.forget_loss(now, rules);
        }
        self.catch_up(now);
        let since = self.blocked.map_or(self.begin(), |blocked| blocked.max(self.begin()));
        if now <= since {
            return;
        }
        self.slept = true;
        let left = slice.left_after(self.used);
        let as_if_it_ran = left.left_after(now - since);
        let in_proportion = left.min(part(slice, self.deadline.since(now), self.period));
        let lost = left - as_if_it_ran.max(if is_strict { Span::ZERO } else { in_proportion });
        self.used += lost;
        self.go_on(lost);
        self.catch_up(now);
        if rules.compensation != Compensation::None {
            self.loss += lost;
            self.loss_ends = self.deadline;
        }
        if self.used >= slice {
            self.end_period(full, rules);
        }
    }

    /// It slept for less than was left of its period. [Xen 3.0, §6.7]
    fn wake_shortly(&mut self, wake: Wake, rules: &Rules) {
        let Wake { now, full, .. } = wake;
        let slice = self.slice(full);
        let resumes = matches!(rules.unblocking, Unblocking::ShortResume | Unblocking::Burst);
        if resumes {
            // Who never blocked counts as asleep since long ago.
            self.used += self.blocked.map_or(slice, |blocked| now.since(blocked));
            if slice.left_after(self.used) >= rules.quantum {
                return;
            }
        }
        match self.woke {
            Some(woke) if rules.unblocking == Unblocking::Burst => {
                return self.begin_burst(now.since(woke), full, rules);
            }
            _ => {}
        }
        let compensates = rules.compensation != Compensation::None;
        if rules.unblocking == Unblocking::ExtraSupport && self.blocked.is_some() && compensates {
            self.loss = slice.left_after(self.used);
            self.loss_ends = self.deadline;
        }
        self.used = Span::ZERO;
        self.deadline = self.deadline.after(self.period);
    }

    /// Its next period is as long as it took from one wake to the next. What it has used stays, the
    /// sleep included, so that the first short period is mostly skipped. [Xen 3.0, §6.7]
    fn begin_burst(&mut self, period: Span, full: Span, rules: &Rules) {
        self.shorten(period, full);
        if rules.carries_overrun {
            // More than the short slice is no overrun of it that later slices would pay for.
            self.used = self.used.min(self.slice(full));
        }
        self.deadline = self.deadline.after(self.period);
    }

    /// It slept beyond the end of its period. [Xen 3.0, §6.7]
    fn wake_long_after(&mut self, wake: Wake, rules: &Rules) {
        let now = wake.now;
        self.used = Span::ZERO;
        if rules.unblocking == Unblocking::Isochronous {
            let behind = periods_up(now.since(self.deadline), self.period) + 1;
            self.deadline = self.deadline.after(times(self.period, behind));
            return;
        }
        let latency = self.terms.latency;
        let hinted = match rules.unblocking {
            Unblocking::LatencyHint => !latency.is_zero(),
            Unblocking::Burst => !latency.is_zero() && latency < self.period,
            _ => false,
        };
        if hinted {
            self.shorten(latency, wake.full);
        }
        self.deadline = now.after(self.period);
    }

    /// A period no longer than this, and no longer than that of the share; the slice goes with it.
    /// Without a slice a period only marks time.
    fn shorten(&mut self, to: Span, full: Span) {
        const LEAST: Span = Span::from_us(10); // The shortest period there is. [Xen 3.0, §6.1]
        if !full.is_zero() {
            self.period = to.max(LEAST).min(self.terms.period);
        }
    }
}

/// So many times a length of time, or the end of time.
fn times(span: Span, count: u64) -> Span {
    Span::from_ns(span.ns().saturating_mul(count))
}

/// How many periods a length of time takes, rounded up.
fn periods_up(span: Span, period: Span) -> u64 {
    span.ns().div_ceil(period.ns())
}
