//! Best-effort vCPUs go from CPU to CPU: when that is decided, and how it is carried out. Whom it
//! concerns is decided in `balance`.
//!
//! Fifty milliseconds after the first vCPU has joined CPU 0 is rung, and so on; each second time
//! all CPUs are measured and a sample is taken, and each tenth time there is a run.
//! [Diestelhorst §4.4.3] On one CPU nothing of this is there. Where a vCPU pays for it (`payer`),
//! CPU 0 is rung once that has been done, and not before.
//!
//! Who is moved while it runs is still on its old CPU as the new one is asked, if that has the
//! lower number. So a CPU that is to get somebody decides nothing as long as that is so, and is
//! asked again once the other one has been.

mod planned_rates;
mod planning;
pub(super) mod service_vcpu;

use alloc::boxed::Box;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

use super::Sedf;
use super::balancer::planning::Planned;
use super::balancer::service_vcpu::Payers;
use super::pass::Right;
use super::terms::Cost;
use crate::balance::books::Books;
use crate::balance::fields::Settings;
use crate::balance::pairs::{self, Rules};
use crate::balance::{CALL, Load, Member, Move, RUN, SAMPLE, Weight, groups};
use crate::{Moment, Topology, Values};

/// Each second call takes a sample, each tenth one is a run. [Diestelhorst §4.4.3]
const CALLS_A_SAMPLE: u64 = SAMPLE.ns() / CALL.ns();
const CALLS_A_RUN: u64 = RUN.ns() / CALL.ns();

/// What the balancer keeps.
#[derive(Debug)]
pub(super) struct Balancer {
    rules: Rules,
    by_runs: bool,
    pub(super) books: Books,
    /// Where a plan is made, rather than swaps.
    pub(super) planned: Option<Planned>,
    /// By CPU: the threads of its core.
    cores: Vec<CpuSet>,
    /// When it is called next; none while nobody is there.
    next: Option<Time>,
    calls: u64,
    pub(super) payers: Payers,
    /// Who has been moved at this instant, until its old CPU has been asked.
    moving: Vec<Move>,
}

impl Balancer {
    /// Counts a call, and sets when the next one is: whole periods on, also if this one is late.
    fn count_call(&mut self, now: Time) -> u64 {
        self.skip(now);
        self.calls += 1;
        self.calls
    }

    /// The next call is to be later than now.
    pub(super) fn skip(&mut self, now: Time) {
        if let Some(next) = self.next.filter(|&next| next <= now) {
            let missed = now.since(next) / CALL;
            self.next = Some(next.after(CALL * (missed + 1)));
        }
        self.payers.paid = None;
    }

    /// None where there is nothing to balance.
    pub(super) fn read(values: &Values, topology: &Topology) -> Option<Box<Balancer>> {
        let Settings { rules, by_runs, plans, believed, keeps } = Settings::read(values)?;
        if topology.cpus() == 1 {
            return None;
        }
        let cores: Vec<CpuSet> =
            (0..topology.cpus()).map(|cpu| topology.core_of(CpuId::new(cpu))).collect();
        let siblings = |cpu: CpuId| cores[cpu.index()].without(&CpuSet::one(cpu));
        let books = Books::new(topology.cpus(), siblings, believed);
        let planned = plans.then(Planned::default);
        let (next, calls, moving) = (None, 0, Vec::new());
        let payers = Payers::new(keeps);
        let balancer =
            Balancer { rules, by_runs, books, planned, cores, next, calls, payers, moving };
        Some(Box::new(balancer))
    }

    /// When CPU 0 is to be rung to call it.
    fn rings(&self) -> Option<Time> {
        if self.payers.is_empty() { self.next } else { self.payers.paid }
    }

    /// Whether it is to be called now.
    fn is_called(&self, now: Time) -> bool {
        self.rings().is_some_and(|rings| rings <= now)
    }

    /// Whether somebody is about to come to a CPU, but has another one still.
    pub(super) fn awaits(&self, at: &Moment, cpu: CpuId) -> bool {
        let comes = |going: &&Move| going.to == cpu && at.cpu_of(going.vcpu) == Some(going.from);
        self.moving.iter().any(|going| comes(&going))
    }

    /// What a quantum costs who is split by plan.
    pub(super) fn cost(&self, vcpu: VcpuId) -> Option<Cost> {
        self.planned.as_ref()?.cost(vcpu)
    }

    /// A CPU has been asked: those who left it are where they go. The CPUs to ask for that.
    pub(super) fn arrive_from(&mut self, cpu: CpuId) -> CpuSet {
        let gone = self.moving.extract_if(.., |going| going.from == cpu);
        gone.map(|going| going.to).collect()
    }
}

/// What becomes of facts.
impl Sedf {
    pub(super) fn balancer_joins(&mut self, at: &Moment, vcpu: VcpuId) {
        let Some(balancer) = &mut self.balancer else { return };
        balancer.books.join(vcpu, at.now());
        if balancer.next.is_none() {
            balancer.books.begin(at.now());
            balancer.calls = 0;
            balancer.next = Some(at.now().after(CALL));
        }
    }

    /// Somebody leaves. The CPUs to ask for that.
    pub(super) fn balancer_loses(&mut self, now: Time, vcpu: VcpuId) -> CpuSet {
        let Some(balancer) = &mut self.balancer else { return CpuSet::NONE };
        balancer.books.leave(vcpu);
        balancer.moving.retain(|going| going.vcpu != vcpu);
        if let Some(planned) = &mut balancer.planned {
            planned.leave(vcpu);
        }
        if self.stop_paying(vcpu) { self.payers_changed(now) } else { CpuSet::NONE }
    }

    pub(super) fn balancer_wakes(&mut self, at: &Moment, vcpu: VcpuId) {
        let Some(balancer) = &mut self.balancer else { return };
        balancer.books.wake(vcpu, at.now());
    }

    /// Somebody sleeps from now on. The CPUs to ask for that.
    pub(super) fn balancer_blocks(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let Some(balancer) = &mut self.balancer else { return CpuSet::NONE };
        balancer.books.block(vcpu, at.now());
        let is_due = balancer.next.is_some_and(|next| next <= at.now());
        if is_due { balancer.payers.note_paid(at.now(), vcpu) } else { CpuSet::NONE }
    }

    pub(super) fn balancer_starts(&mut self, at: &Moment, cpu: CpuId) {
        let Some(balancer) = &mut self.balancer else { return };
        balancer.books.set_busy(cpu, true, at.now());
        balancer.books.mark(cpu, at.now());
    }

    pub(super) fn balancer_charges(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) {
        let Some(balancer) = &mut self.balancer else { return };
        let server = &self.servers[vcpu];
        let is_guaranteed = match self.cpus[server.cpu.index()].turn {
            Some(turn) if turn.vcpu == vcpu => turn.right != Right::Extra,
            _ => !server.terms.extra,
        };
        // Who is split and was stopped late may be somewhere else by now.
        let last = at.last_cpu_of(vcpu).filter(|_| server.in_parts.is_some());
        let cpu = last.unwrap_or(server.cpu);
        balancer.books.charge(vcpu, cpu, (ran, is_guaranteed), at.now());
    }

    /// A CPU has been passed. The CPUs to ask because somebody has left it.
    pub(super) fn balancer_passes(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let Some(balancer) = &mut self.balancer else { return CpuSet::NONE };
        balancer.books.set_busy(cpu, self.cpus[cpu.index()].turn.is_some(), at.now());
        let cpus =
            if balancer.moving.is_empty() { CpuSet::NONE } else { balancer.arrive_from(cpu) };
        cpus.iter().for_each(|cpu| self.request(cpu));
        cpus
    }

    /// When it is to be called, or somebody goes on as planned: CPU 0 is rung for that.
    pub(super) fn balancer_alarm(&self, cpu: CpuId) -> Option<Time> {
        let balancer = self.balancer.as_ref().filter(|_| cpu.index() == 0)?;
        let going_on = balancer.planned.as_ref().and_then(Planned::next);
        balancer.rings().into_iter().chain(going_on).min()
    }

    /// The CPUs that are to be measured before CPU 0 rings for it.
    pub(super) fn balancer_measures(&self, at: &Moment, cpu: CpuId) -> CpuSet {
        let Some(balancer) = self.balancer.as_ref().filter(|_| cpu.index() == 0) else {
            return CpuSet::NONE;
        };
        if balancer.is_called(at.now()) && (balancer.calls + 1).is_multiple_of(CALLS_A_SAMPLE) {
            return CpuSet::first_n(self.cpus.len());
        }
        let planned = balancer.planned.as_ref();
        planned.map_or(CpuSet::NONE, |planned| planned.concerns(at.now()))
    }

    /// CPU 0 rang. None if that was not for the balancer; else the CPUs to ask.
    pub(super) fn balancer_rings(&mut self, at: &Moment, cpu: CpuId) -> Option<CpuSet> {
        if self.balancer_alarm(cpu).is_none_or(|alarm| alarm > at.now()) {
            return None;
        }
        let mut cpus = self.go_on(at);
        let called = self.balancer.as_mut().filter(|balancer| balancer.is_called(at.now()));
        if let Some(balancer) = called {
            let calls = balancer.count_call(at.now());
            cpus.add(&self.call(at, calls));
        }
        Some(cpus)
    }

    /// It is called for the so manieth time. The CPUs to ask.
    fn call(&mut self, at: &Moment, calls: u64) -> CpuSet {
        let all: Vec<VcpuId> = at.members().collect();
        if all.is_empty() {
            self.balancer.iter_mut().for_each(|balancer| balancer.next = None);
            return CpuSet::NONE;
        }
        if calls.is_multiple_of(CALLS_A_SAMPLE) {
            self.sample(at, &all);
        }
        if !calls.is_multiple_of(CALLS_A_RUN) {
            return CpuSet::NONE;
        }
        if self.balancer.as_ref().is_some_and(|balancer| balancer.planned.is_none()) {
            let moves = self.swap_moves(at, &all);
            return self.carry_out(at, &moves);
        }
        let moves = self.plan_moves(at, &all);
        let cpus = self.carry_out(at, &moves);
        self.set_paces(at, CpuSet::first_n(self.cpus.len()));
        cpus
    }
}

/// What it does.
impl Sedf {
    /// What a vCPU counts for among those who share slack.
    pub(super) fn slack_weight(&self, vcpu: VcpuId) -> Weight {
        let (above, below) = self.servers[vcpu].terms.slack_weight(self.full_slice(vcpu));
        Weight::fraction(above, below)
    }

    pub(super) fn sample(&mut self, at: &Moment, all: &[VcpuId]) {
        let Some(mut balancer) = self.balancer.take() else { return };
        balancer.books.sample(at.now(), |vcpu| self.slack_weight(vcpu), all);
        self.balancer = Some(balancer);
    }

    /// Who shares the slack of each CPU, and who of those may go.
    pub(super) fn loads(&self, at: &Moment, balancer: &Balancer, all: &[VcpuId]) -> Vec<Load> {
        let load = |cpu| {
            let cpu = CpuId::new(cpu);
            Load::empty(cpu, balancer.books.available(cpu))
        };
        let mut loads: Vec<Load> = (0..self.cpus.len()).map(load).collect();
        for &vcpu in all {
            let server = &self.servers[vcpu];
            if !server.terms.extra || !self.rules.has_extra_queue() {
                continue;
            }
            let full = self.slack_weight(vcpu);
            let weight = balancer.books.weight(vcpu, full);
            let load = &mut loads[server.cpu.index()];
            if server.terms.is_best_effort() {
                let served = balancer.books.served(vcpu, balancer.by_runs);
                let allowed = at.allowed(vcpu);
                let runnable = weight.of_sample(full);
                load.add(Member { vcpu, weight, served, allowed, runnable, lead: 0 });
            } else {
                load.add_staying(weight);
            }
        }
        loads
    }

    /// A run: who swaps CPUs.
    fn swap_moves(&mut self, at: &Moment, all: &[VcpuId]) -> Vec<Move> {
        let Some(mut balancer) = self.balancer.take() else { return Vec::new() };
        if balancer.by_runs {
            balancer.books.average_run(all);
        }
        let mut loads = self.loads(at, &balancer, all);
        let groups = groups::groups(&loads);
        if balancer.rules.by_lead {
            for group in &groups {
                balancer.note_leads(&mut loads, group);
            }
        }
        balancer.books.end_run(all);
        let core_of = |cpu: CpuId| balancer.cores[cpu.index()];
        let moves = pairs::run(&loads, &groups, &balancer.rules, core_of);
        self.balancer = Some(balancer);
        moves
    }

    /// All at once. The CPUs to ask.
    pub(super) fn carry_out(&mut self, at: &Moment, moves: &[Move]) -> CpuSet {
        let mut cpus = CpuSet::NONE;
        for &going in moves.iter().filter(|going| at.is_allowed(going.vcpu, going.to)) {
            self.move_to(at, going);
            cpus.insert(going.from);
            cpus.insert(going.to);
            if let Some(balancer) = &mut self.balancer {
                balancer.moving.push(going);
            }
        }
        cpus
    }

    /// A best-effort vCPU is on another CPU from now on. How far it is ahead of others by its score
    /// goes with it, within one quantum. [balancer A9, A10]
    fn move_to(&mut self, at: &Moment, going: Move) {
        let Move { vcpu, from, to } = going;
        self.stop(at, vcpu);
        self.leave_queues(vcpu);
        let most = self.cost(vcpu, self.rules.quantum);
        let server = &mut self.servers[vcpu];
        server.score = server.score.clamp(super::Score::ZERO, most);
        server.cpu = to;
        let (terms, taken) = (server.terms, server.taken);
        self.cpus[from.index()].tally.remove(&terms, taken);
        self.cpus[to.index()].tally.add(&terms, taken);
        if at.is_awake(vcpu) {
            self.join_queues(at.now(), vcpu);
        }
        self.request(from);
        self.request(to);
    }
}

impl Balancer {
    fn note_leads(&mut self, loads: &mut [Load], group: &[usize]) {
        let members = group.iter().flat_map(|&place| &loads[place].members);
        let members: Vec<VcpuId> = members.map(|member| member.vcpu).collect();
        self.books.note_leads(&members);
        for &place in group {
            for member in &mut loads[place].members {
                member.lead = self.books.lead(member.vcpu);
            }
        }
    }
}
