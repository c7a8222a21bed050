//! Earliest deadline first over periodic reservations, partitioned over the CPUs.
//! Source: Lin and Dinda, SC 2005, cited as [VSched]; the admission test is Liu and Layland's.
//!
//! Every vCPU is owed `slice` in each `period`, and its deadline is the end of the period. Of those
//! that are awake and still owed something, the one whose deadline is nearest runs [VSched §3.1].
//! Decisions fall at period boundaries, at the end of slices and when the set changes [VSched
//! §3.3]. A vCPU is bound to one CPU when it is admitted, so each CPU is a plain single-CPU EDF
//! queue, and the test `sum of slice/period <= 1 - reserve` decides exactly what can be kept. Time
//! that nobody is owed goes to the work-conserving vCPUs of the CPU, whoever has had least of it
//! first; an `exact` vCPU never gets more than its slice.
//!
//! Holds after every call:
//! - an awake vCPU stands in one deadline queue of its CPU: `owed` while it has something left in
//!   this period, `served` when it has not;
//! - what a vCPU used beyond its slice in a turn that was due to it is debt;
//! - what an awake vCPU was not given by its deadline is backlog, and is made up for before anybody
//!   else gets time that nobody is owed. It never takes time that somebody is: whoever was late,
//!   nobody else becomes late for it.
//!
//! How debt is paid. Whoever stops a vCPU is late by something every time, and by more now and
//! then. What it was late by at the least, of late, is taken from the next slice: a stop that is
//! late by as much again falls where the slice ends, and over many periods the error is that of a
//! single one. What is beyond that is paid from spare time, if those who had to wait have had it
//! since: what the CPU has not promised of the time since, and all that they were waiting for as
//! soon as nobody is owed anything. An exact vCPU is forgiven it then, so no slice of its own is
//! short, and it has more than its share by what stops are later on the average than at the least.
//! What spare time has not paid is taken from the next slices, short as they become. All this is of
//! who would rather have whole slices than an exact share; who is to `repay` pays at once.
//!
//! A new share starts a new period at once, and is worth nothing: what was used of the old slice
//! beyond the part of the period that has passed was had in advance, and is taken from the first
//! slices of the new share, all of it. The same for who leaves and comes back.
//!
//! With a phase, periods begin on a grid. A period that is cut short by it, as the first one is, is
//! worth its part of a slice: whatever the grid, nobody demands more than slice/period of any time
//! from a begin of its periods on, so admission need not know of phases, and a phase gains nothing.
//!
//! Placed by splitting (`split`), a vCPU that fits nowhere as a whole is in one part of its slice
//! after the other, on one CPU each. A part has a deadline of its own, by which it comes before
//! others; at that time the rest goes along to the next part, if a timer was late. On CPUs with
//! parts whoever wakes keeps only what would be left had it run while it slept.
//!
//! What the vCPUs of a domain do not use may be for those of them that use more (`siblings`): they
//! are lent it out of what their CPU has not promised (`loans`), as a larger slice of one period.
//!
//! Departs from [VSched]: sleeping in the middle of a period cannot hurt others. Waking with all of
//! a slice left and little of the period would demand more than slice/period until the deadline,
//! and somebody else would miss. Two amounts are harmless: what would be left had it run while it
//! slept, and `slice/period` of what remains of the period. It keeps the larger, so short blocks
//! cost no more than they last.

mod admission;
mod borrowing;
mod fields;
mod overrun;
mod page;
mod period;
mod split;

#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, CpuShare, GridClock, Periods, Reservation};
use slackline_units::{Span, Time, VcpuId};

use self::borrowing::groups::{ByUse, Families};
use self::borrowing::loans::Loans;
use self::fields::{
    EXACT, OVERRUN, PERIOD, PHASE, PLACE, QUANTUM, RESERVE, SLICE, SPREAD, UNBLOCKING,
    begins_at_wake, conflict, is_by_use, periods, promise,
};
use self::overrun::history::Stops;
use self::split::{demands, reserved};
use crate::admission::bookings::{Asked, Bookings, Placed};
use crate::admission::placement::Packing;
use crate::admission::subtasks::InParts;
use crate::api::field::{distance, slice_of};
use crate::queues::ordered::Queues;
use crate::{
    Account, AdmitError, Entitlement, Moment, Pick, Policy, Roster, Spec, Topology, Values,
};

/// What people meet.
pub(crate) const SPEC: Spec = Spec {
    name: "edf",
    summary: "a slice in every period, earliest deadline first (VSched)",
    page: page::PAGE,
    policy_fields: &[RESERVE, PLACE, QUANTUM, UNBLOCKING],
    share_fields: &[SLICE, PERIOD, EXACT, OVERRUN, PHASE, SPREAD],
    conflict,
    promise,
    keeps: |values, _| !begins_at_wake(values),
    limit: Some(|share, period| {
        let mut terms = slice_of(share, period);
        terms.push(("exact", "true".into()));
        terms.push(("overrun", "\"repay\"".into()));
        terms
    }),
    together: Some(("spread", "use")),
    payer: None,
    build: |values, topology| Box::new(Edf::new(values, topology)),
};

struct Edf {
    promised: Bookings,
    quantum: Span,
    /// Two queues a CPU, `owed` and `served`, by deadline.
    deadlines: Queues<Time>,
    /// One queue a CPU: the served who may have more.
    spare: Queues<Turn>,
    /// By CPU: the least that anybody in `spare` had; who comes late starts from there.
    spare_floor: Vec<Span>,
    spare_time: Vec<SpareTime>,
    servers: Roster<Server>,
    /// Those whose share is spread by use, by domain.
    families: Families,
    loans: Loans,
    /// By which phases are told.
    clock: GridClock,
    /// True if a period begins when a vCPU wakes.
    begins_at_wake: bool,
}

/// What one CPU has to pay with what was overrun there.
#[derive(Clone, Copy, Debug)]
struct SpareTime {
    /// How often nobody was owed anything any more.
    rests: u32,
    /// What it has not promised.
    share: CpuShare,
}

impl SpareTime {
    /// The part of a time that was not promised.
    fn of(self, time: Span) -> Span {
        let ns = u128::from(time.ns()) * u128::from(self.share.ppm()) / 1_000_000;
        Span::from_ns(u64::try_from(ns).expect("at most the time itself"))
    }
}

/// Whose turn it is when nobody is owed anything before a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// First those that were not given their due in time, by their present deadline.
    Late(Time),
    /// Then the work-conserving, by how much of this time they have had.
    Unclaimed(Span),
}

/// What one vCPU is owed and has had.
struct Server {
    periods: Periods,
    exact: bool,
    /// True if its period begins when it wakes.
    begins_at_wake: bool,
    /// Whether its slices pay for all that its stops are late by.
    repays: bool,
    /// Where it is bound, or where it is split: where it is to run next.
    cpu: CpuId,
    /// None where it is bound as a whole.
    in_parts: Option<InParts>,
    /// The end of the current period.
    deadline: Time,
    /// What that is worth.
    worth: Span,
    /// Owed before the deadline.
    remaining: Span,
    /// Had in advance of the terms before these, still to be taken from coming slices.
    advance: Span,
    /// Overrun, still to be taken from coming slices.
    debt: Span,
    /// What of it others on its CPU may still have to wait for.
    urgent: Span,
    /// When that was last counted, and how often its CPU had rested then.
    counted: (Time, u32),
    stops: Stops,
    /// Not given to it by past deadlines although it was awake, still to be made up for.
    backlog: Span,
    /// Unclaimed time it had, or was passed over for by sleeping.
    spare_used: Span,
    /// Since when it has been asleep; `NEVER` while it is awake.
    asleep_since: Time,
    /// Whether it slept in the current period: what it then misses is not owed to it.
    slept: bool,
    /// None where its share is its own alone.
    by_use: Option<Box<ByUse>>,
}

impl Policy for Edf {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        let periods = periods(share)?;
        let Placed { cpu, parts, advance, .. } = self.promise(at, vcpu, None, periods)?;
        let cpus: CpuSet = parts.iter().map(|part| part.cpu).chain([cpu]).collect();
        cpus.iter().for_each(|cpu| self.note_promises(at, cpu));
        let deadline = periods.first_end(at.now(), &self.clock);
        let slice = periods.worth(at.now(), deadline);
        let in_advance = advance.min(slice);
        let server = Server {
            periods,
            exact: share.flag(&EXACT),
            begins_at_wake: self.begins_at_wake(share),
            repays: share.choice(&OVERRUN) == "repay",
            cpu,
            in_parts: InParts::new(parts),
            deadline,
            worth: slice,
            remaining: slice - in_advance,
            advance: advance - in_advance,
            debt: Span::ZERO,
            urgent: Span::ZERO,
            counted: (at.now(), 0),
            stops: Stops::default(),
            backlog: Span::ZERO,
            spare_used: Span::ZERO,
            asleep_since: at.now(),
            slept: true,
            by_use: None,
        };
        self.servers.insert(vcpu, server);
        self.spread(at.now(), vcpu, is_by_use(share));
        let cut = self.cut_loans(at, cpus);
        self.loans.ask_about(at.now(), cut);
        Ok(())
    }

    /// A new share starts a new period at once: that is how it takes effect within a decision.
    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        let periods = periods(share)?;
        let tenant = self.servers[vcpu].tenant(vcpu, at.now());
        let home = tenant.cpu;
        let mut cpus = self.servers[vcpu].cpus();
        let Placed { cpu, parts, waits, .. } = self.promise(at, vcpu, Some(tenant), periods)?;
        self.dequeue(vcpu);
        cpus.extend(parts.iter().map(|part| part.cpu).chain([cpu]));
        cpus.iter().for_each(|cpu| self.note_promises(at, cpu));
        self.end_loan(at.now(), vcpu);
        self.cut_loans(at, cpus);
        let begins_at_wake = self.begins_at_wake(share);
        let server = &mut self.servers[vcpu];
        server.advance = tenant.advance;
        server.periods = periods;
        server.exact = share.flag(&EXACT);
        server.begins_at_wake = begins_at_wake;
        server.repays = share.choice(&OVERRUN) == "repay";
        server.cpu = cpu;
        server.in_parts = InParts::new(parts);
        let deadline = periods.first_end(at.now(), &self.clock);
        let slice = periods.worth(at.now(), deadline);
        server.begin((slice, deadline), at.now(), self.spare_time[home.index()]);
        if waits {
            (server.worth, server.remaining) = (Span::ZERO, Span::ZERO);
        }
        server.backlog = Span::ZERO;
        self.spread(at.now(), vcpu, is_by_use(share));
        if at.is_awake(vcpu) {
            self.enqueue(vcpu);
        }
        Ok(cpus)
    }

    fn leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.dequeue(vcpu);
        self.end_loan(at.now(), vcpu);
        self.families.remove(vcpu);
        let server = self.servers.remove(vcpu).expect("a vCPU that has joined");
        self.promised.remove(at.now(), server.tenant(vcpu, at.now()));
        server.cpus().iter().for_each(|cpu| self.note_promises(at, cpu));
        server.elsewhere()
    }

    fn wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpu = self.servers[vcpu].cpu;
        let is_strict = !self.promised.strict().is_empty() && self.is_strict(at, cpu);
        let server = &mut self.servers[vcpu];
        let before = server.deadline;
        let spare_time = self.spare_time[cpu.index()];
        if server.begins_at_wake {
            server.wake_anew(at.now(), spare_time, &self.clock);
        } else {
            server.wake(at.now(), spare_time, &self.clock, is_strict);
        }
        let cpu = server.cpu;
        server.spare_used = server.spare_used.max(self.spare_floor[cpu.index()]);
        if server.deadline != before && server.ran_out_before() {
            self.lend(at, vcpu);
        }
        self.insert(vcpu);
        CpuSet::one(cpu)
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        let server = &mut self.servers[vcpu];
        let due = ran.min(server.remaining);
        let mut beyond = ran - due;
        if !due.is_zero() {
            server.remaining -= due;
            if server.by_use.is_some() {
                beyond = self.charge_by_use(at, vcpu, beyond);
            }
            let server = &mut self.servers[vcpu];
            server.stops.is_stopped = server.remaining.is_zero() && at.is_awake(vcpu);
            // Overrunning a turn that was due is debt; time taken while nobody was owed is not.
            if server.exact || at.cpu_of(vcpu).is_some() {
                server.overrun(beyond, at.now(), self.spare_time[server.cpu.index()]);
            } else {
                server.spare_used += beyond;
            }
            if server.in_parts.is_some() {
                return self.charge_part(at, vcpu, due);
            }
            if server.remaining.is_zero() && at.is_awake(vcpu) {
                self.enqueue(vcpu);
            }
        } else if !beyond.is_zero() {
            server.stops.is_stopped &= !server.exact || at.is_awake(vcpu);
            self.charge_beyond(at.now(), vcpu, beyond);
        }
        CpuSet::NONE
    }

    fn block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.dequeue(vcpu);
        self.note_rest(self.servers[vcpu].cpu);
        let server = &mut self.servers[vcpu];
        server.asleep_since = at.now();
        server.slept = true;
        server.backlog = Span::ZERO;
        server.elsewhere()
    }

    /// Who is on a CPU and is to go on elsewhere can be taken there once it has gone from here.
    fn pass(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        if self.promised.strict().is_empty() {
            return CpuSet::NONE;
        }
        let home = at.occupant(cpu).map(|vcpu| self.servers[vcpu].cpu);
        home.filter(|&home| home != cpu).into_iter().collect()
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        match self.deadlines.first(owed(cpu)) {
            Some((_, vcpu)) if at.is_eligible(vcpu, cpu) => self.due(vcpu),
            None if self.spare.is_empty(cpu.index()) => Pick::Idle,
            _ => self.pick_other(at, cpu),
        }
    }

    fn alarm(&self, cpu: CpuId) -> Option<Time> {
        if let Some(at) = self.loans.asks(cpu) {
            return Some(at);
        }
        let first = |queue| self.deadlines.first(queue).map(|(deadline, _)| deadline);
        match (first(owed(cpu)), first(served(cpu))) {
            (Some(owed), Some(served)) => Some(owed.min(served)),
            (owed, served) => owed.or(served),
        }
    }

    fn ring(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let mut cpus = CpuSet::one(cpu);
        self.loans.asked(cpu);
        if self.loans.are_on(cpu) {
            self.loans.lapse(cpu, at.now());
            self.note_spare_time(at.now(), cpu);
        }
        for queue in [owed(cpu), served(cpu)] {
            while let Some((due_by, vcpu)) = self.deadlines.first(queue) {
                if due_by > at.now() {
                    break;
                }
                let server = &mut self.servers[vcpu];
                if server.deadline > at.now() {
                    server.catch_up(at.now());
                } else {
                    let spare_time = self.spare_time[cpu.index()];
                    server.begin_period(at.now(), spare_time, &self.clock);
                    server.catch_up(at.now());
                }
                cpus.insert(server.cpu);
                if server.ran_out_before() {
                    self.lend(at, vcpu);
                }
                self.enqueue(vcpu);
            }
        }
        cpus
    }

    fn set_clock(&mut self, at: &Moment, ahead: Span) {
        self.clock.set(at.now(), ahead);
    }

    fn room(&self, at: &Moment, period: Span, allowed: CpuSet) -> Option<Span> {
        let least = Reservation::new(Span::from_ns(1), period).ok()?;
        let asked = self.promised.asked(at, least, allowed, |cpu| self.rests(at.now(), cpu));
        let how = (&self.clock, self.promised.looks());
        let demands = || demands(&self.servers, None, (at, allowed), how);
        let lent = self.lent(at, allowed);
        self.promised.room(&Asked { lent: &lent, demands: &demands, ..asked })
    }

    fn reserved(&self, cpu: CpuId) -> Option<CpuShare> {
        Some(reserved(&self.servers, cpu))
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        let server = &self.servers[vcpu];
        let parts = server.in_parts.as_ref().map(|in_parts| ("split", in_parts.shown()));
        let rows = alloc::vec![
            ("cpu", server.cpu.to_string()),
            ("remaining", server.remaining.to_string()),
            ("deadline", distance(Time::START, server.deadline)),
            ("debt", server.debt.to_string()),
            ("spare used", server.spare_used.to_string()),
        ];
        let lent = server.by_use.is_some().then(|| ("lent", server.loan().to_string()));
        rows.into_iter().chain(parts).chain(lent).collect()
    }
}

impl Edf {
    fn new(values: &Values, topology: &Topology) -> Edf {
        let capacity = CpuShare::ONE.less(values.share(&RESERVE));
        let packing = match values.choice(&PLACE) {
            "pack" => Packing::Pack,
            "split" => Packing::Split,
            _ => Packing::Spread,
        };
        Edf {
            promised: Bookings::new(topology, Some(capacity), packing),
            quantum: values.span(&QUANTUM),
            deadlines: Queues::new(2 * topology.cpus()),
            spare: Queues::new(topology.cpus()),
            spare_floor: alloc::vec![Span::ZERO; topology.cpus()],
            spare_time: alloc::vec![
                SpareTime { rests: 0, share: CpuShare::ONE };
                topology.cpus()
            ],
            servers: Roster::default(),
            families: Families::default(),
            loans: Loans::new(topology.cpus()),
            clock: GridClock::default(),
            begins_at_wake: begins_at_wake(values) && packing != Packing::Split,
        }
    }

    /// Periods with a phase stay on the grid, and siblings lend what is left of a period.
    fn begins_at_wake(&self, share: &Values) -> bool {
        self.begins_at_wake && share.maybe_span(&PHASE).is_none() && !is_by_use(share)
    }

    /// Charges what a vCPU used when it was owed nothing.
    #[inline(never)]
    fn charge_beyond(&mut self, now: Time, vcpu: VcpuId, beyond: Span) {
        let server = &mut self.servers[vcpu];
        let made_up = beyond.min(server.backlog);
        server.backlog -= made_up;
        let more = beyond - made_up;
        let cpu = server.cpu.index();
        if server.exact {
            server.overrun(more, now, self.spare_time[cpu]);
        } else {
            server.spare_used += more;
        }
        if self.spare.queue_of(vcpu).is_some() {
            self.enqueue(vcpu);
            if let Some((Turn::Unclaimed(least), _)) = self.spare.first(cpu) {
                self.spare_floor[cpu] = self.spare_floor[cpu].max(least);
            }
        } else {
            // Who is exact and has all that it was owed: whom did it keep waiting?
            self.note_rest(self.servers[vcpu].cpu);
        }
    }

    #[inline]
    fn due(&self, vcpu: VcpuId) -> Pick {
        Pick::Run { vcpu, limit: Some(self.servers[vcpu].limit()), entitlement: Entitlement::Due }
    }

    /// Who has the CPU if the first of those who are owed something cannot run, or there is none.
    #[inline(never)]
    fn pick_other(&self, at: &Moment, cpu: CpuId) -> Pick {
        let is_eligible = |vcpu| at.is_eligible(vcpu, cpu);
        if let Some((_, vcpu)) = self.deadlines.first_that(owed(cpu), is_eligible) {
            return self.due(vcpu);
        }
        let Some((_, vcpu)) = self.spare.first_that(cpu.index(), is_eligible) else {
            return Pick::Idle;
        };
        let backlog = self.servers[vcpu].backlog;
        if backlog.is_zero() {
            Pick::Run { vcpu, limit: Some(self.quantum), entitlement: Entitlement::Spare }
        } else {
            Pick::Run {
                vcpu,
                limit: Some(backlog.min(self.quantum)),
                entitlement: Entitlement::Arrears,
            }
        }
    }

    /// Moves an awake vCPU to where it belongs now.
    #[inline(never)] // A charge mostly moves nobody.
    fn enqueue(&mut self, vcpu: VcpuId) {
        self.dequeue(vcpu);
        self.insert(vcpu);
    }

    #[inline(always)]
    fn insert(&mut self, vcpu: VcpuId) {
        let server = &self.servers[vcpu];
        let is_served = server.remaining.is_zero();
        let queue = if is_served { served(server.cpu) } else { owed(server.cpu) };
        let due_by = if is_served { server.deadline } else { server.due_by() };
        self.deadlines.insert(queue, due_by, vcpu);
        if !is_served {
            return;
        }
        self.note_rest(server.cpu);
        let server = &self.servers[vcpu];
        if !server.backlog.is_zero() {
            self.spare.insert(server.cpu.index(), Turn::Late(server.deadline), vcpu);
        } else if !server.exact {
            self.spare.insert(server.cpu.index(), Turn::Unclaimed(server.spare_used), vcpu);
        }
    }

    /// Charges who is split what it used of its slice.
    #[inline(never)]
    fn charge_part(&mut self, at: &Moment, vcpu: VcpuId, due: Span) -> CpuSet {
        let (server, is_awake) = (&mut self.servers[vcpu], at.is_awake(vcpu));
        let before = server.cpu;
        // Where its period is over and that has not rung yet it stays until it has.
        if server.deadline > at.now() {
            server.go_on(due);
            server.catch_up(at.now());
        }
        if server.remaining.is_zero() && server.cpu == before && is_awake {
            self.enqueue(vcpu);
        }
        self.follow(vcpu, before, is_awake)
    }

    /// If nobody is owed anything on a CPU, nobody can become late any more by what was overrun
    /// there before.
    #[inline(always)]
    fn note_rest(&mut self, cpu: CpuId) {
        if self.deadlines.is_empty(owed(cpu)) {
            let spare_time = &mut self.spare_time[cpu.index()];
            spare_time.rests = spare_time.rests.wrapping_add(1);
        }
    }

    #[inline(always)]
    fn dequeue(&mut self, vcpu: VcpuId) {
        self.deadlines.remove(vcpu);
        self.spare.remove(vcpu);
    }
}

/// The queue of those who are awake and owed something before their deadline.
fn owed(cpu: CpuId) -> usize {
    2 * cpu.index()
}

/// The queue of those who are awake and wait for their next period.
fn served(cpu: CpuId) -> usize {
    2 * cpu.index() + 1
}
