//! Borrowed budget: the vCPUs of a VM with `spread = "use"` use budget that their siblings left
//! unused.
//!
//! Each vCPU reserves an equal share of the VM's CPU time. Budget that the vCPU has not used when
//! its period ends is *unused*. Until the vCPU's next period ends, unused budget may be lent once
//! to siblings that have exhausted their own budget. A vCPU that exhausted its budget in one period
//! borrows at the start of the next period, for all of that period. A vCPU that does so for the
//! first time borrows at once, for the rest of its period. A loan comes out of the unreserved share
//! of the borrower's CPU (`loans`). So no other vCPU gets less because of a loan. The lender loses
//! nothing either: when it wakes, it has its equal share.
//!
//! Only unused budget is lent. So at any time the vCPUs of a VM together have received at most
//! their slices since they joined, plus one slice each.
//!
//! Split vCPUs lend and borrow nothing, and nothing is lent on a CPU with subtasks. On such a CPU
//! the demand before the end of a period exceeds slice/period.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use slackline_units::{DomId, GridClock, Reservation, Span, Time, VcpuId};

use crate::Moment;
use crate::policies::edf::borrowing::loans::{Loan, part, rate};
use crate::policies::edf::{Edf, EdfServer};

/// State of a vCPU that shares unused budget with its siblings.
pub(in crate::policies::edf) struct UnusedBudget {
    /// Time up to which unused budget is recorded: the start of one of the vCPU's periods.
    counted: Time,
    /// Own budget that the vCPU left unused in the period that ended at `counted`.
    left: Span,
    /// Part of `left` that is not lent yet.
    rest: Span,
    /// Own budget that the vCPU forfeited in this period by blocking.
    forgone: Span,
    /// True if the vCPU's budget was exhausted in this period while it was runnable.
    runs_out: bool,
    /// True if the vCPU's budget was exhausted in the previous period while it was runnable.
    ran_out: bool,
    /// Budget borrowed by the vCPU in this period.
    loan: Span,
    /// Time at which the loan began.
    since: Time,
    /// Largest loan that the vCPU could have used when it last borrowed. Unlimited before its first
    /// loan.
    could_use: Span,
    /// Time up to which the vCPU has been charged.
    charged: Time,
}

/// vCPUs that share unused budget with their siblings, by VM and in order of id.
#[derive(Default)]
pub(in crate::policies::edf) struct SiblingGroups(BTreeMap<DomId, Vec<VcpuId>>);

impl SiblingGroups {
    fn add(&mut self, vcpu: VcpuId) {
        let family = self.0.entry(vcpu.domain()).or_default();
        if let Err(place) = family.binary_search(&vcpu) {
            family.insert(place, vcpu);
        }
    }

    pub(in crate::policies::edf) fn remove(&mut self, vcpu: VcpuId) {
        let Some(family) = self.0.get_mut(&vcpu.domain()) else { return };
        family.retain(|other| *other != vcpu);
        if family.is_empty() {
            self.0.remove(&vcpu.domain());
        }
    }

    /// Returns the other vCPUs of the same VM that share unused budget.
    fn siblings(&self, vcpu: VcpuId) -> impl Iterator<Item = VcpuId> + Clone {
        let family = self.0.get(&vcpu.domain()).into_iter().flatten();
        family.copied().filter(move |other| *other != vcpu)
    }
}

impl EdfServer {
    /// Returns the borrowed budget of this period. The vCPU uses it after its own budget.
    pub(in crate::policies::edf) fn loan(&self) -> Span {
        self.by_use.as_ref().map_or(Span::ZERO, |by_use| by_use.loan)
    }

    /// Returns the budget that the vCPU has left of its own slice, without borrowed budget.
    pub(in crate::policies::edf) fn own(&self) -> Span {
        self.remaining.left_after(self.loan())
    }

    /// Returns the part of the borrowed budget that the vCPU has used, according to its charges.
    pub(in crate::policies::edf) fn had_of_loan(&self) -> Span {
        self.loan().left_after(self.remaining)
    }

    /// Returns true if the vCPU's budget was exhausted in the previous period while it was
    /// runnable.
    #[inline]
    pub(in crate::policies::edf) fn ran_out_before(&self) -> bool {
        self.by_use.as_ref().is_some_and(|by_use| by_use.ran_out)
    }

    /// Returns the part of the loan accrued so far, and an upper bound of the part that the vCPU
    /// used.
    pub(in crate::policies::edf) fn firm(&self, at: &Moment, who: VcpuId) -> (Span, Span) {
        let Some(by_use) = &self.by_use else { return (Span::ZERO, Span::ZERO) };
        // The CPU time since the last charge is not known yet, so all of that time counts as used.
        let uncharged = at.cpu_of(who).map_or(Span::ZERO, |_| at.now().since(by_use.charged));
        (self.earned(at.now()), by_use.loan.left_after(self.remaining.left_after(uncharged)))
    }

    /// Returns the part of the loan that has accrued by `now`: `loan × elapsed / duration`.
    fn earned(&self, now: Time) -> Span {
        let Some(by_use) = &self.by_use else { return Span::ZERO };
        let lent = Reservation::new(by_use.loan, self.deadline.since(by_use.since));
        lent.map_or(Span::ZERO, |lent| lent.over(now.since(by_use.since).min(lent.period())))
    }

    /// Returns the budget that the vCPU would have left if its loan were cut now. The vCPU then
    /// keeps the part of the loan that has accrued, or the part that it used if that is more.
    pub(in crate::policies::edf) fn if_cut(&self, now: Time) -> Span {
        let kept = self.earned(now).max(self.had_of_loan());
        self.remaining.left_after(self.loan().left_after(kept))
    }

    /// Reduces the loan of the vCPU to `kept`. Returns true if that exhausts the vCPU's budget.
    pub(in crate::policies::edf) fn keep_of_loan(&mut self, kept: Span) -> bool {
        let Some(by_use) = &mut self.by_use else { return false };
        let gone = by_use.loan.left_after(kept);
        by_use.loan -= gone;
        self.remaining = self.remaining.left_after(gone);
        !gone.is_zero() && self.remaining.is_zero()
    }

    /// Ends the loan of the vCPU at the end of its period.
    pub(in crate::policies::edf) fn repay_loan(&mut self) {
        if let Some(by_use) = &mut self.by_use {
            (by_use.loan, by_use.forgone) = (Span::ZERO, Span::ZERO);
        }
    }

    /// Records the part of its own slice that the vCPU forfeited by blocking. `before` is the part
    /// that the vCPU had left before it blocked.
    pub(in crate::policies::edf) fn forgo(&mut self, before: Span) {
        let own = self.own();
        if let Some(by_use) = &mut self.by_use {
            by_use.forgone += before - own;
        }
    }

    /// Records the part of the vCPU's own budget that was unused at the end of the period before
    /// `begins`.
    pub(in crate::policies::edf) fn leave_rest(&mut self, begins: Time) {
        let (slice, own) = (self.periods.reservation.slice(), self.own());
        let Some(by_use) = &mut self.by_use else { return };
        if begins <= by_use.counted {
            return;
        }
        let slept_through = begins > self.deadline;
        by_use.counted = begins;
        by_use.left = match (self.slept, slept_through) {
            // The vCPU was always runnable, so it left nothing unused: budget that it did not
            // receive is still owed to it.
            (false, _) => Span::ZERO,
            (true, false) => own + by_use.forgone,
            // Skipped periods pay for excess and debt first.
            (true, true) => slice.left_after(self.debt + self.advance),
        };
        by_use.rest = by_use.left;
        let had_some = self.remaining < by_use.loan;
        by_use.ran_out = !slept_through && (by_use.runs_out || had_some);
        by_use.runs_out = false;
    }

    /// Records the unused budget of a blocked vCPU whose period has ended.
    fn leave_rest_asleep(&mut self, now: Time, clock: &GridClock) {
        if self.asleep_since != Time::NEVER && now >= self.deadline {
            self.leave_rest(self.coming(now, clock).begins);
        }
    }
}

impl Edf {
    /// Starts or ends borrowing for a vCPU. Called at the start of a period.
    pub(in crate::policies::edf) fn spread(&mut self, now: Time, vcpu: VcpuId, is_by_use: bool) {
        self.families.remove(vcpu);
        if is_by_use {
            self.families.add(vcpu);
        }
        self.servers[vcpu].by_use = is_by_use.then(|| {
            Box::new(UnusedBudget {
                counted: now,
                left: Span::ZERO,
                rest: Span::ZERO,
                forgone: Span::ZERO,
                runs_out: false,
                ran_out: false,
                loan: Span::ZERO,
                since: now,
                could_use: Span::MAX,
                charged: now,
            })
        });
    }

    /// Lends unused budget of siblings to a vCPU whose own budget does not suffice. The loan is
    /// limited by the time until the vCPU's period ends and by the unreserved share of its CPU.
    #[inline(never)]
    pub(in crate::policies::edf) fn lend(&mut self, at: &Moment, vcpu: VcpuId) {
        let (now, server) = (at.now(), &self.servers[vcpu]);
        let (cpu, until) = (server.cpu, server.deadline);
        if now >= until || self.promised.strict().contains(cpu) {
            return;
        }
        let fair = self.left_for(at, vcpu);
        if fair.is_zero() {
            return;
        }
        let server = &self.servers[vcpu];
        let time = until.since(now);
        // A vCPU without budget left causes one more dispatch.
        let turn =
            if server.remaining.is_zero() { self.promised.looks().of_a_turn() } else { Span::ZERO };
        let most = time.left_after(server.remaining + turn);
        let room = self.loans.room(cpu, vcpu, (now, self.promised.free(cpu)));
        let room = Span::from_ns(
            u64::try_from((room * u128::from(time.ns())) >> 64).expect("at most all of the time"),
        );
        let could_use = most.min(room.left_after(turn));
        let amount = could_use.min(fair);
        let wanted = rate(most.min(fair) + turn, time);
        let lent = Reservation::new(amount + turn, time).ok().filter(|_| !amount.is_zero());
        let (who, since, is_over) = (vcpu, now, false);
        self.loans.add(cpu, Loan { who, lent, turn, wanted, since, until, is_over });
        self.note_spare_time(now, cpu);
        self.take_left(vcpu, amount);
        let server = &mut self.servers[vcpu];
        server.remaining += amount;
        if let Some(by_use) = &mut server.by_use {
            (by_use.loan, by_use.since, by_use.charged) = (amount, now, now);
            by_use.could_use = could_use;
        }
    }

    /// Returns the most that a vCPU may borrow of the budget that its siblings left unused. Each
    /// borrower of the VM has an equal share of that budget. The vCPU may also borrow what other
    /// borrowers cannot use of their shares.
    fn left_for(&mut self, at: &Moment, vcpu: VcpuId) -> Span {
        let (mut left, mut rest) = (Span::ZERO, Span::ZERO);
        for sibling in self.families.siblings(vcpu) {
            let server = &mut self.servers[sibling];
            server.leave_rest_asleep(at.now(), &self.clock);
            if let Some(by_use) = &server.by_use {
                (left, rest) = (left + by_use.left, rest + by_use.rest);
            }
        }
        let others = self.families.siblings(vcpu).filter_map(|sibling| {
            let by_use = self.servers[sibling].by_use.as_ref()?;
            let wants = at.is_awake(sibling) && (by_use.runs_out || by_use.ran_out);
            wants.then(|| u128::from(by_use.could_use.ns()))
        });
        let fair = part(u128::from(left.ns()), others);
        Span::from_ns(u64::try_from(fair).expect("at most all that is left")).min(rest)
    }

    /// Deducts a loan from the budget that the siblings of a vCPU left unused.
    fn take_left(&mut self, vcpu: VcpuId, mut amount: Span) {
        for sibling in self.families.siblings(vcpu) {
            if let Some(by_use) = &mut self.servers[sibling].by_use {
                let taken = amount.min(by_use.rest);
                by_use.rest -= taken;
                amount -= taken;
            }
        }
    }

    /// Handles a charge. If the vCPU is runnable, has exhausted its budget and has no loan yet, it
    /// borrows. `beyond` is the CPU time used beyond the budget. Returns the part of `beyond` that
    /// no loan covers.
    #[inline(never)]
    pub(in crate::policies::edf) fn charge_by_use(
        &mut self,
        at: &Moment,
        vcpu: VcpuId,
        beyond: Span,
    ) -> Span {
        let server = &mut self.servers[vcpu];
        let Some(by_use) = &mut server.by_use else { return beyond };
        by_use.charged = at.now();
        if !server.remaining.is_zero() || !at.is_awake(vcpu) {
            return beyond;
        }
        by_use.runs_out = true;
        if !by_use.loan.is_zero() {
            return beyond;
        }
        self.lend(at, vcpu);
        let server = &mut self.servers[vcpu];
        let lent = beyond.min(server.remaining);
        server.remaining -= lent;
        beyond - lent
    }
}
