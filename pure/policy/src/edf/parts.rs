//! Who is split over several CPUs: which part of its slice it is in, and what all that are bound to
//! a CPU, or run a part there, demand of it.

use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, GridClock, Span, Time, VcpuId};

use super::{Edf, Server};
use crate::demand::{Demand, Demanded, Job};
use crate::looks::Looks;
use crate::split::Part;
use crate::{Moment, Roster};

/// Where somebody is in its slice.
#[derive(Clone, Debug)]
pub(super) struct InParts {
    parts: Vec<Part>,
    /// Which part it is in.
    part: usize,
    /// What is left of that.
    left: Span,
}

impl InParts {
    /// None for who is not split.
    pub(super) fn new(parts: Vec<Part>) -> Option<InParts> {
        let left = parts.first()?.slice;
        Some(InParts { parts, part: 0, left })
    }

    pub(super) fn now(&self) -> &Part {
        &self.parts[self.part]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter()
    }

    pub(super) fn cpus(&self) -> CpuSet {
        self.parts.iter().map(|part| part.cpu).collect()
    }

    fn is_last(&self) -> bool {
        self.part + 1 == self.parts.len()
    }

    /// What is left of the part that it is in, of so much in all.
    pub(super) fn left_of(&self, remaining: Span) -> Span {
        if self.is_last() { remaining } else { remaining.min(self.left) }
    }

    /// A period begins.
    pub(super) fn restart(&mut self) {
        (self.part, self.left) = (0, self.parts[0].slice);
    }

    /// It had so much, or slept so long while it might have had it.
    pub(super) fn go_on(&mut self, mut ran: Span) {
        while ran >= self.left && !self.is_last() {
            ran -= self.left;
            self.part += 1;
            self.left = self.now().slice;
        }
        self.left = self.left.left_after(ran);
    }

    /// On to the part for which it is time: whatever it did not get before goes along.
    pub(super) fn catch_up(&mut self, since_begin: Span) {
        while self.now().ends <= since_begin && !self.is_last() {
            self.part += 1;
            self.left += self.now().slice;
        }
    }
}

impl Server {
    /// When the part that it is in must be over, or the period.
    #[inline(always)]
    pub(super) fn due_by(&self) -> Time {
        match &self.in_parts {
            None => self.deadline,
            Some(in_parts) => self.begin_of_period().after(in_parts.now().ends),
        }
    }

    /// The most that it may have now before something changes.
    #[inline(always)]
    pub(super) fn limit(&self) -> Span {
        match &self.in_parts {
            None => self.remaining,
            Some(in_parts) => in_parts.left_of(self.remaining),
        }
    }

    /// All CPUs on which it runs.
    pub(super) fn cpus(&self) -> CpuSet {
        self.in_parts.as_ref().map_or(CpuSet::one(self.cpu), InParts::cpus)
    }

    /// The CPU to ask where it was to run next, which need not be where it ran last.
    pub(super) fn elsewhere(&self) -> CpuSet {
        self.in_parts.as_ref().map_or(CpuSet::NONE, |in_parts| CpuSet::one(in_parts.now().cpu))
    }

    /// When a period began that is not on a grid.
    pub(super) fn begin_of_period(&self) -> Time {
        let since_start = self.deadline.since(Time::START);
        Time::START.after(since_start.left_after(self.periods.reservation.period()))
    }

    /// Where what it does next is to be done.
    fn settle_parts(&mut self) {
        if let Some(in_parts) = &self.in_parts {
            self.cpu = in_parts.now().cpu;
        }
    }

    /// It is in the first part.
    pub(super) fn restart_parts(&mut self) {
        if let Some(in_parts) = &mut self.in_parts {
            in_parts.restart();
            self.settle_parts();
        }
    }

    /// It had so much of its slice.
    pub(super) fn go_on(&mut self, ran: Span) {
        if let Some(in_parts) = &mut self.in_parts {
            in_parts.go_on(ran);
            self.settle_parts();
        }
    }

    /// A part is over at its time, although it did not have all of it.
    pub(super) fn catch_up(&mut self, now: Time) {
        let since_begin = now.since(self.begin_of_period());
        if let Some(in_parts) = &mut self.in_parts {
            in_parts.catch_up(since_begin);
            self.settle_parts();
        }
    }

    /// What it demands from now on, by CPU.
    fn demands(&self, at: Time, clock: &GridClock, looks: Looks) -> Vec<(CpuId, Demanded)> {
        let (reservation, is_asleep) = (self.periods.reservation, self.asleep_since != Time::NEVER);
        let period = reservation.period();
        let (begins, left, deadline) = if at < self.deadline {
            (self.begin_of_period(), self.if_cut(at), self.deadline)
        } else {
            let coming = self.coming(at, clock);
            (coming.begins, coming.slice, coming.deadline)
        };
        let slept = at.since(self.asleep_since.max(begins));
        let left = if is_asleep { left.left_after(slept) } else { left };
        let owed = |left: Span, due: Time| {
            let time = looks.with(left, Span::MAX);
            // Who is late already is not to keep everybody out.
            (!left.is_zero()).then(|| (time, due.since(at).max(time)))
        };
        let Some(in_parts) = &self.in_parts else {
            let job = Job { time: looks.with(reservation.slice(), period), within: period, period };
            let one = Demanded { owed: owed(left, deadline), next: deadline.since(at), job };
            return alloc::vec![(self.cpu, one)];
        };
        let mut there = in_parts.clone();
        if at >= self.deadline {
            there.restart();
        }
        if is_asleep {
            there.go_on(slept);
        }
        let one = |(index, part): (usize, &Part)| {
            let comes = index > there.part && !left.is_zero();
            let begin = if comes { begins } else { deadline };
            let is_here = index == there.part;
            let owed =
                if is_here { owed(there.left_of(left), begins.after(part.ends)) } else { None };
            let next = begin.after(part.begins).since(at);
            (part.cpu, Demanded { owed, next, job: part.job(period, looks) })
        };
        there.parts.iter().enumerate().map(one).collect()
    }
}

/// What all but one demand of each CPU from now on; none where periods begin on a grid.
pub(super) fn demands(
    servers: &Roster<Server>,
    but: Option<VcpuId>,
    (at, cpus): (&Moment, CpuSet),
    (clock, looks): (&GridClock, Looks),
) -> Vec<Option<Demand>> {
    let is_asked = |index| cpus.contains(CpuId::new(index));
    let mut demands: Vec<_> =
        (0..at.cpus()).map(|index| is_asked(index).then(Demand::default)).collect();
    for server in servers.others(but) {
        if server.periods.phase.is_some() {
            demands[server.cpu.index()] = None;
            continue;
        }
        for (cpu, one) in server.demands(at.now(), clock, looks) {
            if let Some(demand) = &mut demands[cpu.index()] {
                demand.add(one);
            }
        }
    }
    demands
}

impl Edf {
    /// Moves somebody who is split to where it belongs now that time has passed or been used.
    /// Returns the CPUs that this concerns.
    pub(super) fn follow(&mut self, vcpu: VcpuId, before: CpuId, is_awake: bool) -> CpuSet {
        let server = &mut self.servers[vcpu];
        if server.cpu == before {
            return CpuSet::NONE;
        }
        server.spare_used = server.spare_used.max(self.spare_floor[server.cpu.index()]);
        let cpus = [before, server.cpu].into_iter().collect();
        if is_awake {
            self.enqueue(vcpu);
        }
        cpus
    }
}
