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
//! Departs from [VSched]: sleeping in the middle of a period cannot hurt others. Waking with all of
//! a slice left and little of the period would demand more than slice/period until the deadline,
//! and somebody else would miss. Two amounts are harmless: what would be left had it run while it
//! slept, and `slice/period` of what remains of the period. It keeps the larger, so short blocks
//! cost no more than they last.

mod coming;
mod debt;
mod stops;

#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, CpuShare, GridClock, Periods, Reservation};
use slackline_units::{ReservationError, Span, Time, VcpuId};

use self::coming::Coming;
use self::stops::Stops;
use crate::admission::{Asked, Bookings, Tenant};
use crate::field::{distance, slice_of};
use crate::placement::Packing;
use crate::queue::Queues;
use crate::{
    Account, AdmitError, Entitlement, Field, Moment, Pick, Policy, Promise, Roster, Spec, Topology,
    Values,
};

const RESERVE: Field =
    Field::share("reserve", "0.05cpu", CpuShare::ONE, "what each CPU keeps for everybody else");
const PLACE: Field = Field::choice(
    "place",
    &["spread", "pack"],
    "which CPU takes a vCPU: the one with most room left, or the first with enough",
);
const QUANTUM: Field =
    Field::positive_span("quantum", "10ms", "how long a turn of unclaimed time lasts");

const SLICE: Field = Field::required_span("slice", "CPU time owed in each period");
const PERIOD: Field = Field::required_span("period", "how often the slice is owed");
const EXACT: Field =
    Field::flag("exact", "never more than the slice, even if nobody else wants it");
const OVERRUN: Field = Field::choice(
    "overrun",
    &["forgive", "repay"],
    "what stops are late by: forgiven where a later slice would be short, or repaid by those",
);

const PHASE: Field =
    Field::maybe_span("phase", "begin periods at whole periods of the clock and this much later");

/// What people meet.
pub(crate) const SPEC: Spec = Spec {
    name: "edf",
    summary: "a slice in every period, earliest deadline first (VSched)",
    page: "Every vCPU is owed a slice of CPU time in each period: slice = \"2ms\",
period = \"10ms\" is a fifth of a CPU, delivered every ten milliseconds. Of the vCPUs
that are awake and still owed something, the one whose period ends first runs. The
share is slice/period; the period decides how long a vCPU may have to wait for it:
choose it by what the guest does (a few ms for sound and games, seconds for batch).

Admission: each vCPU is bound to one CPU, and the sum of slice/period on it may not exceed
one CPU less the reserve. Inside that bound every deadline is met; beyond it the vCPU is
refused, with both numbers.

Beyond the slice: a work-conserving vCPU (the default) shares what nobody is owed; with
exact = true it stops until its next period. What a vCPU overran in a turn that was its
due is debt. What it overruns every time is taken from its next slice, which then ends
where it should; what it overran once is paid by unclaimed time, and by its next slices
only where there was none. Timers are never quite steady: so an exact vCPU has whole slices,
and more than its share by what its stops are later on the average than at the least: 10 to
40us a period in a virtual machine, 2us where timers are good. With overrun = \"repay\" it
is the other way round: the share is exact over time, and slices are short by what stops
vary by; so ALERT limits by it.
What it was not given by its deadline comes first when there is unclaimed time.

Sleeping in mid-period saves nothing up beyond slice/period of what is left of it.

Changing terms: the new ones begin a period at once, and are worth nothing by themselves.
What was used of the old slice beyond the part of the period that has passed is taken
from the first new slices; so it is for who leaves and comes back. What a share gives up
stays promised until it has earned what was had in advance, at most until its period
ends, if somebody waits there for its due: nobody else misses a deadline for a change.

Phase: with phase = \"3ms\" periods begin 3 ms after whole periods of the host's time, which a
live host counts from its start. Those of several vCPUs then begin at once, whenever each of
them came, as a parallel program wants it. The first period ends on the grid and is worth its
part of a slice, so a phase gains nothing and costs nothing.",
    policy_fields: &[RESERVE, PLACE, QUANTUM],
    share_fields: &[SLICE, PERIOD, EXACT, OVERRUN, PHASE],
    promise,
    keeps: |_, _| true,
    limit: Some(|share, period| {
        let mut terms = slice_of(share, period);
        terms.push(("exact", "true".into()));
        terms.push(("overrun", "\"repay\"".into()));
        terms
    }),
    build: |values, topology| Box::new(Edf::new(values, topology)),
};

fn promise(share: &Values) -> Result<Option<Promise>, ReservationError> {
    let Periods { reservation, phase } = periods(share)?;
    Ok(Some(Promise { reservation, exact: share.flag(&EXACT), phase }))
}

fn periods(share: &Values) -> Result<Periods, ReservationError> {
    let reservation = Reservation::new(share.span(&SLICE), share.span(&PERIOD))?;
    Ok(Periods { reservation, phase: share.maybe_span(&PHASE) })
}

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
    /// By which phases are told.
    clock: GridClock,
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
    /// Whether its slices pay for all that its stops are late by.
    repays: bool,
    cpu: CpuId,
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
}

impl Policy for Edf {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        let periods = periods(share)?;
        let (cpu, advance) = self.promised.add(vcpu, &self.asked(at, vcpu, periods.reservation))?;
        self.note_promises(at, cpu);
        let deadline = periods.first_end(at.now(), &self.clock);
        let slice = periods.worth(at.now(), deadline);
        let in_advance = advance.min(slice);
        let server = Server {
            periods,
            exact: share.flag(&EXACT),
            repays: share.choice(&OVERRUN) == "repay",
            cpu,
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
        };
        self.servers.insert(vcpu, server);
        Ok(())
    }

    /// A new share starts a new period at once: that is how it takes effect within a decision.
    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        let periods = periods(share)?;
        let tenant = self.servers[vcpu].tenant(vcpu, at.now());
        let home = tenant.cpu;
        let cpu = self.promised.replace(tenant, &self.asked(at, vcpu, periods.reservation))?;
        self.dequeue(vcpu);
        self.note_promises(at, home);
        self.note_promises(at, cpu);
        let server = &mut self.servers[vcpu];
        server.advance = tenant.advance;
        server.periods = periods;
        server.exact = share.flag(&EXACT);
        server.repays = share.choice(&OVERRUN) == "repay";
        server.cpu = cpu;
        let deadline = periods.first_end(at.now(), &self.clock);
        let slice = periods.worth(at.now(), deadline);
        server.begin((slice, deadline), at.now(), self.spare_time[home.index()]);
        server.backlog = Span::ZERO;
        if at.is_awake(vcpu) {
            self.enqueue(vcpu);
        }
        Ok([home, cpu].into_iter().collect())
    }

    fn leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.dequeue(vcpu);
        let server = self.servers.remove(vcpu).expect("a vCPU that has joined");
        self.promised.remove(at.now(), server.tenant(vcpu, at.now()));
        self.note_promises(at, server.cpu);
        CpuSet::NONE
    }

    fn wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let server = &mut self.servers[vcpu];
        let cpu = server.cpu;
        server.wake(at.now(), self.spare_time[cpu.index()], &self.clock);
        server.spare_used = server.spare_used.max(self.spare_floor[cpu.index()]);
        self.insert(vcpu);
        CpuSet::one(cpu)
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        let server = &mut self.servers[vcpu];
        let due = ran.min(server.remaining);
        let beyond = ran - due;
        if !due.is_zero() {
            server.remaining -= due;
            // Overrunning a turn that was due is debt; time taken while nobody was owed is not.
            if server.exact || at.cpu_of(vcpu).is_some() {
                server.overrun(beyond, at.now(), self.spare_time[server.cpu.index()]);
            } else {
                server.spare_used += beyond;
            }
            if server.remaining.is_zero() && at.is_awake(vcpu) {
                self.enqueue(vcpu);
            }
        } else if !beyond.is_zero() {
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
        CpuSet::NONE
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        match self.deadlines.first(owed(cpu)) {
            Some((_, vcpu)) if at.is_eligible(vcpu, cpu) => self.due(vcpu),
            None if self.spare.is_empty(cpu.index()) => Pick::Idle,
            _ => self.pick_other(at, cpu),
        }
    }

    fn alarm(&self, cpu: CpuId) -> Option<Time> {
        let first = |queue| self.deadlines.first(queue).map(|(deadline, _)| deadline);
        match (first(owed(cpu)), first(served(cpu))) {
            (Some(owed), Some(served)) => Some(owed.min(served)),
            (owed, served) => owed.or(served),
        }
    }

    fn ring(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        for queue in [owed(cpu), served(cpu)] {
            while let Some((deadline, vcpu)) = self.deadlines.first(queue) {
                if deadline > at.now() {
                    break;
                }
                let spare_time = self.spare_time[cpu.index()];
                self.servers[vcpu].begin_period(at.now(), spare_time, &self.clock);
                self.enqueue(vcpu);
            }
        }
        CpuSet::one(cpu)
    }

    fn set_clock(&mut self, at: &Moment, ahead: Span) {
        self.clock.set(at.now(), ahead);
    }

    fn room(&self, at: &Moment, period: Span, allowed: CpuSet) -> Option<Span> {
        self.promised.room(at.now(), period, (allowed, self.resting(at, allowed)))
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        let server = &self.servers[vcpu];
        alloc::vec![
            ("cpu", server.cpu.to_string()),
            ("remaining", server.remaining.to_string()),
            ("deadline", distance(Time::START, server.deadline)),
            ("debt", server.debt.to_string()),
            ("spare used", server.spare_used.to_string()),
        ]
    }
}

impl Edf {
    fn new(values: &Values, topology: &Topology) -> Edf {
        let capacity = CpuShare::ONE.less(values.share(&RESERVE));
        let pack = values.choice(&PLACE) == "pack";
        let packing = if pack { Packing::Pack } else { Packing::Spread };
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
            clock: GridClock::default(),
        }
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
        Pick::Run { vcpu, limit: Some(self.servers[vcpu].remaining), entitlement: Entitlement::Due }
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
        self.deadlines.insert(queue, server.deadline, vcpu);
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

    fn asked(&self, at: &Moment, vcpu: VcpuId, share: Reservation) -> Asked {
        self.promised.asked(at, vcpu, share, |cpu| self.rests(at.now(), cpu))
    }

    fn resting(&self, at: &Moment, cpus: CpuSet) -> CpuSet {
        self.promised.resting(cpus, |cpu| self.rests(at.now(), cpu))
    }

    /// Whether nobody is owed anything on a CPU. Who sleeps may claim when it wakes that it would
    /// have run meanwhile.
    fn rests(&self, now: Time, cpu: CpuId) -> bool {
        let claims = |server: &Server| server.cpu == cpu && server.claims_to_run(now, &self.clock);
        self.deadlines.is_empty(owed(cpu)) && !self.servers.iter().any(claims)
    }

    /// What a CPU has promised may be another share of it.
    fn note_promises(&mut self, at: &Moment, cpu: CpuId) {
        let resting = self.resting(at, CpuSet::one(cpu));
        resting.iter().for_each(|cpu| self.promised.rest(cpu));
        self.spare_time[cpu.index()].share = self.promised.left(cpu);
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

impl Server {
    /// It is bound to a CPU, and has had something in advance if it has used more of its slice than
    /// of its period: what its share of the rest comes to is more than what it is still owed.
    fn tenant(&self, vcpu: VcpuId, now: Time) -> Tenant {
        let share = self.periods.reservation;
        // A period that is longer than the others is worth no more than they.
        let rest = self.deadline.since(now).min(share.period());
        // Nor is one that has been cut worth more than it was, rounded up as the rest of it is.
        let to_come = share.over_rounded_up(rest).min(self.worth);
        let advance = to_come.left_after(self.remaining) + self.advance;
        Tenant { vcpu, cpu: self.cpu, share, advance }
    }

    /// Whether it sleeps, and would run now if it did not and had not slept in this period.
    fn claims_to_run(&self, now: Time, clock: &GridClock) -> bool {
        if self.asleep_since == Time::NEVER {
            return false;
        }
        if now < self.deadline {
            return now.since(self.asleep_since) < self.remaining;
        }
        let Coming { begins, slice, .. } = self.coming(now, clock);
        now.since(begins) < slice
    }

    /// Moves on to the period that contains `now`.
    #[inline(always)]
    fn begin_period(&mut self, now: Time, spare_time: SpareTime, clock: &GridClock) {
        let Coming { unused, slice, deadline, .. } = self.coming(now, clock);
        if self.slept {
            // Whole periods that went by asleep pay debt off: their slices were not used.
            self.debt = self.debt.left_after(unused);
            self.advance = self.advance.left_after(unused);
        } else {
            self.backlog += self.remaining + unused;
        }
        self.begin((slice, deadline), now, spare_time);
    }

    /// A period that is worth so much begins.
    #[inline(always)]
    fn begin(&mut self, (slice, deadline): (Span, Time), now: Time, spare_time: SpareTime) {
        self.deadline = deadline;
        self.worth = slice;
        self.remaining = slice - self.pay(slice, now, spare_time);
        self.slept = self.asleep_since != Time::NEVER;
    }

    /// Awake again: keeps the larger of the two amounts that cannot hurt others (see the top).
    fn wake(&mut self, now: Time, spare_time: SpareTime, clock: &GridClock) {
        let mut since = core::mem::replace(&mut self.asleep_since, Time::NEVER).min(now);
        if now >= self.deadline {
            since = since.max(self.coming(now, clock).begins);
            self.begin_period(now, spare_time, clock);
        }
        if now == since {
            return;
        }
        let as_if_it_ran = self.remaining.left_after(now.since(since));
        let in_proportion = self.periods.reservation.over(self.deadline.since(now));
        self.slept = true;
        self.remaining = as_if_it_ran.max(self.remaining.min(in_proportion));
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
