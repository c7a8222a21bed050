//! Atropos: a slice in every period, a shorter first period after a long block for vCPUs with a
//! latency hint, and slack divided in turns. Source: the rules of Atropos in Xen 2.0 (originally of
//! Nemesis), as Diestelhorst's thesis of 2007 describes them, cited as [Diestelhorst §n].
//!
//! Each vCPU has a *natural* slice and period. Of the vCPUs with budget left the one with the
//! earliest deadline runs, and the deadline is the end of the current period [Diestelhorst §3.1.1].
//! A vCPU that wakes after its deadline (a *long block*) starts with a shorter period. Its length
//! is the vCPU's latency hint, and the slice is prorated. When that budget is exhausted or the
//! shorter period ends, the next period is twice as long, until the natural period ends. So the
//! vCPU runs soon after its wake, and demands at most its share in any interval
//! [Diestelhorst §3.2.3]. A vCPU that wakes before its deadline (a *short block*) is *unblocked*.
//! It gets the rest of its budget when no other vCPU has budget left, before any slack is used.
//! Slack is divided in turns among the vCPUs with the extra-time flag.
//!
//! Holds after every call:
//! - A runnable vCPU is in one of its CPU's queues: ready, unblocked, or waiting with its budget
//!   exhausted. A waiting vCPU with the extra-time flag takes part in the turns of slack.
//! - Natural periods follow each other from admission or the last change of parameters, even while
//!   the vCPU is blocked.
//! - CPU time beyond the budget, in a timeslice that ran on budget, is deducted from the next
//!   slices.
//!
//! A full CPU has no deadline misses for the following reason. By the end of each of its shorter
//! periods, a vCPU that woke demands at most slice/period of the time since the wake. It demands
//! nothing for the time before.
//!
//! Departs from Xen's Atropos:
//! - Natural periods do not move when a vCPU wakes, so that a reservation can be verified from
//!   outside.
//! - The next shorter period begins as soon as a budget is exhausted, not only when the period
//!   ends.
//! - A timeslice can be shorter than the quantum of slack.
//! - CPU time used beyond the budget is still deducted after a long block, so that blocking does
//!   not cancel the deduction.
//! - There is admission control.
//! - The faults for which Xen removed Atropos are not reproduced.

#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::string::ToString;

use slackline_units::{CpuId, CpuSet, CpuShare, Reservation, ReservationError, Span, Time, VcpuId};

use crate::admission::bookings::{AdmissionRequest, BookedPlacement, Bookings, Tenant};
use crate::admission::placement::Packing;
use crate::api::field::{distance, slice_of};
use crate::queues::ordered::Queues;
use crate::{
    Account, AdmitError, Entitlement, Field, Moment, Pick, Policy, Promise, Roster, Spec,
    TimesliceEnd, Topology, Values,
};

const ADMISSION: Field = Field::choice(
    "admission",
    &["exact", "off"],
    "refuse slices that do not fit, or accept everything as Xen did",
);
const RESERVE: Field =
    Field::share("reserve", "0.05cpu", CpuShare::ONE, "part of each CPU that is never reserved");
const QUANTUM: Field = Field::positive_span("quantum", "5ms", "length of a timeslice in slack");

const UNBLOCKING: Field = Field::choice(
    "unblocking",
    &["rest", "new-period"],
    "a vCPU that wakes keeps its period and the rest of its slice, or starts a new period",
);

const SLICE: Field = Field::required_span("slice", "CPU time of each vCPU in every period");
const PERIOD: Field =
    Field::required_span("period", "length of a period; the slice is due by its end");
const LATENCY: Field =
    Field::span("latency", "0s", "first period after a long block, at most `period`; 0s is none");
const EXTRA: Field =
    Field::flag("extra", "the vCPU may use slack; false makes the slice a hard limit");

/// Description of the policy `atropos`.
pub(crate) const SPEC: Spec = Spec {
    name: "atropos",
    summary: "a slice in every period, latency hints, slack round robin (Xen 2.0)",
    page: "\
Each vCPU has a slice in every period, and the vCPU with the nearest deadline
runs. A latency hint makes a vCPU run soon after a long block.

When to use it: for a VM that is mostly blocked and has to react soon when a
device wakes it. A VM that blocks and wakes within its period gains nothing from
a hint: take `edf` or `sedf`.

  policy = { name = \"atropos\" }
  [[domain]]
  name          = \"driver\"
  work          = { kind = \"interactive\", compute = \"500us\", sleep = \"50ms\" }
  share.atropos = { slice = \"4ms\", period = \"40ms\", latency = \"5ms\" }

{parameters}
Rules:
- Admission: each vCPU is bound to one CPU, where the sum of slice/period may
  not exceed 1 - `reserve`. With admission = \"off\" everything is accepted, as
  in Xen, and nothing is guaranteed.
- Latency hint: a vCPU that wakes after its deadline starts with a period as
  long as `latency` and a budget of slice x latency / period. Each following
  period is twice as long, until the natural (reserved) period ends. In the
  example the vCPU has 0.5 ms within 5 ms, then 1 ms within 10 ms. A hint does
  not change the share of the vCPU, so it makes no other vCPU late.
- Unblocked: a vCPU that wakes before its deadline keeps the rest of its slice.
  The vCPU runs after all vCPUs whose budget is guaranteed, and before slack is
  used.
- unblocking = \"new-period\": a vCPU that wakes with more budget than its share
  of the rest of its period starts a new period of natural length. So a vCPU
  that uses little never waits for its next period.
- The vCPUs with `extra` use slack in turns of one `quantum`. The slack is not
  deducted from their slices. Without `extra` the slice is a hard limit.
- An overrun is debt. The debt is deducted from the next slices.
- Changing parameters starts a new period at once and yields no extra CPU time:
  usage beyond slice x elapsed / period is deducted from the next slices. A vCPU
  that leaves and rejoins gains nothing either.
- Capacity that a vCPU gives up stays reserved until slice x elapsed / period
  has reached the CPU time that the vCPU used. The capacity is free at once if
  no other vCPU of the CPU has budget left or can wake with some.

Limits:
- Without a latency hint a vCPU may wait up to period - slice.
- A short latency hint causes more context switches.
- The rules of `atropos` are those of Atropos in Xen 2.0, without the faults of
  that version, and with admission control.

See also: `slackline help edf`, `sedf`.",
    policy_fields: &[ADMISSION, RESERVE, QUANTUM, UNBLOCKING],
    share_fields: &[SLICE, PERIOD, LATENCY, EXTRA],
    conflict: |_| None,
    promise,
    keeps: |values, _| values.choice(&ADMISSION) == "exact" && !begins_at_wake(values),
    limit: Some(slice_of),
    together: None,
    payer: None,
    build: |values, topology| Box::new(Atropos::new(values, topology)),
};

/// Returns true if the parameters let a new natural period begin whenever a vCPU wakes.
fn begins_at_wake(values: &Values) -> bool {
    values.choice(&UNBLOCKING) == "new-period"
}

fn promise(share: &Values) -> Result<Option<Promise>, ReservationError> {
    let terms = AtroposParameters::read(share)?;
    let exact = !terms.extra;
    Ok(Some(Promise {
        reservation: terms.natural,
        exact,
        bounded: exact,
        by_use: false,
        phase: None,
    }))
}

struct Atropos {
    promised: Bookings,
    quantum: Span,
    /// True if a new natural period begins whenever a vCPU wakes.
    begins_at_wake: bool,
    /// Three queues per CPU, by deadline: ready, unblocked and waiting vCPUs.
    deadlines: Queues<Time>,
    /// One queue per CPU: the waiting vCPUs that may use slack, lowest ticket first.
    rounds: Queues<u64>,
    next_ticket: u64,
    servers: Roster<AtroposServer>,
}

/// Parameters of a vCPU under the policy `atropos`.
#[derive(Clone, Copy)]
struct AtroposParameters {
    natural: Reservation,
    /// Length of the first period after a long block. At most the natural period.
    latency: Span,
    extra: bool,
}

/// Budget and time accounts of one vCPU.
struct AtroposServer {
    terms: AtroposParameters,
    cpu: CpuId,
    /// End of the natural period of the vCPU.
    period_end: Time,
    /// Start of the time for which the vCPU accrues budget in this natural period.
    from: Time,
    /// Length of the current period, which can be shorter than the natural period.
    period: Span,
    /// End of the current period.
    deadline: Time,
    /// Budget granted since the time in `from`.
    granted: Span,
    /// Part of `granted` that is not used yet.
    remaining: Span,
    /// Overrun to be deducted from the next budgets.
    debt: Span,
    /// Time at which the vCPU last blocked.
    asleep_since: Time,
    /// True if the vCPU blocked and woke within its current period. It then waits in the queue
    /// `Unblocked`, and uses the rest of its budget only when `Ready` is empty.
    is_unblocked: bool,
    /// Position of the vCPU in the queue for slack: of the vCPUs that may use slack, the one with
    /// the lowest ticket runs first.
    ticket: u64,
    /// CPU time that the vCPU has used of its current quantum of slack.
    slack_used: Span,
}

/// Kind of queue. Each CPU has one queue of each kind.
#[derive(Clone, Copy)]
enum AtroposQueue {
    /// Runnable vCPUs with budget left.
    Ready,
    /// Runnable vCPUs with budget left that woke before their deadlines. All vCPUs in `Ready`
    /// precede them.
    Unblocked,
    /// Runnable vCPUs whose budget is exhausted until their deadlines.
    Waiting,
}

impl Policy for Atropos {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        let terms = AtroposParameters::read(share)?;
        let asked = self.asked(at, vcpu, terms.natural);
        let BookedPlacement { cpu, advance, .. } = self.promised.add(vcpu, &asked)?;
        self.servers.insert(
            vcpu,
            AtroposServer { debt: advance, ..AtroposServer::new(terms, cpu, at.now()) },
        );
        Ok(())
    }

    /// Changes the parameters. A new natural period starts at once, so the parameters take effect
    /// with the next scheduling decision.
    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        let terms = AtroposParameters::read(share)?;
        let tenant = self.servers[vcpu].tenant(vcpu, at.now());
        let home = tenant.cpu;
        let asked = self.asked(at, vcpu, terms.natural);
        let cpu = self.promised.replace(tenant, &asked)?.cpu;
        self.dequeue(vcpu);
        self.note_rests(at, [home, cpu].into_iter().collect());
        let server = &mut self.servers[vcpu];
        *server = AtroposServer {
            debt: tenant.advance,
            asleep_since: server.asleep_since,
            ticket: server.ticket,
            slack_used: server.slack_used,
            ..AtroposServer::new(terms, cpu, at.now())
        };
        if at.is_awake(vcpu) {
            server.begin(at.now(), terms.natural.period());
            self.enqueue(vcpu);
        }
        Ok([home, cpu].into_iter().collect())
    }

    fn on_leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.dequeue(vcpu);
        let server = self.servers.remove(vcpu).expect("a joined vCPU has a server");
        self.promised.remove(at.now(), server.tenant(vcpu, at.now()), Span::ZERO);
        self.note_rests(at, CpuSet::one(server.cpu));
        CpuSet::NONE
    }

    fn on_wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let server = &mut self.servers[vcpu];
        if self.begins_at_wake {
            server.wake_anew(at.now());
        } else {
            server.wake(at.now());
        }
        let cpu = server.cpu;
        self.take_ticket(vcpu);
        self.enqueue(vcpu);
        CpuSet::one(cpu)
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        let server = &mut self.servers[vcpu];
        let before = server.deadline;
        let was_owed = !server.remaining.is_zero();
        let beyond = server.use_up(at.now(), ran);
        // Overrun of a timeslice on budget is debt. Time received otherwise is slack.
        if !server.terms.extra || (was_owed && at.cpu_of(vcpu).is_some()) {
            server.debt += beyond;
        } else {
            server.slack_used += beyond;
        }
        let moved = was_owed && (server.remaining.is_zero() || server.deadline != before);
        if server.slack_used >= self.quantum {
            self.take_ticket(vcpu);
        } else if !moved {
            return CpuSet::NONE;
        }
        if at.is_awake(vcpu) {
            self.enqueue(vcpu);
        }
        CpuSet::NONE
    }

    /// Handles the end of a timeslice. A vCPU that yields gives up its turn of slack. It keeps its
    /// budget, which is reserved for it anyway.
    fn on_timeslice_end(&mut self, _: &Moment, vcpu: VcpuId, why: TimesliceEnd) -> CpuSet {
        if why == TimesliceEnd::Yield && self.rounds.queue_of(vcpu).is_some() {
            self.take_ticket(vcpu);
            self.enqueue(vcpu);
        }
        CpuSet::NONE
    }

    fn on_block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.dequeue(vcpu);
        self.servers[vcpu].asleep_since = at.now();
        CpuSet::NONE
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        let eligible = |vcpu| at.is_eligible(vcpu, cpu);
        for queue in [AtroposQueue::Ready, AtroposQueue::Unblocked] {
            if let Some((_, vcpu)) = self.deadlines.first_that(queue.of(cpu), eligible) {
                let limit = Some(self.servers[vcpu].remaining);
                return Pick::Run { vcpu, limit, entitlement: Entitlement::Due };
            }
        }
        let Some((_, vcpu)) = self.rounds.first_that(cpu.index(), eligible) else {
            return Pick::Idle;
        };
        let limit = Some(self.quantum - self.servers[vcpu].slack_used);
        Pick::Run { vcpu, limit, entitlement: Entitlement::Spare }
    }

    fn next_timer(&self, cpu: CpuId) -> Option<Time> {
        let first = |queue: AtroposQueue| self.deadlines.first(queue.of(cpu));
        AtroposQueue::ALL.into_iter().filter_map(first).map(|(deadline, _)| deadline).min()
    }

    fn on_timer(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        for queue in AtroposQueue::ALL {
            while let Some((deadline, vcpu)) = self.deadlines.first(queue.of(cpu)) {
                if deadline > at.now() {
                    break;
                }
                self.servers[vcpu].pass_deadline(at.now());
                self.enqueue(vcpu);
            }
        }
        CpuSet::one(cpu)
    }

    fn available_slice(&self, at: &Moment, period: Span, allowed: CpuSet) -> Option<Span> {
        let least = Reservation::new(Span::from_ns(1), period).ok()?;
        let rests = |cpu| self.rests(at.now(), cpu);
        self.promised.room(&self.promised.asked(at, least, allowed, rests))
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        let server = &self.servers[vcpu];
        alloc::vec![
            ("cpu", server.cpu.to_string()),
            ("remaining", server.remaining.to_string()),
            ("deadline", distance(Time::START, server.deadline)),
            ("period", server.period.to_string()),
            ("debt", server.debt.to_string()),
            ("unblocked", server.is_unblocked.to_string()),
        ]
    }
}

impl Atropos {
    fn new(values: &Values, topology: &Topology) -> Atropos {
        let checks = values.choice(&ADMISSION) == "exact";
        let capacity = checks.then(|| CpuShare::ONE.less(values.share(&RESERVE)));
        Atropos {
            promised: Bookings::new(topology, capacity, Packing::Spread),
            quantum: values.span(&QUANTUM),
            begins_at_wake: begins_at_wake(values),
            deadlines: Queues::new(AtroposQueue::ALL.len() * topology.cpus()),
            rounds: Queues::new(topology.cpus()),
            next_ticket: 0,
            servers: Roster::default(),
        }
    }

    fn asked(&self, at: &Moment, vcpu: VcpuId, share: Reservation) -> AdmissionRequest<'static> {
        self.promised.asked(at, share, at.allowed(vcpu), |cpu| self.rests(at.now(), cpu))
    }

    fn resting(&self, at: &Moment, cpus: CpuSet) -> CpuSet {
        self.promised.resting(cpus, |cpu| self.rests(at.now(), cpu))
    }

    fn note_rests(&mut self, at: &Moment, cpus: CpuSet) {
        let resting = self.resting(at, cpus);
        resting.iter().for_each(|cpu| self.promised.rest(cpu));
    }

    /// Returns true if the CPU is quiescent: no vCPU on it is in `Ready`. A vCPU that wakes later
    /// does not enter `Ready` with old budget, unless it wakes at the instant at which it blocked.
    fn rests(&self, now: Time, cpu: CpuId) -> bool {
        let may_go_on = |server: &AtroposServer| server.cpu == cpu && server.asleep_since == now;
        self.deadlines.is_empty(AtroposQueue::Ready.of(cpu)) && !self.servers.iter().any(may_go_on)
    }

    /// Moves a vCPU behind all others that take turns in slack.
    fn take_ticket(&mut self, vcpu: VcpuId) {
        let server = &mut self.servers[vcpu];
        server.ticket = self.next_ticket;
        server.slack_used = Span::ZERO;
        self.next_ticket += 1;
    }

    /// Moves a runnable vCPU to the queues that match its budget.
    fn enqueue(&mut self, vcpu: VcpuId) {
        self.dequeue(vcpu);
        let server = &self.servers[vcpu];
        let queue = match (server.remaining.is_zero(), server.is_unblocked) {
            (true, _) => AtroposQueue::Waiting,
            (false, true) => AtroposQueue::Unblocked,
            (false, false) => AtroposQueue::Ready,
        };
        self.deadlines.insert(queue.of(server.cpu), server.deadline, vcpu);
        if server.remaining.is_zero() && server.terms.extra {
            self.rounds.insert(server.cpu.index(), server.ticket, vcpu);
        }
    }

    fn dequeue(&mut self, vcpu: VcpuId) {
        self.deadlines.remove(vcpu);
        self.rounds.remove(vcpu);
    }
}

impl AtroposQueue {
    const ALL: [AtroposQueue; 3] =
        [AtroposQueue::Ready, AtroposQueue::Unblocked, AtroposQueue::Waiting];

    fn of(self, cpu: CpuId) -> usize {
        AtroposQueue::ALL.len() * cpu.index() + self as usize
    }
}

impl AtroposParameters {
    fn read(share: &Values) -> Result<AtroposParameters, ReservationError> {
        let natural = Reservation::new(share.span(&SLICE), share.span(&PERIOD))?;
        let (latency, period) = (share.span(&LATENCY), natural.period());
        if latency > period {
            return Err(ReservationError::LatencyOverPeriod { latency, period });
        }
        let latency = if latency.is_zero() { period } else { latency };
        Ok(AtroposParameters { natural, latency, extra: share.flag(&EXTRA) })
    }
}

impl AtroposServer {
    /// Creates the account of a blocked vCPU whose natural period begins now.
    fn new(terms: AtroposParameters, cpu: CpuId, now: Time) -> AtroposServer {
        AtroposServer {
            terms,
            cpu,
            period_end: now.after(terms.natural.period()),
            from: now,
            period: terms.natural.period(),
            deadline: now,
            granted: Span::ZERO,
            remaining: Span::ZERO,
            debt: Span::ZERO,
            asleep_since: now,
            is_unblocked: false,
            ticket: 0,
            slack_used: Span::ZERO,
        }
    }

    /// Returns the reservation of the vCPU and its excess over the fluid rate. The excess is the
    /// debt plus the CPU time used beyond the vCPU's share of the natural period so far.
    fn tenant(&self, vcpu: VcpuId, now: Time) -> Tenant {
        let share = self.terms.natural;
        let earned = share.over(now.min(self.period_end).since(self.from));
        let unearned = (self.granted - self.remaining).left_after(earned);
        let is_over = now >= self.period_end;
        let advance = if is_over { self.debt } else { unearned + self.debt };
        Tenant { vcpu, cpu: self.cpu, share, advance }
    }

    fn wake(&mut self, now: Time) {
        if now >= self.deadline {
            let passed = self.pass_periods(now);
            // Unused budgets of skipped natural periods pay off debt.
            let unused = self.terms.natural.slice().ns().saturating_mul(passed);
            self.debt = self.debt.left_after(Span::from_ns(unused));
            self.begin(now, self.terms.latency);
        } else if now > self.asleep_since {
            self.is_unblocked = true;
        }
    }

    /// Handles a wake if natural periods begin at wakes. A vCPU that wakes before its deadline
    /// keeps its natural period if the unused part of its slice is at most its share of the rest of
    /// that period. Otherwise a natural period begins. The vCPU has used less than its share of the
    /// period that it gives up, so no other vCPU misses a deadline.
    fn wake_anew(&mut self, now: Time) {
        let used = self.granted - self.remaining;
        let rest = self.period_end.since(now.min(self.period_end));
        let left = self.terms.natural.slice().left_after(used);
        if now < self.deadline && left <= self.terms.natural.over(rest) {
            self.wake(now);
            return;
        }
        let passed = self.pass_periods(now);
        let unused = self.terms.natural.slice().ns().saturating_mul(passed);
        self.debt = self.debt.left_after(Span::from_ns(unused));
        self.period_end = now.after(self.terms.natural.period());
        self.begin(now, self.terms.latency);
    }

    /// Handles the deadline of a runnable vCPU. Budget left at the end of a natural period is lost.
    fn pass_deadline(&mut self, now: Time) {
        if now < self.period_end {
            self.next_period(now);
            return;
        }
        let (end, period) = (self.period_end, self.terms.natural.period());
        let passed = self.pass_periods(now);
        self.begin(end.after(period * passed), period);
    }

    /// Moves the end of the natural period beyond `now`. Returns the number of whole natural
    /// periods that were skipped.
    fn pass_periods(&mut self, now: Time) -> u64 {
        if now < self.period_end {
            return 0;
        }
        let period = self.terms.natural.period();
        let passed = now.since(self.period_end) / period;
        self.period_end = self.period_end.after(period * passed).after(period);
        passed
    }

    /// Makes the vCPU accrue budget from `from` on, in a first period of length `period`.
    fn begin(&mut self, from: Time, period: Span) {
        self.start_afresh(from);
        self.grant(period);
        self.next_period(from);
    }

    fn start_afresh(&mut self, from: Time) {
        self.from = from;
        self.deadline = from;
        self.granted = Span::ZERO;
        self.remaining = Span::ZERO;
        self.is_unblocked = false;
    }

    /// Begins periods that are each twice as long as the one before. Stops when the vCPU has budget
    /// and a deadline in the future, or when the natural period ends.
    fn next_period(&mut self, now: Time) {
        while self.deadline < self.period_end && (self.remaining.is_zero() || self.deadline <= now)
        {
            if self.is_unblocked {
                // Budget for the blocked time is lost. New budget accrues from this deadline on.
                self.start_afresh(self.deadline);
            }
            self.grant(Span::from_ns(self.period.ns().saturating_mul(2)));
        }
    }

    /// Begins a period of length `period`, which ends with the natural period at the latest. By the
    /// end of this period the vCPU is entitled to slice/period of the time since `from`, rounded
    /// down.
    fn grant(&mut self, period: Span) {
        self.period = period;
        self.deadline = self.deadline.after(period).min(self.period_end);
        let due = self.terms.natural.over(self.deadline.since(self.from));
        let more = due - core::mem::replace(&mut self.granted, due);
        let paid = self.debt.min(more);
        self.debt -= paid;
        self.remaining += more - paid;
    }

    /// Charges `ran` to the budget of the vCPU. Returns the part of `ran` beyond all budgets of
    /// this natural period.
    fn use_up(&mut self, now: Time, ran: Span) -> Span {
        let mut beyond = ran;
        while !beyond.is_zero() && !self.remaining.is_zero() {
            let due = beyond.min(self.remaining);
            self.remaining -= due;
            beyond -= due;
            if self.remaining.is_zero() {
                self.next_period(now);
            }
        }
        beyond
    }
}
