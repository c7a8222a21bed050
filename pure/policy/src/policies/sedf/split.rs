//! Who is split over several CPUs: in each period it has one part of its slice after the other, on
//! one CPU each (`split`).
//!
//! It stands in the queues of the CPU whose part it is in, in the ready queue by when that part
//! must be over, and has its slack there too. As a part has been had, or its time is over, it goes
//! on to the next one with whatever it did not get; as its slice is used up it waits on the CPU of
//! the first. The CPUs to ask for that are noted until the fact returns that brings it about.
//!
//! On CPUs with parts whoever wakes keeps only what would be left had it run while it slept. Slices
//! by weight fill a CPU, so they are on no such CPU, and nobody is split where they are.

use alloc::boxed::Box;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

use super::Sedf;
use super::pass::{Right, ready, waiting};
use super::server::Server;
use super::terms::Share;
use crate::Moment;
use crate::admission::demand::{Demand, Demanded, Job};
use crate::admission::split::{Part, Splits};
use crate::admission::subtasks::{InParts, Standing};
use crate::balance::CALL;

/// Where reservations may be split.
#[derive(Debug)]
pub(super) struct Parting {
    pub(super) splits: Splits,
    /// The CPUs to ask as somebody went there.
    to_ask: CpuSet,
}

impl Parting {
    pub(super) fn new(splits: Splits) -> Box<Parting> {
        Box::new(Parting { splits, to_ask: CpuSet::NONE })
    }
}

impl Server {
    /// It is split from now on, or not.
    pub(super) fn set_parts(&mut self, parts: Vec<Part>) {
        self.in_parts = InParts::new(parts).map(Box::new);
    }

    /// Where it is counted: its CPU, or that of its first part.
    pub(super) fn home(&self) -> CpuId {
        let first = self.in_parts.as_ref().and_then(|in_parts| in_parts.iter().next());
        first.map_or(self.cpu, |part| part.cpu)
    }

    /// When the part that it is in must be over, or the period.
    #[inline(always)]
    pub(super) fn due_by(&self) -> Time {
        match &self.in_parts {
            None => self.deadline,
            Some(in_parts) => self.begin().after(in_parts.now().ends),
        }
    }

    /// What it may have where it is now, of so much in all.
    #[inline(always)]
    pub(super) fn left_here(&self, left: Span) -> Span {
        self.in_parts.as_ref().map_or(left, |in_parts| in_parts.left_of(left))
    }

    /// A period begins, with the first part.
    #[inline(always)]
    pub(super) fn restart_parts(&mut self) {
        self.in_parts.iter_mut().for_each(|in_parts| in_parts.restart());
    }

    /// It had so much of its slice, or slept so long while it might have had it.
    pub(super) fn go_on(&mut self, ran: Span) {
        self.in_parts.iter_mut().for_each(|in_parts| in_parts.go_on(ran));
    }

    /// A part is over at its time, although it did not have all of it. Where the period is over too
    /// it stays until the next one begins.
    pub(super) fn catch_up(&mut self, now: Time) {
        let since_begin = now.since(self.begin());
        if now < self.deadline {
            self.in_parts.iter_mut().for_each(|in_parts| in_parts.catch_up(since_begin));
        }
    }

    /// Where it is in its period, or in the one that has come, if it has a slice that was set; so
    /// much of it has been used beyond what has been counted.
    fn standing(&self, now: Time, more: Span, is_awake: bool) -> Option<Standing> {
        let share = self.terms.reservation().ok().flatten()?;
        let (slice, period) = (share.slice(), share.period());
        let mut in_parts = self.in_parts.as_deref().cloned();
        let left = slice.left_after(self.used + more);
        let (begins, deadline, left) = if now < self.begin() {
            // Of the period before nothing is left.
            let before = self.begin().since(Time::START).left_after(period);
            (Time::START.after(before), self.begin(), Span::ZERO)
        } else if now < self.deadline {
            in_parts.iter_mut().for_each(|in_parts| in_parts.go_on(more));
            (self.begin(), self.deadline, left)
        } else {
            in_parts.iter_mut().for_each(InParts::restart);
            let begins = self.deadline.after(period * (now.since(self.deadline) / period));
            (begins, begins.after(period), slice)
        };
        let since = self.blocked.map_or(begins, |blocked| blocked.max(begins));
        let slept = if is_awake { Span::ZERO } else { now.since(since) };
        Some(Standing { share, cpu: self.cpu, in_parts, begins, deadline, left, slept })
    }
}

/// Who goes where.
impl Sedf {
    /// Somebody who is split used so much of its slice.
    #[inline(never)]
    pub(super) fn use_parts(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) {
        let server = &mut self.servers[vcpu];
        let due = ran.min(server.terms.slice.left_after(server.used));
        server.used += ran;
        if at.now() < server.deadline {
            server.go_on(due);
        }
        self.end_slice(vcpu);
        self.servers[vcpu].catch_up(at.now());
        self.follow(vcpu);
    }

    /// The part is over in which somebody stands ready, and its period is not: it goes on. Whether
    /// that was so.
    pub(super) fn end_part(&mut self, now: Time, vcpu: VcpuId) -> bool {
        let server = &mut self.servers[vcpu];
        let is_over = server.in_parts.is_some() && server.due_by() <= now && now < server.deadline;
        if is_over {
            server.catch_up(now);
            self.follow(vcpu);
        }
        is_over
    }

    /// Who is split goes to the CPU of the part that it is in.
    pub(super) fn follow(&mut self, vcpu: VcpuId) {
        let Server { in_parts, cpu: from, .. } = &self.servers[vcpu];
        let (Some(in_parts), from) = (in_parts, *from) else { return };
        let to = in_parts.now().cpu;
        if to == from {
            return;
        }
        let queue = self.deadlines.queue_of(vcpu);
        self.leave_queues(vcpu);
        self.servers[vcpu].cpu = to;
        let Some(queue) = queue else { return }; // Asleep.
        if queue == waiting(from) {
            self.wait(vcpu);
        } else {
            self.ready(vcpu);
        }
        self.join_slack(vcpu);
        self.ask(to);
    }

    /// A CPU is to be asked and to pass then.
    pub(super) fn ask(&mut self, cpu: CpuId) {
        self.request(cpu);
        self.parting.iter_mut().for_each(|parting| parting.to_ask.insert(cpu));
    }

    /// The CPUs to ask as somebody went there.
    #[inline(always)]
    pub(super) fn take_asked(&mut self) -> CpuSet {
        let parting = self.parting.as_mut();
        parting.map_or(CpuSet::NONE, |parting| core::mem::take(&mut parting.to_ask))
    }

    /// A CPU has passed. Who is still there and is to go on elsewhere can be taken there once it
    /// has gone from here. The CPUs to ask.
    #[inline(never)]
    pub(super) fn parts_pass(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let home = at.occupant(cpu).map(|vcpu| self.servers[vcpu].cpu);
        home.filter(|&home| home != cpu).into_iter().for_each(|home| self.ask(home));
        self.take_asked()
    }

    /// When a CPU is to pass because a part must be over there, at the latest.
    pub(super) fn part_is_over(&self, cpu: CpuId) -> Option<Time> {
        self.parting.as_ref().filter(|parting| parting.splits.strict().contains(cpu))?;
        self.deadlines.first(ready(cpu)).map(|((due_by, _), _)| due_by)
    }
}

/// What is promised.
impl Sedf {
    /// The CPUs where somebody is split, or was not long ago.
    pub(super) fn strict(&self) -> CpuSet {
        self.parting.as_ref().map_or(CpuSet::NONE, |parting| parting.splits.strict())
    }

    /// Whether who wakes here is to lose what it would have had: somebody is split here, or others
    /// still wait because somebody was.
    #[inline(always)]
    pub(super) fn is_strict(&mut self, at: &Moment, cpu: CpuId) -> bool {
        self.parting.is_some() && self.may_be_strict(at, cpu)
    }

    #[inline(never)]
    fn may_be_strict(&mut self, at: &Moment, cpu: CpuId) -> bool {
        let is_left_over = |parting: &Parting| parting.splits.is_left_over(cpu);
        if self.parting.as_deref().is_some_and(is_left_over) && self.rests(at, cpu) {
            self.rest_parts(cpu);
        }
        self.strict().contains(cpu)
    }

    /// Nobody is owed anything on a CPU.
    pub(super) fn rest_parts(&mut self, cpu: CpuId) {
        self.parting.iter_mut().for_each(|parting| parting.splits.rest(cpu));
    }

    /// Where somebody is split it is seen from what is owed whether anybody waits for what was had
    /// in advance.
    pub(super) fn rest_strict(&mut self) {
        for cpu in self.strict().iter() {
            self.holds.rest(cpu, &mut self.cpus);
        }
    }

    /// Somebody is not split any more; the parts that it had.
    pub(super) fn take_parts(&mut self, vcpu: VcpuId) -> Vec<Part> {
        let Some(parting) = &mut self.parting else { return Vec::new() };
        let cpus = &mut self.cpus;
        parting.splits.remove(vcpu, |cpu, rate| cpus[cpu.index()].tally.unbook_part(rate))
    }

    /// Somebody is split.
    pub(super) fn put_parts(&mut self, vcpu: VcpuId, period: Span, parts: &[Part]) {
        let parting = self.parting.as_mut().filter(|_| !parts.is_empty());
        let Some(parting) = parting else { return };
        let cpus = &mut self.cpus;
        let book = |cpu: CpuId, rate| cpus[cpu.index()].tally.book_part(rate);
        parting.splits.insert((vcpu, period, parts), book);
        parts.iter().for_each(|part| self.holds.rest(part.cpu, &mut self.cpus));
    }

    /// What all but one demand of each of some CPUs from now on, and what is kept there for who
    /// pays for balancing, unless that is who asks. None where there are slices by weight.
    pub(super) fn demands(
        &self,
        at: &Moment,
        (but, terms): (Option<VcpuId>, &Share),
        cpus: CpuSet,
    ) -> Vec<Option<Demand>> {
        let demand = |cpu: CpuId| {
            let takes_parts = cpus.contains(cpu) && !self.cpus[cpu.index()].tally.has_weights();
            takes_parts.then(Demand::default)
        };
        let mut demands: Vec<_> = (0..at.cpus()).map(CpuId::new).map(demand).collect();
        for cpu in cpus.iter().filter(|_| !terms.balances) {
            let ppm = u64::from(self.kept(cpu).ppm());
            let time = Span::from_ns((CALL.ns() * ppm).div_ceil(1_000_000));
            let job = Job { time, within: CALL, period: CALL };
            let kept = Demanded { owed: None, next: Span::ZERO, job };
            demands[cpu.index()].iter_mut().for_each(|demand| demand.add(kept));
        }
        for vcpu in at.members().filter(|vcpu| Some(*vcpu) != but) {
            let Some(server) = self.servers.get(vcpu) else { continue };
            let Some(standing) = self.standing(at, vcpu, server) else { continue };
            for (cpu, one) in standing.demands(at.now(), self.looks) {
                demands[cpu.index()].iter_mut().for_each(|demand| demand.add(one));
            }
        }
        demands
    }

    fn standing(&self, at: &Moment, vcpu: VcpuId, server: &Server) -> Option<Standing> {
        let turn = self.cpus[server.cpu.index()].turn;
        let own = turn.filter(|turn| turn.vcpu == vcpu && turn.right == Right::Guarantee);
        let more = own.map_or(Span::ZERO, |turn| turn.ran);
        server.standing(at.now(), more, at.is_awake(vcpu))
    }
}
