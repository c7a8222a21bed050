//! Migration of best-effort vCPUs between CPUs: the times at which it is decided, and its
//! execution. The vCPUs are chosen in `balance`.
//!
//! The timer of CPU 0 first expires 50 ms after the first vCPU has joined, and every 50 ms from
//! then on. Every second call measures all CPUs and takes a sample. Every tenth call is a *run*: it
//! decides about migrations. [Diestelhorst §4.4.3] A host with one CPU has no balancer. If a
//! service vCPU is charged for balancing (`service_vcpu`), the timer expires after that vCPU has
//! run for the call.
//!
//! CPUs are rescheduled in order of number. A running vCPU that migrates to a CPU with a lower
//! number is still on its old CPU when the new CPU is rescheduled. So the new CPU decides nothing
//! at that time, and is rescheduled again after the old CPU.

mod planned_rates;
mod planning;
pub(super) mod service_vcpu;

use alloc::boxed::Box;
use alloc::vec::Vec;

use slackline_units::{CpuId, CpuSet, Span, Time, VcpuId};

use super::Sedf;
use super::balancer::planning::PlanState;
use super::balancer::service_vcpu::BalancerVcpus;
use super::pass::BudgetSource;
use super::terms::Cost;
use crate::balance::books::LoadSamples;
use crate::balance::fields::Settings;
use crate::balance::pairs::{self, SwapRules};
use crate::balance::{BalancerCpu, CALL, Member, Move, RUN, SAMPLE, Weight, groups};
use crate::{Moment, Topology, Values};

/// Number of balancer calls for each sample. [Diestelhorst §4.4.3]
const CALLS_A_SAMPLE: u64 = SAMPLE.ns() / CALL.ns();
const CALLS_A_RUN: u64 = RUN.ns() / CALL.ns();

/// State of the balancer: its rules, its samples, and the migrations in progress.
#[derive(Debug)]
pub(super) struct Balancer {
    rules: SwapRules,
    /// True if tau (CPU time per weight) is averaged over runs, false if over samples.
    by_runs: bool,
    pub(super) books: LoadSamples,
    /// Plan and the state of its execution. `None` if the balancer swaps vCPUs.
    pub(super) planned: Option<PlanState>,
    /// Hardware threads of each CPU's core, indexed by CPU.
    cores: Vec<CpuSet>,
    /// Time of the next balancer call. `None` while there are no vCPUs.
    next: Option<Time>,
    /// Number of balancer calls since the first vCPU joined.
    calls: u64,
    /// vCPUs that are charged for balancing.
    pub(super) payers: BalancerVcpus,
    /// Migrations of this instant whose old CPU has not been rescheduled yet.
    moving: Vec<Move>,
}

impl Balancer {
    /// Counts a balancer call and sets the time of the next call. A late call does not delay later
    /// calls. Returns the number of the call.
    fn count_call(&mut self, now: Time) -> u64 {
        self.skip(now);
        self.calls += 1;
        self.calls
    }

    /// Moves the next balancer call to the first multiple of the interval after `now`.
    pub(super) fn skip(&mut self, now: Time) {
        if let Some(next) = self.next.filter(|&next| next <= now) {
            let missed = now.since(next) / CALL;
            self.next = Some(next.after(CALL * (missed + 1)));
        }
        self.payers.paid = None;
    }

    /// Creates the balancer. `None` if the parameters select no balancer or the host has one CPU.
    pub(super) fn read(values: &Values, topology: &Topology) -> Option<Box<Balancer>> {
        let Settings { rules, by_runs, plans, believed, keeps } = Settings::read(values)?;
        if topology.cpus() == 1 {
            return None;
        }
        let cores: Vec<CpuSet> =
            (0..topology.cpus()).map(|cpu| topology.core_of(CpuId::new(cpu))).collect();
        let siblings = |cpu: CpuId| cores[cpu.index()].without(&CpuSet::one(cpu));
        let books = LoadSamples::new(topology.cpus(), siblings, believed);
        let planned = plans.then(PlanState::default);
        let (next, calls, moving) = (None, 0, Vec::new());
        let payers = BalancerVcpus::new(keeps);
        let balancer =
            Balancer { rules, by_runs, books, planned, cores, next, calls, payers, moving };
        Some(Box::new(balancer))
    }

    /// Returns the time at which the timer of CPU 0 expires for a balancer call. With a service
    /// vCPU, this is the time at which it blocked after running for the call, `None` until then.
    /// Without one, this is the time of the next call, `None` while there are no vCPUs.
    fn rings(&self) -> Option<Time> {
        if self.payers.is_empty() { self.next } else { self.payers.paid }
    }

    /// Returns true if the balancer is to be called now.
    fn is_called(&self, now: Time) -> bool {
        self.rings().is_some_and(|rings| rings <= now)
    }

    /// Returns true if a vCPU is migrating to this CPU but still occupies another CPU.
    pub(super) fn awaits(&self, at: &Moment, cpu: CpuId) -> bool {
        let comes = |going: &&Move| going.to == cpu && at.cpu_of(going.vcpu) == Some(going.from);
        self.moving.iter().any(|going| comes(&going))
    }

    /// Returns the cost of a quantum of slack for a vCPU that the balancer's plan splits. `None`
    /// for any other vCPU.
    pub(super) fn cost(&self, vcpu: VcpuId) -> Option<Cost> {
        self.planned.as_ref()?.cost(vcpu)
    }

    /// Completes the migrations away from a CPU that was rescheduled. Returns the CPUs to
    /// reschedule.
    pub(super) fn arrive_from(&mut self, cpu: CpuId) -> CpuSet {
        let gone = self.moving.extract_if(.., |going| going.from == cpu);
        gone.map(|going| going.to).collect()
    }
}

/// Event handlers of the balancer.
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

    /// Handles a vCPU that leaves the host. Returns the CPUs to reschedule.
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

    /// Handles a vCPU that blocks. Returns the CPUs to reschedule.
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
            Some(turn) if turn.vcpu == vcpu => turn.right != BudgetSource::Extra,
            _ => !server.terms.extra,
        };
        // A split vCPU that was stopped late may be assigned to another CPU by now.
        let last = at.last_cpu_of(vcpu).filter(|_| server.in_parts.is_some());
        let cpu = last.unwrap_or(server.cpu);
        balancer.books.charge(vcpu, cpu, (ran, is_guaranteed), at.now());
    }

    /// Handles the scheduling pass of a CPU. Returns the CPUs to reschedule: those to which vCPUs
    /// have migrated from this CPU.
    pub(super) fn balancer_passes(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let Some(balancer) = &mut self.balancer else { return CpuSet::NONE };
        balancer.books.set_busy(cpu, self.cpus[cpu.index()].turn.is_some(), at.now());
        let cpus =
            if balancer.moving.is_empty() { CpuSet::NONE } else { balancer.arrive_from(cpu) };
        cpus.iter().for_each(|cpu| self.request(cpu));
        cpus
    }

    /// Returns the time of the next balancer call or planned migration. `None` if there is none, or
    /// if `cpu` is not CPU 0.
    pub(super) fn balancer_alarm(&self, cpu: CpuId) -> Option<Time> {
        let balancer = self.balancer.as_ref().filter(|_| cpu.index() == 0)?;
        let going_on = balancer.planned.as_ref().and_then(PlanState::next);
        balancer.rings().into_iter().chain(going_on).min()
    }

    /// Returns the CPUs whose occupants must be charged before the timer of CPU 0 is handled.
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

    /// Handles the timer of CPU 0. Returns the CPUs to reschedule, or `None` if the timer was not
    /// for the balancer.
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

    /// Makes the balancer call with the number `calls`. Returns the CPUs to reschedule.
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

/// Loads of CPUs, weights of vCPUs, and execution of migrations.
impl Sedf {
    /// Returns the weight by which a vCPU shares slack.
    pub(super) fn slack_weight(&self, vcpu: VcpuId) -> Weight {
        let (above, below) = self.servers[vcpu].terms.slack_weight(self.full_slice(vcpu));
        Weight::fraction(above, below)
    }

    /// Takes a sample of all vCPUs and CPUs.
    pub(super) fn sample(&mut self, at: &Moment, all: &[VcpuId]) {
        let Some(mut balancer) = self.balancer.take() else { return };
        balancer.books.sample(at.now(), |vcpu| self.slack_weight(vcpu), all);
        self.balancer = Some(balancer);
    }

    /// Returns the load of each CPU: the weight of the vCPUs that share its slack, and the vCPUs
    /// among them that may migrate.
    pub(super) fn loads(
        &self,
        at: &Moment,
        balancer: &Balancer,
        all: &[VcpuId],
    ) -> Vec<BalancerCpu> {
        let load = |cpu| {
            let cpu = CpuId::new(cpu);
            BalancerCpu::empty(cpu, balancer.books.available(cpu))
        };
        let mut loads: Vec<BalancerCpu> = (0..self.cpus.len()).map(load).collect();
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

    /// Makes a run of the balancer and returns the migrations of its swaps.
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

    /// Carries out all migrations. Returns the CPUs to reschedule.
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

    /// Moves a best-effort vCPU to another CPU. The vCPU keeps its slack score relative to the base
    /// score of the queue, limited to between zero and the cost of one quantum. [balancer A9, A10]
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
    /// Updates the leads (CPU time received beyond the fair share) of the vCPUs on the CPUs in
    /// `group`, and copies the leads to `loads`.
    fn note_leads(&mut self, loads: &mut [BalancerCpu], group: &[usize]) {
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
