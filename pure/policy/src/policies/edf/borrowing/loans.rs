//! Loans of budget on each CPU, and their end when admission needs the capacity for a newcomer.
//!
//! A loan is CPU time until a deadline, out of the unreserved share of a CPU. The demand on the CPU
//! stays within its capacity, so no vCPU misses a deadline because of a loan.
//!
//! Admission has precedence over loans. A loan accrues at a constant rate. When a newcomer needs
//! the capacity, the borrower keeps the part of the loan that has accrued so far. The rest is cut.
//! If the borrower has used more than the accrued part, vCPUs of the CPU still wait for the CPU
//! time used in excess, and the newcomer cannot have the capacity at once. The capacity stays
//! reserved until the accrued part equals the CPU time that the borrower used. The same rule holds
//! for a share that a vCPU gave up (`admission::zero_lag`).

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Reservation, Span, Time, VcpuId};

use crate::Moment;
use crate::policies::edf::Edf;

/// Loans of all CPUs, and the CPUs to reschedule because loans were cut.
pub(in crate::policies::edf) struct Loans {
    /// Loans on each CPU.
    on: Vec<Vec<Loan>>,
    /// CPUs to reschedule because loans on them were cut, and the time of the latest cut.
    ask: Option<(Time, CpuSet)>,
}

/// Loan of budget to a vCPU until its period ends. Also the record of a vCPU that asked for a loan
/// and got none.
pub(in crate::policies::edf) struct Loan {
    pub(in crate::policies::edf) who: VcpuId,
    /// CPU time lent, with the time for which it is lent. `None` if no budget was left to lend.
    pub(in crate::policies::edf) lent: Option<Reservation>,
    /// Part of the loan that covers the overhead of one more dispatch.
    pub(in crate::policies::edf) turn: Span,
    /// Rate that the borrower could use if the CPU had the capacity, in 2^-64ths of the CPU.
    pub(in crate::policies::edf) wanted: u128,
    /// Time at which the loan began.
    pub(in crate::policies::edf) since: Time,
    /// Time at which the loan ends.
    pub(in crate::policies::edf) until: Time,
    /// True if the loan has ended. It then counts as load until its accrued part, rate × elapsed
    /// time, equals the CPU time that the borrower used.
    pub(in crate::policies::edf) is_over: bool,
}

impl Loan {
    /// Returns the rate of the loan in 2^-64ths of a CPU, rounded up.
    fn rate(&self) -> u128 {
        self.lent.map_or(0, |lent| rate(lent.slice(), lent.period()))
    }
}

/// Returns `slice / time` in 2^-64ths of a CPU, rounded up.
pub(in crate::policies::edf) fn rate(slice: Span, time: Span) -> u128 {
    (u128::from(slice.ns()) << 64).div_ceil(u128::from(time.ns().max(1)))
}

/// Returns the part of `all` for one of several vCPUs: an equal share, plus what the other vCPUs
/// cannot use of their shares. `others` has the amounts that the other vCPUs could use.
pub(in crate::policies::edf) fn part(
    all: u128,
    others: impl Iterator<Item = u128> + Clone,
) -> u128 {
    let even = all / (1 + others.clone().count() as u128);
    all - others.map(|wanted| wanted.min(even)).sum::<u128>()
}

impl Loans {
    pub(in crate::policies::edf) fn new(cpus: usize) -> Loans {
        Loans { on: (0..cpus).map(|_| Vec::new()).collect(), ask: None }
    }

    /// Returns the largest share of the CPU `cpu` that the vCPU `who` can borrow at `now`, in
    /// 2^-64ths of a CPU. `free` is the unreserved share of the CPU.
    pub(in crate::policies::edf) fn room(
        &self,
        cpu: CpuId,
        who: VcpuId,
        (now, free): (Time, u128),
    ) -> u128 {
        let others = self.on[cpu.index()].iter().filter(move |loan| loan.who != who);
        // A vCPU whose period ends now is about to borrow again.
        let wanted = others.clone().filter(|loan| loan.until >= now && !loan.is_over);
        let part = part(free, wanted.map(|loan| loan.wanted));
        part.min(free.saturating_sub(others.filter(|loan| loan.until > now).map(Loan::rate).sum()))
    }

    /// Returns the total rate of the loans on a CPU, in 2^-64ths of the CPU.
    pub(in crate::policies::edf) fn rate(&self, cpu: CpuId, now: Time) -> u128 {
        self.on[cpu.index()].iter().filter(|loan| loan.until > now).map(Loan::rate).sum()
    }

    pub(in crate::policies::edf) fn add(&mut self, cpu: CpuId, loan: Loan) {
        let (on, now) = (&mut self.on[cpu.index()], loan.since);
        on.retain(|old| old.until >= now && (old.who != loan.who || old.is_over));
        on.push(loan);
    }

    /// Returns true if there are loans on a CPU, including expired loans that were not dropped yet.
    #[inline]
    pub(in crate::policies::edf) fn are_on(&self, cpu: CpuId) -> bool {
        !self.on[cpu.index()].is_empty()
    }

    /// Drops expired loans of a CPU. Loans that expire exactly now stay: their borrowers are about
    /// to renew them.
    pub(in crate::policies::edf) fn lapse(&mut self, cpu: CpuId, now: Time) {
        self.on[cpu.index()].retain(|loan| loan.until >= now);
    }

    /// Returns the time at which a CPU must be rescheduled because loans on it were cut. `None` if
    /// no loan on the CPU was cut since it was last rescheduled.
    #[inline]
    pub(in crate::policies::edf) fn asks(&self, cpu: CpuId) -> Option<Time> {
        self.ask.filter(|(_, cpus)| cpus.contains(cpu)).map(|(since, _)| since)
    }

    /// Records that a CPU is rescheduled, so that its cut loans need no other reschedule.
    #[inline]
    pub(in crate::policies::edf) fn asked(&mut self, cpu: CpuId) {
        if let Some((_, cpus)) = &mut self.ask {
            cpus.remove(cpu);
            self.ask = self.ask.filter(|(_, cpus)| !cpus.is_empty());
        }
    }

    /// Requests rescheduling of CPUs on which a loan was cut, since the limit of the current
    /// timeslice can include the budget that was cut.
    pub(in crate::policies::edf) fn ask_about(&mut self, now: Time, cpus: CpuSet) {
        if !cpus.is_empty() {
            let before = self.ask.map_or(CpuSet::NONE, |(_, cpus)| cpus);
            self.ask = Some((now, before.iter().chain(cpus.iter()).collect()));
        }
    }
}

impl Edf {
    /// Returns the loans whose borrowers have used more than the accrued part, each with its CPU.
    /// Admission must count these loans, since a newcomer cannot have their capacity yet. Leaves
    /// out quiescent CPUs, on which no vCPU waits for the capacity.
    pub(in crate::policies::edf) fn lent(
        &self,
        at: &Moment,
        cpus: CpuSet,
    ) -> Vec<(CpuId, Reservation)> {
        let mut lent = Vec::new();
        for cpu in cpus.iter() {
            let on = self.loans.on[cpu.index()].iter().filter(|loan| loan.until > at.now());
            let in_advance = on.filter(|loan| {
                let is_in_advance = |(earned, had)| had > earned;
                loan.is_over || is_in_advance(self.servers[loan.who].firm(at, loan.who))
            });
            let before = lent.len();
            lent.extend(in_advance.filter_map(|loan| Some((cpu, loan.lent?))));
            if lent.len() > before && self.rests(at.now(), cpu) {
                lent.truncate(before);
            }
        }
        lent
    }

    /// Cuts all loans on each CPU on which the loans now exceed the unreserved share, and on each
    /// strict CPU (see `Edf::is_strict`). Returns these CPUs.
    pub(in crate::policies::edf) fn cut_loans(&mut self, at: &Moment, cpus: CpuSet) -> CpuSet {
        let now = at.now();
        // On a strict CPU loans were not counted, so all of them are cut.
        let is_too_much = |cpu: &CpuId| {
            self.loans.rate(*cpu, now) > self.promised.free(*cpu)
                || self.promised.strict().contains(*cpu)
        };
        let cpus: CpuSet = cpus.iter().filter(is_too_much).collect();
        for cpu in cpus.iter() {
            let mut loans = core::mem::take(&mut self.loans.on[cpu.index()]);
            for loan in loans.iter_mut().filter(|loan| loan.until > now && !loan.is_over) {
                let (earned, had) = self.servers[loan.who].firm(at, loan.who);
                if self.servers[loan.who].keep_of_loan(earned.max(had)) && at.is_awake(loan.who) {
                    self.enqueue(loan.who);
                }
                loan.end(had);
            }
            loans.retain(|loan| loan.until > now);
            self.loans.on[cpu.index()] = loans;
        }
        cpus
    }

    /// Ends the loan of a vCPU.
    pub(in crate::policies::edf) fn end_loan(&mut self, now: Time, vcpu: VcpuId) {
        let server = &mut self.servers[vcpu];
        if server.by_use.is_none() {
            return;
        }
        let had = server.had_of_loan();
        server.keep_of_loan(had);
        let on = &mut self.loans.on[server.cpu.index()];
        let own = on.iter_mut().filter(|loan| loan.who == vcpu && !loan.is_over);
        own.for_each(|loan| loan.end(had));
        on.retain(|loan| loan.until > now);
    }
}

impl Loan {
    /// Ends the loan, of which the borrower used `had`.
    fn end(&mut self, had: Span) {
        self.is_over = true;
        let lent = self.lent.filter(|_| !had.is_zero());
        let earned = lent.map_or(Span::ZERO, |lent| lent.time_for(had + self.turn));
        self.until = self.until.min(self.since.after(earned));
    }
}
