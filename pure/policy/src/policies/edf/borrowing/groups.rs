//! What the vCPUs of a domain leave each other, where its share is spread by use.
//!
//! Each is promised its even part, as if it were alone. What it did not use of that when a period
//! ends is *left*, and may be lent once, until its next period ends: to siblings who have used all
//! of their own and want more. Who ran out in one period is lent something as the next begins, for
//! all of it; who runs out for the first time is at once, for the rest of its period. It comes out
//! of what its CPU has not promised (`loans`), so nobody else has less for it, not even the sibling
//! that left it: who wakes has its even part at once.
//!
//! So the vCPUs of a domain together have at no time had more since they came than their slices
//! come to, and one slice each: what is lent was left before, and what is left was not used.
//!
//! Where somebody is split, and of a CPU with parts, nothing is lent: there more is owed before a
//! period ends than slice/period says.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use slackline_units::{DomId, GridClock, Reservation, Span, Time, VcpuId};

use crate::Moment;
use crate::policies::edf::borrowing::loans::{Loan, part, rate};
use crate::policies::edf::{Edf, Server};

/// Where somebody stands with its siblings.
pub(in crate::policies::edf) struct ByUse {
    /// Up to when what it left has been counted: an end of one of its periods.
    counted: Time,
    /// What it left of that period.
    left: Span,
    /// What of that is not lent yet.
    rest: Span,
    /// What of its own it may not have any more in this period, as it slept.
    forgone: Span,
    /// Whether it has run out of what it had in this period, and wanted more.
    runs_out: bool,
    /// Whether it had in the period before.
    ran_out: bool,
    /// What it is lent in this period, and since when.
    loan: Span,
    since: Time,
    /// The most that it could have used of what others left, when it asked last; before, anything.
    could_use: Span,
    /// Up to when it has been charged.
    charged: Time,
}

/// The vCPUs of each domain whose share is spread by use, in order of id.
#[derive(Default)]
pub(in crate::policies::edf) struct Families(BTreeMap<DomId, Vec<VcpuId>>);

impl Families {
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

    /// The others of its domain.
    fn siblings(&self, vcpu: VcpuId) -> impl Iterator<Item = VcpuId> + Clone {
        let family = self.0.get(&vcpu.domain()).into_iter().flatten();
        family.copied().filter(move |other| *other != vcpu)
    }
}

impl Server {
    /// What of what it is owed is lent to it, and has been or will be had once its own is used.
    pub(in crate::policies::edf) fn loan(&self) -> Span {
        self.by_use.as_ref().map_or(Span::ZERO, |by_use| by_use.loan)
    }

    /// What it is owed of its own.
    pub(in crate::policies::edf) fn own(&self) -> Span {
        self.remaining.left_after(self.loan())
    }

    /// What it has had of its loan, as far as it has been charged.
    pub(in crate::policies::edf) fn had_of_loan(&self) -> Span {
        self.loan().left_after(self.remaining)
    }

    /// Whether it wanted more than it had in the period before this one.
    #[inline]
    pub(in crate::policies::edf) fn ran_out_before(&self) -> bool {
        self.by_use.as_ref().is_some_and(|by_use| by_use.ran_out)
    }

    /// What it has earned of its loan by now, and what it may have had of it.
    pub(in crate::policies::edf) fn firm(&self, at: &Moment, who: VcpuId) -> (Span, Span) {
        let Some(by_use) = &self.by_use else { return (Span::ZERO, Span::ZERO) };
        // Nobody need have said yet what it has used up to now.
        let uncharged = at.cpu_of(who).map_or(Span::ZERO, |_| at.now().since(by_use.charged));
        (self.earned(at.now()), by_use.loan.left_after(self.remaining.left_after(uncharged)))
    }

    fn earned(&self, now: Time) -> Span {
        let Some(by_use) = &self.by_use else { return Span::ZERO };
        let lent = Reservation::new(by_use.loan, self.deadline.since(by_use.since));
        lent.map_or(Span::ZERO, |lent| lent.over(now.since(by_use.since).min(lent.period())))
    }

    /// What it is owed if what it is lent is taken back now.
    pub(in crate::policies::edf) fn if_cut(&self, now: Time) -> Span {
        let kept = self.earned(now).max(self.had_of_loan());
        self.remaining.left_after(self.loan().left_after(kept))
    }

    /// Only so much of its loan is left to it. Whether it is owed nothing any more for that.
    pub(in crate::policies::edf) fn keep_of_loan(&mut self, kept: Span) -> bool {
        let Some(by_use) = &mut self.by_use else { return false };
        let gone = by_use.loan.left_after(kept);
        by_use.loan -= gone;
        self.remaining = self.remaining.left_after(gone);
        !gone.is_zero() && self.remaining.is_zero()
    }

    /// Its period is over, and what it was lent with it.
    pub(in crate::policies::edf) fn repay_loan(&mut self) {
        if let Some(by_use) = &mut self.by_use {
            (by_use.loan, by_use.forgone) = (Span::ZERO, Span::ZERO);
        }
    }

    /// It has slept, and may have less of its own than it might before.
    pub(in crate::policies::edf) fn forgo(&mut self, before: Span) {
        let own = self.own();
        if let Some(by_use) = &mut self.by_use {
            by_use.forgone += before - own;
        }
    }

    /// A period begins then: what it has left of the one before is for its siblings.
    pub(in crate::policies::edf) fn leave_rest(&mut self, begins: Time) {
        let (slice, own) = (self.periods.reservation.slice(), self.own());
        let Some(by_use) = &mut self.by_use else { return };
        if begins <= by_use.counted {
            return;
        }
        let slept_through = begins > self.deadline;
        by_use.counted = begins;
        by_use.left = match (self.slept, slept_through) {
            // What it was not given although it was awake it is still owed.
            (false, _) => Span::ZERO,
            (true, false) => own + by_use.forgone,
            // What it has had in advance it pays with periods like these.
            (true, true) => slice.left_after(self.debt + self.advance),
        };
        by_use.rest = by_use.left;
        let had_some = self.remaining < by_use.loan;
        by_use.ran_out = !slept_through && (by_use.runs_out || had_some);
        by_use.runs_out = false;
    }

    /// The same for who sleeps as its periods go by.
    fn leave_rest_asleep(&mut self, now: Time, clock: &GridClock) {
        if self.asleep_since != Time::NEVER && now >= self.deadline {
            self.leave_rest(self.coming(now, clock).begins);
        }
    }
}

impl Edf {
    /// Whether the share of somebody whose period has just begun is spread by use.
    pub(in crate::policies::edf) fn spread(&mut self, now: Time, vcpu: VcpuId, is_by_use: bool) {
        self.families.remove(vcpu);
        if is_by_use {
            self.families.add(vcpu);
        }
        self.servers[vcpu].by_use = is_by_use.then(|| {
            Box::new(ByUse {
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

    /// Lends somebody who wants more than its own what its siblings have left, as far as it can use
    /// it until its period ends and its CPU has room.
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
        // Who has nothing else left is looked at once more for it.
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

    /// What somebody may have of what its siblings have left: an equal part beside those who want
    /// some too.
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

    /// So much of what its siblings have left is lent to somebody.
    fn take_left(&mut self, vcpu: VcpuId, mut amount: Span) {
        for sibling in self.families.siblings(vcpu) {
            if let Some(by_use) = &mut self.servers[sibling].by_use {
                let taken = amount.min(by_use.rest);
                by_use.rest -= taken;
                amount -= taken;
            }
        }
    }

    /// Somebody used what it was owed, and so much beyond that, which may be lent to it.
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
