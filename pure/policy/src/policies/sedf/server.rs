//! State of one vCPU: its current period, and the rules for a vCPU that wakes.

#[cfg(test)]
mod tests;

use alloc::boxed::Box;

use slackline_units::{CpuId, Reservation, Span, Time};

use super::rules::{Compensation, SedfRules, Unblocking};
use super::score::Score;
use super::terms::{SedfParameters, part};
use crate::admission::subtasks::SubtaskCursor;

/// Period, budget and slack accounts of one vCPU.
#[derive(Debug)]
pub(super) struct SedfServer {
    /// CPU to which the vCPU is bound. For a split vCPU, the CPU of its current subtask.
    pub(super) cpu: CpuId,
    /// Progress through the subtasks of a split vCPU. `None` if it is bound to one CPU as a whole.
    pub(super) in_parts: Option<Box<SubtaskCursor>>,
    pub(super) terms: SedfParameters,
    /// Part of each 100 ms that the slice takes, as counted in the tally of its CPU.
    pub(super) taken: Span,
    /// Slice that the vCPU's weight gives it in the current period. Used only if
    /// [`SedfRules::keeps_slices`] returns true.
    pub(super) by_weight: Span,
    /// Length of the current period: the reserved period, or temporarily less.
    pub(super) period: Span,
    /// End of the current period. `NEVER` before the first period.
    pub(super) deadline: Time,
    /// CPU time used of the current slice, including overruns carried from earlier slices.
    pub(super) used: Span,
    /// Slice of a whole period at the last call of [`SedfServer::see`].
    seen: Span,
    /// Time at which the vCPU last blocked. `None` if it has never blocked.
    pub(super) blocked: Option<Time>,
    /// Time of the vCPU's last wake-up. `None` before the first wake-up.
    woke: Option<Time>,
    /// True if the vCPU blocked in the current period. Slack then does not make up for a missed
    /// slice.
    pub(super) slept: bool,
    /// Budget that the vCPU lost by blocking and that slack has not compensated yet.
    pub(super) loss: Span,
    /// Time from which `loss` is no longer compensated. Used only if losses are compensated within
    /// their period (`compensation = "in-period"`).
    loss_ends: Time,
    /// Budget that the vCPU had not received by past deadlines although it was runnable, and that
    /// slack has not compensated yet.
    pub(super) missed: Span,
    /// Score among the vCPUs that share slack; the lowest is served next. While the vCPU is not
    /// queued, this is the difference to the base score of the queue.
    pub(super) score: Score,
    /// Total slack received since the vCPU joined.
    pub(super) extra_time: Span,
}

/// Inputs of the rule that sets the budget of a vCPU at a wake-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct WakeContext {
    pub(super) now: Time,
    /// Slice of a period of the reserved length.
    pub(super) full: Span,
    /// True if the vCPU may keep only the budget that it would have left had it run while it was
    /// blocked. Otherwise a split vCPU on this CPU could miss a deadline.
    pub(super) is_strict: bool,
}

impl SedfServer {
    pub(super) fn new(cpu: CpuId, terms: SedfParameters, now: Time) -> SedfServer {
        SedfServer {
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

    /// Returns the start of the current period. If the current period has not begun yet, returns
    /// the start of the next period.
    pub(super) fn begin(&self) -> Time {
        Time::START.after(self.deadline.since(Time::START).left_after(self.period))
    }

    /// Returns the slice of the current period. `full` is the slice of a period of the reserved
    /// length.
    pub(super) fn slice(&self, full: Span) -> Span {
        if self.period == self.terms.period || full.is_zero() {
            return full;
        }
        part(full, self.period, self.terms.period).max(Span::from_ns(1))
    }

    /// Updates the known slice of a whole period. The slice of a vCPU with a weight shrinks when
    /// newcomers arrive. CPU time that the vCPU had used within the larger slice then does not
    /// count as overrun.
    pub(super) fn see(&mut self, full: Span) {
        if full < self.seen {
            let (before, slice) = (self.slice(self.seen), self.slice(full));
            self.used = self.used.min(slice) + self.used.left_after(before);
        }
        self.seen = full;
    }

    /// Returns the budget that the vCPU is still to receive from slack. This is the budget that the
    /// vCPU lost by blocking, plus the budget that it had not received at its deadlines.
    pub(super) fn due_from_slack(&self) -> Span {
        self.loss + self.missed
    }

    /// Returns the CPU time used in excess of the fluid rate: usage beyond `slice × elapsed /
    /// period`. `more` is usage that is not charged yet. Zero if periods move at wake-ups, since no
    /// account is kept then.
    pub(super) fn advance(&self, now: Time, more: Span, rules: &SedfRules) -> Span {
        if !rules.keeps_accounts() || self.deadline == Time::NEVER {
            return Span::ZERO;
        }
        let Ok(slice) = Reservation::new(self.promised_slice(), self.terms.period) else {
            return Span::ZERO; // Best effort.
        };
        let to_come = slice.over_rounded_up(self.deadline.since(now));
        (to_come + self.used + more).left_after(slice.slice())
    }

    /// Returns the part of a whole period's slice that newcomers cannot reduce.
    fn promised_slice(&self) -> Span {
        if self.terms.weight > 0 { self.by_weight } else { self.terms.slice }
    }

    /// Returns true if the vCPU would have budget now, had it stayed runnable in this period.
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

    /// Starts a new period after a change of parameters. `advance` counts as CPU time that was used
    /// of the first slice.
    pub(super) fn restart(&mut self, now: Time, advance: Span) {
        self.period = self.terms.period;
        self.deadline = now.after(self.period);
        self.used = advance;
        if self.terms.weight == 0 {
            // The whole advance is deducted, even if the new slice is shorter.
            self.seen = self.terms.slice;
        }
        self.restart_parts();
        self.loss = Span::ZERO;
        self.missed = Span::ZERO;
    }

    /// Begins the next period after the slice is exhausted. The overrun is deducted from all later
    /// slices, or from the next slice only, depending on the rules.
    pub(super) fn end_period(&mut self, full: Span, rules: &SedfRules) {
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
            // A slice by weight may be shorter than the lateness of timers, so at most one slice is
            // deducted.
            self.used = self.used.min(slice);
        }
        // Back-off: a shortened period doubles until it has its full length again.
        if self.period < self.terms.period {
            let double = self.period.checked_add(self.period).unwrap_or(Span::MAX);
            self.period = double.min(self.terms.period);
        }
        self.deadline = self.deadline.after(times(self.period, periods.max(1)));
        self.restart_parts();
    }

    /// Skips a period of a vCPU without a slice. Such a period changes no budget. [Xen 3.0, §6.4]
    pub(super) fn skip_period(&mut self, now: Time, rules: &SedfRules) {
        let begin = self.deadline;
        self.deadline = self.deadline.after(self.period);
        let late = now.since(begin);
        let behind = if rules.catches_up { periods_up(late, self.period) } else { 0 };
        self.deadline = self.deadline.after(times(self.period, behind));
        if self.begin() == now {
            // Otherwise the next period would begin at this instant and be skipped again.
            self.deadline = self.deadline.after(self.period);
        }
    }

    /// Handles a deadline that has passed before the slice was exhausted. [Xen 3.0, §6.4]
    pub(super) fn miss(&mut self, now: Time, full: Span, rules: &SedfRules) {
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

    /// Begins a period of a vCPU that is runnable.
    pub(super) fn begin_period(&mut self, now: Time, rules: &SedfRules) {
        self.slept = false;
        self.forget_loss(now, rules);
    }

    fn forget_loss(&mut self, now: Time, rules: &SedfRules) {
        if rules.compensation == Compensation::InPeriod && self.loss_ends <= now {
            self.loss = Span::ZERO;
        }
    }

    /// Handles slack of length `ran` that the vCPU received as compensation. Deducts it first from
    /// the budget that the vCPU missed at deadlines, then from the budget lost by blocking.
    pub(super) fn make_up(&mut self, ran: Span, rules: &SedfRules) {
        let missed = ran.min(self.missed);
        self.missed -= missed;
        self.loss = match rules.compensation {
            Compensation::OneQuantum => Span::ZERO,
            _ => self.loss.left_after(ran - missed),
        };
    }

    /// Sets the budget and the deadline of a vCPU that wakes, by the rule of unblocking.
    pub(super) fn wake(&mut self, wake: WakeContext, rules: &SedfRules) {
        let WakeContext { now, full, .. } = wake;
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

    /// Handles a wake by the rule `proportional`. The vCPU keeps the larger of two amounts: its
    /// budget less the blocked time, or slice × rest of the period / period. Neither amount makes
    /// another vCPU miss a deadline if no vCPU is split on the CPU. With split vCPUs only the first
    /// amount is safe.
    fn wake_in_proportion(&mut self, wake: WakeContext, rules: &SedfRules) {
        let WakeContext { now, full, is_strict } = wake;
        let slice = self.slice(full);
        if now >= self.deadline {
            // The unused slices of the periods in which the vCPU was blocked pay off overruns.
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

    /// Handles a wake after a short block, which ended before the deadline. [Xen 3.0, §6.7]
    fn wake_shortly(&mut self, wake: WakeContext, rules: &SedfRules) {
        let WakeContext { now, full, .. } = wake;
        let slice = self.slice(full);
        let resumes = matches!(rules.unblocking, Unblocking::ShortResume | Unblocking::Burst);
        if resumes {
            // A vCPU that never blocked counts as blocked for the whole slice.
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

    /// Makes the next period as long as the time between the last two wake-ups. The time used in
    /// the old period, including the block, counts as used in the new period. So the first short
    /// period is mostly skipped. [Xen 3.0, §6.7]
    fn begin_burst(&mut self, period: Span, full: Span, rules: &SedfRules) {
        self.shorten(period, full);
        if rules.carries_overrun {
            // Usage beyond the short slice is no overrun that later slices would repay.
            self.used = self.used.min(self.slice(full));
        }
        self.deadline = self.deadline.after(self.period);
    }

    /// Handles a wake after a long block, which ended after the deadline. [Xen 3.0, §6.7]
    fn wake_long_after(&mut self, wake: WakeContext, rules: &SedfRules) {
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

    /// Sets the length of the period to `to`, at least 10 us and at most the reserved period. The
    /// slice shrinks in proportion. A period without a slice is not shortened, since it changes no
    /// budget.
    fn shorten(&mut self, to: Span, full: Span) {
        const LEAST: Span = Span::from_us(10); // Shortest period that Xen accepts. [Xen 3.0, §6.1]
        if !full.is_zero() {
            self.period = to.max(LEAST).min(self.terms.period);
        }
    }
}

/// Returns `span × count`, saturated at the end of time.
fn times(span: Span, count: u64) -> Span {
    Span::from_ns(span.ns().saturating_mul(count))
}

/// Returns the number of periods in `span`, rounded up.
fn periods_up(span: Span, period: Span) -> u64 {
    span.ns().div_ceil(period.ns())
}
