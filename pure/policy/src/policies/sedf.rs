//! Simple earliest deadline first, the scheduler of Xen 3.0: a slice in every period, and slack for
//! vCPUs that may use more.
//! Sources: Diestelhorst, Scheduling Operating-Systems, 2007, cited as [Diestelhorst]; and the
//! behaviour of Xen's source trees of 2005 and 2006, cited as [Xen 3.0]. Section numbers after
//! [Xen 3.0] refer to our reference on SEDF, a set of notes and test cases that is not in this
//! repository.
//!
//! A runnable vCPU is in the *ready* queue of its CPU while it has budget left, ordered by the end
//! of its period. Otherwise it is in the *waiting* queue, ordered by the start of its next period.
//! A vCPU with a weight has a *slice by weight*: its part of the time that fixed slices leave in
//! each 100 ms. The head of the ready queue runs on its guarantee. If that queue is empty there is
//! slack, which is divided in quanta. Slack goes first to the vCPUs in the *penalty* queue, which
//! lost some of a slice by blocking. The vCPUs in the *extra* queue follow, by weight. A vCPU is
//! bound to one CPU at admission, and CPUs do not interact. A balancer may migrate vCPUs that only
//! use slack. With `place = "split"`, a vCPU that fits on no single CPU runs its subtasks one after
//! the other, each on one CPU (`split`).
//!
//! Like the original this scheduler works in passes, which events request. A pass settles the
//! timeslice that has ended, moves vCPUs whose periods begin or end, and decides which vCPU runs
//! until when. `pick` returns that decision until the next pass.
//!
//! After every call, a runnable vCPU with periods is in exactly one of the ready and the waiting
//! queue, also while it runs. Each pass of a CPU sets the timer of the CPU to the time at which the
//! first waiting vCPU begins its next period.
//!
//! Departs from its source: vCPUs that wake start from a base score of their queue for slack. Xen
//! instead deducts that score from the scores of all vCPUs. A slice by weight that would be
//! negative in Xen is one nanosecond. The CPU time of a timeslice is measured. Times of more than
//! two seconds are not truncated. A change of parameters does not pause the vCPU. Under `best`,
//! best-effort vCPUs have no periods, since no decision depends on these.

mod admission;
mod balancer;
mod page;
mod pass;
#[cfg(test)]
mod pictures;
mod rules;
mod score;
mod server;
mod split;
mod terms;
#[cfg(test)]
mod tests;
mod weights;

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Reservation, Span, Time, VcpuId};

use crate::admission::bookings::DispatchOverhead;
use crate::admission::placement::Packing;
use crate::admission::split::Splits;
use crate::admission::zero_lag::{Booking, Holds, ReservationBooks};
use crate::api::field::{distance, slice_of};
use crate::queues::ordered::Queues;
use crate::{
    Account, AdmitError, Entitlement, Moment, Pick, Policy, Roster, Spec, TimesliceEnd, Topology,
    Values,
};
use admission::AdmittedReservation;
use balancer::Balancer;
use pass::{BudgetSource, PassDecision};
use rules::{SedfRules, Unblocking};
use score::Score;
use server::{SedfServer, WakeContext};
use split::SplitState;
use terms::{CpuTally, SedfParameters};
use weights::ReleasedSlices;

/// Description of the policy `sedf`.
pub(crate) const SPEC: Spec = Spec {
    name: "sedf",
    summary: "a slice in every period, and slack by weight (Xen 3.0)",
    page: page::PAGE,
    policy_fields: rules::FIELDS,
    share_fields: terms::FIELDS,
    conflict: rules::conflict,
    promise: terms::promise,
    keeps: |values, _| SedfRules::read(values).keep_promises(),
    limit: Some(|share, period| {
        let mut terms = slice_of(share, period);
        terms.push(("extra", "false".into()));
        terms
    }),
    together: None,
    payer: Some(balancer::service_vcpu::payer),
    build: |values, topology| Box::new(Sedf::new(values, topology)),
};

struct Sedf {
    rules: SedfRules,
    cpus: Vec<SedfCpu>,
    looks: DispatchOverhead,
    /// Two queues per CPU: ready vCPUs by the end of their period, and waiting vCPUs by the start
    /// of their next period. Of vCPUs with equal times, the first to enter comes first.
    deadlines: Queues<(Time, u64)>,
    /// One queue per CPU: vCPUs that get slack as compensation for lost or missed budget.
    penalties: Queues<(Score, u64)>,
    /// One queue per CPU: vCPUs that may use slack by weight, in order of score.
    extras: Queues<(Score, u64)>,
    /// Number of entries into any queue so far. Of two vCPUs with equal keys, the vCPU with the
    /// lower ticket comes first.
    tickets: u64,
    servers: Roster<SedfServer>,
    holds: Holds<CpuId>,
    /// Slices that vCPUs with a `weight` gave up and that are not free yet.
    leavings: ReleasedSlices,
    /// Split reservations. `None` if the policy never splits a vCPU.
    parting: Option<Box<SplitState>>,
    balancer: Option<Box<Balancer>>,
}

/// State of one CPU: the last decision, the timer, and the sums of reservations and weights.
#[derive(Debug, Default)]
struct SedfCpu {
    /// Decision of the last scheduling pass. `None` if the CPU is idle.
    turn: Option<PassDecision>,
    /// True if the last pass left the CPU idle although a vCPU could use slack.
    waits: bool,
    /// True if a scheduling pass is requested.
    is_requested: bool,
    alarm: Option<Time>,
    /// Base score of the queue for slack, from which vCPUs that wake start.
    base: Score,
    tally: CpuTally,
}

impl ReservationBooks for Vec<SedfCpu> {
    type Place = CpuId;

    fn add(&mut self, cpu: CpuId, slice: Reservation) {
        self[cpu.index()].tally.book(slice);
    }

    fn remove(&mut self, cpu: CpuId, slice: Reservation) {
        self[cpu.index()].tally.unbook(slice);
    }

    fn takes_more(&self, one: Reservation, other: Reservation) -> bool {
        self[0].tally.takes_more(one, other)
    }
}

/// Returns CPU and slice of a whole reservation. `None` if the vCPU is split or reserves nothing.
fn booking(server: &SedfServer) -> Option<Booking<CpuId>> {
    let slice = server.terms.reservation().ok().flatten();
    slice.filter(|_| server.in_parts.is_none()).map(|slice| (server.cpu, slice))
}

impl Policy for Sedf {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        let terms = SedfParameters::read(share, &self.rules)?;
        let AdmittedReservation { parts, cpu, advance, .. } =
            self.promise(at, vcpu, None, &terms)?;
        let mut server = SedfServer::new(cpu, terms, at.now());
        server.set_parts(parts);
        self.cpus[cpu.index()].tally.add(&terms, server.taken);
        if self.rules.begins_at_once && self.rules.unblocking == Unblocking::Proportional {
            server.restart(at.now(), advance);
        }
        self.servers.insert(vcpu, server);
        self.set_slices(at, cpu);
        self.set_slice(at, vcpu);
        if !advance.is_zero() {
            self.end_slice(vcpu);
        }
        self.balancer_joins(at, vcpu);
        Ok(())
    }

    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        let terms = SedfParameters::read(share, &self.rules)?;
        let SedfServer { cpu: old, terms: before, taken, by_weight, .. } = self.servers[vcpu];
        let home = self.servers[vcpu].home();
        self.cpus[home.index()].tally.remove(&before, taken);
        let had = self.advance(at.now(), vcpu);
        // A deduction for a slice that was not reserved must not shorten the new reservation.
        let is_kept = before.weight == 0 || terms.slice.is_zero();
        let owed = if is_kept { had } else { Span::ZERO };
        let AdmittedReservation { parts, cpu, advance, waits } =
            self.promise(at, vcpu, Some((old, owed)), &terms).inspect_err(|_| {
                self.cpus[home.index()].tally.add(&before, taken);
            })?;
        // By Xen's rules, a slice given up for an extra weight stays in the books.
        let is_stale = self.rules.counts_old && terms.extra_weight > 0 && terms.slice.is_zero();
        let taken = if is_stale { taken } else { terms.taken() };
        self.cpus[cpu.index()].tally.add(&terms, taken);
        self.stop(at, vcpu);
        self.leave_queues(vcpu);
        let keeps_period = self.rules.unblocking != Unblocking::Proportional;
        let server = &mut self.servers[vcpu];
        server.cpu = cpu;
        server.set_parts(parts);
        server.taken = taken;
        server.terms = terms;
        server.period = terms.period;
        server.by_weight = Span::ZERO;
        if !keeps_period || (server.deadline == Time::NEVER && at.is_awake(vcpu)) {
            // A vCPU that has to wait counts as having used its first slice.
            let had = if waits { advance.max(terms.slice) } else { advance };
            server.restart(at.now(), had);
            self.set_slice(at, vcpu);
            if !had.is_zero() {
                self.end_slice(vcpu);
            }
        }
        let stays = if cpu == old { self.servers[vcpu].by_weight } else { Span::ZERO };
        self.give_up(at.now(), (old, by_weight), stays, had);
        self.note_rests(at, [old, cpu].into_iter().collect());
        self.set_slices(at, old);
        self.set_slices(at, cpu);
        if at.is_awake(vcpu) {
            self.join_queues(at.now(), vcpu);
        }
        let mut cpus: CpuSet = [old, cpu].into_iter().collect();
        cpus.iter().for_each(|cpu| self.request(cpu));
        if before.balances != terms.balances {
            cpus.add(&self.payers_changed(at.now()));
        }
        cpus.add(&self.take_asked());
        Ok(cpus)
    }

    fn on_leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let mut cpus = self.balancer_loses(at.now(), vcpu);
        self.leave_queues(vcpu);
        let advance = self.advance(at.now(), vcpu);
        let server = self.servers.remove(vcpu).expect("a joined vCPU has a server");
        self.give_back(at.now(), vcpu, &server, advance);
        self.give_up(at.now(), (server.cpu, server.by_weight), Span::ZERO, advance);
        self.note_rests(at, CpuSet::one(server.cpu));
        self.cpus[server.home().index()].tally.remove(&server.terms, server.taken);
        self.set_slices(at, server.cpu);
        let cpu = &mut self.cpus[server.cpu.index()];
        if cpu.turn.is_some_and(|turn| turn.vcpu == vcpu) {
            cpu.turn = None;
            self.request(server.cpu);
        }
        // The CPU where a split vCPU was to run next can differ from the CPU where it ran last.
        cpus.extend(server.in_parts.is_some().then_some(server.cpu));
        cpus
    }

    fn on_wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        self.balancer_wakes(at, vcpu);
        let server = &self.servers[vcpu];
        if server.deadline == Time::NEVER || server.deadline <= at.now() {
            self.set_slice(at, vcpu);
        }
        let full = self.full_slice(vcpu);
        let rules = self.rules;
        let has_periods = self.has_periods(vcpu);
        let is_strict = self.is_strict(at, self.servers[vcpu].cpu);
        if has_periods {
            self.servers[vcpu].wake(WakeContext { now: at.now(), full, is_strict }, &rules);
            self.follow(vcpu);
        }
        let cpu = self.servers[vcpu].cpu;
        self.join_queues(at.now(), vcpu);
        if self.gives_way(at, cpu, vcpu) {
            self.request(cpu);
        }
        CpuSet::one(cpu)
    }

    fn on_start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let Some(cpu) = at.cpu_of(vcpu) else { return CpuSet::NONE };
        self.balancer_starts(at, cpu);
        // The decided vCPU was barred and another one was picked.
        if self.cpus[cpu.index()].turn.is_none_or(|turn| turn.vcpu != vcpu) {
            self.cpus[cpu.index()].turn = self.choose_again(at, cpu);
        }
        CpuSet::NONE
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        self.balancer_charges(at, vcpu, ran);
        let server = &mut self.servers[vcpu];
        let cpu = &mut self.cpus[server.cpu.index()];
        match &mut cpu.turn {
            Some(turn) if turn.vcpu == vcpu => turn.ran += ran,
            _ if server.terms.extra => {
                server.extra_time += ran;
                let cost = self.cost(vcpu, ran);
                self.spend(vcpu, cost, at.is_awake(vcpu));
            }
            _ => {
                let before = server.cpu;
                self.use_slice(at, vcpu, ran);
                if self.servers[vcpu].cpu != before {
                    self.ask(before);
                }
            }
        }
        self.take_asked()
    }

    fn on_timeslice_end(&mut self, _: &Moment, vcpu: VcpuId, _: TimesliceEnd) -> CpuSet {
        self.request(self.servers[vcpu].cpu);
        CpuSet::NONE
    }

    fn on_block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let mut cpus = self.balancer_blocks(at, vcpu);
        let SedfServer { cpu, ref in_parts, .. } = self.servers[vcpu];
        // The CPU where a split vCPU is to run next can differ from the CPU where it ran last.
        cpus.extend(in_parts.is_some().then_some(cpu));
        if !self.stop(at, vcpu) {
            self.sleep(at.now(), vcpu);
        }
        cpus.add(&self.take_asked());
        cpus
    }

    fn prepare_pick(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        if self.balancer.as_ref().is_some_and(|balancer| balancer.awaits(at, cpu)) {
            let this = &mut self.cpus[cpu.index()];
            this.waits |= this.turn.is_none();
        } else if core::mem::take(&mut self.cpus[cpu.index()].is_requested) {
            self.decide(at, cpu);
        }
        let mut cpus = self.balancer_passes(at, cpu);
        if self.parting.is_some() {
            cpus.add(&self.parts_pass(at, cpu));
        }
        cpus
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        let this = &self.cpus[cpu.index()];
        if this.turn.is_none() && this.waits {
            return Pick::Idle;
        }
        let decided = this.turn.filter(|turn| at.is_eligible(turn.vcpu, cpu));
        let Some(turn) = decided.or_else(|| self.choose_again(at, cpu)) else { return Pick::Idle };
        let limit = turn.until.since(at.now());
        let limit = (turn.until != Time::NEVER).then_some(limit);
        let is_due = match turn.right {
            BudgetSource::Guarantee => true,
            BudgetSource::Penalty => !self.servers[turn.vcpu].missed.is_zero(),
            BudgetSource::Extra => false,
        };
        let entitlement = if is_due { Entitlement::Due } else { Entitlement::Spare };
        Pick::Run { vcpu: turn.vcpu, limit, entitlement }
    }

    fn next_timer(&self, cpu: CpuId) -> Option<Time> {
        let own = self.cpus[cpu.index()].alarm;
        let called = self.balancer_alarm(cpu);
        own.into_iter().chain(called).min()
    }

    fn timer_charges(&self, at: &Moment, cpu: CpuId) -> CpuSet {
        let mut cpus = self.balancer_measures(at, cpu);
        cpus.insert(cpu);
        cpus
    }

    fn on_timer(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let called = self.balancer_rings(at, cpu);
        let this = &mut self.cpus[cpu.index()];
        if called.is_none() || this.alarm.is_some_and(|alarm| alarm <= at.now()) {
            this.alarm = None; // Until the next pass.
            self.request(cpu);
        }
        let mut cpus = called.unwrap_or(CpuSet::NONE);
        cpus.insert(cpu);
        cpus
    }

    fn available_slice(&self, at: &Moment, period: Span, allowed: CpuSet) -> Option<Span> {
        self.rules.admits_exactly.then(|| self.longest(at, period, allowed))
    }

    fn weighs_slack(&self) -> bool {
        self.rules.has_extra_queue()
    }

    fn account(&self, vcpu: VcpuId) -> Account {
        let server = &self.servers[vcpu];
        let slice = server.slice(self.full_slice(vcpu));
        let parts = server.in_parts.as_ref().map(|in_parts| ("split", in_parts.shown()));
        let rows = alloc::vec![
            ("cpu", server.cpu.to_string()),
            ("slice", slice.to_string()),
            ("period", server.period.to_string()),
            ("used", server.used.to_string()),
            ("deadline", distance(Time::START, server.deadline)),
            ("to make up", server.due_from_slack().to_string()),
            ("extra time", server.extra_time.to_string()),
            ("extra score", server.score.to_string()),
        ];
        rows.into_iter().chain(parts).collect()
    }
}

impl Sedf {
    fn new(values: &Values, topology: &Topology) -> Sedf {
        let looks = DispatchOverhead::on(topology);
        let cpu = |_| SedfCpu { tally: CpuTally::with(looks), ..SedfCpu::default() };
        let rules = SedfRules::read(values);
        let splits = (rules.packing == Packing::Split).then(|| Splits::new(rules.capacity, looks));
        Sedf {
            rules,
            cpus: (0..topology.cpus()).map(cpu).collect(),
            looks,
            deadlines: Queues::new(2 * topology.cpus()),
            penalties: Queues::new(topology.cpus()),
            extras: Queues::new(topology.cpus()),
            tickets: 0,
            servers: Roster::default(),
            holds: Holds::new(),
            leavings: ReleasedSlices::default(),
            parting: splits.map(SplitState::new),
            balancer: Balancer::read(values, topology),
        }
    }

    /// Returns the CPU time that a vCPU used in excess of the fluid rate, including its current
    /// timeslice.
    fn advance(&self, now: Time, vcpu: VcpuId) -> Span {
        let server = &self.servers[vcpu];
        let turn = self.cpus[server.cpu.index()].turn;
        let own = turn.filter(|turn| turn.vcpu == vcpu && turn.right == BudgetSource::Guarantee);
        server.advance(now, own.map_or(Span::ZERO, |turn| turn.ran), &self.rules)
    }

    /// Requests a scheduling pass on a CPU.
    fn request(&mut self, cpu: CpuId) {
        self.cpus[cpu.index()].is_requested = true;
    }

    /// Returns the slice of a vCPU for a period of the reserved length.
    fn full_slice(&self, vcpu: VcpuId) -> Span {
        let server = &self.servers[vcpu];
        match server.terms.weight {
            0 => server.terms.slice,
            _ if self.rules.keeps_slices() => server.by_weight,
            weight => self.cpus[server.cpu.index()].tally.slice_of(weight),
        }
    }

    /// Returns true if a vCPU is in the ready or the waiting queue while it is runnable.
    fn has_periods(&self, vcpu: VcpuId) -> bool {
        !self.rules.fills_gaps || !self.full_slice(vcpu).is_zero()
    }

    /// Ends the current timeslice of a vCPU, accounts for it, and requests a pass of the CPU.
    /// Returns false if the vCPU has no current timeslice.
    fn stop(&mut self, at: &Moment, vcpu: VcpuId) -> bool {
        let cpu = &mut self.cpus[self.servers[vcpu].cpu.index()];
        let turn = cpu.turn.take_if(|turn| turn.vcpu == vcpu);
        cpu.is_requested |= turn.is_some();
        turn.map(|turn| self.settle(at, turn)).is_some()
    }

    /// Returns true if the wake of `vcpu` can end the current timeslice of a CPU. [Xen 3.0, §6.6
    /// step 4]
    fn gives_way(&self, at: &Moment, cpu: CpuId, vcpu: VcpuId) -> bool {
        let this = &self.cpus[cpu.index()];
        let Some(turn) = this.turn.filter(|_| at.occupant(cpu).is_some()) else { return true };
        if self.has_periods(vcpu) && self.servers[vcpu].begin() < turn.until {
            return true;
        }
        let is_penalised = self.is_penalised(vcpu);
        match turn.right {
            BudgetSource::Guarantee => false,
            BudgetSource::Penalty => {
                let first = self.penalties.first(cpu.index());
                is_penalised && first.is_some_and(|(_, first)| first == vcpu)
            }
            BudgetSource::Extra => is_penalised,
        }
    }

    /// Returns true if slack must compensate a vCPU for lost or missed budget, so that the vCPU is
    /// in the penalty queue. Under `unblocking = "extra-support"`, such budget counts at a wake
    /// even if the value of `slack` has no penalty queue. [Xen 3.0, §15 item 9]
    fn is_penalised(&self, vcpu: VcpuId) -> bool {
        if self.rules.unblocking == Unblocking::ExtraSupport {
            !self.servers[vcpu].due_from_slack().is_zero()
        } else {
            self.penalties.queue_of(vcpu).is_some()
        }
    }
}
