//! What is lent on each CPU, and what becomes of it when somebody comes who is promised that room.
//!
//! A loan is CPU time until a deadline, of what a CPU has not promised: with it no more is demanded
//! there than may be promised, so nobody is late for it. Whoever is admitted comes first. What of a
//! loan has been earned by then, as if it had been had evenly, stays; the rest is taken back. Who
//! has had more than that has had it in advance, and others wait for it: so much counts as promised
//! until it would have been earned, as after a share that was given up (`hold`).

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Reservation, Span, Time, VcpuId};

use crate::Moment;
use crate::policies::edf::Edf;

/// What is lent, by CPU.
pub(in crate::policies::edf) struct Loans {
    on: Vec<Vec<Loan>>,
    /// The CPUs to ask as loans there were cut, and since when.
    ask: Option<(Time, CpuSet)>,
}

/// What somebody has asked for until its period ends.
pub(in crate::policies::edf) struct Loan {
    pub(in crate::policies::edf) who: VcpuId,
    /// What it was lent of how long; none if there was nothing for it.
    pub(in crate::policies::edf) lent: Option<Reservation>,
    /// What of that is for looking after one more turn.
    pub(in crate::policies::edf) turn: Span,
    /// What it would have taken, in 2^-64ths of the CPU.
    pub(in crate::policies::edf) wanted: u128,
    pub(in crate::policies::edf) since: Time,
    pub(in crate::policies::edf) until: Time,
    /// Whether it is over, and only counts until it is earned.
    pub(in crate::policies::edf) is_over: bool,
}

impl Loan {
    /// What it takes of the CPU, in 2^-64ths of it, rounded up.
    fn rate(&self) -> u128 {
        self.lent.map_or(0, |lent| rate(lent.slice(), lent.period()))
    }
}

/// So much of such a time, in 2^-64ths of a CPU, rounded up.
pub(in crate::policies::edf) fn rate(slice: Span, time: Span) -> u128 {
    (u128::from(slice.ns()) << 64).div_ceil(u128::from(time.ns().max(1)))
}

/// What one of several may have of what all want: an equal part, and what the others would not use
/// of theirs.
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

    /// The most of a CPU that may be lent to somebody, of so much that is not promised.
    pub(in crate::policies::edf) fn room(
        &self,
        cpu: CpuId,
        who: VcpuId,
        (now, free): (Time, u128),
    ) -> u128 {
        let others = self.on[cpu.index()].iter().filter(move |loan| loan.who != who);
        // Whose period ends now will ask again now.
        let wanted = others.clone().filter(|loan| loan.until >= now && !loan.is_over);
        let part = part(free, wanted.map(|loan| loan.wanted));
        part.min(free.saturating_sub(others.filter(|loan| loan.until > now).map(Loan::rate).sum()))
    }

    /// What is lent on a CPU, in 2^-64ths of it.
    pub(in crate::policies::edf) fn rate(&self, cpu: CpuId, now: Time) -> u128 {
        self.on[cpu.index()].iter().filter(|loan| loan.until > now).map(Loan::rate).sum()
    }

    pub(in crate::policies::edf) fn add(&mut self, cpu: CpuId, loan: Loan) {
        let (on, now) = (&mut self.on[cpu.index()], loan.since);
        on.retain(|old| old.until >= now && (old.who != loan.who || old.is_over));
        on.push(loan);
    }

    /// Whether anything has been lent on a CPU, of which it may be over by now.
    #[inline]
    pub(in crate::policies::edf) fn are_on(&self, cpu: CpuId) -> bool {
        !self.on[cpu.index()].is_empty()
    }

    /// What is over on a CPU is forgotten. Whose period ends now will ask again now.
    pub(in crate::policies::edf) fn lapse(&mut self, cpu: CpuId, now: Time) {
        self.on[cpu.index()].retain(|loan| loan.until >= now);
    }

    /// When to ring for a CPU because loans there were cut.
    #[inline]
    pub(in crate::policies::edf) fn asks(&self, cpu: CpuId) -> Option<Time> {
        self.ask.filter(|(_, cpus)| cpus.contains(cpu)).map(|(since, _)| since)
    }

    /// A CPU is asked.
    #[inline]
    pub(in crate::policies::edf) fn asked(&mut self, cpu: CpuId) {
        if let Some((_, cpus)) = &mut self.ask {
            cpus.remove(cpu);
            self.ask = self.ask.filter(|(_, cpus)| !cpus.is_empty());
        }
    }

    /// These CPUs are to be asked: who runs there may be in a turn that is too long now.
    pub(in crate::policies::edf) fn ask_about(&mut self, now: Time, cpus: CpuSet) {
        if !cpus.is_empty() {
            let before = self.ask.map_or(CpuSet::NONE, |(_, cpus)| cpus);
            self.ask = Some((now, before.iter().chain(cpus.iter()).collect()));
        }
    }
}

impl Edf {
    /// What has been had in advance of loans on some CPUs: who comes cannot have that room yet.
    /// Where nobody is owed anything nobody waits for it.
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

    /// Takes back what is lent on these CPUs where that is more than they have left now. Returns
    /// those where somebody has less than before.
    pub(in crate::policies::edf) fn cut_loans(&mut self, at: &Moment, cpus: CpuSet) -> CpuSet {
        let now = at.now();
        // Where somebody is split nothing was counted that could be taken back.
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

    /// Somebody gives back what it was lent.
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
    /// It is over, and so much of it has been had.
    fn end(&mut self, had: Span) {
        self.is_over = true;
        let lent = self.lent.filter(|_| !had.is_zero());
        let earned = lent.map_or(Span::ZERO, |lent| lent.time_for(had + self.turn));
        self.until = self.until.min(self.since.after(earned));
    }
}
